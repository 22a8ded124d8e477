"""From text to labels and to vectors: an encoder and its vocabulary."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from keras_transformer.commands.graph_cache import open_in_python
from keras_transformer.core.errors import RequestError, warn
from keras_transformer.core.task_registry import TASKS, task_named
from keras_transformer.decoding.attention_maps import Attention, text_attention
from keras_transformer.decoding.computations import Embedding, Fills, LabelProbs
from keras_transformer.decoding.onnx_graphs import OnnxComputations, computations_of
from keras_transformer.decoding.pipelines import TextPipeline, in_batches
from keras_transformer.runs.run_folder import RunConfig, RunFolder, read_tokenizers
from keras_transformer.spec.search_options import require_whole
from keras_transformer.tasks.classification.batches import with_ends
from keras_transformer.text.lines import strings_of
from keras_transformer.text.sentences import Ids, padded
from keras_transformer.text.tokenizer import MASK, MASK_PIECE, Tokenizer, Unread, warn_of_cuts

if TYPE_CHECKING:
    from keras_transformer.importing.weights import Imported
    from keras_transformer.models.classifiers import Encoder


class Prediction(NamedTuple):
    """A label, and the probability that the model gives it."""

    label: str
    probability: float


Filled = list[list[Prediction] | None]  # for each mask of a text


class Classifier(TextPipeline):
    """Tells labels, masked pieces and vectors of texts with one encoder. Threads may share it:

        classifier = keras_transformer.load_classifier("runs/number-languages-tiny")
        [prediction] = classifier.classify(["siebenundzwanzig"])

    Args:
        model: the encoder, or an `OnnxComputations` of its outputs.
        tokenizer: its vocabulary.
        labels: in the order of the model's logits; empty for an encoder without labels.
    """

    task = "classification"

    def __init__(self, model: Encoder | OnnxComputations, tokenizer: Tokenizer, labels: Sequence[str] = ()):
        self._computations = computations_of(model)
        self.model = self._computations.model
        self.tokenizer = tokenizer
        self.labels = list(strings_of(labels, "labels"))
        if not self.labels:
            self.task = task_named(None, TASKS[self.task].kind)

    def details(self) -> str:
        return f"{len(self.labels)} labels"

    @classmethod
    def of_run(cls, model: Encoder | OnnxComputations, folder: RunFolder, config: RunConfig) -> Classifier:
        """Makes a classifier of a model, with the labels of a run and the vocabulary in a folder.

        Raises:
            RequestError: the labels are not the model's, or the vocabulary is missing, damaged or not the model's.
        """
        labels, expected = config.labels or [], config.model["num_labels"] or 0
        if len(labels) != expected:
            raise RequestError(f"{folder.path}: expected {expected} labels in config.json; received {len(labels)}")
        return cls(model, read_tokenizers(folder, None, config.model["vocabulary_size"])[1], labels)

    @classmethod
    def imported(cls, found: Imported) -> Classifier:
        return cls(found.model(), found.source.tokenizer, found.labels)

    def classify(self, lines: Iterable[str], batch_size: int = 64) -> list[Prediction]:
        """Returns the likeliest label of each text. A text of more pieces than the context is cut.

        Raises:
            RequestError: the model has no labels, or `lines` is no list of strings.
        """
        return list(self.stream(lines, batch_size))

    def stream(self, lines: Iterable[str], batch_size: int = 64) -> Iterator[Prediction]:
        """`classify`, which yields predictions while lines come.

        Raises:
            RequestError: see `classify`.
        """
        yield from map(self._prediction, self.probabilities(lines, batch_size))

    def probabilities(self, lines: Iterable[str], batch_size: int = 64) -> Iterator[np.ndarray]:
        """Yields the probability (C,) float32 of each label, for each text.

        Raises:
            RequestError: see `classify`.
        """
        if not self.labels:
            raise RequestError("expected a model with labels; this one has none: train with --task classification")
        for rows in self._read(lines, batch_size):
            yield from self._computations.run(LabelProbs(), self._ids(rows))[0]

    def labels_of(self, rows: list[Ids]) -> list[Prediction]:
        """`classify` with texts in ids, without start and end, in one batch."""
        return [*map(self._prediction, self._computations.run(LabelProbs(), self._ids(rows))[0])]

    def _prediction(self, probs: np.ndarray) -> Prediction:
        return Prediction(self.labels[int(probs.argmax())], float(probs.max()))

    def embed(self, lines: Iterable[str], batch_size: int = 64) -> np.ndarray:
        """Returns a vector for each text, (N, D) float32: the mean of its states, or what the model takes for it."""
        found = [self.vectors_of(rows) for rows in self._read(lines, batch_size)]
        return np.concatenate([np.zeros((0, self.model.hidden_dim), "float32"), *found])

    def vectors_of(self, rows: list[Ids]) -> np.ndarray:
        """`embed` with texts in ids, without start and end, in one batch."""
        return self._computations.run(Embedding(), self._ids(rows))[0]

    def fill(self, lines: Iterable[str], num_best: int = 5, batch_size: int = 64) -> list[Filled]:
        """For each `<mask>` in each text the likeliest pieces, the best first. A mask stands for one piece. For a mask
        behind the context there is None.

        Raises:
            RequestError: the model has labels and does not tell pieces, or its vocabulary has no mask.
        """
        return list(self.stream_fills(lines, num_best, batch_size))

    def stream_fills(self, lines: Iterable[str], num_best: int = 5, batch_size: int = 64) -> Iterator[Filled]:
        """`fill`, which yields while lines come.

        Raises:
            RequestError: see `fill`.
        """
        require_whole("num_best", num_best, 1)
        require_masks(not self.labels and self.tokenizer.has_mask)
        num_lost = 0
        for rows in self._read(lines, batch_size, has_masks=True):
            for filled in self.fills_of(rows, num_best):
                num_lost += filled.count(None)
                yield filled
        if num_lost:
            warn(f"{num_lost} mask(s) stand behind the context and are not filled")

    def fills_of(self, rows: list[Ids], num_best: int) -> list[Filled]:
        """`fill` with texts in ids, without start and end, in one batch."""
        filled, ids = [], self._ids(rows)
        for whole, read, *found in zip(rows, ids, *self._computations.run(Fills(num_best), ids), strict=True):
            best = [self._predictions(*(each[place] for each in found)) for place in np.flatnonzero(read == MASK)]
            filled.append([*best, *[None] * (whole.count(MASK) - len(best))])
        return filled

    def likeliest_pieces(
        self, lines: Iterable[str], num_best: int, batch_size: int = 64
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Probabilities and ids (S, K) of the likeliest pieces at each place of each text, the best first."""
        for some in in_batches(strings_of(lines), batch_size):
            ids = self._ids(self.tokenizer.encode(some))
            probs, pieces = self._computations.run(Fills(num_best), ids)
            for length, *found in zip(np.count_nonzero(ids, axis=1), probs, pieces, strict=True):
                yield found[0][:length], found[1][:length]

    def attention(self, text: str) -> dict[str, Attention]:
        """Tells where the pieces of a text look: "self", with the start and the end of the text among them."""
        ((ids,),) = self._read([text], 1)
        return text_attention(self.model, with_ends(ids, self.model.context_length), self.tokenizer)

    def ids(self, line: str) -> list[int]:
        """Returns the ids of a text, between start and end, as the model takes them."""
        (pieces,) = self.tokenizer.encode([line])
        return with_ends(pieces, self.model.context_length)

    def _read(self, lines: Iterable[str], batch_size: int, has_masks: bool = False) -> Iterator[list[Ids]]:
        """Yields batches of the lines' pieces; behind the last, warnings tell of what cannot be read or is cut."""
        unread, most, num_cut = Unread(self.tokenizer), self.model.context_length - 2, 0
        for some in in_batches(strings_of(lines), batch_size):
            unread.look(line.replace(MASK_PIECE, " ") if has_masks else line for line in some)
            rows = [*map(self.tokenizer.encode_masked, some)] if has_masks else self.tokenizer.encode(some)
            num_cut += sum(len(row) > most for row in rows)
            yield rows
        unread.tell()
        warn_of_cuts(num_cut, most, "text(s)")

    def _predictions(self, probs: np.ndarray, ids: np.ndarray) -> list[Prediction]:
        """Returns the pieces with their probabilities, without control ids, which no text has."""
        told = zip(ids.tolist(), self.tokenizer.pieces(ids.tolist()), probs.tolist(), strict=True)
        return [Prediction(piece, probability) for id, piece, probability in told if id >= self.model.num_control_ids]

    def _ids(self, rows: list[Ids]) -> np.ndarray:
        """int32 (B, S): the pieces of texts between start and end, cut to the context."""
        return padded([with_ends(row, self.model.context_length) for row in rows])


def require_masks(fills: bool) -> None:
    """Raises RequestError unless a model fills masks."""
    if not fills:
        raise RequestError("expected a model that fills masks; this one does not: train with --task masked-tokens")


def load_classifier(run: str | os.PathLike[str]) -> Classifier:
    """Loads the classifier of a run, with its Keras model, or of an export, with its graph in ONNX Runtime.

    An export needs no Keras. Nothing in the folder is executed.

    Raises:
        RequestError: the folder holds no run of an encoder, no model yet, or a file is damaged.
    """
    return Classifier.of_run(*open_in_python(run, TASKS[Classifier.task].kind))


PIPELINE = Classifier
