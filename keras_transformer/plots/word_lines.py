"""Lines from one word to the words that it looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.plots.fonts import families_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from keras_transformer.decoding.attention import Attention

INCHES_OF_LINE = 0.26  # of a word's line
SHOWN = 0.01  # the smallest score with a line


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
    """The queries on the left, the keys on the right, and lines from one query, the wider the larger the score.

    Args:
        panels: side by side, in rows.
        columns: the most panels in a row.

    Returns:
        A figure. Beside each key stands its score, from 0.05 on.
    """
    from matplotlib.figure import Figure

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


def _draw_lines(axes: Any, panel: WordLines, most: int, families: list[str]) -> None:
    scores = panel.attention.scores[panel.layer, panel.head, panel.query]
    style = {"family": families, "parse_math": False, "verticalalignment": "center"}
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
