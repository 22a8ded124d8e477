"""Runs tasks of export/certificate/runner.py, a JSON line each, in one process without TensorFlow.

Beside TensorFlow onnxruntime-extensions may crash.
"""

import json
import runpy
import sys


def main(runner: str) -> None:
    """Answers each task with a line: the result and an error, of which one is empty."""
    run = runpy.run_path(runner)["run"]
    for line in sys.stdin:
        try:
            answer = [run(json.loads(line)), ""]
        except Exception as error:  # as the runner itself reports it
            answer = [None, f"{type(error).__name__}: {error}"]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
