"""Continues or answers prompts for many clients at once: their texts grow together, a token a step.

A text takes a place in the batch when one is free, and leaves it when it ends; the others never wait for it. What a
text becomes depends on its prompt, options and seed alone: it is what `Generator.generate` gives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from keras_transformer import ops
from keras_transformer.commands.graph_cache import Engine, open_model
from keras_transformer.core.errors import RequestError
from keras_transformer.core.task_registry import TASKS
from keras_transformer.decoding.onnx_graphs import Abandoned, OnnxComputations, SteppedLanguageModel, Stop, stoppable
from keras_transformer.runs.export_folder import Graphs
from keras_transformer.search.loop import NO_HYPOTHESIS, is_permitted
from keras_transformer.search.sampling import draw
from keras_transformer.serving.batching import Item, Observer, Part, Refusal, Request, Room, Scheduler
from keras_transformer.serving.growing import GrowingBatch
from keras_transformer.spec.search_options import SearchOptions, penalty
from keras_transformer.tasks.language_modelling.pipeline import Continuation, Generator, GrowingText
from keras_transformer.text.sentences import Ids
from keras_transformer.text.tokenizer import END

ENDED, CUT = "stop", "length"  # reasons to finish, as clients know them
# Seconds from one text of a request to the next where others wait: a list of 1,000 does not hold up a lone prompt.
BETWEEN = 0.1
USUAL_RATE = 200.0  # tokens a second, before any was measured
HALF_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # what bytes give that spell a part of a character yet
# The most that counts as waiting of the tokens that a text may add: most end long before, and one that may be long
# takes no place from those that come.
RESERVED = 128
DRAWING = ("temperature", "top_k", "top_p", "seed")


class Generated(NamedTuple):
    """What a model adds to a prompt, or the next part of it.

    Args:
        text: the text; of a part what is new.
        num_prompt_tokens: the tokens of the prompt.
        num_tokens: the tokens that were added so far, the end among them.
        finish_reason: "stop" at the model's end or at a text to stop at, "length" at the most tokens; "" while more
            is to come.
        log_prob: log P of what was added so far.
    """

    text: str
    num_prompt_tokens: int
    num_tokens: int
    finish_reason: str
    log_prob: float


Answer = list[Generated]  # the continuations of a prompt


@dataclass(eq=False)
class Row:
    """A text that grows, for a request.

    Args:
        request: who asked for it.
        place: where its result belongs in the request.
        num_prompt_tokens: the tokens of the prompt.
        growing: its ids.
        max_tokens: the most to add.
        options: how the next token is chosen.
        stop: texts at which it ends.
        size: the most places that it takes in the batch.
        since: when it began to wait, by `time.monotonic`.
        due: when it may begin, by the same clock; earlier where there is room.
    """

    request: Request[Answer]
    place: int
    num_prompt_tokens: int
    growing: GrowingText
    max_tokens: int
    options: SearchOptions
    stop: Sequence[str]
    size: int
    since: float
    due: float
    told: str = ""
    finish_reason: str = ""
    room: int = 0  # how many tokens its window has room for

    @property
    def num_tokens(self) -> int:
        """How much it counts while it waits."""
        return self.num_prompt_tokens + min(self.max_tokens, RESERVED)

    @property
    def is_wanted(self) -> bool:
        """Whether it grows for somebody."""
        return not (self.finish_reason or self.request.is_cancelled or self.request.has_ended)

    def generated(self, text: str) -> Generated:
        """Returns what is known of it, with a text."""
        growing = self.growing
        return Generated(text, self.num_prompt_tokens, growing.num_added, self.finish_reason, growing.log_prob)

    def add(self, id: int, log_prob: float) -> None:
        """Takes the next token."""
        self.growing.ids.append(id)
        self.growing.num_added += 1
        self.growing.log_prob += log_prob
        self.room -= 1
        if self.growing.is_done(self.max_tokens):
            self.finish_reason = ENDED if id == END else CUT

    def tell(self, text: str) -> None:
        """Tells the request what is new in its text so far, but for what may belong to a text to stop at; and the
        whole, if it has ended."""
        text, is_stopped = stopped_text(text, self.stop)
        self.finish_reason = ENDED if is_stopped else self.finish_reason
        if not self.finish_reason:
            text = text.rstrip(HALF_A_CHARACTER)
            text = text[: len(text) - beginning_of(self.stop, text)]
        new, self.told = text[len(self.told) :], text
        if self.finish_reason:
            self.request.deliver(self.place, self.generated(text), self.generated(new))
        elif new:
            self.request.tell(self.place, self.generated(new))


def growing_request(num_prompts: int, num_copies: int) -> Request[Answer]:
    """Returns the request of texts that grow, so many of each prompt. A part is what is new in one of them: `Part.part`
    tells which continuation of the prompt, and its answer is a list of one."""
    return Request(
        num_prompts * num_copies,
        lambda found: [_generated(found[place : place + num_copies]) for place in range(0, len(found), num_copies)],
        lambda place, new: Part(place // num_copies, place % num_copies, num_copies, _generated([new])),
    )


def _generated(results: Sequence[object]) -> Answer:
    return [one for one in results if isinstance(one, Generated)]


@dataclass(frozen=True)
class Searches:
    """Searches with several beams, each by itself. It is a `batching.Batched`.

    Args:
        model: the name of the model.
        generator: the model.
        options: how to search.
        max_tokens: the most tokens to add.
    """

    model: str
    generator: Generator
    options: SearchOptions
    max_tokens: int

    def run(self, payloads: Sequence[Any]) -> Sequence[list[Continuation]]:
        """Searches from the ids of prompts."""
        return [self.generator.search_ids([ids], self.options, self.max_tokens)[0] for ids in payloads]


class GenerationEngine:
    """Lets the texts of many clients grow together, in a thread of its own.

    Searches with several beams run in the scheduler, each by itself.

    Args:
        model: the name of the model.
        generator: the model, by its graph.
        scheduler: runs the searches with several beams.
        batch_tokens: the most places of all texts in the batch, padding among them.
        max_waiting_tokens: how many tokens may wait, of prompts and in part of what is to be added; see `Scheduler`.
        most_rows: the most texts in the batch.
        observer: hears of each step.

    Attributes:
        graphs: of an engine that was opened, where its graphs are.

    Raises:
        RequestError: the generator has no graph.
    """

    tasks = (Generator.task,)
    pairs: Sequence[tuple[str, str]] = ()
    graphs: Graphs

    def __init__(
        self,
        model: str,
        generator: Generator,
        scheduler: Scheduler,
        batch_tokens: int = 8_192,
        max_waiting_tokens: int = 200_000,
        most_rows: int = 64,
        observer: Observer | None = None,
    ):
        if not isinstance(generator.model, SteppedLanguageModel):
            raise RequestError("expected a language model as a graph; received a Keras model: export the run")
        self.model, self.generator = model, generator
        self.batch_tokens, self.most_rows = batch_tokens, most_rows
        self.room = Room(max_waiting_tokens, USUAL_RATE)
        self._graph: SteppedLanguageModel = generator.model
        self._scheduler, self._observer = scheduler, observer
        self._waiting: list[Row] = []
        self._growing: list[Row] = []
        self._batches: list[GrowingBatch[Row]] = []
        self._waited: float | None = None  # seconds, of the oldest text that is new in a step
        self._is_closed = False
        self._stop = Stop()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"texts of {model}", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, model: str, folder: str, scheduler: Scheduler) -> GenerationEngine:
        """Opens the graph of an export, or that which a run keeps, and checks it.

        Raises:
            RequestError: the folder holds no language model with a graph, or a file is damaged.
            JobError: the graph does not answer its probe as the model does.
        """
        opened = open_model(folder, TASKS[Generator.task].kind, Engine("onnx", num_threads=scheduler.num_workers))
        assert isinstance(opened.model, OnnxComputations)
        limits = scheduler.batch_tokens, scheduler.room.most
        engine = cls(model, Generator.of_run(*opened), scheduler, *limits, observer=scheduler.observer)
        engine.graphs = opened.model.graphs
        return engine

    # What clients ask for

    def options(self, **given: Any) -> SearchOptions:
        """Returns the options by what is given of `temperature`, `top_k`, `top_p`, `seed`, `num_beams` and `n_best`.

        The temperature 0 is greedy search. Without any, texts are continued by sampling, and answers are searched.

        Raises:
            RequestError: an option is out of its range, or options of sampling are given for a search.
        """
        known = {name: value for name, value in given.items() if value is not None}
        if known.get("temperature") == 0:
            known = {name: value for name, value in known.items() if name not in DRAWING} | {"num_beams": 1}
        drawing = [name for name in known if name in DRAWING]
        if drawing and "num_beams" in known:
            raise RequestError(f"{drawing[0]} is for drawing, and beams search; received both: give one")
        usual = self.generator.usual_options()
        is_sampling = bool(drawing) or ("num_beams" not in known and usual.sampling)
        return replace(usual, sampling=is_sampling, **known)

    def prompt_of(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Returns the prompt that the model's template for chats makes of messages, each with a role and its content.

        Raises:
            RequestError: the model has no template, or the template does not take them.
        """
        return self.generator.tokenizer.chat_text(messages)

    def about(self) -> dict[str, object]:
        """Returns what clients should know of it."""
        generator = self.generator
        return {
            "context_length": generator.model.context_length,
            "answers_prompts": generator.answer_length is not None,
            "max_tokens": generator.most_tokens(generator.model.context_length) if generator.answer_length else None,
            "steps_together": "all texts" if self._graph.takes_starts else "texts of equal length",
        }

    def submit(
        self, prompts: Sequence[str], max_tokens: int, options: SearchOptions, stop: Sequence[str] = ()
    ) -> Request[Answer]:
        """Asks for continuations of prompts, or for answers.

        Args:
            prompts: texts; an empty one lets the model begin.
            max_tokens: the most tokens to add to each.
            options: how to choose tokens.
            stop: texts at which a continuation ends; it does not hold them.

        Returns:
            The request. An answer has `options.n_best` continuations of a prompt.

        Raises:
            Refusal: too much waits, or a prompt does not fit in the model's context.
            RequestError: an option is out of its range, or the context has no room for a search.
        """
        if not all(stop):
            raise RequestError("expected texts to stop at; received an empty one: leave it out")
        if options.num_beams == 1 and not options.sampling and options.n_best > 1:
            raise RequestError(f"n_best must be 1 for greedy search; received: {options.n_best}")
        read = [*map(self._read, prompts)]
        max_tokens = self.generator.most_tokens(max_tokens)
        if options.num_beams > 1 and not options.sampling:
            return self._search(read, max_tokens, options, stop)
        request = growing_request(len(read), options.n_best)
        self._enter(
            request,
            [
                self._row(request, place, read[place // options.n_best], max_tokens, options, stop)
                for place in range(len(read) * options.n_best)
            ],
        )
        return request

    def _read(self, prompt: str) -> Ids:
        """Returns the ids of a prompt. Raises Refusal if not all of it would count."""
        ids = self.generator.ids_of_prompt(prompt)
        if self.generator.fitting(ids) != ids:
            context, answer = self.generator.model.context_length, self.generator.answer_length
            most = context - 1 if answer is None else context - answer
            raise Refusal(
                413, "too_long", f"expected prompts of at most {most} tokens; received one of {len(ids)}: shorten it"
            )
        return ids

    def _row(
        self, request: Request[Answer], place: int, ids: Ids, max_tokens: int, options: SearchOptions,
        stop: Sequence[str],
    ) -> Row:  # fmt: skip
        random = np.random.default_rng([options.seed, *divmod(place, options.n_best)])
        size = min(len(ids) + max_tokens, self.generator.model.context_length) + 1
        growing, now = GrowingText([*ids], random=random), time.monotonic()
        return Row(request, place, len(ids), growing, max_tokens, options, stop, size, now, now + BETWEEN * place)

    def _enter(self, request: Request[Answer], rows: Sequence[Row]) -> None:
        """Puts texts into the queue."""
        num_tokens = sum(row.num_tokens for row in rows)
        with self._changed:
            self.room.require(num_tokens)
            request.on_cancel = lambda: self._withdraw(request)
            self._waiting = sorted([*self._waiting, *rows], key=lambda row: row.due)
            self.room.waiting += num_tokens
            self._changed.notify_all()

    def _search(
        self, read: Sequence[Ids], max_tokens: int, options: SearchOptions, stop: Sequence[str]
    ) -> Request[Answer]:
        """Asks the scheduler for searches with several beams."""
        self.generator.require_room(read, max_tokens)

        def answer(place: int, found: Sequence[Continuation]) -> Answer:
            return [_searched(one, len(read[place]), options, stop) for one in found]

        request = Request.of_each(len(read), answer)
        shared = Searches(self.model, self.generator, options, max_tokens)
        items = [
            Item(shared, ids, (len(ids) + max_tokens) * options.num_beams, place, request)
            for place, ids in enumerate(read)
        ]
        self._scheduler.submit(request, items)
        return request

    # The thread

    def _withdraw(self, request: Request[Answer]) -> None:
        """Takes a request out of the queue, and ends the step that runs for nobody."""
        with self._changed:
            self._take([row for row in self._waiting if row.request is request])
            if all(row.request.is_cancelled for row in self._growing):
                self._stop.set()
            self._changed.notify_all()

    def _take(self, rows: Sequence[Row]) -> None:
        """Takes texts out of the queue."""
        taken = set(map(id, rows))
        self._waiting = [row for row in self._waiting if id(row) not in taken]
        self.room.waiting -= sum(row.num_tokens for row in rows)

    def _work(self) -> None:
        while True:
            try:
                if not self._next():
                    return
                with stoppable(self._stop):
                    self._step()
            except Abandoned:
                continue
            except Exception as error:  # the thread goes on with other texts
                self._fail(error)

    def _step(self) -> None:
        """Lets each text get its next token, or reads some of those that are new."""
        begun, num_tokens = time.monotonic(), 0
        for batch in self._batches:
            logits = batch.read()
            if logits is not None:
                self._append(batch, logits)
                num_tokens += len(batch.rows)
        seconds = time.monotonic() - begun
        self.room.note(num_tokens, seconds, 0.05)
        if self._observer and num_tokens:
            self._observer.batch(self.model, num_tokens, num_tokens, self._waited, seconds)
            self._waited = None

    def _fail(self, error: Exception) -> None:
        """Tells the requests of all texts that grow that they failed."""
        with self._changed:
            for row in self._growing:
                row.request.fail(error)
        self._batches = []

    def _next(self) -> bool:
        """Waits for something to do, and gives the places of texts that ended to others. False at the end."""
        with self._changed:
            while not self._is_closed:
                self._stop = Stop()
                self._growing = [row for row in self._growing if row.is_wanted]
                self._take([row for row in self._waiting if not row.is_wanted])
                new = self._chosen()
                self._take(new)
                self._growing += new
                if self._growing:
                    break
                if self.room.is_closed:
                    return False
                self._changed.wait()
            else:
                return False
        if new:
            self._waited = time.monotonic() - min(row.since for row in new)
        self._regroup(new)
        return True

    def _regroup(self, new: Sequence[Row]) -> None:
        """Lets texts leave the batches that ended or that nobody waits for, and new ones be read; those whose window is
        full begin the next."""
        full = list[Row]()
        for batch in self._batches:
            full += [row for row in batch.rows if row.is_wanted and not row.room]
            batch.keep([place for place, row in enumerate(batch.rows) if row.is_wanted and row.room])
        self._batches = GrowingBatch.merged(self._graph, [batch for batch in self._batches if batch.rows])
        self._begin([*full, *new])

    def _begin(self, rows: Sequence[Row]) -> None:
        """Lets texts be read: at first, or from the last half of what the context holds."""
        texts = list[Ids]()
        for row in rows:
            first, rest = self.generator.begun_by(self.generator.window(row.growing.ids))
            texts.append([first, *rest])
            row.room = self.generator.model.context_length - len(rest)
        self._batches += GrowingBatch.begun(self._graph, rows, texts)

    def _chosen(self) -> list[Row]:
        """Chooses the texts of the queue, the first first, that have room in the batch; always one."""
        chosen, longest = list[Row](), max((row.size for row in self._growing), default=0)
        for row in self._waiting:
            longest, count = max(longest, row.size), len(self._growing) + len(chosen) + 1
            if count > 1 and (count > self.most_rows or count * longest > self.batch_tokens):
                break
            chosen.append(row)
        return chosen

    def _append(self, batch: GrowingBatch[Row], logits: np.ndarray) -> None:
        """Chooses the next tokens, and tells those who hear parts of them."""
        ids, log_probs = next_tokens(batch.rows, logits, self.generator.model.num_control_ids)
        batch.next_ids(ids)
        for row, id, log_prob in zip(batch.rows, ids.tolist(), log_probs.tolist(), strict=True):
            row.add(id, log_prob)
            try:
                if row.request.is_streamed or row.stop or row.finish_reason:
                    row.tell(self.generator.text_of(row.growing.added))
            except Exception as error:  # of this text alone
                row.request.fail(error)

    def retire(self) -> None:
        """Refuses what is new, and ends the thread when nothing grows any more."""
        with self._changed:
            self.room.is_closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread; what waits or grows is refused."""
        with self._changed:
            self.room.is_closed = self._is_closed = True
            rows = [*self._waiting, *self._growing]
            self._take(self._waiting)
            self._stop.set()
            self._changed.notify_all()
        for row in rows:
            row.request.fail(Refusal(503, "unavailable", "the server ended"))
        self._thread.join()


def _searched(found: Continuation, num_prompt_tokens: int, options: SearchOptions, stop: Sequence[str]) -> Generated:
    """Makes an answer of what a search found."""
    text, is_stopped = stopped_text(found.text, stop)
    reason = ENDED if is_stopped or END in found.ids[-1:] else CUT
    log_prob = found.score * penalty(len(found.ids), options.length_penalty)
    return Generated(text, num_prompt_tokens, len(found.ids), reason, log_prob)


def next_tokens(rows: Sequence[Row], logits: np.ndarray, num_control_ids: int) -> tuple[np.ndarray, np.ndarray]:
    """Chooses the next token of each row, by the row's own options and numbers, as `Generator.generate` does.

    Args:
        rows: the texts.
        logits: (rows, V) float32.
        num_control_ids: how many of the first ids may not be chosen, but for the end.

    Returns:
        ids (rows,), and their log P (rows,).
    """
    with ops.on(ops.NUMPY):
        log_probs = ops.log_softmax(logits)
        permitted = is_permitted(np.arange(logits.shape[-1]), num_control_ids)
        ids = np.where(permitted, log_probs, NO_HYPOTHESIS).argmax(axis=-1)
        for options in dict.fromkeys(_drawing(row) for row in rows if row.options.sampling):
            places = [place for place, row in enumerate(rows) if row.options.sampling and _drawing(row) == options]
            uniforms = np.array([[rows[place].growing.random.random(dtype="float32")] for place in places], "float32")
            temperature, top_k, top_p = options
            some = ops.where(permitted, log_probs[places, None] / temperature, NO_HYPOTHESIS)
            ids[places] = draw(some, uniforms, top_k, top_p)[:, 0]
    return ids, np.take_along_axis(log_probs, ids[:, None], axis=-1)[:, 0]


def _drawing(row: Row) -> tuple[float, int, float]:
    return row.options.temperature, row.options.top_k, row.options.top_p


def stopped_text(text: str, stop: Iterable[str]) -> tuple[str, bool]:
    """Returns the text before the first of the texts to stop at, and whether there is one."""
    places = [place for one in stop if (place := text.find(one)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def beginning_of(stop: Iterable[str], text: str) -> int:
    """Returns how many of the last characters of a text may be the beginning of a text to stop at."""
    longest = (next((size for size in range(len(one) - 1, 0, -1) if text.endswith(one[:size])), 0) for one in stop)
    return max(longest, default=0)
