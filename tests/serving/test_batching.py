"""Batches of what clients wait for: who shares them, who waits for whom, and what is ended."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.serving.batching import Item, Refusal, Request, Scheduler
from tests.serving.doors import until


@dataclass(eq=False)
class Doubling:
    """Doubles numbers in batches, and keeps the batches; it waits for `gate` before each."""

    model: str = "doubling"
    gate: threading.Event = field(default_factory=threading.Event)
    batches: list[list[int]] = field(default_factory=list)
    broken: int | None = None
    seconds: float = 0.0

    def run(self, payloads: Sequence[object]) -> Sequence[object]:
        time.sleep(self.seconds)
        numbers = [int(str(one)) for one in payloads]
        self.batches.append(numbers)
        assert self.gate.wait(10)
        if self.broken in payloads:
            raise RequestError("expected a number that is not broken")
        return [2 * number for number in numbers]


def asked(scheduler: Scheduler, batched: Doubling, numbers: Sequence[int], size: int = 10) -> Request[int]:
    """Asks for the doubles of numbers."""
    request: Request[int] = Request.of_each(len(numbers), lambda place, one: int(one))
    scheduler.submit(request, [Item(batched, number, size, place, request) for place, number in enumerate(numbers)])
    return request


def told(*requests: Request[int]) -> list[list[int]]:
    return [asyncio.run(asyncio.wait_for(one.answers(), 10)) for one in requests]


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(num_workers=1, batch_tokens=100, max_waiting_tokens=1_000)
    yield scheduler
    scheduler.close()


@pytest.fixture
def doubling() -> Doubling:
    return Doubling()


@pytest.fixture
def first(scheduler: Scheduler, doubling: Doubling) -> Request[int]:
    """The double of 0, with which the one worker is busy."""
    first = asked(scheduler, doubling, [0])
    until(lambda: doubling.batches == [[0]])
    return first


def test_a_free_worker_takes_at_once_and_then_all_that_waited_by_its_options(scheduler, doubling, first) -> None:
    other = Doubling()
    others = [asked(scheduler, one, [number]) for number, one in enumerate((doubling, other, doubling), 1)]
    doubling.gate.set()
    other.gate.set()
    assert told(first, *others) == [[0], [2], [4], [6]]
    assert (doubling.batches, other.batches) == ([[0], [1, 3]], [[2]])


def test_a_batch_keeps_its_budget_of_padded_tokens(scheduler, doubling, first) -> None:
    short, long = asked(scheduler, doubling, [1, 2, 3], size=5), asked(scheduler, doubling, [4, 5], size=45)
    doubling.gate.set()
    told(short, long)
    assert doubling.batches == [[0], [1, 2, 3], [4, 5]]


def test_a_large_request_does_not_hold_up_a_small_one(scheduler, doubling) -> None:
    single = Doubling(batches=doubling.batches)
    large = asked(scheduler, doubling, range(50))  # of five batches
    until(lambda: len(doubling.batches) == 1)
    small = asked(scheduler, single, [-1])
    doubling.gate.set()
    single.gate.set()
    told(small)
    assert doubling.batches[1] == [-1]
    assert told(large) == [[2 * number for number in range(50)]]


def test_small_requests_without_end_do_not_starve_a_large_one(scheduler, doubling) -> None:
    single, ended = Doubling(gate=doubling.gate), threading.Event()
    doubling.gate.set()

    def ask() -> None:
        while not ended.is_set():
            asked(scheduler, single, [1])
            time.sleep(0.0005)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert len(told(asked(scheduler, doubling, range(90)))[0]) == 90
    finally:
        ended.set()
        thread.join()


def test_who_leaves_the_queue_is_not_computed(scheduler, doubling, first) -> None:
    second, third = asked(scheduler, doubling, [1, 2]), asked(scheduler, doubling, [3])
    assert scheduler.room.waiting == 30
    second.cancel()
    assert scheduler.room.waiting == 10
    doubling.gate.set()
    assert told(first, third) == [[0], [6]]
    assert doubling.batches == [[0], [3]]


def test_parts_are_told_before_the_whole_is_done(scheduler, doubling) -> None:
    heard, doubling.seconds = list[tuple[int, bool]](), 0.02

    async def read() -> None:
        request = asked(scheduler, doubling, range(30))  # of three batches
        async for part in request.parts():
            heard.append((part.answer, request.has_ended))

    doubling.gate.set()
    asyncio.run(read())
    assert [answer for answer, _ in heard] == [2 * number for number in range(30)]
    assert not heard[0][1]


def test_too_much_is_refused_at_once_and_told(scheduler, doubling, first) -> None:
    waiting = asked(scheduler, doubling, range(60))
    with pytest.raises(Refusal, match="too much waits") as overloaded:
        asked(scheduler, doubling, range(60))
    assert (overloaded.value.status, overloaded.value.retry_after) >= (429, 1)
    with pytest.raises(Refusal, match="expected at most 1,000 tokens") as too_long:
        asked(scheduler, doubling, range(101))
    assert too_long.value.status == 413
    doubling.gate.set()
    assert len(told(waiting)[0]) == 60


def test_one_broken_item_fails_alone(scheduler, doubling, first) -> None:
    doubling.broken = 2
    good, bad = asked(scheduler, doubling, [1]), asked(scheduler, doubling, [2])
    doubling.gate.set()
    with pytest.raises(RequestError, match="not broken"):
        told(bad)
    assert told(good, first) == [[2], [0]]


def test_what_nobody_expects_reaches_who_asked_and_the_worker_goes_on(scheduler, doubling, monkeypatch) -> None:
    doubling.gate.set()
    with monkeypatch.context() as patch:
        patch.setattr(doubling, "run", lambda payloads: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            told(asked(scheduler, doubling, [1]))
    assert told(asked(scheduler, doubling, [1])) == [[2]]


def test_an_idle_worker_keeps_nothing_of_what_it_did(scheduler) -> None:
    doubling = Doubling()
    doubling.gate.set()
    request = asked(scheduler, doubling, [1])
    assert told(request) == [[2]]
    kept = weakref.ref(request), weakref.ref(doubling)
    del request, doubling
    until(lambda: gc.collect() >= 0 and not any(one() for one in kept))


def test_closing_refuses_what_waits_and_ends_the_threads(doubling) -> None:
    before = threading.active_count()
    scheduler = Scheduler(num_workers=2, batch_tokens=100)
    running = asked(scheduler, doubling, [1])
    until(lambda: len(doubling.batches) == 1)
    threading.Timer(0.05, doubling.gate.set).start()
    scheduler.close()
    with pytest.raises(Refusal, match="ended"):
        told(running)
    with pytest.raises(Refusal, match="about to end") as refused:
        asked(scheduler, doubling, [1])
    assert refused.value.status == 503
    until(lambda: threading.active_count() == before)


def test_workers_share_what_waits(doubling) -> None:
    scheduler = Scheduler(num_workers=2, batch_tokens=10_000)
    try:
        requests = []
        for number in range(66):
            requests.append(asked(scheduler, doubling, [number]))
            if number < 2:
                until(lambda: len(doubling.batches) == len(requests))
        doubling.gate.set()
        told(*requests)
        assert max(map(len, doubling.batches)) <= 33
    finally:
        scheduler.close()
