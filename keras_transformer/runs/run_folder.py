"""A run's folder: its config.json, its paths, its metrics and its model, and how a run is written.

Folders may be a stranger's, or another version's: what is read is checked first.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import platform
import re
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from keras_transformer.core import folders, schema
from keras_transformer.core.errors import RequestError, command_line, warn
from keras_transformer.core.files import (
    DAMAGED,
    check_writable,
    checked_weights,
    number_of_the_machine,
    read_bounded,
    write_text,
    write_whole,
)
from keras_transformer.core.schema import line, list_of, object_of, one_of, or_null, text, whole
from keras_transformer.core.task_registry import TASKS, task_named
from keras_transformer.core.version import __version__
from keras_transformer.runs.export_folder import PAGE, ExportFolder, metadata_of
from keras_transformer.spec import model_spec, options
from keras_transformer.spec.custom_parts import FLAG, NAME, import_flags, modules_of
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import OWN_SEARCH, own_search

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.text.tokenizer import Tokenizer

# It rises with any change of what a run's folder stores, as of a weight's name in model.keras: see "Change what a run
# stores" in docs/CONTRIBUTING.md. What was before version 0.2 wrote format 1. Under "settings", format 2 has the
# arguments of the model too, which "model" tells; format 3 has each once.
FORMAT = 3
OLDEST_FORMAT = 2  # that is read
MAX_CONFIG_BYTES = 1_000_000
MAX_LICENSE, MAX_LABEL, MAX_TAG = 200, 300, 40  # characters
MAX_COUNT = 10**15
COUNT, TAG, TEXT, SHORT = or_null(whole(0, MAX_COUNT)), line(MAX_TAG, 1), or_null(str), or_null(line(MAX_LABEL))
LABELS, STEPS = list_of(line(MAX_LABEL)), or_null(list_of(whole(0, MAX_COUNT)))
VERSIONS = object_of({}, others=SHORT)
HEAD = object_of({"format": whole(told=f"a format up to {FORMAT}")}, {"versions": VERSIONS}, others=object)
LANGUAGES = {"source_language": SHORT, "target_language": SHORT}
# Null is allowed everywhere, and a key of a section that is not here is a later version's.
CORPUS = object_of({}, {"name": TEXT, "identity": TEXT, "sentences_per_line": COUNT, **LANGUAGES}, others=object)
OF_CONFIG: dict[str, schema.Allowed] = {
    "license": line(MAX_LICENSE),
    "labels": LABELS,
    "answer_length": whole(1),
    "search": OWN_SEARCH,
    "language_tags": object_of({}, others=TAG, names=TAG),
    "corpus": CORPUS,
    "versions": dict,
    "weights": object_of({}, {"kind": TEXT, "at_step": COUNT, "asked_steps": COUNT, "steps": STEPS}, others=object),
    "parameters": whole(1, MAX_COUNT, told="a positive integer"),
    "modules": list_of(text(NAME, "the name of a module")),
}


TOLD_BY_GRAPHS = ("labels", "answer_length")  # keys of config.json that the metadata of a graph has too
SIZES = ("vocabulary_size", "num_control_ids", "context_length", "image_size", "channels", "hidden_dim", "num_labels")
OF_GRAPH = object_of({"kind": one_of(model_spec.KINDS)}, dict.fromkeys(SIZES, COUNT), others=object)
MAX_METRICS_BYTES = 4 * 2**20  # 30,000 rounds


# A value of JSON.
Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


class CorpusFacts(TypedDict, total=False):
    """What config.json says of the text that a run learned from."""

    name: str | None
    identity: str | None
    source_language: str | None
    target_language: str | None
    sentences_per_line: int | None
    changed_targets: float


@dataclass
class RunConfig:
    """What a run's config.json says.

    Args:
        model: the kind of the model and its arguments, complete.
        settings: the settings of training by their names; empty for a run that was imported or saved from Python. The
            file leaves out those that are arguments of the model.
        corpus: the text that it learned from.
        versions: of the packages that wrote it.
        search: the model's own search.
        license: the license of the model.
        language_tags: the tags of a model between many languages, by language.
        labels: the labels of a classifier, in the order of the model's.
        answer_length: the most tokens of an answer, for a language model that learned from pairs.
        parameters: how many the model has.
        weights: which weights `model.keras` holds, and what validation measured on them; empty until there is a model.
        modules: the modules that register the parts of the model.
    """

    model: Config
    settings: dict[str, Json]
    corpus: CorpusFacts = field(default_factory=CorpusFacts)
    versions: Mapping[str, str | None] = field(default_factory=dict)
    search: Config = field(default_factory=dict)
    license: str = ""
    language_tags: dict[str, str] = field(default_factory=dict)
    labels: list[str] | None = None
    answer_length: int | None = None
    parameters: int | None = None
    weights: dict[str, Json] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)

    @property
    def sections(self) -> Config:
        """What the file holds, by the names of its keys, the format first; what is not known is left out."""
        of_model = self.model.keys() - {"vocabulary_size"}  # fewer tokens may be learned than the setting asks for
        settings = {name: value for name, value in self.settings.items() if name not in of_model}
        there = {"format": FORMAT, **vars(self), "settings": settings}
        may_be_empty = {"settings", *(["labels"] if self.labels is not None else [])}
        return {name: value for name, value in there.items() if value not in (None, "", {}, []) or name in may_be_empty}

    @property
    def kind(self) -> str:
        """The kind of the model, a key of `model_spec.KINDS`."""
        return str(self.model["kind"])

    @property
    def task(self) -> str:
        """The name of the task.

        Raises:
            RequestError: nothing that was imported defines the task.
        """
        return task_named(self.settings.get("task"), self.kind, self.sections)

    @property
    def main_command(self) -> str:
        """The command that takes such a run."""
        return TASKS[self.task].main_command

    @property
    def writer(self) -> str:
        """The version of this package that wrote the file."""
        return _writer(self.versions)

    @property
    def steps(self) -> int | None:
        """The steps that the run was asked for; None for a run that was not trained here."""
        steps = self.settings.get("steps")
        return steps if isinstance(steps, int) else None

    def is_finished(self, steps: int) -> bool:
        """Whether the run has come to its end: at this number of steps, or stopped early."""
        at_step = self.weights.get("at_step")
        return steps == self.weights.get("asked_steps") or (isinstance(at_step, int) and at_step >= steps)

    def unfinished(self) -> str:
        """The steps of a run that has not come to its end, such as "29 of 3,000 steps"; "" if it has, or was not
        trained here."""
        if self.steps is None or self.is_finished(self.steps):
            return ""
        made = self.weights.get("steps")
        last = max((step for step in made if isinstance(step, int)), default=0) if isinstance(made, list) else 0
        return f"{last:,} of {self.steps:,} steps"

    def num_parameters(self) -> int:
        """Returns the number of parameters of the model. If the file does not tell it, this imports Keras."""
        if self.parameters is not None:
            return self.parameters
        from keras_transformer.models.model_factory import count_parameters

        return count_parameters(self.model)


class Unreadable(Exception):
    """The file is whole, and this process cannot read it: a later version wrote it, or it needs a module."""


def write_config(run: RunFolder, config: RunConfig) -> None:
    """Writes config.json in today's format. It names this version as the writer.

    Raises:
        RequestError: see `require_readable`.
    """
    require_readable(config.labels, config.corpus)
    changed: Config = {"versions": {**config.versions, "keras-transformer": __version__}}
    if modules := modules_of(config.model):
        changed["modules"] = modules
    write_text(run.config, as_json(config.sections | changed, indent=2) + "\n")


def as_json(value: Any, **layout: Any) -> str:
    """Returns JSON with all characters as they are, but those that are not printable, such as lone surrogates."""
    return "\n".join(map(schema.printable, json.dumps(value, ensure_ascii=False, **layout).split("\n")))


def read_config(run: str | os.PathLike[str] | RunFolder) -> RunConfig:
    """Reads config.json of any folder, trusted or not. It accepts only known keys, bounded sizes, and data.

    Raises:
        RequestError: there is no run, its config.json is damaged or describes what no run has, or a newer version
            wrote it (the message names the version).
    """
    path = _run_folder(run).config
    if not path.is_file():
        raise RequestError(_no_run_message(path))
    try:
        found = schema.read_json(path, HEAD, MAX_CONFIG_BYTES, has_constants=True)
        _check_sections(found)
        config = RunConfig(**{name: value for name, value in found.items() if name != "format"})
        config.model = _complete(config)
        if config.answer_length is not None:
            _check_answer_length(config.answer_length, config)
        if config.search:
            config.search = own_search(config.search)
        return config
    except Unreadable as error:
        raise RequestError(f"{path} {error}") from error
    except ValueError as error:
        raise RequestError(f"{path} is damaged or not a run's: {error}") from error


def config_of_graph(graph: Path) -> RunConfig:
    """Reads what an exported ONNX graph says of its model, as far as config.json would say it.

    Raises:
        RequestError: the file is damaged, or none that an export has.
    """
    told = metadata_of(graph)
    try:
        read = {name: schema.parse_json(told[name], object) for name in ("model", *TOLD_BY_GRAPHS) if name in told}
        of_license = {"license": told["license"]} if "license" in told else {}
        settings = {"task": told["task"]} if "task" in told else {}
        found = {"format": FORMAT, "settings": settings, **of_license, **read}
        _check_sections(found)
        config = RunConfig(**{name: value for name, value in found.items() if name != "format"})
        OF_GRAPH.checked(config.model, "model")  # parts that nobody registered here are inside the graph
        if config.answer_length is not None:
            _check_answer_length(config.answer_length, config)
        return config
    except Unreadable as error:
        raise RequestError(f"{graph} {error}") from error
    except ValueError as error:
        raise RequestError(f"{graph} is not a graph that an export has: {error}") from error


def config_of(folder: str | os.PathLike[str]) -> RunConfig:
    """Reads what a run or an export says of its model; raises as `read_config` and `config_of_graph` do."""
    export = ExportFolder(folder)
    return config_of_graph(export.graphs().main) if export.is_export() else read_config(folder)


def _run_folder(run: str | os.PathLike[str] | RunFolder) -> RunFolder:
    return run if isinstance(run, RunFolder) else RunFolder(run)


def _no_run_message(path: Path) -> str:
    """Says that there is no config.json, and what to give instead."""
    inside = sorted(str(model.parent) for model in islice(path.parent.glob("*/model.keras"), 8))
    if ExportFolder(path.parent).is_export():
        mend = f"it is an export: give the run that was exported; {PAGE} says what runs an export without its run"
    elif inside:
        mend = f"give a run in it, such as {', '.join(inside)}"
    else:
        mend = f"check the path, or train one with `{command_line('train')}`"
    return f"expected a run folder, with a config.json; found none in {str(path.parent)!r}: {mend}"


def _complete(config: RunConfig) -> Config:
    """Returns the model's kind and its arguments, complete."""
    model = dict(config.model)
    kind = model.pop("kind", model_spec.DEFAULT_KIND)
    try:
        if kind in list(model_spec.KINDS):  # a list, because an unhashable kind cannot be looked up in a dictionary
            return {"kind": kind, **model_spec.complete(model, kind)}
        unknown = f"expected a model of the kinds {', '.join(model_spec.KINDS)}; received {kind!r:.40}"
    except options.Unknown as error:
        unknown = str(error)
    if _is_newer(config.writer):
        raise Unreadable(_newer_version_message(config.writer, unknown))
    if config.modules:
        raise Unreadable(_modules_message(config.modules, unknown))
    raise ValueError(unknown)


def _check_sections(found: Config) -> None:
    """Raises ValueError if the content of config.json is damaged, Unreadable if a later version wrote it."""
    writer = _writer(found.get("versions", {}))
    if 1 <= found["format"] < OLDEST_FORMAT:
        old = f"has the format {found['format']} of version {writer!s:.20} of keras-transformer"
        raise Unreadable(f"{old}, which this version, {__version__}, no longer reads: use that version")
    if found["format"] > FORMAT:
        raise Unreadable(_newer_version_message(writer, f"format {schema.shown(found['format'])}"))
    of_model = {"kind"}.union(*(kind.arguments for kind in model_spec.KINDS.values()))
    required: dict[str, schema.Allowed] = {
        "format": whole(OLDEST_FORMAT, told=f"a format from {OLDEST_FORMAT} to {FORMAT}"),
        "model": object_of({}, dict.fromkeys(of_model, object)),
        "settings": object_of({}, {"steps": or_null(whole(1, MAX_COUNT))}, others=object),
    }
    try:
        object_of(required, OF_CONFIG).checked(found)
    except schema.Mismatch as error:
        if _is_newer(writer):
            raise Unreadable(_newer_version_message(writer, str(error))) from None
        raise
    check_labels(found.get("labels", []))


def check_labels(labels: list[str]) -> None:
    """Raises ValueError unless each label is there once, and can be printed in a line."""
    LABELS.checked(labels, "labels")
    if len(set(labels)) < len(labels):
        raise ValueError("expected each label once under 'labels'")


def require_readable(labels: list[str] | None, corpus: CorpusFacts) -> None:
    """Raises RequestError for labels and languages that `read_config` refuses."""
    try:
        check_labels(labels or [])
        CORPUS.checked(corpus, "corpus")
    except ValueError as error:
        raise RequestError(f"{error}: choose another name") from None


def _check_answer_length(length: int, config: RunConfig) -> None:
    """Raises ValueError unless the context of a language model holds such answers, a token and the separator."""
    if not model_spec.KINDS[config.kind].can_answer:
        raise ValueError(f"expected 'answer_length' of a language model alone; received it of a {config.kind}")
    most = config.model["context_length"] - 2
    whole(1, most).checked(length, "answer_length")


def _modules_message(modules: list[str], unknown: str) -> str:
    missing = [name for name in modules if name not in sys.modules]
    if not missing:
        return f"has parts that {', '.join(modules)} no longer registers as the run has them: {unknown}"
    flags = " ".join(f"{FLAG} {name}" for name in missing)
    return (
        f"has parts of modules that are not imported: import them before, or give {flags:.200} to the command, if you "
        f"trust their code ({unknown})"
    )


def _newer_version_message(writer: str, unknown: str) -> str:
    return (
        f"was written by version {writer!s:.20} of keras-transformer, which this version, {__version__}, cannot read: "
        f"install that version ({unknown})"
    )


def _writer(versions: Mapping[str, str | None]) -> str:
    return versions.get("keras-transformer") or "unknown"


def _is_newer(version: str) -> bool:
    """Whether a version comes after this one."""

    def numbers(text: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d{1,9}", text)[:3]]

    return numbers(version) > numbers(__version__)


def versions() -> dict[str, str]:
    """The installed versions of Python, of this package, and of the packages that it depends on."""
    import importlib.metadata  # late: it takes 10 ms, and only training asks for versions

    back_end = os.environ.get("KERAS_BACKEND") or "tensorflow"
    packages = (back_end, "keras", "numpy", "sentencepiece", "sacrebleu")
    found = {"python": platform.python_version(), "keras-transformer": __version__}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except ImportError:
            continue
    return found


class RunFolder:
    """The paths in a run's folder. Not all of them need exist."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = folders.found(path)
        self.config = self.path / "config.json"
        self.model = self.path / "model.keras"
        self.checkpoints = self.path / "checkpoints"
        self.cache = self.path / "cache"
        self.valid_source = self.path / "validation.source"
        self.valid_target = self.path / "validation.target"
        self.valid_text = self.path / "validation.text"
        self.joint_tokenizer = self.path / "tokenizer.model"
        self.foreign_tokenizer = self.path / "tokenizer.json"
        self.items = self.path / "items.txt"
        self.valid_images = self.path / "validation.npz"
        self.cleaning = self.path / "cleaning.json"
        self.cleaning_more = self.path / "cleaning-more.json"
        self.metrics = self.path / "metrics.csv"
        self.curves = self.path / "curves.png"
        self.samples = self.path / "samples.txt"
        self.tensorboard = self.path / "tensorboard"

    def parts(self) -> list[str]:
        """The names of all that a run may have, config.json first. What else lies in its folder is not the run's."""
        paths = {*vars(self).values(), *self.tokenizers(True)} - {self.path, self.config}
        return [self.config.name, *sorted(path.name for path in paths)]

    def tokenizers(self, separate: bool) -> tuple[Path, Path]:
        """The paths of the source's and the target's tokenizer. They are equal unless the vocabularies are separate.

        A joint one may be a tokenizer of Hugging Face's: then its file is there.
        """
        if separate:
            return self.path / "tokenizer.source.model", self.path / "tokenizer.target.model"
        joint = self.foreign_tokenizer if self.foreign_tokenizer.is_file() else self.joint_tokenizer
        return joint, joint

    @property
    def has_two_tokenizers(self) -> bool:
        """Whether source and target have a file each: their vocabularies differ, or how their text is normalised."""
        return self.tokenizers(separate=True)[0].is_file()

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run can go on: there is a checkpoint with weights and state."""
        return bool(checkpoint_steps(self.checkpoints, "weights") & checkpoint_steps(self.checkpoints, "state"))

    def is_run(self) -> bool:
        """Whether the folder holds a run, finished or not."""
        return self.config.is_file()


def checkpoint_steps(folder: Path, part: str) -> set[int]:
    """The steps of the checkpoints that have a part, "weights" or "state"; see `training.checkpoints`."""
    names = (re.fullmatch(rf"(\d+)\.{part}\.npz", path.name) for path in folder.glob(f"*.{part}.npz"))
    return {int(name[1]) for name in names if name}


def config_of_kind(run: RunFolder, kind: str) -> RunConfig:
    """Reads config.json of a run whose model must be of a kind.

    Raises:
        RequestError: see `read_config`; or the model is of another kind.
    """
    return require_kind(read_config(run), kind, run.path)


def require_kind(config: RunConfig, kind: str, path: Path) -> RunConfig:
    """Returns the configuration. Raises RequestError unless its model, that of a path, is of a kind."""
    if config.kind != kind:
        raise RequestError(
            f"{path}: expected a model of the kind {kind}; received {config.kind}, which `{config.main_command}` takes"
        )
    return config


def resume_command(run: RunFolder) -> str:
    """Returns the command that goes on with a run. It imports the modules that register the run's parts."""
    imports = import_flags(read_config(run).modules if run.is_run() else [])
    return f"{command_line('train')} --resume --out {shlex.quote(str(run.path))}{imports}"


def read_metrics(run: RunFolder) -> list[dict[str, str]]:
    """The rows of metrics.csv as text; none if the file is missing. A warning names a line that cannot be read.

    Raises:
        RequestError: the file is larger than `MAX_METRICS_BYTES`.
    """
    if not run.metrics.is_file():
        return []
    rows, faults = [], []
    text = read_bounded(run.metrics, MAX_METRICS_BYTES).decode("utf-8", "replace")
    reader = csv.reader(io.StringIO(text, newline=""))
    while True:
        try:
            rows.append(next(reader))
        except StopIteration:
            break
        except csv.Error as error:
            faults.append(f"line {reader.line_num} is left out ({error})")
    if faults:
        warn(f"{run.metrics}: {faults[0]}{f', and {len(faults) - 1:,} more' if faults[1:] else ''}")
    names, *values = [row for row in rows if row] or [[]]
    return [{name: value for name, value in zip(names, row, strict=False) if name} for row in values]


def save_model(run: RunFolder, model: Transformer) -> None:
    """Writes `model.keras`, whole or not at all.

    Keras alone would gather the archive in memory, so it writes a folder beside, from which the archive is made.
    """
    beside = tempfile.TemporaryDirectory(dir=run.path, prefix=".", suffix=f"-{run.model.name}")
    with write_whole(run.model) as aside, beside as folder:
        written = Path(folder) / "parts"  # Keras refuses the name of an archive
        model.save(written, zipped=False)
        with zipfile.ZipFile(aside, "w") as archive:
            for path in sorted(filter(Path.is_file, written.iterdir())):
                archive.write(path, path.name)


def load_model(run: str | os.PathLike[str] | RunFolder, kind: str | None = None) -> FamilyModel:
    """Makes the run's model in float32 from `config.json`, and loads the weights in `model.keras`.

    It does not read the configuration in `model.keras`. From an untrusted file it reads only arrays whose names and
    shapes this model has.

    Args:
        run: the folder.
        kind: the kind that is expected, a key of `model_spec.KINDS`; None for any.

    Raises:
        RequestError: there is no run or no model yet, one of its files is damaged, or the model is of another kind.
    """
    from keras_transformer.models.model_factory import make_model

    run = _run_folder(run)
    config = read_config(run) if kind is None else config_of_kind(run, kind)
    with _weights_of(run, config) as weights:
        model = make_model(config.model)
        model.license = config.license
        try:
            model.load_weights(weights)
        except DAMAGED as error:
            if _shapes_in(weights) != sorted(tuple(weight.shape) for weight in model.weights):
                raise
            raise RequestError(_renamed(run, config)) from error
        return model


def _shapes_in(weights: Path) -> list[tuple[int, ...]]:
    """The shapes of the weights in a file of Keras's, sorted; the seeds, which are integers, are left out."""
    import h5py

    with h5py.File(weights, "r") as file:
        names: list[str] = []
        file.visit(names.append)
        arrays = [file[name] for name in names if isinstance(file[name], h5py.Dataset)]
        return sorted(array.shape for array in arrays if array.dtype.kind == "f")


def _renamed(run: RunFolder, config: RunConfig) -> str:
    """What to do with a model that is whole, and whose weights have other names than this version's."""
    again = f"{command_line('average')} {shlex.quote(str(run.path))} --last 1"
    mend = f"`{again}` makes it of the newest checkpoint" if run.has_checkpoint else "use that version"
    return (
        f"{run.model} is whole, but its weights have other names than in this version, {__version__}: version "
        f"{config.writer} wrote it; {mend}"
    )


def check_model(run: RunFolder, config: RunConfig) -> None:
    """Raises RequestError unless `model.keras` is there and whole. It makes no model."""
    with _weights_of(run, config):
        pass


@contextlib.contextmanager
def reading_model(run: RunFolder) -> Iterator[None]:
    """Within, `model.keras` is read.

    Raises:
        RequestError: there is none, or it is damaged.
        OSError: the machine failed: a full disk, a file that may not be read.
    """
    if not run.model.is_file():
        raise RequestError(
            f"expected a trained model; {run.path} has no model.keras yet: finish its training with "
            f"`{resume_command(run)}`"
        )
    try:
        yield
    except RequestError:
        raise
    except DAMAGED as error:
        if (number := number_of_the_machine(error)) is not None:
            reason = f"{os.strerror(number)}, while its weights were copied to {tempfile.gettempdir()}"
            raise OSError(number, reason, str(run.model)) from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise RequestError(f"{run.model} is damaged or not this run's: {reason}") from error


@contextlib.contextmanager
def _weights_of(run: RunFolder, config: RunConfig) -> Iterator[Path]:
    """Yields the checked file of weights in `model.keras`; errors are those of `reading_model`, the caller's too."""
    from keras_transformer.models.model_factory import count_parameters

    num_parameters, num_layers = count_parameters(config.model), sum(model_spec.depths(config.model))
    with reading_model(run), checked_weights(run.model, num_parameters, num_layers) as weights:
        yield weights


def read_tokenizers(folder: RunFolder, source_size: int | None, target_size: int) -> tuple[Tokenizer, Tokenizer]:
    """The vocabularies of source and target; `source_size` is None if both have the same pieces.

    Raises:
        RequestError: a file is missing, damaged, or not of this size.
    """
    from keras_transformer.text.huggingface_tokenizer import load_tokenizer

    paths = folder.tokenizers(separate=source_size is not None or folder.has_two_tokenizers)
    source = load_tokenizer(paths[0])
    target = source if paths[0] == paths[1] else load_tokenizer(paths[1])
    sizes = (source_size or target_size, target_size)
    for tokenizer, path, size in zip((source, target), paths, sizes, strict=True):
        if tokenizer.vocabulary_size != size:
            raise RequestError(
                f"{path} has {tokenizer.vocabulary_size} pieces, but the model of {folder.path} has {size}: "
                "one of them is another run's; copy the run folder anew"
            )
    return source, target


def write_run(
    path: Path,
    overwrite: bool,
    task: str,
    model: FamilyModel,
    sections: Config,
    write_files: Callable[[RunFolder], None],
) -> None:
    """Writes a run folder, whole or not at all.

    Args:
        path: the folder.
        overwrite: whether to replace a run that is there.
        task: the task of the model, a key of `tasks.TASKS`.
        model: as `float32_copy` makes it.
        sections: what config.json holds beside the sections that every run has.
        write_files: writes the other files into the folder.

    Raises:
        RequestError: see `check_place`.
    """
    from keras_transformer.models.model_factory import count_parameters, model_config

    described = model_config(model)
    usual = task_named(None, described["kind"], sections)  # what needs no word
    config = RunConfig(
        described,
        settings={} if task == usual else {"task": task},
        versions=versions(),
        parameters=count_parameters(described),
        license=model.license,
        **{**sections, "corpus": {"name": path.resolve().name, **sections["corpus"]}},
    )
    with folders.whole_folder(path, lambda: _check_place(path, overwrite)) as aside:
        run = RunFolder(aside)
        write_config(run, config)
        write_files(run)
        save_model(run, model)


def check_place(path: Path, overwrite: bool) -> None:
    """Raises RequestError unless a run may be written there.

    The folder is new or empty, or holds a run that may be replaced and nothing else. No other process writes there.
    """
    with folders.locked(folders.found(path)):
        _check_place(path, overwrite)


def _check_place(path: Path, overwrite: bool) -> None:
    run = RunFolder(path)
    if overwrite:
        restore_replaced(run)
    entries = folders.contents(path, run.parts())
    is_free = not entries and (path.is_dir() or not path.exists())
    if not is_free and not (overwrite and run.is_run()):
        raise RequestError(
            f"expected a new or empty folder, or a run and `overwrite=True` (--overwrite); {path} holds something"
        )
    if path.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise RequestError(f"expected a folder that can be replaced; received {path}, in which this process works")
    if strangers := sorted(entries - {*run.parts()}):
        raise RequestError(
            f"expected a run and nothing else; {path} holds {strangers[0]}: move it away, or choose another folder"
        )
    for written in (path, path.resolve().parent):  # beside the old run, before the new one replaces it
        check_writable(written)


def restore_replaced(run: RunFolder) -> bool:
    """Brings back the run that training set aside, unless a checkpoint has replaced it; returns whether it came back.

    The caller has the folder's lock.
    """
    if (run.path / folders.REPLACED).is_dir() and run.has_checkpoint:
        folders.drop_replaced(run.path)
        return False
    return folders.bring_back(run.path, run.parts())


def float32_copy(model: FamilyModel) -> FamilyModel:
    """Returns a copy of the model in float32, without an optimizer.

    Returns the model itself if it is already float32 and uncompiled, so that no weights are in memory twice.

    Raises:
        RequestError: the configuration does not describe the whole model.
    """
    from keras_transformer.models.model_factory import difference, make_model, model_config, parts_of

    if (found := difference(model)) is not None:
        raise RequestError(
            f"expected a model that its configuration describes, with {found.expected} at {found.path}; received "
            f"{found.received} there: register the part by `keras_transformer.register_part`, and make the model with "
            "its name"
        )
    parts = [part for _, part in parts_of(model, "model")]
    if getattr(model, "optimizer", None) is None and all(
        part.trainable and part.dtype_policy.name == "float32" for part in parts
    ):
        return model
    twin = make_model(model_config(model))
    twin.license = model.license
    twin.set_weights(model.get_weights())
    return twin
