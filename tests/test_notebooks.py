"""Notebooks run from top to bottom, define nothing, and are committed as they ran."""

import ast
import os
import re
import tomllib

import nbformat
import pytest
from nbclient import NotebookClient

from tests.processes import ROOT

NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
# What makes a notebook quick to run: a cell after the one that is tagged "parameters", as papermill puts it.
SHORTER = {
    "attention_step_by_step": "STEPS = 2",
    "fine_tune": "STEPS, MORE_STEPS, TESTS = 2, 2, 2",
    "the_family": "STEPS, TESTS, SWAPS = 10, 2, {'positions': ['none']}",
    "train_with_model_fit": "EPOCHS, PAIRS, HELD_OUT = 1, 1_500, 2\n"
    "from keras_transformer.text import named_corpora\nnamed_corpora.SAMPLED, named_corpora.HELD_OUT = 2_000, 1_000",
    "export_and_serve": "STEPS, LINES, BEAMS, PRECISIONS = 2, 2, [4], 'float32'",
    "word_vectors": "EPOCHS, STEPS, DRAWS = 2, 2, 1",
}
LEFT = {"train_with_model_fit": ["number-words"]}  # in the folder where they ran
OF_EVERY_RUNTIME = re.compile(r"^(SavedModel|ONNX|TFLite|Keras) +(\[.*\])$", re.MULTILINE)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook: nbformat.NotebookNode) -> str:
    """What the cells printed, their results, and the tables that they show."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    shown = [output.get("data", {}) for output in outputs]
    texts = [output.get("text", "") for output in outputs]
    return "\n".join([*texts, *(data.get(kind, "") for data in shown for kind in ("text/plain", "text/markdown"))])


@pytest.fixture(params=NOTEBOOKS)
def name(request) -> str:
    return request.param


@pytest.fixture
def committed(name) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS[name], as_version=4)


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS, indirect=True)
def test_it_runs_from_top_to_bottom(name, committed, tmp_path, monkeypatch):
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):
        folder = tmp_path / variable.lower()
        folder.mkdir()
        monkeypatch.setenv(variable, str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    # Where tqdm is installed, as it is with KerasHub, it misses a widget that nothing here uses.
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:IProgress not found")
    work = tmp_path / "work"
    work.mkdir()
    (place,) = [i for i, cell in enumerate(committed.cells) if "parameters" in cell.metadata.get("tags", [])]
    committed.cells.insert(place + 1, nbformat.v4.new_code_cell(SHORTER[name]))
    # The kernel of this name is this interpreter's own; it fails at the first cell that raises.
    resources = {"metadata": {"path": str(work)}}
    run = NotebookClient(committed, timeout=600, kernel_name="python3", resources=resources).execute()
    told = printed(run)
    assert not re.search(r"(?<!le)arning", told)  # neither Warning nor warning
    assert [entry.name for entry in work.iterdir()] == LEFT.get(name, [])
    assert not re.search(r"^False$", told, re.MULTILINE)
    if name == "train_with_model_fit":
        assert re.search(r"^True$", told, re.MULTILINE), "a run that was saved and loaded translates as before"
    if name == "export_and_serve":
        translations = [translations for _, translations in OF_EVERY_RUNTIME.findall(told)]
        assert len(translations) == 4 and all(some.endswith("'']") for some in translations), "a blank line stays blank"


def test_it_defines_nothing_and_first_installs_the_package_where_it_is_missing(committed):
    python = "\n".join(re.sub(r"(?m)^( *)%.*$", r"\1pass", cell.source) for cell in code_cells(committed))
    assert not [node for node in ast.walk(ast.parse(python)) if hasattr(node, "body") and hasattr(node, "name")]
    lines = code_cells(committed)[0].source.splitlines()
    assert lines[2].startswith('if find_spec("keras_transformer") is None:')
    [extras] = re.findall(r"^    %pip install -q (?:\.\.|'\.\.\[([\w,]+)\]')$", lines[3])
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {*filter(None, extras.split(","))} <= known.keys()


def test_it_is_committed_as_it_ran_and_tells_nothing_of_the_machine(committed):
    cells = code_cells(committed)
    outputs = [output for cell in cells for output in cell.outputs]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    text = nbformat.writes(committed)
    assert len(text) < 300_000
    assert not re.search(r"/home/|/Users/|/tmp/|/root/|site-packages|arning:", text)
