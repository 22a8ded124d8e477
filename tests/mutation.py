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
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names
from coverage import Coverage, CoverageData

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
MOST_TESTS = 300  # of a mutant, those that run the fewest lines
SURVIVED, NO_TEST, KILLED, HANGS = "survived", "no test runs it", "killed", "killed: a test hangs"
ERROR = "pytest cannot run"
RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)  # a test that fails by itself kills no mutant
VERDICTS = {
    pytest.ExitCode.OK: SURVIVED,
    pytest.ExitCode.NO_TESTS_COLLECTED: SURVIVED,
    pytest.ExitCode.TESTS_FAILED: KILLED,
    pytest.ExitCode.INTERRUPTED: KILLED,  # a module could not be imported
    -signal.SIGALRM: HANGS,
    -signal.SIGPROF: HANGS,
    -signal.SIGTERM: KILLED,
    -signal.SIGABRT: KILLED,
    -signal.SIGSEGV: KILLED,
}


@dataclass(frozen=True)
class Mutant:
    """A changed place.

    Args:
        file: from the root.
        line: the first line that is changed, from 1.
        code: the whole file, mutated.
        tests: the ids of the tests that run the line, those that run the fewest lines first.
    """

    file: str
    line: int
    code: str
    tests: tuple[str, ...]

    def difference(self, root: Path = ROOT) -> str:
        """The lines that differ."""
        before = (root / self.file).read_text(encoding="utf-8").splitlines()
        lines = difflib.unified_diff(before, self.code.splitlines(), n=0, lineterm="")
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


class Map:
    """Which tests run which lines, by coverage's data of a run of tests.

    Args:
        data: coverage's file. Its contexts are the ids of tests.
        root: the folder of the code that ran.
    """

    def __init__(self, data: Path, root: Path):
        self._root = root.resolve()
        self._data = CoverageData(str(data))
        self._data.read()
        self._lines: Counter[str] = Counter()
        for file in self._data.measured_files():
            for tests in self._data.contexts_by_lineno(file).values():
                self._lines.update(tests)

    def tests(self, file: str, lines: set[int] | None) -> tuple[str, ...]:
        """The tests that run one of the lines, or any line of the file, those that run the fewest lines first; then the
        others of their files."""
        by_line = self._data.contexts_by_lineno(str(self._root / file))
        found = {test for line, tests in by_line.items() if lines is None or line in lines for test in tests} - {""}
        files = {test.partition("::")[0] for test in found}
        beside = {
            test for test in self._lines if test.partition("::")[0] in files
        } - found  # caches keep results for them
        return tuple(sorted(found | beside, key=lambda test: (test in beside, self._lines[test], test)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A hook of pytest, for which this module is a plugin: coverage learns which test runs, here and in processes."""
    if coverage := Coverage.current():
        coverage.switch_context(item.nodeid)
        coverage.config.context = item.nodeid
        os.environ["COVERAGE_PROCESS_CONFIG"] = coverage.config.serialize()


def lines_run(tree: ast.Module, line: int) -> set[int] | None:
    """The lines of the statement in a function that a line is in; None for what runs when the module is imported."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = [one for one in functions if one.body[0].lineno <= line <= (one.end_lineno or 0)]
    if not inside:
        return None
    statements = [node for one in inside for node in ast.walk(one) if isinstance(node, ast.stmt) and node is not one]
    around = [node for node in statements if node.lineno <= line <= (node.end_lineno or 0)]
    smallest = min(around, key=lambda node: (node.end_lineno or 0) - node.lineno)
    first_inner = min((node.lineno for node in ast.iter_child_nodes(smallest) if isinstance(node, ast.stmt)),
                      default=(smallest.end_lineno or 0) + 1)  # fmt: skip
    return set(range(smallest.lineno, max(first_inner, smallest.lineno + 1)))


def without_annotations(code: str) -> str:
    """The code without the types that functions and variables declare: they are never evaluated."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


class Places(Visitor):
    """Where a file can be changed: for each place, in the file's order, the operators and which occurrence it is."""

    def __init__(self, code: str):
        self.found: dict[tuple[Any, Any], list[tuple[Operator, int]]] = defaultdict(list)
        self._counts: dict[Operator, int] = defaultdict(int)
        self.walk(get_ast(code))

    def visit(self, node: Any) -> Any:
        for operator in OPERATORS:
            for place in operator.mutation_positions(node):
                self.found[place].append((operator, self._counts[operator]))
                self._counts[operator] += 1
        return node


def drawn(root: Path, tests: Map, seed: int, only: str = "") -> Iterator[Mutant]:
    """Mutants without end: a place at random, and one of its mutations; but none in types, and each place once.

    Args:
        root: the folder of the code.
        tests: which tests run which lines.
        seed: of what is drawn.
        only: what the names of files must hold.
    """
    draw = random.Random(seed)
    files = [file for folder in FOLDERS for file in sorted((root / folder).rglob("*.py")) if file == file.resolve()]
    files = [file for file in files if only in file.as_posix()]
    codes = {file: file.read_text(encoding="utf-8") for file in files}
    everywhere = [(file, place, found) for file in files for place, found in Places(codes[file]).found.items()]
    for file, ((line, _), _), found in draw.sample(everywhere, len(everywhere)):
        operator, occurrence = draw.choice(found)
        code = mutate_code(codes[file], operator, occurrence)
        if is_changed(codes[file], code):
            lines = lines_run(ast.parse(codes[file]), line)
            ids = tests.tests(file.relative_to(root).as_posix(), lines)
            if lines is None and not ids:  # it holds nothing but constants
                uses = [one for one in files if imports(codes[one], file.relative_to(root))]
                ids = tuple(
                    dict.fromkeys(id for one in uses for id in tests.tests(one.relative_to(root).as_posix(), None))
                )
            yield Mutant(file.relative_to(root).as_posix(), line, code, ids)


def imports(code: str, module: Path) -> bool:
    """Whether code imports from a module of the repository."""
    name = ".".join(module.with_suffix("").parts)
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    return any(name in (node.module, *(f"{node.module}.{one.name}" for one in node.names)) for node in found)


def is_changed(before: str, after: str | None) -> bool:
    """Whether a mutation changes more than types, and gives Python."""
    with contextlib.suppress(SyntaxError):
        return after is not None and without_annotations(after) != without_annotations(before)
    return False


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
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream.fileno())
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


def outcome_of(mutant: Mutant, root: Path = ROOT) -> tuple[str, float, str]:
    """What becomes of a mutant, the seconds that it took, and the last lines of its tests.

    A test that fails kills the mutant only if it passes on the code as it is, in the same kind of process. Otherwise it
    is left out, and the others run.
    """
    start = time.monotonic()
    if not mutant.tests:
        return NO_TEST, 0.0, ""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy, log = copied(root, Path(folder) / "copy"), Path(folder) / "log"
        tests, verdict, lines = list(mutant.tests[:MOST_TESTS]), "", [""]
        while tests and not verdict:
            (copy / mutant.file).write_text(mutant.code, encoding="utf-8")
            log.write_bytes(b"")
            status = status_of(copy, tests, log)
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            told = [line.partition(" ")[2] + " " for line in lines if line.startswith(("FAILED ", "ERROR "))]
            killers = [test for test in tests if any(line.startswith(f"{test} ") for line in told)]
            shutil.copy(root / mutant.file, copy / mutant.file)
            if not killers or status_of(copy, killers, log) == pytest.ExitCode.OK:
                verdict = VERDICTS.get(status, f"{ERROR}: {status}")
            tests = [test for test in tests if test not in killers]
    return verdict or NO_TEST, time.monotonic() - start, " | ".join(lines[-3:])


def preload() -> None:
    """Imports what many tests import."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            import_module(name)


def copied(root: Path, copy: Path) -> Path:
    """A copy of the working tree, without what is made. There `export` is in the package, as in a wheel."""
    shutil.copytree(root, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    if not (link := copy / "keras_transformer" / "export").exists():
        link.symlink_to(Path("..") / "export")
    return copy


def digest(root: Path) -> str:
    """What the map depends on: all Python files."""
    files = sorted(file for folder in (*FOLDERS, "tests") for file in (root / folder).rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def mapped(root: Path, folder: Path, tests: Sequence[str], jobs: int) -> Map:
    """The map of the code as it is: that of the folder, or a new one, for which the tests run once in a copy."""
    data, of, key = folder / "coverage", folder / "of", f"{digest(root)} {' '.join(tests)}"
    if not (of.is_file() and of.read_text(encoding="utf-8") == key):
        print("the tests run once, to see which run which lines", flush=True)
        with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
            copy = copied(root, Path(temporary) / "copy")
            settings = Path(temporary) / "coveragerc"
            sources = "".join(f"\n  {copy / name}" for name in FOLDERS)
            settings.write_text(f"[run]\nsource ={sources}\ndata_file = {temporary}/data\nparallel = true\n"
                                "patch = subprocess\n")  # fmt: skip
            command = ["coverage", "run", "--rcfile", str(settings), "-m", "pytest", "-p", "tests.mutation", "-n",
                       str(jobs), "--dist", "loadfile", "-p", "no:cacheprovider", *tests]  # fmt: skip
            environment = {**os.environ, "PYTHONPATH": str(copy)}
            if subprocess.run([sys.executable, "-m", *command], cwd=copy, env=environment).returncode not in RAN:
                raise SystemExit("the tests could not be run, so nobody can tell which line they run")
            folder.mkdir(parents=True, exist_ok=True)
            data.unlink(missing_ok=True)
            combine(sorted(Path(temporary).glob("data.*")), data, copy, root)
        of.write_text(key, encoding="utf-8")
    return Map(data, root)


def combine(parts: Sequence[Path], data: Path, copy: Path, root: Path) -> None:
    """Writes coverage's files of a copy as one of the code itself."""
    whole = CoverageData(str(data))
    for part in parts:
        found = CoverageData(str(part))
        found.read()
        whole.update(found, map_path=lambda path: path.replace(str(copy.resolve()), str(root.resolve())))
    whole.write()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit status is 1 if more than 20 of 150 survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Changes a place, sees tests fail.")
    parser.add_argument("--number", type=int, default=150, help="of mutants")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--only", default="", help="what the names of the files hold that are changed")
    parser.add_argument("--tests", nargs="*", default=[], help="the files or folders of tests that run; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants at once")
    arguments = parser.parse_args(argv)
    tests = mapped(ROOT, MAP, arguments.tests, arguments.jobs)
    start, alive = time.monotonic(), []
    mutants = list(islice(drawn(ROOT, tests, arguments.seed, arguments.only), arguments.number))
    with multiprocessing.get_context("fork").Pool(arguments.jobs, preload) as pool:
        for mutant, (verdict, seconds, last) in zip(mutants, pool.imap(outcome_of, mutants), strict=True):
            print(f"{verdict:<22}{seconds:6.1f} s  {mutant.file}:{mutant.line}", flush=True)
            if not verdict.startswith(KILLED):
                alive.append(mutant)
                print(f"{mutant.difference()}\n  {last}", flush=True)
    minutes = (time.monotonic() - start) / 60
    print(f"{len(alive)} of {len(mutants)} mutants survive (seed {arguments.seed}), in {minutes:.0f} minutes")
    return int(len(alive) > 20 / 150 * len(mutants))


if __name__ == "__main__":
    sys.exit(main())
