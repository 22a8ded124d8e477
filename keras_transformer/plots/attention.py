"""Attention as heat maps: a row for each query, a column for each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.plots.fonts import families_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from keras_transformer.decoding.attention import Attention

TITLES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "encoder-decoder attention",
    "self": "self-attention",
}
INCHES_OF_TOKEN = 0.17  # of a token
MARGIN = 0.9  # inches, for the names of tokens


def attention_picture(
    attentions: Mapping[str, Attention], layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> Figure:
    """A heat map for each head of each attention, the darker the larger the score, from 0 to 1.

    Args:
        attentions: as `Translator.attention` gives them, in pieces or joined to words.
        layers, heads: which are drawn, from 1; all by default.

    Returns:
        A figure with a block for each attention, in it a row for each layer and a column for each head. In a map the
        rows are the queries and the columns the keys.

    Raises:
        IndexError: there is no such layer or head.
    """
    from matplotlib.figure import Figure

    blocks = [(name, *chosen(one, layers, heads)) for name, one in attentions.items()]
    families = families_for(label for one in attentions.values() for label in (*one.queries.labels, *one.keys.labels))
    sizes = [_size(attentions[name], len(rows), len(columns)) for name, rows, columns in blocks]
    figure = Figure((max(width for width, _ in sizes), sum(height for _, height in sizes)), layout="constrained")
    parts = figure.subfigures(len(blocks), 1, height_ratios=[height for _, height in sizes], squeeze=False)[:, 0]
    for part, (name, rows, columns) in zip(parts, blocks, strict=True):
        part.suptitle(TITLES.get(name, name))
        grid = part.subplots(len(rows), len(columns), squeeze=False)
        for layer, maps in zip(rows, grid, strict=True):
            for head, axes in zip(columns, maps, strict=True):
                _draw_heads(axes, attentions[name], layer, head, families)
    return figure


def chosen(one: Attention, layers: Sequence[int] | None, heads: Sequence[int] | None) -> tuple[list[int], list[int]]:
    """Layers and heads, counted from 0, of those that are given from 1; all where None are given.

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
    """Width and height of a block, in inches."""
    height, width = (MARGIN + INCHES_OF_TOKEN * max(4, len(tokens.labels)) for tokens in (one.queries, one.keys))
    return num_heads * width, num_layers * (height + 0.3) + 0.4


def _draw_heads(axes: Any, one: Attention, layer: int, head: int, families: list[str]) -> None:
    axes.imshow(one.scores[layer, head], cmap="Blues", vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    axes.set_title(f"head {layer + 1}.{head + 1}", fontsize="small")
    style = {"fontsize": "x-small", "family": families, "parse_math": False}
    axes.set_xticks(range(len(one.keys.labels)), one.keys.labels, rotation=90, **style)
    axes.set_yticks(range(len(one.queries.labels)), one.queries.labels, **style)
    axes.tick_params(length=0)
