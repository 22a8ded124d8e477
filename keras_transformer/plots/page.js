"use strict";

const byId = id => document.getElementById(id);
const ATTENTIONS = JSON.parse(byId("data").textContent);
const SHADES = 20; /* steps of colour in the heat map */
const LEAST = 0.02; /* weaker lines are drawn for a chosen token alone */
const LARGE = 10000; /* with more cells far rows are laid out late */
const MANY = 24; /* with more keys the heat map has small cells, without visible numbers */
const WIDE = 40; /* with more keys the heat map takes the whole width */

/* What is looked at. A place is a query and a key, either may be null; `hovered` goes before `chosen`. */
const state = { attention: ATTENTIONS[0], unit: "words", view: "lines", layer: null, head: "mean", chosen: null, hovered: null };
let shown; /* the scores, and the labels of rows and columns, that the view shows */

/* Text from the data becomes text nodes alone, never markup. */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/* A token, apart from its neighbours, so that the direction of its script does not change theirs. */
const token = label => element("bdi", {}, label);
const quoted = label => element("b", {}, "'", token(label), "'");

/* ---- The numbers ---- */

/* The scores of every head, in bytes of 255ths, as floats between pieces or words: a word's keys are added up, its
   queries are averaged. */
function decoded(attention, unit) {
  const [rows, columns] = [attention.queries, attention.keys].map(({ pieces, wordOf }) => unit === "words" ? wordOf : [...pieces.keys()]);
  const height = attention.queries[unit].length, width = attention.keys[unit].length;
  const share = new Float32Array(height), bytes = atob(attention.scores);
  for (const row of rows) share[row] += 255;
  let next = 0;
  return Array.from({ length: attention.layers * attention.heads }, () => {
    const scores = new Float32Array(height * width);
    for (const row of rows) for (const column of columns) scores[row * width + column] += bytes.charCodeAt(next++) / share[row];
    return scores;
  });
}

function allHeads() {
  const { attention, unit } = state;
  attention.decoded ??= {};
  return attention.decoded[unit] ??= decoded(attention, unit);
}

/* The scores of a head, or the mean or the maximum over the heads of a layer, or of all layers where that is null. */
function scoresOf(layer, head) {
  const all = allHeads(), count = state.attention.heads;
  if (typeof head === "number") return all[layer * count + head];
  const some = layer === null ? all : all.slice(layer * count, (layer + 1) * count);
  const scores = some[0].slice();
  for (const other of some.slice(1)) {
    for (let at = 0; at < scores.length; at++) scores[at] = head === "mean" ? scores[at] + other[at] : Math.max(scores[at], other[at]);
  }
  return head === "mean" ? scores.map(score => score / some.length) : scores;
}

function nameOf(layer, head) {
  if (typeof head === "number") return `head ${layer + 1}.${head + 1}`;
  const kind = head === "mean" ? "mean" : "maximum";
  return layer === null ? `${kind} of all heads` : `${kind} of layer ${layer + 1}`;
}

/* How dark a score is, from 0 to 1: weak scores are lifted, so that they can be seen. */
const darkness = score => score ** 0.75;

const strongest = scores => scores.reduce((best, score, at) => score > scores[best] ? at : best, 0);

/* How much the query looks at each key; or where only a key is given, how much each query looks at that. */
function looks(scores, { query, key }) {
  const width = shown.keys.length;
  if (query !== null) return scores.subarray(query * width, (query + 1) * width);
  return Float32Array.from(shown.queries, (_, row) => scores[row * width + key]);
}

/* The place to tell about: under the pointer, or chosen, or else the query with the strongest look. A first query that
   sees itself alone has no choice, so it is passed over. */
function place() {
  const width = shown.keys.length, first = shown.queries.length > 1 && shown.scores[0] > 0.995 ? 1 : 0;
  const query = first + Math.floor(strongest(shown.scores.subarray(first * width)) / width);
  return state.hovered ?? state.chosen ?? { query, key: null };
}

/* ---- What is drawn ---- */

function drawHeads() {
  const { layers, heads, distances } = state.attention, known = distances[state.unit];
  const columns = ["mean", "max", ...Array(heads).keys()];
  const head = element("tr", {}, element("td", {}));
  for (const column of columns) head.append(element("th", { scope: "col" }, String(typeof column === "number" ? column + 1 : column)));
  const rows = [null, ...Array(layers).keys()].map(layer => {
    const row = element("tr", {}, element("th", { scope: "row" }, layer === null ? "all" : `layer ${layer + 1}`));
    for (const column of layer === null ? ["mean", "max"] : columns) {
      const distance = typeof column === "number" && known ? known.heads[layer][column] : null;
      const told = distance === null ? [] : [distance.toFixed(1), distance > known.even ? "far" : "near"];
      const label = [nameOf(layer, column), told.join(" ")].filter(Boolean).join(", ");
      const cell = element("td", { "aria-label": label, "aria-selected": "false" }, thumbnail(scoresOf(layer, column)));
      if (told.length) cell.append(element("span", {}, told[0]), " ", element("span", {}, told[1]));
      row.append(cell);
    }
    return row;
  });
  const table = byId("heads").querySelector("table");
  table.replaceChildren(head, ...rows);
  table.style.setProperty("--heads", heads);
  byId("distances").textContent = known
    ? `Under each head: how far it looks in the mean, in ${state.unit}. An even look at all that is seen would be ` +
      `${known.even.toFixed(1)} ${state.unit} away; a head that looks farther is far-sighted, the others are near-sighted.`
    : "";
  const selected = headCells.at(state.layer === null ? 0 : state.layer + 1, columns.indexOf(state.head));
  selected.setAttribute("aria-selected", "true");
  stopAt(table, selected);
}

/* A small picture of a head; where several scores fall on a point, the strongest counts. */
function thumbnail(scores) {
  const width = state.attention.keys[state.unit].length, height = scores.length / width, most = 36;
  const canvas = element("canvas", { width: Math.min(width, most), height: Math.min(height, most), "aria-hidden": "true" });
  if (!scores.length) return canvas;
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  const across = canvas.width / width, down = canvas.height / height;
  for (let row = 0, at = 0; row < height; row++) {
    for (let column = 0; column < width; column++, at++) {
      const point = 4 * (Math.floor(row * down) * canvas.width + Math.floor(column * across));
      image.data.set([59, 118, 225], point);
      image.data[point + 3] = Math.max(image.data[point + 3], 255 * darkness(scores[at]));
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function drawView() {
  const { attention, unit, layer, head, view } = state;
  shown = { scores: scoresOf(layer, head), queries: attention.queries[unit], keys: attention.keys[unit] };
  const name = nameOf(layer, head);
  byId("shown-title").textContent = name[0].toUpperCase() + name.slice(1);
  byId("note").replaceChildren(element("b", {}, attention.title), ". ",
    view === "lines" ? "Left: " : "Rows: ", attention.rows, "; ", view === "lines" ? "right: " : "columns: ", attention.columns, ".");
  byId("lines").hidden = view !== "lines";
  byId("map").hidden = view !== "map";
  byId("panels").classList.toggle("wide", view === "map" && shown.keys.length > WIDE);
  byId("shown").style.setProperty("--rows", Math.max(shown.queries.length, shown.keys.length));
  byId("shown").style.setProperty("--columns", shown.keys.length);
  view === "lines" ? drawLines() : drawMap();
  drawPlace();
}

function drawLines() {
  for (const [id, labels, name] of [["queries", shown.queries, "look"], ["keys", shown.keys, "are looked at"]]) {
    const options = labels.map(label => element("div", { role: "option", "aria-selected": "false" }, token(label), element("span", {})));
    byId(id).replaceChildren(...options);
    byId(id).setAttribute("aria-label", `${state.unit} that ${name}`);
  }
  byId("lines").querySelector("svg").setAttribute("viewBox", `0 0 100 ${Math.max(shown.queries.length, shown.keys.length)}`);
  const width = shown.keys.length, lines = [];
  shown.scores.forEach((score, at) => score >= LEAST && lines.push(line(Math.floor(at / width), at % width, score)));
  byId("all").replaceChildren(...lines);
  const at = state.chosen ?? { query: 0 };
  stopAt(byId("lines"), words.at(at.query ?? at.key, at.query === null ? 1 : 0));
}

/* A line from a query to a key: the stronger the score, the wider and the darker. */
function line(query, key, score) {
  const path = document.createElementNS(byId("all").namespaceURI, "path");
  path.setAttribute("d", `M0 ${query + 0.5}C45 ${query + 0.5} 55 ${key + 0.5} 100 ${key + 0.5}`);
  path.setAttribute("stroke-width", (0.6 + 6 * score).toFixed(2));
  path.setAttribute("stroke-opacity", (0.05 + 0.95 * darkness(score)).toFixed(2));
  return path;
}

/* The table is laid out as blocks, which is faster, so the roles of its parts are told. */
function drawMap() {
  const table = byId("map").querySelector("table"), width = shown.keys.length;
  table.classList.toggle("small", width > MANY);
  table.classList.toggle("large", shown.scores.length > LARGE);
  const headers = shown.keys.map(label => element("th", { scope: "col", role: "columnheader" }, token(label)));
  const rows = shown.queries.map((label, query) => {
    const scores = looks(shown.scores, { query, key: null }), best = strongest(scores);
    const cells = Array.from(scores, score => mapCell(score));
    if (scores[best] > 0) mark(cells[best], "strongest");
    return element("tr", { role: "row" }, element("th", { scope: "row", role: "rowheader" }, token(label)), ...cells);
  });
  table.replaceChildren(element("tr", { role: "row" }, element("td", { role: "gridcell" }), ...headers), ...rows);
  const at = state.chosen ?? {};
  if (shown.scores.length) stopAt(table, mapCells.at(at.query ?? 0, at.key ?? 0));
}

function mapCell(score) {
  const cell = document.createElement("td");
  cell.setAttribute("role", "gridcell");
  cell.className = `shade${Math.round(darkness(score) * SHADES)}`;
  cell.textContent = score.toFixed(2);
  return cell;
}

function mark(cell, word) {
  cell.classList.add(word);
  cell.setAttribute("aria-label", `${cell.textContent}, ${word}`);
}

/* ---- What is told of a place: in words, as lines and numbers, and of every head ---- */

function drawPlace() {
  const empty = shown.scores.length === 0;
  byId("favourites").hidden = empty;
  if (empty) return byId("summary").replaceChildren("There is no text to look at.");
  const pointed = state.hovered ?? state.chosen, at = place();
  byId("summary").replaceChildren(...sentence(at));
  byId("lines").classList.toggle("pointed", pointed !== null);
  state.view === "lines" ? drawPlaceInLines(pointed) : drawPlaceInMap(pointed);
  drawFavourites(at);
}

/* head 3.2: 'it' looks at 'animal', 0.81 (then 'street', 0.07) */
function sentence(at) {
  const scores = looks(shown.scores, at), [from, to] = at.query === null ? ["keys", "queries"] : ["queries", "keys"];
  const first = strongest(scores), named = at.query !== null && at.key !== null ? at.key : first;
  const rest = scores.map((score, other) => other === first ? -1 : score), second = strongest(rest);
  const told = index => [quoted(shown[to][index]), `, ${scores[index].toFixed(2)}`];
  const parts = [`${nameOf(state.layer, state.head)}: `, quoted(shown[from][at.query ?? at.key])];
  parts.push(at.query === null ? " is looked at by " : " looks at ", ...told(named));
  if (named !== first) parts.push(" (most at ", ...told(first), ")");
  else if (scores.length > 1) parts.push(" (then ", ...told(second), ")");
  return parts;
}

function drawPlaceInLines(pointed) {
  const byQuery = pointed !== null && pointed.query !== null, scores = pointed && looks(shown.scores, pointed);
  for (const [id, index, others] of [["queries", pointed?.query, !byQuery], ["keys", byQuery ? null : pointed?.key, byQuery]]) {
    [...byId(id).children].forEach((option, at) => {
      const score = pointed && others ? scores[at] : 0;
      option.setAttribute("aria-selected", String(at === index));
      option.lastChild.textContent = score >= 0.005 ? score.toFixed(2) : "";
      option.classList.toggle("strongest", Boolean(pointed) && others && at === strongest(scores));
    });
  }
  const lines = [...scores ?? []].map((score, at) => byQuery ? line(pointed.query, at, score) : line(at, pointed.key, score));
  byId("some").replaceChildren(...lines.filter((_, at) => scores[at] >= 0.005));
}

function drawPlaceInMap(pointed) {
  const table = byId("map").querySelector("table");
  for (const header of table.querySelectorAll("th.pointed")) header.classList.remove("pointed");
  if (!pointed) return;
  if (pointed.query !== null) table.rows[pointed.query + 1].cells[0].classList.add("pointed");
  if (pointed.key !== null) table.rows[0].cells[pointed.key + 1].classList.add("pointed");
}

/* For every token that is some head's strongest look from the place: those heads. */
function drawFavourites(at) {
  const labels = at.query === null ? shown.queries : shown.keys, byLabel = new Map();
  allHeads().forEach((scores, number) => {
    const seen = looks(scores, at), best = strongest(seen), { heads } = state.attention;
    if (!byLabel.has(best)) byLabel.set(best, []);
    byLabel.get(best).push({ name: `${Math.floor(number / heads) + 1}.${number % heads + 1}`, score: seen[best] });
  });
  const groups = [...byLabel].sort((one, other) => other[1].length - one[1].length);
  byId("favourites-title").replaceChildren(...at.query === null
    ? ["What looks at ", quoted(shown.keys[at.key]), " most, head by head"]
    : ["Where each head looks from ", quoted(shown.queries[at.query])]);
  byId("favourites").querySelector("table").replaceChildren(...groups.map(([best, heads]) => {
    heads.sort((one, other) => other.score - one.score);
    const told = heads.flatMap(({ name, score }) => [element("span", {}, element("b", {}, name), ` ${score.toFixed(2)}`), " "]);
    return element("tr", {}, element("th", { scope: "row" }, token(labels[best])), element("td", {}, ...told));
  }));
}

/* ---- Pointer and keyboard ---- */

/* The cells of a table under its headers, by row and column; `at` takes the nearest that is there. */
function cellsOf(table) {
  return {
    at(row, column) {
      const cells = table.rows[clamp(row, table.rows.length - 2) + 1].cells;
      return cells[clamp(column, cells.length - 2) + 1];
    },
    find: target => target.closest("td:not(:first-child)"),
    placeOf: cell => [cell.parentNode.rowIndex - 1, cell.cellIndex - 1],
    upright: false,
  };
}

const clamp = (number, last) => Math.max(0, Math.min(number, last));

const headCells = cellsOf(byId("heads").querySelector("table"));
const mapCells = cellsOf(byId("map").querySelector("table"));
const words = {
  at: (row, column) => byId(column > 0 ? "keys" : "queries").children[clamp(row, shown[column > 0 ? "keys" : "queries"].length - 1)],
  find: target => target.closest("[role=option]"),
  placeOf: option => [[...option.parentNode.children].indexOf(option), option.parentNode.id === "keys" ? 1 : 0],
  upright: true,
};

/* Where a key leads from a row and a column; Home and End go along the row, in upright lists along the column. */
function destination(event, row, column, upright) {
  const whole = event.ctrlKey || event.metaKey;
  switch (event.key) {
    case "ArrowUp": return [row - 1, column];
    case "ArrowDown": return [row + 1, column];
    case "ArrowLeft": return [row, column - 1];
    case "ArrowRight": return [row, column + 1];
    case "Home": return upright ? [0, column] : [whole ? 0 : row, 0];
    case "End": return upright ? [Infinity, column] : [whole ? Infinity : row, Infinity];
  }
  return null;
}

/* Makes a cell the one at which Tab stops. */
function stopAt(box, cell) {
  if (!cell || box.stop === cell) return;
  cell.tabIndex = 0;
  box.stop?.removeAttribute("tabindex");
  box.stop = cell;
}

/* Lets keys and the pointer walk the cells of a box: `choose` is told of the place that is clicked or has the focus. */
function walk(box, cells, choose, hover) {
  const goTo = cell => { cell.tabIndex = 0; cell.focus(); };
  box.addEventListener("keydown", event => {
    const cell = cells.find(event.target), next = cell && destination(event, ...cells.placeOf(cell), cells.upright);
    if (!next) return;
    event.preventDefault();
    goTo(cells.at(...next));
  });
  box.addEventListener("focusin", event => {
    const cell = cells.find(event.target);
    stopAt(box, cell);
    choose(...cells.placeOf(cell));
  });
  box.addEventListener("click", event => {
    const cell = cells.find(event.target);
    if (cell) cell === document.activeElement ? choose(...cells.placeOf(cell)) : goTo(cell);
    else if (hover) point({ chosen: null });
  });
  if (!hover) return;
  box.addEventListener("pointerover", event => {
    const cell = cells.find(event.target);
    if (event.pointerType === "mouse") point({ hovered: cell && hover(...cells.placeOf(cell)) });
  });
  box.addEventListener("pointerleave", () => point({ hovered: null }));
}

function point(change) {
  Object.assign(state, change);
  drawPlace();
}

function chooseHead(row, column) {
  const layer = row === 0 ? null : row - 1, head = ["mean", "max"][column] ?? column - 2;
  const table = byId("heads").querySelector("table");
  table.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
  headCells.at(row, column).setAttribute("aria-selected", "true");
  Object.assign(state, { layer, head, hovered: null });
  drawView();
}

/* A choice of one among several, as radio buttons; it is left out where there is nothing to choose. */
function choice(id, options, choose) {
  const box = byId(id);
  box.hidden = options.length < 2;
  options.forEach(([value, label], at) => {
    const input = element("input", { type: "radio", name: id, value });
    input.checked = at === 0;
    input.addEventListener("change", () => choose(value));
    box.append(element("label", {}, input, element("span", {}, label)));
  });
}

/* Draws everything, with another attention or other tokens. */
function change(what) {
  Object.assign(state, what, { chosen: null, hovered: null });
  if (state.layer >= state.attention.layers || state.head >= state.attention.heads) Object.assign(state, { layer: null, head: "mean" });
  drawHeads();
  drawView();
}

function start() {
  const sheet = document.styleSheets[0];
  for (let shade = 1; shade <= SHADES; shade++) {
    sheet.insertRule(`.shade${shade} { background: color-mix(in srgb, var(--accent) ${100 * shade / SHADES}%, transparent) }`);
  }
  const joined = ATTENTIONS.some(({ queries, keys }) => queries.pieces.length + keys.pieces.length > queries.words.length + keys.words.length);
  choice("theme", [["auto", "auto"], ["light", "light"], ["dark", "dark"]], theme => { document.documentElement.dataset.theme = theme; });
  choice("attention", ATTENTIONS.map(({ title }, at) => [at, title]), at => change({ attention: ATTENTIONS[at] }));
  choice("unit", joined ? [["words", "words"], ["pieces", "pieces"]] : [], unit => change({ unit }));
  choice("view", [["lines", "lines"], ["map", "heat map"]], view => { state.view = view; drawView(); });
  walk(byId("heads").querySelector("table"), headCells, chooseHead);
  const inList = (row, column) => column > 0 ? { query: null, key: row } : { query: row, key: null };
  const inMap = (query, key) => ({ query, key });
  walk(byId("lines"), words, (...at) => point({ chosen: inList(...at) }), inList);
  walk(byId("map").querySelector("table"), mapCells, (...at) => point({ chosen: inMap(...at) }), inMap);
  document.addEventListener("keydown", event => event.key === "Escape" && point({ chosen: null, hovered: null }));
  if (ATTENTIONS.length) change({});
}

start();
