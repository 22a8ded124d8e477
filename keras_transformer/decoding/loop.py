"""What beam search and sampling share: the step, the loop over positions, and operations on beams.

Letters of the shapes in this package: B sentences, K beams or samples, C candidates, V vocabulary, L the longest
output, P the longest prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from keras_transformer import ops
from keras_transformer.tensor import Tensor
from keras_transformer.text.tokenizer import END, PAD, START

# {"beams": nest of tensors (B, K, ...), "sentences": nest of tensors (B, ...)}. When beams change places, what is under
# "beams" moves with them; what is under "sentences" stays.
Cache = dict[str, Any]
# (token_ids (B, K), cache, index ()) → (logits (B, K, V), cache)
Step = Callable[[Tensor, Cache, Tensor], tuple[Tensor, Cache]]

# The log-probability and score of a hypothesis that does not exist. It is finite: ONNX Runtime's TopK on CUDA, given
# -inf, returns places outside the row. Ask `exists`: a sum moves NONE down, so it equals no number.
NONE = -1e30


# What one step of a loop hands to the next.
State = TypeVar("State", bound=NamedTuple)
# What the steps of a loop know of each sentence.
Given = TypeVar("Given", bound=NamedTuple)


class Blank(NamedTuple):
    """What a loop begins with, before any token is emitted."""

    index: Tensor  # () 0
    token_ids: Tensor  # (B, K) the start id
    ids: Tensor  # (B, K, L) pad; for a blank sentence the end id, then pad
    log_probs: Tensor  # (B, K) 0
    is_blank: Tensor  # (B, K) True: the limit of the sentence is 0


def blank(bounds: Bounds, num_rows: int) -> Blank:
    """The beginning of a loop with K = `num_rows`."""
    limits, max_length = bounds.limits, bounds.max_length
    zeros = ops.zeros((ops.shape(limits)[0], num_rows), dtype=limits.dtype)  # (B, K)
    is_blank = zeros + limits[:, None] == 0  # (B, K)
    ids = ops.where(is_blank[..., None] & (ops.arange(max_length) == 0), END, PAD)  # (B, K, L)
    return Blank(
        index=ops.zeros((), dtype=limits.dtype),
        token_ids=zeros + START,
        ids=ops.cast(ids, limits.dtype),
        log_probs=ops.cast(zeros, "float32"),
        is_blank=is_blank,
    )


@ops.replaceable
def run_loop(
    advance: Callable[[State, Given], State],
    state: State,
    done: Callable[[State], Tensor],
    given: Given,
    begin: Callable[[State], State] = lambda state: state,
) -> State:
    """Advances the state until all of `done(state)` is true. An export may drop sentences that are done.

    Args:
        advance: (state, given) → state. Of what a sentence has, it uses what these hold alone.
        state: a named tuple of tensors (B, ...), of scalars, and of the cache.
        done: state → (B,) or (B, K).
        given: what does not change: a named tuple of tensors (B, ...), of numbers, and None.
        begin: makes of `state` what the first step takes.
    """

    def goes_on(*fields: Any) -> Tensor:
        return ops.logical_not(ops.all(done(state._make(fields))))

    def body(*fields: Any) -> tuple:
        return tuple(advance(state._make(fields), given))

    return state._make(ops.while_loop(goes_on, body, tuple(begin(state))))


class Bounds(NamedTuple):
    """What a loop knows of each sentence from the start; all integers that follow have this type."""

    limits: Tensor  # (B,) the most tokens to emit, at most L
    max_length: int | Tensor  # L, at least 1, so that an end id has room
    prefix_ids: Tensor | None  # (B, P) what it emits first
    num_read: Tensor | None = None  # (B,) tokens of the prompt, which no length counts


def fit(
    limits: Tensor, max_length: int | Tensor | None, prefix_ids: Tensor | None, dtype: str, num_read: Any = None
) -> Bounds:
    """The bounds of a loop; L is by default the largest limit."""
    if max_length is None:
        max_length = ops.maximum(ops.max(limits), 1)
    limits = ops.cast(ops.minimum(limits, max_length), dtype)
    prefix_ids, num_read = (None if each is None else ops.cast(each, dtype) for each in (prefix_ids, num_read))
    return Bounds(limits, max_length, prefix_ids, num_read)


def permit(logits: Tensor, prefix_ids: Tensor | None, index: Tensor, num_control_ids: int = 4) -> Tensor:
    """Logits (B, K, V) with `NONE` for tokens that may not be emitted.

    These are the control ids but the end; and where a prefix has a token at this position, all other tokens.
    """
    vocabulary = ops.arange(ops.shape(logits)[-1])  # (V,)
    permitted = is_permitted(vocabulary, num_control_ids)
    if prefix_ids is not None:
        here = ops.equal(ops.arange(ops.shape(prefix_ids)[1]), index)  # (P,)
        forced = ops.sum(ops.where(here, prefix_ids, 0), axis=1)[:, None, None]  # (B, 1, 1)
        permitted = ops.where(forced == 0, permitted, ops.equal(vocabulary, forced))  # (B, 1, V)
    return ops.where(permitted, logits, NONE)


def is_permitted(token_ids: Tensor, num_control_ids: int) -> Tensor:
    """Whether tokens may be emitted: all but the control ids, and of these the end."""
    if num_control_ids == END + 1:
        return token_ids >= END
    return (token_ids >= num_control_ids) | (token_ids == END)


def exists(values: Any) -> Any:
    """Whether log-probabilities or scores are of hypotheses that exist; for numbers, arrays and tensors."""
    return values > NONE / 10


def k_best(scores: Tensor, k: int, dtype: str) -> tuple[Tensor, Tensor]:
    """The k best along the last axis, best first, and their places."""
    scores, places = ops.top_k(scores, k)
    return scores, ops.cast(places, dtype)


def count(truths: Tensor, dtype: str) -> Tensor:
    """How many are true along the last axis."""
    return ops.sum(ops.cast(truths, dtype), axis=-1)


def pick(values: Tensor, places: Tensor) -> Tensor:
    """values (B, K, V), places (B, K) → (B, K)."""
    here = ops.equal(ops.arange(ops.shape(values)[-1]), places[..., None])  # (B, K, V)
    return ops.sum(ops.where(here, values, ops.zeros_like(values)), axis=-1)


@ops.replaceable
def follow(cache: Any, beams: Tensor) -> Any:
    """The cache, a nest of (B, K, ...), of the beams (B, K) that others continue."""
    return ops.map_structure(lambda values: gather_beams(values, beams), cache)


@ops.replaceable
def gather_beams(values: Tensor, beams: Tensor) -> Tensor:
    """values (B, K, ...), beams (B, C) → (B, C, ...): each sentence picks among its own beams."""
    batch_size, num_beams, *rest = ops.shape(values)
    first = ops.arange(batch_size, dtype="int32")[:, None] * num_beams  # (B, 1) where a sentence begins
    flat = ops.reshape(values, (-1, *rest))  # (B · K, ...)
    return ops.take(flat, ops.add(first, beams), axis=0)
