"""The Transformer in one file is the model of the package, weight by weight, and learns."""

import keras
import numpy as np
import pytest

import one_file
from keras_transformer.decoding.keras_decoder import KerasDecoder
from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.decoding.sentences import Arrays
from keras_transformer.making import PRESETS, SIZES
from keras_transformer.models import Transformer

VOCABULARY_SIZE, MAX_LENGTH = 60, 70


def weights_of(ours: Transformer) -> list[keras.Variable]:
    """The weights of our model in the order of the paper's figure: first a block's attentions, then feed-forward."""

    def of_attention(layer, add_and_norm) -> list:
        kernels = (layer.query_kernel, layer.key_kernel, layer.value_kernel, layer.output_kernel)
        return [*kernels, *add_and_norm.norm.weights]

    def of_block(block) -> list:
        names = [name for name in ("self_attention", "cross_attention") if hasattr(block, name)]
        attentions = [of_attention(getattr(block, name), getattr(block, f"{name}_residual")) for name in names]
        last = block.feed_forward
        products = (last.kernel_in, last.bias_in, last.kernel_out, last.bias_out)
        return [*sum(attentions, []), *products, *block.feed_forward_residual.norm.weights]

    blocks = [*ours.encoder_stack.blocks, *ours.decoder_stack.blocks]
    found = [ours.target_embedding.embeddings, *(weight for block in blocks for weight in of_block(block))]
    assert {id(weight) for weight in found} == {id(weight) for weight in ours.weights}, "every weight has its place"
    return found


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
    theirs((ids([[4, 3]]), ids([[2]])))
    for mine, weight in zip(theirs.weights, weights_of(ours), strict=True):
        mine.assign(weight)
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
