"""TFLite translators translate as the model does, by LiteRT's own interpreter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, InterpreterWithCustomOps

from export.artefacts import Artefact
from export.probes import TEXTS, Texts, known_difference
from export.signatures import Decoding, TrainedRun
from export.tflite import Int8Rows, export_tflite
from keras_transformer.decoding.sentences import padded
from keras_transformer.decoding.translator import Translator
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.lines import is_blank
from keras_transformer.text.tokenizer import END, PAD, UNKNOWN, Tokenizer
from tests.export.conftest import ODD
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

SENTENCES = lines(7, 12)

CLIENT = """
import json, sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter
runner = Interpreter(sys.argv[1], num_threads=1).get_signature_runner("translate")
answer = runner(source_ids=np.array(json.loads(sys.argv[2]), "int32"))
print(json.dumps([answer["target_ids"].tolist(), "tensorflow" in sys.modules]))
"""


def runner_of(path):
    return Interpreter(str(path), num_threads=1).get_signature_runner("translate")


@pytest.fixture(scope="module")
def source_ids(translator):
    return [[*ids, END] for ids in translator.source_tokenizer.encode(SENTENCES)]


@pytest.fixture(scope="module")
def expected_ids(translator):
    hypotheses = translator.n_best(SENTENCES, split="off", num_beams=3, length_penalty=0.8, max_length=12)
    return [(list(one.ids), one.score) for (one,) in hypotheses]


@pytest.fixture(scope="module")
def translate(exported):
    return runner_of(exported / "tflite" / "translate.tflite")


def rows_of(answer) -> list[list[int]]:
    return [[int(id) for id in row if id != PAD] for row in answer["target_ids"]]


@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_ids_equal_the_models_in_any_batch(translate, source_ids, expected_ids, batch_size):
    for start in range(0, len(source_ids), batch_size):
        answer = translate(source_ids=padded(source_ids[start : start + batch_size]))
        expected = expected_ids[start : start + batch_size]
        assert rows_of(answer) == [ids for ids, _ in expected]
        assert answer["score"] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_padding_changes_nothing(translate, source_ids, expected_ids):
    answer = translate(source_ids=padded(source_ids, 60))
    assert rows_of(answer) == [ids for ids, _ in expected_ids]


def test_ids_need_no_tensorflow(exported, run_clean, source_ids, expected_ids):
    path = exported / "tflite" / "translate.tflite"
    rows, imported = json.loads(run_clean(CLIENT, path, json.dumps([source_ids[0]])))
    assert [id for id in rows[0] if id != PAD] == expected_ids[0][0]
    assert not imported


@pytest.mark.parametrize(
    "bad", [np.zeros((0, 3)), np.zeros((2, 0)), np.zeros((2, 4)), [[-5, 64, 10**9, END]], [[9] * 300], [[END, 9, PAD]]]
)
def test_bad_ids_get_an_answer_of_the_right_shape(translate, bad):
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


def text_runner(path):
    from tensorflow_text import tflite_registrar

    interpreter = InterpreterWithCustomOps(
        custom_op_registerers=tflite_registrar.SELECT_TFTEXT_OPS, model_path=str(path), num_threads=1
    )
    return interpreter.get_signature_runner("translate")


def test_text_equals_the_models(exported, translator):
    runner = text_runner(exported / "tflite" / "translate_text.tflite")
    # LiteRT drops a NUL where others read a space, and translates a soft hyphen where others see a blank line.
    text = [line for line in ODD if not {"\0", "\u00ad", "\u2060"} & set(line)]
    answer = runner(text=np.array([line.encode() for line in text], dtype=np.object_))
    expected = translator.translate(text, split="off", num_beams=3, length_penalty=0.8, max_length=12)
    assert [line.decode() for line in answer["translation"]] == expected
    assert runner(text=np.array([], dtype=np.object_))["translation"].shape == (0,)


@pytest.fixture(scope="module")
def low(trained, decoding, tmp_path_factory):
    """precision → the paths that it was exported to."""
    folder = tmp_path_factory.mktemp("low")
    return {precision: export_tflite(trained, folder, decoding, precision) for precision in ("float16", "int8")}


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_low_precisions_keep_the_embedding_and_translate_alike(low, precision, source_ids, expected_ids, translator):
    ids, text = low[precision]
    assert (ids.name, text.name) == (f"translate-{precision}.tflite", f"translate_text-{precision}.tflite")
    weights = [one for one in Interpreter(str(ids)).get_tensor_details() if one["dtype"] == np.dtype(precision).type]
    assert any(tuple(one["shape"]) == (64, 16) for one in weights), "the embedding is kept in the precision"
    answer = runner_of(ids)(source_ids=padded(source_ids))
    rows = rows_of(answer)
    same = [row == expected for row, (expected, _) in zip(rows, expected_ids, strict=True)]
    assert sum(same) >= {"float16": 11, "int8": 10}[precision]
    most = {"float16": 0.05, "int8": 0.3}[precision]
    assert answer["score"] == pytest.approx([score for _, score in expected_ids], abs=most)
    texts = text_runner(text)(text=np.array([line.encode() for line in SENTENCES], dtype=np.object_))["translation"]
    assert [line.decode() for line in texts] == translator.target_tokenizer.decode(rows)


def test_int8_neighbours_and_padding_change_nothing(low, source_ids):
    runner = runner_of(low["int8"][0])
    alone = [row for ids in source_ids for row in rows_of(runner(source_ids=padded([ids])))]
    assert alone == rows_of(runner(source_ids=padded(source_ids))) == rows_of(runner(source_ids=padded(source_ids, 60)))


def test_rows_are_quantised_one_by_one():
    embedding = TokenEmbedding(40, 16)
    embedding.build((None,))
    rows = np.random.default_rng(0).normal(size=(40, 16)) * np.logspace(-2, 1, 40)[:, None]
    embedding.embeddings.assign(rows)
    error = np.abs(np.asarray(Int8Rows(embedding)(np.arange(40))) - 4 * rows)  # rows are scaled by √D
    assert (error <= 4 * np.abs(rows).max(axis=1, keepdims=True) / 127 / 2 + 1e-5).all()


@pytest.mark.parametrize(
    "kind, reason",
    [
        ({"vocabulary_size": 64, "model_type": "bpe"}, "for BPE vocabularies"),
        ({"vocabulary_size": 290, "byte_fallback": True}, "LiteRT's tokenizer cannot spell characters by bytes"),
    ],
)
def test_text_that_litert_misreads_is_left_out_with_a_message(tmp_path, capsys, kind, reason):
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
