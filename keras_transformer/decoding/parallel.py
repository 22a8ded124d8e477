"""Runs a function on many items side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def mapped(function: Callable[[Item], Result], items: Sequence[Item], num_threads: int) -> Iterator[Result]:
    """The results of a function, in order, from so many threads; an error cancels what has not begun."""
    if min(num_threads, len(items)) <= 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(num_threads)
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)


def divided(batches: Sequence[list[Item]], count: int) -> list[list[Item]]:
    """The batches, of which the largest are halved until there are `count`, if there are so many items."""
    batches = [batch for batch in batches if batch]
    while len(batches) < count and max(map(len, batches), default=0) > 1:
        place = max(range(len(batches)), key=lambda place: len(batches[place]))
        batch = batches[place]
        batches[place : place + 1] = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    return batches
