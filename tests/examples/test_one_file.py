"""The Transformer in one file is the model of the package, weight by weight, and learns."""

import keras
import numpy as np
import pytest

import one_file
from benchmarks.weights import STACKS, arrays_of
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.models import Transformer
from keras_transformer.spec.presets import PRESETS, SIZES
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.text.sentences import Arrays

VOCABULARY_SIZE = 60


def weights_of(ours: Transformer) -> list[np.ndarray]:
    """The weights of our model in the order of the paper's figure: in each block attentions, then feed-forward."""
    arrays, names = arrays_of(ours), ["embeddings"]
    for stack, attentions in STACKS.items():
        for layer in range(ours.num_layers):
            for one in attentions:
                parts = [f"{one}/{part}" for part in ("query", "key", "value", "output")]
                names += [f"{stack}/{layer}/{part}" for part in (*parts, *norm(f"{one}_attention"))]
            parts = ["kernel_in", "bias_in", "kernel_out", "bias_out", *norm("feed_forward")]
            names += [f"{stack}/{layer}/{part}" for part in parts]
    assert arrays.keys() == {*names, "positions", "num_heads"}, "every weight has its place"
    return [arrays[name] for name in names]


def norm(sublayer: str) -> list[str]:
    return [f"{sublayer}/gamma", f"{sublayer}/beta"]


@pytest.fixture(scope="module")
def both() -> tuple[Transformer, one_file.Transformer]:
    """A model of the preset `tiny` with random weights, and the one of the file with the same weights."""
    keras.utils.set_random_seed(4)
    ours = Transformer(VOCABULARY_SIZE, **{name: PRESETS["tiny"][name] for name in SIZES})
    for weight in ours.trainable_variables:  # untrained, biases are zeros and norms ones
        spread = 4.0 if weight.shape[0] == VOCABULARY_SIZE else 1.0
        weight.assign(spread * weight + 0.1 * keras.random.normal(weight.shape))
    theirs = one_file.Transformer(
        VOCABULARY_SIZE, ours.num_layers, ours.hidden_dim, ours.intermediate_dim, ours.num_heads, p_drop=0.3
    )
    theirs((ids([[4, 3]]), ids([[2, 4]])))  # which makes its norms
    theirs.set_weights(weights_of(ours))
    return ours, theirs


def ids(rows: list[list[int]]) -> np.ndarray:
    return np.array([row + [one_file.PAD] * (max(map(len, rows)) - len(row)) for row in rows])


@pytest.fixture(scope="module")
def sources() -> np.ndarray:
    draw = np.random.default_rng(5)
    return ids([[*draw.integers(4, VOCABULARY_SIZE, size=size).tolist(), one_file.END] for size in (1, 9, 4, 9)])


def test_the_logits_are_those_of_the_package(both, sources):
    ours, theirs = both
    targets = np.random.default_rng(6).integers(4, VOCABULARY_SIZE, size=(4, 7))
    targets[:, 0], targets[1, 4:] = one_file.START, one_file.PAD
    expected = keras.ops.convert_to_numpy(ours({"source_ids": sources, "target_ids": targets}))
    found = keras.ops.convert_to_numpy(theirs((sources, targets)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_the_greedy_translations_are_those_of_the_package(both, sources):
    ours, theirs = both
    limits = np.sum(sources != one_file.PAD, axis=1).astype("int32") + 49
    arrays = Arrays(sources.astype("int32"), limits, np.zeros((4, limits.max()), "int32"))
    expected = KerasDecoder(ours).search(arrays, SearchOptions(num_beams=1)).ids[:, 0]
    found = one_file.greedy(theirs, sources)
    lengths = np.sum(expected != one_file.PAD, axis=1)
    assert len(set(lengths)) > 2, "some end by themselves, some at their limit"
    np.testing.assert_array_equal(found, expected[:, : found.shape[1]])
    assert not expected[:, found.shape[1] :].any()


def test_a_short_training_lowers_the_loss(monkeypatch):
    monkeypatch.setattr(one_file, "WARMUP_STEPS", 60)
    keras.utils.set_random_seed(1)
    sentences = [one_file.spelled(number) for number in range(300)]
    assert sentences[121] == (["one", "hundred", "and", "twenty", "one"], ["ein", "hundert", "ein", "und", "zwanzig"])
    words = sorted({word for pair in sentences for side in pair for word in side})
    places = {word: place for place, word in enumerate(words, start=4)}
    sources, targets = (one_file.as_ids(side, places) for side in zip(*sentences, strict=True))
    model = one_file.Transformer(4 + len(words), n=1, d_model=32, d_ff=64)
    losses = list(one_file.train(model, sources, targets, 120, d_model=32))
    assert losses[-1] < 0.6 * losses[0]
