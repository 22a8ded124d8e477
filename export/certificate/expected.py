"""Says what the model itself answers, to which artefacts are held, and where an artefact may answer otherwise."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
from keras import ops

from keras_transformer.checking.certificate_texts import Texts, valid
from keras_transformer.checking.signatures import SearchStart, Signature
from keras_transformer.ops import Tensor
from keras_transformer.search import beam_search, loop
from keras_transformer.search.guards import guarded
from keras_transformer.search.loop import mask_forbidden
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import Decoding
from keras_transformer.text.lines import is_blank
from keras_transformer.text.tokenizer import END, Tokenizer

from ..artefacts import Artefact

# What an artefact is given for one text: the text, its ids or pieces, or an image.
Input: TypeAlias = str | Sequence[int] | Sequence[str] | np.ndarray
Row = Config  # an artefact's outputs for one text, by their names

ASCII_SPACE = " \t\n\v\f\r"  # what every vocabulary reads as a space


class Choice(NamedTuple):
    """A choice of the search: its margin in log-probability, and the piece where it was made, from 1."""

    margin: float
    piece: int


def narrowest_choice(
    start: SearchStart,
    limit: int,
    ids: tuple[int, ...],
    decoding: Decoding,
    num_control_ids: int,
    beginning: Sequence[int] = (),
) -> Choice:
    """Finds the step at which the search came closest to losing the translation that it found.

    Args:
        start: the search for one sentence.
        limit: the most ids to emit.
        ids: the translation that the model's search found, behind a placeholder for each id of a prompt.
        decoding: how the search ran.
        num_control_ids: how many of the model's first ids are control ids.
        beginning: the ids with which any translation begins.

    Returns:
        The smallest difference in log-probability, over all steps, between the beginning of the translation and the
        best hypothesis that the step left out.
    """
    num_beams, guards, narrowest = decoding.num_beams, decoding.guards, Choice(math.inf, 0)
    prefix_ids = np.array([beginning], "int32") if beginning else None
    limits, length = np.array([limit], "int32"), np.array([start.prompt_length], "int32")
    bounds = loop.Bounds(limits, limit, prefix_ids, length, read_ids=start.read_ids)
    state = beam_search.start_beams(start.cache, bounds, num_beams, decoding.num_listed)
    for index, id in enumerate(ids):
        logits, cache = start.step(state.token_ids, state.cache, state.index)  # (1, K, V)
        log_probs = _guarded(logits, state, bounds, decoding)
        log_probs = mask_forbidden(log_probs, prefix_ids, state.index, num_control_ids)
        reached = ops.convert_to_numpy(state.live_log_probs[..., None] + log_probs)[0]  # (K, V)
        live_ids = ops.convert_to_numpy(state.live_ids)[0, :, :index]  # (K, index)
        own = reached[np.all(live_ids == ids[:index], axis=1), id]
        if not own.size:
            break  # for this sentence alone, rounding dropped the translation: the step before was the near tie
        narrowest = min(narrowest, Choice(abs(float(own.max()) - best_left_out(reached, id)), index + 1))
        likeliest = beam_search.continuations(logits, state, bounds, num_beams, num_control_ids, guards)
        state = beam_search.next_beams(state, likeliest, cache, bounds, num_beams, decoding.length_penalty)
    return narrowest


def _guarded(logits: Tensor, state: beam_search.BeamState, bounds: loop.Bounds, decoding: Decoding) -> Tensor:
    """Returns the scores (1, K, V) by which a step of the search chooses: with one beam and guards logits."""
    scores = ops.cast(logits, "float32")
    if decoding.guards is None or decoding.num_beams > 1:
        scores = ops.log_softmax(scores)
    return guarded(scores, state.live_ids, state.index, bounds, decoding.guards)


def best_left_out(reached: np.ndarray, id: int) -> float:
    """The log-probability of the best continuation that a step of the search leaves out when it takes this id.

    Args:
        reached: (K, V) the log-probabilities of all continuations of K hypotheses.
        id: what is taken. For an end, the step looks at the 2K best; otherwise it keeps the K best without an end.
    """
    num_kept = len(reached)
    if num_kept > 1 and id == END:
        num_kept *= 2
    elif num_kept > 1:
        reached = np.delete(reached, END, axis=1)
    ranked = np.sort(reached, axis=None)[::-1]
    return float(ranked[num_kept]) if num_kept < ranked.size else -math.inf


class Compared(NamedTuple):
    """An artefact's answer to a text beside the model's.

    Args:
        place: the place of the text.
        answer: for people.
        is_same: whether both chose the same tokens, text or label.
        score_error: how far its numbers are from the model's for what it chose: of log P in nats a token, with the
            sign; of probabilities. Infinite if the model cannot give the answer.
        length: how many tokens it chose.
        regret: how much worse the model finds what it chose than the model's own choice, in score or probability.
        vector: the length of the difference of the vectors, in lengths of the model's.
        is_known: whether the model, or what is stored of the model, can say anything of the answer.
        guess_error: the error of a text whose tokens are guessed: others may spell it, with another log P.
        look_error: how much less the model looks where the artefact says that it looks most, than where it does: for a
            token at most, and on average.
    """

    place: int
    answer: str
    is_same: bool
    score_error: float
    length: int = 1
    regret: float = 0.0
    vector: float = 0.0
    is_known: bool = True
    guess_error: float = 0.0
    look_error: tuple[float, float] = (0.0, 0.0)


class Expected(ABC):
    """What a model gives for texts.

    Args:
        signature: the signature of the model's artefacts.
        texts: the texts, in the order in which artefacts get them.
    """

    unit: ClassVar[str]  # the field of `Bounds` that holds the gaps
    decoding = Decoding()
    num_control_ids = 4
    context = 0
    beginning: Sequence[int] = ()  # the ids with which each answer of a search begins
    has_start = True  # whether a language model reads the start id before a prompt
    references: Sequence[str] | None = None
    has_model = True  # whether any answer can be scored
    tokenizers: Sequence[Tokenizer] = ()  # the tokenizers of what is read and of what is written
    names: Sequence[str] = ()  # the names of labels, or of items

    def __init__(self, signature: type[Signature], texts: Texts):
        self.signature = signature
        self.texts = texts

    @abstractmethod
    def inputs(self, artefact: Artefact) -> list[Input]:
        """What an artefact is given for each text."""

    @abstractmethod
    def compare(self, places: Sequence[int], rows: Sequence[Row]) -> list[Compared]:
        """Compares answers to the texts at these places with the model's.

        Raises:
            BrokenArtefact: no such model gives such an answer.
        """

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The sizes of outputs that are fixed, by the letters of `checking.signatures`; S, the largest one."""

    @abstractmethod
    def answer(self, place: int) -> str:
        """The model's answer to a text, for people."""

    @abstractmethod
    def score(self, place: int) -> float:
        """The model's score of its own answer to a text, or the probability of its choice."""

    @abstractmethod
    def stored(self, places: Sequence[int]) -> list[Config]:
        """What a certificate keeps of the texts at these places, for whoever compares without the model."""

    def pieces(self, place: int) -> list[int] | None:
        """The ids of a text as SentencePiece cuts it; None of what is no text."""
        return None

    def narrowest_choice(self, place: int) -> Choice | None:
        """The closest decision in the model's search; None if it is not known."""
        return None

    def source(self, place: int) -> str:
        """A text, for people."""
        return str(self.texts[place])


class KnownDifference(NamedTuple):
    """Why an artefact may answer a text otherwise than the model.

    Args:
        reason: in words.
        is_choice: whether its numbers are right even so: it chose another hypothesis.
    """

    reason: str
    is_choice: bool = False


def known_difference(artefact: Artefact, texts: Texts, place: int) -> KnownDifference | None:
    """Why an artefact may answer a text otherwise than the model; None if it may not."""
    text = texts[place]
    if artefact.format == "ctranslate2" and place < texts.first_given:
        reason = "CTranslate2 searches without a length penalty, which tells where the model is unsure"
        return KnownDifference(reason, is_choice=True)
    if artefact.interface != "text" or not isinstance(text, str):
        return None
    if artefact.format == "onnx" and "\x00" in text:
        return KnownDifference("ONNX Runtime's Python binding cuts a text at a NUL")
    if artefact.format != "tflite":
        return None
    if "\x00" in text:
        return KnownDifference("LiteRT drops a NUL")
    if is_blank(text) and text.strip(ASCII_SPACE):
        return KnownDifference("LiteRT reads characters that others take for a blank line")
    if valid(text) != text:
        return KnownDifference("LiteRT reads bytes that are no UTF-8 as unknown pieces, and others read U+FFFD")
    return None
