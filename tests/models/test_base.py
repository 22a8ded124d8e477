"""Models of every kind are made again, learn, compute in other precisions, and do or refuse what Keras offers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer import family, models
from keras_transformer.models.inspection import difference_in_parts
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import TokenAccuracy
from tests.layer_check import array, assert_close, assert_equal, randomize
from tests.models import variants
from tests.models.combinations import COMBINATIONS, MODELS, SIZES_OF_ALL

SOURCES, LABELS, _ = variants.make_batch()
IDS = {"ids": SOURCES["target_ids"]}
IMAGES = {"images": np.random.default_rng(0).integers(0, 256, (3, 4, 4, 1)).astype("uint8")}
OF_ONE = {**variants.SIZES, "num_layers": 1}
OF_IMAGES = {name: size for name, size in OF_ONE.items() if name != "vocabulary_size"}
OF_IMAGES |= {"num_labels": 2, "image_size": 4, "patch_size": 2, "channels": 1}
KINDS: dict[str, tuple[type[Any], dict[str, Any], dict[str, np.ndarray], np.ndarray]] = {
    "translator": (models.Transformer, {**OF_ONE, "key_dim": 6}, SOURCES, LABELS),
    "language-model": (models.LanguageModel, {**OF_ONE, "positions": "buckets"}, IDS, LABELS),
    "encoder": (models.Encoder, {**OF_ONE, "num_labels": 2}, IDS, LABELS[:, 0] % 2),
    "sequence-encoder": (models.SequenceEncoder, {**OF_ONE, "positions": "rotary"}, IDS, LABELS),
    "image-classifier": (models.ImageClassifier, OF_IMAGES, IMAGES, LABELS[:, 0] % 2),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
UNTIED = {"tied_output": False, "output_bias": True, "embedding_norm": True, "embedding_scale": 0.5}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(("translator", {**SIZES_OF_ALL, **MODELS[name]}) for name in (*COMBINATIONS, "untied")),
    ("translator", {"dropout": 0.1, "attention_dropout": 0.2}),
    *(("language-model", options) for options in ({}, UNTIED)),
    *(("encoder", {"num_labels": count, "head_layer": count == 3}) for count in (None, 2, 3)),
    ("sequence-encoder", {}),
    ("image-classifier", {"stem": {"name": "attentive", "filters": 4}}),
    ("image-classifier", {"num_labels": None}),
    ("image-classifier", {"pixel_mean": [0.2], "pixel_std": 0.9, "residual": "post_norm", "positions": "rotary"}),
]


def model_of(kind: str, **options: Any) -> Any:
    model_class, arguments, *_ = KINDS[kind]
    keras.utils.set_random_seed(1)
    model = model_class(**{**arguments, **options})
    randomize(model)
    return model


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_a_configuration_and_a_file_make_the_model_again(kind, options, tmp_path):
    model, inputs = model_of(kind, **options), KINDS[kind][2]
    config = models.model_config(model)
    assert config["kind"] == kind and models.count_parameters(config) == model.count_params()
    of_kind = family.complete({name: value for name, value in config.items() if name != "kind"}, kind)
    assert config == {"kind": kind, **of_kind}
    again = models.make_model(json.loads(json.dumps(config)))
    assert difference_in_parts(model, again) is None
    again.set_weights(model.get_weights())
    model.save(tmp_path / "model.keras")
    for copy in (again, keras.saving.load_model(tmp_path / "model.keras")):
        assert models.model_config(copy) == config
        assert_equal(copy(inputs), model(inputs))


@EVERY_KIND
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_near(kind, dtype):
    inputs = KINDS[kind][2]
    found, expected = (array(model_of(kind, **policy)(inputs)) for policy in ({"dtype": dtype}, {}))
    real = inputs.get("target_ids", inputs.get("ids")) if expected.ndim == 3 else expected
    assert_close(found[real != 0], expected[real != 0], atol=0.1)


@pytest.mark.parametrize("kind", ["language-model", "image-classifier"])
def test_it_learns(kind):
    """A language model to repeat five tokens, a classifier of images in which half a bright patch is."""
    ids = np.tile(np.arange(4, 9, dtype="int32"), 4)[None].repeat(4, 0)
    inputs, labels = {"ids": np.concatenate([np.full((4, 1), 2, "int32"), ids[:, :-1]], axis=1)}, ids
    if kind == "image-classifier":
        images, labels = np.random.default_rng(1).integers(0, 120, (64, 4, 4, 1)).astype("uint8"), np.arange(64) % 2
        for image, label in zip(images, labels, strict=True):
            image[:2, 2 * label :][:, :2] += 120
        inputs = {"images": images}
    keras.utils.set_random_seed(1)
    model = KINDS[kind][0](**KINDS[kind][1])
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(inputs, labels, epochs=60, verbose=0, batch_size=32).history["loss"]
    assert losses[-1] < 0.2 < losses[0]


@EVERY_KIND
def test_a_summary_counts_every_weight_and_shows_the_blocks_shapes(kind):
    model, lines = model_of(kind), list[str]()
    model.summary(print_fn=lines.append)
    assert f"{model.count_params():,}" in "\n".join(lines)
    blocks = 2 if kind == "translator" else 1
    assert "\n".join(lines).count(", 12)") >= blocks


def smaller(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Fewer rows, and shorter ones where they are ids."""
    return {name: x[:2, :3] if x.ndim == 2 else x[:2] for name, x in inputs.items()}


@EVERY_KIND
def test_a_saved_model_gives_the_logits_for_any_size(kind, tmp_path):
    """Of a model that was never called; an encoder was trained, saved and loaded."""
    import tensorflow as tf

    model, (_, _, inputs, labels) = model_of(kind), KINDS[kind]
    if kind == "encoder":
        model.compile("sgd", SmoothedCrossEntropy(0.0))
        model.fit(inputs, labels, verbose=0)
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    model.export(tmp_path / "exported", verbose=False)
    artefact = tf.saved_model.load(str(tmp_path / "exported"))
    for given in inputs, smaller(inputs):
        assert_close(artefact.serve(given), model(given))


@pytest.mark.parametrize("kind", ["translator", "image-classifier"])
def test_litert_gives_the_logits_for_any_size(kind, tmp_path):
    from ai_edge_litert.interpreter import Interpreter

    model, inputs = model_of(kind), KINDS[kind][2]
    model.export(tmp_path / "model.tflite", format="litert", verbose=False)
    run = Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
    for given in inputs, smaller(inputs):
        (found,) = run(**given).values()
        assert_close(found, model(given))


def test_a_signature_that_is_given_is_taken(tmp_path):
    import tensorflow as tf

    model = model_of("encoder")
    model.export(tmp_path / "model", verbose=False, input_signature=[{"ids": keras.InputSpec("int64", (None, 5))}])
    artefact = tf.saved_model.load(str(tmp_path / "model"))
    assert_close(artefact.serve({"ids": IDS["ids"].astype("int64")}), model(IDS))


REFUSALS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda model: model.export("a.onnx", format="onnx"), r"^`format` must not be 'onnx'.*Received: .*'onnx'$"),
    (lambda model: model.export("a", format="tflite"), r"^Unrecognized format=tflite.*'litert'"),
    (lambda model: model.export("a.pt2", format="torch"), "^Torch export requires PyTorch backend.$"),
    (lambda model: model.quantize("int8"), "^`quantize` is for Keras's own.*Received: mode='int8'$"),
    (lambda model: setattr(model, "dtype_policy", "int8_from_float32"), "^`quantize` is for Keras's own"),
    (lambda model: model.enable_lora(4), "^`enable_lora` is not available.*Received: rank=4$"),
]


@EVERY_KIND
def test_what_does_not_work_is_refused_and_changes_nothing(kind):
    model = model_of(kind)
    before = model.get_weights()
    for call, message in REFUSALS:
        with pytest.raises(ValueError, match=message):
            call(model)
    for one, other in zip(before, model.get_weights(), strict=True):
        assert_equal(one, other)


def test_a_policy_of_quantization_is_refused():
    with pytest.raises(ValueError, match=r"^`dtype` must be a type or .*Received: dtype='int8_from_float32'$"):
        model_of("translator", dtype="int8_from_float32")


@pytest.fixture
def floatx() -> Iterator[Callable[[str], None]]:
    def set_both(dtype: str) -> None:
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)  # Keras makes it of `floatx` when it first needs one

    yield set_both
    set_both("float32")


WITH_LOSSES = {"attention": "windowed", "feed_forward": "experts", "stack": "universal", "positions": "none"}


@pytest.mark.parametrize(("kind", "options"), [*((kind, {}) for kind in KINDS), ("translator", WITH_LOSSES)])
def test_models_train_in_float64(kind, options, floatx):
    floatx("float64")
    model_class, arguments, inputs, labels = KINDS[kind]
    model = model_class(**arguments, **options)
    assert options or {variable.dtype for variable in model.trainable_variables} == {"float64"}
    model.compile("sgd", SmoothedCrossEntropy(0.0), weighted_metrics=[TokenAccuracy()], run_eagerly=True)
    losses = model.fit(inputs, labels, epochs=2, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_for_everything_is_refused(dtype, floatx):
    floatx(dtype)
    with pytest.raises(ValueError, match=rf"^`keras.config.floatx\(\)` must be 'float32'.*Received: '{dtype}'$"):
        model_of("translator")
