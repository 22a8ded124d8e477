"""`python -m tests.golden.make [CASE …]` records anew what is expected of the stored runs; see README.md.

With --train it first trains the runs anew.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from export.artefacts import open_run
from export.certificate.comparison import expected_of
from keras_transformer.runs.run_folder import versions
from keras_transformer.text.sentences import Texts
from tests.golden.cases import CASES, TASKS, task_of
from tests.golden.compare import TOLERANCE, is_low, is_same, low_faults
from tests.golden.record import fresh_entries, parts_of, questions_of, recorded, searches_of
from tests.golden.stored import HERE, Entries, freeze, pack, read, trained, unpack, write


def main(argv: list[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.make", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"all of {', '.join(CASES)} by default")
    parser.add_argument("--train", action="store_true", help="train the runs anew, in place of those that are stored")
    parser.add_argument("--freeze", action="store_true", help="write a run of a new format into tests/data, once")
    arguments = parser.parse_args(argv)
    if arguments.freeze:
        with tempfile.TemporaryDirectory() as folder:
            freeze(Path(folder))
    for name in arguments.cases or (CASES if not arguments.freeze else []):
        with tempfile.TemporaryDirectory() as folder:
            make(name, Path(folder), arguments.train)


def make(name: str, folder: Path, train_anew: bool) -> None:
    """Makes the files of a case; `folder` is for what is not kept."""
    if train_anew or not (HERE / f"{name}.zip").is_file():
        (folder / "trained").mkdir()
        pack(name, trained(name, folder / "trained"))
    run = unpack(name, folder / "stored")
    refuse_near_ties(name, run)
    stored = {} if train_anew else read(name)
    entries: Entries = {f"made | {key}": stored.get(f"made | {key}", value) for key, value in made_by().items()}
    if name in TASKS:
        (folder / "fresh").mkdir()
        entries |= fresh_entries(name, folder / "fresh")
    for part in parts_of(name):
        start = time.process_time()
        entries |= recorded(name, run, part, folder / part)
        print(f"{name}: {part}: {time.process_time() - start:.1f} s of the processor", file=sys.stderr)
    write(name, updated(stored, json.loads(json.dumps(entries))))


def updated(stored: Entries, entries: Entries) -> Entries:
    """The new entries, but the stored one wherever it still holds: so a diff shows what changed, and no rounding."""
    is_stale = any(low_faults(stored, entries))

    def still_holds(key: str) -> bool:
        return key in stored and is_same(key, stored[key], entries[key]) and not (is_stale and is_low(key))

    return {key: stored[key] if still_holds(key) else value for key, value in entries.items()}


def made_by() -> dict[str, str]:
    """The commit and the versions, which are recorded for people and not compared."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True)
    return {"commit": commit.stdout.strip(), **versions()}


def refuse_near_ties(name: str, run: Path) -> None:
    """Raises SystemExit if a best answer of a search was nearly another one: on other processors it might be."""
    opened, search = open_run(run), task_of(name).search
    asked = [line for line in questions_of(name, opened.pipeline, run) if search and line.strip()]
    for options in (search, *searches_of(name)) if search else ():
        if "sampling" not in options:
            expected = expected_of(opened, opened.decoding(**options), Texts([], [], asked), None)
            choices = {line: expected.narrowest_choice(place) for place, line in enumerate(asked)}
            if ties := [line for line, choice in choices.items() if choice and choice.margin <= 2 * TOLERANCE]:
                sys.exit(f"{name}: nearly another answer by {options}; ask something else in cases.py: {ties}")


if __name__ == "__main__":
    main()
