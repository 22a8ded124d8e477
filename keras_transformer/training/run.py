"""A training run from flags to `model.keras`, in the order of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keras_transformer.errors import load_tensorflow, say
from keras_transformer.training.cleaning import clean
from keras_transformer.training.learning import compiled_model, fit
from keras_transformer.training.request import Run, open_run
from keras_transformer.training.workspace import begun

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["begun", "compiled_model", "fit", "open_run", "train"]


def train(given: dict[str, Any]) -> None:
    """Trains a run, or goes on with one.

    Args:
        given: flags by the names of their settings (`settings.Settings`); None for a flag that was not given.

    Raises:
        RequestError: the request is wrong; nothing was written.
        JobError: training failed, or another worker was lost (`workers.WorkerLost`); the checkpoints are intact.
        Stopped: a signal came; the run is saved.
    """
    load_tensorflow()
    from keras_transformer.training import devices, replicas, workers

    run = open_run(given)
    if run is None:
        return
    devices.configure(run.settings.devices, run.settings.threads)
    say(devices.describe_devices(run.settings.devices))
    replicas.seed(run.settings.seed)
    with workers.lost_workers():
        strategy = replicas.strategy(run.settings.devices)
        _train(run, strategy)


def _train(run: Run, strategy: tf.distribute.Strategy) -> None:
    with begun(run) as cache:
        clean(run)
        data = run.task.load().prepare(run, cache, strategy.num_replicas_in_sync)
        with strategy.scope():
            model = compiled_model(run)
        fit(run, data, model, strategy)
