"""The page of the server in Chromium: it answers while one types, by mouse, keyboard or touch, and asks nobody else."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium, requests_of
from tests.serving.fake_server import (
    DE_EN,
    EN_AR,
    EN_DE,
    ITEMS,
    LABELS,
    PAGE,
    WORDS,
    WRITER,
    FakeServer,
    fake_server,
    translated,
)

SENTENCE = "The old bridge leads across the river."
GERMAN = translated(SENTENCE, "de")["text"]
LONG = "One old bridge. Two rivers run.\n\nThree roads lead on."
BOLD = "<b>bold</b><img src=x onerror=alert(1)>"
browser = pytest.mark.browser


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


class Page:
    """The page of a fake server in a browser."""

    def __init__(self, driver: Any, server: FakeServer):
        self.driver, self.server = driver, server

    def open(self, *models: dict[str, Any]) -> None:
        self.server.models = [*models] or [EN_DE]
        self.driver.get(self.server.address)
        self.until("!document.querySelector('#badge').hidden")

    def run(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return {code}", *arguments)

    def until(self, code: str, *arguments: Any, seconds: float = 5) -> None:
        end = time.monotonic() + seconds
        while not self.run(code, *arguments):
            assert time.monotonic() < end, f"{code}: {self.find('body').text}"
            time.sleep(0.02)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return self.run("[...document.querySelectorAll(arguments[0])].map(one => one.innerText)", selector)

    def shows(self, text: str) -> None:
        """Waits until an answer is there, and no draft any more."""
        self.until("document.querySelector('#to:not(.draft) #output')?.textContent === arguments[0]", text)

    def told(self, text: str) -> None:
        self.until("document.querySelector('#status').textContent.includes(arguments[0])", text)

    def type(self, text: str) -> None:
        self.find("#input").send_keys(text)

    def press(self, *keys: str, held: tuple[str, ...] = ()) -> None:
        from selenium.webdriver import ActionChains

        chain = ActionChains(self.driver)
        for one in held:
            chain.key_down(one)
        chain.send_keys(*keys)
        for one in held:
            chain.key_up(one)
        chain.perform()

    @property
    def looked(self) -> list[str]:
        """The marked words, in the source and then in the translation."""
        return self.run("[...CSS.highlights.get('looked')].map(String)")

    def point(self, selector: str, word: str) -> None:
        """Moves the pointer onto a word of a text."""
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        code = (
            "(() => { const node = document.querySelector(arguments[0]).firstChild, range = new Range(); "
            "range.setStart(node, node.data.indexOf(arguments[1])); range.setEnd(node, range.startOffset + 1); "
            "const { x, y, width, height } = range.getBoundingClientRect(); return [x + width / 2, y + height / 2] })()"
        )
        actions = ActionBuilder(self.driver)
        actions.pointer_action.move_to_location(*map(round, self.run(code, selector, word)))
        actions.perform()


@pytest.fixture
def page(driver) -> Iterator[Page]:
    """At the end nothing but the server was asked, and nothing was against the policy."""
    with fake_server() as server:
        driver.get("about:blank")
        for log in ("browser", "performance"):
            driver.get_log(log)
        yield Page(driver, server)
        told = [entry["message"] for entry in driver.get_log("browser")]
        assert not [one for one in told if "Failed to load resource" not in one], told
        assert all(
            one.startswith((server.address, f"blob:{server.address[:20]}", "data:,")) for one in requests_of(driver)
        )
        driver.get("about:blank")


@browser
def test_it_answers_while_one_types_and_the_last_answer_stays_till_the_next(page):
    page.open()
    page.type("the old")
    page.shows("alte die")
    page.server.seconds = 0.5
    page.run(
        "(window.seen = [], new MutationObserver(() => seen.push(output.textContent)).observe(output, { childList: true }))"
    )
    page.type(" bridge")
    page.until("document.querySelector('.draft')")
    while len(page.server.asked) < 2:
        time.sleep(0.01)
    page.type(" leads")
    page.shows("alte die Brücke führt")
    assert page.run("seen") == ["alte die Brücke führt"], "it was never empty, and the earlier request told nothing"
    assert [body["text"] for body in page.server.asked] == ["the old", "the old bridge", "the old bridge leads"]
    page.until("arguments[0] === 1", page.server.left)
    assert page.run("performance.getEntriesByType('resource').every(one => one.name.startsWith(location.href))")


@browser
def test_long_text_comes_sentence_by_sentence(page):
    page.open()
    page.type(LONG)
    page.shows(translated(LONG, "de")["text"])
    page.server.seconds = 0.25
    page.type(" X.")
    page.told("Sentence 2 of 4")
    assert page.find("#output").text.strip() == f"{translated(LONG, 'de')['text']} …", (
        "the draft stands where the new is due"
    )
    assert page.texts("#output .fresh") == ["alte ONE Brücke", " RIVERS TWO RUN."]
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
    assert page.texts("#others button span") == [GERMAN, f"{GERMAN} (3)"]
    assert page.texts("#score") == ["Score −2.50"]


@browser
def test_each_word_shows_where_it_looked(page):
    from selenium.webdriver import Keys

    page.open()
    page.run("(input.value = arguments[0], input.dispatchEvent(new Event('input')))", "🌉🌉 old bridge")
    page.shows("alte 🌉🌉 Brücke")
    page.point("#output", "Brücke")
    assert page.looked == ["bridge", "Brücke"]
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
    page.open(EN_DE, DE_EN, EN_AR)
    page.type("the old")
    page.shows("alte die")
    assert page.server.asked[0]["source"] == "auto" and page.find("#source").text.startswith("English (auto)")
    page.find("#swapping").click()
    page.shows("DIE ALTE")
    assert page.run("[input.value, source.value, target.value]") == ["alte die", "de", "en"]
    assert page.server.asked[1] == {**page.server.asked[0], "text": "alte die", "source": "de", "target": "en"}
    assert page.texts("#badge span") == ["Certificate does not hold"]
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
    end = time.monotonic() + 5
    while not (tmp_path / "notes.de.txt").is_file() and time.monotonic() < end:
        time.sleep(0.02)
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
    ("status", "headers", "told", "is_repeated"),
    [
        (429, {"Retry_After": "1"}, "The server is busy. Trying again in 1 s.", True),
        (503, {}, "The models are loading. Trying again in 1 s.", True),
        (413, {}, "The text is too long for this server. <b>413</b>", False),
        (500, {}, "The server could not answer. <b>500</b>", False),
    ],
)
def test_errors_are_told_and_what_passes_is_tried_again(status, headers, told, is_repeated, page):
    page.open()
    page.server.failures = [(status, headers)]
    page.type("the old")
    page.told(told)
    assert page.find("#again").is_displayed() == (status != 413)
    if status == 500:
        page.find("#again").click()
    if status != 413:
        page.shows("alte die")
    assert len(page.server.asked) == (1 if status == 413 else 2)


@browser
def test_it_waits_for_a_server_that_loads_asks_for_a_key_and_tells_limits(page):
    page.server.failures, page.server.key = [(503, {})], "secret"
    page.open()
    page.type("the old")
    page.until("document.querySelector('#key').open")
    page.find("#key-value").send_keys("secret\n")
    page.shows("alte die")
    page.driver.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    page.type(" bridge")
    page.told("The server does not answer.")
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**offline, "offline": False})
    page.shows("alte die Brücke")
    page.run("(input.value = 'x'.repeat(5001), input.dispatchEvent(new Event('input')))")
    page.told("The text has 5,001 characters; this server takes at most 5,000. Nothing was sent.")
    assert page.texts("#count") == ["5,001 / 5,000"] and len(page.server.asked) == 3
    page.run("sessionStorage.clear()")


@browser
def test_the_keyboard_reaches_everything(page):
    from selenium.webdriver import Keys

    page.open(EN_DE, DE_EN, WRITER)
    page.type(SENTENCE)
    page.shows(GERMAN)
    reached, ring = (
        [],
        "getComputedStyle(document.activeElement).outlineStyle !== 'none' || getComputedStyle(document.activeElement.closest('section'), '::after').content !== 'none'",
    )
    for _ in range(40):
        page.press(Keys.TAB)
        reached.append(page.run("document.activeElement"))
        assert page.run(f"document.activeElement === document.body || {ring}"), "the focus shows"
    controls = page.run(
        "[...document.querySelectorAll('button, select, textarea, a, [tabindex=\"0\"]')].filter(one => one.checkVisibility() && !one.disabled)"
    )
    assert {one.id for one in controls} <= {one.id for one in reached} and len(controls) > 12
    page.press("S", held=(Keys.ALT, Keys.SHIFT))
    page.until("document.querySelector('#input').value === arguments[0]", GERMAN)
    page.server.seconds = 1
    page.press(Keys.ENTER, held=(Keys.CONTROL,))
    page.press(Keys.ESCAPE)
    page.told("Stopped.")


@browser
def test_language_models_write_and_stop_and_other_models_show_bars(page):
    page.open(WRITER, LABELS, WORDS, ITEMS)
    page.type("Once")
    page.server.seconds = 0.05
    page.find("#generate").click()
    page.until("document.querySelector('#output').textContent.startsWith('word0 word1 ')")
    page.find("#stop").click()
    page.told("Stopped.")
    assert page.server.asked == [
        {"prompt": "Once", "model": "writer", "max_tokens": 128, "temperature": 0.8, "stream": True}
    ]
    page.server.seconds = 0
    page.find("#tasks [value=classification]").click()
    page.until("document.querySelector('#rows li')")
    assert page.texts("#rows li") == ["politics\n75%"]
    page.find("#tasks [value=masked-tokens]").click()
    page.until("document.querySelectorAll('#rows li').length === 3")
    assert page.texts("#rows li") == ["1: a\n50%", "1: the\n25%", "3: river\n100%"]
    page.find("#tasks [value=next-item]").click()
    page.until("document.querySelectorAll('#rows li').length === 2")
    assert page.texts("#rows li") == ["Brazil\n50%", "1984\n12.5%"]
    page.told("left out: 2.")
    assert [body["inputs"] for body in page.server.asked[1:]] == [["Once"], ["Once"], [["Once"]]]


@browser
def test_text_from_anywhere_stays_text(page):
    page.open({**EN_DE, "name": BOLD, "pairs": []}, {**LABELS, "name": BOLD})
    page.type(BOLD)
    page.shows(translated(BOLD, "de")["text"])
    page.find("#badge").click()
    assert page.texts("dialog h2")[0] == BOLD and page.server.asked[0]["model"] == BOLD
    assert page.run("document.querySelectorAll('b, img:not(header img)').length") == 0


@browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_nothing_and_no_width_scrolls_sideways(scheme, width, page):
    import axe_playwright_python

    axe = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8")
    command = page.driver.execute_cdp_cmd
    command(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    media = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
    command("Emulation.setEmulatedMedia", {"features": media})
    page.open(EN_DE, DE_EN, WRITER, LABELS)
    page.driver.execute_script(axe)

    def check() -> None:
        found = page.driver.execute_async_script("axe.run().then(arguments[0])")["violations"]
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
        assert page.run("document.documentElement.scrollWidth <= innerWidth")

    check()
    page.type(f"{SENTENCE} {'Donaudampfschifffahrt' * 5}")
    page.until("document.querySelector('#others:not([hidden])')")
    page.point("#output", "Brücke")
    check()
    page.server.failures = [(500, {})]
    page.type(".")
    page.told("could not answer")
    check()
    for button, dialog in (("#badge", "#certificate"), ("#shortcuts", "#keyboard")):
        page.find(button).click()
        check()
        page.find(f"{dialog} button").click()
    for task in ("language-model", "classification"):
        page.find(f"#tasks [value={task}]").click()
        page.until("!document.querySelector('.draft')")
        check()
    for name in ("Emulation.clearDeviceMetricsOverride", "Emulation.setEmulatedMedia"):
        command(name, {})


def test_every_text_stands_in_one_file_and_is_used():
    texts = json.loads((PAGE / "strings.json").read_text("utf-8"))
    html, script = ((PAGE / name).read_text("utf-8") for name in ("index.html", "page.js"))
    assert not re.sub(r"<!--.*?-->|<[^>]*>", "", html, flags=re.DOTALL).split(), "the markup has no words"
    named = {*re.findall(r'data-(?:text|label)="([^"]*)"', html), *re.findall(r'\bsay\("(\w+)"', script)}
    assert named <= {*texts}
    families = [name for name in texts if re.match(r"(title|hint|empty|limit)_|(un|not_)?certified", name)]
    assert not [
        name
        for name in texts
        if name not in named and name not in families and f'"{name}"' not in script and f"strings.{name}" not in script
    ]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|https?://", script)
