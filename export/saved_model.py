"""Writes SavedModels, strings in and strings out, for TensorFlow Serving and `tf.saved_model.load`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.checking.signatures import LINE_BREAKS, Outputs, Signature, pieces_of
from keras_transformer.core.errors import JobError
from keras_transformer.core.extras import required
from keras_transformer.core.lazy import tf
from keras_transformer.ops import Tensor
from keras_transformer.text.tokenizer import UNKNOWN

from .artefacts import Decoding, TrainedRun, model_of_precision, replaced, require_precision, stem
from .word_pieces import WordPieces, read_by

if TYPE_CHECKING:
    from tensorflow_text import SentencepieceTokenizer


def export_saved_model(
    run: TrainedRun, folder: str | os.PathLike[str], decoding: Decoding | None = None, precision: str = "float32"
) -> list[Path]:
    """Writes a SavedModel with tokenizer and search inside.

    Signatures of a translator: `serving_default`, text string (B,) → translation string (B,), score float32 (B,);
    `n_best`, text string (B,) → translations string (B, K), scores float32 (B, K), the best first, "" and -inf where
    fewer than K exist. Other models: see the `signatures` of their `Signature`. Loading it takes tensorflow, and
    tensorflow_text imported first, which holds the tokenizer's operators. What is loaded is callable: it answers as
    `serving_default`.

    Args:
        run: what to export; `open_run` reads it from a run folder.
        folder: where to write; an older SavedModel there is replaced once the new one is whole.
        decoding: the options of the search, for models that search.
        precision: "float32", or "float16" for GPUs, which computes in half except for softmax, norms and search.

    Returns:
        The one path written, `saved_model` or `saved_model-float16`.

    Raises:
        RequestError: the precision does not exist, tensorflow-text is not installed, or the path holds something else.
        JobError: the SavedModel cannot be written.
    """
    require_precision("saved_model", precision)
    signature = run.signature(run.pipeline, model_of_precision(run.model, precision), decoding)
    module = _text_module(signature) if signature.text_stem else _ids_module(signature)
    path = Path(folder) / stem("saved_model", precision)
    with replaced(path, "saved_model.pb", "a SavedModel") as aside:
        _save(module, aside, path)
        extra = aside / "assets.extra"  # the place for files that a SavedModel's loaders ignore
        extra.mkdir()
        metadata = json.dumps(run.metadata(signature.decoding, precision), indent=2, ensure_ascii=False)
        (extra / "metadata.json").write_text(metadata + "\n", encoding="utf-8")
    return [path]


def _save(module: tf.Module, aside: Path, path: Path) -> None:
    """Writes the SavedModel to `aside`, from where it will move to `path`."""
    module.__call__ = module.functions["serving_default"]  # so what is loaded is callable itself
    try:
        tf.saved_model.save(module, str(aside), signatures=module.functions)
    except tf.errors.OpError as error:  # TensorFlow raises it for a full disk too
        raise JobError(
            f"cannot write {path}: {error.message.splitlines()[0].split('}} ')[-1]}; what was there is intact"
        ) from error


def _module(signature: Signature) -> tf.Module:
    module = tf.Module()
    # TensorFlow Serving cannot load Keras's wrappers of variables, so these are the variables themselves.
    module.weights = [variable.value for variable in signature.model.weights]
    return module


def _ids_module(signature: Signature) -> tf.Module:
    """A `tf.Module` with its signatures, a function for each name."""
    module = _module(signature)

    def traced(function: Callable[[Tensor], Outputs]) -> Callable[[Tensor], Outputs]:
        return tf.function(function, input_signature=[signature.spec()], autograph=False)

    def taking(function: Callable[[Tensor], Outputs]) -> Callable[[Tensor], Outputs]:
        return lambda ids: function(signature.taken(ids))

    others = {name: traced(taking(function)) for name, function in signature.ids_signatures().items()}
    module.functions = {"serving_default": traced(signature.named), **others}
    return module


def _text_module(signature: Signature) -> tf.Module:
    """A `tf.Module` with its signatures, a function for each name."""
    library, module = required("tensorflow_text", "export", "exporting"), _module(signature)
    reads = [*map(read_by, signature.pipeline.tokenizers)]
    cleaning = *signature.cleaning, *reads[0].cleaning
    # Not the Fast tokenizer: for BPE vocabularies it gives other ids, without an error.
    module.tokenizers = source, target = [
        library.SentencepieceTokenizer(each.model, out_type=tf.int32, name=resource_name(each.model)) for each in reads
    ]
    texts = partial(texts_of, target, signature.is_one_line)

    def read(text: Tensor) -> tf.RaggedTensor:
        pieces = pieces_in(source, text, cleaning)
        return of_words(pieces, reads[0]) if isinstance(reads[0], WordPieces) else pieces

    def traced(function: Callable[..., Outputs]) -> Callable[[Tensor], Outputs]:
        def answer(text: Tensor) -> Outputs:
            return function(read(text), texts)

        return tf.function(answer, input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)

    def ids_of(text: Tensor) -> dict[str, Tensor]:
        pieces = read(text)
        return {"ids": pieces.flat_values, "starts": pieces.row_splits}

    module.functions = {name: traced(function) for name, function in signature.signatures().items()}
    # No signature: what the tokenizer makes of text, for whoever checks it.
    module.read = tf.function(ids_of, input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    return module


def resource_name(model: bytes) -> str:
    """A name for each vocabulary of its own: a process that loads two of the same name uses the first for both."""
    return f"vocabulary_{hashlib.sha256(model).hexdigest()}"


def pieces_in(tokenizer: SentencepieceTokenizer, text: Tensor, cleaning: Iterable[tuple[str, str]]) -> tf.RaggedTensor:
    """Strings (B,) → ragged ids (B, pieces)."""
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
    for pattern, by in cleaning:
        text = tf.strings.regex_replace(text, pattern, by)
    return tokenizer.tokenize(text)


def of_words(pieces: tf.RaggedTensor, read: WordPieces) -> tf.RaggedTensor:
    """SentencePiece's ragged pieces (B, pieces) → our ragged ids (B, ids), one for an unknown word."""
    flat = pieces.flat_values
    begins, lengths = tf.gather(read.begins, flat), tf.gather(read.lengths, flat)
    word = tf.cumsum(tf.cast(begins, tf.int32))
    lengths = tf.gather(tf.math.unsorted_segment_sum(lengths, word, tf.size(word) + 1), word)
    is_unknown = lengths > read.longest
    ids = tf.where(is_unknown, UNKNOWN, tf.gather(read.ids, flat))
    return tf.ragged.boolean_mask(pieces.with_flat_values(ids), pieces.with_flat_values(begins | ~is_unknown))


def texts_of(tokenizer: SentencepieceTokenizer, is_one_line: bool, ids: Tensor) -> Tensor:
    """Ids (B, L) → strings (B,)."""
    texts = tokenizer.detokenize(pieces_of(ids))
    return tf.strings.strip(tf.strings.regex_replace(texts, LINE_BREAKS, " ")) if is_one_line else texts
