"""`classify` for images: a label for each file, and a picture of where a pixel looks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.errors import JobError, RequestError, load_tensorflow, say, warn
from keras_transformer.files import check_writable, write_whole

if TYPE_CHECKING:
    from keras_transformer.decoding.recognizer import Recognizer


def classify_images(arguments: argparse.Namespace) -> None:
    """Prints the label of each file, a tab, its probability, a tab, and the file.

    Raises:
        RequestError: no file was given, or the picture cannot be drawn.
        JobError: a file cannot be read as an image; the others were answered.
    """
    if not arguments.files:
        raise RequestError(f"{arguments.run} classifies images: give their files, as in `classify RUN *.png`")
    pixel = _pixel(arguments)
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
    if arguments.picture:
        _draw(recognizer, arguments.files[0], pixel, Path(arguments.picture))


def _pixel(arguments: argparse.Namespace) -> tuple[int, int] | None:
    """The pixel that the picture is about; None for the one in the middle.

    Raises:
        RequestError: the options of the picture are wrong, or do not go together.
    """
    if arguments.picture is None:
        if arguments.pixel is not None:
            raise RequestError("--pixel needs --picture, which draws where it looks; received none")
        return None
    if len(arguments.files) != 1:
        raise RequestError(f"--picture is about one image; received {len(arguments.files)}")
    out = Path(arguments.picture)
    if not out.parent.is_dir() or out.is_dir() or out.suffix not in (".png", ".pdf", ".svg"):
        raise RequestError(
            f"--picture must be a .png, .pdf or .svg file in a folder that is there; received: {arguments.picture}"
        )
    check_writable(out.parent, "choose another file with --picture")
    if arguments.pixel is None:
        return None
    row, comma, column = arguments.pixel.partition(",")
    if not (comma and row.isdecimal() and column.isdecimal()):
        raise RequestError(f"--pixel must be a row and a column, such as 3,4; received: {arguments.pixel}")
    return int(row), int(column)


def _draw(recognizer: Recognizer, file: str, pixel: tuple[int, int] | None, out: Path) -> None:
    from keras_transformer.plots.looks import looks_picture

    middle = recognizer.model.image_shape[0] // 2
    pixel = pixel or (middle, middle)
    picture = looks_picture(recognizer.pixels(file), pixel, recognizer.looks(file, pixel))
    with write_whole(out) as aside:
        picture.savefig(aside, dpi=120)
    say(f"wrote {out}: where the pixel {pixel[0]},{pixel[1]} looks")
