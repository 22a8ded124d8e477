"""A training run from flags to `model.keras`, in the order of its parts."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from keras_transformer.errors import load_tensorflow
from keras_transformer.options import Config

load_tensorflow()

from keras_transformer.training import devices
from keras_transformer.training.common_settings import flag_of
from keras_transformer.training.learning import compiled_model, fit
from keras_transformer.training.preparation import clean
from keras_transformer.training.request import open_run
from keras_transformer.training.task import Run
from keras_transformer.training.workspace import begun

if TYPE_CHECKING:
    from keras_transformer.training.devices import Strategy

__all__ = ["begun", "compiled_model", "fit", "open_run", "train"]


def train(given: Config) -> None:
    """Trains a run, or goes on with one.

    Args:
        given: flags by the names of their settings (`common_settings.Settings`); None for a flag that was not given.

    Raises:
        RequestError: the request is wrong; nothing was written.
        JobError: training failed, or another worker was lost or did not come (`devices.WorkerLost`); the checkpoints
            are intact.
        Stopped: a signal came; the run is saved.
    """
    devices.keep_programs()
    run = open_run(given)
    if run is None:
        return
    with devices.started(run.settings, shared_facts(run)) as strategy:
        _train(run, strategy)


def shared_facts(run: Run) -> Config:
    """What all workers must have the same, by names for people.

    The paths of what they read may differ, and so may the names of their devices.
    """
    own = {setting.name for setting in fields(run.settings) if setting.metadata["reads"]}
    own |= {"data_dir", "devices", "threads"}
    settings = {flag_of(name): value for name, value in run.settings.as_dict().items() if name not in own}
    return {**settings, "--resume": run.is_resumed, "text with SHA-256": run.corpus.identity}


def _train(run: Run, strategy: Strategy) -> None:
    with begun(run) as cache:
        clean(run)
        data = run.task.prepare(run, cache, strategy.num_replicas_in_sync)
        with strategy.scope():
            model = compiled_model(run)
        fit(run, data, model, strategy)
