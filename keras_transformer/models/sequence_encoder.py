"""The decoder alone over a user's events: the history as a vector, and what comes next (Kang and McAuley 2018, SASRec,
arXiv 1808.09781)."""

from __future__ import annotations

import keras

from keras_transformer import ops
from keras_transformer.layers.masks import padding_mask
from keras_transformer.models.token_model import TokenModel
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class SequenceEncoder(TokenModel):
    """Makes a vector of a history of items, and predicts the next item after each of them.

    Ids: pad 0, unknown 1, start 2, end 3; the items follow. A history begins with the start id. The logit of an item is
    the inner product of the history's vector and the item's (SASRec, section 3.4: one matrix for input and output).

    Unlike in SASRec, a history is padded at its end, positions count from its start, and training takes the cross
    entropy over all items in place of one drawn negative item.

    Args:
        vocabulary_size: V, the items and the control ids.
        context_length: the most positions of `call`, the start included.
        arguments: the others of `Transformer` but those of two stacks; see `keras_transformer.family.ONE_STACK`.

    Call arguments:
        inputs: {"ids": (B, T)}, integers, padded with 0.

    Returns:
        Logits (B, T, V) of the item that follows each position.

    Raises:
        ValueError: an argument is unknown, its value is not allowed, or two arguments contradict each other.

    Example:

    >>> model = SequenceEncoder(vocabulary_size=90, num_layers=2, hidden_dim=64, num_heads=2, intermediate_dim=128)
    >>> tuple(model.embed(np.array([[2, 7, 8]])).shape)
    (1, 64)
    """

    is_decoder = True

    def embed(self, ids: Tensor) -> Tensor:
        """The vector (B, D) of each history (B, T): the state of its last position, float32."""
        return ops.cast(self._last_states(ids), "float32")

    def scores(self, ids: Tensor) -> Tensor:
        """Logits (B, V) of the item that follows each history (B, T), float32."""
        return ops.cast(self.output_embedding.logits(self._last_states(ids)), "float32")

    def item_vectors(self) -> Tensor:
        """The vectors (items, D) of all items, float32."""
        return ops.convert_to_tensor(self.output_embedding.embeddings)[self.num_control_ids :]

    def _last_states(self, ids: Tensor) -> Tensor:
        lengths = ops.sum(ops.cast(padding_mask(ids), "int32"), axis=1)
        last = ops.maximum(lengths - 1, 0)[:, None, None]  # (B, 1, 1)
        return ops.take_along_axis(self.states(ids), last, axis=1)[:, 0]
