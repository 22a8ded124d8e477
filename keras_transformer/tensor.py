"""The type of tensors in signatures."""

from __future__ import annotations

from typing import Any, TypeAlias

# A tensor of any Keras backend, or a symbolic one: these share no class.
Tensor: TypeAlias = Any
