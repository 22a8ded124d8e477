"""Exported graphs translate through the same `Translator`, without Keras and TensorFlow."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import keras_transformer
from export.artefacts import Decoding
from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.core.machine import num_cores
from keras_transformer.decoding.decoder import split_batches
from keras_transformer.decoding.onnx_decoder import SIZES, OnnxDecoder
from keras_transformer.runs.export_folder import ExportFolder, Graphs
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.sentences import Arrays
from tests.export import sessions
from tests.export.conftest import ODD
from tests.processes import run_python

SENTENCES = [*ODD, "two dogs", "seven hundred and two"]
PREFIXES = ["the dog" if number % 2 else "" for number in range(len(SENTENCES))]
NOT_THE_GRAPH = r"translate\.onnx is not the graph that an export has by this name"
PROGRAM = """
import sys
import numpy as np
import keras_transformer
from examples.bulk_translator import BulkTranslator
translator = keras_transformer.load(sys.argv[1])
texts = [translator.translate("two dogs", num_beams=beams) for beams in (3, 2)]
assert BulkTranslator(sys.argv[1])({"text": np.array(["two dogs"], object)})["translation"] == texts[:1]
print(texts, {"keras", "tensorflow", "jax", "torch", "onnx", "ray", "pandas", "pyarrow"} & set(sys.modules))
"""


@pytest.fixture(scope="module")
def export(translator, tmp_path_factory) -> Path:
    """An export with 3 beams and the default penalty, in float32 and int8."""
    return sessions.exported(translator, tmp_path_factory.mktemp("exports"), Decoding(num_beams=3), "float32", "int8")


@pytest.fixture(scope="module")
def exported(export):
    return keras_transformer.load(export)


@pytest.fixture
def copy(export, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(export, tmp_path / "copy"))


def assert_same(found, expected):
    """The hypotheses have the same tokens and texts, and almost the same scores."""
    one, other = ([hypothesis for some in lists for hypothesis in some] for lists in (found, expected))
    assert [(each.text, each.ids) for each in one] == [(each.text, each.ids) for each in other]
    assert [each.score for each in one] == pytest.approx([each.score for each in other], rel=1e-5, abs=1e-4)
    assert [each.log_prob for each in one] == pytest.approx([each.log_prob for each in other], abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},  # the search inside the graph
        {"num_beams": 4, "n_best": 4, "length_penalty": -0.5, "max_length": 6, "batch_size": 2, "prefixes": PREFIXES},
        {"sampling": True, "n_best": 2, "seed": 5, "temperature": 0.7, "top_k": 9, "top_p": 0.95},
        {"num_beams": 2, "n_best": 2, "repetition_penalty": 1.4, "min_length": 3, "max_length_factor": 1.3},
        {"sampling": True, "n_best": 2, "no_repeat_ngram_size": 1, "repetition_penalty": 0.7},
        {"num_beams": 3, "no_repeat_ngram_size": 1, "alignments": True},
    ],
)
def test_it_translates_as_the_model_does(exported, translator, options):
    assert_same(exported.n_best(SENTENCES, **options), translator.n_best(SENTENCES, **options))


def test_a_graph_searches_with_the_guards_that_it_was_exported_with(translator, tmp_path):
    guards: dict[str, Any] = {"no_repeat_ngram_size": 1, "min_length": 3, "max_length_factor": 1.25}
    found = keras_transformer.load(sessions.exported(translator, tmp_path, Decoding(3, **guards)))
    (tmp_path / "onnx" / "step.onnx").unlink()  # with the search around which it would do as well
    expected = translator.translate(SENTENCES, num_beams=3, **guards)
    assert found.translate(SENTENCES) == expected != translator.translate(SENTENCES, num_beams=3)
    assert found.search_options().active_guards() == guards and isinstance(found.decoder, OnnxDecoder)
    for other in ({}, {"min_length": 0}, {"no_repeat_ngram_size": 2}, {"max_length_factor": 1.2}):
        assert found.decoder.serves(found.search_options(**other)) == (not other)
    with pytest.raises(RequestError, match="received num_beams 2: ask for one beam"):
        Decoding(2, repetition_penalty=1.1)


def test_given_translations_have_the_same_probability(exported, tiny_model, tokenizer, eager):
    targets = ["two", "", "a dog", *SENTENCES[3:-3], "two\ndogs", *SENTENCES[-2:]]
    of_model = Translator(tiny_model, tokenizer)
    found, expected = (one.score(SENTENCES, targets, batch_size=4) for one in (exported, of_model))
    assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in expected], abs=1e-3)
    assert [one.num_tokens for one in found] == [one.num_tokens for one in expected]
    assert found[0].perplexity == pytest.approx(np.exp(-found[0].log_prob / found[0].num_tokens))


def test_only_another_search_takes_the_two_halves_and_batches_side_by_side_change_nothing(export):
    found = []
    for num_threads in (1, 3):
        decoder = OnnxDecoder(ExportFolder(export).graphs("float32"), num_threads)
        assert decoder.num_parallel == num_threads
        found.append(Translator.of_run(decoder, RunFolder(export)).translate(SENTENCES * 3, num_beams=3, batch_size=2))
    assert found[0] == found[1]
    assert decoder.serves(SearchOptions(num_beams=3))
    for other in (SearchOptions(4), SearchOptions(3, 0.5), SearchOptions(3, max_length=9), SearchOptions(3, n_best=2)):
        assert not decoder.serves(other)


def test_neither_keras_nor_tensorflow_nor_what_ray_needs_is_imported(export, exported):
    texts = [exported.translate("two dogs", num_beams=beams) for beams in (3, 2)]
    assert run_python("-c", PROGRAM, export).stdout == f"{texts} set()\n"


def test_wrong_requests_are_refused(export, exported, tmp_path):
    def load(folder: Path, **options: Any) -> Any:
        return lambda: keras_transformer.load(folder, **options)

    assert load(export, max_source_length=7)().max_source_length == 7
    assert "translate-int8.onnx in ONNX Runtime, int8" in repr(load(export, precision="int8")())
    refused = [
        ("expected translate-float16.onnx.*received .*--precision float16", load(export, precision="float16")),
        ("at most 40.*received: 41", load(export, max_source_length=41)),
        ("at most 90 pieces.*received one of", lambda: exported.score(["two"], ["two dogs run " * 60])),
        ("expected a translator with a Keras model", lambda: exported.save(tmp_path / "run")),
    ]  # fmt: skip
    for message, request in refused:
        with pytest.raises(RequestError, match=message):
            request()


def test_graphs_that_are_missing_are_missed_by_the_searches_that_need_them(copy, exported):
    (copy / "onnx" / "step.onnx").rename(copy / "step.onnx")
    folder = copy / "onnx"
    expected = Graphs(folder / "translate.onnx", None, None, translate_aligned=folder / "translate_aligned.onnx")
    assert ExportFolder(copy).graphs("float32") == expected
    without_halves = keras_transformer.load(copy)
    assert without_halves.translate(["two dogs"], num_beams=3) == exported.translate(["two dogs"], num_beams=3)
    with pytest.raises(RequestError, match=r"needs encoder\.onnx and step\.onnx.*'num_beams': 3"):
        without_halves.translate(["two dogs"], num_beams=2)
    (copy / "step.onnx").rename(copy / "onnx" / "step.onnx")
    (copy / "onnx" / "translate.onnx").unlink()
    of_halves = keras_transformer.load(copy, precision="float32")
    assert_same(of_halves.n_best(SENTENCES, num_beams=3), exported.n_best(SENTENCES, num_beams=3))


def test_what_belongs_to_another_run_or_project_or_is_damaged_is_refused(copy, other_tokenizer):
    path = copy / "onnx" / "translate.onnx"
    content, whole = path.read_bytes(), onnx.load(path, load_external_data=False)

    def with_entry(key: str, value: str) -> bytes:
        graph = onnx.ModelProto()
        graph.CopyFrom(whole)
        for entry in graph.metadata_props:
            entry.value = value if entry.key == key else entry.value
        return graph.SerializeToString()

    sizes = {**dict.fromkeys(SIZES, 64), "source_vocabulary_size": None}
    models: list[Any] = [[], {}, 3, *({**sizes, name: wrong} for name, wrong in ((SIZES[0], None), (SIZES[1], "64")))]
    entries = [("model", json.dumps(model)) for model in models]
    entries += [("decoding", "[1]"), ("decoding", 100_000 * "["), ("precision", "float64")]
    for wrong, message in (
        (bytes(len(content) // 2) + content[len(content) // 2 :], "translate.onnx is damaged"),
        ((copy / "onnx" / "encoder.onnx").read_bytes(), NOT_THE_GRAPH),
        *((with_entry(*entry), NOT_THE_GRAPH) for entry in entries),
    ):
        path.write_bytes(wrong)
        with pytest.raises(RequestError, match=message):
            keras_transformer.load(copy, precision="float32")
    path.write_bytes(content)
    other_tokenizer.save(copy / "tokenizer.model")
    with pytest.raises(RequestError, match="has 50 pieces, but the model .* has 64"):
        keras_transformer.load(copy)


def test_an_error_of_the_runtime_is_told_and_a_missing_package_named(exported, export, monkeypatch):
    with pytest.raises(JobError, match="ONNX Runtime stopped; if memory ran out, take smaller batches: .*Invalid rank"):
        exported.decoder.search(Arrays(np.array([5], "int32"), np.array([9]), np.zeros((1, 9))), SearchOptions(3))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RequestError, match="needs the package onnxruntime, which is not installed: pip install"):
        keras_transformer.load(export)


def test_cores_are_counted_by_the_quota_of_the_container_and_batches_divided_among_threads(tmp_path, monkeypatch):
    assert split_batches([[1, 2, 3], [], [4]], 4) == [[1], [2], [3], [4]]
    assert split_batches([[1, 2], [3, 4, 5, 6]], 3) == [[1, 2], [3, 4], [5, 6]]
    assert split_batches([], 3) == [] and split_batches([[1]], 2) == [[1]]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert num_cores(tmp_path) == 8
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    version_2 = {"max 100000": 8, "150000 100000": 2, "20000 100000": 1, "1600000 100000": 8, "?": 8}
    for name, quotas in {"cpu.max": version_2, "cpu/cpu.cfs_quota_us": {"-1": 8, "300000": 3}}.items():
        for quota, expected in quotas.items():
            (tmp_path / name).write_text(f"{quota}\n")
            assert num_cores(tmp_path) == expected, quota
