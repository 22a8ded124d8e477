"""Subword sampling draws segmentations as often as its papers say, and never changes the text."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.text.sampling import SubwordSampler
from keras_transformer.text.tokenizer import UNKNOWN, Tokenizer


def test_without_chance_the_segmentation_is_the_tokenizers(tokenizer, lines) -> None:
    """Unigram: a high power leaves the best segmentation alone; BPE: no merge is passed over."""
    lines = [*lines, "", "bada 你好 gögo", "你好", "bada你", "<s> </s>"]
    sampler = SubwordSampler(tokenizer, 0 if tokenizer.model_type == "bpe" else 1000, "1")
    assert [sampler.sample(line) for line in lines] == tokenizer.encode(lines)


def test_any_segmentation_spells_the_line(tokenizer, lines) -> None:
    sampler = SubwordSampler(tokenizer, 0.1, "1")
    sampled = [sampler.sample(line) for line in lines]
    assert tokenizer.decode(sampled) == lines
    assert sampled != tokenizer.encode(lines)
    assert sampler.sample("你好世界").count(UNKNOWN) == 1, "a run of unknown characters is one id"


@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_any_text_can_be_sampled(unigram, text) -> None:
    ids = SubwordSampler(unigram, 0.2, "1").sample(text)
    assert not {0, 2, 3} & set(ids)
    assert bool(ids) == bool(unigram.encode([text])[0])
    assert unigram.decode([ids]) == unigram.decode(unigram.encode([text]))


def test_a_seed_repeats_in_another_process(unigram, lines, tmp_path, run_program) -> None:
    unigram.save(tmp_path / "tokenizer.model")
    (tmp_path / "lines").write_text("\n".join(lines[:20]), encoding="utf-8")
    printed = run_program("sampled_ids", tmp_path / "tokenizer.model", tmp_path / "lines", "7").stdout.strip()
    here, other = (SubwordSampler(unigram, 0.1, seed) for seed in ("7", "8"))
    assert printed == str([here.sample(line) for line in lines[:20]])
    assert printed != str([other.sample(line) for line in lines[:20]])


def test_unigram_draws_by_probability() -> None:
    """Held to all segmentations of a word, one by one."""
    generator, alpha, word = random.Random(1), 0.3, "abacab"
    lines = ["".join(generator.choices("abc", k=8)) for _ in range(200)]
    sampler = SubwordSampler(Tokenizer.train(lines, 40), alpha, "1")

    def segmentations(rest: str) -> list[list[str]]:
        if not rest:
            return [[]]
        heads = [rest[:end] for end in range(1, len(rest) + 1) if rest[:end] in sampler._ids]
        return [[head, *tail] for head in heads for tail in segmentations(rest[len(head) :])]

    possible = segmentations(f"▁{word}")
    weights = [math.exp(alpha * sum(sampler._scores[piece] for piece in pieces)) for pieces in possible]
    assert len(possible) > 5
    draws = 20_000
    counts = Counter(tuple(sampler.sample(word)) for _ in range(draws))
    for pieces, weight in zip(possible, weights, strict=True):
        expected = weight / sum(weights)
        found = counts.pop(tuple(sampler._ids[piece] for piece in pieces), 0) / draws
        assert found == pytest.approx(expected, abs=5 * math.sqrt(expected / draws) + 1e-4)
    assert not counts


def test_bpe_passes_over_merges_as_often_as_told(lines) -> None:
    tokenizer = Tokenizer.train(lines, 200, "bpe")
    lengths = []
    for alpha in (0.0, 0.1, 0.5, 1.0):
        sampler = SubwordSampler(tokenizer, alpha, "1")
        lengths.append(sum(len(sampler.sample(line)) for line in lines[:100]))
    assert lengths == sorted(set(lengths))
    assert lengths[-1] == sum(len(tokenizer.normalize(line)) for line in lines[:100])  # characters alone
