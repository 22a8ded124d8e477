"""Notebooks run from top to bottom, define nothing, and are committed with what they printed, and no more."""

import ast
import os
import re
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAX_BYTES = 300_000
# What makes a notebook quick to run: a cell after the one that is tagged "parameters", as papermill puts it.
SHORTER = {
    "attention_step_by_step": "STEPS = 2",
    "fine_tune": "STEPS, MORE_STEPS, TESTS = 2, 2, 2",
    "the_family": "STEPS, TESTS, SWAPS = 10, 2, {'positions': ['none']}",
    "train_with_model_fit": "EPOCHS, PAIRS, HELD_OUT = 1, 1_500, 2\n"
    "from keras_transformer.text import number_words\nnumber_words.SAMPLED, number_words.HELD_OUT = 2_000, 1_000",
    "export_and_serve": "STEPS, LINES, BEAMS, PRECISIONS = 2, 2, [4], 'float32'",
    "word_vectors": "EPOCHS, STEPS, DRAWS = 2, 2, 1",
}
LEFT = {"train_with_model_fit": ["number-words"]}  # in the folder where they ran


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook: nbformat.NotebookNode) -> str:
    """What the cells printed, on either stream, and the text of their results."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return "\n".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request) -> Path:
    return request.param


@pytest.fixture
def committed(path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def shortened(notebook: nbformat.NotebookNode, parameters: str) -> nbformat.NotebookNode:
    """The notebook with other values of its parameters."""
    (place,) = [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", [])]
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(parameters))
    return notebook


LONG_BUT_ONE = [
    pytest.param(path, marks=[] if path.stem == "train_with_model_fit" else pytest.mark.long, id=path.stem)
    for path in NOTEBOOKS
]


@pytest.mark.parametrize("path", LONG_BUT_ONE, indirect=True)
def test_it_runs_from_top_to_bottom(path, committed, tmp_path, monkeypatch):
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):
        folder = tmp_path / variable.lower()
        folder.mkdir()
        monkeypatch.setenv(variable, str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    # Where tqdm is installed, as it is with KerasHub, it misses a widget that nothing here uses.
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:IProgress not found")
    work = tmp_path / "work"
    work.mkdir()
    # The kernel of this name is this interpreter's own; it fails at the first cell that raises.
    notebook = shortened(committed, SHORTER[path.stem])
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(work)}})
    run = client.execute()
    assert [cell.execution_count for cell in code_cells(run)] == list(range(1, len(code_cells(run)) + 1))
    assert not re.search(r"(?<!le)arning", printed(run))  # neither Warning nor warning
    assert [entry.name for entry in work.iterdir()] == LEFT.get(path.stem, [])
    assert_what_holds_of_any_run("\n".join(cell.source for cell in code_cells(run)), printed(run))


def assert_what_holds_of_any_run(source: str, told: str) -> None:
    """What does not depend on how long a model has been trained; `test_notebook_claims` knows what does."""
    assert not re.search(r"^False$", told, re.MULTILINE)
    if "again.translate(" in source:
        assert re.search(r"^True$", told, re.MULTILINE), "a run that was saved and loaded translates as before"
    if "tf.saved_model.load" in source:
        lines = re.findall(r"^(SavedModel|ONNX|TFLite|Keras) +(\[.*\])$", told, re.MULTILINE)
        assert [name for name, _ in lines] == ["SavedModel", "ONNX", "TFLite", "Keras"]
        assert all(translations.endswith("'']") for _, translations in lines), "a blank line stays blank"
        assert re.search(r"^exit status [01]$", told, re.MULTILINE), "done, or not every artefact holds"


def test_it_defines_nothing(committed):
    for cell in code_cells(committed):
        python = re.sub(r"(?m)^( *)%.*$", r"\1pass", cell.source)  # without IPython's own lines
        defined = [node for node in ast.walk(ast.parse(python)) if hasattr(node, "body") and hasattr(node, "name")]
        assert not defined, cell.source


def test_its_first_cell_installs_the_package_where_it_is_missing(committed):
    first = code_cells(committed)[0]
    lines = first.source.splitlines()
    assert lines[2].startswith('if find_spec("keras_transformer") is None:') and not first.outputs
    [extras] = re.findall(r"^    %pip install -q (?:\.\.|'\.\.\[([\w,]+)\]')$", lines[3])
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {*filter(None, extras.split(","))} <= known.keys()


def test_it_is_committed_as_it_ran_and_tells_nothing_of_the_machine(committed):
    cells = code_cells(committed)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert sum(bool(cell.outputs) for cell in cells) > len(cells[1:]) / 2  # the first cell installs
    assert not [output for cell in cells for output in cell.outputs if output.get("name") == "stderr"]
    text = nbformat.writes(committed)
    assert len(text) < MAX_BYTES
    for trace in ("/home/", "/Users/", "/tmp/", "/root/", "site-packages", str(ROOT), str(Path.home())):
        assert trace not in text
    assert "arning:" not in printed(committed)


def test_the_notebook_for_fit_needs_five_import_lines():
    notebook = nbformat.read(ROOT / "notebooks" / "train_with_model_fit.ipynb", as_version=4)
    lines = "\n".join(cell.source for cell in code_cells(notebook)[1:]).splitlines()  # after the cell that installs
    assert len([line for line in lines if line.startswith(("import ", "from "))]) <= 5
