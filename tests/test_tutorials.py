"""The tutorials' commands run as they are written: every block that is marked `sh`, in the order of its page.

A command `keras-transformer` stands in for the real one. It adds to `train` the flags of a small model and few steps,
and hands on everything else. Where a page makes text, it makes less here.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.importing.theirs import write_marian
from tests.processes import ROOT
from tests.tiny_text import lines

SMALL = (
    "--num-layers 1 --hidden-dim 16 --intermediate-dim 24 --num-heads 2 --vocabulary-size 100 --token-budget 512 "
    "--steps 6 --warmup-steps 2 --checkpoint-every 3 --average-last 2 --bleu-sentences 2 --threads 1"
)
LESS = {"20_500": "620", "[500:]": "[20:]", "[:500]": "[:20]"}
PYTHON = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
COMMAND = f"""#!/bin/sh
[ "$1" = train ] && set -- "$@" {SMALL}
exec {sys.executable} -m keras_transformer "$@"
"""


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder with the model and the sentences that a reader is asked to bring."""
    (tmp_path / "bin").mkdir()
    for name, text in {"keras-transformer": COMMAND, "python": PYTHON}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    for language, seed in {"en": 5, "de": 6}.items():
        (tmp_path / f"valid.{language}").write_text("".join(f"{line}\n" for line in lines(seed, 12)), encoding="utf-8")
    write_marian(tmp_path / "opus-mt-en-de")
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "made"),
    [
        ("start", ["runs/mine/model.keras", "look.html"]),
        ("fine_tuning", ["runs/tuned/model.keras"]),
        ("opus_to_phone", ["exported/opus/tflite/translate-int8.tflite"]),
    ],
)
def test_the_commands_of_a_tutorial(page, made, place):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    script = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    for more, less in LESS.items():
        script = script.replace(more, less)
    environment = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert all((place / name).exists() for name in made)
