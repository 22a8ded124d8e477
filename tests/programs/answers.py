"""`answers.py COMMANDS.json [ABSENT …]`: runs commands in one process, as if the packages ABSENT were not installed.

It prints JSON: for each command its exit status, standard output and standard error; and what was imported for them.
"""

import contextlib
import io
import json
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HEAVY = {"keras", "tensorflow", "jax", "torch", "onnx", "tokenizers"}


class WithoutSome(PathFinder):
    """Finds what is installed, but for some packages."""

    absent: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in cls.absent:
            return None
        return PathFinder.find_spec(fullname, path, target)


def answer(words: list[str], stdin: str) -> tuple[int, str, str]:
    """The exit status of a command, and what it prints."""
    from keras_transformer.__main__ import main

    sys.stdin = SimpleNamespace(buffer=io.BytesIO(stdin.encode()))  # type: ignore[assignment]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(words)
    return status, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    file, *absent = sys.argv[1:]
    WithoutSome.absent = frozenset(absent)
    sys.meta_path[:] = [WithoutSome if finder is PathFinder else finder for finder in sys.meta_path]
    found = [answer(*command) for command in json.loads(Path(file).read_text())]
    print(json.dumps({"found": found, "imported": sorted(HEAVY & set(sys.modules))}))
