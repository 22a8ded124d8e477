"""What the artefacts of a language model take and give: prompt ids → the ids that follow, and their score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer import ops
from keras_transformer.checking.certificate_texts import valid
from keras_transformer.checking.probes import ComputedProbe, rows_of_ids
from keras_transformer.checking.signatures import (
    IDS,
    ONE_LINE,
    SCORE,
    TEXT,
    Ids,
    ReferenceAnswer,
    ReferenceSearch,
    Searching,
    SearchStart,
    Vocabularies,
    first_lines,
    known_ids,
    longest_of,
    rows_from,
    valid_ids,
    with_end,
)
from keras_transformer.decoding.computations import PromptForcing, TextLogProbs, prompt_length
from keras_transformer.decoding.keras_decoder import CompiledComputations
from keras_transformer.models.stack_models import LanguageModel
from keras_transformer.ops import Tensor
from keras_transformer.runs.run_folder import RunConfig, RunFolder
from keras_transformer.search.beam_search import beam_search
from keras_transformer.spec.search_options import Decoding, require_no_factor
from keras_transformer.tasks.language_modelling.pipeline import Generator
from keras_transformer.text.tokenizer import PAD, SEPARATOR, START

SEARCHED_AT_ONCE = 32


class Continuation(Searching):
    """A language model: prompt ids → the ids that continue them, and their score."""

    ids_stem, text_stem = "generate", "generate_text"
    halves = ("step",)
    takes = "prompt_ids"
    cleaning = ((r"\x00", " "),)
    is_one_line = False
    closing = PAD
    ids_outputs, text_outputs = {"added_ids": IDS, "score": SCORE}, {"continuation": TEXT, "score": SCORE}

    @property
    def max_pieces(self) -> int:
        return np.iinfo("int32").max  # it cuts ids, whose last ones count

    def ids_of(self, pieces: Any) -> Tensor:
        return pieces.to_tensor(PAD)

    def probe(self) -> ComputedProbe:
        """Returns log P of the texts: the step, which checks itself by it, is the graph of all commands."""
        ids = rows_of_ids(self.model.num_control_ids, self.model.vocabulary_size, self.model.context_length + 1)
        inputs = [ids[:, :-1], ids[:, 1:]]
        return ComputedProbe(inputs, CompiledComputations(self.model).run(TextLogProbs(), *inputs))

    def search(self, ids: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
        return continue_ids(self.model, ids, decoding, self.index_dtype, self.pipeline.tokenizer.has_start)

    @classmethod
    def reference_search(cls, pipeline: Generator, texts: Sequence[str], decoding: Decoding) -> ReferenceSearch:
        return Continued(cls, pipeline, texts, decoding)


class Answering(Continuation):
    """A language model of pairs: prompt ids, pieces and the separator (the end id) → the ids of the answer, the score.

    The beginning counts of a prompt that leaves no room for the longest answer.
    """

    mark = "answer_length"
    cleaning = (ONE_LINE,)
    is_one_line = True
    closing = SEPARATOR

    def ids_of(self, pieces: object) -> Tensor:
        return with_end(pieces)

    def search(self, ids: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
        longest = self.model.context_length - self.pipeline.answer_length - 1  # pieces of the longest prompt
        return super().search(valid_ids(ids, self.model.vocabulary_size, longest), decoding)

    @classmethod
    def validation(cls, folder: RunFolder, config: RunConfig) -> tuple[list[str], list[str] | None]:
        return first_lines(folder.valid_source), None


class Continued(ReferenceSearch):
    """What a language model answers.

    Args:
        signature: the signature of its artefacts.
        generator: the model with its vocabulary.
        texts: the prompts.
        decoding: how it searches.
    """

    def __init__(self, signature: type[Continuation], generator: Generator, texts: Sequence[str], decoding: Decoding):
        self.generator, self.model, self.decoding = generator, generator.model, decoding
        self.num_control_ids, self.context = self.model.num_control_ids, self.model.context_length
        self.vocabularies = Vocabularies(signature, *generator.tokenizers)
        self._texts = texts
        self._prompts = [generator.ids_of_prompt(valid(text)) for text in texts]

    def hypotheses(self) -> list[list[ReferenceAnswer]]:
        options = self.decoding.options(self.decoding.num_beams, batch_size=SEARCHED_AT_ONCE)
        read = [self.generator.fitting(ids) for ids in self._prompts]
        return [
            [ReferenceAnswer(one.ids, one.text, one.score) for one in some]
            for some in self.generator.search_ids(read, options, self.decoding.max_length)
        ]

    def pieces(self, place: int) -> list[int]:
        return self.vocabularies.read(valid(self._texts[place]))

    def given(self, place: int) -> list[int]:
        return self._prompts[place]

    def read(self, place: int) -> list[int]:
        return self.generator.fitting(self._prompts[place])

    def limit(self, place: int) -> int:
        _, rest = self.generator.begun_by(self.read(place))
        return min(self.decoding.max_length or self.context, self.context - len(rest))

    def log_probs(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        return self.generator.log_probs([self.read(place) for place in places], rows)

    def search_start(self, place: int) -> SearchStart:
        first, prompt = self.generator.begun_by(self.read(place))
        prompted = PromptForcing(self.model, np.array([[first]], "int32"), np.array([prompt], "int32").reshape(1, -1))
        cache = prompted.init_cache(self.decoding.num_beams, len(prompt) + self.limit(place))
        return SearchStart(prompted.step, cache, len(prompt), prompted.ids)


def continue_ids(
    model: LanguageModel, prompt_ids: Tensor, decoding: Decoding, index_dtype: str | None = None, has_start: bool = True
) -> tuple[Tensor, Tensor]:
    """Searches as the generator does, in one context, from ids to ids.

    Args:
        model: the model.
        prompt_ids: (B, P) int32, pieces, then pad. Of a prompt that fills the context, the last half of the context
            counts.
        decoding: the options of the search; `max_length` counts what is added, by default as much as the context holds.
        index_dtype: as for `beam_search`.
        has_start: whether the model reads the start id before a prompt, and not before an empty one alone.

    Returns:
        ids (B, n_best, L) int32 of what is added, as from `translate_ids`; and scores (B, n_best) float32.
    """
    require_no_factor(decoding)
    context = model.context_length
    prompt_ids = known_ids(ops.pad(prompt_ids, [[0, 0], [0, 1]]), model.vocabulary_size)
    lengths = prompt_length(prompt_ids)  # (B,)
    prompt_ids = rows_from(prompt_ids, ops.where(lengths < context, 0, lengths - context // 2))[..., :context]
    lengths = ops.where(lengths < context, lengths, context // 2)
    first_ids = ops.zeros_like(prompt_ids[:, :1]) + START
    if not has_start:
        first_ids = ops.where(prompt_ids[:, :1] == PAD, START, prompt_ids[:, :1])
        prompt_ids, lengths = rows_from(prompt_ids, ops.minimum(lengths, 1)), ops.maximum(lengths - 1, 0)
    limits = ops.minimum(lengths + (decoding.max_length or context), context)
    max_length = longest_of(limits)
    prompted = PromptForcing(model, first_ids, prompt_ids)
    cache, index = prompted.read(decoding.num_beams, max_length)
    ids, scores = beam_search(
        prompted.step, cache, limits, decoding.num_beams, decoding.length_penalty, max_length,
        n_best=decoding.n_best, index_dtype=index_dtype, num_control_ids=model.num_control_ids, prompt_length=lengths,
        index=index, guards=decoding.guards, read_ids=prompted.ids if decoding.guards else None,
    )  # fmt: skip
    rows = ops.reshape(ids, (-1, max_length))
    return ops.reshape(rows_from(rows, ops.repeat(lengths, decoding.num_listed)), ops.shape(ids)), scores


SIGNATURES = (Answering, Continuation)
