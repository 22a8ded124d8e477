"""Beam search over any `step(token_ids, cache, index)`, greedy search included; no model is known here, only its step.

One step of the search looks at the 2K likeliest continuations of the K live hypotheses of a sentence. Those that end
are finished; the K likeliest others live on. With one beam it looks at the likeliest continuation alone: this is
greedy search. A sentence is done when the best score that a live hypothesis can still reach is no better than the
worst of its `n_best` finished ones, which further steps cannot change. It is then frozen while the others go on. A
hypothesis that meets its limit without an end is returned only where fewer than `n_best` have finished.

Letters of the shapes: see `loop`.
"""

from __future__ import annotations

from typing import NamedTuple

from keras_transformer import ops
from keras_transformer.ops import Tensor
from keras_transformer.search import loop
from keras_transformer.search.guards import guarded
from keras_transformer.search.loop import NO_HYPOTHESIS, Bounds, Cache, Step
from keras_transformer.spec import search_options
from keras_transformer.spec.search_options import Guards
from keras_transformer.text.tokenizer import END, PAD


class BeamState(NamedTuple):
    """The state of the search between two steps. Hypotheses are sorted, the best first."""

    index: Tensor  # () the position that is fed to `step`; the start id stands at 0
    token_ids: Tensor  # (B, K) what stands at that position
    live_ids: Tensor  # (B, K, L) emitted so far, then pad
    live_log_probs: Tensor  # (B, K)
    finished_ids: Tensor  # (B, n, L) with the end id, then pad
    finished_scores: Tensor  # (B, n)
    done: Tensor  # (B,) True: this sentence is frozen
    cache: Cache


class Continuations(NamedTuple):
    """The likeliest next tokens of each live hypothesis, best first."""

    log_probs: Tensor  # (B, K, k)
    token_ids: Tensor  # (B, K, k)


class Candidates(NamedTuple):
    """The likeliest continuations of a sentence's live hypotheses by one token, best first."""

    log_probs: Tensor  # (B, C)
    beams: Tensor  # (B, C) which hypothesis is continued
    token_ids: Tensor  # (B, C) by which token
    ids: Tensor  # (B, C, L) the result, with offsets


def beam_search(
    step: Step, cache: Cache, limits: Tensor, num_beams: int = 4, length_penalty: float = 0.6,
    max_length: int | Tensor | None = None, prefix_ids: Tensor | None = None, n_best: int | None = None,
    index_dtype: str | None = None, num_control_ids: int = 4, prompt_length: Tensor | None = None,
    index: Tensor | None = None, ids_dtype: str = "int32", guards: Guards | None = None, read_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Finds the best hypotheses of each sentence by log P(y) / ((5 + |y|) / 6)^α (Wu et al. 2016, equation 14).

    Args:
        step: (token_ids (B, K), cache, index ()) → (logits (B, K, V), cache); ids and index in `index_dtype`.
        cache: made for K beams and L positions.
        limits: (B,) int32, the most tokens to emit, the end included. 0: an empty translation of score 0.
        num_beams, length_penalty: K; and α: 0 ranks by log P alone, larger values favour longer translations.
        max_length: L, the largest limit by default. Limits above it are lowered to it.
        prefix_ids: (B, P) int32, tokens with which the translation must begin; 0 leaves a position free.
        n_best: how many translations to return, at most and by default K. Fewer take fewer steps.
        index_dtype: the type of all integers in the loop; by default int64 on TensorFlow, int32 elsewhere.
        num_control_ids: the first ids are control ids. Only a prefix emits any of them but the end.
        prompt_length: (B,) how long the prompt in front is, see `computations.PromptForcing`; |y| leaves it out.
        index: () the position behind what `cache` holds of the prompts; by default it holds nothing.
        ids_dtype: the type of the ids that are returned; larger than int32 if the step's offsets make them large.
        guards: what no hypothesis may do. Several beams are ranked, and scored, by what a penalty makes of log P.
        read_ids: (B, 1 + P) what a language model reads: the id at position 0 and the prompt; for guards alone.

    Returns:
        ids (B, n_best, L) and scores (B, n_best) float32, the best first, those that were cut at their limit behind
        the others. A row holds the tokens, the end id unless it was cut, then pad; where no hypothesis is left, pads
        alone with the score -inf.
    """
    bounds = loop.make_bounds(limits, max_length, prefix_ids, index_dtype or ops.integers(), prompt_length, read_ids)

    def advance(state: BeamState, bounds: Bounds) -> BeamState:
        logits, cache = step(state.token_ids, state.cache, state.index)
        likeliest = continuations(logits, state, bounds, num_beams, num_control_ids, guards)
        return next_beams(state, likeliest, cache, bounds, num_beams, length_penalty)

    start = start_beams(cache, bounds, num_beams, n_best or num_beams, index, num_control_ids)
    end = loop.run_loop(advance, start, lambda state: state.done, bounds, first_beams)
    ids, scores = best_hypotheses(end, bounds, length_penalty)
    return ops.cast(ids, ids_dtype), scores


def start_beams(
    cache: Cache, bounds: Bounds, num_beams: int, n_best: int, index: Tensor | None = None, num_control_ids: int = 4
) -> BeamState:
    """Returns the first state: an empty live hypothesis of each sentence; of a blank one a finished one with an end."""
    start = loop.initial_state(bounds, num_beams, index)
    first = ops.arange(num_beams) == 0  # (K,)
    return BeamState(
        index=start.index,
        token_ids=start.token_ids,
        live_ids=loop.fill_prompt(ops.zeros_like(start.ids), index, num_control_ids),
        live_log_probs=ops.where(first & ~start.is_blank, 0.0, NO_HYPOTHESIS),
        finished_ids=start.ids[:, :n_best],
        finished_scores=ops.where(first & start.is_blank, 0.0, NO_HYPOTHESIS)[:, :n_best],
        done=bounds.limits == 0,
        cache=cache,
    )


@ops.overridable
def first_beams(state: BeamState) -> BeamState:
    """Returns the state that the first step takes. All beams are equal before it, so an export may keep one of them."""
    return state


def continuations(
    logits: Tensor,
    state: BeamState,
    bounds: Bounds,
    num_beams: int,
    num_control_ids: int = 4,
    guards: Guards | None = None,
) -> Continuations:
    """Finds the likeliest next tokens of each beam, as many as there are candidates of all beams.

    Where the prefix has a token, it is the only one. Tokens that may not be emitted are left out of few more than
    these: so the search never copies numbers of the whole vocabulary, unless guards look at all.
    """
    log_probs = ops.log_softmax(ops.cast(logits, "float32"))
    if guards is not None and num_beams == 1:
        best, token_ids = _chosen(logits, log_probs, state, bounds, num_control_ids, guards)
    else:
        count = min(num_candidates(num_beams) + num_control_ids - 1, ops.shape(log_probs)[-1])
        scores = guarded(log_probs, state.live_ids, state.index, bounds, guards)
        best, token_ids = loop.k_best(scores, count, state.index.dtype)
        best = ops.where(loop.is_permitted(token_ids, num_control_ids), best, NO_HYPOTHESIS)
    if bounds.prefix_ids is None:
        return Continuations(best, token_ids)
    forced = loop.id_at(bounds.prefix_ids, state.index)[:, None]  # (B, 1, 1), 0 where any token may stand
    ids = ops.where(forced == 0, token_ids, forced)  # (B, K, k)
    own = ops.take_along_axis(log_probs, ids[..., :1], axis=-1)  # (B, K, 1)
    only = ops.where(ops.arange(ops.shape(ids)[-1]) == 0, own, NO_HYPOTHESIS)
    return Continuations(ops.where(forced == 0, best, only), ids)


def _chosen(
    logits: Tensor, log_probs: Tensor, state: BeamState, bounds: Bounds, num_control_ids: int, guards: Guards
) -> tuple[Tensor, Tensor]:
    """Returns what one beam chooses by its guarded logits (B, 1, 1), and its log P, which stays the model's."""
    scores = guarded(ops.cast(logits, "float32"), state.live_ids, state.index, bounds, guards)
    scores = loop.mask_forbidden(scores, None, state.index, num_control_ids)
    scores, token_ids = loop.k_best(scores, 1, state.index.dtype)
    own = ops.take_along_axis(log_probs, token_ids, axis=-1)
    return ops.where(loop.exists(scores), own, NO_HYPOTHESIS), token_ids


def num_candidates(num_beams: int) -> int:
    """Returns how many candidates a step looks at: 2K, so that K remain if K end. With one beam the likeliest alone."""
    return 2 * num_beams if num_beams > 1 else 1


def next_beams(
    state: BeamState, likeliest: Continuations, cache: Cache, bounds: Bounds, num_beams: int, length_penalty: float
) -> BeamState:
    """Returns the state after one step: what finished, what lives on, and which sentences are done."""
    offsets, cache = loop.without_offsets(cache)
    candidates = extend(state, likeliest, num_beams, offsets)
    new = keep_finished(state, candidates, bounds, num_beams, length_penalty)
    new = keep_live(new, candidates, num_beams, cache)
    new = freeze(state, new)._replace(index=state.index + 1)
    return new._replace(done=is_done(new, bounds, length_penalty))


def extend(state: BeamState, likeliest: Continuations, num_beams: int, offsets: Tensor | None = None) -> Candidates:
    """Extends the live hypotheses: returns the likeliest continuations of all beams of a sentence.

    Their ids get the offsets (B, K) of the beams that they continue, see `loop.Step`.
    """
    batch_size, num_live, count = ops.shape(likeliest.log_probs)
    log_probs = likeliest.log_probs + state.live_log_probs[..., None]  # (B, K, k)
    all_of_sentence = batch_size, num_live * count
    log_probs, token_ids = (ops.reshape(x, all_of_sentence) for x in (log_probs, likeliest.token_ids))
    log_probs, places = loop.k_best(log_probs, num_candidates(num_beams), state.index.dtype)
    beams, token_ids = places // count, loop.gather_beams(token_ids, places)
    here = ops.equal(ops.arange(ops.shape(state.live_ids)[-1]), state.index)  # (L,)
    written = token_ids if offsets is None else token_ids + loop.gather_beams(offsets, beams)
    ids = ops.where(here, written[..., None], loop.gather_beams(state.live_ids, beams))
    return Candidates(log_probs, beams, token_ids, ids)


def keep_finished(
    state: BeamState, candidates: Candidates, bounds: Bounds, num_beams: int, length_penalty: float
) -> BeamState:
    """Keeps the best n of the finished hypotheses so far and of the candidates that end."""
    scores = scored(candidates.log_probs, counted(bounds, state.index + 1), length_penalty)
    scores = ops.where(candidates.token_ids == END, scores, NO_HYPOTHESIS)
    if num_beams == 1:  # it ends once, and is frozen then
        return state._replace(finished_ids=candidates.ids, finished_scores=ops.maximum(scores, state.finished_scores))
    n_best = ops.shape(state.finished_scores)[1]
    scores = ops.concatenate([state.finished_scores, scores], axis=1)  # (B, n + C)
    ids = ops.concatenate([state.finished_ids, candidates.ids], axis=1)
    scores, places = loop.k_best(scores, n_best, state.index.dtype)
    return state._replace(finished_ids=loop.gather_beams(ids, places), finished_scores=scores)


def keep_live(state: BeamState, candidates: Candidates, num_beams: int, cache: Cache) -> BeamState:
    """Keeps the likeliest K of the candidates that do not end, with the cache of the beams that they continue."""
    log_probs = ops.where(candidates.token_ids == END, NO_HYPOTHESIS, candidates.log_probs)
    if num_beams == 1:
        live = {"token_ids": candidates.token_ids, "live_ids": candidates.ids, "live_log_probs": log_probs}
        return state._replace(**live, cache=cache)
    log_probs, places = loop.k_best(log_probs, num_beams, state.index.dtype)
    beams = loop.gather_beams(candidates.beams, places)  # (B, K)
    return state._replace(
        token_ids=loop.gather_beams(candidates.token_ids, places),
        live_ids=loop.gather_beams(candidates.ids, places),
        live_log_probs=log_probs,
        cache={**cache, "beams": loop.reorder_cache(cache["beams"], beams)},
    )


def freeze(old: BeamState, new: BeamState) -> BeamState:
    """Freezes the sentences that are done: returns the new state with their old hypotheses."""
    done = old.done[:, None]  # (B, 1)
    return new._replace(
        live_ids=ops.where(done[..., None], old.live_ids, new.live_ids),
        live_log_probs=ops.where(done, old.live_log_probs, new.live_log_probs),
        finished_ids=ops.where(done[..., None], old.finished_ids, new.finished_ids),
        finished_scores=ops.where(done, old.finished_scores, new.finished_scores),
    )


def is_done(state: BeamState, bounds: Bounds, length_penalty: float) -> Tensor:
    """Returns (B,) True where the limit is met, or no live hypothesis can beat the worst of the best finished ones.

    A log-probability only falls. So the best score that a hypothesis can reach is its present log-probability over the
    largest divisor: at the limit, or, where α < 0 favours short translations, at the next token.
    """
    best_length = bounds.limits[:, None] if length_penalty >= 0 else state.index + 1
    attainable = scored(state.live_log_probs[:, :1], counted(bounds, best_length), length_penalty)[:, 0]
    return state.done | (state.index >= bounds.limits) | (attainable <= state.finished_scores[:, -1])


def best_hypotheses(state: BeamState, bounds: Bounds, length_penalty: float) -> tuple[Tensor, Tensor]:
    """Returns ids (B, n, L) and scores (B, n): what finished, then, in the places left, what was cut at its limit."""
    num_finished = loop.count_true(loop.exists(state.finished_scores), "int32")[:, None]  # (B, 1)
    live = ops.arange(ops.shape(state.finished_scores)[1]) - num_finished  # (B, n) negative where a finished one stands
    finished, live = live < 0, ops.maximum(live, 0)
    live_log_probs = loop.gather_beams(state.live_log_probs, live)
    live_scores = scored(live_log_probs, counted(bounds, bounds.limits[:, None]), length_penalty)
    scores = ops.where(finished, state.finished_scores, live_scores)
    ids = ops.where(finished[..., None], state.finished_ids, loop.gather_beams(state.live_ids, live))
    found = loop.exists(scores)
    # LiteRT's converter replaces a constant -inf by the lowest finite number. A product that overflows stays -inf.
    return ops.where(found[..., None], ids, PAD), scores * ops.where(found, 1.0, 1e38)


def counted(bounds: Bounds, tokens: Tensor) -> Tensor:
    """Counts |y| of hypotheses of so many tokens, () or (B, 1): those behind the prompt; 1 while the prompt is read."""
    return tokens if bounds.prompt_length is None else ops.maximum(tokens - bounds.prompt_length[:, None], 1)


def scored(log_probs: Tensor, tokens: Tensor, length_penalty: float) -> Tensor:
    """Returns log P / ((5 + |y|) / 6)^α, of any shape; `NO_HYPOTHESIS` stays, whatever the divisor is.

    Args:
        log_probs: log P.
        tokens: |y|, integers.
        length_penalty: α.
    """
    if not length_penalty:
        return log_probs
    divisor = search_options.penalty(ops.cast(tokens, "float32"), length_penalty)
    if length_penalty < 0:  # At least this much, the divisor leaves the scores of what exists above `NO_HYPOTHESIS`.
        divisor = ops.maximum(divisor, 1e-20)
    return ops.where(loop.exists(log_probs), log_probs / divisor, NO_HYPOTHESIS)
