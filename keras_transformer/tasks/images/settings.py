"""Defines the settings of training a model that classifies images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_transformer.core.errors import RequestError
from keras_transformer.spec import model_spec
from keras_transformer.training import common_settings as base
from keras_transformer.training.common_settings import DATA, TRAINING, count, file, flag, task_settings


@task_settings("images", "image-classifier", dataset="digits", label_smoothing=0.0, **model_spec.VISION)
class Settings(base.Settings):
    """The settings of training a classifier of images."""

    if TYPE_CHECKING:  # an argument of the model
        image_size: int = 0

    dataset: str | None = flag(DATA, None, "digits", is_inherited=False, metavar="NAME")
    images: str | None = file("a folder with a folder of images for each label", own="folder", reads="folder")
    valid_images: str | None = file("validation images (default: a tenth of each label's)", reads="folder")
    random_shift: int = count(TRAINING, 0, "move each image of training by up to so many pixels", least=0)

    @property
    def has_few_shapes(self) -> bool:
        return True

    def check_together(self) -> None:
        """Raises RequestError if one setting needs or excludes another."""
        super().check_together()
        if self.valid_images and self.images is None:
            raise RequestError("--valid-images needs --images; received none")
        if self.random_shift >= self.image_size:
            raise RequestError(
                f"--random-shift must be less than --image-size, {self.image_size}; received: {self.random_shift}"
            )
