"""Inputs of a bulk translation: whatever the shards, their rows are the rows of the file."""

import os
import sys
from pathlib import Path

import pytest

from bulk_inputs import FIRST_LINES, Row, find_inputs, read_rows, scan, scan_all
from keras_transformer.core.errors import JobError, RequestError

LINES = ["one", "", "  two ", "dreißig", "four\tand\r", "\u2028five", "six\x0bseven", "eight"]


def in_shards(path: Path, rows_per_shard: int, column: str = "text") -> list[Row]:
    """All rows of a file, read shard by shard, the last shard first."""
    found = scan(path, column, rows_per_shard)
    rows = [read_rows(path, column, start, rows_per_shard) for start in reversed(found.starts)]
    assert sum(map(len, rows)) == found.num_rows
    assert all(len(some) == rows_per_shard for some in rows[1:])
    return [row for some in reversed(rows) for row in some]


def test_lines_end_at_line_feeds_alone_and_bytes_that_are_no_text_are_dropped_or_stay_visible(tmp_path):
    path = tmp_path / "lines.en"
    for end in ("\n", "\r\n", ""):
        path.write_bytes(((end or "\n").join(LINES) + end).encode())
        expected = [Row(line.removesuffix("\r") if end != "\r\n" else line) for line in LINES]
        for rows_per_shard in (1, 3, 8, 100):
            assert in_shards(path, rows_per_shard) == expected
    path.write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")  # byte order marks
    assert in_shards(path, 1) == [Row("one"), Row("\ufefftwo")]
    path.write_bytes(b"PAR1 begins as Parquet")
    assert in_shards(path, 1) == [Row("PAR1 begins as Parquet")]
    path.write_bytes("Straße\nWeg\n".encode("latin-1"))
    (first, second) = in_shards(path, 2)
    assert first.source == "Stra\ufffde" and "not UTF-8" in str(first.error) and second == Row("Weg")


def test_inputs_come_in_the_order_of_their_paths_and_what_is_not_read_is_told(tmp_path, capsys):
    for name in ("b.txt", "a.txt", ".hidden", "_SUCCESS"):
        (tmp_path / name).touch()
    (tmp_path / "inner").mkdir()
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert find_inputs([str(paths[1]), str(paths[0])]) == paths and not capsys.readouterr().err
    assert find_inputs([str(tmp_path)]) == paths
    assert "not read: '.hidden', '_SUCCESS', 'inner'; " in capsys.readouterr().err
    assert find_inputs([str(tmp_path / "_SUCCESS")]) == [tmp_path / "_SUCCESS"]


def test_what_is_no_string_is_a_row_with_a_reason(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = {
        '{"text": "one", "n": 1}': ("one", None), '{"text": 7}': (None, "string; received 7"), "{": (None, "not JSON"),
        '{"n": 1}': (None, "expected an object with 'text'"), '["text"]': (None, "expected an object with 'text'"),
        '{"text": "half \\ud800"}': ("half \ufffd", "not Unicode"), '{"text": ""}': ("", None),
        "[" * 100_000: (None, "not JSON"),
    }  # fmt: skip
    path.write_bytes("\n".join(rows).encode() + b'\n{"text": "\xff"}\n')
    for row, (source, reason) in zip(in_shards(path, 4), [*rows.values(), (None, "not UTF-8")], strict=True):
        assert row.source == source and (reason in str(row.error) if reason else row.error is None)


def test_another_column_is_asked_for_by_name(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{\n{"en": "one", "de": "eins"}\n')
    with pytest.raises(RequestError, match=r"expected 'text' in .*; its first lines have en, de: give --column"):
        scan(path, "text", 1)
    assert in_shards(path, 1, "de")[1:] == [Row("eins")]
    path = tmp_path / "rows.NDJSON"
    path.write_text('{"id": 1}\n' * (FIRST_LINES - 1) + '{"id": 2, "text": "one"}\n')
    assert in_shards(path, FIRST_LINES)[-1] == Row("one")


def test_wrong_inputs_are_refused(tmp_path, monkeypatch):
    for folder in ("empty", "packed", "latin"):
        (tmp_path / folder).mkdir()
    for file in ("a.txt", "packed/c.GZ"):
        (tmp_path / file).touch()
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    os.mkfifo(tmp_path / "packed" / "p")
    Path(os.fsdecode(bytes(tmp_path / "latin") + b"/Stra\xdfe")).touch()
    for given, reason in {
        "missing": "no such file or folder",
        "empty": "the folder has none",
        "packed/c.GZ": "unpack it first",
        "packed/p": "expected a regular file",
        "latin": r"expected a path in UTF-8; received '.*Stra\\udcdfe': rename it",
        ".": "named twice",
    }.items():
        with pytest.raises(RequestError, match=reason):
            find_inputs([str(tmp_path / given)])
    with pytest.raises(RequestError, match="expected rows to translate"):
        scan_all([tmp_path / "a.txt"], "text", 1)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    with pytest.raises(RequestError, match="is Parquet, which pyarrow reads: pip install"):
        scan(tmp_path / "rows.parquet", "text", 1)


@pytest.mark.parity
def test_rows_of_parquet_and_what_is_no_parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "part-00000"  # known by its bytes
    values = [None if number % 5 == 2 else f"Straße {number}" for number in range(23)]
    for strings in (pyarrow.array(values), pyarrow.array(values).dictionary_encode()):
        pyarrow.parquet.write_table(pyarrow.table({"n": range(23), "text": strings}), path, row_group_size=4)
        for rows_per_shard in (1, 3, 7, 50):
            assert in_shards(path, rows_per_shard) == [Row(value) for value in values]
    with pytest.raises(RequestError, match="expected strings in the column 'n' of .*; it has int64"):
        scan(path, "n", 1)
    pyarrow.parquet.write_table(pyarrow.table({"text": [f"line {number}" for number in range(999)]}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 60 + whole[64:])
    with pytest.raises(JobError, match=r"^.*part-00000 is damaged after row 5 \(.*copy it again"):
        read_rows(path, "text", 5, 10)
    path = path.rename(tmp_path / "rows.parquet")
    path.write_bytes(whole[:-99] + b"PAR1")
    with pytest.raises(RequestError, match=r"^.*rows.parquet is no Parquet file \(.*copy it again"):
        scan(path, "text", 1)
