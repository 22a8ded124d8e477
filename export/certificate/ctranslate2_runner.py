"""Runs an artefact of CTranslate2 for `runner`, which loads this script by its path. It imports nothing of ours.

The search is the one of BUILD.md's program, for batches in place of one text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import ctranslate2

END_PIECE = "</s>"
Pieces = list[str]


def prepare(task: dict[str, Any]) -> Callable[[], tuple]:
    """CTranslate2; see `runner`."""
    import ctranslate2

    def load() -> tuple:
        folder = Path(*task["paths"])
        on_gpu = task["gpu"] and ctranslate2.get_cuda_device_count() > 0
        options = {"device": "cuda" if on_gpu else "cpu", "inter_threads": 1, "intra_threads": task["threads"]}
        answers = Search(ctranslate2.Translator(str(folder), **options), folder)
        return {"": answers}, options["device"], "GPU" if on_gpu else "CPU"

    return load


class Search:
    """The search of the run that was exported, with CTranslate2.

    Args:
        translator: the translator of the folder.
        folder: what the export wrote.
    """

    def __init__(self, translator: ctranslate2.Translator, folder: Path):
        self.translator = translator
        self.search = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))["search"]

    def __call__(self, texts: Sequence[Pieces]) -> dict[str, np.ndarray]:
        """Pieces of texts → the pieces (B, T) of the best translations, with their end, then ""; and scores (B,)."""
        sources = [text[: self.search["max_source_length"]] for text in texts]  # CTranslate2 adds the end
        places = [place for place, source in enumerate(sources) if source]
        best = {place: [END_PIECE] for place in range(len(sources))}  # a blank line has an empty translation
        scores = np.zeros(len(sources), "float32")
        if places:
            best |= zip(places, self.translations([sources[place] for place in places]), strict=True)
            scores[places] = self.scores([sources[place] for place in places], [best[place] for place in places])
        rows = np.full((len(sources), max(map(len, best.values()), default=0)), "", object)
        for place, pieces in best.items():
            rows[place, : len(pieces)] = pieces
        return {"target_pieces": rows, "score": scores}

    def translations(self, sources: Sequence[Pieces]) -> list[Pieces]:
        """The best translations. CTranslate2 has one limit for a batch; where it was too long, a search follows."""
        limits = [self.limit(source) for source in sources]
        found = self.hypotheses(sources, max(limits))
        for place, limit in enumerate(limits):
            if max(map(len, found[place].hypotheses)) > limit:
                found[place] = self.hypotheses([sources[place]], limit)[0]
        return [self.best(result) for result in found]

    def limit(self, source: Pieces) -> int:
        """The most pieces of a translation, with its end."""
        return min(len(source) + self.search["extra_length"], self.search["max_length"])

    def hypotheses(self, sources: Sequence[Pieces], limit: int) -> list[Any]:
        """CTranslate2's results."""
        return self.translator.translate_batch(sources, max_decoding_length=limit, **self.search["options"])

    def best(self, result: Any) -> Pieces:
        """The best hypothesis by the run's length penalty; those that ended stand before those that were cut."""
        ranked = [
            (pieces[-1:] == [END_PIECE], self.penalised(pieces, log_prob), pieces)
            for pieces, log_prob in zip(result.hypotheses, result.scores, strict=True)
        ]
        return max(ranked, key=lambda one: one[:2])[2]

    def penalised(self, pieces: Pieces, log_prob: float) -> float:
        """The score of a translation with its end: log P / ((5 + |y|) / 6)^α."""
        return log_prob / ((5 + len(pieces)) / 6) ** self.search["length_penalty"]

    def scores(self, sources: Sequence[Pieces], translations: Sequence[Pieces]) -> list[float]:
        """Scores by all probabilities; those of the search leave out the ids that may not be emitted."""
        texts = [[piece for piece in pieces if piece != END_PIECE] for pieces in translations]
        results = self.translator.score_batch(sources, texts, max_input_length=0)  # it would cut translations too
        # CTranslate2 scores an end behind each; a translation that was cut has none.
        sums = [sum(one.log_probs[: len(pieces)]) for one, pieces in zip(results, translations, strict=True)]
        return [self.penalised(pieces, log_prob) for pieces, log_prob in zip(translations, sums, strict=True)]
