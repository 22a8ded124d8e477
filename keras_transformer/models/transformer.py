"""Defines the Transformer (Vaswani et al. 2017, arXiv 1706.03762), and several that decode as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, Unpack

import keras

from keras_transformer import ops
from keras_transformer.layers.attention import keys_mask, padding_mask
from keras_transformer.layers.cache import Cache, Size
from keras_transformer.layers.layer import LayerArguments
from keras_transformer.layers.positions import Positions, PositionTerms, TokenEmbedding
from keras_transformer.layers.stack import Stack, StackCache
from keras_transformer.models.base import FamilyModel, as_layer, make_layers
from keras_transformer.ops import Tensor
from keras_transformer.spec import model_spec, part_registry
from keras_transformer.spec.options import Config, PartConfig

# A name, a class of your own, or a dictionary of name and options.
PartGiven: TypeAlias = PartConfig | type


DEEP = 6  # layers


class AlignmentHeads(NamedTuple):
    """The heads whose mean attention is an alignment."""

    layer: int  # of the decoder, from 0
    heads: tuple[int, ...]


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(FamilyModel):
    """The encoder-decoder of "Attention Is All You Need", by default in the paper's base size.

    The paper's N is `num_layers`, h `num_heads`, d_model `hidden_dim`, d_ff `intermediate_dim`, d_k `key_dim`. The
    constructor makes all weights. Ids: pad 0, unknown 1, start 2, end 3. A part is a name, or a dictionary of its name
    and options. `keras_transformer.spec.model_spec` lists the parts.

    Args:
        vocabulary_size: V of source, target and output, which share one matrix (paper, 3.4).
        num_layers: blocks in the encoder, and in the decoder.
        num_heads: N, the heads of each attention.
        hidden_dim: D. Sinusoidal positions need an even D.
        intermediate_dim: F.
        dropout: rate on each sub-layer's output and on the sums of embedding and position (paper, 5.4).
        key_dim: H; by default D / N.
        attention_dropout: rate on the attention scores.
        source_vocabulary_size: V of the source if it has its own vocabulary. Target and output share theirs.
        max_source_length: the longest source in pieces, without its end. The translator cuts longer text.
        encoder_layers, decoder_layers: blocks in each stack; by default `num_layers`.
        positions: how the model knows the positions of tokens, a part.
        attention: the self-attention of encoder and decoder, a part.
        decoder_attention: the self-attention of the decoder, a part; by default `attention`.
        score, residual, norm, feed_forward, activation, stack: parts. A part is a name, a dictionary of name and
            options, or a class of your own, see `register_part`.
        attention_bias: whether the projections of attention have biases.
        output_bias: whether the logits have a bias.
        fixed_output_bias: whether training leaves that bias as it is.
        tied_output: False gives the output its own matrix.
        embedding_scale: the factor on embeddings; by default √D.
        embedding_norm: whether a norm follows the sum of embedding and position.
        num_control_ids: the number of ids that are not text: the four above, then others. No translation holds them.

    Call arguments:
        inputs: {"source_ids": (B, S), "target_ids": (B, T)}, integers. A source ends with the end id. A target begins
            with the start id. Both are padded with 0.

    Returns:
        Logits (B, T, V) of the token that follows each target position.

    Raises:
        ValueError: an argument's value is not allowed, or two arguments contradict each other.

    Example:

    >>> model = Transformer(vocabulary_size=37_000)
    >>> inputs = {"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}
    >>> tuple(model(inputs).shape)
    (1, 2, 37000)
    """

    takes = ("source_ids", "target_ids")
    vocabulary_size: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    intermediate_dim: int
    dropout: float
    attention_dropout: float
    source_vocabulary_size: int | None
    max_source_length: int
    num_control_ids: int
    positions: Positions
    source_embedding: TokenEmbedding
    target_embedding: TokenEmbedding
    output_embedding: TokenEmbedding
    source_norm: keras.layers.Layer | None
    target_norm: keras.layers.Layer | None
    embedding_dropout: keras.layers.Dropout
    encoder_stack: Stack
    decoder_stack: Stack

    # A test compares the defaults with those of `model_spec.ARGUMENTS`.
    def __init__(
        self,
        vocabulary_size: int, num_layers: int = 6, num_heads: int = 8, hidden_dim: int = 512,
        intermediate_dim: int = 2048, dropout: float = 0.1, key_dim: int | None = None,
        attention_dropout: float = 0.0, source_vocabulary_size: int | None = None, max_source_length: int = 512,
        *,
        encoder_layers: int | None = None, decoder_layers: int | None = None,
        positions: PartGiven = "sinusoidal", attention: PartGiven = "full",
        decoder_attention: PartGiven | None = None, score: PartGiven = "scaled_dot",
        residual: PartGiven = "post_norm", norm: PartGiven = "layer", feed_forward: PartGiven = "plain",
        activation: PartGiven = "relu", stack: PartGiven = "layers",
        attention_bias: bool = False, output_bias: bool = False, fixed_output_bias: bool = False,
        tied_output: bool = True, embedding_scale: float | None = None, embedding_norm: bool = False,
        num_control_ids: int = 4,
        **kwargs: Unpack[LayerArguments],
    ):  # fmt: skip
        given = locals()
        super().__init__({name: given[name] for name in model_spec.ARGUMENTS}, **kwargs)
        self._set_sizes()
        for name, layer in make_layers(self._config, self.dtype_policy).items():
            setattr(self, name, layer)
        self.encoder_stack.is_of_model = self.decoder_stack.is_of_model = True
        self._build_layers()

    def _set_sizes(self) -> None:
        sizes = ("vocabulary_size", "num_heads", "hidden_dim", "source_vocabulary_size", "max_source_length",
                 "num_control_ids", "num_layers", "intermediate_dim", "dropout", "attention_dropout")  # fmt: skip
        for name in sizes:
            setattr(self, name, self._config[name])
        self.key_dim = part_registry.key_dim(self._config)
        self.encoder_layers, self.decoder_layers = model_spec.depths(self._config)

    def _build_layers(self) -> None:
        ids, states = (None, None), (None, None, self.hidden_dim)
        for layer in (self.target_embedding, self.source_embedding, self.positions, self.output_embedding):
            if not layer.built:
                layer.build(ids)
        for norm in (self.source_norm, self.target_norm):
            if norm is not None:
                norm.build(states)
        self.encoder_stack.build(states)
        self.decoder_stack.build(states, states)
        self.built = True

    def input_embedding(self) -> TokenEmbedding:
        """Returns the embedding of what the encoder takes."""
        # No property: Keras saves what properties give under their names, and files would have other names.
        return self.source_embedding

    def call(self, inputs: dict[str, Tensor], training: bool = False) -> Tensor:
        source_ids, target_ids = self.taken(inputs)
        memory = self.encode(source_ids, training=training)
        x, attention_mask, shared = self._decoder_inputs(target_ids, training)
        memory_mask = keys_mask(padding_mask(source_ids))
        x = self.decoder_stack(x, attention_mask, memory, memory_mask, shared=shared, training=training)
        return self.output_embedding.logits(x)

    @as_layer
    def encode(self, source_ids: Tensor, training: bool = False) -> Tensor:
        """Encodes source ids (B, S) → memory (B, S, D)."""
        x, attention_mask, shared = self._encoder_inputs(source_ids, training)
        return self.encoder_stack(x, attention_mask, shared=shared, training=training)

    def init_cache(self, memory: Tensor, source_ids: Tensor, num_beams: int, max_length: int) -> Cache:
        """Returns the cache of `step` at position 0.

        Args:
            memory: (B, S, D), from `encode`.
            source_ids: (B, S).
            num_beams: K.
            max_length: L, the number of positions that can be decoded.

        Returns:
            "beams" holds the cache of each layer's self-attention, by default keys and values (B, K, G, L, H). The
            search reorders it with its beams. "sentences" holds what the beams of a sentence share: under "memory"
            each layer's keys and values of the memory (B, G, S, H), under "mask" the source's padding mask (B, S).
        """
        cache = self.decoder_stack.init_cache(memory, num_beams, max_length)
        return {"beams": cache["beams"], "sentences": {"memory": cache["sentences"], "mask": padding_mask(source_ids)}}

    def step(self, token_ids: Tensor, cache: Cache, index: Tensor) -> tuple[Tensor, Cache]:
        """Decodes one target position of every beam.

        Args:
            token_ids: (B, K), the tokens at position `index`. At index 0 they are start ids.
            cache: from `init_cache`, or from the previous step.
            index: the position from 0, a number or a scalar tensor.

        Returns:
            Logits (B, K, V) of the tokens at `index` + 1, in float32; and the cache with this position in it.
        """
        return self._step(token_ids, cache, index)

    def aligned_step(self, token_ids: Tensor, cache: Cache, index: Tensor) -> tuple[Tensor, Cache, Tensor]:
        """Takes `step`; also returns the source position (B, K) int32 at which each beam looks most, see
        `alignment_weights`. It is never that of the source's end."""
        logits, cache, weights = self.weighted_step(token_ids, cache, index)
        return logits, cache, _places(weights)

    def weighted_step(self, token_ids: Tensor, cache: Cache, index: Tensor) -> tuple[Tensor, Cache, Tensor]:
        """Takes `step`; also returns how much each beam looks at each source position: (B, K, S) float32 as
        `alignment_weights` has it, negative where no piece stands."""
        scores: list[Tensor] = []
        logits, after = self._step(token_ids, cache, index, scores=scores)
        behind = ops.cast(cache["sentences"]["mask"], "float32")[:, 1:]  # behind each piece is another, or the end
        hidden = 2.0 * (ops.pad(behind, [[0, 0], [0, 1]]) - 1.0)
        return logits, after, self._looked(scores) + ops.expand_dims(hidden, 1)

    def _step(self, token_ids: Tensor, cache: Cache, index: Tensor, **beside: list[Tensor]) -> tuple[Tensor, Cache]:
        """Takes `step`; a list `scores` gets those (B, N, K, S) of each layer's encoder-decoder attention."""
        sentences = cache["sentences"]
        stack_cache: StackCache = {"beams": cache["beams"], "sentences": sentences["memory"]}
        position = ops.convert_to_tensor(index)
        shared = self.decoder_stack.position_terms_at(self.positions, stack_cache, position)
        x = self._embed_target(token_ids, position)  # (B, K, D)
        x, stack_cache = self.decoder_stack.step(x, stack_cache, keys_mask(sentences["mask"]), index, shared, **beside)
        logits = ops.cast(self.output_embedding.logits(x), "float32")
        return logits, {"beams": stack_cache["beams"], "sentences": sentences}

    def attention_scores(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Computes the attention scores of every layer.

        Args:
            inputs: as for `call`.

        Returns:
            "encoder" (layers, B, N, S, S), "decoder" (layers, B, N, T, T), and "cross" (layers, B, N, T, S), which is
            the encoder-decoder attention.
        """
        source_ids, target_ids = self.taken(inputs)
        x, attention_mask, shared = self._encoder_inputs(source_ids)
        memory, encoder = self.encoder_stack.with_scores(x, attention_mask, shared=shared)
        x, attention_mask, shared = self._decoder_inputs(target_ids)
        memory_mask = keys_mask(padding_mask(source_ids))
        _, decoder = self.decoder_stack.with_scores(x, attention_mask, memory, memory_mask, shared=shared)
        return {"encoder": encoder["self"], "decoder": decoder["self"], "cross": decoder["cross"]}

    @property
    def alignment_heads(self) -> list[AlignmentHeads]:
        """The heads of encoder-decoder attention that tell best which source piece a piece is a translation of; of an
        ensemble those of each model.

        Of two to four layers the last one aligns number words best (benchmarks/RESULTS.md); of deep models the last but
        one is known to be best (Garg et al. 2019, arXiv 1909.02074).
        """
        layer = self.decoder_layers - (1 if self.decoder_layers < DEEP else 2)
        return [AlignmentHeads(layer, tuple(range(self.num_heads)))]

    def alignment_weights(self, inputs: dict[str, Tensor]) -> Tensor:
        """Returns how much each target position looks at each source position to predict the next token: (B, T, S)
        float32, the mean of the `alignment_heads`. Arguments: as for `call`."""
        return self._looked(self.attention_scores(inputs)["cross"])

    def _looked(self, scores: Sequence[Tensor]) -> Tensor:
        """Returns the mean (B, T, S) of the heads that align, of each layer's scores (B, N, T, S)."""
        return ops.cast(ops.mean(scores[self.alignment_heads[0].layer], axis=1), "float32")

    def _encoder_inputs(self, source_ids: Tensor, training: bool = False) -> tuple[Tensor, Tensor, PositionTerms]:
        """Returns the encoder's inputs: states (B, S, D), the attention mask (B, 1, S), and what positions add."""
        positions = ops.arange(ops.shape(source_ids)[1])
        x = self.positions.embed(self.source_embedding(source_ids), positions)
        x = x if self.source_norm is None else self.source_norm(x)
        x = self.embedding_dropout(x, training=training)
        return x, keys_mask(padding_mask(source_ids)), self.encoder_stack.position_terms(self.positions, positions)

    def _decoder_inputs(self, target_ids: Tensor, training: bool = False) -> tuple[Tensor, Tensor, PositionTerms]:
        """Returns the decoder's inputs: states (B, T, D), the attention mask (B, 1, T), and what positions add."""
        positions = ops.arange(ops.shape(target_ids)[1])
        x = self._embed_target(target_ids, positions)
        x = self.embedding_dropout(x, training=training)
        return x, keys_mask(padding_mask(target_ids)), self.decoder_stack.position_terms(self.positions, positions)

    def _embed_target(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.positions.embed_target(self.target_embedding(ids), positions)
        return x if self.target_norm is None else self.target_norm(x)


class Ensemble:
    """Decodes with several models as with one: it has what search, sampling and scoring need of a model.

    The probability of a piece is the arithmetic mean, P(y_t | y_<t, x) = 1/M · Σ P_m(y_t | y_<t, x), as Sutskever et
    al. 2014 (1409.3215) decode with several models. Its attention is the mean of the models' attention.

    Args:
        models: M translators whose vocabularies have the same sizes.

    Raises:
        ValueError: there is no model, or the sizes of the vocabularies or the numbers of control ids differ.
    """

    takes = Transformer.takes

    def __init__(self, models: Sequence[Transformer]):
        sizes = {(one.source_vocabulary_size, one.vocabulary_size, one.num_control_ids) for one in models}
        if len(sizes) != 1:
            raise ValueError(
                "expected models of one source vocabulary, one target vocabulary and one number of control ids; "
                f"received {len(models)} model(s) of the sizes {sorted(sizes, key=str)}"
            )
        self.kind = models[0].kind
        self.models = list(models)
        ((self.source_vocabulary_size, self.vocabulary_size, self.num_control_ids),) = sizes
        self.max_source_length = min(one.max_source_length for one in models)

    def arguments(self) -> Config:
        """Returns what describes the ensemble in a file: its sizes, and the arguments of each model."""
        sizes = ("source_vocabulary_size", "vocabulary_size", "num_control_ids", "max_source_length")
        return {**{name: getattr(self, name) for name in sizes}, "models": [one.arguments() for one in self.models]}

    @property
    def alignment_heads(self) -> list[AlignmentHeads]:
        """See `Transformer.alignment_heads`."""
        return [heads for one in self.models for heads in one.alignment_heads]

    @property
    def variables(self) -> list[keras.Variable]:
        """Returns the variables of all models."""
        return [variable for one in self.models for variable in one.variables]

    def __call__(self, inputs: dict[str, Tensor], training: bool = False) -> Tensor:
        """Computes logits (B, T, V) float32, as `Transformer` does."""
        return self._mean([one(inputs, training=training) for one in self.models])

    def encode(self, source_ids: Tensor) -> list[Tensor]:
        """Encodes source ids (B, S) → the memory (B, S, D) of each model."""
        return [one.encode(source_ids) for one in self.models]

    def init_cache(self, memory: list[Tensor], source_ids: Tensor, num_beams: int, max_length: Size) -> Cache:
        """Returns the caches of all models at position 0; arguments as of `Transformer.init_cache`."""
        return _joined(
            [
                one.init_cache(each, source_ids, num_beams, max_length)
                for one, each in zip(self.models, memory, strict=True)
            ]
        )

    def step(self, token_ids: Tensor, cache: Cache, index: Tensor) -> tuple[Tensor, Cache]:
        """Computes logits (B, K, V) float32 of the next piece, and the new cache, as `Transformer.step`."""
        steps = [one.step(token_ids, own, index) for one, own in self._each(cache)]
        return self._mean([logits for logits, _ in steps]), _joined([cache for _, cache in steps])

    def aligned_step(self, token_ids: Tensor, cache: Cache, index: Tensor) -> tuple[Tensor, Cache, Tensor]:
        """Takes `step` with the mean attention of the models, see `Transformer.aligned_step`."""
        steps = [one.weighted_step(token_ids, own, index) for one, own in self._each(cache)]
        logits, caches, weights = zip(*steps, strict=True)
        return self._mean(logits), _joined(caches), _places(_mean_weights(weights))

    def alignment_weights(self, inputs: dict[str, Tensor]) -> Tensor:
        """Returns the mean of the models' `Transformer.alignment_weights`."""
        return _mean_weights([one.alignment_weights(inputs) for one in self.models])

    def _each(self, cache: Cache) -> Iterator[tuple[Transformer, Cache]]:
        """Yields each model, and its own part of a cache."""
        for one, beams, sentences in zip(self.models, cache["beams"], cache["sentences"], strict=True):
            yield one, {"beams": beams, "sentences": sentences}

    def _mean(self, logits: Sequence[Tensor]) -> Tensor:
        """Returns the logarithm of the mean probabilities, which `log_softmax` leaves as they are."""
        log_probs = ops.stack([ops.log_softmax(ops.cast(each, "float32")) for each in logits])
        return ops.logsumexp(log_probs, axis=0)  # without the logarithm of M, which no softmax sees


def members_of(model: Transformer | Ensemble) -> list[Transformer]:
    """Returns the models of an ensemble, or the one model."""
    return model.models if isinstance(model, Ensemble) else [model]


def _places(weights: Tensor) -> Tensor:
    """Returns the places (...) int32 of the largest of weights (..., S), the first of equal ones."""
    return ops.cast(ops.argmax(weights), "int32")


def _mean_weights(weights: Sequence[Tensor]) -> Tensor:
    return ops.mean(ops.stack([*weights]), axis=0)


def _joined(caches: Sequence[Cache]) -> Cache:
    return {name: [cache[name] for cache in caches] for name in ("beams", "sentences")}
