"""`evaluate`, `score` and `compare`: how good translations are."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from keras_transformer.commands.graph_cache import Engine
from keras_transformer.commands.streams import ParallelLines, read_both
from keras_transformer.core.errors import RequestError, print_result, say, warn
from keras_transformer.decoding.decoder import Score
from keras_transformer.runs.export_folder import ExportFolder
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation.commands.translate import (
    in_direction,
    open_with_options,
    own_search_of,
    sides_of,
)
from keras_transformer.tasks.translation.loading import Asked, decoder_for, translator_of
from keras_transformer.text.bleu import checked_tokenizer, paired_quality
from keras_transformer.text.tokenized import TokenizedCorpus

if TYPE_CHECKING:
    from keras_transformer.text.tokenizer import Tokenizer

    Scorer = Callable[[list[str], list[str], int], list[Score]]
    from keras_transformer.tasks.translation.pipeline import Translator


def evaluate(arguments: argparse.Namespace) -> None:
    """Prints one JSON object: BLEU, chrF and speed."""
    if arguments.source is None or arguments.reference is None:
        raise RequestError("expected --source and --reference, for a run that translates")
    lines = read_both(arguments.source, arguments.reference)
    checked_tokenizer(arguments.tokenize, None)
    translator, options = open_with_options(arguments)
    warn_of_text(arguments.run, lines, translator.source_tokenizer)
    print_result(json.dumps(translator.evaluate(lines.sources, lines.targets, options, arguments.tokenize)))


def warn_of_text(folder: str, lines: ParallelLines, tokenizer: Tokenizer) -> None:
    """Warns of swapped sides, and of sources on which a run was trained, as far as its text is still there.

    Args:
        folder: a run or an export.
        lines: what is translated, and the references.
        tokenizer: the tokenizer of the run's sources; a run with tags may have both directions.
    """
    run = RunFolder(ExportFolder(folder).path)
    with suppress(RequestError):
        kept = read_both(str(run.valid_source), str(run.valid_target))
        if not tokenizer.tags and are_swapped(lines, kept):
            warn(f"the source looks like what {run.path} writes, the reference like what it reads: swap the two files")
    with suppress(RequestError):
        trained, ids = TokenizedCorpus.open(run.cache / "train"), filter(None, tokenizer.encode(lines.sources))
        if known := trained.sources_among(ids, tokenizer.tags.values()):
            what = f"{known:,} of these {len(lines.sources):,} sources"
            warn(f"{run.path} was trained on {what}: its figures say less of new text")


def are_swapped(given: ParallelLines, kept: ParallelLines) -> bool:
    """Tells whether sources look like the kept targets and targets like the kept sources, by three letters in a row.

    Args:
        given, kept: two texts; the first thousand lines of each are looked at.
    """
    (source, target), own = ([_profile(side[:1_000]) for side in sides] for sides in (given, kept))
    straight, crossed = ([_cosine(source, one), _cosine(target, other)] for one, other in (own, own[::-1]))
    return sum(crossed) > sum(straight) + 0.1


def _profile(lines: Sequence[str]) -> Counter[str]:
    return Counter(line[place : place + 3] for line in lines for place in range(len(line) - 2))


def _cosine(one: Counter[str], other: Counter[str]) -> float:
    return sum(one[each] * other[each] for each in one) / (math.hypot(*one.values()) * math.hypot(*other.values()) or 1)


def score(arguments: argparse.Namespace) -> None:
    """Prints log P and perplexity of translations, a line for a line, and of all on standard error."""
    score_pairs(arguments, lambda: scorer(arguments).score)


def score_pairs(arguments: argparse.Namespace, open_scorer: Callable[[], Scorer]) -> None:
    """Prints log P and perplexity, a line for a line, and for all lines together on standard error."""
    if arguments.source is None or arguments.target is None:
        raise RequestError("expected --source and --target, a line of one for each line of the other")
    lines = read_both(arguments.source, arguments.target)
    scores = open_scorer()(lines.sources, lines.targets, arguments.batch_size)
    for one in scores:
        print_result(f"{one.log_prob:.4f}\t{one.perplexity:.4f}")
    total = Score(sum(one.log_prob for one in scores), sum(one.num_tokens for one in scores))
    say(f"in all: log P {total.log_prob:.4f}, perplexity {total.perplexity:.4f}, {total.num_tokens} tokens")


def scorer(arguments: argparse.Namespace) -> Translator:
    """Returns what scores translations, of the run or the export that a command names.

    Raises:
        RequestError: see `decoder_for`.
    """
    options = SearchOptions(**own_search_of(arguments))
    asked = Asked(options, with_halves=True, sides=tuple(sides_of(arguments)))
    decoder = decoder_for([arguments.run], Engine.of(arguments), asked)()
    return in_direction(translator_of(decoder, arguments.run, None), arguments)


def compare(arguments: argparse.Namespace) -> None:
    """Prints a JSON object for each run: BLEU and chrF, their intervals, and their p-values against the first run."""
    if len(arguments.runs) < 2:
        raise RequestError("expected two runs or more, to be compared with the first; received one")
    lines = read_both(arguments.source, arguments.reference)
    checked_tokenizer(arguments.tokenize, None)
    of_each = [argparse.Namespace(**{**vars(arguments), "run": run}) for run in arguments.runs]
    for one in of_each:
        own_search_of(one)  # tells now of a run that translates nothing
    translators, options = zip(*map(open_with_options, of_each), strict=True)
    tokenize = common_tokenizer(arguments.tokenize, translators)
    for run, translator in zip(arguments.runs, translators, strict=True):
        warn_of_text(run, lines, translator.source_tokenizer)
    sources = [lines.sources] * len(translators)
    for run, row in zip(arguments.runs, compared(translators, options, sources, lines.targets, tokenize), strict=True):
        print_result(json.dumps({"run": run, **row}))


def compared(
    translators: Sequence[Translator],
    options: Sequence[SearchOptions],
    sources: list[list[str]],
    targets: list[str],
    tokenize: str,
) -> list[Config]:
    """Compares each translator with the first: `bleu.paired_quality`, the number of sentences, and the search.

    Args:
        translators: at least two.
        options: the options of each translator's search.
        sources: the same text for each translator, but for tags.
        targets: its correct translation.
        tokenize: the name of BLEU's tokenizer.
    """
    translations = [
        [hypotheses[0].text for hypotheses in each.stream(text, its)]
        for each, its, text in zip(translators, options, sources, strict=True)
    ]
    rows = paired_quality(translations, targets, tokenize)
    searches = [{"beams": its.num_beams, "length_penalty": its.length_penalty, "split": its.split} for its in options]
    return [{**row, "sentences": len(targets), **search} for row, search in zip(rows, searches, strict=True)]


def common_tokenizer(tokenize: str | None, translators: Sequence[Translator]) -> str:
    """Returns the name of the tokenizer with which BLEU of all translators is counted.

    Raises:
        RequestError: the tokenizer cannot be used, or none is given and the target languages have different ones.
    """
    languages = list(dict.fromkeys(each.target_language for each in translators))
    names = list(dict.fromkeys(checked_tokenizer(tokenize, language) for language in languages))
    if len(names) > 1:
        raise RequestError(
            f"expected runs whose BLEU is counted with one tokenizer; received runs for {', '.join(names)}: name one "
            "by --tokenize"
        )
    return names[0]
