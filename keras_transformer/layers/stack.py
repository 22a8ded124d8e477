"""A stack of blocks: the one loop over blocks, for whole sequences, for one step with a cache, and for scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer import family
from keras_transformer.errors import require_positive
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.parts import make_part
from keras_transformer.layers.shared import Shared
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class Stack(keras.layers.Layer):
    """Blocks one after the other, and a norm behind them where the residual asks for one (paper, 3.1).

    Args:
        num_layers: how many blocks.
        block: arguments of `EncoderBlock`.
        is_decoder: blocks are `DecoderBlock`s, which look at a memory.
        other_layers: how many blocks the other side of the model has; 0 where there is none.

    Call arguments:
        x: (B, T, D).
        attention_mask: as for the blocks.
        memory, memory_mask: as for `DecoderBlock`; left out where there is no memory.
        shared: what positions add to self-attention.

    Returns:
        (B, T, D).

    Raises:
        ValueError: `num_layers` is not positive, or the blocks refuse an argument.
    """

    def __init__(
        self, num_layers: int, block: dict[str, Any], is_decoder: bool = False, other_layers: int = 0, **kwargs: Any
    ):
        super().__init__(**kwargs)
        require_positive(num_layers=num_layers)
        block = family.modern(block)
        self.num_layers = num_layers
        self.block = block
        self.is_decoder = is_decoder
        self.other_layers = other_layers
        self.supports_masking = True
        residual = family.row("residual", block.get("residual", "post_norm")).load()
        sides = (other_layers, num_layers) if is_decoder else (num_layers, other_layers)
        gain = residual.gain(*sides, is_decoder)  # type: ignore[attr-defined]
        block_class = DecoderBlock if is_decoder else EncoderBlock
        count = self.num_different_blocks(num_layers)
        self.blocks = [block_class(**block, gain=gain, dtype=self.dtype_policy) for _ in range(count)]
        self.norm = None
        if residual.closes_stack:  # type: ignore[attr-defined]
            self.norm = make_part("norm", block.get("norm", "layer"), self.dtype_policy, {})

    def num_different_blocks(self, num_layers: int) -> int:
        """How many blocks of so many layers have weights of their own."""
        return num_layers

    def blocks_in_order(self) -> Sequence[Any]:
        """The blocks, as they follow one another: as many as there are layers."""
        return self.blocks

    def build(self, x_shape: tuple, memory_shape: tuple | None = None, **_: Any) -> None:
        for block in self.blocks:
            block.build(*([x_shape, memory_shape or x_shape] if self.is_decoder else [x_shape]))
        if self.norm is not None:
            self.norm.build(x_shape)

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        shared: Shared | None = None,
        training: bool = False,
    ) -> Tensor:
        seen = self._seen(attention_mask, memory, memory_mask)
        for block in self.blocks_in_order():
            x = block(x, *seen, shared=shared, training=training)
        return self._closed(x)

    def with_scores(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        shared: Shared | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What `call` returns, and the scores: "self" (layers, B, N, T, T), and of a decoder "cross" (layers, B, N, T,
        S)."""
        seen = self._seen(attention_mask, memory, memory_mask)
        layers = []
        for block in self.blocks_in_order():
            x, *scores = block.with_scores(x, *seen, shared=shared)
            layers.append(scores)
        kinds = zip(("self", "cross"), zip(*layers, strict=True), strict=False)
        return self._closed(x), {kind: ops.stack(scores) for kind, scores in kinds}

    def init_cache(self, memory: Tensor, num_beams: int, max_length: Any) -> dict[str, Any]:
        """What `step` needs to know of a sentence, and room for what it will know of its beams.

        Args:
            memory: (B, S, D).
            num_beams: K.
            max_length: how many positions can be decoded.

        Returns:
            "beams": the cache of each block's self-attention, tensors (B, K, ...), which a search reorders with its
            beams; "sentences": what each block's encoder-decoder attention made of the memory, tensors (B, ...).
        """
        blocks, batch_size = self.blocks_in_order(), ops.shape(memory)[0]
        return {
            "beams": [block.self_attention.init_cache(batch_size, num_beams, max_length) for block in blocks],
            "sentences": [block.cross_attention.project_memory(memory) for block in blocks],
        }

    def positions_of_keys(self, cache: dict[str, Any]) -> Tensor:
        """(S,) Which positions the keys have that a step's self-attention looks at."""
        return self.blocks_in_order()[0].self_attention.positions_of_keys(cache["beams"][0])

    def step(
        self, x: Tensor, cache: dict[str, Any], memory_mask: Tensor, index: Tensor, shared: Shared | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """One position for each of K beams: x (B, K, D) → (B, K, D), and the cache with this position in it.

        Args:
            cache: from `init_cache`, or from the step before.
            memory_mask, index, shared: as for `DecoderBlock.step`.
        """
        written = []
        for block, own, memory in zip(self.blocks_in_order(), cache["beams"], cache["sentences"], strict=True):
            x, own = block.step(x, own, memory, memory_mask, index, shared)
            written.append(own)
        return self._closed(x), {**cache, "beams": written}

    def _seen(self, attention_mask: Any, memory: Any, memory_mask: Any) -> list[Any]:
        """What a block takes after the states, in its order."""
        return [memory, attention_mask, memory_mask] if self.is_decoder else [attention_mask]

    def _closed(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """What `summary(expand_nested=True)` shows of it."""
        return [*self.blocks, *([] if self.norm is None else [self.norm])]

    def compute_output_shape(self, x_shape: tuple, *_: Any, **__: Any) -> tuple:
        return x_shape

    def num_parameters(self, hidden_dim: int, num_layers: int | None = None) -> int:
        """Those of the different blocks, and of the norm; of another number of layers, if it is given."""
        count = self.num_different_blocks(num_layers or self.num_layers)
        norm = 0 if self.norm is None else self.norm.num_parameters(hidden_dim)
        return count * self.blocks[0].num_parameters(hidden_dim) + norm

    def get_config(self) -> dict[str, Any]:
        config = {
            "num_layers": self.num_layers,
            "block": self.block,
            "is_decoder": self.is_decoder,
            "other_layers": self.other_layers,
        }
        return {**super().get_config(), **config}
