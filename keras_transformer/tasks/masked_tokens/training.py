"""Trains an encoder to tell masked pieces of text (Devlin et al. 2018, arXiv 1810.04805); it can be fine-tuned then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from keras_transformer.core.errors import RequestError, say, warn
from keras_transformer.core.files import write_text
from keras_transformer.models.classifiers import Encoder
from keras_transformer.tasks.classification.batches import TextRows
from keras_transformer.tasks.language_modelling.training import MAX_KEPT_CHARACTERS, TextTraining
from keras_transformer.tasks.masked_tokens.settings import Settings
from keras_transformer.text.batch_sampler import RowPlan
from keras_transformer.text.held_out import drawn
from keras_transformer.text.lines import beginning
from keras_transformer.text.tokenizer import MASK, PAD, Tokenizer
from keras_transformer.training.preparation import one_tokenizer
from keras_transformer.training.task import Prepared, Run, both_plans

SHARE = 0.15  # the fraction of a text's tokens to predict; at least one
MASKED, CHANGED = 0.8, 0.1  # the mask replaces the first share, other tokens the second; the rest stays
MAX_VALIDATION_LINES = 2_000  # what a round is validated on


class MaskedRows(TextRows):
    """Texts as ids, with places masked anew in each epoch: these have labels, and `target_lengths` counts them.

    Args:
        ids: the pieces of each text, at least one.
        max_length: the most pieces of a text, with start and end. Longer texts are cut; `num_cut` counts them.
        pieces: the ids of the pieces of text, the first and the one after the last.
    """

    def __init__(self, ids: Sequence[Sequence[int]], max_length: int, pieces: tuple[int, int]):
        super().__init__(ids, max_length)
        self.pieces = pieces
        self.target_lengths = np.maximum(1, np.round(SHARE * (self.source_lengths - 2))).astype("int32")

    def row(self, row: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of a text, some masked, and its labels; see `RowPlan`."""
        ids = np.array(self.ids(row))
        labels = np.full(len(ids), PAD)
        told = 1 + random.permutation(len(ids) - 2)[: self.target_lengths[row]]  # neither start nor end
        labels[told] = ids[told]
        ids[told] = self._hidden(ids[told], random)
        return ids, labels

    def _hidden(self, ids: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Returns the ids that the model sees in place of tokens that it must predict."""
        draw = random.random(len(ids))
        others = random.integers(*self.pieces, len(ids))
        return np.where(draw < MASKED, MASK, np.where(draw < MASKED + CHANGED, others, ids))


class Training(TextTraining[Settings, Prepared, Encoder]):
    """What an encoder of masked tokens brings to training."""

    UNIT = "masked tokens"

    def prepare(self, run: Run, cache: Path, num_replicas: int) -> Prepared:
        """Learns the vocabulary, and plans batches of the lines, each a text of its own.

        Raises:
            RequestError: the text does not support the vocabulary, or the budget does not hold the longest line.
        """
        settings = run.settings
        run.config.model["num_control_ids"] = MASK + 1
        tokenizer = one_tokenizer(run, run.corpus.train, has_mask=True)
        valid_lines = [line for line in run.corpus.valid() if line.strip()]
        valid_lines = [valid_lines[place] for place in drawn(len(valid_lines), MAX_VALIDATION_LINES)]
        if run.is_chief:
            write_text(run.folder.valid_text, beginning(valid_lines, MAX_KEPT_CHARACTERS))
        train = rows_of(run.corpus.train(), tokenizer, settings.context_length)
        valid = rows_of(valid_lines, tokenizer, settings.context_length)
        say(f"{run.corpus.name}: {len(train):,} lines, {len(valid):,} for validation")
        if num_cut := train.num_cut:
            warn(f"{num_cut} line(s) have more pieces than --context-length {settings.context_length} and are cut")
        return Prepared(*both_plans(RowPlan, (train, valid), settings, num_replicas))


def rows_of(lines: Iterable[str], tokenizer: Tokenizer, max_length: int) -> MaskedRows:
    """Returns the lines that are not blank as ids.

    Raises:
        RequestError: all of them are blank.
    """
    ids = [row for row in tokenizer.encode([line.strip() for line in lines]) if row]
    if not ids:
        raise RequestError("expected lines of text to train and to validate on; all of them are blank")
    return MaskedRows(ids, max_length, (MASK + 1, tokenizer.vocabulary_size))
