"""Trains a Transformer: `python train.py --help` lists the settings of translation, `python train.py images --help`
those of images, and so on. `keras-transformer train` is the same command."""

from __future__ import annotations

import sys
from typing import Any

from keras_transformer.core.errors import exit_status
from keras_transformer.spec.custom_parts import with_imports
from keras_transformer.training.flags import parser


def train(given: dict[str, Any]) -> None:
    """Trains a run; see `keras_transformer.training.run`."""
    from keras_transformer.training import run  # --help waits for neither NumPy nor SentencePiece

    run.train(given)


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return exit_status(lambda: train(vars(parser().parse_args(with_imports(argv)))), argv)


if __name__ == "__main__":
    sys.exit(main())
