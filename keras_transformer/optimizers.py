"""The optimizer for training a translator; imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_transformer.lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.training.optimizers import Adam as Adam

__all__ = ["Adam"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "keras_transformer.training.optimizers"))
