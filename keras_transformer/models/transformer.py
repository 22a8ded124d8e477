"""The Transformer (Vaswani et al. 2017, arXiv 1706.03762): Figure 1, in teacher forcing and step by step."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.errors import require_positive, require_rates
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.masks import causal_mask, keys_mask, padding_mask
from keras_transformer.layers.positions import LearnedPositions, SinusoidalPositions
from keras_transformer.layers.residual import EPSILON
from keras_transformer.training.replicas import ReplicatedFit

Tensor = Any

# A translation may be this many tokens longer than its source (paper, 6.1).
EXTRA_LENGTH = 50


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(ReplicatedFit, keras.Model):
    """The encoder-decoder of "Attention Is All You Need", the paper's base size by default.

    The paper's N is `num_layers`, h `num_heads`, d_model `hidden_dim`, d_ff `intermediate_dim`, d_k `key_dim`. All
    weights exist once the constructor returns. Ids: pad 0, unknown 1, start 2, end 3.

    Args:
        vocabulary_size: V of source, target and output, which share one matrix (paper, 3.4).
        num_layers: blocks in the encoder, and in the decoder.
        num_heads: N, heads of each attention.
        hidden_dim: D, even unless positions are learned.
        intermediate_dim: F.
        dropout: rate on each sub-layer's output and on the sums of embedding and position (paper, 5.4).
        normalize_first: pre-norm, with one more norm after each stack, in place of the paper's post-norm.
        key_dim: H; D / N by default.
        attention_dropout: rate on the attention scores.
        source_vocabulary_size: V of the source when it has a vocabulary of its own; target and output still share.
        max_source_length: the longest source in pieces, its end not counted; longer text is cut when translated.
        learned_positions: a learned vector a position in place of sinusoids (paper, table 3 row E).

    Call arguments:
        inputs: {"source_ids": (B, S), "target_ids": (B, T)}, integers: the source ends with the end id, the target
            begins with the start id, both padded with 0.

    Returns:
        Logits (B, T, V) of the token after each target position.

    Raises:
        ValueError: a size is not positive, or `num_heads` does not divide `hidden_dim` and `key_dim` is not given.

    Example:

    >>> model = Transformer(vocabulary_size=37_000)
    >>> inputs = {"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}
    >>> model(inputs).shape
    (1, 2, 37000)
    """

    embedding_type = TokenEmbedding  # export has one of its own

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 6,
        num_heads: int = 8,
        hidden_dim: int = 512,
        intermediate_dim: int = 2048,
        dropout: float = 0.1,
        normalize_first: bool = False,
        key_dim: int | None = None,
        attention_dropout: float = 0.0,
        source_vocabulary_size: int | None = None,
        max_source_length: int = 512,
        learned_positions: bool = False,
        **kwargs: Any,
    ):
        check_sizes(
            vocabulary_size, num_layers, num_heads, hidden_dim, intermediate_dim, key_dim, source_vocabulary_size,
            max_source_length, dropout, attention_dropout,
        )  # fmt: skip
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.normalize_first = normalize_first
        self.key_dim = key_dim or hidden_dim // num_heads
        self.attention_dropout = attention_dropout
        self.source_vocabulary_size = source_vocabulary_size
        self.max_source_length = max_source_length
        self.learned_positions = learned_positions
        self._make_layers()
        self._build_layers()

    def _make_layers(self) -> None:
        dtype = self.dtype_policy
        self.target_embedding = self.embedding_type(self.vocabulary_size, self.hidden_dim, dtype=dtype)
        self.source_embedding = self.target_embedding
        if self.source_vocabulary_size is not None:
            self.source_embedding = self.embedding_type(self.source_vocabulary_size, self.hidden_dim, dtype=dtype)
        longest = self.max_source_length + EXTRA_LENGTH
        self.positions: keras.layers.Layer = (
            LearnedPositions(longest, self.hidden_dim, dtype=dtype)
            if self.learned_positions
            else SinusoidalPositions(self.hidden_dim, dtype=dtype)
        )
        self.embedding_dropout = keras.layers.Dropout(self.dropout, dtype=dtype)
        block = {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "normalize_first": self.normalize_first,
            "dtype": dtype,
        }
        self.encoder_blocks = [EncoderBlock(**block) for _ in range(self.num_layers)]
        self.decoder_blocks = [DecoderBlock(**block) for _ in range(self.num_layers)]
        self.encoder_norm = self.decoder_norm = None
        if self.normalize_first:
            self.encoder_norm = keras.layers.LayerNormalization(epsilon=EPSILON, dtype=dtype)
            self.decoder_norm = keras.layers.LayerNormalization(epsilon=EPSILON, dtype=dtype)

    def _build_layers(self) -> None:
        ids, states = (None, None), (None, None, self.hidden_dim)
        for layer in (self.target_embedding, self.source_embedding, self.positions):
            if not layer.built:
                layer.build(ids)
        for layer in (*self.encoder_blocks, self.encoder_norm, self.decoder_norm):
            if layer is not None:
                layer.build(states)
        for layer in self.decoder_blocks:
            layer.build(states, states)
        self.built = True

    def build(self, *_: Any) -> None:
        """Nothing is left to build: every shape is known to the constructor."""

    def call(self, inputs: dict[str, Tensor], training: bool = False) -> Tensor:
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        memory = self.encode(source_ids, training=training)
        x = self._embed(self.target_embedding, target_ids, training)
        attention_mask, memory_mask = self._decoder_masks(source_ids, target_ids)
        for block in self.decoder_blocks:
            x = block(x, memory, attention_mask, memory_mask, training=training)
        return self.target_embedding.logits(self._after_stack(self.decoder_norm, x))

    def encode(self, source_ids: Tensor, training: bool = False) -> Tensor:
        """Source ids (B, S) → memory (B, S, D)."""
        attention_mask = keys_mask(padding_mask(source_ids))
        x = self._embed(self.source_embedding, source_ids, training)
        for block in self.encoder_blocks:
            x = block(x, attention_mask, training=training)
        return self._after_stack(self.encoder_norm, x)

    def init_cache(self, memory: Tensor, source_ids: Tensor, num_beams: int, max_length: int) -> dict[str, list]:
        """What `step` needs to know of a sentence, and room for what it will know of its beams.

        Args:
            memory: (B, S, D), from `encode`.
            source_ids: (B, S).
            num_beams: K.
            max_length: L, how many positions can be decoded.

        Returns:
            "beams": for each layer keys and values (B, K, N, L, H), which a search reorders with its beams;
            "sentences": for each layer keys and values (B, N, S, H), then the padding mask (B, S), one copy a sentence.
        """
        shape = (ops.shape(source_ids)[0], num_beams, self.num_heads, max_length, self.key_dim)
        beams = [ops.zeros(shape, dtype=self.compute_dtype) for _ in range(2 * self.num_layers)]
        sentences: list[Tensor] = []
        for block in self.decoder_blocks:
            sentences.extend(block.cross_attention.project_memory(memory))
        return {"beams": beams, "sentences": [*sentences, padding_mask(source_ids)]}

    def step(self, token_ids: Tensor, cache: dict[str, list], index: Tensor) -> tuple[Tensor, dict[str, list]]:
        """One position of the target, for every beam.

        Args:
            token_ids: (B, K), the tokens at position `index`; the start id at index 0.
            cache: from `init_cache`, or from the step before.
            index: the position, a number or a scalar tensor.

        Returns:
            Logits (B, K, V) of the tokens at `index` + 1, in float32, and the cache with this position in it.
        """
        past, (*memory, source_mask) = cache["beams"], cache["sentences"]
        memory_mask = keys_mask(source_mask)
        x = self.target_embedding(token_ids) + self.positions(ops.convert_to_tensor(index))  # (B, K, D)
        beams: list[Tensor] = []
        for layer, block in enumerate(self.decoder_blocks):
            own = slice(2 * layer, 2 * layer + 2)
            x, written = block.step(x, tuple(past[own]), tuple(memory[own]), memory_mask, index)
            beams.extend(written)
        logits = self.target_embedding.logits(self._after_stack(self.decoder_norm, x))
        return ops.cast(logits, "float32"), {"beams": beams, "sentences": cache["sentences"]}

    def attention_scores(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Every layer's scores: "encoder" (layers, B, N, S, S), "decoder" (layers, B, N, T, T), "cross" (layers, B,
        N, T, S).

        Args:
            inputs: as for `call`.
        """
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        source_mask = keys_mask(padding_mask(source_ids))
        encoder, decoder, cross = [], [], []
        x = self._embed(self.source_embedding, source_ids, training=False)
        for block in self.encoder_blocks:
            encoder.append(block.attention_scores(x, source_mask))
            x = block(x, source_mask)
        memory = self._after_stack(self.encoder_norm, x)
        x = self._embed(self.target_embedding, target_ids, training=False)
        masks = self._decoder_masks(source_ids, target_ids)
        for block in self.decoder_blocks:
            own_scores, cross_scores = block.attention_scores(x, memory, *masks)
            decoder.append(own_scores)
            cross.append(cross_scores)
            x = block(x, memory, *masks)
        return {"encoder": ops.stack(encoder), "decoder": ops.stack(decoder), "cross": ops.stack(cross)}

    def _embed(self, embedding: TokenEmbedding, ids: Tensor, training: bool) -> Tensor:
        positions = self.positions(ops.arange(ops.shape(ids)[1]))  # (T, D)
        return self.embedding_dropout(embedding(ids) + positions, training=training)

    def _decoder_masks(self, source_ids: Tensor, target_ids: Tensor) -> tuple[Tensor, Tensor]:
        own = ops.logical_and(causal_mask(ops.shape(target_ids)[1]), keys_mask(padding_mask(target_ids)))
        return own, keys_mask(padding_mask(source_ids))

    @staticmethod
    def _after_stack(norm: keras.layers.Layer | None, x: Tensor) -> Tensor:
        return x if norm is None else norm(x)

    def symbolic_batch(self) -> tuple:
        """Inputs, labels and weights of no particular size, from which Keras can build what a batch would build."""

        def of(dtype: str) -> keras.KerasTensor:
            return keras.KerasTensor((None, None), dtype=dtype)

        return {"source_ids": of("int32"), "target_ids": of("int32")}, of("int32"), of("float32")

    def get_config(self) -> dict[str, Any]:
        config = {
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "normalize_first": self.normalize_first,
            "key_dim": self.key_dim,
            "attention_dropout": self.attention_dropout,
            "source_vocabulary_size": self.source_vocabulary_size,
            "max_source_length": self.max_source_length,
            "learned_positions": self.learned_positions,
        }
        return {**super().get_config(), **config}


def check_sizes(
    vocabulary_size: int,
    num_layers: int,
    num_heads: int,
    hidden_dim: int,
    intermediate_dim: int,
    key_dim: int | None,
    source_vocabulary_size: int | None,
    max_source_length: int,
    dropout: float,
    attention_dropout: float,
) -> None:
    """Raises ValueError, saying what was expected and what came, for sizes of which no model can be made."""
    require_positive(
        vocabulary_size=vocabulary_size,
        num_layers=num_layers,
        num_heads=num_heads,
        hidden_dim=hidden_dim,
        intermediate_dim=intermediate_dim,
        key_dim=key_dim,
        source_vocabulary_size=source_vocabulary_size,
        max_source_length=max_source_length,
    )
    require_rates(dropout=dropout, attention_dropout=attention_dropout)
    if key_dim is None and hidden_dim % num_heads:
        raise ValueError(
            "`num_heads` must divide `hidden_dim`, or `key_dim` must be given. "
            f"Received: num_heads={num_heads}, hidden_dim={hidden_dim}"
        )
