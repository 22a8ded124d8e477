"""The block of a decoder that stands alone, as in a language model."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer.layers.blocks import EncoderBlock
from keras_transformer.layers.shared import Shared
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class CausalBlock(EncoderBlock):
    """`EncoderBlock` in which no position sees a later one (Liu et al. 2018, arXiv 1801.10198, section 4.2.2).

    `call` takes whole sequences, with a causal mask if the self-attention needs one. `step` takes one position and a
    cache. Both compute the same.
    """

    is_causal = True

    def step(self, x: Tensor, cache: Any, index: Tensor, shared: Shared | None = None) -> tuple[Tensor, Any]:
        """Decodes one position of K beams.

        Args:
            x: (B, K, D), the states of the beams at `index`.
            cache: the cache of self-attention, from its `init_cache` or from the previous step.
            index: the position, from 0.
            shared: the bias and the rotation of this position.

        Returns:
            (B, K, D), and the cache with this position in it.
        """
        caches: dict[str, Any] = {}

        def attend(x: Tensor) -> Tensor:
            x, caches["self"] = self.self_attention.step(x, cache, index, shared)
            return x

        return self._sublayers(x, attend), caches["self"]
