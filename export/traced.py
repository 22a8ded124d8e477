"""The functions that SavedModel and TFLite trace: from ids to ids or states, and between ids and ragged pieces.

Letters in shapes: B texts, S ids of a text, P of a prompt, L of what is emitted, n hypotheses.
"""

from __future__ import annotations

from typing import Any

from keras_transformer import ops
from keras_transformer.decoding.prompts import Prompted, num_read
from keras_transformer.decoding.search import beam_search
from keras_transformer.lengths import longest
from keras_transformer.models.encoder import Encoder
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.transformer import Transformer
from keras_transformer.tensor import Tensor
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN

from .signatures import Decoding


def translate_ids(
    model: Transformer, source_ids: Tensor, decoding: Decoding, index_dtype: str | None = None
) -> tuple[Tensor, Tensor]:
    """The translator's search, from ids to ids.

    Args:
        model: the model.
        source_ids: (B, S) int32, pieces and the end id, then pad.
        decoding: the options of the search.
        index_dtype: as for `beam_search`.

    Returns:
        ids (B, n_best, L) int32, the best first, each with its end id (none if cut at its limit), then pad; and scores
        (B, n_best) float32. L is the limit of the batch's longest sentence.
    """
    source_ids = permitted(source_ids, model.source_vocabulary_size or model.vocabulary_size, model.max_source_length)
    limits = limits_of(source_ids, decoding.max_length)
    max_length = longest_of(limits)
    cache = model.init_cache(model.encode(source_ids), source_ids, decoding.num_beams, max_length)
    num_beams, length_penalty, n_best = decoding.num_beams, decoding.length_penalty, decoding.n_best
    return beam_search(
        model.step, cache, limits, num_beams, length_penalty, max_length, n_best=n_best, index_dtype=index_dtype,
        num_control_ids=model.num_control_ids,
    )  # fmt: skip


def continue_ids(
    model: LanguageModel, prompt_ids: Tensor, decoding: Decoding, index_dtype: str | None = None
) -> tuple[Tensor, Tensor]:
    """The generator's search in one context, from ids to ids.

    Args:
        model: the model.
        prompt_ids: (B, P) int32, pieces, then pad. Of a prompt that fills the context, the last half of the context
            counts.
        decoding: the options of the search; `max_length` counts what is added, by default as much as the context holds.
        index_dtype: as for `beam_search`.

    Returns:
        ids (B, n_best, L) int32 of what is added, as from `translate_ids`; and scores (B, n_best) float32.
    """
    context = model.context_length
    prompt_ids = known(ops.pad(prompt_ids, [[0, 0], [0, 1]]), model.vocabulary_size)
    lengths = num_read(prompt_ids)  # (B,)
    prompt_ids = moved(prompt_ids, ops.where(lengths < context, 0, lengths - context // 2))[..., :context]
    lengths = ops.where(lengths < context, lengths, context // 2)
    limits = ops.minimum(lengths + (decoding.max_length or context), context)
    max_length = longest_of(limits)
    prompted = Prompted(model, prompt_ids)
    cache = prompted.init_cache(decoding.num_beams, max_length)
    ids, scores = beam_search(
        prompted.step, cache, limits, decoding.num_beams, decoding.length_penalty, max_length,
        n_best=decoding.n_best, index_dtype=index_dtype, num_control_ids=model.num_control_ids, num_read=lengths,
    )  # fmt: skip
    rows = ops.reshape(ids, (-1, max_length))
    return ops.reshape(moved(rows, ops.repeat(lengths, decoding.num_listed)), ops.shape(ids)), scores


def encoded(model: Encoder, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (B, S) from outside → ids that the model takes, and their states."""
    ids = permitted(ids, model.vocabulary_size, model.context_length - 1)
    return ids, model.states(ids)


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
