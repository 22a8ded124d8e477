"""What translators and language models give: hypotheses, and log P of any other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.probes import MOST_PIECES, Answer, Probe, surest
from keras_transformer.decoding.prompts import Prompted
from keras_transformer.decoding.translator import Translator
from keras_transformer.lengths import penalty
from keras_transformer.text.lines import is_blank
from keras_transformer.text.tokenizer import END, Tokenizer

from ..artefacts import Artefact, BrokenArtefact
from ..forms import Form, Translation
from ..probes import Texts, valid
from ..signatures import Decoding
from ..traced import limits_of
from .expected import Compared, Expected, Row
from .near_ties import Choice, narrowest_choice

SCORED_AT_ONCE = 32
DIVISIONS = 8  # of a text into pieces, among which those may be that an artefact chose
Ids = tuple[int, ...]


class Known(NamedTuple):
    """A hypothesis of the model."""

    ids: Ids  # with its end, unless it was cut
    text: str
    score: float


class Given(NamedTuple):
    """A hypothesis of an artefact."""

    score: float
    text: str
    ids: Ids | None = None  # None if the artefact gives text


class Vocabularies:
    """From text to ids and back, as the model's own pipeline does it.

    Args:
        form: of the model.
        source, target: of what is read and of what is written.
    """

    def __init__(self, form: type[Form], source: Tokenizer, target: Tokenizer):
        self.source, self.target = source, target
        self.form = form

    def read(self, text: str) -> list[int]:
        """The pieces of a text that the model reads."""
        if self.form is Translation and is_blank(text):
            return []
        return self.source.encode([text])[0] if self.form.is_one_line else self.source.encode_text(text)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of ids that the model writes."""
        return self.target.decode([ids])[0] if self.form.is_one_line else self.target.decode_text(ids)

    def written(self, text: str) -> Iterator[list[int]]:
        """The ids with which the model may have written a text, without an end."""
        yield self.target.encode([text])[0] if self.form.is_one_line else self.target.encode_text(text)
        yield from self.target.divisions(text, DIVISIONS)


class ExpectedSearch(Expected):
    """The hypotheses of a model that searches.

    Args:
        form, texts: as for `Expected`.
        vocabularies: of the model.
        decoding: how it searches.
        hypotheses: of each text, the best first.
    """

    unit = "log_prob"

    def __init__(
        self,
        form: type[Form],
        texts: Texts,
        vocabularies: Vocabularies,
        decoding: Decoding,
        hypotheses: Sequence[Sequence[Known]],
    ):
        super().__init__(form, texts)
        self.vocabularies, self.decoding = vocabularies, decoding
        self.tokenizers = vocabularies.source, vocabularies.target
        self.hypotheses = hypotheses
        self._log_probs = [{one.ids: self.log_prob_of(one.score, one.ids) for one in some} for some in hypotheses]

    def inputs(self, artefact: Artefact) -> list[Any]:
        if artefact.takes == "text":
            return [text if artefact.takes_bytes else valid(text) for text in self.texts]
        if artefact.takes == "pieces":
            return [self.vocabularies.source.pieces(self.pieces(place)) for place in range(len(self.texts))]
        whole = artefact.takes in ("ids", "halves")
        return [self.ids(place) if whole else self.read(place) for place in range(len(self.texts))]

    def pieces(self, place: int) -> list[int]:
        return self.vocabularies.read(valid(self.texts[place]))

    def ids(self, place: int) -> list[int]:
        """What an artefact of ids is given."""
        return [*self.pieces(place), END]

    def read(self, place: int) -> list[int]:
        """What the model reads of it."""
        raise NotImplementedError

    def limit(self, place: int) -> int:
        """The most ids to emit."""
        raise NotImplementedError

    def log_probs(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        """log P of these ids as answers to the texts at these places; NaN if nobody can say."""
        raise NotImplementedError

    def sizes(self) -> dict[str, int]:
        return {"n": self.decoding.num_listed}

    def answer(self, place: int) -> str:
        return self.hypotheses[place][0].text

    def score(self, place: int) -> float:
        return self.hypotheses[place][0].score

    def source(self, place: int) -> str:
        return valid(self.texts[place])

    def stored(self, places: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {
                "text": self.texts[place],
                "ids": [*self.ids(place)],
                "read": [*self.read(place)],
                "limit": self.limit(place),
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
        return [self._compared(*one) for one in zip(places, given, candidates, strict=True)]

    def _given(self, place: int, row: Row) -> list[Given]:
        """The hypotheses that an artefact lists."""
        if "scores" in row:
            (texts,) = (values for name, values in row.items() if name != "scores")
            return self._listed(place, [Given(*one) for one in zip(row["scores"], texts, strict=True)])
        (answer,) = (value for name, value in row.items() if name != "score")
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

    def probes(self, places: Iterable[int]) -> list[Probe]:
        """Of the short texts at these places those whose best hypothesis is the best by most: see `chosen_probes`."""
        short = [place for place in places if 1 < len(self.ids(place)) <= MOST_PIECES + 1]
        return surest(
            (
                best.score - (others[0].score if others else 0.0),
                Probe(
                    self.read(place),
                    [Answer(list(one.ids), self.log_prob_of(one.score, one.ids)) for one in (best, *others)],
                ),
            )
            for place in short
            for best, *others in [self.hypotheses[place]]
        )

    def _candidates(self, place: int, given: Given) -> list[Ids]:
        """The ids that an answer may have: its own, or those of its text."""
        if given.ids is not None:
            return [given.ids]
        if known := [ids for ids in self._log_probs[place] if self._text(place, ids) == given.text]:
            return known
        most = self.limit(place)
        written = {tuple(ids) for ids in self.vocabularies.written(given.text)}
        return [*(ids for ids in written if len(ids) == most), *((*ids, END) for ids in written if len(ids) < most)]

    def _text(self, place: int, ids: Ids) -> str:
        known = {one.ids: one.text for one in self.hypotheses[place]}
        return known[ids] if ids in known else self.vocabularies.text_of(ids)

    def _score(self, answers: Any) -> None:
        """Finds log P of answers that are not known yet."""
        unknown = [*dict.fromkeys((place, ids) for place, ids in answers if ids not in self._log_probs[place])]
        whole = [one for one in unknown if is_whole(one[1], self.limit(one[0]), self.num_control_ids)]
        for first in range(0, len(whole), SCORED_AT_ONCE):
            some = whole[first : first + SCORED_AT_ONCE]
            found = self.log_probs([place for place, _ in some], [ids for _, ids in some])
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
        ids, _, gap = max(read, key=size_of_gap) if read else ((), 0.0, 0.0)
        first, first_log_prob, _ = rows[0]
        return Compared(
            place=place,
            answer=given[0].text,
            is_same=own == [one.text if one.ids is None else one.ids for one in given],
            gap=gap,
            length=max(1, len(ids)),
            loss=best.score - first_log_prob / penalty(max(1, len(first)), self.decoding.length_penalty),
            is_known=not any(math.isnan(row[1]) for row in rows),
            guess_gap=max(
                (size_of_gap(row) for row, guessed in zip(rows, is_guess, strict=True) if guessed), default=0.0
            ),
        )

    def _nearest(self, place: int, given: Given, candidates: list[Ids]) -> tuple[Ids, float, float]:
        """Of the ids that an answer may have those with the nearest log P; this log P, and the gap to it."""
        rows: list[tuple[Ids, float, float]] = [((), -math.inf, math.inf)] if not candidates else []
        for ids in candidates:
            log_prob = self._log_probs[place][ids]
            rows.append((ids, log_prob, (self.log_prob_of(given.score, ids) - log_prob) / max(1, len(ids))))
        return min(rows, key=lambda row: math.inf if math.isnan(row[2]) else abs(row[2]))


class ExpectedTranslations(ExpectedSearch):
    """A translator's.

    Args:
        form, translator, decoding: the model, and how it searches.
        texts: what is translated.
        references: a translation of each text that is no probe, for BLEU; or None.
    """

    def __init__(
        self,
        form: type[Form],
        translator: Translator,
        decoding: Decoding,
        texts: Texts,
        references: Sequence[str] | None = None,
    ):
        self.translator, self.model, self.decoding = translator, translator.decoder.joint, decoding
        self.num_control_ids, self.references = self.model.num_control_ids, references
        beams = decoding.num_beams
        vocabularies = Vocabularies(form, translator.source_tokenizer, translator.target_tokenizer)
        options = SearchOptions(beams, decoding.length_penalty, decoding.max_length, n_best=beams)
        self._read = [vocabularies.read(valid(text)) for text in texts]
        cut = [ids[: translator.max_source_length] for ids in self._read]
        blank = [Known((END,), "", 0.0)]
        found = [
            [Known(one.ids, one.text, one.score) for one in some] if ids else blank
            for ids, some in zip(cut, translator.search_ids(cut, options), strict=True)
        ]
        super().__init__(form, texts, vocabularies, decoding, found)

    def pieces(self, place: int) -> list[int]:
        return self._read[place]

    def read(self, place: int) -> list[int]:
        return [*self._read[place][: self.translator.max_source_length], END]

    def limit(self, place: int) -> int:
        return int(limits_of(np.array([self.read(place)]), self.decoding.max_length)[0])

    def log_probs(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        sources = [self.read(place)[:-1] for place in places]
        found = self.translator.log_probs(sources, [list(ids) for ids in rows])
        return [float(one) if source else 0.0 for one, source in zip(found, sources, strict=True)]

    def narrowest_choice(self, place: int) -> Choice:
        model, source_ids, limit = self.model, np.array([self.read(place)], "int32"), self.limit(place)
        cache = model.init_cache(model.encode(source_ids), source_ids, self.decoding.num_beams, limit)
        ids = self.hypotheses[place][0].ids
        return narrowest_choice(model.step, cache, limit, ids, self.decoding, model.num_control_ids)


class ExpectedContinuations(ExpectedSearch):
    """A language model's.

    Args:
        form, generator, decoding: the model, and how it searches.
        texts: the prompts.
    """

    def __init__(self, form: type[Form], generator: Generator, decoding: Decoding, texts: Texts):
        self.generator, self.model = generator, generator.model
        self.num_control_ids, self.context = self.model.num_control_ids, self.model.context_length
        self._prompts = [generator.ids_of_prompt(valid(text)) for text in texts]
        beams = decoding.num_beams
        options = SearchOptions(beams, decoding.length_penalty, n_best=beams, batch_size=SCORED_AT_ONCE)
        read = [generator.fitting(ids) for ids in self._prompts]
        found = [
            [Known(one.ids, one.text, one.score) for one in some]
            for some in generator.search_ids(read, options, decoding.max_length)
        ]
        super().__init__(form, texts, Vocabularies(form, generator.tokenizer, generator.tokenizer), decoding, found)

    def ids(self, place: int) -> list[int]:
        return self._prompts[place]

    def read(self, place: int) -> list[int]:
        return self.generator.fitting(self._prompts[place])

    def limit(self, place: int) -> int:
        return min(self.decoding.max_length or self.context, self.context - len(self.read(place)))

    def log_probs(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        return self.generator.log_probs([self.read(place) for place in places], rows)

    def narrowest_choice(self, place: int) -> Choice:
        prompt, control = self.read(place), self.num_control_ids
        prompt_ids = np.array([prompt], "int32").reshape(1, -1)
        limit = len(prompt) + self.limit(place)
        ids = (*[control] * len(prompt), *self.hypotheses[place][0].ids)  # while it reads, it emits placeholders
        prompted = Prompted(self.model, prompt_ids)
        cache = prompted.init_cache(self.decoding.num_beams, limit)
        return narrowest_choice(prompted.step, cache, limit, ids, self.decoding, control, len(prompt))


def size_of_gap(row: tuple[Ids, float, float]) -> float:
    """How large a gap is, behind ids and their log P; -inf if nobody can say."""
    return -math.inf if math.isnan(row[2]) else abs(row[2])


def is_whole(ids: Ids, limit: int, num_control_ids: int = 4) -> bool:
    """Whether an answer ends with its only end id, or was cut at its limit, and has no other control id."""
    has_end = ids[-1:] == (END,)
    is_text = all(id >= num_control_ids for id in ids[: len(ids) - has_end])
    return is_text and len(ids) <= max(1, limit) and (has_end or 0 < limit == len(ids))
