"""A function is called when a module is imported."""

import importlib
import sys

import pytest

from keras_transformer.import_hook import when_imported

NAME = "watched_by_a_test"


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """A file that can be imported; nothing stays of it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(NAME, None)


def test_the_functions_are_called_once_after_the_import(file):
    file.write_text("answer = 42\n")
    called, finders = [], list(sys.meta_path)
    when_imported(NAME, lambda module: called.append(module.answer))
    when_imported(NAME, lambda module: called.append("another function"))
    assert called == []
    importlib.reload(importlib.import_module(NAME))
    assert sorted(called, key=str) == [42, "another function"]
    assert sys.meta_path == finders
    when_imported(NAME, lambda module: called.append("it is there already"))
    assert called[2:] == ["it is there already"]


def test_a_failed_import_is_not_the_one_that_is_waited_for(file):
    file.write_text("raise ImportError('not yet')")
    called = []
    when_imported(NAME, lambda module: called.append(module.answer))
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(NAME)
    assert called == []
    file.write_text("answer = 'at last'\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert called == ["at last"]
