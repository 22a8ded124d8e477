"""The graphs of an encoder: from ids or text to labels, to pieces and to vectors.

Letters in shapes: B texts, S ids of a text, D width, C labels, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from keras_transformer.text.tokenizer import PAD, START

from ..forms import NUM_FILLS, form_of
from ..signatures import TrainedRun
from .graph import TEXT, Graph, Model, Value, ValueInfo, name_outputs
from .model import OnnxEncoder, logits_of
from .text import tokenized
from .translation import permitted
from .weights import array

IDS = ValueInfo("ids", np.int32, ["batch", "length"])


class Encoded(NamedTuple):
    """What the encoder computes of ids from outside."""

    states: Value  # (B, S, D) float32
    ids: Value  # (B, S) as the model takes them
    writer: OnnxEncoder


def classify_model(run: TrainedRun, precision: str) -> Model:
    """`ids` (batch, length) int32, between start and end id, then pad → `probabilities` (batch, labels) and `vector`
    (batch, width), float32.
    """
    g = Graph()
    return Model(g, [IDS], name_outputs(g, *labelled(g, run, encoded(g, run, IDS.name, precision))))


def classify_text_model(run: TrainedRun, precision: str) -> Model:
    """`text` (batch,) → `label` (batch,), `probabilities` (batch, labels) and `vector` (batch, width)."""
    g = Graph()
    values, infos = labelled(g, run, encoded(g, run, ids_of_text(g, run), precision))
    label = g("Gather", np.array(run.labels, object), g("ArgMax", values[0], axis=-1, keepdims=0))
    outputs = name_outputs(g, [label, *values], [ValueInfo("label", object, ["batch"]), *infos])
    return Model(g, [TEXT], outputs)


def fill_model(run: TrainedRun, precision: str) -> Model:
    """`ids` (batch, length) int32, between start and end id, with masks, then pad → the likeliest pieces at each place,
    the best first: `piece_ids` int32 and `probabilities` float32 (batch, length, 5); and `vector` (batch, width).
    """
    g = Graph()
    found = encoded(g, run, IDS.name, precision)
    pieces, probs = filled(g, run.model, found)
    shape = ["batch", "length", min(NUM_FILLS, run.model.vocabulary_size)]
    infos = [ValueInfo("piece_ids", np.int32, shape), ValueInfo("probabilities", np.float32, shape), vector_info(run)]
    return Model(g, [IDS], name_outputs(g, [pieces, probs, mean_state(g, found)], infos))


def embed_text_model(run: TrainedRun, precision: str) -> Model:
    """`text` (batch,) → `vector` (batch, width) float32."""
    g = Graph()
    vector = mean_state(g, encoded(g, run, ids_of_text(g, run), precision))
    return Model(g, [TEXT], name_outputs(g, [vector], [vector_info(run)]))


def ids_of_text(g: Graph, run: TrainedRun) -> Value:
    """Text (B,) → ids (B, S), between start and end id."""
    model, (tokenizer, _) = run.model, run.tokenizers
    ids = tokenized(g, TEXT.name, tokenizer, form_of(run).cleaning, model.context_length - 2)
    start = g("Expand", np.array([[START]], "int32"), g.joined(g.shape(ids, 0), [1]))
    return g.joined(start, ids, axis=1)


def encoded(g: Graph, run: TrainedRun, ids: Value, precision: str) -> Encoded:
    """Ids (B, S) from outside → their states."""
    ids = permitted(g, ids, run.model.vocabulary_size, run.model.context_length - 1)
    writer = OnnxEncoder(run.model, precision)
    return Encoded(writer.states(g, ids), ids, writer)


def labelled(g: Graph, run: TrainedRun, found: Encoded) -> tuple[list[Value], list[ValueInfo]]:
    """The probabilities of labels (B, C) and the vectors (B, D), and these as outputs."""
    head = run.model.head
    first = found.writer.before_head(g, g("Gather", found.states, 0, axis=1))
    logits = g("Gemm", g.cast(first, np.float32), array(head.kernel), array(head.bias))
    probs = ValueInfo("probabilities", np.float32, ["batch", len(run.labels)])
    return [g("Softmax", logits, axis=-1), mean_state(g, found)], [probs, vector_info(run)]


def filled(g: Graph, model: Any, found: Encoded) -> list[Value]:
    """The ids of the likeliest pieces (B, S, 5), and their probabilities."""
    rows = found.writer.before_head(g, g("Reshape", found.states, [-1, model.hidden_dim]))
    logits = logits_of(g, found.writer.arithmetic, model.output_embedding, rows)
    probs = g("Softmax", logits, axis=-1)  # (B · S, V)
    is_text = np.arange(model.vocabulary_size) >= model.num_control_ids
    num_best = min(NUM_FILLS, model.vocabulary_size)
    probs, pieces = g("TopK", g("Where", is_text, probs, 0.0), [num_best], outputs=2)
    shape = g.joined(g("Shape", found.ids), [num_best])
    return [g("Reshape", each, shape, allowzero=1) for each in (g.cast(pieces, np.int32), probs)]


def mean_state(g: Graph, found: Encoded) -> Value:
    """The mean (B, D) of the states of ids that are not pad."""
    weights = g.cast(g("Not", g("Equal", found.ids, np.int32(PAD))), np.float32)
    total = g("ReduceSum", g("Mul", found.states, g("Unsqueeze", weights, [2])), [1], keepdims=0)
    return g("Div", total, g("Max", g("ReduceSum", weights, [1], keepdims=1), 1.0))


def vector_info(run: TrainedRun) -> ValueInfo:
    """The vectors as an output."""
    return ValueInfo("vector", np.float32, ["batch", run.model.hidden_dim])
