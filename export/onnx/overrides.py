"""Writes what has a form of its own in ONNX: the functions of `ops.overridable`, and the layers of Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np

from keras_transformer.layers.attention import Projection
from keras_transformer.layers.cache import causal_cache_mask
from keras_transformer.layers.layer import LayerNorm
from keras_transformer.layers.score import HIDDEN

from .loops import run_loop_in_rounds
from .operations import counted
from .tracer import Nest, Operand, SymbolicTensor, Tracer, Write, same

HIDDEN_IN_HALF = -6e4  # nearly the least number of float16


def product(
    r: Tracer, x: SymbolicTensor, weight: Operand, bias: Operand | None = None, transposed: bool = False
) -> SymbolicTensor:
    """Multiplies rows by a weight, in the tracer's precision."""
    array = r.array(weight)
    array = r.derived(np.transpose, array) if transposed else array
    made = r.precision.product(r, r.rows(x), array, bias)
    return r.view(made, [*x.sizes[:-1], made.sizes[-1]])


def embedding_lookup(r: Tracer, table: Operand, ids: SymbolicTensor) -> SymbolicTensor:
    """Looks the rows of ids up in a table, in the tracer's precision."""
    r.shape(ids)
    flat = r.reshape(ids, (-1,))
    made = r.precision.rows(r, r.array(table), flat)
    return r.view(made, [*ids.sizes, made.sizes[-1]])


def by_position(r: Tracer, function: Callable[[np.ndarray], Nest], positions: SymbolicTensor) -> Nest:
    """Looks positions up in a table of what the function gives for each."""
    tables = r.computed(function, np.arange(r.num_positions))
    return keras.tree.map_structure(lambda table: r.take(table, positions, axis=0), tables)


def side_by_side(*kernels: np.ndarray) -> np.ndarray:
    """Joins several kernels."""
    return np.concatenate(kernels, axis=1)


def projected_heads(r: Tracer, x: SymbolicTensor, projections: Sequence[Projection]) -> list[SymbolicTensor]:
    """Computes all projections in one product, and divides it into heads."""
    biases = [each.bias for each in projections]
    kernel = r.derived(side_by_side, *(r.array(each.kernel) for each in projections))
    bias = None if biases[0] is None else np.concatenate([r.array(each) for each in biases])
    counts, y = [each.num_heads for each in projections], product(r, x, kernel, bias)
    size = kernel.shape[1] // sum(counts)
    heads = r.swapaxes(r.reshape(y, (*y.sizes[:-1], sum(counts), size)), -2, -3)  # (..., heads, T, H)
    if len(counts) == 1:
        return [heads]
    sizes = [[*heads.sizes[:-3], count, *heads.sizes[-2:]] for count in counts]
    if num_sharing(r, heads) > 1 and len({*counts}) == 1:
        # In place of the beams' axis: else ONNX Runtime transposes each part and, with it, the whole cache.
        stacked = r.reshape(heads, (heads.sizes[0], len(counts), counts[0], *heads.sizes[-2:]))
        return r.split(stacked, len(counts), axis=1)
    parts = [np.array(counts)] if len({*counts}) > 1 else []
    return r.emit(
        "Split", heads, *parts, dtype=[heads.dtype] * len(counts), sizes=sizes, outputs=len(counts), axis=heads.ndim - 3
    )


def position_axis(r: Tracer, x: SymbolicTensor, keys: SymbolicTensor) -> int:
    """Tells the axis of positions: 1 for beams that share keys, because they are one sequence."""
    return 1 if num_sharing(r, keys) > 1 else -2


def num_sharing(r: Tracer, keys: SymbolicTensor) -> int:
    """Tells how many beams share keys: those (B, 1, G, S, H) of a cache, not those of a memory."""
    return r.num_sharing if keys.ndim == 5 else 1


def first_beams(r: Tracer, state: Nest) -> Nest:
    """Starts with one beam if beams can share keys.

    They can if all caches grow from all positions before the first step, and the vocabulary has continuations for all.

    `r.seen` (B, K, S) tells which of them a beam sees, those of the step among them, so nothing of the cache moves.
    """
    caches, (batch, num_beams) = keras.tree.flatten(state.cache["beams"]), state.token_ids.sizes
    lengths = [one.sizes[-2] for one in caches if one.ndim == 5]
    if len(lengths) < len(caches) or not 1 < num_beams <= r.num_tokens // 2:
        return state
    if not all(same(length, state.index if isinstance(state.index, SymbolicTensor) else 0) for length in lengths):
        return state
    r.num_sharing, r.num_alone = num_beams, lengths[0]
    r.seen = r.ones([batch, 1, r.add(lengths[0], 1)], "bool")
    one_beam = keras.tree.map_structure(lambda values: values[:, :1], state.cache["beams"])
    return state._replace(
        token_ids=state.token_ids[:, :1],
        live_ids=state.live_ids[:, :1],
        live_log_probs=state.live_log_probs[:, :1],
        cache={**state.cache, "beams": one_beam},
    )


def reorder_cache(r: Tracer, cache: Nest, beams: SymbolicTensor) -> Nest:
    """Moves what beams keep with the beams; of keys that they share, only notes which a beam sees."""
    if r.seen is None:
        return keras.tree.map_structure(lambda values: gather_beams(r, values, beams), cache)
    own = np.eye(r.num_sharing, dtype=bool)  # each beam sees its own key of the next step
    seen = gather_beams(r, r.seen, beams)
    r.seen = r.concatenate([seen, r.broadcast_to(own, [r.size(seen, 0), *own.shape])], axis=-1)
    return cache


def empty_cache(r: Tracer, shape: tuple, dtype: str) -> SymbolicTensor:
    """Makes a cache with no position, because it grows."""
    return r.zeros([*shape[:-2], 0, shape[-1]], dtype)


def extended(r: Tracer, cache: SymbolicTensor, new: SymbolicTensor, index: SymbolicTensor) -> SymbolicTensor:
    """Appends the new positions to a cache."""
    if num_sharing(r, cache) > 1 and not same(new.sizes[1], 1):
        raise r.untraceable("a step that makes each beam a sequence: take the axis that `position_axis` gives")
    if not index.ndim:
        return r.concatenate([cache, new], axis=-2)
    sizes = [*new.sizes[:-2], num_keys(r, cache, index), new.sizes[-1]]  # which all layers share
    return r.emit("Concat", cache, new, dtype=new.dtype, sizes=sizes, axis=new.ndim - 2)


def cached_positions(r: Tracer, keys: SymbolicTensor) -> SymbolicTensor:
    """Tells the position of each cached key; beams that share keys have several for a position."""
    return positions_of(r, r.arange(r.size(keys, -2)), num_sharing(r, keys))


def positions_of(r: Tracer, places: SymbolicTensor, num_beams: int) -> SymbolicTensor:
    """Maps keys that so many beams share to positions; the first step has one key, as all that was read before."""
    if num_beams == 1 or same(r.num_alone, 0):
        return r.floor_divide(r.add(places, num_beams - 1), num_beams)
    behind = r.maximum(r.subtract(places, r.num_alone), 0)
    return r.add(r.minimum(places, r.num_alone), r.floor_divide(r.add(behind, num_beams - 1), num_beams))


def key_positions(r: Tracer, keys: SymbolicTensor, index: SymbolicTensor) -> SymbolicTensor:
    """Tells the positions of all keys so far."""
    if not index.ndim:
        return last_positions(r, keys, index)
    last = r.max(r.concatenate([index, np.array([-1])], axis=0))  # also where there is none
    return r.subtract(last, counted(r, num_keys(r, keys, index), reverse=1, exclusive=1))


def num_keys(r: Tracer, keys: SymbolicTensor, index: SymbolicTensor) -> int | SymbolicTensor:
    """Counts the keys after a step of several positions."""
    return r.add(r.size(keys, -2), r.size(index, 0))


def last_positions(r: Tracer, keys: SymbolicTensor, index: SymbolicTensor, most: int | None = None) -> SymbolicTensor:
    """Tells the positions of the cached keys and of the step's at `index`, or of the last `most` of them."""
    num_beams = num_sharing(r, keys)
    seen = r.seen if num_beams > 1 else None
    if seen is not None and not same(r.num_alone, 0):
        return positions_of(r, r.arange(r.size(seen, -1)), num_beams)
    count = r.add(r.size(keys, -2), 1) if seen is None else r.size(seen, -1)
    count = count if most is None else r.minimum(count, most * num_beams)
    ages = r.floor_divide(counted(r, count, reverse=1, exclusive=1), num_beams)
    return r.subtract(r.cast(index, "int64"), ages)


def row_positions(r: Tracer, index: SymbolicTensor) -> SymbolicTensor:
    """Counts positions from where each row begins."""
    return index if r.starts is None else r.maximum(r.subtract(index, starts_before(r, 1)), 0)


def starts_before(r: Tracer, num_axes: int) -> SymbolicTensor:
    """Returns where rows begin, (B, 1, …), with so many axes behind. One node: a reshape would take two."""
    assert r.starts is not None
    axes, sizes = np.arange(1, num_axes + 1), [*r.starts.sizes, *[1] * num_axes]
    return r.emit("Unsqueeze", r.starts, axes, dtype=r.starts.dtype, sizes=sizes)


def extended_ring(
    r: Tracer, cache: SymbolicTensor, new: SymbolicTensor, index: SymbolicTensor, size: int
) -> SymbolicTensor:
    """Appends a position to a ring, and cuts it to the last ones."""
    most = size * num_sharing(r, cache)
    return r.part(extended(r, cache, new, index), (..., slice(-most, None), slice(None)))


def ring_of(r: Tracer, keys: SymbolicTensor, index: SymbolicTensor, size: int) -> SymbolicTensor:
    """Cuts keys to the last ones."""
    return r.part(keys, (..., slice(-size, None), slice(None)))


def ring_positions(r: Tracer, keys: SymbolicTensor, size: int, index: SymbolicTensor) -> SymbolicTensor:
    """Tells the positions of the last keys, in their order."""
    return last_positions(r, keys, index, size)


def cache_mask(
    r: Tracer, positions: SymbolicTensor, index: SymbolicTensor, size: int | None = None
) -> SymbolicTensor | None:
    """Tells which keys a beam may see: all its own, from where its row begins; of shared ones those of the beams that
    it continues."""
    if index.ndim:
        seen = causal_cache_mask(positions, index, size)
        if r.starts is None:
            return seen
        return r.logical_and(seen.whole, r.greater_equal(positions, starts_before(r, 3)))
    if r.seen is None:
        return None
    seen = r.expand_dims(r.seen, 1)
    return seen if size is None else r.part(seen, (..., slice(-size * r.num_sharing, None)))


def seen_softmax(r: Tracer, logits: SymbolicTensor, attention_mask: Operand | None) -> SymbolicTensor:
    """Hides keys and applies Softmax, in float16 too: inside, the operator computes in float32.

    A query that sees no key gets any scores.
    """
    logits = r.widened.get(logits.name, logits)
    if attention_mask is None:
        return r.softmax(logits)
    hidden = HIDDEN if logits.dtype == "float32" else HIDDEN_IN_HALF
    return r.softmax(r.add(logits, r.multiply(r.subtract(1.0, r.cast(attention_mask, logits.dtype)), hidden)))


def gather_beams(r: Tracer, values: SymbolicTensor, beams: Operand) -> SymbolicTensor:
    """Gathers the values of beams by an operator of ONNX."""
    places = r.as_type(beams, "int64")
    sizes = [*r.sizes_of(places), *values.sizes[2:]]
    if same(values.sizes[1], 1) and same(sizes[1], 1):
        return values
    if values.ndim == 2:
        return r.emit("GatherElements", values, places, dtype=values.dtype, sizes=sizes, axis=1)
    places = r.expand_dims(places, -1)
    return r.emit("GatherND", values, places, dtype=values.dtype, sizes=sizes, batch_dims=1)


OVERRIDES: dict[str, Write] = {
    write.__name__: write
    for write in (
        product, embedding_lookup, by_position, projected_heads, position_axis, first_beams, reorder_cache, empty_cache,
        extended, cached_positions, key_positions, row_positions, extended_ring, ring_of, ring_positions, cache_mask,
        seen_softmax, gather_beams,
    )
} | {"run_loop": run_loop_in_rounds}  # fmt: skip


def layer_norm(r: Tracer, layer: keras.layers.LayerNormalization, x: SymbolicTensor) -> SymbolicTensor:
    """Normalises by one operator, which computes in float32 inside."""
    _require_last_axis(r, layer, x)
    if not (layer.center and layer.scale):
        raise r.untraceable("a norm without a gain or a shift")
    whole = x.whole if same(x.whole.sizes[-1], x.sizes[-1]) else x
    gamma, beta = (r.array(weight, x.dtype) for weight in (layer.gamma, layer.beta))
    made = r.emit(
        "LayerNormalization",
        whole,
        gamma,
        beta,
        dtype=x.dtype,
        sizes=whole.sizes,
        axis=-1,
        epsilon=float(layer.epsilon),
    )
    return r.view(made, x.sizes)


def rms_norm(r: Tracer, layer: keras.layers.RMSNormalization, x: SymbolicTensor) -> SymbolicTensor:
    """Normalises in float32, in the order of nodes that ONNX Runtime finds and computes as one operator."""
    _require_last_axis(r, layer, x)
    whole = x.whole if same(x.whole.sizes[-1], x.sizes[-1]) else x
    wide = r.cast(whole, "float32")
    squares = r.mean(r.power(wide, 2.0), axis=-1, keepdims=True)
    root = r.sqrt(r.add(squares, float(layer.epsilon)))
    made = r.cast(r.multiply(r.divide(wide, root), r.array(layer.scale, "float32")), x.dtype)
    return r.view(made, x.sizes)


def _require_last_axis(r: Tracer, layer: keras.Layer, x: SymbolicTensor) -> None:
    axes = [layer.axis] if isinstance(layer.axis, int) else [*layer.axis]
    if [axis % x.ndim for axis in axes] != [x.ndim - 1]:
        raise r.untraceable("a norm over other axes than the last")


def dropout(r: Tracer, layer: keras.layers.Dropout, x: SymbolicTensor) -> SymbolicTensor:
    """Drops nothing."""
    return x


def dense(r: Tracer, layer: keras.layers.Dense, x: SymbolicTensor) -> SymbolicTensor:
    """Multiplies by the kernel, in int8 files too in float32: it is the head of a classifier."""
    y = r.matmul(x, r.array(layer.kernel, x.dtype))
    y = y if layer.bias is None else r.add(y, r.array(layer.bias, x.dtype))
    return activated(r, layer, y)


def activated(r: Tracer, layer: keras.Layer, x: SymbolicTensor) -> SymbolicTensor:
    """Applies the activation of a layer of Keras."""
    name = getattr(layer.activation, "__name__", repr(layer.activation))
    if name == "linear":
        return x
    if name not in ("relu", "tanh", "sigmoid", "silu", "softplus", "gelu"):
        raise r.untraceable(f"the activation {name} of a layer of Keras")
    return r.gelu(x, approximate=False) if name == "gelu" else getattr(r, name)(x)


def embedding(r: Tracer, layer: keras.layers.Embedding, x: SymbolicTensor) -> SymbolicTensor:
    """Looks the rows of ids up in the layer's table."""
    return r.cast(embedding_lookup(r, layer.embeddings, x), r.compute_dtype)


def conv_2d(r: Tracer, layer: keras.layers.Conv2D, x: SymbolicTensor) -> SymbolicTensor:
    """Convolves; ONNX has channels before pixels."""
    if layer.data_format != "channels_last" or layer.padding != "same":
        raise r.untraceable("a convolution other than with `same` padding and channels last")
    kernel = r.array(layer.kernel, x.dtype).transpose(3, 2, 0, 1)
    biases = [] if layer.bias is None else [r.array(layer.bias, x.dtype)]
    x = r.transpose(x, (0, 3, 1, 2))
    sizes = [x.sizes[0], kernel.shape[0], *x.sizes[2:]]
    if [*layer.strides] != [1, 1] or [*layer.dilation_rate] != [1, 1] or layer.groups != 1:
        raise r.untraceable("a convolution with strides, dilation or groups")
    y = r.emit("Conv", x, kernel, *biases, dtype=x.dtype, sizes=sizes, auto_pad="SAME_UPPER")
    return r.transpose(activated(r, layer, y), (0, 2, 3, 1))


KERAS_LAYERS: dict[type[keras.Layer], Write] = {
    keras.layers.LayerNormalization: layer_norm,
    LayerNorm: layer_norm,
    keras.layers.RMSNormalization: rms_norm,
    keras.layers.Dropout: dropout,
    keras.layers.Dense: dense,
    keras.layers.Embedding: embedding,
    keras.layers.Conv2D: conv_2d,
}
