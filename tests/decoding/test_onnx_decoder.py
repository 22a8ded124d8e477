"""Exported graphs translate through the same `Translator`, without Keras and TensorFlow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_transformer
from export.onnx import export_onnx
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.onnx_decoder import SIZES, OnnxDecoder
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.parallel import divided, num_cores
from keras_transformer.decoding.sentences import Arrays
from keras_transformer.errors import JobError, RequestError
from keras_transformer.export_folder import ExportFolder, Graphs
from tests.export.conftest import ODD

pytest_plugins = ["tests.tiny_run"]

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = [*ODD, "two dogs", "seven hundred and two"]


@pytest.fixture(scope="module")
def export(translator, tmp_path_factory) -> Path:
    """An export with 3 beams and the default penalty, in float32 and int8."""
    folder = tmp_path_factory.mktemp("exports") / "tiny"
    run = TrainedRun(translator)
    for precision in ("float32", "int8"):
        export_onnx(run, folder, Decoding(num_beams=3), precision)
    run.save_tokenizers(folder)
    return folder


@pytest.fixture(scope="module")
def exported(export):
    return keras_transformer.load(export)


@pytest.fixture
def copy(export, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(export, tmp_path / "copy"))


def assert_same(found, expected):
    """The hypotheses have the same tokens and texts, and almost the same scores."""
    for some, others in zip(found, expected, strict=True):
        assert [(one.text, one.ids) for one in some] == [(one.text, one.ids) for one in others]
        assert [one.score for one in some] == pytest.approx([one.score for one in others], rel=1e-5, abs=1e-4)
        assert [one.log_prob for one in some] == pytest.approx([one.log_prob for one in others], abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},  # the search inside the graph
        {"num_beams": 3, "batch_size": 2},
        {"num_beams": 1},
        {"num_beams": 5, "n_best": 4, "length_penalty": -0.5},
        {"num_beams": 3, "max_length": 6},
        {"sampling": True, "n_best": 2, "seed": 5, "temperature": 0.7, "top_k": 9, "top_p": 0.95},
    ],
)
def test_it_translates_as_the_model_does(exported, translator, options):
    assert_same(exported.n_best(SENTENCES, **options), translator.n_best(SENTENCES, **options))


def test_prefixes_begin_its_translations(exported, translator):
    prefixes = ["the dog" if number % 2 else "" for number in range(len(SENTENCES))]
    found = exported.n_best(SENTENCES, prefixes, num_beams=3)
    assert_same(found, translator.n_best(SENTENCES, prefixes, num_beams=3))


def test_given_translations_have_the_same_probability(exported, translator):
    targets = ["two", "", "a dog", *SENTENCES[3:-3], "two\ndogs", *SENTENCES[-2:]]
    found, expected = (one.score(SENTENCES, targets, batch_size=4) for one in (exported, translator))
    assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in expected], abs=1e-3)
    assert [one.num_tokens for one in found] == [one.num_tokens for one in expected]


def test_translations_longer_than_the_graph_takes_are_refused(exported):
    with pytest.raises(RequestError, match="at most 90 pieces.*received one of"):
        exported.score(["two"], ["two dogs run " * 60])


def test_only_another_search_takes_the_two_halves(export):
    decoder = OnnxDecoder(ExportFolder(export).graphs("float32"))
    assert decoder.serves(SearchOptions(num_beams=3))
    for other in (SearchOptions(4), SearchOptions(3, 0.5), SearchOptions(3, max_length=9), SearchOptions(3, n_best=2)):
        assert not decoder.serves(other)


def test_neither_keras_nor_tensorflow_is_imported(export):
    code = """
        import json, sys, keras_transformer
        translator = keras_transformer.load(sys.argv[1])
        texts = [translator.translate("two dogs", **options) for options in ({"num_beams": 3}, {"num_beams": 2})]
        heavy = {"keras", "tensorflow", "jax", "torch", "onnx"}
        print(json.dumps([texts, sorted(heavy & set(sys.modules))]))
    """
    code = "\n".join(line.strip() for line in code.strip().split("\n"))
    command = [sys.executable, "-c", code, str(export)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    texts, imported = json.loads(done.stdout)
    assert imported == [] and all(isinstance(text, str) for text in texts)


def test_the_precision_is_chosen(export):
    assert ExportFolder(export).graphs().main.name == "translate.onnx"
    assert ExportFolder(export).graphs("int8").step == export / "onnx" / "step-int8.onnx"
    assert "int8" in repr(keras_transformer.load(export, precision="int8"))
    with pytest.raises(RequestError, match="float16.*it has float32, int8.*--precision float16"):
        keras_transformer.load(export, precision="float16")


def test_a_run_has_float32_and_the_threads_of_tensorflow_alone(built_run):
    with pytest.raises(RequestError, match="a run translates in float32; received int8"):
        keras_transformer.load(built_run, precision="int8")
    with pytest.raises(RequestError, match="a run takes the threads of TensorFlow; received 2: load an export"):
        keras_transformer.load(built_run, num_threads=2)


def test_alignments_are_refused_by_name(exported):
    with pytest.raises(RequestError, match=r"alignments need the model's attention, which .*translate\.onnx"):
        exported.n_best(["two dogs"], num_beams=3, alignments=True)


def test_it_has_no_model_to_save(exported, tmp_path):
    with pytest.raises(RequestError, match="expected a translator with a Keras model"):
        exported.save(tmp_path / "run")


def test_sources_are_not_longer_than_the_graph_takes(export, translator):
    assert keras_transformer.load(export, 7).max_source_length == 7
    with pytest.raises(RequestError, match="at most 40.*received: 41"):
        keras_transformer.load(export, 41)


def test_without_the_halves_other_searches_are_refused(copy):
    for name in ("encoder", "step"):
        (copy / "onnx" / f"{name}.onnx").unlink()
    translator = keras_transformer.load(copy)
    assert translator.translate(["two dogs"], num_beams=3)
    with pytest.raises(RequestError, match=r"needs encoder\.onnx and step\.onnx.*'num_beams': 3"):
        translator.translate(["two dogs"], num_beams=2)


def test_without_the_translator_the_halves_do_all(copy, translator):
    (copy / "onnx" / "translate.onnx").unlink()
    found = keras_transformer.load(copy, precision="float32").n_best(SENTENCES, num_beams=3)
    assert_same(found, translator.n_best(SENTENCES, num_beams=3))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[: len(content) // 2] = bytes(len(content) // 2)
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["onnx/translate.onnx", "tokenizer.model"])
def test_a_damaged_file_is_named(copy, name):
    damage(copy / name)
    with pytest.raises(RequestError, match=Path(name).name):
        keras_transformer.load(copy)


def test_a_graph_of_another_project_is_refused(tmp_path):
    from onnx import TensorProto, helper, save

    (tmp_path / "onnx").mkdir()
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, ir_version=8, opset_imports=opset), tmp_path / "onnx" / "translate.onnx")
    with pytest.raises(RequestError, match="is not the graph that an export has by this name"):
        keras_transformer.load(tmp_path)


@pytest.mark.parametrize(
    "metadata",
    [
        {"model": "[]"}, {"model": "{}"}, {"model": "3"}, {"decoding": "[1]"}, {"decoding": "3"},
        {"decoding": 100_000 * "["}, {"model": dict.fromkeys(SIZES, None)}, {"model": dict.fromkeys(SIZES, True)},
        {"model": {**dict.fromkeys(SIZES, 64), "source_vocabulary_size": "64"}}, {"precision": "float64"},
    ],
    ids=lambda metadata: f"{metadata!r:.60}",
)  # fmt: skip
def test_a_graph_with_other_metadata_is_refused(copy, metadata):
    import onnx

    path = copy / "onnx" / "translate.onnx"
    graph = onnx.load(path, load_external_data=False)
    for entry in graph.metadata_props:
        value = metadata.get(entry.key, entry.value)
        entry.value = json.dumps({"source_vocabulary_size": None, **value}) if isinstance(value, dict) else value
    onnx.save(graph, path)
    with pytest.raises(RequestError, match=r"translate\.onnx is not the graph that an export has by this name"):
        keras_transformer.load(copy, precision="float32")


def test_a_graph_under_another_name_is_refused(copy):
    shutil.copy(copy / "onnx" / "encoder.onnx", copy / "onnx" / "translate.onnx")
    with pytest.raises(RequestError, match=r"translate\.onnx is not the graph that an export has by this name"):
        keras_transformer.load(copy, precision="float32")


def test_an_error_of_the_runtime_is_told(exported):
    with pytest.raises(JobError, match="ONNX Runtime stopped; if memory ran out, take smaller batches: .*Invalid rank"):
        exported.decoder.search(Arrays(np.array([5], "int32"), np.array([9]), np.zeros((1, 9))), SearchOptions(3))


def test_a_vocabulary_of_another_run_is_refused(copy, other_tokenizer):
    other_tokenizer.save(copy / "tokenizer.model")
    with pytest.raises(RequestError, match="has 50 pieces, but the model .* has 64"):
        keras_transformer.load(copy)


def test_without_onnxruntime_the_package_is_named(export, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RequestError, match="pip install onnxruntime"):
        keras_transformer.load(export)


def test_batches_side_by_side_change_nothing(export):
    options = {"num_beams": 3, "batch_size": 2}
    graphs = ExportFolder(export).graphs("float32")
    found = []
    for num_threads in (1, 3):
        decoder = OnnxDecoder(graphs, num_threads)
        assert decoder.num_parallel == num_threads
        found.append([decoder_texts(decoder, export, options)])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "1600000 100000\n"}, 8),
        ({"cpu.max": "damaged"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ],
)
def test_cores_are_counted_by_the_quota_of_the_container(files, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert num_cores(tmp_path) == expected


def test_batches_are_divided_among_threads():
    assert divided([[1, 2, 3], [], [4]], 4) == [[1], [2], [3], [4]]
    assert divided([[1, 2], [3, 4, 5, 6]], 3) == [[1, 2], [3, 4], [5, 6]]
    assert divided([[1, 2]], 1) == [[1, 2]] and divided([], 3) == [] and divided([[1]], 2) == [[1]]


def decoder_texts(decoder, export, options):
    from keras_transformer.decoding.translator import translator_of
    from keras_transformer.run_folder import RunFolder

    return translator_of(decoder, RunFolder(export)).translate(SENTENCES * 3, **options)


def test_half_of_the_halves_are_none(copy):
    (copy / "onnx" / "step.onnx").unlink()
    assert ExportFolder(copy).graphs("float32") == Graphs(copy / "onnx" / "translate.onnx", None, None)


def test_numbers_in_half_precision_are_kept(translator, tmp_path):
    export_onnx(TrainedRun(translator), tmp_path, Decoding(num_beams=2), "float16")
    decoder = OnnxDecoder(ExportFolder(tmp_path).graphs("float16"))
    cache = decoder._first_cache(np.array([[5, 3]], "int32"), num_beams=2)
    assert {array.dtype for array in cache["beams"]} == {np.dtype("float16")}
