"""What Keras offers for every model: it does what it says, or refuses in one line that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.models import Encoder, ImageClassifier, LanguageModel, SequenceEncoder
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import TokenAccuracy
from tests.models.variants import SIZES, make_batch, make_model

SOURCES, LABELS, _ = make_batch()
IDS = {"ids": SOURCES["target_ids"]}
IMAGES = {"images": np.random.default_rng(0).integers(0, 256, (3, 4, 4, 1)).astype("uint8")}
OF_ONE = {**SIZES, "num_layers": 1}
OF_IMAGES = {name: size for name, size in OF_ONE.items() if name != "vocabulary_size"}
KINDS: dict[str, tuple[Callable[[], Any], dict[str, np.ndarray], np.ndarray]] = {
    "translator": (lambda: make_model("key_dim"), SOURCES, LABELS),
    "language model": (lambda: LanguageModel(**OF_ONE, positions="buckets"), IDS, LABELS),
    "encoder": (lambda: Encoder(**OF_ONE, num_labels=2), IDS, LABELS[:, 0] % 2),
    "sequence encoder": (lambda: SequenceEncoder(**OF_ONE, positions="rotary"), IDS, LABELS),
    "image classifier": (lambda: ImageClassifier(2, 4, 2, 1, **OF_IMAGES), IMAGES, LABELS[:, 0] % 2),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def smaller(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Fewer rows, and shorter ones where they are ids."""
    return {name: array[:2, :3] if array.ndim == 2 else array[:2] for name, array in inputs.items()}


def assert_same(found: Any, model: Any, inputs: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose(np.asarray(found), ops.convert_to_numpy(model(inputs)), atol=1e-5)


@EVERY_KIND
def test_a_saved_model_gives_the_logits_for_any_size(kind, tmp_path):
    """Of a model that was never called, and of one that was trained, saved and loaded."""
    import tensorflow as tf

    make, inputs, labels = KINDS[kind]
    model = make()
    model.export(tmp_path / "new", verbose=False)
    artefact = tf.saved_model.load(str(tmp_path / "new"))
    for given in inputs, smaller(inputs):
        assert_same(artefact.serve(given), model, given)
    model.compile("sgd", SmoothedCrossEntropy(0.0))
    model.fit(inputs, labels, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    loaded.export(str(tmp_path / "loaded"), verbose=False)
    artefact = tf.saved_model.load(str(tmp_path / "loaded"))
    assert_same(artefact.serve(smaller(inputs)), model, smaller(inputs))


@pytest.mark.parametrize("kind", ["translator", "image classifier"])
def test_litert_gives_the_logits_for_any_size(kind, tmp_path):
    from ai_edge_litert.interpreter import Interpreter

    make, inputs, _ = KINDS[kind]
    model = make()
    model.export(tmp_path / "model.tflite", format="litert", verbose=False)
    run = Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
    for given in inputs, smaller(inputs):
        (found,) = run(**given).values()
        assert_same(found, model, given)


def test_a_signature_that_is_given_is_taken(tmp_path):
    import tensorflow as tf

    model = KINDS["encoder"][0]()
    model.export(tmp_path / "model", verbose=False, input_signature=[{"ids": keras.InputSpec("int64", (None, 5))}])
    artefact = tf.saved_model.load(str(tmp_path / "model"))
    assert_same(artefact.serve({"ids": IDS["ids"].astype("int64")}), model, IDS)


REFUSALS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "onnx": (lambda model: model.export("a.onnx", format="onnx"), r"^`format` must not be 'onnx'.*Received: .*'onnx'$"),
    "tflite": (lambda model: model.export("a", format="tflite"), r"^Unrecognized format=tflite.*'litert'"),
    "torch": (lambda model: model.export("a.pt2", format="torch"), "^Torch export requires PyTorch backend.$"),
    "quantize": (lambda model: model.quantize("int8"), "^`quantize` is for Keras's own.*Received: mode='int8'$"),
    "a policy": (lambda model: setattr(model, "dtype_policy", "int8_from_float32"), "^`quantize` is for Keras's own"),
    "enable_lora": (lambda model: model.enable_lora(4), "^`enable_lora` is not available.*Received: rank=4$"),
}


@EVERY_KIND
@pytest.mark.parametrize("refused", REFUSALS)
def test_what_does_not_work_is_refused_and_changes_nothing(kind, refused):
    model, (call, message) = KINDS[kind][0](), REFUSALS[refused]
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        call(model)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_policy_of_quantization_is_refused():
    with pytest.raises(ValueError, match=r"^`dtype` must be a type or .*Received: dtype='int8_from_float32'$"):
        make_model("key_dim", dtype="int8_from_float32")


@pytest.fixture
def floatx() -> Iterator[Callable[[str], None]]:
    def set_both(dtype: str) -> None:
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)  # Keras makes it of `floatx` when it first needs one

    yield set_both
    set_both("float32")


@EVERY_KIND
def test_models_train_in_float64(kind, floatx):
    floatx("float64")
    make, inputs, labels = KINDS[kind]
    model = make()
    assert {variable.dtype for variable in model.trainable_variables} == {"float64"}
    model.compile("sgd", SmoothedCrossEntropy(0.0), weighted_metrics=[TokenAccuracy()])
    losses = model.fit(inputs, labels, epochs=3, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_windows_and_auxiliary_losses_train_in_float64(floatx):
    floatx("float64")
    model = make_model("windowed", num_layers=1, feed_forward="experts", stack="universal", positions="none")
    model.compile("sgd", SmoothedCrossEntropy(0.0))
    assert np.isfinite(model.fit(SOURCES, LABELS, verbose=0).history["loss"]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_for_everything_is_refused(dtype, floatx):
    floatx(dtype)
    with pytest.raises(ValueError, match=rf"^`keras.config.floatx\(\)` must be 'float32'.*Received: '{dtype}'$"):
        make_model("key_dim")
