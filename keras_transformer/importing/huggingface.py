"""Imports trained models from Hugging Face's format."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from keras_transformer.errors import RequestError
from keras_transformer.importing import bart, bert, gpt2, llama, marian, t5, vit
from keras_transformer.importing.folder import ModelFolder
from keras_transformer.importing.imported import Imported
from keras_transformer.tasks import TASKS

# For each architecture, by its `model_type` in config.json, what reads it.
ARCHITECTURES: dict[str, Callable[[ModelFolder], Imported]] = {
    "bart": bart.read,
    "bert": bert.read,
    "gpt2": gpt2.read,
    "llama": llama.read,
    "marian": marian.read,
    "t5": t5.read,
    "vit": vit.read,
}


def import_huggingface(folder: str | os.PathLike[str]) -> Any:
    """What takes and gives text with a model in Hugging Face's format: a translator of BART, Marian and T5, a generator
    of GPT-2 and Llama, a classifier of BERT; of ViT a recognizer, which takes images.

    The folder may be a stranger's: nothing in it is executed, and of its files only data are read. `Translator.save`
    and `Recognizer.save` write a run folder. The text of BART, BERT, GPT-2 and Llama is lines of ids of their own
    tokenizers, see `IdTokenizer`, and no run can be written of them.

    Args:
        folder: a folder with config.json, model.safetensors or pytorch_model.bin, and the files of the tokenizer, or of
            the processor of images.

    Raises:
        RequestError: a file is missing or damaged, or the model's architecture, or an option of it, is not known.
    """
    imported = read_huggingface(folder)
    return TASKS[imported.task].module("pipeline").imported(imported)


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
