"""A run's folder: its paths, its config.json, its metrics, and its model; and runs that are written from Python, of a
model that train.py did not train.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import shlex
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.core import folders
from keras_transformer.core.errors import RequestError, command_line, warn
from keras_transformer.core.files import (
    DAMAGED,
    check_writable,
    checked_weights,
    number_of_the_machine,
    read_bounded,
    write_whole,
)
from keras_transformer.core.task_registry import TASKS, task_named, task_of
from keras_transformer.core.version import __version__
from keras_transformer.runs import run_config
from keras_transformer.runs.run_config import versions, writer
from keras_transformer.spec import model_spec
from keras_transformer.spec.custom_parts import import_flags
from keras_transformer.spec.options import Config

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.text.tokenizer import Tokenizer


MAX_METRICS_BYTES = 4 * 2**20  # 30,000 rounds


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


def write_config(run: RunFolder, config: Config) -> None:
    """Writes `config.json` in today's format."""
    run_config.write(run.config, config)


def read_config(run: str | os.PathLike[str] | RunFolder) -> Config:
    """Reads `config.json` of any folder, trusted or not. It accepts only known keys, bounded sizes, and data.

    Returns:
        The configuration in today's format, whatever version wrote it. The model's configuration is complete.

    Raises:
        RequestError: there is no run, its `config.json` is damaged or describes what no run has, or a newer version
            wrote it (the message names the version).
    """
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    return run_config.read(run.config)


def config_of_kind(run: RunFolder, kind: str) -> Config:
    """`read_config` of a run whose model is of a kind.

    Raises:
        RequestError: see `read_config`; or the model is of another kind.
    """
    config = read_config(run)
    if (received := config["model"]["kind"]) != kind:
        raise RequestError(
            f"{run.path}: expected a model of the kind {kind}; received {received}, which `{main_verb(config)}` takes"
        )
    return config


def main_verb(config: Config) -> str:
    """The command that takes a run with this configuration."""
    return TASKS[task_of(config)].main_command


def resume_command(run: RunFolder) -> str:
    """The command that goes on with a run. It imports the modules that register the run's parts."""
    imports = import_flags(read_config(run).get("modules", []) if run.is_run() else [])
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
        kind: the kind that is expected, a key of `family.KINDS`; None for any.

    Raises:
        RequestError: there is no run or no model yet, one of its files is damaged, or the model is of another kind.
    """
    from keras_transformer.models.model_factory import make_model

    run = run if isinstance(run, RunFolder) else RunFolder(run)
    config = read_config(run) if kind is None else config_of_kind(run, kind)
    with _weights_of(run, config["model"]) as weights:
        model = make_model(config["model"])
        model.license = config.get("license", "")
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


def _renamed(run: RunFolder, config: Config) -> str:
    """What to do with a model that is whole, and whose weights have other names than this version's."""
    again = f"{command_line('average')} {shlex.quote(str(run.path))} --last 1"
    mend = f"`{again}` makes it of the newest checkpoint" if run.has_checkpoint else "use that version"
    return (
        f"{run.model} is whole, but its weights have other names than in this version, {__version__}: version "
        f"{writer(config)} wrote it, in format {config['format']}; {mend}"
    )


def check_model(run: RunFolder) -> None:
    """Raises RequestError unless `model.keras` is there and whole. It makes no model."""
    with _weights_of(run, read_config(run)["model"]):
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


def num_parameters(config: Config) -> int:
    """The number of parameters of the model that a run's `config.json` describes.

    Runs that did not prepare their data do not tell the number. Then it is counted, which imports Keras.
    """
    if "parameters" in config:
        return int(config["parameters"])
    from keras_transformer.models.model_factory import count_parameters

    return count_parameters(config["model"])


@contextlib.contextmanager
def _weights_of(run: RunFolder, config: Config) -> Iterator[Path]:
    """The file of weights in `model.keras`, checked; errors are those of `reading_model`, the caller's too."""
    from keras_transformer.models.model_factory import count_parameters

    num_parameters, num_layers = count_parameters(config), sum(model_spec.depths(config))
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
        model: as `twin_of` makes it.
        sections: what config.json holds beside the sections that every run has.
        write_files: writes the other files into the folder.

    Raises:
        RequestError: see `check_place`.
    """
    from keras_transformer.models.model_factory import count_parameters, model_config

    config = model_config(model)
    corpus = {"name": path.resolve().name, **sections["corpus"]}
    usual = task_named(None, config["kind"], sections)  # what needs no word
    settings = {} if task == usual else {"task": task}
    rest = {"settings": settings, "versions": versions(), "parameters": count_parameters(config)}
    rest |= {"license": model.license} if model.license else {}
    with folders.whole_folder(path, lambda: _check_place(path, overwrite)) as aside:
        run = RunFolder(aside)
        write_config(run, {"model": config, **sections, "corpus": corpus, **rest})
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


def twin_of(model: FamilyModel) -> FamilyModel:
    """The model that `model`'s configuration describes, with its weights, in float32 and without an optimizer.

    It is the model itself if that is all of this, as an imported model is, so that none is in memory twice.

    Raises:
        RequestError: the configuration does not describe the whole model.
    """
    from keras_transformer.models.inspection import difference, parts_of
    from keras_transformer.models.model_factory import make_model, model_config

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
