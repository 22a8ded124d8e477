"""The page of attention, as a document: what it holds, how large it is, and that it refers to nothing outside."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np

from keras_transformer.decoding.attention_maps import Attention, Tokens
from keras_transformer.plots import attention_page
from tests.plots.some_attention import pieces, some_attention, translation


class Parts(HTMLParser):
    """The text of each element that a document has, by its tag, and all attributes."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tag = ""
        self.texts: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tag = tag
        self.texts.setdefault(tag, []).append("")
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        self.tag = ""

    def handle_data(self, data: str) -> None:
        if self.tag:
            self.texts[self.tag][-1] += data


def data_of(document: str) -> list[dict[str, Any]]:
    """What the page's script reads."""
    return json.loads(Parts(document).texts["script"][0])


def scores_of(described: dict[str, Any]) -> np.ndarray:
    """The scores, as the page's script decodes them."""
    shape = (described["layers"], described["heads"], *(len(described[side]["pieces"]) for side in ("queries", "keys")))
    return np.frombuffer(base64.b64decode(described["scores"]), np.uint8).reshape(shape) / 255


def test_scores_and_sums_of_neighbouring_keys_are_right_within_a_255th():
    attention = some_attention(pieces(8, 1, 3), pieces(8, 2, 8, 1))
    (described,) = data_of(attention_page({"cross": attention}))
    found = scores_of(described)
    np.testing.assert_allclose(found, attention.scores, atol=1 / 255)
    np.testing.assert_allclose(found.sum(-1), 1)
    rounded = Attention(attention.queries, attention.keys, found).joined()
    np.testing.assert_allclose(rounded.scores, attention.joined().scores, atol=1 / 255)
    assert described["queries"]["words"] == [*attention.joined().queries.labels]
    assert described["keys"]["pieces"] == [*attention.keys.labels]
    tokens = pieces(*[1] * 600)  # scores too small for a byte keep their sum
    page = attention_page({"self": Attention(tokens, tokens, np.full((1, 1, 600, 600), 1 / 600))})
    np.testing.assert_allclose(scores_of(data_of(page)[0]).sum(-1), 1)
    assert len(page.encode()) < 600_000, "a byte for each score, and four characters for three bytes"


def test_distances_are_in_pieces_and_in_words_and_only_where_both_sides_are_one_text():
    attentions = translation(pieces(2, 1, 3))
    for attention, described in zip(attentions.values(), data_of(attention_page(attentions)), strict=True):
        is_one_text = described["title"] != "Encoder-decoder attention"
        assert [*described["distances"]] == ["pieces", "words"] * is_one_text
        for unit, one in (("pieces", attention), ("words", attention.joined())) if is_one_text else ():
            np.testing.assert_allclose(described["distances"][unit]["heads"], one.mean_distances(), atol=0.005001)
    for causal, even in ((False, 8 / 9), (True, (0 + 1 / 2 + 1) / 3)):  # an even look is even over what is seen
        attention = some_attention(pieces(1, 1, 1), pieces(1, 1, 1), causal=causal)
        assert data_of(attention_page({"self": attention}))[0]["distances"]["pieces"]["even"] == round(even, 2)
    for count in (0, 1):
        attention = some_attention(pieces(*[1] * count), pieces(*[1] * count))
        (described,) = data_of(attention_page({"self": attention}))
        assert scores_of(described).shape == (2, 3, count, count)
        assert described["distances"]["words"] == {"heads": [[0.0] * 3] * 2, "even": 0.0}


def test_nothing_refers_to_another_file_and_browsers_are_told_to_run_this_script_alone_and_to_load_nothing():
    page = attention_page(translation(pieces(2, 1)), "A title")
    parts = Parts(page)
    outside = r"https?:|//|[ .]src *=|url\(|@import|\bimport\b|fetch\(|XMLHttp|WebSocket|innerHTML"
    assert not re.findall(outside, page.replace(parts.texts["script"][0], ""))
    linked = [value for name, value in parts.attributes if name in ("href", "src", "action", "srcset")]
    assert linked == ["data:,"], "an empty icon, or browsers would ask a server for one"
    (policy,) = [value for _, value in parts.attributes if value and value.startswith("default-src")]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("img-src") == "data:"
    for name, text in (("script-src", parts.texts["script"][1]), ("style-src", parts.texts["style"][0])):
        assert rules.pop(name) == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert set(rules) == {"default-src", "base-uri", "form-action"} and set(rules.values()) == {"'none'"}


def test_text_is_data():
    plain = Parts(attention_page({"self": some_attention(pieces(1), pieces(1))}))
    for text in ("</script><b>", "<!--<script>", "\"'", "a\u2028b", "\u200frtl", "$x$ ${data} &amp;", "東京"):
        tokens = Tokens.of_whole([text])
        parts = Parts(attention_page({"self": some_attention(tokens, tokens)}, text))
        assert [*parts.texts] == [*plain.texts] and len(parts.texts["script"]) == 2
        assert json.loads(parts.texts["script"][0])[0]["keys"]["pieces"] == [text]
        assert parts.texts["title"] == parts.texts["h1"] == [text]
