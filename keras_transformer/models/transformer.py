"""The Transformer (Vaswani et al. 2017, arXiv 1706.03762): Figure 1, in teacher forcing and step by step."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer import family
from keras_transformer.fit import ReplicatedFit
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock, PartConfig
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.masks import causal_mask, keys_mask, padding_mask
from keras_transformer.layers.parts import make_part
from keras_transformer.layers.positions import Positions
from keras_transformer.layers.shared import Shared
from keras_transformer.lengths import longest
from keras_transformer.tensor import Tensor

Parts = dict[str, Any]


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(ReplicatedFit, keras.Model):
    """The encoder-decoder of "Attention Is All You Need", the paper's base size by default.

    The paper's N is `num_layers`, h `num_heads`, d_model `hidden_dim`, d_ff `intermediate_dim`, d_k `key_dim`. All
    weights exist once the constructor returns. Ids: pad 0, unknown 1, start 2, end 3. A part is a name, or a dictionary
    of name and options: `keras_transformer.family` lists them.

    Args:
        vocabulary_size: V of source, target and output, which share one matrix (paper, 3.4).
        num_layers: blocks in the encoder, and in the decoder.
        num_heads: N, heads of each attention.
        hidden_dim: D, even where positions are sinusoidal.
        intermediate_dim: F.
        dropout: rate on each sub-layer's output and on the sums of embedding and position (paper, 5.4).
        key_dim: H; D / N by default.
        attention_dropout: rate on the attention scores.
        source_vocabulary_size: V of the source when it has a vocabulary of its own; target and output still share.
        max_source_length: the longest source in pieces, its end not counted; longer text is cut when translated.
        encoder_layers, decoder_layers: where the two stacks differ; `num_layers` by default.
        positions: how a token's place is told, a part.
        attention: the self-attention of encoder and decoder, a part.
        decoder_attention: the self-attention of the decoder, a part; as `attention` by default.
        score, residual, norm, feed_forward, activation, stack: parts.
        attention_bias: biases in the projections of attention.
        output_bias: a bias on the logits.
        tied_output: False gives the output a matrix of its own.
        embedding_scale: the factor on embeddings; √D by default.
        embedding_norm: a norm on the sum of embedding and position.
        num_control_ids: how many ids are no text: the four, then others, which no translation holds.
        normalize_first, learned_positions: other spellings of `residual="pre_norm"` and `positions="learned"`.

    Call arguments:
        inputs: {"source_ids": (B, S), "target_ids": (B, T)}, integers: the source ends with the end id, the target
            begins with the start id, both padded with 0.

    Returns:
        Logits (B, T, V) of the token after each target position.

    Raises:
        ValueError: an argument has a value that it cannot have, or two contradict each other.

    Example:

    >>> model = Transformer(vocabulary_size=37_000)
    >>> inputs = {"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}
    >>> model(inputs).shape
    (1, 2, 37000)
    """

    vocabulary_size: int
    num_heads: int
    hidden_dim: int
    source_vocabulary_size: int | None
    max_source_length: int
    num_control_ids: int
    positions: Positions
    source_embedding: TokenEmbedding
    target_embedding: TokenEmbedding
    output_embedding: TokenEmbedding

    # The defaults are those of `family.ARGUMENTS`: a test compares them.
    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 6,
        num_heads: int = 8,
        hidden_dim: int = 512,
        intermediate_dim: int = 2048,
        dropout: float = 0.1,
        normalize_first: bool | None = None,
        key_dim: int | None = None,
        attention_dropout: float = 0.0,
        source_vocabulary_size: int | None = None,
        max_source_length: int = 512,
        learned_positions: bool | None = None,
        *,
        encoder_layers: int | None = None,
        decoder_layers: int | None = None,
        positions: PartConfig = "sinusoidal",
        attention: PartConfig = "full",
        decoder_attention: PartConfig | None = None,
        score: PartConfig = "scaled_dot",
        residual: PartConfig = "post_norm",
        norm: PartConfig = "layer",
        feed_forward: PartConfig = "plain",
        activation: PartConfig = "relu",
        stack: PartConfig = "layers",
        attention_bias: bool = False,
        output_bias: bool = False,
        tied_output: bool = True,
        embedding_scale: float | None = None,
        embedding_norm: bool = False,
        num_control_ids: int = 4,
        **kwargs: Any,
    ):
        given = {
            "vocabulary_size": vocabulary_size, "num_layers": num_layers, "num_heads": num_heads,
            "hidden_dim": hidden_dim, "intermediate_dim": intermediate_dim, "dropout": dropout, "key_dim": key_dim,
            "attention_dropout": attention_dropout, "source_vocabulary_size": source_vocabulary_size,
            "max_source_length": max_source_length, "encoder_layers": encoder_layers,
            "decoder_layers": decoder_layers, "positions": positions, "attention": attention,
            "decoder_attention": decoder_attention, "score": score, "residual": residual, "norm": norm,
            "feed_forward": feed_forward, "activation": activation, "stack": stack, "attention_bias": attention_bias,
            "output_bias": output_bias, "tied_output": tied_output, "embedding_scale": embedding_scale,
            "embedding_norm": embedding_norm, "num_control_ids": num_control_ids,
            "normalize_first": normalize_first, "learned_positions": learned_positions,
        }  # fmt: skip
        self._config = family.complete(given)  # before anything is made: what is wrong is said here
        super().__init__(**kwargs)
        sizes = ("vocabulary_size", "num_heads", "hidden_dim", "source_vocabulary_size", "max_source_length",
                 "num_control_ids", "num_layers", "intermediate_dim", "dropout", "attention_dropout")  # fmt: skip
        for name in sizes:
            setattr(self, name, self._config[name])
        self.key_dim = family.key_dim(self._config)
        self.encoder_layers, self.decoder_layers = family.depths(self._config)
        for name, part in parts_of(self._config, self.dtype_policy).items():
            setattr(self, name, part)
        self._build_parts()

    def _build_parts(self) -> None:
        ids, states = (None, None), (None, None, self.hidden_dim)
        for part in (self.target_embedding, self.source_embedding, self.positions, self.output_embedding):
            if not part.built:
                part.build(ids)
        for part in (self.source_norm, self.target_norm, self.encoder_stack):
            if part is not None:
                part.build(states)
        self.decoder_stack.build(states, states)
        self.built = True

    def build(self, *_: Any) -> None:
        """Nothing is left to build: every shape is known to the constructor."""

    def call(self, inputs: dict[str, Tensor], training: bool = False) -> Tensor:
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        memory = self.encode(source_ids, training=training)
        x, attention_mask, shared = self._decoder_inputs(target_ids, training)
        memory_mask = keys_mask(padding_mask(source_ids))
        x = self.decoder_stack(x, attention_mask, memory, memory_mask, shared=shared, training=training)
        return self.output_embedding.logits(x)

    def encode(self, source_ids: Tensor, training: bool = False) -> Tensor:
        """Source ids (B, S) → memory (B, S, D)."""
        x, attention_mask, shared = self._encoder_inputs(source_ids, training)
        return self.encoder_stack(x, attention_mask, shared=shared, training=training)

    def init_cache(self, memory: Tensor, source_ids: Tensor, num_beams: int, max_length: int) -> dict[str, Any]:
        """What `step` needs to know of a sentence, and room for what it will know of its beams.

        Args:
            memory: (B, S, D), from `encode`.
            source_ids: (B, S).
            num_beams: K.
            max_length: L, how many positions can be decoded.

        Returns:
            "beams": of each layer's self-attention, by default keys and values (B, K, N, L, H), which a search reorders
            with its beams; "sentences": each layer's keys and values (B, N, S, H) under "memory", and the padding mask
            (B, S) under "mask", one copy a sentence.
        """
        cache = self.decoder_stack.init_cache(memory, num_beams, max_length)
        return {
            "beams": cache["beams"],
            "sentences": {"memory": cache["sentences"], "mask": padding_mask(source_ids)},
        }

    def step(self, token_ids: Tensor, cache: dict[str, Any], index: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """One position of the target, for every beam.

        Args:
            token_ids: (B, K), the tokens at position `index`; the start id at index 0.
            cache: from `init_cache`, or from the step before.
            index: the position, a number or a scalar tensor.

        Returns:
            Logits (B, K, V) of the tokens at `index` + 1, in float32, and the cache with this position in it.
        """
        sentences = cache["sentences"]
        known = {"beams": cache["beams"], "sentences": sentences["memory"]}
        position = ops.convert_to_tensor(index)
        keys = self.decoder_stack.positions_of_keys(known)
        shared = Shared(
            self.positions.bias(ops.reshape(position, (1,)), keys, is_causal=True), self.positions.rotation(position)
        )
        x = self._embed(self.target_embedding, self.target_norm, token_ids, position)  # (B, K, D)
        x, known = self.decoder_stack.step(x, known, keys_mask(sentences["mask"]), index, shared)
        logits = ops.cast(self.output_embedding.logits(x), "float32")
        return logits, {"beams": known["beams"], "sentences": sentences}

    def attention_scores(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Every layer's scores: "encoder" (layers, B, N, S, S), "decoder" (layers, B, N, T, T), "cross" (layers, B,
        N, T, S).

        Args:
            inputs: as for `call`.
        """
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        x, attention_mask, shared = self._encoder_inputs(source_ids)
        memory, encoder = self.encoder_stack.with_scores(x, attention_mask, shared=shared)
        x, attention_mask, shared = self._decoder_inputs(target_ids)
        memory_mask = keys_mask(padding_mask(source_ids))
        _, decoder = self.decoder_stack.with_scores(x, attention_mask, memory, memory_mask, shared=shared)
        return {"encoder": encoder["self"], "decoder": decoder["self"], "cross": decoder["cross"]}

    def _encoder_inputs(self, source_ids: Tensor, training: bool = False) -> tuple[Tensor, Tensor, Shared]:
        """What the encoder takes: states (B, S, D), the mask (B, 1, S), and what its layers share."""
        positions = ops.arange(ops.shape(source_ids)[1])
        x = self._embed(self.source_embedding, self.source_norm, source_ids, positions)
        x = self.embedding_dropout(x, training=training)
        return x, keys_mask(padding_mask(source_ids)), self._shared(positions, is_causal=False)

    def _decoder_inputs(self, target_ids: Tensor, training: bool = False) -> tuple[Tensor, Tensor, Shared]:
        """What the decoder takes: states (B, T, D), the mask (B, T, T), and what its layers share."""
        positions = ops.arange(ops.shape(target_ids)[1])
        x = self._embed(self.target_embedding, self.target_norm, target_ids, positions)
        x = self.embedding_dropout(x, training=training)
        own = ops.logical_and(causal_mask(ops.shape(target_ids)[1]), keys_mask(padding_mask(target_ids)))
        return x, own, self._shared(positions, is_causal=True)

    def _embed(self, embedding: TokenEmbedding, norm: Any, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.positions.embed(embedding(ids), positions)
        return x if norm is None else norm(x)

    def _shared(self, positions: Tensor, is_causal: bool) -> Shared:
        return Shared(self.positions.bias(positions, positions, is_causal), self.positions.rotation(positions))

    # Version 0.1 had these lists in the model. Their names come before those of the stacks, so that Keras writes and
    # finds blocks and norms in model.keras where that version did.
    @property
    def encoder_blocks(self) -> list[EncoderBlock]:
        """The encoder's blocks that have weights of their own."""
        return self.encoder_stack.blocks

    @property
    def decoder_blocks(self) -> list[DecoderBlock]:
        """The decoder's blocks that have weights of their own."""
        return self.decoder_stack.blocks

    @property
    def encoder_norm(self) -> keras.layers.Layer | None:
        """The norm behind the encoder's blocks, if there is one."""
        return self.encoder_stack.norm

    @property
    def decoder_norm(self) -> keras.layers.Layer | None:
        """The norm behind the decoder's blocks, if there is one."""
        return self.decoder_stack.norm

    def summary(self, *args: Any, expand_nested: bool = True, **kwargs: Any) -> None:
        """As in Keras, but the blocks of both stacks are shown unless `expand_nested=False`."""
        super().summary(*args, expand_nested=expand_nested, **kwargs)

    def symbolic_batch(self) -> tuple:
        """Inputs, labels and weights of no particular size, from which Keras can build what a batch would build."""

        def of(dtype: str) -> keras.KerasTensor:
            return keras.KerasTensor((None, None), dtype=dtype)

        return {"source_ids": of("int32"), "target_ids": of("int32")}, of("int32"), of("float32")

    @classmethod
    def num_parameters(cls, config: dict[str, Any]) -> int:
        """How many parameters the model of a complete configuration has. No weight is made, and no seed drawn."""
        width, depths = config["hidden_dim"], family.depths(config)
        # One layer is made for all: a stranger's configuration may ask for hundreds. Dropout would draw a seed.
        changes = {"encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0, "attention_dropout": 0.0}
        parts = parts_of({**config, **changes}, "float32")
        stacks = [parts.pop("encoder_stack"), parts.pop("decoder_stack")]
        parts.pop("embedding_dropout")
        others = {id(part): part for part in parts.values() if part is not None}.values()
        in_stacks = sum(stack.num_parameters(width, depth) for stack, depth in zip(stacks, depths, strict=True))
        return in_stacks + sum(part.num_parameters(width) for part in others)

    def arguments(self) -> dict[str, Any]:
        """The arguments that make this model again, complete, without Keras's own."""
        return {name: dict(value) if isinstance(value, dict) else value for name, value in self._config.items()}

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.arguments()}


def parts_of(config: dict[str, Any], dtype: Any) -> Parts:
    """The layers of a model, not built, by the names that they have in it.

    Args:
        config: complete, see `family.complete`.
        dtype: of the layers.
    """
    hidden_dim, tied = config["hidden_dim"], config["tied_output"]

    def embedding(size: int, output_bias: bool = False) -> TokenEmbedding:
        return TokenEmbedding(size, hidden_dim, config["embedding_scale"], output_bias, dtype=dtype)

    def norm() -> Any:
        return make_part("norm", config["norm"], dtype, {}) if config["embedding_norm"] else None

    target = embedding(config["vocabulary_size"], config["output_bias"] and tied)
    parts: Parts = {"target_embedding": target, "source_embedding": target, "output_embedding": target}
    if config["source_vocabulary_size"] is not None:
        parts["source_embedding"] = embedding(config["source_vocabulary_size"])
    sizes = {name: config[name] for name in ("hidden_dim", "num_heads")} | {
        "key_dim": family.key_dim(config),
        "max_length": longest(config["max_source_length"]),
    }
    parts["positions"] = make_part("positions", config["positions"], dtype, sizes)
    parts["embedding_dropout"] = keras.layers.Dropout(config["dropout"], dtype=dtype)
    layers = family.depths(config)
    names = ("num_heads", "intermediate_dim", "dropout", "attention_dropout", "attention", "score", "residual", "norm",
             "feed_forward", "activation", "attention_bias")  # fmt: skip
    block = {name: config[name] for name in names} | {"key_dim": sizes["key_dim"]}
    own = {**block, "attention": config["decoder_attention"] or config["attention"]}
    encoder = {"num_layers": layers[0], "block": block, "other_layers": layers[1]}
    decoder = {"num_layers": layers[1], "block": own, "other_layers": layers[0], "is_decoder": True}
    parts["encoder_stack"] = make_part("stack", config["stack"], dtype, encoder)
    parts["decoder_stack"] = make_part("stack", config["stack"], dtype, decoder)
    parts["source_norm"], parts["target_norm"] = norm(), norm()
    if not tied:
        parts["output_embedding"] = embedding(config["vocabulary_size"], config["output_bias"])
    return parts
