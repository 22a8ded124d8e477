"""The strategy of `tf.distribute` to train under, and which replicas are this worker's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import keras

from keras_transformer.training.devices import parse_devices
from keras_transformer.training.workers import num_workers, worker_index

if TYPE_CHECKING:
    import tensorflow as tf


class LocalReplicas(NamedTuple):
    """The replicas of this worker.

    Args:
        indices: their numbers among all replicas.
        total: how many replicas all workers have together.
    """

    indices: range
    total: int


def seed(number: int) -> None:
    """Seeds Python, NumPy, Keras and TensorFlow."""
    keras.utils.set_random_seed(number)


def strategy(devices: str = "auto") -> tf.distribute.Strategy:
    """The strategy for `--devices` (see `devices.parse_devices`).

    Several workers if `TF_CONFIG` names them, mirrored replicas on several devices, else TensorFlow's default strategy.
    It uses all GPUs that TensorFlow sees: `configure` must have hidden the others.
    """
    import tensorflow as tf

    if os.environ.get("TF_CONFIG") == "":
        del os.environ["TF_CONFIG"]  # TensorFlow reads it too, and takes an empty one for broken JSON
    if num_workers() > 1:
        return tf.distribute.MultiWorkerMirroredStrategy()
    kind, numbers = parse_devices(devices)
    gpus = [gpu.name for gpu in tf.config.list_logical_devices("GPU")]
    names = [f"/cpu:{number}" for number in numbers] if kind == "cpu" else gpus
    return tf.distribute.MirroredStrategy(names) if len(names) > 1 else tf.distribute.get_strategy()


def local_replicas(strategy: tf.distribute.Strategy) -> LocalReplicas:
    """The replicas of this worker under a strategy."""
    count = strategy.num_replicas_in_sync
    each = count // num_workers()
    return LocalReplicas(range(worker_index() * each, (worker_index() + 1) * each), count)
