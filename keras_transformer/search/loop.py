"""Sampling, and what it shares with beam search: the step, the loop, operations on beams, and prompts.

Letters of the shapes in this package: B sentences, K beams or samples, C candidates, V vocabulary, L the longest
output, P the longest prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from keras_transformer import ops
from keras_transformer.ops import Tensor
from keras_transformer.search.loop import NONE
from keras_transformer.spec.options import Config
from keras_transformer.text.tokenizer import END, PAD, START

# {"beams": nest of tensors (B, K, ...), "sentences": nest of tensors (B, ...)}. When beams change places, what is under
# "beams" moves with them; what is under "sentences" stays.
Cache = Config
# (token_ids (B, K), cache, index ()) → (logits (B, K, V), cache)
Step = Callable[[Tensor, Cache, Tensor], tuple[Tensor, Cache]]


# What one step of a loop hands to the next.
State = TypeVar("State", bound=NamedTuple)
# What the steps of a loop know of each sentence.
Given = TypeVar("Given", bound=NamedTuple)


class Blank(NamedTuple):
    """What a loop begins with, before any token is emitted."""

    index: Tensor  # () 0, or the position behind what was read
    token_ids: Tensor  # (B, K) the start id
    ids: Tensor  # (B, K, L) pad; for a blank sentence the end id, then pad
    log_probs: Tensor  # (B, K) 0
    is_blank: Tensor  # (B, K) True: the limit of the sentence is 0


def blank(bounds: Bounds, num_rows: int, index: Tensor | None = None) -> Blank:
    """The beginning of a loop with K = `num_rows`, at position `index` if prompts were read before."""
    limits, max_length = bounds.limits, bounds.max_length
    zeros = ops.zeros((ops.shape(limits)[0], num_rows), dtype=limits.dtype)  # (B, K)
    is_blank = zeros + limits[:, None] == 0  # (B, K)
    ids = ops.where(is_blank[..., None] & (ops.arange(max_length) == 0), END, PAD)  # (B, K, L)
    return Blank(
        index=ops.zeros((), dtype=limits.dtype) if index is None else ops.cast(index, limits.dtype),
        token_ids=zeros + START,
        ids=ops.cast(ids, limits.dtype),
        log_probs=ops.cast(zeros, "float32"),
        is_blank=is_blank,
    )


@ops.overridable
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

    def goes_on(*fields: object) -> Tensor:
        return ops.logical_not(ops.all(done(state._make(fields))))

    def body(*fields: Any) -> tuple:
        return tuple(advance(state._make(fields), given))

    return state._make(ops.while_loop(goes_on, body, tuple(begin(state))))


def read_before(ids: Tensor, index: Tensor | None, num_control_ids: int) -> Tensor:
    """Ids (B, K, L) with placeholders at the positions before `index`, which were read, see `PromptForcing`; None: none."""
    if index is None:
        return ids
    placeholder = ops.cast(num_control_ids, ids.dtype)
    return ops.where(ops.arange(ops.shape(ids)[-1], dtype="int32") < ops.cast(index, "int32"), placeholder, ids)


class Bounds(NamedTuple):
    """What a loop knows of each sentence from the start; all integers that follow have this type."""

    limits: Tensor  # (B,) the most tokens to emit, at most L
    max_length: int | Tensor  # L, at least 1, so that an end id has room
    prefix_ids: Tensor | None  # (B, P) what it emits first
    prompt_length: Tensor | None = None  # (B,) tokens of the prompt, which no length counts


def fit(
    limits: Tensor, max_length: int | Tensor | None, prefix_ids: Tensor | None, dtype: str, prompt_length: object = None
) -> Bounds:
    """The bounds of a loop; L is by default the largest limit."""
    if max_length is None:
        max_length = ops.maximum(ops.max(limits), 1)
    limits = ops.cast(ops.minimum(limits, max_length), dtype)
    prefix_ids, prompt_length = (
        None if each is None else ops.cast(each, dtype) for each in (prefix_ids, prompt_length)
    )
    return Bounds(limits, max_length, prefix_ids, prompt_length)


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


@ops.overridable
def follow(cache: object, beams: Tensor) -> Any:
    """The cache, a nest of (B, K, ...), of the beams (B, K) that others continue."""
    return ops.map_structure(lambda values: gather_beams(values, beams), cache)


@ops.overridable
def gather_beams(values: Tensor, beams: Tensor) -> Tensor:
    """values (B, K, ...), beams (B, C) → (B, C, ...): each sentence picks among its own beams."""
    batch_size, num_beams, *rest = ops.shape(values)
    first = ops.arange(batch_size, dtype="int32")[:, None] * num_beams  # (B, 1) where a sentence begins
    flat = ops.reshape(values, (-1, *rest))  # (B · K, ...)
    return ops.take(flat, ops.add(first, beams), axis=0)


def at(ids: Tensor, place: Tensor) -> Tensor:
    """(B, 1) The ids at one place of rows (B, P); 0 outside of them."""
    here = ops.equal(ops.arange(ops.shape(ids)[1]), ops.cast(place, "int32"))  # (P,)
    return ops.sum(ops.where(here, ids, 0), axis=1, keepdims=True)


class SampleState(NamedTuple):
    """What one step of sampling hands to the next."""

    index: Tensor  # () the position that is fed to `step`; the start id stands at 0
    token_ids: Tensor  # (B, K) what stands at that position
    ids: Tensor  # (B, K, L) emitted so far, then pad
    log_probs: Tensor  # (B, K)
    done: Tensor  # (B, K) True: this sample is complete
    cache: Cache


class SampleBounds(NamedTuple):
    """What sampling knows of each sentence from the start."""

    limits: Tensor  # (B,) the most tokens to emit
    prefix_ids: Tensor | None  # (B, P) with which the samples begin
    uniforms: Tensor  # (B, K, L) in [0, 1); a graph knows K


def sample(
    step: Step, cache: Cache, limits: Tensor, uniforms: Tensor, num_samples: int = 1, temperature: float = 1.0,
    top_k: int = 0, top_p: float = 1.0, prefix_ids: Tensor | None = None, num_control_ids: int = 4,
    index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Draws K independent translations of each sentence.

    The random numbers are an argument, one for each token. So a draw depends neither on the generator of the backend
    nor on the other sentences in the batch.

    Args:
        step, cache, limits, prefix_ids, num_control_ids, index: as for `beam_search`.
        uniforms: (B, K, L) float32 in [0, 1).
        num_samples: K.
        temperature: divides the logits.
        top_k: only the `top_k` likeliest tokens can be drawn; 0 permits all.
        top_p: draws from the likeliest alone, as many as together reach this probability (Holtzman et al. 2020).

    Returns:
        ids (B, K, L) as `beam_search` returns them, in the order of drawing; and log P(y) (B, K) by the model as it is.
    """
    bounds = fit(limits, ops.shape(uniforms)[-1], prefix_ids, ops.integers())
    given = SampleBounds(bounds.limits, bounds.prefix_ids, ops.reshape(uniforms, (-1, num_samples, bounds.max_length)))

    def advance(state: SampleState, given: SampleBounds) -> SampleState:
        logits, cache = step(state.token_ids, state.cache, state.index)
        log_probs = ops.log_softmax(ops.cast(logits, "float32"))  # (B, K, V)
        permitted = permit(log_probs / temperature, given.prefix_ids, state.index, num_control_ids)
        token_ids = draw(permitted, pick(given.uniforms, state.index), top_k, top_p)
        return append(state, token_ids, pick(log_probs, token_ids), given.limits, cache)

    start = start_samples(cache, bounds, num_samples, index, num_control_ids)
    state = run_loop(advance, start, lambda state: state.done, given)
    return ops.cast(state.ids, "int32"), state.log_probs


def start_samples(
    cache: Cache, bounds: Bounds, num_samples: int, index: Tensor | None = None, num_control_ids: int = 4
) -> SampleState:
    """Nothing is drawn yet; a sentence with the limit 0 is done, with an end alone."""
    first = blank(bounds, num_samples, index)
    ids = read_before(first.ids, index, num_control_ids)
    return SampleState(first.index, first.token_ids, ids, first.log_probs, first.is_blank, cache)


def append(state: SampleState, token_ids: Tensor, log_probs: Tensor, limits: Tensor, cache: Cache) -> SampleState:
    """The state after the tokens (B, K) were drawn, each with its log-probability (B, K)."""
    here = ops.equal(ops.arange(ops.shape(state.ids)[-1]), state.index)  # (L,)
    return SampleState(
        index=state.index + 1,
        token_ids=token_ids,
        ids=ops.where(here & ~state.done[..., None], token_ids[..., None], state.ids),
        log_probs=state.log_probs + ops.where(state.done, 0.0, log_probs),
        done=state.done | (token_ids == END) | (state.index + 1 >= limits)[:, None],
        cache=cache,
    )


def draw(logits: Tensor, uniforms: Tensor, top_k: int, top_p: float) -> Tensor:
    """Tokens (B, K): of the likeliest first, the one at which the summed probabilities pass the uniform number."""
    vocabulary_size = ops.shape(logits)[-1]
    logits, token_ids = k_best(logits, min(top_k, vocabulary_size) if top_k else vocabulary_size, ops.integers())
    probs = ops.exp(ops.log_softmax(logits))  # `softmax` warns where one token is left
    sums = ops.cumsum(probs, axis=-1)
    kept = (sums - probs < top_p) & (probs > 0)
    mass = ops.sum(ops.where(kept, probs, 0.0), axis=-1)  # (B, K)
    place = count(sums <= (uniforms * mass)[..., None], token_ids.dtype)
    return pick(token_ids, ops.minimum(place, count(kept, token_ids.dtype) - 1))
