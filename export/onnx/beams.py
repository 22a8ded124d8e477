"""One step of the search as ONNX nodes: extends live hypotheses, keeps the best, and collects those that end.

The letters in shapes are those of `search`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keras_transformer.decoding.loop import NONE
from keras_transformer.text.tokenizer import END, PAD

from ..signatures import Decoding
from .graph import Graph, Value


class Vocabulary(NamedTuple):
    """The number of ids, and how many of the first are control ids: pad, unknown, start, end, and perhaps more."""

    size: int
    num_control_ids: int

    @property
    def num_forbidden(self) -> int:
        """How many ids are never emitted: all control ids except the end."""
        return self.num_control_ids - 1

    def is_forbidden(self, g: Graph, token_ids: Value) -> Value:
        """Whether each id is one that is never emitted."""
        if self.num_forbidden == END:  # only ids before the end
            return g("Less", token_ids, END)
        return g("And", g("Less", token_ids, self.num_control_ids), g("Not", g("Equal", token_ids, END)))


class State(NamedTuple):
    """The state of the search, which one step hands to the next. Hypotheses are in order, the best first."""

    token_ids: Value  # (A, k) the inputs of the next step
    ids: Value  # (A, n + k, T) the finished hypotheses, with the end id, then pad; then the live ones
    live_log_probs: Value  # (A, k)
    finished_scores: Value  # (A, n)


class Extended(NamedTuple):
    """The hypotheses after one more step."""

    state: State
    is_done: Value  # (A, 1) which sentences are done
    beams: Value | None  # (A, K) which beam each live hypothesis continues; None if beams stay where they are


class Candidates(NamedTuple):
    """Continuations of live hypotheses, the best first."""

    log_probs: Value  # (A, C)
    beams: Value  # (A, C) the hypothesis that each continues
    token_ids: Value  # (A, C)


class BeamSearch:
    """The steps of a round with K ≥ 2 beams.

    Args:
        graph: the graph that holds the loop of steps.
        limits: (A,) int64, the most tokens to emit.
        vocabulary: V, and the ids that are never emitted.
        decoding: K, α and n.
        num_read: (A,) int64, tokens of the prompt, which no length counts; None if there is no prompt.
    """

    def __init__(
        self,
        graph: Graph,
        limits: Value,
        vocabulary: Vocabulary,
        decoding: Decoding,
        num_read: Value | None = None,
    ):
        self.vocabulary = vocabulary
        self.num_beams, self.n_best = decoding.num_beams, decoding.num_listed
        self.length_penalty = float(decoding.length_penalty)
        self.num_candidates = 2 * self.num_beams if self.num_beams > 1 else 1
        # The best of one beam may all be candidates, and forbidden ids may be better than these.
        self.num_continuations = min(self.num_candidates + vocabulary.num_forbidden, vocabulary.size)
        self.flat = graph.joined(graph("Shape", limits), [-1])  # the shape (A, anything)
        numbers = graph.joined(graph("Shape", limits), [self.n_best])
        self.finished_rows = graph("Expand", np.arange(self.n_best), numbers)  # (A, n) in `ids`
        self.num_read = None if num_read is None else graph("Unsqueeze", num_read, [1])  # (A, 1)
        self.limits_penalty = self.penalty(graph, graph("Unsqueeze", limits, [1]))  # (A, 1)

    def extend(self, g: Graph, state: State, logits: Value, length: Value) -> Extended:
        """Extends the live hypotheses by one token.

        Among the 2K likeliest continuations, those that end are finished, and the K likeliest others live on.
        """
        log_probs, beams, token_ids = self.candidates(g, state, logits)  # each (A, C)
        ended = g("Equal", token_ids, END)
        scores = g("Where", ended, self.scored(g, log_probs, length), NONE)
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
        return Extended(new, is_done, g("Sub", rows, self.n_best))

    def candidates(self, g: Graph, state: State, logits: Value) -> Candidates:
        """The 2K likeliest continuations.

        The likeliest of each beam come first, so the vocabulary is read twice and never copied.
        """
        log_probs, token_ids = g("TopK", g("LogSoftmax", logits), [self.num_continuations], outputs=2)
        log_probs = g("Where", self.vocabulary.is_forbidden(g, token_ids), NONE, log_probs)  # (A · k, continuations)
        log_probs = g("Add", log_probs, g("Reshape", state.live_log_probs, [-1, 1]))
        log_probs, places = g("TopK", g("Reshape", log_probs, self.flat), [self.num_candidates], outputs=2)
        token_ids = g("GatherElements", g("Reshape", token_ids, self.flat), places, axis=1)
        return Candidates(log_probs, g("Div", places, self.num_continuations), token_ids)

    def attainable(self, g: Graph, live_log_probs: Value, length: Value) -> Value:
        """(A, 1) The best score that a live hypothesis can still reach, as in `decoding.search.is_done`."""
        best = first(g, live_log_probs)
        if self.length_penalty > 0:
            return self.divided(g, best, self.limits_penalty)
        return self.scored(g, best, g("Add", length, 1))

    def worst(self, g: Graph, finished_scores: Value) -> Value:
        """(A, 1) The score of the n-th best finished hypothesis."""
        if self.n_best == 1:
            return finished_scores
        return g("Slice", finished_scores, [self.n_best - 1], [self.n_best], [1])

    def scored(self, g: Graph, log_probs: Value, length: Value) -> Value:
        """The scores of hypotheses of this length, as in `decoding.search.scored`."""
        return self.divided(g, log_probs, self.penalty(g, length)) if self.length_penalty else log_probs

    def divided(self, g: Graph, log_probs: Value, penalty: Value) -> Value:
        """The log-probabilities of what exists by a penalty, of any shape."""
        if not self.length_penalty:
            return log_probs
        return g("Where", exists(g, log_probs), g("Div", log_probs, penalty), NONE)

    def penalty(self, g: Graph, lengths: Value) -> Value:
        """((5 + |y|) / 6)^α of () or (A, 1) lengths, as in `decoding.search.scored`."""
        if self.num_read is not None:
            lengths = g("Max", g("Sub", lengths, self.num_read), 1)
        penalty = g("Pow", g("Div", g("Add", g.cast(lengths, np.float32), 5.0), 6.0), self.length_penalty)
        return penalty if self.length_penalty >= 0 else g("Max", penalty, 1e-20)

    def results(self, g: Graph, state: State) -> tuple[Value, Value]:
        """ids (A, n, T) and scores (A, n): finished hypotheses first, then live ones that were cut at the limit."""
        n_best = self.n_best
        has_finished = g.cast(exists(g, state.finished_scores), np.int64)
        live = g("Sub", np.arange(n_best), g("ReduceSum", has_finished, [1]))  # (A, n), negative for a finished one
        finished, live = g("Less", live, 0), g("Max", live, 0)
        live_log_probs = g("GatherElements", state.live_log_probs, live, axis=1)
        live_scores = self.divided(g, live_log_probs, self.limits_penalty)
        scores = g("Where", finished, state.finished_scores, live_scores)
        rows = g("Where", finished, np.arange(n_best), g("Add", live, n_best))
        ids = gather(g, state.ids, rows)
        return g("Where", g("Unsqueeze", exists(g, scores), [2]), ids, PAD), scores


class GreedySearch(BeamSearch):
    """The steps of a round with one beam. `ids` (A, 1, T) holds the one hypothesis, live or finished."""

    def extend(self, g: Graph, state: State, logits: Value, length: Value) -> Extended:
        """Extends each hypothesis by its likeliest token. Tokens may follow an end; `results` removes them."""
        log_probs, token_ids = g("TopK", g("LogSoftmax", logits), [self.num_continuations], outputs=2)
        log_probs = g("Where", self.vocabulary.is_forbidden(g, token_ids), NONE, log_probs)
        log_probs, places = g("TopK", log_probs, [1], outputs=2)
        token_ids = g("GatherElements", token_ids, places, axis=1)
        log_probs = g("Add", state.live_log_probs, log_probs)
        ended = g("Equal", token_ids, END)
        scores = g("Where", ended, self.scored(g, log_probs, length), NONE)
        live_log_probs = g("Where", ended, NONE, log_probs)
        ids = g.joined(state.ids, g("Unsqueeze", token_ids, [2]), axis=2)
        new = State(token_ids, ids, live_log_probs, g("Max", state.finished_scores, scores))
        return Extended(new, g("Not", exists(g, live_log_probs)), None)

    def results(self, g: Graph, state: State) -> tuple[Value, Value]:
        """ids (A, 1, T) and scores (A, 1), of finished hypotheses and of those that were cut at the limit."""
        ended = g.cast(g("Equal", state.ids, END), np.int64)
        ids = g("Where", g("Greater", g("CumSum", ended, 2, exclusive=1), 0), PAD, state.ids)
        return ids, g("Max", state.finished_scores, self.divided(g, state.live_log_probs, self.limits_penalty))


def exists(g: Graph, values: Value) -> Value:
    """Whether log-probabilities or scores are of hypotheses that exist, as in `decoding.loop.exists`."""
    return g("Greater", values, NONE / 10)


def first(g: Graph, values: Value) -> Value:
    """Values (A, k) → (A, 1), the first of each row."""
    return g("Slice", values, [0], [1], [1])


def gather(g: Graph, values: Value, rows: Value) -> Value:
    """Values (A, M, W), rows (A, C) → (A, C, W): picks rows of each sentence."""
    return g("GatherND", values, g("Unsqueeze", rows, [2]), batch_dims=1)
