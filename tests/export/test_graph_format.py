"""The form of the graphs that are written, which runs keep under the number of a format, and what graphs say of
themselves to who has no package `onnx`.

`python -m tests.export.test_graph_format` writes what is stored of the form.
"""

import hashlib
import json
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from export.artefacts import open_run
from export.onnx import export_onnx
from keras_transformer.__main__ import main
from keras_transformer.core.errors import RequestError
from keras_transformer.runs.export_folder import GRAPH_FORMAT, MAX_METADATA, metadata_of, precision_of_graph
from keras_transformer.runs.run_folder import config_of_graph, read_config
from tests.golden.cases import TASKS
from tests.golden.stored import unpack

STORED = Path(__file__).resolve().parents[1] / "data" / "graph-format.json"
PRECISIONS = ("float32", "int8")


def write_graphs(folder: Path) -> dict[str, Path]:
    """Exports the stored run of each task; returns the graphs by task and file name. Those that take text are left out:
    runs keep none."""
    found: dict[str, Path] = {}
    for task in TASKS:
        run = open_run(unpack(task, folder / task / "run"))
        for precision in PRECISIONS:
            paths = export_onnx(run, folder / task, precision=precision)
            found |= {f"{task}/{path.name}": path for path in paths if "_text" not in path.name}
    return found


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> dict[str, Path]:
    return write_graphs(tmp_path_factory.mktemp("graphs"))


def form_of(path: Path) -> str:
    """A digest of a graph: operators, attributes, names, types and shapes, whole numbers, and lone numbers. Weights and
    tables are left out, and what the metadata says but for its names."""
    model = onnx.load(path)
    parts = [*parts_of(model.graph), sorted(entry.key for entry in model.metadata_props)]
    parts += [[one.domain, one.version] for one in model.opset_import]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def parts_of(graph: onnx.GraphProto) -> Iterator[Any]:
    """What a graph is made of, and the graphs within it."""
    for side in (graph.input, graph.output):
        for info in side:
            sizes = [size.dim_param or size.dim_value for size in info.type.tensor_type.shape.dim]
            yield [info.name, info.type.tensor_type.elem_type, sizes]
    for tensor in graph.initializer:
        yield [tensor.name, *form_of_array(numpy_helper.to_array(tensor))]
    for node in graph.node:
        yield [node.domain, node.op_type, [*node.input], [*node.output]]
        for attribute in node.attribute:
            value = onnx.helper.get_attribute_value(attribute)
            if isinstance(value, onnx.GraphProto):
                yield [attribute.name, [*parts_of(value)]]
            elif isinstance(value, onnx.TensorProto):
                yield [attribute.name, *form_of_array(numpy_helper.to_array(value))]
            else:
                yield [attribute.name, repr(value)]


def form_of_array(array: np.ndarray) -> list[Any]:
    """Type and shape; and the numbers, of indices and sizes all, of others a lone one to six digits."""
    if array.dtype.kind == "b" or array.dtype in ("int32", "int64"):
        return [str(array.dtype), array.shape, array.tolist()]
    return [str(array.dtype), array.shape, f"{float(array.ravel()[0]):.6g}" if array.size == 1 else ""]


def test_graphs_do_not_change_while_their_format_has_the_same_number(graphs):
    """Runs would go on with kept graphs of the old form."""
    stored = json.loads(STORED.read_text())
    renew = "write what is stored anew: `python -m tests.export.test_graph_format`"
    assert stored["format"] == GRAPH_FORMAT, f"the format has another number: {renew}"
    changed = [name for name, path in graphs.items() if stored["forms"].get(name) != form_of(path)]
    assert not changed, f"raise GRAPH_FORMAT in runs/export_folder.py: {', '.join(changed)} changed; then {renew}"
    assert stored["forms"].keys() == graphs.keys()


def test_what_a_graph_says_of_itself_is_what_the_package_onnx_reads(graphs):
    for name, path in graphs.items():
        model, run = onnx.load(path, load_external_data=False), path.parents[1] / "run"
        assert metadata_of(path) == {entry.key: entry.value for entry in model.metadata_props}
        told, config = config_of_graph(path), read_config(run)
        assert (told.model, told.task, told.labels) == (config.model, config.task, config.labels), name
        assert told.answer_length == config.answer_length


def varint(number: int) -> bytes:
    """A whole number of protobuf."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def field(number: int, content: bytes, length: int | None = None) -> bytes:
    """A text of protobuf, which perhaps lies about its length."""
    return varint(number << 3 | 2) + varint(len(content) if length is None else length) + content


ENTRY = field(1, b"model") + field(2, b"{}")
HOSTILE = {
    "nothing that a graph has": b"no graph at all\n" * 9,
    "a huge weight": field(7, b"x", 2**63 - 1),
    "a weight larger than numbers are": field(7, b"x", 2**69),
    "an entry larger than all may be": field(14, ENTRY + b"\0" * MAX_METADATA),
    "a huge entry": field(14, ENTRY, 2**40),
    "an entry that is cut": field(14, ENTRY)[:-1],
    "a name that is cut": field(14, field(1, b"model", 99)),
    "a name that is no text": field(14, field(1, b"\xff") + field(2, b"x")),
    "another kind of field": varint(7 << 3 | 5) + b"1234",
    "a number without end": b"\xff" * 99,
    "a number that is cut": b"\x3a\xff",
    "the number of a field that is cut": field(14, ENTRY) + b"\xba",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line_and_takes_little_memory(name, tmp_path):
    """`tests/fuzz_kinds.py` has graphs that are changed at random."""
    (path := tmp_path / "graph.onnx").write_bytes(HOSTILE[name])
    tracemalloc.start()
    with pytest.raises(RequestError, match=r"graph\.onnx is damaged, or no ONNX file: ") as refused:
        metadata_of(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(refused.value) and most < 4 * MAX_METADATA
    with pytest.raises(RequestError):
        config_of_graph(path)


def test_metadata_that_no_export_has_are_refused_by_who_reads_them(tmp_path, capsys):
    path = tmp_path / "classify.onnx"
    path.write_bytes(
        field(14, field(1, b"precision") + field(2, b"half")) + field(14, field(1, b"model") + field(2, b"["))
    )
    assert metadata_of(path) == {"precision": "half", "model": "["}
    with pytest.raises(RequestError, match="is not a graph that an export has: its precision is 'half'"):
        precision_of_graph(path)
    assert main(["info", str(path)]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and "is not a graph that an export has" in told.err
    entries = (
        field(14, field(1, b"\x1b[31m") + field(2, b"\x1b[0m")),
        field(14, field(1, b"model") + field(2, b'{"\\u001b": 1}')),
    )
    path.write_bytes(b"".join(entries))
    assert main(["info", str(path)]) == 0 and "\x1b" not in capsys.readouterr().out


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as aside:
        forms = {name: form_of(path) for name, path in write_graphs(Path(aside)).items()}
    STORED.write_text(json.dumps({"format": GRAPH_FORMAT, "forms": forms}, indent=1) + "\n")
