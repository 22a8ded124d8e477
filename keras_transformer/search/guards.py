"""Keeps what is emitted from ending too early and from repeating itself, see `Guards`.

The rules and their order are those of transformers' processors of logits, so the same logits give the same texts.
Letters of the shapes: see `loop`.
"""

from __future__ import annotations

from keras_transformer import ops
from keras_transformer.ops import Tensor
from keras_transformer.search.loop import NO_HYPOTHESIS, Bounds, exists
from keras_transformer.spec.search_options import Guards
from keras_transformer.text.tokenizer import END, PAD


def guarded(scores: Tensor, ids: Tensor, index: Tensor, bounds: Bounds, guards: Guards | None) -> Tensor:
    """Returns the scores (B, K, V) of the next tokens, where forbidden ones have `NO_HYPOTHESIS`.

    Args:
        scores: log-probabilities, or logits. Where the next token is one of a prompt, they stay as they are.
        ids: (B, K, L) emitted so far, perhaps with offsets, see `loop.Step`.
        index: () how many these are.
        bounds: with what a language model has read, which counts as if it had been emitted.
        guards: what to forbid; None: nothing.
    """
    if guards is None:
        return scores
    size, index = ops.shape(scores)[-1], ops.cast(index, "int32")
    before, allowed = _before(ids, index, bounds, size), scores
    if guards.repetition_penalty != 1:
        less = ops.where(scores < 0, scores * guards.repetition_penalty, scores / guards.repetition_penalty)
        allowed = ops.where(ops.contains(before, size), less, allowed)
    if guards.no_repeat_ngram_size:
        ends = ops.where(_end_ngrams(before, index, guards.no_repeat_ngram_size), before, PAD)
        allowed = ops.where(ops.contains(ends, size), NO_HYPOTHESIS, allowed)
    num_read = None if bounds.prompt_length is None else ops.cast(bounds.prompt_length, "int32")[:, None, None]
    if guards.min_length:
        added = index if num_read is None else index - num_read
        is_early = (added < guards.min_length) & ops.equal(ops.arange(size), END)
        if guards.no_repeat_ngram_size:  # where no token is left, a text ends
            is_early = is_early & ops.any(exists(allowed) & (ops.arange(size) > END), axis=-1, keepdims=True)
        allowed = ops.where(is_early, NO_HYPOTHESIS, allowed)
    return allowed if num_read is None else ops.where(index < num_read, scores, allowed)


def _before(ids: Tensor, index: Tensor, bounds: Bounds, size: int | Tensor) -> Tensor:
    """Returns what stands at the positions (B, K, 1 + L) from the start to `index`, and pads, which nothing emits."""
    ids = ops.pad(ops.cast(ops.mod(ids, size), "int32"), [[0, 0], [0, 0], [1, 0]])
    length = ops.shape(ids)[-1]
    if bounds.read_ids is not None:
        read = ops.pad(ops.cast(bounds.read_ids, "int32"), [[0, 0], [0, length]])[:, :length]
        ids = ops.where((read == PAD)[:, None], ids, read[:, None])
    return ops.where(ops.arange(length) <= index, ids, PAD)


def _end_ngrams(ids: Tensor, index: Tensor, size: int) -> Tensor:
    """Tells (B, K, 1 + L) where the n - 1 tokens before a token are the last ones."""
    length = ops.shape(ids)[-1]
    place = ops.arange(length)
    alike = (place >= size - 1) & (ids != PAD)
    for back in range(1, size):
        last = ops.sum(ops.where(ops.equal(place, index + 1 - back), ids, 0), axis=-1, keepdims=True)  # (B, K, 1)
        earlier = ops.pad(ids, [[0, 0], [0, 0], [back, 0]])[..., :length]
        alike = alike & ops.equal(earlier, last)
    return alike
