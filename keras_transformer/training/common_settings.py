"""Defines the settings of training: the flag, the default, the help and the bounds of each.

Here are those that all tasks share, and those of tasks of text. A task's own settings are in its folder, in a class
made by `task_settings`. `config.json` keeps them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from keras_transformer.core.errors import RequestError
from keras_transformer.core.files import check_there
from keras_transformer.core.task_registry import DEFAULT_TASK, TASKS
from keras_transformer.runs.run_folder import Json, RunConfig
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config, Option, flag_of
from keras_transformer.spec.presets import PRESETS

MEND = "choose another folder with --out"
LARGEST = sys.float_info.max  # an integer of JSON may be larger
DATA, MODEL, TRAINING, RUN = GROUPS = ("data", "model", "training", "run")  # in which the help shows the flags
# The arguments of models that the data tells, or the run that another begins with.
TOLD_BY_DATA = {
    "source_vocabulary_size", "num_control_ids", "num_labels", "head_activation", "first_state", "unit_vectors",
    "fixed_output_bias", "end_ids",
}  # fmt: skip
S = TypeVar("S", bound="Settings")


@dataclass(frozen=True)
class Flag:
    """The flag of a setting.

    Args:
        group: the group of the flag in the help.
        help: its line in the help.
        check: whether a value is allowed.
        expected: the values that are allowed, in words.
        own: what the user's own data is that it names, in place of a named corpus.
        reads: "file" or "folder", if the run reads what it names.
        is_inherited: whether a run hands it on to a run that fine-tunes it.
        is_kept: whether config.json keeps it.
        slot: the slot of the part that the value names; "" for other settings.
        options: for `argparse`.
        name, default: the setting's.
    """

    group: str
    help: str
    check: Callable[[Any], bool] | None = None
    expected: str = ""
    own: str = ""
    reads: str = ""
    is_inherited: bool = True
    is_kept: bool = True
    slot: str = ""
    options: Config = field(default_factory=dict)
    name: str = ""
    default: Any = None

    @property
    def spelling(self) -> str:
        """The flag as it is written on a command line."""
        return flag_of(self.name)

    @property
    def spellings(self) -> list[str]:
        """The flag, and of a switch the flag that turns it off."""
        can_be_off = self.options.get("action") is argparse.BooleanOptionalAction
        return [self.spelling, *([flag_of(f"no_{self.name}")] if can_be_off else [])]

    def require(self, value: Any) -> None:
        """Raises RequestError for a value that is out of bounds."""
        choices = self.options.get("choices")
        if value is not None and self.check is not None and not self.check(value):
            raise RequestError(f"{self.spelling} must be {self.expected}; received: {value}")
        if value is not None and choices is not None and value not in choices:
            raise RequestError(f"{self.spelling} must be one of {', '.join(choices)}; received: {value}")

    def may_give(self, value: Json) -> bool:
        """Whether the flag may have given a value that config.json keeps."""
        if value is None:  # stands for the user's own text, and for a vocabulary that the run did not learn
            return self.default is None or self.name in ("dataset", "normalization")
        kind = bool if "action" in self.options else self.options.get("type", str)
        kinds = (kind,) if kind in (bool, int, str) else (int, float)
        values = value if isinstance(value, list) and not isinstance(kind, type) else [value]  # a number, or several
        if not all(type(one) in kinds for one in values) or value not in self.options.get("choices", [value]):
            return False
        return (not isinstance(value, str) or _is_argument(value)) and (self.check is None or self.check(value))


def _is_argument(text: str) -> bool:
    """Whether a command line can hold the text."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def flag(
    group: str, default: Any, help: str, check: Callable[[Any], bool] | None = None, expected: str = "", **its: Any
) -> Any:
    """Makes a setting with its flag, see `Flag`. What is no argument of `Flag` goes to `argparse`."""
    facts = {name: its.pop(name) for name in [*its] if name in Flag.__dataclass_fields__}
    return field(default=default, metadata={"flag": Flag(group, help, check, expected, options=its, **facts)})


def count(group: str, default: int | None, help: str, least: int = 1, **facts: Any) -> Any:
    """Makes a setting that is an integer of at least `least`."""
    expected = f"an integer from {least} to 10^15"
    return flag(group, default, help, lambda x: least <= x <= 10**15, expected, type=int, metavar="N", **facts)


def rate(group: str, default: float | None, help: str) -> Any:
    """Makes a setting from 0 to 1, without 1."""
    expected = "a number of at least 0 and less than 1"
    return flag(group, default, help, lambda x: 0 <= x < 1, expected, type=float, metavar="X")


def positive(group: str, default: float | None, help: str, **facts: Any) -> Any:
    """Makes a setting that is a positive number."""
    return flag(group, default, help, lambda x: 0 < x <= LARGEST, "a positive number", type=float, metavar="X", **facts)


def switch(group: str, help: str, default: bool | None = False, **facts: Any) -> Any:
    """Makes a setting that is true or false."""
    return flag(group, default, help, action=argparse.BooleanOptionalAction, **facts)


def file(help: str, own: str = "", reads: str = "file", group: str = DATA) -> Any:
    """Makes a setting that names a file, or a folder of which everything is read."""
    metavar = "FOLDER" if reads == "folder" else "FILE"
    return flag(group, None, help, own=own, reads=reads, is_inherited=False, metavar=metavar)


def _argument(option: Option) -> Any:
    """Makes a setting of an argument of the model; `model_spec` gives its default, help and bounds."""
    if option.kind is bool:
        return switch(MODEL, option.help, option.default)
    if not option.slot:
        kind = option.parsed if option.is_list else option.kind
        return flag(MODEL, option.default, option.help, type=kind, metavar="N" if option.kind is int else "X")
    help = f"{option.help}: {', '.join(model_spec.ALL_SLOTS[option.slot])}"
    return flag(MODEL, option.default, help, slot=option.slot, metavar="NAME")


@dataclass(frozen=True)
class Settings:
    """The settings of a training run, flat. The flags of train.py are made from them."""

    kind: ClassVar[str]  # the kind of the task's model, a key of `model_spec.KINDS`
    mark: ClassVar[str | None] = None  # the key of config.json that marks runs of this task
    defaults: ClassVar[Config] = {}  # the task's; they win over a preset's
    flags: ClassVar[dict[str, Flag]] = {}  # by the names of the settings, in their order; `task_settings` makes them

    task: str = flag(DATA, DEFAULT_TASK, "what to learn", choices=TASKS, metavar="TASK")
    dataset: str | None = flag(DATA, None, "a named corpus", is_inherited=False, metavar="NAME")
    # Model
    preset: str = flag(MODEL, "tiny", f"sizes and recipe: {', '.join(PRESETS)}", choices=tuple(PRESETS), metavar="NAME")
    # Training
    steps: int = count(TRAINING, 100_000, "updates of the weights")
    hours: float | None = positive(
        TRAINING, None, "train so long: the first steps are timed, for --steps", is_kept=False
    )
    token_budget: int = count(TRAINING, 25_000, "positions of a batch, on each side")
    accumulate: int = count(TRAINING, 1, "micro-batches of a batch, to save memory")
    learning_rate_factor: float = positive(TRAINING, 1.0, "factor on the paper's learning rate")
    warmup_steps: int = count(TRAINING, 4_000, "steps to the learning rate's peak")
    label_smoothing: float = rate(TRAINING, 0.1, "label smoothing")
    r_drop: float = flag(
        TRAINING,
        0.0,
        "R-Drop: two passes of each batch, and this times the divergence of their predictions, such as 5",
        lambda x: 0 <= x <= LARGEST,
        "a number of at least 0",
        type=float,
        metavar="X",
    )
    clip_norm: float | None = positive(TRAINING, None, "clip the gradient to this global norm")
    ema: float | None = rate(TRAINING, None, "keep a moving average of the weights, of this decay")
    mixed_precision: str | None = flag(
        TRAINING, None, "compute in bfloat16 or float16, with float32 weights", choices=("bfloat16", "float16"),
        metavar="TYPE",
    )  # fmt: skip
    xla: bool | None = switch(
        TRAINING, "compile the step with XLA (default: in long runs on a GPU, if batches have few shapes)", None,
        is_inherited=False,
    )  # fmt: skip
    init_from: str | None = flag(
        TRAINING, None, "fine-tune: begin with the weights of this run", reads="file", is_inherited=False,
        metavar="RUN",
    )  # fmt: skip
    # The run
    checkpoint_every: int = count(RUN, 500, "steps between checkpoints")
    average_last: int | None = count(
        RUN, None, "model.keras holds the mean of so many last checkpoints (default: what validation finds best)",
        is_inherited=False,
    )  # fmt: skip
    patience: int = count(RUN, 0, "stop after so many validations that are no better", least=0)
    devices: str = flag(RUN, "auto", "auto, cpu, cpu:N, or GPUs: 0,1", is_inherited=False)
    threads: int = count(RUN, 0, "processor threads; 0 leaves it to TensorFlow", least=0, is_inherited=False)
    seed: int = flag(
        RUN, 1, "the same seed gives the same run", lambda x: 0 <= x < 2**32, "an integer from 0 to 4294967295",
        type=int, metavar="N",
    )  # fmt: skip
    out: str | None = flag(RUN, None, "the run folder (default: runs/DATASET-PRESET)", is_kept=False, metavar="FOLDER")
    resume: bool = flag(RUN, False, "go on with the run in --out, or with more --steps", is_kept=False,
                        action="store_true")  # fmt: skip
    overwrite: bool = flag(RUN, False, "remove the run in --out, and begin again", is_kept=False, action="store_true")

    if TYPE_CHECKING:  # `task_settings` makes these, as all arguments of the task's model
        num_layers: int = 0
        hidden_dim: int = 0
        intermediate_dim: int = 0
        num_heads: int = 0

    @property
    def has_two_vocabularies(self) -> bool:
        """Whether source and target have a vocabulary each."""
        return bool(getattr(self, "separate_vocabularies", False))

    @property
    def has_few_shapes(self) -> bool:
        """Whether batches have few shapes, so that XLA compiles few times."""
        return False

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.out or f"runs/{self.name.replace(':', '-')}-{self.preset}")

    @property
    def name(self) -> str:
        """The corpus's name: the named one, or "files" for the user's own."""
        has_own = any(getattr(self, own) for own in own_data(type(self)))
        return self.dataset if self.dataset and not has_own else "files"

    def as_dict(self) -> dict[str, Json]:
        """Returns the settings that config.json keeps."""
        return {name: value for name, value in asdict(self).items() if self.flags[name].is_kept}

    def normalized(self) -> Settings:
        """Returns the settings; those that another setting overrides are reset."""
        return self

    def with_parent_defaults(self, parent: RunConfig) -> Settings:
        """Adds the defaults of the run that these settings begin with."""
        return self

    @classmethod
    def check_given(cls, given: Config) -> None:
        """Raises RequestError if a flag that was given makes another senseless."""
        if {"hours", "steps"} <= given.keys():
            raise RequestError("--hours sets the number of steps; received --steps too: give one of them")
        for own, what in own_data(cls).items():
            if own in given and (named := [name for name in ("dataset", "data_dir") if name in given]):
                raise RequestError(
                    f"--{own} is your own {what}, and {flag_of(named[0])} belongs to a named corpus: give one of them"
                )

    @classmethod
    def check_paths(cls, given: Config) -> None:
        """Raises RequestError unless everything is there that flags tell the run to read."""
        for name, its in cls.flags.items():
            if its.reads and given.get(name):
                check_there(given[name], its.options["metavar"])

    def check_together(self) -> None:
        """Raises RequestError if one setting needs or excludes another."""
        if self.hours and self.xla and not self.has_few_shapes:
            raise RequestError(
                "--hours times the first steps, in which --xla compiles each of many shapes: give --steps, or leave "
                "out --xla"
            )

    def check_apart(self) -> None:
        """Raises RequestError if something that the run reads lies in the folder that it writes."""
        folder = self.folder.resolve()
        for name, its in self.flags.items():
            given = getattr(self, name)
            if its.reads and given and Path(given).resolve().is_relative_to(folder):
                place = f"{its.spelling} must not lie in the folder of the new run, {self.folder}"
                raise RequestError(f"{place}; received: {given}; {MEND}")
            if its.reads == "folder" and given and folder.is_relative_to(Path(given).resolve()):  # it would be read
                place = f"the new run must not lie in {its.spelling}, {given}"
                raise RequestError(f"{place}; received: {self.folder}; {MEND}")


class Given(dict[str, Any]):
    """The settings of a task that flags give, by their names, each checked for itself; see `request.as_given`."""

    def __init__(self, settings: type[Settings], values: Mapping[str, Any]):
        super().__init__(values)
        self.settings = settings


def task_settings(task: str, kind: str, **defaults: Any) -> Callable[[type[S]], type[S]]:
    """Makes a class the settings of a task, with those arguments of its model that the data does not tell.

    Args:
        task: its name.
        kind: the kind of its model, a key of `model_spec.KINDS`.
        defaults: the task's. They win over those of `Settings` and of a preset.
    """

    def make(settings: type[S]) -> type[S]:
        known: dict[str, Field[Any]] = {one.name: one for base in settings.__mro__[:0:-1] for one in _fields_of(base)}
        own = {name: value for name, value in vars(settings).items() if isinstance(value, Field)}
        known |= own
        for name, option in model_spec.KINDS[kind].arguments.items():
            if name not in known and name not in TOLD_BY_DATA:
                known[name] = own[name] = _argument(option)
        for name, default in {"task": task, **defaults}.items():
            own[name] = field(default=default, metadata=known[name].metadata)
        for name, one in own.items():
            settings.__annotations__.setdefault(name, "Any")
            setattr(settings, name, one)
        made = dataclass(frozen=True)(settings)
        made.kind, made.defaults, made.flags = kind, defaults, {}
        for one in fields(made):
            made.flags[one.name] = replace(one.metadata["flag"], name=one.name, default=one.default)
        return made

    return make


def _fields_of(base: type) -> tuple[Field[Any], ...]:
    return fields(base) if hasattr(base, "__dataclass_fields__") else ()


def settings_of(task: Json) -> type[Settings]:
    """Returns the class of a task's settings.

    Raises:
        RequestError: there is no such task.
    """
    if not isinstance(task, str) or task not in TASKS:
        raise RequestError(f"--task must be one of {', '.join(TASKS)}; received: {task!s:.60}")
    return TASKS[task].settings


def own_data(settings: type[Settings]) -> dict[str, str]:
    """Returns the settings that name the user's own data, and what that is."""
    return {name: its.own for name, its in settings.flags.items() if its.own}


def wrong_task_message(flag: str, task: str) -> str:
    """Says that a flag is of other tasks than the one that is asked for; "" if no task has it."""
    owners = [name for name in TASKS if any(flag in its.spellings for its in settings_of(name).flags.values())]
    return f"{flag} belongs to --task {' or '.join(owners)}; received --task {task}" if owners else ""


@dataclass(frozen=True)
class TextSettings(Settings):
    """The settings of tasks that learn a vocabulary."""

    vocabulary_size: int = count(DATA, 8_000, "pieces of the vocabulary, with the control ids")
    vocabulary_type: str = flag(
        DATA, "unigram", "unigram, bpe or char: how SentencePiece learns", choices=("unigram", "bpe", "char"),
        metavar="TYPE",
    )  # fmt: skip
    normalization: str | None = flag(
        DATA,
        "lossless",
        "how text is read: lossless, identity, nfc, nfkc, nmt_nfkc, or a file of rules",
        metavar="NAME",
    )
    byte_fallback: bool = switch(DATA, "spell rare and unseen characters by bytes", is_inherited=False)
    tokenizer: str | None = file("a SentencePiece model; none is learned then")
    word_vectors: str | None = file("vectors that words begin with: word2vec or GloVe")

    def normalized(self) -> TextSettings:
        # A vocabulary that is not learned here has its own.
        return replace(self, normalization=None) if self.tokenizer or self.init_from else self

    @classmethod
    def check_given(cls, given: Config) -> None:
        """Raises RequestError if a flag that was given makes another senseless."""
        super().check_given(given)
        brought = [flag_of(name) for name in ("tokenizer", "init_from") if name in given]
        if brought and (learned := [flag_of(name) for name in ("normalization", "byte_fallback") if given.get(name)]):
            raise RequestError(
                f"{learned[0]} is for a vocabulary that the run learns, and {brought[0]} brings one: give one of them"
            )

    def check_together(self) -> None:
        """Raises RequestError if one setting needs or excludes another."""
        super().check_together()
        if self.tokenizer and self.init_from:
            raise RequestError("--tokenizer does not go with --init-from, which brings a vocabulary: give one")
        if self.word_vectors and self.init_from:
            raise RequestError(
                "--word-vectors begins an embedding, and --init-from brings a whole model; received both: give one"
            )


@dataclass(frozen=True)
class PairSettings(Settings):
    """The settings of tasks that learn from pairs of texts."""

    source: str | None = file("your own text, a line each: UTF-8, plain or .gz", own="text")
    target: str | None = file("its translation or answer, line by line")
    valid_source: str | None = file("validation text (default: lines of --source)")
    valid_target: str | None = file("its translation or answer")
    max_length: int = count(DATA, 250, "leave out pairs with more pieces on a side")
    clean: bool = switch(
        DATA, "leave out duplicates, copies, other scripts, and pairs of validation; cleaning.json tells",
        is_inherited=False,
    )  # fmt: skip

    def check_together(self) -> None:
        """Raises RequestError if one setting needs or excludes another."""
        super().check_together()
        if (self.source is None) != (self.target is None):
            raise RequestError("--source and --target go together; received only one of them")
        if self.source is None and (self.valid_source or self.valid_target):
            raise RequestError("--valid-source and --valid-target need --source and --target; received none")


@dataclass(frozen=True)
class OneLanguageSettings(TextSettings):
    """The settings of tasks that learn from text of one language."""

    if TYPE_CHECKING:  # an argument of all their models
        context_length: int = 0

    text: str | None = file("your own text: UTF-8, plain or .gz", own="text")
    valid_text: str | None = file("validation text (default: a tenth of --text)")

    def check_together(self) -> None:
        """Raises RequestError if one setting needs or excludes another."""
        super().check_together()
        if self.valid_text and self.text is None:
            raise RequestError("--valid-text needs --text; received none")
        if "," in (self.normalization or ""):
            raise RequestError(
                f"--normalization SOURCE,TARGET is for text in two languages; received: {self.normalization} with "
                f"--task {self.task}"
            )
