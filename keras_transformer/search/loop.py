"""The loop that beam search and sampling share: the step of a model, what bounds it, and operations on beams.

Letters of the shapes in this package: B sentences, K beams or samples, C candidates, V vocabulary, L the longest
output, P the longest prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from keras_transformer import ops
from keras_transformer.ops import Tensor
from keras_transformer.text.tokenizer import END, PAD, START

# {"beams": nest of tensors (B, K, ...), "sentences": nest of tensors (B, ...)}. When beams change places, what is under
# "beams" moves with them; what is under "sentences" stays.
Cache = dict[str, Tensor]
# (token_ids (B, K), cache, index ()) → (logits (B, K, V), cache). The cache may also hold "offsets" (B, K), in the type
# of the loop's integers: they are added to the ids of the next tokens, in the result alone. So a step notes something.
Step = Callable[[Tensor, Cache, Tensor], tuple[Tensor, Cache]]
State = TypeVar("State", bound=NamedTuple)

# The log-probability and score of a hypothesis that does not exist. It is finite: ONNX Runtime's TopK on CUDA, given
# -inf, returns places outside the row. Ask `exists`: a sum moves this number down, so it equals no other.
NO_HYPOTHESIS = -1e30


class Bounds(NamedTuple):
    """What a loop knows of each sentence from the start; all integers of the loop have the type of these."""

    limits: Tensor  # (B,) the most tokens to emit, at most L
    max_length: int | Tensor  # L, at least 1, so that an end id has room
    prefix_ids: Tensor | None  # (B, P) what it emits first
    prompt_length: Tensor | None = None  # (B,) tokens of the prompt, which no length counts
    uniforms: Tensor | None = None  # (B, K, L) in [0, 1), by which samples are drawn; a graph knows K
    read_ids: Tensor | None = None  # (B, 1 + P) what a language model reads, from position 0 on; guards look at it


def make_bounds(
    limits: Tensor,
    max_length: int | Tensor | None,
    prefix_ids: Tensor | None,
    dtype: str,
    prompt_length: Tensor | None = None,
    read_ids: Tensor | None = None,
) -> Bounds:
    """Makes the bounds of a loop. L is by default the largest limit, and limits above it are lowered to it."""
    if max_length is None:
        max_length = ops.maximum(ops.max(limits), 1)
    limits = ops.cast(ops.minimum(limits, max_length), dtype)
    prefix_ids, prompt_length, read_ids = (
        None if ids is None else ops.cast(ids, dtype) for ids in (prefix_ids, prompt_length, read_ids)
    )
    return Bounds(limits, max_length, prefix_ids, prompt_length, read_ids=read_ids)


class InitialState(NamedTuple):
    """What a loop begins with, before any token is emitted."""

    index: Tensor  # () 0, or the position behind what was read
    token_ids: Tensor  # (B, K) the start id
    ids: Tensor  # (B, K, L) pad; for a blank sentence the end id, then pad
    log_probs: Tensor  # (B, K) 0
    is_blank: Tensor  # (B, K) True: the limit of the sentence is 0


def initial_state(bounds: Bounds, num_rows: int, index: Tensor | None = None) -> InitialState:
    """Returns the beginning of a loop with K = `num_rows`, at position `index` if prompts were read before."""
    limits, max_length = bounds.limits, bounds.max_length
    zeros = ops.zeros((ops.shape(limits)[0], num_rows), dtype=limits.dtype)  # (B, K)
    is_blank = zeros + limits[:, None] == 0  # (B, K)
    ids = ops.where(is_blank[..., None] & (ops.arange(max_length) == 0), END, PAD)  # (B, K, L)
    return InitialState(
        index=ops.zeros((), dtype=limits.dtype) if index is None else ops.cast(index, limits.dtype),
        token_ids=zeros + START,
        ids=ops.cast(ids, limits.dtype),
        log_probs=ops.cast(zeros, "float32"),
        is_blank=is_blank,
    )


@ops.overridable
def run_loop(
    advance: Callable[[State, Bounds], State],
    state: State,
    done: Callable[[State], Tensor],
    bounds: Bounds,
    begin: Callable[[State], State] = lambda state: state,
) -> State:
    """Advances the state until all of `done(state)` is true. An export may drop sentences that are done.

    Args:
        advance: (state, bounds) → state. Of what a sentence has, it uses what these hold alone.
        state: a named tuple of tensors (B, ...), of scalars, and of the cache.
        done: state → (B,) or (B, K).
        bounds: what does not change.
        begin: makes of `state` what the first step takes.
    """

    def goes_on(*fields: Tensor) -> Tensor:
        return ops.logical_not(ops.all(done(state._make(fields))))

    def body(*fields: Tensor) -> tuple[Tensor, ...]:
        return tuple(advance(state._make(fields), bounds))

    return state._make(ops.while_loop(goes_on, body, tuple(begin(state))))


def without_offsets(cache: Cache) -> tuple[Tensor | None, Cache]:
    """Takes the offsets, see `Step`, out of a cache."""
    return cache.get("offsets"), {name: part for name, part in cache.items() if name != "offsets"}


def fill_prompt(ids: Tensor, index: Tensor | None, num_control_ids: int) -> Tensor:
    """Puts placeholders into ids (B, K, L) at the positions before `index`, which a model has read; None: there are
    none. See `PromptForcing`."""
    if index is None:
        return ids
    placeholder = ops.cast(num_control_ids, ids.dtype)
    return ops.where(ops.arange(ops.shape(ids)[-1], dtype="int32") < ops.cast(index, "int32"), placeholder, ids)


def mask_forbidden(logits: Tensor, prefix_ids: Tensor | None, index: Tensor, num_control_ids: int = 4) -> Tensor:
    """Replaces the logits (B, K, V) of tokens that may not be emitted by `NO_HYPOTHESIS`.

    These are the control ids but the end; and where a prefix has a token at this position, all other tokens.
    """
    vocabulary = ops.arange(ops.shape(logits)[-1])  # (V,)
    permitted = is_permitted(vocabulary, num_control_ids)
    if prefix_ids is not None:
        forced = id_at(prefix_ids, index)[:, None]  # (B, 1, 1)
        permitted = ops.where(forced == 0, permitted, ops.equal(vocabulary, forced))  # (B, 1, V)
    return ops.where(permitted, logits, NO_HYPOTHESIS)


def is_permitted(token_ids: Tensor, num_control_ids: int) -> Tensor:
    """Tells which tokens may be emitted: all but the control ids, and of these the end."""
    if num_control_ids == END + 1:
        return token_ids >= END
    return (token_ids >= num_control_ids) | (token_ids == END)


def merge_end_ids(logits: Tensor, ids: int | Sequence[int]) -> Tensor:
    """Lets the first of the ids that end a text stand for all: its probability is their sum, the others have none.

    Args:
        logits: (..., V).
        ids: one, or several that differ.

    Returns:
        Logits (..., V), in float32 if there are several ids. The probabilities of all other ids stay.
    """
    first, *others = np.atleast_1d(ids).tolist()
    if not others:
        return logits
    logits, vocabulary = ops.cast(logits, "float32"), np.arange(logits.shape[-1])
    alike = ops.take(logits, np.array([first, *others], "int32"), axis=-1)
    most = ops.max(alike, axis=-1, keepdims=True)
    summed = most + ops.log(ops.sum(ops.exp(alike - most), axis=-1, keepdims=True))  # (..., 1)
    return ops.where(vocabulary == first, summed, ops.where(np.isin(vocabulary, others), NO_HYPOTHESIS, logits))


def merge_end_labels(labels: Tensor, ids: int | Sequence[int]) -> Tensor:
    """Replaces all ids that end a text in labels (..., T) by the first of them."""
    first, *others = np.atleast_1d(ids).tolist()
    for other in others:
        labels = ops.where(labels == other, first, labels)
    return labels


def exists(values: Tensor) -> Tensor:
    """Tells which log-probabilities or scores are of hypotheses that exist; for numbers, arrays and tensors."""
    return values > NO_HYPOTHESIS / 10


def k_best(scores: Tensor, k: int, dtype: str) -> tuple[Tensor, Tensor]:
    """Returns the k best along the last axis, best first, and their places."""
    scores, places = ops.top_k(scores, k)
    return scores, ops.cast(places, dtype)


def count_true(truths: Tensor, dtype: str) -> Tensor:
    """Counts what is true along the last axis."""
    return ops.sum(ops.cast(truths, dtype), axis=-1)


def select_entries(values: Tensor, places: Tensor) -> Tensor:
    """Selects one entry of each row: values (B, K, V), places (B, K) → (B, K)."""
    here = ops.equal(ops.arange(ops.shape(values)[-1]), places[..., None])  # (B, K, V)
    return ops.sum(ops.where(here, values, ops.zeros_like(values)), axis=-1)


def id_at(ids: Tensor, place: Tensor) -> Tensor:
    """Returns the ids (B, 1) at one place of rows (B, P); 0 outside of them."""
    here = ops.equal(ops.arange(ops.shape(ids)[1]), ops.cast(place, "int32"))  # (P,)
    return ops.sum(ops.where(here, ids, 0), axis=1, keepdims=True)


@ops.overridable
def reorder_cache(cache: Tensor, beams: Tensor) -> Tensor:
    """Returns the cache, a nest of (B, K, ...), of the beams (B, K) that others continue."""
    return ops.map_structure(lambda values: gather_beams(values, beams), cache)


@ops.overridable
def gather_beams(values: Tensor, beams: Tensor) -> Tensor:
    """Gathers among the beams of each sentence: values (B, K, ...), beams (B, C) → (B, C, ...)."""
    batch_size, num_beams, *rest = ops.shape(values)
    first = ops.arange(batch_size, dtype="int32")[:, None] * num_beams  # (B, 1) where a sentence begins
    flat = ops.reshape(values, (-1, *rest))  # (B · K, ...)
    return ops.take(flat, ops.add(first, beams), axis=0)
