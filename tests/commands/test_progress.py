"""The line that counts, where a person sees nothing else."""

import io
import sys

from keras_transformer.commands import progress
from keras_transformer.commands.progress import counted


def shown(monkeypatch, terminals: str, count: int = 3) -> tuple[list[int], str]:
    """What came through, and what standard error shows, if the streams named in `terminals` are terminals."""
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream := io.StringIO())
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=name in terminals: is_terminal)
    return list(counted(iter(range(count)), "lines")), stream.getvalue()


def test_lines_are_counted_for_a_person_who_sees_no_translations(monkeypatch):
    items, text = shown(monkeypatch, "stderr", 1200)
    assert items == list(range(1200))
    assert text.startswith("\r\033[K1 lines · ") and "\r\033[K1,200 lines · " in text
    assert text.endswith("\r\033[K") and "\n" not in text
    for terminals in ("", "stdin stderr", "stdout stderr", "stdin stdout stderr"):
        assert shown(monkeypatch, terminals) == ([0, 1, 2], "")
    monkeypatch.setattr(sys, "stderr", None)
    assert list(counted([1, 2], "lines")) == [1, 2]
