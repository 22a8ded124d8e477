"""Runs a function on many items side by side, and counts the cores for it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

CGROUP = Path("/sys/fs/cgroup")  # where Linux tells the limits of this process's container
# The files that tell microseconds of all cores in each period, and the period: of cgroups of version 2, and of 1.
QUOTA_FILES = (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"])


def num_cores(cgroup: Path = CGROUP) -> int:
    """How many cores this process may use, by its affinity and by the quota of its container; a part counts as one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_quota([cgroup / name for name in names]) for names in QUOTA_FILES]
    return min([allowed, *(math.ceil(quota) for quota in quotas if quota > 0)])


def _quota(files: Sequence[Path]) -> float:
    """A container's quota in cores; 0 or less if there is none."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # without a quota, version 2 says "max", and version 1 says -1
        return 0


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
