"""The model repository for Triton has whole models, of the export's own files, configured as the graphs are."""

import re
import shutil

import onnxruntime
import pytest

import keras_transformer
from export.__main__ import main
from export.triton import IDS, TEXT, write_repository
from keras_transformer.runs.export_folder import OF_DEMO, ExportFolder
from tests.export.test_export_command import NOTHING
from tests.golden.stored import unpack

TYPES = {"tensor(int32)": "TYPE_INT32", "tensor(float)": "TYPE_FP32"}


@pytest.fixture
def export(tmp_path):
    shutil.copytree(OF_DEMO, tmp_path / "export" / "onnx")
    return tmp_path / "export"


def test_its_graphs_are_the_exports_own_files_or_copies(export, monkeypatch):
    def no_links(*_):
        raise PermissionError("no links here")

    main_graph = ExportFolder(export).graphs().main
    main_graph.with_name(f"{main_graph.name}.data").write_text("weights")
    models = {path.name for path in (export / "onnx").iterdir()}
    for attempt in ("links", "copies"):
        repository = write_repository(export)
        beside, alone = repository / TEXT / "1" / "onnx", repository / IDS / "1"
        assert {path.name for path in beside.iterdir()} == models
        assert {path.name for path in alone.iterdir()} == {"model.onnx", f"{main_graph.name}.data"}
        for path in (beside / main_graph.name, alone / "model.onnx"):
            assert path.samefile(main_graph) == (attempt == "links") and path.read_bytes() == main_graph.read_bytes()
        shutil.rmtree(repository)
        monkeypatch.setattr("os.link", no_links)


def test_a_model_is_whole_without_the_rest_of_the_export(export, tmp_path):
    moved = write_repository(export).rename(tmp_path / "models")
    shutil.rmtree(export)
    assert keras_transformer.load(moved / TEXT / "1").translate("forty-two") == "zweiundvierzig"


def test_the_configuration_of_ids_says_what_the_graph_takes_and_gives(export):
    model = write_repository(export) / IDS
    config, graph = (model / "config.pbtxt").read_text(), onnxruntime.InferenceSession(model / "1" / "model.onnx")
    told = re.findall(r'name: "(\w+)" data_type: (\w+) dims: \[ (-?1) \]( reshape: \{ shape: \[ \] \})?', config)
    # Triton counts no batch, and knows no shape without an axis but by `reshape`.
    shapes = {1: ("1", " reshape: { shape: [ ] }"), 2: ("-1", "")}
    sides = [*graph.get_inputs(), *graph.get_outputs()]
    assert told == [(side.name, TYPES[side.type], *shapes[len(side.shape)]) for side in sides]


def test_the_command_writes_it_beside_onnx_and_of_translators_alone(stored_run, tmp_path, monkeypatch, capsys):
    def export_onnx(run, folder, decoding, precision, converter):
        shutil.copytree(OF_DEMO, folder / "onnx")
        return []

    monkeypatch.setattr("export.onnx.export_onnx", export_onnx)
    monkeypatch.setattr("export.exporting.certify", lambda *_: NOTHING)
    out = ["--out", str(tmp_path / "exported"), "--format", "triton"]
    assert main([str(stored_run), *out]) == 2
    assert "triton is made of ONNX graphs: add onnx to --format" in capsys.readouterr().err
    other = unpack("language-model", tmp_path / "other")
    assert main([str(other), *out, "onnx"]) == 2
    assert capsys.readouterr().err == "error: triton takes translators: leave it out\n"
    assert not (tmp_path / "exported").exists()
    assert main([str(stored_run), *out, "onnx"]) == 0
    beside = tmp_path / "exported" / "triton" / TEXT / "1" / "onnx"
    assert (beside / "certificate.json").read_bytes() == (tmp_path / "exported" / "certificate.json").read_bytes()
    assert main([str(stored_run), *out, "onnx", "--overwrite"]) == 0, "it is part of an export"
