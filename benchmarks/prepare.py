"""Writes one model and its sentences into a folder, in the format of every decoder that is compared."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.decoders import Cell, artefact_folder, tflite_name
from benchmarks.sentences import END, salad_words, trained_lines, word_salad, write_sentences
from benchmarks.weights import arrays_of
from keras_transformer.core.errors import RequestError

if TYPE_CHECKING:
    from export.artefacts import TrainedRun
    from keras_transformer.text.tokenizer import Tokenizer


def prepare(
    folder: Path,
    run_folder: str | None,
    sizes: dict[str, int],
    cells: Sequence[Cell],
    others: Collection[str] = (),
    source_length: int = 16,
) -> None:
    """Writes what the decoders load: `sentences.json`, and the model in each format.

    Args:
        folder: where to write; must exist.
        run_folder: a trained run, whose validation sentences are translated. None: random weights, which never end a
            translation.
        sizes: arguments of `Transformer`, for random weights.
        cells: the settings that the artefacts must serve.
        others: the decoders beside ONNX: ctranslate2, marian, saved_model, tf2onnx, tflite.
        source_length: pieces of a sentence, for random weights.

    Raises:
        RequestError: a peer cannot hold the model: it has two vocabularies; for Marian also, it is pre-norm, or has a
            key size that is not D/N.
    """
    from export.artefacts import open_run

    run = open_run(run_folder) if run_folder else random_run(sizes)
    count = max(cell.num_sentences for cell in cells)
    tokenizer = joint_tokenizer(run)
    lines = trained_lines(run_folder, count) if run_folder else word_salad(tokenizer, count, source_length)
    write_sentences(folder, tokenizer, lines)
    if "marian" in others:
        arrays: dict[str, Any] = {**arrays_of(run.model)}
        np.savez(folder / "weights.npz", **arrays)
    if "ctranslate2" in others:
        from export.ctranslate2 import write_model

        (folder / "ctranslate2").mkdir()
        write_model(run, folder / "ctranslate2", "float32")  # CTranslate2 converts it when it loads it
    for cell in cells:
        write_artefacts(folder, run, cell, others)


def write_artefacts(folder: Path, run: TrainedRun, cell: Cell, others: Collection[str]) -> None:
    """Writes our ONNX graph, and those of our other artefacts that are compared, unless they are there."""
    from export.artefacts import Decoding
    from export.onnx import export_onnx
    from export.onnx.export import translate_model
    from export.onnx.graph import write_model
    from export.saved_model import export_saved_model
    from export.tflite import export_tflite

    decoding = Decoding(cell.num_beams, cell.length_penalty, cell.num_steps or None, n_best=1)
    artefacts = artefact_folder(folder, cell)
    artefacts.mkdir(exist_ok=True)
    if not (path := artefacts / f"translate-{cell.precision}.onnx").exists():
        write_model(path, translate_model(run, decoding, cell.precision), {})
    if "tf2onnx" in others and cell.precision == "float32" and not (artefacts / "onnx").exists():
        export_onnx(run, artefacts, decoding, converter="tf2onnx")
    if "tflite" in others and not (artefacts / "tflite" / tflite_name(cell.precision)).exists():
        export_tflite(run, artefacts, decoding, cell.precision)
    if "saved_model" in others and cell.precision == "float32" and not (artefacts / "saved_model").exists():
        export_saved_model(run, artefacts, decoding)


def joint_tokenizer(run: TrainedRun) -> Tokenizer:
    """Returns the run's only tokenizer, or raises RequestError if it has two."""
    tokenizer = run.tokenizers[0]
    if tokenizer.model != run.tokenizers[1].model:
        raise RequestError("expected a joint vocabulary, in which all peers are compared; received: two vocabularies")
    return tokenizer


def random_run(sizes: dict[str, Any]) -> TrainedRun:
    """Makes a model with random weights, and a vocabulary of four-letter words."""
    import keras

    from export.artefacts import TrainedRun
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.tasks.translation.pipeline import Translator
    from keras_transformer.text.tokenizer import Tokenizer

    keras.utils.set_random_seed(1)
    words = salad_words(sizes["vocabulary_size"])
    lines = [" ".join(row) for row in np.random.default_rng(0).choice(words, (4 * len(words), 8))]
    tokenizer = Tokenizer.train(lines, sizes["vocabulary_size"])
    model = Transformer(**sizes)
    table = np.array(model.target_embedding.embeddings)
    table[: END + 1] = 0  # the control ids then have the logit 0 at every step, which is never among the best
    model.target_embedding.embeddings.assign(table)
    return TrainedRun(Translator(model, tokenizer), name="random")
