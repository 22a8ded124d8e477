"""Writes positions as ONNX nodes.

The layer itself computes tables: vectors, cosines and sines, biases. They are constants, of which a graph takes the
rows that it needs. The letters in shapes are those of `model`; L is the number of positions in a table.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from keras import ops

from keras_transformer.layers.attention import HIDDEN
from keras_transformer.layers.positions import Positions
from keras_transformer.layers.shared import Rotation
from keras_transformer.tensor import Tensor

from .arithmetic import Arithmetic
from .graph import Graph, Value


class WrittenPositions:
    """The base of writers of positions. By itself it adds nothing.

    Args:
        layer: the layer.
        arithmetic: the precision.
        num_positions: L.
        num_sharing: how many rows of a sentence share keys and values in a step.
    """

    def __init__(self, layer: Positions, arithmetic: Arithmetic, num_positions: int, num_sharing: int = 1):
        self.layer = layer
        self.arithmetic = arithmetic
        self.num_positions = num_positions
        self.num_sharing = num_sharing

    def vectors(self, g: Graph, ids: Value) -> Value | None:
        """What is added to the encoder's embeddings of ids (B, S): (S, D); None for nothing."""
        return None

    def vector(self, g: Graph, index: Value) -> Value | None:
        """What is added to the decoder's embedding at one position: (D,); None for nothing."""
        return None

    def sequence_rotation(self, g: Graph, ids: Value, is_causal: bool) -> Rotation | None:
        """The rotation of queries and keys of ids (B, S), see `rotated`; None for no rotation."""
        return None

    def step_rotation(self, g: Graph, index: Value) -> Rotation | None:
        """The rotation of query and key at one position, see `rotated`; None for no rotation."""
        return None

    def sequence_bias(self, g: Graph, ids: Value, bias: Value, is_causal: bool) -> Value:
        """The bias of the logits for ids (B, S): `bias` (B, 1, 1, S), and what positions add to it."""
        return bias

    def future(self, g: Graph, ids: Value) -> Value:
        """(S, S) The bias that hides later positions of ids (B, S)."""
        hidden = np.triu(np.full((self.num_positions, self.num_positions), HIDDEN, "float32"), 1)
        width = g.shape(ids, 1)
        return g("Slice", hidden, [0, 0], g.joined(width, width), [0, 1])

    def step_bias(self, g: Graph, index: Value, bias: Value | None) -> Value | None:
        """The bias of self-attention's logits in a step: `bias` (B, 1, K, P + K), and what positions add to it.

        Without `bias`, every row has its own keys, one for each position up to `index`.
        """
        return bias


class AddedPositions(WrittenPositions):
    """Vectors that are added to embeddings."""

    def __init__(self, layer: Positions, arithmetic: Arithmetic, num_positions: int, num_sharing: int = 1):
        super().__init__(layer, arithmetic, num_positions, num_sharing)
        nothing, positions = ops.zeros((num_positions, layer.hidden_dim)), ops.arange(num_positions)
        self.encoder_table, self.decoder_table = (
            arithmetic.array(evaluated(embed(nothing, positions))) for embed in (layer.embed, layer.embed_target)
        )  # (L, D)

    def vectors(self, g: Graph, ids: Value) -> Value | None:
        return g("Slice", self.encoder_table, [0], g.shape(ids, 1), [0])

    def vector(self, g: Graph, index: Value) -> Value | None:
        return g("Gather", self.decoder_table, index)


class RotatedPositions(WrittenPositions):
    """Rotations of queries and keys."""

    def sequence_rotation(self, g: Graph, ids: Value, is_causal: bool) -> Rotation | None:
        width = g.shape(ids, 1)
        return self.rows(is_causal, lambda table: g("Slice", table, [0], width, [0]))

    def step_rotation(self, g: Graph, index: Value) -> Rotation | None:
        return self.rows(True, lambda table: g("Gather", table, index))

    def rows(self, is_causal: bool, take: Callable[[np.ndarray], Value]) -> Rotation:
        """The rows that `take` takes of each table (L, H). Tables that are equal share their rows."""
        tables = self.layer.rotation(ops.arange(self.num_positions), is_causal)
        assert tables is not None
        values: dict[bytes, Value] = {}
        for table in self.arrays(tables):
            if table.tobytes() not in values:
                values[table.tobytes()] = take(table)
        return Rotation(*(values[table.tobytes()] for table in self.arrays(tables)))

    def arrays(self, tables: Rotation) -> list[np.ndarray]:
        """The tables for `rotated`, which needs the sines of the first halves negative."""
        signs = np.repeat(np.array([-1, 1], "float32"), evaluated(tables.key_sines).shape[-1] // 2)
        query_cosines, query_sines, key_cosines, key_sines = (evaluated(table) for table in tables)
        signed = [query_cosines, query_sines * signs, key_cosines, key_sines * signs]
        return [self.arithmetic.array(table) for table in signed]


class BiasedPositions(WrittenPositions):
    """Biases of the logits that depend on the distance of query and key alone, for each head."""

    def sequence_bias(self, g: Graph, ids: Value, bias: Value, is_causal: bool) -> Value:
        last, width = self.num_positions - 1, g.shape(ids, 1)
        # The query at `last` has the keys at all distances, from -last to last.
        table = self.layer.bias(np.array([last]), np.arange(2 * last + 1), is_causal)  # (N, 1, 2L - 1)
        keys, queries = np.arange(last + 1)[None], last - np.arange(last + 1)[:, None]
        distances = g("Add", g("Slice", keys, [0], width, [1]), g("Slice", queries, [0], width, [0]))  # (S, S)
        return g("Add", bias, g("Gather", evaluated(table)[:, 0], distances, axis=1))  # (B, N, S, S)

    def step_bias(self, g: Graph, index: Value, bias: Value | None) -> Value | None:
        last = self.num_positions - 1
        table = self.layer.bias(np.array([last]), np.arange(last + 1), is_causal=True)  # (N, 1, L), the nearest last
        # Rows that share keys have one key each at every position. Only the first position may have fewer: it is the
        # farthest, so the number of keys alone says which ones there are.
        biases = np.repeat(evaluated(table), self.num_sharing, axis=-1)[None]  # (1, N, 1, K · L)
        count = g("Add", g("Reshape", g.cast(index, np.int64), [1]), 1) if bias is None else g.shape(bias, 3)
        nearest = g("Slice", biases, g("Neg", count), [biases.shape[-1]], [3])  # (1, N, 1, P + K)
        return nearest if bias is None else g("Add", bias, nearest)


def rotated(g: Graph, x: Value, cosines: Value, sines: Value) -> Value:
    """Rotates pairs (i, i + H/2) of a head's numbers, as `keras_transformer.layers.shared.rotate` does.

    Args:
        x: (..., T, H).
        cosines, sines: (T, H) or (H,), of the type of x. The sines of the first half of H are negative.
    """
    first, second = g("Split", x, outputs=2, axis=-1)
    return g("Add", g("Mul", x, cosines), g("Mul", g.joined(second, first, axis=-1), sines))


def evaluated(table: Tensor) -> np.ndarray:
    """A table as an array."""
    return ops.convert_to_numpy(table)
