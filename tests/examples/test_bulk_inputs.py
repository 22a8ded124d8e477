"""Inputs of a bulk translation: whatever the shards, their rows are the rows of the file."""

import os
import sys
from pathlib import Path

import pytest

from bulk_inputs import FIRST_LINES, Row, find_inputs, read_rows, scan, scan_all
from keras_transformer.errors import JobError, RequestError

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
    for content, rows in {
        b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n": [Row("one"), Row("\ufefftwo")],  # byte order marks
        b"PAR1": [Row("PAR1")],  # as Parquet begins
        b"PAR1 is one of two marks": [Row("PAR1 is one of two marks")],
    }.items():
        path.write_bytes(content)
        assert in_shards(path, 1) == rows
    path.write_bytes("Straße\nWeg\n".encode("latin-1"))
    (first, second) = in_shards(path, 2)
    assert first.source == "Stra\ufffde" and "not UTF-8" in str(first.error) and second == Row("Weg")


def test_the_identity_is_that_of_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"one\ntwo\n")
    (tmp_path / "b").write_bytes(b"one\ntwo")
    (tmp_path / "empty").touch()
    a, b, again, empty = (scan(tmp_path / name, "text", 1) for name in ("a", "b", "a", "empty"))
    assert a == again and a.sha256 != b.sha256
    assert (a.num_bytes, a.num_rows, a.starts) == (8, 2, [0, 4])
    assert empty[1:] == (0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 0, [])


def test_what_is_no_string_is_a_row_with_a_reason(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = ['{"text": "one", "n": 1}', '{"text": null}', '{"text": 7}', "", "{", '{"n": 1}', '["text"]']
    rows += ['{"text": "half \\ud800"}', '{"text": ""}', "[" * 100_000]
    path.write_bytes("\n".join(rows).encode() + b'\n{"text": "\xff"}\n')
    found = in_shards(path, 4)
    assert [row.source for row in found] == ["one", *[None] * 6, "half \ufffd", "", None, None]
    reasons = ["string; received None", "string; received 7", "not JSON", "not JSON", "expected an object with 'text'"]
    reasons += ["expected an object with 'text'", "not Unicode", "", "not JSON", "not UTF-8"]
    assert [number for number, row in enumerate(found) if row.error is None] == [0, 8]
    assert [reason in (row.error or "") for row, reason in zip(found[1:], reasons, strict=True)] == [True] * 10


def test_inputs_come_in_the_order_of_their_paths_and_what_is_not_read_is_told(tmp_path, capsys):
    for name in ("b.txt", "a.txt", ".hidden", "_SUCCESS"):
        (tmp_path / name).touch()
    (tmp_path / "inner").mkdir()
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert find_inputs([str(paths[1]), str(paths[0])]) == paths and not capsys.readouterr().err
    assert find_inputs([str(tmp_path)]) == paths
    assert "not read: '.hidden', '_SUCCESS', 'inner'; " in capsys.readouterr().err
    assert find_inputs([str(tmp_path / "_SUCCESS")]) == [tmp_path / "_SUCCESS"]


def test_wrong_inputs_are_refused(tmp_path, monkeypatch):
    for folder in ("empty", "packed", "latin", "closed"):
        (tmp_path / folder).mkdir()
    for file in ("a.txt", "packed/c.GZ", "closed.txt"):
        (tmp_path / file).touch()
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    os.mkfifo(tmp_path / "packed" / "p")
    Path(os.fsdecode(bytes(tmp_path / "latin") + b"/Stra\xdfe")).touch()

    def refused(given: str, reason: str) -> None:
        with pytest.raises(RequestError, match=reason):
            find_inputs([str(tmp_path / given)])

    for given, reason in {
        "missing": "no such file or folder",
        "empty": "the folder has none",
        "packed/c.GZ": "unpack it first",
        "packed/p": "expected a regular file",
        "latin": r"expected a path in UTF-8; received '.*Stra\\udcdfe': rename it",
        ".": "named twice",
    }.items():
        refused(given, reason)
    # Root may read everything, so no permissions of files can make this refusal in every environment.
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK or "closed" not in path.name)
    (tmp_path / "b.txt").unlink()
    for given in ("closed.txt", "closed", "."):
        refused(given, "no permission to read .*closed")
    with pytest.raises(RequestError, match="expected rows to translate"):
        scan_all([tmp_path / "a.txt"], "text", 1)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    with pytest.raises(RequestError, match="is Parquet, which pyarrow reads: pip install"):
        scan(tmp_path / "rows.parquet", "text", 1)


def test_another_column_is_asked_for_by_name(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{\n{"en": "one", "de": "eins"}\n')
    with pytest.raises(RequestError, match=r"expected 'text' in .*; its first lines have en, de: give --column"):
        scan(path, "text", 1)
    assert in_shards(path, 1, "de")[1:] == [Row("eins")]
    path = tmp_path / "rows.NDJSON"
    path.write_text('{"id": 1}\n' * (FIRST_LINES - 1) + '{"id": 2, "text": "one"}\n')
    *failed, last = in_shards(path, FIRST_LINES)
    assert last == Row("one") and all("expected an object with 'text'" in str(row.error) for row in failed)


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_rows_of_parquet(tmp_path, kind):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "part-00000"  # known by its bytes

    def write(strings, **options):
        made = strings.dictionary_encode() if kind == "dictionary" else strings.cast(getattr(pyarrow, kind)())
        pyarrow.parquet.write_table(pyarrow.table({"n": range(len(made)), "text": made}), path, **options)

    values = [None if number % 5 == 2 else f"Straße {number}" for number in range(23)]
    write(pyarrow.array(values), row_group_size=4)
    for rows_per_shard in (1, 3, 7, 50):
        assert in_shards(path, rows_per_shard) == [Row(value) for value in values]
    if kind in ("string", "dictionary"):
        write(pyarrow.array([b"one", b"\xfftwo"], pyarrow.binary()).view(pyarrow.string()))
        assert [row.source for row in in_shards(path, 1)] == ["one", "\ufffdtwo"]


@pytest.mark.parity
def test_damaged_and_wrong_parquet_is_named_in_one_line(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "rows.parquet"
    with pytest.raises(FileNotFoundError):  # the system's error says nothing of the file's bytes
        scan(path, "text", 1)
    pyarrow.parquet.write_table(pyarrow.table({"text": [f"line {number}" for number in range(999)]}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 60 + whole[64:])
    with pytest.raises(JobError, match=r"^.*rows.parquet is damaged after row 5 \(.*copy it again") as damage:
        read_rows(path, "text", 5, 10)
    length = int.from_bytes(whole[-8:-4], "little")  # of the footer
    for damaged in (b"PAR1", whole[: -length - 8] + b"\xff" * 60 + whole[-length + 52 :]):
        path.write_bytes(damaged)
        with pytest.raises(RequestError, match=r"^.*rows.parquet is no Parquet file \(.*copy it again") as no_footer:
            scan(path, "text", 1)
        assert "\n" not in f"{damage.value}{no_footer.value}"
    pyarrow.parquet.write_table(pyarrow.table({"en": ["one"], "n": [1], "nulls": pyarrow.nulls(1)}), path)
    assert in_shards(path, 1, "nulls") == [Row(None)]
    with pytest.raises(RequestError, match="it has en, n, nulls: give --column"):
        scan(path, "text", 1)
    with pytest.raises(RequestError, match="expected strings in the column 'n' of .*; it has int64"):
        scan(path, "n", 1)
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, ["text", "text"]), path)
    with pytest.raises(RequestError, match="expected one column 'text' in .*; it has text, text"):
        scan(path, "text", 1)
