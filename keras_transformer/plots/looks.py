"""Where a pixel of an image looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS_IN_A_ROW = 4


def looks_picture(image: Any, pixel: tuple[int, int], looks: Mapping[str, Any]) -> Figure:
    """The image with the pixel marked, and beside it the places that the pixel looks at, the brighter the more.

    Args:
        image: (S, S, 1) or (S, S, 3) uint8.
        pixel: its row and its column, from 0.
        looks: for each panel its title and its attention (R, R), see `Recognizer.looks`.

    Returns:
        A figure with a panel for the image, and one for each attention, over the whole image. Each has a scale of its
        own, from 0 to its largest number, which the title tells.
    """
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke

    size, count = len(image), 1 + len(looks)
    columns = min(count, PANELS_IN_A_ROW)
    rows = -(-count // columns)
    figure = Figure(figsize=(2.4 * columns, 2.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    extent = (-0.5, size - 0.5, size - 0.5, -0.5)
    panels[0].imshow(image, cmap="gray", vmin=0, vmax=255, extent=extent)
    panels[0].set_title("image")
    for axes, (title, attention) in zip(panels[1:], looks.items(), strict=False):
        axes.imshow(attention, cmap="viridis", vmin=0, extent=extent, interpolation="nearest")
        axes.set_title(f"{title}, to {attention.max():.2g}")
    for axes in panels:
        axes.set_axis_off()
    for axes in panels[:count]:
        outline = [withStroke(linewidth=4, foreground="white")]  # or the mark is lost on grey
        axes.plot(pixel[1], pixel[0], marker="x", markersize=8, markeredgewidth=2, color="red", path_effects=outline)
    return figure
