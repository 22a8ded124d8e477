"""Compares losses alone: time and memory of output projection and label-smoothed cross-entropy, forward and backward.

    python -m benchmarks.loss
    KERAS_BACKEND=jax python -m benchmarks.loss --device cuda --threads 1

The sides are our loss and Keras's (on one-hot labels), both on Keras's backend (TensorFlow or JAX), PyTorch's loss, and
the matrix products alone. All get the same states, table and labels. All must compute the same loss and gradients
first, or the exit status is 1. The command prints a Markdown table with a row for each precision and number of threads:
milliseconds of ours, how many times longer the others took (the median of the rounds, with quartiles), and the memory
of each. Memory is the peak above what was held before, in units of one float32 array of logits; on a GPU it is GPU
memory, as each library counts it. A turn on a GPU has 50 steps. PyTorch comes with the extra `bench`; without it, use
`--against keras products`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from benchmarks.contest import (
    MIN_STEPS_ON_GPU,
    at_least_one,
    contenders,
    peak_mib,
    print_head,
    print_row,
    ratio,
    rounds,
)
from benchmarks.devices import configure_keras, configure_torch, peak_of_gpu
from benchmarks.trainers import LABEL_SMOOTHING, Cell, Train, keras_loss
from keras_transformer.core.errors import JobError, exit_status

# Sizes, rows of a batch, and their length.
USUAL = {"vocabulary_size": 8000, "hidden_dim": 128}, 128, 64
SMALL = {"vocabulary_size": 50, "hidden_dim": 8}, 3, 5
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}  # of losses and gradients, relative
WARM_UP = 2  # so many sentences load and compile everything


def main(arguments: list[str] | None = None) -> None:
    """Prints the table.

    Raises:
        JobError: a side computes another loss.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--against", nargs="+", choices=OTHERS, default=list(OTHERS), help="losses to compare with (default: all)"
    )
    parser.add_argument("--precision", nargs="+", choices=TOLERANCE, default=list(TOLERANCE))
    parser.add_argument("--threads", nargs="+", type=at_least_one, default=[1, 2])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=at_least_one, default=9)
    parser.add_argument("--small", action="store_true", help="a handful of tokens")
    options = parser.parse_args(arguments)
    columns = ["precision", "threads", "ms", "memory"]
    columns += [column for name in options.against for column in (f"{name}: times longer", "memory")]
    print_head(columns)
    for precision, num_threads in product(options.precision, options.threads):
        print_row(contest(precision, num_threads, options))


class Answer(NamedTuple):
    """Holds what a side computed: the loss, the mean absolute gradients of states and table, and its memory."""

    values: list[float]
    memory: float


def contest(precision: str, num_threads: int, options: argparse.Namespace) -> list[Any]:
    """Measures one row of the table.

    Raises:
        JobError: a side computes another loss.
    """
    num_steps = MIN_STEPS_ON_GPU if options.device == "cuda" else 1
    cell = Cell(*(SMALL if options.small else USUAL), precision, num_threads, num_steps, options.device)
    starts = {"ours": (start_ours, cell), **{name: (OTHERS[name], cell) for name in options.against}}
    with contenders(starts) as started:
        answers: dict[str, Answer] = {name: contender.answer for name, contender in started.items()}
        values = {name: answer.values for name, answer in answers.items() if name != "products"}
        if not all(np.allclose(each, values["ours"], TOLERANCE[precision], 0) for each in values.values()):
            raise JobError(f"expected the same loss and gradients of all; received {values}")
        seconds = rounds(started, options.rounds)
    milliseconds = statistics.median(seconds["ours"]) * 1e3 / num_steps
    columns = [precision, num_threads, f"{milliseconds:.1f}", f"{answers['ours'].memory:.1f}"]
    for name in options.against:
        columns += [ratio(seconds[name], seconds["ours"]), f"{answers[name].memory:.1f}"]
    return columns


def arrays_of(cell: Cell) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws states (B, T, D), a table (V, D) and labels (B, T)."""
    draw = np.random.default_rng(1)
    vocabulary_size, hidden_dim = cell.sizes["vocabulary_size"], cell.sizes["hidden_dim"]
    states = draw.normal(size=(cell.batch_size, cell.length, hidden_dim)).astype("float32")
    table = draw.normal(size=(vocabulary_size, hidden_dim), scale=hidden_dim**-0.5).astype("float32")
    return states, table, draw.integers(4, vocabulary_size, states.shape[:2]).astype("int32")


# Each `start_*` function below runs in a process of its own. The first call of what it returns gives an `Answer`.


def start_ours(cell: Cell) -> Train:
    """Starts our `SmoothedCrossEntropy`."""
    from keras_transformer.losses import SmoothedCrossEntropy

    return on_keras(cell, SmoothedCrossEntropy(LABEL_SMOOTHING), dtype=cell.precision)


def start_keras(cell: Cell) -> Train:
    """Starts Keras's cross-entropy, on one-hot labels."""
    import keras

    return on_keras(cell, lambda labels, logits: keras.ops.mean(keras_loss(labels, logits)))


def start_products(cell: Cell) -> Train:
    """Starts the matrix products alone."""
    import keras

    return on_keras(cell, lambda labels, logits: keras.ops.sum(logits), dtype=cell.precision)


def on_keras(cell: Cell, loss: Callable[[Any, Any], Any], dtype: str = "float32") -> Train:
    """Runs a loss (labels, logits) → () on Keras's backend, with the logits in `dtype`."""
    backend = configure_keras(cell.device, cell.num_threads)
    return (on_jax if backend == "jax" else on_tensorflow)(cell, loss, dtype)


def on_tensorflow(cell: Cell, loss: Callable[[Any, Any], Any], dtype: str) -> Train:
    """Runs the loss in a TensorFlow graph."""
    import tensorflow as tf

    states, table, labels = arrays_of(cell)
    table = tf.Variable(table)

    @tf.function(autograph=False)
    def step(states: Any, labels: Any) -> tuple[Any, Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(states)
            rows = tf.reshape(tf.cast(states, cell.precision), (-1, states.shape[-1]))
            logits = tf.matmul(rows, tf.cast(table, cell.precision), transpose_b=True)
            value = loss(labels, tf.cast(tf.reshape(logits, (*labels.shape, -1)), dtype))
        of_states, of_table = tape.gradient(value, [states, table])
        return value, tf.reduce_mean(tf.abs(of_states)), tf.reduce_mean(tf.abs(of_table))

    return measured(cell, "tensorflow", step, tf.constant(states), tf.constant(labels))


def on_jax(cell: Cell, loss: Callable[[Any, Any], Any], dtype: str) -> Train:
    """Runs the loss in a JAX program, which is compiled before its memory is measured."""
    import jax
    import jax.numpy as jnp

    states, table, labels = map(jnp.asarray, arrays_of(cell))

    def loss_of(states: Any, table: Any, labels: Any) -> Any:
        rows = states.astype(cell.precision).reshape(-1, states.shape[-1])
        logits = rows @ table.astype(cell.precision).T
        return loss(labels, logits.reshape(*labels.shape, -1).astype(dtype))

    @jax.jit
    def compute(states: Any, table: Any, labels: Any) -> tuple[Any, ...]:
        value, gradients = jax.value_and_grad(loss_of, argnums=(0, 1))(states, table, labels)
        return value, *(jnp.mean(jnp.abs(gradient)) for gradient in gradients)

    whole = compute.lower(states, table, labels).compile()

    def step(batch_states: Any, batch_labels: Any) -> tuple[Any, ...]:
        return (whole if len(batch_states) == len(states) else compute)(batch_states, table, batch_labels)

    return measured(cell, "jax", step, states, labels)


def start_torch(cell: Cell) -> Train:
    """Starts PyTorch's `cross_entropy`."""
    configure_torch(cell.device, cell.num_threads)
    import torch
    from torch.nn.functional import cross_entropy

    states, table, labels = (torch.from_numpy(array).to(cell.device) for array in arrays_of(cell))
    table.requires_grad_()

    def step(states: Any, labels: Any) -> tuple[Any, ...]:
        states, table.grad = states.clone().requires_grad_(), None
        with torch.autocast(cell.device, torch.bfloat16, enabled=cell.precision == "bfloat16"):
            logits = (states @ table.T).float().flatten(0, 1)
        value = cross_entropy(logits, labels.flatten(), label_smoothing=LABEL_SMOOTHING)
        value.backward()
        gradients: list[Any] = [states.grad, table.grad]
        return value.detach(), *(gradient.abs().mean() for gradient in gradients)

    return measured(cell, "torch", step, states, labels.long())


def measured(cell: Cell, library: str, step: Callable[[Any, Any], tuple[Any, ...]], states: Any, labels: Any) -> Train:
    """Returns the work. Its answer has what the step computed, and the peak of memory above a smaller step's."""

    def run(states: Any, labels: Any) -> list[float]:
        return [float(each) for each in step(states, labels)]  # waits for the step to end

    def peak() -> float:
        return peak_of_gpu(library) if cell.device == "cuda" else peak_mib()

    run(states[:WARM_UP], labels[:WARM_UP])
    before = peak()
    unit = cell.batch_size * cell.length * cell.sizes["vocabulary_size"] * 4 / 2**20

    def work() -> Answer:
        for _ in range(cell.num_steps):
            values = run(states, labels)
        return Answer(values, (peak() - before) / unit)

    return work


OTHERS = {"keras": start_keras, "torch": start_torch, "products": start_products}


if __name__ == "__main__":
    sys.exit(exit_status(main))
