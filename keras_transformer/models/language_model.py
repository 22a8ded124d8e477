"""The decoder alone: a language model (Liu et al. 2018, arXiv 1801.10198, section 4.2.2; Radford et al. 2018)."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.models.token_model import TokenModel
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class LanguageModel(TokenModel):
    """Predicts each token of a text from those before it.

    Ids: pad 0, unknown 1, start 2, end 3. A text begins with the start id.

    Args:
        vocabulary_size: V.
        context_length: the most positions of `call`, the start included.
        arguments: the others of `Transformer` but those of two stacks; see `keras_transformer.family.ONE_STACK`.

    Call arguments:
        inputs: {"ids": (B, T)}, integers, padded with 0.

    Returns:
        Logits (B, T, V) of the token that follows each position.

    Raises:
        ValueError: an argument is unknown, its value is not allowed, or two arguments contradict each other.

    Example:

    >>> model = LanguageModel(vocabulary_size=90, num_layers=4, hidden_dim=128, num_heads=4, intermediate_dim=512)
    >>> tuple(model({"ids": np.array([[2, 7, 8]])}).shape)
    (1, 3, 90)
    """

    is_decoder = True

    def init_cache(self, ids: Tensor, num_beams: int, max_length: int) -> dict[str, Any]:
        """The cache of `step` at position 0.

        Args:
            ids: (B, ...), of the batch to decode.
            num_beams: K.
            max_length: L, the number of positions that can be decoded.

        Returns:
            "beams" holds the cache of each layer's self-attention, by default keys and values (B, K, G, L, H).
        """
        return self.stack.init_cache(ids, num_beams, max_length)

    def step(self, token_ids: Tensor, cache: dict[str, Any], index: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Decodes one position of every beam.

        Args:
            token_ids: (B, K), the tokens at position `index`. At index 0 they are start ids.
            cache: from `init_cache`, or from the previous step.
            index: the position from 0, a number or a scalar tensor.

        Returns:
            Logits (B, K, V) of the tokens at `index` + 1, in float32; and the cache with this position in it.
        """
        position = ops.convert_to_tensor(index)
        shared = self.stack.shared_at(self.positions, cache, position)
        x, cache = self.stack.step(self._placed(self.embedding(token_ids), position), cache, None, index, shared)
        return ops.cast(self.output_embedding.logits(x), "float32"), cache
