"""The graphs of a language model: from prompts to what continues them, and one step for a caller's own loop.

The letters in shapes are those of `search`; P is the length of a prompt.
"""

from __future__ import annotations

import numpy as np

from keras_transformer.text.tokenizer import PAD, UNKNOWN

from ..forms import form_of, longest_prompt
from ..signatures import Decoding, TrainedRun
from .graph import SCORE, TEXT, Graph, Model, Value, ValueInfo, name_outputs
from .model import OnnxLanguageModel
from .stacks import flat_past, past_from_flat
from .text import detokenized, tokenized
from .translation import Translations, found, permitted

PROMPT = ValueInfo("prompt_ids", np.int32, ["batch", "prompt"])
ADDED = [ValueInfo("added_ids", np.int32, ["batch", "added"]), SCORE]
CONTINUATION = [ValueInfo("continuation", object, ["batch"]), SCORE]


def generate_model(run: TrainedRun, decoding: Decoding, precision: str) -> Model:
    """`prompt_ids` (batch, prompt) int32, pieces, then pad → `added_ids` (batch, added) int32, what continues each
    prompt in one context, with its end id unless it was cut, then pad; and `score` (batch,) float32. Prompts to answer
    end with the separator, the end id.
    """
    g = Graph()
    return Model(g, [PROMPT], name_outputs(g, continuation(g, run, PROMPT.name, decoding, precision), ADDED))


def generate_text_model(run: TrainedRun, decoding: Decoding, precision: str) -> Model:
    """`text` (batch,) → `continuation` (batch,), with its spaces and line breaks, and `score` (batch,)."""
    g, (tokenizer, _) = Graph(), run.tokenizers
    form = form_of(run)
    most = np.iinfo("int32").max
    prompt_ids = tokenized(g, TEXT.name, tokenizer, form.cleaning, most, closing=form.closing)
    ids, scores = continuation(g, run, prompt_ids, decoding, precision)
    texts = detokenized(g, ids, tokenizer, form.is_one_line)
    return Model(g, [TEXT], name_outputs(g, (texts, scores), CONTINUATION))


def step_model(run: TrainedRun, precision: str) -> Model:
    """One position, for a caller's own search or draw.

    Inputs: `token_ids` (batch, beams) int32, the tokens at the position; the start id, 2, at the first position.
    `index` () int32, the position, from 0. `past_key_i`, `past_value_i`, see `export.step_model`.

    Outputs: `logits` (batch, beams, vocabulary) float32 of the tokens at `index` + 1, `present_key_i` and
    `present_value_i`.
    """
    g, writer = Graph(), OnnxLanguageModel(run.model, precision)
    inputs = [ValueInfo("token_ids", np.int32, ["batch", "beams"]), ValueInfo("index", np.int32, [])]
    pasts = writer.decoder.cache_infos("past")
    past = past_from_flat([info.name for info in pasts], run.model.num_layers)
    shape = g("Shape", "token_ids")
    logits, present = writer.plain_step(g, "token_ids", "index", past, shape=shape)
    logits = g("Reshape", logits, g.joined(shape, [run.model.vocabulary_size]), allowzero=1)
    outputs = [
        ValueInfo("logits", np.float32, ["batch", "beams", run.model.vocabulary_size]),
        *writer.decoder.cache_infos("present"),
    ]
    return Model(g, [*inputs, *pasts], name_outputs(g, [logits, *flat_past(present)], outputs))


def continuation(
    g: Graph, run: TrainedRun, prompt_ids: Value, decoding: Decoding, precision: str
) -> tuple[Value, Value]:
    """Prompts (B, P) int32 → added ids (B, T) and scores (B,), as the run's form computes them."""
    model, decoding = run.model, decoding.one_best()
    context, size = model.context_length, np.int32(model.vocabulary_size)
    if run.answer_length:
        prompt_ids = permitted(g, prompt_ids, model.vocabulary_size, longest_prompt(run))
    is_known = g("And", g("GreaterOrEqual", prompt_ids, np.int32(0)), g("Less", prompt_ids, size))
    prompt_ids = padded(g, g("Where", is_known, prompt_ids, np.int32(UNKNOWN)))
    is_piece = g.cast(g("Not", g("Equal", prompt_ids, np.int32(PAD))), np.int64)
    lengths = g("ReduceSum", is_piece, [1], keepdims=0)  # (B,)
    fits = g("Less", lengths, context)
    starts = g("Where", fits, 0, g("Sub", lengths, context // 2))
    prompt_ids = g("Slice", moved(g, prompt_ids, starts), [0], [context], [1])
    lengths = g("Where", fits, lengths, context // 2)
    limits = g("Min", g("Add", lengths, decoding.max_length or context), context)
    writer = OnnxLanguageModel(model, precision, decoding.num_beams)
    best: Translations = found(g, [writer], prompt_ids, limits, decoding, lengths)
    ids, scores = best.best(g)
    return moved(g, padded(g, ids), lengths), scores


def padded(g: Graph, ids: Value) -> Value:
    """Ids (B, S) → (B, S + 1), with pad behind them."""
    return g.joined(ids, g.zeros(g.joined(g.shape(ids, 0), [1]), np.int32), axis=1)


def moved(g: Graph, ids: Value, starts: Value) -> Value:
    """Rows (B, S), each with pad behind it, from their starts (B,) on, then pad."""
    width = g("Squeeze", g.shape(ids, 1))
    places = g("Add", g("Range", 0, width, 1), g("Unsqueeze", starts, [1]))
    return g("GatherElements", ids, g("Min", places, g("Sub", width, 1)), axis=1)
