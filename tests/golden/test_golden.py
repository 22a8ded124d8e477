"""The stored runs answer, export and look as they did when they were made, but for rounding; see README.md."""

from copy import deepcopy
from typing import Any

import pytest

from tests.golden.cases import CASES, TASKS
from tests.golden.compare import faults
from tests.golden.record import fresh_entries, parts_of, recorded
from tests.golden.stored import HERE, read, unpack

# Quick, and together they see most: each task in Python and in ONNX, variants in ONNX, translation in every format.
QUICK = {"answers", "onnx"}
QUICK_OF_TRANSLATION = {"answers", "onnx", "saved_model", "tflite", "ctranslate2"}
QUICK_OF_VARIANTS = {"onnx"}


PARTS = [
    pytest.param(name, part, marks=[] if part in quick else pytest.mark.long, id=f"{name}, {part}")
    for name in CASES
    for quick in [QUICK_OF_TRANSLATION if name == "translation" else QUICK if name in TASKS else QUICK_OF_VARIANTS]
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


def test_every_case_is_stored_whole_and_in_little_room():
    assert {path.stem for path in HERE.glob("*.json")} == {path.stem for path in HERE.glob("*.zip")} == set(CASES)
    assert all(read(name, part) for name in CASES for part in parts_of(name))
    assert all(read(name, "fresh") for name in TASKS)
    assert sum(path.stat().st_size for path in HERE.iterdir() if path.is_file()) < 1_000_000


EXPECTED = {
    "onnx | files": ["onnx/translate.onnx"],
    "onnx | translate.onnx | input source_ids": "tensor(int32) ['batch', 'source']",
    "onnx | translate.onnx target_ids | answer 0": [[[5, 4, 3], -0.5]],
    "answers | beams | answer 0": [["ba", -0.5], ["do", -0.50005], ["fi", -2.0]],
    "answers | fills | answers 0": [[[7, 0.6], [8, 0.3]], [[9, 0.9], [6, 0.05]]],
    "answers | questions | vector 0": [0.25, -0.5],
    **{f"onnx-int8 | translate-int8.onnx target_ids | answer {place}": [[[5, 4, 3], -0.5]] for place in range(2)},
    "onnx-int8 | translate-int8.onnx | nats a token": 0.2,
    **{f"tflite-int8 | classify-int8.tflite | answer {place}": [["left", 0.8], ["right", 0.2]] for place in range(3)},
    "tflite-int8 | classify-int8.tflite | vector 0": [1.0, 0.5],
}
ANSWER, BEAMS, FILLS, VECTOR, *LOW, NATS, LABEL, OTHER_LABEL, _, LOW_VECTOR = [*EXPECTED][2:]
ROUNDED: dict[str, dict[str, Any]] = {
    "a score": {ANSWER: [[[5, 4, 3], -0.50009]]},
    "near ties": {BEAMS: [["do", -0.49999], ["ba", -0.50003], ["fi", -2.0]]},
    "an id that ties with the last": {FILLS: [[[7, 0.6], [5, 0.30009]], [[9, 0.9], [6, 0.05]]]},
    "a vector": {VECTOR: [0.25009, -0.5]},
    "another translation in int8": {LOW[0]: [[[5, 3], -0.9]], NATS: 0.24},
    "one label in int8": {LABEL: [["right", 0.6], ["left", 0.4]]},
    "a vector in int8": {LOW_VECTOR: [1.1, 0.45]},
}
MISTAKES: dict[str, dict[str, Any]] = {
    "a file": {"onnx | files": ["onnx/translate.onnx", "onnx/more.onnx"]},
    "a type": {"onnx | translate.onnx | input source_ids": "tensor(int64) ['batch', 'source']"},
    "a new name": {"onnx | translate.onnx | input more": "tensor(int64) []"},
    "a score": {ANSWER: [[[5, 4, 3], -0.502]]},
    "an id": {ANSWER: [[[5, 4], -0.5]]},
    "no score": {ANSWER: [[[5, 4, 3], float("nan")]]},
    "no tie": {BEAMS: [["fi", -0.5], ["do", -0.50005], ["ba", -2.0]]},
    "an unknown text": {BEAMS: [["gu", -0.5], ["do", -0.50005], ["fi", -2.0]]},
    "fewer": {FILLS: [[[7, 0.6], [8, 0.3]]]},
    "a vector": {VECTOR: [0.2505, -0.5]},
    "a length": {VECTOR: [0.25]},
    "a costly translation in int8": {LOW[0]: [[[5, 3], -0.9]], NATS: 0.26},
    "scores in int8": {key: [[[5, 4, 3], -0.7]] for key in LOW},
    "two labels in int8": {key: [["right", 0.6], ["left", 0.4]] for key in (LABEL, OTHER_LABEL)},
    "a vector in int8": {LOW_VECTOR: [0.5, 1.0]},
}


def test_rounding_is_no_difference_and_a_mistake_is_named_with_both_values():
    for changes in ROUNDED.values():
        assert faults("case", EXPECTED, {**deepcopy(EXPECTED), **changes}) == []
    for changes in MISTAKES.values():
        [fault, *_] = faults("case", EXPECTED, {**deepcopy(EXPECTED), **changes})
        assert fault.startswith("case: ") and "expected: " in fault and "received: " in fault
        assert any(key.rpartition(" | ")[0] in fault for key in changes)
    [fault] = faults("case", {"onnx | files": ["a", "b"]}, {"onnx | files": ["b", "c"]})
    assert "onnx | files differs (gone: ['a'], new: ['c'])" in fault
    received = {key: value for key, value in EXPECTED.items() if key != ANSWER}
    assert faults("case", EXPECTED, received)[0].startswith(f"case: {ANSWER} is gone")
