"""`classify` for images: a label for each file."""

from __future__ import annotations

import argparse
import sys

from keras_transformer.errors import JobError, RequestError, load_tensorflow, warn


def classify_images(arguments: argparse.Namespace) -> None:
    """Prints the label of each file, a tab, its probability, a tab, and the file.

    Raises:
        RequestError: no file was given.
        JobError: a file cannot be read as an image; the others were answered.
    """
    if not arguments.files:
        raise RequestError(f"{arguments.run} classifies images: give their files, as in `classify RUN *.png`")
    load_tensorflow()
    from keras_transformer.decoding.recognizer import load_recognizer
    from keras_transformer.images.reading import UnreadableImage

    recognizer, num_unreadable = load_recognizer(arguments.run), 0
    for file, found in zip(arguments.files, recognizer.stream(arguments.files, arguments.batch_size), strict=True):
        if isinstance(found, UnreadableImage):
            num_unreadable += 1
            warn(f"{file} cannot be read: {found}")
            continue
        sys.stdout.write(f"{found.label}\t{found.probability:.4f}\t{file}\n")
        sys.stdout.flush()
    if num_unreadable:
        raise JobError(f"{num_unreadable} of {len(arguments.files)} images cannot be read; the others are answered")
