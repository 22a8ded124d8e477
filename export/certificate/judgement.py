"""Judges an artefact's answers by the model's own translations, and by the model's scores of those answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keras_transformer.decoding.translator import SearchOptions, Translator
from keras_transformer.lengths import penalty
from keras_transformer.text.lines import is_blank
from keras_transformer.text.tokenizer import END, plain

from ..artefacts import BrokenArtefact
from ..signatures import Decoding
from ..traced import limits_of
from .measured import Answer, Ids, Measured, Trials, measure
from .near_ties import Choice, narrowest_choice
from .rules import SEARCH_RULES, Difference, float32_fault, is_identical_enough, low_precision_fault
from .runner import Answers, Result

MOST_TIES = 10  # each takes seconds to show; an artefact that needs more of them has another fault
SCORED_AT_ONCE = 32


@dataclass(frozen=True)
class Judgement:
    """Whether an artefact holds; the reason if it does not; and all that was seen."""

    holds: bool
    reason: str
    measured: Measured
    differences: tuple[Difference, ...]


class Judge:
    """Compares artefacts with the model.

    `rules` tells by precision what they are held against.

    Args:
        translator, decoding: the model, and how it searches.
        sentences: what is translated.
        references: a translation of each sentence, for BLEU; or None.
    """

    rules = SEARCH_RULES

    def __init__(
        self,
        translator: Translator,
        decoding: Decoding,
        sentences: Sequence[str],
        references: Sequence[str] | None = None,
    ):
        self.translator = translator
        self.model: Any = translator.model
        self.tokenizer = translator.target_tokenizer
        self.decoding = decoding
        self.sentences = [plain(line) for line in sentences]
        self.references = references
        beams, length_penalty = decoding.num_beams, decoding.length_penalty
        options = SearchOptions(beams, length_penalty, decoding.max_length, n_best=beams)
        self.hypotheses = list(translator.stream(self.sentences, options))
        self.best = [some[0] for some in self.hypotheses]
        lines = ["" if is_blank(line) else line for line in self.sentences]
        self.source_ids = [(*ids, END) for ids in translator.source_tokenizer.encode(lines)]

    def judge(self, precision: str, result: Result) -> Judgement:
        """Judges what the runner saw of an artefact that was given the sentences, or the first of them.

        Raises:
            BrokenArtefact: no translator gives such an answer.
        """
        trials = Trials(*(self._answers(some) for some in (result["batched"], result["alone"], result["padded"])))
        measured = measure(trials, self.best, self.references, result)
        differences = self._differences(trials)
        if precision == "float32":
            if is_identical_enough(measured):
                differences = self._with_margins(differences)
            reason = float32_fault(measured, differences)
        else:
            differences = [one for one in differences if one.given == "batched"]
            reason = self._low_precision_fault(measured, trials)
        return Judgement(not reason, reason, measured, tuple(differences))

    @property
    def num_control_ids(self) -> int:
        """Of the model."""
        return self.model.num_control_ids

    def inputs(self, takes: str) -> Sequence[str] | Sequence[Sequence[int]]:
        """What an artefact is given that takes text, or ids."""
        return self.sentences if takes == "text" else self.source_ids

    def narrowest_choice(self, place: int) -> Choice:
        """How nearly the model lost its own translation of the sentence at this place."""
        model, source_ids = self.model, np.array([self._source(place)], "int32")
        limit, ids = self._limit(place), self.best[place].ids
        cache = model.init_cache(model.encode(source_ids), source_ids, self.decoding.num_beams, limit)
        return narrowest_choice(model.step, cache, limit, ids, self.decoding, model.num_control_ids)

    def _answers(self, answers: Answers) -> list[Answer]:
        scores = answers["outputs"]["score"]
        (outputs,) = (rows for name, rows in answers["outputs"].items() if name != "score")
        if not all(isinstance(score, float) for score in scores):
            raise BrokenArtefact("it gave no number for the score of a text")
        if outputs and isinstance(outputs[0], str):
            return [Answer(text, score) for text, score in zip(outputs, scores, strict=True)]
        tokenizer = self.tokenizer
        strange = [id for row in outputs for id in row if not 0 <= id < tokenizer.vocabulary_size]
        if strange:
            raise BrokenArtefact(f"it gave the id {strange[0]}, which the vocabulary lacks")
        texts = self._texts(outputs)
        return [Answer(text, score, tuple(ids)) for text, score, ids in zip(texts, scores, outputs, strict=True)]

    def _differences(self, trials: Trials) -> list[Difference]:
        found = [
            (given, place, answer)
            for given, answers in trials._asdict().items()
            for place, answer in enumerate(answers)
            if not answer.equals(self.best[place])
        ]
        places = [place for _, place, _ in found]
        scores = self._scores(places, [self._ids(place, answer) for _, place, answer in found])
        return [
            Difference(
                line=place + 1,
                given=given,
                source=self.sentences[place],
                model=self.best[place].text,
                artefact=answer.text,
                model_score=self.best[place].score,
                artefact_score=score,
            )
            for (given, place, answer), score in zip(found, scores, strict=True)
        ]

    def _ids(self, place: int, answer: Answer) -> Ids:
        """The answer's ids; for text, the ids of the model's hypothesis with this text, or else its usual pieces."""
        if answer.ids is not None:
            return answer.ids
        known = [one.ids for one in self.hypotheses[place] if one.text == answer.text]
        return known[0] if known else self._ids_of_text(place, answer.text)

    def _ids_of_text(self, place: int, text: str) -> Ids:
        return (*self.tokenizer.encode([text])[0], END)

    def _texts(self, rows: Sequence[Ids]) -> list[str]:
        return self.tokenizer.decode(rows)

    def _scores(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        """The model's scores of these translations of the sentences at these places."""
        scores: list[float] = []
        for place, ids, log_prob in zip(places, rows, self._log_probs(places, rows), strict=True):
            whole = is_whole(ids, self._limit(place) - self._num_read(place), self.model.num_control_ids)
            divisor = penalty(len(ids), self.decoding.length_penalty)
            scores.append(log_prob / divisor if whole else -math.inf)
        return scores

    def _log_probs(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        """log P of these translations of the sentences at these places."""
        log_probs: list[float] = []
        for first in range(0, len(rows), SCORED_AT_ONCE):
            some, here = rows[first : first + SCORED_AT_ONCE], places[first : first + SCORED_AT_ONCE]
            sources = [self._source(place)[:-1] for place in here]
            log_probs += map(float, self.translator.log_probs(sources, [list(ids) or [END] for ids in some]))
        return log_probs

    def _num_read(self, place: int) -> int:
        """How many of the ids up to the limit are not emitted, but read from a prompt."""
        return 0

    def _low_precision_fault(self, measured: Measured, trials: Trials) -> str:
        return low_precision_fault(measured)

    def _source(self, place: int) -> list[int]:
        """(S,) The sentence's ids as the model sees them: cut to the model's length, with the end id last."""
        return [*self.source_ids[place][:-1][: self.translator.max_source_length], END]

    def _limit(self, place: int) -> int:
        return int(limits_of(np.array([self._source(place)]), self.decoding.max_length)[0])

    def _with_margins(self, differences: list[Difference]) -> list[Difference]:
        """The differences; those that are worse tell how nearly the model lost its own translation."""
        lines = sorted({one.line for one in differences if not one.is_no_worse and self._limit(one.line - 1)})
        choices = {line: self.narrowest_choice(line - 1) for line in lines[:MOST_TIES]}

        def with_margin(one: Difference) -> Difference:
            choice = None if one.is_no_worse else choices.get(one.line)
            return replace(one, margin=choice.margin, piece=choice.piece) if choice else one

        return [with_margin(one) for one in differences]


def is_whole(ids: Ids, limit: int, num_control_ids: int = 4) -> bool:
    """Whether a translation ends with its only end id, or was cut at its limit, and has no other control id."""
    has_end = ids[-1:] == (END,)
    is_text = all(id >= num_control_ids for id in ids[: len(ids) - has_end])
    return is_text and (has_end or 0 < limit <= len(ids))
