"""The task of training a language model: windows of a text or pairs of texts, cross entropy, the validation loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.core.errors import say
from keras_transformer.core.files import write_text
from keras_transformer.decoding.computations import LogProbs
from keras_transformer.decoding.keras_decoder import CompiledComputations
from keras_transformer.models.model_factory import make_model
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.language_modelling.batches import WindowPlan, tokenized_text
from keras_transformer.tasks.language_modelling.corpus import Pairs, named_text, prepare_pairs, text_from_file
from keras_transformer.tasks.language_modelling.pipeline import SCORED_TOKENS, Generator
from keras_transformer.tasks.language_modelling.settings import Settings
from keras_transformer.tasks.translation.training import loss as loss
from keras_transformer.tasks.translation.training import metrics as metrics

# A language model has the loss and the metrics of a translator.
from keras_transformer.text.corpora import Corpus, corpus_from_files
from keras_transformer.text.feeding import Plan
from keras_transformer.text.held_out import drawn
from keras_transformer.text.lines import beginning
from keras_transformer.text.tokenizer import PAD, Tokenizer
from keras_transformer.training.callbacks import ValLossMonitor
from keras_transformer.training.checkpoints import present_weights, set_weights
from keras_transformer.training.preparation import Tokenizers, one_tokenizer, record_vocabularies
from keras_transformer.training.task import Run

if TYPE_CHECKING:
    import keras

    from keras_transformer.models.base import FamilyModel
    from keras_transformer.models.stack_models import LanguageModel
    from keras_transformer.training.callbacks import Progress

SCORE = "validation loss"
UNIT = "tokens"
SAMPLE_TOKENS = 256
MAX_VALIDATION_TOKENS = 200_000  # what a round is validated on
MAX_KEPT_CHARACTERS = 2_000_000  # the run folder keeps so much of the validation text


@dataclass(frozen=True)
class Prose:
    """A run's text, ready to train on."""

    tokenizer: Tokenizer
    plan: WindowPlan
    valid_plan: WindowPlan

    def sample(self, generator: Generator, seed: int) -> str:
        """A text that the model draws."""
        options = SearchOptions(sampling=True, seed=seed)
        ((drawn,),) = generator.generate([""], SAMPLE_TOKENS, options)
        return f"{drawn.text}\n"


def corpus(settings: Settings) -> Corpus[Any]:
    """The user's own text or pairs of texts, or a named text.

    Raises:
        RequestError: see `corpus_from_files`, `text_from_file` and `named_text`.
    """
    if settings.source is not None and settings.target is not None:
        own = (settings.source, settings.target, settings.valid_source, settings.valid_target)
        return corpus_from_files(*own, seed=settings.seed)
    return corpus_of_text(settings)


def corpus_of_text(settings: Settings) -> Corpus[str]:
    """The user's own text, or a named text.

    Raises:
        RequestError: see `text_from_file` and `named_text`.
    """
    if settings.text is not None:
        return text_from_file(settings.text, settings.valid_text, settings.seed)
    return named_text(settings.name)


def prepare(run: Run, cache: Path, num_replicas: int) -> Prose | Pairs:
    """Learns the vocabulary, tokenises the text once, and plans batches: windows of a text, or pairs of texts.

    Raises:
        RequestError: the text does not support the vocabulary, or is too short; or see `prepare_pairs`.
    """
    if run.settings.source is not None:
        return prepare_pairs(run, cache, num_replicas)
    return prepare_prose(run, cache, num_replicas)


def prepare_prose(run: Run, cache: Path, num_replicas: int) -> Prose:
    """See `prepare`."""
    settings = run.settings
    tokenizer = one_tokenizer(run, run.corpus.train, keeps_text=True)
    record_vocabularies(run, Tokenizers(tokenizer, tokenizer))
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
    return Prose(tokenizer, plan, WindowPlan(valid, length, budget, num_replicas=num_replicas, shuffle=False))


def validation(
    run: Run, data: Prose | Pairs, model: LanguageModel, progress: Progress, show: Callable[[int, str], None] | None
) -> list[keras.callbacks.Callback]:
    """A text that the model draws or answers, and early stopping by the validation loss."""
    sample = _sampling(run, data, model)
    return [
        ValLossMonitor(
            progress, run.settings.patience, (lambda step: show(step, sample())) if show else lambda step: None
        )
    ]


def final_metrics(run: Run, data: Prose | Pairs, model: LanguageModel) -> dict[str, float]:
    """The validation loss of the model that the run ends with, in nats a token."""
    return {"val_loss": mean_loss(model, data.valid_plan)}


def mean_loss(model: FamilyModel, plan: Plan) -> float:
    """The mean cross entropy of a plan's first epoch by a model of tokens, in nats a label."""
    computations, log_prob, count = CompiledComputations(model), 0.0, 0
    for _, batch in islice(plan.iterate(), plan.num_batches(0)):
        ids, labels = batch.inputs["ids"], batch.labels
        num_rows = max(1, SCORED_TOKENS // ids.shape[1])
        for first in range(0, len(ids), num_rows):
            some = slice(first, first + num_rows)
            (log_probs,) = computations.run(LogProbs(), ids[some], labels[some])
            log_prob += float(log_probs.astype("float64").sum())
        count += int((labels != PAD).sum())
    return -log_prob / count


def _sampling(run: Run, data: Prose | Pairs, model: LanguageModel) -> Callable[[], str]:
    """A function that gives samples of the model's present weights (their moving average, with --ema), in float32."""
    twin = make_model(run.config.model)
    generator = Generator(twin, data.tokenizer, run.config.answer_length)

    def sample() -> str:
        set_weights(twin, present_weights(model))
        return data.sample(generator, run.settings.seed)

    return sample
