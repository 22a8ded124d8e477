"""Starts the decoders that are compared: our artefacts, and the same weights in CTranslate2 and Hugging Face's Marian.

`prepare.prepare` writes a model in every format. Each `start_*` function here loads one format in a process of its own,
and imports nothing but what a user of that decoder would. It returns a function that translates all sentences and
returns the best translations: their ids without end and pad, or text from the SavedModel. All decoders get the same
batches.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.devices import configure_torch, onnx_session, require_ctranslate2
from benchmarks.sentences import PAD, Ids, batches_of, emitted, padded, read_sentences

MAX_NEW_TOKENS = 256  # of Marian, where the model ends its translations

Translate = Callable[[], Ids]


class Cell(NamedTuple):
    """Holds the settings of one row of the table.

    Args:
        precision: float32 or int8.
        num_beams: K.
        batch_size: sentences in a batch.
        num_threads: of the processor.
        num_sentences: to translate in one turn.
        num_steps: tokens of every translation; 0: the model ends its translations.
        length_penalty: 0 where outputs are compared, because CTranslate2 and Marian divide by another power of the
            length.
        device: cpu or cuda, for ONNX Runtime, CTranslate2 and PyTorch.
    """

    precision: str
    num_beams: int
    batch_size: int
    num_threads: int
    num_sentences: int
    num_steps: int
    length_penalty: float = 0.0
    device: str = "cpu"


def artefact_folder(folder: Path, cell: Cell) -> Path:
    """Returns the folder of our artefacts with this number of beams."""
    return folder / f"beams{cell.num_beams}"


def tflite_name(precision: str) -> str:
    """Returns the name of the TFLite file that takes ids."""
    return "translate.tflite" if precision == "float32" else f"translate-{precision}.tflite"


def sentences_of(folder: Path, cell: Cell, kind: str) -> list[list[Any]]:
    """Returns the batches of a turn, as `sentences.batches_of` makes them."""
    return batches_of(folder, kind, cell.num_sentences, cell.batch_size)


def start_onnx(folder: Path, cell: Cell) -> Translate:
    """Loads our ONNX artefact."""
    return in_onnx_runtime(folder, cell, f"translate-{cell.precision}.onnx")


def start_tf2onnx(folder: Path, cell: Cell) -> Translate:
    """Loads the ONNX artefact that tf2onnx converts."""
    return in_onnx_runtime(folder, cell, "onnx/translate.onnx")


def in_onnx_runtime(folder: Path, cell: Cell, name: str) -> Translate:
    """Loads a graph that takes ids, search inside."""
    path = artefact_folder(folder, cell) / name
    session = onnx_session(path, cell.device, cell.num_threads)
    batches = [padded(batch) for batch in sentences_of(folder, cell, "ids")]
    return lambda: [ids for batch in batches for ids in emitted(session.run(["target_ids"], {"source_ids": batch})[0])]


def start_tflite(folder: Path, cell: Cell) -> Translate:
    """Loads our TFLite artefact, in LiteRT."""
    from ai_edge_litert.interpreter import Interpreter

    path = artefact_folder(folder, cell) / "tflite" / tflite_name(cell.precision)
    interpreter = Interpreter(str(path), num_threads=cell.num_threads)
    translate = interpreter.get_signature_runner("translate")
    batches = [padded(batch) for batch in sentences_of(folder, cell, "ids")]
    return lambda: [ids for batch in batches for ids in emitted(translate(source_ids=batch)["target_ids"])]


def start_saved_model(folder: Path, cell: Cell) -> Callable[[], list[str]]:
    """Loads our SavedModel, which takes and gives text."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers the operators of the vocabulary

    tf.config.threading.set_intra_op_parallelism_threads(cell.num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.set_visible_devices([], "GPU")
    loaded = tf.saved_model.load(str(artefact_folder(folder, cell) / "saved_model"))
    batches = [tf.constant(batch) for batch in sentences_of(folder, cell, "texts")]

    def translate() -> list[str]:
        # Looked up for each batch: a signature alone does not keep its variables alive.
        answers = (loaded.signatures["serving_default"](text=batch) for batch in batches)
        return [text.decode() for answer in answers for text in answer["translation"].numpy()]

    return translate


def start_ctranslate2(folder: Path, cell: Cell) -> Translate:
    """Loads CTranslate2 with our weights."""
    require_ctranslate2(cell.device)
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder / "ctranslate2"),
        device=cell.device,
        compute_type=cell.precision,
        intra_threads=cell.num_threads,
        inter_threads=1,
    )
    ids = {piece: number for number, piece in enumerate(read_sentences(folder)["vocabulary"])}
    # CTranslate2 adds the end of a source.
    batches = [[pieces[:-1] for pieces in batch] for batch in sentences_of(folder, cell, "pieces")]
    options: dict[str, Any] = {"beam_size": cell.num_beams, "length_penalty": cell.length_penalty}
    if cell.num_steps:
        options["max_decoding_length"] = cell.num_steps

    def translate() -> Ids:
        results = (result for batch in batches for result in translator.translate_batch(batch, **options))
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]

    return translate


def start_marian(folder: Path, cell: Cell) -> Translate:
    """Loads Hugging Face's Marian on PyTorch, with our weights."""
    configure_torch(cell.device, cell.num_threads)
    import torch

    from benchmarks.marian_model import marian

    model = marian(dict(np.load(folder / "weights.npz"))).to(cell.device)
    batches = [torch.from_numpy(padded(batch)).long().to(cell.device) for batch in sentences_of(folder, cell, "ids")]
    options: dict[str, Any] = {
        "num_beams": cell.num_beams,
        "do_sample": False,
        "max_new_tokens": cell.num_steps or MAX_NEW_TOKENS,
    }
    if cell.num_beams > 1:
        options |= {"length_penalty": cell.length_penalty, "early_stopping": False}

    def translate() -> Ids:
        with torch.inference_mode():
            results = (
                model.generate(input_ids=batch, attention_mask=(batch != PAD).long(), **options) for batch in batches
            )
            return [ids for rows in results for ids in emitted(rows.cpu().numpy())]

    return translate
