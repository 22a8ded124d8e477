"""Defines the settings of training a model that goes on with a text, or answers it."""

from __future__ import annotations

from dataclasses import replace

from keras_transformer.core.errors import RequestError
from keras_transformer.spec.options import Config
from keras_transformer.training.common_settings import (
    DATA,
    OneLanguageSettings,
    PairSettings,
    TextSettings,
    flag,
    task_settings,
)


@task_settings("language-model", "language-model", dataset="pydoc-topics", label_smoothing=0.0)
class Settings(OneLanguageSettings, PairSettings):
    """The settings of training a language model: on text, or on pairs of a text and its answer."""

    dataset: str | None = flag(DATA, None, "pydoc-topics", is_inherited=False, metavar="NAME")

    @property
    def has_few_shapes(self) -> bool:
        return self.source is None  # windows of one text are all of one size

    def normalized(self) -> TextSettings:
        settings = super().normalized()
        return replace(settings, normalization=None) if self.source is None else settings

    @classmethod
    def check_given(cls, given: Config) -> None:
        """Raises RequestError if a flag that was given makes another senseless."""
        super().check_given(given)
        if "normalization" in given and "source" not in given:
            raise RequestError("--normalization needs --source: a language model of one text keeps it as it is")

    def check_together(self) -> None:
        """Raises RequestError if one setting needs or excludes another."""
        super().check_together()
        if self.source and self.text:
            raise RequestError(
                "--text is one text, and --source and --target are pairs of texts; received both: give one"
            )
        if self.clean and self.source is None:
            raise RequestError("--clean is for pairs: give --source and --target too; received none")
