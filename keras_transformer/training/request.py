"""From flags to a run that may begin: its settings, its folder, its corpus. A wrong request is refused here, before
the run folder is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from keras_transformer.core.errors import RequestError, load_tensorflow, say, warn
from keras_transformer.core.files import check_writable
from keras_transformer.core.folders import contents, leftovers, locked, remove_parts
from keras_transformer.core.lazy import LazyModule, on_tensorflow
from keras_transformer.core.task_registry import DEFAULT_TASK, task_of
from keras_transformer.runs.run_config import is_finished, versions, writer
from keras_transformer.runs.run_folder import RunFolder, check_model, read_config, restore_replaced
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config, flag_of
from keras_transformer.spec.presets import AUTO, auto_row
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.normalization import split_normalization
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.word_vectors import check_word_vectors
from keras_transformer.training import devices
from keras_transformer.training.common_settings import DATA, MEND, TOLD_BY_DATA, Settings, TextSettings, own_data
from keras_transformer.training.resolution import (
    as_given,
    fine_tuned,
    fixed_by_parent,
    learning_rate,
    model_arguments,
    resolve,
    resumed,
    settings_of,
    wanted_settings,
    warn_of_a_long_warm_up,
)
from keras_transformer.training.task import Run, training_of

keras: Any = LazyModule("keras")
LEAST_STEPS_FOR_XLA = 10_000
USUAL_SHAPES = 8  # that hold all batches of parallel text under XLA


def open_run(given: Config) -> Run | None:
    """Settles the settings, and checks the folder and the corpus. Nothing is written, but a run that a killed
    process had set aside comes back.

    Args:
        given: flags by the names of their settings; None for a flag that was not given.

    Returns:
        The run, or None if a resumed run is finished.

    Raises:
        RequestError: a setting, the folder or the corpus is wrong, or they do not fit together.
    """
    if given.get("resume") and given.get("overwrite"):
        raise RequestError("--resume continues a run and --overwrite removes it; received both: give one")
    if given.get("hours") is not None and (given.get("resume") or devices.num_workers() > 1):
        raise RequestError(
            "--hours times the first steps of a new run with one worker; received "
            f"{'--resume' if given.get('resume') else '`TF_CONFIG` with several'} too: give --steps"
        )
    return _resumed_run(given) if given.get("resume") else _new_run(given)


def _new_run(given: Config) -> Run:
    if given.get("out"):  # where there is none, the settings name the folder
        settled_folder(Path(given["out"]), devices.worker_index() == 0, overwrite=bool(given.get("overwrite")))
    parent = read_config(given["init_from"]) if given.get("init_from") else None
    given, settings, corpus = settings_and_corpus(given, parent, _corpus)
    is_chief = _check_devices(settings)
    settings = with_xla_decided(settings, devices.has_gpu(settings.devices))
    settings.check_apart()
    if settings.init_from:
        check_model(RunFolder(settings.init_from))
    folder = settled_folder(settings.folder, is_chief, overwrite=settings.overwrite)
    if isinstance(settings, TextSettings) and settings.word_vectors:
        check_word_vectors(settings.word_vectors, settings.hidden_dim)
    if is_chief:
        _tell(given, corpus, settings)
    config = {
        "model": _model_config(settings, parent),
        "settings": settings.as_dict(),
        "corpus": _corpus_config(corpus),
        "versions": versions(),
    }
    if parent is not None:
        config |= {name: parent[name] for name in ("search", "license", "language_tags") if name in parent}
    return Run(settings, folder, corpus, config, is_chief, given=given)


def settings_and_corpus(
    given: Config, parent: Config | None, corpus_of: Callable[[Settings], Corpus[Any]]
) -> tuple[Config, Settings, Corpus[Any]]:
    """The settings of a new run, which need what the corpus brings, and the corpus.

    Args:
        given: the flags; None for a flag that was not given.
        parent: the configuration of the run that is fine-tuned; None for a run that begins with random weights.
        corpus_of: the corpus that settings name.

    Returns:
        The flags that were given, the settings, and the corpus.

    Raises:
        RequestError: see `resolve` and `fine_tuned`.
    """
    task = given.get("task") or (task_of(parent) if parent else DEFAULT_TASK)
    cls = settings_of(task)
    given = as_given(given, cls)
    corpus = corpus_of(_settings_of_data(given, cls))
    if parent is None:
        return given, resolve(given, corpus.recipe, num_pairs=corpus.num_pairs), corpus
    return given, fine_tuned(given, corpus.recipe, parent, corpus.num_pairs), corpus


def _settings_of_data(given: Config, cls: type[Any]) -> Any:
    """The settings that name the corpus: the flags of the data, and the seed that divides it.

    Raises:
        RequestError: a flag makes another senseless, the flags name no corpus, or a file is not there.
    """
    cls.check_given(given)
    cls.check_paths(given)
    names = {setting.name for setting in fields(cls) if setting.metadata["group"] == DATA or setting.name == "seed"}
    settings = cls(**{name: given[name] for name in given if name in names})
    settings.check_together()
    if isinstance(settings, TextSettings):
        split_normalization(settings.normalization)
    return settings


def with_xla_decided(settings: Settings, on_gpu: bool) -> Settings:
    """The settings with `xla` and `static_shapes`, which a flag may have left open.

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


def settled_folder(path: Path, is_chief: bool, is_resumed: bool = False, overwrite: bool = False) -> RunFolder:
    """The folder of a run that begins or goes on. A run that a killed process had set aside there comes back, and what
    it has left of files goes.

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
    """Raises RequestError unless a run may go on or begin in the folder, as far as what lies there tells."""
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


def _resumed_run(given: Config) -> Run | None:
    folder = settled_folder(_folder_to_resume(given), devices.worker_index() == 0, is_resumed=True)
    config = read_config(folder)
    settings = replace(resumed(config["settings"], given, writer(config)), out=str(folder.path))
    if is_finished(config, settings.steps) and _has_model(folder):
        say(f"{folder.path} is finished{_described_end(config, settings)}")
        return None
    settings.check_paths(given)
    is_chief = _check_devices(settings)
    _check_back_end(folder, config)
    corpus = _corpus(settings)
    identity = config.get("corpus", {}).get("identity")
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
    config["settings"] = settings.as_dict()
    return Run(settings, folder, corpus, config, is_chief, is_resumed=True)


def _folder_to_resume(given: Config) -> Path:
    settings = settings_of(given.get("task") or DEFAULT_TASK)
    named = ("dataset", *own_data(settings), "preset", "out")
    return settings(**{name: given[name] for name in named if given.get(name) is not None}).folder


def _described_end(config: Config, settings: Settings) -> str:
    at_step = config["weights"].get("at_step")
    if isinstance(at_step, int) and at_step < settings.steps:
        return f": it found no better BLEU and stopped early, at step {at_step}"
    return f" ({settings.steps} steps); a larger --steps extends it"


def _has_model(folder: RunFolder) -> bool:
    """Whether `model.keras` is there and whole.

    Raises:
        RequestError: it is damaged, and there is no checkpoint to write it from.
    """
    if not folder.model.is_file():
        return False
    try:
        check_model(folder)
    except RequestError as error:
        if not folder.has_checkpoint:
            raise RequestError(
                f"{error}; there is no checkpoint to write it from: begin anew with --overwrite"
            ) from error
        warn(f"{error}; writing it again")
        return False
    return True


def _check_devices(settings: Settings) -> bool:
    """Returns whether this worker is the chief.

    Raises:
        RequestError: `--devices` or `TF_CONFIG` is malformed, or Keras's back end has no such training.
    """
    devices.parse_devices(settings.devices)
    load_tensorflow()
    if not on_tensorflow():
        _check_jax(settings)
    return devices.worker_index() == 0


def _check_back_end(folder: RunFolder, config: Config) -> None:
    """Raises RequestError if the run's checkpoints are of Keras's other back end, whose numbers have other types."""
    present, known = keras.config.backend(), config.get("versions", {})
    before = next((name for name in ("tensorflow", "jax") if name in known), present)
    if present not in (before, *known):
        raise RequestError(
            f"--resume: the run began with KERAS_BACKEND={before}; received {present}: go on with {before}, or begin "
            f"another run with its weights, by --init-from {folder.path}"
        )


def _check_jax(settings: Settings) -> None:
    """Raises RequestError for what trains on TensorFlow alone."""
    backend = keras.config.backend()
    if backend != "jax":
        raise RequestError(f"training runs on TensorFlow or JAX; received KERAS_BACKEND={backend}")
    asked = {
        "--accumulate": settings.accumulate > 1, "--r-drop": settings.r_drop > 0, "--threads": settings.threads > 0,
        "--no-xla": settings.xla is False, "--static-shapes 0": getattr(settings, "static_shapes", None) == 0,
        "several workers in `TF_CONFIG`": devices.num_workers() > 1,
    }  # fmt: skip
    if refused := [name for name, is_asked in asked.items() if is_asked]:
        raise RequestError(
            f"{refused[0]} needs TensorFlow; received KERAS_BACKEND=jax: leave one of them out (JAX trains on all GPUs "
            "of a machine, and compiles every step for its shape)"
        )


def _corpus(settings: Settings) -> Corpus[Any]:
    load_tensorflow()
    return training_of(settings.task).corpus(settings)


def _model_config(settings: Settings, parent: Config | None) -> Config:
    config = model_arguments(settings)
    if isinstance(settings, TextSettings) and settings.tokenizer:
        config["vocabulary_size"] = Tokenizer.load(settings.tokenizer).vocabulary_size
    if settings.has_two_vocabularies:
        config["source_vocabulary_size"] = config["vocabulary_size"]
    if parent is not None:
        inherited = TOLD_BY_DATA - {"num_labels"}
        config |= {name: parent["model"][name] for name in inherited if name in parent["model"]}
    return {"kind": settings.kind, **model_spec.complete(config, settings.kind)}


def _corpus_config(corpus: Corpus[Any]) -> Config:
    return {
        "name": corpus.name,
        "identity": corpus.identity,
        "source_language": corpus.source_language,
        "target_language": corpus.target_language,
    }


def _tell(given: Config, corpus: Corpus[Any], settings: Settings) -> None:
    if settings.init_from:
        say(describe_inheritance(given, corpus.recipe, settings))
    if given.get("preset", AUTO) != AUTO:
        _say_what_the_recipe_overrides(given, corpus, settings)
    elif not settings.init_from:
        _say_what_auto_takes(corpus, settings)
    warn_of_a_long_warm_up(settings)  # a run that is resumed keeps its own
    warn_of_settings_that_cannot_pay(settings)


def describe_inheritance(given: Config, recipe: Config, settings: Settings) -> str:
    """One line for people: the learning rate, and which settings the parent changed."""
    usual = wanted_settings(given, recipe, {"task": settings.task}).as_dict()
    own = {*fixed_by_parent(type(settings)), "preset", "vocabulary_size", "separate_vocabularies"}
    own |= {setting.name for setting in fields(settings) if not setting.metadata["is_inherited"]}
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


def _say_what_the_recipe_overrides(given: Config, corpus: Corpus[Any], settings: Settings) -> None:
    asked = wanted_settings(given, {})
    won = [name for name, value in corpus.recipe.items() if getattr(settings, name) == value != getattr(asked, name)]
    if won:
        flags = ", ".join(f"{flag_of(name)} {getattr(settings, name)}" for name in won)
        say(
            f"{corpus.name} brings a recipe, which wins over --preset {settings.preset}: {flags}; a flag wins over both"
        )


def _say_what_auto_takes(corpus: Corpus[Any], settings: Settings) -> None:
    if settings.preset != AUTO or "steps" in corpus.recipe:
        return
    say(
        f"preset {AUTO}: {corpus.num_pairs:,} pairs → {settings.num_layers} layers of {settings.hidden_dim}, "
        f"vocabulary {settings.vocabulary_size:,}, {settings.steps:,} steps (its choice from "
        f"{auto_row(corpus.num_pairs):,} pairs on; a flag wins)"
    )
