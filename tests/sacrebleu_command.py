"""The figures of sacreBLEU's own command: an oracle that knows which text is the reference."""

import re
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


def paired_bootstrap_command(
    folder: Path, systems: Sequence[Sequence[str]], references: Sequence[str], tokenize: str
) -> list[list[float]]:
    """What `python -m sacrebleu --paired-bs` prints of each system: score, mean, interval and p-value of BLEU, then of
    chrF. The first system has no p-values."""
    paths = [folder / name for name in ("references", *(f"system-{place}" for place, _ in enumerate(systems, 1)))]
    for path, lines in zip(paths, (references, *systems), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = f"-m bleu chrf --paired-bs --tokenize {tokenize} --format latex -w 6"
    command = [sys.executable, "-m", "sacrebleu", str(paths[0]), "-i", *map(str, paths[1:]), *options.split()]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = [line for line in table.splitlines() if "±" in line and "CI" not in line]
    return [[float(figure) for figure in re.findall(r"\d+\.\d+", row)] for row in rows]
