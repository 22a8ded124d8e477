"""The graph of a classifier of images: from pixels to labels and vectors.

Letters in shapes: B images, S pixels a side, N patches of an image, D width, C labels.
"""

from __future__ import annotations

import numpy as np

from keras_transformer.models.image_classifier import LARGEST_PIXEL
from keras_transformer.text.tokenizer import PAD

from ..signatures import TrainedRun
from .arithmetic import ARITHMETIC
from .graph import Graph, Model, Value, ValueInfo, name_outputs
from .model import positions_of
from .parts import writer_of
from .stacks import OnnxStack
from .weights import array


def recognize_model(run: TrainedRun, precision: str) -> Model:
    """`images` (batch, size, size, channels) uint8 → `probabilities` (batch, labels) and `vector` (batch, width),
    float32.
    """
    g, model = Graph(), run.model
    images = ValueInfo("images", np.uint8, ["batch", *model.image_shape])
    vector = first_states(g, run, pixels(g, run, images.name), precision)
    logits = g("Gemm", vector, array(model.head.kernel), array(model.head.bias))
    infos = [
        ValueInfo("probabilities", np.float32, ["batch", len(run.labels)]),
        ValueInfo("vector", np.float32, ["batch", model.hidden_dim]),
    ]
    return Model(g, [images], name_outputs(g, [g("Softmax", logits, axis=-1), vector], infos))


def pixels(g: Graph, run: TrainedRun, images: Value) -> Value:
    """Images uint8 → float32 as the stem takes them."""
    mean, std = (np.array(run.model.arguments()[name], "float32") for name in ("pixel_mean", "pixel_std"))
    return g("Div", g("Sub", g("Div", g.cast(images, np.float32), LARGEST_PIXEL), mean), std)


def first_states(g: Graph, run: TrainedRun, x: Value, precision: str) -> Value:
    """Pixels (B, S, S, channels) → the state (B, D) of the class token, float32."""
    model, arithmetic = run.model, ARITHMETIC[precision]
    size, width = model.image_shape[0], model.hidden_dim
    batch = g.shape(x, 0)
    rows = writer_of(model.stem)(g, arithmetic, model.stem, x, size)  # (B · N, D)
    count = (size // model.stem.patch_size) ** 2
    patches = g("Reshape", rows, g.joined(batch, [count, width]), allowzero=1)
    token = g("Expand", arithmetic.array(array(model.class_token.token))[None, None], g.joined(batch, [1, 1]))
    vectors = g.joined(token, patches, axis=1)  # (B, N + 1, D)
    places = g("Expand", np.array([[PAD + 1]], "int32"), g.joined(batch, [count + 1]))  # no place is pad
    positions = positions_of(model, arithmetic, count + 1)
    stack = OnnxStack(None, model.norm, model.stack, positions, arithmetic)
    states = stack.states_of(g, vectors, places, width)
    states_of_images = g("Reshape", states.rows, g.joined(states.shape, [width]), allowzero=1)
    return g.cast(g("Gather", states_of_images, 0, axis=1), np.float32)
