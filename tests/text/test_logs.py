"""Logs: their forms, order, what is held out, and what is refused with the line that is wrong."""

import csv
import gzip

import pytest

from keras_transformer.errors import RequestError
from keras_transformer.text.logs import log_from_file, named_log, read_log

EVENTS = [("ann", "b", "3"), ("bob", "a, c", "2"), ("ann", "a, c", "1.5"), ("ann", "d", "3"), ("bob", "b", "-1e2")]
EXPECTED = (["ann", "bob"], [["a, c", "b", "d"], ["b", "a, c"]])


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def tsv(*events):
    return ["\t".join(event) for event in events]


def test_events_are_sorted_by_time_and_those_of_one_time_stay_in_order(tmp_path):
    assert read_log(write(tmp_path / "log", *tsv(*EVENTS))) == EXPECTED
    backwards = (["bob", "ann"], [["b", "a, c"], ["a, c", "d", "b"]])
    assert read_log(write(tmp_path / "log", *tsv(*EVENTS[::-1]))) == backwards


def test_a_header_names_the_columns(tmp_path):
    rows = ["\t".join([time, "nan", user, item]) for user, item, time in EVENTS]
    for names in ("user item time", "user_id:token item_id:token timestamp:float", "\ufeffUserId movieId Timestamp"):
        user, item, time = names.split()
        assert read_log(write(tmp_path / "log", f"{user}\t{item}\t{time}", *tsv(*EVENTS))) == EXPECTED
        turned = "\t".join([time, "rating", user.lstrip("\ufeff"), item])
        assert read_log(write(tmp_path / "log", turned, *rows)) == EXPECTED


def test_csv_as_python_writes_it_and_gzip(tmp_path):
    with gzip.open(tmp_path / "log.csv.gz", "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("user", "item", "time"), *EVENTS, ()])
    assert read_log(tmp_path / "log.csv.gz") == EXPECTED
    (tmp_path / "log.csv").write_bytes(gzip.decompress((tmp_path / "log.csv.gz").read_bytes()))
    assert read_log(tmp_path / "log.csv") == EXPECTED
    # In a log with tabs a quote is a character.
    assert read_log(write(tmp_path / "log", 'ann\t"a\t1', 'ann\tb"\t2')).histories == [['"a', 'b"']]


REFUSED = {
    "is empty; expected lines of user, item and time": [],
    "holds no events": ["user\titem\ttime"],
    "line 2: expected a time, a number such as seconds since 1970; received 'nan'": ["a\tb\t1", "a\tc\tnan"],
    "line 2: expected a time, .*; received 'inf'": ["a\tb\t1", "a\tc\tinf"],
    "line 4: expected a time, .*; received 'yesterday'": ["user,item,time", "a,b,1", "", "a,c,yesterday"],
    "line 1: expected a time, .*; received 'c'": ["a,b,c"],
    "line 3: expected 3 columns, as in line 1; received 2": ["a,b,1", "a,c,2", "a,3"],
    "line 2: expected the name of user in one line, .*; received ''": ["a,b,1", " ,c,2"],
    "line 2: expected the name of item in one line": ["a,b,1", f"a,{'c' * 1001},2"],
    "line 3: expected the name of item in one line, .*; received 'c.nd'": ["a,b,1", 'a,"c', 'd",2'],
    "line 2: expected the name of item in one line, .*; received '.ufeffc'": ["a,b,1", "a,\ufeffc,2"],
    "line 2: not CSV": ["a,b,1", 'a,"c"d,2'],
    "line 1: expected a header that names each .* received '196, 242, 3, 881250949'": ["196\t242\t3\t881250949"],
    "line 1: expected a header that names each .* received 'user, item, when'": ["user,item,when", "a,b,1"],
    "line 1: expected a header that names each .* received 'user, user_id, item, time'": ["user,user_id,item,time"],
}


def test_what_is_no_log_is_refused(tmp_path):
    for message, lines in REFUSED.items():
        with pytest.raises(RequestError, match=message):
            read_log(write(tmp_path / "log", *lines))


def test_the_last_event_of_each_user_is_held_out(tmp_path, capsys):
    corpus = log_from_file(write(tmp_path / "log", *tsv(*EVENTS, ("eve", "e", "1"))))
    assert list(corpus.train()) == [["a, c", "b"], ["b"], ["e"]]
    assert list(corpus.valid()) == EXPECTED[1]
    assert "1 user(s) have one event alone, which is trained on" in capsys.readouterr().err
    other = log_from_file(write(tmp_path / "log", *tsv(*EVENTS, ("eve", "f", "1"))))
    assert corpus.identity != other.identity
    with pytest.raises(RequestError, match="expected users with two events or more; received none"):
        log_from_file(write(tmp_path / "log", "a,b,1", "b,c,1"))
    with pytest.raises(RequestError, match="expected events with at least two items to train on; received one"):
        log_from_file(write(tmp_path / "log", "a,b,1", "a,b,2", "a,c,3"))


def test_the_named_log_is_the_same_each_time():
    corpus, again = named_log("series"), named_log("series")
    assert list(corpus.train()) == list(again.train()) and corpus.identity == again.identity
    for history in corpus.valid():
        parts = [item for item in history if item.startswith("series")]
        assert len(parts) == len(set(parts)), "nobody reads a part twice"
    with pytest.raises(RequestError, match="a log is one of series, or your own with --log; received: 'numbers'"):
        named_log("numbers")
