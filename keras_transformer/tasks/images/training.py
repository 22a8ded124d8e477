"""Trains a classifier of images: folders of images, cross entropy of labels, accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_transformer.core.errors import RequestError, say
from keras_transformer.core.files import write_whole
from keras_transformer.models.classifiers import ImageClassifier
from keras_transformer.tasks.classification.training import LabelTraining
from keras_transformer.tasks.images.batches import ImagePlan, Pixels, read_pixels
from keras_transformer.tasks.images.corpus import MODES, LabelledImage, images_from_folder, named_images
from keras_transformer.tasks.images.pipeline import Recognizer
from keras_transformer.tasks.images.settings import Settings
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.held_out import drawn
from keras_transformer.training.task import Prepared, Run

MAX_KEPT_BYTES = 16_000_000  # the run folder keeps so many bytes of validation images


@dataclass(frozen=True)
class LabelledImages(Prepared):
    """A run's labelled images, ready to train on."""

    valid: Pixels


class Training(LabelTraining[Settings, LabelledImages, ImageClassifier]):
    """What a classifier of images brings to training."""

    UNIT = "images"

    def corpus(self, settings: Settings) -> Corpus[LabelledImage]:
        """Opens the user's own labelled images, or named ones.

        Raises:
            RequestError: see `images_from_folder` and `named_images`.
        """
        if settings.images is not None:
            return images_from_folder(settings.images, settings.valid_images, settings.seed)
        return named_images(settings.name)

    def prepare(self, run: Run, cache: Path, num_replicas: int) -> LabelledImages:
        """Reads the images once, and plans batches of them.

        Raises:
            RequestError: there are no such channels, too few images can be read, or the budget does not hold an image.
        """
        settings = run.settings
        if settings.channels not in MODES:
            raise RequestError(f"--channels must be 1 for grey or 3 for colour; received: {settings.channels}")
        labels = sorted({image.label for image in run.corpus.train()})
        size, channels = settings.image_size, settings.channels
        train = read_pixels(cache / "train.images", run.corpus.train(), labels, size, channels)
        valid = read_pixels(cache / "validation.images", run.corpus.valid(), labels, size, channels)
        _check_labels(labels, train, valid)
        run.config.labels = labels
        run.record(num_labels=len(labels))
        if run.is_chief:
            _keep(valid, run.folder.valid_images)
        counts = f"{len(train.labels):,} images with {len(labels)} labels, {len(valid.labels):,} for validation"
        say(f"{run.corpus.name}: {counts}")
        positions = (size // settings.patch_size) ** 2 + 1
        budget, shift = settings.token_budget, settings.random_shift
        plan = ImagePlan(train, positions, budget, settings.seed, num_replicas, settings.accumulate, random_shift=shift)
        valid_plan = ImagePlan(valid, positions, budget, num_replicas=num_replicas, shuffle=False)
        return LabelledImages(plan, valid_plan, valid)

    def final_metrics(self, run: Run, data: LabelledImages, model: ImageClassifier) -> dict[str, float]:
        """Measures the accuracy."""
        labels = run.config.labels or []
        found = Recognizer(model, labels).classify(data.valid.images)
        right = sum(one.label == labels[label] for one, label in zip(found, data.valid.labels, strict=True))
        return {"val_accuracy": right / len(data.valid.labels)}


def _check_labels(labels: list[str], train: Pixels, valid: Pixels) -> None:
    """Raises RequestError unless each label has an image to train on, and there is one to validate on."""
    counts = np.bincount(train.labels, minlength=len(labels))
    if not counts.all():
        raise RequestError(f"no image of the label {labels[int(counts.argmin())]!r:.60} can be read: replace them")
    if not len(valid.labels):
        raise RequestError("no image that is held out for validation can be read: replace them")


def _keep(valid: Pixels, path: Path) -> None:
    """Writes images of validation, as many as a run folder keeps."""
    kept = drawn(len(valid.labels), max(1, MAX_KEPT_BYTES // valid.images[0].size))
    with write_whole(path) as aside:
        np.savez_compressed(aside, images=valid.images[kept], labels=valid.labels[kept])
