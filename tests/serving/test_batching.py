"""Batches of what clients wait for: who shares them, who waits for whom, and what is ended."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.serving.batching import Item, Part, Refusal, Request, Scheduler


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
    request: Request[int] = Request(
        len(numbers),
        lambda found: [int(str(one)) for one in found],
        lambda place, one: Part(place, 0, 1, int(str(one))),
    )
    scheduler.submit(request, [Item(batched, number, size, place, request) for place, number in enumerate(numbers)])
    return request


def until(condition: Callable[[], bool], seconds: float = 5) -> bool:
    """Whether a condition holds before the time is over."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(num_workers=1, batch_tokens=100, max_waiting_tokens=1_000)
    yield scheduler
    scheduler.close()


def test_a_free_worker_takes_at_once_and_then_all_that_waited(scheduler: Scheduler) -> None:
    doubling = Doubling()
    first = asked(scheduler, doubling, [1])
    assert until(lambda: doubling.batches == [[1]])
    others = [asked(scheduler, doubling, [number]) for number in (2, 3, 4)]
    doubling.gate.set()
    assert [asyncio.run(one.answers()) for one in (first, *others)] == [[2], [4], [6], [8]]
    assert doubling.batches == [[1], [2, 3, 4]]


def test_a_batch_keeps_its_budget_of_padded_tokens(scheduler: Scheduler) -> None:
    doubling = Doubling()
    asked(scheduler, doubling, [0])
    assert until(lambda: len(doubling.batches) == 1)
    short, long = asked(scheduler, doubling, [1, 2, 3], size=5), asked(scheduler, doubling, [4, 5], size=45)
    doubling.gate.set()
    asyncio.run(short.answers())
    asyncio.run(long.answers())
    assert doubling.batches == [[0], [1, 2, 3], [4, 5]]


def test_what_has_other_options_is_in_another_batch(scheduler: Scheduler) -> None:
    one, other = Doubling(), Doubling()
    first = asked(scheduler, one, [0])
    assert until(lambda: len(one.batches) == 1)
    requests = [first, asked(scheduler, one, [1]), asked(scheduler, other, [2]), asked(scheduler, one, [3])]
    one.gate.set()
    other.gate.set()
    for request in requests:
        asyncio.run(request.answers())
    assert (one.batches, other.batches) == ([[0], [1, 3]], [[2]])


def test_a_large_request_does_not_hold_up_a_small_one(scheduler: Scheduler) -> None:
    bulk, single = Doubling(), Doubling()
    single.batches = bulk.batches
    large = asked(scheduler, bulk, range(50))  # of five batches
    assert until(lambda: len(bulk.batches) == 1)
    small = asked(scheduler, single, [-1])
    bulk.gate.set()
    single.gate.set()
    asyncio.run(small.answers())
    assert bulk.batches[1] == [-1]
    assert asyncio.run(large.answers()) == [2 * number for number in range(50)]


def test_small_requests_without_end_do_not_starve_a_large_one(scheduler: Scheduler) -> None:
    bulk, single = Doubling(), Doubling()
    single.gate.set()
    bulk.gate.set()
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            asked(scheduler, single, [1])
            time.sleep(0.0005)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert len(asyncio.run(asyncio.wait_for(asked(scheduler, bulk, range(90)).answers(), 10))) == 90
    finally:
        ended.set()
        thread.join()


def test_who_leaves_the_queue_is_not_computed(scheduler: Scheduler) -> None:
    doubling = Doubling()
    first = asked(scheduler, doubling, [0])
    assert until(lambda: len(doubling.batches) == 1)
    second, third = asked(scheduler, doubling, [1, 2]), asked(scheduler, doubling, [3])
    assert scheduler.room.waiting == 30
    second.cancel()
    assert scheduler.room.waiting == 10
    doubling.gate.set()
    assert asyncio.run(first.answers()) == [0]
    assert asyncio.run(third.answers()) == [6]
    assert doubling.batches == [[0], [3]]


def test_parts_are_told_before_the_whole_is_done(scheduler: Scheduler) -> None:
    doubling, told = Doubling(seconds=0.02), list[tuple[int, bool]]()

    async def read() -> None:
        request = asked(scheduler, doubling, range(30))  # of three batches
        async for part in request.parts():
            told.append((part.answer, request.has_ended))

    doubling.gate.set()
    asyncio.run(read())
    assert [answer for answer, _ in told] == [2 * number for number in range(30)]
    assert not told[0][1]


def test_too_much_is_refused_at_once_and_told(scheduler: Scheduler) -> None:
    doubling = Doubling()
    asked(scheduler, doubling, [0])
    assert until(lambda: len(doubling.batches) == 1)
    waiting = asked(scheduler, doubling, range(60))
    with pytest.raises(Refusal, match="too much waits") as overloaded:
        asked(scheduler, doubling, range(60))
    assert (overloaded.value.status, overloaded.value.retry_after) >= (429, 1)
    with pytest.raises(Refusal, match="expected at most 1,000 tokens") as too_long:
        asked(scheduler, doubling, range(101))
    assert too_long.value.status == 413
    doubling.gate.set()
    assert len(asyncio.run(waiting.answers())) == 60


def test_one_broken_item_fails_alone(scheduler: Scheduler) -> None:
    doubling = Doubling()
    first = asked(scheduler, doubling, [0])
    assert until(lambda: len(doubling.batches) == 1)
    doubling.broken = 2
    good, bad = asked(scheduler, doubling, [1]), asked(scheduler, doubling, [2])
    doubling.gate.set()
    assert asyncio.run(good.answers()) == [2]
    with pytest.raises(RequestError, match="not broken"):
        asyncio.run(bad.answers())
    assert asyncio.run(first.answers()) == [0]


def test_what_nobody_expects_reaches_who_asked_and_the_worker_goes_on(scheduler: Scheduler) -> None:
    doubling = Doubling()
    doubling.gate.set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doubling, "run", lambda payloads: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            asyncio.run(asked(scheduler, doubling, [1]).answers())
    assert asyncio.run(asked(scheduler, doubling, [1]).answers()) == [2]


def test_an_idle_worker_keeps_nothing_of_what_it_did(scheduler: Scheduler) -> None:
    doubling = Doubling()
    doubling.gate.set()
    request = asked(scheduler, doubling, [1])
    assert asyncio.run(request.answers()) == [2]
    assert until(lambda: not scheduler._running)
    kept = weakref.ref(request), weakref.ref(doubling)
    del request, doubling
    assert until(lambda: gc.collect() >= 0 and not any(one() for one in kept))


def test_closing_refuses_what_waits_and_ends_the_threads() -> None:
    before = threading.active_count()
    scheduler, doubling = Scheduler(num_workers=2, batch_tokens=100), Doubling()
    running = asked(scheduler, doubling, [1])
    assert until(lambda: len(doubling.batches) == 1)
    threading.Timer(0.05, doubling.gate.set).start()
    scheduler.close()
    with pytest.raises(Refusal, match="ended"):
        asyncio.run(running.answers())
    with pytest.raises(Refusal, match="about to end") as refused:
        asked(scheduler, doubling, [1])
    assert refused.value.status == 503
    assert until(lambda: threading.active_count() == before)


def test_workers_share_what_waits() -> None:
    scheduler, doubling = Scheduler(num_workers=2, batch_tokens=10_000), Doubling()
    try:
        requests = [asked(scheduler, doubling, [0])]
        assert until(lambda: len(doubling.batches) == 1)
        requests.append(asked(scheduler, doubling, [1]))
        assert until(lambda: len(doubling.batches) == 2)
        requests += [asked(scheduler, doubling, [number]) for number in range(2, 66)]
        doubling.gate.set()
        for request in requests:
            asyncio.run(request.answers())
        assert sorted(map(len, doubling.batches))[-1] <= 33
    finally:
        scheduler.close()
