"""Tells whether every part of a model has a writer of ONNX nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras_transformer.layers.norms import LayerNorm
from keras_transformer.models.inspection import Difference, parts_of

from ..signatures import parts_without_writer, unwritable
from .parts import WRITERS

# The options that a writer assumes.
WRITTEN_OPTIONS: dict[type, dict[str, Any]] = {LayerNorm: {"center": True, "scale": True}}


def require_writers(model: Any, precision: str) -> None:
    """Raises RequestError, which names the part, unless every part of the model and its options can be written."""
    for found in unwritten(model):
        raise unwritable("onnx", precision, found)


def unwritten(model: Any) -> Iterator[Difference]:
    """The parts and options of a model that no writer writes."""
    yield from parts_without_writer(model, WRITERS)
    for path, part in parts_of(model, "model"):
        for name, value in WRITTEN_OPTIONS.get(type(part), {}).items():
            if getattr(part, name) != value:
                yield Difference(f"{path}.{name}", value, getattr(part, name))
