"""Imports trained models from Hugging Face's format."""

from __future__ import annotations

import os
from collections.abc import Callable

from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError
from keras_transformer.importing import bart, marian, t5
from keras_transformer.importing.folder import ModelFolder
from keras_transformer.importing.imported import Imported
from keras_transformer.models import make_model

# For each architecture, by its `model_type` in config.json, what reads it.
ARCHITECTURES: dict[str, Callable[[ModelFolder], Imported]] = {
    "bart": bart.read,
    "marian": marian.read,
    "t5": t5.read,
}


def import_huggingface(folder: str | os.PathLike[str]) -> Translator:
    """The translator of a model in Hugging Face's format. `Translator.save` writes it as a run folder.

    The folder may be a stranger's: nothing in it is executed, and of its files only data are read.

    The lines of a BART model are ids of its own tokenizer, see `IdTokenizer`, and no run can be written of it.

    Args:
        folder: a folder with config.json, model.safetensors or pytorch_model.bin, and the files of the tokenizer.

    Raises:
        RequestError: a file is missing or damaged, or the model's architecture, or an option of it, is not known.
    """
    return translator_of(read_huggingface(folder))


def read_huggingface(folder: str | os.PathLike[str]) -> Imported:
    """Reads and checks a model. Keras is not imported.

    Raises:
        RequestError: see `import_huggingface`.
    """
    files = ModelFolder(folder)
    config = files.json("config.json")
    if config.get("auto_map") is not None:
        raise RequestError(f"{files.path}: 'auto_map' asks for code of the folder, which is never run")
    architecture = config.get("model_type")
    if architecture not in list(ARCHITECTURES):
        raise RequestError(
            f"{files.path}: expected an architecture among {', '.join(ARCHITECTURES)}; received {architecture!r:.60}"
        )
    return ARCHITECTURES[architecture](files)


def translator_of(imported: Imported) -> Translator:
    """The translator of a model that was read."""
    model = make_model(imported.config)
    imported.weights.assign_to(model)
    return Translator(model, imported.source.tokenizer, imported.target.tokenizer, search=imported.search)
