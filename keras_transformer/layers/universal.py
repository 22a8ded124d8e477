"""The Universal Transformer's stack: the weights of one block, applied again and again (arXiv 1807.03819)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras

from keras_transformer import auxiliary_losses, ops
from keras_transformer.errors import require_rates
from keras_transformer.layers.positions import sinusoidal_positions
from keras_transformer.layers.stack import Stack
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class UniversalStack(Stack):
    """One block, applied `num_layers` times (Dehghani et al. 2018, arXiv 1807.03819, section 2.1).

    Before each step t it adds coordinates to the state of each position i: the sinusoids of i, and the sinusoids of t.
    Both count from 0. The `positions` of the model act beside the coordinates: in the paper there are none.

    In decoding, each step has its own cache of self-attention, and all steps share the projected memory.

    With adaptive computation time (section 2.2; Graves 2016, arXiv 1603.08983, equations 5 to 13), each position has a
    halting probability after each step. The position halts when these sum to 1 - ε, and at the last step in any case.
    It then copies its state to the later steps, so that others can attend to it. The output is the mean of its states,
    weighted by the probabilities; the state at which it halts gets the remainder to 1. This is the default, because
    the paper's adaptive variant is what sets the stack apart from tied layers. It saves no time: all positions go
    through all steps, for graphs of a fixed length. In training, the loss gets the ponder cost: `ponder_cost` times the
    mean of steps + remainder over the real tokens.

    Args:
        num_layers: the number of steps; with adaptive computation time, the most steps.
        block, is_decoder, other_layers, has_memory: see `Stack`.
        adaptive: whether to use adaptive computation time.
        epsilon: ε.
        ponder_cost: the weight of the ponder cost in the loss.

    Call arguments:
        As for `Stack`; D is even.

    Returns:
        (B, T, D).

    Raises:
        ValueError: as for `Stack`; or D is odd, or `epsilon` or `ponder_cost` is not at least 0 and less than 1.
    """

    def __init__(
        self,
        num_layers: int,
        block: dict[str, Any],
        is_decoder: bool = False,
        other_layers: int = 0,
        has_memory: bool = True,
        adaptive: bool = True,
        epsilon: float = 0.01,
        ponder_cost: float = 0.01,
        **kwargs: Any,
    ):
        super().__init__(num_layers, block, is_decoder, other_layers, has_memory, **kwargs)
        require_rates(epsilon=epsilon, ponder_cost=ponder_cost)
        self.adaptive = adaptive
        self.epsilon = epsilon
        self.ponder_cost = ponder_cost

    @property
    def has_auxiliary_loss(self) -> bool:
        """Whether it adds to the loss in training."""
        return self.adaptive and self.ponder_cost > 0

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
        if self.adaptive:
            # In float32 for any compute type: a position halts where a sum passes a bound.
            self.halting_kernel = self.add_weight(
                name="halting_kernel", shape=(x_shape[-1], 1), initializer="glorot_uniform", autocast=False
            )
            self.halting_bias = self.add_weight(name="halting_bias", shape=(1,), initializer="ones", autocast=False)

    def _projected(self, memory: Tensor) -> list[Any]:
        projected = self.blocks[0].cross_attention.project_memory(memory)  # once: all steps have the same weights
        return [projected] * self.num_layers

    def _through(self, x: Tensor, apply: Callable[[int, Tensor], Tensor], index: Tensor | None = None) -> Tensor:
        positions = ops.arange(ops.shape(x)[1]) if index is None else index

        def advance(step: int, x: Tensor) -> Tensor:
            waves = ops.by_position(partial(coordinates, step=step, hidden_dim=x.shape[-1]), positions)
            return apply(step, x + ops.cast(waves, x.dtype))

        if self.adaptive:
            return self._ponder(x, advance)
        for step in range(self.num_layers):
            x = advance(step, x)
        return x

    def _ponder(self, x: Tensor, advance: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Passes states (..., D) through all steps, and returns the weighted mean of each position's states."""
        nothing = ops.zeros_like(x[..., :1], dtype="float32")
        output, spent, pondered, running = nothing, nothing, nothing, nothing + 1.0  # (..., 1); output (..., D)
        for step in range(self.num_layers):
            x = ops.where(running > 0, advance(step, x), x)
            probability = self.halting_probability(x)
            is_last = step == self.num_layers - 1
            halts = running if is_last else running * ops.cast(spent + probability >= 1.0 - self.epsilon, "float32")
            weight = running * probability + halts * (1.0 - spent - probability)  # of one that halts, the remainder
            output = output + weight * ops.cast(x, "float32")
            pondered = pondered + running + halts * weight  # steps, and in the end the remainder
            spent, running = spent + weight, running - halts
        self._report(pondered)
        return ops.cast(output, x.dtype)

    def halting_probability(self, x: Tensor) -> Tensor:
        """The halting probabilities (..., 1) float32 of states (..., D)."""
        kernel, bias = (ops.cast(weight, "float32") for weight in (self.halting_kernel, self.halting_bias))
        return ops.sigmoid(ops.matmul(ops.cast(x, "float32"), kernel) + bias)

    def _report(self, pondered: Tensor) -> None:
        """Reports the ponder cost of positions (B, T, 1), each with its number of steps and its remainder."""
        if not self.has_auxiliary_loss or not auxiliary_losses.are_collected():
            return
        real = auxiliary_losses.real_tokens(pondered)
        cost = self.ponder_cost * ops.sum(real * pondered[..., 0])
        auxiliary_losses.report(ops.reshape(ops.sum(real), (1,)), lambda counts: cost / ops.maximum(counts[0], 1.0))


def coordinates(positions: Tensor, step: int, hidden_dim: int) -> Tensor:
    """What is added to the states at positions (...) before a step: (..., D) float32 (section 2.1)."""
    waves = [sinusoidal_positions(ops.convert_to_tensor(each), hidden_dim) for each in (positions, step)]
    return waves[0] + waves[1]
