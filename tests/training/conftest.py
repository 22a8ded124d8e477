"""What tests of several tasks need."""

from __future__ import annotations

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
