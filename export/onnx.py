"""ONNX: translators from ids and from text with the beam search inside, and the two halves for a caller's own loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from keras_transformer.layers.attention import HIDDEN
from keras_transformer.lengths import longest
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import END, PAD, UNKNOWN

from .onnx_graph import Graph, Model, Value, ValueInfo, write_model
from .onnx_model import Memory, OnnxTransformer, Past
from .onnx_parts import require_writers
from .onnx_search import Cache, Vocabulary, search
from .onnx_text import detokenized, tokenized
from .signatures import Decoding, TrainedRun, require_precision, stem

SOURCE = ("source_ids", np.int32, ["batch", "source"])
TRANSLATION = [("target_ids", np.int32, ["batch", "target"]), ("score", np.float32, ["batch"])]
TEXT = ("text", object, ["batch"])
TEXT_TRANSLATION = [("translation", object, ["batch"]), ("score", np.float32, ["batch"])]

# All operators that are not the standard's: those of int8, and those of `translate_text`.
INT8_OPERATORS = {"MatMulIntegerToFloat"}  # ONNX Runtime's own
TEXT_OPERATORS = {"StringRegexReplace", "SentencepieceTokenizer", "StringJoin"}  # onnxruntime-extensions'


def export_onnx(
    run: TrainedRun, folder: str | os.PathLike[str], decoding: Decoding | None = None, precision: str = "float32"
) -> list[Path]:
    """Writes `translate`, `translate_text`, `encoder` and `step` into `folder`/onnx.

    All are of opset 17; `translate_text` needs onnxruntime-extensions. float16 is meant for GPUs: states and weights
    in half, softmax, norms and search in float32. int8 is meant for CPUs: weights in 8 bits, one scale a column; states
    in 8 bits, one scale a row; one operator of ONNX Runtime's own.

    Args:
        run: what is exported.
        folder: where to; it is made if need be.
        decoding: how the translators search.
        precision: float32, float16 or int8.

    Returns:
        The paths of the files.

    Raises:
        RequestError: an unknown precision, or a part of the model, or an option of one, that has no writer.
    """
    require_precision("onnx", precision)
    require_writers(run.model, precision)
    decoding = decoding or Decoding()
    models: dict[str, Callable[[], Model]] = {
        "translate": lambda: translate_model(run, decoding, precision),
        "translate_text": lambda: translate_text_model(run, decoding, precision),
        "encoder": lambda: encoder_model(run, precision),
        "step": lambda: step_model(run, precision),
    }
    folder = Path(folder)
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, make in models.items():
        path = folder / "onnx" / f"{stem(name, precision)}.onnx"
        paths += write_model(path, make(), run.metadata(decoding, precision))
    return paths


def translate_model(run: TrainedRun, decoding: Decoding, precision: str, with_n_best: bool = False) -> Model:
    """From ids to ids: `source_ids` (batch, source) int32 → `target_ids` (batch, target) int32, `score` (batch,).

    Ids may be any numbers and rows of any length, none included: see `export.signatures.translate_ids`.

    Args:
        run, decoding, precision: as for `export_onnx`.
        with_n_best: two more outputs, `n_best_ids` (batch, n_best, target) and `n_best_scores` (batch, n_best), the
            best first; where fewer exist, rows of pad with the score -inf.
    """
    g = Graph()
    ids, scores = translation(g, run, SOURCE[0], decoding if with_n_best else decoding.one_best(), precision)
    outputs = name_outputs(g, best_of(g, ids, scores), TRANSLATION)
    if with_n_best:
        shape = ["batch", decoding.n_best]
        n_best = [("n_best_ids", np.int32, [*shape, "target"]), ("n_best_scores", np.float32, shape)]
        outputs = [*outputs, *name_outputs(g, (ids, scores), n_best)]
    return Model(g, [SOURCE], outputs)


def translate_text_model(run: TrainedRun, decoding: Decoding, precision: str) -> Model:
    """From text to text: `text` (batch,) → `translation` (batch,), always one line, and `score` (batch,)."""
    g = Graph()
    translator = run.translator
    source_ids = tokenized(g, TEXT[0], translator.source_tokenizer, run.model.max_source_length)
    ids, scores = best_of(g, *translation(g, run, source_ids, decoding.one_best(), precision))
    texts = detokenized(g, ids, translator.target_tokenizer)
    return Model(g, [TEXT], name_outputs(g, (texts, scores), TEXT_TRANSLATION))


def encoder_model(run: TrainedRun, precision: str) -> Model:
    """The first half: `source_ids` (batch, source) int32 → what `step` asks of a sentence, and `limit` (batch,) int32,
    the most tokens to emit.
    """
    g = Graph()
    source_ids = permitted(g, SOURCE[0], run.model)
    limits = g.cast(limits_of(g, source_ids, None), np.int32)
    transformer = OnnxTransformer(run.model, precision)
    memory = transformer.encode(g, source_ids)
    outputs = [*transformer.memory_infos(), ("limit", np.int32, ["batch"])]
    return Model(g, [SOURCE], name_outputs(g, [*memory.keys, *memory.values, memory.bias, limits], outputs))


def step_model(run: TrainedRun, precision: str) -> Model:
    """The second half: one position, for any number of hypotheses of each sentence.

    Inputs: `token_ids` (batch, beams) int32, the tokens at the position; the start id, 2, at the first. `index` ()
    int32, the position, from 0. `past_key_i`, `past_value_i` (rows, heads, past, key_dim), for each layer i the
    outputs of the step before, of past 0 at the first; rows = batch · beams, a sentence's beams one after the other.
    All outputs of `encoder` but `limit`.

    Outputs: `logits` (batch, beams, vocabulary) float32 of the tokens at `index` + 1, `present_key_i` and
    `present_value_i`. A beam search puts their rows into the order of its beams before the next step.
    """
    g, model = Graph(), run.model
    transformer = OnnxTransformer(model, precision)
    inputs = [("token_ids", np.int32, ["batch", "beams"]), ("index", np.int32, [])]
    pasts, memories = transformer.cache_infos("past"), transformer.memory_infos()
    past = by_layer([name for name, *_ in pasts], model.decoder_layers)
    memory = memory_of([name for name, *_ in memories])
    logits, present = transformer.step(g, "token_ids", "index", past, memory, g("Shape", "token_ids"))
    logits = g("Reshape", logits, g.joined(g("Shape", "token_ids"), [model.vocabulary_size]), allowzero=1)
    outputs = [
        ("logits", np.float32, ["batch", "beams", model.vocabulary_size]),
        *transformer.cache_infos("present"),
    ]
    return Model(g, [*inputs, *pasts, *memories], name_outputs(g, [logits, *flat(present)], outputs))


def flat(past: Past) -> list[Value]:
    """All layers' keys, then all layers' values: each layer's first tensor, then each layer's second."""
    return [value for values in zip(*past, strict=True) for value in values]


def by_layer(values: Sequence[Value], num_layers: int) -> Past:
    """The past of each layer, from what `flat` made."""
    return [list(values[layer::num_layers]) for layer in range(num_layers)]


def memory_of(values: Sequence[Value]) -> Memory:
    """Memory from keys, values and the bias, one after the other."""
    layers = len(values) // 2
    return Memory(list(values[:layers]), list(values[layers : 2 * layers]), values[-1])


def name_outputs(g: Graph, values: Iterable[Value], outputs: Sequence[ValueInfo]) -> Sequence[ValueInfo]:
    """Gives the values the names of the outputs."""
    for value, (name, *_) in zip(values, outputs, strict=True):
        g.named(value, name)
    return outputs


def translation(
    g: Graph, run: TrainedRun, source_ids: Value, decoding: Decoding, precision: str
) -> tuple[Value, Value]:
    """Source ids (B, S) int32 → ids (B, n, T) int32 and scores (B, n), the best first; see `translate_ids`."""
    model, num_beams, layers = run.model, decoding.num_beams, run.model.decoder_layers
    transformer = OnnxTransformer(model, precision)
    source_ids = permitted(g, source_ids, model)
    limits = limits_of(g, source_ids, decoding.max_length)
    # What each beam adds at a position is seen by itself alone, and by those that continue it.
    own_bias = np.where(np.eye(num_beams, dtype=bool), 0, HIDDEN).astype("float32")

    def encode(g: Graph, source_ids: Value) -> list[Value]:
        keys, values, bias = transformer.encode(g, source_ids)
        beams = [g("Expand", own_bias, g.joined(g.shape(source_ids, 0), own_bias.shape))] if num_beams > 1 else []
        return [*keys, *values, bias, *beams]

    def step(g: Graph, token_ids: Value, index: Value, cache: Cache) -> tuple[Value, Cache]:
        memory = memory_of(cache.sentences[: 2 * layers + 1])
        if num_beams == 1:
            logits, past = transformer.step(g, token_ids, index, by_layer(cache.shared, layers), memory)
            return logits, Cache([], flat(past), [])
        past = by_layer(cache.shared[:-1], layers)
        bias = g.joined(cache.beams[0], cache.shared[-1], axis=2)  # (A, k, P + k)
        shape, seen = g("Shape", token_ids), g("Unsqueeze", bias, [1])
        logits, past = transformer.step(g, token_ids, index, past, memory, shape, seen)
        return logits, Cache([bias], [*flat(past), cache.sentences[-1]], [])

    def first_cache(g: Graph, num_active: Value, first_beams: int) -> Cache:
        """Nothing decoded yet, and no sentence encoded: of the sizes that will grow, each is 0."""
        heads, size, width = model.num_heads, model.key_dim, g.shape(source_ids, 1)
        past = flat(transformer.first_past(g, num_active))
        sentences = [
            *[g.zeros(g.joined([0, heads, size], width), transformer.dtype)] * layers,
            *[g.zeros(g.joined([0, heads], width, [size]), transformer.dtype)] * layers,
            g.zeros(g.joined([0, 1, 1], width), np.float32),
        ]
        if num_beams == 1:
            return Cache([], past, sentences)
        own = g("Expand", own_bias[:first_beams, :first_beams], g.joined(num_active, [1, 1]))
        beams = [g.zeros(g.joined(num_active, [first_beams, 0]), np.float32)]
        return Cache(beams, [*past, own], [*sentences, g.value(np.zeros((0, *own_bias.shape), "float32"))])

    vocabulary = Vocabulary(model.vocabulary_size, model.num_control_ids)
    ids, scores = search(g, source_ids, encode, step, first_cache, limits, vocabulary, decoding)
    return g.cast(ids, np.int32), scores


def permitted(g: Graph, source_ids: Value, model: Transformer) -> Value:
    """`keras_transformer`'s rule for ids from outside, see `export.signatures.permitted`."""
    pad, unknown, end, longest = np.int32(PAD), np.int32(UNKNOWN), np.int32(END), model.max_source_length
    size = np.int32(model.source_vocabulary_size or model.vocabulary_size)
    known = g("And", g("GreaterOrEqual", source_ids, np.int32(0)), g("Less", source_ids, size))
    source_ids = g("Where", known, source_ids, unknown)
    last = g("Slice", source_ids, [longest], [longest + 1], [1])
    last = g("Where", g("Equal", last, pad), pad, end)
    return g.joined(g("Slice", source_ids, [0], [longest], [1]), last, axis=1)


def limits_of(g: Graph, source_ids: Value, max_length: int | None) -> Value:
    """(B,) int64 The most ids to emit, see `export.signatures.limits_of`."""
    blank = g("Or", g("Equal", source_ids, np.int32(PAD)), g("Equal", source_ids, np.int32(END)))
    # With a column that counts nothing: on a GPU there is no sum over none.
    counted = g.joined(g.cast(g("Not", blank), np.int64), g.zeros(g.joined(g.shape(blank, 0), [1]), np.int64), axis=1)
    lengths = g("ReduceSum", counted, [1], keepdims=0)
    limits = g("Where", g("Greater", lengths, 0), g("Add", lengths, longest(0)), 0)
    return limits if max_length is None else g("Min", limits, max_length)


def best_of(g: Graph, ids: Value, scores: Value) -> tuple[Value, Value]:
    """The first hypothesis of each sentence: ids (B, T), and (B,) its score."""
    return g("Gather", ids, 0, axis=1), g("Gather", scores, 0, axis=1)
