"""A run's config.json: written, and read from untrusted folders and from other versions."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from keras_transformer import family
from keras_transformer.decoding.search_options import own_search
from keras_transformer.errors import RequestError, command_line
from keras_transformer.files import write_text
from keras_transformer.options import Config
from keras_transformer.own_parts import FLAG, NAME, modules_of
from keras_transformer.version import __version__

CONFIG_KEYS = {
    "format", "license", "model", "labels", "answer_length", "search", "language_tags", "settings", "corpus",
    "versions", "weights", "parameters", "modules",
}  # fmt: skip
# What a section holds under a key; null is allowed everywhere, and a key that is not here is a later version's.
HELD: dict[str, dict[str, type]] = {
    "corpus": {"name": str, "identity": str, "source_language": str, "target_language": str, "sentences_per_line": int},
    "weights": {"kind": str, "at_step": int, "asked_steps": int},
}
TYPES = {str: "a text", int: "an integer"}
MAX_LICENSE, MAX_TAG = 200, 40  # characters
# It rises with any change of what a run's folder stores, as of a weight's name in model.keras: see "Change what a run
# stores" in docs/CONTRIBUTING.md. What was before version 0.2 wrote format 1.
FORMAT = 2
MAX_CONFIG_BYTES = 1_000_000


class Unreadable(Exception):
    """The file is whole, and this process cannot read it: it is of a later version, or needs a module."""


def write(path: Path, config: Config) -> None:
    """Writes config.json in today's format. It names this version as the writer."""
    versions = {**config.get("versions", {}), "keras-transformer": __version__}
    # "format" comes first in the file.
    modules = modules_of(config["model"]) if "kind" in config.get("model", {}) else []
    present = {"format": FORMAT} | config | {"format": FORMAT, "versions": versions}
    present |= {"modules": modules} if modules else {}
    write_text(path, as_json(present, indent=2) + "\n")


def as_json(value: Any, **layout: Any) -> str:
    """JSON with all characters as they are, but lone surrogates, which file names may hold: UTF-8 has none."""
    return json.dumps(value, ensure_ascii=False, **layout).encode("utf-8", "backslashreplace").decode("utf-8")


def read(path: Path) -> Config:
    """Reads config.json of any folder, trusted or not. It accepts only known keys, bounded sizes, and data.

    Returns:
        The configuration in today's format. The model's configuration is complete.

    Raises:
        RequestError: the file is missing or damaged, describes what no run has, or is of a newer version.
    """
    if not path.is_file():
        is_export = (path.parent / "certificate.json").is_file()
        export = "it is an export: give the run that was exported, or an export with ONNX graphs where one is taken"
        mend = export if is_export else f"train one with `{command_line('train')}`"
        raise RequestError(f"expected a run folder, with a config.json; found none in {str(path.parent)!r}: {mend}")
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"it is larger than {MAX_CONFIG_BYTES:,} bytes")
        config = json.loads(path.read_bytes().decode("utf-8"))
        _check(config)
        model = _complete(config["model"], config)
        if "answer_length" in config:
            _check_answer_length(config["answer_length"], model)
        return {
            **config,
            "format": FORMAT,
            "model": model,
            **({"search": own_search(config["search"])} if "search" in config else {}),
        }
    except Unreadable as error:
        raise RequestError(f"{path} {error}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is damaged or not a run's: {error}") from error


def _complete(model: Config, config: Config) -> Config:
    """The model's configuration with its kind, complete."""
    model = dict(model)
    kind = model.pop("kind", family.DEFAULT_KIND)
    try:
        if kind in list(family.KINDS):  # a list, because an unhashable kind cannot be looked up in a dictionary
            return {"kind": kind, **family.complete(model, kind)}
        unknown = f"expected a model of the kinds {', '.join(family.KINDS)}; received {kind!r:.40}"
    except family.Unknown as error:
        unknown = str(error)
    if _is_newer(writer(config)):
        raise Unreadable(_newer_version_message(config, unknown))
    if modules := config.get("modules"):
        raise Unreadable(_modules_message(modules, unknown))
    raise ValueError(unknown)


def _check(config: object) -> None:
    """Raises ValueError or Unreadable unless sections, keys and format are known."""
    if not isinstance(config, dict) or not {"format", "model", "settings"} <= config.keys():
        raise ValueError(f"expected an object with the keys {sorted(CONFIG_KEYS)}")
    if type(config["format"]) is not int or config["format"] < 1:
        raise ValueError(f"expected the format {FORMAT}; received {config['format']!r:.40}")
    if config["format"] < FORMAT:
        old = f"has the format {config['format']} of version {writer(config)!s:.20} of keras-transformer"
        raise Unreadable(f"{old}, which this version, {__version__}, no longer reads: use that version")
    if config["format"] > FORMAT:
        raise Unreadable(_newer_version_message(config, f"format {config['format']}"))
    for key in ("model", "settings", "corpus", "versions", "weights"):
        if not isinstance(config.get(key, {}), dict):
            raise ValueError(f"expected an object under {key!r}")
    modules = config.get("modules", [])
    if not isinstance(modules, list) or not all(isinstance(name, str) and NAME.fullmatch(name) for name in modules):
        raise ValueError("expected a list of names of modules under 'modules'")
    known = {"kind"}.union(*(kind.arguments for kind in family.KINDS.values()))
    unknown = sorted((config.keys() - CONFIG_KEYS) | (config["model"].keys() - known))
    if unknown and _is_newer(writer(config)):
        raise Unreadable(_newer_version_message(config, f"the key {unknown[0]!r:.40}"))
    if unknown:
        raise ValueError(f"expected only known keys; received {unknown[0]!r:.40}")
    _check_sections(config)
    _check_labels(config.get("labels", []))
    _check_language_tags(config.get("language_tags", {}))
    license = config.get("license", "")
    if not isinstance(license, str) or len(license) > MAX_LICENSE or not license.isprintable():
        raise ValueError(
            f"expected at most {MAX_LICENSE} characters in a line under 'license'; received {license!r:.40}"
        )
    if "parameters" in config and not (type(config["parameters"]) is int and config["parameters"] > 0):
        raise ValueError(f"expected a positive integer under 'parameters'; received {config['parameters']!r:.40}")


def _check_sections(config: Config) -> None:
    held: dict[str, dict[str, type]] = {**HELD, "versions": dict.fromkeys(config.get("versions", {}), str)}
    for section, types in held.items():
        for name, value in config.get(section, {}).items():
            if value is not None and name in types and type(value) is not types[name]:
                raise ValueError(f"expected {TYPES[types[name]]} under {section}.{name}; received {value!r:.60}")


def _check_labels(labels: object) -> None:
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ValueError("expected a list of texts under 'labels'")
    "".join(labels).encode()  # raises UnicodeEncodeError, a ValueError, for a label that cannot be printed
    if len(set(labels)) < len(labels):
        raise ValueError("expected each label once under 'labels'")


def _check_language_tags(tags: object) -> None:
    texts = [*tags.keys(), *tags.values()] if isinstance(tags, dict) else [None]
    if not all(isinstance(text, str) and text.isprintable() and 0 < len(text) <= MAX_TAG for text in texts):
        raise ValueError("expected a tag of each language under 'language_tags'")


def _check_answer_length(length: object, model: Config) -> None:
    """Raises ValueError unless the context of a language model holds such answers, a piece and the separator."""
    if not family.KINDS[model["kind"]].can_answer:
        raise ValueError(f"expected 'answer_length' of a language model alone; received it of a {model['kind']}")
    most = model["context_length"] - 2
    if type(length) is not int or not 1 <= length <= most:
        raise ValueError(f"expected an integer from 1 to {most} under 'answer_length'; received {length!r:.40}")


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
    versions = config.get("versions")
    return str(versions.get("keras-transformer", "unknown")) if isinstance(versions, dict) else "unknown"


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
