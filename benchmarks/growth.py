"""Measures how time and memory of our ONNX artefact grow with batch, steps, source length, beams and vocabulary.

    python -m benchmarks.growth

Each quantity is varied alone, from 16 sentences of 16 pieces, 20 steps, 4 beams and 8,000 pieces. The command prints a
Markdown table with a row for each point. The last row of a quantity has the slope of log(seconds) over log(quantity)
between the last two points, beside the slope that theory predicts (1: proportional; 0: free). Every point runs in a
process of its own. The times are medians of turns. The memory is the process's, without GPU memory. "ms a step" is the
time divided by the steps, so the encoder's share is in it; where steps vary, it counts only the time and the steps that
were added since the row above. Keras, on TensorFlow or JAX, only makes the model.
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

from benchmarks.contest import at_least_one, contenders, in_process, print_head, print_row, rounds
from benchmarks.decoders import Cell, start_onnx
from benchmarks.prepare import prepare
from keras_transformer.core.errors import RequestError, exit_status

SIZES = {"num_layers": 6, "num_heads": 8, "hidden_dim": 512, "intermediate_dim": 2048}
SMALL_SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 16}


class Setting(NamedTuple):
    """Holds the quantities that are varied."""

    batch: int = 16
    steps: int = 20
    source: int = 16
    beams: int = 4
    vocabulary: int = 8000


class Curve(NamedTuple):
    """Holds the values of one quantity, and what theory says about the slope at the last two."""

    values: list[int]
    theory: str


class Point(NamedTuple):
    """Holds what was measured at one value of a quantity; memory at the peak."""

    seconds: float
    mib: float


# The steps stop at 64, because a translation of 16 pieces has at most 66.
CURVES = {
    "batch": Curve([1, 4, 16, 64], "1 once the products, not the reading of the weights, take the time"),
    "steps": Curve([8, 16, 32, 64], "1, and a little more: a step reads the keys and values of those before"),
    "source": Curve([4, 16, 64, 256], "below 1: the encoder's share of the time is proportional, the decoder's is not"),
    "beams": Curve([1, 2, 4, 8], "below 1: the encoder's share of the time does not grow"),
    "vocabulary": Curve([2000, 8000, 32000], "below 1: only the last product and the choice grow"),
}
SMALL_CURVES = {"batch": Curve([1, 2], "1"), "steps": Curve([2, 4], "1")}


def main(arguments: list[str] | None = None) -> None:
    """Prints the table.

    Raises:
        RequestError: there is no such curve.
    """
    options = parse(arguments)
    curves, base = (SMALL_CURVES, Setting(2, 4, 4, 2, 200)) if options.small else (CURVES, Setting())
    curves = {name: curve for name, curve in curves.items() if name in options.curves}
    if not curves:
        raise RequestError(f"`--small` has the curves {', '.join(SMALL_CURVES)}. Received: {', '.join(options.curves)}")
    print_head(["varied", "value", "seconds", "ms a step", "MiB at the peak", "slope", "theory"])
    for name, curve in curves.items():
        points = [measure(base._replace(**{name: value}), options) for value in curve.values]
        for row in table_rows(name, curve, points, base):
            print_row(row)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=at_least_one, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=list(CURVES), help="what to vary (default: all)")
    parser.add_argument("--small", action="store_true", help="a tiny model and two curves")
    return parser.parse_args(arguments)


def measure(setting: Setting, options: argparse.Namespace) -> Point:
    """Measures one point, in processes of its own."""
    batch = setting.batch
    cell = Cell("float32", setting.beams, batch, options.threads, batch, setting.steps, device=options.device)
    sizes = {**(SMALL_SIZES if options.small else SIZES), "vocabulary_size": setting.vocabulary}
    with tempfile.TemporaryDirectory() as name:
        in_process(prepare, Path(name), None, sizes, [cell], (), setting.source)
        with contenders({"onnx": (start_onnx, Path(name), cell)}) as started:
            seconds = rounds(started, options.rounds)["onnx"]
            return Point(statistics.median(seconds), started["onnx"].peak_mib())


def table_rows(name: str, curve: Curve, points: list[Point], base: Setting) -> Iterator[list[str]]:
    """Yields the rows of one quantity. If steps vary, the cost of a step counts only the steps since the last point."""
    for place, (value, point) in enumerate(zip(curve.values, points, strict=True)):
        steps, earlier = value if name == "steps" else base.steps, 0.0
        if name == "steps" and place:
            steps, earlier = value - curve.values[place - 1], points[place - 1].seconds
        step = f"{(point.seconds - earlier) / steps * 1e3:.2f}"
        is_last = place == len(points) - 1
        slope = [f"{slope_at_end(curve.values, points):.2f}", curve.theory] if is_last else ["", ""]
        yield [name, f"{value:,}", f"{point.seconds:.3f}", step, f"{point.mib:.0f}", *slope]


def slope_at_end(values: list[int], points: list[Point]) -> float:
    """Returns the slope of log(seconds) over log(value) between the last two points."""
    return math.log(points[-1].seconds / points[-2].seconds) / math.log(values[-1] / values[-2])


if __name__ == "__main__":
    sys.exit(exit_status(main))
