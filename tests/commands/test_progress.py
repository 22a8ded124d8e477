"""The line that counts, where a person sees nothing else."""

from __future__ import annotations

import io
import sys

from keras_transformer.commands import progress
from keras_transformer.commands.progress import counted


class Stream(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, is_terminal: bool):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def shown(monkeypatch, terminals: str, count: int = 3) -> tuple[list[int], str]:
    """What came through, and what standard error shows, if the streams named in `terminals` are terminals."""
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    streams = {name: Stream(name in terminals) for name in ("stdin", "stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    return list(counted(iter(range(count)), "lines")), streams["stderr"].getvalue()


def test_lines_are_counted_for_a_person_who_sees_no_translations(monkeypatch):
    items, text = shown(monkeypatch, "stderr", 1200)
    assert items == list(range(1200))
    assert text.startswith("\r\033[K1 lines · ") and "\r\033[K1,200 lines · " in text
    assert text.endswith("\r\033[K") and "\n" not in text
    for terminals in ("", "stdin stderr", "stdout stderr", "stdin stdout stderr"):
        assert shown(monkeypatch, terminals) == ([0, 1, 2], "")
    monkeypatch.setattr(sys, "stderr", None)
    assert list(counted([1, 2], "lines")) == [1, 2]
