"""The writer of each score: its logits are those of the layer, in float32 and in float16."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from export.onnx.arithmetic import ARITHMETIC
from export.onnx.graph import Graph, Model, ValueInfo
from export.onnx.parts import writer_of
from tests.export.sessions import of
from tests.layers.test_score import EVERY_SCORE, KEY, KEY_DIM, QUERY, score_of


@pytest.mark.parametrize("precision", ARITHMETIC)
@pytest.mark.parametrize("shift", [0.0, 150.0], ids=["", "beyond float16"])
@EVERY_SCORE
def test_the_writer_of_a_score_computes_its_logits(config, shift, precision, tmp_path):
    layer, arithmetic, g = score_of(config), ARITHMETIC[precision], Graph()
    writer = writer_of(layer)(layer, arithmetic)
    query, keys = (QUERY + shift) / writer.divisor(KEY_DIM), (KEY + shift).swapaxes(-1, -2)
    g.named(writer.logits(g, "query", "keys"), "logits")
    inputs = {"query": query.astype(arithmetic.dtype), "keys": keys.astype(arithmetic.dtype)}
    if config["name"] != "additive":  # processors may compute in float32, GPUs do not
        assert np.isfinite(inputs["query"] @ inputs["keys"]).all()
    infos = [ValueInfo(name, array.dtype, array.shape) for name, array in inputs.items()]
    logits = of(Model(g, infos, [ValueInfo("logits", np.float32, [None] * 4)]), tmp_path).run(None, inputs)[0]
    expected = ops.convert_to_numpy(layer(QUERY + shift, KEY + shift))
    tolerance = 1e-2 if precision == "float16" else 1e-5
    np.testing.assert_allclose(logits, expected, 1e-6, tolerance * np.abs(expected[expected > -1e8]).max())
