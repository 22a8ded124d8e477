"""Metrics for training; imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_transformer.lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.training.metrics import NDCGAt as NDCGAt
    from keras_transformer.training.metrics import Perplexity as Perplexity
    from keras_transformer.training.metrics import RecallAt as RecallAt
    from keras_transformer.training.metrics import TokenAccuracy as TokenAccuracy

__all__ = ["NDCGAt", "Perplexity", "RecallAt", "TokenAccuracy"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "keras_transformer.training.metrics"))
