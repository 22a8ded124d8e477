"""`import`: a trained model in Hugging Face's format becomes a run."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.errors import RequestError, say
from keras_transformer.run_folder import check_place

if TYPE_CHECKING:
    from keras_transformer.decoding.translator import Validation


def import_model(arguments: argparse.Namespace) -> None:
    """Reads a folder, or downloads one, and writes a run. A wrong request is refused before anything is written."""
    if (arguments.folder is None) == (arguments.download is None):
        received = "neither" if arguments.folder is None else "both"
        raise RequestError(f"expected a FOLDER or --download NAME; received {received}: give one")
    check_place(Path(arguments.run), arguments.overwrite)
    validation = validation_of(arguments)
    if arguments.download is None:
        write_imported(arguments.folder, arguments, validation)
        return
    from keras_transformer.importing.download import download

    with tempfile.TemporaryDirectory() as folder:
        download(arguments.download, Path(folder))
        write_imported(folder, arguments, validation)


def write_imported(folder: str, arguments: argparse.Namespace, validation: Validation | None) -> None:
    """Writes the model in a folder as a run."""
    from keras_transformer.importing.huggingface import read_huggingface, translator_of
    from keras_transformer.importing.id_tokenizer import NO_RUN, IdTokenizer

    imported = read_huggingface(folder)
    if isinstance(imported.source.tokenizer, IdTokenizer):
        raise RequestError(f"{folder}: {NO_RUN}")
    translator = translator_of(imported)
    translator.save(arguments.run, imported.languages, validation, arguments.overwrite)
    languages = f", {' to '.join(imported.languages)}" if imported.languages else ""
    search = ", ".join(f"{name} {value}" for name, value in translator.search.items())
    say(f"wrote {arguments.run}: {translator.model.count_params():,} parameters{languages}; its search: {search}")


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
    add("--overwrite", action="store_true", help="replace a run that is there")
