"""From flags to the settings of a run: a new one, one that fine-tunes another, and one that goes on.

A flag wins over the recipe of the corpus, the recipe over the run that is fine-tuned, this over the preset, and the
preset over the defaults. A part of the model that no flag chose gives way to its default where it does not fit. The
whole is checked once, at the end.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import Field, fields, replace
from typing import Any

from keras_transformer.core.errors import RequestError, say, warn
from keras_transformer.core.task_registry import DEFAULT_TASK, TASKS, task_of
from keras_transformer.spec import model_spec, options
from keras_transformer.spec.options import Config, flag_of
from keras_transformer.spec.presets import AUTO, AUTO_ROWS, PRESETS, auto_row
from keras_transformer.training.common_settings import Settings, own_data

# A run that is fine-tuned keeps the parent's sizes, except for these.
NOT_FIXED = ("dropout", "attention_dropout", "vocabulary_size")
# The settings of a run that goes on may have other values of these: they say where it runs.
OF_MACHINE = ("data_dir", "devices", "threads")
# The peak of the learning rate where nobody knows how the parent was trained, as of an imported model: the default of
# Hugging Face's trainer. From 2e-5 to 1e-4 is usual.
USUAL_PEAK = 5e-5
# Such a model is tuned for so many times fewer steps than as many pairs take from random weights.
FEWER_STEPS = 4


def resolve(given: Config, recipe: Config, inherited: Config | None = None, num_pairs: int = 0) -> Any:
    """The settings: flags win over the recipe, the recipe over the preset, the preset over the defaults.

    A part that no flag chose, and that does not fit, gives way to its default; a line tells so.

    Args:
        given: the flags; None for a flag that was not given.
        recipe: the settings that the corpus brings.
        inherited: the settings of a run that is fine-tuned; they win over a preset that was not given, which then is
            `tiny`.
        num_pairs: how many pairs there are to train on, by which the preset `auto` goes.

    Returns:
        Those of the task that `given` names, or `inherited`.

    Raises:
        RequestError: a value is out of its bounds, or two values exclude each other.
    """
    wanted = wanted_settings(given, recipe, inherited, num_pairs)
    wanted.check_given({name: value for name, value in given.items() if value is not None})
    settings = _fitting(wanted, given).settled()
    check(settings)
    return settings


def wanted_settings(given: Config, recipe: Config, inherited: Config | None = None, num_pairs: int = 0) -> Any:
    """The settings in the order of `resolve`, whether or not they fit together."""
    is_new, inherited = inherited is None, inherited or {}
    cls = settings_of(given.get("task") or inherited.get("task", DEFAULT_TASK))
    known = {setting.name: setting for setting in fields(cls)}
    given = as_given(given, cls)
    preset = given.get("preset", known["preset"].default if is_new else "tiny")
    _check_value(known["preset"], preset)
    usual: Config = {}
    if preset != AUTO:
        usual = PRESETS[preset]
    elif "steps" not in recipe:  # a recipe that says how long to train is whole
        usual = AUTO_ROWS[auto_row(num_pairs)]
    usual = {**usual, "preset": preset, **cls.defaults}
    below = {**inherited, **usual} if "preset" in given else {**usual, **inherited}
    below = {name: value for name, value in below.items() if name in known}  # a parent's task may have others
    own_text: Config = {"dataset": None} if own_data(cls).keys() & given.keys() else {}
    return cls(**{**below, **own_text, **recipe, **given})


def _fitting(settings: Any, given: Config) -> Any:
    """The settings, where parts that no flag chose give way to their defaults until the model's arguments fit.

    If they do not fit then, the settings come back as they were.
    """
    fitting, told = settings, []
    slots = {setting.name: setting for setting in fields(settings) if setting.metadata["slot"]}
    while fault := _fault(fitting):
        free = (one for name, one in slots.items() if name in fault.arguments and given.get(name) is None)
        one = next((one for one in free if getattr(fitting, one.name) != one.default), None)
        if one is None:
            return settings
        told.append(f"{flag_of(one.name)} {getattr(fitting, one.name)} gives way to {one.default}: {fault.in_flags()}")
        fitting = replace(fitting, **{one.name: one.default})
    for line in told:
        say(line)
    return fitting


def _fault(settings: Settings) -> options.Fault | None:
    """Why the arguments of the model do not fit, or None."""
    try:
        model_spec.complete(model_arguments(settings), settings.kind)
    except options.Fault as fault:
        return fault
    return None


def as_given(given: Config, settings: type[Any]) -> Config:
    """The flags that were given, with parts spelled as config.json spells them.

    Raises:
        RequestError: the task has no such setting, a part is unknown, or a value is out of its bounds.
    """
    given = {name: value for name, value in given.items() if value is not None}
    known = {setting.name: setting for setting in fields(settings)}
    if unknown := [name for name in given if name not in known]:
        flag, task = flag_of(unknown[0]), known["task"].default
        owners = owners_of(flag)
        raise RequestError(foreign(flag, owners, str(task)) if owners else f"there is no flag {flag}")
    for name, value in given.items():
        _check_value(known[name], value)
    parts = [name for name in given if known[name].metadata["slot"]]
    with told_as_flags():
        return given | {name: spelled(settings, name, _parsed(settings, name, given[name])) for name in parts}


def check(settings: Settings) -> None:
    """Raises RequestError unless a run can have these settings."""
    for setting in fields(settings):
        _check_value(setting, getattr(settings, setting.name))
    if fault := _fault(settings):
        raise RequestError(fault.in_flags()) from fault
    settings.check_together()


def _check_value(setting: Field, value: object) -> None:
    valid, choices = setting.metadata["check"], setting.metadata["options"].get("choices")
    if value is not None and valid is not None and not valid(value):
        raise RequestError(f"{flag_of(setting.name)} must be {setting.metadata['expected']}; received: {value}")
    if value is not None and choices is not None and value not in choices:
        raise RequestError(f"{flag_of(setting.name)} must be one of {', '.join(choices)}; received: {value}")


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
        may_change = name in OF_MACHINE or (name == "steps" and given[name] > stored[name])
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
        # None stands for the user's own text, and for a vocabulary that the run did not learn.
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


def fine_tuned(given: Config, recipe: Config, parent: Config, num_pairs: int = 0) -> Any:
    """The settings of a run that fine-tunes another.

    The sizes are the parent's. A flag wins over the recipe of the corpus, the recipe over the parent's settings, these
    over the preset.

    Args:
        given: the flags that were given.
        recipe: what the corpus brings.
        parent: the configuration of the run that is fine-tuned.
        num_pairs: how many pairs there are to train on, for `--preset auto`.

    Raises:
        RequestError: a flag asks for another size than the parent's, or the settings are wrong.
    """
    task = given.get("task") or task_of(parent)
    if task not in [*TASKS] or TASKS[task].kind != parent["model"]["kind"]:
        raise RequestError(f"--init-from: that run holds a {parent['model']['kind']}; received --task {task}")
    cls = TASKS[task].settings
    sizes = _sizes_of(parent["model"], cls, given)
    for name, size in sizes.items():
        if name in given and given[name] != size:
            flag = flag_of(name)
            raise RequestError(f"--init-from: that run has {flag} {size}; received: {given[name]}; leave {flag} out")
    stored, model = inherited_from(parent["settings"]), parent["model"]
    # A run that was imported, or saved from a notebook, does not tell how it was trained, but for its model.
    inherited = stored or {name: model[name] for name in ("dropout", "attention_dropout") if name in model}
    if num_pairs and not stored:
        steps = AUTO_ROWS[auto_row(num_pairs)]["steps"] // FEWER_STEPS
        inherited |= {"steps": steps, "checkpoint_every": min(steps // 10, Settings.checkpoint_every)}
    settings = resolve({**given, **sizes}, recipe, {**inherited, "task": task}, num_pairs).begun_from(parent)
    asked = {*given, *sizes}
    if stored and "steps" not in given:  # The recipe's warm-up is for the recipe's steps.
        asked |= recipe.keys()
    of_rate = {"steps", "warmup_steps", "learning_rate_factor"} & stored.keys()
    before = cls(hidden_dim=settings.hidden_dim, **{name: stored[name] for name in of_rate})
    peak = learning_rate(before, before.steps) if stored else USUAL_PEAK
    fitting = fitting_warm_up(settings, peak, shortens="warmup_steps" not in asked)
    return replace(settings, **{name: value for name, value in fitting.items() if name not in asked})


def _sizes_of(model: Config, settings: type[Any], given: Config) -> Config:
    names = {setting.name for setting in fields(settings)}
    sizes = {name: spelled(settings, name, model[name]) for name in fixed_by_parent(settings)}
    if "vocabulary_size" in names and "vocabulary_size" in model:
        sizes["vocabulary_size"] = model["vocabulary_size"]
    if "separate_vocabularies" in names:
        sizes["separate_vocabularies"] = model.get("source_vocabulary_size") is not None
    if "head_layer" in given and settings.mark == "labels" and model.get("num_labels") is None:
        del sizes["head_layer"]  # the layer before labels is a new one
    return sizes


def fixed_by_parent(settings: type[object]) -> list[str]:
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
        settings: the settings of the run.
        peak: the learning rate to rise to.
        shortens: whether the warm-up may change; if not, the learning rate alone is fitted.

    Returns:
        `warmup_steps` and `learning_rate_factor`.
    """
    warmup = max(1, min(settings.warmup_steps, settings.steps // 10)) if shortens else settings.warmup_steps
    usual = learning_rate(replace(settings, warmup_steps=warmup, learning_rate_factor=1.0), warmup)
    return {"warmup_steps": warmup, "learning_rate_factor": float(f"{peak / usual:.3g}")}


def with_steps(settings: Settings, steps: int, given: Config) -> Settings:
    """The settings with so many steps, and where the user did not give a warm-up with one that fits."""
    settings = replace(settings, steps=steps, hours=None)
    if settings.warmup_steps > steps:
        if "warmup_steps" in given:
            warn_of_a_long_warm_up(settings)
        else:
            peak = learning_rate(settings, settings.warmup_steps)
            settings = replace(settings, **fitting_warm_up(settings, peak, shortens=True))
    return settings


def warn_of_a_long_warm_up(settings: Settings) -> None:
    """Warns if the learning rate still rises when the run ends."""
    if settings.hours is None and settings.warmup_steps > settings.steps:  # with hours the steps are not known yet
        fitting = fitting_warm_up(settings, learning_rate(settings, settings.warmup_steps), shortens=True)
        flags = " ".join(f"{flag_of(name)} {value}" for name, value in fitting.items())
        warn(
            f"the learning rate is still rising when the run ends: --warmup-steps is {settings.warmup_steps}, --steps "
            f"{settings.steps}; a shorter warm-up to the same learning rate: {flags}"
        )


def settings_of(task: str) -> type[Any]:
    """The class of a task's settings.

    Raises:
        RequestError: there is no such task.
    """
    if task not in [*TASKS]:  # a list, because an unhashable name cannot be looked up in a dictionary
        raise RequestError(f"--task must be one of {', '.join(TASKS)}; received: {task!s:.60}")
    return TASKS[task].settings


def owners_of(flag: str) -> list[str]:
    """The tasks that have a flag."""
    return [task for task, its in TASKS.items() if any(flag in spellings_of(one) for one in fields(its.settings))]


def spellings_of(setting: Field) -> list[str]:
    """The flag of a setting, and of a switch the flag that turns it off."""
    can_be_off = setting.metadata["options"].get("action") is argparse.BooleanOptionalAction
    return [flag_of(setting.name), *([flag_of(f"no_{setting.name}")] if can_be_off else [])]


def foreign(flag: str, owners: list[str], task: str) -> str:
    """That a flag is of other tasks than the one that is asked for."""
    return f"{flag} belongs to --task {' or '.join(owners)}; received --task {task}"


def model_settings(settings: type[Any]) -> list[str]:
    """The settings of a task that are arguments of its model."""
    return [one.name for one in fields(settings) if one.name in model_spec.KINDS[settings.kind].arguments]


def model_arguments(settings: Settings) -> Config:
    """The arguments of a model, with complete dictionaries for its parts.

    Raises:
        RequestError: a part is unknown, or an option of a part.
    """
    with told_as_flags():
        return {name: _parsed(type(settings), name, getattr(settings, name)) for name in model_settings(type(settings))}


def _slot_of(settings: type[Any], name: str) -> str:
    return settings.__dataclass_fields__[name].metadata["slot"]


def _parsed(settings: type[object], name: str, value: object) -> Any:
    """The value of a setting; for a part its configuration."""
    slot = _slot_of(settings, name)
    return model_spec.parse(value, slot, name) if slot and isinstance(value, str) else value


def spelled(settings: type[object], name: str, value: Any) -> Any:
    """The setting for an argument of the model: a part as a flag spells it, any other value unchanged."""
    slot = _slot_of(settings, name)
    return model_spec.spelled(value, slot) if slot and value is not None else value


@contextmanager
def told_as_flags() -> Iterator[None]:
    """Tells an error of the family in the words of a command line."""
    try:
        yield
    except options.Fault as error:
        raise RequestError(error.in_flags()) from error


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate at a step, counted from 1 (paper, equation 3). `schedules` has it for training."""
    rate = min(step**-0.5, step * settings.warmup_steps**-1.5)
    return settings.learning_rate_factor * settings.hidden_dim**-0.5 * rate
