"""Stands in for export/certificate/runner.py: does what the artefact says, as JSON, in place of running it."""

import json
import os
import sys
from pathlib import Path


def main(task_path: str, result_path: str) -> None:
    """Crashes, ends, or writes the result or the error that the artefact holds."""
    task = json.loads(Path(task_path).read_text(encoding="utf-8"))
    orders = json.loads(Path(task["paths"][0]).read_text(encoding="utf-8"))
    sys.stderr.write(orders.get("log", ""))
    if "signal" in orders:
        os.kill(os.getpid(), orders["signal"])
    if "exit" in orders:
        sys.exit(orders["exit"])
    if orders.get("tells"):
        found = [name for name in os.environ if name.startswith("PYTHON")]
        found += [place for place in sys.path if Path(place, "keras_transformer").is_dir()]
        told = [found, os.environ.get("CUDA_VISIBLE_DEVICES"), task["num_control_ids"]]
        orders = {"result": {"error": json.dumps(told), "cuda": False}}
    if "result" in orders:
        Path(result_path).write_text(json.dumps(orders["result"]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
