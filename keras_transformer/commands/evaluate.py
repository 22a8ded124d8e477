"""`evaluate` and `score`: a run against given translations."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from keras_transformer.commands.engines import add_engine_options, add_provider_option, open_translator
from keras_transformer.commands.recommend import evaluate_log
from keras_transformer.commands.search import add_search_options, own_search_of, search_options
from keras_transformer.errors import RequestError, load_tensorflow, say, warn
from keras_transformer.export_folder import ExportFolder
from keras_transformer.run_folder import RunFolder, read_config

if TYPE_CHECKING:
    from keras_transformer.decoding.results import Score
    from keras_transformer.text.tokenizer import Tokenizer


class ParallelLines(NamedTuple):
    """The lines of two files: line n of one belongs to line n of the other."""

    sources: list[str]
    targets: list[str]


def evaluate(arguments: argparse.Namespace) -> None:
    """Prints one JSON object: BLEU, chrF and speed; of a log recall and NDCG."""
    if arguments.log is not None and arguments.tokenize is not None:
        raise RequestError("--tokenize is for BLEU of translations; received --log: leave out --tokenize")
    given = [value is not None for value in (arguments.source, arguments.reference, arguments.log)]
    if given not in ([True, True, False], [False, False, True]):
        raise RequestError("expected --source and --reference for a translator, or --log for a next-item run")
    if arguments.log is None:
        evaluate_translations(arguments)
    else:
        evaluate_log(arguments)


def evaluate_translations(arguments: argparse.Namespace) -> None:
    """Prints BLEU, chrF and speed."""
    options = search_options(arguments, own_search_of(arguments))
    lines = read_both(arguments.source, arguments.reference)
    translator = open_translator(arguments, options)
    options = search_options(arguments, translator.search)
    warn_of_training_text(RunFolder(arguments.run), lines.sources, translator.source_tokenizer)
    print(json.dumps(translator.evaluate(lines.sources, lines.targets, options, arguments.tokenize)))


def warn_of_training_text(run: RunFolder, sources: list[str], tokenizer: Tokenizer) -> None:
    """Warns of sources on which the run was trained, as far as its tokenised text is still there.

    Args:
        run: the folder.
        sources: the lines that are translated.
        tokenizer: of the run's sources.
    """
    from keras_transformer.text.tokenized import TokenizedCorpus

    try:
        trained = TokenizedCorpus.open(run.cache / "train")
    except RequestError:
        return
    if known := trained.sources_among(filter(None, tokenizer.encode(sources)), tokenizer.tags.values()):
        warn(f"{run.path} was trained on {known:,} of these {len(sources):,} sources: its figures say less of new text")


def score(arguments: argparse.Namespace) -> None:
    """Prints log P and perplexity: of translations a line for a line, of a text in one JSON object."""
    if (arguments.text is None) == (arguments.source is None) or (arguments.source is None) != (
        arguments.target is None
    ):
        raise RequestError(
            "expected --source and --target for a translator or a language model of pairs, or --text for a language "
            "model of text"
        )
    if arguments.text is None:
        score_pairs(arguments)
    else:
        score_text(arguments)


def score_text(arguments: argparse.Namespace) -> None:
    """Prints what a language model says of a whole text."""
    load_tensorflow()
    from keras_transformer.decoding.generator import load_generator
    from keras_transformer.text.lines import read_lines

    generator = load_generator(arguments.run)
    if generator.answer_length is not None:
        raise RequestError(f"{arguments.run} answers texts: score pairs with it, by --source and --target")
    text = "".join(f"{line}\n" for line in read_lines(arguments.text))
    score = generator.score(text)
    loss = -score.log_prob / score.num_tokens
    figures = {
        "log_prob": score.log_prob,
        "tokens": score.num_tokens,
        "characters": len(text),
        "nats_per_token": loss,
        "perplexity": score.perplexity,
        "bits_per_character": -score.log_prob / math.log(2) / len(text),
    }
    print(json.dumps(figures))


def score_pairs(arguments: argparse.Namespace) -> None:
    """Prints log P and perplexity, a line for a line, and for all lines together on standard error."""
    from keras_transformer.decoding.results import Score

    lines = read_both(arguments.source, arguments.target)
    scores = scorer(arguments.run, arguments.provider)(lines.sources, lines.targets, arguments.batch_size)
    for one in scores:
        print(f"{one.log_prob:.4f}\t{one.perplexity:.4f}")
    total = Score(sum(one.log_prob for one in scores), sum(one.num_tokens for one in scores))
    say(f"in all: log P {total.log_prob:.4f}, perplexity {total.perplexity:.4f}, {total.num_tokens} tokens")


def scorer(folder: str, provider: str = "auto") -> Callable[[list[str], list[str], int], list[Score]]:
    """What scores pairs with a run, or with an export, which needs neither Keras nor TensorFlow.

    Raises:
        RequestError: a provider of ONNX Runtime is given, and the folder is a run, which Keras scores with.
    """
    from keras_transformer.decoding.translator import load

    if ExportFolder(folder).is_export() and not RunFolder(folder).is_run():
        return load(folder, provider=provider).score
    if provider != "auto":
        raise RequestError(f"--provider {provider} is for exports; {folder} is a run: leave it out, or give an export")
    answers = read_config(folder)["model"]["kind"] == "language-model"
    load_tensorflow()
    from keras_transformer.decoding.generator import load_generator

    return load_generator(folder).score_answers if answers else load(folder).score


def read_both(source: str, target: str) -> ParallelLines:
    """Reads two parallel files.

    Raises:
        RequestError: they have no lines, or not equally many.
    """
    from keras_transformer.text.lines import read_lines

    lines = ParallelLines(list(read_lines(source)), list(read_lines(target)))
    if len(lines.sources) != len(lines.targets) or not lines.sources:
        raise RequestError(
            f"expected as many lines in both files, and one at least; {source} has {len(lines.sources)}, "
            f"{target} has {len(lines.targets)}: align them"
        )
    return lines


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `evaluate`."""
    add = parser.add_argument
    add("--source", metavar="FILE", help="text to translate, plain or .gz")
    add("--reference", metavar="FILE", help="its correct translation, line by line, plain or .gz")
    add("--log", metavar="FILE", help="for a next-item run: a log, whose users' last events are to be told")
    add_tokenize_option(parser)
    add_search_options(parser)
    add_engine_options(parser)


def add_tokenize_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names BLEU's tokenizer."""
    parser.add_argument(
        "--tokenize",
        metavar="NAME",
        help="sacreBLEU's tokenizer for BLEU: 13a, intl, char, zh, ja-mecab, ko-mecab, none, spm, flores101, flores200 "
        "or spBLEU-1K (default: zh, ja-mecab or ko-mecab if the run's target language is one of these, else 13a)",
    )


def add_score_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `score`."""
    add = parser.add_argument
    add("--source", metavar="FILE", help="for a translator or a model of pairs: text, plain or .gz")
    add("--target", metavar="FILE", help="its translation or answer, line by line, plain or .gz")
    add(
        "--text",
        metavar="FILE",
        help="for another language model: text, plain or .gz, in windows of the context",
    )
    add("--batch-size", type=int, default=16, metavar="N", help="sentences scored at once (default: 16)")
    add_provider_option(parser)
