"""Writes and restores checkpoints: plain arrays, with all that a run needs to go on as if it had never stopped.

They are written and read array by array, so that a large model and its optimizer are in memory once.
"""

from __future__ import annotations

import json
import math
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import keras
import numpy as np

from keras_transformer.core.errors import JobError, RequestError, warn
from keras_transformer.core.files import write_whole
from keras_transformer.core.schema import Mismatch, Schema, object_of, parse_json, whole
from keras_transformer.models.model_factory import make_model
from keras_transformer.runs.run_folder import (
    RunConfig,
    RunFolder,
    checkpoint_steps,
    read_config,
    save_model,
    write_config,
)
from keras_transformer.spec.options import Config
from keras_transformer.training.workers import num_workers

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel

MAX_PROGRESS_BYTES = 100_000
A_FLOAT = Schema("a number", lambda value: isinstance(value, float))  # perhaps infinite, as the best loss before any
# In each file. Version 0.1 wrote no format, and its order of weights had the final norms of both stacks last.
FORMAT, PROGRESS, METRICS = {"format": np.array(2)}, "progress", "metrics"


class DamagedFile(ValueError):
    """A checkpoint file is damaged, or belongs to another model."""


class OtherArrays(DamagedFile):
    """A checkpoint file is whole, and holds the arrays of another model, or of another version of this one."""


class Checkpoints:
    """Saves, restores, averages and removes the checkpoints of a run.

    `STEP.weights.npz` holds what averaging needs, and is kept for many steps. `STEP.state.npz` holds the rest, and is
    kept for the two newest checkpoints. A checkpoint is whole if both files are there; the state is written last.

    Args:
        folder: where the files are.
        keep: how many checkpoints' weights to keep: the newest, and those that end at the best step.
        every: steps between two regular checkpoints. A checkpoint at another step, where a run was stopped, serves to
            resume. It is not averaged, so that a stopped run ends with the same model as an unstopped one.
    """

    def __init__(self, folder: Path, keep: int = 1, every: int = 1):
        self.folder = folder
        self.keep = keep
        self.every = every

    def steps(self) -> list[int]:
        """Returns the steps that have weights, ascending."""
        return sorted(checkpoint_steps(self.folder, "weights"))

    def whole_steps(self) -> list[int]:
        """Returns the steps from which a run can be resumed, ascending."""
        return sorted(checkpoint_steps(self.folder, "state") & set(self.steps()))

    def to_average(self, end: int | None = None) -> list[int]:
        """Returns the steps to average, ascending: the last `keep` among the regular steps and the newest.

        Args:
            end: the last step to average; by default the newest.
        """
        steps = self.steps()
        regular = [step for step in steps if step % self.every == 0 or step in (end, steps[-1])]
        return [step for step in regular if end is None or step <= end][-self.keep :]

    def save(self, step: int, model: FamilyModel, progress: Mapping[str, float], best_step: int | None = None) -> None:
        """Writes a checkpoint of a compiled model, then removes the checkpoints that are no longer needed.

        Args:
            step: updates made so far.
            model: its weights, seeds, metrics and optimizer are written.
            progress: written as JSON: place in the data, best BLEU, patience.
            best_step: the step with the best score; the checkpoints that end there are kept for averaging.
        """
        self.folder.mkdir(exist_ok=True)
        _write_arrays(self._path(step, "weights"), _weights(model))
        state = {**_state_variables(model), PROGRESS: _json_array(progress)}
        _write_arrays(self._path(step, "state"), state)
        self._drop(best_step)

    def restore(self, model: FamilyModel, like: Mapping[str, float]) -> Config | None:
        """Restores the newest whole checkpoint into a compiled model.

        If a checkpoint is damaged, a warning names it, and the one before it is restored. Where a checkpoint has not
        this model's metrics, as that of several workers, they stay as they are.

        Args:
            model: built for training.
            like: a progress; the stored one must have its keys and types.

        Returns:
            The stored progress, or None if there is no checkpoint.

        Raises:
            JobError: no checkpoint is whole and of this model, though there are some.
        """
        errors: list[DamagedFile] = []
        steps, state = self.whole_steps(), {**_state_variables(model), PROGRESS: None}
        for step in reversed(steps):
            try:
                progress = _read_progress(self._path(step, "state"), like)
                for part, variables in (("weights", _weights(model)), ("state", state)):
                    for variable, array in _read_arrays(self._path(step, part), variables):
                        variable.assign(array)
                return progress
            except DamagedFile as error:  # an older one has all of these arrays too
                warn(f"{error}; looking for an older checkpoint")
                errors.append(error)
        if errors:
            raise JobError(self._none_fits(any(isinstance(error, OtherArrays) for error in errors)))
        return None

    def _none_fits(self, are_whole: bool) -> str:
        """Returns the error of a run none of whose checkpoints can be restored, with the ways out."""
        run = RunFolder(self.folder.parent)
        ways = ["go on with the version of keras-transformer that wrote them"] if are_whole else []
        if run.model.is_file():
            ways.append(f"begin another run with the weights of its model.keras, by --init-from {run.path}")
        what = "is of this model" if are_whole else "is whole"
        return f"no checkpoint in {self.folder} {what}: {', or '.join(ways) or 'start again with --overwrite'}"

    def mean(self, steps: Sequence[int], model: FamilyModel) -> Iterator[np.ndarray]:
        """Yields the mean of the weights at `steps`, in the order of the model's trainable variables.

        Raises:
            JobError: a checkpoint is damaged.
        """
        files = [_read_arrays(self._path(step, "weights"), _weights(model)) for step in steps]
        try:
            for same in zip(*files, strict=True):
                yield (sum(array.astype(np.float64) for _, array in same) / len(steps)).astype(np.float32)
        except DamagedFile as error:
            raise JobError(f"{error}; it cannot be averaged") from error

    def clear_leftovers(self) -> None:
        """Removes what a killed process has left unfinished. Only who has locked the run may do so."""
        for path in self.folder.glob(".*"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def _drop(self, best_step: int | None) -> None:
        steps = self.steps()
        wanted = set(self.to_average())
        if best_step is not None:
            wanted |= set(self.to_average(best_step))
        whole = set(self.whole_steps()[-2:])
        for step in steps:
            if step not in whole:
                self._path(step, "state").unlink(missing_ok=True)
            if step not in wanted | whole:
                self._path(step, "weights").unlink(missing_ok=True)

    def _path(self, step: int, part: str) -> Path:
        return self.folder / f"{step:08d}.{part}.npz"


def average(run: str | Path, last: int) -> list[int]:
    """Rewrites `model.keras` as the mean of the newest `last` checkpoints' weights; returns their steps.

    Raises:
        RequestError: there are fewer, or it is no run.
    """
    folder = RunFolder(run)
    config = read_config(folder)
    checkpoints = Checkpoints(folder.checkpoints)
    kept_steps = checkpoints.steps()
    if not 1 <= last <= len(kept_steps):
        raise RequestError(
            f"--last must be between 1 and the {len(kept_steps)} checkpoints kept in {folder.checkpoints}; "
            f"received: {last}"
        )
    steps = kept_steps[-last:]
    model = make_model(config.model)
    # The rest of the origin (at which step the run ended) stays true, but for what was measured on other weights.
    kept = {name: value for name, value in config.weights.items() if not name.startswith("val_")}
    origin = {**kept, "kind": "mean", "steps": steps}
    set_weights(model, checkpoints.mean(steps, model))
    write_model(folder, config, model, origin)
    return steps


@contextmanager
def unchanged(model: FamilyModel) -> Iterator[None]:
    """Puts back what training changes within: weights, seeds, optimizer and metrics of a compiled model."""
    variables = [*model.trainable_variables, *_state_variables(model).values()]
    values = [np.array(variable) for variable in variables]
    yield
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def present_weights(model: FamilyModel) -> Iterator[np.ndarray]:
    """Yields the weights to validate with: their moving average if the optimizer keeps one."""
    optimizer: Any = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    variables = optimizer._model_variables_moving_average if optimizer.use_ema else model.trainable_variables
    return map(np.asarray, variables)


def set_weights(model: FamilyModel, weights: Iterable[np.ndarray]) -> None:
    """Puts weights into the model's trainable variables, in their order."""
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)


def write_model(run: RunFolder, config: RunConfig, model: FamilyModel, origin: Config) -> None:
    """Writes `model.keras`, and the origin of its weights to `config.json`."""
    save_model(run, model)
    write_config(run, replace(config, weights=origin))


def _weights(model: FamilyModel) -> dict[str, keras.Variable]:
    """Returns the trainable weights by name. The names depend on the configuration of the model alone."""
    return {f"{i:04d}-{v.name}": v for i, v in enumerate(model.trainable_variables)}


def _state_variables(model: FamilyModel) -> dict[str, keras.Variable]:
    """Returns all else that training changes: dropout seeds, optimizer (with its moving average), metrics.

    With several workers the metrics are left out: each worker has counted a part, and the chief saves alone. The counts
    matter only within a round.
    """
    groups = {"seeds": model.non_trainable_variables, "optimizer": model.optimizer.variables}
    if num_workers() == 1:
        groups[METRICS] = model.metrics_variables
    return {f"{group}-{i:04d}": v for group, variables in groups.items() for i, v in enumerate(variables)}


def _json_array(value: Mapping[str, float]) -> np.ndarray:
    return np.frombuffer(json.dumps(dict(value)).encode(), np.uint8)


def _write_arrays(path: Path, variables: Mapping[str, keras.Variable | np.ndarray]) -> None:
    try:
        with write_whole(path) as aside, zipfile.ZipFile(aside, "w") as file:
            for name, variable in {**variables, **FORMAT}.items():
                with file.open(f"{name}.npy", "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, np.asarray(variable), (1, 0), allow_pickle=False)
    except OSError as error:
        raise JobError(
            f"cannot write {path} ({error.strerror or error}); the checkpoints before it are intact"
        ) from error


def _read_arrays(
    path: Path, variables: Mapping[str, keras.Variable | None]
) -> Iterator[tuple[keras.Variable, np.ndarray]]:
    """Yields each variable with the array of its name; skips variables that are None. Nothing else is in the file.

    Metrics are left out unless the file has all of them, and no others.

    Raises:
        DamagedFile: the file holds anything else.
        RequestError: another version wrote the file, in another format.
    """
    with _opened(path) as file:
        differing = {name.removesuffix(".npy") for name in file.namelist()} ^ {*variables, *FORMAT}
        if others := sorted(name for name in differing if not name.startswith(METRICS)):
            raise OtherArrays(
                f"{path} is of another model, or of another version of keras-transformer: {others[0]!r:.60} is "
                "the first array that only one of both has"
            )
        for name, variable in variables.items():
            if variable is not None and not (differing and name.startswith(METRICS)):
                yield variable, _read_array(file, name, variable)


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Opens a file of a checkpoint. Whatever fails within is raised as damage of the file."""
    if path.is_symlink():
        raise DamagedFile(f"{path} is a link, perhaps out of the run's folder")
    try:
        with zipfile.ZipFile(path) as file:
            if (number := _read_array(file, "format", FORMAT["format"])) != FORMAT["format"]:
                raise RequestError(
                    f"{path} has the format {number} of another version of keras-transformer: install that one"
                )
            yield file
    except DamagedFile as error:
        raise type(error)(f"{path}: {error}" if str(path) not in str(error) else str(error)) from error
    except (RequestError, MemoryError):
        raise
    except Exception as error:  # for damaged bytes zipfile, its decompressors and NumPy raise unrelated classes
        raise DamagedFile(f"{path} is damaged ({' '.join(str(error).split()) or type(error).__name__})") from error


def _read_progress(path: Path, like: Mapping[str, float]) -> Config:
    with _opened(path) as file:
        data = _read_array(file, PROGRESS, None)
    try:
        kinds = {name: whole(0) if type(value) is int else A_FLOAT for name, value in like.items()}
        progress: Config = parse_json(data.tobytes(), object_of(kinds), has_constants=True)
        return progress
    except Mismatch as error:
        raise OtherArrays(f"{path} is damaged, or another version's (its progress: {error})") from error
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged (its progress: {error})") from error


def _read_array(file: zipfile.ZipFile, name: str, like: keras.Variable | np.ndarray | None) -> np.ndarray:
    """Reads an array of the shape and type of `like`; without it, bytes."""
    entry = file.getinfo(f"{name}.npy")
    with file.open(entry) as stream:
        shape, dtype = _read_header(stream)
        if like is None and dtype != np.uint8:
            raise DamagedFile(f"expected {name} as bytes; it has {dtype}")
        if like is not None:
            expected = tuple(like.shape), np.dtype(keras.backend.standardize_dtype(like.dtype))
            if (shape, dtype) != expected:
                raise OtherArrays(f"expected {name} of shape {expected[0]}, {expected[1]}; it has {shape}, {dtype}")
        if entry.file_size > (MAX_PROGRESS_BYTES if like is None else math.prod(shape) * dtype.itemsize + 1024):
            raise DamagedFile(f"{name} is larger than it can be")
        data = stream.read()  # to its end, where the checksum is compared
    return np.frombuffer(data, dtype).reshape(shape)


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    if np.lib.format.read_magic(stream) != (1, 0):
        raise DamagedFile("expected version 1.0 of NumPy's format")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    if fortran_order and len(shape) > 1:
        raise DamagedFile("expected rows first")
    return shape, dtype
