"""Trains a language model: windows of a text or pairs of texts, cross entropy, the validation loss."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from keras_transformer.core.errors import RequestError, say, warn
from keras_transformer.core.files import write_text
from keras_transformer.models.model_factory import make_model
from keras_transformer.models.stack_models import LanguageModel
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.language_modelling.batches import PairPlan, PairRows, WindowPlan, tokenized_text
from keras_transformer.tasks.language_modelling.corpus import named_text, text_from_file
from keras_transformer.tasks.language_modelling.pipeline import Generator
from keras_transformer.tasks.language_modelling.settings import Settings
from keras_transformer.text.corpora import Corpus, Pair, corpus_from_files
from keras_transformer.text.held_out import drawn
from keras_transformer.text.lines import beginning
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.callbacks import MetricMonitor
from keras_transformer.training.checkpoints import present_weights, set_weights
from keras_transformer.training.common_settings import OneLanguageSettings
from keras_transformer.training.preparation import (
    Tokenizers,
    naming_files,
    one_tokenizer,
    tell_of_changed_targets,
    tokenized,
    training_files,
    validation_pairs,
)
from keras_transformer.training.task import Data, Model, Prepared, Run, Show, TaskTraining, both_plans

if TYPE_CHECKING:
    import keras

    from keras_transformer.training.callbacks import Progress

OfText = TypeVar("OfText", bound=OneLanguageSettings)
SAMPLE_TOKENS = 256
MAX_VALIDATION_TOKENS = 200_000  # what a round is validated on
MAX_KEPT_CHARACTERS = 2_000_000  # the run folder keeps so much of the validation text
NUM_SAMPLES = 5
SHOWN_CHARACTERS = 300  # as much of a source is shown among the samples


@dataclass(frozen=True)
class Prose(Prepared):
    """A run's text, ready to train on."""

    tokenizer: Tokenizer

    def sample(self, generator: Generator, seed: int) -> str:
        """Draws a text from the model."""
        options = SearchOptions(sampling=True, seed=seed)
        ((drawn,),) = generator.generate([""], SAMPLE_TOKENS, options)
        return f"{drawn.text}\n"


@dataclass(frozen=True)
class Pairs(Prepared):
    """A run's pairs, ready to train on."""

    tokenizer: Tokenizer
    valid_pairs: list[Pair]

    def sample(self, generator: Generator, seed: int) -> str:
        """Answers the first sources of the validation, by greedy search."""
        pairs = list(islice((pair for pair in self.valid_pairs if all(map(str.strip, pair))), NUM_SAMPLES))
        read = [generator.fitting(generator.ids_of_prompt(source)) for source, _ in pairs]
        answers = generator.search_ids(read, SearchOptions(num_beams=1))
        return "\n".join(
            f"source      {textwrap.shorten(source, SHOWN_CHARACTERS)}\n"
            f"reference   {target}\nanswer      {found.text}\n"
            for (source, target), (found,) in zip(pairs, answers, strict=True)
        )


class TextTraining(TaskTraining[OfText, Data, Model]):
    """What training brings of any model of text in one language."""

    def corpus(self, settings: OfText) -> Corpus[Any]:
        """Opens the user's own text, or a named text.

        Raises:
            RequestError: see `text_from_file` and `named_text`.
        """
        if settings.text is not None:
            return text_from_file(settings.text, settings.valid_text, settings.seed)
        return named_text(settings.name)


class Training(TextTraining[Settings, Prose | Pairs, LanguageModel]):
    """What a language model brings to training."""

    def corpus(self, settings: Settings) -> Corpus[str] | Corpus[Pair]:
        """Opens the user's own text or pairs of texts, or a named text.

        Raises:
            RequestError: see `corpus_from_files`, `text_from_file` and `named_text`.
        """
        if settings.source is not None and settings.target is not None:
            own = (settings.source, settings.target, settings.valid_source, settings.valid_target)
            return corpus_from_files(*own, seed=settings.seed)
        return super().corpus(settings)

    def prepare(self, run: Run, cache: Path, num_replicas: int) -> Prose | Pairs:
        """Learns the vocabulary, tokenises the text once, and plans batches: windows of a text, or pairs of texts.

        Raises:
            RequestError: the text does not support the vocabulary, or is too short; or see `prepare_pairs`.
        """
        prepare = prepare_prose if run.settings.source is None else prepare_pairs
        return prepare(run, cache, num_replicas)

    def validation(
        self, run: Run, data: Prose | Pairs, model: LanguageModel, progress: Progress, show: Show
    ) -> list[keras.callbacks.Callback]:
        """Returns a text that the model draws or answers, and early stopping by the validation loss."""
        twin = make_model(run.config.model)  # has the present weights (with --ema their mean), in float32
        generator = Generator(twin, data.tokenizer, run.config.answer_length)

        def show_sample(step: int) -> None:
            if show:
                set_weights(twin, present_weights(model))
                show(step, data.sample(generator, run.settings.seed))

        return [MetricMonitor(progress, run.settings.patience, show=show_sample)]


def prepare_prose(run: Run, cache: Path, num_replicas: int) -> Prose:
    """See `Training.prepare`."""
    settings = run.settings
    tokenizer = one_tokenizer(run, run.corpus.train, keeps_text=True)
    train = tokenized_text(cache / "train.ids", run.corpus.train(), tokenizer)
    valid = tokenized_text(cache / "validation.ids", run.corpus.valid(), tokenizer)
    if run.is_chief:
        write_text(run.folder.valid_text, beginning(run.corpus.valid(), MAX_KEPT_CHARACTERS))
    say(f"{run.corpus.name}: {len(train):,} tokens, {len(valid):,} for validation")
    length, budget = settings.context_length, settings.token_budget
    plan = WindowPlan(train, length, budget, settings.seed, num_replicas, settings.accumulate)
    if len(valid) > MAX_VALIDATION_TOKENS:  # windows from everywhere
        windows = valid[: len(valid) // length * length].reshape(-1, length)
        valid = windows[drawn(len(windows), max(1, MAX_VALIDATION_TOKENS // length))].reshape(-1)
    return Prose(plan, WindowPlan(valid, length, budget, num_replicas=num_replicas, shuffle=False), tokenizer)


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
    valid_pairs = validation_pairs(run)
    train, valid = _within_context(run, cache, valid_pairs, Tokenizers(tokenizer, tokenizer))
    answer_length = int(max(train.target_lengths.max(), valid.target_lengths.max()))
    run.config.answer_length = answer_length
    run.record()
    most = settings.context_length - answer_length
    rows, valid_rows = PairRows(train, most), PairRows(valid, most, targets_alone=True)
    _tell(run, train, rows, most)
    tell_of_changed_targets(run, tokenizer, train.report.kept)
    return Pairs(*both_plans(PairPlan, (rows, valid_rows), settings, num_replicas), tokenizer, valid_pairs)


def longest_target(settings: Settings) -> int:
    """Returns the most pieces of a target. With its end it takes at most half of the context."""
    return min(settings.max_length, settings.context_length // 2 - 1)


def _within_context(
    run: Run, cache: Path, valid_pairs: list[Pair], tokenizers: Tokenizers
) -> tuple[TokenizedCorpus, TokenizedCorpus]:
    """Returns the pairs of training and of validation without those of too long targets."""
    most = longest_target(run.settings)
    try:
        return tokenized(
            run, cache, valid_pairs, tokenizers, max_length=most, max_source_length=math.inf, max_ratio=math.inf
        )
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
