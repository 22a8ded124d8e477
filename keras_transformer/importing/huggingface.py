"""Imports trained models from Hugging Face's format: from a folder, or from the Hub."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.core.extras import required
from keras_transformer.importing import bart_models, causal_models, encoders, many_languages, t5
from keras_transformer.importing.folder import LICENSES, ModelFolder, license_of, tell_ignored
from keras_transformer.importing.weights import FILES, INDEX, Imported, homes_in

# The files that importers read. No others are fetched, so that a model brings no code.
ADAPTER = "adapter_config.json"
SMALL_FILES = [
    "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json",
    "vocab.json", "target_vocab.json", "vocab.txt", "merges.txt", "source.spm", "target.spm", "spiece.model",
    "sentencepiece.bpe.model", "added_tokens.json", encoders.PROCESSOR, encoders.PROCESSORS, "chat_template.jinja",
    "modules.json", "1_Pooling/config.json", encoders.PROMPTS, *encoders.LONGEST, "README.md", *LICENSES, ADAPTER,
]  # fmt: skip
WEIGHTS = [part for name in FILES for part in (name, f"{name}{INDEX}")]  # the first that is there is fetched
# Other files and folders that change nothing, by their names.
HARMLESS = re.compile(
    # Documents, and code, which is never run.
    r"\..*|(readme|licen[sc]e|notice|copying|citation|use_policy|requirements).*|modelcard\.json|images|assets"
    r"|.*\.(md|pdf|png|jpe?g|gif|svg|webp|py|ipynb|sh)"
    # What a training left.
    r"|(training_args|optimizer|scheduler|scaler|rng_state|trainer_|events|global_step|checkpoint).*"
    r"|.*_results\.\w+|.*\.(log|csv|tsv)|runs|logs|eval|latest|wandb"
    # Other forms of the weights.
    r"|(tf_model|flax_model|pytorch_model|model[.-]|consolidated|openvino|tflite).*|onnx|coreml|gguf|saved_model|original"
    r"|.*\.(h5|msgpack|ot|onnx|onnx_data|gguf|tflite|mlmodel|mlpackage)|params\.json"
    # Another form of a vocabulary; what other tasks read; modules, which modules.json names.
    r"|tokenizer\.model|chat_template\.json|additional_chat_templates|(video_preprocessor|audio_tokenizer)_config\.json|\d_\w+",
    re.IGNORECASE,
)
OTHER_WEIGHTS = (".gguf", ".h5", ".msgpack", ".ot", ".onnx")
# For each architecture, by its `model_type` in config.json, what reads it.
ARCHITECTURES: dict[str, Callable[[ModelFolder], Imported]] = {
    "bart": bart_models.read_bart,
    "bert": partial(encoders.read, encoders.BERT),
    "distilbert": partial(encoders.read, encoders.DISTILBERT),
    "gpt2": causal_models.read_gpt2,
    "llama": causal_models.read_llama,
    "m2m_100": many_languages.read,
    "marian": bart_models.read_marian,
    "mbart": partial(many_languages.read, is_mbart=True),
    "mt5": partial(t5.read, is_mt5=True),
    "roberta": partial(encoders.read, encoders.ROBERTA),
    "t5": t5.read,
    "vit": encoders.read_vit,
    "xlm-roberta": partial(encoders.read, encoders.ROBERTA),
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
    repository, _, revision = name.partition("@")
    hub = required("huggingface_hub", "import", "--download").HfApi()

    def fetch(files: Iterable[str]) -> None:
        with _errors_of_the_hub(name):
            for file in files:
                if file in there:
                    hub.hf_hub_download(repository, file, revision=revision or None, local_dir=folder)

    with _errors_of_the_hub(name):
        there = set(hub.list_repo_files(repository, revision=revision or None))
    fetch(SMALL_FILES)
    check_files(ModelFolder(folder), there)
    weights = [each for each in WEIGHTS if each in there][:1]
    fetch(weights)
    for index in [each for each in weights if each.endswith(INDEX)]:
        fetch(sorted({*homes_in(ModelFolder(folder), index).values()}))


def check_files(folder: ModelFolder, names: Iterable[str]) -> None:
    """Judges the files of a model by their names.

    A file is one of four. An importer reads it. It is harmless, by `HARMLESS`. It changes the model, as an adapter
    does, and is refused. Or nobody knows it: transformers and sentence-transformers do not read it, so it does not
    change what they compute, and a warning names it.

    Args:
        folder: the model's folder, which holds at least the small files.
        names: the paths of all its files.

    Raises:
        RequestError: the model is an adapter, or has an adapter, or has weights in another form alone.
    """
    first, received = {name.partition("/")[0] for name in names}, ""
    if ADAPTER in first:
        base = folder.json(ADAPTER).get("base_model_name_or_path")
        received = f"an adapter of {base!r:.80} ({ADAPTER}): merge it by merge_and_unload() of peft"
    elif (others := sorted(name for name in first if name.endswith(OTHER_WEIGHTS))) and not first & {*WEIGHTS}:
        received = f"{others[0]!r:.80} alone: load it with transformers"
    if received:
        raise RequestError(f"{folder.path}: expected a whole model; received {received}, and call save_pretrained()")
    unknown = first - {*SMALL_FILES, *WEIGHTS}
    tell_ignored(folder.path, sorted(name for name in unknown if not HARMLESS.fullmatch(name)))


@contextlib.contextmanager
def _errors_of_the_hub(name: str) -> Iterator[None]:
    """Turns the errors of huggingface_hub, within, into errors that name the model.

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
    """Imports a model in Hugging Face's format, with what takes and gives text: a translator of BART, Marian, mBART-50,
    T5, mT5, M2M-100 and NLLB-200, a generator of GPT-2 and Llama, a classifier of BERT, RoBERTa, XLM-R and DistilBERT;
    of ViT a recognizer, which takes images.

    The folder may be a stranger's: nothing in it is executed, and of its files only data are read. `save` writes a run
    folder.

    Args:
        folder: a folder with config.json, the weights (model.safetensors or pytorch_model.bin, or several files with
            their index), and the files of the tokenizer, or of the processor of images.

    Raises:
        RequestError: a file is missing or damaged, or the model's architecture, or an option of it, is not known.
    """
    imported = read_huggingface(folder)
    from keras_transformer.decoding.pipelines import pipeline_of

    return pipeline_of(imported.task).imported(imported)


def read_huggingface(folder: str | os.PathLike[str]) -> Imported:
    """Reads and checks a model. Keras is not imported.

    Raises:
        RequestError: see `import_huggingface`.
    """
    files = ModelFolder(folder)
    check_files(files, [path.name for path in files.path.iterdir()])
    config = files.json("config.json")
    for name in ("config.json", *filter(files.has, ("tokenizer_config.json", encoders.PROCESSOR))):
        if files.json(name).get("auto_map") is not None:
            raise RequestError(f"{files.path / name}: 'auto_map' asks for code of the folder, which is never run")
    architecture = config.get("model_type")
    if architecture not in list(ARCHITECTURES):
        raise RequestError(
            f"{files.path}: expected an architecture among {', '.join(ARCHITECTURES)}; received {architecture!r:.60}"
        )
    return ARCHITECTURES[architecture](files)._replace(license=license_of(files))
