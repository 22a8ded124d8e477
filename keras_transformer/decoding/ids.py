"""Ids as artefacts take and give them: checked, cut, and between them and the ragged pieces of a tokenizer.

Letters in shapes: B texts, S ids of a text, L of what is emitted.
"""

from __future__ import annotations

from typing import Any

from keras_transformer import ops
from keras_transformer.lengths import longest
from keras_transformer.tensor import Tensor
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN


def permitted(ids: Tensor, vocabulary_size: int, max_length: int) -> Tensor:
    """Replaces ids that the vocabulary lacks by unknown; cuts rows of more than `max_length` pieces, and ends them."""
    ids = known(ids, vocabulary_size)[:, : max_length + 1]
    last = ops.arange(ops.shape(ids)[1]) == max_length
    return ops.where(last & (ids != PAD), END, ids)


def known(ids: Tensor, vocabulary_size: int) -> Tensor:
    """Ids, those that the vocabulary lacks replaced by unknown."""
    return ops.where((ids >= 0) & (ids < vocabulary_size), ids, UNKNOWN)


def moved(ids: Tensor, starts: Tensor) -> Tensor:
    """Rows (B, S) from their starts (B,) on, then pad."""
    width = ops.shape(ids)[1]
    places = ops.arange(width, dtype="int32") + starts[:, None]
    rows = ops.take_along_axis(ids, ops.minimum(places, width - 1), axis=1)
    return ops.where(places < width, rows, PAD)


def limits_of(source_ids: Tensor, max_length: int | None) -> Tensor:
    """(B,) The most ids to emit: the source's length without pad and end, + 50; 0 for a blank source."""
    lengths = ops.sum(ops.cast((source_ids != PAD) & (source_ids != END), "int32"), axis=-1)
    limits = ops.where(lengths > 0, longest(lengths), 0)
    return limits if max_length is None else ops.minimum(limits, max_length)


def longest_of(lengths: Tensor) -> Tensor:
    """The largest of lengths (B,) int32, at least 1; also of none."""
    return ops.max(ops.concatenate([lengths, ops.ones((1,), "int32")], axis=0))


def with_end(pieces: Any) -> Tensor:
    """A tokenizer's ragged ids (B, pieces) → ids (B, S), with the end id, padded."""
    import tensorflow as tf

    ids = tf.pad(pieces.to_tensor(PAD), [[0, 0], [0, 1]])
    end = tf.range(tf.shape(ids)[1]) == tf.cast(tf.expand_dims(pieces.row_lengths(), 1), tf.int32)
    return tf.where(end, END, ids)


def between_ends(pieces: Any) -> Tensor:
    """A tokenizer's ragged ids (B, pieces) → ids (B, S), with the start id and the end id, padded."""
    import tensorflow as tf

    return tf.pad(with_end(pieces), [[0, 0], [1, 0]], constant_values=START)


def pieces_of(ids: Tensor) -> Any:
    """Emitted ids (rows, L) → ragged ids for a tokenizer, without end and pad."""
    import tensorflow as tf

    is_piece = (ids != PAD) & (ids != START) & (ids != END)
    lengths = tf.reduce_sum(
        tf.cast(is_piece, tf.int32), axis=1
    )  # LiteRT reads 64-bit integers as 32-bit ones, without an error
    # `tf.ragged.boolean_mask` does the same, with an operator that LiteRT lacks.
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(ids, is_piece), lengths, validate=False)
