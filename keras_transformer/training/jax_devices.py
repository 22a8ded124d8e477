"""JAX in place of TensorFlow: the devices that train together in one process, and how they are fed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import keras

from keras_transformer.core.errors import RequestError, say
from keras_transformer.text.feeding import Place, Plan, padded


class Validation(keras.utils.PyDataset):
    """The first epoch of a plan, whenever `fit` asks for it, in batches of few shapes.

    Args:
        plan: the batches of validation.
    """

    def __init__(self, plan: Plan):
        super().__init__()
        self.plan = plan

    @property
    def num_batches(self) -> int:
        """How many batches the epoch has."""
        return self.plan.num_batches(0)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return padded(self.plan.batch(Place(0, index)), self.plan.divisor, per_octave=1)


class DataParallel:
    """What training asks of a `tf.distribute` strategy. Keras shares the rows of each batch among the devices itself.

    Args:
        num_devices: how many devices train together.
    """

    def __init__(self, num_devices: int):
        self.num_replicas_in_sync = num_devices

    def scope(self) -> AbstractContextManager[None]:
        """Within it models are made."""
        return nullcontext()


@contextmanager
def started(kind: str, numbers: list[int]) -> Iterator[DataParallel]:
    """Starts JAX's devices; within, Keras trains on all of them (`keras.distribution.DataParallel`).

    Args:
        kind, numbers: see `devices.Devices`.

    Raises:
        RequestError: a GPU is not there.
    """
    import jax

    if kind == "cpu":
        jax.config.update("jax_platforms", "cpu")
        if len(numbers) > 1:
            jax.config.update("jax_num_cpu_devices", len(numbers))
    found = jax.devices()
    if kind == "gpu":
        count = len(found) if has_gpu() else 0
        if max(numbers) >= count:
            raise RequestError(f"`devices` must name GPUs that are there ({count} found by JAX). Received: {numbers}")
        found = [found[number] for number in numbers]
    say(described(found))
    if len(found) == 1:
        with jax.default_device(found[0]):
            yield DataParallel(1)
        return
    names = [f"{one.platform}:{one.id}" for one in found]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=names))
    try:
        yield DataParallel(len(found))
    finally:
        keras.distribution.set_distribution(None)


def described(found: list[Any]) -> str:
    """One line for people: what a run trains on."""
    if found[0].platform == "cpu":
        return "training on the processor with JAX" + (f", in {len(found)} replicas" if len(found) > 1 else "")
    return f"training on {len(found)} GPU(s) with JAX: {', '.join(one.device_kind for one in found)}"


def has_gpu() -> bool:
    """Whether JAX computes on GPUs by default."""
    import jax

    return jax.default_backend() != "cpu"


def keep_programs(folder: Path) -> None:
    """Makes JAX keep what it compiles in a folder."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
