"""Long text to short text with a language model: memory by the length, and documentation with its first sentences.

    python -m benchmarks.summaries --memory --lengths 1024 2048 4096 8192
    python -m benchmarks.summaries --out runs -- --preset modern --steps 1000 --threads 1

With `--memory`, each kind of attention trains a model on one row of each length, in a process of its own. The command
prints a Markdown table: the peak memory of the process, without that of a row of 64 tokens, and the time of a step.

Else it makes pairs of the docstrings in Python's own library. The source is a section: a name with its arguments, its
documentation without the first sentence, and that of its members; the target is the first sentence. One module in ten
is held out, without pairs whose target training has too. `train.py --task language-model` gets them and the flags after
`--`, once for each kind of attention. A row of the table has the loss of the held-out targets, in nats a token: each
beside its source, beside the source of another pair, and beside none. What the model takes from the source is the
difference.
"""

from __future__ import annotations

import argparse
import ast
import csv
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contest import at_least_one, in_process, peak_mib, print_head, print_row
from benchmarks.family import read_pairs, write_pairs
from keras_transformer.core.errors import JobError, exit_status
from keras_transformer.text.corpora import Pair

ATTENTIONS = ("full", "compressed")
SIZES = {"num_layers": 4, "hidden_dim": 128, "num_heads": 4, "intermediate_dim": 512, "dropout": 0.0}
VOCABULARY_SIZE = 1_000
BASE_LENGTH = 64  # of the row whose memory is that of the libraries and the weights
TIMED_STEPS = 3
NOT_DOCUMENTED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}
WORDS_OF_SOURCE, WORDS_OF_TARGET = (10, 5_000), (3, 40)  # the fewest and the most
HELD_OUT_MODULES = 10  # one in so many


class Cost(NamedTuple):
    """Of training on rows of one length."""

    mib: float  # at the peak
    seconds: float  # of a step


class Losses(NamedTuple):
    """Of the targets, in nats a token."""

    own: float  # beside their sources
    other: float  # beside the source of another pair
    none: float  # beside a blank source


def main(arguments: list[str] | None = None) -> None:
    """Prints one of the tables.

    Raises:
        JobError: a training failed.
    """
    options = parse(arguments)
    if options.memory:
        print_costs(options)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(options.out or name)
        folder.mkdir(parents=True, exist_ok=True)
        train, held_out = pairs_of(options.library)
        write_pairs(folder / "train", train)
        write_pairs(folder / "valid", held_out)
        print(f"{len(train):,} pairs, {len(held_out):,} held out", file=sys.stderr)
        if options.pairs_alone:
            return
        print_head(["attention", "parameters", "seconds a step", "its source", "another source", "no source"])
        for attention in options.attentions:
            run = folder / attention.partition(":")[0]
            if not run.is_dir():
                train_run(folder, run, attention, options.flags)
            print_row([attention, *in_process(figures, run, folder / "valid")])


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--memory", action="store_true", help="measure memory and time by the length")
    add("--lengths", nargs="+", type=at_least_one, default=[1024, 2048, 4096, 8192])
    add("--attentions", nargs="+", default=ATTENTIONS, metavar="NAME", help="(default: full compressed)")
    add("--threads", type=at_least_one, default=1, help="with --memory")
    add("--out", help="where to keep pairs and runs; a run that is there is measured, and not trained")
    add("--pairs-alone", action="store_true", help="write the pairs, and end")
    add("--library", default=sysconfig.get_path("stdlib"), help="Python files to take docstrings from")
    add("flags", nargs="*", help="flags of train.py, after --")
    return parser.parse_args(arguments)


def print_costs(options: argparse.Namespace) -> None:
    """Prints memory and time by the length."""
    print_head(["attention", "tokens", "MiB", "seconds a step"])
    for attention in options.attentions:
        base = in_process(cost, attention, BASE_LENGTH, options.threads)
        for length in options.lengths:
            found = in_process(cost, attention, length, options.threads)
            print_row([attention, f"{length:,}", f"{found.mib - base.mib:,.0f}", f"{found.seconds:.2f}"])


def cost(attention: str, length: int, num_threads: int) -> Cost:
    """Trains a model on one row of this length, in a process of its own."""
    from benchmarks.devices import configure_keras

    configure_keras("cpu", num_threads)
    import numpy as np

    from keras_transformer.losses import SmoothedCrossEntropy
    from keras_transformer.models import LanguageModel
    from keras_transformer.optimizers import Adam
    from keras_transformer.spec import model_spec

    part = model_spec.parse(attention, "attention", "attention")
    model = LanguageModel(VOCABULARY_SIZE, length, **SIZES, residual="pre_norm", attention=part)
    model.compile(Adam(1e-4), SmoothedCrossEntropy(0.0))
    ids = np.random.default_rng(1).integers(4, VOCABULARY_SIZE, (1, length)).astype("int32")

    def step() -> float:
        started = time.perf_counter()
        model.fit({"ids": ids}, ids, batch_size=1, verbose=0)
        return time.perf_counter() - started

    step()  # it traces the graph
    seconds = min(step() for _ in range(TIMED_STEPS))
    return Cost(peak_mib(), seconds)


def pairs_of(library: str) -> tuple[list[Pair], list[Pair]]:
    """The pairs to train on and those held out, from the Python files in a folder."""
    train: dict[Pair, None] = {}  # in order, each once
    held_out: dict[Pair, None] = {}
    for path in sorted(Path(library).rglob("*.py")):
        name = path.relative_to(library).with_suffix("")
        if not NOT_DOCUMENTED & {*name.parts}:
            part = held_out if zlib.crc32(name.parts[0].encode()) % HELD_OUT_MODULES == 0 else train
            part.update(dict.fromkeys(pairs_in(path, ".".join(name.parts).removesuffix(".__init__"))))
    known = {target for _, target in train}
    return list(train), [pair for pair in held_out if pair[1] not in known]


def pairs_in(path: Path, module: str) -> Iterator[Pair]:
    """The pairs of a file's docstrings."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for name, node in documented(tree, module):
        first, rest = divided(ast.get_docstring(node) or "")
        _, *members = documented(node, name)
        source = " ".join([f"{heading(name, node)} {rest}", *(heading(*one) + whole(one[1]) for one in members)])
        if is_between(source, WORDS_OF_SOURCE) and is_between(first, WORDS_OF_TARGET):
            yield source, first


def heading(name: str, node: Any) -> str:
    """The name of what is documented, with the arguments of a function."""
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return f"{name}({ast.unparse(node.args)}):" if is_function else f"{name}:"


def whole(node: Any) -> str:
    """A docstring in one line, behind a space."""
    return f" {one_line(ast.get_docstring(node) or '')}"


def documented(node: ast.AST, name: str) -> Iterator[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef]]:
    """What may have a docstring in a file, with its full name."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield name, node  # type: ignore[misc]
        for inner in node.body:
            yield from documented(inner, f"{name}.{getattr(inner, 'name', '')}")


def divided(text: str) -> tuple[str, str]:
    """A text's first sentence and the rest, a line each."""
    paragraph, _, rest = text.partition("\n\n")
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z])", paragraph.strip(), maxsplit=1)
    return one_line(sentences[0]), one_line(" ".join([*sentences[1:], rest]))


def one_line(text: str) -> str:
    """The text with single spaces."""
    return " ".join(text.split())


def is_between(text: str, bounds: tuple[int, int]) -> bool:
    """Whether the text has a number of words within the bounds."""
    return bounds[0] <= len(text.split()) <= bounds[1]


def train_run(folder: Path, run: Path, attention: str, flags: Sequence[str]) -> None:
    """Trains a run on the pairs in the folder.

    Raises:
        JobError: training failed.
    """
    files = {"--source": "train.source", "--target": "train.target"}
    files |= {"--valid-source": "valid.source", "--valid-target": "valid.target"}
    command = [sys.executable, "-m", "keras_transformer", "train", "--task", "language-model", *flags]
    command += [text for flag, file in files.items() for text in (flag, str(folder / file))]
    if subprocess.run([*command, "--attention", attention, "--out", str(run)]).returncode:
        raise JobError(f"the training with {attention} attention failed")


def figures(run: Path, valid: Path) -> list[str]:
    """The figures of a run, in a process of its own."""
    from keras_transformer import load_generator

    generator = load_generator(run)
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    sources, targets = read_pairs(valid)
    others = [*sources[1:], *sources[:1]]
    losses = Losses(*(loss(generator, some, targets) for some in (sources, others, [""] * len(sources))))
    seconds = float(last["seconds"]) / float(last["step"])
    return [f"{generator.model.count_params():,}", f"{seconds:.2f}", *(f"{number:.3f}" for number in losses)]


def loss(generator: object, sources: list[str], targets: list[str]) -> float:
    """The loss of targets beside sources, in nats a token."""
    scores = generator.score_answers(sources, targets)  # type: ignore[attr-defined]
    return -sum(score.log_prob for score in scores) / sum(score.num_tokens for score in scores)


if __name__ == "__main__":
    sys.exit(exit_status(main))
