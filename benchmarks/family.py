"""What each variant of the family is good for: all train on the same small task, with the same steps and seed.

    python -m benchmarks.family --out family.png
    python -m benchmarks.family --dataset multi30k:en-de --data-dir multi30k --steps 3000
    python -m benchmarks.family --variants default "positions rotary"

The task is number words, or a corpus that `--dataset` names. Training text has only the pairs whose source has few
words (`--longest`). Each run then translates held-out sentences of these lengths, and longer ones than any in
training. The command prints a Markdown table with a row for each variant: parameters, operations of the matrix products
in training, target tokens a second in training, BLEU and the share of exact translations on both kinds of sentences,
and sentences a second of the ONNX translator with one thread, greedy and in batches of 32. One seed says little:
compare differences with those between seeds (`--seed`).
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contest import at_least_one, check_picture, in_process, print_head, print_row
from keras_transformer.core.errors import JobError, exit_status
from keras_transformer.spec import part_registry
from keras_transformer.text.corpora import Pair, load_corpus

DEFAULT = "default"
LONGEST = {"numbers": 7, "multi30k": 12}  # words of a source in training
# What shows a variant on short sentences, in place of its defaults.
OPTIONS = {"windowed": "windowed:width=7", "local": "local:width=6", "compressed": "compressed:width=6"}
# Other arguments that a variant is meant to have.
COMPANIONS = {
    "gated": ["--activation", "silu"],  # SwiGLU
    "universal": ["--positions", "none"],  # it adds coordinates by itself
}
MORE = {
    "attention full, one key head": ["--attention", "full:num_key_value_heads=1"],
    "preset modern": ["--preset", "modern"],  # the sizes are the corpus's
}
BATCH_SIZE = 32


class Quality(NamedTuple):
    """Of translations: BLEU, and the share that is exact."""

    bleu: float
    exact: float

    def __str__(self) -> str:
        return f"{self.bleu:.1f}, {self.exact:.0%}"


class Figures(NamedTuple):
    """What was measured of one run."""

    parameters: int
    operations: float  # in the matrix products of training
    tokens_a_second: float
    short: Quality
    long: Quality
    sentences_a_second: float  # of the ONNX translator


def main(arguments: list[str] | None = None) -> None:
    """Prints the table and draws quality and speed.

    Raises:
        RequestError: the picture cannot be written there, or there is no such corpus.
        JobError: a training failed.
    """
    options = parse(arguments)
    check_picture(options.out)
    head = ["variant", "parameters", "operations in training", "target tokens/s in training"]
    head += ["BLEU, exact", "BLEU, exact: longer sources", "sentences/s of ONNX"]
    figures: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_task(folder, options)
        print_head(head)
        for variant in options.variants:
            train(folder, variant, [*recipe, *variants()[variant]], options)
            figures[variant] = in_process(measure, folder, variant, options.rounds)
            print_row([variant, *cells(figures[variant])])
    if options.out:
        draw(figures, options.out)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--dataset", default="numbers:en-de", help="a named corpus, as for train.py (default: numbers:en-de)")
    add("--data-dir", help="a folder that holds the corpus")
    add("--variants", nargs="+", choices=variants(), default=list(variants()), metavar="NAME", help="(default: all)")
    add("--steps", type=at_least_one, default=1_000)
    add("--longest", type=at_least_one, help="words of a source in training (default: 7 for numbers, 12 for Multi30k)")
    add("--sentences", type=at_least_one, default=500, help="held-out sentences of each kind (default: 500)")
    add("--seed", type=int, default=1)
    add("--threads", type=at_least_one, default=2, help="in training (default: 2)")
    add("--rounds", type=at_least_one, default=3, help="of the ONNX translator (default: 3)")
    add("--out", help="write a picture of quality and speed here, .png")
    return parser.parse_args(arguments)


def variants() -> dict[str, list[str]]:
    """The flags of each variant, by its name: the default, then every other part of every slot."""
    found: dict[str, list[str]] = {DEFAULT: []}
    for slot, parts in part_registry.SLOTS.items():
        for name in list(parts)[1:]:
            flag = f"--{slot.replace('_', '-')}"
            found[f"{slot} {name}"] = [flag, OPTIONS.get(name, name), *COMPANIONS.get(name, [])]
    return found | MORE


def write_task(folder: Path, options: argparse.Namespace) -> list[str]:
    """Writes the text of training and of both tests; returns the flags of the corpus's recipe."""
    corpus = load_corpus(options.dataset, options.data_dir)
    longest = options.longest or LONGEST.get(options.dataset.partition(":")[0], 12)
    write_pairs(folder / "train", (pair for pair in corpus.train() if num_words(pair) <= longest))
    held_out = list(corpus.valid())
    write_pairs(folder / "short", [pair for pair in held_out if num_words(pair) <= longest][: options.sentences])
    write_pairs(folder / "long", [pair for pair in held_out if num_words(pair) > longest][: options.sentences])
    return [text for name, value in corpus.recipe.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def num_words(pair: Pair) -> int:
    """The number of words of the source."""
    return len(pair[0].split())


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Writes `path`.source and `path`.target."""
    sides = zip(*pairs, strict=True)
    for suffix, lines in zip((".source", ".target"), sides, strict=True):
        path.with_suffix(suffix).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_pairs(path: Path) -> tuple[list[str], list[str]]:
    """The sources and the targets that `write_pairs` wrote."""
    source, target = (path.with_suffix(suffix).read_text(encoding="utf-8") for suffix in (".source", ".target"))
    return source.splitlines(), target.splitlines()


def train(folder: Path, variant: str, flags: Sequence[str], options: argparse.Namespace) -> None:
    """Trains a run of this name in the folder.

    Raises:
        JobError: training failed.
    """
    files = {"--source": "train.source", "--target": "train.target"}
    files |= {"--valid-source": "short.source", "--valid-target": "short.target", "--out": variant}
    command = [sys.executable, "-m", "keras_transformer", "train", "--preset", "tiny", *flags]
    command += [text for flag, file in files.items() for text in (flag, str(folder / file))]
    command += ["--steps", str(options.steps), "--checkpoint-every", str(options.steps), "--bleu-sentences", "0"]
    command += ["--average-last", "1", "--seed", str(options.seed), "--threads", str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise JobError(f"the training of {variant!r} failed: {done.stderr[-500:]}")


def measure(folder: Path, variant: str, count: int) -> Figures:
    """Measures a run, in a process of its own."""
    from export.artefacts import open_run

    run = folder / variant
    trained = open_run(run)
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    tokens = float(last["tokens"])
    return Figures(
        trained.model.count_params(),
        tokens * operations_a_token(trained.model),
        tokens / float(last["seconds"]),
        quality(trained.pipeline, folder / "short"),
        quality(trained.pipeline, folder / "long"),
        onnx_speed(folder, trained, count),
    )


def quality(translator: Any, pairs: Path) -> Quality:
    """Of the greedy translations of the pairs' sources."""
    from keras_transformer.text.bleu import bleu

    sources, references = read_pairs(pairs)
    translations = translator.translate(sources, num_beams=1)
    exact = sum(map(str.__eq__, translations, references)) / len(references)
    return Quality(bleu(translations, references), exact)


def operations_a_token(model: Any, length: int = 16) -> float:
    """Multiplications and additions a target token in the matrix products, forward and backward (three times forward).

    They are counted in the TensorFlow graph for one sentence pair of this length.
    """
    import tensorflow as tf

    ids = tf.TensorSpec((1, length), tf.int32)
    forward = tf.function(model, autograph=False).get_concrete_function({"source_ids": ids, "target_ids": ids})
    products = [op for op in forward.graph.get_operations() if "MatMul" in op.type]
    return 3 * sum(2 * math.prod(op.outputs[0].shape) * inner_size(op) for op in products) / length


def inner_size(product: Any) -> int:
    """The size that a matrix product sums over."""
    is_transposed = any(name in product.node_def.attr and product.get_attr(name) for name in ("transpose_a", "adj_x"))
    return product.inputs[0].shape[-2 if is_transposed else -1]


def onnx_speed(folder: Path, trained: Any, count: int) -> float:
    """Sentences a second of the ONNX translator."""
    from benchmarks.devices import onnx_session
    from benchmarks.sentences import END, padded
    from export.artefacts import Decoding
    from export.onnx.export import write_graph

    path = folder / "translate.onnx"
    write_graph(trained, path, "translate", Decoding(num_beams=1), "float32")
    sources, _ = read_pairs(folder / "short")
    ids = sorted(([*pieces, END] for pieces in trained.pipeline.source_tokenizer.encode(sources)), key=len)
    batches = [padded(ids[start : start + BATCH_SIZE]) for start in range(0, len(ids), BATCH_SIZE)]
    session = onnx_session(path, "cpu", 1)
    return len(ids) / statistics.median(turns(session, batches, count))


def turns(session: Any, batches: Sequence[Any], count: int) -> Iterator[float]:
    """The seconds of each turn, which translates all batches; the first one is for warming up."""
    for turn in range(count + 1):
        started = time.perf_counter()
        for batch in batches:
            session.run(["target_ids"], {"source_ids": batch})
        if turn:
            yield time.perf_counter() - started


def cells(figures: Figures) -> list[str]:
    """The figures as cells of the table."""
    speed = f"{figures.sentences_a_second:,.0f}"
    numbers = [f"{figures.parameters:,}", f"{figures.operations:.1e}", f"{figures.tokens_a_second:,.0f}"]
    return [*numbers, str(figures.short), str(figures.long), speed]


def draw(figures: dict[str, Figures], path: str) -> None:
    """Draws a row for each variant: the BLEU of both kinds of sentences, and beside it the speed of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.2 + 0.24 * len(figures)), layout="constrained")
    quality, speed = figure.subplots(1, 2, sharey=True)
    names = list(figures)
    for kind, marker, label in (("short", "o", "sources as in training"), ("long", "D", "longer sources")):
        quality.plot([getattr(one, kind).bleu for one in figures.values()], names, marker, mfc="none", label=label)
    speed.plot([one.tokens_a_second for one in figures.values()], names, "o", color="black", markerfacecolor="none")
    quality.set(xlabel="BLEU", xlim=(-3, 103))
    speed.set(xlabel="target tokens a second in training", xlim=(0, None))
    speed.xaxis.set_major_formatter("{x:,.0f}")
    quality.invert_yaxis()  # the default on top; the panels share the axis
    for axes in (quality, speed):
        axes.grid(True, alpha=0.3)
    figure.legend(*quality.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    sys.exit(exit_status(main))
