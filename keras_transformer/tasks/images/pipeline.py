"""From images to labels: a classifier of images, and its run folder written from Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from keras_transformer.commands.graph_cache import open_in_python
from keras_transformer.core.errors import RequestError
from keras_transformer.core.task_registry import TASKS
from keras_transformer.decoding.attention_maps import Attention, Tokens, attention_of
from keras_transformer.decoding.computations import Embedding, LabelProbs
from keras_transformer.decoding.onnx_graphs import OnnxComputations, computations_of
from keras_transformer.decoding.pipelines import Pipeline, in_batches
from keras_transformer.runs.run_folder import RunConfig, RunFolder, check_place, float32_copy, write_run
from keras_transformer.tasks.classification.pipeline import Prediction
from keras_transformer.tasks.images.batches import read
from keras_transformer.tasks.images.corpus import UnreadableImage
from keras_transformer.text.lines import each_of, strings_of

if TYPE_CHECKING:
    from keras_transformer.importing.weights import Imported
    from keras_transformer.models.classifiers import ImageClassifier

Item = TypeVar("Item")
Source = str | os.PathLike[str] | bytes | np.ndarray


class Recognizer(Pipeline):
    """Tells the labels of images with one model. Threads may share it:

        recognizer = keras_transformer.load_recognizer("runs/digits-tiny")
        [prediction] = recognizer.classify(["seven.png"])

    An image is a file, its content as bytes, or an array (H, W), (H, W, 1) or (H, W, 3) of uint8. An image of another
    size than the model's is resized, whatever its proportions are; see `corpus.read_image`.

    Args:
        model: the classifier of images, or an `OnnxComputations` of its outputs.
        labels: in the order of the model's logits.

    Raises:
        RequestError: the model has another number of labels.
    """

    task = "images"

    def __init__(self, model: ImageClassifier | OnnxComputations, labels: Sequence[str]):
        self._computations = computations_of(model)
        self.model = self._computations.model
        self.labels = labels = list(strings_of(labels, "labels"))
        if not labels or self.model.num_labels != len(labels):
            raise RequestError(f"expected {self.model.num_labels or 'no'} labels; received {len(labels)}")

    def details(self) -> str:
        size, _, channels = self.model.image_shape
        return f"images of {size} x {size} pixels with {channels} channels, {len(self.labels)} labels"

    @classmethod
    def of_run(cls, model: ImageClassifier | OnnxComputations, folder: RunFolder, config: RunConfig) -> Recognizer:
        """Makes a recognizer of a model, with the labels of a run.

        Raises:
            RequestError: the labels are not the model's.
        """
        labels, expected = config.labels or [], config.model["num_labels"]
        if not labels or expected != len(labels):
            raise RequestError(f"{folder.path}: expected {expected} labels in config.json; received {len(labels)}")
        return cls(model, labels)

    @classmethod
    def imported(cls, found: Imported) -> Recognizer:
        return cls(found.model(), found.labels)

    def pixels(self, image: Source) -> np.ndarray:
        """Returns an image as the model takes it, (S, S, channels) uint8.

        Raises:
            UnreadableImage: see `corpus.read_image`.
            RequestError: the image is neither the path of a file nor an array.
        """
        if not isinstance(image, str | os.PathLike | bytes | np.ndarray):
            raise RequestError(f"expected an image, the path of a file or an array; received {image!r:.40}")
        source = image if isinstance(image, bytes | np.ndarray) else Path(image)
        size, _, channels = self.model.image_shape
        return read(source, size, channels)

    def classify(self, images: Iterable[Source], batch_size: int = 64) -> list[Prediction]:
        """Returns the likeliest label of each image.

        Raises:
            RequestError: an image cannot be read, or `images` is no list.
        """
        return list(readable(self.stream(images, batch_size)))

    def stream(self, images: Iterable[Source], batch_size: int = 64) -> Iterator[Prediction | UnreadableImage]:
        """`classify`, which yields predictions while images come, and the error of an image that cannot be read."""
        for some in in_batches(each_of(images, "images"), batch_size):
            read = [self._read(image) for image in some]
            pixels = [one for one in read if isinstance(one, np.ndarray)]
            predictions = iter(self._predicted(pixels))
            for one in read:
                yield one if isinstance(one, UnreadableImage) else next(predictions)

    def probabilities(self, images: np.ndarray) -> np.ndarray:
        """Returns the probability (N, C) float32 of each label, for images (N, S, S, channels) as `pixels` gives."""
        return self._computations.run(LabelProbs(), images)[0]

    def embed(self, images: np.ndarray) -> np.ndarray:
        """Returns the vector (N, D) float32 of each image, as for `probabilities`: the state of the class token."""
        return self._computations.run(Embedding(), images)[0]

    def save(
        self, folder: str | os.PathLike[str], images: Iterable[Source] | None = None, overwrite: bool = False
    ) -> None:
        """Writes a run folder. `classify` and the exports read it.

        Args:
            folder: where to write; a new or empty folder.
            images: on which exports are certified.
            overwrite: whether to replace a run that is in the folder.

        Raises:
            RequestError: the folder is not empty, an image cannot be read, or the model has a part that its
                configuration does not name.
        """
        pixels = None if images is None else np.array([*readable(map(self._read, each_of(images, "images")))])
        path = Path(folder)
        check_place(path, overwrite)
        shape = self.model.image_shape
        if pixels is not None and (pixels.dtype != np.uint8 or pixels.shape[1:] != shape or not len(pixels)):
            raise RequestError(
                f"expected images (N, {', '.join(map(str, shape))}) of uint8; received {pixels.dtype} {pixels.shape}"
            )

        def write_images(run: RunFolder) -> None:
            if pixels is not None:
                np.savez_compressed(run.valid_images, images=pixels)

        sections = {"corpus": {}, **self.sections()}
        write_run(path, overwrite, self.task, float32_copy(self.model), sections, write_images)

    def _read(self, image: Source) -> np.ndarray | UnreadableImage:
        try:
            return self.pixels(image)
        except UnreadableImage as error:
            return error

    def _predicted(self, pixels: list[np.ndarray]) -> list[Prediction]:
        if not pixels:
            return []
        probs = self.probabilities(np.stack(pixels))
        return [Prediction(self.labels[int(row.argmax())], float(row.max())) for row in probs]

    def attention(self, image: Source) -> dict[str, Attention]:
        """Tells where the patches of an image look: "self", with the class token first.

        Raises:
            RequestError: the image cannot be read.
        """
        (pixels,) = readable([self._read(image)])
        side = self.model.image_shape[0] // self.model.arguments()["patch_size"]
        patches = (f"row {row}, column {column}" for row in range(side) for column in range(side))
        tokens = Tokens.of_whole(["class token", *patches])
        return attention_of(self.model, {"images": pixels[None]}, {"self": (tokens, tokens)})


def readable(found: Iterable[Item | UnreadableImage]) -> Iterator[Item]:
    """Yields what was found of images.

    Raises:
        RequestError: an image could not be read.
    """
    for place, one in enumerate(found):
        if isinstance(one, UnreadableImage):
            raise RequestError(f"image {place} cannot be read: {one}") from one
        yield one


def load_recognizer(run: str | os.PathLike[str]) -> Recognizer:
    """Loads the recognizer of a run, with its Keras model, or of an export, with its graph in ONNX Runtime.

    An export needs no Keras. Nothing in the folder is executed.

    Raises:
        RequestError: the folder holds no run of a classifier of images, no model yet, or a file is damaged.
    """
    return Recognizer.of_run(*open_in_python(run, TASKS[Recognizer.task].kind))


PIPELINE = Recognizer
