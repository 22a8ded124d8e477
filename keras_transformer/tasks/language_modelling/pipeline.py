"""From a prompt to a text: a language model, its vocabulary, search and sampling; and the probability of a text.

A model that was trained on a text continues prompts. One that was trained on pairs answers them: it reads a prompt and
the separator, and writes one line.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from keras_transformer.commands.graph_cache import open_in_python
from keras_transformer.core.errors import RequestError, warn
from keras_transformer.core.task_registry import TASKS
from keras_transformer.decoding.attention_maps import Attention, text_attention
from keras_transformer.decoding.computations import TextLogProbs, search_or_sampling
from keras_transformer.decoding.decoder import Score, scores_of
from keras_transformer.decoding.onnx_graphs import OnnxComputations, computations_of
from keras_transformer.decoding.pipelines import TextPipeline
from keras_transformer.runs.run_folder import RunConfig, RunFolder, read_tokenizers
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import GREEDY, SearchOptions, penalty, require_no_factor, require_whole
from keras_transformer.tasks.language_modelling.batches import WindowPlan
from keras_transformer.text.lines import is_blank, strings_of
from keras_transformer.text.sentences import Ids, padded
from keras_transformer.text.tokenizer import END, PAD, SEPARATOR, START, Tokenizer, Unread

if TYPE_CHECKING:
    from keras_transformer.importing.weights import Imported
    from keras_transformer.models.stack_models import LanguageModel

STREAMED_TOKENS = 32  # the most in a piece of a stream; the first piece has one, and each twice as many as before
SCORED_TOKENS = 8_192  # at once


class Continuation(NamedTuple):
    """What a model adds to a prompt."""

    text: str
    ids: tuple[int, ...]  # the ids of its pieces; the last is the end id if the model ended the text
    score: float  # log P / ((5 + length) / 6)^α after a search, both without the prompt; log P after a draw


@dataclass
class GrowingText:
    """Holds a text that grows.

    Args:
        ids: the prompt's, and those that were added.
        num_added: how many were added.
        log_prob: log P of those that were added.
        random: draws what is added.
    """

    ids: Ids
    num_added: int = 0
    log_prob: float = 0.0
    random: np.random.Generator = field(default_factory=np.random.default_rng)

    @property
    def added(self) -> Ids:
        """The ids that were added."""
        return self.ids[len(self.ids) - self.num_added :]

    def is_done(self, max_tokens: int) -> bool:
        """Tells whether so many tokens were added, or the end."""
        return self.num_added >= max_tokens or (self.num_added > 0 and self.ids[-1] == END)


class Generator(TextPipeline):
    """Continues prompts, or answers them, and scores text with one language model. Threads may share it:

        generator = keras_transformer.load_generator("runs/pydoc-topics-tiny")
        [[continuation]] = generator.generate(["The with statement"], max_tokens=100)

    Args:
        model: the model, or an `OnnxComputations` of its step.
        tokenizer: its vocabulary.
        answer_length: the most tokens of an answer, the end included, of a model that answers; None for a model that
            continues.
    """

    task, takes_target = "language-model", True

    def __init__(self, model: LanguageModel | OnnxComputations, tokenizer: Tokenizer, answer_length: int | None = None):
        self._computations = computations_of(model)
        self.model = self._computations.model
        self.tokenizer = tokenizer
        self.answer_length = answer_length
        # Where the context is full, the text goes on from its last half.
        self._kept = self.model.context_length // 2

    def details(self) -> str:
        return f"vocabulary {self.model.vocabulary_size:,}, contexts of up to {self.model.context_length} tokens"

    @classmethod
    def of_run(cls, model: LanguageModel | OnnxComputations, folder: RunFolder, config: RunConfig) -> Generator:
        """Makes a generator of a model, with the vocabulary in a folder; RequestError if it is not the model's."""
        tokenizer = read_tokenizers(folder, None, config.model["vocabulary_size"])[1]
        return cls(model, tokenizer, config.answer_length)

    @classmethod
    def imported(cls, found: Imported) -> Generator:
        return cls(found.model(), found.target.tokenizer)

    @property
    def own_search(self) -> Config:
        return GREEDY

    @property
    def longest_answer(self) -> int | None:
        return self.answer_length

    def sections(self) -> Config:
        return {"answer_length": self.answer_length} if self.answer_length else {}

    def about(self) -> dict[str, str]:
        answers = {"answer_length": str(self.answer_length)} if self.answer_length else {}
        return answers if self.tokenizer.has_start else {**answers, "has_start": "no"}

    def generate(
        self, prompts: Sequence[str], max_tokens: int = 200, options: SearchOptions | None = None
    ) -> list[list[Continuation]]:
        """Continues or answers each prompt.

        Where the context is full, the text goes on from the last half of the context. Of a prompt that does not fit in
        the context, only as much counts. Of a prompt to answer the beginning counts that leaves room for the longest
        answer. Warnings count the prompts that are cut, and what cannot be read.

        Args:
            prompts: texts; an empty one lets the model begin.
            max_tokens: the most tokens to add; of an answer at most `answer_length`.
            options: by default sampling, or greedy search for answers. A search with several beams takes place in one
                context.

        Returns:
            For each prompt `options.n_best` continuations.

        Raises:
            RequestError: an option is out of its range, a search with several beams does not fit in the context, or
                `prompts` is no list of strings.
        """
        options = options or self.usual_options()
        begun = self._begun(prompts, max_tokens, options)
        max_tokens = self.most_tokens(max_tokens)
        if options.num_beams > 1 and not options.sampling:
            self.require_room(begun, max_tokens)
            return [found for ids in begun for found in self._in_context([ids], max_tokens, options)]
        rows = [
            GrowingText(list(ids), random=np.random.default_rng([options.seed, number, copy]))
            for number, ids in enumerate(begun)
            for copy in range(options.n_best)
        ]
        while growing := [row for row in rows if not row.is_done(max_tokens)]:
            for first in range(0, len(growing), options.batch_size):
                self._grow(growing[first : first + options.batch_size], max_tokens, options)
        power = 0.0 if options.sampling else options.length_penalty
        found = (self._continuation(row.added, row.log_prob / penalty(row.num_added, power)) for row in rows)
        return [list(islice(found, options.n_best)) for _ in begun]

    def search(
        self, prompts: Sequence[str], options: SearchOptions, max_tokens: int | None = None
    ) -> list[list[Continuation]]:
        """`generate` by a search in one context, to its end unless `max_tokens` are fewer."""
        max_tokens = self.model.context_length if max_tokens is None else max_tokens
        return self.search_ids(self._begun(prompts, max_tokens, options), options, max_tokens)

    def search_ids(
        self, read: Sequence[Ids], options: SearchOptions, max_tokens: int | None = None
    ) -> list[list[Continuation]]:
        """`search` with prompts in ids, each as `fitting` gives it."""
        max_tokens, found = self.most_tokens(self.model.context_length if max_tokens is None else max_tokens), []
        for first in range(0, len(read), options.batch_size):
            found += self._in_context(list(read[first : first + options.batch_size]), max_tokens, options)
        return found

    def stream(self, prompt: str, max_tokens: int = 200, options: SearchOptions | None = None) -> Iterator[str]:
        """Continues or answers one prompt, and yields the text piece by piece while it grows; see `generate`."""
        options = options or self.usual_options()
        (ids,) = self._begun([prompt], max_tokens, options)
        max_tokens = self.most_tokens(max_tokens)
        row, told, own = GrowingText(list(ids), random=np.random.default_rng([options.seed, 0, 0])), "", copy.copy(self)
        own._computations = self._computations.of_one_stream()
        while not row.is_done(max_tokens):
            own._grow([row], min(max_tokens, row.num_added + min(row.num_added + 1, STREAMED_TOKENS)), options)
            text = self.text_of(row.added)
            # Bytes may spell a part of a character yet.
            text = text if row.is_done(max_tokens) else text.rstrip("\N{REPLACEMENT CHARACTER}")
            yield text[len(told) :]
            told = text

    def score(self, text: str) -> Score:
        """log P of a text, in windows of the context's length, each as if the text began there."""
        ids = self.tokenizer.encode_text(text)
        Unread(self.tokenizer, text.split("\n")).tell()
        return self.score_ids(np.array(ids, "int32"))

    def score_ids(self, ids: np.ndarray) -> Score:
        """`score` of a text (N,) in ids.

        Raises:
            RequestError: the text is empty.
        """
        length = self.model.context_length
        plan = WindowPlan(ids, length, max(length, SCORED_TOKENS), shuffle=False)
        log_prob = 0.0
        for place, batch in islice(plan.iterate(), plan.num_batches(0)):
            width = min(length, plan.num_tokens(place))  # the last window may be alone and short
            (log_probs,) = self._computations.run(
                TextLogProbs(), batch.inputs["ids"][:, :width], batch.labels[:, :width]
            )
            log_prob += float(log_probs.astype("float64").sum())
        return Score(log_prob, len(ids))

    def score_answers(self, prompts: Sequence[str], answers: Sequence[str], batch_size: int = 16) -> list[Score]:
        """log P of an answer to each prompt, with its end.

        Raises:
            RequestError: the model continues texts, there are not as many answers as prompts, or answers do not fit in
                the context beside their prompts.
        """
        require_whole("batch_size", batch_size, 1)
        if self.answer_length is None:
            raise RequestError("expected a model of pairs; this one continues a text: score a text, without sources")
        prompts, answers = list(strings_of(prompts, "prompts")), list(strings_of(answers, "answers"))
        if len(prompts) != len(answers):
            raise RequestError(
                f"expected an answer to each prompt; received {len(prompts)} prompts, {len(answers)} answers"
            )
        read = self._read(prompts)
        Unread(self.tokenizer, answers).tell()
        added = [[*self.ids_of(answer), END] for answer in answers]
        lengths = [len(one) + len(other) for one, other in zip(read, added, strict=True)]
        if long := sum(length > self.model.context_length for length in lengths):
            raise RequestError(
                f"{long} target(s) do not fit in the context, {self.model.context_length} tokens, beside their "
                "sources: leave them out"
            )
        return scores_of(self.log_probs, read, added, lengths, batch_size)

    def attention(self, text: str, answer: str | None = None) -> dict[str, Attention]:
        """Tells where the pieces of a text look: "self". Behind a prompt to answer stands `answer`, or the model's own.

        Raises:
            RequestError: an answer is given to a model that continues texts.
        """
        if answer is not None and self.answer_length is None:
            raise RequestError("expected a text alone: this model continues texts, and answers none")
        (ids,) = self._read([text])
        if self.answer_length is not None:
            added = self.search_ids([ids], self.usual_options())[0][0].ids if answer is None else self.ids_of(answer)
            ids = [*ids, *(id for id in added if id != END)]
        first, rest = self.begun_by(ids)
        return text_attention(self.model, [first, *rest], self.tokenizer)

    def log_probs(self, read: Sequence[Sequence[int]], added: Sequence[Sequence[int]]) -> list[float]:
        """log P of the ids that are added to each prompt, in ids."""
        starts = [self.begun_by(prompt) for prompt in read]
        texts = [[first, *rest, *ids][:-1] for (first, rest), ids in zip(starts, added, strict=True)]
        labels = [[*[PAD] * len(rest), *ids] for (_, rest), ids in zip(starts, added, strict=True)]
        (found,) = self._computations.run(TextLogProbs(), padded(texts), padded(labels))
        return found.tolist()

    def ids_of(self, text: str) -> Ids:
        """Returns the ids of a text as the model was trained on it: with its line breaks, or of pairs as one line."""
        if self.answer_length is None:
            return self.tokenizer.encode_text(text)
        return self.tokenizer.encode([text])[0]

    def ids_of_prompt(self, prompt: str) -> Ids:
        """Returns the ids of a prompt, of any length; behind one to answer stands the separator. An empty prompt is the
        start alone if the vocabulary puts none before a text.
        """
        ids = self.ids_of(prompt) if self.answer_length is None else [*self.ids_of(prompt), SEPARATOR]
        return ids or [START] * (not self.tokenizer.has_start)

    def begun_by(self, ids: Sequence[int]) -> tuple[int, Ids]:
        """Returns what the model reads at position 0, and what follows: the start id and a prompt, or the prompt alone
        if the vocabulary puts no start before a text.
        """
        if self.tokenizer.has_start or not ids:
            return START, [*ids]
        return ids[0], [*ids[1:]]

    def fitting(self, ids: Ids) -> Ids:
        """Returns what the model reads of the ids of a prompt."""
        context = self.model.context_length
        if self.answer_length is None:
            return ids if len(ids) < context else ids[-self._kept :]
        most = context - self.answer_length
        return ids if len(ids) <= most else [*ids[: most - 1], SEPARATOR]

    def text_of(self, added: Sequence[int]) -> str:
        """Returns the text of ids that were added."""
        if self.answer_length is None:
            return self.tokenizer.decode_text(added)
        return self.tokenizer.decode([added])[0]

    def usual_options(self) -> SearchOptions:
        """Returns the options where none are given: sampling, or greedy search for answers."""
        return SearchOptions(sampling=True) if self.answer_length is None else SearchOptions(num_beams=1)

    def most_tokens(self, max_tokens: int) -> int:
        """Returns how many tokens may be added, of those that are asked for."""
        return max_tokens if self.answer_length is None else min(max_tokens, self.answer_length)

    def _begun(self, prompts: Sequence[str], max_tokens: int, options: SearchOptions) -> list[Ids]:
        """Returns the ids of the prompts, cut where they are too long."""
        require_whole("max_tokens", max_tokens, 1)
        require_no_factor(options)
        if options.num_beams == 1 and not options.sampling and options.n_best > 1:
            raise RequestError(f"n_best must be 1 for greedy search; received: {options.n_best}")
        prompts = list(strings_of(prompts, "prompts"))
        if self.answer_length is not None and (blank := sum(map(is_blank, prompts))):
            warn(f"{blank} prompt(s) are blank: their answers mean nothing")
        return self._read(prompts)

    def _read(self, prompts: Sequence[str]) -> list[Ids]:
        """Returns what the model reads of prompts; warnings count those that are cut, and what cannot be read."""
        begun = [self.ids_of_prompt(prompt) for prompt in prompts]
        Unread(self.tokenizer, prompts).tell()
        fitting = [self.fitting(ids) for ids in begun]
        if cut := sum(map(list.__ne__, begun, fitting)):
            context, answer = self.model.context_length, self.answer_length
            counts = f": only the last {self._kept} count"
            if answer is not None:
                counts = f", beside an answer of {answer}: only the first {context - answer - 1} count"
            warn(f"{cut} prompt(s) longer than the context, {context} tokens{counts}")
        return fitting

    def window(self, ids: Ids) -> Ids:
        """Returns what the model sees of a text that goes on. It depends on the text's length alone."""
        length = self.model.context_length
        step = length - self._kept
        return ids[step * max(0, (len(ids) - length) // step + 1) :]

    def _grow(self, rows: Sequence[GrowingText], max_tokens: int, options: SearchOptions) -> None:
        """Adds tokens to each row: to its end, to the end of the context, to its least length, or to `max_tokens`."""
        least = options.min_length
        early, late = ([row for row in rows if (row.num_added < least) == is_early] for is_early in (True, False))
        # An end is forbidden or allowed for a whole call: so two computations are compiled, whatever the lengths are.
        never = replace(options, min_length=self.model.context_length)
        if early:
            self._grow_alike(early, min(max_tokens, least), never)
        if late:
            self._grow_alike(late, max_tokens, replace(options, min_length=0))

    def _grow_alike(self, rows: Sequence[GrowingText], max_tokens: int, options: SearchOptions) -> None:
        """`_grow` of rows whose least length is met, or is not met in this call."""
        starts = [self.begun_by(self.window(row.ids)) for row in rows]
        contexts = [ids for _, ids in starts]
        most = [len(ids) + max_tokens - row.num_added for ids, row in zip(contexts, rows, strict=True)]
        limits = np.minimum(most, self.model.context_length).astype("int32")
        uniforms = np.zeros((len(rows), 1, int(limits.max())), "float32")
        for numbers, row, ids, limit in zip(uniforms, rows, contexts, limits, strict=True):
            numbers[0, len(ids) : limit] = row.random.random(limit - len(ids), "float32")
        summed = replace(options, length_penalty=0.0)  # one beam finds the same text, and the parts of log P add up
        for row, ids, *found in zip(rows, contexts, *self._run(starts, limits, summed, uniforms), strict=True):
            added = [int(id) for id in found[0][0, len(ids) :] if id != PAD]
            row.ids.extend(added)
            row.num_added += len(added)
            row.log_prob += float(found[1][0])

    def require_room(self, begun: Sequence[Ids], max_tokens: int) -> None:
        """Raises RequestError unless a search with several beams fits in the context."""
        for ids in begun:
            if len(ids) + max_tokens > self.model.context_length:
                raise RequestError(
                    f"a search with several beams takes place in one context, {self.model.context_length} tokens; the "
                    f"prompt has {len(ids)}, and {max_tokens} are asked for: ask for fewer, or for one beam, or draw"
                )

    def _in_context(self, begun: list[Ids], max_tokens: int, options: SearchOptions) -> list[list[Continuation]]:
        starts = [self.begun_by(ids) for ids in begun]
        limits = np.array([min(len(ids) + max_tokens, self.model.context_length) for _, ids in starts], "int32")
        return [
            [
                self._continuation([int(id) for id in row[len(ids) :] if id != PAD], float(score))
                for row, score in zip(rows, scores, strict=True)
            ]
            for (_, ids), rows, scores in zip(starts, *self._run(starts, limits, options), strict=True)
        ]

    def _run(
        self, starts: list[tuple[int, Ids]], limits: np.ndarray, options: SearchOptions, *uniforms: np.ndarray
    ) -> list[np.ndarray]:
        """ids (B, K, L), which are placeholders where the contexts are, and scores (B, K); sampling takes numbers."""
        prefix_ids = padded([ids for _, ids in starts], int(limits.max()))
        arrays = (np.array([[first] for first, _ in starts], "int32"), limits, prefix_ids)
        if options.sampling:  # each draw has a row
            options = replace(options, n_best=1, length_penalty=0.0)
        return self._computations.run(search_or_sampling(options), *arrays, *(uniforms if options.sampling else ()))

    def _continuation(self, added: Ids, score: float) -> Continuation:
        return Continuation(self.text_of(added), tuple(added), score)


def load_generator(run: str | os.PathLike[str]) -> Generator:
    """Loads the generator of a run, with its Keras model, or of an export, with its graph in ONNX Runtime.

    An export needs no Keras. Nothing in the folder is executed.

    Raises:
        RequestError: the folder holds no run of a language model, no model yet, or a file is damaged.
    """
    return Generator.of_run(*open_in_python(run, TASKS[Generator.task].kind))


PIPELINE = Generator
