"""Copying characters that no training text holds: with byte fallback they come through a model that never saw them.

    python -m benchmarks.copying --out runs/copying
    python -m benchmarks.copying --out runs/copying -- --steps 4000

The source and the target of a line are the same: English words, and among them strings of rare characters. In training
these are letters and signs of almost all scripts, each in one line, so none is a piece of the vocabulary: the model
learns to copy their bytes. The characters of the test, emoji, kanji and three scripts, are not among them. `train.py`
learns to translate these lines into themselves, with the flags after `--`. The command prints a Markdown table with a
row for each kind of test line: how many lines greedy search copies exactly, and the processor's minutes of training.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.contest import at_least_one, in_process, print_head, print_row
from keras_transformer.core.errors import JobError, exit_status
from keras_transformer.tasks.language_modelling.corpus import named_text

FLAGS = (
    "--byte-fallback --vocabulary-size 1000 --num-layers 2 --hidden-dim 128 --intermediate-dim 512 --num-heads 4 "
    "--positions sinusoidal --residual pre_norm --norm layer --dropout 0 --label-smoothing 0 --token-budget 4096 "
    "--steps 2000 --warmup-steps 500 "
    "--checkpoint-every 500 --bleu-sentences 0 --threads 1"
)
BLOCK = 128  # characters that are close by form words
SEED = 1


def signs(first: int, last: int) -> list[str]:
    """The letters, marks, numbers and symbols from one code point to another."""
    return [char for char in map(chr, range(first, last + 1)) if unicodedata.category(char)[0] in "LMNS"]


KANJI, EMOJI = signs(0x4E00, 0x9FFF)[::8], signs(0x1F300, 0x1FAFF)[::4]
# Each kind of test line: its characters, and the fewest and the most of a string.
KINDS = {
    "emoji": (EMOJI, 1, 3),
    "kanji": (KANJI, 2, 4),
    "Georgian": (signs(0x10A0, 0x10FF), 3, 8),
    "Cherokee": (signs(0x13A0, 0x13FF), 3, 8),
    "Tamil": (signs(0x0B80, 0x0BFF), 3, 8),
}


def main(arguments: list[str] | None = None) -> None:
    """Prints the table.

    Raises:
        JobError: the training failed.
    """
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(options.out or name)
        folder.mkdir(parents=True, exist_ok=True)
        draw = random.Random(SEED)
        text = " ".join(named_text("pydoc-topics").train())
        words = sorted({*re.findall(r"(?<![\\\w])[a-z]+\b", text)})
        tests = {kind: test_lines(draw, words, options.test_lines, *KINDS[kind]) for kind in KINDS}
        if not (folder / "run").is_dir():
            (folder / "train.txt").write_text("".join(training_lines(draw, words, options.lines)), encoding="utf-8")
            train(folder, options.flags)
        minutes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime / 60
        exact = dict(zip(tests, in_process(num_exact, folder / "run", list(tests.values())), strict=True))
    print_head(["characters", "lines", "exact", "share", "processor minutes"])
    for kind, count in exact.items():
        print_row([kind, options.test_lines, count, f"{count / options.test_lines:.1%}", ""])
    whole, right = options.test_lines * len(exact), sum(exact.values())
    print_row(["all", whole, right, f"{right / whole:.1%}", f"{minutes:.0f}"])


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--lines", type=at_least_one, default=20_000, help="lines of training (default: 20000)")
    add("--test-lines", type=at_least_one, default=200, help="lines of each kind (default: 200)")
    add("--out", help="where to keep text and run; a run that is there is measured, and not trained")
    add("flags", nargs="*", help="further flags of train.py, after --")
    return parser.parse_args(arguments)


def training_lines(draw: random.Random, words: Sequence[str], count: int) -> list[str]:
    """Lines with rare characters of all blocks but those of the test."""
    unseen = {char for chars, _, _ in KINDS.values() for char in chars}
    blocks: dict[int, list[str]] = {}
    for char in signs(0x250, 0x3FFFF):
        if char not in unseen:
            blocks.setdefault(ord(char) // BLOCK, []).append(char)
    for chars in blocks.values():
        draw.shuffle(chars)

    def string() -> str:
        chars = blocks[place := draw.choice([*blocks])]
        drawn = [chars.pop() for _ in range(min(draw.randint(1, 8), len(chars)))]
        if not chars:
            del blocks[place]
        return "".join(drawn)

    return [line(draw, words, lambda: string() if blocks else "") for _ in range(count)]


def test_lines(draw: random.Random, words: Sequence[str], count: int, chars: list[str], *lengths: int) -> list[str]:
    """Lines with strings of these characters."""
    string = lambda: "".join(draw.choices(chars, k=draw.randint(*lengths)))  # noqa: E731
    return [line(draw, words, string).rstrip("\n") for _ in range(count)]


def line(draw: random.Random, words: Sequence[str], string: Callable[[], str]) -> str:
    """A line of words, and one or two strings among them."""
    parts = draw.choices(words, k=draw.randint(2, 7))
    for _ in range(draw.randint(1, 2)):
        parts.insert(draw.randrange(len(parts) + 1), string())
    return " ".join(filter(None, parts)) + "\n"


def train(folder: Path, flags: Sequence[str]) -> None:
    """Trains a run in the folder on its text.

    Raises:
        JobError: the training failed.
    """
    text = str(folder / "train.txt")
    files = ["--source", text, "--target", text, "--out", str(folder / "run")]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, str(root / "train.py"), *files, *FLAGS.split(), *flags])
    if done.returncode:
        raise JobError(f"train.py ended with exit status {done.returncode}")


def num_exact(run: Path, tests: list[list[str]]) -> list[int]:
    """How many lines of each test the run copies exactly."""
    import keras_transformer

    translator = keras_transformer.load(run)
    return [
        sum(line == copy for line, copy in zip(lines, translator.translate(lines, num_beams=1), strict=True))
        for lines in tests
    ]


if __name__ == "__main__":
    sys.exit(exit_status(main))
