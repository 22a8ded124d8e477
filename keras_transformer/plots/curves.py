"""Learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_QUANTITIES = ("loss", "perplexity", "accuracy", "bleu", "recall", "ndcg", "learning_rate")


def learning_curves(history: Mapping[str, Sequence[float]]) -> Figure:
    """Loss, perplexity, accuracy, BLEU, recall, NDCG and learning rate over the steps, for training and validation.

    Args:
        history: the columns of metrics.csv, with "step". The prefix "val_" marks validation.

    Returns:
        A figure with a panel for each quantity that was measured.
    """
    from matplotlib.figure import Figure

    names = [name for name in _QUANTITIES if _has(history, name)]
    figure = Figure(figsize=(3.2 * max(1, len(names)), 2.8), layout="constrained")
    for name, axes in zip(names, figure.subplots(1, max(1, len(names)), squeeze=False)[0], strict=False):
        for column, label in ((name, "training"), (f"val_{name}", "validation")):
            if column in history:
                axes.plot(history["step"], history[column], label=label)
        axes.set_title(name.replace("_", " "))
        axes.set_xlabel("step")
        if name == "perplexity":
            axes.set_yscale("log")
        if _has(history, f"val_{name}") and name in history:
            axes.legend()
    return figure


def _has(history: Mapping[str, Sequence[float]], name: str) -> bool:
    return name in history or f"val_{name}" in history
