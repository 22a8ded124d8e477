"""Defines the settings of training a model that fills masked places of text."""

from __future__ import annotations

from keras_transformer.training.common_settings import DATA, OneLanguageSettings, flag, task_settings


@task_settings("masked-tokens", "encoder", dataset="pydoc-topics", label_smoothing=0.0)
class Settings(OneLanguageSettings):
    """The settings of training an encoder to fill masked places."""

    dataset: str | None = flag(DATA, None, "pydoc-topics", is_inherited=False, metavar="NAME")
