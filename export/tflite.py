"""Writes TFLite files: a model of ids, with LiteRT's own operators, and one of text, with tensorflow-text's.

LiteRT cannot clean text as the other formats do: it drops a NUL, and it translates a blank line if SentencePiece keeps
its characters, such as U+00AD or a no-break space.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_transformer.checking.certificate_texts import odd_texts, valid
from keras_transformer.checking.signatures import Outputs, Signature, pieces_of
from keras_transformer.core.errors import JobError, RequestError, say
from keras_transformer.core.extras import required
from keras_transformer.core.files import write_whole
from keras_transformer.core.lazy import tf
from keras_transformer.layers.positions import TokenEmbedding
from keras_transformer.models.model_factory import make_model, model_config
from keras_transformer.ops import Tensor
from keras_transformer.text.lines import is_blank
from keras_transformer.text.tokenizer import Tokenizer

from . import tflite_converter
from .artefacts import Decoding, TrainedRun, require_own_parts, require_precision, stem

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel

MAX_BYTES = 2**31 - 1  # FlatBuffers has offsets of 31 bits
LARGE_BYTES = 64 * 2**20
BYTES = {"float32": 4, "float16": 2, "int8": 1}  # a weight takes so many
INTEGERS = "int32"  # the search's type: LiteRT reads 64-bit integers as 32-bit ones, without an error


class Int8Rows:
    """An embedding in int8 with a scale for each row; the converter would take one scale for all rows."""

    def __init__(self, embedding: TokenEmbedding):
        rows = ops.convert_to_numpy(embedding.embeddings)  # (V, D)
        scales = np.maximum(np.abs(rows).max(axis=1), 1e-30) / 127  # (V,)
        self.rows = np.round(rows / scales[:, None]).astype("int8")
        # Integers, because the converter would quantise scales in float32 too; up to 2^24 float32 holds them exactly.
        unit = float(scales.max()) / 2**24
        self.scales = np.round(scales / unit).astype("int32")
        self.factor = unit * embedding.scale

    def __call__(self, ids: Tensor) -> Tensor:
        """Ids (...) → their scaled rows (..., D)."""
        scales = ops.cast(ops.take(self.scales, ids), "float32") * self.factor
        return ops.cast(ops.take(self.rows, ids, axis=0), "float32") * ops.expand_dims(scales, -1)


def export_tflite(
    run: TrainedRun, folder: str | os.PathLike[str], decoding: Decoding | None = None, precision: str = "float32"
) -> list[Path]:
    """Writes a model of ids and, for unigram vocabularies, one of text: for a translator `tflite/translate.tflite` and
    `tflite/translate_text.tflite`.

    Both have one signature, of a translator `translate`: source_ids int32 (B, S), pieces and the end id, then pad, →
    target_ids int32 (B, T), score float32 (B,); or text string (B,) → translation string (B,), score float32 (B,). A
    translator of ids also has `translate_aligned`, which gives `alignment` too, see `Translation.aligned_ids`.
    Other models: see their `Signature`. For text the interpreter must register tensorflow-text's operators.

    Args:
        run: what to export; `open_run` reads it from a run folder.
        folder: where to write.
        decoding: the options of the search, for models that search.
        precision: "float32"; "float16" for weights in half, which halves the file and still computes in float32; "int8"
            for weights in int8, with a scale for each row or column, and activations that are quantised as it runs.

    Returns:
        The paths written.

    Raises:
        RequestError: the precision does not exist, tensorflow-text is not installed, or for int8 a part of the model is
            not the one that its configuration names.
        JobError: TensorFlow's converter failed.
    """
    require_precision("tflite", precision)
    folder = Path(folder) / "tflite"
    folder.mkdir(parents=True, exist_ok=True)
    model = _with_int8_embeddings(run.model) if precision == "int8" else run.model
    signature = run.signature(run.pipeline, model, decoding, INTEGERS)
    paths = []
    for name, module in _modules(signature).items():
        path = folder / f"{stem(name, precision)}.tflite"
        with write_whole(path) as aside:
            _convert(module, precision, name == signature.text_stem, aside)
        paths.append(path)
    return paths


def require_size(model: FamilyModel, precision: str, what: str) -> None:
    """Raises RequestError if the weights alone are larger than `what`, such as a file, may be."""
    if (size := BYTES[precision] * model.count_params()) > MAX_BYTES:
        raise RequestError(
            f"{what} has at most 2 GiB; this model has {size / 2**30:.1f} GiB in {precision}: take a lower "
            "--precision, or other formats with --format"
        )


def _modules(signature: Signature) -> dict[str, tf.Module]:
    """Makes what is written, by the stem of its file."""
    if not signature.text_stem:
        return {signature.ids_stem: _ids_module(signature)}
    if reason := _reason_against_text(*signature.pipeline.tokenizers):
        say(f"tflite/{signature.text_stem}.tflite is left out: {reason}")
        return {signature.ids_stem: _ids_module(signature)}
    return {signature.ids_stem: _ids_module(signature), signature.text_stem: _text_module(signature)}


def _reason_against_text(source: Tokenizer, target: Tokenizer) -> str:
    """Says why LiteRT's tokenizer cannot stand in for the vocabularies'; "" if it can."""
    if not source.is_sentencepiece:
        return "LiteRT has no operator for WordPiece"
    if others := {source.model_type, target.model_type} - {"unigram"}:
        kinds = "BPE vocabularies" if "bpe" in others else "vocabularies of characters"
        return f"for {kinds} LiteRT's tokenizer gives other ids"
    if source.has_line_breaks:
        return "LiteRT's tokenizer cannot keep text as it is"
    if source.has_unused_pieces:
        return "LiteRT's tokenizer refuses unused pieces"
    if source.has_bytes or target.has_bytes:
        return "LiteRT's tokenizer cannot spell characters by bytes"
    return _misread(source)


def _misread(tokenizer: Tokenizer) -> str:
    """Says which odd text LiteRT's tokenizer reads otherwise than SentencePiece; "" if none."""
    texts = [text for text in odd_texts(tokenizer) if "\x00" not in text and valid(text) == text and not is_blank(text)]
    library = required("tensorflow_text", "export", "exporting").FastSentencepieceTokenizer(tokenizer.model)
    for text, ids in zip(texts, library.tokenize(tf.constant(texts)).to_list(), strict=True):
        if ids != (expected := tokenizer.encode([text])[0]):
            return f"LiteRT's tokenizer reads {text!r} as {ids}, and SentencePiece as {expected}"
    return ""


def _with_int8_embeddings(model: FamilyModel) -> FamilyModel:
    require_own_parts(model, "tflite", "int8")
    twin = make_model(model_config(model))
    twin.set_weights(model.get_weights())
    names = ("source_embedding", "target_embedding", "embedding")
    for embedding in {getattr(twin, name) for name in names if hasattr(twin, name)}:
        embedding.call = Int8Rows(embedding)
    return twin


def _ids_module(signature: Signature) -> tf.Module:
    def with_a_row(function: Callable[[Tensor], Outputs], ids: Tensor) -> Outputs:
        count = tf.shape(ids)[0]
        # LiteRT fails on an empty batch and on rows of no ids: a row is added, which no answer has.
        rows = tf.pad(tf.cast(ids, "int32"), [[0, 1 - tf.minimum(count, 1)], *[[0, 0]] * (len(ids.shape) - 1)])
        return {name: found[:count] for name, found in function(signature.taken(rows)).items()}

    functions = {signature.ids_stem: signature.of_ids, **signature.ids_signatures()}
    answers = {name: partial(with_a_row, function) for name, function in functions.items()}
    return _module(signature, answers, signature.spec())


def _text_module(signature: Signature) -> tf.Module:
    library = required("tensorflow_text", "export", "exporting")
    read, written = signature.pipeline.tokenizers
    source = library.FastSentencepieceTokenizer(read.model)
    target = library.FastSentencepieceTokenizer(written.decoding_model())

    def answer(text: Tensor) -> Outputs:
        return signature.of_pieces(source.tokenize(text), lambda ids: target.detokenize(pieces_of(ids)))

    name = signature.text_stem.removesuffix("_text")
    return _module(signature, {name: answer}, tf.TensorSpec([None], tf.string, name="text"))


def _module(
    signature: Signature, answers: Mapping[str, Callable[[Tensor], Outputs]], takes: tf.TensorSpec
) -> tf.Module:
    """A `tf.Module` with functions by the names of its signatures."""
    module = tf.Module()
    # The variables themselves, not Keras's wrappers.
    module.weights = [variable.value for variable in signature.model.weights]
    module.answers = {
        name: tf.function(answer, input_signature=[takes], autograph=False) for name, answer in answers.items()
    }
    return module


def _convert(module: tf.Module, precision: str, takes_text: bool, path: Path) -> None:
    """Writes the file of a module; a large model is converted in a process of its own, whose memory is given back.

    Raises:
        JobError: the process failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = ",".join(module.answers)
        tf.saved_model.save(module, folder, signatures=dict(module.answers))
        if sum(weight.shape.num_elements() for weight in module.weights) * BYTES["float32"] < LARGE_BYTES:
            tflite_converter.convert(folder, names, precision, takes_text, str(path))
            return
        options = [folder, names, precision, str(takes_text), str(path)]
        command = [sys.executable, "-P", tflite_converter.__file__, *options]
        quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, env=quiet)
        if result.returncode:
            told = result.stdout.decode(errors="replace").strip().splitlines()[-1:] or [f"status {result.returncode}"]
            raise JobError(f"TensorFlow's converter failed on {path.name}: {told[0]:.300}")
