"""What a model answers, as whoever compares an artefact with the model asks for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.search.loop import Cache, Step
from keras_transformer.text.lines import is_blank
from keras_transformer.text.tokenizer import Tokenizer

MOST_STORED = 40  # choices of a text, where the model is not there
DIVISIONS = 8  # how many ways to divide a text into pieces are compared with what an artefact chose
Ids = tuple[int, ...]


class Known(NamedTuple):
    """A hypothesis of the model."""

    ids: Ids  # with its end, unless it was cut
    text: str
    score: float


class Begun(NamedTuple):
    """A search for one text that has not taken a step.

    Args:
        step, cache: the step and cache of the model.
        num_read: how many positions a prompt has that stands before what is emitted.
    """

    step: Step
    cache: Cache
    num_read: int = 0


class Vocabularies:
    """From text to ids and back, as the model's own pipeline does it.

    Args:
        signature: what the model's artefacts take and give.
        source, target: the vocabularies of what is read and of what is written.
    """

    def __init__(self, signature: type[Any], source: Tokenizer, target: Tokenizer):
        self.source, self.target = source, target
        self.signature = signature

    def read(self, text: str) -> list[int]:
        """The pieces of a text that the model reads."""
        if self.signature.empties_blank and is_blank(text):
            return []
        return self.source.encode([text])[0] if self.signature.is_one_line else self.source.encode_text(text)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of ids that the model writes."""
        return self.target.decode([ids])[0] if self.signature.is_one_line else self.target.decode_text(ids)

    def written(self, text: str) -> Iterator[list[int]]:
        """The ids with which the model may have written a text, without an end."""
        yield self.target.encode([text])[0] if self.signature.is_one_line else self.target.encode_text(text)
        yield from self.target.divisions(text, DIVISIONS)


class Searched(ABC):
    """What a model that searches answers to texts, each by its place."""

    vocabularies: Vocabularies
    num_control_ids: int
    context = 0  # a language model's
    beginning: Sequence[int] = ()  # the ids with which each answer begins
    has_model = True  # whether any answer can be scored

    @abstractmethod
    def hypotheses(self) -> list[list[Known]]:
        """The hypotheses of each text, the best first."""

    @abstractmethod
    def pieces(self, place: int) -> list[int]:
        """The ids of a text as its tokenizer cuts it, without tags."""

    @abstractmethod
    def given(self, place: int) -> list[int]:
        """What an artefact of ids is given."""

    @abstractmethod
    def read(self, place: int) -> list[int]:
        """What the model reads of it."""

    @abstractmethod
    def limit(self, place: int) -> int:
        """The most ids to emit."""

    @abstractmethod
    def log_probs(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        """log P of these ids as answers to the texts at these places; NaN if nobody can say."""

    @abstractmethod
    def begun(self, place: int) -> Begun | None:
        """The search for a text; None if the model is not there."""


class Ranking(NamedTuple):
    """How probable the model finds the labels, the pieces of a place, or the items.

    Args:
        probabilities: that of each choice, the best first.
        others: the most that a choice has that is not among them.
    """

    probabilities: dict[Any, float]
    others: float = 0.0

    @property
    def best(self) -> Any:
        """The likeliest choice."""
        return next(iter(self.probabilities))

    def gap(self, choice: object, probability: float) -> float:
        """How far a probability is from the model's for this choice."""
        if choice in self.probabilities:
            return abs(probability - self.probabilities[choice])
        return max(0.0, probability - self.others)

    def shortened(self) -> Ranking:
        """The ranking of the best choices alone."""
        listed = [*self.probabilities.items()]
        others = max([self.others, *(probability for _, probability in listed[MOST_STORED:])])
        return Ranking(dict(listed[:MOST_STORED]), others)

    def loss(self, choice: object) -> float:
        """How much less probable the model finds a choice than its best one."""
        return self.probabilities[self.best] - self.probabilities.get(choice, 0.0)


class Seen(NamedTuple):
    """What the model gives for a text: a ranking, or one for each place; and a vector (D,)."""

    rankings: list[Ranking]
    vector: np.ndarray


def ranking_of(labels: Sequence[str] | Sequence[int], probabilities: np.ndarray) -> Ranking:
    """The ranking of labels with these probabilities."""
    return Ranking({labels[place]: float(probabilities[place]) for place in np.argsort(-probabilities, kind="stable")})
