"""Trains a classifier of texts: labelled lines, cross entropy of labels, accuracy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.core.errors import say, warn
from keras_transformer.core.files import write_text
from keras_transformer.metrics import TokenAccuracy
from keras_transformer.models.classifiers import Encoder
from keras_transformer.tasks.classification.batches import LabelledPlan, LabelledRows
from keras_transformer.tasks.classification.corpus import Labelled, labelled_from_file, named_labelled
from keras_transformer.tasks.classification.pipeline import Classifier
from keras_transformer.tasks.classification.settings import Settings
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.common_settings import S
from keras_transformer.training.preparation import one_tokenizer
from keras_transformer.training.task import Data, Model, Prepared, Run, TaskTraining, both_plans

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class LabelledText(Prepared):
    """A run's labelled text, ready to train on."""

    tokenizer: Tokenizer
    valid: list[Labelled]


class LabelTraining(TaskTraining[S, Data, Model]):
    """What training brings of any classifier: it is judged by the accuracy of its labels."""

    def metrics(self) -> list[keras.metrics.Metric]:
        return [TokenAccuracy()]


class Training(LabelTraining[Settings, LabelledText, Encoder]):
    """What a classifier of texts brings to training."""

    UNIT = "texts"

    def corpus(self, settings: Settings) -> Corpus[Labelled]:
        """Opens the user's own labelled text, or a named one.

        Raises:
            RequestError: see `labelled_from_file` and `named_labelled`.
        """
        if settings.text is not None:
            return labelled_from_file(settings.text, settings.valid_text, settings.seed)
        return named_labelled(settings.name)

    def prepare(self, run: Run, cache: Path, num_replicas: int) -> LabelledText:
        """Learns the vocabulary, and plans batches of the labelled texts.

        Raises:
            RequestError: the text does not support the vocabulary, or the budget does not hold the longest text.
        """
        settings, train, valid = run.settings, list(run.corpus.train()), list(run.corpus.valid())
        labels = sorted({label for label, _ in train})
        run.config.labels = labels
        run.config.model["num_labels"] = len(labels)
        tokenizer = one_tokenizer(run, lambda: (text for _, text in train))
        if run.is_chief:
            write_text(run.folder.valid_text, "".join(f"{label}\t{text}\n" for label, text in valid))
        rows = [_rows(part, labels, tokenizer, settings.context_length) for part in (train, valid)]
        say(f"{run.corpus.name}: {len(train):,} texts with {len(labels)} labels, {len(valid):,} for validation")
        if num_cut := rows[0].num_cut:
            warn(f"{num_cut} text(s) have more pieces than --context-length {settings.context_length} and are cut")
        return LabelledText(*both_plans(LabelledPlan, rows, settings, num_replicas), tokenizer, valid)

    def final_metrics(self, run: Run, data: LabelledText, model: Encoder) -> dict[str, float]:
        """Measures the accuracy."""
        classifier = Classifier(model, data.tokenizer, run.config.labels or [])
        found = classifier.classify([text for _, text in data.valid])
        right = sum(one.label == label for one, (label, _) in zip(found, data.valid, strict=True))
        return {"val_accuracy": right / len(data.valid)}


def _rows(texts: Iterable[Labelled], labels: list[str], tokenizer: Tokenizer, max_length: int) -> LabelledRows:
    texts, places = list(texts), {label: place for place, label in enumerate(labels)}
    ids = tokenizer.encode([text for _, text in texts])
    return LabelledRows(ids, [places[label] for label, _ in texts], max_length)
