"""`python -m keras_transformer COMMAND RUN`: what can be done with a trained run."""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from keras_transformer.errors import RequestError, exit_status, load_tensorflow, say, warn

if TYPE_CHECKING:
    from keras_transformer.decoding.translator import Hypothesis, SearchOptions

# Keras and TensorFlow take seconds: commands import what needs them, and `--help` does not.


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    arguments = make_parser().parse_args(argv)
    return exit_status(lambda: arguments.command(arguments))


def translate(arguments: argparse.Namespace) -> None:
    """Standard input to standard output, in order, while it comes."""
    load_tensorflow()
    from keras_transformer.decoding.translator import load
    from keras_transformer.text.corpora import read_lines

    if sys.stdin is None or sys.stdout is None:
        raise RequestError("standard input and standard output must be open; received one that is closed")
    options = search_options(arguments)
    translator = load(arguments.run, arguments.max_source_length)
    source = TextLines(sys.stdin.buffer)
    prefixes = None if arguments.prefix is None else read_lines(arguments.prefix)
    for number, hypotheses in enumerate(translator.stream(source, options, prefixes)):
        lines = "".join(output_line(hypothesis, number, arguments) for hypothesis in hypotheses)
        sys.stdout.buffer.write(lines.encode("utf-8"))
        sys.stdout.buffer.flush()
    if source.num_invalid:
        warn(f"{source.num_invalid} line(s) were not UTF-8; what was invalid in them became U+FFFD")


def output_line(hypothesis: Hypothesis, number: int, arguments: argparse.Namespace) -> str:
    """One translation as `--n-best`, `--scores` and `--alignments` ask for it."""
    text, score = hypothesis.text, f"{hypothesis.score:.4f}"
    alignment = " ".join(f"{source}-{target}" for source, target in hypothesis.alignment)
    if arguments.n_best is None:
        fields = [score] * arguments.scores + [text] + [alignment] * arguments.alignments
        return "\t".join(fields) + "\n"
    return " ||| ".join([str(number), text, score] + [alignment] * arguments.alignments) + "\n"


def search_options(arguments: argparse.Namespace) -> SearchOptions:
    """The options of a search or of sampling, checked."""
    from keras_transformer.decoding.translator import SearchOptions

    given = vars(arguments)
    of_sampling = ("temperature", "top_k", "top_p", "seed")
    sampled = {name: given[name] for name in of_sampling if given.get(name) is not None}
    if sampled and not arguments.sample:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in sampled)
        raise RequestError(f"{flags} expects --sample, which was not given: add it, or leave out {flags}")
    return SearchOptions(
        num_beams=arguments.beams,
        length_penalty=arguments.length_penalty,
        max_length=arguments.max_length,
        batch_size=arguments.batch_size,
        n_best=given.get("n_best") or 1,
        sampling=given.get("sample", False),
        alignments=given.get("alignments", False),
        **sampled,
    )


class TextLines:
    """Text from bytes: a line ends at \\n alone, a \\r before it is dropped, the rest is UTF-8.

    What is not becomes U+FFFD; `num_invalid` counts the lines in which that happened.
    """

    def __init__(self, stream: IO[bytes]):
        self.stream = stream
        self.num_invalid = 0

    def __iter__(self) -> Iterator[str]:
        for line in self.stream:
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                self.num_invalid += 1
                yield line.decode("utf-8", "replace")


def evaluate(arguments: argparse.Namespace) -> None:
    """One JSON object."""
    load_tensorflow()
    from keras_transformer.decoding.translator import load

    options = search_options(arguments)
    sources, references = read_both(arguments.source, arguments.reference)
    print(json.dumps(load(arguments.run).evaluate(sources, references, options)))


def score(arguments: argparse.Namespace) -> None:
    """log P and perplexity, a line for a line; of all together on standard error."""
    load_tensorflow()
    from keras_transformer.decoding.translator import Score, load

    sources, targets = read_both(arguments.source, arguments.target)
    scores = load(arguments.run).score(sources, targets, arguments.batch_size)
    for one in scores:
        print(f"{one.log_prob:.4f}\t{one.perplexity:.4f}")
    total = Score(sum(one.log_prob for one in scores), sum(one.num_tokens for one in scores))
    say(f"in all: log P {total.log_prob:.4f}, perplexity {total.perplexity:.4f}, {total.num_tokens} tokens")


def read_both(source: str, target: str) -> tuple[list[str], list[str]]:
    """The lines of two files, of which line n belongs to line n."""
    from keras_transformer.text.corpora import read_lines

    sources, targets = list(read_lines(source)), list(read_lines(target))
    if len(sources) != len(targets) or not sources:
        raise RequestError(
            f"expected as many lines in both files, and one at least; {source} has {len(sources)}, "
            f"{target} has {len(targets)}: align them"
        )
    return sources, targets


def average(arguments: argparse.Namespace) -> None:
    """Writes model.keras anew."""
    load_tensorflow()
    from keras_transformer.training.checkpoints import average

    steps = average(arguments.run, arguments.last)
    say(f"model.keras is now the mean of {len(steps)} checkpoints, of steps {', '.join(map(str, steps))}")


def info(arguments: argparse.Namespace) -> None:
    """What the run is made of, and how it went; what is missing is left out."""
    from keras_transformer.models import count_parameters
    from keras_transformer.run_folder import RunFolder, read_config

    run = RunFolder(arguments.run)
    config = read_config(run)
    print(f"run: {run.path}")
    # A run says it; one of version 0.1 does not, and Keras takes seconds to import.
    print(f"parameters: {config.get('parameters') or count_parameters(config['model']):,}")
    if config["settings"].get("source"):  # a run of the user's own text; older ones name the default corpus too
        config["settings"]["dataset"] = None
    for section in ("model", "corpus", "settings", "versions", "weights"):
        if config.get(section):
            print(f"{section}:")
            for name, value in config[section].items():
                print(f"  {name}: {json.dumps(value, ensure_ascii=False)}")
    print(f"model.keras: {'there' if run.model.is_file() else 'not yet; train.py --resume finishes the run'}")
    rows = read_metrics(run.metrics)
    if not rows:
        print("metrics: none yet")
        return
    print("last metrics:")
    for name, value in rows[-1].items():
        print(f"  {name}: {value}")
    best = max(rows, key=lambda row: number(row.get("val_bleu")))
    if best.get("val_bleu"):
        print(f"best val_bleu: {best['val_bleu']}, at step {best.get('step', 'unknown')}")


def read_metrics(path: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv; none where it is missing or damaged."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [{k: v for k, v in row.items() if k and isinstance(v, str)} for row in csv.DictReader(file)]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        warn(f"{path} cannot be read: {error}")
        return []


def number(text: str | None) -> float:
    """The number that the text spells, or -inf."""
    try:
        value = float(text or "")
    except ValueError:
        return -math.inf
    return -math.inf if math.isnan(value) else value


def make_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    program = "python -m keras_transformer"
    about = "What can be done with a trained run."
    parser = argparse.ArgumentParser(prog=program, description=about, allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command, add_options, help in (
        (translate, add_translate_options, "translate standard input to standard output, a line for a line"),
        (evaluate, add_evaluate_options, "translate a file and compare with a reference: one JSON object"),
        (score, add_score_options, "log P and perplexity of given translations, a line for a line"),
        (average, add_average_options, "make model.keras the mean of the last checkpoints"),
        (info, None, "what a run is and how it went"),
    ):
        description = f"{help[0].upper()}{help[1:]}."
        one = commands.add_parser(command.__name__, help=help, description=description, allow_abbrev=False)
        one.set_defaults(command=command)
        one.add_argument("run", metavar="RUN", help="the run folder")
        if add_options is not None:
            add_options(one)
    return parser


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """What `translate` and `evaluate` share."""
    penalty = "ALPHA of score = log P / ((5 + length) / 6)^ALPHA; more is kinder to long translations"
    longest = "the most pieces of a translation (default, and at most: those of its source + 50)"
    add = parser.add_argument
    add(
        "--beams",
        type=int,
        default=4,
        metavar="K",
        help="hypotheses followed at once; 1: greedy (default: 4)",
    )
    add("--length-penalty", type=float, default=0.6, metavar="ALPHA", help=f"{penalty} (default: 0.6)")
    add("--max-length", type=int, metavar="N", help=longest)
    add("--batch-size", type=int, default=64, metavar="N", help="sentences translated at once (default: 64)")


def add_translate_options(parser: argparse.ArgumentParser) -> None:
    """What `translate` takes."""
    parser.epilog = (
        "Lines are read 32 batches ahead, to be sorted by length; with --batch-size 1 each is answered "
        "at once. An alignment is SOURCE-TARGET for each piece of the translation, pieces counted from 0."
    )
    add_search_options(parser)
    best = "print `LINE ||| TEXT ||| SCORE`, lines counted from 0, for the N best of each line"
    prefix = "a file with, for each line, the text with which its translation must begin; blank: any"
    longest = "the pieces after which a source is cut, with a warning (default: the model's, mostly 512)"
    add = parser.add_argument
    add("--n-best", type=int, metavar="N", help=best)
    add("--scores", action="store_true", help="print `SCORE <tab> TEXT`")
    add("--alignments", action="store_true", help="print the alignment with the source in one more column")
    add("--prefix", metavar="FILE", help=prefix)
    add("--max-source-length", type=int, metavar="N", help=longest)
    add("--sample", action="store_true", help="draw translations at random in place of the search")
    add("--temperature", type=float, metavar="T", help="of --sample: divides the logits (default: 1.0)")
    add("--top-k", type=int, metavar="K", help="of --sample: only the K likeliest pieces (default: 0, all)")
    add("--top-p", type=float, metavar="P", help="of --sample: only the likeliest that reach P (default: 1.0)")
    add("--seed", type=int, metavar="N", help="of --sample: the same seed draws the same (default: 0)")


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """What `evaluate` takes."""
    add = parser.add_argument
    add("--source", required=True, metavar="FILE", help="text to translate, plain or .gz")
    add("--reference", required=True, metavar="FILE", help="what it should be, line by line, plain or .gz")
    add_search_options(parser)


def add_score_options(parser: argparse.ArgumentParser) -> None:
    """What `score` takes."""
    add = parser.add_argument
    add("--source", required=True, metavar="FILE", help="text, plain or .gz")
    add("--target", required=True, metavar="FILE", help="its translation, line by line, plain or .gz")
    add("--batch-size", type=int, default=16, metavar="N", help="sentences scored at once (default: 16)")


def add_average_options(parser: argparse.ArgumentParser) -> None:
    """What `average` takes."""
    parser.add_argument("--last", type=int, default=5, metavar="N", help="how many checkpoints (default: 5)")


if __name__ == "__main__":
    sys.exit(main())
