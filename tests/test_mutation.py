"""The mutants of `make mutants`: none is stale, and the runner tells which are killed."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import mutation
from tests.mutants import MUTANTS
from tests.mutation import Mutant, stale

PACKAGES = ["keras_transformer", "export", "train.py"]


def test_no_mutant_is_stale():
    assert not list(map(str, stale(MUTANTS))), "the code has changed: give their places, or their texts, anew"


def test_every_mutant_changes_something_and_names_tests_that_exist():
    assert len({str(mutant) for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert mutant.old != mutant.new and mutant.tests, mutant
        assert mutant.place.split("/")[0] in PACKAGES
        for test in mutant.tests:
            file, _, name = test.partition("::")
            text = (mutation.ROOT / file).read_text(encoding="utf-8")
            assert not name or f"def {name.split('[')[0]}(" in text, f"{mutant} names {test}"


@pytest.fixture
def toy(tmp_path) -> Path:
    """A package of two functions, of which one is tested."""
    root = tmp_path / "toy"
    (root / "package").mkdir(parents=True)
    (root / "package" / "code.py").write_text("def twice(x):\n    return 2 * x\n\n\ndef thrice(x):\n    return 3 * x\n")
    (root / "test_code.py").write_text(
        "from package.code import thrice, twice\n\n\ndef test_twice():\n    assert twice(3) == 6\n\n\n"
        "def test_thrice():\n    assert thrice(0) == 0\n"
    )
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['.']\n")
    return root


KILLED = Mutant("package", "2 * x", "x", ("test_code.py::test_twice",))
SURVIVOR = Mutant("package/code.py", "3 * x", "4 * x", ("test_code.py",))
STALE = Mutant("package", "5 * x", "x", ("test_code.py",))
TWICE = Mutant("package", "* x", "+ x", ("test_code.py",))


def test_the_runner_tells_what_became_of_each_mutant(toy, capsys):
    before = (toy / "package" / "code.py").read_bytes()
    broken = Mutant("package", "def twice(x):", "def twice(x)", ("test_code.py",))
    absent = Mutant("package", "2 * x", "x", ("test_code.py::test_nothing",))
    with mutation.copies(toy, 2, ()) as free:
        found = list(mutation.spread(free, [KILLED, SURVIVOR, STALE, TWICE, broken, absent], mutation.Copy.tried))
    assert [outcome.verdict for outcome in found] == ["killed", "survived", "stale", "stale", "killed", "error"]
    assert (toy / "package" / "code.py").read_bytes() == before
    assert stale([KILLED, SURVIVOR, STALE, TWICE], toy) == [STALE, TWICE]


def test_a_survivor_is_named_and_the_exit_status_is_1(toy, capsys):
    assert mutation.run([KILLED], toy, preloaded=()) == 0
    assert "1 mutants, 1 killed, 0 not" in capsys.readouterr().out
    assert mutation.run([KILLED, SURVIVOR], toy, preloaded=()) == 1
    printed = capsys.readouterr().out
    assert "survived: package/code.py: '3 * x' → '4 * x'" in printed and "2 mutants, 1 killed, 1 not" in printed


def test_where_tests_fail_without_a_mutant_none_is_tried(toy, capsys):
    (toy / "test_code.py").write_text("def test_twice():\n    assert False\n")
    assert mutation.run([KILLED], toy, preloaded=()) == 1
    printed = capsys.readouterr().out
    assert "tests fail without any mutant:" in printed and "mutants, " not in printed


def test_tests_that_hang_are_killed(toy):
    with mutation.copies(toy, 1, ()) as free:
        outcome = free.get().tried(Mutant("package", "return 2 * x", "while True: pass", KILLED.tests), 3)
    assert outcome.verdict == "killed" and "not done after 3 seconds" in outcome.last_lines


LOCKING = """
import fcntl, pathlib, time

def test_nothing():
    with open("lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pathlib.Path("started").touch()
        time.sleep(600)
"""


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ctrl_c_ends_the_tests_too(toy):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip("a shell that starts this in the background makes it and what it starts ignore Ctrl-C")
    (toy / "test_code.py").write_text(LOCKING)

    def is_free(path: Path) -> bool:
        """Whether no process holds the lock any more; those that ended hold none."""
        with path.open() as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    with mutation.copies(toy, 1, ()) as free, ThreadPoolExecutor(1) as pool:
        copy = free.get()
        pool.submit(copy.test, ["test_code.py"], 600)
        wait_for((copy.path / "started").exists)
        assert not is_free(copy.path / "lock")
        copy.server.send_signal(signal.SIGINT)
        wait_for(lambda: is_free(copy.path / "lock"))
