"""Beam search as ONNX loops: the second form of `keras_transformer.decoding.search`, held to it by tests.

Letters of the shapes: B sentences, A of them still active, K beams, C candidates, V vocabulary, T emitted so far. What
has a length grows by one position a step; so nothing is allocated that no sentence needs. Whenever half of the active
sentences are done they are put aside, and the others go on without them: a loop of such rounds stands around the loop
of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from export.onnx_graph import Graph, Value
from keras_transformer.text.tokenizer import END, PAD, START

NONE = np.float32(-np.inf)  # log-probability and score of a hypothesis that does not exist
NUM_FORBIDDEN = END  # pad, unknown and start stand before the end


class Cache(NamedTuple):
    """What a step hands to the next; the first axis of each is that of the sentences."""

    beams: list[Value]  # (A, K, W): follow their beams when these change places; W may grow
    shared: list[Value]  # (A, ...): stay where they are
    sentences: list[Value]  # (A, ...): what `encode` says of a sentence


# (graph, source_ids (A, S)) → what a step needs to know of the sentences, each (A, ...)
Encode = Callable[[Graph, Value], list[Value]]
# (graph, token_ids (A · K,), index (), cache) → logits (A · K, V) float32, cache
Step = Callable[[Graph, Value, Value, Cache], tuple[Value, Cache]]


class BeamState(NamedTuple):
    """What one step hands to the next. Hypotheses stand best first."""

    token_ids: Value  # (A, K) what is fed to the step
    live_ids: Value  # (A, K, T)
    live_log_probs: Value  # (A, K)
    finished_ids: Value  # (A, K, T + 1) with the end id, then pad
    finished_scores: Value  # (A, K)
    done: Value  # (A,) True: this sentence is frozen


class Candidates(NamedTuple):
    """The likeliest continuations of a sentence's live hypotheses by one token, best first; each (A, C)."""

    log_probs: Value
    beams: Value
    token_ids: Value
    ended: Value


def beam_search(
    g: Graph,
    source_ids: Value,
    encode: Encode,
    step: Step,
    cache: Cache,
    limits: Value,
    vocabulary_size: int,
    num_beams: int,
    length_penalty: float,
) -> tuple[Value, Value]:
    """ids (B, K, T) int64 and scores (B, K) float32, the best first, T of the longest.

    The encoder stands in the loop of rounds, for its weights' sake (see `Graph`): in the first round it is given all
    sentences, in later ones none.

    Args:
        g: what the nodes are appended to.
        source_ids: (B, S), for `encode`.
        encode, step: of the model.
        cache: before the first step; in it `sentences` for no sentence at all, each (0, ...).
        limits: (B,) int64, the most tokens to emit.
        vocabulary_size: V.
        num_beams: K.
        length_penalty: α.
    """
    num_fields, parts, batch_size = len(BeamState._fields), [len(part) for part in cache], g.shape(limits, 0)

    def advance(g: Graph, _: Value, *values: Value) -> list[Value]:
        new, ids, scores, active, limits, *rest = values
        state, cache = BeamState(*rest[:num_fields]), split(rest[num_fields:], parts)
        pairs = zip(cache.sentences, encode(g, new), strict=True)
        cache = cache._replace(sentences=[g.joined(*pair) for pair in pairs])
        search = BeamSearch(g, limits, vocabulary_size, num_beams, length_penalty)
        state, cache = search.run(step, state, cache)
        new_ids, new_scores = search.fill_with_live(state)  # of all that were active: the last word is the right one
        growth = g.joined([0] * 5, g("Sub", g.shape(new_ids, 2), g.shape(ids, 2)))
        places = g("Unsqueeze", active, [1])
        ids = g("ScatterND", g("Pad", ids, growth), places, new_ids)
        scores = g("ScatterND", scores, places, new_scores)
        left = g("Squeeze", g("NonZero", g("Not", state.done)), [0])
        kept = [g("Gather", value, left) for value in (active, limits, *state, *chain(*cache))]
        return [g("Greater", g("Size", left), 0), g("Slice", new, [0], [0]), ids, scores, *kept]

    ids = g.zeros(g.joined(batch_size, [num_beams, 0]), np.int64)
    scores = g.zeros(g.joined(batch_size, [num_beams]), np.float32)
    active = g("Range", 0, g("Squeeze", batch_size), 1)
    state = start_beams(g, limits, num_beams)
    _, ids, scores, *_ = g.loop(advance, [source_ids, ids, scores, active, limits, *state, *chain(*cache)])
    return ids, scores


def split(values: Sequence[Value], parts: Sequence[int]) -> Cache:
    """Values, one after the other, as a cache."""
    ends = np.cumsum(parts)
    return Cache(*(list(values[end - part : end]) for part, end in zip(parts, ends, strict=True)))


def start_beams(g: Graph, limits: Value, num_beams: int) -> BeamState:
    """One live hypothesis, with nothing in it; for a blank sentence one finished, with an end in it."""
    shape = g.joined(g.shape(limits, 0), [num_beams])
    blank = g("Equal", limits, 0)  # (B,)
    first = np.arange(num_beams) == 0  # (K,)
    first_blank = g("And", g("Unsqueeze", blank, [1]), first)  # (B, K)
    first_live = g("And", g("Not", g("Unsqueeze", blank, [1])), first)
    return BeamState(
        token_ids=g("Add", g.zeros(shape, np.int64), START),
        live_ids=g.zeros(g.joined(shape, [0]), np.int64),
        live_log_probs=g("Where", first_live, 0.0, NONE),
        finished_ids=g("Unsqueeze", g("Where", first_blank, END, PAD), [2]),
        finished_scores=g("Where", first_blank, 0.0, NONE),
        done=blank,
    )


class BeamSearch:
    """The search over the sentences that are active.

    Args:
        graph: what the loop of steps is appended to.
        limits: (A,) int64, the most tokens to emit.
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
        numbers = graph("Range", 0, graph("Squeeze", graph.shape(limits, 0)), 1)
        self.sentences = graph("Unsqueeze", numbers, [1])  # (A, 1)
        self.limits_penalty = graph("Unsqueeze", self.penalty(graph, limits), [1])  # (A, 1)

    def run(self, step: Step, state: BeamState, cache: Cache) -> tuple[BeamState, Cache]:
        """Steps, one at least, until half of the sentences are done."""
        first, num_active = self.graph.shape(state.live_ids, 2), self.graph.shape(self.limits, 0)
        num_fields, parts = len(BeamState._fields), [len(cache.beams), len(cache.shared), 0]

        def advance(g: Graph, count: Value, *values: Value) -> list[Value]:
            old, moving = BeamState(*values[:num_fields]), split(values[num_fields:], parts)
            index = g("Add", g("Squeeze", first), count)
            token_ids = g("Reshape", old.token_ids, [-1])
            logits, new = step(g, token_ids, index, moving._replace(sentences=cache.sentences))
            candidates, length = self.extend(g, old, logits), g("Add", index, 1)
            finished = self.keep_finished(g, old, candidates, length)
            live, beams = self.keep_live(g, old, candidates)
            live = self.is_done(g, live._replace(**finished), old.done, length)
            num_live = g("ReduceSum", g.cast(g("Not", live.done), np.int64))  # (1,)
            go_on = g("Squeeze", g("Greater", g("Mul", num_live, 2), num_active))
            return [go_on, *live, *(self.gather(g, each, beams, self.num_beams) for each in new.beams), *new.shared]

        last = self.graph.loop(advance, [*state, *cache.beams, *cache.shared])
        moved = split(last[num_fields:], parts)
        return BeamState(*last[:num_fields]), moved._replace(sentences=cache.sentences)

    def extend(self, g: Graph, state: BeamState, logits: Value) -> Candidates:
        """The 2K likeliest continuations; with one beam the likeliest alone.

        Each beam's own likeliest are found first: the vocabulary is passed over twice, and never copied.
        """
        width = self.num_beams * self.num_continuations
        log_probs, token_ids = g("TopK", g("LogSoftmax", logits), [self.num_continuations], outputs=2)
        log_probs = g("Where", g("Less", token_ids, NUM_FORBIDDEN), NONE, log_probs)  # (A · K, continuations)
        log_probs = g("Add", g("Reshape", log_probs, [-1, self.num_beams, self.num_continuations]),
                      g("Unsqueeze", state.live_log_probs, [2]))  # fmt: skip
        log_probs, places = g("TopK", g("Reshape", log_probs, [-1, width]), [self.num_candidates], outputs=2)
        token_ids = g("GatherElements", g("Reshape", token_ids, [-1, width]), places, axis=1)
        return Candidates(log_probs, g("Div", places, self.num_continuations), token_ids, g("Equal", token_ids, END))

    def keep_finished(self, g: Graph, state: BeamState, candidates: Candidates, length: Value) -> dict[str, Value]:
        """The best K of the finished hypotheses so far and, unless the sentence is done, of the candidates that end."""
        new = g("And", candidates.ended, g("Unsqueeze", g("Not", state.done), [1]))
        scores = g("Where", new, g("Div", candidates.log_probs, self.penalty(g, length)), NONE)
        ids = self.gather(g, state.live_ids, candidates.beams, self.num_beams)  # (A, C, T)
        ids = g.joined(ids, g("Unsqueeze", candidates.token_ids, [2]), axis=2)
        ids = g.joined(state.finished_ids, ids, axis=1)  # (A, K + C, T + 1)
        scores = g.joined(state.finished_scores, scores, axis=1)
        scores, places = g("TopK", scores, [self.num_beams], outputs=2)
        ids = self.gather(g, ids, places, self.num_beams + self.num_candidates)
        return {"finished_ids": g("Pad", ids, [0, 0, 0, 0, 0, 1]), "finished_scores": scores}

    def keep_live(self, g: Graph, state: BeamState, candidates: Candidates) -> tuple[BeamState, Value]:
        """The likeliest K of the candidates that do not end, and (A, K) the beams that they continue.

        A sentence that is done keeps its hypotheses, which grow by pad.
        """
        log_probs = g("Where", candidates.ended, NONE, candidates.log_probs)
        log_probs, places = g("TopK", log_probs, [self.num_beams], outputs=2)
        done = g("Unsqueeze", state.done, [1])  # (A, 1)
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
        attainable = g("Div", g("Slice", state.live_log_probs, [0], [1], [1]), divisor)  # (A, 1)
        beaten = g("LessOrEqual", attainable, g("Slice", state.finished_scores, [last], [last + 1], [1]))
        at_limit = g("GreaterOrEqual", length, self.limits)
        done = g("Or", done, g("Or", at_limit, g("Squeeze", beaten, [1])))
        return state._replace(done=done)

    def fill_with_live(self, state: BeamState) -> tuple[Value, Value]:
        """What finished and, in places left free, what was cut at its limit."""
        g = self.graph
        exists = g.cast(g("Greater", state.finished_scores, NONE), np.int64)
        live = g("Sub", np.arange(self.num_beams), g("ReduceSum", exists, [1]))  # (A, K), negative: a finished one
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
        """values (A, `num_beams`, W), beams (A, C) → (A, C, W): each sentence picks among its own beams."""
        places = g("Add", beams, g("Mul", self.sentences, num_beams))
        return g("Gather", g("Flatten", values, axis=2), places)

    def penalty(self, g: Graph, lengths: Value) -> Value:
        """((5 + |y|) / 6)^α, of any shape."""
        return g("Pow", g("Div", g("Add", g.cast(lengths, np.float32), 5.0), 6.0), float(self.length_penalty))
