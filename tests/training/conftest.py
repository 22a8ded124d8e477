"""What tests of several tasks need."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.training import devices
from tests.answers import answer
from tests.tiny_corpus import write_corpus


@pytest.fixture
def run(eager, capfd):
    """`run(*words, stdin="")` → exit status, standard output, standard error of a command and of what it starts.

    It builds no graphs.
    """

    def run(*words: Any, stdin: str | bytes = "") -> tuple[int, str, str]:
        status, out, err = answer(*words, stdin=stdin)
        return status, out, err + capfd.readouterr().err

    return run


@pytest.fixture
def text(tmp_path) -> dict[str, Any]:
    """The settings that name a corpus."""
    return dict(zip(("source", "target"), map(str, write_corpus(tmp_path)), strict=True))


@pytest.fixture
def folder(data, monkeypatch) -> Path:
    """The folder `data` of a module, as the present one."""
    monkeypatch.chdir(data)
    return data


@pytest.fixture
def refused(run, monkeypatch, tmp_path) -> Callable[..., str]:
    """`refused(*words)` → why a command refuses to train; it must write no run."""

    def refused(*words: Any) -> str:
        monkeypatch.setattr(devices, "configure", lambda *_: None)
        out = [] if "--out" in words else ["--out", tmp_path / "refused"]
        status, _, err = run("train", *words, *out)
        assert status == 2 and not (tmp_path / "refused").exists(), err
        return err

    return refused


@pytest.fixture(autouse=True, scope="module")
def without_curves(request) -> Iterator[None]:
    """Runs of the tests' own process draw no curves: the picture takes longer than their steps."""
    from keras_transformer.training.records import Records

    with pytest.MonkeyPatch.context() as patch:
        if not request.module.__name__.endswith("test_callbacks"):
            patch.setattr(Records, "_write_curves", lambda self: None)
        yield
