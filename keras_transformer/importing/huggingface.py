"""Imports trained models from Hugging Face's format."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from keras_transformer.decoding.classifier import Classifier
from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.recognizer import Recognizer
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError
from keras_transformer.importing import bart, bert, gpt2, llama, marian, t5, vit
from keras_transformer.importing.folder import ModelFolder
from keras_transformer.importing.imported import Imported
from keras_transformer.making import make_model

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


def import_huggingface(folder: str | os.PathLike[str]) -> Translator | Generator | Classifier | Recognizer:
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
    return PIPELINES[imported.config.get("kind", "translator")](imported)


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
    """The translator of a translator's model that was read."""
    tokenizers = imported.source.tokenizer, imported.target.tokenizer
    source, target = imported.languages or (None, None)
    return Translator(
        _model_of(imported), *tokenizers, search=imported.search, target_language=target, source_language=source
    )


def generator_of(imported: Imported) -> Generator:
    """The generator of a language model that was read."""
    return Generator(_model_of(imported), imported.target.tokenizer)


def classifier_of(imported: Imported) -> Classifier:
    """The classifier of an encoder that was read."""
    return Classifier(_model_of(imported), imported.source.tokenizer, imported.labels)


def recognizer_of(imported: Imported) -> Recognizer:
    """The recognizer of a classifier of images that was read."""
    return Recognizer(_model_of(imported), imported.labels)


PIPELINES: dict[str, Callable[[Imported], Translator | Generator | Classifier | Recognizer]] = {
    "translator": translator_of,
    "language-model": generator_of,
    "encoder": classifier_of,
    "image-classifier": recognizer_of,
}


def _model_of(imported: Imported) -> Any:
    model = make_model(imported.config)
    imported.weights.assign_to(model)
    return model
