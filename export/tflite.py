"""TFLite: a translator of ids, with LiteRT's own operators alone; and one of text, with tensorflow-text's operators.

LiteRT cannot clean text as the other formats do: it drops a NUL, and it translates a blank line if SentencePiece keeps
its characters, such as U+00AD.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import say
from keras_transformer.files import write_whole
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.models import make_model, model_config
from keras_transformer.models.transformer import Transformer
from keras_transformer.tensor import Tensor

from .signatures import (
    Decoding,
    TrainedRun,
    import_optional,
    pieces_of,
    require_own_parts,
    require_precision,
    source_ids_of,
    stem,
    translate_ids,
)

INTEGERS = "int32"  # of the search: LiteRT reads 64-bit integers as 32-bit ones, without an error


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
    """Writes `tflite/translate.tflite` and, for unigram vocabularies, `tflite/translate_text.tflite`.

    Both have one signature, `translate`: source_ids int32 (B, S), pieces and the end id, then pad, → target_ids int32
    (B, T), score float32 (B,); or text string (B,) → translation string (B,), score float32 (B,). For text the
    interpreter must register tensorflow-text's operators.

    Args:
        run: what to export; `open_run` reads it from a run folder.
        folder: where to write.
        decoding: the options of the search.
        precision: "float32"; "float16" for weights in half, which halves the file and still computes in float32; "int8"
            for weights in int8, with a scale for each row or column, and activations that are quantised as it runs.

    Returns:
        The paths written.

    Raises:
        RequestError: the precision does not exist, tensorflow-text is not installed, or for int8 a part of the model is
            not the one that its configuration names.
    """
    require_precision("tflite", precision)
    decoding = (decoding or run.decoding()).one_best()
    folder = Path(folder) / "tflite"
    folder.mkdir(parents=True, exist_ok=True)
    model = _with_int8_embeddings(run.model) if precision == "int8" else run.model
    models = {"translate": _ids_translator(model, decoding)}
    if reason := _reason_against_text(run.translator):
        say(f"tflite/translate_text.tflite is left out: {reason}")
    else:
        models["translate_text"] = _text_translator(model, run.translator, decoding)
    paths = []
    for name, module in models.items():
        path = folder / f"{stem(name, precision)}.tflite"
        with write_whole(path) as aside:
            aside.write_bytes(_converted(module, precision, custom_operators=name == "translate_text"))
        paths.append(path)
    return paths


def _reason_against_text(translator: Translator) -> str:
    """Why LiteRT's tokenizer cannot stand in for the translator's; "" if it can."""
    if not translator.source_tokenizer.model_type == translator.target_tokenizer.model_type == "unigram":
        return "for BPE vocabularies LiteRT's tokenizer gives other ids"
    return "LiteRT's tokenizer refuses unused pieces" if translator.source_tokenizer.has_unused_pieces else ""


def _with_int8_embeddings(model: Transformer) -> Transformer:
    require_own_parts(model, "tflite", "int8")
    twin = make_model(model_config(model))
    twin.set_weights(model.get_weights())
    for embedding in {twin.source_embedding, twin.target_embedding}:
        embedding.call = Int8Rows(embedding)  # type: ignore[method-assign]
    return twin


def _ids_translator(model: Transformer, decoding: Decoding) -> Any:
    import tensorflow as tf

    def translate(source_ids: Tensor) -> dict[str, Tensor]:
        source_ids = tf.pad(source_ids, [[0, 0], [0, 1]])  # LiteRT fails on a width of 0
        ids, scores = translate_ids(model, source_ids, decoding, INTEGERS)
        return {"target_ids": ids[:, 0], "score": scores[:, 0]}

    return _module(model, translate, tf.TensorSpec([None, None], tf.int32, name="source_ids"))


def _text_translator(model: Transformer, translator: Translator, decoding: Decoding) -> Any:
    import tensorflow as tf

    library = import_optional("tensorflow_text")
    source = library.FastSentencepieceTokenizer(translator.source_tokenizer.model)
    target = library.FastSentencepieceTokenizer(translator.target_tokenizer.decoding_model())

    def translate(text: Tensor) -> dict[str, Tensor]:
        ids, scores = translate_ids(model, source_ids_of(source.tokenize(text)), decoding, INTEGERS)
        texts = target.detokenize(pieces_of(ids[:, 0]))
        # LiteRT's detokenizer reports one text, however many it gives; `gather` sets the right shape.
        return {"translation": tf.gather(texts, tf.range(tf.shape(scores)[0])), "score": scores[:, 0]}

    return _module(model, translate, tf.TensorSpec([None], tf.string, name="text"))


def _module(model: Transformer, translate: Callable[[Tensor], dict[str, Tensor]], takes: Any) -> Any:
    import tensorflow as tf

    module = tf.Module()
    module.weights = [variable.value for variable in model.weights]  # the variables themselves, not Keras's wrappers
    module.translate = tf.function(translate, input_signature=[takes], autograph=False)
    return module


def _converted(module: Any, precision: str, custom_operators: bool) -> bytes:
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures={"translate": module.translate})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["translate"])
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        converter.allow_custom_ops = custom_operators
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        return converter.convert()
