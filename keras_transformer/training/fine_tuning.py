"""What a run takes from the run that it fine-tunes (`--init-from`): sizes, settings, learning rate."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from keras_transformer.errors import RequestError
from keras_transformer.training.settings import Settings, flag_of, model_settings, resolve, spelled
from keras_transformer.training.stored_settings import check_types
from keras_transformer.training.tasks import DEFAULT_TASK, TASKS

# A run that is fine-tuned keeps the parent's sizes, except for these.
NOT_FIXED = ("dropout", "attention_dropout", "vocabulary_size")
# The peak of the learning rate where nobody knows how the parent was trained, as of an imported model: the default of
# Hugging Face's trainer. From 2e-5 to 1e-4 is usual.
USUAL_PEAK = 5e-5
# The parent's text, how it was cleaned, the machine that it ran on, and how many of its checkpoints were averaged, are
# not handed on.
NOT_INHERITED = (
    "dataset", "data_dir", "source", "target", "valid_source", "valid_target", "text", "valid_text", "log", "images",
    "valid_images", "clean", "more_source", "more_target", "more_tag", "copies", "both_directions",
    "byte_fallback", "tokenizer", "init_from", "word_vectors", "devices", "threads", "average_last",
)  # fmt: skip


def fine_tuned(given: dict[str, Any], recipe: dict[str, Any], parent: dict[str, Any], num_pairs: int = 0) -> Settings:
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
    if task not in TASKS or TASKS[task].kind != parent["model"]["kind"]:
        raise RequestError(f"--init-from: that run holds a {parent['model']['kind']}; received --task {task}")
    sizes = _sizes_of(parent["model"], task)
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
        parent_settings = Settings(**{**stored, "hidden_dim": settings.hidden_dim})
        peak = parent_settings.learning_rate(parent_settings.steps)
    fitting = fitting_warm_up(settings, peak, shortens="warmup_steps" not in asked)
    return replace(settings, **{name: value for name, value in fitting.items() if name not in asked})


def _sizes_of(model: dict[str, Any], task: str) -> dict[str, Any]:
    has_own_source = model.get("source_vocabulary_size") is not None
    return {
        **{name: spelled(name, model[name]) for name in _fixed_by_parent(task)},
        **({"vocabulary_size": model["vocabulary_size"]} if "vocabulary_size" in model else {}),
        **({"separate_vocabularies": has_own_source} if task == "translation" else {}),
    }


def _fixed_by_parent(task: str) -> list[str]:
    """The settings of the model that a run which is fine-tuned hands on."""
    return [name for name in model_settings(task) if name not in NOT_FIXED]


def inherited_from(stored: dict[str, Any]) -> dict[str, Any]:
    """What a run hands on to a run that fine-tunes it, from the settings in its `config.json`.

    Raises:
        RequestError: a setting has a value that no flag could have given.
    """
    known = [setting.name for setting in fields(Settings) if setting.name in stored]
    check_types({name: stored[name] for name in known})
    return {name: stored[name] for name in known if name not in NOT_INHERITED}


def fitting_warm_up(settings: Settings, peak: float, shortens: bool) -> dict[str, Any]:
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


def describe_inheritance(given: dict[str, Any], recipe: dict[str, Any], settings: Settings) -> str:
    """One line for people: the learning rate, and which settings the parent changed."""
    usual = resolve(given, recipe, {"task": settings.task}).as_dict()
    own = {*_fixed_by_parent(settings.task), *NOT_INHERITED, "preset", "vocabulary_size", "separate_vocabularies"}
    own |= {"warmup_steps", "learning_rate_factor"}  # the line begins with them
    kept = [f"{name} {value}" for name, value in settings.as_dict().items() if name not in own and value != usual[name]]
    highest = settings.learning_rate(min(settings.warmup_steps, settings.steps))
    return (
        f"fine-tuning {settings.init_from}: {settings.steps} steps with a warm-up of {settings.warmup_steps}, up to a "
        f"learning rate of {highest:.2g} (--learning-rate-factor {settings.learning_rate_factor:.3g}); from that run, "
        f"besides its sizes: {', '.join(kept) or 'nothing'}; a flag wins"
    )
