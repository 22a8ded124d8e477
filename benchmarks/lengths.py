"""Rows longer than any in training: the universal stack against layers, with several kinds of positions.

    python -m benchmarks.lengths --out lengths.png
    python -m benchmarks.lengths --tasks copy --variants "layers, rotary" universal --seeds 1 2 3

The tasks are to copy a row of digits, and to reverse it. Each digit is one piece. Training has rows of 1 to `--longest`
digits. Each run then translates, greedily, rows of each length in `--lengths`; none of these is in training. All runs
have the same rows, sizes, recipe and steps. The command prints a Markdown table with a row for each task, variant and
seed: the parameters, then for each length the share of rows that come out exactly.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.contest import at_least_one, check_picture, in_process, print_head, print_row
from benchmarks.family import read_pairs, train, write_pairs
from keras_transformer.core.errors import exit_status
from keras_transformer.plots.pictures import tell_lines_apart

TASKS: dict[str, Callable[[list[str]], list[str]]] = {
    "copy": lambda digits: digits,
    "reverse": lambda digits: digits[::-1],
}
VARIANTS = {
    "layers, sinusoidal": ["--positions", "sinusoidal"],
    "layers, rotary": ["--positions", "rotary"],
    "layers, alibi": ["--positions", "alibi"],
    "layers, buckets": ["--positions", "buckets"],
    # It adds coordinates by itself.
    "universal": ["--stack", "universal", "--positions", "none"],
    "universal, not adaptive": ["--stack", "universal:adaptive=false", "--positions", "none"],
}
SIZES = [
    *("--preset", "tiny", "--num-layers", "3", "--hidden-dim", "64"),
    *("--intermediate-dim", "128", "--num-heads", "4", "--dropout", "0"),
]
RECIPE = ["--token-budget", "512", "--warmup-steps", "300", "--learning-rate-factor", "0.3"]
TRAINED_ROWS = 20_000


class Outcome(NamedTuple):
    """Of one run: the size of its model, and the share of rows of each length that come out exactly."""

    parameters: int
    exact: dict[int, float]


def main(arguments: list[str] | None = None) -> None:
    """Prints the table and draws the shares over the lengths.

    Raises:
        RequestError: the picture cannot be written there.
        JobError: a training failed.
    """
    options = parse(arguments)
    check_picture(options.out)
    print_head(["task", "variant", "seed", "parameters", *map(str, options.lengths)])
    outcomes: dict[str, dict[str, list[Outcome]]] = {task: {} for task in options.tasks}
    for task in options.tasks:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_task(folder, task, options)
            for variant in options.variants:
                for seed in options.seeds:
                    run = f"{variant}, {seed}"
                    train(folder, run, [*SIZES, *RECIPE, *VARIANTS[variant]], with_seed(options, seed))
                    outcome = in_process(measure, folder, run)
                    outcomes[task].setdefault(variant, []).append(outcome)
                    shares = [f"{outcome.exact[length]:.0%}" for length in options.lengths]
                    print_row([task, variant, seed, f"{outcome.parameters:,}", *shares])
    if options.out:
        draw(outcomes, options.longest, options.out)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="(default: all)")
    add("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME", help="(default: all)")
    add("--longest", type=at_least_one, default=8, help="digits of the longest row in training (default: 8)")
    add("--lengths", nargs="+", type=at_least_one, default=list(range(4, 17)), help="of the tests (default: 4 to 16)")
    add("--rows", type=at_least_one, default=100, help="of each length in the tests (default: 100)")
    add("--steps", type=at_least_one, default=1_000)
    add("--seeds", nargs="+", type=int, default=[1])
    add("--threads", type=at_least_one, default=1, help="in training (default: 1)")
    add("--out", help="write a picture of the shares over the lengths here, .png")
    return parser.parse_args(arguments)


def with_seed(options: argparse.Namespace, seed: int) -> argparse.Namespace:
    """The options of one training."""
    return argparse.Namespace(**vars(options), seed=seed)


def write_task(folder: Path, task: str, options: argparse.Namespace) -> None:
    """Writes the rows of training, those that training validates on, and those of the tests."""
    generator = random.Random(0)

    def rows(lengths: Sequence[int], count: int) -> list[list[str]]:
        return [generator.choices("0123456789", k=generator.choice(lengths)) for _ in range(count)]

    tests = [row for length in options.lengths for row in rows([length], options.rows)]
    held_out = {tuple(row) for row in tests}
    trained = [row for row in rows(range(1, options.longest + 1), TRAINED_ROWS) if tuple(row) not in held_out]
    for name, some in {"train": trained[options.rows :], "short": trained[: options.rows], "tests": tests}.items():
        write_pairs(folder / name, [(" ".join(row), " ".join(TASKS[task](row))) for row in some])


def measure(folder: Path, run: str) -> Outcome:
    """Translates the rows of the tests, in a process of its own."""
    import keras_transformer

    translator = keras_transformer.load(folder / run)
    sources, references = read_pairs(folder / "tests")
    translations = translator.translate(sources, num_beams=1)
    found: dict[int, list[bool]] = {}
    for source, reference, translation in zip(sources, references, translations, strict=True):
        found.setdefault(len(source.split()), []).append(translation == reference)
    exact = {length: sum(each) / len(each) for length, each in found.items()}
    return Outcome(translator.model.count_params(), exact)


def draw(outcomes: dict[str, dict[str, list[Outcome]]], longest: int, path: str) -> None:
    """Draws the shares over the lengths, a panel for each task; several seeds as their mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(outcomes), 4), layout="constrained")
    for axes, (task, variants) in zip(
        figure.subplots(1, len(outcomes), squeeze=False)[0], outcomes.items(), strict=True
    ):
        tell_lines_apart(axes)
        for variant, runs in variants.items():
            shares = {length: sum(run.exact[length] for run in runs) / len(runs) for length in runs[0].exact}
            axes.plot(list(shares), [100 * share for share in shares.values()], marker="o", label=variant)
        axes.axvline(longest + 0.5, color="grey", linestyle="--")
        axes.set_title(f"{task}; trained up to {longest} digits")
        axes.set_xlabel("digits")
        axes.set_ylabel("% exact")
        axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    sys.exit(exit_status(main))
