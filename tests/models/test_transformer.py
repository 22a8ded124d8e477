"""The Transformer, with every part of the family: steps, causality, padding, scores, sides, refusals; and presets."""

import math
import random as python_random
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import models
from keras_transformer.layers.compressed import STRIDE, CompressedAttention
from keras_transformer.layers.windowed import LocalAttention
from keras_transformer.models import Transformer, count_parameters
from keras_transformer.spec import model_spec
from keras_transformer.spec.presets import PRESETS
from keras_transformer.spec.search_options import EXTRA_LENGTH
from keras_transformer.tasks.translation.settings import Settings
from tests.graphs import shapes_in_graph
from tests.layer_check import array, assert_close, assert_equal, normalized, random
from tests.models import combinations
from tests.models.combinations import MODELS, model_of
from tests.models.variants import SIZES, beams_of, cached_logits, make_inputs, make_model

INPUTS = make_inputs(target_width=8)  # several windows, blocks and compressed keys
REAL = {side: INPUTS[f"{side}_ids"] != 0 for side in ("source", "target")}
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)


def logits_of(model, inputs=INPUTS):
    return array(model(inputs))


@EVERY_MODEL
def test_steps_padding_the_future_and_other_sentences_change_nothing(name):
    """One pass has every row beside other texts and padding: with the words of two beams, and with a changed word."""
    model, (first, second) = model_of(name), np.moveaxis(beams_of(INPUTS["target_ids"], 2), 1, 0)
    targets = [first, second]
    for position in (1, 6):
        targets.append(first.copy())
        targets[-1][0, position] = (first[0, position] - 3) % 19 + 4
    rows = {"source_ids": np.tile(INPUTS["source_ids"], (4, 1)), "target_ids": np.concatenate(targets)}
    logits = logits_of(model, {side: np.pad(ids, ((0, 1), (0, 3))) for side, ids in rows.items()})
    assert np.isfinite(logits).all(), "of a row of padding alone too"
    whole, of_beam, *others = np.split(logits[:-1, :8], 4)
    for position, other in zip((1, 6), others, strict=True):
        assert_close(other[:, :position], whole[:, :position], atol=1e-6)
        assert (np.abs(other[0, position] - whole[0, position]) > 1e-4).any()
    for row, lengths in ((1, (4, 3)), (2, (1, 2))):
        alone = {side: ids[row : row + 1, :length] for (side, ids), length in zip(INPUTS.items(), lengths, strict=True)}
        assert_close(logits_of(model, alone)[0], whole[row, : lengths[1]], atol=1e-4)
    steps, real = cached_logits(model, INPUTS, num_beams=2), REAL["target"]
    for beam, expected in enumerate((whole, of_beam)):
        assert_close(steps[:, beam][real], expected[real], atol=1e-4)


@EVERY_MODEL
def test_scores_sum_to_1_and_are_0_where_a_key_is_hidden(name):
    model, (source, target) = model_of(name), REAL.values()
    sides = {
        "encoder": (source[:, None, None], source),
        "decoder": (target[:, None, None] & np.tri(8, dtype=bool), target),
        "cross": (source[:, None, None], target),
    }
    for side, scores in model.attention_scores(INPUTS).items():
        (seen, queries), scores = sides[side], array(scores)
        layers = model.encoder_layers if side == "encoder" else model.decoder_layers
        assert scores.shape == (layers, 3, model.num_heads, queries.shape[1], seen.shape[-1])
        assert (np.where(seen, 0, scores) == 0).all()
        for layer, totals in enumerate(scores.sum(-1)):  # (B, N, T)
            of_layer = model.decoder_stack.blocks[layer % len(model.decoder_stack.blocks)].self_attention
            first = STRIDE - 1 if side == "decoder" and isinstance(of_layer, CompressedAttention) else 0
            assert (totals[..., :first] == 0).all(), "no block is over yet"
            totals = np.moveaxis(totals, 1, -1)[:, first:][queries[:, first:]]
            assert_close(totals, np.ones_like(totals))


@pytest.mark.parametrize("name", ["unlike sides", "untied", *list(combinations.COMBINATIONS)[:2]])
def test_every_weight_exists_before_the_first_call_and_is_used(name):
    tf = pytest.importorskip("tensorflow")
    model = combinations.make_model(name)
    paths = [weight.path for weight in model.weights]
    with tf.GradientTape() as tape:
        loss = ops.mean(model(INPUTS, training=True) * random(3, 8, 23))
    assert [weight.path for weight in model.trainable_weights] == paths
    for path, slope in zip(paths, tape.gradient(loss, [weight.value for weight in model.weights]), strict=True):
        slope = array(tf.convert_to_tensor(slope))
        assert np.isfinite(slope).all(), path
        # A bias of keys adds the same to all logits of a query, which does not change their softmax.
        assert slope.any() or path.endswith("/key_bias"), path


@pytest.mark.parametrize(
    ("name", "dtype", "most"),
    [*((name, "float16", 0.01) for name in combinations.COMBINATIONS), ("learned", "bfloat16", 0.05)],
)
def test_mixed_precision_is_near(name, dtype, most):
    model, real = combinations.make_model(name, dtype=f"mixed_{dtype}"), REAL["target"]
    expected, logits = logits_of(model_of(name)), model(INPUTS)
    assert keras.backend.standardize_dtype(logits.dtype) == dtype
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    steps = cached_logits(model, INPUTS, 1)[:, 0] if name == "learned" else logits
    for each in (array(logits), array(steps)):
        assert np.abs(each - expected)[real].mean() < most * np.abs(expected[real]).mean()


@pytest.mark.parametrize("positions", ["none", "rotary", "sinusoidal"])
def test_only_without_positions_the_encoder_knows_no_order(positions):
    model = make_model(positions=positions, num_layers=1, max_source_length=40)
    ids, order = np.array([[5, 6, 7, 8, 9, 3]]), [0, 3, 1, 5, 4, 2]
    difference = np.abs(array(model.encode(ids[:, order])) - array(model.encode(ids))[:, order]).max()
    assert difference < 1e-5 if positions == "none" else difference > 1e-2
    # Of the decoder, the last query sees the same keys in another order.
    targets = [np.array([[2, 5, 6, 7]]), np.array([[2, 6, 5, 7]])]
    scores = [model.attention_scores({"source_ids": ids, "target_ids": each})["decoder"] for each in targets]
    last = [np.sort(array(each)[..., -1, :]) for each in scores]
    assert np.allclose(last[0], last[1], atol=1e-5) == (positions == "none")


@pytest.mark.parametrize(
    ("positions", "embedding_norm", "scale"),
    [
        ({"name": "sinusoidal", "offset": 2}, False, 0.5),
        ({"name": "learned", "offset": 2, "separate": True}, True, None),
    ],
)
def test_the_input_of_the_stacks_is_the_papers_sum(positions, embedding_norm, scale):
    """On both sides the sum of scaled embedding and position, and if `embedding_norm` is set, the norm of the sum."""
    options = {"embedding_scale": scale, "embedding_norm": embedding_norm, "source_vocabulary_size": 29}
    model = make_model(positions=positions, num_layers=1, **options)
    if positions["name"] == "learned":  # they reach as far as a translation may, whatever the offset
        assert model.positions.max_length == model.max_source_length + EXTRA_LENGTH
        assert model.positions.embeddings.shape[0] == model.positions.max_length + 2
    for side, ids in (("source", INPUTS["source_ids"]), ("target", INPUTS["target_ids"])):
        places = array(model.positions(np.arange(ids.shape[1])))
        if side == "target" and positions.get("separate"):
            places = model.positions.get_weights()[1][2 : 2 + ids.shape[1]]
        rows = array(getattr(model, f"{side}_embedding").embeddings)[ids]
        expected = rows * (12**0.5 if scale is None else scale) + places
        if embedding_norm:
            expected = normalized(expected, *getattr(model, f"{side}_norm").get_weights())
        x, *_ = model._encoder_inputs(ids) if side == "source" else model._decoder_inputs(ids)
        assert_close(x, expected, atol=1e-4)


def test_half_of_an_embedding_is_dropped_and_the_rest_doubled():
    """Dropout acts on the sums of embedding and position (paper, 5.4), in training alone."""
    model = make_model(dropout=0.5, num_layers=1)
    for side, ids in (("encoder", INPUTS["source_ids"]), ("decoder", INPUTS["target_ids"])):
        plain, dropped = (array(getattr(model, f"_{side}_inputs")(ids, training)[0]) for training in (False, True))
        assert np.mean(dropped == 0) == pytest.approx(0.5, abs=0.15)
        assert_close(dropped[dropped != 0], 2 * plain[dropped != 0])
    assert np.abs(array(model(INPUTS, training=True)) - logits_of(model)).max() > 0.1


@pytest.mark.parametrize("tied", [True, False])
def test_an_output_bias_is_added_to_the_logits_and_an_untied_output_leaves_the_embedding_alone(tied):
    model, inputs = make_model(output_bias=True, tied_output=tied, num_layers=1), make_inputs(target_width=3)
    states, whole = array(model.encode(inputs["source_ids"])), logits_of(model, inputs)
    bias = model.output_embedding.bias
    assert bias is not None
    bias.assign(bias + np.arange(23, dtype="float32"))
    assert_close(logits_of(model, inputs), whole + np.arange(23), atol=1e-3)
    model.output_embedding.embeddings.assign(0 * model.output_embedding.embeddings)
    assert np.array_equal(array(model.encode(inputs["source_ids"])), states) != tied
    for logits in (logits_of(model, inputs), cached_logits(model, inputs, 1)[:, 0]):
        assert_equal(logits, np.broadcast_to(array(bias), whole.shape))


def test_each_side_has_its_window_and_compressed_attention_is_local_in_turn():
    """A window is centred in the encoder, and ends at the position in the decoder."""
    scores = make_model(attention={"name": "windowed", "width": 3}, num_layers=1).attention_scores(INPUTS)
    for side, before, after in (("encoder", 1, 1), ("decoder", 2, 0)):
        seen = array(scores[side])[:, 0].max(axis=(0, 1)) > 0  # (S, S) of the first, full sentence
        distances = np.arange(len(seen)) - np.arange(len(seen))[:, None]
        assert_equal(seen, (distances >= -before) & (distances <= after))
    model = Transformer(**SIZES, decoder_layers=3, decoder_attention={"name": "compressed", "width": 2})
    blocks = model.decoder_stack.blocks
    assert [type(block.self_attention) for block in blocks] == [LocalAttention, CompressedAttention, LocalAttention]


@pytest.mark.parametrize(
    ("of_encoder", "of_decoder", "positions"), [("windowed", "local", "buckets"), ("compressed", "compressed", "none")]
)
def test_no_tensor_of_a_step_of_training_has_all_pairs_of_positions(of_encoder, of_decoder, positions):
    """Neither a bias nor a mask. Compressed attention has a third of all pairs for each head."""
    tf = pytest.importorskip("tensorflow")
    parts: dict[str, Any] = {"attention": {"name": of_encoder, "width": 4}, "positions": positions}
    parts |= {"decoder_attention": {"name": of_decoder, "width": 4}}
    # The first layer with compressed attention is a local one.
    model = make_model(**parts, num_layers=2 if of_encoder == "compressed" else 1)
    sizes = {"source_ids": 211, "target_ids": 223}  # no other sizes of the model

    def gradients(ids):
        with tf.GradientTape() as tape:
            loss = ops.sum(model(ids, training=True))
        return tape.gradient(loss, model.trainable_variables)

    shapes = shapes_in_graph(gradients, {name: np.ones((1, size), "int32") for name, size in sizes.items()})
    for size in sizes.values():
        assert any(size in shape for shape in shapes)
        assert not [shape for shape in shapes if shape.count(size) > 1]
    of_one_side = [shape for shape in shapes if not {211, 223} <= set(shape)]
    assert of_encoder == "compressed" or max(map(math.prod, of_one_side)) < 211**2


def test_what_is_not_allowed_is_refused():
    """Which arguments contradict each other is in `test_family.py`."""
    with pytest.raises(ValueError, match="^`hidden_dim` must be even for a universal stack. Received: hidden_dim=9$"):
        Transformer(**{**SIZES, "hidden_dim": 9, "positions": "learned", "stack": "universal"})
    for make in (models.make_model, count_parameters):
        with pytest.raises(ValueError, match="^`kind` must be one of .*. Received: kind='painter'$"):
            make({**SIZES, "kind": "painter"})


# Rate of dropout, steps of training, and parameters (table 3).
TABLE_3 = {"base": (0.1, 100_000, 63_045_632), "big": (0.3, 300_000, 214_171_648)}


def test_the_papers_models_and_how_they_were_trained():
    """Their sizes count the parameters."""
    for name, row in TABLE_3.items():
        settings: dict[str, Any] = Settings(**PRESETS[name]).as_dict()
        sizes = {key: PRESETS[name][key] for key in SIZES}
        assert row == (settings["dropout"], settings["steps"], count_parameters(sizes))
        paper: dict[str, Any] = {"num_heads": settings["hidden_dim"] // 64, "token_budget": 25_000}
        paper |= {"vocabulary_size": 37_000, "tied_output": True}
        paper |= {"warmup_steps": 4_000, "label_smoothing": 0.1, "residual": "post_norm", "positions": "sinusoidal"}
        assert settings.items() >= paper.items()
    default = model_spec.complete({"vocabulary_size": 37_000, "attention_dropout": 0.5})
    state = python_random.getstate()
    assert default.items() >= {key: PRESETS["base"][key] for key in SIZES}.items(), "base is the default"
    assert count_parameters(default) == TABLE_3["base"][-1]
    assert python_random.getstate() == state, "no seed is drawn, or the same seed would give other weights afterwards"


def test_a_model_that_no_memory_holds_is_counted_and_never_made():
    sizes = {"vocabulary_size": 4_000_000, "hidden_dim": 65_536, "num_layers": 1}
    assert count_parameters(sizes) > 4_000_000 * 65_536
    with keras.StatelessScope():
        pass  # behind it Keras fills all weights that it still has to fill
