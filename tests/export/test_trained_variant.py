"""A variant with several parts other than the defaults: the commands train it, export it and certify every artefact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from export.artefacts import KINDS
from export.signatures import NO_SUCH_PRECISION, PRECISIONS
from tests.tiny_corpus import tiny_flags

pytestmark = [pytest.mark.matrix, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
PARTS = """--residual sub_norm --norm rms --feed-forward gated --activation silu --positions rotary
    --attention full:num_key_value_heads=1"""
TRAINING = "--steps 200 --warmup-steps 40 --hidden-dim 32 --intermediate-dim 48 --max-source-length 40"
EXPORT = "--format saved_model onnx tflite --precision float32 float16 int8 --beams 2 --max-length 16"


def command(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_every_artefact_of_a_trained_variant_holds(tmp_path):
    command(
        tmp_path, "keras_transformer", "train", *tiny_flags(tmp_path, tmp_path / "run"), *f"{PARTS} {TRAINING}".split()
    )
    command(tmp_path, "export", "run", "--out", "exported", *EXPORT.split())
    certificate = json.loads((tmp_path / "exported" / "certificate.json").read_text(encoding="utf-8"))
    entries = certificate["entries"]
    kinds = [kind for kind in KINDS if kind.format in EXPORT.split()]  # CTranslate2 has no norm inside a sub-layer
    expected = {(kind.format, kind.takes, precision) for kind in kinds for precision in PRECISIONS}
    expected -= {each for each in expected if (each[0], each[2]) in NO_SUCH_PRECISION}
    assert {(entry["format"], entry["takes"], entry["precision"]) for entry in entries} == expected
    assert {entry["name"]: entry["reason"] for entry in entries if not entry["holds"]} == {}
    assert {entry["verified"] for entry in entries} == {"translations"}
    assert min(entry["judgement"]["measured"]["model_bleu"] for entry in entries) > 5, "a loss of BLEU can be seen"
