"""The search as ONNX loops: the second form of `keras_transformer.decoding.search`, held to it by tests.

Letters of the shapes: B sentences, A of them active, K beams, k of them alive (1 before the first step, then K), n best
that are asked for, C candidates, V vocabulary, T emitted so far. What has a length grows by one position a step; so
nothing is allocated that no sentence needs. Every node costs about a microsecond a step, so there are as few as may be.

Of a sentence that is done no live hypothesis is left (log-probability -inf), so that nothing of it can change. Whenever
an eighth of the active sentences are done, or one is at its limit, these are put aside and the others go on without
them: a loop of such rounds stands around the loop of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from keras_transformer.text.tokenizer import END, PAD, START

from .onnx_graph import Graph, Value
from .signatures import Decoding

NONE = np.float32(-np.inf)  # log-probability and score of a hypothesis that does not exist
DONE_SHARE = 8  # one in so many active sentences must be done to be put aside


class Vocabulary(NamedTuple):
    """How many ids there are, and how many of the first are no text: pad, unknown, start, end, perhaps more."""

    size: int
    num_control_ids: int

    @property
    def num_forbidden(self) -> int:
        """How many ids are never emitted: the control ids but the end."""
        return self.num_control_ids - 1

    def is_forbidden(self, g: Graph, token_ids: Value) -> Value:
        """Whether ids are never emitted."""
        if self.num_forbidden == END:  # those before the end alone
            return g("Less", token_ids, END)
        return g("And", g("Less", token_ids, self.num_control_ids), g("Not", g("Equal", token_ids, END)))


class Cache(NamedTuple):
    """What a step hands to the next; the first axis of each is that of the sentences."""

    beams: list[Value]  # (A, k, W): follow their beams when these change places; W may grow
    shared: list[Value]  # (A, ...): stay where they are
    sentences: list[Value]  # (A, ...): what `encode` says of a sentence


# (graph, source_ids (A, S)) → what a step needs to know of the sentences, each (A, ...)
Encode = Callable[[Graph, Value], list[Value]]
# (graph, token_ids (A, k), index (), cache) → logits (A · k, V) float32, cache
Step = Callable[[Graph, Value, Value, Cache], tuple[Value, Cache]]
# (graph, number of active sentences (1,), k before the first step) → cache
FirstCache = Callable[[Graph, Value, int], Cache]


class State(NamedTuple):
    """What one step hands to the next. Hypotheses stand best first."""

    token_ids: Value  # (A, k) what is fed to the step
    ids: Value  # (A, n + k, T) the finished hypotheses, with the end id, then pad; then the live ones
    live_log_probs: Value  # (A, k)
    finished_scores: Value  # (A, n)


def search(
    g: Graph,
    source_ids: Value,
    encode: Encode,
    step: Step,
    first_cache: FirstCache,
    limits: Value,
    vocabulary: Vocabulary,
    decoding: Decoding,
) -> tuple[Value, Value]:
    """ids (B, n, T) int64 and scores (B, n) float32, the best first, T of the longest; a blank sentence has an end.

    The encoder stands in the loop of rounds, for its weights' sake (see `Graph`): in the first round it is given all
    sentences, in later ones none.

    Args:
        g: what the nodes are appended to.
        source_ids: (B, S), for `encode`.
        encode, step: of the model.
        first_cache: before the first step; in it `sentences` are for no sentence at all, each (0, ...).
        limits: (B,) int64, the most tokens to emit; 0 for a blank sentence.
        vocabulary: V, and what of it is never emitted.
        decoding: K, α and n.
    """
    num_beams, n_best = decoding.num_beams, decoding.n_best or decoding.num_beams
    # At the first step all beams would be the same: one is enough, unless it has too few continuations.
    num_first_beams = 1 if vocabulary.size >= 2 * num_beams else num_beams
    num_fields = len(State._fields)

    def advance(g: Graph, _: Value, *values: Value) -> list[Value]:
        index, new, ids, scores, active, limits, *rest = values
        state, cache = State(*rest[:num_fields]), split(rest[num_fields:], parts)
        pairs = zip(cache.sentences, encode(g, new), strict=True)
        cache = cache._replace(sentences=[g.joined(*pair) for pair in pairs])
        how = (GreedySearch if num_beams == 1 else BeamSearch)(g, limits, vocabulary, decoding)
        length, state, cache = run_round(g, step, how, index, state, cache, limits)
        new_ids, new_scores = how.results(g, state)  # of all that were active: the last word is the right one
        places = g("Unsqueeze", active, [1])
        ids = g("ScatterND", widened(g, ids, new_ids), places, new_ids)
        scores = g("ScatterND", scores, places, new_scores)
        is_alive = g("Greater", g("Squeeze", first(g, state.live_log_probs), [1]), NONE)
        left = g("Squeeze", g("NonZero", g("And", g("Less", length, limits), is_alive)), [0])
        kept = [g("Gather", value, left) for value in (active, limits, *state, *chain(*cache))]
        # Sizes are on the host, and a 0 to compare this one with would be: each step would copy that 0 to a GPU.
        return [g.cast(g("Size", left), bool), length, g("Slice", new, [0], [0]), ids, scores, *kept]

    ids, scores = blank_results(g, limits, n_best)
    active = g("Squeeze", g("NonZero", limits), [0])
    started = [0, g("Gather", source_ids, active), ids, scores, active, g("Gather", limits, active)]
    num_rows = n_best + num_first_beams if num_beams > 1 else 1
    state = first_state(g, g("Shape", active), num_rows, num_first_beams, n_best)
    cache = first_cache(g, g("Shape", active), num_first_beams)
    parts = [len(part) for part in cache]
    goes_on = g.cast(g("Size", active), bool)
    _, _, ids, scores, *_ = g.loop(advance, [*started, *state, *chain(*cache)], goes_on=goes_on)
    return ids, scores


def blank_results(g: Graph, limits: Value, n_best: int) -> tuple[Value, Value]:
    """ids (B, n, 1) and scores (B, n): where the limit is 0 one hypothesis with an end alone, elsewhere none yet."""
    first_blank = g("And", g("Unsqueeze", g("Equal", limits, 0), [1]), np.arange(n_best) == 0)
    return g("Unsqueeze", g("Where", first_blank, END, PAD), [2]), g("Where", first_blank, 0.0, NONE)


def first_state(g: Graph, num_active: Value, num_rows: int, num_beams: int, n_best: int) -> State:
    """One live hypothesis, with nothing in it; `num_rows` of `ids`."""
    beams = np.arange(num_beams)
    return State(
        token_ids=g("Expand", np.full_like(beams, START), g.joined(num_active, [1])),
        ids=g.zeros(g.joined(num_active, [num_rows, 0]), np.int64),
        live_log_probs=g("Expand", np.where(beams == 0, 0, NONE).astype("float32"), g.joined(num_active, [1])),
        finished_scores=g("Expand", np.full(n_best, NONE), g.joined(num_active, [1])),
    )


def run_round(
    graph: Graph, step: Step, how: BeamSearch, index: Value, state: State, cache: Cache, limits: Value
) -> tuple[Value, State, Cache]:
    """Steps, one at least, until enough sentences are done; and how many tokens each hypothesis has then.

    Args:
        graph: of the loop of rounds.
        step, how: what is run.
        index: () int64, how many tokens each hypothesis has.
        state, cache: of the sentences that are active.
        limits: (A,) int64, theirs.
    """
    nearest_limit = graph("ReduceMin", limits, keepdims=0)
    num_fields, parts = len(State._fields), [len(cache.beams), len(cache.shared), 0]

    def advance(g: Graph, _: Value, index: Value, *values: Value) -> list[Value]:
        old, moving = State(*values[:num_fields]), split(values[num_fields:], parts)
        logits, new = step(g, old.token_ids, index, moving._replace(sentences=cache.sentences))
        length = g("Add", index, 1)
        state, is_done, beams = how.extend(g, old, logits, length)
        # Below 0 while fewer than one in `DONE_SHARE` are done: without their number, a size, which is on the host.
        surplus = g("ReduceSum", g("Where", is_done, DONE_SHARE - 1, -1), keepdims=0)
        go_on = g("And", g("Less", surplus, 0), g("Less", length, nearest_limit))
        moved = [each if beams is None else gather(g, each, beams) for each in new.beams]
        return [go_on, length, *state, *moved, *new.shared]

    length, *last = graph.loop(advance, [index, *state, *cache.beams, *cache.shared])
    return length, State(*last[:num_fields]), split(last[num_fields:], parts)._replace(sentences=cache.sentences)


class BeamSearch:
    """The steps of a round with K ≥ 2 beams.

    Args:
        graph: of the round, in which the loop of steps stands.
        limits: (A,) int64, the most tokens to emit.
        vocabulary: V, and what of it is never emitted.
        decoding: K, α and n.
    """

    def __init__(self, graph: Graph, limits: Value, vocabulary: Vocabulary, decoding: Decoding):
        self.vocabulary = vocabulary
        self.num_beams, self.n_best = decoding.num_beams, decoding.n_best or decoding.num_beams
        self.length_penalty = float(decoding.length_penalty)
        self.num_candidates = 2 * self.num_beams if self.num_beams > 1 else 1
        # Of one beam: as many as there are candidates, and those that stand before them but are forbidden.
        self.num_continuations = min(self.num_candidates + vocabulary.num_forbidden, vocabulary.size)
        self.flat = graph.joined(graph("Shape", limits), [-1])  # the shape (A, anything)
        numbers = graph.joined(graph("Shape", limits), [self.n_best])
        self.finished_rows = graph("Expand", np.arange(self.n_best), numbers)  # (A, n) in `ids`
        self.limits_penalty = graph("Unsqueeze", self.penalty(graph, limits), [1])  # (A, 1)

    def extend(self, g: Graph, state: State, logits: Value, length: Value) -> tuple[State, Value, Value | None]:
        """The state with one more token, (A, 1) which sentences are done, and (A, K) which beams are continued.

        Of the 2K likeliest continuations those that end are finished, and the K likeliest others live on.
        """
        log_probs, beams, token_ids = self.candidates(g, state, logits)  # each (A, C)
        ended = g("Equal", token_ids, END)
        scores = g("Where", ended, self.divided(g, log_probs, length), NONE)
        scores = g.joined(state.finished_scores, scores, axis=1)  # (A, n + C)
        finished_scores, places = g("TopK", scores, [self.n_best], outputs=2)
        rows = g("Add", beams, self.n_best)  # (A, C) in `ids`
        finished_rows = g("GatherElements", g.joined(self.finished_rows, rows, axis=1), places, axis=1)
        ends = g("Where", g("Less", places, self.n_best), PAD, END)  # (A, n)
        log_probs, places = g("TopK", g("Where", ended, NONE, log_probs), [self.num_beams], outputs=2)
        rows, token_ids = (g("GatherElements", each, places, axis=1) for each in (rows, token_ids))  # (A, K)
        ids = gather(g, state.ids, g.joined(finished_rows, rows, axis=1))
        last_ids = g("Unsqueeze", g.joined(ends, token_ids, axis=1), [2])
        is_done = g("LessOrEqual", self.attainable(g, log_probs, length), self.worst(g, finished_scores))  # (A, 1)
        live_log_probs = g("Where", is_done, NONE, log_probs)
        new = State(token_ids, g.joined(ids, last_ids, axis=2), live_log_probs, finished_scores)
        return new, is_done, g("Sub", rows, self.n_best)

    def candidates(self, g: Graph, state: State, logits: Value) -> tuple[Value, Value, Value]:
        """The 2K likeliest continuations: log-probabilities, beams and tokens, each (A, C).

        Each beam's own likeliest are found first: the vocabulary is passed over twice, and never copied.
        """
        log_probs, token_ids = g("TopK", g("LogSoftmax", logits), [self.num_continuations], outputs=2)
        log_probs = g("Where", self.vocabulary.is_forbidden(g, token_ids), NONE, log_probs)  # (A · k, continuations)
        log_probs = g("Add", log_probs, g("Reshape", state.live_log_probs, [-1, 1]))
        log_probs, places = g("TopK", g("Reshape", log_probs, self.flat), [self.num_candidates], outputs=2)
        token_ids = g("GatherElements", g("Reshape", token_ids, self.flat), places, axis=1)
        return log_probs, g("Div", places, self.num_continuations), token_ids

    def attainable(self, g: Graph, live_log_probs: Value, length: Value) -> Value:
        """(A, 1) The best score that a live hypothesis can still reach; see `search.is_done` of the package."""
        best = first(g, live_log_probs)
        if self.length_penalty > 0:
            return g("Div", best, self.limits_penalty)
        return self.divided(g, best, g("Add", length, 1))

    def worst(self, g: Graph, finished_scores: Value) -> Value:
        """(A, 1) The last of the best finished ones."""
        if self.n_best == 1:
            return finished_scores
        return g("Slice", finished_scores, [self.n_best - 1], [self.n_best], [1])

    def divided(self, g: Graph, log_probs: Value, length: Value) -> Value:
        """Scores of hypotheses of one length."""
        return g("Div", log_probs, self.penalty(g, length)) if self.length_penalty else log_probs

    def penalty(self, g: Graph, lengths: Value) -> Value:
        """((5 + |y|) / 6)^α, of any shape."""
        return g("Pow", g("Div", g("Add", g.cast(lengths, np.float32), 5.0), 6.0), self.length_penalty)

    def results(self, g: Graph, state: State) -> tuple[Value, Value]:
        """ids (A, n, T) and scores (A, n): what finished and then, in places left free, what was cut at its limit."""
        n_best = self.n_best
        exists = g.cast(g("Greater", state.finished_scores, NONE), np.int64)
        live = g("Sub", np.arange(n_best), g("ReduceSum", exists, [1]))  # (A, n), negative: a finished one
        finished, live = g("Less", live, 0), g("Max", live, 0)
        live_scores = g("Div", g("GatherElements", state.live_log_probs, live, axis=1), self.limits_penalty)
        scores = g("Where", finished, state.finished_scores, live_scores)
        rows = g("Where", finished, np.arange(n_best), g("Add", live, n_best))
        ids = gather(g, state.ids, rows)
        return g("Where", g("Greater", g("Unsqueeze", scores, [2]), NONE), ids, PAD), scores


class GreedySearch(BeamSearch):
    """Steps of one beam, with the likeliest continuation alone: `ids` (A, 1, T) hold what is live or finished."""

    def extend(self, g: Graph, state: State, logits: Value, length: Value) -> tuple[State, Value, Value | None]:
        """As that of `BeamSearch`; behind an end comes anything, and the beam stays where it is."""
        log_probs, token_ids = g("TopK", g("LogSoftmax", logits), [self.num_continuations], outputs=2)
        log_probs = g("Where", self.vocabulary.is_forbidden(g, token_ids), NONE, log_probs)
        log_probs, places = g("TopK", log_probs, [1], outputs=2)
        token_ids = g("GatherElements", token_ids, places, axis=1)
        log_probs = g("Add", state.live_log_probs, log_probs)
        ended = g("Equal", token_ids, END)
        scores = g("Where", ended, self.divided(g, log_probs, length), NONE)
        live_log_probs = g("Where", ended, NONE, log_probs)
        ids = g.joined(state.ids, g("Unsqueeze", token_ids, [2]), axis=2)
        new = State(token_ids, ids, live_log_probs, g("Max", state.finished_scores, scores))
        return new, g("Equal", live_log_probs, NONE), None

    def results(self, g: Graph, state: State) -> tuple[Value, Value]:
        """As that of `BeamSearch`: what finished, or was cut at its limit."""
        ended = g.cast(g("Equal", state.ids, END), np.int64)
        ids = g("Where", g("Greater", g("CumSum", ended, 2, exclusive=1), 0), PAD, state.ids)
        return ids, g("Max", state.finished_scores, g("Div", state.live_log_probs, self.limits_penalty))


def split(values: Sequence[Value], parts: Sequence[int]) -> Cache:
    """Values, one after the other, as a cache."""
    ends = np.cumsum(parts)
    return Cache(*(list(values[end - part : end]) for part, end in zip(parts, ends, strict=True)))


def widened(g: Graph, ids: Value, other: Value) -> Value:
    """ids (B, n, W) with pad behind them → (B, n, T), as wide as `other`. Joined: CUDA has no `Pad` of integers."""
    width = g("Sub", g.shape(other, 2), g.shape(ids, 2))
    return g.joined(ids, g.zeros(g.joined(g("Shape", ids, end=2), width), np.int64), axis=2)


def first(g: Graph, values: Value) -> Value:
    """values (A, k) → (A, 1)."""
    return g("Slice", values, [0], [1], [1])


def gather(g: Graph, values: Value, rows: Value) -> Value:
    """values (A, M, W), rows (A, C) → (A, C, W): each sentence picks among its own."""
    return g("GatherND", values, g("Unsqueeze", rows, [2]), batch_dims=1)
