"""Writes the ONNX files of an export folder, and makes the graph of each."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from keras_transformer.models.ensemble import members_of

from ..forms import Answering, Continuation, Filling, Form, Labelling, Recognition, Recommending, Translation, form_of
from ..signatures import Decoding, TrainedRun, require_precision, stem
from . import continuation, encoding, recognition, recommending
from .graph import SCORE, TEXT, Graph, Model, ValueInfo, name_outputs, write_model
from .model import OnnxTransformer
from .stacks import flat_past, past_from_flat
from .support import require_writers
from .text import detokenized, tokenized
from .translation import limits_of, permitted, translation

SOURCE = ValueInfo("source_ids", np.int32, ["batch", "source"])
TRANSLATION = [ValueInfo("target_ids", np.int32, ["batch", "target"]), SCORE]
TEXT_TRANSLATION = [ValueInfo("translation", object, ["batch"]), SCORE]

# All operators that are not in the ONNX standard.
INT8_OPERATORS = {"MatMulIntegerToFloat"}  # ONNX Runtime's own, in int8
TEXT_OPERATORS = {"StringRegexReplace", "SentencepieceTokenizer", "StringJoin"}  # onnxruntime-extensions', for text


def export_onnx(
    run: TrainedRun, folder: str | os.PathLike[str], decoding: Decoding | None = None, precision: str = "float32"
) -> list[Path]:
    """Writes the graphs of a model into `folder`/onnx: of a translator `translate`, `translate_text`, `encoder` and
    `step`, of other models those of `MODELS`.

    All use opset 17; those of text need onnxruntime-extensions. float16 is meant for GPUs: states and weights are
    in half, softmax, norms and search in float32. int8 is meant for CPUs: weights have 8 bits and a scale for each
    column, states 8 bits and a scale for each row; it needs one operator that only ONNX Runtime has.

    Args:
        run: what to export; `signatures.open_run` reads it from a run folder.
        folder: where to write; it is created if it does not exist.
        decoding: the options of the search, for models that search.
        precision: "float32", "float16" or "int8".

    Returns:
        The paths of the files.

    Raises:
        RequestError: the precision is unknown, or a part of the model, or an option of a part, has no writer.
    """
    require_precision("onnx", precision)
    require_writers(run.model, precision)
    decoding = decoding or run.decoding()
    folder = Path(folder) / "onnx"
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, make in MODELS[form_of(run)].items():
        path = folder / f"{stem(name, precision)}.onnx"
        paths += write_model(path, make(run, decoding, precision), run.metadata(decoding, precision))
    return paths


def write_graph(run: TrainedRun, path: Path, name: str, decoding: Decoding, precision: str) -> list[Path]:
    """Writes one of the graphs, "translate", "encoder" or "step"; the translator gives `decoding.n_best` translations.
    Several runs have only "translate".

    Raises:
        Unwritable: a part of the model, or an option of a part, has no writer.
    """
    for member in members_of(run.model):
        require_writers(member, precision)
    if name == "translate" and decoding.n_best != 1:
        model = translate_model(run, decoding, precision, with_n_best=True)
    else:
        model = MODELS[form_of(run)][name](run, decoding, precision)
    return write_model(path, model, run.metadata(decoding, precision))


def translate_model(run: TrainedRun, decoding: Decoding, precision: str, with_n_best: bool = False) -> Model:
    """A translator of ids: `source_ids` (batch, source) int32 → `target_ids` (batch, target) int32, `score` (batch,).

    Any ids are allowed, and rows of any length, 0 included: see `traced.permitted`.

    Args:
        run, decoding, precision: as for `export_onnx`.
        with_n_best: adds the outputs `n_best_ids` (batch, n_best, target) and `n_best_scores` (batch, n_best), the best
            first. If fewer hypotheses exist, the other rows are pad, with the score -inf.
    """
    g = Graph()
    translations = translation(g, run.model, SOURCE.name, decoding if with_n_best else decoding.one_best(), precision)
    outputs = name_outputs(g, translations.best(g), TRANSLATION)
    if with_n_best:
        shape = ["batch", decoding.n_best]
        n_best = [ValueInfo("n_best_ids", np.int32, [*shape, "target"]), ValueInfo("n_best_scores", np.float32, shape)]
        outputs = [*outputs, *name_outputs(g, translations, n_best)]
    return Model(g, [SOURCE], outputs)


def translate_text_model(run: TrainedRun, decoding: Decoding, precision: str) -> Model:
    """A translator of text: `text` (batch,) → `translation` (batch,), always one line, and `score` (batch,)."""
    g = Graph()
    source, target = run.tokenizers
    source_ids = tokenized(g, TEXT.name, source, form_of(run).cleaning, run.model.max_source_length)
    ids, scores = translation(g, run.model, source_ids, decoding.one_best(), precision).best(g)
    texts = detokenized(g, ids, target)
    return Model(g, [TEXT], name_outputs(g, (texts, scores), TEXT_TRANSLATION))


def encoder_model(run: TrainedRun, precision: str) -> Model:
    """The first half: `source_ids` (batch, source) int32 → the inputs of `step` that depend on the source alone, and
    `limit` (batch,) int32, the most tokens to emit.
    """
    g = Graph()
    model = run.model
    size = model.source_vocabulary_size or model.vocabulary_size
    source_ids = permitted(g, SOURCE.name, size, model.max_source_length)
    limits = g.cast(limits_of(g, source_ids, None), np.int32)
    transformer = OnnxTransformer(model, precision)
    memory = transformer.encode(g, source_ids)
    outputs = [*transformer.memory_infos(), ValueInfo("limit", np.int32, ["batch"])]
    return Model(g, [SOURCE], name_outputs(g, [*memory, limits], outputs))


def step_model(run: TrainedRun, precision: str) -> Model:
    """The second half: one position, for any number of hypotheses of each sentence.

    Inputs: `token_ids` (batch, beams) int32, the tokens at the position; the start id, 2, at the first position.
    `index` () int32, the position, from 0. `past_key_i`, `past_value_i` (rows, key heads, past, key_dim) for each layer
    i, the outputs of the step before; at the first step past is 0. rows = batch · beams, the beams of a sentence one
    after the other. All outputs of `encoder` except `limit`.

    Outputs: `logits` (batch, beams, vocabulary) float32 of the tokens at `index` + 1, `present_key_i` and
    `present_value_i`. A beam search must reorder their rows, as it reorders its beams, before the next step.

    The search of the other files emits no id below the model's `num_control_ids` but the end, 3; the caller must do the
    same. The number is in the file's metadata, under "model".
    """
    g, model = Graph(), run.model
    transformer = OnnxTransformer(model, precision)
    inputs = [ValueInfo("token_ids", np.int32, ["batch", "beams"]), ValueInfo("index", np.int32, [])]
    pasts, memories = transformer.decoder.cache_infos("past"), transformer.memory_infos()
    past = past_from_flat([info.name for info in pasts], model.decoder_layers)
    memory = [info.name for info in memories]
    logits, present = transformer.step(g, "token_ids", "index", past, memory, shape=g("Shape", "token_ids"))
    logits = g("Reshape", logits, g.joined(g("Shape", "token_ids"), [model.vocabulary_size]), allowzero=1)
    outputs = [
        ValueInfo("logits", np.float32, ["batch", "beams", model.vocabulary_size]),
        *transformer.decoder.cache_infos("present"),
    ]
    return Model(g, [*inputs, *pasts, *memories], name_outputs(g, [logits, *flat_past(present)], outputs))


OF_LANGUAGE_MODELS: dict[str, Callable[[TrainedRun, Decoding, str], Model]] = {
    "generate": continuation.generate_model,
    "generate_text": continuation.generate_text_model,
    "step": lambda run, decoding, precision: continuation.step_model(run, precision),
}
# The graphs of an export, by the stems of their files.
MODELS: dict[type[Form], dict[str, Callable[[TrainedRun, Decoding, str], Model]]] = {
    Translation: {
        "translate": translate_model,
        "translate_text": translate_text_model,
        "encoder": lambda run, decoding, precision: encoder_model(run, precision),
        "step": lambda run, decoding, precision: step_model(run, precision),
    },
    Continuation: OF_LANGUAGE_MODELS,
    Answering: OF_LANGUAGE_MODELS,
    Labelling: {
        "classify": lambda run, decoding, precision: encoding.classify_model(run, precision),
        "classify_text": lambda run, decoding, precision: encoding.classify_text_model(run, precision),
    },
    Recognition: {
        "classify": lambda run, decoding, precision: recognition.recognize_model(run, precision),
    },
    Recommending: {
        "recommend": lambda run, decoding, precision: recommending.recommend_model(run, precision),
    },
    Filling: {
        "fill": lambda run, decoding, precision: encoding.fill_model(run, precision),
        "embed_text": lambda run, decoding, precision: encoding.embed_text_model(run, precision),
    },
}
