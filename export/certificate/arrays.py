"""Judges the labels, pieces and vectors of an encoder's artefacts by those that the model gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.decoding.classifier import Classifier
from keras_transformer.decoding.recognizer import Recognizer
from keras_transformer.decoding.recommender import Recommender
from keras_transformer.text.tokenizer import START

from ..artefacts import BrokenArtefact
from ..forms import NUM_FILLS, num_listed
from ..signatures import Decoding
from .judgement import Judgement
from .measured import Measured, costs
from .rules import (
    ARRAY_RULES,
    IDENTICAL_SHARE,
    LOW_PROBABILITY_LOSS,
    PROBABILITY_LOSS,
    SAME_DIRECTION,
    Difference,
)
from .runner import Answers, Result

NAMES = ("label", "items")  # outputs that are no numbers


class Seen(NamedTuple):
    """What is seen of one text: by the model, or by an artefact, which may give a part of it."""

    best: list[Any]  # the likeliest label, or the likeliest piece at each place
    probabilities: Any  # (C,) of the labels, or (S, 5) of the likeliest pieces, the best first; None if it gives none
    vector: Any  # (D,); None if it gives none


class Place(NamedTuple):
    """A label or a piece that differs: where, what both are, and how nearly the model lost its own."""

    given: str
    text: int
    model: Any
    artefact: Any
    margin: float


class ArrayJudge:
    """Compares artefacts with an encoder; the letters in shapes are those of `forms`.

    Args:
        classifier: the model.
        sentences: the texts.
    """

    rules = ARRAY_RULES
    decoding, num_control_ids = Decoding(), 4  # it does not search

    def __init__(self, classifier: Classifier | Recognizer | Recommender, sentences: Sequence[Any]):
        self.classifier: Any = classifier
        self.model = classifier.model
        self.sentences = list(sentences)
        self.expected = self._seen_by_model()

    def inputs(self, takes: str) -> Sequence[Any]:
        """What an artefact is given that takes text, or ids."""
        return self.sentences if takes == "text" else [self.classifier.ids(text) for text in self.sentences]

    def _seen_by_model(self) -> list[Seen]:
        vectors = self.classifier.embed(self.sentences)
        return [Seen(*one, vector) for one, vector in zip(self._of_model(), vectors, strict=True)]

    def judge(self, precision: str, result: Result) -> Judgement:
        """Judges what the runner saw of an artefact that was given the texts, or the first of them.

        Raises:
            BrokenArtefact: no encoder gives such an answer.
        """
        trials = {given: list(self._answers(result[given])) for given in ("batched", "alone", "padded")}
        batched = trials["batched"]
        places = [place for given, answers in trials.items() for place in self._places(given, answers)]
        others = {place.text for place in places if place.given == "batched"}
        differences = [self._differences(answers) for answers in trials.values()]
        measured = Measured(
            sentences=len(batched),
            identical=len(batched) - len(others),
            score_difference=max(differences),
            bleu=None,
            model_bleu=None,
            bleu_interval=None,
            probes=min(len(trials["alone"]), len(trials["padded"])),
            batched_differ=num_other(trials["alone"], batched),
            padded_differ=num_other(trials["alone"], trials["padded"]),
            **costs(result, len(batched)),
        )
        fault = float32_fault(max(differences), places) if precision == "float32" else self._low_fault(batched, places)
        return Judgement(not fault, fault, measured, tuple(map(self._difference, places)))

    def _of_model(self) -> Iterator[tuple[list[Any], np.ndarray]]:
        """Of each text the likeliest label or pieces, and the probabilities."""
        if self.classifier.labels:
            for probs in self.classifier.probabilities(self.sentences):
                yield [self.classifier.labels[int(probs.argmax())]], probs
        else:
            for probs, pieces in self.classifier.likeliest_pieces(self.sentences, NUM_FILLS):
                yield pieces[:, 0].tolist(), probs

    def _answers(self, answers: Answers) -> Iterator[Seen]:
        """What an artefact gave for each text."""
        outputs = answers["outputs"]
        names = [
            name for name in ("label", "items", "piece_ids", "item_ids", "probabilities", "vector") if name in outputs
        ]
        for place, rows in enumerate(zip(*(outputs[name] for name in names), strict=True)):
            given = dict(zip(names, rows, strict=True))
            arrays = {name: np.array(given[name], "float32") for name in names if name not in NAMES}
            probs, expected = arrays.get("probabilities"), self.expected[place]
            if probs is not None and probs.ndim == 2:
                probs = probs[: len(expected.probabilities)]  # without padding
            if probs is not None and probs.shape != np.shape(expected.probabilities):
                raise BrokenArtefact(f"it gave probabilities {probs.shape} for {np.shape(expected.probabilities)}")
            yield Seen(self._best(given, probs), probs, arrays.get("vector"))

    def _best(self, given: dict[str, Any], probs: np.ndarray | None) -> list[Any]:
        if "label" in given:
            return [given["label"]]
        if probs is None:
            return []
        if probs.ndim == 1:
            return [self.classifier.labels[int(probs.argmax())]]
        best = [ids[0] for ids in given["piece_ids"][: len(probs)]]
        if strange := [id for id in best if not 0 <= id < self.model.vocabulary_size]:
            raise BrokenArtefact(f"it gave the id {strange[0]}, which the vocabulary lacks")
        return best

    def _places(self, given: str, answers: Sequence[Seen]) -> Iterator[Place]:
        """Where the likeliest label or piece is another one."""
        for text, (answer, expected) in enumerate(zip(answers, self.expected, strict=False)):
            margins = margins_of(expected.probabilities)
            # An artefact of text may give the vector alone.
            for model, artefact, margin in zip(expected.best, answer.best, margins, strict=bool(answer.best)):
                if model != artefact:
                    yield Place(given, text, model, artefact, margin)

    def _differences(self, answers: Sequence[Seen]) -> float:
        """The largest difference of a number: of probabilities, and of vectors in units of their largest number."""
        found = [0.0]
        for answer, expected in zip(answers, self.expected, strict=False):
            if answer.probabilities is not None:
                found.append(np.abs(answer.probabilities - expected.probabilities).max())
            if answer.vector is not None:
                found.append(np.abs(answer.vector - expected.vector).max() / max(np.abs(expected.vector).max(), 1e-9))
        return float(np.max(found))  # NaN if one of them is NaN

    def _low_fault(self, batched: Sequence[Seen], places: Sequence[Place]) -> str:
        """Why a float16 or int8 artefact does not hold; "" if it holds."""
        wrong = sum(place.given == "batched" and place.margin > LOW_PROBABILITY_LOSS for place in places)
        count = sum(len(answer.best) for answer in batched)
        if wrong > max(1, (1 - IDENTICAL_SHARE) * count):
            return f"{wrong} of {count} labels or pieces differ by more than a near tie"
        cosines = [
            cosine(answer.vector, expected.vector)
            for answer, expected in zip(batched, self.expected, strict=False)
            if answer.vector is not None
        ]
        if not min(cosines, default=1.0) >= SAME_DIRECTION:
            return f"a vector has the cosine {min(cosines):.3f} with the model's, less than {SAME_DIRECTION}"
        return ""

    def _difference(self, place: Place) -> Difference:
        return Difference(
            line=place.text + 1,
            given=place.given,
            source=self._source(place.text),
            model=self._name(place.model),
            artefact=self._name(place.artefact),
            model_score=place.margin,
            artefact_score=0.0,
            margin=place.margin,
        )

    def _source(self, text: int) -> str:
        return self.sentences[text]

    def _name(self, value: Any) -> str:
        return value if isinstance(value, str) else self.classifier.tokenizer.pieces([value])[0]


class HistoryJudge(ArrayJudge):
    """Compares artefacts with a recommender.

    Args:
        classifier: the model.
        sentences: histories, each the names of items.
    """

    def inputs(self, takes: str) -> Sequence[Any]:
        return [[START, *self.classifier.items.encode(history)] for history in self.sentences]

    def _seen_by_model(self) -> list[Seen]:
        listed = self.classifier.recommend(self.sentences, num_listed(self.model))
        vectors = self.classifier.embed(self.sentences)
        return [
            Seen([found[0].item], np.array([one.probability for one in found], "float32"), vector)
            for found, vector in zip(listed, vectors, strict=True)
        ]

    def _best(self, given: dict[str, Any], probs: np.ndarray | None) -> list[Any]:
        id, names = given["item_ids"][0], self.classifier.items.names
        if not 0 <= id - self.model.num_control_ids < len(names):
            raise BrokenArtefact(f"it gave the id {id}, which is no item")
        return [given["items"][0] if "items" in given else names[id - self.model.num_control_ids]]

    def _source(self, text: int) -> str:
        return ", ".join(self.sentences[text])


class ImageJudge(ArrayJudge):
    """Compares artefacts with a classifier of images.

    Args:
        classifier: the model.
        sentences: the images, each (S, S, channels) uint8.
    """

    def inputs(self, takes: str) -> Sequence[Any]:
        return [image.tolist() for image in self.sentences]

    def _seen_by_model(self) -> list[Seen]:
        images = np.stack(self.sentences)
        probabilities, vectors = self.classifier.probabilities(images), self.classifier.embed(images)
        labels = [self.classifier.labels[int(row.argmax())] for row in probabilities]
        return [Seen([label], *rows) for label, *rows in zip(labels, probabilities, vectors, strict=True)]

    def _source(self, text: int) -> str:
        return f"image {text + 1}"


def float32_fault(difference: float, places: Sequence[Place]) -> str:
    """Why a float32 artefact does not hold; "" if it holds."""
    if not difference <= PROBABILITY_LOSS:  # so written, NaN is a fault too
        return f"a number differs by {difference:.2g}"
    if lines := sorted({place.text + 1 for place in places if place.margin > PROBABILITY_LOSS}):
        return f"another label or piece than the model's, and no near tie: line {', '.join(map(str, lines))}"
    return ""


def margins_of(probabilities: np.ndarray) -> list[float]:
    """By how much the likeliest is likelier than the next: of labels (C,), or at each place of pieces (S, 5)."""
    ordered = np.sort(np.atleast_2d(probabilities), axis=-1)
    return (ordered[:, -1] - ordered[:, -2:-1].sum(axis=-1)).tolist()  # one item alone has no next


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    """The cosine of two vectors."""
    return float(np.dot(one, other) / max(np.linalg.norm(one) * np.linalg.norm(other), 1e-12))


def num_other(alone: Sequence[Seen], others: Sequence[Seen]) -> int:
    """How many texts have another best label or piece than alone, among those that both lists answer."""
    return sum(one.best != other.best for one, other in zip(alone, others, strict=False))
