"""`info` prints what a run folder holds; `average` averages its checkpoints again."""

from __future__ import annotations

import argparse
import math
from typing import Any

from keras_transformer.errors import load_tensorflow, say, warn
from keras_transformer.run_config import as_json
from keras_transformer.run_folder import RunFolder, is_finished, read_config, read_metrics, resume_command


def average(arguments: argparse.Namespace) -> None:
    """Writes the mean of the last checkpoints as model.keras."""
    load_tensorflow()
    from keras_transformer.training.checkpoints import average

    steps = average(arguments.run, arguments.last)
    say(f"model.keras is now the mean of {len(steps)} checkpoints, of steps {', '.join(map(str, steps))}")


def add_average_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `average`."""
    parser.add_argument("--last", type=int, default=5, metavar="N", help="how many checkpoints (default: 5)")


def info(arguments: argparse.Namespace) -> None:
    """Prints the run's configuration and its last metrics; a part that is missing is left out."""
    from keras_transformer.making import count_parameters

    run = RunFolder(arguments.run)
    config = read_config(run)
    print(f"run: {run.path}")
    # A run that has not prepared its data does not tell the number; counting imports Keras, which takes seconds.
    print(f"parameters: {config.get('parameters') or count_parameters(config['model']):,}")
    if "answer_length" in config:
        print(f"answers: up to {config['answer_length']:,} tokens, with the end")
    if config["settings"].get("source"):  # a run of the user's own text; older runs name the default corpus too
        config["settings"]["dataset"] = None
    for section in ("model", "search", "corpus", "settings", "versions", "weights"):
        print_section(section, config.get(section, {}))
    steps = config["settings"].get("steps")  # not in runs that were imported, or saved from Python
    is_unfinished = not run.model.is_file() or (steps is not None and not is_finished(config, steps))
    hint = f"; the run is unfinished: `{resume_command(run)}` goes on" if is_unfinished else ""
    print(f"model.keras: {'there' if run.model.is_file() else 'not yet'}{hint}")
    print_metrics(metrics_of(run))


def print_section(name: str, values: dict[str, Any]) -> None:
    """Prints a part of the configuration, unless it is empty."""
    if values:
        print(f"{name}:")
    for key, value in values.items():
        print(f"  {key}: {as_json(value)}")


def print_metrics(rows: list[dict[str, str]]) -> None:
    """Prints the last row of the metrics, and the best BLEU."""
    if not rows:
        print("metrics: none yet")
        return
    print("last metrics:")
    for name, value in rows[-1].items():
        print(f"  {name}: {value}")
    best = max(rows, key=lambda row: number(row.get("val_bleu")))
    if best.get("val_bleu"):
        print(f"best val_bleu: {best['val_bleu']}, at step {best.get('step', 'unknown')}")


def metrics_of(run: RunFolder) -> list[dict[str, str]]:
    """The rows of metrics.csv; none if the file cannot be read."""
    try:
        return read_metrics(run)
    except OSError as error:
        warn(f"{run.metrics} cannot be read: {error}")
        return []


def number(text: str | None) -> float:
    """The number in the text; -inf if there is none."""
    try:
        value = float(text or "")
    except ValueError:
        return -math.inf
    return -math.inf if math.isnan(value) else value
