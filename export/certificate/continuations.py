"""Judges the texts of a language model's artefacts: the model continues the same prompts, and scores what differs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.prompts import prompted
from keras_transformer.text.tokenizer import END

from ..signatures import Decoding
from .judgement import SCORED_AT_ONCE, Judge
from .measured import Ids, Measured, Trials
from .near_ties import Choice, narrowest_choice
from .rules import CONTINUATION_RULES, likelihood_fault


class ContinuationJudge(Judge):
    """Compares artefacts with a language model.

    Args:
        generator, decoding: the model, and how it searches.
        prompts: what is continued.
    """

    rules = CONTINUATION_RULES

    def __init__(self, generator: Generator, decoding: Decoding, prompts: Sequence[str]):
        self.generator = generator
        self.model = generator.model
        self.tokenizer = generator.tokenizer
        self.decoding = decoding
        self.sentences = list(prompts)
        self.references = None
        beams = decoding.num_beams
        options = SearchOptions(beams, decoding.length_penalty, n_best=beams, batch_size=SCORED_AT_ONCE)
        self.hypotheses = generator.search(self.sentences, options, decoding.max_length)  # type: ignore[assignment]
        self.best = [some[0] for some in self.hypotheses]
        self.source_ids = [tuple(generator.ids_of_prompt(prompt)) for prompt in self.sentences]

    def narrowest_choice(self, place: int) -> Choice:
        prompt, model, limit = self._source(place), self.model, self._limit(place)
        prompt_ids = np.array([prompt], "int32").reshape(1, -1)
        ids = (*[model.num_control_ids] * len(prompt), *self.best[place].ids)  # while it reads, it emits placeholders
        cache = model.init_cache(prompt_ids, self.decoding.num_beams, limit)
        step = prompted(model, prompt_ids)
        return narrowest_choice(step, cache, limit, ids, self.decoding, model.num_control_ids, len(prompt))

    def _texts(self, rows: Sequence[Ids]) -> list[str]:
        return [self.generator.text_of(row) for row in rows]

    def _ids_of_text(self, place: int, text: str) -> Ids:
        ids = tuple(self.generator.ids_of(text))
        return ids if len(ids) >= self._limit(place) - self._num_read(place) else (*ids, END)

    def _log_probs(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        log_probs: list[float] = []
        for first in range(0, len(rows), SCORED_AT_ONCE):
            some = rows[first : first + SCORED_AT_ONCE]
            prompts = [self._source(place) for place in places[first : first + SCORED_AT_ONCE]]
            log_probs += self.generator.log_probs(prompts, some)
        return log_probs

    def _low_precision_fault(self, measured: Measured, trials: Trials) -> str:
        rows = [self._ids(place, answer) for place, answer in enumerate(trials.batched)]
        own = [one.ids for one in self.best[: len(rows)]]
        return likelihood_fault(*(self._nats(some) for some in (own, rows)))

    def _nats(self, rows: Sequence[Ids]) -> float:
        """What a token of the continuations of the first prompts costs on average, in nats."""
        return -sum(self._log_probs(range(len(rows)), rows)) / max(1, sum(map(len, rows)))

    def _num_read(self, place: int) -> int:
        return len(self._source(place))

    def _source(self, place: int) -> list[int]:
        return self.generator.fitting(list(self.source_ids[place]))

    def _limit(self, place: int) -> int:
        added = self.decoding.max_length or self.model.context_length
        return min(len(self._source(place)) + added, self.model.context_length)
