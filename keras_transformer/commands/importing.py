"""`import`: a trained model in Hugging Face's format becomes a run."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.errors import RequestError, say
from keras_transformer.written_runs import check_place

if TYPE_CHECKING:
    from keras_transformer.decoding.translator import Validation
    from keras_transformer.importing.imported import Imported

MAX_IMAGES = 100  # of validation


def import_model(arguments: argparse.Namespace) -> None:
    """Reads a folder, or downloads one, and writes a run. A wrong request is refused before anything is written."""
    if (arguments.folder is None) == (arguments.download is None):
        received = "neither" if arguments.folder is None else "both"
        raise RequestError(f"expected a FOLDER or --download NAME; received {received}: give one")
    check_place(Path(arguments.run), arguments.overwrite)
    validation, images = validation_of(arguments), images_of(arguments)
    if arguments.download is None:
        write_imported(arguments.folder, arguments, validation, images)
        return
    from keras_transformer.importing.download import download

    with tempfile.TemporaryDirectory() as folder:
        download(arguments.download, Path(folder))
        write_imported(folder, arguments, validation, images)


def write_imported(
    folder: str, arguments: argparse.Namespace, validation: Validation | None, images: list[Path] | None
) -> None:
    """Writes the model in a folder as a run."""
    from keras_transformer.importing.huggingface import read_huggingface
    from keras_transformer.importing.id_tokenizer import NO_RUN, IdTokenizer

    imported = read_huggingface(folder)
    if not imported.vocabularies:
        if validation is not None:
            raise RequestError(f"{folder} classifies images, which --valid-images are for; received --valid-source")
        write_recognizer(imported, arguments, images)
        return
    if images is not None:
        raise RequestError(f"{folder} takes text, which --valid-source is for; received --valid-images")
    if isinstance(imported.source.tokenizer, IdTokenizer):
        raise RequestError(f"{folder}: {NO_RUN}")
    write_translator(imported, arguments, validation)


def write_translator(imported: Imported, arguments: argparse.Namespace, validation: Validation | None) -> None:
    """Writes the run of a translator."""
    from keras_transformer.importing.huggingface import translator_of

    translator = translator_of(imported)
    translator.save(arguments.run, imported.languages, validation, arguments.overwrite)
    languages = f", {' to '.join(imported.languages)}" if imported.languages else ""
    search = ", ".join(f"{name} {value}" for name, value in translator.search.items())
    say(f"wrote {arguments.run}: {translator.model.count_params():,} parameters{languages}; its search: {search}")


def write_recognizer(imported: Imported, arguments: argparse.Namespace, images: list[Path] | None) -> None:
    """Writes the run of a classifier of images."""
    from keras_transformer.importing.huggingface import recognizer_of

    recognizer = recognizer_of(imported)
    recognizer.save(arguments.run, images, arguments.overwrite)
    size, _, channels = recognizer.model.image_shape
    say(
        f"wrote {arguments.run}: {recognizer.model.count_params():,} parameters, images of {size} x {size} pixels with "
        f"{channels} channels, {len(recognizer.labels):,} labels"
    )


def images_of(arguments: argparse.Namespace) -> list[Path] | None:
    """The images to certify exports on: the first of a folder and of the folders in it, by their paths.

    Raises:
        RequestError: there are none.
    """
    if arguments.valid_images is None:
        return None
    from keras_transformer.images.labelled import files_under
    from keras_transformer.images.reading import SUFFIXES

    found = [path for path in files_under(Path(arguments.valid_images)) if path.suffix.lower() in SUFFIXES]
    if not found:
        raise RequestError(f"expected a folder of images with --valid-images; found none in {arguments.valid_images}")
    return found[:MAX_IMAGES]


def validation_of(arguments: argparse.Namespace) -> Validation | None:
    """The sentences to certify exports on, and their translations.

    Raises:
        RequestError: one of the files is missing, or they have not equally many lines.
    """
    from keras_transformer.commands.evaluate import read_both

    files = (arguments.valid_source, arguments.valid_target)
    if (files[0] is None) != (files[1] is None):
        raise RequestError("--valid-source and --valid-target belong together; received one of them: give both")
    return None if files[0] is None else read_both(*files)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments and options of `import`."""
    add = parser.add_argument
    add("folder", nargs="?", metavar="FOLDER", help="the model: config.json, weights, and the tokenizer's files")
    add("run", metavar="RUN", help="the run folder to write")
    download = "fetch the model NAME from the Hugging Face Hub, in place of FOLDER (needs the package huggingface_hub)"
    add("--download", metavar="NAME[@REVISION]", help=download)
    add("--valid-source", metavar="FILE", help="sentences on which exports of the run will be certified")
    add("--valid-target", metavar="FILE", help="their translations, line by line")
    add("--valid-images", metavar="FOLDER", help="of a classifier of images: images to certify exports on")
    add("--overwrite", action="store_true", help="replace a run that is there")
