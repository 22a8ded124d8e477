"""Whether the loop of a search stays on the GPU, read from its TensorFlow graph, so that no GPU is needed.

TensorFlow registers for each GPU kernel which of its inputs and outputs are in the processor's memory. If the GPU
computes such an input, the processor waits at every step until the GPU is done.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from keras import ops

from export.signatures import Decoding
from export.tflite import INTEGERS
from export.traced import translate_ids
from keras_transformer.decoding.search import beam_search, sample
from tests.models.variants import make_model

if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
    pytest.skip("the graphs are TensorFlow's", allow_module_level=True)
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

MODEL = make_model(num_layers=1)


def loop_of(function, *specs):
    """The body of the one loop in a traced function."""
    graph = tf.function(function, input_signature=specs, autograph=False).get_concrete_function().graph
    (loop,) = [operation for operation in graph.get_operations() if operation.type in ("While", "StatelessWhile")]
    return graph._get_function(loop.get_attr("body").name).graph


def ids(rank):
    return tf.TensorSpec([None] * rank, tf.int32)


def trace_search(num_beams, index_dtype=None, model=MODEL):
    """The loop of a beam search over unknown sizes, with prefixes."""

    def search(source_ids, limits, prefix_ids):
        max_length = ops.shape(prefix_ids)[1]
        cache = model.init_cache(model.encode(source_ids), source_ids, num_beams, max_length)
        options = {"max_length": max_length, "prefix_ids": prefix_ids, "n_best": 1, "index_dtype": index_dtype}
        return beam_search(model.step, cache, limits, num_beams, **options)

    return loop_of(search, ids(2), ids(1), ids(2))


def trace_sampling():
    """The loop of sampling."""

    def draw(source_ids, limits, prefix_ids, uniforms):
        cache = MODEL.init_cache(MODEL.encode(source_ids), source_ids, 2, ops.shape(prefix_ids)[1])
        return sample(MODEL.step, cache, limits, uniforms, 2, 0.7, 5, 0.9, prefix_ids)

    return loop_of(draw, ids(2), ids(1), ids(2), tf.TensorSpec([None, 2, None], tf.float32))


def gpu_kernel(operation):
    """The GPU kernel that TensorFlow registers for an operation of these types; None if there is none."""
    found = kernels.get_registered_kernels_for_op(operation.type).kernel
    for device in ("GPU", "DEFAULT"):
        for kernel in found:
            wanted = [(each.name, each.allowed_values.list.type) for each in kernel.constraint]
            if kernel.device_type == device and all(operation.get_attr(name) in types for name, types in wanted):
                return kernel
    return None


def on_processor(operation, arguments, tensors):
    """For each input or output of the operation, whether its GPU kernel keeps it in the processor's memory."""
    kernel = gpu_kernel(operation)
    if kernel is None:
        return [False] * len(tensors)
    places = []
    for argument in arguments:
        count = operation.get_attr(argument.number_attr) if argument.number_attr else 1
        if argument.type_list_attr:
            count = len(operation.get_attr(argument.type_list_attr))
        places += [argument.name in kernel.host_memory_arg] * count
    return places


def waits(graph):
    """(type, name) of the operations that need, in the processor's memory, what the GPU computes.

    Operations on constants alone do not count: TensorFlow computes them once, before the graph runs. Nor do the
    products of the model: `tf.tensordot` computes its shapes itself.
    """
    found = []
    outside: set[Any] = set()  # tensors in the processor's memory
    constant: set[Any] = set()
    for operation in graph.get_operations():
        if "Tensordot" in operation.name:
            continue
        outputs = {output.ref() for output in operation.outputs}
        if operation.type == "Placeholder":
            outside |= {output.ref() for output in operation.outputs if output.dtype in (tf.int32, tf.resource)}
            continue
        definition = op_def_registry.get(operation.type)
        if operation.type == "Const" or operation.inputs and {tensor.ref() for tensor in operation.inputs} <= constant:
            constant |= outputs
            continue
        needed = on_processor(operation, definition.input_arg, operation.inputs)
        for is_needed, tensor in zip(needed, operation.inputs, strict=True):
            if is_needed and tensor.ref() not in outside | constant:
                found.append((operation.type, operation.name))
        here = on_processor(operation, definition.output_arg, operation.outputs)
        outside |= {output.ref() for is_here, output in zip(here, operation.outputs, strict=True) if is_here}
    return found


@pytest.mark.parametrize(("num_beams", "model"), [(1, make_model("learned positions", num_layers=1)), (4, MODEL)])
def test_the_search_stays_on_the_gpu(num_beams, model):
    graph = trace_search(num_beams, model=model)
    assert {"TopKV2", "GatherV2", "Equal"} <= {operation.type for operation in graph.get_operations()}
    assert not waits(graph)


def test_sampling_stays_on_the_gpu():
    assert not waits(trace_sampling())


def test_what_waits_is_found():
    """With 32-bit integers, as for LiteRT, beams and tokens are computed on the processor."""
    assert {"FloorDiv", "FloorMod", "AddV2", "ConcatV2"} <= {kind for kind, _ in waits(trace_search(4, "int32"))}


def test_litert_is_given_32_bits_alone():
    """LiteRT would read 64-bit integers as 32-bit ones, without an error."""
    decoding = Decoding(num_beams=4, n_best=1)
    graph = loop_of(lambda source_ids: translate_ids(MODEL, source_ids, decoding, INTEGERS), ids(2))
    dtypes = {tensor.dtype for operation in graph.get_operations() for tensor in operation.outputs}
    assert tf.int32 in dtypes and tf.int64 not in dtypes


def test_both_types_of_integers_find_the_same():
    source_ids = np.random.default_rng(0).integers(4, 23, (5, 6)).astype("int32")
    limits, found = np.array([9, 3, 0, 9, 7], "int32"), []
    for index_dtype in ("int32", "int64"):
        cache = MODEL.init_cache(MODEL.encode(source_ids), source_ids, 4, 9)
        found.append(beam_search(MODEL.step, cache, limits, 4, index_dtype=index_dtype))
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype and one.dtype in (tf.int32, tf.float32)
        np.testing.assert_array_equal(one, other)
