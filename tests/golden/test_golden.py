"""The stored runs answer, export and look as they did when they were made, but for rounding; see README.md."""

import json
import zipfile
from typing import Any

import pytest

from keras_transformer import load
from keras_transformer.models.model_factory import make_model
from keras_transformer.runs.run_folder import FORMAT, RunFolder, read_config, save_model
from tests.golden.cases import CASES, TASKS, write_files
from tests.golden.compare import faults
from tests.golden.record import fresh_entries, parts_of, recorded
from tests.golden.stored import FROZEN, HERE, arrays_of, read, unpack
from tests.training.runs import trained as train_here


def is_quick(name: str, part: str) -> bool:
    """Together these see most: each task in Python, variants in ONNX, translation in every format."""
    if name in TASKS:
        return part == "answers" or (name == "translation" and "-" not in part)
    return part == "onnx"


PARTS = [
    pytest.param(name, part, marks=[] if is_quick(name, part) else pytest.mark.long, id=f"{name}, {part}")
    for name in CASES
    for part in parts_of(name)
]


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_stored_run_answers_and_exports_as_it_did(name, part, tmp_path):
    received = recorded(name, unpack(name, tmp_path / "run"), part, tmp_path / "export")
    found = faults(name, read(name, part), received)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", TASKS)
def test_a_new_run_has_the_files_and_the_configuration_that_it_had(name, tmp_path):
    found = faults(name, read(name, "fresh"), fresh_entries(name, tmp_path))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", CASES)
def test_a_model_has_the_arrays_that_runs_of_this_format_store(name, tmp_path):
    run = unpack(name, tmp_path / "run")
    save_model(RunFolder(tmp_path), make_model(read_config(run).model))
    assert arrays_of(tmp_path) == arrays_of(run), (
        f"model.keras of format {FORMAT} holds other arrays than today's code writes: give FORMAT in run_folder.py "
        "another number, and do what docs/CONTRIBUTING.md says under 'Change what a run stores'"
    )


ARCHIVES = sorted(FROZEN.glob("run-format-*.zip"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=[path.stem for path in ARCHIVES])
def test_a_run_that_an_older_version_wrote_answers_as_it_did_and_goes_on(archive, tmp_path):
    assert FROZEN / f"run-format-{FORMAT}.zip" in ARCHIVES and archive.stat().st_size < 60_000
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path)
    write_files("modern", tmp_path)
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert load(tmp_path / "run", engine="keras").translate([*answers]) == [*answers.values()]
    said = train_here(tmp_path, "--resume --out run --steps 303")
    assert "resuming at step 300\n" in said and "older checkpoint" not in said and "wrote run/model.keras" in said


def test_every_case_is_stored_whole_and_in_little_room():
    assert {path.stem for path in HERE.glob("*.json")} == {path.stem for path in HERE.glob("*.zip")} == set(CASES)
    assert all(read(name, part) for name in CASES for part in parts_of(name))
    assert all(read(name, "fresh") for name in TASKS)
    assert sum(path.stat().st_size for path in HERE.iterdir() if path.is_file()) < 1_000_000


EXPECTED = {
    "onnx | files": ["onnx/translate.onnx"],
    "onnx | ids | answer 0": [[[5, 4, 3], -0.5]],
    "answers | beams | answer 0": [["ba", -0.5], ["do", -0.50005], ["fi", -2.0]],
    "answers | fills | answers 0": [[[7, 0.6], [8, 0.3]], [[9, 0.9], [6, 0.05]]],
    "answers | questions | vector 0": [0.25, -0.5],
    "onnx-int8 | ids | answer 0": [[[5, 4, 3], -0.5]],
    "onnx-int8 | ids | answer 1": [[[5, 4, 3], -0.5]],
    "onnx-int8 | ids | nats a token": 0.2,
    "tflite-int8 | label | answer 0": [["left", 0.8], ["right", 0.2]],
    "tflite-int8 | label | answer 1": [["left", 0.8], ["right", 0.2]],
}
FILES, ANSWER, BEAMS, FILLS, VECTOR, LOW, OTHER_LOW, NATS, LABEL, OTHER_LABEL = EXPECTED
ROUNDED: list[dict[str, Any]] = [
    {ANSWER: [[[5, 4, 3], -0.50009]], VECTOR: [0.25009, -0.5]},
    {BEAMS: [["do", -0.49999], ["ba", -0.50003], ["fi", -2.0]]},  # near ties
    {FILLS: [[[7, 0.6], [5, 0.30009]], [[9, 0.9], [6, 0.05]]]},  # an id that ties with the last
    {LOW: [[[5, 3], -0.9]], NATS: 0.24, LABEL: [["right", 0.6], ["left", 0.4]]},  # one other answer in int8
]
MISTAKES: list[dict[str, Any]] = [
    {FILES: ["onnx/translate.onnx", "onnx/more.onnx"]},
    {"onnx | input more": "tensor(int64) []"},
    {ANSWER: [[[5, 4, 3], -0.502]]},
    {ANSWER: [[[5, 4], -0.5]]},
    {ANSWER: [[[5, 4, 3], float("nan")]]},
    {BEAMS: [["fi", -0.5], ["do", -0.50005], ["ba", -2.0]]},  # no tie
    {FILLS: [[[7, 0.6], [8, 0.3]]]},
    {VECTOR: [0.2505, -0.5]},
    {VECTOR: [0.25]},
    {LOW: [[[5, 3], -0.9]], NATS: 0.26},  # a costly translation in int8
    {key: [[[5, 4, 3], -0.7]] for key in (LOW, OTHER_LOW)},
    {key: [["right", 0.6], ["left", 0.4]] for key in (LABEL, OTHER_LABEL)},
]


def test_rounding_is_no_difference_and_a_mistake_is_named_with_both_values():
    for changes in ROUNDED:
        assert faults("case", EXPECTED, EXPECTED | changes) == []
    for changes in MISTAKES:
        [fault, *_] = faults("case", EXPECTED, EXPECTED | changes)
        assert fault.startswith("case: ") and "expected: " in fault and "received: " in fault
        assert any(key.rpartition(" | ")[0] in fault for key in changes)
    assert faults("case", EXPECTED, {FILES: EXPECTED[FILES]})[0].startswith(f"case: {ANSWER} differs")
