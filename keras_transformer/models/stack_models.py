"""Models tokens by one stack: the language model, the encoder of sequences, and their bases."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.layers.attention import keys_mask, padding_mask
from keras_transformer.layers.cache import row_positions
from keras_transformer.layers.layer import DType
from keras_transformer.layers.positions import Positions, PositionTerms, TokenEmbedding
from keras_transformer.layers.stack import Stack, StackCache
from keras_transformer.models.base import FamilyModel, Layers, as_layer, make_layers_of_one_stack
from keras_transformer.ops import Tensor
from keras_transformer.search.loop import merge_end_ids
from keras_transformer.spec.options import Config


class StackModel(FamilyModel):
    """The base of the models of one stack. A model of this base says what its vectors are made of.

    Args:
        arguments: the model's arguments, see `model_spec.KINDS`; and Keras's `name`, `dtype` and `trainable`.

    Raises:
        ValueError: an argument's value is not allowed, or two arguments contradict each other.
    """

    is_decoder = False  # whether no position sees a later one
    positions: Positions
    embedding_dropout: keras.layers.Dropout
    norm: keras.layers.Layer | None
    stack: Stack

    def __init__(self, arguments: Config):
        of_keras = {name: arguments.pop(name) for name in ("name", "dtype", "trainable") if name in arguments}
        super().__init__(arguments, **of_keras)
        self.num_layers = self._config["num_layers"]
        self.hidden_dim = self._config["hidden_dim"]
        for name, layer in self.make_layers(self._config, self.dtype_policy).items():
            setattr(self, name, layer)
        self.stack.is_of_model = True
        self._build_vectors()
        states = (None, None, self.hidden_dim)
        if self.norm is not None:
            self.norm.build(states)
        self.stack.build(states)
        self.built = True

    @classmethod
    def make_layers(cls, config: Config, dtype: DType) -> Layers:
        """Makes the layers of the model by their names in it, see `base.make_layers_of_one_stack`."""
        raise NotImplementedError

    @as_layer
    def states(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Computes the states (B, T, D) after all blocks, of what the model takes, such as ids (B, T)."""
        x, attention_mask, shared = self._stack_inputs(inputs, training)
        return self.stack(x, attention_mask, shared=shared, training=training)

    def attention_scores(self, inputs: dict[str, Tensor]) -> Tensor:
        """Computes the attention scores (layers, B, N, T, T), for inputs as `call` takes them."""
        x, attention_mask, shared = self._stack_inputs(*self.taken(inputs))
        return self.stack.with_scores(x, attention_mask, shared=shared)[1]["self"]

    def _stack_inputs(self, inputs: Tensor, training: bool = False) -> tuple[Tensor, Tensor | None, PositionTerms]:
        """Returns what the stack takes: vectors (B, T, D), the attention mask, and what positions add."""
        x = self._vectors(inputs)
        positions = ops.arange(ops.shape(x)[1])
        x = self.embedding_dropout(self._placed(x, positions), training=training)
        return x, self._attention_mask(inputs), self.stack.position_terms(self.positions, positions)

    def _placed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Adds positions to vectors, and norms them if the model has a norm there."""
        x = self.positions.embed(x, positions)
        return x if self.norm is None else self.norm(x)

    def _build_vectors(self) -> None:
        """Builds the layers that make vectors, and the positions."""
        raise NotImplementedError

    def _vectors(self, inputs: Tensor) -> Tensor:
        """Makes vectors (B, T, D) of what the model takes, without positions."""
        raise NotImplementedError

    def _attention_mask(self, inputs: Tensor) -> Tensor | None:
        """Booleans that broadcast to (B, T, T), True = visible; None hides nothing."""
        return None


class TokenModel(StackModel):
    """The base of the models of one stack that take ids (B, T), padded with 0.

    Args:
        vocabulary_size: V.
        context_length: the most positions of `call`.
        arguments: the others, see `model_spec.KINDS`; and Keras's `name`, `dtype` and `trainable`.

    Raises:
        ValueError: an argument's value is not allowed, or two arguments contradict each other.
    """

    embedding: TokenEmbedding
    output_embedding: TokenEmbedding

    def __init__(self, vocabulary_size: int, context_length: int = 256, **arguments: Any):
        super().__init__({"vocabulary_size": vocabulary_size, "context_length": context_length, **arguments})
        for name in ("vocabulary_size", "context_length", "num_control_ids"):
            setattr(self, name, self._config[name])

    def input_embedding(self) -> TokenEmbedding:
        """Returns the embedding of what the model takes."""
        # No property: Keras saves what properties give under their names, and files would have other names.
        return self.embedding

    def call(self, inputs: dict[str, Tensor], training: bool = False) -> Tensor:
        return self.output_embedding.logits(self.states(self.taken(inputs)[0], training=training))

    @classmethod
    def make_layers(cls, config: Config, dtype: DType) -> Layers:
        return make_layers_of_one_stack(config, dtype, cls.is_decoder)

    def _build_vectors(self) -> None:
        for layer in (self.embedding, self.positions, self.output_embedding):
            if not layer.built:
                layer.build((None, None))

    def _vectors(self, inputs: Tensor) -> Tensor:
        return self.embedding(inputs)

    def _attention_mask(self, inputs: Tensor) -> Tensor:
        return keys_mask(padding_mask(inputs))  # (B, 1, T)


@keras.saving.register_keras_serializable(package="keras_transformer")
class LanguageModel(TokenModel):
    """Predicts each token of a text from those before it (Liu et al. 2018, arXiv 1801.10198, section 4.2.2).

    Ids: pad 0, unknown 1, start 2, end 3. A text begins with the start id.

    Args:
        vocabulary_size: V.
        context_length: the most positions of `call`, the start included.
        arguments: the others of `Transformer` but those of two stacks, see `ONE_STACK` in
            `keras_transformer.spec.model_spec`; and `end_ids`, the ids that end a text: 3, or several as `[3, 7]`.

    Call arguments:
        inputs: {"ids": (B, T)}, integers, padded with 0.

    Returns:
        Logits (B, T, V) of the token that follows each position.

    Raises:
        ValueError: an argument is unknown, its value is not allowed, or two arguments contradict each other.

    Example:

    >>> model = LanguageModel(vocabulary_size=90, num_layers=4, hidden_dim=128, num_heads=4, intermediate_dim=512)
    >>> tuple(model({"ids": np.array([[2, 7, 8]])}).shape)
    (1, 3, 90)
    """

    is_decoder = True

    def __init__(self, vocabulary_size: int, context_length: int = 256, **arguments: Any):
        super().__init__(vocabulary_size, context_length, **arguments)
        self.end_ids: int | list[int] = self._config["end_ids"]

    def init_cache(self, ids: Tensor, num_beams: int, max_length: int) -> StackCache:
        """Returns the cache of `step` at position 0.

        Args:
            ids: (B, ...), of the batch to decode.
            num_beams: K.
            max_length: L, the number of positions that can be decoded.

        Returns:
            "beams" holds the cache of each layer's self-attention, by default keys and values (B, K, G, L, H).
        """
        return self.stack.init_cache(ids, num_beams, max_length)

    @property
    def supports_prefill(self) -> bool:
        """Whether `step` takes several positions of a prompt: all attentions do, and how many may depend on the prompt,
        as it may not in what JAX compiles."""
        return self.stack.supports_prefill and (ops.back_end() is not None or keras.config.backend() != "jax")

    def step(self, token_ids: Tensor, cache: StackCache, index: Tensor) -> tuple[Tensor, StackCache]:
        """Decodes one position of every beam; or the first positions of one beam at once, see `supports_prefill`.

        Args:
            token_ids: (B, K), the tokens at position `index`, at index 0 start ids; or (B, T), those at T positions.
            cache: from `init_cache`, or from the previous step.
            index: the position from 0, a number or a scalar tensor; or (T,), the first T of them: the cache is empty.

        Returns:
            Logits (B, K or T, V) of the tokens at `index` + 1, in float32; and the cache with `index` in it. The end
            id, 3, has the probability of all ids that end a text, and the others of these have none.
        """
        index = ops.convert_to_tensor(index)
        shared = self.stack.position_terms_at(self.positions, cache, index)
        x = self._placed(self.embedding(token_ids), row_positions(index))
        x, cache = self.stack.step(x, cache, None, index, shared)
        return merge_end_ids(ops.cast(self.output_embedding.logits(x), "float32"), self.end_ids), cache


@keras.saving.register_keras_serializable(package="keras_transformer")
class SequenceEncoder(TokenModel):
    """Makes a vector of a history of items, and predicts the next item after each of them.

    Ids: pad 0, unknown 1, start 2, end 3; the items follow. A history begins with the start id. The logit of an item is
    the inner product of the history's vector and the item's (Kang and McAuley 2018, SASRec, arXiv 1808.09781, section
    3.4: one matrix for input and output).

    Unlike in SASRec, a history is padded at its end, positions count from its start, and training takes the cross
    entropy over all items in place of one drawn negative item.

    Args:
        vocabulary_size: V, the items and the control ids.
        context_length: the most positions of `call`, the start included.
        arguments: the others of `Transformer` but those of two stacks; see `ONE_STACK` in
            `keras_transformer.spec.model_spec`.

    Call arguments:
        inputs: {"ids": (B, T)}, integers, padded with 0.

    Returns:
        Logits (B, T, V) of the item that follows each position.

    Raises:
        ValueError: an argument is unknown, its value is not allowed, or two arguments contradict each other.

    Example:

    >>> model = SequenceEncoder(vocabulary_size=90, num_layers=2, hidden_dim=64, num_heads=2, intermediate_dim=128)
    >>> tuple(model.embed(np.array([[2, 7, 8]])).shape)
    (1, 64)
    """

    is_decoder = True

    @as_layer
    def embed(self, ids: Tensor, training: bool = False) -> Tensor:
        """Returns the vector (B, D) of each history (B, T): the state of its last position, float32."""
        return ops.cast(self._last_states(ids, training), "float32")

    @as_layer
    def scores(self, ids: Tensor, training: bool = False) -> Tensor:
        """Returns logits (B, V) of the item that follows each history (B, T), float32."""
        return ops.cast(self.output_embedding.logits(self._last_states(ids, training)), "float32")

    def item_vectors(self) -> Tensor:
        """Returns the vectors (items, D) of all items, float32."""
        return ops.convert_to_tensor(self.output_embedding.embeddings)[self.num_control_ids :]

    def _last_states(self, ids: Tensor, training: bool) -> Tensor:
        lengths = ops.sum(ops.cast(padding_mask(ids), "int32"), axis=1)
        last = ops.maximum(lengths - 1, 0)[:, None, None]  # (B, 1, 1)
        return ops.take_along_axis(self.states(ids, training=training), last, axis=1)[:, 0]
