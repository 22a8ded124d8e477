"""From text to text, with a small untrained model whose beliefs are strong enough to choose between."""

import math
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.decoding.decoder import Found, Hypothesis
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.models.transformer import Transformer
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation.loading import load
from keras_transformer.tasks.translation.pipeline import BATCHES_AHEAD, Translator
from keras_transformer.text.bleu import quality
from keras_transformer.text.lines import is_blank
from keras_transformer.text.sentences import TOKENS_PER_SENTENCE, batches_by_length
from keras_transformer.text.tokenizer import END, START, UNKNOWN
from tests.sacrebleu_command import REFERENCES, TRANSLATIONS

SENTENCES = ["to the sea", "seven hundred and two", "one", "a dog and a cat run along the beach", "two dogs"]
# Each search of its own options is compiled, which takes longer than to run it. The length is no option of this kind.
GREEDY: dict[str, Any] = {"num_beams": 1, "max_length": 8}
LISTS: dict[str, Any] = {"n_best": 3, "max_length": 8}
DRAWS: dict[str, Any] = {"sampling": True, "temperature": 0.5, "top_k": 5, **LISTS}


def ids_of(lists):
    return [[one.ids for one in hypotheses] for hypotheses in lists]


def test_every_line_has_one_translation_in_its_place(translator):
    lines = ["", *SENTENCES, " \t ", "\0\x07", *reversed(SENTENCES), "\u200b"]
    texts = translator.translate(lines, **GREEDY)
    assert [texts[place] for place in (0, 6, 7, 13)] == [""] * 4 and len(texts) == len(lines)
    assert texts[1:6] == texts[8:13][::-1] and len({*texts[1:6]}) > 1
    assert translator.translate([]) == [] and translator.translate("") == ""
    assert translator.translate(SENTENCES[1], **GREEDY) == texts[2]
    assert all(map(is_blank, ["", " ", "\t\r", "\0\x1b", "\u3000\u200b", "\ufeff"]))
    assert not any(map(is_blank, ["a", " .", "\0x", "龍", "\ufffd"]))


def log_prob_by_the_model(translator, source, ids):
    """log P of the emitted ids in teacher forcing."""
    source_ids = translator.source_tokenizer.encode([source])[0]
    inputs = {"source_ids": np.array([[*source_ids, END]]), "target_ids": np.array([[START, *ids[:-1]]])}
    log_probs = ops.convert_to_numpy(ops.log_softmax(translator.model(inputs)))[0]
    return sum(log_probs[place, id] for place, id in enumerate(ids))


@pytest.mark.parametrize("options", [LISTS, GREEDY, DRAWS])
def test_lists_have_the_models_probabilities_and_are_the_same_in_any_batch(translator, options):
    """Those of beams are sorted and distinct; a blank line has an empty one with score 0. Draws repeat by seed."""
    lists = translator.n_best(["", *SENTENCES], **options)
    assert lists[0] == [Hypothesis("", 0.0, 0.0, (END,), ())]
    for source, hypotheses in zip(SENTENCES, lists[1:], strict=True):
        for one in hypotheses:
            assert one.log_prob == pytest.approx(log_prob_by_the_model(translator, source, one.ids), abs=1e-3)
            assert one.score == pytest.approx(one.log_prob / ((5 + len(one.ids)) / 6) ** 0.6, abs=1e-5)
            assert len(one.ids) <= 8
        scores = [one.score for one in hypotheses]
        assert len(scores) == options.get("n_best", 1)
        if options is not DRAWS:
            assert scores == sorted(scores, reverse=True) and len({one.ids for one in hypotheses}) == len(scores)
    apart = translator.n_best(["", *SENTENCES], batch_size=2, **options)
    assert ids_of(apart) == ids_of(lists)
    for some, same in zip(lists, apart, strict=True):
        np.testing.assert_allclose([one.score for one in some], [one.score for one in same], atol=1e-4)
    if options is DRAWS:
        assert any(len({*some}) > 1 for some in ids_of(lists)), "draws of one line differ"
        assert ids_of(translator.n_best(["", *SENTENCES], seed=6, **options)) != ids_of(lists)


def test_a_prefix_holds_line_by_line_and_never_forces_the_unknown_piece(translator, capsys):
    prefixes = ["one two", "", "the", "one 龍 two", "dogs run"]
    lists = translator.n_best(SENTENCES, prefixes=prefixes, **LISTS)
    for prefix, hypotheses in zip(prefixes, lists, strict=True):
        assert all(one.text.startswith(prefix.partition(" 龍")[0]) for one in hypotheses)
        assert all(UNKNOWN not in one.ids for one in hypotheses)
    assert ids_of(lists)[1] == ids_of(translator.n_best(SENTENCES, **LISTS))[1]
    capsys.readouterr()
    translator.n_best(SENTENCES[:3], prefixes=["one " * 200, "one", "two " * 200], **GREEDY)
    assert capsys.readouterr().err == "warning: 2 prefix(es) were over 40 pieces and were cut\n"


def test_further_control_ids_of_the_model_are_never_emitted(tokenizer, eager):
    model = Transformer(tokenizer.vocabulary_size, 1, 2, 16, 16, num_control_ids=9, output_bias=True)
    output: Any = model.output_embedding
    output.bias.assign(50.0 * np.isin(np.arange(tokenizer.vocabulary_size), range(4, 9)))
    ways: list[dict[str, Any]] = [{"num_beams": 1}, {"sampling": True}]
    for options in ways:
        ((best,),) = Translator(model, tokenizer).n_best(["one"], max_length=3, **options)
        assert all(id == END or id >= 9 for id in best.ids), options


def test_a_long_source_is_cut_with_a_warning_and_the_length_of_a_translation_follows_it(translator, tokenizer, capsys):
    short = Translator(translator.decoder, tokenizer, max_source_length=4)
    long = "one two three four five six seven eight nine ten"
    first, _, last = short.n_best([long, "one", long], split="off", **GREEDY)
    assert capsys.readouterr().err == "warning: 2 source(s) were over 4 pieces and were cut\n"
    cut = translator.search_ids([tokenizer.encode([long])[0][:4]], translator.search_options(**GREEDY))
    assert ids_of([first]) == ids_of([last]) == ids_of(cut)
    ((best,),) = translator.n_best(["one"], num_beams=1)
    assert len(best.ids) <= len(tokenizer.encode(["one"])[0]) + 50


def test_a_stream_is_read_a_bounded_number_of_lines_ahead(translator):
    read: list[int] = []

    def watched():
        for number in range(500):
            read.append(number)
            yield "one two" if number % 3 else ""

    lines = watched()
    next(translator.stream(lines, SearchOptions(num_beams=1, max_length=3, batch_size=2)))
    assert len(read) <= 2 * BATCHES_AHEAD
    already = len(read)
    next(translator.stream(lines, SearchOptions(num_beams=1, max_length=3, batch_size=1)))
    assert len(read) == already + 1, "one by one"


def test_one_graph_is_for_all_sizes_and_follows_the_models_weights(tiny_model, tokenizer, translator, monkeypatch):
    traced, encode = list[Any](), type(tiny_model).encode

    def counted(*given):
        traced.append(given)
        return encode(*given)

    monkeypatch.setattr(type(tiny_model), "encode", counted)
    model = type(tiny_model).from_config(tiny_model.get_config())
    following = Translator(model, tokenizer)
    before = following.translate(SENTENCES, **GREEDY)
    model.set_weights(tiny_model.get_weights())
    found = [following.translate(lines, **GREEDY) for lines in (SENTENCES, SENTENCES[:2], ["one"])]
    assert keras.config.backend() != "tensorflow" or len(traced) == 1
    assert found[0] == translator.translate(SENTENCES, **GREEDY) != before
    assert found[1] == found[0][:2] and found[2] == found[0][2:3]


def test_evaluate_counts_and_has_the_figures_of_translations_against_references(translator, monkeypatch):
    result = translator.evaluate(SENTENCES, SENTENCES, SearchOptions(1, max_length=8))
    assert result["sentences"] == len(SENTENCES) and result["beams"] == 1 and result["length_penalty"] == 0.6
    assert result["seconds"] > 0 and result["tokens_per_second"] > 0 and result["split"] == "sentences"
    found = [[Hypothesis(text, 0.0, 0.0)] for text in TRANSLATIONS]
    monkeypatch.setattr(translator, "stream", lambda sources, options: iter(found))
    result = translator.evaluate(["a source"] * len(found), REFERENCES)
    assert quality(TRANSLATIONS, REFERENCES, "13a").items() <= result.items(), "as while training"


def test_options_out_of_range_are_refused():
    temperature, top_p = "temperature must be a number from 1e-6 to 1e6", "top_p must be a number over 0 and at most 1"
    refused: list[tuple[dict[str, Any], str]] = [
        *(({"num_beams": wrong}, "num_beams must be a whole number from 1") for wrong in (0, 2.5, True)),
        ({"n_best": 5}, "n_best must be at most the number of beams, 4; received: 5; ask for fewer"),
        ({"batch_size": 0}, "batch_size must be"), ({"max_length": 0}, "max_length must be a whole number from 1"),
        *(({"length_penalty": wrong}, "length_penalty must be a number from -100 to 100") for wrong in (math.nan, "1")),
        *(({"temperature": wrong}, f"{temperature}; received: {wrong!r}") for wrong in (0.0, math.inf, None)),
        ({"top_p": 0.0}, top_p), ({"top_p": 1.5}, top_p),
        ({"top_k": -1}, "top_k must be a whole number from 0; received: -1"), ({"seed": -1}, "seed must be"),
        ({"split": "fold"}, "split must be 'sentences' or 'lines' or 'off'; received: 'fold'"),
    ]  # fmt: skip
    for options, message in refused:
        with pytest.raises(RequestError, match=f"^{message}"):
            SearchOptions(**options)
    least = SearchOptions(1, np.float32(0.5), 1, 1, False, 1e-6, 0, 1.0, 0, batch_size=1)  # type: ignore[arg-type]
    assert least.length_penalty == 0.5 and SearchOptions(length_penalty=-100, temperature=1e6, n_best=4)


def test_wrong_requests_are_refused(translator, tiny_model, tokenizer):
    refused = [
        (r"expected a list of lines; received one string: .*\['one two'\]", lambda: translator.n_best("one two")),
        ("received 1 sources, 0 targets", lambda: translator.score(["one"], [])),
        ("received 1 sources and 0 references", lambda: translator.evaluate(["one"], [])),
        ("for each line; received 1 prefixes and more lines", lambda: translator.n_best(SENTENCES, ["one"])),
        ("for each line; received 1 lines and more prefixes", lambda: translator.n_best(["one"], SENTENCES)),
    ]
    for message, request in refused:
        with pytest.raises(RequestError, match=message):
            request()
    zeros: list[dict[str, Any]] = [{"max_source_length": 0}, {"sentences_per_line": 0}]
    for zero in zeros:
        with pytest.raises(RequestError, match=f"{[*zero][0]} must be a whole number from 1; received: 0"):
            Translator(tiny_model, tokenizer, **zero)


def test_batches_hold_every_place_once_and_keep_within_their_room():
    lengths = np.random.default_rng(0).integers(0, 500, 200).tolist()
    batches = list(batches_by_length(lengths, 8))
    assert sorted(place for batch in batches for place in batch) == list(range(200))
    for batch in batches:
        longest = max(lengths[place] for place in batch)
        assert len(batch) <= 8 and (len(batch) == 1 or len(batch) * longest <= 8 * TOKENS_PER_SENTENCE)
    assert list(batches_by_length([1, 64, 64], 2)) == [[1, 2], [0]], "the longest first, as many as there is room for"


def test_load_returns_the_translator_of_a_run_and_refuses_what_does_not_belong_together(
    run_folder, translator, other_tokenizer
):  # fmt: skip
    found = load(run_folder, engine="keras")
    assert all(map(np.array_equal, found.model.get_weights(), translator.model.get_weights()))
    assert found.source_tokenizer.model == found.target_tokenizer.model == translator.source_tokenizer.model
    other_tokenizer.save(run_folder / "tokenizer.model")
    with pytest.raises(RequestError, match=r"tokenizer.model has \d+ pieces, but the model of .* has \d+"):
        load(run_folder)
    (run_folder / "tokenizer.model").unlink()
    with pytest.raises(RequestError, match="no tokenizer at .*tokenizer.model"):
        load(run_folder)


def test_probabilities_that_are_not_numbers_are_an_error(translator, monkeypatch):
    decoder = KerasDecoder(translator.model)
    nothing = Found(np.zeros((2, 1, 3), "int32"), np.array([[0.5], [math.nan]], "float32"))
    monkeypatch.setattr(decoder, "search", lambda *_: nothing)
    with pytest.raises(JobError, match="the model's weights hold NaN or infinity"):
        Translator(decoder, translator.source_tokenizer).translate(["two", "dogs"])
