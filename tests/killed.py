"""Processes that are killed at a step on the disk."""

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


@contextlib.contextmanager
def killed_after(steps: int) -> Iterator[None]:
    """Within, the process is gone after so many renames, removals and new folders: none that follows is done."""
    left = [steps]

    def mortal(act: Callable[..., None]) -> Callable[..., None]:
        def step(*arguments: object, **options: object) -> None:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            act(*arguments, **options)

        return step

    with contextlib.suppress(Killed), pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "replace", "unlink", "rmdir", "mkdir"):
            patch.setattr(os, name, mortal(getattr(os, name)))
        yield
