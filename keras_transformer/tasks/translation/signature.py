"""What the artefacts of a translator take and give: source ids → target ids and their score; text → text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from keras_transformer import ops
from keras_transformer.checking.certificate_texts import valid
from keras_transformer.checking.signatures import (
    BLANK,
    IDS,
    ONE_LINE,
    SCORE,
    TEXT,
    Detokenize,
    Ids,
    Output,
    Outputs,
    ReferenceAnswer,
    ReferenceSearch,
    Searching,
    SearchStart,
    Vocabularies,
    limits_of,
    longest_of,
    valid_ids,
    with_end,
)
from keras_transformer.core.errors import RequestError
from keras_transformer.decoding.computations import Aligned
from keras_transformer.models.transformer import Transformer
from keras_transformer.ops import Tensor
from keras_transformer.runs.export_folder import ALIGNED
from keras_transformer.runs.run_folder import RunConfig, RunFolder
from keras_transformer.search.beam_search import beam_search
from keras_transformer.spec.search_options import Decoding
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.lines import read_lines
from keras_transformer.text.tokenizer import END

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel


MOST_LINES = 100_000  # the beginning of a run's validation text, from which some are drawn


class Translation(Searching):
    """A translator: source ids → target ids and their score."""

    halves = ("encoder", "step")
    noun, has_references, empties_blank = "translations", True, True
    ids_stem, text_stem, aligned_stem = "translate", "translate_text", ALIGNED
    cleaning = (ONE_LINE, (BLANK, ""))

    ids_outputs, text_outputs = {"target_ids": IDS, "score": SCORE}, {"translation": TEXT, "score": SCORE}

    def opened(self, ids: Tensor) -> Tensor:
        """Puts the tag of the source's language before ids, where there are pieces."""
        if not (tags := self.pipeline.direction.source):
            return ids
        rows = ops.concatenate([beginnings(tags, ids), ids], axis=1)
        return ops.where(ids[:, :1] == END, ops.pad(ids, [[0, 0], [0, len(tags)]]), rows)

    def ids_of(self, pieces: object) -> Tensor:
        return self.opened(with_end(pieces))

    def search(self, ids: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
        return self._search(self.model, ids, decoding)

    def _search(self, model: Transformer | Aligned, ids: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
        prefix_ids = beginnings(self.pipeline.beginning, ids)
        return translate_ids(model, ids, decoding, self.index_dtype, prefix_ids=prefix_ids)

    def signatures(self) -> dict[str, Callable[[Tensor, Detokenize], Outputs]]:
        return {**super().signatures(), ALIGNED: self.aligned}

    def ids_signatures(self) -> dict[str, Callable[[Tensor], Outputs]]:
        return {ALIGNED: self.aligned_ids}

    @classmethod
    def names_of_signatures(cls, takes_text: bool) -> list[str]:
        return [*super().names_of_signatures(takes_text), ALIGNED]

    @classmethod
    def outputs(cls, signature: str, takes_text: bool) -> dict[str, Output]:
        if signature != ALIGNED:
            return super().outputs(signature, takes_text)
        aligned = {**cls.ids_outputs, "alignment": IDS}
        return {**cls.text_outputs, "source_ids": IDS, **aligned} if takes_text else aligned

    def aligned_ids(self, ids: Tensor) -> Outputs:
        """Returns what the main signature gives, and `alignment` (B, L) int32: for each token the position in
        `source_ids` at which the model looked most; -1 where the end stands, or pad."""
        model = Aligned(self.model, self.index_dtype)
        found, scores = self._search(model, ids, self.decoding.one_best())
        target_ids, places = model.apart(found[:, 0])
        return {"target_ids": target_ids, "score": scores[:, 0], "alignment": places}

    def aligned(self, pieces: Tensor, texts: Detokenize) -> Outputs:
        """Returns what the main signature gives, the ids of source and translation, and `alignment` between them."""
        source_ids = self.ids_of(pieces)
        found = self.aligned_ids(source_ids)
        return {"translation": texts(found["target_ids"]), "source_ids": source_ids, **found}

    @classmethod
    def most_read(cls, model: FamilyModel) -> int:
        return model.max_source_length

    @classmethod
    def validation(cls, folder: RunFolder, config: RunConfig) -> tuple[list[str], list[str] | None]:
        if not (folder.valid_source.is_file() and folder.valid_target.is_file()):
            raise RequestError(f"{folder.path} has no validation sentences: give some by --sentences and --references")
        source, target = (islice(read_lines(path), MOST_LINES) for path in (folder.valid_source, folder.valid_target))
        return list(source), list(target)

    @classmethod
    def reference_search(cls, pipeline: Translator, texts: Sequence[str], decoding: Decoding) -> ReferenceSearch:
        return Translated(pipeline, texts, decoding)


class Translated(ReferenceSearch):
    """What a translator answers.

    Args:
        translator: the model with its vocabularies.
        texts: what is translated.
        decoding: how it searches.
    """

    def __init__(self, translator: Translator, texts: Sequence[str], decoding: Decoding):
        self.translator, self.model, self.decoding = translator, translator.decoder.joint, decoding
        self.num_control_ids = self.model.num_control_ids
        self.vocabularies = Vocabularies(Translation, *translator.tokenizers)
        self.beginning, self._tags = translator.beginning, translator.direction.source
        self._pieces = [self.vocabularies.read(valid(text)) for text in texts]

    def hypotheses(self) -> list[list[ReferenceAnswer]]:
        beams = self.decoding.num_beams
        options = self.decoding.options(beams)
        cut = [self.read(place)[:-1] for place in range(len(self._pieces))]
        blank = [ReferenceAnswer((END,), "", 0.0)]
        return [
            [ReferenceAnswer(one.ids, one.text, one.score) for one in some] if ids else blank
            for ids, some in zip(cut, self.translator.search_ids(cut, options), strict=True)
        ]

    def pieces(self, place: int) -> list[int]:
        return self._pieces[place]

    def given(self, place: int) -> list[int]:
        pieces = self._pieces[place]
        return [*(self._tags if pieces else []), *pieces, END]

    def read(self, place: int) -> list[int]:
        return [*self.given(place)[:-1][: self.translator.max_source_length], END]

    def limit(self, place: int) -> int:
        return int(limits_of(np.array([self.read(place)]), self.decoding)[0])

    def log_probs(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        sources = [self.read(place)[:-1] for place in places]
        found = self.translator.log_probs(sources, [list(ids) for ids in rows])
        return [float(one) if source else 0.0 for one, source in zip(found, sources, strict=True)]

    def attention(self, places: Sequence[int], rows: Sequence[Ids]) -> list[np.ndarray]:
        return self.translator.decoder.attention([self.read(place)[:-1] for place in places], [*map(list, rows)])

    def search_start(self, place: int) -> SearchStart:
        model, source_ids = self.model, np.array([self.read(place)], "int32")
        cache = model.init_cache(model.encode(source_ids), source_ids, self.decoding.num_beams, self.limit(place))
        return SearchStart(model.step, cache)


def beginnings(beginning: Sequence[int], source_ids: Tensor) -> Tensor | None:
    """Repeats the ids (P,) with which all translations begin for each source (B, S): (B, P) int32; None of no ids."""
    if not beginning:
        return None
    return ops.zeros((ops.shape(source_ids)[0], 1), "int32") + np.array(beginning, "int32")


def translate_ids(
    model: Transformer | Aligned,
    source_ids: Tensor,
    decoding: Decoding,
    index_dtype: str | None = None,
    max_length: Tensor | None = None,
    prefix_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Searches as the translator does, from ids to ids.

    Args:
        model: the model, or an `Aligned` one.
        source_ids: (B, S) int32, pieces and the end id, then pad.
        decoding: the options of the search.
        index_dtype: as for `beam_search`.
        max_length: L, at least and by default the limit of the batch's longest sentence.
        prefix_ids: as for `beam_search`.

    Returns:
        ids (B, n_best, L) int32, the best first, each with its end id (none if cut at its limit), then pad; and scores
        (B, n_best) float32.
    """
    source_ids = valid_ids(source_ids, model.source_vocabulary_size or model.vocabulary_size, model.max_source_length)
    limits = limits_of(source_ids, decoding)
    max_length = longest_of(limits) if max_length is None else max_length
    cache = model.init_cache(model.encode(source_ids), source_ids, decoding.num_beams, max_length)
    num_beams, length_penalty, n_best = decoding.num_beams, decoding.length_penalty, decoding.n_best
    return beam_search(
        model.step, cache, limits, num_beams, length_penalty, max_length, prefix_ids, n_best, index_dtype=index_dtype,
        num_control_ids=model.num_control_ids, ids_dtype=getattr(model, "ids_dtype", "int32"), guards=decoding.guards,
    )  # fmt: skip


SIGNATURES = (Translation,)
