"""The task of telling masked pieces of text (Devlin et al. 2018, arXiv 1810.04805): an encoder to fine-tune."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.core.errors import RequestError, say, warn
from keras_transformer.core.files import write_text
from keras_transformer.tasks.classification.training import validation as validation
from keras_transformer.tasks.language_modelling.training import MAX_KEPT_CHARACTERS, corpus_of_text, mean_loss
from keras_transformer.tasks.masked_tokens.batches import MaskedPlan, MaskedRows
from keras_transformer.tasks.translation.training import loss as loss
from keras_transformer.tasks.translation.training import metrics as metrics
from keras_transformer.text.held_out import drawn
from keras_transformer.text.lines import beginning
from keras_transformer.text.tokenizer import MASK, Tokenizer
from keras_transformer.training.preparation import Tokenizers, one_tokenizer, record_vocabularies
from keras_transformer.training.task import Run

if TYPE_CHECKING:
    from keras_transformer.models.classifiers import Encoder

SCORE = "validation loss"
UNIT = "masked tokens"
MAX_VALIDATION_LINES = 2_000  # what a round is validated on
corpus = corpus_of_text


@dataclass(frozen=True)
class MaskedText:
    """A run's text, ready to train on."""

    tokenizer: Tokenizer
    plan: MaskedPlan
    valid_plan: MaskedPlan


def prepare(run: Run, cache: Path, num_replicas: int) -> MaskedText:
    """Learns the vocabulary, and plans batches of the lines, each a text of its own.

    Raises:
        RequestError: the text does not support the vocabulary, or the budget does not hold the longest line.
    """
    settings = run.settings
    tokenizer = one_tokenizer(run, run.corpus.train, has_mask=True)
    run.config.model["num_control_ids"] = MASK + 1
    record_vocabularies(run, Tokenizers(tokenizer, tokenizer))
    valid_lines = [line for line in run.corpus.valid() if line.strip()]
    valid_lines = [valid_lines[place] for place in drawn(len(valid_lines), MAX_VALIDATION_LINES)]
    if run.is_chief:
        write_text(run.folder.valid_text, beginning(valid_lines, MAX_KEPT_CHARACTERS))
    train = _rows(run.corpus.train(), tokenizer, settings.context_length)
    valid = _rows(valid_lines, tokenizer, settings.context_length)
    say(f"{run.corpus.name}: {len(train):,} lines, {len(valid):,} for validation")
    if train.num_cut:
        warn(f"{train.num_cut} line(s) have more pieces than --context-length {settings.context_length} and are cut")
    pieces, budget = (MASK + 1, tokenizer.vocabulary_size), settings.token_budget
    return MaskedText(
        tokenizer,
        MaskedPlan(train, pieces, budget, settings.seed, num_replicas, settings.accumulate),
        MaskedPlan(valid, pieces, budget, num_replicas=num_replicas, shuffle=False),
    )


def _rows(lines: Iterable[str], tokenizer: Tokenizer, max_length: int) -> MaskedRows:
    ids = [row for row in tokenizer.encode([line.strip() for line in lines]) if row]
    if not ids:
        raise RequestError("expected lines of text to train and to validate on; all of them are blank")
    return MaskedRows(ids, max_length)


def final_metrics(run: Run, data: MaskedText, model: Encoder) -> dict[str, float]:
    """The validation loss of the model that the run ends with, in nats a masked piece."""
    return {"val_loss": mean_loss(model, data.valid_plan)}
