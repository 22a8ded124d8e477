"""What the recorder does in its own way: the functions of `ops.overridable`, and the layers of Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.layers.attention_ops import HIDDEN, Projection, causal_cache_mask
from keras_transformer.layers.layer import LayerNorm

from .loops import run_loop_in_rounds
from .recorded import Recorded, Recorder, Size, same
from .shapes import counted

HIDDEN_IN_HALF = -6e4  # nearly the least number of float16


def product(r: Recorder, x: Recorded, weight: object, bias: object = None, transposed: bool = False) -> Recorded:
    """In the recorder's precision, on rows."""
    array = r.array(weight)
    array = r.derived(np.transpose, array) if transposed else array
    made = r.precision.product(r, r.rows(x), array, bias)
    return r.view(made, [*x.sizes[:-1], made.sizes[-1]])


def embedding_lookup(r: Recorder, table: object, ids: Recorded) -> Recorded:
    """In the recorder's precision, of ids in one row."""
    r.shape(ids)
    flat = r.reshape(ids, (-1,))
    made = r.precision.rows(r, r.array(table), flat)
    return r.view(made, [*ids.sizes, made.sizes[-1]])


def by_position(r: Recorder, function: Callable[[Any], object], positions: Recorded) -> Any:
    """By a table."""
    tables = r.computed(function, np.arange(r.num_positions))
    return keras.tree.map_structure(lambda table: r.take(table, positions, axis=0), tables)


def side_by_side(*kernels: np.ndarray) -> np.ndarray:
    """Several kernels as one."""
    return np.concatenate(kernels, axis=1)


def projected_heads(r: Recorder, x: Recorded, projections: Sequence[Projection]) -> list[Recorded]:
    """In one product."""
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


def position_axis(r: Recorder, x: Recorded, keys: Recorded) -> int:
    """Beams that share keys are one sequence."""
    return 1 if num_sharing(r, keys) > 1 else -2


def num_sharing(r: Recorder, keys: Recorded) -> int:
    """How many beams share keys: those (B, 1, G, S, H) of a cache, not those of a memory."""
    return r.num_sharing if keys.ndim == 5 else 1


def first_beams(r: Recorder, state: Any) -> Any:
    """One, if all caches grow from all positions before the first step, and the vocabulary has continuations for all.
    From then on beams share the keys.

    `r.seen` (B, K, S) tells which of them a beam sees, those of the step among them, so nothing of the cache moves.
    """
    caches, (batch, num_beams) = keras.tree.flatten(state.cache["beams"]), state.token_ids.sizes
    lengths = [one.sizes[-2] for one in caches if one.ndim == 5]
    if len(lengths) < len(caches) or not 1 < num_beams <= r.num_tokens // 2:
        return state
    if not all(same(length, state.index if isinstance(state.index, Recorded) else 0) for length in lengths):
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


def reorder_cache(r: Recorder, cache: object, beams: Recorded) -> Any:
    """Shared keys stay."""
    if r.seen is None:
        return keras.tree.map_structure(lambda values: gather_beams(r, values, beams), cache)
    own = np.eye(r.num_sharing, dtype=bool)  # each beam sees its own key of the next step
    seen = gather_beams(r, r.seen, beams)
    r.seen = r.concatenate([seen, r.broadcast_to(own, [r.size(seen, 0), *own.shape])], axis=-1)
    return cache


def empty_cache(r: Recorder, shape: tuple, dtype: str) -> Recorded:
    """With no position: it grows."""
    return r.zeros([*shape[:-2], 0, shape[-1]], dtype)


def extended(r: Recorder, cache: Recorded, new: Recorded, index: Recorded) -> Recorded:
    """Longer by a position."""
    if num_sharing(r, cache) > 1 and not same(new.sizes[1], 1):
        raise r.unrecordable("a step that makes each beam a sequence: take the axis that `position_axis` gives")
    if not index.ndim:
        return r.concatenate([cache, new], axis=-2)
    sizes = [*new.sizes[:-2], num_keys(r, cache, index), new.sizes[-1]]  # which all layers share
    return r.emit("Concat", cache, new, dtype=new.dtype, sizes=sizes, axis=new.ndim - 2)


def cached_positions(r: Recorder, keys: Recorded) -> Recorded:
    """A position has a key of each beam that shares them; the first step's has one, and so has what was read before."""
    return positions_of(r, r.arange(r.size(keys, -2)), num_sharing(r, keys))


def positions_of(r: Recorder, places: Recorded, num_beams: int) -> Recorded:
    """The positions of keys at such places in a cache that so many beams share."""
    if num_beams == 1 or same(r.num_alone, 0):
        return r.floor_divide(r.add(places, num_beams - 1), num_beams)
    behind = r.maximum(r.subtract(places, r.num_alone), 0)
    return r.add(r.minimum(places, r.num_alone), r.floor_divide(r.add(behind, num_beams - 1), num_beams))


def key_positions(r: Recorder, keys: Recorded, index: Recorded) -> Recorded:
    """All so far."""
    if not index.ndim:
        return last_positions(r, keys, index)
    last = r.max(r.concatenate([index, np.array([-1])], axis=0))  # also where there is none
    return r.subtract(last, counted(r, num_keys(r, keys, index), reverse=1, exclusive=1))


def num_keys(r: Recorder, keys: Recorded, index: Recorded) -> Size:
    """How many keys there are after a step of several positions."""
    return r.add(r.size(keys, -2), r.size(index, 0))


def last_positions(r: Recorder, keys: Recorded, index: Recorded, most: int | None = None) -> Recorded:
    """The positions of such keys and of those of the step at `index`, or the last of them, which are `most`."""
    num_beams = num_sharing(r, keys)
    if num_beams > 1 and not same(r.num_alone, 0):
        return positions_of(r, r.arange(r.size(r.seen, -1)), num_beams)
    count = r.size(r.seen, -1) if num_beams > 1 else r.add(r.size(keys, -2), 1)
    count = count if most is None else r.minimum(count, most * num_beams)
    ages = r.floor_divide(counted(r, count, reverse=1, exclusive=1), num_beams)
    return r.subtract(r.cast(index, "int64"), ages)


def extended_ring(r: Recorder, cache: Recorded, new: Recorded, index: Recorded, size: int) -> Recorded:
    """Longer by a position, and cut to the last."""
    most = size * num_sharing(r, cache)
    return r.part(extended(r, cache, new, index), (..., slice(-most, None), slice(None)))


def ring_of(r: Recorder, keys: Recorded, index: Recorded, size: int) -> Recorded:
    """The last of them."""
    return r.part(keys, (..., slice(-size, None), slice(None)))


def ring_positions(r: Recorder, keys: Recorded, size: int, index: Recorded) -> Recorded:
    """The last so far, in their order."""
    return last_positions(r, keys, index, size)


def cache_mask(r: Recorder, positions: Recorded, index: Recorded, size: int | None = None) -> Recorded | None:
    """Every beam sees all its keys. Among keys that beams share it sees those of the beams that it continues."""
    if index.ndim:
        return causal_cache_mask(positions, index, size)
    if r.seen is None:
        return None
    seen = r.expand_dims(r.seen, 1)
    return seen if size is None else r.part(seen, (..., slice(-size * r.num_sharing, None)))


def seen_softmax(r: Recorder, logits: Recorded, attention_mask: object) -> Recorded:
    """A query that sees no key gets any scores. Logits in float16 stay so: inside, the operator computes in float32."""
    logits = r.widened.get(logits.name, logits)
    if attention_mask is None:
        return r.softmax(logits)
    hidden = HIDDEN if logits.dtype == "float32" else HIDDEN_IN_HALF
    return r.softmax(r.add(logits, r.multiply(r.subtract(1.0, r.cast(attention_mask, logits.dtype)), hidden)))


def gather_beams(r: Recorder, values: Recorded, beams: object) -> Recorded:
    """By an operator of ONNX."""
    places = r.as_type(beams, "int64")
    sizes = [*r.sizes_of(places), *values.sizes[2:]]
    if same(values.sizes[1], 1) and same(sizes[1], 1):
        return values
    if values.ndim == 2:
        return r.emit("GatherElements", values, places, dtype=values.dtype, sizes=sizes, axis=1)
    places = r.expand_dims(places, -1)
    return r.emit("GatherND", values, places, dtype=values.dtype, sizes=sizes, batch_dims=1)


OVERRIDES: dict[str, Callable[..., Any]] = {
    way.__name__: way
    for way in (
        product, embedding_lookup, by_position, projected_heads, position_axis, first_beams, reorder_cache, empty_cache,
        extended, cached_positions, key_positions, extended_ring, ring_of, ring_positions, cache_mask, seen_softmax,
        gather_beams,
    )
} | {"run_loop": run_loop_in_rounds}  # fmt: skip


def layer_norm(r: Recorder, layer: keras.layers.LayerNormalization, x: Recorded) -> Recorded:
    """Which ONNX computes in float32 inside."""
    _require_last_axis(r, layer, x)
    if not (layer.center and layer.scale):
        raise r.unrecordable("a norm without a gain or a shift")
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


def rms_norm(r: Recorder, layer: keras.layers.RMSNormalization, x: Recorded) -> Recorded:
    """In float32, in the order of nodes in which ONNX Runtime finds it and computes it as one operator."""
    _require_last_axis(r, layer, x)
    whole = x.whole if same(x.whole.sizes[-1], x.sizes[-1]) else x
    wide = r.cast(whole, "float32")
    squares = r.mean(r.power(wide, 2.0), axis=-1, keepdims=True)
    root = r.sqrt(r.add(squares, float(layer.epsilon)))
    made = r.cast(r.multiply(r.divide(wide, root), r.array(layer.scale, "float32")), x.dtype)
    return r.view(made, x.sizes)


def _require_last_axis(r: Recorder, layer: Any, x: Recorded) -> None:
    axes = [layer.axis] if isinstance(layer.axis, int) else [*layer.axis]
    if [axis % x.ndim for axis in axes] != [x.ndim - 1]:
        raise r.unrecordable("a norm over other axes than the last")


def dropout(r: Recorder, layer: keras.layers.Dropout, x: Recorded) -> Recorded:
    """Which drops nothing here."""
    return x


def dense(r: Recorder, layer: keras.layers.Dense, x: Recorded) -> Recorded:
    """Not in int8: it is the head of a classifier."""
    y = r.matmul(x, r.array(layer.kernel, x.dtype))
    y = y if layer.bias is None else r.add(y, r.array(layer.bias, x.dtype))
    return activated(r, layer, y)


def activated(r: Recorder, layer: Any, x: Recorded) -> Recorded:
    """After the layer's activation."""
    name = getattr(layer.activation, "__name__", repr(layer.activation))
    if name == "linear":
        return x
    if name not in ("relu", "tanh", "sigmoid", "silu", "softplus", "gelu"):
        raise r.unrecordable(f"the activation {name} of a layer of Keras")
    return r.gelu(x, approximate=False) if name == "gelu" else getattr(r, name)(x)


def embedding(r: Recorder, layer: keras.layers.Embedding, x: Recorded) -> Recorded:
    """The rows of its table."""
    return r.cast(embedding_lookup(r, layer.embeddings, x), r.compute_dtype)


def conv_2d(r: Recorder, layer: keras.layers.Conv2D, x: Recorded) -> Recorded:
    """ONNX has channels before pixels."""
    if layer.data_format != "channels_last" or layer.padding != "same":
        raise r.unrecordable("a convolution other than with `same` padding and channels last")
    kernel = r.array(layer.kernel, x.dtype).transpose(3, 2, 0, 1)
    biases = [] if layer.bias is None else [r.array(layer.bias, x.dtype)]
    x = r.transpose(x, (0, 3, 1, 2))
    sizes = [x.sizes[0], kernel.shape[0], *x.sizes[2:]]
    if [*layer.strides] != [1, 1] or [*layer.dilation_rate] != [1, 1] or layer.groups != 1:
        raise r.unrecordable("a convolution with strides, dilation or groups")
    y = r.emit("Conv", x, kernel, *biases, dtype=x.dtype, sizes=sizes, auto_pad="SAME_UPPER")
    return r.transpose(activated(r, layer, y), (0, 2, 3, 1))


FORMS_OF_KERAS: dict[type, Callable[..., Any]] = {
    keras.layers.LayerNormalization: layer_norm,
    LayerNorm: layer_norm,
    keras.layers.RMSNormalization: rms_norm,
    keras.layers.Dropout: dropout,
    keras.layers.Dense: dense,
    keras.layers.Embedding: embedding,
    keras.layers.Conv2D: conv_2d,
}
