"""Defines the settings of training a model that classifies lines of text."""

from __future__ import annotations

from typing import ClassVar

from keras_transformer.training.common_settings import DATA, OneLanguageSettings, flag, task_settings


@task_settings("classification", "encoder", dataset="number-languages", label_smoothing=0.0)
class Settings(OneLanguageSettings):
    """The settings of training a classifier of texts."""

    mark: ClassVar[str | None] = "labels"

    dataset: str | None = flag(DATA, None, "number-languages", is_inherited=False, metavar="NAME")
