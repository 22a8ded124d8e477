/* The page of a server: it asks for what its models do, and shows their answers as one types. */

const byId = id => document.getElementById(id);
const [input, output, mirror, rows, sourceMenu, targetMenu, modelMenu] = ["input", "output", "mirror", "rows", "source", "target", "model"].map(byId);
const strings = await (await fetch("strings.json")).json();

const PAUSE = 220; /* milliseconds without a key before a text is sent */
const SHORT = 300; /* up to so many characters a text is set large, and gets alternatives */
const NUM_BEST = 3;
const BEAMS = 4; /* of a model that does not tell how many it takes */
const SURE = 0.8; /* below this a detected language is doubtful */
const LONGEST_WAIT = 30; /* seconds before a failed request is sent again */
const STATUSES = { too_long: 413, overloaded: 429, unavailable: 503, timed_out: 504 }; /* of errors within an answer that streams */
const MAC = /Mac|iP(hone|ad)/.test(navigator.platform);

/* For each task: the route, whether it answers while one types, and what is sent beside the text. */
const TASKS = {
  translation: { route: "v1/translate", live: true, body: translationBody, show: showTranslation },
  "language-model": { route: "v1/generate", live: false, body: generationBody, show: showGeneration },
  classification: { route: "v1/classify", live: true, body: answerBody, show: showRows },
  "masked-tokens": { route: "v1/fill", live: true, body: answerBody, show: showRows },
  "next-item": { route: "v1/recommend", live: true, body: answerBody, show: showRows },
};

/* `links` are [begin, end] of words in the source and in the translation, in units of JavaScript's strings. */
const state = { models: [], task: "translation", fileName: "", links: [], sentences: [], answer: null, detected: null, failures: 0 };
let running = null; /* the controller of the request that runs */
let waiting = 0; /* the timer of the next request */

/* ---- Texts ---- */

const number = new Intl.NumberFormat(strings.language);
const hundredths = new Intl.NumberFormat(strings.language, { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const percent = new Intl.NumberFormat(strings.language, { style: "percent", maximumFractionDigits: 1 });
const languageNames = new Intl.DisplayNames(strings.language, { type: "language" });

function say(name, values = {}) {
  return (strings[name] ?? name).replace(/\{(\w+)\}/g, (_, key) => values[key] ?? "");
}

const tag = code => code.replaceAll("_", "-"); /* such as de_DE, as browsers know it */

function languageName(code) {
  try { return languageNames.of(tag(code)); } catch { return code; }
}

/* Text from anywhere becomes text nodes alone, never markup. */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function fillTexts() {
  document.title = say("name");
  document.documentElement.lang = strings.language;
  for (const one of document.querySelectorAll("[data-text]")) one.textContent = say(one.dataset.text);
  for (const one of document.querySelectorAll("[data-label]")) one.setAttribute("aria-label", say(one.dataset.label));
  for (const one of document.querySelectorAll("[data-key]")) {
    one.title = `${one.getAttribute("aria-label") ?? one.innerText.trim()} (${keyName(one)})`;
    one.setAttribute("aria-keyshortcuts", `${MAC ? "Control" : "Alt"}+Shift+${one.dataset.key}`);
  }
}

const keyName = button => (MAC ? "⌃⇧" : "Alt+Shift+") + button.dataset.key;

/* What is quiet is not read aloud, as the answer is. */
function tell(text, { isError = false, isQuiet = false, again = "" } = {}) {
  byId("status").ariaLive = isQuiet ? "off" : "polite";
  byId("status").textContent = text;
  byId("status").classList.toggle("error", isError);
  byId("again").hidden = !again;
  byId("again").textContent = again;
}

/* ---- The server ---- */

class Failure extends Error {
  constructor(status, message = "", wait = null) {
    super(message);
    Object.assign(this, { status, wait });
  }
}

async function call(route, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { ...(options.body && { "Content-Type": "application/json" }), ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(route, { ...options, headers, cache: "no-store" });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Failure(0);
  }
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  throw new Failure(response.status, error?.message ?? response.statusText, parseFloat(response.headers.get("Retry-After")));
}

/* The server-sent events of an answer. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part; !(part = await reader.read()).done;) {
    text += part.value;
    const blocks = text.split(/\r?\n\r?\n/);
    text = blocks.pop();
    for (const block of blocks) {
      const field = name => block.split(/\r?\n/).filter(line => line.startsWith(`${name}:`)).map(line => line.slice(name.length + 1).trim()).join("\n");
      if (field("data")) yield { name: field("event"), data: JSON.parse(field("data")) };
    }
  }
}

/* The whole answer; `onItem` gets the parts of one that streams. */
async function exchange(route, body, signal, onItem) {
  const response = await call(route, { method: "POST", body: JSON.stringify(body), signal });
  if (!response.headers.get("Content-Type").startsWith("text/event-stream")) return response.json();
  try {
    for await (const { name, data } of events(response.body)) {
      if (name === "error") throw new Failure(STATUSES[data.error.code] ?? 500, data.error.message);
      if (name === "done") return data;
      onItem(data);
    }
  } catch (error) {
    throw error instanceof TypeError ? new Failure(504, say("broken_off")) : error;
  }
  throw new Failure(504, say("broken_off"));
}

/* ---- Asking ---- */

const served = () => state.models.filter(model => model.task === state.task);
const characters = text => [...text].length;

/* The models that translate between the chosen languages, or the one that is chosen by name. */
function candidates() {
  return served().filter(model => modelMenu.value ? model.name === modelMenu.value : serves(model, sourceMenu.value, targetMenu.value));
}

function serves(model, source, target) {
  return pairsOf(model).some(([from, to]) => (source === "auto" || from === source) && to === target);
}

const pairsOf = model => model.pairs?.length ? model.pairs : model.source_language ? [[model.source_language, model.target_language]] : [];
const chosenPairs = () => served().filter(model => !modelMenu.value || model.name === modelMenu.value).flatMap(pairsOf);
const limit = name => Math.min(...served().map(model => model.limits?.[name] ?? Infinity));

function translationBody(text) {
  const [model] = candidates(), most = Math.min(NUM_BEST, limit("max_beams"));
  const languages = pairsOf(model).length ? { source: sourceMenu.value, target: targetMenu.value } : {};
  const named = modelMenu.value ? { model: model.name } : {};
  const best = text.length <= SHORT && !text.includes("\n") ? { n_best: most, beams: Math.max(model.beams ?? BEAMS, most) } : {};
  return { text, ...languages, ...named, ...best, ...(model.words && { words: true }), stream: true };
}

function generationBody(prompt) {
  return { prompt, model: modelName(), max_tokens: Number(byId("max-tokens").value), temperature: Number(byId("temperature").value), stream: true };
}

function answerBody(text) {
  const history = state.task === "next-item";
  return { inputs: [history ? text.split("\n").map(item => item.trim()).filter(Boolean) : text], model: modelName() };
}

const modelName = () => modelMenu.value || candidates()[0]?.name;

function halt() {
  clearTimeout(waiting);
  running?.abort();
  running = null;
  output.removeAttribute("aria-busy");
  byId("stop").hidden = true;
  byId("generate").hidden = false;
  byId("progress").hidden = true;
}

/* What stands in the answer becomes a draft until the next one is there. */
function draft() {
  byId("to").classList.add("draft");
  output.setAttribute("aria-busy", "true");
  look([]);
  state.links = [];
}

function edited() {
  const isBlank = !input.value.trim();
  showSource();
  if (!state.models.length || !(isBlank || TASKS[state.task].live)) return;
  halt();
  state.failures = 0;
  if (isBlank) return empty();
  draft();
  waiting = setTimeout(ask, PAUSE);
}

async function ask() {
  halt();
  const { task } = state, text = input.value, count = characters(text), most = limit("max_characters");
  if (!text.trim() || !served().length) return;
  if (count > most) return tell(say("too_many_characters", { count: number.format(count), most: number.format(most) }), { isError: true });
  const { signal } = running = new AbortController(), begin = performance.now(), sentences = [];
  draft();
  if (!TASKS[task].live) startGeneration();
  try {
    const answer = await exchange(TASKS[task].route, TASKS[task].body(text), signal, item => showItem(item, sentences));
    const taken = hundredths.format((performance.now() - begin) / 1000);
    if (signal.aborted) return;
    halt();
    state.failures = 0;
    TASKS[task].show(answer, sentences);
    settle();
    const { num_unknown: unknown } = answer.answers?.[0] ?? {};
    if (unknown) return tell(say("unknown_items", { count: number.format(unknown) }));
    const finish = answer.texts?.[0]?.finish_reason === "length" ? "done_length" : "done";
    tell(say(finish, { seconds: taken, model: answer.model ?? modelName() }), { isQuiet: true });
  } catch (error) {
    if (!signal.aborted) failed(error, ask);
  }
}

function settle() {
  byId("to").classList.remove("draft");
  for (const id of ["copying", "saving"]) byId(id).disabled = !answerText();
  fit();
}

/* Tells what went wrong. What may go well later is tried again, after longer and longer waits. */
function failed(error, retry) {
  halt();
  if (!(error instanceof Failure)) reportError(error);
  const { status = 500, message } = error, later = { 0: "offline", 429: "busy", 503: "loading" }[status];
  if (status === 401 || status === 403) return askForKey(retry);
  if (later) {
    const wait = Math.min(error.wait || 2 ** state.failures++, LONGEST_WAIT);
    waiting = setTimeout(retry, wait * 1000);
    tell(say(later, { seconds: number.format(Math.ceil(wait)) }), { isError: true, again: say("now") });
  } else {
    const told = status === 413 ? say("too_long", { message }) : status === 504 ? message || say("timed_out") : say("failed", { message });
    tell(told, { isError: true, again: status >= 500 ? say("again") : "" });
  }
  byId("again").onclick = () => { clearTimeout(waiting); retry(); };
}

function askForKey(retry) {
  const dialog = byId("key");
  dialog.onclose = () => {
    if (dialog.returnValue !== "use") return tell(say("key_title"), { isError: true, again: say("again") });
    sessionStorage.setItem("key", byId("key-value").value);
    retry();
  };
  byId("again").onclick = retry;
  dialog.returnValue = "";
  dialog.showModal();
}

/* ---- Showing ---- */

/* Long texts are set smaller, both alike. */
function fit() {
  byId("panes").classList.toggle("long", Math.max(input.value.length, output.textContent.length) > SHORT);
}

function showSource() {
  const text = input.value, most = limit("max_characters");
  mirror.textContent = `${text}\n`;
  fit();
  byId("clearing").hidden = !text;
  byId("count").textContent = most < Infinity ? say("count", { count: number.format(characters(text)), most: number.format(most) }) : number.format(characters(text));
}

function empty() {
  Object.assign(state, { links: [], sentences: [], answer: null, detected: null });
  look([]);
  output.replaceChildren(element("span", { class: "hint" }, say(`empty_${state.task}`)));
  output.lang = byId("score").textContent = "";
  rows.replaceChildren();
  rows.hidden = true;
  output.hidden = false;
  settle();
  showOthers([]);
  showDetected();
  tell("");
}

/* A sentence or some new text of an answer that streams. Sentences of the draft stand where new ones are still due. */
function showItem(item, sentences) {
  if (state.task === "language-model") return output.append(item.text);
  sentences[item.sentence] = item;
  const parts = Array.from({ length: item.num_sentences }, (_, at) => {
    const [before, part] = [at - 1, at].map(place => sentences[place] ?? state.sentences[place]);
    return element("span", { class: sentences[at] ? "fresh" : "" }, part ? between(before, part) + part.text : before || !at ? " …" : "");
  });
  const done = sentences.filter(Boolean).length;
  if (item.num_sentences > 1) {
    output.replaceChildren(...parts);
    Object.assign(byId("progress"), { hidden: false, max: item.num_sentences, value: done });
    tell(say("sentences", { done: number.format(done), all: number.format(item.num_sentences) }), { isQuiet: true });
  }
}

/* What stands between a sentence and the one before: the breaks of the lines that are not blank, or a space. */
function between(before, { line = 0 }) {
  const breaks = input.value.trim().match(/\s*\n\s*/g) ?? [], some = breaks.slice(before?.line ?? line, line);
  return some.join("").replace(/[^\n]/g, "") || (before ? " " : "");
}

function showTranslation({ translations: [answer] }, sentences) {
  Object.assign(state, { answer, sentences, detected: answer.detected ?? null });
  const choices = [answer, ...(answer.alternatives ?? []).filter(other => other.text !== answer.text)];
  choose(choices, 0);
  showDetected();
}

/* Shows one of several translations; the others stand below, to be chosen. */
function choose(choices, at) {
  const { text, score, words } = choices[at];
  output.lang = tag(targetMenu.value);
  output.replaceChildren(text);
  byId("score").textContent = typeof score === "number" ? say("score", { score: shownScore(score) }) : "";
  const source = places(input.value), target = places(text);
  state.links = (words ?? []).map(word => ({ source: word.source.map(place => source[place]), target: word.target.map(place => target[place]) }));
  showOthers(choices.length > 1 ? choices : [], at);
}

const shownScore = score => hundredths.format(score).replace("-", "−");

function showOthers(choices, chosen = 0) {
  const others = choices.map((choice, at) => {
    const button = element("button", { type: "button", dir: "auto" }, element("span", { lang: tag(targetMenu.value) }, choice.text), element("small", { dir: "ltr" }, shownScore(choice.score)));
    button.addEventListener("click", () => { look([]); choose(choices, at); });
    return element("li", {}, button);
  });
  byId("others").hidden = !choices.length;
  byId("others").lastElementChild.replaceChildren(...others.filter((_, at) => at !== chosen));
}

/* The language that was detected, and whether a model goes the other way. */
function showDetected() {
  const { detected } = state, option = sourceMenu.querySelector("[value=auto]"), pairs = chosenPairs();
  byId("swapping").hidden = !pairs.some(([source, target]) => pairs.some(([from, to]) => from === target && to === source));
  byId("swapping").disabled = !pairs.some(([from, to]) => from === targetMenu.value && to === knownSource());
  if (option) option.textContent = !detected ? say("detect") : say(detected.confidence < SURE ? "detected_unsure" : "detected", { language: languageName(detected.language) });
}

function startGeneration() {
  byId("stop").hidden = false;
  byId("generate").hidden = true;
  settle();
  output.setAttribute("aria-busy", "true");
  output.replaceChildren();
}

function showGeneration({ texts: [answer] }) {
  output.replaceChildren(answer.text);
}

/* Labels, items, or the words of each mask, as pairs with their probabilities. */
function choicesOf({ label, probability, labels, items, fills }) {
  const lists = fills ?? [labels ?? items ?? { [label]: probability }];
  const spelled = name => fills ? name.replaceAll("▁", " ").trim() || "␣" : name; /* a token has its space as a sign */
  const named = (name, at) => lists.length > 1 ? `${at + 1}: ${spelled(name)}` : spelled(name);
  return lists.flatMap((list, at) => Object.entries(list ?? {}).sort((one, other) => other[1] - one[1]).map(([name, share]) => [named(name, at), share]));
}

/* Shows them as bars. */
function showRows({ answers: [answer] }) {
  rows.replaceChildren(...choicesOf(answer).map(([name, share]) => {
    const row = element("li", {}, element("bdi", {}, name), element("span", {}, percent.format(share)));
    row.style.setProperty("--share", share);
    return row;
  }));
  rows.hidden = false;
  output.hidden = true;
}

/* ---- Where each word looked ---- */

/* For each character's index, counted as Unicode does, its place in a string of JavaScript. */
function places(text) {
  const found = [0];
  for (const character of text) found.push(found.at(-1) + character.length);
  return found;
}

const covers = ([begin, end], offset) => begin <= offset && offset < end;
const linksAt = (side, offset) => state.links.filter(link => covers(link[side], offset));

/* The word of a link on one side. What is typed has the place of its mirror. */
function rangeOf(link, side) {
  const range = new Range(), { firstChild } = side === "source" ? mirror : output, [begin, end] = link[side];
  range.setStart(firstChild, begin);
  range.setEnd(firstChild, end);
  return range;
}

/* Marks the words of links, here and there. */
function look(links) {
  const ranges = links.flatMap(link => ["source", "target"].map(side => rangeOf(link, side)));
  if (window.Highlight) CSS.highlights.set("looked", new Highlight(...ranges));
}

const words = (links, side, text) => [...new Set(links.map(link => text.slice(...link[side])))].join(" ");

function lookAloud(links) {
  look(links);
  const [source, target] = [words(links, "source", input.value), words(links, "target", output.textContent)];
  byId("spoken").textContent = links.length ? say("looked", { source, target }) : "";
}

/* The links of the word under the pointer. */
function linksUnder({ clientX, clientY }) {
  const place = document.caretPositionFromPoint?.(clientX, clientY);
  const side = place?.offsetNode === input ? "source" : place?.offsetNode === output.firstChild ? "target" : "";
  const isUnder = ({ left, right, top, bottom }) => left <= clientX && clientX <= right && top <= clientY && clientY <= bottom;
  return side ? linksNear(side, place.offset).filter(link => [...rangeOf(link, side).getClientRects()].some(isUnder)) : [];
}

/* A place between two characters belongs to a word on either side. */
const linksNear = (side, offset) => [offset, offset - 1].map(place => linksAt(side, place)).find(links => links.length) ?? [];

/* Arrow keys go through the words of the translation that have links. */
function walk(event) {
  const begins = [...new Set(state.links.map(link => link.target[0]))].sort((one, other) => one - other);
  const at = begins.indexOf(walk.begin), forward = getComputedStyle(output).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
  const next = { Home: 0, End: begins.length - 1, ArrowLeft: at - 1, ArrowRight: at + 1, [forward]: at + 1 };
  if (forward === "ArrowLeft") next.ArrowRight = at - 1;
  if (event.key === "Escape") return lookAloud([]);
  if (!(event.key in next) || !begins.length || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  event.preventDefault();
  walk.begin = begins[Math.min(Math.max(next[event.key], 0), begins.length - 1)];
  lookAloud(linksAt("target", walk.begin));
}

/* ---- Models and languages ---- */

function fillMenu(menu, options, chosen) {
  menu.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  if (options.some(([value]) => value === chosen)) menu.value = chosen;
}

const unique = values => [...new Set(values)];

function showLanguages() {
  const pairs = chosenPairs();
  const sources = unique(pairs.map(([source]) => source)), detects = sources.length > 1;
  const named = codes => codes.map(code => [code, languageName(code)]).sort(([, one], [, other]) => one.localeCompare(other, strings.language));
  const unknown = [["", say("any_language")]];
  fillMenu(sourceMenu, [...(detects ? [["auto", say("detect")]] : []), ...(pairs.length ? named(sources) : unknown)], sourceMenu.value);
  const targets = unique(pairs.filter(([source]) => ["auto", source].includes(sourceMenu.value)).map(([, target]) => target));
  fillMenu(targetMenu, pairs.length ? named(targets) : unknown, targetMenu.value || targets[0]);
  for (const menu of [sourceMenu, targetMenu]) menu.disabled = menu.length < 2;
  showDetected();
  input.lang = sourceMenu.value === "auto" ? "" : tag(sourceMenu.value);
  showBadge();
}

const knownSource = () => sourceMenu.value === "auto" ? state.detected?.language : sourceMenu.value;

function swap() {
  const source = knownSource(), target = targetMenu.value, text = state.answer ? output.textContent : "";
  sourceMenu.value = target;
  showLanguages();
  targetMenu.value = source;
  if (text) input.value = text;
  showLanguages();
  edited();
}

function showTask(task) {
  state.task = task;
  halt();
  document.title = `${say(`title_${task}`)} · ${say("name")}`;
  for (const button of byId("tasks").children) button.setAttribute("aria-current", button.value === task ? "page" : "false");
  input.placeholder = say(`hint_${task}`);
  input.setAttribute("aria-label", say(`hint_${task}`));
  const translates = task === "translation";
  byId("languages").hidden = !translates;
  byId("generation").hidden = task !== "language-model";
  const models = served(), byLanguages = translates && models.some(model => pairsOf(model).length);
  fillMenu(modelMenu, [...(byLanguages ? [["", say("model_by_languages")]] : []), ...models.map(({ name }) => [name, name])], modelMenu.value);
  byId("models").hidden = models.length < 2;
  byId("max-tokens").max = limit("max_new_tokens");
  if (translates) showLanguages(); else showBadge();
  empty();
  edited();
}

const certificateOf = model => !model?.certificate?.artefacts.length ? "uncertified" : model.certificate.holds ? "certified" : "not_certified";
const shownModel = () => state.task === "translation" ? candidates()[0] : served().find(model => model.name === modelName());

function showBadge() {
  const kind = certificateOf(shownModel());
  byId("badge").hidden = !shownModel();
  byId("badge").className = kind;
  byId("badge").lastElementChild.textContent = say(kind);
  byId("badge").querySelector("use").setAttribute("href", kind === "certified" ? "#seal" : "#warn");
}

function showCertificate() {
  const model = shownModel(), artefacts = model.certificate?.artefacts ?? [], dialog = byId("certificate");
  const pairs = pairsOf(model).map(pair => pair.map(languageName).join(" → ")).join(", ");
  const limits = Object.entries(model.limits ?? {}).filter(([name]) => `limit_${name}` in strings);
  const facts = [["languages", pairs], ["precision", model.precision], ["sha", model.sha], ...limits.map(([name, value]) => [`limit_${name}`, number.format(value)])];
  byId("certificate-title").textContent = model.name;
  byId("certificate-told").textContent = say(`${certificateOf(model)}_told`);
  dialog.querySelector("thead tr").replaceChildren(...["artefact", "holds"].map(name => element("th", { scope: "col" }, say(name))));
  dialog.querySelector("tbody").replaceChildren(...artefacts.map(({ name, holds }) =>
    element("tr", {}, element("td", {}, name), element("td", { class: holds ? "" : "error" }, say(holds ? "yes" : "no")))));
  dialog.querySelector(".wide").hidden = !artefacts.length;
  fillList(dialog, facts.filter(([, value]) => value).map(([name, value]) => [say(name), value]));
  dialog.showModal();
}

const fillList = (dialog, facts) => dialog.querySelector("dl").replaceChildren(...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));

function showKeyboard() {
  const buttons = [...document.querySelectorAll("[data-key]")].map(button => [button.getAttribute("aria-label") ?? button.textContent.trim(), keyName(button)]);
  fillList(byId("keyboard"), [[say("keyboard_now"), MAC ? "⌘↩" : "Ctrl+Enter"], [say("keyboard_stop"), "Esc"], ...buttons, [say("keyboard_words"), say("arrows")]]);
  byId("keyboard").showModal();
}

async function start() {
  try {
    const { models } = await (await call("v1/models")).json();
    state.models = models.filter(model => model.task in TASKS);
    if (!models.length) throw new Failure(503);
  } catch (error) {
    return failed(error, start);
  }
  const tasks = unique(state.models.map(model => model.task));
  byId("tasks").hidden = tasks.length < 2;
  byId("tasks").replaceChildren(...tasks.map(task => {
    const button = element("button", { type: "button", value: task }, say(`title_${task}`));
    button.addEventListener("click", () => showTask(task));
    return button;
  }));
  state.failures = 0;
  showTask(tasks.includes(state.task) ? state.task : tasks[0] ?? state.task);
  if (!tasks.length) tell(say("nothing_served"), { isError: true });
}

/* ---- Files and the clipboard ---- */

async function openFile(file) {
  const most = limit("max_characters"), { name } = file;
  if (file.size > 4 * most) return tell(say("file_too_large", { name, most: number.format(most) }), { isError: true });
  try {
    input.value = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    return tell(say("not_text", { name }), { isError: true });
  }
  state.fileName = name;
  edited();
}

const answerText = () => rows.hidden ? (input.value.trim() ? output.textContent : "") : [...rows.children].map(row => [...row.children].map(cell => cell.textContent).join("\t")).join("\n");

function save() {
  const stem = state.fileName.replace(/\.[^.]*$/, "") || say(`title_${state.task}`).toLowerCase();
  const name = `${stem}${targetMenu.value && state.task === "translation" ? `.${targetMenu.value}` : ""}.txt`;
  const address = URL.createObjectURL(new Blob([answerText()], { type: "text/plain;charset=utf-8" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  tell(say("saved_as", { name }));
}

async function copy() {
  try {
    await navigator.clipboard.writeText(answerText());
  } catch { /* pages without https have the old way alone */
    getSelection().selectAllChildren(rows.hidden ? output : rows);
    document.execCommand("copy");
  }
  tell(say("copied"));
}

/* ---- Keys, pointers, and the beginning ---- */

function pressed(event) {
  const held = MAC ? event.ctrlKey && !event.altKey : event.altKey && !event.ctrlKey && !event.getModifierState("AltGraph");
  const button = held && event.shiftKey && document.querySelector(`[data-key="${event.code.replace("Key", "")}"]`);
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
  else if (event.key === "Escape" && running) stop();
  else if (button) button.click();
  else return;
  event.preventDefault();
}

function stop() {
  const { live } = TASKS[state.task];
  halt();
  if (!live) settle();
  tell(say("stopped"), { again: live ? say("again") : "" });
  byId("again").onclick = ask;
}

function dropped(event) {
  const [file] = event.dataTransfer.files;
  document.body.classList.toggle("dropping", event.type === "dragover" && event.dataTransfer.types.includes("Files"));
  if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  if (event.type === "drop" && file) openFile(file);
}

const clicks = {
  swapping: swap, generate: ask, stop, copying: copy, saving: save, badge: showCertificate, shortcuts: showKeyboard,
  opening: () => byId("file").click(),
  clearing: () => { input.value = state.fileName = ""; edited(); input.focus(); },
};
for (const [id, action] of Object.entries(clicks)) byId(id).addEventListener("click", action);
for (const type of ["dragover", "dragleave", "drop"]) document.addEventListener(type, dropped);
for (const type of ["pointermove", "click"]) byId("panes").addEventListener(type, event => look(linksUnder(event)));
byId("panes").addEventListener("pointerleave", () => look([]));
document.addEventListener("keydown", pressed);
document.addEventListener("selectionchange", () => { if (document.activeElement === input) look(linksNear("source", input.selectionStart)); });
window.addEventListener("online", () => { if (waiting && state.failures) byId("again").click(); });
input.addEventListener("input", edited);
output.addEventListener("keydown", walk);
output.addEventListener("blur", () => { walk.begin = null; look([]); });
byId("file").addEventListener("change", event => { openFile(event.target.files[0]); event.target.value = ""; });
byId("temperature").addEventListener("input", event => { byId("temperature-told").value = event.target.value; });
byId("temperature-told").value = byId("temperature").value;
for (const menu of [sourceMenu, targetMenu, modelMenu]) menu.addEventListener("change", () => { state.detected = null; showLanguages(); edited(); });

fillTexts();
await start();
