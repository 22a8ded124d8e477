"""What positions add to attention. It is made once, and all layers of a stack share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from keras_transformer import ops
from keras_transformer.tensor import Tensor


class Rotation(NamedTuple):
    """Rotates queries and keys: cosines and sines of angles, (T, H) or, for one position, (H,); float32."""

    query_cosines: Tensor
    query_sines: Tensor
    key_cosines: Tensor
    key_sines: Tensor


@dataclass(frozen=True)
class Shared:
    """The bias and the rotation of positions in self-attention.

    It is a dataclass, because Keras would cast bare tensors to a layer's compute type.

    Args:
        bias: (N, T, S) float32, added to the logits; None for no bias. Some attentions take it in another form, see
            `SelfAttention.bias_of`.
        rotation: rotates queries and keys by their positions; None for no rotation.
    """

    bias: Tensor | None = None
    rotation: Rotation | None = None


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotates each pair (i, i + H/2) of a head's numbers by an angle (Su et al. 2021, arXiv 2104.09864, equation 34).

    Args:
        x: (..., T, H).
        cosines, sines: (T, H) of the angles. Each angle stands twice: at i and at i + H/2.

    Returns:
        (..., T, H), of the type of `x`.
    """
    numbers = ops.cast(x, "float32")
    first, second = ops.split(numbers, 2, axis=-1)
    orthogonal = ops.concatenate([-second, first], axis=-1)
    return ops.cast(ops.multiply(numbers, cosines) + ops.multiply(orthogonal, sines), x.dtype)
