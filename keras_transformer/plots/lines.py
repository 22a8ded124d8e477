"""Lines that differ by more than their colour."""

from __future__ import annotations

from typing import Any

STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def tell_lines_apart(axes: Any) -> None:
    """Gives each line that the axes will draw a colour and a style of its own; the styles repeat after five."""
    import matplotlib

    axes.set_prop_cycle(color=matplotlib.color_sequences["tab10"], linestyle=2 * STYLES)
