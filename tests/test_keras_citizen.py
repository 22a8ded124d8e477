"""What is true of Keras's layers is true of ours: alone, in a model of one's own, saved, and in a fresh process."""

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import layers, models
from keras_transformer.layers.attention import keys_mask
from keras_transformer.spec import part_registry
from tests.layer_check import array, assert_close, assert_equal, functional, random, randomize
from tests.layers.test_contract import BATCH, CASES, WIDTH, X
from tests.processes import run_python

BLOCK: dict[str, Any] = {"num_heads": 2, "key_dim": 4, "intermediate_dim": 9}
ALL: list[tuple[type[Any], dict[str, Any], tuple[np.ndarray, ...]]] = [*CASES]
ALL += [(layers.Dense, {"units": WIDTH}, (X,)), (layers.Dropout, {"rate": 0.1}, (X,))]
ALL += [(layers.Conv2D, {"filters": 3, "kernel_size": 2}, (random(BATCH, 4, 4, 2),))]
# Those that take and give one sequence of states. The others take images or heads, or put a token before the sequence.
SEQUENTIAL = [(one, settings) for one, settings, inputs in ALL if inputs[0] is X and one is not layers.ClassToken]
ATTENTIONS = [{"name": name, **({} if name == "full" else {"width": 3})} for name in part_registry.SLOTS["attention"]]
LENGTH, IDS = 7, np.random.default_rng(0).integers(4, 20, (8, 7)).astype("int32")
SIZES: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_dim": 32, "intermediate_dim": 64, "dropout": 0.0}
OF_TEXT = [models.Transformer, models.LanguageModel, models.Encoder, models.SequenceEncoder]


def called(layer: Any, x: Any, **more: Any) -> Any:
    """The layer's output for a sequence. What attends to a memory attends to the sequence itself."""
    if isinstance(layer, layers.Residual):
        return layer(x, sublayer=keras.activations.tanh, **more)
    if isinstance(layer, layers.MultiHeadAttention | layers.DecoderBlock):
        return layer(x, x, **more)
    return layer(x, memory=x, **more) if getattr(layer, "has_memory", False) else layer(x, **more)


def made(layer: Any) -> Any:
    called(layer, X)
    randomize(layer)
    return layer


@pytest.mark.parametrize(("layer_class", "settings"), SEQUENTIAL)
def test_a_mask_of_keras_hides_padding_and_goes_on_and_no_row_sees_another(layer_class, settings):
    layer = made(layer_class(**settings))
    padded = keras.layers.Masking()(X * (np.arange(LENGTH) < np.array([[7], [4]]))[..., None])
    found = called(layer, padded)
    assert array(found._keras_mask).sum(axis=1).tolist() == [7, 4]
    assert_close(array(found)[:1], called(layer, X[:1]))
    assert_close(array(found)[1:, :4], called(layer, X[1:, :4]))
    if hasattr(layer, "with_scores") and not getattr(layer, "has_memory", False):
        takes_memory = isinstance(layer, layers.MultiHeadAttention | layers.DecoderBlock)
        assert_close(array(layer.with_scores(padded, *[padded] * takes_memory)[0])[1, :4], array(found)[1, :4])


def steps_of(layer: Any, x: Any) -> Any:
    """What decoding computes of a sequence, position after position, with the sequence as the memory."""
    is_stack, has_memory, outputs = hasattr(layer, "blocks"), hasattr(layer, "cross_attention"), []
    cache = layer.init_cache(x, 1, LENGTH) if is_stack else layer.self_attention.init_cache(BATCH, 1, LENGTH)
    memory = [layer.cross_attention.project_memory(x)] if has_memory else []
    masks = [keys_mask(np.ones((BATCH, LENGTH), bool))] if is_stack or has_memory else []
    for index in range(LENGTH):
        output, cache = layer.step(x[:, index : index + 1], cache, *memory, *masks, ops.convert_to_tensor(index))
        outputs.append(output)
    return ops.concatenate(outputs, axis=1)


@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
@pytest.mark.parametrize("has_memory", [False, True])
@pytest.mark.parametrize("stack", [None, layers.Stack, layers.UniversalStack])
def test_a_decoder_is_causal_by_itself_and_call_is_step(stack, has_memory, attention):
    block, alone = {**BLOCK, "attention": attention}, layers.DecoderBlock if has_memory else layers.CausalBlock
    layer = made(stack(2, block, is_decoder=True, has_memory=has_memory) if stack else alone(**block))
    whole, causal = called(layer, X), layers.causal_mask(LENGTH)
    assert_close(whole, steps_of(layer, ops.convert_to_tensor(X)))
    assert_close(called(layer, X, attention_mask=causal), whole)
    mine = np.broadcast_to(np.arange(LENGTH) != 2, (1, 1, LENGTH))  # hides one position more
    assert_close(called(layer, X, attention_mask=mine), called(layer, X, attention_mask=ops.logical_and(causal, mine)))


@pytest.mark.parametrize("part", [layers.Experts(9, num_experts=3), layers.UniversalStack(2, BLOCK)])
def test_a_loss_of_a_part_reaches_a_model_of_ones_own_once_and_padding_does_not_count(part):
    symbol, short = keras.Input((None,), dtype="int32"), IDS[:, :5]
    model = keras.Model(symbol, part(keras.layers.Embedding(20, 8, mask_zero=True)(symbol)))
    model(short)
    assert model.losses == []
    model(short, training=True)
    (alone,) = map(float, model.losses)
    model(np.pad(short, ((0, 0), (0, 3))), training=True)
    assert alone > 0 and [*map(float, model.losses)] == pytest.approx([alone])
    model.compile("sgd", loss=lambda true, found: 0.0 * ops.mean(found, axis=-1))
    assert model.fit(short, np.zeros((8, 5)), batch_size=8, verbose=0).history["loss"] == pytest.approx([alone])


@keras.saving.register_keras_serializable("tests")
class Head(keras.Model):
    """A head on a model's states."""

    def __init__(self, base: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self.base, self.head = base, keras.layers.Dense(3)

    def call(self, ids: Any) -> Any:
        return self.head(ops.mean(states_of(self.base, ids), axis=1))

    def get_config(self) -> dict[str, Any]:
        return {"base": keras.saving.serialize_keras_object(self.base)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Head":
        return cls(keras.saving.deserialize_keras_object(config["base"]))


def states_of(model: Any, ids: Any) -> Any:
    return model.encode(ids) if isinstance(model, models.Transformer) else model.states(ids)


def test_what_trains_is_saved_and_the_same_in_a_fresh_process(tmp_path):
    """Every layer; and models of one's own on ours: functional ones that take fixed or any lengths, and subclasses."""
    for number, (layer_class, settings, inputs) in enumerate(ALL):
        more = {"sublayer": keras.activations.tanh} if issubclass(layer_class, layers.Residual) else {}
        model = functional(layer_class(**settings), inputs, more)
        randomize(model)
        keep(model, [*inputs], tmp_path / f"{number} {layer_class.__name__}")
    for kind, length in zip(OF_TEXT, (LENGTH, None, LENGTH, None), strict=True):
        base, symbol = kind(20, **SIZES), keras.Input((length,), dtype="int32")
        vectors = base.embed(symbol) if hasattr(base, "embed") else states_of(base, symbol)[:, 0]
        pooled = keras.layers.GlobalAveragePooling1D()(states_of(base, symbol))
        logits = keras.layers.Dense(3)(keras.layers.Concatenate()([pooled, vectors]))
        for model in (keras.Model(symbol, logits), Head(kind(20, **SIZES))):
            before = array(model(IDS))
            model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
            model.train_on_batch(IDS, np.arange(8) % 3)
            assert np.abs(array(model(IDS)) - before).max() > 1e-4
            keep(model, IDS, tmp_path / f"{kind.__name__} {type(model).__name__}")
    run_python(__file__, tmp_path, folder=tmp_path, KERAS_BACKEND=keras.config.backend())


def keep(model: Any, given: Any, path: Path) -> None:
    model.save(path.with_suffix(".keras"))
    arrays = {"input": given} if given is IDS else {f"input {place}": each for place, each in enumerate(given)}
    arrays |= {"output": array(model(given)), "count": np.array(len(model.weights))}
    np.savez(path.with_suffix(".npz"), **arrays)


@pytest.mark.parametrize("dtype", [None, "mixed_bfloat16"])
def test_ids_are_numbers_of_any_kind(dtype):
    """300 is no number of bfloat16, in which such a model computes."""
    ids = np.array([[300, 299, 7], [5, 301, 0]])
    for kind in OF_TEXT:
        model = kind(310, **SIZES, dtype=dtype)
        for number in ("uint16", "int16", "uint32", "int64", "float32", "float64", "uint8", "int8", "bool"):
            given = (ids if number not in ("uint8", "int8", "bool") else ids % 2).astype(number)
            batch, same = (dict.fromkeys(model.takes, each) for each in (given, given.astype("int32")))
            assert_equal(model(batch), model(same))
    places = layers.LearnedPositions(310, 6, dtype=dtype)
    assert all((array(places(ids.astype(number))) == array(places(ids))).all() for number in ("uint16", "float32"))


def test_what_a_model_does_not_take_is_refused_by_a_line_that_tells_what_it_takes():
    for model in (*(kind(20, **SIZES) for kind in OF_TEXT), models.ImageClassifier(2, 4, 2, 1, **SIZES)):
        symbols = model.symbolic_batch()[0].items()
        right: Any = {name: np.zeros([size or 3 for size in one.shape], one.dtype) for name, one in symbols}
        first, x = next(iter(right.items()))
        keys = "', '".join(rf"{name}': '\w+ \(None, .*\)" for name in right)
        takes = rf"`inputs` must be {{'{keys}'}}, numbers of any kind. Received: "
        others = ([*right.values()], {**right, "mask": x}, {**right, first: x[0]}, {**right, first: x.tolist()})
        for other in (*others, {**right, first: x.astype(str)}):
            with pytest.raises(ValueError, match="^" + takes):
                model.taken(other)
        for wrong, told in ((x, r"[\w.]+ \(3, "), ({"input_ids": x}, r"{'input_ids': '[\w.]+ \(3, ")):
            with pytest.raises(ValueError, match=takes + told):
                model(wrong)


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="Keras exports by tf2onnx from TensorFlow alone")
def test_an_onnx_file_by_keras_takes_any_lengths(tmp_path):
    onnxruntime, x = pytest.importorskip("onnxruntime"), X[..., :8]
    symbol = keras.Input((None, 8))
    y = symbol + layers.LearnedPositions(9, 8)(layers.positions_of(symbol))
    for part in part_registry.SLOTS["attention"].values():
        y = part.load()(2, 4)(y, y)
    for layer in (layers.MultiHeadAttention(1, 4), layers.WindowedAttention(1, 4, 3)):
        y = layer(y, y)
    y = layers.MultiHeadAttention(2, 4, num_key_value_heads=1, score="additive")(y, y)
    model = keras.Model(symbol, layers.DecoderBlock(**BLOCK)(y, symbol))
    randomize(model)
    model(x)
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for given in (x, x[:1, :3], np.concatenate([x, x], axis=1)[:, :9]):
        (found,) = session.run(None, {session.get_inputs()[0].name: given})
        assert_close(found, model(given), atol=1e-4)


if __name__ == "__main__":  # the fresh process, which reads what `keep` wrote
    for path in sorted(Path(sys.argv[1]).glob("*.keras")):
        kept, loaded = dict(np.load(path.with_suffix(".npz"))), keras.saving.load_model(path)
        given = kept["input"] if "input" in kept else [kept[f"input {place}"] for place in range(len(kept) - 2)]
        np.testing.assert_array_equal(array(loaded(given)), kept["output"], err_msg=path.stem)
        assert len(loaded.weights) == kept["count"], path.stem
