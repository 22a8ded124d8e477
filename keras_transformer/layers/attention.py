"""Computes multi-head attention (paper, section 3.2), and the masks of what it may see: booleans, True = visible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

import keras

from keras_transformer import ops
from keras_transformer.core.errors import require_positive, require_rates
from keras_transformer.layers.cache import (
    Cache,
    KeysValues,
    Size,
    cache_mask,
    empty_cache,
    extended,
    is_prefill,
    key_positions,
    position_axis,
)
from keras_transformer.layers.layer import Dropout, Layer, LayerArguments, Shape, glorot, make_part
from keras_transformer.layers.positions import Positions, PositionTerms, rotate
from keras_transformer.layers.score import HIDDEN, scaled_dot
from keras_transformer.ops import Tensor
from keras_transformer.spec.options import PartConfig


def padding_mask(ids: Tensor, pad_token_id: int = 0) -> Tensor:
    """Marks real tokens by True, padding by False: ids (B, S) → (B, S)."""
    return ops.not_equal(ids, pad_token_id)


def real_labels(labels: Tensor) -> Tensor:
    """Marks the labels that count: labels (B,) of whole rows all do; of labels (B, T) of tokens, 0 is padding."""
    return padding_mask(labels) if len(labels.shape) > 1 else ops.ones_like(labels, "bool")


def causal_mask(length: Size) -> Tensor:
    """Returns (1, T, T), True where query t sees key s, which is s ≤ t (paper, 3.2.3)."""
    positions = ops.arange(length)
    return (positions[None, :] <= positions[:, None])[None]


def keys_mask(mask: Tensor) -> Tensor:
    """Hides padded keys from every query: padding mask (B, S) → attention mask (B, 1, S)."""
    return ops.expand_dims(mask, 1)  # not `mask[:, None]`: LiteRT cannot slice booleans


def joint_mask(attention_mask: Tensor | None, memory_mask: Tensor | None) -> Tensor | None:
    """Combines an attention mask, which broadcasts to (B, T, S), and a padding mask (B, S)."""
    return combined_masks(attention_mask, None if memory_mask is None else keys_mask(memory_mask))


def combined_masks(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Combines two attention masks: a key is visible if both show it. None hides nothing."""
    if mask is None or other is None:
        return other if mask is None else mask
    check_mask(other.shape)
    return ops.logical_and(mask, other)


def check_mask(shape: Sequence[int | None]) -> None:
    """Raises ValueError if an attention mask has not three axes: it would broadcast in another way than is meant."""
    if len(shape) != 3:
        raise ValueError(
            "`attention_mask` must have three axes, (B, T, S) or what broadcasts to it: give a padding mask (B, S) as "
            "`keras_transformer.layers.keys_mask(mask)`, a mask (T, S) for all sentences as `mask[None]`. "
            f"Received the shape {tuple(shape)}"
        )


class SelfAttention(Layer):
    """The base of self-attentions. By itself it asks for what an attention of all pairs of positions needs.

    An attention of few pairs overrides both members. Then nothing is made that is as large as all pairs.
    """

    needs_causal_mask = True  # whether a block that decodes hides later positions from it by a mask
    supports_prefill = False  # whether `step` takes several positions of a prompt

    def bias_of(self, positions: Positions, at: Tensor, is_causal: bool) -> Tensor | None:
        """Returns the bias of positions in the form in which this attention adds it to the logits of whole sequences.

        Args:
            positions: the layer.
            at: the positions (S,) of a sequence: 0, 1, 2, …
            is_causal: whether no position sees a later one.

        Returns:
            (N, S, S) float32; None for no bias.
        """
        return positions.bias(at, at, is_causal)


def attention_scores(query: Tensor, key: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Computes softmax(Q Kᵀ / √H) in float32 (paper, equation 1).

    The score of a hidden key is exactly 0. If a query sees no key, its scores are 0, not NaN.

    Args:
        query: (..., T, H).
        key: (..., S, H).
        attention_mask: booleans that broadcast to (..., T, S), True = visible. None hides nothing.

    Returns:
        (..., T, S), of the type of `query`.
    """
    return ops.cast(masked_softmax(scaled_dot(query, key), attention_mask), query.dtype)


def masked_softmax(logits: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Logits (..., T, S) in float32 → scores. Hidden keys have 0, and so has every key of a query that sees none."""
    if attention_mask is None:
        return _softmax(logits)
    seen = ops.cast(attention_mask, "float32")
    return _softmax(logits + (1.0 - seen) * HIDDEN) * seen


@ops.overridable
def seen_softmax(logits: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Computes `masked_softmax` where every query that counts sees a key: an export may give others any scores."""
    return masked_softmax(logits, attention_mask)


def _softmax(logits: Tensor) -> Tensor:
    # Keras warns of a softmax over one element. Here that is a single key, such as the start token, and the score is 1.
    return 0.0 * logits + 1.0 if logits.shape[-1] == 1 else ops.softmax(logits)


class Projection(NamedTuple):
    """A projection of states to heads."""

    kernel: Tensor  # (D, N·H)
    bias: Tensor | None  # (N·H,)
    num_heads: int  # N


@ops.overridable
def projected_heads(x: Tensor, projections: Sequence[Projection]) -> list[Tensor]:
    """Projects states (..., T, D) to heads (..., N, T, H) of each projection. An export may join the products."""
    sizes = ops.shape(x)[:-1]
    return [split_heads(ops.product(x, kernel, bias), num_heads, sizes) for kernel, bias, num_heads in projections]


def split_heads(x: Tensor, num_heads: int, sizes: Sequence[Size] | None = None) -> Tensor:
    """Splits heads: (..., T, N·H) → (..., N, T, H).

    tf2onnx, by which Keras exports to ONNX, loses a reshape to its input's own sizes, and one that moves an axis of
    size 1. So `sizes`, (..., T), come from another tensor where the input is a product, and one head moves no axis.
    """
    if num_heads == 1:
        return ops.expand_dims(x, -3)
    x = ops.reshape(x, (*(sizes or ops.shape(x)[:-1]), num_heads, x.shape[-1] // num_heads))  # (..., T, N, H)
    return ops.swapaxes(x, -2, -3)


def joined_heads(x: Tensor) -> Tensor:
    """Joins heads: (..., N, T, H) → (..., T, N·H)."""
    if x.shape[-3] == 1:
        return ops.squeeze(x, -3)
    x = ops.swapaxes(x, -2, -3)  # (..., T, N, H)
    return ops.reshape(x, (*ops.shape(x)[:-2], x.shape[-2] * x.shape[-1]))


def grouped(x: Tensor, num_groups: int) -> Tensor:
    """Makes the query heads of a group more queries of its one key head: (..., N, T, H) → (..., G, N/G·T, H).

    So a product with keys (..., G, S, H) needs no copies of them.
    """
    *batch, num_heads, length, size = ops.shape(x)
    if num_heads == num_groups:
        return x
    return ops.reshape(x, (*batch, num_groups, num_heads // num_groups * length, size))


def ungrouped(x: Tensor, num_heads: int, length: Size) -> Tensor:
    """Inverts `grouped`: (..., G, N/G·T, S) → (..., N, T, S); `length` is T."""
    *batch, num_groups, _, size = ops.shape(x)
    return x if num_heads == num_groups else ops.reshape(x, (*batch, num_heads, length, size))


class AttentionInputs(NamedTuple):
    """The call arguments of `MultiHeadAttention`."""

    query: Tensor
    memory: Tensor
    attention_mask: Tensor | None
    memory_mask: Tensor | None
    shared: PositionTerms | None


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(SelfAttention):
    """Multi-head attention: projects D to N heads of H, attends in each, projects the joined heads to D (paper, 3.2.2).

    The paper's W^Q, W^K, W^V and W^O are the weights `query`, `key`, `value` and `output`, by default without biases.
    The tests compare this layer with Keras's own, which has biases and three-dimensional kernels.

    Keys and values may have fewer heads, G: each serves a group of N/G query heads. G = 1 is multi-query attention
    (Shazeer 2019, arXiv 1911.02150), other G are grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245).

    Args:
        num_heads: N, the paper's h.
        key_dim: H, the paper's d_k = d_v. N·H may differ from D.
        dropout: rate on the scores in training.
        score: the function that scores a query against a key, a part.
        use_bias: whether each of the four projections has a bias.
        inner_norm: the norm of the joined heads before W^O, a part; None for no norm.
        gain: factor on the initial W^V and W^O.
        num_key_value_heads: G, a divisor of N; by default N.

    Call arguments:
        query: (B, T, D).
        memory: (B, S, D), the source of keys and values. In self-attention it is `query`.
        attention_mask: booleans of three axes that broadcast to (B, T, S); True = visible.
        memory_mask: booleans (B, S), True = visible to every query. If `memory` carries a Keras mask, as after
            `Embedding(mask_zero=True)`, that is the default. The output carries the mask of `query`.
        shared: the bias and the rotation of positions in self-attention.

    Returns:
        (B, T, D).

    Raises:
        ValueError: a size is not positive, G does not divide N, a rate is not at least 0 and less than 1, or an input
            has the wrong number of axes.

    Example:

    >>> layer = MultiHeadAttention(num_heads=8, key_dim=64)
    >>> x = keras.random.normal((2, 5, 512))
    >>> tuple(layer(x, x).shape)
    (2, 5, 512)
    """

    # Back ends may override these. A subclass has others, if its cache or its queries do not allow these.
    _empty_cache = staticmethod(empty_cache)
    _softmax = staticmethod(seen_softmax)

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        dropout: float = 0.0,
        score: PartConfig = "scaled_dot",
        use_bias: bool = False,
        inner_norm: PartConfig | None = None,
        gain: float = 1.0,
        num_key_value_heads: int | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**kwargs)
        require_positive(num_heads=num_heads, key_dim=key_dim, num_key_value_heads=num_key_value_heads)
        if num_heads % (num_key_value_heads or num_heads):
            raise ValueError(
                "`num_key_value_heads` must divide `num_heads`. "
                f"Received: num_key_value_heads={num_key_value_heads}, num_heads={num_heads}"
            )
        require_rates(dropout=dropout)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.dropout = dropout
        self.score_config = score
        self.use_bias = use_bias
        self.inner_norm_config = inner_norm
        self.gain = gain
        self.num_key_value_heads = num_key_value_heads
        self.num_groups = num_key_value_heads or num_heads
        self.supports_masking = True
        sizes = {"num_heads": num_heads, "key_dim": key_dim}
        self.score = make_part("score", score, self.dtype_policy, sizes)
        self.scores_dropout = Dropout(dropout, dtype=self.dtype_policy)
        self.inner_norm = None if inner_norm is None else make_part("norm", inner_norm, self.dtype_policy, sizes)

    def build(self, query_shape: tuple, memory_shape: tuple | None = None, **_: tuple) -> None:
        query_dim, memory_dim = query_shape[-1], (memory_shape or query_shape)[-1]
        heads_dim, groups_dim = self.num_heads * self.key_dim, self.num_groups * self.key_dim
        self.query_kernel, self.query_bias = self._projection("query", query_dim, heads_dim)
        if self.score.compares_keys:
            self.key_kernel, self.key_bias = self._projection("key", memory_dim, groups_dim)
        self.value_kernel, self.value_bias = self._projection("value", memory_dim, groups_dim, self.gain)
        if not self.score.compares_keys:  # values stand in for keys, so that their number is known
            self.key_kernel, self.key_bias = self.value_kernel, self.value_bias
        self.output_kernel, self.output_bias = self._projection("output", heads_dim, query_dim, self.gain)
        if not self.score.built:
            heads = (None, self.num_heads, None, self.key_dim)
            self.score.build(heads, heads)
        if self.inner_norm is not None:
            self.inner_norm.build((None, None, heads_dim))

    def call(
        self,
        query: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        shared: PositionTerms | None = None,
        training: bool = False,
    ) -> Tensor:
        inputs = AttentionInputs(query, memory, attention_mask, memory_mask, shared)
        return self._output_and_scores(inputs, training)[0]

    def with_scores(
        self,
        query: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        shared: PositionTerms | None = None,
        training: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Returns the output of `call`, and the scores (B, N, T, S) of all pairs of positions."""
        inputs = AttentionInputs(query, memory, attention_mask, memory_mask, shared)
        output, scores = self._output_and_scores(inputs, training)
        return output, self._scores_of_pairs(scores, inputs)

    def _scores_of_pairs(self, scores: Tensor, inputs: AttentionInputs) -> Tensor:
        """Makes scores (B, N, T, S) of all pairs of positions from those of `_output_and_scores`."""
        return scores

    def _output_and_scores(self, inputs: AttentionInputs, training: bool) -> tuple[Tensor, Tensor]:
        """Returns the output (B, T, D), and the scores in the form in which this attention computes them."""
        return self._attend(*self._projected(inputs), inputs.shared, training)

    def _projected(self, inputs: AttentionInputs) -> tuple[Tensor, KeysValues, Tensor | None]:
        """Projects a query (B, N, T, H), keys and values (B, N, S, H), and combines the masks."""
        query, memory, attention_mask, memory_mask, shared = inputs
        mask_shapes = [None if mask is None else mask.shape for mask in (attention_mask, memory_mask)]
        _check_axes(query.shape, memory.shape, *mask_shapes)
        attention_mask = joint_mask(attention_mask, ops.keras_mask(memory) if memory_mask is None else memory_mask)
        if query is memory:
            return *self.project_both(query, shared), attention_mask
        keys_values = self.project_memory(memory, shared)
        return self.project_query(query, shared), keys_values, attention_mask

    @property
    def supports_prefill(self) -> bool:  # type: ignore[override]
        """Whether `step` takes several positions of a prompt. A subclass with another step says so itself."""
        return type(self).step is MultiHeadAttention.step

    def init_cache(self, batch_size: Size, num_beams: int, max_length: Size) -> Cache:
        """Returns the empty cache of `step`: keys and values (B, K, G, L, H), L = `max_length`.

        Another attention may return any nest of tensors (B, K, ...).
        """
        shape = (batch_size, num_beams, self.num_groups, max_length, self.key_dim)
        return KeysValues(*(self._empty_cache(shape, dtype=self.compute_dtype) for _ in KeysValues._fields))

    def key_positions(self, cache: Cache, index: Tensor) -> Tensor:
        """Returns the positions (S,) of the keys that the step at `index` sees; negative where there is none yet."""
        return key_positions(cache.keys, index)

    def step(self, x: Tensor, cache: Cache, index: Tensor, shared: PositionTerms | None = None) -> tuple[Tensor, Cache]:
        """Computes self-attention at one position of K beams; or at several positions of one, see `supports_prefill`.

        Args:
            x: (B, K, D), the states of the beams at `index`; or (B, T, D), those of one beam at T positions.
            cache: from `init_cache`, or from the previous step.
            index: the position, from 0; or (T,), the first T of them, and the cache is empty.
            shared: the bias (N, 1 or T, S) of the keys that `key_positions` lists, and the rotation of `index`.

        Returns:
            (B, K or T, D), and the cache with `index` in it.
        """
        axis = 1 if is_prefill(index) else position_axis(x, cache.keys)
        x = ops.expand_dims(x, axis)  # (B, K, 1, D)
        query, new = self.project_both(x, shared)  # keys and values (B, K, G, 1, H)
        visible = self._visible(self.key_positions(cache, index), index)
        seen = KeysValues(*(self._extended(*pair, index) for pair in zip(cache, new, strict=True)))
        x, _ = self._attend(query, seen, visible, shared)
        return ops.squeeze(x, axis), KeysValues(*(self._cached(each, index) for each in seen))

    def _extended(self, cache: Tensor, new: Tensor, index: Tensor) -> Tensor:
        """Returns keys or values (..., L, H) with the new ones (..., 1, H) of the position `index`."""
        return extended(cache, new, index)

    def _cached(self, seen: Tensor, index: Tensor) -> Tensor:
        """Returns what a cache keeps of the keys or values (..., S, H) that the step at `index` saw."""
        return seen

    def _visible(self, positions: Tensor, index: Tensor) -> Tensor | None:
        """Returns the mask of keys at positions (S,) for the step at `index`, see `cache_mask`."""
        return cache_mask(positions, index)

    def attend_memory(self, x: Tensor, memory: KeysValues, memory_mask: Tensor) -> Tensor:
        """Computes encoder-decoder attention at one position: (B, K, D) → (B, K, D).

        Args:
            x: (B, K, D), the states of the beams.
            memory: from `project_memory`.
            memory_mask: booleans (B, 1, S).
        """
        return self.attend_memory_with_scores(x, memory, memory_mask)[0]

    def attend_memory_with_scores(self, x: Tensor, memory: KeysValues, memory_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what `attend_memory` returns, and the scores (B, N, K, S)."""
        # The beams are the queries of their sentence: (B, K, D) is (B, T, D) with T = K.
        return self._attend(self.project_query(x), memory, memory_mask)

    def project_query(self, query: Tensor, shared: PositionTerms | None = None) -> Tensor:
        """Projects queries: (B, T, D) → (B, N, T, H)."""
        (query,) = projected_heads(query, [self._query_projection()])
        return _rotated_query(query, shared)

    def project_memory(self, memory: Tensor, shared: PositionTerms | None = None) -> KeysValues:
        """Projects keys and values: (B, S, D) → each (B, G, S, H). Decoding does so once per sentence."""
        keys, values = projected_heads(memory, self._memory_projections())
        return KeysValues(_rotated_keys(keys, shared), values)

    def project_both(self, x: Tensor, shared: PositionTerms | None = None) -> tuple[Tensor, KeysValues]:
        """Returns `project_query` and `project_memory` of the same states."""
        keys, values, query = projected_heads(x, [*self._memory_projections(), self._query_projection()])
        return _rotated_query(query, shared), KeysValues(_rotated_keys(keys, shared), values)

    def _query_projection(self) -> Projection:
        return Projection(self.query_kernel, self.query_bias, self.num_heads)

    def _memory_projections(self) -> list[Projection]:
        keys, values = (self.key_kernel, self.key_bias), (self.value_kernel, self.value_bias)
        return [Projection(*each, self.num_groups) for each in (keys, values)]

    def _attend(
        self,
        query: Tensor,
        memory: KeysValues,
        attention_mask: Tensor | None,
        shared: PositionTerms | None = None,
        training: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Attends with a query (..., N, T, H) to (..., G, S, H): the output (..., T, D), and scores (..., N, T, S)."""
        length = ops.shape(query)[-2]
        logits = ungrouped(self.score(grouped(query, self.num_groups), memory.keys), self.num_heads, length)
        if shared is not None and shared.bias is not None:
            logits = ops.add(logits, shared.bias)
        mask = None if attention_mask is None else ops.expand_dims(attention_mask, -3)  # for every head
        scores = ops.cast(self._softmax(logits, mask), self.compute_dtype)
        weights = self.scores_dropout(scores, training=training)
        heads = ungrouped(ops.matmul(grouped(weights, self.num_groups), memory.values), self.num_heads, length)
        joined = joined_heads(heads)
        joined = joined if self.inner_norm is None else self.inner_norm(joined)
        return ops.product(joined, self.output_kernel, self.output_bias), scores

    def _projection(self, name: str, inputs: int, outputs: int, gain: float = 1.0) -> tuple[Tensor, Tensor | None]:
        # The kernel has two axes, so that Glorot's fans are D and N·H. Those of a (D, N, H) kernel would be wrong.
        kernel = self.add_weight(name=name, shape=(inputs, outputs), initializer=glorot(gain))
        if not self.use_bias:
            return kernel, None
        return kernel, self.add_weight(name=f"{name}_bias", shape=(outputs,), initializer="zeros")

    def compute_output_shape(
        self,
        query_shape: Shape,
        memory_shape: Shape,
        attention_mask_shape: Shape | None = None,
        memory_mask_shape: Shape | None = None,
        shared_shape: None = None,
    ) -> Shape:
        _check_axes(query_shape, memory_shape, attention_mask_shape, memory_mask_shape)
        return query_shape


def _rotated_query(query: Tensor, shared: PositionTerms | None) -> Tensor:
    rotation = None if shared is None else shared.rotation
    return query if rotation is None else rotate(query, rotation.query_cosines, rotation.query_sines)


def _rotated_keys(keys: Tensor, shared: PositionTerms | None) -> Tensor:
    rotation = None if shared is None else shared.rotation
    return keys if rotation is None else rotate(keys, rotation.key_cosines, rotation.key_sines)


def _check_axes(query: Shape, memory: Shape, attention_mask: Shape | None, memory_mask: Shape | None) -> None:
    """Raises ValueError if a shape has the wrong number of axes. Backends would broadcast it, or fail obscurely."""
    for name, shape, axes in (("query", query, "(B, T, D)"), ("memory", memory, "(B, S, D)")):
        if len(shape) != 3:
            raise ValueError(f"`{name}` must have three axes, {axes}. Received the shape {tuple(shape)}")
    if attention_mask is not None:
        check_mask(attention_mask)
    if memory_mask is not None and len(memory_mask) != 2:
        raise ValueError(f"`memory_mask` must have two axes, (B, S). Received the shape {tuple(memory_mask)}")
