"""Learning-rate schedules; imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_transformer.lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.training.schedules import InverseSquareRootDecay as InverseSquareRootDecay

__all__ = ["InverseSquareRootDecay"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "keras_transformer.training.schedules"))
