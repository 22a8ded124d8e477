"""Files of TFLite translate as the models do, parts without an ONNX graph too; and what LiteRT cannot read is known."""

import subprocess
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from keras import ops

from export import tflite, tflite_converter
from export.artefacts import Artefact, Decoding, TrainedRun, open_run
from export.certificate.expected import known_difference
from export.tflite import export_tflite
from keras_transformer.checking.certificate_texts import ODD_TEXTS, Texts
from keras_transformer.core.errors import JobError
from keras_transformer.models.transformer import Transformer
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.tasks.translation.signature import translate_ids
from keras_transformer.text.lines import is_blank
from keras_transformer.text.sentences import padded
from keras_transformer.text.tokenizer import END, PAD, UNKNOWN, Tokenizer
from tests.layer_check import randomize
from tests.tiny_text import lines


def test_a_file_of_ids_translates_as_the_model_whatever_stands_beside_a_sentence(tmp_path):
    """Though each sentence has its own number of steps, experts, blocks and rotations."""
    tokenizer, decoding = Tokenizer.train(lines(0), 64, "bpe"), Decoding(1, 0.8, max_length=6, n_best=1)
    keras.utils.set_random_seed(3)
    parts: dict[str, Any] = {
        "stack": "universal", "feed_forward": {"name": "experts", "num_experts": 3}, "positions": "rotary",
        "attention": {"name": "local", "width": 3},
    }  # fmt: skip
    model = Transformer(tokenizer.vocabulary_size, 1, 2, 16, 24, max_source_length=40, **parts)
    randomize(model)
    (path,) = export_tflite(TrainedRun(Translator(model, tokenizer)), tmp_path, decoding, "int8")
    interpreter = Interpreter(str(path), num_threads=1)
    kept = [one for one in interpreter.get_tensor_details() if one["dtype"] == np.int8]
    assert any(tuple(one["shape"]) == (64, 16) for one in kept), "the embedding is kept in the precision"
    translate = interpreter.get_signature_runner("translate")
    rows = [*([*ids, END] for ids in tokenizer.encode(lines(5, 5))), []]
    found = translate(source_ids=padded(rows))
    scores = ops.convert_to_numpy(translate_ids(model, padded(rows), decoding)[1][:, 0])
    np.testing.assert_allclose(found["score"], scores, atol=0.2)
    alone = [translate(source_ids=padded([row], 20))["target_ids"][0] for row in rows]
    assert [row[row != PAD].tolist() for row in alone] == [row[row != PAD].tolist() for row in found["target_ids"]]


def test_bad_ids_get_an_answer_of_the_right_shape_and_those_outside_the_vocabulary_are_read_as_unknown(exported):
    path = exported / "tflite" / "translate.tflite"
    translate = Interpreter(str(path), num_threads=1).get_signature_runner("translate")
    for bad in (np.zeros((0, 3)), np.zeros((2, 0)), np.zeros((2, 4)), [[9] * 300], [[END, 9, PAD]]):
        ids = np.array(bad, "int32")
        answer = translate(source_ids=ids)
        assert answer["score"].shape == ids.shape[:1] and answer["target_ids"].shape[0] == ids.shape[0]
        if not ids.any():
            assert (answer["target_ids"][:, :1] == END).all() and not answer["score"].any()
    far = np.array([[5, 32, END], [-7, 10**9, END], [-(2**31), 2**31 - 1, PAD]], "int32")
    answer = translate(source_ids=far)
    known = translate(source_ids=np.where((far < 0) | (far >= 32), UNKNOWN, far).astype("int32"))
    for name in ("target_ids", "score"):
        np.testing.assert_array_equal(answer[name], known[name])


def test_text_that_litert_misreads_is_left_out_with_a_message(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tflite_converter, "convert", lambda *given: Path(given[-1]).touch())
    kinds: dict[str, dict[str, Any]] = {
        "for BPE vocabularies": {"vocabulary_size": 64, "model_type": "bpe"},
        "LiteRT's tokenizer cannot keep text as it is": {"vocabulary_size": 64, "keeps_text": True},
        "LiteRT's tokenizer cannot spell characters by bytes": {"vocabulary_size": 290, "byte_fallback": True},
    }
    for reason, kind in kinds.items():
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
    file, texts = Artefact(Path("translate_text.tflite"), "tflite", "text", "float32"), Texts([], [], ODD_TEXTS)
    blank = [text for text in ODD_TEXTS if is_blank(text)]
    read = [text for text, ids in zip(blank, litert.tokenize(tf.constant(blank)).to_list(), strict=True) if ids]
    known = [text for text in blank if known_difference(file, texts, ODD_TEXTS.index(text))]
    assert "\u00a0\u2003\u3000" in read and {*read} <= {*known}
    assert not {"", " \t "} & {*known}


@pytest.mark.long
def test_a_large_model_is_converted_in_a_process_of_its_own_to_the_same_file(stored_run, tmp_path, monkeypatch):
    run, convert, run_program = open_run(stored_run), tflite_converter.convert, subprocess.run
    given, given_there, pairs = list[Any](), list[Any](), list[Any]()

    def convert_here(*arguments):
        given.append([*arguments[1:-1]])
        convert(*arguments)

    def run_both(command, **options):  # of one SavedModel, since names in the next one are numbered on
        result = run_program(command, **options)
        folder, names, precision, takes_text, path = command[3:]
        given_there.append([names, precision, takes_text == "True"])
        convert(folder, names, precision, takes_text == "True", tmp_path / "here.tflite")
        pairs.append([Path(path).read_bytes(), (tmp_path / "here.tflite").read_bytes()])
        return result

    monkeypatch.setattr(tflite_converter, "convert", convert_here)
    export_tflite(run, tmp_path / "here", precision="int8")
    monkeypatch.setattr(tflite, "LARGE_BYTES", 0)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", run_both)
        paths = [*export_tflite(run, tmp_path / "there", precision="int8")]
    assert len(given) == 2 and given_there == given
    assert [there for there, _ in pairs] == [here for _, here in pairs]
    monkeypatch.setattr(tflite_converter, "__file__", str(tmp_path / "no-such.py"))
    with pytest.raises(JobError, match=r"converter failed on .*translate.*No such file"):
        export_tflite(run, tmp_path / "there", precision="int8")
    assert {path.read_bytes() for path in paths} == {there for there, _ in pairs}
