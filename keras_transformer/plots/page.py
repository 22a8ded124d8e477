"""Shows where tokens look: as lines between words, as a picture of each head, and as a page to explore."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_transformer.decoding.attention_maps import Attention, Tokens
from keras_transformer.plots.pictures import families_for
from keras_transformer.spec.options import Config

INCHES_OF_LINE = 0.26  # the height of a word's line
SHOWN = 0.01  # the smallest score with a line
INCHES_OF_TOKEN = 0.17  # the width of a token
MARGIN = 0.9  # inches, for the names of tokens
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


class WordLines(NamedTuple):
    """One panel: where a word looks.

    Args:
        attention: one attention.
        query: the place of the word among the queries, from 0.
        layer, head: from 0.
        title: above the panel; by default the head's number, such as "head 2.1" for layer 2.
    """

    attention: Attention
    query: int
    layer: int
    head: int
    title: str | None = None


def word_lines_picture(panels: Sequence[WordLines], columns: int = 4) -> Figure:
    """Draws lines from one query on the left to the keys on the right, the wider the larger the score.

    Args:
        panels: side by side, in rows.
        columns: the most panels in a row.

    Returns:
        A figure. Beside each key stands its score, from 0.05 on.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    most = max(len(tokens.labels) for one in panels for tokens in one.attention[:2])
    figure = Figure(figsize=(3.4 * columns, rows * (0.5 + INCHES_OF_LINE * most)), layout="constrained")
    families = families_for(label for one in panels for tokens in one.attention[:2] for label in tokens.labels)
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in every:
        axes.set_axis_off()
    for panel, axes in zip(panels, every, strict=False):
        _draw_lines(axes, panel, most, families)
    return figure


def _draw_lines(axes: Axes, panel: WordLines, most: int, families: list[str]) -> None:
    scores = panel.attention.scores[panel.layer, panel.head, panel.query]
    style: dict[str, Any] = {"family": families, "parse_math": False, "verticalalignment": "center"}
    for place, label in enumerate(panel.attention.queries.labels):
        weight = "bold" if place == panel.query else "normal"
        axes.text(-0.03, place, label, horizontalalignment="right", fontweight=weight, **style)
    for place, (label, score) in enumerate(zip(panel.attention.keys.labels, scores, strict=True)):
        number = f"   {score:.2f}" if score >= 0.05 else ""
        weight = "bold" if place == scores.argmax() else "normal"
        axes.text(1.03, place, label + number, horizontalalignment="left", fontweight=weight, **style)
        if score >= SHOWN:
            width, strength = 0.5 + 5 * float(score), 0.15 + 0.85 * float(score)
            axes.plot([0, 1], [panel.query, place], color="tab:blue", linewidth=width, alpha=strength)
    title = f"head {panel.layer + 1}.{panel.head + 1}" if panel.title is None else panel.title
    axes.set_title(title, fontsize="medium", parse_math=False)
    axes.set_xlim(-1.2, 2.6)
    axes.set_ylim(most - 0.5, -0.5)


def attention_picture(
    attentions: Mapping[str, Attention], layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> Figure:
    """Draws a heat map for each head of each attention, the darker the larger the score, from 0 to 1.

    Args:
        attentions: as `Translator.attention` gives them, in pieces or joined to words.
        layers, heads: which are drawn, from 1; all by default.

    Returns:
        A figure with a block for each attention, in it a row for each layer and a column for each head. In a map the
        rows are the queries and the columns the keys.

    Raises:
        IndexError: there is no such layer or head.
    """
    blocks = [(name, *chosen(one, layers, heads)) for name, one in attentions.items()]
    families = families_for(label for one in attentions.values() for label in (*one.queries.labels, *one.keys.labels))
    sizes = [_size(attentions[name], len(rows), len(columns)) for name, rows, columns in blocks]
    figure = Figure((max(width for width, _ in sizes), sum(height for _, height in sizes)), layout="constrained")
    parts = figure.subfigures(len(blocks), 1, height_ratios=[height for _, height in sizes], squeeze=False)[:, 0]
    for part, (name, rows, columns) in zip(parts, blocks, strict=True):
        part.suptitle(_TEXTS[name][0].lower() if name in _TEXTS else name)
        grid = part.subplots(len(rows), len(columns), squeeze=False)
        for layer, maps in zip(rows, grid, strict=True):
            for head, axes in zip(columns, maps, strict=True):
                _draw_heads(axes, attentions[name], layer, head, families)
    return figure


def chosen(one: Attention, layers: Sequence[int] | None, heads: Sequence[int] | None) -> tuple[list[int], list[int]]:
    """Counts layers and heads from 0 that are given from 1; all where None are given.

    Raises:
        IndexError: there is no such layer or head.
    """
    count, num_heads = one.scores.shape[:2]
    for given, most in ((layers, count), (heads, num_heads)):
        if given is not None and not all(1 <= number <= most for number in given):
            raise IndexError(f"layers go from 1 to {count}, and heads from 1 to {num_heads}; received: {list(given)}")
    return [number - 1 for number in layers or range(1, count + 1)], [
        number - 1 for number in heads or range(1, num_heads + 1)
    ]


def _size(one: Attention, num_layers: int, num_heads: int) -> tuple[float, float]:
    """Returns the width and height of a block, in inches."""
    height, width = (MARGIN + INCHES_OF_TOKEN * max(4, len(tokens.labels)) for tokens in (one.queries, one.keys))
    return num_heads * width, num_layers * (height + 0.3) + 0.4


def _draw_heads(axes: Axes, one: Attention, layer: int, head: int, families: list[str]) -> None:
    axes.imshow(one.scores[layer, head], cmap="Blues", vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    axes.set_title(f"head {layer + 1}.{head + 1}", fontsize="small")
    style: dict[str, Any] = {"fontsize": "x-small", "family": families, "parse_math": False}
    axes.set_xticks(range(len(one.keys.labels)), one.keys.labels, rotation=90, **style)
    axes.set_yticks(range(len(one.queries.labels)), one.queries.labels, **style)
    axes.tick_params(length=0)


def attention_page(attentions: Mapping[str, Attention], title: str = "Attention") -> str:
    """Writes a page with the attentions of one text: lines between words, heat maps, and every head's mean distance.

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


def _described(name: str, attention: Attention) -> Config:
    """Returns what the page's script reads of an attention."""
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


def _tokens(tokens: Tokens) -> Config:
    return {"pieces": tokens.labels, "words": tokens.joined().labels, "wordOf": tokens.words}


def _bytes(scores: np.ndarray) -> np.ndarray:
    """Returns the scores in 255ths, uint8.

    The running sum of a row is rounded, rather than each score. So every score is right within 1/255, and so is the
    sum of the keys of a word, however many they are. A row keeps its sum, even where each of its scores is tiny.
    """
    sums = np.rint(np.cumsum(scores, axis=3, dtype="float64") * 255).clip(0, 255)
    return np.diff(sums, axis=3, prepend=0).astype("uint8")


def _distances(attention: Attention) -> Config:
    """Returns each head's mean distance, and the distance of a look that is even over all that the queries see."""
    seen = (attention.scores > 0).any((0, 1), keepdims=True)
    even = attention._replace(scores=seen / np.maximum(seen.sum(-1, keepdims=True), 1))
    return {"heads": attention.mean_distances().round(2).tolist(), "even": round(float(even.mean_distances()[0, 0]), 2)}


def _hash(text: str) -> str:
    """Returns the name by which a Content-Security-Policy allows a script or a style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
