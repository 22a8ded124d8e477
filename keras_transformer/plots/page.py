"""A page of HTML that shows attention: one file that needs nothing else, to look at in a browser and to send around."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any

import numpy as np

from keras_transformer.decoding.attention import Attention, Tokens

# For each attention its name for readers, and what its rows and its columns are.
_TEXTS = {
    "encoder": ("Encoder self-attention", "each token of the source", "the tokens of the source that it looks at"),
    "decoder": ("Decoder self-attention", "the token of the translation that is read", "the tokens that it looks at"),
    "cross": (
        "Encoder-decoder attention",
        "the token of the translation that is written next",
        "the tokens of the source that it looks at",
    ),
    "self": ("Self-attention", "each token of the text", "the tokens of the text that it looks at"),
}


def attention_page(attentions: Mapping[str, Attention], title: str = "Attention") -> str:
    """A page with the attentions of one text: lines between words, heat maps, and every head's mean distance.

    Args:
        attentions: by their names, as the method `attention` of each kind of model gives them: "encoder", "decoder"
            and "cross", or "self".
        title: stands at the top of the page.

    Returns:
        A document of HTML. It refers to no other file, and it forbids browsers to load any.
    """
    files = resources.files("keras_transformer.plots")
    page, style, script = (files.joinpath(f"page.{end}").read_text("utf-8") for end in ("html", "css", "js"))
    data = json.dumps([_described(name, attention) for name, attention in attentions.items()], separators=(",", ":"))
    return Template(page).substitute(
        title=html.escape(title),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=data.replace("<", "\\u003c"),  # or a token could end the block of data
    )


def _described(name: str, attention: Attention) -> dict[str, Any]:
    """What the page's script reads of an attention."""
    title, rows, columns = _TEXTS[name]
    distances = {}
    if name != "cross":
        distances = {"pieces": _distances(attention), "words": _distances(attention.joined())}
    return {
        "title": title,
        "rows": rows,
        "columns": columns,
        "queries": _tokens(attention.queries),
        "keys": _tokens(attention.keys),
        "layers": attention.scores.shape[0],
        "heads": attention.scores.shape[1],
        "distances": distances,
        "scores": base64.b64encode(_bytes(attention.scores).tobytes()).decode(),
    }


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {"pieces": tokens.labels, "words": tokens.joined().labels, "wordOf": tokens.words}


def _bytes(scores: np.ndarray) -> np.ndarray:
    """The scores in 255ths, uint8.

    The running sum of a row is rounded, rather than each score. So every score is right within 1/255, and so is the
    sum of the keys of a word, however many they are. A row keeps its sum, even where each of its scores is tiny.
    """
    sums = np.rint(np.cumsum(scores, axis=3, dtype="float64") * 255).clip(0, 255)
    return np.diff(sums, axis=3, prepend=0).astype("uint8")


def _distances(attention: Attention) -> dict[str, Any]:
    """Each head's mean distance, and the distance of a look that is even over all that the queries see."""
    seen = (attention.scores > 0).any((0, 1), keepdims=True)
    even = attention._replace(scores=seen / np.maximum(seen.sum(-1, keepdims=True), 1))
    return {"heads": attention.mean_distances().round(2).tolist(), "even": round(float(even.mean_distances()[0, 0]), 2)}


def _hash(text: str) -> str:
    """The name by which a Content-Security-Policy allows a script or a style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
