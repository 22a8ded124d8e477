"""The settings of a training run: default, help and bounds of each. `config.json` keeps them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from keras_transformer import family
from keras_transformer.errors import RequestError
from keras_transformer.options import flag_of as flag_of
from keras_transformer.presets import AUTO, AUTO_ROWS, PRESETS, auto_row
from keras_transformer.training.combinations import check_together
from keras_transformer.training.tasks import DEFAULT_TASK, TASKS, is_foreign, tasks_of

LARGEST = sys.float_info.max  # an integer of JSON may be larger
# Where a run is and how it starts: config.json does not keep these.
ABOUT_THE_FOLDER = ("out", "resume", "overwrite", "hours")
# The user's own data, in place of a named corpus.
OWN = {"source": "text", "text": "text", "log": "log", "images": "folder"}


# Of the models of all tasks. An argument is the same wherever it is; the default is that of the first kind.
MODEL_ARGUMENTS = {name: option for kind in [*family.KINDS.values()][::-1] for name, option in kind.arguments.items()}
PARTS = {name for name, option in MODEL_ARGUMENTS.items() if option.slot}


def _flag(
    default: Any, help: str, check: Callable[[Any], bool] | None = None, expected: str = "", **options: Any
) -> Any:
    return field(default=default, metadata={"help": help, "check": check, "expected": expected, "options": options})


def _count(default: Any, help: str, least: int = 1) -> Any:
    return _flag(default, help, lambda x: least <= x <= 10**15, f"an integer from {least} to 10^15", type=int)


def _count_or_zero(default: int, help: str) -> Any:
    return _count(default, help, least=0)


def _seed(default: int, help: str) -> Any:
    return _flag(default, help, lambda x: 0 <= x < 2**32, "an integer from 0 to 4294967295", type=int)


def _rate(default: Any, help: str) -> Any:
    return _flag(default, help, lambda x: 0 <= x < 1, "a number of at least 0 and less than 1", type=float)


def _positive(default: float, help: str) -> Any:
    return _flag(default, help, lambda x: 0 < x <= LARGEST, "a positive number", type=float)


def _switch(help: str) -> Any:
    return _flag(False, help, action=argparse.BooleanOptionalAction)


def _model(argument: str) -> Any:
    """A setting that is an argument of the model; the family gives its default, help and bounds."""
    option = MODEL_ARGUMENTS[argument]
    if option.kind is bool:
        return _flag(option.default, option.help, action=argparse.BooleanOptionalAction)
    if not option.slot:
        return _flag(option.default, option.help, type=option.parsed if option.is_list else option.kind)
    variants = ", ".join(part.usage(name) for name, part in family.ALL_SLOTS[option.slot].items())
    return _flag(option.default, f"{option.help}: {variants}", metavar="NAME")


@dataclass(frozen=True)
class Settings:
    """The settings of a training run, flat. The flags of train.py are made from them."""

    task: str = _flag(
        DEFAULT_TASK,
        "what to learn: " + ", ".join(f"{name} ({task.help})" for name, task in TASKS.items()),
        choices=tuple(TASKS),
    )
    # Text
    dataset: str | None = _flag(
        "numbers:en-de",
        "a named corpus: numbers:SRC-TGT, pronouns:en-de or en-fr, multi30k:SRC-TGT or wmt14:SRC-TGT; for other tasks "
        "pydoc-topics, number-languages, series or digits",
    )
    data_dir: str | None = _flag(None, "a folder that holds the named corpus; it is then not fetched")
    source: str | None = _flag(None, "your own training text: UTF-8, plain or .gz, a sentence a line")
    target: str | None = _flag(
        None, "the translation of --source, line by line; for a language model its answer, such as a summary"
    )
    valid_source: str | None = _flag(None, "validation text (default: the last lines of --source, held out)")
    valid_target: str | None = _flag(None, "the translation of --valid-source, line by line")
    text: str | None = _flag(None, "your own text for tasks of one language: UTF-8, plain or .gz")
    valid_text: str | None = _flag(None, "validation text (default: a tenth of --text, held out)")
    log: str | None = _flag(None, "your own log: a line for each event, with user, item and time; CSV or TSV, or .gz")
    images: str | None = _flag(None, "your own images: a folder with a folder of images for each label")
    valid_images: str | None = _flag(None, "validation images (default: a tenth of each label's, held out)")
    random_shift: int = _count_or_zero(0, "move each image of training by up to this many pixels, at random")
    vocabulary_size: int = _count(8_000, "pieces of the vocabulary, with the four control ids")
    vocabulary_type: str = _flag(
        "unigram", "how SentencePiece learns the vocabulary", choices=("unigram", "bpe", "char")
    )
    normalization: str | None = _flag(
        "lossless",
        "how text is read: lossless (what the vocabulary can write stays, the rest in its nearest form), identity, "
        "nfc, nfkc, nmt_nfkc, or a file of SentencePiece's rules; SOURCE,TARGET for two",
    )
    byte_fallback: bool = _switch("spell characters that are rare in the training text, and unseen ones, by 256 bytes")
    separate_vocabularies: bool = _switch("learn a vocabulary for each language, not a joint one")
    tokenizer: str | None = _flag(None, "a SentencePiece model to use as joint vocabulary; none is learned then")
    sampling: float = _rate(0.0, "subword sampling: alpha for unigram, dropout for BPE; 0 for none")
    max_length: int = _count(
        250, "leave out pairs with more pieces than this on a side; for a language model on the target's"
    )
    clean: bool = _switch(
        "leave out duplicate pairs, copies of the source, pairs in another script, and pairs of validation; "
        "cleaning.json in the run folder reports them"
    )
    more_source: str | None = _flag(
        None, "further text to train on, such as translations back from --more-target; none of it is held out"
    )
    more_target: str | None = _flag(None, "the translation of --more-source, line by line")
    more_tag: str | None = _flag(
        None,
        "begin each line of --more-source with this tag, such as <bt>",
        lambda x: bool(re.fullmatch(r"<[^<>\s]+>", x)) and x.isprintable(),
        "a name in angle brackets, such as <bt>",
    )
    copies: int = _count(1, "train on the corpus this many times for each time of --more-source")
    both_directions: bool = _switch(
        "translate from target to source too; a source begins with the tag of the language to translate into, such as "
        "<2de>, or <2target> and <2source> for your own text"
    )
    # Model
    preset: str = _flag(
        AUTO,
        "sizes and recipe; the recipe of a named corpus wins over it, flags win over both; `auto`, the default of "
        "translation, goes by the number of training pairs, see the end of this help; other tasks take `tiny`",
        choices=(AUTO, *PRESETS),
    )
    num_layers: int = _model("num_layers")
    encoder_layers: int | None = _model("encoder_layers")
    decoder_layers: int | None = _model("decoder_layers")
    hidden_dim: int = _model("hidden_dim")
    intermediate_dim: int = _model("intermediate_dim")
    num_heads: int = _model("num_heads")
    key_dim: int | None = _model("key_dim")
    dropout: float = _model("dropout")
    attention_dropout: float = _model("attention_dropout")
    max_source_length: int = _model("max_source_length")
    context_length: int = _model("context_length")
    image_size: int = _model("image_size")
    patch_size: int = _model("patch_size")
    channels: int = _model("channels")
    stem: str = _model("stem")
    pixel_mean: float | list[float] = _model("pixel_mean")
    pixel_std: float | list[float] = _model("pixel_std")
    positions: str = _model("positions")
    attention: str = _model("attention")
    decoder_attention: str | None = _model("decoder_attention")
    score: str = _model("score")
    residual: str = _model("residual")
    norm: str = _model("norm")
    feed_forward: str = _model("feed_forward")
    activation: str = _model("activation")
    stack: str = _model("stack")
    attention_bias: bool = _model("attention_bias")
    output_bias: bool = _model("output_bias")
    tied_output: bool = _model("tied_output")
    embedding_scale: float | None = _model("embedding_scale")
    embedding_norm: bool = _model("embedding_norm")
    # Optimisation
    steps: int = _count(100_000, "updates of the weights")
    hours: float | None = _positive(
        None,  # type: ignore[arg-type]
        "train for about this long: the first steps are timed, and --steps is set so that the run takes it",
    )
    token_budget: int = _count(25_000, "source positions of a batch over all replicas, and as many target positions")
    accumulate: int = _count(1, "micro-batches into which each replica splits its part of a batch, to save memory")
    static_shapes: int = _count_or_zero(0, "pad batches to this many fixed shapes, for XLA; 0 for free widths")
    learning_rate_factor: float = _positive(1.0, "factor on the paper's learning rate")
    warmup_steps: int = _count(4_000, "steps until the learning rate peaks")
    label_smoothing: float = _rate(0.1, "label smoothing")
    r_drop: float = _flag(
        0.0,
        "R-Drop: train on two passes of each batch, and add this times the divergence of their predictions; such as 5",
        lambda x: 0 <= x <= LARGEST,
        "a number of at least 0",
        type=float,
    )
    clip_norm: float | None = _positive(None, "clip the gradient to this global norm")  # type: ignore[arg-type]
    ema: float | None = _rate(None, "decay of a moving average of the weights; model.keras then holds the average")
    mixed_precision: str | None = _flag(
        None, "compute in this type; weights stay float32", choices=("bfloat16", "float16")
    )
    xla: bool = _switch("compile the forward and backward pass with XLA; for GPUs, with --static-shapes")
    init_from: str | None = _flag(None, "fine-tune: begin with the weights and the vocabulary of this run")
    word_vectors: str | None = _flag(
        None,
        "a file of word2vec or GloVe, with vectors of --hidden-dim numbers: pieces that are words begin with them; of "
        "a translator those of the source",
    )
    # The run
    checkpoint_every: int = _count(500, "steps between checkpoints, each with a validation")
    average_last: int | None = _count(
        None,
        "model.keras holds the mean of this many last checkpoints (default: the last checkpoint, the best one, or the "
        "mean of those of the last fifth of the run, whichever validation finds best)",
    )
    patience: int = _count_or_zero(0, "stop after this many validations without a better BLEU; 0 for never")
    bleu_sentences: int = _count_or_zero(500, "validation sentences translated for BLEU at each checkpoint; 0 for none")
    devices: str = _flag("auto", "`auto`, `cpu`, `cpu:N` for N replicas on the processor, or GPU numbers such as 0,1")
    threads: int = _count_or_zero(0, "processor threads; 0 leaves it to TensorFlow")
    seed: int = _seed(1, "the same seed gives the same run")
    out: str | None = _flag(None, "the run folder, by default runs/DATASET-PRESET")
    resume: bool = _flag(False, "continue the run in --out; a larger --steps extends it", action="store_true")
    overwrite: bool = _flag(False, "remove the run in --out and start again", action="store_true")

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.out or f"runs/{self.name.replace(':', '-')}-{self.preset}")

    @property
    def name(self) -> str:
        """The corpus's name: the named one, or "files" for the user's own."""
        return self.dataset if self.dataset and not any(getattr(self, own) for own in OWN) else "files"

    def learning_rate(self, step: int) -> float:
        """The learning rate at a step, counted from 1 (paper, equation 3). `schedules` has it for training."""
        rate = min(step**-0.5, step * self.warmup_steps**-1.5)
        return self.learning_rate_factor * self.hidden_dim**-0.5 * rate

    def model_arguments(self) -> dict[str, Any]:
        """The arguments of the model, with complete dictionaries for its parts.

        Raises:
            RequestError: a part is unknown, or an option of a part.
        """
        with _told_as_flags():
            return {name: _parsed(name, getattr(self, name)) for name in model_settings(self.task)}

    def as_dict(self) -> dict[str, Any]:
        """The settings that config.json keeps: those of the task."""
        left_out = {name for name in asdict(self) if is_foreign(name, self.task)} | {*ABOUT_THE_FOLDER}
        return {name: value for name, value in asdict(self).items() if name not in left_out}


def model_settings(task: str) -> list[str]:
    """The settings that are arguments of a task's model."""
    return [setting.name for setting in fields(Settings) if setting.name in TASKS[task].arguments]


def resolve(
    given: dict[str, Any], recipe: dict[str, Any], inherited: dict[str, Any] | None = None, num_pairs: int = 0
) -> Settings:
    """The settings: flags win over the recipe, the recipe over the preset, the preset over the defaults.

    Args:
        given: the flags; None for a flag that was not given.
        recipe: the settings that the corpus brings.
        inherited: the settings of a run that is fine-tuned; they win over a preset that was not given, which then is
            `tiny`.
        num_pairs: of training, by which the preset `auto` goes.

    Raises:
        RequestError: a value is out of its bounds, or two values exclude each other.
    """
    usual: dict[str, Any] = {"preset": AUTO if inherited is None else "tiny"}
    given, inherited = as_given(given), inherited or {}
    task = given.get("task", inherited.get("task", DEFAULT_TASK))
    _check_flags(given, task)
    usual |= TASKS[task].defaults
    preset = given.get("preset", usual["preset"])
    if preset != AUTO:
        usual = {**PRESETS[preset], **usual}
    elif "steps" not in recipe:  # a recipe that says how long to train is whole
        usual = {**AUTO_ROWS[auto_row(num_pairs)], **usual}
    own_text: dict[str, Any] = {"dataset": None} if {*OWN} & given.keys() else {}
    below = {**inherited, **usual} if "preset" in given else {**usual, **inherited}
    settings = Settings(**{**below, **own_text, **recipe, **given})
    if settings.tokenizer or settings.init_from or (task == "language-model" and settings.source is None):
        settings = replace(settings, normalization=None)  # the vocabulary's own, or text stays as it is
    check(settings)
    return settings


def _check_flags(given: dict[str, Any], task: str) -> None:
    """Raises RequestError for a flag of another task, or flags of which one makes the other senseless."""
    if {"hours", "steps"} <= given.keys():
        raise RequestError("--hours sets the number of steps; received --steps too: give one of them")
    if foreign := [name for name in given if is_foreign(name, task)]:
        raise RequestError(
            f"{flag_of(foreign[0])} belongs to --task {' or '.join(tasks_of(foreign[0]))}; received --task {task}"
        )
    brought = [flag_of(name) for name in ("tokenizer", "init_from") if name in given]
    if brought and (learned := [flag_of(name) for name in ("normalization", "byte_fallback") if given.get(name)]):
        raise RequestError(
            f"{learned[0]} is for a vocabulary that the run learns, and {brought[0]} brings one: give one of them"
        )
    if task == "language-model" and "normalization" in given and "source" not in given:
        raise RequestError("--normalization needs --source: a language model of one text keeps it as it is")
    for own in OWN:
        if own in given and (of_named := [name for name in ("dataset", "data_dir") if name in given]):
            raise RequestError(
                f"--{own} is your own {OWN[own]}, and {flag_of(of_named[0])} belongs to a named corpus: give one of "
                "them"
            )


def check(settings: Settings) -> None:
    """Raises RequestError unless a run can have these settings."""
    for setting in fields(Settings):
        value, valid = getattr(settings, setting.name), setting.metadata["check"]
        if value is not None and valid is not None and not valid(value):
            raise RequestError(f"{flag_of(setting.name)} must be {setting.metadata['expected']}; received: {value}")
    with _told_as_flags():
        family.complete(settings.model_arguments(), TASKS[settings.task].kind)
    check_together(settings)


def as_given(given: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given, with parts spelled as config.json spells them."""
    given = {name: value for name, value in given.items() if value is not None}
    with _told_as_flags():
        parts = given.keys() & PARTS
        return given | {name: spelled(name, _parsed(name, given[name])) for name in parts}


def _parsed(name: str, value: Any) -> Any:
    """The value of a setting; for a part its configuration."""
    slot = MODEL_ARGUMENTS[name].slot
    return family.parse(value, slot, name) if slot and isinstance(value, str) else value


def spelled(name: str, value: Any) -> Any:
    """The setting for an argument of the model: a part as a flag spells it, any other value unchanged."""
    slot = MODEL_ARGUMENTS[name].slot
    return family.spelled(value, slot) if slot and value is not None else value


@contextmanager
def _told_as_flags() -> Iterator[None]:
    """Tells an error of the family in the words of a command line."""
    try:
        yield
    except family.Fault as error:
        raise RequestError(error.in_flags()) from error
