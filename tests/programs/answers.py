"""`answers.py COMMANDS.json`: runs commands in one process.

It prints JSON: for each command its exit status, standard output and standard error; and what was imported for them.
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

HEAVY = {"keras", "tensorflow", "jax", "torch", "onnx", "tokenizers"}


def answer(words: list[str], stdin: str) -> tuple[int, str, str]:
    """The exit status of a command, and what it prints."""
    from keras_transformer.__main__ import main

    sys.stdin = SimpleNamespace(buffer=io.BytesIO(stdin.encode()))  # type: ignore[assignment]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(words)
    return status, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    found = [answer(*command) for command in json.loads(Path(sys.argv[1]).read_text())]
    print(json.dumps({"found": found, "imported": sorted(HEAVY & set(sys.modules))}))
