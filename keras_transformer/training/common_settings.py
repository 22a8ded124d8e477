"""The settings of training that all tasks share, and those of tasks of text: default, help and bounds of each.

`config.json` keeps them. A task's own settings are in its folder, in a class made by `task_settings`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from keras_transformer.core.errors import RequestError
from keras_transformer.core.files import check_there
from keras_transformer.core.task_registry import DEFAULT_TASK, TASKS
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
SettingsClass = TypeVar("SettingsClass", bound=type)


def flag(
    group: str,
    default: object,
    help: str,
    check: Callable[[Any], bool] | None = None,
    expected: str = "",
    own: str = "",
    reads: str = "",
    is_inherited: bool = True,
    is_kept: bool = True,
    slot: str = "",
    **options: object,
) -> Any:
    """A setting with its flag.

    Args:
        group: the group of the flag in the help.
        default, help: the flag's value where it is not given, and its line in the help.
        check: whether a value is allowed.
        expected: the values that are allowed, in words.
        own: what the user's own data is that it names, in place of a named corpus.
        reads: "file" or "folder", if the run reads what it names.
        is_inherited: whether a run hands it on to a run that fine-tunes it.
        is_kept: whether config.json keeps it.
        slot: the slot of the part that the value names; "" for other settings.
        options: for `argparse`.
    """
    facts = {"own": own, "reads": reads, "is_inherited": is_inherited, "is_kept": is_kept, "slot": slot}
    told = {"group": group, "help": help, "check": check, "expected": expected, "options": options}
    return field(default=default, metadata={**told, **facts})


def count(group: str, default: Any, help: str, least: int = 1, **facts: Any) -> Any:
    """A setting that is a positive integer, or one of at least `least`."""
    expected = f"an integer from {least} to 10^15"
    return flag(group, default, help, lambda x: least <= x <= 10**15, expected, type=int, metavar="N", **facts)


def rate(group: str, default: object, help: str) -> Any:
    """A setting from 0 to 1, without 1."""
    expected = "a number of at least 0 and less than 1"
    return flag(group, default, help, lambda x: 0 <= x < 1, expected, type=float, metavar="X")


def positive(group: str, default: Any, help: str, **facts: Any) -> Any:
    """A setting that is a positive number."""
    return flag(group, default, help, lambda x: 0 < x <= LARGEST, "a positive number", type=float, metavar="X", **facts)


def switch(group: str, help: str, default: bool | None = False, **facts: Any) -> Any:
    """A setting that is true or false."""
    return flag(group, default, help, action=argparse.BooleanOptionalAction, **facts)


def file(help: str, own: str = "", reads: str = "file", group: str = DATA) -> Any:
    """A setting that names a file, or a folder of which everything is read."""
    metavar = "FOLDER" if reads == "folder" else "FILE"
    return flag(group, None, help, own=own, reads=reads, is_inherited=False, metavar=metavar)


def _argument(option: Option) -> Any:
    """A setting that is an argument of the model; the family gives its default, help and bounds."""
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
    mark: ClassVar[str | None] = None  # a key of config.json that the runs of the task have, see `tasks.task_named`
    defaults: ClassVar[Config] = {}  # the task's; they win over a preset's

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

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A setting of the task, or an argument of its model."""

    @property
    def has_two_vocabularies(self) -> bool:
        """Whether source and target have a vocabulary each."""
        return getattr(self, "separate_vocabularies", False)

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
        return self.dataset if self.dataset and not any(getattr(self, own) for own in own_data(self)) else "files"

    def as_dict(self) -> Config:
        """The settings that config.json keeps."""
        kept = {setting.name for setting in fields(self) if setting.metadata["is_kept"]}
        return {name: value for name, value in asdict(self).items() if name in kept}

    def settled(self) -> Settings:
        """These settings, without what others make void."""
        return self

    def begun_from(self, parent: Config) -> Settings:
        """These settings, with what the run brings that they begin with, by its configuration."""
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
        for setting in fields(cls):
            if setting.metadata["reads"] and given.get(setting.name):
                check_there(given[setting.name], setting.metadata["options"]["metavar"])

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
        for setting in fields(self):
            reads, given = setting.metadata["reads"], getattr(self, setting.name)
            if reads and given and Path(given).resolve().is_relative_to(folder):
                place = f"{flag_of(setting.name)} must not lie in the folder of the new run, {self.folder}"
                raise RequestError(f"{place}; received: {given}; {MEND}")
            if reads == "folder" and given and folder.is_relative_to(Path(given).resolve()):  # later it would be read
                place = f"the new run must not lie in {flag_of(setting.name)}, {given}"
                raise RequestError(f"{place}; received: {self.folder}; {MEND}")


def task_settings(task: str, kind: str, **defaults: Any) -> Callable[[SettingsClass], SettingsClass]:
    """Makes a class the settings of a task, with those arguments of its model that the data does not tell.

    Args:
        task: its name.
        kind: the kind of its model, a key of `model_spec.KINDS`.
        defaults: the task's. They win over those of `Settings` and of a preset.
    """

    def make(settings: Any) -> Any:
        inherited = {one.name: one for base in settings.__mro__[:0:-1] for one in _fields_of(base)}
        own = {name: value for name, value in vars(settings).items() if isinstance(value, Field)}
        known = {**inherited, **own}
        for name, option in model_spec.KINDS[kind].arguments.items():
            if name not in known and name not in TOLD_BY_DATA:
                known[name] = own[name] = _argument(option)
        for name, default in {"task": task, **defaults}.items():
            own[name] = field(default=default, metadata=known[name].metadata)
        for name, one in own.items():
            settings.__annotations__.setdefault(name, "Any")
            setattr(settings, name, one)
        settings.kind, settings.defaults = kind, defaults
        return dataclass(frozen=True)(settings)

    return make


def _fields_of(settings: Any) -> tuple[Field, ...]:
    return fields(settings) if hasattr(settings, "__dataclass_fields__") else ()


def own_data(settings: Any) -> dict[str, str]:
    """The settings that name the user's own data, and what that is."""
    return {one.name: one.metadata["own"] for one in fields(settings) if one.metadata["own"]}


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

    def settled(self) -> TextSettings:
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
