"""Beam search as one ONNX `Loop`: the second form of `keras_transformer.decoding.search`, held to it by tests.

Letters of the shapes: B sentences, K beams, C candidates, V vocabulary, T emitted so far. What has a length grows by
one position a round; so nothing is allocated that no sentence needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from export.onnx_graph import Graph, Shape, Value
from keras_transformer.text.tokenizer import END, PAD, START

NONE = np.float32(-np.inf)  # log-probability and score of a hypothesis that does not exist
NUM_FORBIDDEN = END  # pad, unknown and start stand before the end

Start = tuple[Value, Any, Shape]  # a value before the first round, its type and its shape


class Cache(NamedTuple):
    """What a step hands to the next."""

    beams: list[Value]  # (B, K, W): follow their beams when these change places; W may grow
    shared: list[Value]  # of any shape: stay where they are


# (graph, token_ids (B · K,), index (), cache) → logits (B · K, V) float32, cache
Step = Callable[[Graph, Value, Value, Cache], tuple[Value, Cache]]


class BeamState(NamedTuple):
    """What one round hands to the next. Hypotheses stand best first."""

    token_ids: Value  # (B, K) what is fed to the step
    live_ids: Value  # (B, K, T)
    live_log_probs: Value  # (B, K)
    finished_ids: Value  # (B, K, T + 1) with the end id, then pad
    finished_scores: Value  # (B, K)
    done: Value  # (B,) True: this sentence is frozen


class Candidates(NamedTuple):
    """The likeliest continuations of a sentence's live hypotheses by one token, best first; each (B, C)."""

    log_probs: Value
    beams: Value
    token_ids: Value
    ended: Value


class BeamSearch:
    """The nodes of `beam_search`.

    Args:
        graph: what the loop is appended to.
        limits: (B,) int64, the most tokens to emit.
        vocabulary_size: V.
        num_beams: K.
        length_penalty: α.
    """

    def __init__(self, graph: Graph, limits: Value, vocabulary_size: int, num_beams: int, length_penalty: float):
        self.graph = graph
        self.limits = limits
        self.num_beams = num_beams
        self.num_candidates = 2 * num_beams if num_beams > 1 else 1
        # Of one beam: as many as there are candidates, and those that stand before them but are forbidden.
        self.num_continuations = min(self.num_candidates + NUM_FORBIDDEN, vocabulary_size)
        self.length_penalty = length_penalty
        g, batch_size = graph, graph.shape(limits, 0)
        numbers = g("Range", 0, g("Squeeze", batch_size), 1)
        self.sentences = g("Unsqueeze", numbers, [1])  # (B, 1)
        self.beams_shape = g.joined(batch_size, [num_beams])
        self.limits_penalty = g("Unsqueeze", self.penalty(g, limits), [1])  # (B, 1)

    def search(self, step: Step, beams: Sequence[Start], shared: Sequence[Start]) -> tuple[Value, Value]:
        """ids (B, K, T) int64 and scores (B, K) float32, the best first, T of the longest; see `beam_search`.

        Args:
            step: of the model.
            beams, shared: its cache before the first round.
        """
        num_fields, num_beams = len(BeamState._fields), len(beams)

        def advance(g: Graph, index: Value, *values: Value) -> list[Value]:
            state, caches = BeamState(*values[:num_fields]), list(values[num_fields:])
            cache = Cache(caches[:num_beams], caches[num_beams:])
            logits, cache = step(g, g("Reshape", state.token_ids, [-1]), index, cache)
            length = g("Add", index, 1)
            candidates = self.extend(g, state, logits)
            finished = self.keep_finished(g, state, candidates, length)
            live, kept = self.keep_live(g, state, candidates)
            live = self.is_done(g, live._replace(**finished), state.done, length)
            go_on = g("Greater", g("ReduceSum", g.cast(g("Not", live.done), np.int64), keepdims=0), 0)
            return [
                go_on,
                *live,
                *(self.gather(g, entry, kept, self.num_beams) for entry in cache.beams),
                *cache.shared,
            ]

        # The body runs once even when every sentence is blank: a blank one is done from the start.
        last = self.graph.loop(advance, [*self.start(), *beams, *shared], count=None)
        return self.fill_with_live(BeamState(*last[:num_fields]))

    def start(self) -> list[Start]:
        """One live hypothesis, with nothing in it; for a blank sentence one finished, with an end in it."""
        g, num_beams = self.graph, self.num_beams
        blank = g("Equal", self.limits, 0)  # (B,)
        first = np.arange(num_beams) == 0  # (K,)
        first_blank = g("And", g("Unsqueeze", blank, [1]), first)  # (B, K)
        first_live = g("And", g("Not", g("Unsqueeze", blank, [1])), first)
        pads = g.zeros(self.beams_shape, np.int64)
        finished_ids = g("Unsqueeze", g("Where", first_blank, END, PAD), [2])
        no_ids = g.zeros(g.joined(self.beams_shape, [0]), np.int64)
        return [
            (g("Add", pads, START), np.int64, [None, num_beams]),
            (no_ids, np.int64, [None, num_beams, None]),
            (g("Where", first_live, 0.0, NONE), np.float32, [None, num_beams]),
            (finished_ids, np.int64, [None, num_beams, None]),
            (g("Where", first_blank, 0.0, NONE), np.float32, [None, num_beams]),
            (blank, bool, [None]),
        ]

    def extend(self, g: Graph, state: BeamState, logits: Value) -> Candidates:
        """The 2K likeliest continuations; with one beam the likeliest alone.

        Each beam's own likeliest are found first: the vocabulary is passed over twice, and never copied.
        """
        width = self.num_beams * self.num_continuations
        log_probs, token_ids = g("TopK", g("LogSoftmax", logits), [self.num_continuations], outputs=2)
        log_probs = g("Where", g("Less", token_ids, NUM_FORBIDDEN), NONE, log_probs)  # (B · K, continuations)
        log_probs = g("Add", g("Reshape", log_probs, [-1, self.num_beams, self.num_continuations]),
                      g("Unsqueeze", state.live_log_probs, [2]))  # fmt: skip
        log_probs, places = g("TopK", g("Reshape", log_probs, [-1, width]), [self.num_candidates], outputs=2)
        token_ids = g("GatherElements", g("Reshape", token_ids, [-1, width]), places, axis=1)
        return Candidates(log_probs, g("Div", places, self.num_continuations), token_ids, g("Equal", token_ids, END))

    def keep_finished(self, g: Graph, state: BeamState, candidates: Candidates, length: Value) -> dict[str, Value]:
        """The best K of the finished hypotheses so far and, unless the sentence is done, of the candidates that end."""
        new = g("And", candidates.ended, g("Unsqueeze", g("Not", state.done), [1]))
        scores = g("Where", new, g("Div", candidates.log_probs, self.penalty(g, length)), NONE)
        ids = self.gather(g, state.live_ids, candidates.beams, self.num_beams)  # (B, C, T)
        ids = g.joined(ids, g("Unsqueeze", candidates.token_ids, [2]), axis=2)
        ids = g.joined(state.finished_ids, ids, axis=1)  # (B, K + C, T + 1)
        scores = g.joined(state.finished_scores, scores, axis=1)
        scores, places = g("TopK", scores, [self.num_beams], outputs=2)
        ids = self.gather(g, ids, places, self.num_beams + self.num_candidates)
        return {"finished_ids": g("Pad", ids, [0, 0, 0, 0, 0, 1]), "finished_scores": scores}

    def keep_live(self, g: Graph, state: BeamState, candidates: Candidates) -> tuple[BeamState, Value]:
        """The likeliest K of the candidates that do not end, and (B, K) the beams that they continue.

        A sentence that is done keeps its hypotheses, which grow by pad.
        """
        log_probs, places = g(
            "TopK", g("Where", candidates.ended, NONE, candidates.log_probs), [self.num_beams], outputs=2
        )
        done = g("Unsqueeze", state.done, [1])  # (B, 1)
        beams = g("Where", done, np.arange(self.num_beams), g("GatherElements", candidates.beams, places, axis=1))
        token_ids = g("Where", done, PAD, g("GatherElements", candidates.token_ids, places, axis=1))
        ids = self.gather(g, state.live_ids, beams, self.num_beams)
        live = state._replace(
            token_ids=token_ids,
            live_ids=g.joined(ids, g("Unsqueeze", token_ids, [2]), axis=2),
            live_log_probs=g("Where", done, state.live_log_probs, log_probs),
        )
        return live, beams

    def is_done(self, g: Graph, state: BeamState, done: Value, length: Value) -> BeamState:
        """Frozen where the limit is met, or no live hypothesis can still beat the worst finished one."""
        last = self.num_beams - 1
        divisor = self.limits_penalty if self.length_penalty >= 0 else self.penalty(g, g("Add", length, 1))
        attainable = g("Div", g("Slice", state.live_log_probs, [0], [1], [1]), divisor)  # (B, 1)
        beaten = g("LessOrEqual", attainable, g("Slice", state.finished_scores, [last], [last + 1], [1]))
        at_limit = g("GreaterOrEqual", length, self.limits)
        done = g("Or", done, g("Or", at_limit, g("Squeeze", beaten, [1])))
        return state._replace(done=done)

    def fill_with_live(self, state: BeamState) -> tuple[Value, Value]:
        """What finished and, in places left free, what was cut at its limit."""
        g = self.graph
        exists = g.cast(g("Greater", state.finished_scores, NONE), np.int64)
        live = g("Sub", np.arange(self.num_beams), g("ReduceSum", exists, [1]))  # (B, K), negative: a finished one
        finished, live = g("Less", live, 0), g("Max", live, 0)
        live_scores = g("Div", g("GatherElements", state.live_log_probs, live, axis=1), self.limits_penalty)
        scores = g("Where", finished, state.finished_scores, live_scores)
        live_ids = self.gather(g, g("Pad", state.live_ids, [0, 0, 0, 0, 0, 1]), live, self.num_beams)
        ids = g("Where", g("Unsqueeze", finished, [2]), state.finished_ids, live_ids)
        scores, places = g("TopK", scores, [self.num_beams], outputs=2)
        ids = self.gather(g, ids, places, self.num_beams)
        ids = g("Where", g("Greater", g("Unsqueeze", scores, [2]), NONE), ids, PAD)
        return g("Slice", ids, [0], [-1], [2]), scores  # of the T + 1 positions the last is always pad

    def gather(self, g: Graph, values: Value, beams: Value, num_beams: int) -> Value:
        """values (B, `num_beams`, W), beams (B, C) → (B, C, W): each sentence picks among its own beams."""
        places = g("Add", beams, g("Mul", self.sentences, num_beams))
        return g("Gather", g("Flatten", values, axis=2), places)

    def penalty(self, g: Graph, lengths: Value) -> Value:
        """((5 + |y|) / 6)^α, of any shape."""
        return g("Pow", g("Div", g("Add", g.cast(lengths, np.float32), 5.0), 6.0), float(self.length_penalty))
