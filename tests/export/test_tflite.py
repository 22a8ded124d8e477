"""What LiteRT cannot read; test_traced.py and tests/golden say that files of TFLite answer as the models do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from export import tflite
from export.artefacts import Artefact
from export.probes import TEXTS, Texts, known_difference
from export.signatures import Decoding, TrainedRun
from export.tflite import Int8Rows, export_tflite
from keras_transformer.decoding.translator import Translator
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.lines import is_blank
from keras_transformer.text.tokenizer import END, PAD, UNKNOWN, Tokenizer
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]


@pytest.fixture(scope="module")
def translate(exported):
    return Interpreter(str(exported / "tflite" / "translate.tflite"), num_threads=1).get_signature_runner("translate")


def rows_of(answer) -> list[list[int]]:
    return [[int(id) for id in row if id != PAD] for row in answer["target_ids"]]


def test_bad_ids_get_an_answer_of_the_right_shape(translate):
    for bad in (np.zeros((0, 3)), np.zeros((2, 0)), np.zeros((2, 4)), [[9] * 300], [[END, 9, PAD]]):
        ids = np.array(bad, "int32")
        answer = translate(source_ids=ids)
        assert answer["score"].shape == ids.shape[:1]
        assert answer["target_ids"].shape[0] == ids.shape[0]
        if not ids.any():
            assert rows_of(answer) == [[END]] * len(ids)
            assert not answer["score"].any()


def test_ids_outside_the_vocabulary_are_read_as_unknown(translate):
    far = np.array([[5, 64, END], [-7, 10**9, END], [-(2**31), 2**31 - 1, PAD]], "int32")
    answer = translate(source_ids=far)
    known = translate(source_ids=np.where((far < 0) | (far >= 64), UNKNOWN, far).astype("int32"))
    assert rows_of(answer) == rows_of(known)
    np.testing.assert_array_equal(answer["score"], known["score"])


def test_rows_are_quantised_one_by_one():
    embedding = TokenEmbedding(40, 16)
    embedding.build((None,))
    rows = np.random.default_rng(0).normal(size=(40, 16)) * np.logspace(-2, 1, 40)[:, None]
    embedding.embeddings.assign(rows)
    error = np.abs(np.asarray(Int8Rows(embedding)(np.arange(40))) - 4 * rows)  # rows are scaled by √D
    assert (error <= 4 * np.abs(rows).max(axis=1, keepdims=True) / 127 / 2 + 1e-5).all()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ({"vocabulary_size": 64, "model_type": "bpe"}, "for BPE vocabularies"),
        ({"vocabulary_size": 64, "keeps_text": True}, "LiteRT's tokenizer cannot keep text as it is"),
        ({"vocabulary_size": 290, "byte_fallback": True}, "LiteRT's tokenizer cannot spell characters by bytes"),
    ],
)
def test_text_that_litert_misreads_is_left_out_with_a_message(tmp_path, capsys, monkeypatch, kind, reason):
    monkeypatch.setattr(tflite, "_converted", lambda *_: b"")
    tokenizer = Tokenizer.train(lines(0), **kind)
    model = Transformer(tokenizer.vocabulary_size, 1, 2, 8, 16)
    paths = export_tflite(TrainedRun(Translator(model, tokenizer)), tmp_path, Decoding(1, max_length=3))
    assert [path.name for path in paths] == ["translate.tflite"]
    assert f"translate_text.tflite is left out: {reason}" in capsys.readouterr().err


def test_blank_lines_that_litert_translates_are_known():
    """A vocabulary that holds no-break spaces reads a line of them; to a translator the line is blank."""
    tf, library = (pytest.importorskip(name) for name in ("tensorflow", "tensorflow_text"))
    tokenizer = Tokenizer.train([line.replace(" ", "\u00a0", 1) for line in lines(0)], 64)
    litert = library.FastSentencepieceTokenizer(tokenizer.model)
    file, texts = Artefact(Path("translate_text.tflite"), "tflite", "text", "float32"), Texts([], [], TEXTS)
    blank = [text for text in TEXTS if is_blank(text)]
    read = [text for text, ids in zip(blank, litert.tokenize(tf.constant(blank)).to_list(), strict=True) if ids]
    known = [text for text in blank if known_difference(file, texts, TEXTS.index(text))]
    assert "\u00a0\u2003\u3000" in read and {*read} <= {*known}
    assert not {"", " \t "} & {*known}
