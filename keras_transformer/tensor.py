"""The one alias of tensors in signatures; a shape beside it says more."""

from __future__ import annotations

from typing import Any, TypeAlias

# A tensor of any backend of Keras, symbolic ones included: they share no class.
Tensor: TypeAlias = Any
