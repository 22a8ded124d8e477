"""Which keys each query sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def masks_picture(masks: Mapping[str, Any]) -> Figure:
    """Masks side by side: a row for each query, a column for each key, a dark square where the key is seen.

    Args:
        masks: one or more, booleans (T, S) by their titles, True = visible, such as `causal_mask(8)[0]`.

    Returns:
        A figure with a panel for each mask.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.4 * len(masks), 2.7), layout="constrained")
    for axes, (title, mask) in zip(figure.subplots(1, len(masks), squeeze=False)[0], masks.items(), strict=True):
        axes.imshow(mask, cmap="Blues", vmin=0, vmax=1.4, interpolation="nearest")
        rows, columns = (range(size + 1) for size in mask.shape)
        axes.set_xticks([place - 0.5 for place in columns], minor=True)
        axes.set_yticks([place - 0.5 for place in rows], minor=True)
        axes.grid(which="minor", color="white", linewidth=1)
        axes.tick_params(which="both", length=0)
        axes.set(title=title, xlabel="key", ylabel="query")
    return figure
