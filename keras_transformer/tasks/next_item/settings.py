"""Defines the settings of training a model that recommends what comes next in users' histories."""

from __future__ import annotations

from keras_transformer.training import common_settings as base
from keras_transformer.training.common_settings import DATA, count, file, flag, task_settings


@task_settings("next-item", "sequence-encoder", dataset="series", label_smoothing=0.0, vocabulary_size=4_000_000)
class Settings(base.Settings):
    """The settings of training a recommender of the next item."""

    dataset: str | None = flag(DATA, None, "series", is_inherited=False, metavar="NAME")
    log: str | None = file("your own log, with user, item and time of each event: CSV or TSV, or .gz", own="log")
    vocabulary_size: int = count(DATA, None, "the most items, with the control ids; the rarest are left out")
