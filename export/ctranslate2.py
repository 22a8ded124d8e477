"""Exports a translator to CTranslate2: whether its model has a form there, and its weights in that form."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from keras import ops

from keras_transformer.core.extras import required
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.feed_forward import FeedForward, GatedFeedForward, Gelu, GeluTanh, Relu, Silu
from keras_transformer.layers.layer import Dropout, LayerNorm, PostNorm, PreNorm, RmsNorm
from keras_transformer.layers.positions import (
    LearnedPositions,
    NoPositions,
    RotaryPositions,
    SinusoidalPositions,
    TokenEmbedding,
)
from keras_transformer.layers.score import BucketPositions, Dot, ScaledDot
from keras_transformer.layers.stack import Stack
from keras_transformer.models.model_factory import Difference
from keras_transformer.models.transformer import Transformer
from keras_transformer.ops import Tensor
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import EXTRA_LENGTH, longest
from keras_transformer.text.tokenizer import END, UNKNOWN, Tokenizer

from .artefacts import (
    Decoding,
    TrainedRun,
    parts_without_writer,
    replaced,
    require_own_parts,
    require_precision,
    stem,
    unwritable,
)

if TYPE_CHECKING:
    from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec
    from ctranslate2.specs.common_spec import LayerNormSpec, LinearSpec
    from ctranslate2.specs.transformer_spec import (
        FeedForwardSpec,
        TransformerDecoderSpec,
        TransformerEncoderSpec,
        TransformerSpec,
    )

OF_REPEATING = ("no_repeat_ngram_size", "repetition_penalty")  # guards that CTranslate2 has by these names
# CTranslate2's names of the activations.
ACTIVATIONS: dict[type, str] = {Relu: "RELU", Gelu: "GELU", GeluTanh: "GELUTanh", Silu: "SWISH"}
# The parts that CTranslate2 has.
PARTS: tuple[type, ...] = (
    Transformer, Stack, EncoderBlock, DecoderBlock, TokenEmbedding, Dropout,
    SinusoidalPositions, LearnedPositions, NoPositions, RotaryPositions, BucketPositions,
    MultiHeadAttention, ScaledDot, Dot, PostNorm, PreNorm, LayerNorm, RmsNorm, FeedForward, GatedFeedForward,
    *ACTIVATIONS,
)  # fmt: skip


def require_held(model: Any, precision: str) -> None:
    """Raises RequestError, which names the part, unless CTranslate2 has every part of the model, as configured."""
    for found in parts_without_writer(model, PARTS):
        raise unwritable("ctranslate2", precision, found)
    length = getattr(model.positions, "original_length", None)
    if length is not None:  # its encoders have no such rotation
        raise unwritable("ctranslate2", precision, Difference("model.positions.original_length", None, length))
    require_own_parts(model, "ctranslate2", precision)


def spec_of(model: Transformer, source_pieces: Sequence[str], target_pieces: Sequence[str]) -> TransformerSpec:
    """CTranslate2's specification of a model that `require_held` accepts, with its weights.

    Args:
        model: the model, in float32.
        source_pieces, target_pieces: the vocabularies, in the order of their ids.
    """
    from ctranslate2.specs import transformer_spec

    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(model.encoder_layers, **_sizes(model, model.encoder_stack)),
        transformer_spec.TransformerDecoderSpec(model.decoder_layers, **_sizes(model, model.decoder_stack)),
    )
    _fill_stack(spec.encoder, model, model.encoder_stack)
    _fill_stack(spec.decoder, model, model.decoder_stack)
    spec.decoder.projection.weight = _array(model.output_embedding.embeddings)
    if model.output_embedding.bias is not None:
        spec.decoder.projection.bias = _array(model.output_embedding.bias)
    spec.register_source_vocabulary(list(source_pieces))
    spec.register_target_vocabulary(list(target_pieces))
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.encoder_stack.blocks[0].feed_forward_residual.norm.epsilon
    spec.validate()
    return spec


def _sizes(model: Transformer, stack: Stack) -> Config:
    """The arguments of CTranslate2's encoder or decoder."""
    from ctranslate2.specs.attention_spec import RotaryScalingType
    from ctranslate2.specs.common_spec import Activation

    block = stack.blocks[0]
    sizes = {
        "num_heads": model.num_heads,
        "pre_norm": isinstance(block.feed_forward_residual, PreNorm),
        "activation": Activation[ACTIVATIONS[type(block.feed_forward.activation)]],
        "layernorm_embedding": model.target_norm is not None,
        "ffn_glu": isinstance(block.feed_forward, GatedFeedForward),
        "rms_norm": isinstance(block.feed_forward_residual.norm, RmsNorm),
    }
    if block.self_attention.num_groups != model.num_heads:
        sizes["num_heads_kv"] = block.self_attention.num_groups
    if model.key_dim * model.num_heads != model.hidden_dim:
        sizes["head_dim"] = model.key_dim
    if isinstance(model.positions, BucketPositions):
        sizes["relative_attention_bias"] = True
    elif isinstance(model.positions, RotaryPositions):
        sizes |= {"rotary_dim": model.key_dim, "rotary_interleave": False, "rotary_base": model.positions.base}
        if (factor := model.positions.interpolation) > 1:
            sizes |= {"rotary_scaling_type": RotaryScalingType.Linear, "rotary_scaling_factor": factor}
    return sizes


def _fill_stack(stack: TransformerEncoderSpec | TransformerDecoderSpec, model: Transformer, ours: Stack) -> None:
    """Fills CTranslate2's encoder or decoder."""
    embedding = model.target_embedding if ours.is_decoder else model.source_embedding
    (stack.embeddings if ours.is_decoder else stack.embeddings[0]).weight = _array(embedding.embeddings)
    stack.scale_embeddings = np.float32(embedding.scale)
    if hasattr(stack, "position_encodings"):
        stack.position_encodings.encodings = _position_table(model, ours.is_decoder)
    if norm := model.target_norm if ours.is_decoder else model.source_norm:
        _fill_norm(stack.layernorm_embedding, norm)
    if ours.norm is not None:
        _fill_norm(stack.layer_norm, ours.norm)
    for layer, block in zip(stack.layer, ours.blocks, strict=True):
        _fill_attention(layer.self_attention, block.self_attention, [["query", "key", "value"], ["output"]])
        _fill_norm(layer.self_attention.layer_norm, block.self_attention_residual.norm)
        if isinstance(model.positions, BucketPositions):
            _fill_buckets(layer.self_attention, model.positions, ours.is_decoder)
        if ours.is_decoder:
            _fill_attention(layer.attention, block.cross_attention, [["query"], ["key", "value"], ["output"]])
            _fill_norm(layer.attention.layer_norm, block.cross_attention_residual.norm)
        _fill_feed_forward(layer.ffn, block.feed_forward)
        _fill_norm(layer.ffn.layer_norm, block.feed_forward_residual.norm)


def _position_table(model: Transformer, is_decoder: bool) -> np.ndarray:
    """(L, D) What is added at each position, of all that a source or a translation can have."""
    count = longest(model.max_source_length) + 1
    nothing, places = np.zeros((count, model.hidden_dim), "float32"), np.arange(count)
    embed = model.positions.embed_target if is_decoder else model.positions.embed
    return _array(embed(ops.convert_to_tensor(nothing), ops.convert_to_tensor(places)))


def _fill_attention(
    attention: MultiHeadAttentionSpec, ours: MultiHeadAttention, kernels: Sequence[Sequence[str]]
) -> None:
    """Fills an attention. `kernels` lists the projections that each linear layer joins."""
    for linear, names in zip(attention.linear, kernels, strict=True):
        _fill_linear(linear, [(getattr(ours, f"{name}_kernel"), getattr(ours, f"{name}_bias")) for name in names])
    if isinstance(ours.score, Dot):
        attention.queries_scale = np.float32(1)


def _fill_buckets(attention: MultiHeadAttentionSpec, positions: BucketPositions, is_decoder: bool) -> None:
    """Fills the biases of distances, which all layers of a stack share."""
    attention.relative_attention_bias = _array(positions.decoder_biases if is_decoder else positions.encoder_biases)
    attention.relative_attention_max_distance = np.int32(positions.max_distance)


def _fill_feed_forward(network: FeedForwardSpec, ours: FeedForward) -> None:
    """Fills a feed-forward network. Of a gated one, CTranslate2 applies the activation to `linear_0`."""
    _fill_linear(network.linear_1, [(ours.kernel_out, ours.bias_out)])
    inner = [(ours.kernel_in, ours.bias_in)]
    if isinstance(ours, GatedFeedForward):
        _fill_linear(network.linear_0, [(ours.kernel_gate, ours.bias_gate)])
        _fill_linear(network.linear_0_noact, inner)
    else:
        _fill_linear(network.linear_0, inner)


def _fill_linear(linear: LinearSpec, products: Sequence[tuple[Tensor, Tensor | None]]) -> None:
    """Fills a linear layer, whose weight has the shape (out, in), with kernels (in, out) and biases side by side."""
    linear.weight = np.concatenate([_array(kernel).T for kernel, _ in products])
    if products[0][1] is not None:
        linear.bias = np.concatenate([_array(bias) for _, bias in products])


def _fill_norm(norm: LayerNormSpec, ours: LayerNorm | RmsNorm) -> None:
    """Fills a normalisation."""
    if isinstance(ours, RmsNorm):
        norm.gamma = _array(ours.scale)
    else:
        norm.gamma, norm.beta = _array(ours.gamma), _array(ours.beta)


def _array(values: Tensor) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(values), "float32")


def export_ctranslate2(
    run: TrainedRun, folder: str | os.PathLike[str], decoding: Decoding | None = None, precision: str = "float32"
) -> list[Path]:
    """Writes a folder that `ctranslate2.Translator` loads, with the vocabularies of SentencePiece in it.

    CTranslate2 takes the search when it runs. `metadata.json` has under "search" what reproduces the run's: see
    `search_of`.

    Args:
        run: what to export; `open_run` reads it from a run folder.
        folder: where to write; an older model there is replaced once the new one is whole.
        decoding: the options of the search.
        precision: "float32"; "float16" for GPUs; "int8" for weights in int8, with a scale for each row.

    Returns:
        The one path written, `ctranslate2`, `ctranslate2-float16` or `ctranslate2-int8`.

    Raises:
        RequestError: the precision does not exist, CTranslate2 has no such part as the model's, it is not installed, or
            the path holds something else.
    """
    require_precision("ctranslate2", precision)
    path = Path(folder) / stem("ctranslate2", precision)
    decoding = decoding or run.decoding()
    with replaced(path, "model.bin", "a model") as aside:
        write_model(run, aside, precision)
        run.pipeline.save_vocabularies(aside)
        metadata = {**run.metadata(decoding, precision), "search": search_of(run, decoding)}
        text = json.dumps(metadata, indent=2, ensure_ascii=False)
        (aside / "metadata.json").write_text(text + "\n", encoding="utf-8")
    return [path]


def write_model(run: TrainedRun, folder: Path, precision: str) -> None:
    """Writes the files of CTranslate2 alone into a folder: weights, configuration and lists of pieces.

    Raises:
        RequestError: CTranslate2 has no such part as the model's, or is not installed.
    """
    require_held(run.model, precision)
    required("ctranslate2", "ctranslate2", "exporting")
    spec = spec_of(run.model, *map(pieces_of, run.tokenizers))
    spec.optimize(None if precision == "float32" else precision)  # matrices that are the same are written once
    spec.save(str(folder))


def search_of(run: TrainedRun, decoding: Decoding) -> Config:
    """What reproduces the run's search with `translate_batch`.

    CTranslate2 divides log P by |y|^α, and the run by ((5 + |y|) / 6)^α. So CTranslate2 searches without a length
    penalty, gives all of its hypotheses, and the caller ranks them.

    Returns:
        "options": arguments of `translate_batch`. "max_source_length": the most pieces of a source. "extra_length" and
        "max_length": a translation has at most so many pieces more than its source, and at most so many, with its end.
        "length_penalty": the run's α. "max_length_factor": see `Guards`; it may be missing.
    """
    model, (_, target) = run.model, run.tokenizers
    unwanted = [id for id in range(model.num_control_ids) if id not in (UNKNOWN, END)]
    options = {
        "beam_size": decoding.num_beams,
        "num_hypotheses": decoding.num_beams,
        "length_penalty": 0,
        "min_decoding_length": decoding.min_length,
        **{name: value for name, value in decoding.active_guards().items() if name in OF_REPEATING},
        "max_input_length": model.max_source_length + 1,  # it counts the end
        "disable_unk": True,
        "suppress_sequences": [[piece] for piece in target.pieces(unwanted)],
        "return_end_token": True,
        "return_scores": True,
    }
    most = longest(model.max_source_length)
    return {
        "options": options,
        "max_source_length": model.max_source_length,
        "extra_length": EXTRA_LENGTH,
        "max_length": most if decoding.max_length is None else min(decoding.max_length, most),
        "length_penalty": decoding.length_penalty,
        **({} if decoding.max_length_factor is None else {"max_length_factor": decoding.max_length_factor}),
    }


def pieces_of(tokenizer: Tokenizer) -> list[str]:
    """All pieces, in the order of their ids."""
    return tokenizer.pieces(range(tokenizer.vocabulary_size))
