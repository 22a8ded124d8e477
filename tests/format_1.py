"""A pytest plugin: a run that version 0.1 wrote, and what that version made of it."""

import shutil
from pathlib import Path

import pytest

ARCHIVE = Path(__file__).resolve().parent / "data" / "format_1.zip"


@pytest.fixture
def format_1(tmp_path) -> Path:
    """A folder with `run`, its text, and what version 0.1 made of it.

    `translations.txt` is what `translate run --n-best 2` printed for `lines.txt`; `resumed.npz` holds the arrays of
    model.keras, "|" for "/" in their names, after `train.py --resume --out run --steps 12`.
    """
    folder = tmp_path / "format_1"
    shutil.unpack_archive(ARCHIVE, folder)
    (folder / "lines.txt").write_text("ba do fi\ngu ka\n")
    return folder
