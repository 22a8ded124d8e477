"""What all formats share: the run, the options of the search, the function that is traced, the metadata."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import Any

from keras import ops

from keras_transformer.decoding.search import beam_search
from keras_transformer.decoding.translator import SearchOptions, Translator, load
from keras_transformer.errors import RequestError
from keras_transformer.export_folder import PRECISIONS as PRECISIONS
from keras_transformer.lengths import longest
from keras_transformer.models import make_model, model_config
from keras_transformer.models.inspection import Difference, difference
from keras_transformer.models.transformer import Transformer
from keras_transformer.run_folder import RunFolder, read_config
from keras_transformer.tensor import Tensor
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN

# `plain` and `is_blank` of `keras_transformer` as regular expressions (RE2), for the graphs of SavedModel and ONNX that
# take text. LiteRT has no operator for them.
LINE_BREAKS = r"[\x00\n\r]"
BLANK = r"^[\p{Z}\p{Cc}\p{Cf}]*$"

# (format, precision): why the format cannot be written in the precision.
NO_SUCH_PRECISION = {
    ("saved_model", "int8"): "TensorFlow multiplies no int8 matrices outside TFLite; export onnx or tflite for it",
}
INSTALL_EXTRA = (
    "install the extra: pip install 'keras-transformer[export]', or from a checkout: pip install -e '.[export]'"
)


@dataclass(frozen=True)
class Decoding:
    """How an artefact searches. The options are baked into the artefact and recorded in it.

    Args:
        num_beams: K; 1 is greedy search.
        length_penalty: α of the score log P(y) / ((5 + |y|) / 6)^α.
        max_length: the most pieces to emit, with the end; at most, and by default, the source's length + 50.
        n_best: how many hypotheses of each sentence a list holds; all K by default.

    Raises:
        RequestError: a value is out of its range.
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    max_length: int | None = None
    n_best: int | None = None

    def __post_init__(self) -> None:
        SearchOptions(self.num_beams, self.length_penalty, self.max_length, self.num_listed)  # raises RequestError
        object.__setattr__(self, "n_best", self.num_listed)

    @property
    def num_listed(self) -> int:
        """How many hypotheses of each sentence a list holds."""
        return self.num_beams if self.n_best is None else self.n_best

    def one_best(self) -> Decoding:
        """The same search for the best hypothesis alone, which can stop earlier."""
        return replace(self, n_best=1)


@dataclass(frozen=True)
class TrainedRun:
    """What is exported: a run's translator, and where it comes from.

    Args:
        translator: the model (in float32) and the vocabularies.
        languages: such as "en-de"; "" if the run does not say.
        name: the corpus's name.
    """

    translator: Translator
    languages: str = ""
    name: str = ""

    @property
    def model(self) -> Transformer:
        """The model, in float32."""
        return self.translator.model

    def decoding(self, n_best: int | None = None, **given: Any) -> Decoding:
        """The options of a search, the model's own where none are given, or None is.

        Raises:
            RequestError: a value is out of its range.
        """
        given = {name: value for name, value in given.items() if value is not None}
        return Decoding(**{**self.translator.search, **given}, n_best=n_best)

    def save_tokenizers(self, folder: str | os.PathLike[str]) -> None:
        """Writes the vocabularies into a folder, under the file names of a run folder."""
        sides = RunFolder(folder).tokenizers(separate=self.model.source_vocabulary_size is not None)
        for path, tokenizer in zip(
            sides, (self.translator.source_tokenizer, self.translator.target_tokenizer), strict=True
        ):
            tokenizer.save(path)

    def metadata(self, decoding: Decoding, precision: str) -> dict[str, str]:
        """What an artefact says of itself. The same run and flags give the same metadata."""
        import keras_transformer

        return {
            "producer": f"keras_transformer {keras_transformer.__version__}",
            "corpus": self.name,
            "languages": self.languages,
            "precision": precision,
            "decoding": json.dumps(asdict(decoding)),
            "model": json.dumps(model_config(self.model), sort_keys=True),
        }


def open_run(run: str | os.PathLike[str]) -> TrainedRun:
    """Reads a run folder. It may be a stranger's: nothing in it is executed.

    Raises:
        RequestError: there is no run, it has no model yet, or a file is damaged; the message names the file.
    """
    translator = load(run)
    corpus = read_config(run).get("corpus", {})
    languages = [corpus.get(f"{side}_language") for side in ("source", "target")]
    return TrainedRun(translator, "-".join(map(str, languages)) if all(languages) else "", str(corpus.get("name", "")))


def import_optional(module: str) -> ModuleType:
    """Imports a module that only exporting needs.

    Raises:
        RequestError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RequestError(
            f"exporting needs the package of {module}, which is not installed ({error}): {INSTALL_EXTRA}"
        ) from None


def stem(name: str, precision: str) -> str:
    """The name of an artefact's file or folder, without suffix."""
    return name if precision == "float32" else f"{name}-{precision}"


def require_precision(format: str, precision: str) -> None:
    """Raises RequestError unless the format can be written in the precision."""
    if precision not in PRECISIONS:
        raise RequestError(f"expected a precision among {', '.join(PRECISIONS)}; received: {precision}")
    if reason := NO_SUCH_PRECISION.get((format, precision)):
        raise RequestError(f"{format} has no {precision}: {reason}")


def require_own_parts(model: Transformer, format: str, precision: str) -> None:
    """Raises RequestError unless the model is what its configuration makes.

    An exporter that builds the model again, in another precision, would lose a part that was put in by hand.
    """
    if found := difference(model):
        raise unwritable(format, precision, found)


class Unwritable(RequestError):
    """A format cannot write a part of the model, or an option of a part."""


def unwritable(format: str, precision: str, found: Difference) -> Unwritable:
    """The error that names the part."""
    return Unwritable(
        f"{format} in {precision} can write only {found.expected} at {found.path}; received a model with "
        f"{found.received} there: export saved_model in float32, or tflite in float32 or float16, which trace any "
        "model as it is"
    )


def model_of_precision(model: Transformer, precision: str) -> Transformer:
    """For float32 the model itself; for float16 a copy that computes in half, except for softmax, norms and search."""
    if precision == "float32":
        return model
    require_own_parts(model, "saved_model", precision)
    half = make_model(model_config(model), "float16")
    half.set_weights(model.get_weights())
    return half


def translate_ids(
    model: Transformer, source_ids: Tensor, decoding: Decoding, index_dtype: str | None = None
) -> tuple[Tensor, Tensor]:
    """The search that SavedModel and TFLite trace: the translator's search, from ids to ids.

    Args:
        model: the model.
        source_ids: (B, S) int32, pieces and the end id, then pad.
        decoding: the options of the search.
        index_dtype: as for `beam_search`.

    Returns:
        ids (B, n_best, L) int32, the best first, each with its end id (none if cut at its limit), then pad; and scores
        (B, n_best) float32. L is the limit of the batch's longest sentence.
    """
    source_ids = permitted(source_ids, model)
    limits = limits_of(source_ids, decoding.max_length)
    max_length = ops.maximum(ops.max(limits), 1)
    cache = model.init_cache(model.encode(source_ids), source_ids, decoding.num_beams, max_length)
    num_beams, length_penalty, n_best = decoding.num_beams, decoding.length_penalty, decoding.n_best
    return beam_search(
        model.step, cache, limits, num_beams, length_penalty, max_length, n_best=n_best, index_dtype=index_dtype,
        num_control_ids=model.num_control_ids,
    )  # fmt: skip


def permitted(source_ids: Tensor, model: Transformer) -> Tensor:
    """Replaces ids that the vocabulary lacks by unknown; cuts a source that is too long for the model, and ends it."""
    known = (source_ids >= 0) & (source_ids < (model.source_vocabulary_size or model.vocabulary_size))
    source_ids = ops.where(known, source_ids, UNKNOWN)[:, : model.max_source_length + 1]
    last = ops.arange(ops.shape(source_ids)[1]) == model.max_source_length
    return ops.where(last & (source_ids != PAD), END, source_ids)


def limits_of(source_ids: Tensor, max_length: int | None) -> Tensor:
    """(B,) The most ids to emit: the source's length without pad and end, + 50; 0 for a blank source."""
    lengths = ops.sum(ops.cast((source_ids != PAD) & (source_ids != END), "int32"), axis=-1)
    limits = ops.where(lengths > 0, longest(lengths), 0)
    return limits if max_length is None else ops.minimum(limits, max_length)


def source_ids_of(pieces: Any) -> Tensor:
    """A tokenizer's ragged ids (B, pieces) → source ids (B, S), with the end id, padded."""
    import tensorflow as tf

    ids = tf.pad(pieces.to_tensor(PAD), [[0, 0], [0, 1]])
    end = tf.range(tf.shape(ids)[1]) == tf.cast(tf.expand_dims(pieces.row_lengths(), 1), tf.int32)
    return tf.where(end, END, ids)


def pieces_of(ids: Tensor) -> Any:
    """Emitted ids (rows, L) → ragged ids for a tokenizer, without end and pad."""
    import tensorflow as tf

    is_piece = (ids != PAD) & (ids != START) & (ids != END)
    lengths = tf.reduce_sum(
        tf.cast(is_piece, tf.int32), axis=1
    )  # LiteRT reads 64-bit integers as 32-bit ones, without an error
    # `tf.ragged.boolean_mask` does the same, with an operator that LiteRT lacks.
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(ids, is_piece), lengths, validate=False)
