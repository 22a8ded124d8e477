"""How time and memory of our ONNX artefact grow with batch, steps, source length, beams and vocabulary.

    python -m benchmarks.growth --out growth.png

From one way to decode (16 sentences of 16 pieces, 20 steps, 4 beams, 8,000 pieces) each quantity is varied alone. One
line of a Markdown table for each point, and for each quantity the slope of log(seconds) over log(quantity) between the
last two points, beside the one that theory says (1: proportional; 0: free). Every point is a process of its own; the
times are medians of turns, the memory is the process's, without that of a GPU. The step's own cost is the difference of
runs that differ in their number of steps. Keras, on TensorFlow or JAX, only makes the model.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.contest import (
    at_least_one,
    contenders,
    in_process,
    print_head,
    print_row,
    require_package,
    rounds,
)
from benchmarks.decoders import Cell, prepare, start_onnx
from keras_transformer.errors import RequestError, exit_status

SIZES = {"num_layers": 6, "num_heads": 8, "hidden_dim": 512, "intermediate_dim": 2048}
SMALL_SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 16}


class Setting(NamedTuple):
    """What is varied."""

    batch: int = 16
    steps: int = 20
    source: int = 16
    beams: int = 4
    vocabulary: int = 8000


# For each quantity its values, and what theory says of the slope at the last ones. A translation of 16 pieces has 66
# at most.
CURVES: dict[str, tuple[list[int], str]] = {
    "batch": ([1, 4, 16, 64], "1 once the products, not the reading of the weights, take the time"),
    "steps": ([8, 16, 32, 64], "1, and a little more: a step reads the keys and values of those before"),
    "source": ([4, 16, 64, 256], "below 1: the encoder's share of the time is proportional, the decoder's is not"),
    "beams": ([1, 2, 4, 8], "below 1: the encoder's share of the time does not grow"),
    "vocabulary": ([2000, 8000, 32000], "below 1: only the last product and the choice grow"),
}
SMALL_CURVES = {"batch": ([1, 2], "1"), "steps": ([2, 4], "1")}


def main(arguments: list[str] | None = None) -> None:
    """Prints the table and draws the curves.

    Raises:
        RequestError: the picture cannot be written there, or there is no such curve.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="a picture of the curves, .png")
    parser.add_argument("--threads", type=at_least_one, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=list(CURVES), help="what to vary (default: all)")
    parser.add_argument("--small", action="store_true", help="a tiny model, two curves")
    options = parser.parse_args(arguments)
    if options.out and not (options.out.endswith(".png") and Path(options.out).parent.is_dir()):
        raise RequestError(f"`--out` must be a .png in a folder that exists. Received: {options.out!r}")
    if options.out:
        require_package("matplotlib")
    curves, base = (SMALL_CURVES, Setting(2, 4, 4, 2, 200)) if options.small else (CURVES, Setting())
    curves = {name: curve for name, curve in curves.items() if name in options.curves}
    if not curves:
        raise RequestError(f"`--small` has the curves {', '.join(SMALL_CURVES)}. Received: {', '.join(options.curves)}")
    print_head(["varied", "value", "seconds", "ms a step", "MiB at the peak", "slope", "theory"])
    drawn = {}
    for name, (values, theory) in curves.items():
        points = [measure(base._replace(**{name: value}), options) for value in values]
        drawn[name] = values, points
        for row in rows(name, values, points, base, theory):
            print_row(row)
    if options.out:
        draw(drawn, options.out)


def measure(setting: Setting, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds, and MiB at the peak."""
    batch = setting.batch
    cell = Cell("float32", setting.beams, batch, options.threads, batch, setting.steps, device=options.device)
    sizes = {**(SMALL_SIZES if options.small else SIZES), "vocabulary_size": setting.vocabulary}
    with tempfile.TemporaryDirectory() as name:
        in_process(prepare, Path(name), None, sizes, [cell], (), setting.source)
        with contenders({"onnx": (start_onnx, Path(name), cell)}) as started:
            seconds = rounds(started, options.rounds)["onnx"]
            return statistics.median(seconds), started["onnx"].peak_mib()


def rows(
    name: str, values: list[int], points: list[tuple[float, float]], base: Setting, theory: str
) -> Iterator[list[str]]:
    """The lines of one quantity; where steps are varied, a step costs what the steps since the last point cost."""
    for place, (value, (seconds, mib)) in enumerate(zip(values, points, strict=True)):
        steps, earlier = value if name == "steps" else base.steps, 0.0
        if name == "steps" and place:
            steps, earlier = value - values[place - 1], points[place - 1][0]
        step = f"{(seconds - earlier) / steps * 1e3:.2f}"
        slope = f"{slope_at_end(values, points):.2f}" if place == len(values) - 1 else ""
        yield [name, f"{value:,}", f"{seconds:.3f}", step, f"{mib:.0f}", slope, theory if slope else ""]


def slope_at_end(values: list[int], points: list[tuple[float, float]]) -> float:
    """Of log(seconds) over log(value), between the last two points."""
    (before, _), (last, _) = points[-2:]
    return math.log(last / before) / math.log(values[-1] / values[-2])


def draw(curves: dict[str, tuple[list[int], list[tuple[float, float]]]], path: str) -> None:
    """Seconds above, memory below, both over each quantity, in logarithms."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(curves), 5), layout="constrained")
    axes = figure.subplots(2, len(curves), sharex="col", squeeze=False)
    for column, (name, (values, points)) in enumerate(curves.items()):
        for row, label in enumerate(("seconds", "MiB at the peak")):
            axes[row][column].loglog(values, [point[row] for point in points], "o-")
            axes[row][column].set_ylabel(label if column == 0 else "")
            axes[row][column].grid(True, which="both", alpha=0.3)
        axes[1][column].set_xlabel(name)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    sys.exit(exit_status(main))
