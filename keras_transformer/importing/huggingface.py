"""Imports trained models from Hugging Face's format: from a folder, or from the Hub."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from keras_transformer.errors import JobError, RequestError
from keras_transformer.importing import bart_models, bert_models, causal_models, many_languages, t5, vit
from keras_transformer.importing.folder import LICENSES, ModelFolder, license_of
from keras_transformer.importing.weights import FILES, INDEX, Imported, homes_in
from keras_transformer.tasks import TASKS

# No others are fetched, so that a model brings no code.
SMALL_FILES = [
    "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json",
    "vocab.json", "target_vocab.json", "vocab.txt", "merges.txt", "source.spm", "target.spm", "spiece.model",
    "sentencepiece.bpe.model", "added_tokens.json", "preprocessor_config.json", "chat_template.jinja", "modules.json",
    "1_Pooling/config.json", *bert_models.LONGEST, "README.md", *LICENSES,
]  # fmt: skip
WEIGHTS = [part for name in FILES for part in (name, f"{name}{INDEX}")]  # the first that is there is fetched
# For each architecture, by its `model_type` in config.json, what reads it.
ARCHITECTURES: dict[str, Callable[[ModelFolder], Imported]] = {
    "bart": bart_models.read_bart,
    "bert": partial(bert_models.read, bert_models.BERT),
    "distilbert": partial(bert_models.read, bert_models.DISTILBERT),
    "gpt2": causal_models.read_gpt2,
    "llama": causal_models.read_llama,
    "m2m_100": many_languages.read,
    "marian": bart_models.read_marian,
    "mbart": many_languages.read_mbart,
    "mt5": t5.read_mt5,
    "roberta": partial(bert_models.read, bert_models.ROBERTA),
    "t5": t5.read,
    "vit": vit.read,
    "xlm-roberta": partial(bert_models.read, bert_models.ROBERTA),
}


def download(name: str, folder: Path) -> None:
    """Fetches the files that an import reads.

    The Hub is the one that huggingface_hub knows: the environment's HF_ENDPOINT changes it.

    Args:
        name: such as `Helsinki-NLP/opus-mt-en-de`; `@` and a branch, tag or commit may follow.
        folder: where to write.

    Raises:
        RequestError: huggingface_hub is not installed, or the Hub has no such model or revision.
        JobError: the Hub cannot be reached.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise RequestError(
            "--download needs the package huggingface_hub, which is not installed: pip install huggingface_hub"
        ) from None
    repository, _, revision = name.partition("@")
    hub = HfApi()

    def fetch(files: list[str]) -> None:
        for file in files:
            if file in there:
                hub.hf_hub_download(repository, file, revision=revision or None, local_dir=folder)

    with _errors_of_the_hub(name):
        there = set(hub.list_repo_files(repository, revision=revision or None))
        weights = [each for each in WEIGHTS if each in there][:1]
        fetch(SMALL_FILES + weights)
    for index in [each for each in weights if each.endswith(INDEX)]:
        homes = homes_in(ModelFolder(folder), index)
        with _errors_of_the_hub(name):
            fetch(sorted({*homes.values()}))


@contextlib.contextmanager
def _errors_of_the_hub(name: str) -> Iterator[None]:
    """Within, the Hub is asked for a model.

    Raises:
        RequestError: the Hub has no such model or revision.
        JobError: the Hub cannot be reached.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        yield
    except HFValidationError as error:
        raise RequestError(f"--download {name:.80}: {' '.join(str(error).split())[:200]}") from error
    except HfHubHTTPError as error:
        reason = " ".join(str(error).split())[:200]
        if error.response is not None and error.response.status_code in (401, 403, 404):
            raise RequestError(f"--download {name:.80}: the Hub has no such model or revision: {reason}") from error
        raise JobError(f"cannot download {name:.80}: {reason}; try again later") from error
    except Exception as error:  # the library beneath raises others from version to version
        raise JobError(f"cannot download {name:.80}: {' '.join(str(error).split())[:200]}; try again later") from error


def import_huggingface(folder: str | os.PathLike[str]) -> Any:
    """What takes and gives text with a model in Hugging Face's format: a translator of BART, Marian, mBART-50, T5, mT5,
    M2M-100 and NLLB-200, a generator of GPT-2 and Llama, a classifier of BERT, RoBERTa, XLM-R and DistilBERT; of ViT a
    recognizer, which takes images.

    The folder may be a stranger's: nothing in it is executed, and of its files only data are read. `save` writes a run
    folder.

    Args:
        folder: a folder with config.json, the weights (model.safetensors or pytorch_model.bin, or several files with
            their index), and the files of the tokenizer, or of the processor of images.

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
    return ARCHITECTURES[architecture](files)._replace(license=license_of(files))
