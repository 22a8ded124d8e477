"""Lines of several sentences: taken apart, made to fit, and put together; and what is told."""

import random
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_transformer
from export.artefacts import Decoding, open_run
from keras_transformer.decoding.decoder import Decoder, Found, Hypothesis, Word
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation.passages import Layout, Passages, combined
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.tasks.translation.words import words_of
from keras_transformer.text.sentences import padded
from keras_transformer.text.splitting import RULED, WITHOUT_ORDINALS, LearnedText, is_copied, may_have_ordinals
from keras_transformer.text.tokenizer import END, Tokenizer

SENTENCES = ["One two three.", "Two dogs run!", "Seven hundred and two?", "The sea."]
LONG = " ".join(SENTENCES)
WHOLE = "what begins with a prefix is of whole lines"


class Backwards(Decoder):
    """In place of a model: a translation has the pieces of its source backwards, without some of the last ones."""

    max_source_length, vocabulary_sizes = 40, (None, 64)
    log_probs = None  # type: ignore[assignment]  # nobody asks

    def check_source_length(self, length):
        """Any is good."""

    def search(self, arrays, options):
        sources = [[id for id in row if id > END][::-1] for row in arrays.source_ids.tolist()]
        lists = [[[*ids[: len(ids) - skip], END] for skip in range(options.n_best)] for ids in sources]
        ids = np.stack([padded(some, arrays.source_ids.shape[1] + 1) for some in lists])
        return Found(ids, -0.01 * ids.sum(-1).astype("float32") - np.arange(options.n_best, dtype="float32"))

    def sample(self, arrays, uniforms, options):
        ids = (4 + 60 * uniforms[..., :9]).astype("int32")
        return Found(ids, -np.ones(ids.shape[:2], "float32"))

    def align(self, emitted):
        """Each piece looks where it was."""
        kept = [[at for at, id in enumerate(one.sentence.source) if id > END][::-1] for one in emitted]
        return [
            tuple((at, number) for number, at in enumerate(places[: len(one.ids) - 1]))
            for one, places in zip(emitted, kept, strict=True)
        ]


@pytest.fixture(scope="module")
def backwards(tokenizer) -> Translator:
    return Translator(Backwards(), tokenizer)


@pytest.fixture(scope="module")
def short(tokenizer) -> Translator:
    """It takes the longest of the sentences, and no two of them."""
    most = max(map(len, tokenizer.encode(SENTENCES)))
    return Translator(Backwards(), tokenizer, max_source_length=most)


def found_by(translator: Translator, lines: list[str], prefixes: list[str] | None = None, **options):
    options = {"split": "lines", **options}
    return list(translator.stream(lines, translator.search_options(**options), prefixes))


def told(capsys) -> list[str]:
    """The warnings, but that of characters which the tiny vocabulary lacks."""
    return [line for line in capsys.readouterr().err.splitlines() if "cannot read" not in line]


def passages_of(tokenizer: Tokenizer, most: int, learned: LearnedText | None = None, **options) -> Passages:
    return Passages((tokenizer, tokenizer), most, SearchOptions(**options), learned or LearnedText())


def apart(line: str, passages: Passages, prefix: str = ""):
    """A line, taken apart and made to fit, and the pieces of its sentences."""
    (passage,), sentences = passages.fitted(passages.taken_apart([(0, (line, prefix))]))
    return passage, [sentence.source for sentence in sentences]


def test_the_sentences_of_a_line_are_translated_apart_and_joined(backwards, capsys):
    alone = backwards.translate(SENTENCES)
    assert len({*alone}) == 4 and alone == backwards.translate(SENTENCES, split="off")
    for batch_size in (1, 64):
        found = backwards.translate([LONG, "The sea."], batch_size=batch_size)
        assert found == [" ".join(alone), alone[3]]
    assert backwards.translate(LONG) == " ".join(alone)
    ((whole,),) = found_by(backwards, [LONG], prefixes=[""], split="sentences")
    assert whole.text == " ".join(alone), "a blank prefix leaves a line to be split"
    pairs = [" ".join(SENTENCES[:2]), " ".join(SENTENCES[2:])]
    of_pairs = Translator(backwards.decoder, backwards.source_tokenizer, sentences_per_line=2)
    assert of_pairs.translate(LONG) == " ".join(backwards.translate(pairs, split="off")), "as the model learned from"
    assert told(capsys) == []


def test_line_breaks_blank_lines_indentation_and_list_marks_stay(backwards):
    one, two, three, four = backwards.translate(SENTENCES)
    first, second, third, fourth = SENTENCES
    text = f"  - {first}\t{second}\r\n\r\n \t\n12) {third}  \n\n\u2022 {fourth}\n\u200fa) {first}\n"
    assert backwards.translate(text) == f"  - {one}\t{two}\r\n\r\n \t\n12) {three}  \n\n\u2022 {four}\n\u200fa) {one}\n"
    assert backwards.translate([f"{first}\n\n{second}", fourth]) == [f"{one}\n\n{two}", four]
    assert backwards.translate(["", " ", "\n", "\n \n"]) == ["", "", "\n", "\n \n"]


def test_a_number_with_a_full_stop_is_a_list_mark_only_where_it_can_be_no_ordinal(tokenizer):
    with_ordinals = re.split(" ", "de de-AT deu_Latn da no nb_NO nob_Latn is cs ces_Latn sk sl hr sr fi et lv hu tr pl")
    for language in ("", "xx", *with_ordinals, *RULED, *RULED.values()):
        passages = passages_of(tokenizer, 99, LearnedText(language or None), split="sentences")
        is_mark = language not in with_ordinals and RULED.get(language, language) in WITHOUT_ORDINALS
        for text in ("Oktober war es.", "maj er fridag", "FC Köln gewinnt 2:0."):
            passage, _ = apart(f"3. {text}", passages)
            assert (passage.spaces[0], *passage.texts) == (("3. ", text) if is_mark else ("", f"3. {text}")), language
        assert apart("3) Oktober", passages)[0].spaces[0] == "3) "
        assert not may_have_ordinals("猫が好き", language), "a script without capitals has no such ordinals"


def test_a_run_and_its_export_know_the_text_that_the_model_learned_from(tiny_model, tokenizer, tmp_path):
    Translator(tiny_model, tokenizer, sentences_per_line=2).save(tmp_path / "run", languages=("en", "de"))
    again = keras_transformer.load(tmp_path / "run", engine="keras")
    assert again.learned_text == LearnedText("en", "de", 2) and again.target_language == "de"
    metadata = open_run(tmp_path / "run").metadata(Decoding(), "float32")
    assert metadata["splits_text"] == "no" and LearnedText.of_export(metadata) == again.learned_text


def test_a_tag_of_the_other_direction_brings_the_other_language():
    tagged = Tokenizer.train(["eins zwei"] * 9, 14, tags=["<2de>", "<2en>"])
    passages = passages_of(tagged, 99, LearnedText("en", "de"))
    text = "Am 3. Mai kam er. Sie ging."
    assert apart(f"<2en> {text}", passages)[0].texts == ["Am 3. Mai kam er.", "Sie ging."]
    assert apart(f"<2de> {text}", passages)[0].tags == "<2de> "


@pytest.mark.parametrize("cut", [None, 0, 2])
def test_the_score_of_a_line_is_the_sum_and_it_has_an_end_only_if_each_part_has(tokenizer, cut):
    parts = [Hypothesis(f"t{id}", -1.0, -2.0, (id, END)) for id in range(4, 7)]
    if cut is not None:
        parts[cut] = replace(parts[cut], ids=parts[cut].ids[:1])
    passages = passages_of(tokenizer, 10, split="lines")
    (passage,) = passages.taken_apart([(0, ("a b c", ""))])
    ((whole,),) = passages.joined([passage.divided(["a ", "b  ", "c"])], [[part] for part in parts])
    assert whole == Hypothesis("t4 t5  t6", -3.0, -6.0, (4, 5, 6) if cut is not None else (4, 5, 6, END))


def test_random_lines_of_any_characters_come_back_one_for_one(backwards):
    draw = random.Random(0)
    usual = [*"ab. !?\t\n\r\x0b\x85\u2028\u00a0\u200c。」“.…१।1)-"]
    lines = ["One.\n\x0b\x85\u2028The sea.", "Two.\n\rA.\x00 B."]
    for _ in range(200):
        size = draw.randrange(40)
        chars = (draw.choice([*usual, chr(draw.randrange(0x110000)), chr(draw.randrange(0x250))]) for _ in range(size))
        lines.append("".join(chars))
    found = [best.text for (best,) in backwards.stream(lines)]
    assert found[:20] == [best.text for line in lines[:20] for (best,) in backwards.stream([line])]
    assert len(found) == len(lines) and all(len(text.splitlines()) <= 1 and text.encode() is not None for text in found)


def test_what_has_a_prefix_is_of_whole_lines_and_this_is_told(backwards, short, capsys):
    lines, prefixes = [f" {LONG}"], ["one"]
    assert found_by(backwards, lines, prefixes, split="sentences") == found_by(backwards, lines, prefixes)
    assert told(capsys) == [f"warning: 1 line(s) of several sentences were translated as they are: {WHOLE}"]
    assert found_by(short, [LONG], prefixes) == found_by(short, [LONG], prefixes, split="off")
    split, cut = told(capsys)
    assert cut == f"warning: 1 source(s) were over {short.max_source_length} pieces and were cut"
    assert split == f"{cut}: {WHOLE}"


def test_an_alignment_counts_the_pieces_of_the_whole_line(backwards):
    [[whole]] = found_by(backwards, [f"- {LONG}"], alignments=True, split="sentences")
    pieces = [piece for text in SENTENCES for piece in backwards.source_tokenizer.encode([text])[0]]
    assert [pieces[source] for source, _ in whole.alignment] == [*whole.ids[:-1]]
    assert [target for _, target in whole.alignment] == [*range(len(whole.ids) - 1)]


def test_lists_of_a_line_of_several_sentences_are_the_choices_with_the_best_sums(backwards):
    lists = found_by(backwards, SENTENCES, n_best=3, num_beams=3)
    [found] = found_by(backwards, [LONG], n_best=3, num_beams=3, split="sentences")
    sums = sorted((sum(one.score for one in choice) for choice in product(*lists)), reverse=True)
    assert [one.score for one in found] == pytest.approx(sums[:3])
    assert len({one.ids for one in found}) == 3
    [drawn] = found_by(backwards, [LONG], n_best=2, sampling=True, split="sentences")
    assert len(drawn) == 2 and drawn[0].ids != drawn[1].ids


@given(st.data())
def test_no_choice_that_is_left_out_is_better(data):
    """Hypotheses that were cut stand behind the others, whatever their score is."""
    scores = st.lists(st.integers(-9, 0), min_size=1, max_size=4)
    lists = [
        [Hypothesis("", score, 0.0, (END,)) for score in sorted(ended, reverse=True)]
        + [Hypothesis("", score, 0.0, (4,)) for score in sorted(cut, reverse=True)]
        for ended, cut in data.draw(
            st.lists(st.tuples(scores, st.lists(st.integers(-9, 0), max_size=2)), min_size=2, max_size=4)
        )
    ]

    def rank(choice):
        return sum(END not in one.ids for one in choice), -sum(one.score for one in choice)

    count = data.draw(st.integers(2, 5))
    found = combined(lists, count)
    assert [rank(choice) for choice in found] == sorted(map(rank, product(*lists)))[:count]
    assert combined(lists, 1) == [[some[0] for some in lists]]


def words(text: str, hypothesis: Hypothesis) -> list[tuple[str, str]]:
    return [(text[slice(*one.source)], hypothesis.text[slice(*one.target)]) for one in hypothesis.words]


def test_words_are_told_against_the_whole_text(backwards):
    text = "  - Two dogs run!  The \ud800 sea.\r\n\n--- \nseven hundred\n"
    layout, options = Layout(text), backwards.search_options(words=True, n_best=2, num_beams=2)
    assert options.alignments
    found = layout.joined(backwards.stream(layout.lines, options), options)
    assert len(found) == 2 and found[0].text == backwards.translate(text, num_beams=2)
    for one in found:
        assert {word.strip(".!") for word, _ in words(text, one)} <= {
            *re.findall(r"\w+", text),
            "---",
            "\ud800 sea",
            "",
        }
        spans = [span for word in one.words for span in word.target]
        assert spans == sorted(spans) and all(target.strip() == target != "" for _, target in words(text, one))
    assert ("---", "---") in words(text, found[0])
    assert found[0].words[-1].source[1] <= len(text) and words(text, found[0])[-1][0] == "seven"


def test_words_have_the_parts_that_look_at_one_word_and_stand_together():
    found = words_of(
        "Two dogs-ran",
        [None, (0, 3), (3, 6), (6, 8), (8, 9), (9, 12)],
        "ab c",
        [(0, 1), (1, 2), (2, 4), (3, 4)],
        [2, 3, 3, 0],
    )
    assert found == [Word((4, 8), (0, 2)), Word((4, 8), (3, 4))]
    assert words_of("日本語", [(0, 1), (1, 3)], "xy", [(0, 1), (1, 2)], [0, 1]) == [
        Word((0, 1), (0, 1)),
        Word((1, 3), (1, 2)),
    ]
    assert words_of("a b", [(1, 1), (3, 3)], "xy", [(0, 1), (1, 2)], [0, 1]) == [Word((2, 3), (0, 1))], "a lone space"


def test_the_parts_of_a_long_line_are_translated_apart_and_joined_unless_it_is_to_be_cut(short, capsys):
    alone = short.translate(SENTENCES)
    lines = ["The sea.", LONG, "", f"{LONG} {LONG}", "Two dogs run!"]
    expected = [alone[3], " ".join(alone), "", " ".join([*alone, *alone]), alone[1]]
    assert short.translate(lines, split="lines") == expected
    assert short.translate(lines, long="split") == expected
    warning = f"warning: 2 line(s) were over {short.max_source_length} pieces: their parts were translated and joined"
    assert told(capsys) == [warning] * 2
    assert short.translate([LONG], long="cut") == short.translate([LONG], split="off") != short.translate([LONG])
    assert capsys.readouterr().err.count("warning: 1 source(s) were over") == 2
    short.translate([f"The sea. {'sea' * 60} The sea."])  # a word without a place to split
    split, was_cut = told(capsys)
    assert "1 line(s) were over" in split and was_cut.endswith("were cut")


def test_lines_without_words_are_copied_and_counted(backwards, capsys):
    times = ["00:00:01,000 --> 00:00:04,000", "01:02.500 --> 01:04.000 align:start", "[00:12.34]"]
    copied = ["♪ ♪", "---", "\u00a0… ", *times, " HTTPS://a.example/b?c=1", "www.example.org", "日本 漢字。"]
    for options in ({}, {"split": "off"}, {"split": "sentences"}, {"n_best": 2, "num_beams": 2}, {"sampling": True}):
        found = found_by(backwards, [*copied, "two 日本 ♪"], **options)
        assert found[:-1] == [[Hypothesis(line, 0.0, 0.0)] for line in copied] and found[-1][0].score < 0
    assert [line for line in told(capsys) if "copied" in line] == [
        f"warning: {len(copied)} line(s) were copied: they have no words that the model could translate"
    ]
    assert backwards.translate("Two dogs.\n---\n") == backwards.translate("Two dogs.") + "\n---\n"
    assert found_by(backwards, ["---"], prefixes=["two"])[0][0].score < 0, "it is translated as it is asked for"
    tagged = Tokenizer.train(["12:30 see www.a.bc two"] * 9, 22, tags=["<2de>"])
    assert apart("<2de> ---", passages_of(tagged, 9))[0].spaces == ["---"]
    passages = passages_of(tagged, 9)
    for lines, num_unread in (([(line, "") for line in ["♪", *times]], 0), ([("日本", ""), ("♪", "→")], 3)):
        passages.taken_apart(enumerate(lines))
        assert sum(unread.num_lines for unread in passages.unread) == num_unread, "nothing is lost of what has no words"
    assert not any(is_copied(line, tagged) for line in ("42", "12:30", "see www.a.bc", "12 --> 30", "日本 3"))


def test_what_is_copied_behind_a_tag_looks_at_itself(backwards):
    tagged = Tokenizer.train(["12:30 see www.a.bc two"] * 9, 22, tags=["<2de>"])
    line = "<2de>  --- "
    [[found]] = found_by(Translator(backwards.decoder, tagged), [line], words=True)
    assert words(line, found) == [("---", "---")]


def test_a_tag_takes_its_place_once_in_each_part():
    tagged = Tokenizer.train(["one two"] * 9, 12, tags=["<2de>"])
    [tag] = tagged.encode(["<2de>"])
    text = "one two " * 9
    for split in ("sentences", "lines"):
        _, alone = apart(text, passages_of(tagged, 24, split=split))
        _, parts = apart(f"<2de> {text}", passages_of(tagged, 24 + len(tag), split=split))
        assert len(alone) > 1 and parts == [[*tag, *part] for part in alone]
        passages = passages_of(tagged, 2 * len(tag), split=split)
        _, cut = apart("<2de> " * 5, passages)
        assert cut == [tag * 2] and (passages.num_long, passages.num_cut) == (0, 1)


def test_every_part_of_a_line_is_drawn_anew(backwards):
    line = " ".join(["Two dogs run to the sea."] * 3)
    whole, again, first = (
        found_by(backwards, [text], sampling=True, seed=3, split="sentences", batch_size=size)[0][0]
        for text, size in ((line, 64), (line, 1), ("Two dogs run to the sea.", 64))
    )
    assert whole.ids == again.ids
    assert whole.text.startswith(first.text) and whole.text != " ".join([first.text] * 3)
