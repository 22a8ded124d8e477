"""Compares decoding with CTranslate2 and Hugging Face Marian: the same weights, sentences, precision and threads.

    python -m benchmarks.decode                             # a base-size model with random weights
    python -m benchmarks.decode --run runs/multi30k-en-de-auto
    python -m benchmarks.decode --help

Outputs are compared first. In float32 all must give the same tokens as our ONNX artefact for nine sentences in ten, or
the exit status is 1. Then all translate the same batches in turns. The command prints a Markdown table with a row for
each combination of settings: sentences a second of our ONNX artefact, and how many times longer the others took (the
median of the rounds, with quartiles). It needs the extra `bench`, or the part of it that `--against` names:
`--against ctranslate2` works without PyTorch. `saved_model` and `tflite` need TensorFlow, and run on the processor;
what tf2onnx converts needs it to be written. The others, and our ONNX artefact, work with KERAS_BACKEND=jax.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.contest import Contender, at_least_one, contenders, in_process, print_head, print_row, ratio, rounds
from benchmarks.decoders import (
    Cell,
    start_ctranslate2,
    start_marian,
    start_onnx,
    start_saved_model,
    start_tf2onnx,
    start_tflite,
)
from benchmarks.prepare import prepare
from benchmarks.sentences import Ids
from keras_transformer.core.errors import JobError, RequestError, exit_status

SIZES = {
    "base": {"vocabulary_size": 8000, "num_layers": 6, "num_heads": 8, "hidden_dim": 512, "intermediate_dim": 2048},
    "small": {"vocabulary_size": 300, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32},
}
OTHERS = {
    "ctranslate2": start_ctranslate2,
    "marian": start_marian,
    "saved_model": start_saved_model,
    "tf2onnx": start_tf2onnx,
    "tflite": start_tflite,
}
FLOAT32_ONLY = ("marian", "saved_model", "tf2onnx")
# Some translations may differ. If two tokens are almost equally likely, rounding decides. With beams, both peers finish
# a hypothesis only if its end is among the K likeliest continuations. We finish it if its end is among the 2K
# likeliest, as tensor2tensor does, so with a trained model some of our translations differ, and are likelier.
MIN_IDENTICAL = 0.9
NUM_STEPS = 20  # with random weights, which never end a translation


def main(arguments: list[str] | None = None) -> None:
    """Prints the table.

    Raises:
        RequestError: there is no such run, or a peer cannot hold its model.
        JobError: a peer's translations differ from ours.
    """
    options = parse(arguments)
    cells = cells_of(options)
    if options.scratch and not Path(options.scratch).is_dir():
        raise RequestError(f"`--scratch` must be a folder that exists. Received: {options.scratch!r}")
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        folder = Path(name)
        in_process(prepare, folder, options.run, SIZES[options.sizes], cells, options.against)
        print_head(head(options.against))
        for cell in cells:
            print_row(contest(folder, cell, options))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--run", help="a trained run, whose validation sentences are translated (default: random weights)"
    )
    parser.add_argument("--sizes", choices=SIZES, default="base", help="of a model with random weights (default: base)")
    parser.add_argument(
        "--against", nargs="+", choices=OTHERS, default=list(OTHERS), help="decoders to compare with (default: all)"
    )
    parser.add_argument("--precision", nargs="+", choices=("float32", "float16", "int8"), default=["float32", "int8"])
    parser.add_argument("--beams", nargs="+", type=at_least_one, default=[1, 4])
    parser.add_argument("--batch", nargs="+", type=at_least_one, default=[1, 32])
    parser.add_argument("--threads", nargs="+", type=at_least_one, default=[1, 2])
    parser.add_argument("--length-penalty", type=float, default=0.0, help="α; outputs are compared only at 0")
    parser.add_argument("--batches", type=at_least_one, default=4,
                        help="batches in a turn; ten times as many for single sentences of a run")  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="for ONNX Runtime and the peers")
    parser.add_argument("--rounds", type=at_least_one, default=9)
    parser.add_argument("--scratch", help="folder for temporary models (default: the system's)")
    return parser.parse_args(arguments)


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """Returns every combination of the settings in the options."""
    settings = product(options.precision, options.threads, options.beams, options.batch)
    return [
        Cell(
            precision,
            num_beams,
            batch_size,
            num_threads,
            num_sentences=batch_size * options.batches * (10 if options.run and batch_size == 1 else 1),
            num_steps=0 if options.run else NUM_STEPS,
            length_penalty=options.length_penalty,
            device=options.device,
        )
        for precision, num_threads, num_beams, batch_size in settings
    ]


def contest(folder: Path, cell: Cell, options: argparse.Namespace) -> list[Any]:
    """Measures one row of the table.

    Raises:
        JobError: a peer's translations differ from ours.
    """
    names = [name for name in options.against if cell.precision == "float32" or name not in FLOAT32_ONLY]
    starts = {"onnx": (start_onnx, folder, cell), **{name: (OTHERS[name], folder, cell) for name in names}}
    with contenders(starts) as started:
        ours = started["onnx"]
        identical = {name: identical_share(ours.answer, started[name].answer, folder) for name in names}
        if cell.precision == "float32" and cell.length_penalty == 0 and min(identical.values()) < MIN_IDENTICAL:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in identical.items())
            raise JobError(f"expected the translations of our ONNX artefact; identical shares for {cell}: {shares}")
        seconds = rounds(started, options.rounds)
        columns = [cell.precision, cell.num_threads, cell.num_beams, cell.batch_size]
        columns += [f"{len(ours.answer) / statistics.median(seconds['onnx']):.1f}", footprint(ours)]
        for name in options.against:
            if name in names:
                columns += [ratio(seconds[name], seconds["onnx"]), f"{identical[name]:.0%}", footprint(started[name])]
            else:
                columns += ["–"] * 3
    return columns


def identical_share(ours: Ids, theirs: Ids | list[str], folder: Path) -> float:
    """Returns the share of equal translations, by their ids, or by their texts if the other gave texts."""
    expected: Ids | list[str] = ours
    if theirs and isinstance(theirs[0], str):
        from keras_transformer.text.tokenizer import Tokenizer

        expected = Tokenizer.load(folder / "tokenizer.model").decode(ours)
    return sum(our == their for our, their in zip(expected, theirs, strict=True)) / len(ours)


def footprint(contender: Contender) -> str:
    """Returns peak memory in MiB, seconds to load (with imports), and seconds of the first turn."""
    return f"{contender.peak_mib():.0f} / {contender.load_seconds:.2f} / {contender.first_seconds:.2f}"


def head(others: list[str]) -> list[str]:
    """Returns the head of the table."""
    columns = ["precision", "threads", "beams", "batch", "sentences/s", "MiB / s to load / s of the first turn"]
    for name in others:
        columns += [f"{name}: times longer", "same", "MiB / s / s"]
    return columns


if __name__ == "__main__":
    sys.exit(exit_status(main))
