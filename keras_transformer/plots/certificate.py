"""An export's certificate as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# (title, what it is of an entry, in which unit): a panel each.
PANELS = (
    ("identical, %", "identical", 100.0),
    ("BLEU", "bleu", 1.0),
    ("size, MB", "bytes", 1e-6),
    ("memory, MB", "peak_bytes", 1e-6),
    ("latency, ms", "latency_seconds", 1e3),
    ("sentences/s", "sentences_per_second", 1.0),
)


def certificate_picture(certificate: Mapping[str, Any]) -> Any:
    """Quality and cost of every artefact that was run, side by side.

    Args:
        certificate: what certificate.json holds.

    Returns:
        A matplotlib figure: a panel for each quantity, a bar for each artefact, hatched where it does not hold; a
        dashed line where the model stands.
    """
    from matplotlib.figure import Figure

    entries = [entry for entry in certificate["entries"] if entry["judgement"]]
    figure = Figure(figsize=(2.6 * len(PANELS), 0.9 + 0.35 * len(entries)), layout="constrained")
    for (title, quantity, unit), axes in zip(PANELS, figure.subplots(1, len(PANELS), sharey=True), strict=True):
        values = [(_quantities(entry)[quantity] or 0) * unit for entry in entries]
        bars = axes.barh([entry["name"] for entry in entries], values)
        axes.bar_label(
            bars, [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values], padding=2, fontsize="small"
        )
        axes.margins(x=0.35)
        axes.set_title(title)
        for bar, entry in zip(bars, entries, strict=True):
            bar.set_hatch("" if entry["holds"] else "//")
        if quantity == "bleu" and entries:
            axes.axvline(_quantities(entries[0])["model_bleu"] or 0, linestyle="--", color="black", linewidth=1)
    if entries:
        axes.invert_yaxis()  # the first artefact on top, in every panel: they share the axis
    return figure


def _quantities(entry: Mapping[str, Any]) -> dict[str, Any]:
    measured = entry["judgement"]["measured"]
    return {**measured, "identical": measured["identical"] / measured["sentences"], "bytes": entry["contents"]["bytes"]}
