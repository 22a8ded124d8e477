"""The Universal Transformer's stack: the weights of one block, applied again and again (arXiv 1807.03819)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.positions import sinusoidal_positions
from keras_transformer.layers.stack import Stack
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class UniversalStack(Stack):
    """One block, applied `num_layers` times (Dehghani et al. 2018, arXiv 1807.03819, section 2.1).

    Before each step t it adds coordinates to the state of each position i: the sinusoids of i, and the sinusoids of t.
    Both count from 0. The `positions` of the model act beside the coordinates: in the paper there are none.

    In decoding, each step has its own cache of self-attention, and all steps share the projected memory.

    Args:
        num_layers: the number of steps.
        block, is_decoder, other_layers: see `Stack`.

    Call arguments:
        As for `Stack`; D is even.

    Returns:
        (B, T, D).

    Raises:
        ValueError: as for `Stack`; or D is odd.
    """

    def num_different_blocks(self, num_layers: int) -> int:
        return 1

    def blocks_in_order(self) -> Sequence[Any]:
        return [self.blocks[0]] * self.num_layers

    def build(self, x_shape: tuple, memory_shape: tuple | None = None, **_: Any) -> None:
        if x_shape[-1] % 2:
            raise ValueError(
                "`hidden_dim` must be even: each frequency of a coordinate takes a sine and a cosine. "
                f"Received: hidden_dim={x_shape[-1]}"
            )
        super().build(x_shape, memory_shape)

    def init_cache(self, memory: Tensor, num_beams: int, max_length: Any) -> dict[str, Any]:
        block, batch_size, steps = self.blocks[0], ops.shape(memory)[0], range(self.num_layers)
        projected = block.cross_attention.project_memory(memory)  # once: the weights of all steps are the same
        return {
            "beams": [block.self_attention.init_cache(batch_size, num_beams, max_length) for _ in steps],
            "sentences": [projected for _ in steps],
        }

    def _through(self, x: Tensor, apply: Callable[[int, Tensor], Tensor], index: Tensor | None = None) -> Tensor:
        positions = ops.arange(ops.shape(x)[1]) if index is None else index
        for step in range(self.num_layers):
            x = apply(step, x + ops.cast(coordinates(positions, step, x.shape[-1]), x.dtype))
        return x


def coordinates(positions: Tensor, step: int, hidden_dim: int) -> Tensor:
    """What is added to the states at positions (...) before a step: (..., D) float32 (section 2.1)."""
    waves = [sinusoidal_positions(ops.convert_to_tensor(each), hidden_dim) for each in (positions, step)]
    return waves[0] + waves[1]
