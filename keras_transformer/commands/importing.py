"""`import`: a trained model in Hugging Face's format becomes a run."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.commands import AddOptions, add_all, refuse_foreign
from keras_transformer.errors import RequestError
from keras_transformer.tasks import TASKS
from keras_transformer.written_runs import check_place


class Importing(NamedTuple):
    """How a task writes the run of an imported model: `IMPORTING` of its `commands`.

    Args:
        add_options: adds its own options to a parser.
        validation_of: what its options name to certify exports on; it raises RequestError if that is not there.
        write: writes the run, from what was imported, the command's arguments, and the validation.
    """

    add_options: AddOptions
    validation_of: Callable[[argparse.Namespace], Any]
    write: Callable[[Any, argparse.Namespace, Any], None]


def of_tasks() -> dict[str, Importing]:
    """How the tasks write runs, those that can."""
    modules = {task: its.module("commands") for task, its in TASKS.items()}
    return {task: module.IMPORTING for task, module in modules.items() if hasattr(module, "IMPORTING")}


def import_model(arguments: argparse.Namespace) -> None:
    """Reads a folder, or downloads one, and writes a run. A wrong request is refused before anything is written."""
    if (arguments.folder is None) == (arguments.download is None):
        received = "neither" if arguments.folder is None else "both"
        raise RequestError(f"expected a FOLDER or --download NAME; received {received}: give one")
    check_place(Path(arguments.run), arguments.overwrite)
    validation = {task: its.validation_of(arguments) for task, its in of_tasks().items()}
    if arguments.download is None:
        write_imported(arguments.folder, arguments, validation)
        return
    from keras_transformer.importing.download import download

    with tempfile.TemporaryDirectory() as folder:
        download(arguments.download, Path(folder))
        write_imported(folder, arguments, validation)


def write_imported(folder: str, arguments: argparse.Namespace, validation: dict[str, Any]) -> None:
    """Writes the model in a folder as a run."""
    from keras_transformer.importing.huggingface import read_huggingface
    from keras_transformer.importing.id_tokenizer import NO_RUN, IdTokenizer

    imported, several = read_huggingface(folder), of_tasks()
    task, has_ids = imported.task, any(isinstance(one.tokenizer, IdTokenizer) for one in imported.vocabularies)
    refuse_foreign(arguments, task, {one: its.add_options for one, its in several.items()})
    if has_ids or task not in several:
        raise RequestError(f"{folder}: {NO_RUN}")
    several[task].write(imported, arguments, validation[task])


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments and options of `import`."""
    add = parser.add_argument
    add("folder", nargs="?", metavar="FOLDER", help="the model: config.json, weights, and the tokenizer's files")
    add("run", metavar="RUN", help="the run folder to write")
    download = "fetch the model NAME from the Hugging Face Hub, in place of FOLDER (needs the package huggingface_hub)"
    add("--download", metavar="NAME[@REVISION]", help=download)
    add_all(parser, [its.add_options for its in of_tasks().values()])
    add("--overwrite", action="store_true", help="replace a run that is there")
