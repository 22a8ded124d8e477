"""Text to text with a small untrained model whose beliefs are strong enough to choose between."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding.compiling import in_bucket
from keras_transformer.decoding.decoder import Found
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.decoding.sentences import PIECES_PER_SENTENCE, batches_by_length
from keras_transformer.decoding.translator import BATCHES_AHEAD, Hypothesis, SearchOptions, Translator, load
from keras_transformer.errors import JobError, RequestError
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.lines import is_blank
from keras_transformer.text.tokenizer import END, START, UNKNOWN
from tests.sacrebleu_command import REFERENCES, TRANSLATIONS, sacrebleu_command

pytest_plugins = ["tests.tiny_run"]

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = ["to the sea", "seven hundred and two", "one", "a dog and a cat run along the beach", "two dogs"]


def test_every_line_has_one_translation_in_its_place(translator):
    lines = ["", *SENTENCES, " \t ", "\0\x07", *reversed(SENTENCES), "\u200b"]
    texts = translator.translate(lines)
    assert len(texts) == len(lines)
    assert [texts[place] for place in (0, 6, 7, 13)] == [""] * 4
    assert texts[1:6] == texts[8:13][::-1]
    assert all("\n" not in text and "\r" not in text for text in texts)
    assert translator.translate([]) == []


def test_a_blank_line_has_one_empty_hypothesis_with_score_zero(translator):
    hypotheses = translator.n_best(["", SENTENCES[0]], n_best=3)
    assert hypotheses[0] == [Hypothesis("", 0.0, 0.0, (END,), ())]
    assert len(hypotheses[1]) == 3


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_line_translates_the_same_alone_and_in_any_batch(translator, num_beams):
    together = translator.n_best(SENTENCES, num_beams=num_beams, n_best=num_beams)
    for batch_size in (1, 2):
        apart = translator.n_best(SENTENCES, num_beams=num_beams, n_best=num_beams, batch_size=batch_size)
        for some, same in zip(together, apart, strict=True):
            assert [one.ids for one in some] == [one.ids for one in same]
            np.testing.assert_allclose([one.score for one in some], [one.score for one in same], atol=1e-4)


def test_n_best_lists_are_sorted_distinct_and_begin_with_the_translation(translator):
    lists = translator.n_best(SENTENCES, n_best=4)
    for hypotheses in lists:
        scores = [one.score for one in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({one.ids for one in hypotheses}) == 4
    assert [hypotheses[0].text for hypotheses in lists] == translator.translate(SENTENCES)


def log_prob_by_the_model(translator, source, ids):
    """log P of the emitted ids in teacher forcing."""
    source_ids = translator.source_tokenizer.encode([source])[0]
    inputs = {"source_ids": np.array([[*source_ids, END]]), "target_ids": np.array([[START, *ids[:-1]]])}
    log_probs = ops.convert_to_numpy(ops.log_softmax(translator.model(inputs)))[0]
    return sum(log_probs[place, id] for place, id in enumerate(ids))


@pytest.mark.parametrize("options", [{}, {"num_beams": 1}, {"sampling": True, "temperature": 0.5, "top_k": 5}])
def test_log_probabilities_are_the_models_own(translator, options):
    for source, hypotheses in zip(SENTENCES, translator.n_best(SENTENCES, **options), strict=True):
        for one in hypotheses:
            expected = log_prob_by_the_model(translator, source, one.ids)
            assert one.log_prob == pytest.approx(expected, abs=1e-3)
            assert one.score == pytest.approx(one.log_prob / ((5 + len(one.ids)) / 6) ** 0.6, abs=1e-5)


def test_score_is_the_models_log_probability_of_a_text_and_its_end(translator):
    targets = ["the sea", "", "one two three four five six"]
    scores = translator.score(SENTENCES[:3], targets, batch_size=2)
    for source, target, score in zip(SENTENCES, targets, scores, strict=False):
        ids = [*translator.target_tokenizer.encode([target])[0], END]
        assert score.num_tokens == len(ids)
        assert score.log_prob == pytest.approx(log_prob_by_the_model(translator, source, ids), abs=1e-3)
        assert score.perplexity == pytest.approx(math.exp(-score.log_prob / len(ids)))
    assert translator.score([], []) == []
    with pytest.raises(RequestError, match="received 1 sources, 0 targets"):
        translator.score(["one"], [])


def test_the_length_of_a_translation_is_bounded(translator):
    ids = [hypotheses[0].ids for hypotheses in translator.n_best(SENTENCES)]
    pieces = translator.source_tokenizer.encode(SENTENCES)
    assert all(len(y) <= len(x) + 50 for x, y in zip(pieces, ids, strict=True))
    shorter = translator.n_best(SENTENCES, max_length=3, n_best=2)
    assert all(len(one.ids) <= 3 for hypotheses in shorter for one in hypotheses)


def test_a_prefix_holds_line_by_line(translator):
    prefixes = ["one two", "", "the", "", "dogs run"]
    lists = translator.n_best(SENTENCES, prefixes=prefixes, n_best=2)
    free = translator.n_best(SENTENCES, n_best=2)
    for prefix, hypotheses, other in zip(prefixes, lists, free, strict=True):
        assert all(one.text.startswith(prefix) for one in hypotheses)
        if not prefix:
            assert [one.ids for one in hypotheses] == [one.ids for one in other]


def test_long_prefixes_are_cut_with_a_count(translator, capsys):
    translator.n_best(SENTENCES[:3], prefixes=["one " * 200, "one", "two " * 200], max_length=5, num_beams=1)
    longest = translator.max_source_length
    assert capsys.readouterr().err == f"warning: 2 prefix(es) were over {longest} pieces and were cut\n"


def test_a_prefix_never_forces_the_unknown_piece(translator):
    for hypotheses in translator.n_best(SENTENCES[:1], prefixes=["one 龍 two"], n_best=2):
        assert all(UNKNOWN not in one.ids and one.text.startswith("one") for one in hypotheses)


@pytest.mark.parametrize("prefixes", [["one"], ["one", "two", "three"]])
def test_prefixes_must_be_as_many_as_lines(translator, prefixes):
    with pytest.raises(RequestError, match="expected a prefix, which may be blank, for each line; received"):
        translator.n_best(SENTENCES[:2], prefixes=prefixes)


def test_sampling_repeats_by_seed_whatever_the_batch(translator):
    options = {"sampling": True, "n_best": 3}
    drawn = translator.n_best(SENTENCES, seed=5, **options)
    ids = [[one.ids for one in hypotheses] for hypotheses in drawn]
    alone = translator.n_best(SENTENCES, seed=5, batch_size=1, **options)
    assert [[one.ids for one in hypotheses] for hypotheses in alone] == ids
    other = translator.n_best(SENTENCES, seed=6, **options)
    assert [[one.ids for one in hypotheses] for hypotheses in other] != ids
    assert len({one.ids for one in drawn[3]}) == 3


def test_the_likeliest_piece_alone_is_greedy_search(translator):
    drawn = translator.n_best(SENTENCES, sampling=True, top_k=1)
    greedy = translator.n_best(SENTENCES, num_beams=1)
    assert [one[0].ids for one in drawn] == [one[0].ids for one in greedy]


def test_further_control_ids_of_the_model_are_never_emitted(tokenizer):
    model = Transformer(
        tokenizer.vocabulary_size, 1, 2, 16, 16, max_source_length=20, num_control_ids=9, output_bias=True
    )
    bias = np.zeros(tokenizer.vocabulary_size, "float32")
    bias[4:9] = 50
    output: Any = model.output_embedding
    output.bias.assign(bias)
    translator = Translator(model, tokenizer)
    every_search: list[dict[str, Any]] = [
        {"num_beams": 1},
        {"num_beams": 4, "n_best": 4},
        {"sampling": True, "n_best": 5},
    ]
    for options in every_search:
        found = [
            hypothesis.ids for some in translator.n_best(["one", "two"], max_length=5, **options) for hypothesis in some
        ]
        assert len(found) == 2 * options.get("n_best", 1)
        assert all(id == END or id >= 9 for ids in found for id in ids), options


def test_alignments_follow_the_attention_of_the_last_block_but_one(translator):
    (best,), *_ = translator.n_best(SENTENCES, alignments=True)
    source = translator.source_tokenizer.encode(SENTENCES[:1])[0]
    pieces = [id for id in best.ids if id != END]
    inputs = {"source_ids": np.array([[*source, END]]), "target_ids": np.array([[START, *pieces]])}
    cross = ops.convert_to_numpy(translator.model.attention_scores(inputs)["cross"])
    weights = cross[-2, 0].mean(axis=0)[: len(pieces), : len(source)]
    assert best.alignment == tuple((int(place), row) for row, place in enumerate(weights.argmax(axis=-1)))


def test_a_long_source_is_cut_with_a_warning(tiny_model, tokenizer, capsys):
    short = Translator(tiny_model, tokenizer, max_source_length=4)
    long = "one two three four five six seven eight nine ten"
    ids = tokenizer.encode([long])[0]
    assert len(ids) > 4
    hypotheses = short.n_best([long, "one", long], num_beams=1, split="off")
    assert capsys.readouterr().err == "warning: 2 source(s) were over 4 pieces and were cut\n"
    assert len(hypotheses) == 3 and hypotheses[0][0].ids == hypotheses[2][0].ids
    assert len(hypotheses[0][0].ids) <= 4 + 50
    short.score([long], ["one"])
    assert "1 source(s) were over 4 pieces" in capsys.readouterr().err


def test_a_stream_is_read_a_bounded_number_of_lines_ahead(translator):
    read = []

    def lines():
        for number in range(500):
            read.append(number)
            yield "one two" if number % 3 else ""

    stream = translator.stream(lines(), SearchOptions(num_beams=1, max_length=3, batch_size=2))
    next(stream)
    assert len(read) <= 2 * BATCHES_AHEAD
    stream.close()
    read.clear()
    stream = translator.stream(lines(), SearchOptions(num_beams=1, max_length=3, batch_size=1))
    for answered in range(1, 4):
        next(stream)
        assert len(read) == answered


def count_traces(model, monkeypatch):
    """A list that grows by one whenever a function of the model is traced."""
    traces: list[None] = []
    encode = model.encode

    def counted(self, *inputs):
        traces.append(None)
        return encode(*inputs)

    monkeypatch.setattr(type(model), "encode", counted)
    return traces


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="the graphs are TensorFlow's")
def test_graphs_are_traced_once_for_all_sizes(tiny_model, tokenizer, monkeypatch):
    traces = count_traces(tiny_model, monkeypatch)
    translator = Translator(tiny_model, tokenizer)
    for lines in (SENTENCES[:2], SENTENCES, ["one"]):
        translator.translate(lines, num_beams=1)
    assert len(traces) == 1


@pytest.mark.skipif(keras.config.backend() != "jax", reason="the buckets are JAX's")
def test_jax_compiles_once_for_each_bucket(tiny_model, tokenizer, monkeypatch):
    traces = count_traces(tiny_model, monkeypatch)
    translator = Translator(tiny_model, tokenizer)
    batches = [["one two"[: 1 + width % 7]] * (5 + rows) for width in range(7) for rows in range(4)]
    for lines in batches:
        translator.translate(lines, num_beams=2)
    assert len({len(tokenizer.encode(lines[:1])[0]) for lines in batches}) > 3
    assert len(traces) == 1
    translator.translate(["one"], num_beams=2)
    assert len(traces) == 2


def test_a_translator_follows_its_models_weights(tiny_model, tokenizer):
    model = type(tiny_model).from_config(tiny_model.get_config())
    translator = Translator(model, tokenizer)
    before = translator.score(SENTENCES, SENTENCES)
    model.set_weights(tiny_model.get_weights())
    after = translator.score(SENTENCES, SENTENCES)
    assert before != after
    assert after == Translator(tiny_model, tokenizer).score(SENTENCES, SENTENCES)


@pytest.mark.parametrize("shape", [(1,), (5,), (64,), (1, 1), (3, 17), (5, 2, 40)])
def test_buckets_add_rows_and_columns_of_zeros(shape):
    array = np.ones(shape, "int32")
    wide = in_bucket(array)
    assert len(wide) in (1, 4, 8, 64)
    assert len(shape) == 1 or wide.shape[-1] in (16, 32, 64)
    assert wide.shape[1:-1] == shape[1:-1] and wide.sum() == array.sum()
    np.testing.assert_array_equal(wide[tuple(map(slice, shape))], array)


@pytest.mark.parity
@pytest.mark.long
def test_buckets_change_nothing_on_jax(run_in_backend):
    some = "jax_compiles or weights or alone_and or log_probability_of or seed or alignments"
    code = f"""
        import sys
        import pytest
        sys.stdout = sys.stderr
        sys.exit(pytest.main(["-x", "-p", "no:cacheprovider", "--rootdir={ROOT}", "-k", {some!r}, {__file__!r}]))
    """
    run_in_backend(code, "jax", timeout=1200)


def test_evaluate_counts_and_signs(translator):
    references = translator.translate(SENTENCES)
    result = translator.evaluate(SENTENCES, references)
    assert result["bleu"] == pytest.approx(100) and result["chrf"] == pytest.approx(100)
    assert "tok:13a" in result["bleu_signature"] and "case:mixed" in result["bleu_signature"]
    assert "eff:yes" in result["bleu_signature"], "as while training"
    assert result["sentences"] == len(SENTENCES) and result["beams"] == 4 and result["length_penalty"] == 0.6
    assert result["seconds"] > 0 and result["tokens_per_second"] > 0
    with pytest.raises(RequestError, match="received 5 sources and 4 references"):
        translator.evaluate(SENTENCES, references[1:])


def test_evaluate_has_the_figures_of_sacrebleus_command(translator, monkeypatch, tmp_path):
    """Of translations and references whose figures change if the two are swapped."""
    found = [[Hypothesis(text, 0.0, 0.0)] for text in TRANSLATIONS]
    monkeypatch.setattr(translator, "stream", lambda sources, options: iter(found))
    result = translator.evaluate(["a source"] * len(found), REFERENCES)
    figures = sacrebleu_command(tmp_path, TRANSLATIONS, REFERENCES)
    assert (result["bleu"], result["chrf"]) == pytest.approx(figures, abs=1e-5)
    swapped = sacrebleu_command(tmp_path, REFERENCES, TRANSLATIONS)
    assert min(abs(one - other) for one, other in zip(figures, swapped, strict=True)) > 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_beams": 0}, "num_beams must be a whole number from 1; received: 0"),
        ({"num_beams": 2.5}, "num_beams must be a whole number from 1; received: 2.5"),
        ({"n_best": 5}, "n_best must be at most the number of beams, 4; received: 5; ask for fewer"),
        ({"n_best": -1}, "n_best must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"max_length": 0}, "max_length must be a whole number from 1; received: 0"),
        ({"length_penalty": math.nan}, "length_penalty must be a number from -100 to 100; received: nan"),
        ({"temperature": 0.0}, "temperature must be a number from 1e-6 to 1e6; received: 0.0"),
        ({"temperature": math.inf}, "temperature must be"),
        ({"top_p": 0.0}, "top_p must be a number over 0 and at most 1; received: 0.0"),
        ({"top_p": 1.5}, "top_p must be"),
        ({"length_penalty": "0.6"}, "length_penalty must be a number from -100 to 100; received: '0.6'"),
        ({"temperature": None}, "temperature must be a number from 1e-6 to 1e6; received: None"),
        ({"top_k": -1}, "top_k must be a whole number from 0; received: -1"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(RequestError, match=message.replace("(", r"\(")):
        SearchOptions(**options)
    assert SearchOptions(length_penalty=np.float32(0.5)).length_penalty == 0.5  # type: ignore[arg-type]


def test_one_string_has_one_translation(translator):
    assert translator.translate(SENTENCES[1]) == translator.translate(SENTENCES)[1]
    assert translator.translate("") == ""


def test_what_is_printed_of_a_translator_and_of_a_score_tells_what_they_are(translator, tiny_model):
    shown = repr(translator)
    assert f"{tiny_model.count_params():,} parameters" in shown
    assert f"vocabulary {tiny_model.vocabulary_size}, sources of up to 40 pieces" in shown
    (score,) = translator.score(["one"], ["two"])
    assert repr(score) == f"Score(log_prob={score.log_prob:.4f}, num_tokens=2, perplexity={score.perplexity:.4g})"


def test_one_string_is_not_a_list_of_lines(translator):
    with pytest.raises(RequestError, match=r"expected a list of lines; received one string: .*\['one two'\]"):
        translator.n_best("one two")


@pytest.mark.parametrize("length", [0, -1, 1.5])
def test_the_source_length_must_be_positive(tiny_model, tokenizer, length):
    with pytest.raises(RequestError, match="max_source_length must be a whole number from 1"):
        Translator(tiny_model, tokenizer, max_source_length=length)


def test_blank_lines():
    assert all(map(is_blank, ["", " ", "\t\r", "\0\x1b", "\u3000\u200b", "\ufeff"]))
    assert not any(map(is_blank, ["a", " .", "\0x", "龍", "\ufffd"]))


def test_batches_hold_every_place_once_and_keep_within_their_room():
    lengths = np.random.default_rng(0).integers(0, 500, 200).tolist()
    batches = list(batches_by_length(lengths, 8))
    assert sorted(place for batch in batches for place in batch) == list(range(200))
    for batch in batches:
        longest = max(lengths[place] for place in batch)
        assert len(batch) == 1 or len(batch) * longest <= 8 * PIECES_PER_SENTENCE
        assert len(batch) <= 8
    assert list(batches_by_length([], 8)) == []
    assert list(batches_by_length([10_000, 3], 8)) == [[0], [1]]


def test_load_returns_the_translator_of_a_run(run_folder, translator):
    assert load(run_folder).translate(SENTENCES, num_beams=1) == translator.translate(SENTENCES, num_beams=1)


def test_load_refuses_what_does_not_belong_together(run_folder, other_tokenizer):
    other_tokenizer.save(run_folder / "tokenizer.model")
    with pytest.raises(RequestError, match=r"tokenizer.model has \d+ pieces, but the model of .* has \d+"):
        load(run_folder)
    (run_folder / "tokenizer.model").unlink()
    with pytest.raises(RequestError, match="no tokenizer at .*tokenizer.model"):
        load(run_folder)


def test_a_run_with_a_vocabulary_for_each_language(tmp_path, tokenizer, other_tokenizer):
    from keras_transformer import run_folder as runs
    from keras_transformer.models import model_config

    source_size = tokenizer.vocabulary_size
    model = Transformer(other_tokenizer.vocabulary_size, 1, 2, 16, 32, source_vocabulary_size=source_size)
    run = runs.RunFolder(tmp_path)
    for path, one in zip(run.tokenizers(separate=True), (tokenizer, other_tokenizer), strict=True):
        one.save(path)
    runs.write_config(run, {"model": model_config(model), "settings": {}})
    runs.save_model(run, model)
    hypotheses = load(tmp_path).n_best(["one two"], prefixes=["the"], max_length=4, num_beams=1)
    assert hypotheses[0][0].ids[:1] == tuple(other_tokenizer.encode(["the"])[0][:1])


def test_probabilities_that_are_not_numbers_are_an_error(translator, monkeypatch):
    decoder = KerasDecoder(translator.model)
    nothing = Found(np.zeros((2, 1, 3), "int32"), np.array([[0.5], [math.nan]], "float32"))
    monkeypatch.setattr(decoder, "search", lambda *_: nothing)
    with pytest.raises(JobError, match="the model's weights hold NaN or infinity"):
        Translator(decoder, translator.source_tokenizer).translate(["two", "dogs"])
