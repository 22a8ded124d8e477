"""`evaluate` and `score`: a translator against given translations."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from keras_transformer.commands.lines import read_both
from keras_transformer.errors import RequestError, load_tensorflow, say, warn
from keras_transformer.export_folder import ExportFolder
from keras_transformer.run_folder import RunFolder, read_config
from keras_transformer.tasks.translation.commands.engines import (
    add_engine_options,
    add_provider_option,
    open_translator,
)
from keras_transformer.tasks.translation.commands.search import add_search_options, own_search_of, search_options

if TYPE_CHECKING:
    from keras_transformer.decoding.results import Score
    from keras_transformer.text.tokenizer import Tokenizer

    Scorer = Callable[[list[str], list[str], int], list[Score]]


def evaluate(arguments: argparse.Namespace) -> None:
    """Prints one JSON object: BLEU, chrF and speed."""
    if arguments.source is None or arguments.reference is None:
        raise RequestError("expected --source and --reference, for a run that translates")
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
    """Prints log P and perplexity of translations, a line for a line, and of all on standard error."""
    score_pairs(arguments, lambda: scorer(arguments.run, arguments.provider))


def score_pairs(arguments: argparse.Namespace, open_scorer: Callable[[], Scorer]) -> None:
    """Prints log P and perplexity, a line for a line, and for all lines together on standard error."""
    from keras_transformer.decoding.results import Score

    if arguments.source is None or arguments.target is None:
        raise RequestError("expected --source and --target, a line of one for each line of the other")
    lines = read_both(arguments.source, arguments.target)
    scores = open_scorer()(lines.sources, lines.targets, arguments.batch_size)
    for one in scores:
        print(f"{one.log_prob:.4f}\t{one.perplexity:.4f}")
    total = Score(sum(one.log_prob for one in scores), sum(one.num_tokens for one in scores))
    say(f"in all: log P {total.log_prob:.4f}, perplexity {total.perplexity:.4f}, {total.num_tokens} tokens")


def scorer(folder: str, provider: str = "auto") -> Scorer:
    """What scores translations with a run, or with an export, which needs neither Keras nor TensorFlow.

    Raises:
        RequestError: a provider of ONNX Runtime is given, and the folder is a run, which Keras scores with.
    """
    from keras_transformer.tasks.translation.pipeline import load

    if ExportFolder(folder).is_export() and not RunFolder(folder).is_run():
        return load(folder, provider=provider).score
    if provider != "auto":
        raise RequestError(f"--provider {provider} is for exports; {folder} is a run: leave it out, or give an export")
    read_config(folder)
    load_tensorflow()
    return load(folder).score


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `evaluate`."""
    add = parser.add_argument
    add("--source", metavar="FILE", help="text to translate, plain or .gz")
    add("--reference", metavar="FILE", help="its correct translation, line by line, plain or .gz")
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
    add_pair_options(parser)
    add_provider_option(parser)


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name pairs to score."""
    add = parser.add_argument
    add("--source", metavar="FILE", help="text, plain or .gz")
    add("--target", metavar="FILE", help="its translation or answer, line by line, plain or .gz")
    add("--batch-size", type=int, default=16, metavar="N", help="sentences scored at once (default: 16)")
