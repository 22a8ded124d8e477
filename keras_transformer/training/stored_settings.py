"""The settings that a run's config.json keeps, read again: for a run that goes on, or that is fine-tuned."""

from __future__ import annotations

import os
from dataclasses import Field, fields, replace
from typing import Any

from keras_transformer.errors import RequestError
from keras_transformer.options import Config
from keras_transformer.tasks import DEFAULT_TASK, TASKS
from keras_transformer.training.common_settings import (
    Settings,
    as_given,
    check,
    flag_of,
    model_settings,
    resolve,
    settings_of,
    spelled,
)


def resumed(stored: Config, given: Config, version: str = "unknown") -> Any:
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


def check_types(stored: Config, settings: type[Any]) -> None:
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


# A run that is fine-tuned keeps the parent's sizes, except for these.
NOT_FIXED = ("dropout", "attention_dropout", "vocabulary_size")
# The peak of the learning rate where nobody knows how the parent was trained, as of an imported model: the default of
# Hugging Face's trainer. From 2e-5 to 1e-4 is usual.
USUAL_PEAK = 5e-5


def fine_tuned(given: Config, recipe: Config, parent: Config, num_pairs: int = 0) -> Any:
    """The settings of a run that fine-tunes another.

    The sizes are the parent's. A flag wins over the recipe of the corpus, the recipe over the parent's settings, these
    over the preset.

    Args:
        given: the flags that were given.
        recipe: what the corpus brings.
        parent: the configuration of the run that is fine-tuned.
        num_pairs: of training, for `--preset auto`.

    Raises:
        RequestError: a flag asks for another size than the parent's, or the settings are wrong.
    """
    task = given.get("task") or parent["settings"].get("task", DEFAULT_TASK)
    if task not in [*TASKS] or TASKS[task].kind != parent["model"]["kind"]:
        raise RequestError(f"--init-from: that run holds a {parent['model']['kind']}; received --task {task}")
    cls = TASKS[task].settings
    sizes = _sizes_of(parent["model"], cls)
    for name, size in sizes.items():
        if name in given and given[name] != size:
            flag = flag_of(name)
            raise RequestError(f"--init-from: that run has {flag} {size}; received: {given[name]}; leave {flag} out")
    stored, model = inherited_from(parent["settings"]), parent["model"]
    # A run that was imported, or saved from a notebook, does not tell how it was trained, but for its model.
    inherited = stored or {name: model[name] for name in ("dropout", "attention_dropout") if name in model}
    settings = resolve({**given, **sizes}, recipe, inherited, num_pairs)
    asked = {*given, *sizes}
    if stored and "steps" not in given:  # The recipe's warm-up is for the recipe's steps.
        asked |= recipe.keys()
    peak = USUAL_PEAK
    if stored:
        parent_settings = cls(**{**stored, "hidden_dim": settings.hidden_dim})
        peak = parent_settings.learning_rate(parent_settings.steps)
    fitting = fitting_warm_up(settings, peak, shortens="warmup_steps" not in asked)
    return replace(settings, **{name: value for name, value in fitting.items() if name not in asked})


def _sizes_of(model: Config, settings: type[Any]) -> Config:
    names = {setting.name for setting in fields(settings)}
    sizes = {name: spelled(settings, name, model[name]) for name in _fixed_by_parent(settings)}
    if "vocabulary_size" in names and "vocabulary_size" in model:
        sizes["vocabulary_size"] = model["vocabulary_size"]
    if "separate_vocabularies" in names:
        sizes["separate_vocabularies"] = model.get("source_vocabulary_size") is not None
    return sizes


def _fixed_by_parent(settings: type[Any]) -> list[str]:
    """The settings of the model that a run which is fine-tuned hands on."""
    return [name for name in model_settings(settings) if name not in NOT_FIXED]


def inherited_from(stored: Config) -> Config:
    """What a run hands on to a run that fine-tunes it, from the settings in its `config.json`.

    Raises:
        RequestError: a setting has a value that no flag could have given.
    """
    if not stored:
        return {}
    settings = settings_of(stored.get("task", DEFAULT_TASK))
    known = {setting.name: setting for setting in fields(settings) if setting.name in stored}
    check_types({name: stored[name] for name in known}, settings)
    return {name: stored[name] for name, setting in known.items() if setting.metadata["is_inherited"]}


def fitting_warm_up(settings: Settings, peak: float, shortens: bool) -> Config:
    """A warm-up of a tenth of the steps.

    Args:
        settings: of the run.
        peak: the learning rate to rise to.
        shortens: whether the warm-up may change; if not, the learning rate alone is fitted.

    Returns:
        `warmup_steps` and `learning_rate_factor`.
    """
    warmup = max(1, min(settings.warmup_steps, settings.steps // 10)) if shortens else settings.warmup_steps
    usual = replace(settings, warmup_steps=warmup, learning_rate_factor=1.0).learning_rate(warmup)
    return {"warmup_steps": warmup, "learning_rate_factor": float(f"{peak / usual:.3g}")}


def describe_inheritance(given: Config, recipe: Config, settings: Settings) -> str:
    """One line for people: the learning rate, and which settings the parent changed."""
    usual = resolve(given, recipe, {"task": settings.task}).as_dict()
    own = {*_fixed_by_parent(type(settings)), "preset", "vocabulary_size", "separate_vocabularies"}
    own |= {setting.name for setting in fields(settings) if not setting.metadata["is_inherited"]}
    own |= {"warmup_steps", "learning_rate_factor"}  # the line begins with them
    kept = [f"{name} {value}" for name, value in settings.as_dict().items() if name not in own and value != usual[name]]
    highest = settings.learning_rate(min(settings.warmup_steps, settings.steps))
    return (
        f"fine-tuning {settings.init_from}: {settings.steps} steps with a warm-up of {settings.warmup_steps}, up to a "
        f"learning rate of {highest:.2g} (--learning-rate-factor {settings.learning_rate_factor:.3g}); from that run, "
        f"besides its sizes: {', '.join(kept) or 'nothing'}; a flag wins"
    )
