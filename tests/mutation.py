"""`make mutants N=150 SEED=1`: draws changes of the code at random, and runs the tests that run the changed lines.

cosmic-ray changes the code, by all its default operators. coverage tells which tests run a line. A mutant that survives
is a place that no test watches, or a change that changes nothing.
"""

import argparse
import ast
import contextlib
import difflib
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names
from coverage import Coverage, CoverageData
from coverage.parser import PythonParser

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("keras_transformer", "export")
MAP = ROOT / "build" / "mutants"
NOT_COPIED = (".git", ".venv", ".gpu", ".*_cache", "__pycache__", "build", "runs", "exported", "*.egg-info")
# What takes seconds to import, and is no part of the code that is mutated: one process imports it for all mutants.
PRELOADED = ("tensorflow", "keras", "sentencepiece", "sacrebleu", "h5py", "onnx", "onnxruntime")
SECONDS_A_TEST, SECONDS_A_MUTANT = 120, 300  # of the processor: machines may be busy
SECONDS_BY_THE_CLOCK = 600  # of a test that waits for what never comes
# Those that need no arguments.
OPERATORS = [get_operator(name)() for name in sorted(operator_names()) if not get_operator(name).arguments()]
FAILED = ".failed"  # the suffix of the list of tests that fail by themselves, and the variable with its path
MOST_TESTS = 300  # of a mutant, those that run the fewest lines
SURVIVED, NO_TEST, KILLED = "survived", "no test runs it", "killed"
RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)  # a test that fails by itself kills no mutant
# Verdicts by the exit status of pytest, or less the signal that ended its process.
VERDICTS = {
    pytest.ExitCode.OK: SURVIVED,
    pytest.ExitCode.NO_TESTS_COLLECTED: SURVIVED,
    pytest.ExitCode.TESTS_FAILED: KILLED,
    pytest.ExitCode.INTERRUPTED: KILLED,  # a module could not be imported
    **dict.fromkeys((-signal.SIGALRM, -signal.SIGPROF), f"{KILLED}: a test hangs"),
    **dict.fromkeys((-signal.SIGTERM, -signal.SIGABRT, -signal.SIGSEGV), KILLED),
}


class Mutant(NamedTuple):
    """A changed place: its file from the root, its first line from 1, the mutated file, and the tests that run it."""

    file: str
    line: int
    code: str
    tests: tuple[str, ...]

    def difference(self) -> str:
        """The lines that differ."""
        before = (ROOT / self.file).read_text(encoding="utf-8").splitlines()
        lines = difflib.unified_diff(before, self.code.splitlines(), n=0, lineterm="")
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


class Map:
    """Which tests run which lines, by coverage's data of a run of tests, whose contexts are the ids of tests.

    Beside the data is a list of the tests that failed in that run. They tell nothing of a mutant, and are left out.
    """

    def __init__(self, data: Path):
        self._data = CoverageData(str(data))
        self._data.read()
        self._left_out = {"", *data.with_suffix(FAILED).read_text(encoding="utf-8").split("\n")}
        self._lines: Counter[str] = Counter()
        for file in self._data.measured_files():
            for tests in self._data.contexts_by_lineno(file).values():
                self._lines.update(tests)

    def tests(self, file: Path, line: int | None = None) -> tuple[str, ...]:
        """The tests that run the statement of a line, those that run the fewest lines first; then the others of their
        files, for which caches keep results. Of a line that runs when the module is imported: all tests of the file."""
        by_line = self._data.contexts_by_lineno(str(file))
        if line is not None and is_in_a_function(file, line):
            parser = PythonParser(filename=str(file))
            parser.parse_source()
            by_line = {one: by_line[one] for one in by_line if parser.first_line(one) == parser.first_line(line)}
        found = {test for tests in by_line.values() for test in tests} - self._left_out
        files = {test.partition("::")[0] for test in found}
        beside = {test for test in self._lines if test.partition("::")[0] in files} - found - self._left_out
        return tuple(sorted(found | beside, key=lambda test: (test in beside, self._lines[test], test)))


def is_in_a_function(file: Path, line: int) -> bool:
    """Whether a line is in the body of a function."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(one.body[0].lineno <= line <= (one.end_lineno or 0) for one in functions)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A hook of pytest, for which this module is a plugin: coverage learns which test runs, here and in processes."""
    if coverage := Coverage.current():
        coverage.switch_context(item.nodeid)
        coverage.config.context = item.nodeid
        os.environ["COVERAGE_PROCESS_CONFIG"] = coverage.config.serialize()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A hook of pytest: the process that collects the reports keeps the ids of the tests that fail by themselves."""
    if report.failed and (place := os.environ.get(FAILED)) and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


Position = tuple[tuple[int, int], tuple[int, int]]  # (line, column) of the begin and of the end


def places(code: str) -> dict[Position, list[tuple[Operator, int]]]:
    """Where a file can be changed: for each place the operators, and which occurrence of each it is."""
    nodes, found = list(ast_nodes(get_ast(code))), defaultdict(list)
    for operator in OPERATORS:
        positions = (place for node in nodes for place in operator.mutation_positions(node))
        for occurrence, place in enumerate(positions):
            found[place].append((operator, occurrence))
    return found


def drawn(tests: Map, seed: int, only: str = "") -> Iterator[Mutant]:
    """Mutants without end: a place at random, and one of its mutations; but none in types, and each place once.

    Args:
        tests: which tests run which lines.
        seed: of what is drawn.
        only: what the names of files must hold.
    """
    draw = random.Random(seed)
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py")) if file == file.resolve()]
    codes = {file: file.read_text(encoding="utf-8") for file in files if only in file.as_posix()}
    everywhere = [(file, place, found) for file, code in codes.items() for place, found in places(code).items()]
    for file, ((line, _), _), found in draw.sample(everywhere, len(everywhere)):
        code = mutate_code(codes[file], *draw.choice(found))
        if not is_changed(codes[file], code):
            continue
        ids = tests.tests(file, line)
        if not ids and not is_in_a_function(file, line):  # the file holds nothing but constants
            package, _, name = ".".join(file.relative_to(ROOT).with_suffix("").parts).rpartition(".")
            uses = (f"from {package}.{name} import", f"from {package} import {name}")
            users = [one for one in codes if any(use in codes[one] for use in uses)]
            ids = tuple(dict.fromkeys(id for one in users for id in tests.tests(one)))
        yield Mutant(file.relative_to(ROOT).as_posix(), line, code, ids)


def is_changed(before: str, after: str | None) -> bool:
    """Whether a mutation changes more than types, and gives Python."""
    with contextlib.suppress(SyntaxError):
        return after is not None and without_annotations(after) != without_annotations(before)
    return False


def without_annotations(code: str) -> str:
    """The code without the types that functions and variables declare: they are never evaluated."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        for name in {"annotation", "returns"}.intersection(node._fields):
            setattr(node, name, ast.Constant(None))
    return ast.dump(tree)


class Chosen:
    """A plugin of pytest: runs the tests with these ids alone, in their order, for a limited time."""

    def __init__(self, ids: Sequence[str]):
        self._places = {name: place for place, name in enumerate(ids)}
        self._end = time.process_time() + SECONDS_A_MUTANT

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._places]
        first: dict[Path, int] = {}
        for item in chosen:
            first[item.path] = min(first.get(item.path, len(items)), self._places[item.nodeid])
        items[:] = sorted(chosen, key=lambda item: (first[item.path], self._places[item.nodeid]))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS_A_TEST)
        signal.setitimer(signal.ITIMER_REAL, SECONDS_BY_THE_CLOCK)
        if time.process_time() > self._end:
            pytest.exit("the time is over", returncode=0)


def run_tests(copy: Path, tests: Sequence[str], log: Path) -> None:
    """Runs tests in a copy, and ends this process with the exit status of pytest."""
    os.setsid()  # what the tests start ends with this process: see `status_of`
    os.chdir(copy)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", *FOLDERS)]:
        del sys.modules[name]
    sys.path.insert(0, str(copy))
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *files]
    os._exit(pytest.main(arguments, plugins=[Chosen(tests)]))


def status_of(copy: Path, tests: Sequence[str], log: Path) -> int:
    """The exit status of pytest, or less the signal that ended its process."""
    if not (child := os.fork()):
        run_tests(copy, tests, log)
    _, ended = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(ended)


def outcome_of(mutant: Mutant) -> tuple[Mutant, str, float, str]:
    """The mutant, what becomes of it, the seconds that it took, and the last lines of its tests.

    A test that fails kills the mutant only if it passes on the code as it is, in the same kind of process. Otherwise it
    is left out, and the others run.
    """
    start, tests, verdict, lines = time.monotonic(), list(mutant.tests[:MOST_TESTS]), "", [""]
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy, log = copied(Path(folder) / "copy"), Path(folder) / "log"
        while tests and not verdict:
            (copy / mutant.file).write_text(mutant.code, encoding="utf-8")
            status = status_of(copy, tests, log)
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
            told = [line.partition(" ")[2] + " " for line in lines if line.startswith(("FAILED ", "ERROR "))]
            killers = [test for test in tests if any(line.startswith(f"{test} ") for line in told)]
            shutil.copy(ROOT / mutant.file, copy / mutant.file)
            if not killers or status_of(copy, killers, log) == pytest.ExitCode.OK:
                verdict = VERDICTS.get(status, f"pytest cannot run: {status}")
            tests = [test for test in tests if test not in killers]
    return mutant, verdict or NO_TEST, time.monotonic() - start, " | ".join(lines[-3:])


def preload() -> None:
    """Imports what many tests import."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            import_module(name)


def copied(copy: Path) -> Path:
    """A copy of the working tree, without what is made. There `export` is in the package, as in a wheel."""
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    if not (link := copy / "keras_transformer" / "export").exists():
        link.symlink_to(Path("..") / "export")
    return copy


def mapped(tests: Sequence[str], jobs: int) -> Map:
    """The map of the code as it is: one that was made before, or a new one, for which the tests run once in a copy."""
    files = sorted(file for folder in (*FOLDERS, "tests") for file in (ROOT / folder).rglob("*.py"))
    key = hashlib.sha256(b"".join([*(file.read_bytes() for file in files), repr(tests).encode()])).hexdigest()
    if not (data := MAP / key).exists():
        print("the tests run once, to see which run which lines", flush=True)
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            copy, settings = copied(Path(folder) / "copy"), Path(folder) / "coveragerc"
            sources = "".join(f"\n  {copy / name}" for name in FOLDERS)
            settings.write_text(f"[run]\nsource ={sources}\ndata_file = {folder}/data\nparallel = true\n"
                                f"patch = subprocess\n[paths]\nours =\n  {ROOT}\n  {copy}\n")  # fmt: skip
            coverage = [sys.executable, "-m", "coverage"]
            pytest = ["-m", "pytest", "-p", "tests.mutation", "-n", str(jobs), "--dist", "loadfile", *tests]
            run = [*coverage, "run", "--rcfile", str(settings), *pytest, "-p", "no:cacheprovider"]
            failed = Path(folder) / "list"
            failed.touch()
            environment = {**os.environ, "PYTHONPATH": str(copy), FAILED: str(failed)}
            if subprocess.run(run, cwd=copy, env=environment).returncode not in RAN:
                raise SystemExit("the tests could not be run, so nobody can tell which line they run")
            combine = [*coverage, "combine", "--quiet", "--rcfile", str(settings), "--data-file", f"{folder}/whole"]
            subprocess.run([*combine, *map(str, Path(folder).glob("data.*"))], cwd=ROOT, check=True)
            whole = CoverageData(f"{folder}/whole")
            whole.read()
            if not whole.measured_contexts() - {""}:
                raise SystemExit("coverage saw no test run a line: is it installed in this very environment?")
            MAP.mkdir(parents=True, exist_ok=True)
            shutil.move(failed, data.with_suffix(FAILED))
            shutil.move(f"{folder}/whole", data)
    return Map(data)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit status is 1 if more than 20 of 150 survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Changes a place, sees tests fail.")
    parser.add_argument("--number", type=int, default=150, help="of mutants")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--only", default="", help="what the names of the files hold that are changed")
    parser.add_argument("--tests", nargs="*", default=[], help="the files or folders of tests that run; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants at once")
    arguments = parser.parse_args(argv)
    tests = mapped(arguments.tests, arguments.jobs)
    start, alive = time.monotonic(), []
    mutants = list(islice(drawn(tests, arguments.seed, arguments.only), arguments.number))
    with multiprocessing.get_context("fork").Pool(arguments.jobs, preload) as pool:
        for mutant, verdict, seconds, last in pool.imap_unordered(outcome_of, mutants):
            print(f"{verdict:<22}{seconds:6.1f} s  {mutant.file}:{mutant.line}", flush=True)
            if not verdict.startswith(KILLED):
                alive.append(mutant)
                print(f"{mutant.difference()}\n  {last}", flush=True)
    minutes = (time.monotonic() - start) / 60
    print(f"{len(alive)} of {len(mutants)} mutants survive (seed {arguments.seed}), in {minutes:.0f} minutes")
    return int(len(alive) > 20 / 150 * len(mutants))


if __name__ == "__main__":
    sys.exit(main())
