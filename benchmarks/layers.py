"""Measures the paper's table 1: kinds of layers over the length of their input, beside theory.

    python -m benchmarks.layers

Every kind maps one sequence of n states of width d to another: self-attention, self-attention restricted to r
positions, a recurrent layer in one and in two directions, and a convolution of width k. The recurrent and the
convolutional layers are Keras's own. The command prints a Markdown table with a row for each kind and length: the
time and the peak memory of a forward pass, the slope of log(time) over log(length) since the row above, and what
theory says of cost, of operations that wait for each other, and of the longest path between two positions (in layers;
for a recurrent layer in steps). Every row is from a process of its own; the kinds of one length take turns. A
bidirectional layer has d/2 units in each direction.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.contest import at_least_one, contenders, print_head, print_row, rounds
from benchmarks.devices import configure_keras
from keras_transformer.core.errors import exit_status

WIDTH, NUM_HEADS = 256, 4  # d, and the heads of attention
NEIGHBOURHOOD = 33  # r, the keys that a position sees in restricted self-attention
KERNEL = 3  # k, the positions that a convolution sees
LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096]


class Kind(NamedTuple):
    """Describes a kind of layer, with its row of the paper's table 1.

    Args:
        make: makes the layer; a function of Keras.
        cost: operations of a layer.
        sequential: how many operations wait for each other, of n.
        path: the longest path between two positions, of n.
    """

    make: Callable[[], Any]
    cost: str
    sequential: Callable[[int], int]
    path: Callable[[int], int]


class Point(NamedTuple):
    """Holds what was measured at one length; memory at the peak."""

    seconds: float
    mib: float


def self_attention() -> Any:
    """Makes self-attention in which each position sees all."""
    from keras_transformer.layers import MultiHeadAttention

    return on_itself(MultiHeadAttention(NUM_HEADS, WIDTH // NUM_HEADS))


def restricted() -> Any:
    """Makes self-attention in which each position sees its neighbourhood."""
    from keras_transformer.layers import WindowedAttention

    return on_itself(WindowedAttention(NUM_HEADS, WIDTH // NUM_HEADS, width=NEIGHBOURHOOD))


def on_itself(attention: Any) -> Callable[[Any], Any]:
    """Returns self-attention as a function of one argument."""
    return lambda x: attention(x, x)


def recurrent() -> Any:
    """Makes Keras's LSTM."""
    import keras

    return keras.layers.LSTM(WIDTH, return_sequences=True)


def bidirectional() -> Any:
    """Makes Keras's LSTM in both directions."""
    import keras

    return keras.layers.Bidirectional(keras.layers.LSTM(WIDTH // 2, return_sequences=True))


def convolutional() -> Any:
    """Makes Keras's convolution."""
    import keras

    return keras.layers.Conv1D(WIDTH, KERNEL, padding="same")


KINDS = {
    "self-attention": Kind(self_attention, "n²·d", lambda n: 1, lambda n: 1),
    "restricted self-attention": Kind(
        restricted, "r·n·d", lambda n: 1, lambda n: math.ceil((n - 1) / (NEIGHBOURHOOD // 2))
    ),
    "recurrent": Kind(recurrent, "n·d²", lambda n: n, lambda n: n),
    "recurrent, two directions": Kind(bidirectional, "n·d²", lambda n: n, lambda n: n),
    "convolutional": Kind(convolutional, "k·n·d²", lambda n: 1, lambda n: math.ceil((n - 1) / (KERNEL // 2))),
}


def main(arguments: list[str] | None = None) -> None:
    """Prints the table."""
    options = parse(arguments)
    measured: dict[str, list[Point]] = {name: [] for name in options.layers}
    for length in options.lengths:
        for name, point in measure(options.layers, length, options.threads, options.rounds).items():
            measured[name].append(point)
    print_head(["layer", "n", "ms", "slope", "MiB at the peak", "cost", "sequential operations", "longest path"])
    for name, points in measured.items():
        for place, (length, point) in enumerate(zip(options.lengths, points, strict=True)):
            kind, since = KINDS[name], ""
            if place:
                since = f"{slope(options.lengths[place - 1 : place + 1], points[place - 1 : place + 1]):.2f}"
            figures = [f"{point.seconds * 1e3:.2f}", since, f"{point.mib:.0f}"]
            print_row([name, f"{length:,}", *figures, kind.cost, kind.sequential(length), kind.path(length)])


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", choices=KINDS, default=list(KINDS), help="kinds (default: all)")
    parser.add_argument("--lengths", nargs="+", type=at_least_one, default=LENGTHS)
    parser.add_argument("--threads", type=at_least_one, default=1)
    parser.add_argument("--rounds", type=at_least_one, default=5)
    return parser.parse_args(arguments)


def measure(kinds: list[str], length: int, num_threads: int, count: int) -> dict[str, Point]:
    """Measures kinds of layers at one length."""
    with contenders({name: (start, name, length, num_threads) for name in kinds}) as started:
        seconds = rounds(started, count)
        repeats = {name: contender.answer for name, contender in started.items()}
        return {
            name: Point(statistics.median(seconds[name]) / repeats[name], contender.peak_mib())
            for name, contender in started.items()
        }


def start(name: str, length: int, num_threads: int) -> Callable[[], int]:
    """Makes a layer in a process of its own; a turn runs it some times, and returns how often."""
    backend = configure_keras("cpu", num_threads)
    import keras

    keras.utils.set_random_seed(1)
    inputs = keras.Input((length, WIDTH), batch_size=1)
    model = keras.Model(inputs, KINDS[name].make()(inputs))
    x = np.random.default_rng(0).normal(size=(1, length, WIDTH)).astype("float32")
    run = compiled(backend, model, x)
    repeats = max(1, 2048 // length)  # a short input takes less time than a clock can tell

    def turn() -> int:
        for _ in range(repeats):
            run()
        return repeats

    return turn


def compiled(backend: str, model: Any, x: np.ndarray) -> Callable[[], Any]:
    """Returns the forward pass of these states, compiled for Keras's backend."""
    if backend == "jax":
        import jax

        weights = [variable.value for variable in model.trainable_variables]
        program = jax.jit(lambda weights, x: model.stateless_call(weights, [], x)[0])
        return lambda: program(weights, x).block_until_ready()
    import tensorflow as tf

    forward, states = tf.function(model, autograph=False), tf.constant(x)
    return lambda: forward(states).numpy()


def slope(lengths: list[int], points: list[Point]) -> float:
    """Returns the slope of log(seconds) over log(length) between two points."""
    return math.log(points[1].seconds / points[0].seconds) / math.log(lengths[1] / lengths[0])


if __name__ == "__main__":
    sys.exit(exit_status(main))
