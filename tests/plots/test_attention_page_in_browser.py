"""The page of attention in Chromium: what it shows, the keyboard, and that it asks for nothing.

`make test BROWSER=1` installs Selenium, and expects Chromium and its driver.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.decoding.attention_maps import Attention, Tokens
from keras_transformer.plots import attention_page
from tests.browser import Shown, chromium
from tests.plots.some_attention import pieces, some_attention, translation

pytestmark = pytest.mark.browser

# A fifth is a whole number of 255ths, so the page shows these scores exactly.
THREE = Tokens.of_whole(["one", "two", "three"])
SCORES = [
    [[[1, 4, 0], [0, 2, 3], [0, 0, 5]], [[5, 0, 0], [1, 4, 0], [3, 0, 2]]],
    [[[0, 0, 5], [3, 1, 1], [4, 1, 0]], [[1, 1, 3], [0, 5, 0], [2, 3, 0]]],
]
FIFTHS = Attention(THREE, THREE, np.array(SCORES, "float32") / 5)
ODD = ["</script><b>x</b>", "\"quotes'", "a\u2028b", "\u200fmarked\u200f", "$x^2$", "&amp;", "翻訳", "中文", "العربية"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


class Page(Shown):
    """The page of attention in a browser."""

    def __init__(self, driver: Any, path: Path):
        super().__init__(driver)
        self.path = path

    def show(self, attentions: Mapping[str, Attention], title: str = "Attention") -> None:
        self.path.write_text(attention_page(attentions, title), encoding="utf-8")
        self.driver.get(self.path.as_uri())

    def pick(self, choice: str, value: str) -> None:
        """Chooses a radio button as the mouse does, by its label."""
        self.find(f"#{choice} label:has([value='{value}'])").click()

    def pick_head(self, row: int, column: int) -> None:
        """Clicks a cell of the matrix: row 0 is all layers, columns 0 and 1 are the mean and the maximum."""
        self.find(f"#heads tr:nth-child({row + 2}) td:nth-child({column + 2})").click()

    @property
    def summary(self) -> str:
        return self.run("document.getElementById('summary').textContent")

    @property
    def numbers(self) -> np.ndarray:
        """The numbers in the cells of the heat map."""
        return np.array(self.all("#map tr", "[...one.cells].slice(1).map(cell => +cell.textContent)")[1:])


@pytest.fixture
def page(driver, tmp_path) -> Iterator[Page]:
    """At the end no request and no message may be in the logs."""
    page = Page(driver, tmp_path / "page.html")
    yield page
    assert driver.get_log("browser") == []
    assert page.requests() <= {page.path.as_uri(), "data:,"}


# For each part: the place in the matrix that is picked before, how often Tab is pressed, and a walk: a key, with ^ for
# Control held, and the beginning of the summary then.
WALKS = {
    "heads": ((0, 0), 0, [
        ("DOWN", "mean of layer 1: "), ("RIGHT", "maximum of layer 1: "), ("END", "head 1.2: "), ("LEFT", "head 1.1: "),
        ("DOWN", "head 2.1: "), ("HOME", "mean of layer 2: "), ("^HOME", "mean of all heads: "), ("^END", "head 2.2: "),
    ]),
    "lines": ((1, 2), 1, [
        ("", "head 1.1: 'one' looks at 'two', 0.80 (then 'one', 0.20)"),
        ("END", "head 1.1: 'three' looks at 'three', 1.00 (then 'one', 0.00)"),
        ("RIGHT", "head 1.1: 'three' is looked at by 'three', 1.00 (then 'two', 0.60)"),
        ("UP", "head 1.1: 'two' is looked at by 'one', 0.80 (then 'two', 0.40)"),
        ("ESCAPE", "head 1.1: 'three' looks at 'three', 1.00 (then 'one', 0.00)"),
    ]),
    "map": ((1, 2), 2, [
        ("", "head 1.1: 'one' looks at 'one', 0.20 (most at 'two', 0.80)"),
        ("RIGHT", "head 1.1: 'one' looks at 'two', 0.80 (then 'one', 0.20)"),
        ("DOWN", "head 1.1: 'two' looks at 'two', 0.40 (most at 'three', 0.60)"),
        ("^END", "head 1.1: 'three' looks at 'three', 1.00 (then 'one', 0.00)"),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("part", WALKS)
def test_keys_walk_and_the_summary_follows(part, page):
    from selenium.webdriver import Keys

    place, num_tabs, walk = WALKS[part]
    page.show({"self": FIFTHS})
    page.pick_head(*place)
    if part == "lines":
        assert page.summary == walk[-1][1], "the strongest look"
    if part == "map":
        page.pick("view", "map")
    page.press(*[Keys.TAB] * num_tabs)
    for name, sentence in walk:
        key = name.lstrip("^")
        arrow = f"ARROW_{key}" if key in ("UP", "DOWN", "LEFT", "RIGHT") else key
        page.press(getattr(Keys, arrow) if key else "", held=[Keys.CONTROL] if name[:1] == "^" else [])
        assert page.summary.startswith(sentence)
        if part == "heads":
            (selected,) = page.run("[...document.querySelectorAll('#heads [aria-selected=true]')]")
            assert selected == page.driver.switch_to.active_element
            assert f"{selected.get_attribute('aria-label').split(',')[0]}: " == sentence


@pytest.mark.parametrize(
    ("view", "selector"), [("lines", "#queries > :nth-child(3)"), ("map", "#map tr:nth-child(3) > :nth-child(2)")]
)
def test_the_pointer_and_the_focus_show_the_same(view, selector, page):
    from selenium.webdriver import ActionChains

    page.show(translation(pieces(2, 1, 3), pieces(1, 2, 1)))
    page.pick("view", view)
    page.pick_head(2, 3)
    before, target = page.summary, page.find(selector)
    ActionChains(page.driver).move_to_element(target).perform()
    pointed = page.summary
    ActionChains(page.driver).move_to_element(page.find("h1")).perform()
    assert page.summary == before != pointed
    page.run("arguments[0].tabIndex = 0", target)
    page.run("arguments[0].focus()", target)
    assert page.summary == pointed


def test_a_chosen_word_shows_its_lines_alone_and_the_strongest_keys_are_marked(page):
    page.show({"self": FIFTHS})
    page.pick_head(1, 2)
    assert len(page.all("#all path", "1")) == 5
    page.find("#queries > :first-child").click()
    assert page.all("#all", "getComputedStyle(one).display") == ["none"]
    options, (favourites,) = page.all("[role=option]", "one.innerText"), page.all("#favourites", "one.innerText")
    assert [text.split() for text in options[3:]] == [["one", "0.20"], ["two", "0.80"], ["three"]]
    assert favourites.split("\n") == [
        "Where each head looks from 'one'", "three\t2.1 1.00 2.2 0.60", "two\t1.1 0.80", "one\t1.2 1.00",
    ]  # fmt: skip
    page.pick("view", "map")
    marks = page.all("#map tr", "[...one.cells].slice(1).map(cell => cell.getAttribute('aria-label'))")[1:]
    assert marks == [[None, "0.80, strongest", None], [None, None, "0.60, strongest"], [None, None, "1.00, strongest"]]
    scores = np.array([[[[5, 0, 0], [4, 1, 0], [2, 2, 1]]]], "float32") / 5
    page.show({"self": Attention(THREE, THREE, scores)})  # a first word that sees itself alone is no strongest look
    assert page.summary == "mean of all heads: 'two' looks at 'one', 0.80 (then 'two', 0.20)"


def test_numbers_are_the_attentions_in_pieces_and_in_words(page):
    attentions = translation(pieces(8, 1, 2, 5), pieces(1, 8, 3))
    page.show(attentions)
    page.pick("view", "map")
    for at, attention in enumerate(attentions.values()):
        page.pick("attention", str(at))
        for unit, one in (("pieces", attention), ("words", attention.joined())):
            page.pick("unit", unit)
            expected = {
                (0, 0): one.scores.mean((0, 1)), (0, 1): one.scores.max((0, 1)), (1, 0): one.scores[0].mean(0),
                (2, 1): one.scores[1].max(0), (2, 4): one.scores[1, 2],
            }  # fmt: skip
            for place, scores in expected.items():
                page.pick_head(*place)
                np.testing.assert_allclose(page.numbers, scores, atol=0.01)


def test_text_shows_as_itself(page):
    tokens = Tokens.of_whole(ODD)
    page.show({"self": some_attention(tokens, tokens)}, ODD[0])
    assert page.all("h1", "one.textContent") == [ODD[0]] and page.driver.title == ODD[0]
    for label, word in zip(ODD, page.driver.find_elements("css selector", "#queries [role=option]"), strict=True):
        word.click()
        assert f"mean of all heads: '{label}' looks at '" in page.summary
    sides = page.all("#keys [role=option]", "[...one.children].map(part => part.getBoundingClientRect().left)")
    assert all(token < score for token, score in sides), "no direction of a script moves the numbers"
    page.pick("view", "map")
    for selector in ("#queries bdi", "#keys bdi", "#map [scope=row]", "#map [scope=col]"):
        assert page.all(selector, "one.textContent") == ODD
