"""The command of a classifier of images: `classify`, a label for each file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.commands.command import RUN_OR_EXPORT, Command, Importer
from keras_transformer.commands.parser import add_batch_size, add_engine_options
from keras_transformer.core.errors import JobError, RequestError, print_result, say, warn
from keras_transformer.core.task_registry import TASKS

if TYPE_CHECKING:
    from keras_transformer.importing.weights import Imported

MAX_IMAGES = 100  # an imported run keeps so many to validate on


def classify(arguments: argparse.Namespace) -> None:
    """Prints the label of each file, a tab, its probability, a tab, and the file.

    Raises:
        RequestError: no file was given.
        JobError: a file cannot be read as an image; the others were answered.
    """
    if not arguments.files:
        raise RequestError(f"{arguments.run} classifies images: give their files, as in `classify RUN *.png`")
    from keras_transformer.commands.graph_cache import Engine, open_model
    from keras_transformer.decoding.computations import LabelProbs
    from keras_transformer.tasks.images.corpus import UnreadableImage
    from keras_transformer.tasks.images.pipeline import Recognizer

    opened, num_unreadable = open_model(arguments.run, TASKS["images"].kind, Engine.of(arguments), LabelProbs()), 0
    recognizer = Recognizer.of_run(*opened)
    for file, found in zip(arguments.files, recognizer.stream(arguments.files, arguments.batch_size), strict=True):
        if isinstance(found, UnreadableImage):
            num_unreadable += 1
            warn(f"{file} cannot be read: {found}")
            continue
        print_result(f"{found.label}\t{found.probability:.4f}\t{file}")
    if num_unreadable:
        raise JobError(f"{num_unreadable} of {len(arguments.files)} images cannot be read; the others are answered")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `classify`."""
    add_batch_size(parser)
    add_engine_options(parser)
    parser.add_argument("files", nargs="*", metavar="IMAGE", help="images, right after RUN, for a classifier of images")


def write_recognizer(imported: Imported, arguments: argparse.Namespace, images: list[Path] | None) -> None:
    """Writes the run of a classifier of images."""
    from keras_transformer.tasks.images.pipeline import Recognizer

    recognizer = Recognizer.imported(imported)
    recognizer.save(arguments.run, images, arguments.overwrite)
    size, _, channels = recognizer.model.image_shape
    say(
        f"wrote {arguments.run}: {recognizer.model.count_params():,} parameters, images of {size} x {size} pixels with "
        f"{channels} channels, {len(recognizer.labels):,} labels"
    )


def images_of(arguments: argparse.Namespace) -> list[Path] | None:
    """Returns the images to certify exports on: the first of a folder and of the folders in it, by their paths.

    Raises:
        RequestError: there are none.
    """
    if arguments.valid_images is None:
        return None
    from keras_transformer.tasks.images.corpus import SUFFIXES, files_under

    found = [path for path in files_under(Path(arguments.valid_images)) if path.suffix.lower() in SUFFIXES]
    if not found:
        raise RequestError(f"expected a folder of images with --valid-images; found none in {arguments.valid_images}")
    return found[:MAX_IMAGES]


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `import`."""
    help = "of a classifier of images: images to certify exports on"
    parser.add_argument("--valid-images", metavar="FOLDER", help=help)


COMMANDS = {"classify": Command(classify, "tell the label of each image", add_options, RUN_OR_EXPORT, extra="images")}
IMPORTER = Importer(add_import_options, images_of, write_recognizer)
