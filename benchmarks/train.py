"""Compares training with PyTorch's `nn.Transformer` and KerasHub's blocks: the same weights, dropout, loss and batch.

    python -m benchmarks.train
    KERAS_BACKEND=jax python -m benchmarks.train --device cuda --shape paper
    python -m benchmarks.train --help

All must compute the same loss of the batch first, or the exit status is 1. Then all train in turns. The command prints
a Markdown table with a row for each combination of settings: target tokens a second of our `model.fit`, the TFLOP/s of
its matrix products, the peak memory of our process in MiB (without GPU memory, also with `--device cuda`), and how many
times longer the others took (the median of the rounds, with quartiles). "products" are the matrix products of a step
alone. Ours, KerasHub's and the products run on Keras's backend, TensorFlow or JAX. JAX has no setting for threads, and
works without TensorFlow. A turn on a GPU has at least 50 steps. The command needs the extra `bench`, or the part of it
that `--against` names.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from itertools import product
from typing import Any

from benchmarks.contest import MIN_STEPS_ON_GPU, at_least_one, contenders, print_head, print_row, ratio, rounds
from benchmarks.products import num_operations, products_of
from benchmarks.trainers import (
    Cell,
    start_keras_hub,
    start_ours,
    start_products,
    start_torch,
    start_without_kept_memory,
)
from keras_transformer.core.errors import JobError, exit_status

# Sizes, rows of a batch, their length, and steps in a turn. "tiny" has the sizes of the Multi30k recipe, in batches of
# 4,096 tokens. "paper" and "big" are the models of the paper, with batches of 25,000 tokens: too many for a processor.
SHAPES = {
    "base": ({"vocabulary_size": 8000, "num_layers": 6, "num_heads": 8, "hidden_dim": 512, "intermediate_dim": 2048},
             32, 32, 1),
    "tiny": ({"vocabulary_size": 6000, "num_layers": 4, "num_heads": 4, "hidden_dim": 128, "intermediate_dim": 256},
             128, 32, 2),
    "paper": ({"vocabulary_size": 37000, "num_layers": 6, "num_heads": 8, "hidden_dim": 512,
               "intermediate_dim": 2048}, 400, 64, 10),
    "big": ({"vocabulary_size": 37000, "num_layers": 6, "num_heads": 16, "hidden_dim": 1024,
             "intermediate_dim": 4096}, 400, 64, 10),
    "small": ({"vocabulary_size": 90, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24},
              5, 7, 2),
}  # fmt: skip
OTHERS = {
    "xla": (start_ours, True),
    "system_memory": (start_without_kept_memory,),
    "torch": (start_torch, False),
    "torch_compiled": (start_torch, True),
    "keras_hub": (start_keras_hub,),
    "products": (start_products,),
}
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}  # of losses, relative


def main(arguments: list[str] | None = None) -> None:
    """Prints the table.

    Raises:
        JobError: a side computes another loss.
    """
    options = parse(arguments)
    columns = ["shape", "precision", "threads", "target tokens/s", "TFLOP/s", "MiB"]
    columns += [f"{name}: times longer" for name in options.against]
    print_head(columns)
    for cell in product(options.shape, options.precision, options.threads):
        print_row(contest(*cell, options))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["tiny", "base"])
    parser.add_argument(
        "--against",
        nargs="+",
        choices=OTHERS,
        default=list(OTHERS)[2:],
        help="trainers to compare with; xla is ours on TensorFlow with XLA, and system_memory ours where TensorFlow "
        "gives memory back in every step, for which TF_ENABLE_ONEDNN_OPTS must be 0 (default: all others)",
    )
    parser.add_argument("--precision", nargs="+", choices=TOLERANCE, default=list(TOLERANCE))
    parser.add_argument("--threads", nargs="+", type=at_least_one, default=[1, 2])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=at_least_one, default=7)
    return parser.parse_args(arguments)


def contest(shape: str, precision: str, num_threads: int, options: argparse.Namespace) -> list[Any]:
    """Measures one row of the table.

    Raises:
        JobError: a side computes another loss.
    """
    sizes, batch_size, length, num_steps = SHAPES[shape]
    num_steps = max(num_steps, MIN_STEPS_ON_GPU) if options.device == "cuda" else num_steps
    cell = Cell(sizes, batch_size, length, precision, num_threads, num_steps, options.device)
    starts = {"ours": (start_ours, cell)}
    starts |= {name: (OTHERS[name][0], cell, *OTHERS[name][1:]) for name in options.against}
    with contenders(starts) as started:
        losses = {name: contender.answer for name, contender in started.items() if name != "products"}
        if not all(abs(loss / losses["ours"] - 1) <= TOLERANCE[precision] for loss in losses.values()):
            raise JobError(f"expected the same loss of all; received {losses}")
        for contender in started.values():
            contender.work()  # to trace, compile and warm up
        seconds = rounds(started, options.rounds)
        memory = started["ours"].peak_mib()
    step = statistics.median(seconds["ours"]) / num_steps
    operations = num_operations(products_of(sizes, batch_size, length))
    speed = [f"{batch_size * length / step:,.0f}", f"{operations / step / 1e12:.3g}"]
    columns = [shape, precision, num_threads, *speed, f"{memory:.0f}"]
    return columns + [ratio(seconds[name], seconds["ours"]) for name in options.against]


if __name__ == "__main__":
    sys.exit(exit_status(main))
