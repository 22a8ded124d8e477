"""The integers in the loop of a search, read from its TensorFlow graph, so that no GPU is needed.

TensorFlow's GPU kernels keep 32-bit integers in the processor's memory, for which the processor waits at every step
until the GPU is done. So in the loop only sizes and the number of the step have 32 bits. LiteRT would read 64-bit
integers as 32-bit ones, without an error. So it is given 32 bits alone.
"""

import os

import numpy as np
import pytest

from export.artefacts import Decoding
from export.tflite import INTEGERS
from keras_transformer.tasks.translation.signature import translate_ids
from tests.decoding.tables import make_table, search
from tests.models.variants import make_model

if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    pytest.skip("the graphs are TensorFlow's", allow_module_level=True)
import tensorflow as tf

MODEL = make_model(num_layers=1)
# What computes sizes and the number of the step; and the places of the largest, which a GPU's TopKV2 gives to the GPU.
OF_32_BITS = {"AddV2", "Const", "Identity", "Mul", "Pack", "Placeholder", "Range", "Shape", "StridedSlice", "TopKV2"}


def loop_of(num_beams, *index_dtype):
    """The operations in the one loop of a search; `tf.tensordot` computes its shapes itself."""

    def search(source_ids):
        return translate_ids(MODEL, source_ids, Decoding(num_beams=num_beams, n_best=1), *index_dtype)

    ids = tf.TensorSpec([None, None], tf.int32)
    graph = tf.function(search, input_signature=[ids], autograph=False).get_concrete_function().graph
    (loop,) = [operation for operation in graph.get_operations() if operation.type in ("While", "StatelessWhile")]
    operations = graph._get_function(loop.get_attr("body").name).graph.get_operations()
    return [operation for operation in operations if "Tensordot" not in operation.name]


def types_of(operations, dtype):
    """The types of the operations with results of a dtype."""
    return {one.type for one in operations if any(output.dtype == dtype for output in one.outputs)}


def test_the_search_stays_on_the_gpu_and_litert_is_given_32_bits_alone_which_find_the_same():
    for loop in (loop_of(1), loop_of(4)):
        assert {"TopKV2", "GatherV2", "Equal"} <= {operation.type for operation in loop}
        assert types_of(loop, tf.int32) <= OF_32_BITS
    of_litert = loop_of(4, INTEGERS)
    assert types_of(of_litert, tf.int32) >= {"FloorDiv", "ConcatV2", "GatherV2"}
    assert not types_of(of_litert, tf.int64)
    of_32, of_64 = (search(make_table(), [9, 3, 0, 7], 4, index_dtype=dtype) for dtype in ("int32", "int64"))
    for one, other in zip(of_32, of_64, strict=True):
        assert one.dtype == other.dtype and one.dtype in ("int32", "float32")
        np.testing.assert_array_equal(one, other)
