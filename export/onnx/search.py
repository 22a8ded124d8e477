"""The search as ONNX loops: the second form of `keras_transformer.decoding.search`. Tests hold both to each other.

Letters in shapes: B sentences, A active ones, K beams, k live beams (1 before the first step, then K), n best
hypotheses that are asked for, C candidates, V vocabulary, T tokens emitted so far. Tensors grow by one position at each
step, so the graph allocates nothing that no sentence needs. Every node costs about a microsecond at each step, so there
are few.

A sentence that is done has no live hypothesis any more (log-probability `NONE`), so nothing about it can change. When
an eighth of the active sentences are done, or one reaches its limit, the search stores the results of those that are
done and goes on with the others. It does so in rounds: the outer loop runs rounds, the inner loop runs the steps of a
round. `beams` writes such a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np

from keras_transformer.decoding.loop import NONE
from keras_transformer.text.tokenizer import END, PAD, START

from ..signatures import Decoding
from .beams import BeamSearch, GreedySearch, State, Vocabulary, exists, first, gather
from .graph import Graph, Value

DONE_SHARE = 8  # a round ends when one in so many active sentences is done


class Cache(NamedTuple):
    """The model's cache, which one step hands to the next. The first axis of each tensor counts the sentences."""

    beams: list[Value]  # (A, k, W): reordered together with the beams; W may grow
    shared: list[Value]  # (A, ...): never reordered
    sentences: list[Value]  # (A, ...): what `encode` computes of a sentence


class CacheSizes(NamedTuple):
    """How many tensors each part of a `Cache` has."""

    beams: int
    shared: int
    sentences: int

    @classmethod
    def of(cls, cache: Cache) -> CacheSizes:
        """The sizes of this cache."""
        return cls(*map(len, cache))

    def split(self, values: Sequence[Value]) -> Cache:
        """The cache of these sizes from its tensors, one after the other."""
        num_first = self.beams + self.shared
        return Cache(list(values[: self.beams]), list(values[self.beams : num_first]), list(values[num_first:]))


class SearchedModel(Protocol):
    """The model as the search sees it: functions that append its nodes."""

    def encode(self, g: Graph, ids: Value) -> list[Value]:
        """Source ids (A, S) → what a step needs of the sentences, each (A, ...)."""

    def step(self, g: Graph, token_ids: Value, index: Value, cache: Cache) -> tuple[Value, Cache]:
        """Token ids (A, k) at the position index () → logits (A · k, V) float32, and the cache with this position."""

    def first_cache(self, g: Graph, num_active: Value, num_first_beams: int) -> Cache:
        """The cache before the first step, for sentences counted by `num_active` (1,), each with so many beams. Its
        `sentences` hold no sentence, each (0, ...).
        """


class Progress(NamedTuple):
    """What one round hands to the next besides the active sentences' state and cache."""

    unencoded: Value  # (A, S) before the first round the active sentences' source ids, later (0, S)
    ids: Value  # (B, n, T) the results so far
    scores: Value  # (B, n)
    active: Value  # (A,) which sentences are active
    limits: Value  # (A,) their limits


def search(
    g: Graph, source_ids: Value, model: SearchedModel, limits: Value, vocabulary: Vocabulary, decoding: Decoding,
    num_read: Value | None = None,
) -> tuple[Value, Value]:  # fmt: skip
    """ids (B, n, T) int64 and scores (B, n) float32, the best first; T is the longest. A blank sentence has an end.

    The encoder is inside the loop of rounds, which lets ONNX Runtime pack its weights (see `Graph`). In the first round
    it gets all sentences, in later rounds none.

    Args:
        g: the graph to append nodes to.
        source_ids: (B, S), for the encoder.
        model: what is searched.
        limits: (B,) int64, the most tokens to emit; 0 for a blank sentence.
        vocabulary: V, and the ids that are never emitted.
        decoding: K, α and n.
        num_read: (B,) int64, as for `beam_search`.
    """
    num_beams, n_best = decoding.num_beams, decoding.num_listed
    # At the first step all beams would be the same: one is enough, unless it has too few continuations.
    num_first_beams = 1 if vocabulary.size >= 2 * num_beams else num_beams
    ids, scores = blank_results(g, limits, n_best)
    active = g("Squeeze", g("NonZero", limits), [0])
    unencoded, active_limits = (g("Gather", value, active) for value in (source_ids, limits))
    progress = Progress(unencoded, ids, scores, active, active_limits)
    num_rows = n_best + num_first_beams if num_beams > 1 else 1
    state = first_state(g, g("Shape", active), num_rows, num_first_beams, n_best)
    cache = model.first_cache(g, g("Shape", active), num_first_beams)
    sizes = CacheSizes.of(cache)

    def advance(g: Graph, _: Value, length: Value, *values: Value) -> list[Value]:
        progress, state, rest = unpacked(values)
        return next_round(g, model, length, progress, state, sizes.split(rest), vocabulary, decoding, num_read)

    goes_on = g.cast(g("Size", active), bool)
    _, *last = g.loop(advance, [0, *progress, *state, *chain(*cache)], goes_on=goes_on)
    progress, _, _ = unpacked(last)
    return progress.ids, g("Where", exists(g, progress.scores), progress.scores, np.float32(-np.inf))


def unpacked(values: Sequence[Value]) -> tuple[Progress, State, Sequence[Value]]:
    """The progress, the state, and the tensors of the cache, from the values of the loop of rounds."""
    start, end = len(Progress._fields), len(Progress._fields) + len(State._fields)
    return Progress(*values[:start]), State(*values[start:end]), values[end:]


def next_round(
    g: Graph,
    model: SearchedModel,
    length: Value,
    progress: Progress,
    state: State,
    cache: Cache,
    vocabulary: Vocabulary,
    decoding: Decoding,
    num_read: Value | None,
) -> list[Value]:
    """Runs a round, stores its results, and drops the sentences that are done.

    Returns:
        Whether any sentence is left, how many tokens each hypothesis has, and the values of the next round.
    """
    pairs = zip(cache.sentences, model.encode(g, progress.unencoded), strict=True)
    cache = cache._replace(sentences=[g.joined(*pair) for pair in pairs])
    num_read = None if num_read is None else g("Gather", num_read, progress.active)
    kind = GreedySearch if decoding.num_beams == 1 else BeamSearch
    beam_search = kind(g, progress.limits, vocabulary, decoding, num_read)
    length, state, cache = run_steps(g, model, beam_search, length, state, cache, progress.limits)
    new_ids, new_scores = beam_search.results(g, state)  # of all active sentences; later rounds overwrite them
    places = g("Unsqueeze", progress.active, [1])
    ids = g("ScatterND", widened(g, progress.ids, new_ids), places, new_ids)
    scores = g("ScatterND", progress.scores, places, new_scores)
    is_alive = exists(g, g("Squeeze", first(g, state.live_log_probs), [1]))
    left = g("Squeeze", g("NonZero", g("And", g("Less", length, progress.limits), is_alive)), [0])
    kept = (g("Gather", value, left) for value in (progress.active, progress.limits, *state, *chain(*cache)))
    active, limits, *state_and_cache = kept
    # A cast in place of a comparison with 0: sizes are on the host, so each round would copy that 0 to a GPU.
    any_left = g.cast(g("Size", left), bool)
    none_unencoded = g("Slice", progress.unencoded, [0], [0])
    return [any_left, length, *Progress(none_unencoded, ids, scores, active, limits), *state_and_cache]


def blank_results(g: Graph, limits: Value, n_best: int) -> tuple[Value, Value]:
    """ids (B, n, 1) and scores (B, n): a blank sentence has one hypothesis, an end; the others have none yet."""
    first_blank = g("And", g("Unsqueeze", g("Equal", limits, 0), [1]), np.arange(n_best) == 0)
    return g("Unsqueeze", g("Where", first_blank, END, PAD), [2]), g("Where", first_blank, 0.0, NONE)


def first_state(g: Graph, num_active: Value, num_rows: int, num_beams: int, n_best: int) -> State:
    """One live hypothesis without tokens; `ids` has `num_rows` rows."""
    beams = np.arange(num_beams)
    return State(
        token_ids=g("Expand", np.full_like(beams, START), g.joined(num_active, [1])),
        ids=g.zeros(g.joined(num_active, [num_rows, 0]), np.int64),
        live_log_probs=g("Expand", np.where(beams == 0, 0, NONE).astype("float32"), g.joined(num_active, [1])),
        finished_scores=g("Expand", np.full(n_best, NONE, "float32"), g.joined(num_active, [1])),
    )


def run_steps(
    graph: Graph,
    model: SearchedModel,
    beam_search: BeamSearch,
    length: Value,
    state: State,
    cache: Cache,
    limits: Value,
) -> tuple[Value, State, Cache]:
    """Runs at least one step, and goes on until enough sentences are done or one is at its limit.

    Args:
        graph: the body of the loop of rounds.
        model: what is searched.
        beam_search: extends the hypotheses.
        length: () int64, how many tokens each hypothesis has.
        state, cache: of the active sentences.
        limits: (A,) int64, their limits.

    Returns:
        Length, state and cache after the last step.
    """
    nearest_limit = graph("ReduceMin", limits, keepdims=0)
    num_fields, sizes = len(State._fields), CacheSizes.of(cache)._replace(sentences=0)

    def advance(g: Graph, _: Value, index: Value, *values: Value) -> list[Value]:
        old, moving = State(*values[:num_fields]), sizes.split(values[num_fields:])
        logits, new = model.step(g, old.token_ids, index, moving._replace(sentences=cache.sentences))
        length = g("Add", index, 1)
        state, is_done, beams = beam_search.extend(g, old, logits, length)
        # Negative while fewer than one in `DONE_SHARE` are done. It does not use their number: sizes are on the host.
        surplus = g("ReduceSum", g("Where", is_done, DONE_SHARE - 1, -1), keepdims=0)
        go_on = g("And", g("Less", surplus, 0), g("Less", length, nearest_limit))
        moved = [each if beams is None else gather(g, each, beams) for each in new.beams]
        return [go_on, length, *state, *moved, *new.shared]

    length, *last = graph.loop(advance, [length, *state, *cache.beams, *cache.shared])
    return length, State(*last[:num_fields]), sizes.split(last[num_fields:])._replace(sentences=cache.sentences)


def widened(g: Graph, ids: Value, other: Value) -> Value:
    """ids (B, n, W) → (B, n, T), padded to the width of `other`; CUDA has no `Pad` for integers."""
    width = g("Sub", g.shape(other, 2), g.shape(ids, 2))
    return g.joined(ids, g.zeros(g.joined(g("Shape", ids, end=2), width), np.int64), axis=2)
