"""Commands, their exit status and what they print; `answers.py COMMANDS.json` runs some in a process of its own.

It prints JSON: for each command its exit status, standard output and standard error; and what was imported for them.
"""

import contextlib
import io
import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

HEAVY = {"keras", "tensorflow", "jax", "torch", "onnx", "tokenizers"}


def answer(*words: object, stdin: str | bytes = "") -> tuple[int, str, str]:
    """The exit status of a command in this process, and what it prints. `export` is that of `python -m export`."""
    is_export = words[:1] == ("export",)
    main = import_module("export.__main__" if is_export else "keras_transformer.__main__").main
    given = SimpleNamespace(buffer=io.BytesIO(stdin if isinstance(stdin, bytes) else stdin.encode()))
    out, err = io.StringIO(), io.StringIO()
    with patch("sys.stdin", given), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        return main([*map(str, words[is_export:])]), out.getvalue(), err.getvalue()


def printed(*words: object, stdin: str | bytes = "") -> str:
    """What a command prints as its result. It must succeed."""
    status, out, err = answer(*words, stdin=stdin)
    assert status == 0, err
    return out


def refused(*words: object, status: int = 2) -> str:
    """Why a command fails, with this status."""
    found, _, err = answer(*words)
    assert found == status, err
    return err


if __name__ == "__main__":
    found = [answer(*words, stdin=stdin) for words, stdin in json.loads(Path(sys.argv[1]).read_text())]
    print(json.dumps({"found": found, "imported": sorted(HEAVY & set(sys.modules))}))
