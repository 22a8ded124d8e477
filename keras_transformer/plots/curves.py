"""Learning curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.plots.lines import tell_lines_apart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS_IN_A_ROW = 3
# What is measured: its name on the axis, and the function that finds its best; None where nothing is best.
_QUANTITIES: dict[str, tuple[str, Callable[..., Any] | None]] = {
    "loss": ("nats", min),
    "perplexity": ("perplexity", min),
    "accuracy": ("share that is right", max),
    "bleu": ("BLEU", max),
    "recall": ("recall", max),
    "ndcg": ("NDCG", max),
    "learning_rate": ("learning rate", None),
}


def learning_curves(history: Mapping[str, Sequence[float]]) -> Figure:
    """Loss, perplexity, accuracy, BLEU, recall, NDCG and learning rate over the steps, for training and validation.

    Args:
        history: the columns of metrics.csv, with "step". The prefix "val_" marks validation.

    Returns:
        A figure with a panel for each quantity that was measured. Dashed lines are those of the validation; a mark
        and the title tell its best.
    """
    from matplotlib.figure import Figure

    names = [name for name in _QUANTITIES if _has(history, name)]
    count = max(1, len(names))
    columns = min(PANELS_IN_A_ROW, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(3.2 * columns, 2.8 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[count:]:
        axes.remove()
    for name, axes in zip(names, panels, strict=False):
        tell_lines_apart(axes)
        for column, label in ((name, "training"), (f"val_{name}", "validation")):
            if column in history:
                axes.plot(history["step"], history[column], label=label)
        unit, best = _QUANTITIES[name]
        axes.set(title=name.replace("_", " ") + _marked(axes, history, f"val_{name}", best), xlabel="step", ylabel=unit)
        if name == "perplexity":
            axes.set_yscale("log")
        if _has(history, f"val_{name}") and name in history:
            axes.legend()
    return figure


def _has(history: Mapping[str, Sequence[float]], name: str) -> bool:
    return name in history or f"val_{name}" in history


def _marked(axes: Any, history: Mapping[str, Sequence[float]], column: str, best: Callable[..., Any] | None) -> str:
    """Marks the best number of a column; returns what the title says of it."""
    values = history.get(column, ())
    measured = [(value, step) for value, step in zip(values, history["step"], strict=False) if math.isfinite(value)]
    if best is None or not measured:
        return ""
    value, step = best(measured, key=lambda pair: pair[0])
    axes.plot(step, value, marker="o", markerfacecolor="none", color="black")
    return f"\nbest {value:.4g}, step {step:,.0f}"
