"""Labelled text: files, held-out lines, batches."""

import numpy as np
import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.tasks.classification.batches import LabelledPlan, LabelledRows
from keras_transformer.tasks.classification.corpus import LANGUAGES, labelled_from_file, named_labelled
from keras_transformer.text.tokenizer import END, START
from tests.golden.cases import write_lines
from tests.text.plans import batches_of, real

LINES = [f"{'odd' if n % 2 else 'even'}\ttext number {n}" for n in range(40)]


def test_equal_lines_are_all_held_out_or_all_trained_on(tmp_path):
    lines = [f"{'odd' if n % 2 else 'even'}\ttext number {n % 17}" for n in range(60)] + ["bye\tsee you"] * 20
    equal = labelled_from_file(write_lines(tmp_path / "equal", lines))
    train, valid = list(equal.train()), list(equal.valid())
    assert valid and not set(train) & set(valid) and len(valid) <= len(lines) // 10
    assert sorted("\t".join(row) for row in train + valid) == sorted(lines)


def test_a_label_of_one_text_is_told_and_trained_on_and_a_header_is_left_out(tmp_path, capsys):
    rare = [*LINES, "od\ta slip", "once\tsaid twice", "once\tsaid twice"]
    corpus = labelled_from_file(write_lines(tmp_path / "text", rare))
    assert {("od", "a slip"), ("once", "said twice")} <= {*corpus.train()} and len(list(corpus.valid())) == 4
    told = "text: 2 label(s) have one item alone, which is not held out: 'od' (line 41), 'once' (line 43)\n"
    assert capsys.readouterr().err.endswith(told)
    write_lines(tmp_path / "many", [*(f"label {n}\ttext {n}" for n in range(9)), *LINES])
    own = labelled_from_file(tmp_path / "many", write_lines(tmp_path / "valid", LINES[:2]))
    assert (len(list(own.train())), len(list(own.valid()))) == (49, 2)
    assert ": 9 label(s) have one " in (told := capsys.readouterr().err) and told.endswith("(line 5) and 4 more\n")
    for header in ("label\ttext", "Category\tSentence"):
        headed = labelled_from_file(write_lines(tmp_path / "headed", [header, *LINES]))
        assert sorted([*headed.train(), *headed.valid()]) == sorted(tuple(line.split("\t")) for line in LINES)
        assert capsys.readouterr().err.endswith(f"headed, line 1: {header!r} is taken for a header and left out\n")


def test_what_cannot_be_trained_on_is_refused(tmp_path):
    for lines, message in (
        (["a\tb", "no tab"], "line 2: expected a label, a tab and a text; received 'no tab'"),
        (["a\t "], r"line 1: expected a label, a tab and a text; received 'a\\t '"),
        (["a\tb", "b\tc"], "text: no label has two texts, one to validate on: add lines, or give --valid-text"),
        ([f"text {n}\t{n % 2}" for n in range(20)], r"20 labels of 2 text\(s\): is the first column the label\?"),
        (["a\tb"] * 20, "at least two labels; received one alone, 'a'"),
        (["a\tb", "\x1b[31m\tb"] * 9, r"in a line under 'labels\[0\]'; received '.x1b\[31m': choose another name$"),
        (["a\tb", "b" * 301 + "\tb"] * 9, "at most 300 characters in a line under 'labels"),
    ):
        with pytest.raises(RequestError, match=message):
            labelled_from_file(write_lines(tmp_path / "text", lines))
    with pytest.raises(RequestError, match="the label 'b' is validated on and never trained on"):
        labelled_from_file(write_lines(tmp_path / "text", LINES), write_lines(tmp_path / "valid", ["b\tx"]))


def test_the_named_text_tells_languages_apart():
    corpus = named_labelled("number-languages")
    train, valid = list(corpus.train()), list(corpus.valid())
    assert {label for label, _ in train} == {label for label, _ in valid} == set(LANGUAGES)
    assert len({text for _, text in train}) == len(set(train)), "no text has two labels"
    assert not {text for _, text in train} & {text for _, text in valid}
    assert ("de", "siebenundzwanzig") in [*train, *valid]


@pytest.mark.parametrize(("num_replicas", "shuffle"), [(1, True), (3, True), (2, False)])
def test_batches_hold_each_text_once(num_replicas, shuffle):
    generator = np.random.default_rng(0)
    ids = [generator.integers(4, 90, generator.integers(1, 12)).tolist() for _ in range(50)]
    rows = LabelledRows(ids, list(range(50)), max_length=10)
    assert rows.num_cut == sum(len(row) > 8 for row in ids)
    plan = LabelledPlan(rows, 60, 1, num_replicas, shuffle=shuffle)
    batches, later = batches_of(plan, 1), batches_of(plan, 2)
    rows_of_labels = [
        (int(label), real(row))
        for batch in batches
        for row, label, weight in zip(batch.inputs["ids"], batch.labels, batch.weights, strict=True)
        if weight or row.any()
    ]
    assert sorted(rows_of_labels) == [(place, (START, *row[:8], END)) for place, row in enumerate(ids)]
    assert np.array_equal(batches[0].labels, later[0].labels) != shuffle
