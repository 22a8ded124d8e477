"""What is true of a layer and a model of Keras is true of ours: alone, in a model of one's own, saved, and loaded."""

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import family, layers, models
from keras_transformer.layers.attention_ops import keys_mask
from tests.layer_check import array, assert_close, assert_equal, functional, random, randomize
from tests.layers.test_contract import BATCH, CASES, WIDTH, X

BLOCK: dict[str, Any] = {"num_heads": 2, "key_dim": 4, "intermediate_dim": 9}
NARROW = {"windowed": 3, "local": 3, "compressed": 2}
OF_KERAS: list[tuple[type[Any], dict[str, Any], tuple[np.ndarray, ...]]] = [
    (layers.Dense, {"units": WIDTH}, (X,)),
    (layers.Dropout, {"rate": 0.1}, (X,)),
    (layers.Conv2D, {"filters": 3, "kernel_size": 2}, (random(BATCH, 4, 4, 2),)),
]
ALL = [*CASES, *OF_KERAS]
# Those that take and give one sequence of states. The others take images or heads, or put a token before the sequence.
SEQUENTIAL = [(one, settings) for one, settings, inputs in ALL if inputs[0] is X and one is not layers.ClassToken]
LENGTH, IDS = 7, np.random.default_rng(0).integers(4, 20, (8, 7)).astype("int32")
IDS[::2, 5:] = 0
SIZES: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_dim": 32, "intermediate_dim": 64, "dropout": 0.0}
OF_TEXT = [models.Transformer, models.LanguageModel, models.Encoder, models.SequenceEncoder]


def called(layer: Any, x: Any, **more: Any) -> Any:
    """The layer's output for a sequence. What attends to a memory attends to the sequence itself."""
    if isinstance(layer, layers.Residual):
        return layer(x, sublayer=keras.activations.tanh, **more)
    if isinstance(layer, layers.MultiHeadAttention | layers.DecoderBlock):
        return layer(x, x, **more)
    return layer(x, memory=x, **more) if getattr(layer, "has_memory", False) else layer(x, **more)


def made(layer_class: type[Any], settings: dict[str, Any]) -> Any:
    layer = layer_class(**settings)
    called(layer, X)
    randomize(layer)
    return layer


@pytest.mark.parametrize(("layer_class", "settings"), SEQUENTIAL)
def test_a_mask_of_keras_hides_padding_and_goes_on_and_no_row_sees_another(layer_class, settings):
    layer = made(layer_class, settings)
    padded = keras.layers.Masking()(X * (np.arange(LENGTH) < np.array([[7], [4]]))[..., None])
    found = called(layer, padded)
    assert array(found._keras_mask).sum(axis=1).tolist() == [7, 4]
    assert_close(array(found)[0], array(called(layer, X[:1]))[0], atol=1e-5)
    assert_close(array(found)[1, :4], array(called(layer, X[1:, :4]))[0], atol=1e-5)
    if hasattr(layer, "with_scores"):
        memory = [padded] * (layer_class is layers.DecoderBlock or isinstance(layer, layers.MultiHeadAttention))
        more = {"memory": padded, "memory_mask": padded._keras_mask[:, None]} if hasattr(layer, "blocks") else {}
        more = more if getattr(layer, "has_memory", False) else {}
        assert_close(array(layer.with_scores(padded, *memory, **more)[0])[1, :4], array(found)[1, :4], atol=1e-5)


def steps_of(layer: Any, x: Any, seen: Any) -> Any:
    """What decoding computes of a sequence, position after position, with the sequence as the memory."""
    is_stack, has_memory = hasattr(layer, "blocks"), hasattr(layer, "cross_attention")
    attention = None if is_stack else layer.self_attention
    cache = layer.init_cache(x, 1, LENGTH) if is_stack else attention.init_cache(BATCH, 1, LENGTH)
    memory = [layer.cross_attention.project_memory(x)] if has_memory else []
    outputs = []
    for index in range(LENGTH):
        masks = [keys_mask(seen)] if is_stack or has_memory else []
        output, cache = layer.step(x[:, index : index + 1], cache, *memory, *masks, ops.convert_to_tensor(index))
        outputs.append(output)
    return ops.concatenate(outputs, axis=1)


DECODERS = {
    "CausalBlock": lambda block: layers.CausalBlock(**block),
    "DecoderBlock": lambda block: layers.DecoderBlock(**block),
    "Stack": lambda block: layers.Stack(2, block, is_decoder=True, has_memory=False),
    "Stack with a memory": lambda block: layers.Stack(2, block, is_decoder=True),
    "UniversalStack": lambda block: layers.UniversalStack(2, block, is_decoder=True, has_memory=False),
}


@pytest.mark.parametrize("attention", family.SLOTS["attention"])
@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoder_is_causal_by_itself_and_call_is_step(kind, attention):
    part = {"name": attention, **({"width": NARROW[attention]} if attention in NARROW else {})}
    layer = made(lambda: DECODERS[kind]({**BLOCK, "attention": part}), {})
    whole, x = called(layer, X), ops.convert_to_tensor(X)
    assert_close(whole, steps_of(layer, x, np.ones((BATCH, LENGTH), bool)), atol=1e-5)
    causal = layers.causal_mask(LENGTH)
    assert_close(called(layer, X, attention_mask=causal), whole, atol=1e-6)
    mine = np.arange(LENGTH) != 2  # hides one position more
    both = called(layer, X, attention_mask=np.broadcast_to(mine, (1, 1, LENGTH)))
    assert_close(both, called(layer, X, attention_mask=ops.logical_and(causal, mine)), atol=1e-6)


def test_a_loss_of_a_part_reaches_a_model_of_ones_own_once_and_padding_does_not_count():
    for part in (layers.Experts(9, num_experts=3), layers.UniversalStack(2, BLOCK)):
        symbol = keras.Input((None,), dtype="int32")
        embedded = keras.layers.Embedding(20, 8, mask_zero=True)(symbol)
        model = keras.Model(symbol, part(embedded))
        model(IDS)
        assert model.losses == []
        model(IDS[1::2, :5], training=True)
        alone = [float(loss) for loss in model.losses]
        model(np.pad(IDS[1::2, :5], ((0, 0), (0, 3))), training=True)
        assert len(alone) == 1 and alone[0] > 0 and alone == pytest.approx([float(loss) for loss in model.losses])
        model.compile(keras.optimizers.SGD(0.0), loss=lambda true, found: 0.0 * ops.mean(found, axis=-1))
        assert model.fit(IDS[1::2, :5], np.zeros((4, 5)), verbose=0).history["loss"] == pytest.approx(alone)


# What people make of a trained model.


@keras.saving.register_keras_serializable("tests")
class Head(keras.Model):
    """A head on a model's states."""

    def __init__(self, base: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self.base, self.head = base, keras.layers.Dense(3)

    def call(self, ids: Any) -> Any:
        return self.head(ops.mean(method_of(self.base)(ids), axis=1))

    def get_config(self) -> dict[str, Any]:
        return {"base": keras.saving.serialize_keras_object(self.base)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Head":
        return cls(keras.saving.deserialize_keras_object(config["base"]))


def method_of(model: Any) -> Any:
    return model.encode if isinstance(model, models.Transformer) else model.states


def transfers() -> dict[str, Any]:
    """Models of one's own on ours: functional ones that take fixed or any lengths, and subclassed ones."""
    found: dict[str, Any] = {}
    for kind, length in zip(OF_TEXT, (LENGTH, None, LENGTH, None), strict=True):
        base, symbol = kind(20, **SIZES), keras.Input((length,), dtype="int32")
        pooled = keras.layers.GlobalAveragePooling1D()(method_of(base)(symbol))
        vectors = base.embed(symbol) if hasattr(base, "embed") else method_of(base)(symbol)[:, 0]
        head = keras.layers.Dense(3)(keras.layers.Concatenate()([pooled, vectors]))
        found[f"{kind.__name__} functional"] = keras.Model(symbol, head)
        found[f"{kind.__name__} subclassed"] = Head(kind(20, **SIZES))
    return found


def test_what_trains_is_the_same_in_a_fresh_process(tmp_path):
    from tests.models.test_backends import run

    for number, (layer_class, settings, inputs) in enumerate(ALL):
        more = {"sublayer": keras.activations.tanh} if issubclass(layer_class, layers.Residual) else {}
        model = functional(layer_class(**settings), inputs, more)
        randomize(model)
        keep(model, list(inputs), tmp_path / f"{number} {layer_class.__name__}")
    for name, model in transfers().items():
        before = array(model(IDS))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
        model.train_on_batch(IDS, np.arange(8) % 3)
        assert np.abs(array(model(IDS)) - before).max() > 1e-4
        keep(model, [IDS], tmp_path / name)
    run(keras.config.backend(), tmp_path, __file__, str(tmp_path))


def keep(model: Any, inputs: list[Any], path: Path) -> None:
    model.save(path.with_suffix(".keras"))
    arrays = {f"input {place}": each for place, each in enumerate(inputs)}
    output = array(model(inputs if len(inputs) > 1 else inputs[0]))
    np.savez(path.with_suffix(".npz"), output=output, count=len(model.weights), **arrays)


def compare(folder: Path) -> None:
    """Loads what `keep` wrote, and raises AssertionError for what differs."""
    for path in sorted(folder.glob("*.keras")):
        model, kept = keras.saving.load_model(path), dict(np.load(path.with_suffix(".npz")))
        inputs = [kept[f"input {place}"] for place in range(len(kept) - 2)]
        output = array(model(inputs if len(inputs) > 1 else inputs[0]))
        np.testing.assert_array_equal(output, kept["output"], err_msg=path.stem)
        assert len(model.weights) == kept["count"], path.stem


# What the models take.


def inputs_of(model: Any, ids: Any) -> dict[str, Any]:
    return {name: ids for name in model.symbolic_batch()[0]}


@pytest.mark.parametrize("dtype", [None, "mixed_bfloat16"])
def test_ids_are_numbers_of_any_kind(dtype):
    """300 is no number of bfloat16, in which such a model computes."""
    ids = np.array([[300, 299, 7], [5, 301, 0]])
    for kind in OF_TEXT:
        model = kind(310, **SIZES, dtype=dtype)
        expected = array(model(inputs_of(model, ids)))
        for number in ("uint16", "int16", "uint32", "uint64", "int64", "float32", "float64"):
            assert_equal(model(inputs_of(model, ids.astype(number))), expected)
        for number in ("uint8", "int8", "bool"):
            few = (ids % 2 * 5).astype(number)
            assert_equal(model(inputs_of(model, few)), model(inputs_of(model, few.astype("int32"))))
    places = layers.LearnedPositions(310, 6, dtype=dtype)
    for number in ("uint16", "float32"):
        assert_equal(places(ids.astype(number)), places(ids))


def test_what_a_model_does_not_take_is_refused_with_what_it_takes():
    images = models.ImageClassifier(2, 4, 2, 1, **SIZES)
    for model in (*(kind(20, **SIZES) for kind in OF_TEXT), images):
        right = {
            name: np.zeros([size or 3 for size in x.shape], x.dtype) for name, x in model.symbolic_batch()[0].items()
        }
        first, array_of_first = next(iter(right.items()))
        shown = (
            r"^`inputs` must be \{"
            + ", ".join(rf"'{name}': '\w+ \(None,.*\)'" for name in sorted(right))
            + r"\}, numbers of"
        )
        for wrong, told in (
            (array_of_first, rf"Received: {array_of_first.dtype} \(3, "),
            ([*right.values()], r"Received: \['\w+ \(3"),
            ({"input_ids": array_of_first}, "Received: {'input_ids': "),
            ({**right, "attention_mask": array_of_first}, "Received: {'attention_mask': "),
            ({**right, first: array_of_first[0]}, rf"'{first}': '\w+ \("),
            ({**right, first: array_of_first.tolist()}, "int"),
            ({**right, first: array_of_first.astype(str)}, rf"'{first}': 'str"),
        ):
            for ask in (model.taken, lambda wrong, model=model: model.predict(wrong, verbose=0)):
                if ask == model.taken or not isinstance(told, tuple):
                    with pytest.raises(ValueError, match=rf"(?s){shown if ask == model.taken else shown[1:]}.*{told}"):
                        ask(wrong)


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="Keras exports by tf2onnx from TensorFlow alone")
def test_an_onnx_file_by_keras_of_layers_takes_any_lengths(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    symbol = keras.Input((None, 8))
    x = symbol + layers.LearnedPositions(9, 8)(layers.positions_of(symbol))
    parts = [(name, groups, heads) for name in family.SLOTS["attention"] for groups, heads in ((1, 1), (1, 2), (2, 4))]
    for name, groups, heads in parts:
        part = {"name": name, **({"width": NARROW[name]} if name in NARROW else {"num_key_value_heads": groups})}
        block = {**BLOCK, "num_heads": heads, "attention": part, "residual": "pre_norm", "norm": "rms"}
        x = layers.Stack(1, block, is_decoder=heads > 1, has_memory=heads > 2)(x, memory=symbol)
    x = layers.UniversalStack(2, {**BLOCK, "score": "additive", "feed_forward": {"name": "experts", "num_experts": 3}})(
        x
    )
    model = keras.Model(symbol, x)
    randomize(model)
    model(X[..., :8])
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for given in (X[..., :8], X[:1, :3, :8], np.concatenate([X[..., :8]] * 3, axis=1)[:, :9]):
        (found,) = session.run(None, {session.get_inputs()[0].name: given})
        assert_close(found, model(given), atol=1e-4)


if __name__ == "__main__":
    compare(Path(sys.argv[1]))
