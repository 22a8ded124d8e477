"""A run's config.json: written, and read from untrusted folders and from other versions."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from keras_transformer.core import schema
from keras_transformer.core.errors import RequestError, command_line
from keras_transformer.core.files import write_text
from keras_transformer.core.schema import line, list_of, object_of, or_null, text, whole
from keras_transformer.core.version import __version__
from keras_transformer.runs.export_folder import PAGE, ExportFolder
from keras_transformer.spec import model_spec, options
from keras_transformer.spec.custom_parts import FLAG, NAME, modules_of
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import OWN_SEARCH, own_search

# It rises with any change of what a run's folder stores, as of a weight's name in model.keras: see "Change what a run
# stores" in docs/CONTRIBUTING.md. What was before version 0.2 wrote format 1.
FORMAT = 2
MAX_CONFIG_BYTES = 1_000_000
MAX_LICENSE, MAX_LABEL, MAX_TAG = 200, 300, 40  # characters
MAX_COUNT = 10**15
COUNT, TAG, TEXT, SHORT = or_null(whole(0, MAX_COUNT)), line(MAX_TAG, 1), or_null(str), or_null(line(MAX_LABEL))
LABELS, STEPS = list_of(line(MAX_LABEL)), or_null(list_of(whole(0, MAX_COUNT)))
VERSIONS = object_of({}, others=SHORT)
HEAD = object_of({"format": whole(told=f"the format {FORMAT}")}, {"versions": VERSIONS}, others=object)
LANGUAGES = {"source_language": SHORT, "target_language": SHORT}
# Null is allowed everywhere, and a key of a section that is not here is a later version's.
CORPUS = object_of({}, {"name": TEXT, "identity": TEXT, "sentences_per_line": COUNT, **LANGUAGES}, others=object)
OF_CONFIG: dict[str, schema.Allowed] = {
    "license": line(MAX_LICENSE),
    "labels": LABELS,
    "answer_length": whole(1),
    "search": OWN_SEARCH,
    "language_tags": object_of({}, others=TAG, names=TAG),
    "corpus": CORPUS,
    "versions": dict,
    "weights": object_of({}, {"kind": TEXT, "at_step": COUNT, "asked_steps": COUNT, "steps": STEPS}, others=object),
    "parameters": whole(1, MAX_COUNT, told="a positive integer"),
    "modules": list_of(text(NAME, "the name of a module")),
}


class Unreadable(Exception):
    """The file is whole, and this process cannot read it: it is of a later version, or needs a module."""


def write(path: Path, config: Config) -> None:
    """Writes config.json in today's format. It names this version as the writer.

    Raises:
        RequestError: see `require_readable`.
    """
    require_readable(config)
    versions = {**config.get("versions", {}), "keras-transformer": __version__}
    # "format" comes first in the file.
    modules = modules_of(config["model"]) if "kind" in config.get("model", {}) else []
    present = {"format": FORMAT} | config | {"format": FORMAT, "versions": versions}
    present |= {"modules": modules} if modules else {}
    write_text(path, as_json(present, indent=2) + "\n")


def as_json(value: Any, **layout: Any) -> str:
    """JSON with all characters as they are, but those that are not printable, such as lone surrogates."""
    return "\n".join(map(schema.printable, json.dumps(value, ensure_ascii=False, **layout).split("\n")))


def read(path: Path) -> Config:
    """Reads config.json of any folder, trusted or not. It accepts only known keys, bounded sizes, and data.

    Returns:
        The configuration in today's format. The model's configuration is complete.

    Raises:
        RequestError: the file is missing or damaged, describes what no run has, or is of a newer version.
    """
    if not path.is_file():
        export = f"it is an export: give the run that was exported; {PAGE} says what runs an export without its run"
        inside = sorted(str(model.parent) for model in islice(path.parent.glob("*/model.keras"), 8))
        train = f"check the path, or train one with `{command_line('train')}`"
        mend = f"give a run in it, such as {', '.join(inside)}" if inside else train
        mend = export if ExportFolder(path.parent).is_export() else mend
        raise RequestError(f"expected a run folder, with a config.json; found none in {str(path.parent)!r}: {mend}")
    try:
        config = _checked(schema.read_json(path, HEAD, MAX_CONFIG_BYTES, has_constants=True))
        model = _complete(config["model"], config)
        if "answer_length" in config:
            _check_answer_length(config["answer_length"], model)
        search = {"search": own_search(config["search"])} if "search" in config else {}
        return {**config, "format": FORMAT, "model": model, **search}
    except Unreadable as error:
        raise RequestError(f"{path} {error}") from error
    except ValueError as error:
        raise RequestError(f"{path} is damaged or not a run's: {error}") from error


def _complete(model: Config, config: Config) -> Config:
    """The model's configuration with its kind, complete."""
    model = dict(model)
    kind = model.pop("kind", model_spec.DEFAULT_KIND)
    try:
        if kind in list(model_spec.KINDS):  # a list, because an unhashable kind cannot be looked up in a dictionary
            return {"kind": kind, **model_spec.complete(model, kind)}
        unknown = f"expected a model of the kinds {', '.join(model_spec.KINDS)}; received {kind!r:.40}"
    except options.Unknown as error:
        unknown = str(error)
    if _is_newer(writer(config)):
        raise Unreadable(_newer_version_message(config, unknown))
    if modules := config.get("modules"):
        raise Unreadable(_modules_message(modules, unknown))
    raise ValueError(unknown)


def _checked(config: Config) -> Config:
    """Returns the configuration of a run.

    Raises:
        ValueError: it is damaged.
        Unreadable: a later version wrote it.
    """
    if 1 <= config["format"] < FORMAT:
        old = f"has the format {config['format']} of version {writer(config)!s:.20} of keras-transformer"
        raise Unreadable(f"{old}, which this version, {__version__}, no longer reads: use that version")
    if config["format"] > FORMAT:
        raise Unreadable(_newer_version_message(config, f"format {schema.shown(config['format'])}"))
    of_model = {"kind"}.union(*(kind.arguments for kind in model_spec.KINDS.values()))
    required: dict[str, schema.Allowed] = {
        "format": whole(FORMAT, told=f"the format {FORMAT}"),
        "model": object_of({}, dict.fromkeys(of_model, object)),
        "settings": object_of({}, {"steps": or_null(whole(1, MAX_COUNT))}, others=object),
    }
    try:
        object_of(required, OF_CONFIG).checked(config)
    except schema.Mismatch as error:
        if _is_newer(writer(config)):
            raise Unreadable(_newer_version_message(config, str(error))) from None
        raise
    check_labels(config.get("labels", []))
    return config


def check_labels(labels: list[str]) -> None:
    """Raises ValueError unless each label is there once, and can be printed in a line."""
    LABELS.checked(labels, "labels")
    if len(set(labels)) < len(labels):
        raise ValueError("expected each label once under 'labels'")


def require_readable(config: Config) -> None:
    """Raises RequestError for labels and languages that `read` refuses."""
    try:
        check_labels(config.get("labels", []))
        CORPUS.checked(config.get("corpus", {}), "corpus")
    except ValueError as error:
        raise RequestError(f"{error}: choose another name") from None


def _check_answer_length(length: int, model: Config) -> None:
    """Raises ValueError unless the context of a language model holds such answers, a piece and the separator."""
    if not model_spec.KINDS[model["kind"]].can_answer:
        raise ValueError(f"expected 'answer_length' of a language model alone; received it of a {model['kind']}")
    most = model["context_length"] - 2
    whole(1, most).checked(length, "answer_length")


def _modules_message(modules: list[str], unknown: str) -> str:
    missing = [name for name in modules if name not in sys.modules]
    if not missing:
        return f"has parts that {', '.join(modules)} no longer registers as the run has them: {unknown}"
    flags = " ".join(f"{FLAG} {name}" for name in missing)
    return (
        f"has parts of modules that are not imported: import them before, or give {flags:.200} to the command, if you "
        f"trust their code ({unknown})"
    )


def _newer_version_message(config: Config, unknown: str) -> str:
    return (
        f"was written by version {writer(config)!s:.20} of keras-transformer, which this version, {__version__}, "
        f"cannot read: install that version ({unknown})"
    )


def writer(config: Config) -> str:
    """The version that wrote a configuration."""
    return config.get("versions", {}).get("keras-transformer") or "unknown"


def _is_newer(version: str) -> bool:
    """Whether a version comes after this one."""

    def numbers(text: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d{1,9}", text)[:3]]

    return numbers(version) > numbers(__version__)


def versions() -> dict[str, str]:
    """The installed versions of Python, of this package, and of the packages that it depends on."""
    import importlib.metadata  # late: it takes 10 ms, and only training asks for versions

    back_end = os.environ.get("KERAS_BACKEND") or "tensorflow"
    packages = (back_end, "keras", "numpy", "sentencepiece", "sacrebleu")
    found = {"python": platform.python_version(), "keras-transformer": __version__}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except ImportError:
            continue
    return found


def is_finished(config: Config, steps: int) -> bool:
    """Whether a run has come to its end, as its `config.json` says: at this number of steps, or stopped early."""
    weights = config.get("weights", {})
    return steps == weights.get("asked_steps") or (weights.get("at_step") or 0) >= steps


def unfinished(config: Config) -> str:
    """The steps of a run that has not come to its end, such as "29 of 3,000 steps"; "" if it has, or was not trained
    here."""
    steps, made = config["settings"].get("steps"), config.get("weights", {}).get("steps") or [0]
    return "" if steps is None or is_finished(config, steps) else f"{max(made):,} of {steps:,} steps"
