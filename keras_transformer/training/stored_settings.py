"""The settings that a run's config.json keeps, read again: for a run that goes on, or that is fine-tuned."""

from __future__ import annotations

import os
from dataclasses import Field, fields
from typing import Any

from keras_transformer.errors import RequestError
from keras_transformer.tasks import DEFAULT_TASK
from keras_transformer.training.settings import as_given, check, flag_of, settings_of


def resumed(stored: dict[str, Any], given: dict[str, Any], version: str = "unknown") -> Any:
    """The settings of a run that goes on: those that it began with, and perhaps more steps.

    Args:
        stored: the settings in config.json.
        given: the flags.
        version: the version that wrote config.json.

    Raises:
        RequestError: a flag contradicts a stored setting, or a stored setting is damaged or unknown.
    """
    if not stored:
        raise RequestError("--resume: this run was imported or saved from Python: fine-tune it with --init-from")
    cls = settings_of(stored.get("task", DEFAULT_TASK))
    kept = {setting.name: setting for setting in fields(cls) if setting.metadata["is_kept"]}
    names = kept.keys()
    if unknown := sorted(stored.keys() - names):
        raise RequestError(
            f"--resume: version {version} of keras-transformer wrote the run, with a setting that this version does "
            f"not know, {unknown[0]}: install that version"
        )
    check_types(stored, cls)
    # An older version knew fewer settings; its vocabularies have their own normalization.
    defaults = {name: None if name == "normalization" else setting.default for name, setting in kept.items()}
    stored = {**defaults, **stored}
    given = as_given(given, cls)
    for name in sorted(names & given.keys()):
        may_change = name == "data_dir" or (name == "steps" and given[name] > stored[name])
        if given[name] != stored[name] and not may_change:
            raise RequestError(
                f"--resume: {flag_of(name)} was {stored[name]} when the run began; received: {given[name]}; "
                "leave it out, or start another run with --out"
            )
    settings = cls(**{**stored, **given})
    check(settings)
    return settings


def check_types(stored: dict[str, Any], settings: type[Any]) -> None:
    """Raises RequestError for a setting that no flag could have given: config.json was edited, or is damaged."""
    for setting in fields(settings):
        if not setting.metadata["is_kept"] or setting.name not in stored:
            continue
        value = stored[setting.name]
        # Of the user's own text, and of a vocabulary that the run did not learn.
        may_be_none = setting.default is None or setting.name in ("dataset", "normalization")
        if not (may_be_none if value is None else _may_be_given(setting, value)):
            raise RequestError(f"the run's config.json is damaged: no {flag_of(setting.name)} is {value!r:.60}")


def _may_be_given(setting: Field, value: Any) -> bool:
    options, holds = setting.metadata["options"], setting.metadata["check"]
    kind = bool if "action" in options else options.get("type", str)
    kinds = (kind,) if kind in (bool, int, str) else (int, float)
    values = value if isinstance(value, list) and not isinstance(kind, type) else [value]  # a number, or several
    of_kind = all(type(one) in kinds for one in values) and value in options.get("choices", [value])
    return of_kind and (kind is not str or _is_argument(value)) and (holds is None or holds(value))


def _is_argument(text: str) -> bool:
    """Whether a command line can hold the text."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
