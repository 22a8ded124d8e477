"""From images to labels: a classifier of images, and its run folder written from Python."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.core.task_registry import TASKS
from keras_transformer.decoding.attention_maps import Attention, Tokens, attention_of
from keras_transformer.decoding.computations import Embedding, LabelProbs
from keras_transformer.decoding.keras_decoder import CompiledComputations
from keras_transformer.decoding.pipelines import Pipeline
from keras_transformer.models.classifiers import ImageClassifier
from keras_transformer.runs.run_folder import RunFolder, check_place, float32_copy, load_model, read_config, write_run
from keras_transformer.spec.search_options import require_whole
from keras_transformer.tasks.classification.pipeline import Prediction
from keras_transformer.tasks.images.batches import read
from keras_transformer.tasks.images.corpus import UnreadableImage
from keras_transformer.text.lines import each_of, strings_of

if TYPE_CHECKING:
    from keras_transformer.importing.weights import Imported

TASK = "images"
Source = str | os.PathLike[str] | np.ndarray


def write_recognizer(
    folder: str | os.PathLike[str],
    model: ImageClassifier,
    labels: list[str],
    images: np.ndarray | None = None,
    overwrite: bool = False,
) -> None:
    """Writes the run folder of a recognizer; see `Recognizer.save`.

    Raises:
        RequestError: see `Recognizer.save`.
    """
    path = Path(folder)
    check_place(path, overwrite)
    if images is not None and (images.dtype != np.uint8 or images.shape[1:] != model.image_shape or not len(images)):
        raise RequestError(
            f"expected images (N, {', '.join(map(str, model.image_shape))}) of uint8; received {images.dtype} "
            f"{images.shape}"
        )

    def write_images(run: RunFolder) -> None:
        if images is not None:
            np.savez_compressed(run.valid_images, images=images)

    write_run(path, overwrite, "images", float32_copy(model), {"labels": labels, "corpus": {}}, write_images)


class Recognizer(Pipeline):
    """Tells the labels of images with one model. Threads may share it:

        recognizer = keras_transformer.load_recognizer("runs/digits-tiny")
        [prediction] = recognizer.classify(["seven.png"])

    An image is a file, or an array (H, W), (H, W, 1) or (H, W, 3) of uint8. An image of another size than the model's
    is resized, whatever its proportions are; see `corpus.read_image`.

    Args:
        model: the classifier of images.
        labels: in the order of the model's logits.

    Raises:
        RequestError: the model has another number of labels.
    """

    task = TASK

    def __init__(self, model: ImageClassifier, labels: Sequence[str]):
        labels = list(strings_of(labels, "labels"))
        if not labels or model.num_labels != len(labels):
            raise RequestError(f"expected {model.num_labels or 'no'} labels; received {len(labels)}")
        self.model = model
        self.labels = labels
        self._computations = CompiledComputations(model)

    def __repr__(self) -> str:
        model, (size, _, channels) = self.model, self.model.image_shape
        return (
            f"<Recognizer: {model.count_params():,} parameters, {model.num_layers} layers of width {model.hidden_dim}, "
            f"images of {size} x {size} pixels with {channels} channels, {len(self.labels)} labels>"
        )

    @property
    def names(self) -> Sequence[str]:
        return self.labels

    def about(self) -> dict[str, str]:
        return {"labels": json.dumps(self.labels, ensure_ascii=False)}

    def pixels(self, image: Source) -> np.ndarray:
        """An image as the model takes it, (S, S, channels) uint8.

        Raises:
            UnreadableImage: see `corpus.read_image`.
            RequestError: the image is neither the path of a file nor an array.
        """
        if not isinstance(image, str | os.PathLike | np.ndarray):
            raise RequestError(f"expected an image, the path of a file or an array; received {image!r:.40}")
        source = image if isinstance(image, np.ndarray) else Path(image)
        size, _, channels = self.model.image_shape
        return read(source, size, channels)

    def classify(self, images: Iterable[Source], batch_size: int = 64) -> list[Prediction]:
        """The likeliest label of each image.

        Raises:
            RequestError: an image cannot be read, or `images` is no list.
        """
        return list(readable(self.stream(images, batch_size)))

    def stream(self, images: Iterable[Source], batch_size: int = 64) -> Iterator[Prediction | UnreadableImage]:
        """`classify`, which yields predictions while images come, and the error of an image that cannot be read."""
        require_whole("batch_size", batch_size, 1)
        iterator = each_of(images, "images")
        while some := list(islice(iterator, batch_size)):
            read = [self._read(image) for image in some]
            pixels = [one for one in read if isinstance(one, np.ndarray)]
            predictions = iter(self._predicted(pixels))
            for one in read:
                yield one if isinstance(one, UnreadableImage) else next(predictions)

    def probabilities(self, images: np.ndarray) -> np.ndarray:
        """The probability (N, C) float32 of each label, for images (N, S, S, channels) as `pixels` gives them."""
        return self._computations.run(LabelProbs(), images)[0]

    def embed(self, images: np.ndarray) -> np.ndarray:
        """The vector (N, D) float32 of each image, as for `probabilities`: the state of the class token."""
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
        write_recognizer(folder, self.model, self.labels, pixels, overwrite)

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
        """Where the patches of an image look: "self", with the class token first.

        Raises:
            RequestError: the image cannot be read.
        """
        (pixels,) = readable([self._read(image)])
        side = self.model.image_shape[0] // self.model.arguments()["patch_size"]
        patches = (f"row {row}, column {column}" for row in range(side) for column in range(side))
        tokens = Tokens.of_whole(["class token", *patches])
        return attention_of(self.model, {"images": pixels[None]}, {"self": (tokens, tokens)})


def readable(found: Iterable[object]) -> Iterator[Any]:
    """What was found of images.

    Raises:
        RequestError: an image could not be read.
    """
    for place, one in enumerate(found):
        if isinstance(one, UnreadableImage):
            raise RequestError(f"image {place} cannot be read: {one}") from one
        yield one


def load_recognizer(run: str | os.PathLike[str]) -> Recognizer:
    """The recognizer of a run folder of a classifier of images. Nothing in the folder is executed.

    Raises:
        RequestError: the folder holds no run of a classifier of images, no model yet, or a file is damaged.
    """
    folder = RunFolder(run)
    model, labels = load_model(folder, TASKS[TASK].kind), (read_config(folder).labels or [])
    if not labels or model.num_labels != len(labels):
        raise RequestError(f"{folder.path}: expected {model.num_labels} labels in config.json; received {len(labels)}")
    return Recognizer(model, labels)


def imported(found: Imported) -> Recognizer:
    """The recognizer of a model that was read from another format."""
    return Recognizer(found.model(), found.labels)


load = load_recognizer
