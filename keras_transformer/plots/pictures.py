"""Pictures by matplotlib: learning curves, masks, positions, schedules, certificates; and the fonts that text needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager
from matplotlib.ft2font import FT2Font

from keras_transformer import ops
from keras_transformer.core.errors import warn
from keras_transformer.ops import Tensor

if TYPE_CHECKING:
    from keras_transformer.layers.positions import Positions

STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
CURVES_IN_A_ROW = 3
Best = Callable[..., tuple[float, float]]  # of pairs (value, step): `min` or `max`
# What is measured: its name on the axis, and the function that finds its best; None where nothing is best.
_QUANTITIES: dict[str, tuple[str, Best | None]] = {
    "loss": ("nats", min),
    "perplexity": ("perplexity", min),
    "accuracy": ("share that is right", max),
    "bleu": ("BLEU", max),
    "recall": ("recall", max),
    "ndcg": ("NDCG", max),
    "learning_rate": ("learning rate", None),
}
CURVES = (8, 9, 32, 33)  # dimensions that are drawn as curves, where there are so many
HEADS = 4  # whose biases are drawn
POINTS = 400  # in a curve
# A panel for each: its title, the quantity of an entry, and the factor to the title's unit.
PANELS = (
    ("identical, %", "identical", 100.0),
    ("BLEU (line: the model)", "bleu", 1.0),
    ("size, MB", "bytes", 1e-6),
    ("memory, MB", "peak_bytes", 1e-6),
    ("latency, ms", "latency_seconds", 1e3),
    ("sentences a second", "sentences_per_second", 1.0),
)
CERTIFICATE_COLUMNS = 3  # panels side by side


def families_for(texts: Iterable[str]) -> list[str]:
    """Finds the font families by which Matplotlib shows texts: the usual ones, then installed ones for other letters.

    A warning names the characters that no installed font has.
    """
    families = list(matplotlib.rcParams["font.family"])
    usual = findfont(FontProperties(family=families))
    missing = {char for text in texts for char in text if char.isprintable()} - _characters(usual)
    for font in sorted(fontManager.ttflist, key=lambda font: (font.style, font.name)):
        if not missing:
            break
        if font.name.startswith("Last Resort") or font.style != "normal":  # it shows a box for every character
            continue
        if found := missing & _characters(font.fname):
            families.append(font.name)
            missing -= found
    if missing:
        warn(
            f"no installed font shows {len(missing)} character(s) of the text, such as {min(missing)!r}: install one, "
            "such as Noto, or write an HTML page, which the browser's fonts show"
        )
    return families


@cache
def _characters(path: str) -> frozenset[str]:
    """Returns the characters of a font; none if Matplotlib cannot read it."""
    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):
        return frozenset()


def tell_lines_apart(axes: Axes) -> None:
    """Gives each line that the axes will draw a colour and a style of its own; the styles repeat after five."""
    axes.set_prop_cycle(color=matplotlib.color_sequences["tab10"], linestyle=2 * STYLES)


def learning_curves(history: Mapping[str, Sequence[float]]) -> Figure:
    """Draws loss, perplexity, accuracy, BLEU, recall, NDCG and learning rate over the steps of training and validation.

    Args:
        history: the columns of metrics.csv, with "step". The prefix "val_" marks validation.

    Returns:
        A figure with a panel for each quantity that was measured. Dashed lines are those of the validation; a mark
        and the title tell its best.
    """
    names = [name for name in _QUANTITIES if _has(history, name)]
    count = max(1, len(names))
    columns = min(CURVES_IN_A_ROW, count)
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


def _marked(axes: Axes, history: Mapping[str, Sequence[float]], column: str, best: Best | None) -> str:
    """Marks the best number of a column; returns what the title says of it."""
    values = history.get(column, ())
    measured = [(value, step) for value, step in zip(values, history["step"], strict=False) if math.isfinite(value)]
    if best is None or not measured:
        return ""
    value, step = best(measured, key=lambda pair: pair[0])
    axes.plot(step, value, marker="o", markerfacecolor="none", color="black")
    return f"\nbest {value:.4g}, step {step:,.0f}"


def masks_picture(masks: Mapping[str, Tensor]) -> Figure:
    """Draws masks side by side: a row for each query, a column for each key, a dark square where the key is seen.

    Args:
        masks: one or more, booleans (T, S) by their titles, True = visible, such as `causal_mask(8)[0]`.

    Returns:
        A figure with a panel for each mask.
    """
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


def positions_picture(positions: Positions, length: int = 64, hidden_dim: int = 128, is_causal: bool = False) -> Figure:
    """Draws what a layer of positions adds, for each of the first positions.

    Args:
        positions: a layer, such as `SinusoidalPositions(128)`, `RotaryPositions(32)` or `AlibiPositions(8)`.
        length: how many positions, S.
        hidden_dim: D of the vectors to which positions are added; that of the layer if it has one.
        is_causal: whether the biases are those of a decoder.

    Returns:
        A figure. Of vectors (S, D) a map, and single dimensions as curves. Of angles by which pairs of dimensions are
        rotated, a map of their cosines. Of biases (heads, S, S) a map for each of the first heads.

    Raises:
        ValueError: the layer adds nothing.
    """
    places, hidden_dim = np.arange(length), getattr(positions, "hidden_dim", hidden_dim)
    bias, rotation = positions.bias(places, places, is_causal), positions.rotation(places, is_causal)
    if bias is not None:
        maps = {f"head {head + 1}": bias for head, bias in enumerate(ops.convert_to_numpy(bias)[:HEADS])}
        return _maps(maps, "position of the key", "position of the query")
    if rotation is not None:
        cosines = ops.convert_to_numpy(rotation[0])
        return _maps({"cosine of the angle": cosines[:, : cosines.shape[-1] // 2]}, "pair of dimensions", "position")
    vectors = ops.convert_to_numpy(positions.embed(np.zeros((1, length, hidden_dim), "float32"), places))[0]
    if not vectors.any():
        raise ValueError(f"expected positions that add something; received: {type(positions).__name__}")
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_map(figure, left, vectors, "what is added", ("dimension", "position"))
    tell_lines_apart(right)
    for dimension in (one for one in CURVES if one < hidden_dim):
        right.plot(places, vectors[:, dimension], label=f"dimension {dimension}")
    right.set(title="single dimensions", xlabel="position")
    right.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _maps(maps: Mapping[str, np.ndarray], across: str, down: str) -> Figure:
    figure = Figure(figsize=(0.8 + 2.8 * len(maps), 3.2), layout="constrained")
    for axes, (title, values) in zip(figure.subplots(1, len(maps), squeeze=False)[0], maps.items(), strict=True):
        _draw_map(figure, axes, values, title, (across, down))
    return figure


def _draw_map(figure: Figure, axes: Axes, values: np.ndarray, title: str, names: tuple[str, str]) -> None:
    image = axes.imshow(values, cmap="viridis", aspect="auto", interpolation="nearest")
    axes.set(title=title, xlabel=names[0], ylabel=names[1])
    figure.colorbar(image, ax=axes)


def schedule_picture(schedules: Mapping[str, Callable[[Tensor], Tensor]], num_steps: int) -> Figure:
    """Draws the learning rate at each step, with the peak marked.

    Args:
        schedules: by their names, such as `InverseSquareRootDecay(512)`; each takes the number of updates made so far.
        num_steps: the number of steps of the training.
    """
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    tell_lines_apart(axes)
    steps = np.unique(np.linspace(0, num_steps - 1, POINTS).astype(int))
    for name, schedule in schedules.items():
        rates = np.array([float(schedule(step)) for step in steps])
        peak = int(rates.argmax())
        (line,) = axes.plot(steps + 1, rates, label=name)
        axes.plot(steps[peak] + 1, rates[peak], marker="o", color=line.get_color())
        axes.annotate(f"{rates[peak]:.2g}", (steps[peak] + 1, rates[peak]), (4, 4), textcoords="offset points")
    axes.set(xlabel="step", ylabel="learning rate")
    axes.legend()
    return figure


def certificate_picture(certificate: Mapping[str, Any]) -> Figure:
    """Draws quality and cost of every artefact that was run, side by side.

    Args:
        certificate: the content of certificate.json.

    Returns:
        A figure with a panel for each quantity and a bar for each artefact. Bars of artefacts that do not hold are
        hatched, and a line below says so. A dashed line marks the model's BLEU.
    """
    entries = [entry for entry in certificate["entries"] if entry["judgement"]]
    rows = -(-len(PANELS) // CERTIFICATE_COLUMNS)
    figure = Figure(figsize=(3 * CERTIFICATE_COLUMNS, 0.3 + rows * (0.6 + 0.28 * len(entries))), layout="constrained")
    panels = figure.subplots(rows, CERTIFICATE_COLUMNS, sharey=True).ravel()
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


def _quantities(entry: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns what a certificate tells of an artefact, by the names of `PANELS`; None for what was not measured."""
    measured = entry["judgement"]["measured"]
    return {**measured, "identical": measured["identical"] / measured["sentences"], "bytes": entry["contents"]["bytes"]}
