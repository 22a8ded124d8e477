"""Graphs that tf2onnx converts, search inside: they answer as the recorded ones; the same certificate holds them."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf

from export.__main__ import main
from export.artefacts import Decoding
from export.exporting import check_parts, planned
from export.onnx import export_onnx, tensorflow_graph
from export.onnx.export import converted_graphs, ids_model
from export.onnx.graph import all_nodes
from keras_transformer.core.errors import RequestError
from keras_transformer.decoding.onnx_decoder import OnnxDecoder
from keras_transformer.layers.feed_forward import Activation
from keras_transformer.runs.export_folder import Graphs
from keras_transformer.tasks.translation.pipeline import Translator
from tests.export.sessions import computed, of, run_of, session
from tests.golden.stored import unpack
from tests.models.variants import make_inputs, make_model

SOURCE_IDS = make_inputs()["source_ids"]
BATCHES = [SOURCE_IDS, SOURCE_IDS[:1], SOURCE_IDS[:0], SOURCE_IDS[:2, :0], np.pad(SOURCE_IDS, [(0, 0), (0, 3)])]
VARIANTS = ["post-norm", "sub-norm and gates", "buckets", "rotary positions", "windows and slopes", "universal"]
SPEC = tf.TensorSpec([None, None], tf.int32, name="ids")


class Cubed(Activation):
    """The recorder has no form of it."""

    def call(self, x):
        return keras.ops.power(x, 3)


def converted(function):
    return tensorflow_graph.converted(tf.function(function, input_signature=[SPEC], autograph=False), SPEC)


@pytest.mark.parity
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_converted_search_answers_as_the_recorded_one_alone_in_any_batch_and_in_an_empty_one(variant, tmp_path):
    run, search = run_of(make_model(variant)), (Decoding(2, 0.6, 9), "float32")
    recorded = of(ids_model(run, *search), tmp_path)
    graph = of(converted_graphs(run, *search)["translate"](run, *search), tmp_path)
    for side in ("inputs", "outputs"):
        ours, theirs = ([(one.name, one.type, one.shape) for one in getattr(each, f"get_{side}")()]
                        for each in (recorded, graph))  # fmt: skip
        assert theirs == ours
    for batch in BATCHES:
        (ids, scores), found = (each.run(None, {"source_ids": batch}) for each in (recorded, graph))
        np.testing.assert_array_equal(found[0], ids)
        np.testing.assert_allclose(found[1], scores, atol=1e-4)


def test_it_takes_parts_that_the_recorder_refuses_and_its_files_translate_without_the_halves(tokenizer, tmp_path):
    model = make_model("rotary positions", vocabulary_size=tokenizer.vocabulary_size, activation=Cubed)
    translator = Translator(model, tokenizer)
    run = type(run_of(model))(translator)
    with pytest.raises(RequestError, match="Cubed"):
        check_parts(run, [("onnx", "float32")])
    check_parts(run, [("onnx", "float32")], "tf2onnx")
    paths = export_onnx(run, tmp_path, Decoding(1, 0.6, 9), converter="tf2onnx")
    assert [path.name for path in paths] == ["translate.onnx", "translate_text.onnx"]
    graphs = Graphs.in_folder(tmp_path / "onnx", "float32")
    assert graphs is not None and graphs.encoder is None and graphs.step is None
    exported = Translator(OnnxDecoder(graphs), tokenizer)
    lines = ["two dogs", "", "to the sea and to the sea"]
    assert exported.translate(lines) == translator.translate(lines, num_beams=1, max_length=9)
    graph = session(paths[0])
    assert graph.run(["target_ids"], {"source_ids": SOURCE_IDS[:0]})[0].shape == (0, 1)
    about = graph.get_modelmeta().custom_metadata_map
    assert about.pop("converter") == tensorflow_graph.converter_name()
    assert about == run.metadata(Decoding(1, 0.6, 9), "float32")


@pytest.mark.long
def test_the_command_certifies_what_it_converts_and_the_certificate_names_the_converter(tmp_path, capfd):
    run, out = unpack("classification", tmp_path / "run"), tmp_path / "out"
    flags = ["--format", "onnx", "--converter", "tf2onnx"]
    assert main([str(run), *flags, "--out", str(out)]) == 0
    told = capfd.readouterr().err.splitlines()
    ours = ("onnx/classify", "certifying ", "wrote ", "warning: ")
    assert [line for line in told if not line.startswith(ours)] == [], "tf2onnx logs nothing"
    certificate = json.loads((out / "certificate.json").read_text(encoding="utf-8"))
    name = tensorflow_graph.converter_name()
    assert [one["contents"]["converter"] for one in certificate["entries"]] == [name] * 2 and certificate["holds"]
    assert f"Converted by {name}." in (out / "CERTIFICATE.md").read_text(encoding="utf-8")
    assert main(["--verify", str(out / "onnx")]) == 0
    damaged = onnx.load(out / "onnx" / "classify.onnx")
    weight = max(damaged.graph.initializer, key=lambda one: np.prod(one.dims))
    assert weight.name.startswith(tensorflow_graph.PREFIX)
    weight.CopyFrom(onnx.numpy_helper.from_array(1.5 * onnx.numpy_helper.to_array(weight), weight.name))
    onnx.save(damaged, out / "onnx" / "classify.onnx")
    assert main(["--verify", str(out / "onnx" / "classify.onnx")]) == 1


def test_an_operator_that_it_lacks_is_named_in_one_line_and_nothing_is_written(tmp_path, monkeypatch, capfd):
    run, out = unpack("images", tmp_path / "run"), tmp_path / "out"
    monkeypatch.setattr(tensorflow_graph, "OPERATORS", {})
    assert main([str(run), "--format", "onnx", "--converter", "tf2onnx", "--out", str(out)]) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "tf2onnx" in line]
    assert line.startswith("error: ") and "Erfc] is not supported" in line and "--converter" in line
    assert not out.exists()


def test_what_it_raises_inside_a_loop_and_what_the_checker_finds_are_one_line_too(monkeypatch):
    step = lambda index, x: (index + 1, tf.linalg.cholesky(x))  # noqa: E731
    with pytest.raises(RequestError, match="Cholesky"):
        converted(lambda ids: {"x": tf.while_loop(lambda index, _: index < 3, step, (0, tf.cast(ids, "float32")))[1]})
    write_odd = lambda graph, node, *_: setattr(node, "type", "Odd")  # noqa: E731
    monkeypatch.setattr(tensorflow_graph, "OPERATORS", {"Abs": (write_odd, [])})
    with pytest.raises(RequestError, match="No Op registered for Odd"):
        converted(lambda ids: {"x": tf.abs(ids)})


def test_the_complement_of_erf_is_written_for_an_exact_gelu():
    graph = converted(lambda ids: {"x": tf.math.erfc(tf.cast(ids, "float32") / 4)})
    assert "Erf" in {node.op_type for node in all_nodes(graph.node)}
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    ids = np.arange(-12, 13, dtype="int32")[None]
    (found,) = session(model.SerializeToString()).run(None, {f"{tensorflow_graph.PREFIX}ids": ids})
    np.testing.assert_allclose(found, tf.math.erfc(ids / 4).numpy(), atol=1e-6)


def test_a_tensor_that_would_become_an_input_is_refused():
    held = tf.constant([3])
    with pytest.raises(RequestError, match="a tensor of TensorFlow that a layer holds"):
        converted(lambda ids: {"x": ids + held})


def test_what_only_an_inner_graph_uses_is_kept():
    weight = np.arange(9, dtype="float32").reshape(3, 3)

    def of_ids(ids):
        x = tf.cast(ids, "float32")
        return {"x": tf.cond(tf.reduce_sum(ids) > 0, lambda: x @ weight, lambda: x - 1.0)}

    signature: Any = SimpleNamespace(spec=lambda: SPEC, of_ids=of_ids)
    answer = tensorflow_graph.ConvertedAnswer(signature)
    for ids in (np.ones((2, 3), "int32"), np.zeros((2, 3), "int32")):
        np.testing.assert_allclose(computed(lambda ids: answer(ids)["x"], ids)[0], of_ids(ids)["x"])


def test_what_it_cannot_write_is_refused_before_the_run_is_read(monkeypatch):
    with pytest.raises(RequestError, match="tf2onnx writes no int8"):
        planned(["onnx"], ["int8"], "tf2onnx")
    with pytest.raises(RequestError, match="--converter tf2onnx makes ONNX graphs: add onnx to --format"):
        planned(["tflite"], ["float32"], "tf2onnx")
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(RequestError, match=r"--converter tf2onnx needs the package tf2onnx.*\[tf2onnx\]"):
        planned(["onnx"], ["float32"], "tf2onnx")
    planned(["onnx"], ["float32"])


def test_a_model_larger_than_a_message_of_tensorflow_is_refused(monkeypatch):
    run = run_of(make_model("rotary positions"))
    monkeypatch.setattr("export.tflite.MAX_BYTES", 3 * run.model.count_params())
    with pytest.raises(RequestError, match="a graph that tf2onnx takes has at most 2 GiB"):
        check_parts(run, [("onnx", "float32")], "tf2onnx")
    check_parts(run, [("onnx", "float16")], "tf2onnx")
