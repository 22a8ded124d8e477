"""The graph of a model of histories: from items to the likeliest next items and a vector.

Letters in shapes: B histories, T ids of a history, D width, V vocabulary.
"""

from __future__ import annotations

import numpy as np

from keras_transformer.layers.attention import HIDDEN
from keras_transformer.text.tokenizer import PAD, UNKNOWN

from ..forms import num_listed
from ..signatures import TrainedRun
from .arithmetic import ARITHMETIC
from .continuation import moved, padded
from .graph import Graph, Model, Value, ValueInfo, name_outputs
from .model import logits_of, stack_of


def recommend_model(run: TrainedRun, precision: str) -> Model:
    """`ids` (batch, length) int32, the start id, then items, the oldest first, then pad → the likeliest next items, the
    likeliest first: `item_ids` int32 and `probabilities` float32 (batch, 20), or as many as there are items; and
    `vector` (batch, width) float32.
    """
    g, model, arithmetic = Graph(), run.model, ARITHMETIC[precision]
    infos = [
        ValueInfo("item_ids", np.int32, ["batch", num_listed(model)]),
        ValueInfo("probabilities", np.float32, ["batch", num_listed(model)]),
        ValueInfo("vector", np.float32, ["batch", model.hidden_dim]),
    ]
    ids = ValueInfo("ids", np.int32, ["batch", "length"])
    vector = last_states(g, run, begun(g, run, ids.name), precision)
    logits = logits_of(g, arithmetic, model.output_embedding, arithmetic.from_float32(g, vector))
    is_item = np.arange(model.vocabulary_size) >= model.num_control_ids
    probs = g("Softmax", g("Where", is_item, logits, HIDDEN), axis=-1)
    probs, items = g("TopK", probs, [num_listed(model)], outputs=2)
    return Model(g, [ids], name_outputs(g, [g.cast(items, np.int32), probs, vector], infos))


def begun(g: Graph, run: TrainedRun, ids: Value) -> Value:
    """Ids (B, T) from outside → as the model takes them: the first id, and of the others the last that fit."""
    most, size = run.model.context_length - 1, np.int32(run.model.vocabulary_size)
    is_known = g("And", g("GreaterOrEqual", ids, np.int32(0)), g("Less", ids, size))
    ids = padded(g, g("Where", is_known, ids, np.int32(UNKNOWN)))
    start, items = g("Slice", ids, [0], [1], [1]), g("Slice", ids, [1], [np.iinfo("int64").max], [1])
    starts = g("Max", g("Sub", lengths_of(g, items), most), 0)
    items = g("Slice", moved(g, padded(g, items), starts), [0], [most], [1])
    return g.joined(start, items, axis=1)


def last_states(g: Graph, run: TrainedRun, ids: Value, precision: str) -> Value:
    """Ids (B, T) → the state (B, D) of the last position that is no pad, float32."""
    rows, _, shape = stack_of(run.model, ARITHMETIC[precision]).states(g, ids)
    states = g("Reshape", rows, g.joined(shape, [run.model.hidden_dim]), allowzero=1)
    last = g("Unsqueeze", g("Max", g("Sub", lengths_of(g, ids), 1), 0), [1])  # (B, 1)
    return g.cast(g("GatherND", states, last, batch_dims=1), np.float32)


def lengths_of(g: Graph, ids: Value) -> Value:
    """(B,) int64 How many ids of each row (B, T) are no pad."""
    return g("ReduceSum", g.cast(g("Not", g("Equal", ids, np.int32(PAD))), np.int64), [1], keepdims=0)
