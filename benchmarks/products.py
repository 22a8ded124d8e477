"""Computes the matrix products of a training step alone, forward and backward: the work that nothing can avoid."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Shape = tuple[int, ...]


def products_of(sizes: dict[str, int], batch_size: int, length: int) -> list[tuple[Shape, Shape]]:
    """Returns both operands' shapes of each product of the forward pass, for B sentences of T tokens on both sides."""
    rows, hidden, inner = batch_size * length, sizes["hidden_dim"], sizes["intermediate_dim"]
    heads, layers = batch_size * sizes["num_heads"], sizes["num_layers"]
    size = hidden // sizes["num_heads"]
    attention: list[tuple[Shape, Shape]] = [
        *[((rows, hidden), (hidden, hidden))] * 4,
        ((heads, length, size), (heads, size, length)),
        ((heads, length, length), (heads, length, size)),
    ]
    feed_forward: list[tuple[Shape, Shape]] = [((rows, hidden), (hidden, inner)), ((rows, inner), (inner, hidden))]
    blocks = [*attention, *feed_forward, *attention, *attention, *feed_forward] * layers
    return [*blocks, ((rows, hidden), (hidden, sizes["vocabulary_size"]))]


def num_operations(products: list[tuple[Shape, Shape]]) -> int:
    """Counts multiplications and additions in these products, forward and backward."""
    return 3 * sum(2 * math.prod(a) * b[-1] for a, b in products)


def multiply_on_tensorflow(products: list[tuple[Shape, Shape]], precision: str) -> Callable[[], Any]:
    """Returns a function that computes all products in one graph."""
    import tensorflow as tf

    dtype = tf.bfloat16 if precision == "bfloat16" else tf.float32
    operands = [[tf.random.normal(shape, dtype=dtype) for shape in shapes] for shapes in products]

    @tf.function
    def step() -> Any:
        corners = []
        for a, b in operands:
            product = tf.matmul(a, b)
            for result in (product, tf.matmul(product, b, transpose_b=True), tf.matmul(a, product, transpose_a=True)):
                corners.append(tf.reshape(result, [-1])[0])  # TensorFlow would leave out a product that nothing reads
        return tf.add_n(corners)

    return step


def multiply_on_jax(products: list[tuple[Shape, Shape]], precision: str) -> Callable[[], Any]:
    """Returns a function with a program for each product: XLA computes all of one, and the next waits for its sum."""
    import jax
    import jax.numpy as jnp

    draw = np.random.default_rng(1)
    operands = [[jnp.asarray(draw.normal(size=shape), precision) for shape in shapes] for shapes in products]

    @jax.jit
    def multiply(total: Any, a: Any, b: Any) -> tuple[Any, ...]:
        product = a @ b
        results = product, product @ jnp.swapaxes(b, -1, -2), jnp.swapaxes(a, -1, -2) @ product
        return total + sum(result.ravel()[0].astype("float32") for result in results), *results

    def step() -> Any:
        total = jnp.zeros(())
        for a, b in operands:
            total, *_ = multiply(total, a, b)
        return total

    return step
