"""The programs of BUILD.md run as they are written there, and translate as the model does; its bounds are those of the
certificate.
"""

import re
import subprocess
import sys

import pytest

from keras_transformer.runs.export_folder import BOUNDS, Bounds
from tests.export.conftest import SEARCH
from tests.processes import ROOT

BUILD = (ROOT / "BUILD.md").read_text(encoding="utf-8")
SECTION = BUILD.split("## Run what was exported\n")[1].split("\n## ")[0]
PROGRAMS = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
FILES = "saved_model translate_text.onnx translate.onnx step.onnx translate.tflite translate_text.tflite ctranslate2"


@pytest.mark.parametrize(
    ("file", "program"),
    [
        pytest.param(file, program, id=file, marks=[pytest.mark.long] * (file == "saved_model"))
        for file, program in zip(FILES.split(), PROGRAMS, strict=True)
    ],
)
def test_every_artefact_has_a_short_program_that_runs_as_written(
    file, program, exported, trained, tmp_path, monkeypatch, capsys
):
    assert file in program and "keras_transformer" not in program and len(program.splitlines()) < 25
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "demo").symlink_to(exported)
    if file == "translate_text.onnx":  # beside TensorFlow its operators may end the process
        (tmp_path / "program.py").write_text(program)
        command = [sys.executable, "-I", "-W", "ignore", "program.py"]
        printed = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True).stdout
    else:
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()  # what was printed when the fixtures were made
        exec(compile(program, file, "exec"), {"__name__": "__main__"})
        printed = capsys.readouterr().out
    if file == "step.onnx":  # greedy, without the limit that was baked into the others
        assert printed.rstrip("\n") == trained.pipeline.translate(["forty-two"], num_beams=1)[0]
    else:
        (best,) = trained.pipeline.n_best(["forty-two"], **SEARCH)[0]
        text, score = printed.rstrip("\n").rsplit(" ", 1)
        assert (text, float(score)) == (best.text, pytest.approx(best.score, abs=1e-4))


def test_the_table_of_bounds_is_the_certificates():
    """A bound that does not count in a precision stands in no cell."""
    rows = [[cell.strip("` ") for cell in row.strip("|").split("|")] for row in BUILD.splitlines() if row[:3] == "| `"]
    table = {name: cells[1:] for name, *cells in rows if name in Bounds._fields and len(cells) == 4}
    assert [*table] == [*Bounds._fields]
    empty = {(name, place) for name, cells in table.items() for place, cell in enumerate(cells) if not cell}
    assert empty == {("identical", 1), ("identical", 2), ("mean_choice", 0), ("bleu", 0)}
    for place, bounds in enumerate(BOUNDS.values()):
        found = {name: float(cells[place]) for name, cells in table.items() if cells[place]}
        assert found == {name: getattr(bounds, name) for name in found}
