"""The settings of training a classifier of texts."""

from __future__ import annotations

from keras_transformer.tasks.text_settings import OneLanguageSettings
from keras_transformer.training.settings import DATA, flag, task_settings


@task_settings("classification", "encoder", dataset="number-languages", label_smoothing=0.0)
class Settings(OneLanguageSettings):
    """The settings of training a classifier of texts."""

    dataset: str | None = flag(DATA, None, "number-languages", is_inherited=False, metavar="NAME")
