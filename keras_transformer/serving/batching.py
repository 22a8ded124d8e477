"""Batches what clients wait for: a worker that is free takes what waits, so that nothing waits while a core idles."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from keras_transformer.decoding.onnx_graphs import Abandoned, Stop, stoppable

Answer = TypeVar("Answer")
INTERACTIVE, BULK = LANES = (0, 1)
# The shares of the workers' time where both lanes wait: a page of 1,000 lines does not hold up one sentence.
SHARES = (3, 1)
LEAST_ROWS = 8  # a batch of fewer leaves nothing for the other workers: it would take as long
USUAL_RATE = 2_000.0  # tokens a second of a worker, before a batch was measured


class Refusal(Exception):
    """Says why a request is not answered.

    Args:
        status: the status of HTTP: 413, 429, 503 or 504.
        code: the reason in a word.
        message: the reason for people.
        retry_after: the seconds after which another try may succeed.
    """

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None):
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after


class Room:
    """How many tokens may wait.

    Args:
        most: so many.
        rate: how many are computed in a second, as far as it is known.
    """

    def __init__(self, most: int, rate: float):
        self.most, self.rate, self.waiting, self.is_closed = most, rate, 0, False

    def require(self, num_tokens: int, likely: int = 0) -> None:
        """Raises Refusal for a request that has too many tokens, alone or beside what waits.

        Args:
            num_tokens: how many it has, or the least that it may have.
            likely: how many it most likely has, where that is not known yet; counts beside what waits alone.
        """
        if self.is_closed:
            raise Refusal(503, "unavailable", "the server is about to end: try another one, or later", 1.0)
        if num_tokens > self.most:
            raise Refusal(
                413, "too_long",
                f"expected at most {self.most:,} tokens in a request, of what is read and what is expected to be "
                f"written, for each beam; received about {num_tokens:,}: divide it",
            )  # fmt: skip
        if self.waiting and self.waiting + max(num_tokens, likely) > self.most:
            seconds = max(1, math.ceil(self.waiting / self.rate))
            raise Refusal(429, "overloaded", f"too much waits: try again in {seconds} s", float(seconds))

    def note(self, num_tokens: int, seconds: float, weight: float) -> None:
        """Takes how long some took; `weight` is how much that counts beside all before."""
        self.rate += weight * (num_tokens / max(seconds, 1e-6) - self.rate)


class Part(NamedTuple, Generic[Answer]):
    """A part of an answer, told as soon as it is done.

    Args:
        text: which text of the request, counted from 0.
        part: which part of the text's answer.
        num_parts: how many parts the text's answer has.
        answer: the part.
        line: which line of the text it is in, of those that are not blank.
    """

    text: int
    part: int
    num_parts: int
    answer: Answer
    line: int = 0


class Batched(Protocol):
    """What shares batches: items of equal options for one model. Equal ones are the same."""

    @property
    def model(self) -> str:
        """The name of the model, for metrics."""

    def run(self, payloads: Sequence[object]) -> Sequence[object]:
        """Returns the results of a batch, in its order."""

    def __hash__(self) -> int: ...


class Observer(Protocol):
    """Hears of each batch, for metrics."""

    def batch(
        self, model: str, num_items: int, num_tokens: int, seconds_waited: float | None, seconds_run: float
    ) -> None:
        """Takes one batch: its model and sizes, how long its oldest item waited, if one is new, and how long it ran."""


@dataclass(eq=False)
class Item:
    """What is computed in a batch, such as a sentence.

    Args:
        batched: what it shares batches with.
        payload: what `Batched.run` takes.
        num_tokens: its size: the tokens of source and expected target, times the beams.
        place: where its result belongs in the request.
        request: the request that waits for it.
        lane: the lane in which it waits.
        since: when it began to wait, by `time.monotonic`.
    """

    batched: Batched
    payload: object
    num_tokens: int
    place: int
    request: Request[Any]
    lane: int = INTERACTIVE
    since: float = 0.0


class Request(Generic[Answer]):
    """Something that a client waits for. Its methods may be called from any thread, but for those that are awaited.

    Args:
        num_items: how many results it has.
        joined: makes the answers of the results.
        part_of: makes the part that the result at a place is.
    """

    def __init__(
        self,
        num_items: int,
        joined: Callable[[Sequence[object]], list[Answer]],
        part_of: Callable[[int, object], Part[Answer]],
    ):
        self.is_cancelled = self.is_streamed = False  # whether nobody waits any more; whether somebody hears parts
        self._results: list[object] = [None] * num_items
        self._num_left = num_items
        self._joined, self._part_of = joined, part_of
        self.on_cancel: Callable[[], None] = lambda: None  # what is to be called when the client leaves
        self._told: list[tuple[int, object]] = []  # places, and what is new there
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = lambda: None

    @classmethod
    def of_each(cls, num_items: int, answer: Callable[[int, Any], Answer]) -> Request[Answer]:
        """Returns a request each of whose results makes an answer: what `answer` returns for its place and itself."""
        return cls(
            num_items,
            lambda results: [answer(place, one) for place, one in enumerate(results)],
            lambda place, one: Part(place, 0, 1, answer(place, one)),
        )

    def tell(self, place: int, part: object) -> None:
        """Takes a part of a result that is not whole yet, from the worker."""
        self._told.append((place, part))
        self._wake()

    def deliver(self, place: int, result: object, part: object = None) -> None:
        """Takes a result, from the worker; where parts of it were told before, also the last part."""
        with self._lock:
            self._results[place] = result
            self._told.append((place, result if part is None else part))
            self._num_left -= 1
        self._wake()

    def fail(self, error: Exception) -> None:
        """Takes the error that ends the request; the first counts."""
        self._error = self._error or error
        self._wake()

    def cancel(self) -> None:
        """Tells that the client left: what waits leaves the queue, and what runs for nobody is ended."""
        self.is_cancelled = True
        self.on_cancel()

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to come."""
        return self._error is not None or self._num_left == 0

    async def parts(self) -> AsyncIterator[Part[Answer]]:
        """Yields each part as soon as it is done. Raises what ended the request early."""
        self.is_streamed = True
        async for place, new in self._news():
            yield self._part_of(place, new)

    async def answers(self) -> list[Answer]:
        """Returns the answers of all texts, in their order. Raises what ended the request early."""
        async for _ in self._news():
            pass
        return self._joined(self._results)

    async def _news(self) -> AsyncIterator[tuple[int, object]]:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody reads
                loop.call_soon_threadsafe(changed.set)

        self._wake = wake
        told = 0
        while True:
            changed.clear()
            has_ended = self.has_ended
            while told < len(self._told):
                told += 1
                yield self._told[told - 1]
            if self._error is not None:
                raise self._error
            if has_ended:
                return
            await changed.wait()


class _Batch:
    """Items that run together, and what ends them when nobody waits any more."""

    def __init__(self, items: Sequence[Item]):
        self.items = items
        self.stop = Stop()

    def leave(self) -> None:
        """Ends the run if no request waits for it."""
        if all(item.request.is_cancelled for item in self.items):
            self.stop.set()


class Scheduler:
    """Runs what waits on worker threads. A worker that is free takes at once what waits, by a budget of tokens.

    A batch has items of equal options, of similar size, the oldest among them. Its budget is the padded size: its items
    times the size of the largest. Requests of more than a batch wait in a lane of their own, and each lane has a share
    of the workers' time.

    Args:
        num_workers: how many threads compute side by side.
        batch_tokens: the budget of a batch.
        max_waiting_tokens: how much may wait; beyond that a request is refused at once.
        most_rows: the most items in a batch.
        observer: hears of each batch.
    """

    def __init__(
        self,
        num_workers: int = 1,
        batch_tokens: int = 8_192,
        max_waiting_tokens: int = 200_000,
        most_rows: int = 256,
        observer: Observer | None = None,
    ):
        self.num_workers = num_workers
        self.batch_tokens = batch_tokens
        self.room = Room(max_waiting_tokens, USUAL_RATE * num_workers)
        self._most_rows, self.observer = most_rows, observer
        self._waiting: tuple[dict[Batched, list[Item]], ...] = tuple({} for _ in LANES)
        self._spent = [0.0 for _ in LANES]  # seconds of workers, by the lane's share
        self._running: set[_Batch] = set()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"batches-{number}", daemon=True) for number in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, request: Request[Any], items: Sequence[Item]) -> None:
        """Puts the items of a request into the queue.

        Raises:
            Refusal: too much waits, the request alone is too much, or the server is about to end.
        """
        num_tokens = sum(item.num_tokens for item in items)
        with self._changed:
            self.room.require(num_tokens)
            lane = INTERACTIVE if num_tokens <= self.batch_tokens else BULK
            if items and not self._waiting[lane]:  # what was not used before does not count
                self._spent[lane] = max(self._spent)
            for item in items:
                item.lane, item.since = lane, time.monotonic()
                self._waiting[lane].setdefault(item.batched, []).append(item)
            self.room.waiting += num_tokens
            request.on_cancel = lambda: self._withdraw(request)
            self._changed.notify(len(items))

    def _withdraw(self, request: Request[Any]) -> None:
        """Takes a request out of the queue, and ends the batches that run for nobody."""
        with self._changed:
            for lane in self._waiting:
                for batched, items in list(lane.items()):
                    self._remove(lane, batched, [item for item in items if item.request is request])
            for batch in self._running:
                batch.leave()

    def _remove(self, lane: dict[Batched, list[Item]], batched: Batched, items: Sequence[Item]) -> None:
        gone = set(map(id, items))
        if not gone:
            return
        lane[batched] = [item for item in lane[batched] if id(item) not in gone]
        if not lane[batched]:
            del lane[batched]
        self.room.waiting -= sum(item.num_tokens for item in items)

    def _work(self) -> None:
        while self._worked():
            pass

    def _worked(self) -> bool:
        """Runs the next batch, and forgets it; False when the scheduler is closed."""
        if (batch := self._next()) is None:
            return False
        begun = time.monotonic()
        with stoppable(batch.stop):
            _run(batch.items)
        self._note(batch, begun, time.monotonic() - begun)
        return True

    def _note(self, batch: _Batch, begun: float, seconds: float) -> None:
        first = batch.items[0]
        num_tokens = len(batch.items) * max(item.num_tokens for item in batch.items)
        with self._changed:
            self._running.discard(batch)
            self._spent[first.lane] += seconds / SHARES[first.lane]
            if not batch.stop.is_set:
                self.room.note(num_tokens * self.num_workers, seconds, 0.1)
        if self.observer:
            waited = begun - min(item.since for item in batch.items)
            self.observer.batch(first.batched.model, len(batch.items), num_tokens, waited, seconds)

    def _next(self) -> _Batch | None:
        """Waits for something to run; None when the scheduler is closed."""
        with self._changed:
            while not any(self._waiting):
                if self.room.is_closed:
                    return None
                self._changed.wait()
            lane = min((lane for lane in LANES if self._waiting[lane]), key=lambda lane: (self._spent[lane], lane))
            waiting = self._waiting[lane]
            batched = min(waiting, key=lambda one: waiting[one][0].since)
            batch = _Batch(self._chosen(waiting[batched]))
            self._remove(waiting, batched, batch.items)
            self._running.add(batch)
            return batch

    def _chosen(self, items: Sequence[Item]) -> list[Item]:
        """Chooses a batch: the oldest item, and those that are nearest in size, as far as the budget goes.

        A worker leaves their share to the others, which are free now or soon.
        """
        oldest = items[0]
        share = max(math.ceil(len(items) / self.num_workers), LEAST_ROWS)
        most, chosen, longest = min(share, self._most_rows), list[Item](), oldest.num_tokens
        for item in sorted(items, key=lambda one: (one is not oldest, abs(one.num_tokens - oldest.num_tokens))):
            longest = max(longest, item.num_tokens)
            if chosen and ((len(chosen) + 1) * longest > self.batch_tokens or len(chosen) == most):
                break
            chosen.append(item)
        return chosen

    def close(self) -> None:
        """Ends the workers; what waits or runs is refused."""
        gone = Refusal(503, "unavailable", "the server ended")
        with self._changed:
            self.room.is_closed = True
            waiting = [item for lane in self._waiting for items in lane.values() for item in items]
            for lane in self._waiting:
                lane.clear()
            self.room.waiting = 0
            for batch in self._running:
                batch.stop.set()
            waiting += [item for batch in self._running for item in batch.items]
            self._changed.notify_all()
        for item in waiting:
            item.request.fail(gone)
        for thread in self._threads:
            thread.join()


def _run(items: Sequence[Item]) -> None:
    """Runs a batch. Where it fails, each item runs alone, so that only what cannot be computed fails."""
    try:
        found = [*zip(items, items[0].batched.run([item.payload for item in items]), strict=True)]
    except Abandoned:
        return
    except Exception as error:  # the worker goes on with other batches
        if len(items) > 1:
            for item in items:
                if not item.request.is_cancelled:
                    _run([item])
        else:
            items[0].request.fail(error)
        return
    for item, result in found:
        item.request.deliver(item.place, result)
