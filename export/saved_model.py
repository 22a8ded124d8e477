"""SavedModel: strings in, strings out, for TensorFlow Serving and `tf.saved_model.load`."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from keras_transformer.errors import JobError, RequestError
from keras_transformer.files import write_folder_whole
from keras_transformer.tensor import Tensor
from keras_transformer.text.tokenizer import Tokenizer

from .signatures import (
    BLANK,
    LINE_BREAKS,
    Decoding,
    TrainedRun,
    import_optional,
    model_of_precision,
    pieces_of,
    require_precision,
    source_ids_of,
    stem,
    translate_ids,
)


def export_saved_model(
    run: TrainedRun, folder: str | os.PathLike[str], decoding: Decoding | None = None, precision: str = "float32"
) -> list[Path]:
    """Writes a SavedModel with beam search and tokenizer inside.

    Signatures: `serving_default`, text string (B,) → translation string (B,), score float32 (B,); `n_best`, text
    string (B,) → translations string (B, K), scores float32 (B, K), the best first, "" and -inf where fewer than K
    exist. Loading it takes tensorflow, and tensorflow_text imported first, which holds the tokenizer's operators.

    Args:
        run: what to export; `open_run` reads it from a run folder.
        folder: where to write; an older SavedModel there is replaced once the new one is whole.
        decoding: the options of the search.
        precision: "float32", or "float16" for GPUs, which computes in half except for softmax, norms and search.

    Returns:
        The one path written, `saved_model` or `saved_model-float16`.

    Raises:
        RequestError: the precision does not exist, tensorflow-text is not installed, or the path holds something else.
        JobError: the SavedModel cannot be written.
    """
    require_precision("saved_model", precision)
    decoding = decoding or run.decoding()
    translator = _text_translator(run, decoding, precision)
    path = Path(folder) / stem("saved_model", precision)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not (path / "saved_model.pb").is_file():
        raise RequestError(
            f"expected no file at {path}, or a SavedModel to replace; received something else: remove it"
        )
    with write_folder_whole(path) as aside:
        _save(translator, aside, path)
        extra = aside / "assets.extra"  # the place for files that a SavedModel's loaders ignore
        extra.mkdir()
        metadata = json.dumps(run.metadata(decoding, precision), indent=2, ensure_ascii=False)
        (extra / "metadata.json").write_text(metadata + "\n", encoding="utf-8")
    return [path]


def _save(translator: Any, aside: Path, path: Path) -> None:
    """Writes the SavedModel to `aside`, from where it will move to `path`."""
    import tensorflow as tf

    signatures = {"serving_default": translator.translate, "n_best": translator.n_best}
    try:
        tf.saved_model.save(translator, str(aside), signatures=signatures)
    except tf.errors.OpError as error:  # TensorFlow raises it for a full disk too
        raise JobError(
            f"cannot write {path}: {error.message.splitlines()[0].split('}} ')[-1]}; what was there is intact"
        ) from error


def _text_translator(run: TrainedRun, decoding: Decoding, precision: str) -> Any:
    """A `tf.Module` with the two signatures as its functions."""
    import tensorflow as tf

    text_library = import_optional("tensorflow_text")
    model = model_of_precision(run.model, precision)
    lines = tf.TensorSpec([None], tf.string, name="text")

    class TextTranslator(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            # TensorFlow Serving cannot load Keras's wrappers of variables, so these are the variables themselves.
            self.weights = [variable.value for variable in model.weights]
            self.source_tokenizer, self.target_tokenizer = (
                # Not the Fast tokenizer: for BPE vocabularies it gives other ids, without an error.
                text_library.SentencepieceTokenizer(tokenizer.model, out_type=tf.int32, name=resource_name(tokenizer))
                for tokenizer in (run.translator.source_tokenizer, run.translator.target_tokenizer)
            )

        @tf.function(input_signature=[lines], autograph=False)
        def n_best(self, text: Tensor) -> dict[str, Tensor]:
            translations, scores = self.best(text, decoding)
            return {"translations": translations, "scores": scores}

        @tf.function(input_signature=[lines], autograph=False)
        def translate(self, text: Tensor) -> dict[str, Tensor]:
            translations, scores = self.best(text, decoding.one_best())
            return {"translation": translations[:, 0], "score": scores[:, 0]}

        def best(self, text: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
            ids, scores = translate_ids(model, ids_of(self.source_tokenizer, text), decoding)
            return texts_of(self.target_tokenizer, ids), scores

    return TextTranslator()


def resource_name(tokenizer: Tokenizer) -> str:
    """A name for each vocabulary of its own: a process that loads two of the same name uses the first for both."""
    return f"vocabulary_{hashlib.sha256(tokenizer.model).hexdigest()}"


def ids_of(tokenizer: Any, text: Tensor) -> Tensor:
    """Strings (B,) → source ids (B, S): pieces and the end id, padded."""
    import tensorflow as tf

    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
    text = tf.where(tf.strings.regex_full_match(text, BLANK), "", text)
    return source_ids_of(tokenizer.tokenize(tf.strings.regex_replace(text, LINE_BREAKS, " ")))


def texts_of(tokenizer: Any, ids: Tensor) -> Tensor:
    """Ids (B, n_best, L) → strings (B, n_best), one line each."""
    import tensorflow as tf

    shape = tf.shape(ids)
    texts = tokenizer.detokenize(pieces_of(tf.reshape(ids, [-1, shape[2]])))  # (B · n_best,)
    return tf.reshape(tf.strings.strip(tf.strings.regex_replace(texts, LINE_BREAKS, " ")), shape[:2])
