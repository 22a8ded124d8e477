"""Turns flags into a run that may begin: its settings, its folder, its corpus.

A flag wins over the recipe of the corpus, the recipe over the run that is fine-tuned, this over the preset, and the
preset over the defaults. A part of the model that no flag chose gives way to its default where it does not fit. The
whole is checked once, at the end. A wrong request is refused here, before the run folder is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_transformer.core.errors import RequestError, say, warn
from keras_transformer.core.extras import load_tensorflow
from keras_transformer.core.files import check_writable
from keras_transformer.core.folders import contents, leftovers, locked, remove_parts
from keras_transformer.core.lazy import LazyModule, on_tensorflow
from keras_transformer.core.task_registry import DEFAULT_TASK
from keras_transformer.runs.run_folder import (
    Json,
    RunConfig,
    RunFolder,
    check_model,
    read_config,
    restore_replaced,
    versions,
)
from keras_transformer.spec import model_spec, options
from keras_transformer.spec.options import Config
from keras_transformer.spec.presets import AUTO, AUTO_ROWS, PRESETS, auto_row
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.normalization import split_normalization
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.word_vectors import check_word_vectors
from keras_transformer.training import devices, workers
from keras_transformer.training.common_settings import (
    DATA,
    MEND,
    TOLD_BY_DATA,
    Flag,
    Given,
    S,
    Settings,
    TextSettings,
    own_data,
    settings_of,
    wrong_task_message,
)
from keras_transformer.training.task import Run, training_of

keras: Any = LazyModule("keras")
LEAST_STEPS_FOR_XLA = 10_000
USUAL_SHAPES = 8  # that hold all batches of parallel text under XLA
# A run that is fine-tuned keeps the parent's sizes, except for these.
NOT_FIXED = ("dropout", "attention_dropout", "vocabulary_size")
# The settings of a run that goes on may have other values of these: they say where it runs.
OF_MACHINE = ("data_dir", "devices", "threads")
# The peak of the learning rate where nobody knows how the parent was trained, as of an imported model: the default of
# Hugging Face's trainer. From 2e-5 to 1e-4 is usual.
USUAL_PEAK = 5e-5
# Such a model is tuned for so many times fewer steps than as many pairs take from random weights.
FEWER_STEPS = 4


def open_run(flags: Config) -> Run[Settings] | None:
    """Resolves the settings, and checks the folder and the corpus. Nothing is written, but a run that a killed process
    had set aside comes back.

    Args:
        flags: by the names of their settings; None for a flag that was not given.

    Returns:
        The run, or None if a resumed run is finished.

    Raises:
        RequestError: a setting, the folder or the corpus is wrong, or they do not fit together.
    """
    if flags.get("resume") and flags.get("overwrite"):
        raise RequestError("--resume continues a run and --overwrite removes it; received both: give one")
    if flags.get("hours") is not None and (flags.get("resume") or workers.num_workers() > 1):
        raise RequestError(
            "--hours times the first steps of a new run with one worker; received "
            f"{'--resume' if flags.get('resume') else '`TF_CONFIG` with several'} too: give --steps"
        )
    return _resumed_run(flags) if flags.get("resume") else _new_run(flags)


def _new_run(flags: Config) -> Run[Settings]:
    is_chief, overwrite = workers.worker_index() == 0, bool(flags.get("overwrite"))
    # Without --out the settings name the folder.
    folder = claim_folder(Path(flags["out"]), is_chief, overwrite=overwrite) if flags.get("out") else None
    parent = read_config(flags["init_from"]) if flags.get("init_from") else None
    given = as_given(flags, settings_of(flags.get("task") or (parent.task if parent else DEFAULT_TASK)))
    corpus = _corpus(data_settings(given))
    settings = resolve(given, corpus, parent)
    _check_devices(settings)
    settings = with_xla_decided(settings, devices.has_gpu(settings.devices))
    settings.check_apart()
    if settings.init_from and parent:
        check_model(RunFolder(settings.init_from), parent)
    folder = folder or claim_folder(settings.folder, is_chief, overwrite=overwrite)
    if isinstance(settings, TextSettings) and settings.word_vectors:
        check_word_vectors(settings.word_vectors, settings.hidden_dim)
    if is_chief:
        _tell(given, corpus, settings)
    return Run(settings, folder, corpus, _new_config(settings, corpus, parent), is_chief, given=given)


def as_given(flags: Config, settings: type[Settings]) -> Given:
    """Returns the flags that were given, with parts spelled as config.json spells them.

    Raises:
        RequestError: the task has no such setting, a part is unknown, or a value is out of its bounds.
    """
    given, known = {name: value for name, value in flags.items() if value is not None}, settings.flags
    if unknown := [name for name in given if name not in known]:
        spelling = options.flag_of(unknown[0])
        raise RequestError(wrong_task_message(spelling, settings.task) or f"there is no flag {spelling}")
    for name, value in given.items():
        known[name].require(value)
    with _errors_name_flags():
        parts = {name: model_spec.parse(given[name], slot, name) for name in given if (slot := known[name].slot)}
        return Given(settings, given | {name: format_part(settings, name, part) for name, part in parts.items()})


def data_settings(given: Given) -> Settings:
    """Returns the settings that name the corpus: the flags of the data, and the seed that divides it.

    Raises:
        RequestError: a flag makes another senseless, the flags name no corpus, or a file is not there.
    """
    given.settings.check_given(given)
    given.settings.check_paths(given)
    known = given.settings.flags
    of_data = {name: given[name] for name in given if known[name].group == DATA or name == "seed"}
    settings = _merged(given.settings, of_data)
    settings.check_together()
    if isinstance(settings, TextSettings):
        split_normalization(settings.normalization)
    return settings


def _merged(settings: type[S], *layers: Mapping[str, Any]) -> S:
    """Merges layers of settings: each wins over those before it. What the task has not is left out, and nothing is
    checked.
    """
    known = settings.flags
    return settings(**{name: value for layer in layers for name, value in layer.items() if name in known})


def resolve(given: Given, corpus: Corpus[Any], parent: RunConfig | None = None) -> Settings:
    """Returns the settings of a new run: flags win over the recipe, the recipe over the preset, the preset over the
    defaults.

    A part that no flag chose, and that does not fit, gives way to its default; a line tells so.

    Args:
        given: the flags.
        corpus: it brings a recipe. The preset `auto` goes by the number of its pairs.
        parent: of the run that is fine-tuned. Its sizes stay, and its other settings win over a preset that was not
            given.

    Raises:
        RequestError: a value is out of its bounds, two values exclude each other, or a flag asks for another size than
            the parent's.
    """
    if parent is not None:
        return _fine_tuned(given, corpus, parent)
    return _fitting(wanted_settings(given, corpus), given)


def wanted_settings(given: Given, corpus: Corpus[Any], inherited: Config | None = None) -> Settings:
    """Merges defaults, preset, parent, recipe and flags, whether or not they fit together.

    Args:
        given, corpus: see `resolve`.
        inherited: the settings of a run that is fine-tuned; where there is one, the usual preset is `tiny`.
    """
    cls = given.settings
    preset = given.get("preset", cls.preset if inherited is None else "tiny")
    cls.flags["preset"].require(preset)
    usual: Mapping[str, Json] = {}
    if preset != AUTO:
        usual = PRESETS[preset]
    elif "steps" not in corpus.recipe:  # a recipe that says how long to train is whole
        usual = AUTO_ROWS[auto_row(corpus.num_pairs)]
    below: list[Config] = [{**usual, "preset": preset, **cls.defaults}, inherited or {}]
    own_text: Config = {"dataset": None} if own_data(cls).keys() & given.keys() else {}
    return _merged(cls, *(below[::-1] if "preset" in given else below), own_text, corpus.recipe, given)


def _fitting(wanted: Settings, given: Given) -> Settings:
    """Returns the settings, where parts that no flag chose give way to their defaults until the model's arguments fit.

    Raises:
        RequestError: they do not fit even then, or see `check`.
    """
    fitting, told = wanted, []
    slots = {name: its for name, its in given.settings.flags.items() if its.slot and name not in given}
    while fault := _fault(fitting):
        free = (its for name, its in slots.items() if name in fault.arguments)
        one = next((its for its in free if getattr(fitting, its.name) != its.default), None)
        if one is None:
            break
        told.append(f"{one.spelling} {getattr(fitting, one.name)} gives way to {one.default}: {fault.in_flags()}")
        fitting = replace(fitting, **{one.name: one.default})
    if fault:
        fitting, told = wanted, []
    for line in told:
        say(line)
    settings = fitting.normalized()
    check(settings)
    return settings


def _fault(settings: Settings) -> options.Fault | None:
    """Returns why the arguments of the model do not fit, or None."""
    try:
        model_spec.complete(model_arguments(settings), settings.kind)
    except options.Fault as fault:
        return fault
    return None


def check(settings: Settings) -> None:
    """Raises RequestError unless a run can have these settings."""
    for name, its in settings.flags.items():
        its.require(getattr(settings, name))
    if fault := _fault(settings):
        raise RequestError(fault.in_flags()) from fault
    settings.check_together()


def _fine_tuned(given: Given, corpus: Corpus[Any], parent: RunConfig) -> Settings:
    cls = given.settings
    if cls.kind != parent.kind:
        raise RequestError(f"--init-from: that run holds a {parent.kind}; received --task {cls.task}")
    sizes = _sizes_of(parent.model, given)
    for name, size in sizes.items():
        if name in given and given[name] != size:
            flag = cls.flags[name].spelling
            raise RequestError(f"--init-from: that run has {flag} {size}; received: {given[name]}; leave {flag} out")
    stored = inherited_from(parent.settings)  # none of a run that was not trained here
    inherited = stored | _told_by_model(cls, parent.model)
    if corpus.num_pairs and not stored:
        steps = AUTO_ROWS[auto_row(corpus.num_pairs)]["steps"] // FEWER_STEPS
        inherited |= {"steps": steps, "checkpoint_every": min(steps // 10, Settings.checkpoint_every)}
    asked = Given(cls, {**given, **sizes})
    wanted = wanted_settings(asked, corpus, {**inherited, "task": cls.task})
    settings = _fitting(wanted, asked).with_parent_defaults(parent)
    fixed = asked.keys() | (corpus.recipe.keys() if stored and "steps" not in given else ())  # it has its own warm-up
    of_rate = {"steps", "warmup_steps", "learning_rate_factor"} & stored.keys()
    before = _merged(cls, {"hidden_dim": settings.hidden_dim, **{name: stored[name] for name in of_rate}})
    peak = learning_rate(before, before.steps) if stored else USUAL_PEAK
    fitting = fitting_warm_up(settings, peak, shortens="warmup_steps" not in fixed)
    may_change = [name for name in ("warmup_steps", "learning_rate_factor") if name not in fixed]
    return replace(settings, **{name: getattr(fitting, name) for name in may_change})


def _sizes_of(model: Config, given: Given) -> Config:
    """Returns the sizes of the parent's model, as settings."""
    cls = given.settings
    sizes = {name: one for name, one in _told_by_model(cls, model).items() if name not in NOT_FIXED}
    if "vocabulary_size" in model:
        sizes["vocabulary_size"] = model["vocabulary_size"]
    sizes["separate_vocabularies"] = model.get("source_vocabulary_size") is not None
    if "head_layer" in given and cls.mark == "labels" and model.get("num_labels") is None:
        del sizes["head_layer"]  # the layer before labels is a new one
    return {name: size for name, size in sizes.items() if name in cls.flags}


def fixed_by_parent(settings: type[Settings]) -> list[str]:
    """Returns the model settings that fine-tuning may not change."""
    return [name for name in model_settings(settings) if name not in NOT_FIXED]


def inherited_from(stored: Mapping[str, Json]) -> Config:
    """Returns what a run hands on to a run that fine-tunes it, from the settings in its `config.json`.

    Raises:
        RequestError: a setting has a value that no flag could have given.
    """
    known = settings_of(stored.get("task", DEFAULT_TASK)).flags
    return {name: value for name, value in checked_settings(stored, known).items() if known[name].is_inherited}


def checked_settings(stored: Mapping[str, Json], known: Mapping[str, Flag]) -> Config:
    """Returns the settings in a config.json that a task has.

    Raises:
        RequestError: no flag could have given one of them: config.json was edited, or is damaged.
    """
    found = {name: stored[name] for name in known if name in stored}
    for name, value in found.items():
        if known[name].is_kept and not known[name].may_give(value):
            raise RequestError(f"the run's config.json is damaged: no {known[name].spelling} is {value!r:.60}")
    return found


def with_xla_decided(settings: Settings, on_gpu: bool) -> Settings:
    """Returns the settings with `xla` and `static_shapes`, which a flag may have left open.

    XLA compiles each shape of a batch for up to a minute. On a GPU it pays in a long run of few shapes: a step of the
    base model takes a third of the time. On a processor it does not.
    """
    xla = settings.xla
    if not on_tensorflow():
        xla = True
    elif xla is None:
        is_long = settings.steps >= LEAST_STEPS_FOR_XLA if settings.hours is None else settings.hours >= 1
        xla = on_gpu and is_long and settings.has_few_shapes
    decided: Config = {"xla": xla}
    if getattr(settings, "static_shapes", 0) is None:
        decided["static_shapes"] = USUAL_SHAPES if xla else 0
    return replace(settings, **decided)


def claim_folder(path: Path, is_chief: bool, is_resumed: bool = False, overwrite: bool = False) -> RunFolder:
    """Returns the folder of a run that begins or goes on. A run that a killed process had set aside there comes back,
    and what it has left of files goes.

    Raises:
        RequestError: see `check_folder`; or another process writes in the folder, or it may not be written.
    """
    folder = RunFolder(path)
    if is_chief:
        with locked(folder.path, MEND):
            remove_parts(folder.path, leftovers(folder.path, folder.parts()))
            if overwrite or not folder.is_run():
                restore_replaced(folder)
    # Each worker looks: the chief writes after all have met, and would not come to meet them if it alone refused.
    check_folder(folder, is_resumed, overwrite)
    if is_chief:
        check_writable(folder.path, MEND)
    return folder


def check_folder(folder: RunFolder, is_resumed: bool, overwrite: bool) -> None:
    """Raises RequestError unless the content of the folder allows a run to begin there, or to go on."""
    path = folder.path
    if is_resumed and not folder.is_run():
        raise RequestError(
            f"--resume: there is no run in {str(path)!r}: check --out, or leave out --resume to begin one"
        )
    if folder.is_run() and not (is_resumed or overwrite):
        raise RequestError(
            f"{path} holds a run already: go on with --resume, remove it with --overwrite, or choose another --out"
        )
    if folder.is_run():
        read_config(folder)  # --overwrite removes runs alone, and other programs write a config.json too.
    elif contents(path, folder.parts()):
        raise RequestError(f"{path} holds files that are not a run's; choose an empty or a new folder with --out")


def _resumed_run(flags: Config) -> Run[Settings] | None:
    is_chief = workers.worker_index() == 0
    folder = claim_folder(_folder_to_resume(flags), is_chief, is_resumed=True)
    config = read_config(folder)
    settings = replace(resumed(config, flags), out=str(folder.path))
    if config.is_finished(settings.steps) and _has_model(folder, config):
        say(f"{folder.path} is finished{_described_end(config, settings)}")
        return None
    settings.check_paths(flags)
    _check_devices(settings)
    _check_back_end(folder, config)
    corpus, identity = _corpus(settings), config.corpus.get("identity")
    if corpus.identity != identity:  # the run may have begun when the places of lines told which are held out
        by_place: Config = {"seed": None}
        corpus = _corpus(replace(settings, **by_place))
    if corpus.identity != identity:
        raise RequestError(
            "--resume: the training text is not the one that the run began with: restore it, or start another "
            "run with --out"
        )
    if is_chief:
        warn_of_settings_that_cannot_pay(settings)
    config.settings = settings.as_dict()
    return Run(settings, folder, corpus, config, is_chief, is_resumed=True, given=Given(type(settings), {}))


def _folder_to_resume(flags: Config) -> Path:
    cls = settings_of(flags.get("task") or DEFAULT_TASK)
    named = ("dataset", *own_data(cls), "preset", "out")
    return _merged(cls, {name: flags[name] for name in named if flags.get(name) is not None}).folder


def resumed(config: RunConfig, flags: Config) -> Settings:
    """Returns the settings of a run that goes on: those that it began with, and perhaps more steps.

    Raises:
        RequestError: a flag contradicts a stored setting, or a stored setting is damaged or unknown.
    """
    if not config.settings:
        raise RequestError("--resume: this run was imported or saved from Python: fine-tune it with --init-from")
    cls = settings_of(config.settings.get("task", DEFAULT_TASK))
    kept = {name: its for name, its in cls.flags.items() if its.is_kept}
    if unknown := sorted(config.settings.keys() - kept.keys()):
        raise RequestError(
            f"--resume: version {config.writer} of keras-transformer wrote the run, with a setting that this version "
            f"does not know, {unknown[0]}: install that version"
        )
    # An older version knew fewer settings; its vocabularies have their own normalization.
    defaults = {name: None if name == "normalization" else its.default for name, its in kept.items()}
    stored = {**defaults, **checked_settings(config.settings, kept), **_told_by_model(cls, config.model)}
    given = as_given(flags, cls)
    for name in sorted(kept.keys() & given.keys()):
        may_change = name in OF_MACHINE or (name == "steps" and given[name] > stored[name])
        if given[name] != stored[name] and not may_change:
            raise RequestError(
                f"--resume: {kept[name].spelling} was {stored[name]} when the run began; received: {given[name]}; "
                "leave it out, or start another run with --out"
            )
    settings = _merged(cls, stored, given)
    check(settings)
    return settings


def _told_by_model(settings: type[Settings], model: Config) -> Config:
    """Returns the settings that the arguments of a model tell: all but how many tokens were asked for."""
    names = [name for name in model_settings(settings) if name in model and name != "vocabulary_size"]
    return {name: format_part(settings, name, model[name]) for name in names}


def _described_end(config: RunConfig, settings: Settings) -> str:
    at_step = config.weights.get("at_step")
    if isinstance(at_step, int) and at_step < settings.steps:
        return f": it found no better BLEU and stopped early, at step {at_step}"
    return f" ({settings.steps} steps); a larger --steps extends it"


def _has_model(folder: RunFolder, config: RunConfig) -> bool:
    """Whether `model.keras` is there and whole.

    Raises:
        RequestError: it is damaged, and there is no checkpoint to write it from.
    """
    if not folder.model.is_file():
        return False
    try:
        check_model(folder, config)
    except RequestError as error:
        if not folder.has_checkpoint:
            raise RequestError(
                f"{error}; there is no checkpoint to write it from: begin anew with --overwrite"
            ) from error
        warn(f"{error}; writing it again")
        return False
    return True


def _check_devices(settings: Settings) -> None:
    """Raises RequestError if `--devices` is malformed, or Keras's back end has no such training."""
    devices.parse_devices(settings.devices)
    load_tensorflow()
    if not on_tensorflow():
        _check_jax(settings)


def _check_back_end(folder: RunFolder, config: RunConfig) -> None:
    """Raises RequestError if the run's checkpoints are of Keras's other back end, whose numbers have other types."""
    present, known = keras.config.backend(), config.versions
    before = next((name for name in ("tensorflow", "jax") if name in known), present)
    if present not in (before, *known):
        raise RequestError(
            f"--resume: the run began with KERAS_BACKEND={before}; received {present}: go on with {before}, or begin "
            f"another run with its weights, by --init-from {folder.path}"
        )


def _check_jax(settings: Settings) -> None:
    """Raises RequestError if a setting needs TensorFlow and the back end is JAX."""
    backend = keras.config.backend()
    if backend != "jax":
        raise RequestError(f"training runs on TensorFlow or JAX; received KERAS_BACKEND={backend}")
    asked = {
        "--accumulate": settings.accumulate > 1, "--r-drop": settings.r_drop > 0, "--threads": settings.threads > 0,
        "--no-xla": settings.xla is False, "--static-shapes 0": getattr(settings, "static_shapes", None) == 0,
        "several workers in `TF_CONFIG`": workers.num_workers() > 1,
    }  # fmt: skip
    if refused := [name for name, is_asked in asked.items() if is_asked]:
        raise RequestError(
            f"{refused[0]} needs TensorFlow; received KERAS_BACKEND=jax: leave one of them out (JAX trains on all GPUs "
            "of a machine, and compiles every step for its shape)"
        )


def _corpus(settings: Settings) -> Corpus[Any]:
    load_tensorflow()
    return training_of(settings.task).corpus(settings)


def _new_config(settings: Settings, corpus: Corpus[Any], parent: RunConfig | None) -> RunConfig:
    model = model_arguments(settings)
    if isinstance(settings, TextSettings) and settings.tokenizer:
        model["vocabulary_size"] = Tokenizer.load(settings.tokenizer).vocabulary_size
    if settings.has_two_vocabularies:
        model["source_vocabulary_size"] = model["vocabulary_size"]
    if parent is not None:
        model |= {name: parent.model[name] for name in TOLD_BY_DATA - {"num_labels"} if name in parent.model}
    config = RunConfig(
        {"kind": settings.kind, **model_spec.complete(model, settings.kind)},
        settings.as_dict(),
        {
            "name": corpus.name,
            "identity": corpus.identity,
            "source_language": corpus.source_language,
            "target_language": corpus.target_language,
        },
        versions(),
    )
    if parent is not None:
        config.search, config.license, config.language_tags = parent.search, parent.license, parent.language_tags
    return config


def _tell(given: Given, corpus: Corpus[Any], settings: Settings) -> None:
    if settings.init_from:
        say(_described_inheritance(given, corpus, settings))
    if given.get("preset", AUTO) != AUTO:
        _say_what_the_recipe_overrides(given, corpus, settings)
    elif not settings.init_from:
        _say_what_auto_takes(corpus, settings)
    warn_of_a_long_warm_up(settings)  # a run that is resumed keeps its own
    warn_of_settings_that_cannot_pay(settings)


def _described_inheritance(given: Given, corpus: Corpus[Any], settings: Settings) -> str:
    """Returns a line for people: the learning rate, and which settings the parent changed."""
    cls = type(settings)
    usual = wanted_settings(given, corpus, {}).as_dict()
    own = {*fixed_by_parent(cls), "preset", "vocabulary_size", "separate_vocabularies"}
    own |= {name for name, its in cls.flags.items() if not its.is_inherited}
    own |= {"warmup_steps", "learning_rate_factor"}  # the line begins with them
    kept = [f"{name} {value}" for name, value in settings.as_dict().items() if name not in own and value != usual[name]]
    highest = learning_rate(settings, min(settings.warmup_steps, settings.steps))
    return (
        f"fine-tuning {settings.init_from}: {settings.steps} steps with a warm-up of {settings.warmup_steps}, up to a "
        f"learning rate of {highest:.2g} (--learning-rate-factor {settings.learning_rate_factor:.3g}); from that run, "
        f"besides its sizes: {', '.join(kept) or 'nothing'}; a flag wins"
    )


def warn_of_settings_that_cannot_pay(settings: Settings) -> None:
    """Warns of a setting that only costs time without another."""
    if settings.xla and getattr(settings, "static_shapes", None) == 0:
        warn("--xla compiles anew for every shape of a batch: give --static-shapes too, such as --static-shapes 8")


def _say_what_the_recipe_overrides(given: Given, corpus: Corpus[Any], settings: Settings) -> None:
    asked = wanted_settings(given, replace(corpus, recipe={}))
    won = [name for name, value in corpus.recipe.items() if getattr(settings, name) == value != getattr(asked, name)]
    if won:
        flags = ", ".join(f"{settings.flags[name].spelling} {getattr(settings, name)}" for name in won)
        say(
            f"{corpus.name} brings a recipe, which wins over --preset {settings.preset}: {flags}; a flag wins over both"
        )


def _say_what_auto_takes(corpus: Corpus[Any], settings: Settings) -> None:
    if settings.preset != AUTO or "steps" in corpus.recipe or not isinstance(settings, TextSettings):
        return
    say(
        f"preset {AUTO}: {corpus.num_pairs:,} pairs → {settings.num_layers} layers of {settings.hidden_dim}, "
        f"vocabulary {settings.vocabulary_size:,}, {settings.steps:,} steps (its choice from "
        f"{auto_row(corpus.num_pairs):,} pairs on; a flag wins)"
    )


def fitting_warm_up(settings: Settings, peak: float, shortens: bool = True) -> Settings:
    """Returns the settings with a warm-up of a tenth of the steps.

    Args:
        settings: the settings of the run.
        peak: the learning rate to rise to.
        shortens: whether the warm-up may change; if not, the learning rate alone is fitted.
    """
    warmup = max(1, min(settings.warmup_steps, settings.steps // 10)) if shortens else settings.warmup_steps
    usual = learning_rate(replace(settings, warmup_steps=warmup, learning_rate_factor=1.0), warmup)
    return replace(settings, warmup_steps=warmup, learning_rate_factor=float(f"{peak / usual:.3g}"))


def with_steps(settings: Settings, steps: int, given: Given) -> Settings:
    """Sets the steps, and shortens a warm-up that is too long for them unless the user gave it."""
    settings = replace(settings, steps=steps, hours=None)
    if settings.warmup_steps > steps:
        if "warmup_steps" in given:
            warn_of_a_long_warm_up(settings)
        else:
            settings = fitting_warm_up(settings, learning_rate(settings, settings.warmup_steps))
    return settings


def warn_of_a_long_warm_up(settings: Settings) -> None:
    """Warns if the learning rate still rises when the run ends."""
    if settings.hours is None and settings.warmup_steps > settings.steps:  # with hours the steps are not known yet
        fitting = fitting_warm_up(settings, learning_rate(settings, settings.warmup_steps))
        warn(
            f"the learning rate is still rising when the run ends: --warmup-steps is {settings.warmup_steps}, --steps "
            f"{settings.steps}; a shorter warm-up to the same learning rate: --warmup-steps {fitting.warmup_steps} "
            f"--learning-rate-factor {fitting.learning_rate_factor}"
        )


def learning_rate(settings: Settings, step: int) -> float:
    """Returns the learning rate at a step, counted from 1 (paper, equation 3). `schedules` has it for training."""
    rate = min(step**-0.5, step * settings.warmup_steps**-1.5)
    return float(settings.learning_rate_factor * settings.hidden_dim**-0.5 * rate)


def model_settings(settings: type[Settings]) -> list[str]:
    """Returns the settings of a task that are arguments of its model."""
    return [name for name in settings.flags if name in model_spec.KINDS[settings.kind].arguments]


def model_arguments(settings: Settings) -> Config:
    """Returns the arguments of a model, with complete dictionaries for its parts.

    Raises:
        RequestError: a part is unknown, or an option of a part.
    """
    flags, arguments = settings.flags, {}
    with _errors_name_flags():
        for name in model_settings(type(settings)):
            value, slot = getattr(settings, name), flags[name].slot
            arguments[name] = model_spec.parse(value, slot, name) if slot and isinstance(value, str) else value
    return arguments


def format_part(settings: type[Settings], name: str, value: Any) -> Any:
    """Returns the setting for an argument of the model: a part as a flag spells it, any other value unchanged."""
    slot = settings.flags[name].slot
    return model_spec.spelled(value, slot) if slot and value is not None else value


@contextmanager
def _errors_name_flags() -> Iterator[None]:
    """Rewords errors of the model's arguments as errors of flags."""
    try:
        yield
    except options.Fault as error:
        raise RequestError(error.in_flags()) from error
