"""Compares what translators and language models give: hypotheses, and log P of any other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.checking.certificate_texts import Texts, valid
from keras_transformer.checking.probes import MOST_PIECES, Answer, Probe, by_largest_margin
from keras_transformer.checking.signatures import Ids, ReferenceSearch, Signature
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import Decoding, penalty
from keras_transformer.text.tokenizer import END

from ..artefacts import Artefact, BrokenArtefact
from .expected import Choice, Compared, Expected, Input, Row, narrowest_choice

SCORED_AT_ONCE = 32


class Given(NamedTuple):
    """A hypothesis of an artefact."""

    score: float
    text: str
    ids: Ids | None = None  # None if the artefact gives text


class ExpectedSearch(Expected):
    """The hypotheses of a model that searches.

    Args:
        signature, texts: as for `Expected`.
        model: what the model answers to the texts, or what is stored of the model.
        decoding: how it searches.
        references: a translation of each text that is no probe, for BLEU; or None.
    """

    unit = "log_prob"

    def __init__(
        self,
        signature: type[Signature],
        texts: Texts,
        model: ReferenceSearch,
        decoding: Decoding,
        references: Sequence[str] | None = None,
    ):
        super().__init__(signature, texts)
        self.model, self.vocabularies, self.decoding, self.references = model, model.vocabularies, decoding, references
        self.num_control_ids, self.context, self.has_model = model.num_control_ids, model.context, model.has_model
        self.tokenizers = self.vocabularies.source, self.vocabularies.target
        self.beginning = model.beginning
        self.has_start = self.vocabularies.source.has_start
        self.hypotheses = model.hypotheses()
        self._log_probs = [{one.ids: self.log_prob_of(one.score, one.ids) for one in some} for some in self.hypotheses]

    def inputs(self, artefact: Artefact) -> list[Input]:
        if artefact.interface == "text":
            return [text if artefact.takes_bytes else valid(text) for text in self.texts]
        if artefact.interface == "pieces":
            return [self.vocabularies.source.pieces(self.pieces(place)) for place in range(len(self.texts))]
        whole = artefact.interface in ("ids", "halves")
        return [self.model.given(place) if whole else self.model.read(place) for place in range(len(self.texts))]

    def pieces(self, place: int) -> list[int]:
        return self.model.pieces(place)

    def narrowest_choice(self, place: int) -> Choice | None:
        start = self.model.search_start(place)
        if start is None:
            return None
        limit, control = start.prompt_length + self.model.limit(place), self.num_control_ids
        # While it reads a prompt, it emits placeholders.
        ids = (*[control] * start.prompt_length, *self.hypotheses[place][0].ids)
        return narrowest_choice(start, limit, ids, self.decoding, control, self.beginning)

    def sizes(self) -> dict[str, int]:
        return {"n": self.decoding.num_listed}

    def answer(self, place: int) -> str:
        return self.hypotheses[place][0].text

    def score(self, place: int) -> float:
        return self.hypotheses[place][0].score

    def source(self, place: int) -> str:
        return valid(self.texts[place])

    def stored(self, places: Sequence[int]) -> list[Config]:
        return [
            {
                "text": self.texts[place],
                "ids": [*self.model.given(place)],
                "read": [*self.model.read(place)],
                "limit": self.model.limit(place),
                "hypotheses": [one._asdict() for one in self.hypotheses[place]],
            }
            for place in places
        ]

    def log_prob_of(self, score: float, ids: Sequence[int]) -> float:
        """log P of ids with a score."""
        return score * penalty(len(ids), self.decoding.length_penalty)

    def compare(self, places: Sequence[int], rows: Sequence[Row]) -> list[Compared]:
        given = [self._given(place, row) for place, row in zip(places, rows, strict=True)]
        candidates = [[self._candidates(place, one) for one in some] for place, some in zip(places, given, strict=True)]
        self._score(
            (place, ids) for place, some in zip(places, candidates, strict=True) for each in some for ids in each
        )
        looks = self._look_errors(places, rows)
        return [
            self._compared(place, some, ids)._replace(look_error=error)
            for place, some, ids, error in zip(places, given, candidates, looks, strict=True)
        ]

    def _look_errors(self, places: Sequence[int], rows: Sequence[Row]) -> list[tuple[float, float]]:
        """`Compared.look_error` of rows that may hold alignments; infinite where a token looks at no piece."""
        errors = [(0.0, 0.0)] * len(rows)
        for first in range(0, len(rows), SCORED_AT_ONCE) if rows and "alignment" in rows[0] else ():
            some = rows[first : first + SCORED_AT_ONCE]
            ids = [tuple(id for id in row["target_ids"] if id != END) for row in some]
            weights = self.model.attention(places[first : first + SCORED_AT_ONCE], ids)
            for place, row, own, each in zip(range(first, len(rows)), some, ids, weights, strict=False):
                # The runner cuts zeros off, which may be places.
                looked = np.array([*row["alignment"], *[0] * len(own)][: len(own)], int)
                if np.any((looked < 0) | (looked >= each.shape[1])):
                    errors[place] = (math.inf, math.inf)
                elif own:
                    lost = each.max(axis=1) - each[np.arange(len(own)), looked]
                    errors[place] = (float(lost.max()), float(lost.mean()))
        return errors

    def _given(self, place: int, row: Row) -> list[Given]:
        """The hypotheses that an artefact lists."""
        if "scores" in row:
            (texts,) = (values for name, values in row.items() if name != "scores")
            return self._listed(place, [Given(*one) for one in zip(row["scores"], texts, strict=True)])
        answer = next(value for name, value in row.items() if name not in ("score", "alignment", "source_ids"))
        if "source_ids" in row:  # a text, and its ids
            text, answer, read = row[next(iter(self.signature.text_outputs))], row["target_ids"], self.model.read(place)
            if text != self.vocabularies.text_of(answer) or row["source_ids"][: len(read) - 1] != read[:-1]:
                raise BrokenArtefact(f"{self.texts.name(place)}: its ids are not those of its texts")
        if isinstance(answer, str):
            return [Given(row["score"], answer)]
        target = self.vocabularies.target
        if answer and isinstance(answer[0], str):
            ids_of = {piece: id for id, piece in enumerate(target.pieces(range(target.vocabulary_size)))}
            answer = [ids_of.get(piece, -1) for piece in answer if piece]
        if strange := [id for id in answer if not 0 <= id < target.vocabulary_size]:
            raise BrokenArtefact(f"{self.texts.name(place)}: it gave the id {strange[0]}, which the vocabulary lacks")
        return [Given(row["score"], self.vocabularies.text_of(answer), tuple(answer))]

    def _listed(self, place: int, given: list[Given]) -> list[Given]:
        """A list of hypotheses, without the rows behind them that hold none.

        Raises:
            BrokenArtefact: a row without hypothesis has a text or stands before one, there are more or fewer hypotheses
                than the model has, or two are the same.
        """
        name, listed = self.texts.name(place), [one for one in given if one.score > -math.inf]
        if any(one.text for one in given[len(listed) :]) or -math.inf in [one.score for one in given[: len(listed)]]:
            raise BrokenArtefact(f"{name}: a row of its list has the score -inf, and a text or a hypothesis behind it")
        expected = min(len(self.hypotheses[place]), self.decoding.num_listed)
        if len(listed) != expected:
            raise BrokenArtefact(f"{name}: it lists {len(listed)} hypotheses, and the model {expected}")
        if len({*listed}) < len(listed):
            raise BrokenArtefact(f"{name}: it lists a hypothesis twice")
        return listed

    def probes(self, numbers: Iterable[int]) -> list[Probe]:
        """The short texts of these numbers whose best hypothesis leads by most: see `chosen_probes`."""
        short = [place for place in numbers if 1 < len(self.model.given(place)) <= MOST_PIECES + 1]
        chosen = by_largest_margin(
            (
                best.score - (others[0].score if others else 0.0),
                Probe(
                    self.model.read(place),
                    [Answer(list(one.ids), self.log_prob_of(one.score, one.ids)) for one in (best, *others)],
                ),
            )
            for place in short
            for best, *others in [self.hypotheses[place]]
        )
        places = {tuple(self.model.read(place)): place for place in short}
        return [self._aligned(probe, places[tuple(probe.source_ids)]) for probe in chosen]

    def _aligned(self, probe: Probe, place: int) -> Probe:
        """A probe that tells where its best hypothesis looks."""
        best, *others = probe.hypotheses
        (weights,) = self.model.attention([place], [tuple(id for id in best.ids if id != END)])
        return probe._replace(hypotheses=[best._replace(alignment=weights.argmax(axis=1).tolist()), *others])

    def _candidates(self, place: int, given: Given) -> list[Ids]:
        """The ids that an answer may have: its own, or those of its text."""
        if given.ids is not None:
            return [given.ids]
        if known := [ids for ids in self._log_probs[place] if self._text(place, ids) == given.text]:
            return known
        most = self.model.limit(place)
        tags = self.beginning[: len(self.beginning) - len(self.tokenizers[1].encode([""])[0])]
        written = {(*tags, *ids) for ids in self.vocabularies.written(given.text)}
        return [*(ids for ids in written if len(ids) == most), *((*ids, END) for ids in written if len(ids) < most)]

    def _text(self, place: int, ids: Ids) -> str:
        known = {one.ids: one.text for one in self.hypotheses[place]}
        return known[ids] if ids in known else self.vocabularies.text_of(ids)

    def _score(self, answers: Iterable[tuple[int, Ids]]) -> None:
        """Finds log P of answers that are not known yet."""
        unknown = [*dict.fromkeys((place, ids) for place, ids in answers if ids not in self._log_probs[place])]
        whole = [
            one for one in unknown if is_whole(one[1], self.model.limit(one[0]), self.num_control_ids, self.beginning)
        ]
        for first in range(0, len(whole), SCORED_AT_ONCE):
            some = whole[first : first + SCORED_AT_ONCE]
            found = self.model.log_probs([place for place, _ in some], [ids for _, ids in some])
            for (place, ids), log_prob in zip(some, found, strict=True):
                self._log_probs[place][ids] = log_prob
        for place, ids in unknown:
            self._log_probs[place].setdefault(ids, -math.inf)

    def _compared(self, place: int, given: list[Given], candidates: list[list[Ids]]) -> Compared:
        known, best = self.hypotheses[place], self.hypotheses[place][0]
        rows = [self._nearest(place, *one) for one in zip(given, candidates, strict=True)]
        own = [one.ids if some.ids is not None else one.text for one, some in zip(known, given, strict=False)]
        texts = {one.text for one in known}
        is_guess = [one.ids is None and bool(one.text) and one.text not in texts for one in given]
        read = [row for row, guessed in zip(rows, is_guess, strict=True) if not guessed]
        ids, _, error = max(read, key=size_of_error) if read else ((), 0.0, 0.0)
        first, first_log_prob, _ = rows[0]
        return Compared(
            place=place,
            answer=given[0].text,
            is_same=own == [one.text if one.ids is None else one.ids for one in given],
            score_error=error,
            length=max(1, len(ids)),
            regret=best.score - first_log_prob / penalty(max(1, len(first)), self.decoding.length_penalty),
            is_known=not any(math.isnan(row[1]) for row in rows),
            guess_error=max(
                (size_of_error(row) for row, guessed in zip(rows, is_guess, strict=True) if guessed), default=0.0
            ),
        )

    def _nearest(self, place: int, given: Given, candidates: list[Ids]) -> tuple[Ids, float, float]:
        """The ids that an answer may have whose log P is nearest to the answer's; this log P, and how far it is."""
        rows: list[tuple[Ids, float, float]] = [((), -math.inf, math.inf)] if not candidates else []
        for ids in candidates:
            log_prob = self._log_probs[place][ids]
            rows.append((ids, log_prob, (self.log_prob_of(given.score, ids) - log_prob) / max(1, len(ids))))
        return min(rows, key=lambda row: math.inf if math.isnan(row[2]) else abs(row[2]))


def size_of_error(row: tuple[Ids, float, float]) -> float:
    """How large an error is, behind ids and their log P; -inf if nobody can say."""
    return -math.inf if math.isnan(row[2]) else abs(row[2])


def is_whole(ids: Ids, limit: int, num_control_ids: int = 4, beginning: Sequence[int] = ()) -> bool:
    """Whether an answer has its beginning, ends with its only end id or was cut at its limit, and has no other control
    id.
    """
    has_end, first = ids[-1:] == (END,), len(beginning)
    is_text = ids[:first] == (*beginning,) and all(id >= num_control_ids for id in ids[first : len(ids) - has_end])
    return is_text and len(ids) <= max(1, limit) and (has_end or 0 < limit == len(ids))
