"""Classifiers of images beside support vector machines, on the same half of scikit-learn's digits.

    python -m benchmarks.digits --seeds 1 2 3
    python -m benchmarks.digits --variants recipe "no shifts"

All learn from one stratified half of the 1,797 digits, and are measured on the other half, which chose nothing. The
SVCs are scikit-learn's: that of its own example (gamma=0.001); the best of a small grid by five-fold cross-validation
on the training half; and the same one on training images that are shifted too, by a pixel in each direction, as the
recipe shifts ours. The command prints a Markdown table: how many of the other half each tells right, for every seed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.contest import at_least_one, print_head, print_row
from keras_transformer.core.errors import JobError, exit_status
from keras_transformer.tasks.images.batches import shifted
from keras_transformer.tasks.images.corpus import LabelledImage, named_images

GRID = {"C": [1, 10, 100], "gamma": [0.0005, 0.001, 0.002, 0.004]}
FOLDS = 5
VARIANTS = {
    "recipe": [],
    "no shifts": ["--random-shift", "0"],
    "plain patches": ["--stem", "patches"],
    "neither": ["--stem", "patches", "--random-shift", "0"],
    "small patches alone": ["--stem", "patches", "--patch-size", "2", "--token-budget", "2176"],
}


def main(arguments: list[str] | None = None) -> None:
    """Prints the table.

    Raises:
        RequestError: scikit-learn is not installed.
        JobError: a training failed.
    """
    options = parse(arguments)
    corpus = named_images("digits")
    train, test = list(corpus.train()), list(corpus.valid())
    print_head(["classifier", f"right of {len(test)}", "accuracy"])
    for name, right in support_vectors(train, test):
        print_row([name, right, f"{right / len(test):.2%}"])
    for variant in options.variants:
        rights = [round(accuracy(variant, seed, options) * len(test)) for seed in options.seeds]
        shares = [f"{right / len(test):.2%}" for right in rights]
        print_row([f"ours, {variant}", ", ".join(map(str, rights)), ", ".join(shares)])


def support_vectors(train: list[LabelledImage], test: list[LabelledImage]) -> Iterator[tuple[str, int]]:
    """(name, how many of the test images it tells right) of each SVC."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    (x, y), (x_test, y_test) = rows(train), rows(test)

    def right(model: SVC) -> int:
        return int((model.predict(x_test) == y_test).sum())

    yield "SVC(gamma=0.001)", right(SVC(gamma=0.001).fit(x, y))
    search = GridSearchCV(SVC(), GRID, cv=FOLDS).fit(x, y)
    best = ", ".join(f"{name}={value}" for name, value in search.best_params_.items())
    yield f"SVC({best}), best of the grid", right(search.best_estimator_)
    moves = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    more = [image._replace(source=shifted(np.asarray(image.source), *move)) for image in train for move in moves]
    yield f"SVC({best}), shifted images too", right(SVC(**search.best_params_).fit(*rows(more)))


def rows(images: list[LabelledImage]) -> tuple[np.ndarray, np.ndarray]:
    """The pixels (N, 64) from 0 to 16, as in scikit-learn, and the labels (N,)."""
    pixels = np.stack([np.asarray(image.source) for image in images]).reshape(len(images), -1)
    return pixels * (16 / 255), np.array([image.label for image in images])


def accuracy(variant: str, seed: int, options: argparse.Namespace) -> float:
    """The accuracy that training tells, of the model that a run ends with.

    Raises:
        JobError: training failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "keras_transformer", "train", "--task", "images", "--dataset", "digits"]
        command += [*VARIANTS[variant], "--seed", str(seed), "--threads", str(options.threads)]
        command += ["--steps", str(options.steps)] if options.steps else []
        command += ["--out", str(Path(folder) / "run")]
        done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"accuracy ([\d.]+)\s*$", done.stderr)
    if done.returncode or not found:
        raise JobError(f"the training of {variant!r} failed: {done.stderr[-500:]}")
    return float(found[1])


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.digits", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="of ours (default: all)")
    add("--seeds", nargs="+", type=int, default=[1], metavar="N", help="of ours (default: 1)")
    add("--steps", type=at_least_one, metavar="N", help="of training (default: the recipe's)")
    add("--threads", type=at_least_one, default=1, metavar="N", help="processor threads (default: 1)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(exit_status(main))
