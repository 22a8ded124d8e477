"""A line on the terminal that counts what is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

SECONDS = 0.2  # between two lines


def counted(items: Iterable[Item], noun: str) -> Iterator[Item]:
    """Yields the items, and counts them on standard error if a person sees nothing else of them.

    That is where standard error is a terminal, and neither standard input nor standard output is one.
    """
    if sys.stderr is None or not sys.stderr.isatty() or sys.stdin.isatty() or sys.stdout.isatty():
        yield from items
        return
    start = shown = time.monotonic()
    for number, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - shown >= SECONDS:
            shown = now
            print(
                f"\r\033[K{number:,} {noun} · {number / (now - start):,.0f} a second",
                end="",
                file=sys.stderr,
                flush=True,
            )
    print("\r\033[K", end="", file=sys.stderr, flush=True)
