"""Feeds planned batches to `fit`, on any backend and for any number of replicas."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.core.lazy import tf


class Place(NamedTuple):
    """The place of a batch in the training data."""

    epoch: int = 0
    batch: int = 0


BEGINNING = Place()
NO_IDS = np.zeros((0, 0), "int32")


class Batch(NamedTuple):
    """What `fit` takes: B rows.

    For translation these are S source and T target tokens a row: source_ids (B, S), target_ids (B, T).
    """

    inputs: dict[str, np.ndarray]  # int32, except for pictures
    labels: np.ndarray  # int32, such as (B, T)
    weights: np.ndarray  # float32, of the labels' shape, 1 at real labels, 0 at padding


class Plan(ABC):
    """The global batches of every epoch, known from (seed, epoch, batch) alone.

    A global batch is what all replicas and accumulated micro-batches take together. It is the same batch however many
    they are, but for blank rows, so that a run can go on with another number of replicas.

    Attributes:
        like: a batch with arrays of the types and the numbers of axes that the plan's batches have.
        divisor: replicas times micro-batches, which divides the rows of each batch.
    """

    like: Batch
    divisor: int = 1

    @abstractmethod
    def num_batches(self, epoch: int) -> int:
        """Returns how many global batches an epoch has."""

    @abstractmethod
    def num_tokens(self, place: Place) -> int:
        """Returns how many labels the batch at a place has, without padding."""

    @abstractmethod
    def batch(self, place: Place) -> Batch:
        """Returns the global batch at a place."""

    def of_each_shape(self) -> list[Place]:
        """Returns the places of batches of all shapes that the first epoch has; none if the plan's shapes are not
        few."""
        return []

    def filled(self, num_rows: int) -> int:
        """Returns the number of rows of a batch with the blank ones, which all replicas and micro-batches share
        equally."""
        return -(-num_rows // self.divisor) * self.divisor

    def place_after(self, place: Place) -> Place:
        """Returns the place of the batch that follows."""
        if place.batch + 1 < self.num_batches(place.epoch):
            return Place(place.epoch, place.batch + 1)
        return Place(place.epoch + 1, 0)

    def iterate(self, place: Place = BEGINNING) -> Iterator[tuple[Place, Batch]]:
        """Yields (place, batch) from `place` on, epoch after epoch without end."""
        while True:
            yield place, self.batch(place)
            place = self.place_after(place)


def shard(batch: Batch, index: int, count: int) -> Batch:
    """Returns the rows `index::count` of a global batch: the share of one replica."""
    inputs = {name: ids[index::count] for name, ids in batch.inputs.items()}
    return Batch(inputs, batch.labels[index::count], batch.weights[index::count])


def generator(
    plan: Plan, place: Place = BEGINNING, replica_indices: Sequence[int] = (0,), num_shards: int = 1
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]]:
    """Yields (inputs, labels, weights) for `fit` on any backend, from `place` on and without end.

    It yields the shards `replica_indices` of `num_shards` of each global batch, in that order.
    """
    for _, batch in plan.iterate(place):
        for index in replica_indices:
            share = shard(batch, index, num_shards)
            yield share.inputs, share.labels, share.weights


def dataset(
    plan: Plan, place: Place = BEGINNING, replica_indices: Sequence[int] = (0,), num_shards: int = 1, prefetch: int = 4
) -> tf.data.Dataset:
    """Returns `generator` as a `tf.data.Dataset` that prepares `prefetch` batches ahead and that TensorFlow does not
    shard."""
    return as_tf_dataset(lambda: generator(plan, place, replica_indices, num_shards), plan.like, prefetch)


def of_few_shapes(plan: Plan, place: Place = BEGINNING) -> Iterator[Batch]:
    """Yields as `generator` for JAX, which compiles a step for each shape of a batch: the batches are padded to few
    shapes.

    Batches whose plan has few shapes stay as they are.
    """
    is_few = bool(plan.of_each_shape())
    for _, batch in plan.iterate(place):
        yield batch if is_few else padded(batch, plan.divisor)


def repeated_epoch(plan: Plan) -> Iterator[Batch]:
    """Yields the first epoch again and again, for validation with JAX; each batch is padded to few shapes."""
    while True:
        for index in range(plan.num_batches(0)):
            yield padded(plan.batch(Place(0, index)), plan.divisor, per_octave=1)


def padded(batch: Batch, divisor: int = 1, per_octave: int = 4) -> Batch:
    """Pads a batch with blank rows and pad ids, so that rows and widths are of few sizes, see `size_in_octave`.

    Args:
        batch: has B rows.
        divisor: divides B before and after.
        per_octave: how many sizes an octave has.
    """
    num_rows = size_in_octave(len(batch.labels) // divisor, per_octave) * divisor

    def in_size(array: np.ndarray) -> np.ndarray:
        is_text = array.ndim == 2  # images have one size
        sizes = (num_rows, size_in_octave(array.shape[1], per_octave)) if is_text else (num_rows, *array.shape[1:])
        return np.pad(array, [(0, size - own) for size, own in zip(sizes, array.shape, strict=True)])

    inputs = {name: in_size(array) for name, array in batch.inputs.items()}
    return Batch(inputs, in_size(batch.labels), in_size(batch.weights))


def size_in_octave(size: int, per_octave: int) -> int:
    """Returns the least size that is at least `size`: of 1, 2, … 8, 10, 12, 14, 16, 20, … with four an octave, of
    powers of two with one."""
    step = 2 ** max(0, (size - 1).bit_length() - per_octave.bit_length())
    return -(-size // step) * step


def chosen(
    plan: Plan, places: Sequence[Place], replica_indices: Sequence[int] = (0,), num_shards: int = 1
) -> tf.data.Dataset:
    """Returns the batches at some places, once, as a `tf.data.Dataset`; see `generator`."""

    def batches() -> Iterator[tuple]:
        for place in places:
            yield from itertools.islice(generator(plan, place, replica_indices, num_shards), len(replica_indices))

    return as_tf_dataset(batches, plan.like)


def one_epoch(plan: Plan, replica_indices: Sequence[int] = (0,), num_shards: int = 1) -> tf.data.Dataset:
    """Returns the first epoch once, for validation."""
    return chosen(plan, [Place(0, batch) for batch in range(plan.num_batches(0))], replica_indices, num_shards)


def as_tf_dataset(batches: Callable[[], Iterator[tuple]], like: Batch, prefetch: int = 4) -> tf.data.Dataset:
    """Returns a `tf.data.Dataset` of the (inputs, labels, weights) that `batches()` yields; each iteration calls it
    anew.

    Args:
        batches: see above.
        like: a batch with arrays of the types and the numbers of axes that are yielded.
        prefetch: how many batches to prepare ahead.
    """
    signature = tf.nest.map_structure(lambda array: tf.TensorSpec([None] * array.ndim, array.dtype), tuple(like))
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # There is nothing to tune, and the end of an epoch may have to wait for the tuner, which sleeps for up to a minute.
    options.autotune.enabled = False
    fed = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return fed.with_options(options).prefetch(prefetch)
