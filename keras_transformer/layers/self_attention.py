"""What self-attention asks for before a stack runs: a bias of positions, and a mask of later positions."""

from __future__ import annotations

from keras_transformer.layers.layer import Layer
from keras_transformer.layers.positions import Positions
from keras_transformer.tensor import Tensor


class SelfAttention(Layer):
    """The base of self-attentions. By itself it asks for what an attention of all pairs of positions needs.

    An attention of few pairs overrides both members. Then nothing is made that is as large as all pairs.
    """

    needs_causal_mask = True  # whether a decoder hides later positions from it by a mask

    def bias_of(self, positions: Positions, at: Tensor, is_causal: bool) -> Tensor | None:
        """The bias of positions in the form in which this attention adds it to the logits of whole sequences.

        Args:
            positions: the layer.
            at: the positions (S,) of a sequence: 0, 1, 2, …
            is_causal: whether no position sees a later one.

        Returns:
            (N, S, S) float32; None for no bias.
        """
        return positions.bias(at, at, is_causal)
