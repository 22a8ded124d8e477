"""Pairs that a translator should not learn from, and faults of a teacher's translations: which are found, and why."""

from collections.abc import Sequence

import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.text import cleaning
from keras_transformer.text.cleaning import (
    REASONS,
    Cleaning,
    Faults,
    Overlap,
    Translation,
    cleaned,
    fault,
    faultless,
    key,
    script,
    survey,
)
from keras_transformer.text.corpora import Corpus, Pair, corpus_from_files

VALIDATION, COPY, SOURCE_SCRIPT, TARGET_SCRIPT, DUPLICATE, NEAR_DUPLICATE = REASONS
DIFFERENT = [(f"word {number}", f"Wort {number}") for number in range(30)]


def corpus_of(train: Sequence[Pair], valid: Sequence[Pair] = ()) -> Corpus[Pair]:
    return Corpus("files", None, None, lambda: iter(train), lambda: iter(valid), "")


def why(train: Sequence[Pair], valid: Sequence[Pair] = ()) -> list[str | None]:
    """For each pair its reason, None for those that are kept."""
    return [REASONS[number - 1] if number else None for number in survey(corpus_of(train, valid)).reasons.tolist()]


def test_texts_of_the_same_letters_and_digits_have_one_key_and_the_script_of_most_letters():
    for one, other in (
        ("A dog, swimming!", "a dog swimming"), ("forty-two", "Forty two"), ("STRASSE", "straße"), ("a\u00a0b", "a b"),
        ("ﬁne １２", "fine 12"), ("e\u0301te\u0301", "été"),  # a ligature and wide digits; accents in parts
    ):  # fmt: skip
        assert key(one) == key(other) != ""
    different = [("a dog", "a dot"), ("12", "21"), ("ete", "été"), ("की", "का"), ("!", "?"), ("...", ""), ("a", "")]
    assert not [pair for pair in different if key(pair[0]) == key(pair[1])]
    for text, expected in {
        "größer": "Latn", "привет, OK": "Cyrl", "すしを食べる": "Hani", "한국어": "Hang", "नमस्ते": "Deva",
        "12 ١٢ …": "", "ж 12345": "Cyrl",
    }.items():  # fmt: skip
        assert script(key(text)) == expected


def test_each_pair_has_its_reason_and_the_first_of_equal_pairs_is_kept():
    train = [
        *DIFFERENT, ("word 3", "Wort 3"), ("Word 3!", "Wort 3."),
        ("word 3", "anders"), ("anders", "Wort 3"),  # another translation is no duplicate
        ("This was not translated.", "This was not translated"), ("New York City", "New York City"),
        ("слово и слово", "Wort und Wort"),
        ("a word and a word", "слово и слово"), ("A line of validation", "Eine Zeile"),
        ("", "Wort 3"), ("", "Wort 3"), ("  ", "слово"),
    ]  # fmt: skip
    expected = [DUPLICATE, NEAR_DUPLICATE, None, None, COPY, None, SOURCE_SCRIPT, TARGET_SCRIPT, VALIDATION]
    reasons = why(train, [("a line of validation", "etwas anderes"), ("", "")])
    assert reasons[:30] == [None] * 30 and reasons[30:39] == expected
    assert reasons[39:] == [None] * 3, "pairs with a blank side are counted when they are tokenised"


def test_a_duplicate_is_told_with_its_line_and_the_line_that_it_repeats():
    train = [("One dog.", "Ein Hund."), *DIFFERENT, ("one dog", "ein Hund"), ("one dog", "ein Hund")]
    found = survey(corpus_of(train))
    (near,), (same,) = found.examples[NEAR_DUPLICATE], found.examples[DUPLICATE]
    assert (near.line, near.source, near.target, near.like) == (32, "one dog", "ein Hund", 1)
    assert (same.line, same.like) == (33, 32)
    assert found.counts == {**dict.fromkeys(REASONS, 0), DUPLICATE: 1, NEAR_DUPLICATE: 1} and found.num_kept == 31
    found = survey(corpus_of([*DIFFERENT, *DIFFERENT]))
    assert [(one.line, one.like) for one in found.examples[DUPLICATE]] == [(31, 1), (32, 2), (33, 3)], "three at most"
    many = [(letter, "word") for letter in "жαאعअก漢ა한աကঅਅઅஅఅಅഅකກཀአក"]
    assert survey(corpus_of([*many, ("б", "word")])).counts[SOURCE_SCRIPT] == len(many) - 1, "not the most frequent"
    found = survey(corpus_of([(f"{number}", f"{number}!") for number in range(100)]))
    assert found.scripts == ([], []) and found.num_kept == 100, "what has no letters is in no foreign script"


def test_a_script_of_every_tenth_line_is_a_sides_own():
    latin = [(f"reč {number}", f"word {number}") for number in range(18)]
    cyrillic = [(f"реч {number}", f"a word {number}") for number in range(2)]
    found = survey(corpus_of([*latin, *cyrillic]))
    assert found.num_kept == 20 and found.scripts == (["Latin", "Cyrillic"], ["Latin"])
    found = survey(corpus_of([*latin, ("reč", "word"), *cyrillic]))
    assert found.counts[SOURCE_SCRIPT] == 2 and found.scripts == (["Latin"], ["Latin"])


def test_line_numbers_are_those_of_the_file_although_held_out_pairs_are_passed_over(tmp_path):
    lines = [*(f"held {number}" for number in range(2)), *(f"line {number}" for number in range(37)), "line 5"]
    lines = [*lines, "held 1", "held 0"]  # at most two of 42 are held out: both of one of these pairs
    for name in ("source", "target"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    found = survey(corpus_from_files(tmp_path / "source", tmp_path / "target", seed=None))
    assert [(one.line, one.like) for one in found.examples[DUPLICATE]] == [(40, 8), (42, 1)]


def test_the_cleaned_corpus_is_read_when_it_is_asked_for_and_judged_once():
    told: list[Cleaning] = []
    valid = [("word 4", "Wort 4")]
    corpus = cleaned(corpus_of([*DIFFERENT, *DIFFERENT], valid), told.append)
    corpus.train()
    assert not told
    expected = [pair for pair in DIFFERENT if pair != ("word 4", "Wort 4")]
    assert list(corpus.train()) == list(corpus.train()) == expected
    assert list(corpus.valid()) == valid, "validation stays as it is"
    assert len(told) == 1 and told[0].num_kept == 29
    corpus = cleaned(corpus_of(DIFFERENT, DIFFERENT), lambda found: None)
    with pytest.raises(RequestError, match=f"^{corpus.name}: --clean leaves none of 30 pairs: look at what it"):
        list(corpus.train())


def test_validation_lines_in_the_training_text_are_counted_whatever_tags_they_have():
    overlap = Overlap(["Word 3.", "word 3", "new", ""])
    train = [*DIFFERENT, ("", "blank"), ("word 3", "noch einmal")]
    assert list(overlap.watched(iter(train))) == train
    assert (overlap.num_lines, overlap.num_all) == (2, 4)
    overlap = Overlap(["<2de> Word 3.", "<2de> new", "<2de>"], ["<bt>", "<2de>"])
    assert len(list(overlap.watched([("<2de> <bt> word 3", "x"), ("<2de> <bt> old", "y"), ("<bt>", "z")]))) == 3
    assert overlap.num_lines == 1


A_DOG = "Ein Hund läuft über das Gras."


def test_a_fault_is_found_by_its_kind():
    for source, translation, found in (
        ("A dog runs over the grass.", A_DOG, None),
        (" \t", "", cleaning.BLANK_SOURCE),
        ("A dog.", " ", cleaning.EMPTY),
        ("A dog runs over the grass and on to the sea.", "Hund.", cleaning.RATIO),
        ("A 1.", "Eine Eins, eine.", None),  # short sides may differ as they like
        ("A dog.", "Ein, ein, ein Hund.", None),
        ("A dog runs and runs.", "Ein Hund und ein Hund und ein Hund und ein Hund und", cleaning.REPEATED),
        ("No no no no no no!", "Nein nein nein nein nein nein!", None),  # the source says so
        ("狗跑过草地，一直跑到海边，然后又跑了回来，大家都很高兴，" * 2, "犬が走る" * 20, cleaning.REPEATED),
    ):
        assert fault(source, Translation(translation, True)) == found
    assert fault("A dog runs over the grass.", Translation(A_DOG, False)) == cleaning.UNFINISHED


def test_what_is_left_out_is_counted_with_examples_and_the_rest_stays_in_order():
    lines = [("A dog.", ""), ("One.", "Eins."), *[("A cat.", " ")] * 4, ("", "x"), ("Two.", "Zwei.")]
    translated = [(source, Translation(text, True)) for source, text in lines]
    assert list(faultless(translated)) == [(2, ("One.", "Eins.")), (8, ("Two.", "Zwei."))]
    faults = Faults.among(translated)
    assert faults.counts == {cleaning.EMPTY: 5, cleaning.BLANK_SOURCE: 1}
    assert [one.line for one in faults.examples[cleaning.EMPTY]] == [1, 3, 4], "the first three"
