"""The run folder of a classifier of images, written from Python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keras_transformer.errors import RequestError
from keras_transformer.run_folder import RunFolder
from keras_transformer.written_runs import check_place, twin_of, write_run

if TYPE_CHECKING:
    from keras_transformer.models.image_classifier import ImageClassifier


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

    write_run(path, "images", twin_of(model), {"labels": labels, "corpus": {}}, write_images)
