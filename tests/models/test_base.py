"""Models of every kind are made again, learn, compute in other precisions, and do or refuse what Keras offers."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer import models
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import TokenAccuracy
from keras_transformer.models.model_factory import difference_in_parts
from keras_transformer.spec import model_spec
from tests.layer_check import array, assert_close, assert_equal, randomize
from tests.models import variants
from tests.models.combinations import COMBINATIONS, MODELS

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
# Every combination of parts in a model of some kind, and every argument.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *zip(itertools.cycle(["translator", "language-model", "sequence-encoder"]), COMBINATIONS.values(), strict=False),
    ("translator", {**MODELS["untied"], "dropout": 0.1, "attention_dropout": 0.2}),
    ("language-model", {"tied_output": False, "output_bias": True, "embedding_norm": True, "embedding_scale": 0.5}),
    *(("encoder", {"num_labels": count, "head_layer": count == 3}) for count in (None, 2, 3)),
    ("image-classifier", {"num_labels": None, "stem": {"name": "attentive", "filters": 4}}),
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
    of_kind = model_spec.complete({name: value for name, value in config.items() if name != "kind"}, kind)
    assert config == {"kind": kind, **of_kind}
    again = models.make_model(json.loads(json.dumps(config)))
    assert difference_in_parts(model, again) is None
    again.set_weights(model.get_weights())
    model.save(tmp_path / "model.keras")
    for copy in (again, keras.saving.load_model(tmp_path / "model.keras")):
        assert models.model_config(copy) == config
        assert_equal(copy(inputs), model(inputs))


@EVERY_KIND
def test_half_precision_is_near_and_a_summary_counts_every_weight(kind):
    model, half, inputs, lines = model_of(kind), model_of(kind, dtype="mixed_bfloat16"), KINDS[kind][2], list[str]()
    expected, found = array(model(inputs)), array(half(inputs))
    real = inputs.get("target_ids", inputs.get("ids")) if expected.ndim == 3 else expected
    assert_close(found[real != 0], expected[real != 0], atol=0.1)
    model.summary(print_fn=lines.append)
    assert f"{model.count_params():,}" in "\n".join(lines)


def test_a_classifier_learns_in_which_half_a_bright_patch_is():
    images, labels = np.random.default_rng(1).integers(0, 120, (64, 4, 4, 1)).astype("uint8"), np.arange(64) % 2
    for image, label in zip(images, labels, strict=True):
        image[:2, 2 * label :][:, :2] += 120
    keras.utils.set_random_seed(1)
    model = models.ImageClassifier(**OF_IMAGES)
    model.compile(keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit({"images": images}, labels, epochs=20, verbose=0, batch_size=64).history["loss"]
    assert losses[-1] < 0.2 < losses[0]


def smaller(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Fewer rows, and shorter ones where they are ids."""
    return {name: x[:2, :3] if x.ndim == 2 else x[:2] for name, x in inputs.items()}


@pytest.mark.parametrize("kind", ["translator", "encoder", "image-classifier"])
def test_an_export_gives_the_logits_for_any_size_or_the_one_that_is_given(kind, tmp_path):
    """Of a model that was never called; an encoder was trained, saved and loaded. LiteRT of the smallest."""
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    model, (_, _, inputs, labels), sizes = model_of(kind), KINDS[kind], {}
    few = [inputs, smaller(inputs)]
    if kind == "encoder":
        model.compile("sgd", SmoothedCrossEntropy(0.0))
        model.fit(inputs, labels, verbose=0)
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
        few = [{"ids": IDS["ids"].astype("int64")}]
        sizes = {"input_signature": [{"ids": keras.InputSpec("int64", (None, 5))}]}
    model.export(tmp_path / "exported", verbose=False, **sizes)
    artefact = tf.saved_model.load(str(tmp_path / "exported"))
    run = [artefact.serve]
    if kind == "image-classifier":
        model.export(tmp_path / "model.tflite", format="litert", verbose=False)
        runner = Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
        run.append(lambda given: next(iter(runner(**given).values())))
    for given, function in itertools.product(few, run):
        assert_close(function(given), model(given))


REFUSALS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda model: model.export("a.onnx", format="onnx"), r"^`format` must not be 'onnx'.*Received: .*'onnx'$"),
    (lambda model: model.quantize("int8"), "^`quantize` is for Keras's own.*Received: mode='int8'$"),
    (lambda model: model.enable_lora(4), "^`enable_lora` is not available.*Received: rank=4$"),
]


def test_what_does_not_work_is_refused_and_changes_nothing():
    model = model_of("image-classifier")
    before = model.get_weights()
    for call, message in REFUSALS:
        with pytest.raises(ValueError, match=message):
            call(model)
    assert all(map(np.array_equal, before, model.get_weights()))
    with pytest.raises(ValueError, match=r"^`dtype` must be a type or .*Received: dtype='int8_from_float32'$"):
        model_of("image-classifier", dtype="int8_from_float32")


def set_floatx(dtype: str) -> None:
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)  # Keras makes it of `floatx` when it first needs one


def test_models_train_in_float64_and_none_is_of_half_precision_throughout(request):
    parts: Any = {"attention": "windowed", "feed_forward": "experts", "stack": "universal", "positions": "none"}
    request.addfinalizer(lambda: set_floatx("float32"))
    set_floatx("float64")
    model = models.Transformer(**OF_ONE, **parts)
    model.compile("sgd", SmoothedCrossEntropy(0.0), weighted_metrics=[TokenAccuracy()], run_eagerly=True)
    losses = model.fit(SOURCES, LABELS, epochs=2, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    for dtype in ("float16", "bfloat16"):
        set_floatx(dtype)
        with pytest.raises(ValueError, match=rf"^`keras.config.floatx\(\)` must be 'float32'.*Received: '{dtype}'$"):
            models.Transformer(**OF_ONE)
