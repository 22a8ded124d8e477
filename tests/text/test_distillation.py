"""Faults of a teacher's translations."""

from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.text import distillation
from keras_transformer.text.distillation import Faults, Translation, fault, faultless, times_in_a_row

A_DOG = "Ein Hund läuft über das Gras."


def test_a_fault_is_found_by_its_kind():
    for source, translation, found in (
        ("A dog runs over the grass.", A_DOG, None),
        (" \t", "", distillation.BLANK_SOURCE),
        ("A dog.", " ", distillation.EMPTY),
        ("A dog runs over the grass and on to the sea.", "Hund.", distillation.RATIO),
        ("A 1.", "Eine Eins, eine.", None),  # short sides may differ as they like
        ("A dog.", "Ein, ein, ein Hund.", None),
        ("A dog runs and runs.", "Ein Hund und ein Hund und ein Hund und ein Hund und", distillation.REPEATED),
        ("No no no no no no!", "Nein nein nein nein nein nein!", None),  # the source says so
        ("狗跑过草地，一直跑到海边，然后又跑了回来，大家都很高兴，" * 2, "犬が走る" * 20, distillation.REPEATED),
    ):
        assert fault(source, Translation(translation, True)) == found
    assert fault("A dog runs over the grass.", Translation(A_DOG, False)) == distillation.UNFINISHED


@given(st.lists(st.sampled_from("ab"), max_size=14))
def test_repetitions_are_counted_as_by_trying_every_phrase(words):
    def times(start, size):
        phrase, count = words[start : start + size], 0
        while words[start + count * size : start + (count + 1) * size] == phrase:
            count += 1
        return count

    places = [(start, size) for size in range(1, 13) for start in range(len(words) - size + 1)]
    assert times_in_a_row(" ".join(words)) == max((times(*place) for place in places), default=1)


def test_what_is_left_out_is_counted_with_examples_and_the_rest_stays_in_order():
    lines = [("A dog.", ""), ("One.", "Eins."), *[("A cat.", " ")] * 4, ("", "x"), ("Two.", "Zwei.")]
    translated = [(source, Translation(text, True)) for source, text in lines]
    assert list(faultless(translated)) == [(2, ("One.", "Eins.")), (8, ("Two.", "Zwei."))]
    faults = Faults.among(translated)
    assert faults.counts == {distillation.EMPTY: 5, distillation.BLANK_SOURCE: 1}
    assert [one.line for one in faults.examples[distillation.EMPTY]] == [1, 3, 4], "the first three"
