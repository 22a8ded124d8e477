"""Logs and the vocabulary of their items: forms, order, what is held out, and what is refused by its line."""

import csv
import gzip
import random
from fractions import Fraction

import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.tasks.next_item import corpus as items_module
from keras_transformer.tasks.next_item.corpus import Items, log_from_file, named_log, read_log
from tests.golden.cases import write_lines

EVENTS = [("ann", "b", "3"), ("bob", "a, c", "2"), ("ann", "a, c", "1.5"), ("ann", "d", "3"), ("bob", "b", "-1e2")]
EXPECTED = (["ann", "bob"], [["a, c", "b", "d"], ["b", "a, c"]])


def tsv(*events):
    return ["\t".join(event) for event in events]


def test_events_are_sorted_by_time_and_a_header_names_the_columns(tmp_path):
    """Those of one time stay in order."""
    assert read_log(write_lines(tmp_path / "log", tsv(*EVENTS))) == EXPECTED
    backwards = (["bob", "ann"], [["b", "a, c"], ["a, c", "d", "b"]])
    assert read_log(write_lines(tmp_path / "log", tsv(*EVENTS[::-1]))) == backwards
    rows = ["\t".join([time, "nan", user, item]) for user, item, time in EVENTS]
    for names in ("user item time", "user_id:token item_id:token timestamp:float", "\ufeffUserId movieId Timestamp"):
        user, item, time = names.split()
        assert read_log(write_lines(tmp_path / "log", [f"{user}\t{item}\t{time}", *tsv(*EVENTS)])) == EXPECTED
        turned = "\t".join([time, "rating", user.lstrip("\ufeff"), item])
        assert read_log(write_lines(tmp_path / "log", [turned, *rows])) == EXPECTED


@pytest.mark.parametrize("form", ["{}", "{}.5", "{0[0]}.{0}", "{}e3", "-{}", "{}000"])
def test_times_of_any_number_of_digits_are_compared_as_they_are_written(tmp_path, form):
    """Nanoseconds since 1970 have 19 digits, of which a float keeps 16."""
    draw = random.Random(form)
    for digits in range(1, 22):
        first = draw.randrange(10 ** (digits - 1), 10**digits)
        times = [form.format(str(first + draw.randrange(9))) for _ in range(12)]
        found = read_log(write_lines(tmp_path / "log", (f"ann,{place},{time}" for place, time in enumerate(times))))
        expected = sorted(range(12), key=lambda place: Fraction(times[place]))
        assert found.histories == [[str(place) for place in expected]]
    mixed = ["1700000000000000001", "1700000000000000000.5", "17e17", str(2**70), "-1", "1_7"]
    found = read_log(write_lines(tmp_path / "log", (f"ann,{time},{time}" for time in mixed)))
    assert found.histories == [sorted(mixed, key=Fraction)]


def test_csv_as_python_writes_it_and_gzip(tmp_path):
    with gzip.open(tmp_path / "log.csv.gz", "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("user", "item", "time"), *EVENTS, ()])
    assert read_log(tmp_path / "log.csv.gz") == EXPECTED
    # In a log with tabs a quote is a character.
    assert read_log(write_lines(tmp_path / "log", ['ann\t"a\t1', 'ann\tb"\t2'])).histories == [['"a', 'b"']]


REFUSED = {
    "is empty; expected lines of user, item and time": [],
    "holds no events": ["user\titem\ttime"],
    "line 2: expected a time, a number such as seconds since 1970; received 'nan'": ["a\tb\t1", "a\tc\tnan"],
    "line 4: expected a time, .*; received 'yesterday'": ["user,item,time", "a,b,1", "", "a,c,yesterday"],
    "line 3: expected 3 columns, as in line 1; received 2": ["a,b,1", "a,c,2", "a,3"],
    "line 2: expected the name of user in one line, .*; received ''": ["a,b,1", " ,c,2"],
    "line 3: expected the name of item in one line, .*; received 'c.nd'": ["a,b,1", 'a,"c', 'd",2'],
    "line 2: expected the name of item in one line, .*; received '.ufeffc'": ["a,b,1", "a,\ufeffc,2"],
    "line 2: not CSV": ["a,b,1", 'a,"c"d,2'],
    "line 1: expected a header that names each .* received '196, 242, 3, 881250949'": ["196\t242\t3\t881250949"],
    "line 1: expected a header that names each .* received 'user, user_id, item, time'": ["user,user_id,item,time"],
}


def test_what_is_no_log_is_refused(tmp_path):
    for message, lines in REFUSED.items():
        with pytest.raises(RequestError, match=message):
            read_log(write_lines(tmp_path / "log", lines))


def test_the_last_event_of_each_user_is_held_out(tmp_path, capsys):
    corpus = log_from_file(write_lines(tmp_path / "log", tsv(*EVENTS, ("eve", "e", "1"))))
    assert list(corpus.train()) == [["a, c", "b"], ["b"], ["e"]]
    assert list(corpus.valid()) == EXPECTED[1]
    assert "1 user(s) have one event alone, which is trained on" in capsys.readouterr().err
    with pytest.raises(RequestError, match="expected events with at least two items to train on; received one"):
        log_from_file(write_lines(tmp_path / "log", ["a,b,1", "a,b,2", "a,c,3"]))


def test_the_named_log_is_the_same_each_time():
    corpus, again = named_log("series"), named_log("series")
    assert list(corpus.train()) == list(again.train()) and corpus.identity == again.identity


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
    monkeypatch.setattr(items_module, "MAX_BYTES", 50)
    for content, message in (
        (b"a\n\nb\n", "is damaged: expected names of items; received none, or a blank one"),
        (b"a\nb\na\n", "is damaged: expected each item once; received 'a' more than once"),
        (b"a\n\xff\n", "line 2: not UTF-8"),
        (b"a" * 99, "is damaged: it is larger than 50 bytes"),
    ):
        path.write_bytes(content)
        with pytest.raises(RequestError, match=message):
            Items.load(path)
