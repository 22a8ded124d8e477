"""The task of training a language model: text, windows of it, cross entropy, the loss of the validation text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keras_transformer.errors import say
from keras_transformer.files import write_text
from keras_transformer.models import make_model
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.lines import beginning
from keras_transformer.text.prose import named_text, text_from_file
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.windows import WindowPlan, tokenized_text
from keras_transformer.training.preparation import Tokenizers, one_tokenizer, record_vocabularies
from keras_transformer.training.request import Run
from keras_transformer.training.settings import Settings

# A language model has the loss and the metrics of a translator.
from keras_transformer.training.translation import loss as loss
from keras_transformer.training.translation import metrics as metrics

if TYPE_CHECKING:
    import keras

    from keras_transformer.models.language_model import LanguageModel
    from keras_transformer.training.callbacks import Progress

SCORE = "validation loss"
UNIT = "tokens"
SAMPLE_TOKENS = 256
MAX_VALIDATION_TOKENS = 200_000  # what a round is validated on
MAX_KEPT_CHARACTERS = 2_000_000  # of the validation text that the run folder keeps


@dataclass(frozen=True)
class Prose:
    """A run's text, ready to train on."""

    tokenizer: Tokenizer
    plan: WindowPlan
    valid_plan: WindowPlan


def corpus(settings: Settings) -> Corpus[str]:
    """The user's own text, or a named one.

    Raises:
        RequestError: see `text_from_file` and `named_text`.
    """
    if settings.text is not None:
        return text_from_file(settings.text, settings.valid_text)
    return named_text(settings.name)


def prepare(run: Run, cache: Path, num_replicas: int) -> Prose:
    """Learns the vocabulary, tokenises the text once, and plans windows of it.

    Raises:
        RequestError: the text does not support the vocabulary, or is too short.
    """
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
    held_out = valid[:MAX_VALIDATION_TOKENS]
    return Prose(tokenizer, plan, WindowPlan(held_out, length, budget, num_replicas=num_replicas, shuffle=False))


def validation(
    run: Run, data: Prose, model: LanguageModel, progress: Progress, show: Callable[[int, str], None] | None
) -> list[keras.callbacks.Callback]:
    """A text that the model draws, and early stopping by the validation loss."""
    from keras_transformer.training.callbacks import Loss

    draw = _drawing(run, data, model)
    return [Loss(progress, run.settings.patience, (lambda step: show(step, draw())) if show else lambda step: None)]


def measured(run: Run, data: Prose, model: LanguageModel) -> dict[str, float]:
    """The validation loss of the model that the run ends with, in nats a token."""
    from keras_transformer.decoding.generator import Generator

    score = Generator(model, data.tokenizer).score_ids(np.asarray(data.valid_plan.ids))
    return {"val_loss": -score.log_prob / score.num_tokens}


def _drawing(run: Run, data: Prose, model: LanguageModel) -> Callable[[], str]:
    """A function that draws a text by the model's present weights (their moving average, with --ema), in float32."""
    from keras_transformer.decoding.generator import Generator
    from keras_transformer.decoding.options import SearchOptions
    from keras_transformer.training.checkpoints import present_weights, set_weights

    twin = make_model(run.config["model"])
    generator = Generator(twin, data.tokenizer)
    options = SearchOptions(sampling=True, seed=run.settings.seed)

    def draw() -> str:
        set_weights(twin, present_weights(model))
        ((drawn,),) = generator.generate([""], SAMPLE_TOKENS, options)
        return f"{drawn.text}\n"

    return draw
