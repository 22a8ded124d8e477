"""Lines with more pieces than the model takes: split and joined, or cut; and what is told."""

from __future__ import annotations

import pytest

from keras_transformer.decoding.long_lines import LongLines
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.results import Hypothesis
from keras_transformer.decoding.sentences import sentences_of
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError
from keras_transformer.lengths import penalty
from keras_transformer.text.tokenizer import END, Tokenizer

pytest_plugins = ["tests.tiny_run"]

SENTENCES = ["One two three.", "Two dogs run!", "Seven hundred and two?", "The sea."]
LONG = " ".join(SENTENCES)
GREEDY = {"num_beams": 1, "max_length": 12}


@pytest.fixture(scope="module")
def short(tiny_model, tokenizer) -> Translator:
    """It takes the longest of the sentences, and no two of them."""
    most = max(map(len, tokenizer.encode(SENTENCES)))
    pairs = zip(SENTENCES, SENTENCES[1:], strict=False)
    assert all(len(ids) > most for ids in tokenizer.encode([f"{one} {other}" for one, other in pairs]))
    return Translator(tiny_model, tokenizer, max_source_length=most)


def found_by(translator: Translator, lines: list[str], **options):
    way = options.pop("long", "split")
    prefixes = options.pop("prefixes", None)
    return list(translator.stream(lines, translator.search_options(**{**GREEDY, **options}), prefixes, way))


def test_the_sentences_of_a_long_line_are_translated_apart_and_joined(short, capsys):
    alone = short.translate(SENTENCES, **GREEDY)
    lines = ["The sea.", LONG, "", f"{LONG} {LONG}", "Two dogs run!"]
    expected = [alone[3], " ".join(alone), "", " ".join([*alone, *alone]), alone[1]]
    assert short.translate(lines, **GREEDY, long="split") == expected
    assert capsys.readouterr().err == (
        f"warning: 2 line(s) were over {short.max_source_length} pieces: their parts were translated and joined\n"
    )
    for batch_size in (1, 3):
        assert short.translate(lines, **GREEDY, long="split", batch_size=batch_size) == expected


def test_by_default_python_cuts_as_version_0_1_did(short, capsys):
    cut = short.translate([LONG], **GREEDY)
    assert short.translate([LONG], **GREEDY, long="cut") == cut != short.translate([LONG], **GREEDY, long="split")
    assert capsys.readouterr().err.count("warning: 1 source(s) were over") == 2


def test_a_line_that_fits_is_translated_the_same_in_either_way(short, capsys):
    assert found_by(short, SENTENCES, long="split") == found_by(short, SENTENCES, long="cut")
    assert capsys.readouterr().err == ""


def test_the_score_is_that_of_all_parts_together(short):
    options = {"length_penalty": 0.9}
    parts = [best for (best,) in found_by(short, SENTENCES, **options)]
    ((whole,),) = found_by(short, [LONG], **options)
    assert whole.log_prob == pytest.approx(sum(part.log_prob for part in parts), rel=1e-4)
    assert whole.score == pytest.approx(whole.log_prob / penalty(len(whole.ids), 0.9))
    inner = [id for part in parts[:-1] for id in part.ids if id != END]
    end = [END] if all(part.ids[-1] == END for part in parts) else []
    assert whole.ids == (*inner, *(id for id in parts[-1].ids if id != END), *end)


def test_each_part_has_a_place_of_its_own_and_fits(short):
    lines = [LONG, "The sea.", f"{LONG} {LONG}", "sea" * 60]
    tokenizer, most = short.source_tokenizer, short.max_source_length
    sentences = sentences_of(list(enumerate((line, "") for line in lines)), tokenizer, tokenizer)
    parts, places = LongLines(tokenizer, most, "split", SearchOptions()).fitted(lines, sentences)
    assert places == {0: [0, 4, 5, 6], 2: [2, *range(7, 14)]}
    assert sorted(part.place for part in parts) == list(range(14))
    assert {part.number: len(part.source) for part in parts if part.place == 3} == {3: most}
    assert all(len(part.source) <= most for part in parts)


def test_a_tag_takes_its_place_once_in_each_part():
    tagged = Tokenizer.train(["one two"] * 9, 12, tags=["<2de>"])
    [tag] = tagged.encode(["<2de>"])

    def parts_of(line: str, most: int) -> tuple[list[list[int]], LongLines]:
        long = LongLines(tagged, most, "split", SearchOptions())
        parts, _ = long.fitted([line], sentences_of([(0, (line, ""))], tagged, tagged))
        return [part.source for part in parts], long

    text = "one two " * 9
    alone, _ = parts_of(text, 24)
    assert len(alone) > 1 and parts_of(f"<2de> {text}", 24 + len(tag))[0] == [[*tag, *part] for part in alone]
    cut, long = parts_of("<2de> " * 5, 2 * len(tag))
    assert cut == [tag * 2] and (long.num_split, long.num_cut) == (0, 1)


def test_what_has_no_pieces_is_no_part():
    tokenizer, line = Tokenizer.train(["one two"] * 9, 11), "one two " * 9 + ", \ufffd"
    assert tokenizer.encode(["\ufffd"]) == [[]]
    long = LongLines(tokenizer, 20, "split", SearchOptions())
    parts, places = long.fitted([line], sentences_of([(0, (line, ""))], tokenizer, tokenizer))
    assert len(parts) == len(places[0]) > 2 and all(part.source for part in parts)


def test_the_ends_of_parts_are_no_pieces_of_the_line(short):
    long_lines = LongLines(short.source_tokenizer, 10, "split", SearchOptions(length_penalty=1.0))
    parts = [Hypothesis(f"text {id}", -1.0, -2.0, (id, END)) for id in (7, 8, 9)]
    lines = long_lines.joined([[one] for one in parts], {0: [0, 2]}, 2)
    assert lines == [[Hypothesis("text 7 text 9", -4.0 / penalty(3, 1.0), -4.0, (7, 9, END))], [parts[1]]]


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_line_has_an_end_only_if_each_part_has(short, cut):
    parts = [Hypothesis("text", -1.0, -2.0, (id, END)[: 1 if part == cut else 2]) for part, id in enumerate((7, 8, 9))]
    long_lines = LongLines(short.source_tokenizer, 10, "split", SearchOptions(length_penalty=1.0))
    ((whole,), *_) = long_lines.joined([[one] for one in parts], {0: [0, 1, 2]}, 3)
    assert whole.ids == (7, 8, 9)


def test_every_part_of_a_line_is_drawn_anew(short):
    draws = {"sampling": True, "seed": 3}
    part = "two dogs run to the sea."
    short_of = Translator(
        short.model, short.source_tokenizer, max_source_length=len(short.source_tokenizer.encode([part])[0])
    )
    line = " ".join([part.capitalize()] * 3)
    ((whole,),) = found_by(short_of, [line], **draws)
    ((again,),) = found_by(short_of, [line], **draws, batch_size=1)
    ((first,),) = found_by(short_of, [part.capitalize()], **draws)
    assert whole.ids == again.ids
    assert whole.text.startswith(first.text) and whole.text != " ".join([first.text] * 3)


@pytest.mark.parametrize("options", [{"n_best": 2, "num_beams": 2}, {"alignments": True}, {"prefixes": ["one"]}])
def test_what_cannot_be_joined_is_cut_and_this_is_told(short, capsys, options):
    assert found_by(short, [LONG], **options) == found_by(short, [LONG], **options, long="cut")
    split, cut = capsys.readouterr().err.splitlines()
    assert cut == f"warning: 1 source(s) were over {short.max_source_length} pieces and were cut"
    assert split == f"{cut}: n-best lists, alignments and what begins with a prefix are not joined"


def test_a_blank_prefix_leaves_a_line_to_be_split(short):
    assert found_by(short, [LONG], prefixes=[""]) == found_by(short, [LONG])


def test_a_word_without_a_place_to_split_is_cut(short, capsys):
    word = "sea" * 60
    assert short.translate([f"The sea. {word} The sea."], **GREEDY, long="split")[0].count(" ") >= 0
    told = capsys.readouterr().err
    assert told.count("warning: 1 ") == 2 and "were translated and joined" in told and "were cut\n" in told


def test_split_lines_are_read_no_further_ahead(short):
    read = []

    def lines():
        for number in range(100):
            read.append(number)
            yield LONG

    stream = short.stream(lines(), SearchOptions(num_beams=1, max_length=3, batch_size=1), long="split")
    for answered in range(1, 4):
        next(stream)
        assert len(read) == answered


def test_other_ways_are_refused(short):
    with pytest.raises(RequestError, match="long must be 'split' or 'cut'; received: 'fold'"):
        short.translate(["one"], long="fold")
