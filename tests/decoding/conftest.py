"""A way to search without TensorFlow's graphs, for models of which a test asks little."""

import pytest

from keras_transformer.decoding import compiling


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new translator computes step by step: a few steps take less time than to compile them."""
    monkeypatch.setattr(compiling, "traced", lambda compute, arrays: compute)
