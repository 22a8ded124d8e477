"""What all layers of a stack share beside the mask: made once, before the first of them runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from keras import ops

from keras_transformer.tensor import Tensor


class Rotation(NamedTuple):
    """What queries and keys are turned by: cosines and sines (T, H), or (H,) for one position, float32."""

    query_cosines: Tensor
    query_sines: Tensor
    key_cosines: Tensor
    key_sines: Tensor


@dataclass(frozen=True)
class Shared:
    """What positions add to self-attention. Keras passes it on as it is: it would cast tensors to the compute type.

    Args:
        bias: (N, T, S) float32, added to the logits; None adds nothing.
        rotation: of the positions of the queries, which are those of the keys; None turns nothing.
    """

    bias: Tensor | None = None
    rotation: Rotation | None = None


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turns each pair (i, i + H/2) of a head's numbers by an angle (Su et al. 2021, arXiv 2104.09864, equation 34).

    Args:
        x: (..., T, H).
        cosines, sines: (T, H) of the angles, each angle twice: at i and at i + H/2.

    Returns:
        (..., T, H), in the type of `x`.
    """
    given = ops.cast(x, "float32")
    first, second = ops.split(given, 2, axis=-1)
    turned = ops.concatenate([-second, first], axis=-1)
    return ops.cast(ops.multiply(given, cosines) + ops.multiply(turned, sines), x.dtype)
