"""Compares the command `translate` with CTranslate2 and SentencePiece: from a cold start, text in and text out.

    python -m benchmarks.translate RUN --text train.en.gz

Both sides are processes that start, load the same weights, translate the first lines of the text, and end. Each side
has the settings that are best for it: CTranslate2 uses its cores side by side or for one batch, whichever is faster
for this number of lines. They take turns. The command prints a Markdown table with a row for each precision and number
of lines: our seconds, and how many times longer CTranslate2 took (the median of the rounds, with quartiles). It needs
the extra `bench`, or `pip install ctranslate2`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from benchmarks.contest import at_least_one, in_process, print_head, print_row, ratio, rounds
from keras_transformer.core.errors import JobError, exit_status
from keras_transformer.text.lines import read_lines

# With beams, CTranslate2 finishes fewer hypotheses (see `benchmarks.decode`), and int8 rounds differently on each side.
MIN_IDENTICAL = {"float32": 0.9, "int8": 0.5}


class Command(NamedTuple):
    """Translates a file in a process, as a contender.

    Args:
        arguments: of the process.
        source: the file.
    """

    arguments: list[str]
    source: Path

    def translations(self) -> list[str]:
        """Returns what the process wrote.

        Raises:
            JobError: the process failed.
        """
        with self.source.open("rb") as lines:
            done = subprocess.run(self.arguments, stdin=lines, capture_output=True, check=False)
        if done.returncode:
            raise JobError(f"{self.arguments[:4]} failed: {done.stderr.decode(errors='replace').strip()[-500:]}")
        return done.stdout.decode().split("\n")[:-1]

    def work(self) -> float:
        """Returns the seconds that it takes."""
        start = time.perf_counter()
        self.translations()
        return time.perf_counter() - start


def main(arguments: list[str] | None = None) -> None:
    """Prints the table.

    Raises:
        RequestError: there is no such run, or CTranslate2 cannot hold its model.
        JobError: a command failed, or the translations differ.
    """
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        in_process(prepare, folder, options.run)
        print_head(["precision", "lines", "our seconds", "CTranslate2: times longer", "its settings", "same"])
        for precision in options.precision:
            for count in options.lines:
                source = folder / f"{count}.txt"
                lines = islice(read_lines(options.text), count)
                source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
                print_row(contest(folder, source, precision, count, options))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a trained run with a joint vocabulary")
    parser.add_argument("--text", required=True, help="text to translate, plain or .gz")
    parser.add_argument("--lines", nargs="+", type=at_least_one, default=[1, 100, 1_000, 10_000])
    parser.add_argument("--precision", nargs="+", choices=("float32", "int8"), default=["float32", "int8"])
    parser.add_argument("--beams", type=at_least_one, default=4)
    parser.add_argument("--threads", type=at_least_one, default=2, help="cores that each side may use (default: 2)")
    parser.add_argument("--rounds", type=at_least_one, default=5)
    return parser.parse_args(arguments)


def prepare(folder: Path, run: str) -> None:
    """Writes the run's weights for CTranslate2, in float32 and in int8, and its vocabulary."""
    from benchmarks.prepare import joint_tokenizer
    from export.artefacts import open_run
    from export.ctranslate2 import write_model

    trained = open_run(run)
    joint_tokenizer(trained).save(folder / "tokenizer.model")
    for precision in ("float32", "int8"):
        (folder / precision).mkdir()
        write_model(trained, folder / precision, precision)


def contest(folder: Path, source: Path, precision: str, count: int, options: argparse.Namespace) -> list[str]:
    """Measures one row of the table.

    Raises:
        JobError: a command failed, or the translations differ.
    """
    search = ["--beams", str(options.beams), "--length-penalty", "0", "--precision", precision]
    command = [sys.executable, "-m", "keras_transformer", "translate", options.run, *search]
    ours = Command([*command, "--threads", str(options.threads)], source)
    program = [sys.executable, "-m", "benchmarks.ctranslate2_command", str(folder / precision)]
    program += [str(folder / "tokenizer.model"), precision, str(options.beams)]
    theirs = {
        f"{inter} × {intra}": Command([*program, str(inter), str(intra)], source)
        for inter, intra in dict.fromkeys([(options.threads, 1), (1, options.threads)])
    }
    expected, given = ours.translations(), [other.translations() for other in theirs.values()]
    identical = sum(map(str.__eq__, expected, given[0])) / len(expected)
    if len(expected) != len(given[0]) or (count > 1 and identical < MIN_IDENTICAL[precision]):
        raise JobError(f"expected the translations of CTranslate2; {identical:.0%} of {len(expected)} are the same")
    seconds = rounds({"ours": ours, **theirs}, options.rounds)
    best = min(theirs, key=lambda name: statistics.median(seconds[name]))
    median = f"{statistics.median(seconds['ours']):.2f}"
    return [precision, f"{count:,}", median, str(ratio(seconds[best], seconds["ours"])), best, f"{identical:.0%}"]


if __name__ == "__main__":
    sys.exit(exit_status(main))
