"""The weights of a layer as arrays, as the writers of ONNX nodes take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.tensor import Tensor

from .arithmetic import Arithmetic
from .graph import Graph, Value


class Projection(NamedTuple):
    """The weights of a projection: kernel (in, out) and bias (out,)."""

    kernel: np.ndarray
    bias: np.ndarray | None

    @classmethod
    def joined(cls, projections: Sequence[Projection]) -> Projection:
        """One projection that computes several, their outputs side by side. Either all have a bias or none."""
        biases = [each.bias for each in projections if each.bias is not None]
        kernel = np.concatenate([each.kernel for each in projections], axis=1)
        return cls(kernel, np.concatenate(biases) if biases else None)

    def added(self, g: Graph, arithmetic: Arithmetic, x: Value, skip: Value | None, is_positive: bool = False) -> Value:
        """skip + the projection of x, or the projection alone if skip is None: (R, in) → (R, out)."""
        if self.bias is None or skip is None:
            return arithmetic.product(g, x, self.kernel, self.bias if skip is None else skip, is_positive)
        return g("Add", skip, arithmetic.product(g, x, self.kernel, self.bias, is_positive))


def array(variable: Tensor) -> np.ndarray:
    """A variable or a tensor as an array."""
    return ops.convert_to_numpy(variable)


def bias_of(variable: Tensor | None) -> np.ndarray | None:
    """A bias as an array; None if there is no bias."""
    return None if variable is None else array(variable)
