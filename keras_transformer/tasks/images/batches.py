"""Labelled images as pixels on disk, and batches of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_transformer.core.errors import RequestError, abridged, warn
from keras_transformer.core.files import write_whole
from keras_transformer.tasks.images.corpus import LabelledImage, UnreadableImage, pixels_of, read_image
from keras_transformer.text.batch_sampler import EqualPlan
from keras_transformer.text.feeding import Batch, Place
from keras_transformer.text.tokenized import mapped


class Pixels(NamedTuple):
    """Images of one size, and the places of their labels."""

    images: np.ndarray  # (N, S, S, channels) uint8
    labels: np.ndarray  # (N,) int32


def read_pixels(path: Path, images: Iterable[LabelledImage], labels: list[str], size: int, channels: int) -> Pixels:
    """Returns the pixels of images, memory-mapped from a file, which is written if it is not there yet.

    Images that cannot be read are left out; a warning counts and names them.

    Args:
        path: the file; another beside it holds the labels.
        images: what to read.
        labels: all labels in their order.
        size, channels: see `read_image`.

    Raises:
        RequestError: the files are damaged.
    """
    places, shape = {label: place for place, label in enumerate(labels)}, (size, size, channels)
    beside = path.with_suffix(".labels")
    if not (path.is_file() and beside.is_file()):
        path.parent.mkdir(parents=True, exist_ok=True)
        found, faults = [], []
        with write_whole(path) as aside, aside.open("wb") as file:
            for image in images:
                try:
                    pixels = read(image.source, size, channels)
                except UnreadableImage as error:
                    faults.append(f"{image.source} ({error})")
                    continue
                file.write(pixels.tobytes())
                found.append(places[image.label])
        with write_whole(beside) as aside:
            np.array(found, "int32").tofile(aside)
        if faults:
            warn(f"{len(faults)} image(s) cannot be read and are left out: {abridged(faults)}")
    pixels, known = mapped(path, np.dtype("uint8")), mapped(beside, np.dtype("int32"))
    if len(pixels) != len(known) * math.prod(shape) or ((known < 0) | (known >= len(labels))).any():
        raise RequestError(f"{path} and {beside.name} do not fit together: delete both")
    return Pixels(pixels.reshape(len(known), *shape), known)


def read(source: Path | bytes | np.ndarray, size: int, channels: int) -> np.ndarray:
    """Returns the pixels of a file, of its content or of an array, see `read_image` and `pixels_of`."""
    if isinstance(source, np.ndarray):
        return pixels_of(source, size, channels)
    return read_image(source, size, channels)


class ImagePlan(EqualPlan):
    """Plans batches of labelled images, in each epoch in another order.

    A batch has as many images as its budget of patches holds. Blank images weigh 0.

    Args:
        pixels: the images.
        positions: how many positions an image takes in the model: its patches, and the class token.
        random_shift: each image is moved by up to so many pixels, down or up and right or left, anew in each epoch. A
            uniform number is drawn for each direction and rounded. Black pixels come in at the edge.
        token_budget, seed, num_replicas, accumulate, shuffle: see `EqualPlan`; the budget counts positions.

    Raises:
        RequestError: the budget does not hold an image for every replica.
    """

    def __init__(
        self,
        pixels: Pixels,
        positions: int,
        token_budget: int,
        seed: int = 0,
        num_replicas: int = 1,
        accumulate: int = 1,
        shuffle: bool = True,
        random_shift: int = 0,
    ):
        self.pixels, self.random_shift = pixels, random_shift
        unit = f"an image of {positions} positions"
        super().__init__(positions, unit, token_budget, seed, num_replicas, accumulate, shuffle)
        self.like = self._batch_of(np.zeros(0, "int64"), np.random.default_rng(0))

    def num_tokens(self, place: Place) -> int:
        return len(self.rows_of(place))

    def batch(self, place: Place) -> Batch:
        return self._batch_of(self.rows_of(place), np.random.default_rng((self.seed, place.epoch, place.batch)))

    def _batch_of(self, rows: np.ndarray, random: np.random.Generator) -> Batch:
        num_rows = self.filled(len(rows))
        images = np.zeros((num_rows, *self.pixels.images.shape[1:]), "uint8")
        labels, weights = np.zeros(num_rows, "int32"), np.zeros(num_rows, "float32")
        for to, row in zip(images, rows, strict=False):
            down, right = np.rint(random.uniform(-self.random_shift, self.random_shift, 2)).astype(int)
            to[:] = shifted(self.pixels.images[row], down, right)
        labels[: len(rows)] = self.pixels.labels[rows]
        weights[: len(rows)] = 1
        return Batch({"images": images}, labels, weights)

    def order(self, epoch: int) -> np.ndarray:
        """Returns the places of an epoch's images."""
        places = np.arange(len(self.pixels.labels))
        return np.random.default_rng((self.seed, epoch)).permutation(places) if self.shuffle else places


def shifted(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """Returns an image (H, W, ...) moved by whole pixels, less than its size; black comes in at the edge."""
    moved = np.zeros_like(image)
    height, width = image.shape[:2]
    moved[max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)] = image[
        max(-down, 0) : height + min(-down, 0), max(-right, 0) : width + min(-right, 0)
    ]
    return moved
