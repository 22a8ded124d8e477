"""From flags to a run that may begin: its settings, its folder, its corpus. A wrong request is refused here, before
the run folder is changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_transformer import family
from keras_transformer.errors import RequestError, say, warn
from keras_transformer.files import check_writable
from keras_transformer.making import AUTO, auto_row
from keras_transformer.options import Config
from keras_transformer.run_folder import RunFolder, check_model, is_finished, read_config, versions, writer
from keras_transformer.tasks import DEFAULT_TASK, TASKS
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.normalization import split_normalization
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.word_vectors import check_word_vectors
from keras_transformer.training import devices
from keras_transformer.training.common_settings import Settings, as_given, flag_of, own_data, resolve, settings_of
from keras_transformer.training.stored_settings import (
    describe_inheritance,
    fine_tuned,
    fitting_warm_up,
    inherited_from,
    resumed,
)
from keras_transformer.training.task import Run
from keras_transformer.training.text_settings import TextSettings
from keras_transformer.training.workspace import check_apart, check_free, locked, restore_replaced


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
    parent = read_config(given["init_from"]) if given.get("init_from") else None
    task = given.get("task") or (inherited_from(parent["settings"]).get("task") if parent else None) or DEFAULT_TASK
    given = as_given(given, settings_of(task))
    usual = resolve(given, {}, parent and {"task": task})
    corpus = _corpus(usual)
    if parent is None:
        settings = resolve(given, corpus.recipe, num_pairs=corpus.num_pairs)
    else:
        settings = fine_tuned(given, corpus.recipe, parent, corpus.num_pairs)
    is_chief = _check_devices(settings)
    check_apart(settings)
    if parent is not None:
        check_model(RunFolder(given["init_from"]))
    _check_vocabulary_files(settings)
    folder = RunFolder(settings.folder)
    if is_chief and (settings.overwrite or not folder.is_run()):
        with locked(folder.path):
            restore_replaced(folder)
    # Each worker looks: the chief writes after all have met, and would not come to meet them if it alone refused.
    check_free(folder, settings.overwrite)
    if is_chief:
        check_writable(folder.path, "choose another folder with --out")
        if parent is not None:
            say(describe_inheritance(given, corpus.recipe, settings))
        if given.get("preset", AUTO) != AUTO:
            _say_what_the_recipe_overrides(given, corpus, settings)
        elif parent is None:
            _say_what_auto_takes(corpus, settings)
        warn_of_a_long_warm_up(settings)  # a run that is resumed keeps its own
        _warn_of_settings_that_cannot_pay(settings)
    config = {
        "model": _model_config(settings, parent),
        "settings": settings.as_dict(),
        "corpus": _corpus_config(corpus),
        "versions": versions(),
    }
    if parent is not None and "search" in parent:
        config["search"] = parent["search"]
    return Run(settings, folder, corpus, config, is_chief, given=given)


def _check_vocabulary_files(settings: Settings) -> None:
    if isinstance(settings, TextSettings):
        if settings.word_vectors:
            check_word_vectors(settings.word_vectors, settings.hidden_dim)
        split_normalization(settings.normalization)


def _resumed_run(given: Config) -> Run | None:
    folder = RunFolder(_folder_to_resume(given))
    if devices.worker_index() == 0:
        with locked(folder.path):
            if not folder.is_run():
                restore_replaced(folder)
    if not folder.is_run():
        raise RequestError(
            f"--resume: there is no run in {str(folder.path)!r}: check --out, or leave out --resume to begin one"
        )
    config = read_config(folder)
    settings = replace(resumed(config["settings"], given, writer(config)), out=str(folder.path))
    if is_finished(config, settings.steps) and _has_model(folder):
        say(f"{folder.path} is finished{_described_end(config, settings)}")
        return None
    is_chief = _check_devices(settings)
    corpus = _corpus(settings)
    if corpus.identity != config.get("corpus", {}).get("identity"):
        raise RequestError(
            "--resume: the training text is not the one that the run began with: restore it, or start another "
            "run with --out"
        )
    if is_chief:
        _warn_of_settings_that_cannot_pay(settings)
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
    from keras_transformer.training.checkpoints import Checkpoints

    if not folder.model.is_file():
        return False
    try:
        check_model(folder)
    except RequestError as error:
        if not Checkpoints(folder.checkpoints).whole_steps():
            raise RequestError(
                f"{error}; there is no checkpoint to write it from: begin anew with --overwrite"
            ) from error
        warn(f"{error}; writing it again")
        return False
    return True


def _check_devices(settings: Settings) -> bool:
    """Returns whether this worker is the chief.

    Raises:
        RequestError: `--devices` or `TF_CONFIG` is malformed.
    """
    devices.parse_devices(settings.devices)
    devices.num_workers()
    return devices.worker_index() == 0


def _corpus(settings: Settings) -> Corpus[Any]:
    return TASKS[settings.task].module("training").corpus(settings)


def _say_what_the_recipe_overrides(given: Config, corpus: Corpus[Any], settings: Settings) -> None:
    asked = resolve(given, {})
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


def warn_of_a_long_warm_up(settings: Settings) -> None:
    """Warns if the learning rate still rises when the run ends."""
    if settings.hours is None and settings.warmup_steps > settings.steps:  # with hours the steps are not known yet
        fitting = fitting_warm_up(settings, settings.learning_rate(settings.warmup_steps), shortens=True)
        flags = " ".join(f"{flag_of(name)} {value}" for name, value in fitting.items())
        warn(
            f"the learning rate is still rising when the run ends: --warmup-steps is {settings.warmup_steps}, --steps "
            f"{settings.steps}; a shorter warm-up to the same learning rate: {flags}"
        )


def _warn_of_settings_that_cannot_pay(settings: Settings) -> None:
    if settings.xla and getattr(settings, "static_shapes", None) == 0:
        warn("--xla compiles anew for every shape of a batch: give --static-shapes too, such as --static-shapes 8")


def _model_config(settings: Settings, parent: Config | None) -> Config:
    config = settings.model_arguments()
    if isinstance(settings, TextSettings) and settings.tokenizer:
        config["vocabulary_size"] = Tokenizer.load(settings.tokenizer).vocabulary_size
    if settings.has_two_vocabularies:
        config["source_vocabulary_size"] = config["vocabulary_size"]
    if parent is not None:
        inherited = ("source_vocabulary_size", "num_control_ids")
        config |= {name: parent["model"][name] for name in inherited if name in parent["model"]}
    return {"kind": settings.kind, **family.complete(config, settings.kind)}


def _corpus_config(corpus: Corpus[Any]) -> Config:
    return {
        "name": corpus.name,
        "identity": corpus.identity,
        "source_language": corpus.source_language,
        "target_language": corpus.target_language,
    }
