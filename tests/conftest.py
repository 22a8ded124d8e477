"""The conditions of every test: few threads, a seed, no network, and no files left in the repository."""

import gc
import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(tempfile.mkdtemp(prefix="keras-transformer-tests-"))

# Set before any test module imports TensorFlow. Processes that tests start inherit it. The numbers of threads are
# defaults, which a program may change. There are two outer threads, because replicas wait for one another. On a GPU
# products are rounded to TF32 and sums come in any order, for which no tolerance here was made: ask for it by
# CUDA_VISIBLE_DEVICES=0.
os.environ.update(
    MPLBACKEND="Agg",
    XDG_CACHE_HOME=str(CACHE),
    IPYTHONDIR=str(CACHE / "ipython"),
    HYPOTHESIS_STORAGE_DIRECTORY=str(CACHE / "hypothesis"),
)
for name, value in {
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "OMP_NUM_THREADS": "1",
    # JAX takes longer to compile operations and models than to run them. So processes share compiled code in this
    # folder, and JAX optimises nothing. Test workers inherit the folder from the process that started them.
    "JAX_COMPILATION_CACHE_DIR": str(CACHE / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}.items():
    os.environ.setdefault(name, value)

pytest_plugins = ["tests.tiny_run", "tests.environments"]  # fixtures of a run and of environments, for all files

gc.disable()  # until every test file is imported; see `pytest_collection_finish`

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def seed() -> None:
    """Seeds Python and NumPy, from which Keras draws the seeds of its layers.

    TensorFlow gets no seed: a new one makes it forget what it made of every graph, and each test would pay for that.
    """
    random.seed(1)
    np.random.seed(1)


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Fails a test that connects to another machine. It sees this process, but not the processes that it starts."""

    def local(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            # The host, or a socket and an address; None: a Unix socket, or any local address.
            address = given[1] if given and isinstance(given[0], socket.socket) else given[:1]
            host = options.get("host", address[0] if isinstance(address, tuple) and address else None)
            if host not in (None, "", "127.0.0.1", "::1", "localhost", b"localhost", b"127.0.0.1"):
                pytest.fail(f"reached for the network: {host!r}")
            return function(*given, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((socket.socket, "connect"), (socket.socket, "connect_ex"), (socket, "getaddrinfo")):
            patch.setattr(owner, name, local(getattr(owner, name)))
        yield


def litter() -> set[str]:
    """The files that git does not track, without caches; none if this is no git checkout."""
    command = ["git", "status", "--porcelain", "--ignored", "-z"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return set()
    entries = [entry[3:] for entry in done.stdout.split("\0") if entry.startswith(("??", "!!"))]
    return {
        entry
        for entry in entries
        if not any(part.endswith("cache") or part == "__pycache__" for part in Path(entry).parts)
    }


# The slowest files. They run first, so that at the end no worker is left alone with one of them.
LONGEST = [
    "export/test_matrix.py",
    "models/test_backends.py",
    "golden/test_golden.py",
    "training/test_run.py",
    "training/test_workers.py",
    "test_wheel.py",
    "export/test_planted_faults.py",
    "training/test_replicas.py",
    "export/test_onnx.py",
    "training/test_tasks.py",
    "test_seam.py",
    "export/test_export_command.py",
    "importing/test_huggingface.py",
    "commands/test_engines.py",
    "test_tutorials.py",
    "benchmarks/test_benchmarks.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        name = item.path.relative_to(ROOT / "tests").as_posix()
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What imports made stays to the end, so the garbage collector need not look at it again and again."""
    gc.freeze()
    gc.enable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remembers which untracked files were in the repository before the tests."""
    session.config.stash[_BEFORE] = litter()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run of the whole suite that left files in the repository."""
    shutil.rmtree(CACHE, ignore_errors=True)
    whole_suite = session.config.args_source is pytest.Config.ArgsSource.TESTPATHS
    whole_suite &= not hasattr(session.config, "workerinput")  # other workers may still run
    before: set[str] = session.config.stash[_BEFORE]
    left = sorted(litter() - before) if whole_suite else []
    session.config.stash[_LEFT] = left
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Names the files that the suite left."""
    for name in config.stash.get(_LEFT, []):
        terminalreporter.write_line(f"the tests left this in the repository: {name}", red=True)


_BEFORE: pytest.StashKey[set[str]] = pytest.StashKey()
_LEFT: pytest.StashKey[list[str]] = pytest.StashKey()
