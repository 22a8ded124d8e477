"""What a model gives for the texts of a certificate; what it says of an artefact's answers to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from keras_transformer.decoding.options import Decoding
from keras_transformer.decoding.signature import Signature
from keras_transformer.decoding.texts import Texts
from keras_transformer.text.tokenizer import Tokenizer

from ..artefacts import Artefact
from .near_ties import Choice

Row = dict[str, Any]  # an artefact's outputs for one text, by their names


class Compared(NamedTuple):
    """An artefact's answer to a text beside the model's.

    Args:
        place: of the text.
        answer: for people.
        is_same: whether both chose the same tokens, text or label.
        gap: how far its numbers are from the model's for what it chose: of log P in nats a token, with the sign; of
            probabilities. Infinite if the model cannot give the answer.
        length: how many tokens it chose.
        loss: how much worse the model finds what it chose than the model's own choice, in score or probability.
        vector: the length of the difference of the vectors, in lengths of the model's.
        is_known: whether the model, or what is stored of the model, can say anything of the answer.
        guess_gap: the gap of a text whose tokens are guessed: others may spell it, with another log P.
    """

    place: int
    answer: str
    is_same: bool
    gap: float
    length: int = 1
    loss: float = 0.0
    vector: float = 0.0
    is_known: bool = True
    guess_gap: float = 0.0


class Expected(ABC):
    """What a model gives for texts.

    Args:
        signature: of the model's artefacts.
        texts: the texts, in the order in which artefacts get them.
    """

    unit: ClassVar[str]  # the field of `Bounds` that holds the gaps
    decoding = Decoding()
    num_control_ids = 4
    context = 0
    references: Sequence[str] | None = None
    has_model = True  # whether any answer can be scored
    tokenizers: Sequence[Tokenizer] = ()  # of what is read and of what is written
    names: Sequence[str] = ()  # of labels, or of items

    def __init__(self, signature: type[Signature], texts: Texts):
        self.signature = signature
        self.texts = texts

    @abstractmethod
    def inputs(self, artefact: Artefact) -> list[Any]:
        """What an artefact is given for each text."""

    @abstractmethod
    def compare(self, places: Sequence[int], rows: Sequence[Row]) -> list[Compared]:
        """Compares answers to the texts at these places with the model's.

        Raises:
            BrokenArtefact: no such model gives such an answer.
        """

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The sizes of outputs that are fixed, by the letters of `decoding.signature`."""

    @abstractmethod
    def answer(self, place: int) -> str:
        """The model's answer to a text, for people."""

    @abstractmethod
    def score(self, place: int) -> float:
        """The model's score of its own answer to a text, or the probability of its choice."""

    @abstractmethod
    def stored(self, places: Sequence[int]) -> list[dict[str, Any]]:
        """What a certificate keeps of the texts at these places, for whoever compares without the model."""

    def pieces(self, place: int) -> list[int] | None:
        """The ids of a text as SentencePiece cuts it; None of what is no text."""
        return None

    def narrowest_choice(self, place: int) -> Choice | None:
        """How nearly the model lost its own answer; None if nobody can say."""
        return None

    def source(self, place: int) -> str:
        """A text, for people."""
        return str(self.texts[place])
