"""Trains a tagger: lines of words with their tags, cross entropy at the first piece of each word."""

from pathlib import Path

import numpy as np

from keras_transformer.tasks.classification.batches import TextRows
from keras_transformer.tasks.language_modelling.training import TextTraining
from keras_transformer.text.batch_sampler import RowPlan
from keras_transformer.text.tokenizer import PAD, Tokenizer
from keras_transformer.training.preparation import one_tokenizer
from keras_transformer.training.task import Prepared, Run, both_plans

FIRST_TAG = 4  # a tag is told by an id of the vocabulary, behind the control ids


class TaggedRows(TextRows):
    """Lines of words as ids, with the id of a tag at the first piece of each word."""

    def __init__(self, lines: list[list[list[str]]], tags: list[str], tokenizer: Tokenizer, max_length: int):
        pieces = [[tokenizer.encode([word])[0] for word, _ in line] for line in lines]
        super().__init__([[id for word in line for id in word] for line in pieces], max_length)
        self.target_lengths = np.array([len(line) for line in lines], "int32")
        self.tags = [
            [id for word, (_, tag) in zip(line, given, strict=True)
             for id in [FIRST_TAG + tags.index(tag), *[PAD] * (len(word) - 1)]]
            for line, given in zip(pieces, lines, strict=True)
        ]  # fmt: skip

    def row(self, row: int, random: np.random.Generator):
        """The ids of a line, and its labels."""
        return self.ids(row), [PAD, *self.tags[row]][: len(self.ids(row)) - 1]


class Training(TextTraining):
    """What a tagger brings to training."""

    UNIT = "words"

    def prepare(self, run: Run, cache: Path, num_replicas: int) -> Prepared:
        """Learns the vocabulary, and plans batches of the lines."""
        settings = run.settings
        train, valid = (
            [[word.split(settings.tag_mark) for word in line.split()] for line in lines if line.strip()]
            for lines in (run.corpus.train(), run.corpus.valid())
        )
        run.config.labels = tags = sorted({tag for line in train for _, tag in line})
        tokenizer = one_tokenizer(run, lambda: (" ".join(word for word, _ in line) for line in train))
        if run.is_chief:
            run.folder.valid_text.write_text("".join(" ".join(word for word, _ in line) + "\n" for line in valid))
        rows = [TaggedRows(lines, tags, tokenizer, settings.context_length) for lines in (train, valid)]
        return Prepared(*both_plans(RowPlan, rows, settings, num_replicas))
