"""An export's certificate as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A panel for each: its title, the quantity of an entry, and the factor to the title's unit.
PANELS = (
    ("identical, %", "identical", 100.0),
    ("BLEU (line: the model)", "bleu", 1.0),
    ("size, MB", "bytes", 1e-6),
    ("memory, MB", "peak_bytes", 1e-6),
    ("latency, ms", "latency_seconds", 1e3),
    ("sentences a second", "sentences_per_second", 1.0),
)
COLUMNS = 3  # of panels


def certificate_picture(certificate: Mapping[str, Any]) -> Figure:
    """Quality and cost of every artefact that was run, side by side.

    Args:
        certificate: the content of certificate.json.

    Returns:
        A figure with a panel for each quantity and a bar for each artefact. Bars of artefacts that do not hold are
        hatched, and a line below says so. A dashed line marks the model's BLEU.
    """
    from matplotlib.figure import Figure

    entries = [entry for entry in certificate["entries"] if entry["judgement"]]
    rows = -(-len(PANELS) // COLUMNS)
    figure = Figure(figsize=(3 * COLUMNS, 0.3 + rows * (0.6 + 0.28 * len(entries))), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, sharey=True).ravel()
    for (title, quantity, unit), axes in zip(PANELS, panels, strict=True):
        values = [(_quantities(entry)[quantity] or 0) * unit for entry in entries]
        bars = axes.barh([entry["name"] for entry in entries], values)
        axes.bar_label(
            bars,
            [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values],
            padding=2,
            fontsize="small",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},  # before the dashed line
        )
        axes.margins(x=0.35)
        axes.set_title(title)
        for bar, entry in zip(bars, entries, strict=True):
            bar.set_hatch("" if entry["holds"] else "//")
        if quantity == "bleu" and entries:
            axes.axvline(
                _quantities(entries[0])["model_bleu"] or 0, linestyle="--", color="black", linewidth=1, zorder=0.5
            )
    if not all(entry["holds"] for entry in entries):
        figure.supxlabel("hatched: does not hold")
    if entries:
        axes.invert_yaxis()  # the first artefact on top; the panels share the axis
    return figure


def _quantities(entry: Mapping[str, Any]) -> dict[str, Any]:
    measured = entry["judgement"]["measured"]
    return {**measured, "identical": measured["identical"] / measured["sentences"], "bytes": entry["contents"]["bytes"]}
