"""Beam search, greedy search and sampling over any `step(token_ids, cache, index)`: no model is known here.

Letters of the shapes: B sentences, K beams, C candidates, V vocabulary, L the longest output, P the longest
prefix. A cache is {"beams": nest of tensors (B, K, ...), "sentences": nest of tensors (B, ...)}: what stands under
"beams" follows its beam when beams change places, what stands under "sentences" is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer import lengths
from keras_transformer.tensor import Tensor
from keras_transformer.text.tokenizer import END, PAD, START

Cache = dict[str, Any]
Step = Callable[[Tensor, Cache, Tensor], tuple[Tensor, Cache]]

NONE = float("-inf")  # log-probability and score of a hypothesis that does not exist


class BeamState(NamedTuple):
    """What one step hands to the next. Hypotheses stand best first."""

    index: Tensor  # () the position that is fed to `step`; the start id stands at 0
    token_ids: Tensor  # (B, K) what stands at that position
    live_ids: Tensor  # (B, K, L) emitted so far, then pad
    live_log_probs: Tensor  # (B, K)
    finished_ids: Tensor  # (B, K, L) with the end id, then pad
    finished_scores: Tensor  # (B, K)
    done: Tensor  # (B,) True: this sentence is frozen
    cache: Cache


class Candidates(NamedTuple):
    """The likeliest continuations of a sentence's live hypotheses by one token, best first."""

    log_probs: Tensor  # (B, C)
    beams: Tensor  # (B, C) which hypothesis is continued
    token_ids: Tensor  # (B, C) by which token
    ids: Tensor  # (B, C, L) the result


class SampleState(NamedTuple):
    """What one step of sampling hands to the next."""

    index: Tensor  # () as in BeamState
    token_ids: Tensor  # (B, K)
    ids: Tensor  # (B, K, L) emitted so far, then pad
    log_probs: Tensor  # (B, K)
    done: Tensor  # (B, K) True: this sample is complete
    cache: Cache


def beam_search(
    step: Step,
    cache: Cache,
    limits: Tensor,
    num_beams: int = 4,
    length_penalty: float = 0.6,
    max_length: int | Tensor | None = None,
    prefix_ids: Tensor | None = None,
    n_best: int | None = None,
    index_dtype: str | None = None,
    num_control_ids: int = 4,
) -> tuple[Tensor, Tensor]:
    """The best translations of each sentence by log P(y) / ((5 + |y|) / 6)^α (Wu et al. 2016, equation 14).

    |y| counts emitted tokens, the end included. A step looks at the 2K likeliest continuations: those that
    end are finished, the K likeliest others live on. A sentence stops when the best score that a live
    hypothesis can still reach is no better than the worst of its `n_best` finished ones, which no more steps
    could change then; it is frozen while others go on. A hypothesis that meets its limit without an end takes
    only a place of these that no finished one fills. With one beam a step looks at the likeliest continuation alone:
    this is greedy search. Of the control ids, the first ones, all but the end are emitted only by a prefix.

    Args:
        step: (token_ids (B, K), cache, index ()) → (logits (B, K, V), cache); ids and index in `index_dtype`.
        cache: made for K beams and L positions.
        limits: (B,) int32, the most tokens to emit, the end included. 0: an empty translation of score 0.
        num_beams: K.
        length_penalty: α. 0 ranks by log P alone; more is kinder to long translations.
        max_length: L, the largest limit by default. Limits above it are lowered to it.
        prefix_ids: (B, P) int32, tokens with which the translation must begin; 0 leaves a position free.
        n_best: how many translations to return, at most K; K by default. Fewer take fewer steps.
        index_dtype: of all integers in the loop; by default int64 on TensorFlow, int32 elsewhere.
        num_control_ids: pad, unknown, start and end, and how many more.

    Returns:
        ids (B, n_best, L) int32, the best first, but none that was cut at its limit before one that finished;
        each with its end id (none if cut), then pad; and scores (B, n_best) float32. Where fewer hypotheses exist,
        the last rows are pad alone and their scores -inf.
    """
    n_best = num_beams if n_best is None else n_best
    limits, max_length, prefix_ids = fit(limits, max_length, prefix_ids, index_dtype or integers())

    def advance(*fields: Any) -> tuple:
        state = BeamState(*fields)
        log_probs, cache = permitted_log_probs(step, state, prefix_ids, num_control_ids)
        return tuple(next_beams(state, log_probs, cache, limits, num_beams, length_penalty, n_best))

    first = start_beams(cache, limits, num_beams, max_length)
    state = BeamState(*ops.while_loop(goes_on(BeamState), advance, tuple(first)))
    best = {"finished_ids": state.finished_ids[:, :n_best], "finished_scores": state.finished_scores[:, :n_best]}
    return fill_with_live(state._replace(**best), limits, n_best, length_penalty)


def sample(
    step: Step,
    cache: Cache,
    limits: Tensor,
    uniforms: Tensor,
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    prefix_ids: Tensor | None = None,
    num_control_ids: int = 4,
) -> tuple[Tensor, Tensor]:
    """K independent draws from what the model believes, for each sentence.

    Chance comes in from outside, one number a token, so that a draw depends neither on a backend's
    generator nor on who shares the batch. Of the tokens, the likeliest first, only the first `top_k` (0:
    all), and of these only the first that together reach the probability `top_p` (Holtzman et al. 2020),
    can be drawn.

    Args:
        step, cache, limits, prefix_ids, num_control_ids: as for `beam_search`.
        uniforms: (B, K, L) float32 in [0, 1).
        num_samples: K.
        temperature: divides the logits.

    Returns:
        ids (B, K, L), as those of `beam_search`, in the order of drawing, and log P(y) (B, K) by the model
        as it is: at temperature 1, with no token left out.
    """
    limits, max_length, prefix_ids = fit(limits, ops.shape(uniforms)[-1], prefix_ids, integers())
    uniforms = ops.reshape(uniforms, (-1, num_samples, max_length))  # tells a graph that K is fixed

    def advance(*fields: Any) -> tuple:
        state = SampleState(*fields)
        logits, cache = step(state.token_ids, state.cache, state.index)
        log_probs = ops.log_softmax(ops.cast(logits, "float32"))  # (B, K, V)
        here = ops.equal(ops.arange(max_length), state.index)  # (L,)
        uniform = ops.sum(ops.where(here, uniforms, 0.0), axis=-1)  # (B, K)
        permitted = permit(log_probs, prefix_ids, state.index, num_control_ids)
        token_ids = draw(permitted / temperature, uniform, top_k, top_p)
        new = SampleState(
            index=state.index + 1,
            token_ids=token_ids,
            ids=ops.where(here & ~state.done[..., None], token_ids[..., None], state.ids),
            log_probs=state.log_probs + ops.where(state.done, 0.0, pick(log_probs, token_ids)),
            done=state.done | (token_ids == END) | (state.index + 1 >= limits)[:, None],
            cache=cache,
        )
        return tuple(new)

    first = start_samples(cache, limits, num_samples, max_length)
    state = SampleState(*ops.while_loop(goes_on(SampleState), advance, tuple(first)))
    return ops.cast(state.ids, "int32"), state.log_probs


def integers() -> str:
    """The type of a loop's integers: on a GPU TensorFlow computes int32, as it does shapes, on the processor."""
    return "int64" if keras.config.backend() == "tensorflow" else "int32"


def fit(limits: Tensor, max_length: int | Tensor | None, prefix_ids: Tensor | None, dtype: str) -> tuple[Tensor, ...]:
    """Limits that fit in L; L, in which at least an end id has room; prefixes. All later integers have their type."""
    if max_length is None:
        max_length = ops.maximum(ops.max(limits), 1)
    limits = ops.cast(ops.minimum(limits, max_length), dtype)
    return limits, max_length, None if prefix_ids is None else ops.cast(prefix_ids, dtype)


def start_beams(cache: Cache, limits: Tensor, num_beams: int, max_length: int | Tensor) -> BeamState:
    """One live hypothesis, with nothing in it; for a blank sentence one finished, with an end in it."""
    samples = start_samples(cache, limits, num_beams, max_length)
    first = ops.arange(num_beams) == 0  # (K,)
    return BeamState(
        index=samples.index,
        token_ids=samples.token_ids,
        live_ids=ops.zeros_like(samples.ids),
        live_log_probs=ops.where(first & ~samples.done, 0.0, NONE),
        finished_ids=samples.ids,
        finished_scores=ops.where(first & samples.done, 0.0, NONE),
        done=limits == 0,
        cache=cache,
    )


def start_samples(cache: Cache, limits: Tensor, num_samples: int, max_length: int | Tensor) -> SampleState:
    """Nothing drawn yet; a blank sentence is done, with an end alone."""
    nothing = ops.zeros((ops.shape(limits)[0], num_samples), dtype=limits.dtype)  # (B, K)
    blank = nothing + limits[:, None] == 0  # (B, K)
    ids = ops.where(blank[..., None] & (ops.arange(max_length) == 0), END, PAD)  # (B, K, L)
    return SampleState(
        index=ops.zeros((), dtype=limits.dtype),
        token_ids=nothing + START,
        ids=ops.cast(ids, limits.dtype),
        log_probs=ops.cast(nothing, "float32"),
        done=blank,
        cache=cache,
    )


def goes_on(state_type: type) -> Callable[..., Tensor]:
    """The condition of the loop: something is not done. Every limit is within L, so the loop ends there."""
    return lambda *fields: ops.logical_not(ops.all(state_type(*fields).done))


def permitted_log_probs(
    step: Step, state: BeamState, prefix_ids: Tensor | None = None, num_control_ids: int = 4
) -> tuple[Tensor, Cache]:
    """The log-probabilities (B, K, V) of the next token of each beam, -inf for what may not be emitted; and the cache
    after the step."""
    logits, cache = step(state.token_ids, state.cache, state.index)
    log_probs = ops.log_softmax(ops.cast(logits, "float32"))
    return permit(log_probs, prefix_ids, state.index, num_control_ids), cache


def next_beams(
    state: BeamState,
    log_probs: Tensor,
    cache: Cache,
    limits: Tensor,
    num_beams: int,
    length_penalty: float,
    n_best: int,
) -> BeamState:
    """The state after one step: what finished, what lives on, and which sentences are done."""
    candidates = extend(state, log_probs, num_beams)
    new = keep_finished(state, candidates, num_beams, length_penalty)
    new = keep_live(new, candidates, num_beams, cache)
    new = freeze(state, new)._replace(index=state.index + 1)
    return new._replace(done=is_done(new, limits, length_penalty, n_best))


def permit(logits: Tensor, prefix_ids: Tensor | None, index: Tensor, num_control_ids: int = 4) -> Tensor:
    """(B, K, V), -inf for what may not be emitted: control ids but the end; under a prefix all but its token."""
    vocabulary = ops.arange(ops.shape(logits)[-1])  # (V,)
    permitted = (vocabulary >= num_control_ids) | (vocabulary == END)
    if prefix_ids is not None:
        here = ops.equal(ops.arange(ops.shape(prefix_ids)[1]), index)  # (P,)
        forced = ops.sum(ops.where(here, prefix_ids, 0), axis=1)[:, None, None]  # (B, 1, 1)
        permitted = ops.where(forced == 0, permitted, ops.equal(vocabulary, forced))  # (B, 1, V)
    return ops.where(permitted, logits, NONE)


def extend(state: BeamState, log_probs: Tensor, num_beams: int) -> Candidates:
    """The 2K likeliest continuations: at most K end, so K can live on. With one beam the likeliest alone."""
    vocabulary_size = ops.shape(log_probs)[-1]
    log_probs = state.live_log_probs[..., None] + log_probs  # (B, K, V)
    log_probs = ops.reshape(log_probs, (-1, num_beams * vocabulary_size))
    log_probs, places = k_best(log_probs, 2 * num_beams if num_beams > 1 else 1, state.index.dtype)
    beams, token_ids = places // vocabulary_size, places % vocabulary_size
    here = ops.equal(ops.arange(ops.shape(state.live_ids)[-1]), state.index)  # (L,)
    ids = ops.where(here, token_ids[..., None], gather_beams(state.live_ids, beams))
    return Candidates(log_probs, beams, token_ids, ids)


def keep_finished(state: BeamState, candidates: Candidates, num_beams: int, length_penalty: float) -> BeamState:
    """The best K of the finished hypotheses so far and of the candidates that end."""
    scores = candidates.log_probs / penalty(state.index + 1, length_penalty)
    scores = ops.where(candidates.token_ids == END, scores, NONE)
    scores = ops.concatenate([state.finished_scores, scores], axis=1)  # (B, K + C)
    ids = ops.concatenate([state.finished_ids, candidates.ids], axis=1)
    scores, places = k_best(scores, num_beams, state.index.dtype)
    return state._replace(finished_ids=gather_beams(ids, places), finished_scores=scores)


def keep_live(state: BeamState, candidates: Candidates, num_beams: int, cache: Cache) -> BeamState:
    """The likeliest K of the candidates that do not end, with the cache of the beams that they continue."""
    log_probs = ops.where(candidates.token_ids == END, NONE, candidates.log_probs)
    log_probs, places = k_best(log_probs, num_beams, state.index.dtype)
    beams = gather_beams(candidates.beams, places)  # (B, K)
    if num_beams > 1:
        followed = keras.tree.map_structure(lambda values: gather_beams(values, beams), cache["beams"])
        cache = {**cache, "beams": followed}
    return state._replace(
        token_ids=gather_beams(candidates.token_ids, places),
        live_ids=gather_beams(candidates.ids, places),
        live_log_probs=log_probs,
        cache=cache,
    )


def freeze(old: BeamState, new: BeamState) -> BeamState:
    """The new state, but the old hypotheses of sentences that are done."""
    done = old.done[:, None]  # (B, 1)
    return new._replace(
        live_ids=ops.where(done[..., None], old.live_ids, new.live_ids),
        live_log_probs=ops.where(done, old.live_log_probs, new.live_log_probs),
        finished_ids=ops.where(done[..., None], old.finished_ids, new.finished_ids),
        finished_scores=ops.where(done, old.finished_scores, new.finished_scores),
    )


def is_done(state: BeamState, limits: Tensor, length_penalty: float, n_best: int) -> Tensor:
    """(B,) True where the limit is met, or no live hypothesis can still beat the worst of the best finished ones.

    A log-probability only falls, so the best that can come of it is the same one over the largest divisor:
    that of the limit, or, where α < 0 favours short translations, that of an end at the very next token.
    """
    best_length = limits if length_penalty >= 0 else state.index + 1
    attainable = state.live_log_probs[:, 0] / penalty(best_length, length_penalty)
    return state.done | (state.index >= limits) | (attainable <= state.finished_scores[:, n_best - 1])


def fill_with_live(state: BeamState, limits: Tensor, n_best: int, length_penalty: float) -> tuple[Tensor, Tensor]:
    """ids (B, n_best, L) and scores (B, n_best): what finished; behind it, in places left free, what was cut."""
    num_finished = count(state.finished_scores > NONE, "int32")[:, None]  # (B, 1)
    live = ops.arange(n_best) - num_finished  # (B, n_best) negative where a finished one stands
    finished, live = live < 0, ops.maximum(live, 0)
    live_scores = gather_beams(state.live_log_probs, live) / penalty(limits, length_penalty)[:, None]
    scores = ops.where(finished, state.finished_scores, live_scores)
    ids = ops.where(finished[..., None], state.finished_ids, gather_beams(state.live_ids, live))
    return ops.cast(ops.where(scores[..., None] > NONE, ids, PAD), "int32"), scores


def penalty(tokens: Tensor, length_penalty: float) -> Tensor:
    """((5 + |y|) / 6)^α of integers |y|, of any shape."""
    return lengths.penalty(ops.cast(tokens, "float32"), length_penalty)


def draw(logits: Tensor, uniforms: Tensor, top_k: int, top_p: float) -> Tensor:
    """Tokens (B, K): where the probabilities, heaped up the likeliest first, pass the uniform number."""
    vocabulary_size = ops.shape(logits)[-1]
    logits, token_ids = k_best(logits, min(top_k, vocabulary_size) if top_k else vocabulary_size, integers())
    probs = ops.exp(ops.log_softmax(logits))  # `softmax` warns where one token is left
    heaps = ops.cumsum(probs, axis=-1)
    kept = (heaps - probs < top_p) & (probs > 0)
    mass = ops.sum(ops.where(kept, probs, 0.0), axis=-1)  # (B, K)
    place = count(heaps <= (uniforms * mass)[..., None], token_ids.dtype)
    return pick(token_ids, ops.minimum(place, count(kept, token_ids.dtype) - 1))


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


def gather_beams(values: Tensor, beams: Tensor) -> Tensor:
    """values (B, K, ...), beams (B, C) → (B, C, ...): each sentence picks among its own beams."""
    batch_size, num_beams, *rest = ops.shape(values)
    first = ops.arange(batch_size, dtype="int32")[:, None] * num_beams  # (B, 1) where a sentence begins
    flat = ops.reshape(values, (-1, *rest))  # (B · K, ...)
    return ops.take(flat, ops.add(first, beams), axis=0)
