"""The figures of sacreBLEU's own command: an oracle that knows which text is the reference."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Translations that are shorter than their references: the figures differ if the two are swapped.
TRANSLATIONS = [
    "The cat sat on the mat today.",
    "A dog ran along the beach, quickly.",
    "Two dogs sat on the mat.",
    "One.",
]
REFERENCES = [
    "The cat sat on the red mat early today, said the old man.",
    "A dog ran along the long beach, quickly, and then it ran along the river.",
    "Two small dogs sat on the mat in the garden.",
    "One, then, of many.",
]


def sacrebleu_command(folder: Path, texts: Sequence[str], references: Sequence[str]) -> tuple[float, float]:
    """BLEU and chrF to six digits, by `python -m sacrebleu`."""
    paths = {"texts": folder / "texts", "references": folder / "references"}
    for name, lines in {"texts": texts, "references": references}.items():
        paths[name].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = f"{sys.executable} -m sacrebleu {paths['references']} -i {paths['texts']} -m bleu chrf -b -w 6"
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True, timeout=60)
    bleu, chrf = json.loads(done.stdout)
    return bleu, chrf
