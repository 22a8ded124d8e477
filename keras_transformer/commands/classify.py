"""`classify`, `fill` and `embed`: labels, masked pieces and vectors of texts, a line for a line; labels of images."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.commands import recommend
from keras_transformer.commands.classify_images import classify_images
from keras_transformer.commands.translate import TextLines
from keras_transformer.errors import RequestError, load_tensorflow, say
from keras_transformer.files import check_writable, write_whole
from keras_transformer.run_folder import read_config

if TYPE_CHECKING:
    import numpy as np


def classify(arguments: argparse.Namespace) -> None:
    """Prints the label of each line of standard input, a tab, and its probability; or those of images.

    Raises:
        RequestError: files are for images, and the model is for texts; or see `classify_images`.
    """
    if read_config(arguments.run)["model"]["kind"] == "image-classifier":
        classify_images(arguments)
        return
    if arguments.files:
        raise RequestError(f"{arguments.run} takes lines of standard input; files are for a classifier of images")
    load_tensorflow()
    from keras_transformer.decoding.classifier import load_classifier

    classifier, lines = load_classifier(arguments.run), standard_input()
    for label, probability in classifier.stream(lines, arguments.batch_size):
        sys.stdout.write(f"{label}\t{probability:.4f}\n")
        sys.stdout.flush()
    lines.tell_of_invalid()


def fill(arguments: argparse.Namespace) -> None:
    """Prints a JSON object for each line of standard input: for each `<mask>` the likeliest pieces."""
    load_tensorflow()
    from keras_transformer.decoding.classifier import in_batches, load_classifier

    classifier, lines = load_classifier(arguments.run), standard_input()
    for some in in_batches(lines, arguments.batch_size):
        for line, masks in zip(some, classifier.fill(some, arguments.n_best), strict=True):
            fills = [{piece: round(probability, 4) for piece, probability in best} for best in masks]
            print(json.dumps({"text": line, "fills": fills}, ensure_ascii=False), flush=True)
    lines.tell_of_invalid()


def embed(arguments: argparse.Namespace) -> None:
    """Writes a vector for each line of standard input, as a NumPy file (N, D) float32; of histories as `vectors`."""
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


def vectors_of(arguments: argparse.Namespace) -> np.ndarray:
    """The vectors (N, D) of what the run's model takes: texts or histories.

    Raises:
        RequestError: an option is for histories, and the model takes texts.
    """
    from keras_transformer.decoding.classifier import load_classifier

    if read_config(arguments.run)["model"]["kind"] == "sequence-encoder":
        return recommend.vectors(arguments)
    classifier = load_classifier(arguments.run)
    if arguments.items or arguments.log is not None:
        raise RequestError("--items and --log are for runs of --task next-item; this one takes texts: leave them out")
    lines = standard_input()
    vectors = classifier.embed(lines, arguments.batch_size)
    lines.tell_of_invalid()
    return vectors


def standard_input() -> TextLines:
    """The lines of standard input.

    Raises:
        RequestError: it is closed.
    """
    if sys.stdin is None:
        raise RequestError("standard input must be open; received one that is closed")
    return TextLines(sys.stdin.buffer)


def add_classify_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `classify`."""
    add_batch_size(parser)
    parser.add_argument("files", nargs="*", metavar="FILE", help="images, right after RUN, for a classifier of images")


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """Adds `--batch-size`."""
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="texts or images at once (default: 64)")


def add_fill_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `fill`."""
    add_batch_size(parser)
    parser.add_argument("--n-best", type=int, default=5, metavar="N", help="pieces for each mask (default: 5)")


def add_embed_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `embed`."""
    add_batch_size(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="the .npy file to write")
    parser.add_argument("--log", metavar="FILE", help="of a next-item run: the histories of the users of a log")
    parser.add_argument("--items", action="store_true", help="of a next-item run: the vectors of its items.txt")
