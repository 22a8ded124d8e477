"""What a language model trains on: text of one language, or pairs of a prompt and its answer."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.core.errors import RequestError, say, warn
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.language_modelling.batches import PairPlan, PairRows
from keras_transformer.tasks.language_modelling.settings import Settings
from keras_transformer.text.corpora import Corpus, Pair
from keras_transformer.text.held_out import drawn_identity, stratified
from keras_transformer.text.lines import read_lines, refuse_pipe, sha256_of
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.preparation import (
    Tokenizers,
    naming_files,
    one_tokenizer,
    record_vocabularies,
    tell_of_changed_targets,
    tokenized,
    training_files,
    validation_pairs,
)
from keras_transformer.training.task import Run

if TYPE_CHECKING:
    from keras_transformer.tasks.language_modelling.pipeline import Generator


Lines = Callable[[], Iterator[str]]  # each call returns a new iterator
HELD_OUT_SHARE = 0.1  # so much is held out if no validation text is given
NUM_STRETCHES = 100

# Small, for a text of half a million characters.
PYDOC_RECIPE: Config = {
    "num_layers": 4,
    "hidden_dim": 128,
    "intermediate_dim": 512,
    "num_heads": 4,
    "dropout": 0.1,
    "vocabulary_size": 1_000,
    "context_length": 128,
    "token_budget": 2_048,
    "steps": 2_000,
    "warmup_steps": 200,
    "learning_rate_factor": 1.0,
    "checkpoint_every": 200,
}
RECIPES = {"pydoc-topics": PYDOC_RECIPE}
NUM_SAMPLES = 5
SHOWN_CHARACTERS = 300  # as much of a source is shown among the samples


def text_from_file(
    text: str | os.PathLike[str], valid_text: str | os.PathLike[str] | None = None, seed: int | None = 0
) -> Corpus[str]:
    """The lines of the user's own text, a UTF-8 file, plain or .gz.

    Without validation text a tenth is held out, see `divided`.

    Args:
        text, valid_text: the files.
        seed: the same seed holds out the same lines of a text. None takes the last lines, as runs of before did.

    Raises:
        RequestError: a file is missing, empty, unreadable or not UTF-8, or is too short to be divided.
    """
    identity = sha256_of(_lines_of(text))
    if valid_text is not None:
        both = sha256_of([identity, sha256_of(_lines_of(valid_text))])
        return Corpus("files", None, None, lambda: read_lines(text), lambda: read_lines(valid_text), both)
    train, valid = divided(lambda: read_lines(text), seed)
    if any(next(lines(), None) is None for lines in (train, valid)):
        raise RequestError(f"{text} has too few lines to hold a tenth out: add lines, or give --valid-text")
    return Corpus("files", None, None, train, valid, drawn_identity(identity, seed))


def _lines_of(path: str | os.PathLike[str]) -> Iterator[str]:
    """The lines of a file that is read more than once.

    Raises:
        RequestError: the file is empty, or no file.
    """
    refuse_pipe(path)
    is_empty = True
    for line in read_lines(path):
        is_empty = is_empty and not line
        yield line
    if is_empty:
        raise RequestError(f"{path} is empty; expected text")


def divided(lines: Callable[[], Iterable[str]], seed: int | None) -> tuple[Lines, Lines]:
    """The lines to train on and those to validate on, about a tenth of the characters, line breaks included.

    A text is cut into a hundred stretches of whole lines, so that held-out lines stand among their neighbours, and
    still come from everywhere: of each ten stretches the seed draws one. Without a seed the last ones are held out.
    """
    size = sum(len(line) + 1 for line in lines())

    def numbered() -> Iterator[tuple[int, str]]:
        seen = 0
        for line in lines():
            seen += len(line) + 1
            yield (seen * NUM_STRETCHES - 1) // size, line

    stretches = sorted({stretch for stretch, _ in numbered()})
    if seed is None:
        held_out = {stretch for stretch in stretches if stretch >= (1 - HELD_OUT_SHARE) * NUM_STRETCHES}
    else:
        in_tens = [(str(place // 10), stretch) for place, stretch in enumerate(stretches)]
        held_out = {stretch for _, stretch in stratified(in_tens, HELD_OUT_SHARE, seed)}
    return (
        lambda: (line for stretch, line in numbered() if stretch not in held_out),
        lambda: (line for stretch, line in numbered() if stretch in held_out),
    )


def named_text(name: str) -> Corpus[str]:
    """A named text: `pydoc-topics`, the help texts of Python's own `pydoc`.

    Raises:
        RequestError: the name is unknown.
    """
    if name not in RECIPES:
        raise RequestError(f"a text is one of {', '.join(RECIPES)}, or your own with --text; received: {name!r}")
    from pydoc_data.topics import topics

    lines = "\n\n".join(topics[topic] for topic in sorted(topics)).split("\n")
    return Corpus(name, "en", "en", *divided(lambda: lines, None), sha256_of(lines), RECIPES[name])


@dataclass(frozen=True)
class Pairs:
    """A run's pairs, ready to train on."""

    tokenizer: Tokenizer
    plan: PairPlan
    valid_plan: PairPlan
    valid_pairs: list[Pair]

    def sample(self, generator: Generator, seed: int) -> str:
        """What the model answers, by greedy search, to the first sources of the validation."""
        pairs = list(islice((pair for pair in self.valid_pairs if all(map(str.strip, pair))), NUM_SAMPLES))
        read = [generator.fitting(generator.ids_of_prompt(source)) for source, _ in pairs]
        answers = generator.search_ids(read, SearchOptions(num_beams=1))
        return "\n".join(
            f"source      {textwrap.shorten(source, SHOWN_CHARACTERS)}\n"
            f"reference   {target}\nanswer      {found.text}\n"
            for (source, target), (found,) in zip(pairs, answers, strict=True)
        )


def prepare_pairs(run: Run, cache: Path, num_replicas: int) -> Pairs:
    """Learns the vocabulary, tokenises the pairs once, and plans batches with a pair in each row.

    In training every id of a row has a label, those of the source too, as in Liu et al. 2018 (arXiv 1801.10198, section
    4.2): what the model learns of the language from its sources helps it to write the targets. In validation only
    targets have labels, so that its loss is that of the answers.

    `config.json` keeps `answer_length`, the number of ids of the longest target with its end. The source gets what the
    context holds beside it: the end of a longer source is cut, in training as when the model answers.

    Raises:
        RequestError: the text does not support the vocabulary, cleaning leaves nothing of it, or the budget does not
            hold the longest pair.
    """
    settings = run.settings
    with naming_files(training_files(settings)):
        tokenizer = one_tokenizer(run, lambda: (line for pair in run.corpus.train() for line in pair))
    tokenizers = Tokenizers(tokenizer, tokenizer)
    valid_pairs = validation_pairs(run)
    train, valid = _within_context(run, cache, valid_pairs, tokenizers)
    answer_length = int(max(train.target_lengths.max(), valid.target_lengths.max()))
    run.config.answer_length = answer_length
    record_vocabularies(run, tokenizers)
    most = settings.context_length - answer_length
    rows, valid_rows = PairRows(train, most), PairRows(valid, most, targets_alone=True)
    _tell(run, train, rows, most)
    tell_of_changed_targets(run, tokenizer, train.report.kept)
    budget = settings.token_budget
    plan = PairPlan(rows, budget, settings.seed, num_replicas, settings.accumulate)
    valid_plan = PairPlan(valid_rows, budget, num_replicas=num_replicas, shuffle=False)
    return Pairs(tokenizer, plan, valid_plan, valid_pairs)


def longest_target(settings: Settings) -> int:
    """The most pieces of a target. With its end it takes at most half of the context."""
    return min(settings.max_length, settings.context_length // 2 - 1)


def _within_context(
    run: Run, cache: Path, valid_pairs: list[Pair], tokenizers: Tokenizers
) -> tuple[TokenizedCorpus, TokenizedCorpus]:
    """The pairs of training and of validation without those of too long targets."""
    most = longest_target(run.settings)
    limits: Config = {"max_length": most, "max_source_length": math.inf, "max_ratio": math.inf}
    try:
        return tokenized(run, cache, valid_pairs, tokenizers, **limits)
    except RequestError as error:
        raise RequestError(f"{error}; a target may have {_told_limit(run.settings)}") from error


def _told_limit(settings: Settings) -> str:
    return (
        f"{longest_target(settings)} pieces: half of --context-length {settings.context_length} without its end, and "
        f"--max-length {settings.max_length}"
    )


def _tell(run: Run, train: TokenizedCorpus, rows: PairRows, most: int) -> None:
    report = train.report
    say(
        f"{run.corpus.name}: {report.kept:,} pairs kept, {report.left_out:,} left out of training: {report.empty:,} "
        f"empty on a side, {report.too_long:,} with too long a target{report.told_held_out}"
    )
    if report.too_long:
        warn(f"{report.too_long:,} target(s) are too long; one may have {_told_limit(run.settings)}")
    if rows.num_cut:
        warn(
            f"{rows.num_cut:,} source(s) are cut to {most - 1} pieces, which --context-length "
            f"{run.settings.context_length} holds beside the longest target"
        )
