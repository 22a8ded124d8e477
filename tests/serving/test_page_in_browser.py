"""The page of the server in Chromium: it answers while one types, by mouse, keyboard or touch, and asks nobody else."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Shown, chromium
from tests.serving import fake_server as fake
from tests.serving.fake_server import DE_EN, EN_DE, LABELS, WRITER, translated
from tests.serving.test_serve_command import serving

SENTENCE = "The old bridge leads across the river."
GERMAN = translated(SENTENCE, "de")["text"]
LONG = "One old bridge. Two rivers run.\n\nThree roads lead on."
BOLD = "<b>bold</b><img src=x onerror=alert(1)>"
OFFLINE = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
browser = pytest.mark.browser


def wait(for_it: Callable[[], object], told: object = "") -> None:
    """Waits for something, but not for ever."""
    end = time.monotonic() + 20
    while not for_it():
        assert time.monotonic() < end, told
        time.sleep(0.02)


class Page(Shown):
    """The page of a fake server in a browser."""

    def __init__(self, driver: Any, server: fake.FakeServer):
        super().__init__(driver)
        self.server = server

    def open(self, *models: dict[str, Any]) -> None:
        self.server.models = [*models] or [EN_DE]
        self.driver.get(self.server.address)
        self.until("!document.querySelector('#badge').hidden")

    def until(self, code: str, *arguments: Any) -> None:
        wait(lambda: self.run(code, *arguments), code)

    def shows(self, text: str) -> None:
        """Waits until an answer is there, and no draft any more."""
        self.until("document.querySelector('#to:not(.draft) #output')?.textContent === arguments[0]", text)

    def told(self, text: str) -> None:
        self.until("document.querySelector('#status').textContent.includes(arguments[0])", text)

    def type(self, text: str) -> None:
        self.find("#input").send_keys(text)

    def set(self, text: str) -> None:
        """Types what the driver has no keys for."""
        self.run("(input.value = arguments[0], input.dispatchEvent(new Event('input')))", text)

    def texts(self, selector: str) -> list[str]:
        return self.all(selector, "one.innerText")

    @property
    def looked(self) -> list[str]:
        """The marked words, in the source and then in the translation."""
        return self.run("[...CSS.highlights.get('looked')].map(String)")

    def point(self, selector: str, word: str) -> None:
        """Moves the pointer onto a word of a text."""
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        self.run("window.range = new Range()")
        self.run("range.selectNode(document.querySelector(arguments[0]).firstChild)", selector)
        self.run("range.setStart(range.startContainer.firstChild, range.toString().indexOf(arguments[0]))", word)
        self.run("range.setEnd(range.startContainer, range.startOffset + 1)")
        box = self.run("range.getBoundingClientRect()")
        actions = ActionBuilder(self.driver)
        actions.pointer_action.move_to_location(round(box["x"] + 2), round(box["y"] + box["height"] / 2))
        actions.perform()


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def page(driver) -> Iterator[Page]:
    """At the end nothing but the server was asked, and nothing was against the policy."""
    with fake.fake_server() as server:
        page = Page(driver, server)
        yield page
        told = [entry["message"] for entry in driver.get_log("browser")]
        assert not [one for one in told if "Failed to load resource" not in one], told
        origin = server.address[:20]
        assert all(one.startswith((server.address, f"blob:{origin}", "data:,")) for one in page.requests())
        driver.get("about:blank")


@browser
def test_it_answers_while_one_types_and_the_last_answer_stays_till_the_next(page):
    page.open()
    page.type("the old")
    page.shows("alte die")
    page.server.held_at = 0
    page.run("(window.seen = [], window.watch = new MutationObserver(() => seen.push(output.textContent)))")
    page.run("watch.observe(output, { childList: true })")
    page.type(" bridge")
    page.until("document.querySelector('.draft')")
    wait(lambda: len(page.server.asked) == 2)
    page.server.held_at = None
    page.type(" leads")
    page.shows("alte die Brücke führt")
    assert page.run("seen") == ["alte die Brücke führt"], "it was never empty, and the earlier request told nothing"
    assert [body["text"] for body in page.server.asked] == ["the old", "the old bridge", "the old bridge leads"]
    page.server.going_on.set()
    wait(lambda: page.server.left == 1, "the earlier request was ended")


@browser
def test_long_text_comes_sentence_by_sentence(page):
    page.open()
    page.type(LONG)
    page.shows(translated(LONG, "de")["text"])
    page.server.held_at = 2
    page.type(" X.")
    page.told("Sentence 2 of 4")
    draft = page.run("output.textContent")
    assert draft == f"{translated(LONG, 'de')['text']} …", "the draft stands where the new is due"
    assert page.all("#output .fresh", "one.textContent") == ["alte ONE Brücke", " RIVERS TWO RUN."]
    page.server.going_on.set()
    page.shows(translated(f"{LONG} X.", "de")["text"])
    assert not page.texts("#others:not([hidden])")


@browser
def test_alternatives_take_the_place_of_the_translation(page):
    page.open()
    page.type(SENTENCE)
    page.shows(GERMAN)
    assert page.texts("#others button") == [f"{GERMAN} (2)\n−2.50", f"{GERMAN} (3)\n−3.50"]
    page.find("#others button").click()
    page.shows(f"{GERMAN} (2)")
    assert page.texts("#others button span, #score") == [GERMAN, f"{GERMAN} (3)", "Score −2.50"]


@browser
def test_each_word_shows_where_it_looked(page):
    from selenium.webdriver import ActionChains, Keys

    page.open()
    page.set("🌉🌉 old bridge")
    page.shows("alte 🌉🌉 Brücke")
    page.point("#output", "Brücke")
    assert page.looked == ["bridge", "Brücke"]
    ActionChains(page.driver).move_to_element(page.find("#output")).perform()
    assert page.looked == [], "there is no word in the middle of the pane"
    page.point("#mirror", "old")
    assert page.looked == ["old", "alte"]
    page.press(Keys.HOME)
    assert page.looked == ["🌉🌉", "🌉🌉"]
    page.run("output.focus()")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.looked == ["bridge", "Brücke"] and page.texts("#spoken") == ["Brücke: bridge"]
    page.press(Keys.ESCAPE)
    assert page.looked == []


@browser
def test_languages_are_swapped_where_a_model_goes_both_ways(page):
    page.open(EN_DE, DE_EN, fake.EN_AR)
    page.type("the old")
    page.shows("alte die")
    assert page.server.asked[0]["source"] == "auto" and page.find("#source").text.startswith("English (auto)")
    page.find("#swapping").click()
    page.shows("DIE ALTE")
    assert page.run("[input.value, source.value, target.value]") == ["alte die", "de", "en"]
    assert page.server.asked[1] == {**page.server.asked[0], "text": "alte die", "source": "de", "target": "en"}
    assert page.texts("#badge span") == ["Certificate fails"]
    page.find("#source [value=en]").click()
    page.find("#target [value=ar]").click()
    page.shows("كلمة كلمة")
    assert not page.find("#swapping").is_enabled() and page.run("getComputedStyle(output).direction") == "rtl"


@browser
def test_files_come_in_and_go_out(page, tmp_path):
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.open()
    (tmp_path / "notes.txt").write_text(SENTENCE, encoding="utf-8-sig")
    page.find("#file").send_keys(str(tmp_path / "notes.txt"))
    page.shows(GERMAN)
    page.find("#saving").click()
    page.told("Saved as notes.de.txt.")
    wait((tmp_path / "notes.de.txt").is_file)
    assert (tmp_path / "notes.de.txt").read_text("utf-8") == GERMAN
    drop = "const data = new DataTransfer(); data.items.add(new File([new Uint8Array(arguments[0])], arguments[1])); "
    drop += "document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true }))"
    page.driver.execute_script(drop, [*b"the old"], "dropped.txt")
    page.shows("alte die")
    page.driver.execute_script(drop, [255, 254, 0], "picture.png")
    page.told("picture.png is not a text file")
    page.driver.execute_script(drop, [32] * 30000, "large.txt")
    page.told("large.txt is too large; this server takes at most 5,000 characters.")
    assert len(page.server.asked) == 2


@browser
@pytest.mark.parametrize(
    ("status", "told"),
    [
        (429, "The server is busy. Trying again in 1 s."),
        (503, "The models are loading. Trying again in 1 s."),
        (413, "The text is too long for this server. <b>413</b>"),
        (500, "The server could not answer. <b>500</b>"),
    ],
)
def test_errors_are_told_and_what_passes_is_tried_again(status, told, page):
    page.open()
    page.server.failures = [status]
    page.type("the old")
    page.told(told)
    assert page.find("#again").is_displayed() == (status != 413)
    if status == 500:
        page.find("#again").click()
    if status != 413:
        page.shows("alte die")
    assert len(page.server.asked) == (1 if status == 413 else 2)


@browser
def test_it_waits_for_a_server_that_loads_or_is_away_asks_for_a_key_and_tells_limits(page):
    page.server.failures, page.server.key = [503], "secret"
    page.open()
    page.type("the old")
    page.until("document.querySelector('#key').open")
    page.find("#key-value").send_keys("secret\n")
    page.shows("alte die")
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", OFFLINE)
    page.type(" bridge")
    page.told("The server does not answer.")
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**OFFLINE, "offline": False})
    page.shows("alte die Brücke")
    page.set("x" * 5001)
    page.told("The text has 5,001 characters; this server takes at most 5,000. Nothing was sent.")
    assert page.texts("#count") == ["5,001 / 5,000"] and len(page.server.asked) == 3
    page.run("sessionStorage.clear()")


@browser
def test_the_keyboard_reaches_everything(page):
    from selenium.webdriver import Keys

    page.open(EN_DE, DE_EN, WRITER)
    page.type(SENTENCE)
    page.shows(GERMAN)
    reached, active = set(), "document.activeElement"
    for _ in range(40):
        page.press(Keys.TAB)
        reached.add(page.run(f"{active}.id"))
        outline = page.run(f"getComputedStyle({active}).outlineStyle")
        ring = page.run(f"getComputedStyle({active}.closest('section') ?? {active}, '::after').content")
        assert outline != "none" or ring != "none" or page.run(f"{active} === document.body"), "the focus shows"
    controls = page.all(
        "button, select, textarea, a, [tabindex='0']", "one.checkVisibility() && !one.disabled && one.id"
    )
    assert {id for id in controls if id} <= reached and len(reached) > 10
    page.press("S", held=(Keys.ALT, Keys.SHIFT))
    page.until("document.querySelector('#input').value === arguments[0]", GERMAN)
    page.server.held_at = 0
    page.press(Keys.ENTER, held=(Keys.CONTROL,))
    page.until("output.ariaBusy")
    page.press(Keys.ESCAPE)
    page.told("Stopped.")


@browser
def test_language_models_write_and_stop_and_other_models_show_bars(page):
    page.open(WRITER, LABELS, fake.WORDS, fake.ITEMS)
    page.type("Once")
    page.server.held_at = 2
    page.find("#generate").click()
    page.type(" upon")
    page.until("output.textContent === 'word0 word1 '")
    page.find("#stop").click()
    page.told("Stopped.")
    asked = {"prompt": "Once", "model": "writer", "max_tokens": 128, "temperature": 0.8, "stream": True}
    assert page.server.asked == [asked]
    for task, bars in {
        "classification": ["politics\n75%"],
        "masked-tokens": ["1: a\n50%", "1: the\n25%", "3: river\n100%"],
        "next-item": ["Brazil\n50%", "1984\n12.5%"],
    }.items():
        page.find(f"#tasks [value={task}]").click()
        page.until("document.querySelectorAll('#rows li').length === arguments[0]", len(bars))
        assert page.texts("#rows li") == bars
    page.told("left out: 2.")
    assert [body["inputs"] for body in page.server.asked[1:]] == [["Once upon"], ["Once upon"], [["Once upon"]]]


@browser
def test_text_from_anywhere_stays_text(page):
    page.open({**EN_DE, "name": BOLD, "pairs": []}, {**LABELS, "name": BOLD})
    page.type(BOLD)
    page.shows(translated(BOLD, "de")["text"])
    page.find("#badge").click()
    assert page.texts("dialog h2")[0] == BOLD and page.server.asked[0]["model"] == BOLD
    assert page.all("b, img:not(header img)", "one.outerHTML") == []


@browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_nothing_and_no_width_scrolls_sideways(scheme, width, page):
    import axe_playwright_python

    def check() -> None:
        found = page.driver.execute_async_script("axe.run().then(arguments[0])")["violations"]
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        outside = "!one.closest('.wide, nav') && one.getBoundingClientRect().right > innerWidth && one.outerHTML"
        assert not any(page.all("body *", outside)), "nothing is clipped"

    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wishes.items()]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.open(EN_DE, DE_EN, WRITER, LABELS, fake.WORDS, fake.ITEMS)
    page.driver.execute_script((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8"))
    check()
    page.type(f"{SENTENCE} {'Donaudampfschifffahrt' * 5}")
    page.until("document.querySelector('#others:not([hidden])')")
    page.point("#output", "Brücke")
    check()
    page.server.failures = [500]
    page.type(".")
    page.told("could not answer")
    check()
    for button, dialog in (("#badge", "#certificate"), ("#shortcuts", "#keyboard")):
        page.find(button).click()
        check()
        page.find(f"{dialog} button").click()
    for task in ("language-model", "classification", "next-item"):
        page.find(f"#tasks [value={task}]").click()
        page.until("!document.querySelector('.draft')")
        check()
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {})


@browser
def test_it_speaks_with_the_real_server(page):
    with serving("demo", "--prefix", "/under/a/prefix", "--threads", "1") as served:
        page.server.address = f"{served.address}/under/a/prefix/"
        page.open()
        page.type("forty-two\n\nseven")
        page.shows("zweiundvierzig\n\nsieben")
        page.find("#clearing").click()
        page.type("eleven")
        page.shows("elf")
        assert len(page.texts("#others button")) == 2 and page.texts("#badge span") == ["Certified"]


def test_every_text_stands_in_one_file_and_is_used():
    texts = json.loads((fake.PAGE / "strings.json").read_text("utf-8"))
    html, script = ((fake.PAGE / name).read_text("utf-8") for name in ("index.html", "page.js"))
    assert not re.sub(r"<!--.*?-->|<[^>]*>", "", html, flags=re.DOTALL).split(), "the markup has no words"
    named = {*re.findall(r'data-(?:text|label)="([^"]*)"', html), *re.findall(r'\bsay\("(\w+)"', script)}
    assert named <= {*texts}
    families = r"(title|hint|empty|limit)_.*|.*certified_told|language"
    assert not [one for one in {*texts} - named if f'"{one}"' not in script and not re.fullmatch(families, one)]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|https?://", script)
