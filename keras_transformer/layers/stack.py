"""Stacks blocks: each layer with its own weights, or all with the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, Unpack

import keras

from keras_transformer import ops
from keras_transformer.core.errors import require_positive, require_rates
from keras_transformer.layers import auxiliary_losses
from keras_transformer.layers.attention import causal_mask, combined_masks, joint_mask
from keras_transformer.layers.blocks import CausalBlock, DecoderBlock, EncoderBlock
from keras_transformer.layers.cache import Cache, KeysValues, Size, row_positions
from keras_transformer.layers.layer import Layer, LayerArguments, Shape, make_part
from keras_transformer.layers.positions import Positions, PositionTerms, sinusoidal_positions
from keras_transformer.ops import Tensor
from keras_transformer.spec import model_spec


class StackCache(TypedDict):
    """The cache of a step: of each block, the cache of its self-attention, and its projected memory.

    "beams" has tensors (B, K, ...), which the search reorders with its beams; "sentences" has tensors (B, ...), which
    the beams of a sentence share. A stack without a memory has no "sentences".
    """

    beams: list[Cache]
    sentences: list[KeysValues]


@keras.saving.register_keras_serializable(package="keras_transformer")
class Stack(Layer):
    """A sequence of blocks, and a norm after them if the residual asks for it (paper, 3.1).

    Args:
        num_layers: the number of blocks.
        block: the arguments of each block, see `EncoderBlock`.
        is_decoder: True makes `DecoderBlock`s, False `EncoderBlock`s.
        other_layers: the number of layers of the model's other stack; 0 if there is none.
        has_memory: False makes `CausalBlock`s for a decoder, which attend to no encoder.

    Call arguments:
        x: (B, T, D).
        attention_mask: see `EncoderBlock`. A decoder hides later positions by itself.
        memory, memory_mask: see `DecoderBlock`. A stack of other blocks has none.
        shared: the bias and the rotation of positions in self-attention.

    Returns:
        (B, T, D).

    Raises:
        ValueError: `num_layers` is not positive, or an argument of the blocks is not allowed.
    """

    is_of_model = False  # whether it is part of one of this package's models, see `auxiliary_losses.of_stack`

    def __init__(
        self,
        num_layers: int,
        block: dict[str, Any],
        is_decoder: bool = False,
        other_layers: int = 0,
        has_memory: bool = True,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**kwargs)
        require_positive(num_layers=num_layers)
        self.num_layers = num_layers
        self.block = block
        self.is_decoder = is_decoder
        self.other_layers = other_layers
        self.has_memory = is_decoder and has_memory
        self.supports_masking = True
        residual = model_spec.row("residual", block.get("residual", "post_norm")).load()
        encoder_layers, decoder_layers = (other_layers, num_layers) if is_decoder else (num_layers, other_layers)
        gain = residual.gain(encoder_layers, decoder_layers, is_decoder)
        of_decoder = DecoderBlock if self.has_memory else CausalBlock
        block_class = of_decoder if is_decoder else EncoderBlock
        count = self.num_different_blocks(num_layers)
        self.blocks = [
            block_class(**self._block_of_layer(layer), gain=gain, dtype=self.dtype_policy) for layer in range(count)
        ]
        self.norm = None
        if residual.has_final_norm:
            self.norm = make_part("norm", block.get("norm", "layer"), self.dtype_policy, {})

    def _block_of_layer(self, layer: int) -> dict[str, Any]:
        """Returns the arguments of a layer's block. Some attentions alternate with another."""
        attention = model_spec.part("attention", self.block.get("attention", "full"))
        return {**self.block, "attention": model_spec.row("attention", attention).of_layer(attention, layer)}

    def num_different_blocks(self, num_layers: int) -> int:
        """Returns the number of blocks with their own weights among `num_layers` layers."""
        return num_layers

    def blocks_in_order(self) -> Sequence[keras.layers.Layer]:
        """Returns the block of each layer, in order."""
        return self.blocks

    def position_terms(self, positions: Positions, at: Tensor) -> PositionTerms:
        """Returns what positions add to the self-attention of whole sequences. All layers share it.

        Args:
            positions: the layer.
            at: the positions (T,) of a sequence: 0, 1, 2, …
        """
        attention = self.blocks_in_order()[0].self_attention
        return PositionTerms(attention.bias_of(positions, at, self.is_decoder), positions.rotation(at, self.is_decoder))

    def position_terms_at(self, positions: Positions, cache: StackCache, index: Tensor) -> PositionTerms:
        """Returns what positions add to the self-attention of a step. All layers share it.

        Args:
            positions: the layer.
            cache: that of the step.
            index: the position (), or several (T,), see `step`.
        """
        keys = self.key_positions(cache, index)
        bias = positions.bias(ops.reshape(index, (-1,)), keys, is_causal=True)
        at = row_positions(index)
        at = ops.expand_dims(at, (1, 2)) if len(at.shape) == 2 else at  # (B, 1, 1, T) beside heads (B, 1, N, T, H)
        return PositionTerms(bias, positions.rotation(at, is_causal=True))

    def build(self, x_shape: tuple, memory_shape: tuple | None = None, **_: tuple) -> None:
        for block in self.blocks:
            block.build(*([x_shape, memory_shape or x_shape] if self.has_memory else [x_shape]))
        if self.norm is not None:
            self.norm.build(x_shape)

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        shared: PositionTerms | None = None,
        training: bool = False,
    ) -> Tensor:
        inputs = self._block_inputs(x, attention_mask, memory, memory_mask, shared)

        def apply(layer: int, x: Tensor) -> Tensor:
            return self.blocks_in_order()[layer](x, **inputs, training=training)

        with auxiliary_losses.of_stack(self, inputs["attention_mask"], training):
            x = self._through(x, apply)
        return self._with_final_norm(x)

    def with_scores(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        shared: PositionTerms | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the output of `call`, and the attention scores of every layer.

        Returns:
            (B, T, D); and "self" (layers, B, N, T, T), with a memory also "cross" (layers, B, N, T, S).
        """
        inputs = self._block_inputs(x, attention_mask, memory, memory_mask, shared)
        kinds = ("self", "cross") if self.has_memory else ("self",)
        scores: dict[str, list[Tensor]] = {kind: [] for kind in kinds}

        def apply(layer: int, x: Tensor) -> Tensor:
            x, *scores_of_block = self.blocks_in_order()[layer].with_scores(x, **inputs)
            for of_kind, new in zip(scores.values(), scores_of_block, strict=True):
                of_kind.append(new)
            return x

        x = self._with_final_norm(self._through(x, apply))
        return x, {kind: ops.stack(of_kind) for kind, of_kind in scores.items()}

    def init_cache(self, memory: Tensor, num_beams: int, max_length: Size) -> StackCache:
        """Returns the cache of `step` at position 0.

        Args:
            memory: (B, S, D). A stack without a memory takes any tensor (B, ...).
            num_beams: K.
            max_length: the number of positions that can be decoded.

        Returns:
            See `StackCache`.
        """
        blocks, batch_size = self.blocks_in_order(), ops.shape(memory)[0]
        return {
            "beams": [block.self_attention.init_cache(batch_size, num_beams, max_length) for block in blocks],
            "sentences": self._projected(memory) if self.has_memory else [],
        }

    def _projected(self, memory: Tensor) -> list[KeysValues]:
        """Returns the memory as each layer's encoder-decoder attention projects it."""
        return [block.cross_attention.project_memory(memory) for block in self.blocks_in_order()]

    @property
    def supports_prefill(self) -> bool:
        """Whether `step` takes several positions of a prompt, as all its self-attentions must."""
        return all(block.self_attention.supports_prefill for block in self.blocks)

    def key_positions(self, cache: StackCache, index: Tensor) -> Tensor:
        """Returns the positions (S,) of the keys that the step at `index` sees; negative where there is none yet."""
        return self.blocks_in_order()[0].self_attention.key_positions(cache["beams"][0], index)

    def step(
        self,
        x: Tensor,
        cache: StackCache,
        memory_mask: Tensor | None,
        index: Tensor,
        shared: PositionTerms | None = None,
        scores: list[Tensor] | None = None,
    ) -> tuple[Tensor, StackCache]:
        """Decodes one position of K beams; or several of one beam, if the stack has no memory and `supports_prefill`.

        Args:
            x: (B, K, D), the states of the beams at `index`; or (B, T, D), those of one beam at T positions.
            cache: from `init_cache`, or from the previous step.
            memory_mask, index, shared: see `DecoderBlock.step`, `CausalBlock.step`. Without a memory there is no mask.
            scores: a list that gets each layer's scores (B, N, K, S) of the memory.

        Returns:
            (B, K or T, D), and the cache with `index` in it.
        """
        beams = []

        def apply(layer: int, x: Tensor) -> Tensor:
            memory = (cache["sentences"][layer], memory_mask) if self.has_memory else ()
            beside = {"scores": scores} if self.has_memory else {}
            x, block_cache = self.blocks_in_order()[layer].step(
                x, cache["beams"][layer], *memory, index, shared, **beside
            )
            beams.append(block_cache)
            return x

        x = self._with_final_norm(self._through(x, apply, index))
        return x, {**cache, "beams": beams}

    def _through(self, x: Tensor, apply: Callable[[int, Tensor], Tensor], index: Tensor | None = None) -> Tensor:
        """Passes states through all layers.

        Args:
            x: (B, T, D) the states of a whole sequence, or (B, K, D) those of K beams at one position.
            apply: applies one layer, given its number and the states.
            index: the position of the beams, or several (T,); None for a whole sequence.
        """
        for layer in range(self.num_layers):
            x = apply(layer, x)
        return x

    def _block_inputs(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        memory: Tensor | None,
        memory_mask: Tensor | None,
        shared: PositionTerms | None,
    ) -> dict[str, Any]:
        """Returns the arguments of a block beside its states. One mask, of Keras's mask too, serves all blocks."""
        mask = joint_mask(attention_mask, ops.keras_mask(x))
        if self.is_decoder and any(block.self_attention.needs_causal_mask for block in self.blocks):
            mask = combined_masks(causal_mask(ops.shape(x)[1]), mask)
        inputs = {"attention_mask": mask, "shared": replace(shared or PositionTerms(), is_masked=True)}
        return {**inputs, "memory": memory, "memory_mask": memory_mask} if self.has_memory else inputs

    def _with_final_norm(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """Returns the layers that `summary(expand_nested=True)` shows."""
        return [*self.blocks, *([] if self.norm is None else [self.norm])]

    def compute_output_shape(self, x_shape: Shape, *_: Shape | None, **__: Shape | None) -> Shape:
        return x_shape


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
        **kwargs: Unpack[LayerArguments],
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

    def blocks_in_order(self) -> Sequence[keras.layers.Layer]:
        return [self.blocks[0]] * self.num_layers

    def build(self, x_shape: tuple, memory_shape: tuple | None = None, **_: tuple) -> None:
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

    def _projected(self, memory: Tensor) -> list[KeysValues]:
        projected = self.blocks[0].cross_attention.project_memory(memory)  # once: all steps have the same weights
        return [projected] * self.num_layers

    def _through(self, x: Tensor, apply: Callable[[int, Tensor], Tensor], index: Tensor | None = None) -> Tensor:
        positions = ops.arange(ops.shape(x)[1]) if index is None else row_positions(index)

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
            # A halting position gets the remainder.
            weight = running * probability + halts * (1.0 - spent - probability)
            output = output + weight * ops.cast(x, "float32")
            pondered = pondered + running + halts * weight  # steps, and in the end the remainder
            spent, running = spent + weight, running - halts
        self._report(pondered)
        return ops.cast(output, x.dtype)

    def halting_probability(self, x: Tensor) -> Tensor:
        """Computes the halting probabilities (..., 1) float32 of states (..., D)."""
        kernel, bias = (ops.cast(weight, "float32") for weight in (self.halting_kernel, self.halting_bias))
        return ops.sigmoid(ops.matmul(ops.cast(x, "float32"), kernel) + bias)

    def _report(self, pondered: Tensor) -> None:
        """Reports the ponder cost of positions (B, T, 1), each with its number of steps and its remainder."""
        if not self.has_auxiliary_loss or not auxiliary_losses.are_collected():
            return
        real = auxiliary_losses.real_tokens(pondered)
        cost = self.ponder_cost * ops.sum(real * pondered[..., 0])
        counts = ops.reshape(ops.sum(real), (1,))
        auxiliary_losses.report(self, counts, lambda counts: cost / ops.maximum(counts[0], 1.0))


def coordinates(positions: Tensor, step: int, hidden_dim: int) -> Tensor:
    """Returns what a step adds to the states at positions (...): (..., D) float32 (section 2.1)."""
    waves = [sinusoidal_positions(ops.convert_to_tensor(each), hidden_dim) for each in (positions, step)]
    return waves[0] + waves[1]
