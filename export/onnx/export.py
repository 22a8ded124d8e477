"""Writes the ONNX files of an export folder, and records the graph of each."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from keras_transformer import ops
from keras_transformer.layers.layer import Replaceable
from keras_transformer.models.ensemble import members_of
from keras_transformer.models.inspection import parts_of
from keras_transformer.text.tokenizer import PAD, START

from ..forms import (
    IDS,
    Answering,
    Continuation,
    Filling,
    Form,
    Labelling,
    Output,
    Recognition,
    Recommending,
    Translation,
    form_of,
)
from ..signatures import Decoding, TrainedRun, require_precision, stem
from .graph import TEXT, Model, ValueInfo, write_model
from .halves import SOURCE, encoder_model, step_model
from .recorded import Recorded
from .recorder import Recorder, Unrecordable, model_of, recorder_of
from .text import detokenized, tokenized

# What the axes of ids are called in the graphs.
LENGTHS = {"source_ids": "source", "prompt_ids": "prompt", "target_ids": "target", "added_ids": "added"}

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
        RequestError: the precision is unknown, or a part of the model computes what has no form in ONNX here.
    """
    require_precision("onnx", precision)
    require_recordable(run.model)
    decoding = decoding or run.decoding()
    folder = Path(folder) / "onnx"
    paths: list[Path] = []
    for name, make in MODELS[form_of(run)].items():
        model = make(run, decoding, precision)  # what has no form is refused before the folder is made
        folder.mkdir(parents=True, exist_ok=True)
        paths += write_model(folder / f"{stem(name, precision)}.onnx", model, run.metadata(decoding, precision))
    return paths


def write_graph(run: TrainedRun, path: Path, name: str, decoding: Decoding, precision: str) -> list[Path]:
    """Writes one of the graphs, "translate", "encoder" or "step"; the translator gives `decoding.n_best` translations.
    Several runs have only "translate".

    Raises:
        Unwritable: a part of the model computes what has no form in ONNX here.
    """
    require_recordable(run.model)
    if name == "translate" and decoding.n_best != 1:
        model = translate_model(run, decoding, precision, with_n_best=True)
    else:
        model = MODELS[form_of(run)][name](run, decoding, precision)
    return write_model(path, model, run.metadata(decoding, precision))


def require_recordable(model: Any) -> None:
    """Raises Unrecordable, which names the layer, unless a recorder takes the calls of all layers.

    Models with layers from outside this package are recorded once, to see it.
    """
    for member in members_of(model):
        parts = [*parts_of(member, "model")]
        for path, part in parts[1:]:
            if not isinstance(part, Replaceable):
                name = type(part).__name__
                raise Unrecordable(
                    f"expected a layer of `keras_transformer.layers.Layer` at {path}; received {name}, a layer of "
                    "keras.layers.Layer: take `keras_transformer.layers` for the base of own layers and for Dense, "
                    "Dropout, Conv2D, LayerNorm and RmsNorm; or export saved_model or tflite, which trace any model"
                )
        if not all(type(part).__module__.startswith("keras_transformer.") for _, part in parts):
            _record_once(member)


def _record_once(model: Any) -> None:
    run: Any = SimpleNamespace(model=model)
    if model.kind in ("translator", "language-model"):
        step_model(run, "float32")
    if model.kind == "translator":
        encoder_model(run, "float32")
    elif model.kind != "language-model":
        r = recorder_of(model, "float32")
        shape = ["batch", *model.image_shape] if model.takes == "images" else ["batch", "length"]
        with ops.on(r):
            model.states(r.input(ValueInfo(model.takes, np.int32, shape)))


def ids_model(run: TrainedRun, decoding: Decoding, precision: str) -> Model:
    """The graph that takes ids, or images: what the run's form gives of them, see `forms`. Any ids are allowed, and
    rows of any length, 0 included.
    """
    r, form = recorder_of(run.model, precision), form_of(run)(run, run.model, decoding)
    if isinstance(form, Recognition):
        given = ValueInfo(form.takes, np.uint8, ["batch", *run.model.image_shape])
    else:
        given = ValueInfo(form.takes, np.int32, ["batch", LENGTHS.get(form.takes, "length")])
    with ops.on(r):
        taken = r.input(given)
        found = form.of_ids(taken if isinstance(form, Recognition) else _with_a_column(taken))
        outputs = [_output(name, output, found[name]) for name, output in form.ids_outputs.items()]
    return model_of(r, [given], outputs)


def translate_model(run: TrainedRun, decoding: Decoding, precision: str, with_n_best: bool = False) -> Model:
    """A translator of ids: `source_ids` (batch, source) int32 → `target_ids` (batch, target) int32, `score` (batch,).

    Args:
        run, decoding, precision: as for `export_onnx`.
        with_n_best: adds the outputs `n_best_ids` (batch, n_best, target) and `n_best_scores` (batch, n_best), the best
            first. If fewer hypotheses exist, the other rows are pad, with the score -inf.
    """
    if not with_n_best:
        return ids_model(run, decoding, precision)
    r, form = recorder_of(run.model, precision), Translation(run, run.model, decoding)
    with ops.on(r):
        ids, scores = form.search(_with_a_column(r.input(SOURCE)), decoding)
        ids, size = trimmed(ids[:, : decoding.num_listed]), decoding.num_listed
        scores = scores[:, :size]
        outputs = [
            (ValueInfo("target_ids", np.int32, ["batch", "target"]), ids[:, 0]),
            (ValueInfo("score", np.float32, ["batch"]), scores[:, 0]),
            (ValueInfo("n_best_ids", np.int32, ["batch", size, "target"]), ids),
            (ValueInfo("n_best_scores", np.float32, ["batch", size]), scores),
        ]
    return model_of(r, [SOURCE], outputs)


def _with_a_column(ids: Recorded) -> Recorded:
    """Ids (B, S), of a width of 0 with one column of pad: not all nodes take no numbers."""
    batch_size, width = ops.shape(ids)
    return ops.concatenate([ids, ops.full((batch_size, 1 - ops.minimum(width, 1)), PAD, "int32")], axis=1)


def text_model(run: TrainedRun, decoding: Decoding, precision: str) -> Model:
    """The graph that takes `text` (batch,): what the run's form gives of the ids of texts, with texts for ids."""
    r, form = recorder_of(run.model, precision), form_of(run)(run, run.model, decoding)
    source, target = run.tokenizers
    with ops.on(r):
        found = form.of_ids(_ids_of_text(r, form, source))
        outputs = []
        for name, output in form.text_outputs.items():
            if name == "label":
                best = r.emit("ArgMax", found["probabilities"], dtype="int64", sizes=[None], axis=-1, keepdims=0)
                value = r.emit("Gather", np.array(run.labels, object), best, dtype=object, sizes=[None])
            elif output.type == "text":
                ids = trimmed(found[next(iter(form.ids_outputs))])
                value = Recorded(r, detokenized(r.graphs[0], ids.name, target, form.is_one_line), "object", [None], 0)
            else:
                value = found[name]
            outputs.append(_output(name, output, value))
    return model_of(r, [TEXT], outputs)


def _ids_of_text(r: Recorder, form: Form, tokenizer: Any) -> Recorded:
    """Text (B,) → the ids (B, S) that `form.of_ids` takes."""
    name = tokenized(r.graphs[0], TEXT.name, tokenizer, form.cleaning, form.max_pieces, form.closing)
    ids = r.input(ValueInfo(name, np.int32, [None, None]))
    return r.concatenate([r.full((ids.sizes[0], 1), START, "int32"), ids], axis=1) if form.has_start else ids


def _output(name: str, output: Output, value: Recorded) -> tuple[ValueInfo, Recorded]:
    """An output of a form, described; ids of a search end where the longest ends."""
    if output == IDS:
        value = trimmed(value)
    names = {"L": LENGTHS.get(name), "S": "length"}
    shape = ["batch", *(names.get(axis) or size for axis, size in zip(output.axes, value.shape[1:], strict=True))]
    dtype = object if output.type == "text" else np.dtype(output.type)
    return ValueInfo(name, dtype, shape), value


def trimmed(ids: Recorded) -> Recorded:
    """Ids (..., L) without the columns that are pad alone; one is left."""
    counts = ops.sum(ops.cast(ids != PAD, "int64"), axis=-1)
    longest_row = ops.max(ops.concatenate([ops.reshape(counts, (-1,)), np.ones(1, "int64")], axis=0))
    return ids[..., :longest_row]


Make = Callable[[TrainedRun, Decoding, str], Model]
HALVES: dict[str, Make] = {
    "encoder": lambda run, decoding, precision: encoder_model(run, precision),
    "step": lambda run, decoding, precision: step_model(run, precision),
}
OF_LANGUAGE_MODELS: dict[str, Make] = {"generate": ids_model, "generate_text": text_model, "step": HALVES["step"]}
# The graphs of an export, by the stems of their files.
MODELS: dict[type[Form], dict[str, Make]] = {
    Translation: {"translate": translate_model, "translate_text": text_model, **HALVES},
    Continuation: OF_LANGUAGE_MODELS,
    Answering: OF_LANGUAGE_MODELS,
    Labelling: {"classify": ids_model, "classify_text": text_model},
    Recognition: {"classify": ids_model},
    Recommending: {"recommend": ids_model},
    Filling: {"fill": ids_model, "embed_text": text_model},
}
