"""The vocabulary of items: ids, its file, and files that are damaged."""

import pytest

from keras_transformer.errors import RequestError
from keras_transformer.text import items as module
from keras_transformer.text.items import Items

HISTORIES = [["b", "a", "b"], ["c", "a", " d"]]


def test_the_most_frequent_items_come_first():
    items = Items.of(HISTORIES, 100)
    assert items.names == ["a", "b", " d", "c"] and items.vocabulary_size == 8
    assert items.encode(["b", "new", "a", "c"]) == [5, 4, 7], "what is not known is left out"
    assert (items.id("a", 1), items.id("new", 1)) == (4, 1)
    assert Items.of(HISTORIES, 6).names == ["a", "b"]


def test_a_file_has_a_name_a_line_and_damaged_or_missing_ones_are_refused(tmp_path, monkeypatch):
    items, path = Items(["a b", "ß", "x,y", " d"]), tmp_path / "items.txt"
    with pytest.raises(RequestError, match="no such file"):
        Items.load(path)
    items.save(path)
    assert path.read_text(encoding="utf-8") == "a b\nß\nx,y\n d\n" and Items.load(path).names == items.names
    monkeypatch.setattr(module, "MAX_BYTES", 50)
    for content, message in (
        (b"", "is damaged: expected names of items; received none"),
        (b"a\n\nb\n", "is damaged: expected names of items; received none, or a blank one"),
        (b"a\nb\na\n", "is damaged: expected each item once; received 'a' more than once"),
        (b"a\n\xff\n", "line 2: not UTF-8"),
        (b"a" * 99, "is damaged: it is larger than 50 bytes"),
    ):
        path.write_bytes(content)
        with pytest.raises(RequestError, match=message):
            Items.load(path)
