"""The Keras layer contract, one check for every layer; and what tests of layers share."""

import inspect
import json
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.score import Score

# Arguments for which 0 and 1 are allowed.
ANY_NUMBER = ("gain", "scale", "offset", "epsilon", "other_layers", "base", "interpolation")


def random(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def randomize(layer: Any, scale: float = 0.3, seed: int = 0) -> None:
    """Moves every weight, so that a bias of 0 or a gain of 1 hides nothing."""
    generator = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(weight + scale * generator.normal(size=weight.shape).astype("float32"))


def built(layer: Any, *shapes: tuple | None, scale: float = 0.3) -> Any:
    """The layer, built for inputs of these shapes, with weights that `randomize` moved."""
    layer.build(*shapes)
    randomize(layer, scale)
    return layer


def array(x: Any) -> np.ndarray:
    """A tensor as an array; half precision as float32."""
    is_half = keras.backend.standardize_dtype(getattr(x, "dtype", "float32")) in ("bfloat16", "float16")
    return ops.convert_to_numpy(ops.cast(x, "float32") if is_half else x)


def weights_of(layer: Any) -> dict[str, np.ndarray]:
    """The weights of a layer by their names."""
    return {weight.name: ops.convert_to_numpy(weight) for weight in layer.weights}


def normalized(x: np.ndarray, gain: np.ndarray, shift: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    """Layer normalization in NumPy."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * gain + shift


def assert_close(found: Any, expected: Any, atol: float = 1e-5, rtol: float = 0.0) -> None:
    np.testing.assert_allclose(array(found), array(expected), rtol, atol)


def assert_equal(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(array(found), array(expected))


def gradient(function: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """The gradient at `x`, by the backend at hand, of a function that makes a scalar of a tensor."""
    if keras.config.backend() == "jax":
        import jax

        return np.asarray(jax.grad(function)(x))
    if keras.config.backend() == "torch":
        tensor = ops.convert_to_tensor(x).requires_grad_()
        function(tensor).backward()
        return tensor.grad.cpu().numpy()
    import tensorflow as tf

    tensor = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        result = function(tensor)
    return ops.convert_to_numpy(tape.gradient(result, tensor))


def check_layer(
    layer_class: type[Any], settings: dict[str, Any], inputs: tuple[np.ndarray, ...], **functions: Any
) -> None:
    """Config, building, parameters, shapes, mixed precision and gradients, all without a warning.

    Args:
        layer_class: the class to check.
        settings: arguments of its constructor, none at its default.
        inputs: arrays that the layer is called with. The first axis is the batch.
        functions: other arguments that the layer is called with.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        check_config(layer_class, settings)
        check_refusals(layer_class, settings)
        check_building(layer_class, settings, inputs, functions)
        check_shapes(layer_class(**settings), inputs, functions)
        check_mixed_precision(layer_class, settings, inputs, functions)
        check_training(functional(layer_class(**settings), inputs, functions), inputs)


def check_config(layer_class: type[Any], settings: dict[str, Any]) -> None:
    assert settings.keys() <= inspect.signature(layer_class).parameters.keys()
    config = layer_class(**settings, name="checked").get_config()
    assert settings.items() <= config.items()
    assert layer_class.from_config(json.loads(json.dumps(config))).get_config() == config


def check_refusals(layer_class: type[Any], settings: dict[str, Any]) -> None:
    """The layer refuses a size of 0, a rate of 1, and a part that its slot lacks."""
    for name, value in settings.items():
        if isinstance(value, bool) or name in ANY_NUMBER or name == "block":
            continue
        wrong: Any = 0 if isinstance(value, int) else 1.0
        called = name
        if isinstance(value, str | dict):  # a part; an inner norm is a norm
            wrong, called = "nonsense", name.removeprefix("inner_")
        with pytest.raises(ValueError, match=rf"`{called}` must be .*Received: {called}={wrong!r}"):
            layer_class(**{**settings, name: wrong})


def check_building(layer_class: type[Any], settings: dict, inputs: tuple, functions: dict) -> None:
    called, built = layer_class(**settings), layer_class(**settings)
    called(*inputs, **functions)
    # `build` takes no shapes of masks.
    built.build(*[x.shape for x in inputs if x.dtype != bool])
    assert built.built
    assert [(w.name, w.shape) for w in built.weights] == [(w.name, w.shape) for w in called.weights]


def check_shapes(layer: Any, inputs: tuple, functions: dict) -> None:
    output = layer(*inputs, **functions)
    symbolic = layer(*[keras.KerasTensor(x.shape, str(x.dtype)) for x in inputs], **functions)
    unknown = layer(*[keras.KerasTensor((None, *x.shape[1:]), str(x.dtype)) for x in inputs], **functions)
    assert tuple(symbolic.shape) == tuple(output.shape)
    assert tuple(unknown.shape) == (None, *output.shape[1:])
    assert symbolic.dtype == keras.backend.standardize_dtype(output.dtype) == "float32"


def check_mixed_precision(layer_class: type[Any], settings: dict, inputs: tuple, functions: dict) -> None:
    layer = layer_class(**settings, dtype="mixed_bfloat16")
    output = layer(*inputs, **functions)
    expected = "float32" if isinstance(layer, Score) else "bfloat16"
    assert keras.backend.standardize_dtype(output.dtype) == expected
    assert {weight.dtype for weight in layer.trainable_weights} <= {"float32"}
    assert np.isfinite(ops.convert_to_numpy(ops.cast(output, "float32"))).all()


def functional(layer: Any, inputs: tuple, functions: dict) -> keras.Model:
    """A functional model with only this layer."""
    symbols = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in inputs]
    return keras.Model(symbols, layer(*symbols, **functions))


def check_training(model: keras.Model, inputs: tuple) -> None:
    """A training step changes every weight by a finite amount.

    Only a bias of keys may stay: it adds the same to all logits of a query, which does not change their softmax.
    """
    randomize(model)
    if not model.trainable_weights:
        return
    before = [weight.numpy() for weight in model.trainable_weights]
    direction = random(*model(list(inputs)).shape, seed=5)
    model.compile(keras.optimizers.SGD(1.0), loss=lambda true, given: ops.mean(true * given), run_eagerly=True)
    model.train_on_batch(list(inputs), direction)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        moved = weight.numpy() - old
        assert np.isfinite(moved).all(), weight.path
        assert moved.any() or weight.name == "key_bias", f"{weight.path} did not move"
