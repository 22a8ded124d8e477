"""What tests of several tasks need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from keras_transformer.__main__ import main as command


@pytest.fixture
def run(capfd):
    """`run(*words)` → exit status, standard output, standard error of a command."""

    def run(*words: Any) -> tuple[int, str, str]:
        status = command([str(word) for word in words])
        out, err = capfd.readouterr()
        return status, out, err

    return run


@pytest.fixture(autouse=True, scope="module")
def without_curves(request) -> Iterator[None]:
    """Runs of the tests' own process draw no curves: the picture takes longer than their steps."""
    from keras_transformer.training.records import Records

    with pytest.MonkeyPatch.context() as patch:
        if not request.module.__name__.endswith("test_rounds"):
            patch.setattr(Records, "_write_curves", lambda self: None)
        yield
