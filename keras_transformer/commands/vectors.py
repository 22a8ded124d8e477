"""The file of vectors that `embed` writes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.commands.lines import add_batch_size
from keras_transformer.errors import RequestError, load_tensorflow, say
from keras_transformer.files import check_writable, write_whole

if TYPE_CHECKING:
    import numpy as np


def write_vectors(arguments: argparse.Namespace, vectors_of: Callable[[argparse.Namespace], np.ndarray]) -> None:
    """Writes vectors as a NumPy file, (N, D) float32.

    Args:
        arguments: the command's.
        vectors_of: finds the vectors.

    Raises:
        RequestError: the file cannot be written; nothing is computed then.
    """
    out = Path(arguments.out)
    if not out.parent.is_dir() or out.is_dir():
        raise RequestError(f"expected a file in a folder that is there; received {out}: choose another file with --out")
    check_writable(out.parent, "choose another file with --out")
    load_tensorflow()
    import numpy as np

    vectors = vectors_of(arguments)
    with write_whole(out) as aside, aside.open("wb") as file:
        np.save(file, vectors, allow_pickle=False)
    say(f"wrote {out}: {vectors.shape[0]:,} vectors of {vectors.shape[1]} numbers")


def add_vector_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `embed` that all tasks share."""
    add_batch_size(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="the .npy file to write")
