"""Trains a run from its flags to `model.keras`, in the order of the parts."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.core import folders
from keras_transformer.core.errors import RequestError, Stopped
from keras_transformer.runs.run_folder import restore_replaced, resume_command, write_config
from keras_transformer.spec.options import Config, flag_of
from keras_transformer.training import devices
from keras_transformer.training.common_settings import MEND, Settings
from keras_transformer.training.preparation import clean
from keras_transformer.training.request import OF_MACHINE, check_folder, open_run
from keras_transformer.training.task import Run

if TYPE_CHECKING:
    from keras_transformer.training.devices import Strategy


def train(given: Config) -> None:
    """Trains a run, or goes on with one.

    Args:
        given: flags by the names of their settings (`common_settings.Settings`); None for a flag that was not given.

    Raises:
        RequestError: the request is wrong; nothing was written.
        JobError: training failed, or another worker was lost or did not come (`workers.WorkerLost`); the checkpoints
            are intact.
        Stopped: a signal came; the message says how the run goes on, or that nothing of it is left.
    """
    devices.keep_programs()
    run = open_run(given)
    if run is None:
        return
    with devices.started(run.settings, shared_facts(run)) as strategy:
        _train(run, strategy)


def shared_facts(run: Run[Settings]) -> dict[str, str]:
    """Returns what all workers must have the same, by names for people.

    The paths of what they read may differ, and so may the names of their devices.
    """
    own = {*OF_MACHINE, *(name for name, flag in run.settings.flags.items() if flag.reads)}
    settings = {flag_of(name): str(value) for name, value in run.settings.as_dict().items() if name not in own}
    return {**settings, "--resume": str(run.is_resumed), "text with SHA-256": str(run.corpus.identity)}


@contextlib.contextmanager
def run_directory(run: Run[Settings]) -> Iterator[Path]:
    """Makes and locks the run folder, and yields the folder for this worker's tokenised text.

    A run that --overwrite replaces lies aside until the first checkpoint of the new one. If the new run fails before,
    the old one comes back. A new run that is refused (a RequestError) or stopped before its first checkpoint leaves
    nothing behind, and so does one of which --hours has not yet set the steps.

    Raises:
        RequestError: another process writes in the folder, or a run has appeared there since the run was asked for. Of
            several workers the chief alone looks.
    """
    if not run.is_chief:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    path = run.folder.path
    existed = path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        with folders.locked(path, MEND):
            check_folder(run.folder, run.is_resumed, run.settings.overwrite)
            with _undo_on_error(run):
                if run.folder.is_run() and not run.is_resumed:
                    folders.set_aside(path, run.folder.parts())
                write_config(run.folder, run.config)
                yield run.folder.cache
    finally:
        if not existed:
            with contextlib.suppress(OSError):  # it holds the run, or somebody else's file
                path.rmdir()


@contextlib.contextmanager
def _undo_on_error(run: Run[Settings]) -> Iterator[None]:
    """Brings back the replaced run if an error comes before the new one's first checkpoint; removes what is refused."""
    try:
        yield
    except BaseException as error:
        is_gone = isinstance(error, RequestError | Stopped | KeyboardInterrupt) or run.settings.hours is not None
        came_back = not run.is_resumed and restore_replaced(run.folder)
        goes_on = run.is_resumed or (run.folder.has_checkpoint and not came_back)
        if is_gone and not (goes_on or came_back):
            folders.remove_parts(run.folder.path, run.folder.parts())
        if isinstance(error, Stopped):
            left = f"go on with: {resume_command(run.folder)}" if goes_on else "nothing of it is left: begin again"
            raise Stopped(error.signal_number, f"{error}; {left}") from None
        raise


def _train(run: Run[Settings], strategy: Strategy) -> None:
    from keras_transformer.training.learning import compiled_model, fit  # late: Keras takes seconds

    with run_directory(run) as cache:
        clean(run)
        data = run.task.prepare(run, cache, strategy.num_replicas_in_sync)
        with strategy.scope():
            model = compiled_model(run)
        fit(run, data, model, strategy)
