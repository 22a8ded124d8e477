"""The figures of sacreBLEU's own command: an oracle that knows which text is the reference."""

import json
import re
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


# Of the same references.
OTHER_TRANSLATIONS = [
    "The cat sat on a red mat today, said the man.",
    "A dog ran along the long beach and the river.",
    "Two small dogs sat in the garden.",
    "One, then, of a few.",
]


def sacrebleu_command(folder: Path, texts: Sequence[str], references: Sequence[str]) -> tuple[float, float]:
    """BLEU and chrF to six digits, by `python -m sacrebleu`."""
    bleu, chrf = json.loads(_output(folder, [texts], references, "-b"))
    return bleu, chrf


def paired_bootstrap_command(
    folder: Path, systems: Sequence[Sequence[str]], references: Sequence[str], tokenize: str
) -> list[list[float]]:
    """What `python -m sacrebleu --paired-bs` prints of each system: score, mean, interval and p-value of BLEU, then of
    chrF. The first system has no p-values."""
    table = _output(folder, systems, references, f"--paired-bs --tokenize {tokenize} --format latex")
    rows = [line for line in table.splitlines() if "±" in line and "CI" not in line]
    return [[float(figure) for figure in re.findall(r"\d+\.\d+", row)] for row in rows]


def _output(folder: Path, systems: Sequence[Sequence[str]], references: Sequence[str], options: str) -> str:
    paths = [folder / name for name in ("references", *(f"system-{place}" for place, _ in enumerate(systems, 1)))]
    for path, lines in zip(paths, (references, *systems), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = f"{paths[0]} -i {' '.join(map(str, paths[1:]))}"
    command = f"{sys.executable} -m sacrebleu {files} -m bleu chrf {options} -w 6"
    return subprocess.run(shlex.split(command), capture_output=True, text=True, check=True, timeout=60).stdout
