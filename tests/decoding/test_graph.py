"""Whether the loop of a search stays on the GPU, read from its TensorFlow graph, so that no GPU is needed.

TensorFlow's GPU kernels keep 32-bit integers in the processor's memory, for which the processor waits at every step
until the GPU is done. So in the loop only sizes and the number of the step have 32 bits.
"""

import os

import numpy as np
import pytest
from keras import ops

from export.signatures import Decoding
from export.tflite import INTEGERS
from export.traced import translate_ids
from keras_transformer.decoding.search import beam_search
from tests.decoding.tables import make_table, search
from tests.models.variants import make_model

if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    pytest.skip("the graphs are TensorFlow's", allow_module_level=True)
import tensorflow as tf

MODEL = make_model(num_layers=1)
# What computes sizes and the number of the step; and the places of the largest, which a GPU's TopKV2 gives to the GPU.
OF_32_BITS = {"AddV2", "Const", "Identity", "Mul", "Pack", "Placeholder", "Range", "Shape", "StridedSlice", "TopKV2"}
IDS, LIMITS = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)


def loop_of(function, *specs):
    """The operations in the one loop of a traced function."""
    graph = tf.function(function, input_signature=specs, autograph=False).get_concrete_function().graph
    (loop,) = [operation for operation in graph.get_operations() if operation.type in ("While", "StatelessWhile")]
    return graph._get_function(loop.get_attr("body").name).graph.get_operations()


def trace_search(num_beams, index_dtype=None):
    """The loop of a beam search over unknown sizes, with prefixes."""

    def search(source_ids, limits, prefix_ids):
        max_length = ops.shape(prefix_ids)[1]
        cache = MODEL.init_cache(MODEL.encode(source_ids), source_ids, num_beams, max_length)
        options = {"max_length": max_length, "prefix_ids": prefix_ids, "n_best": 1, "index_dtype": index_dtype}
        return beam_search(MODEL.step, cache, limits, num_beams, **options)

    return loop_of(search, IDS, LIMITS, IDS)


def types_of(operations, dtype):
    """The types of the operations with results of a dtype; `tf.tensordot` computes its shapes itself."""
    some = (operation for operation in operations if "Tensordot" not in operation.name)
    return {operation.type for operation in some if any(output.dtype == dtype for output in operation.outputs)}


def test_the_search_stays_on_the_gpu():
    """That of LiteRT, with 32-bit integers, does not."""
    for loop in (trace_search(1), trace_search(4)):
        assert {"TopKV2", "GatherV2", "Equal"} <= {operation.type for operation in loop}
        assert types_of(loop, tf.int32) <= OF_32_BITS
    assert types_of(trace_search(4, "int32"), tf.int32) >= {"FloorDiv", "FloorMod", "ConcatV2", "GatherV2"}


def test_litert_is_given_32_bits_alone_which_find_the_same():
    """LiteRT would read 64-bit integers as 32-bit ones, without an error."""
    decoding = Decoding(num_beams=4, n_best=1)
    loop = loop_of(lambda source_ids: translate_ids(MODEL, source_ids, decoding, INTEGERS), IDS)
    dtypes = {tensor.dtype for operation in loop for tensor in operation.outputs}
    assert tf.int32 in dtypes and tf.int64 not in dtypes
    of_32, of_64 = (search(make_table(), [9, 3, 0, 7], 4, index_dtype=dtype) for dtype in ("int32", "int64"))
    for one, other in zip(of_32, of_64, strict=True):
        assert one.dtype == other.dtype and one.dtype in ("int32", "float32")
        np.testing.assert_array_equal(one, other)
