"""What BART and Marian have in common in Hugging Face's format: options, and the names of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras_transformer import family
from keras_transformer.importing.folder import Options
from keras_transformer.importing.weights import TRANSPOSED, Weight, norm_weights

# Options with the one value that the architectures have. Old files say them.
BART_FIXED: dict[str, Any] = {
    "add_bias_logits": False, "add_cross_attention": False, "add_final_layer_norm": False,
    "cross_attention_hidden_size": None, "is_decoder": False, "is_encoder_decoder": True, "normalize_before": False,
    "pruned_heads": {}, "tie_encoder_decoder": False,
}  # fmt: skip
# Options that act in training alone, or repeat others.
BART_WITHOUT_EFFECT = {
    "activation_dropout", "classif_dropout", "classifier_dropout", "decoder_layerdrop", "encoder_layerdrop",
    "extra_pos_embeddings", "num_hidden_layers",
}  # fmt: skip
BART_EPSILON = 1e-5  # of PyTorch's layer normalization

ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}  # ours, and theirs
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
SHARED, OUTPUT = "model.shared.weight", "lm_head.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def bart_config(options: Options) -> dict[str, Any]:
    """The arguments of our model that the architectures have in common."""
    sizes = {}
    for ours, theirs in (("num_heads", "attention_heads"), ("intermediate_dim", "ffn_dim")):
        sizes[ours] = options.size(f"encoder_{theirs}")
        if (received := options.size(f"decoder_{theirs}")) != sizes[ours]:
            raise options.refusal(f"decoder_{theirs}", received, f"{sizes[ours]}, as in the encoder")
    return {
        **sizes,
        "hidden_dim": options.size("d_model"),
        "encoder_layers": options.size("encoder_layers"),
        "decoder_layers": options.size("decoder_layers"),
        "dropout": options.number("dropout", 0.1),
        "attention_dropout": options.number("attention_dropout", 0.0),
        "max_source_length": options.size("max_position_embeddings") - 1,  # less the end id
        "activation": options.activation("activation_function"),
        "norm": {"name": "layer", "epsilon": BART_EPSILON},
        "attention_bias": True,
        "output_bias": True,
        "embedding_scale": None if options.switch("scale_embedding", False) else 1.0,
    }


def bart_blocks(config: dict[str, Any]) -> Iterator[Weight]:
    """The weights of the blocks. H is the width of all heads, of which no order changes."""
    for stack, names, depth in zip(
        ("encoder", "decoder"), (["self_attention"], [*ATTENTIONS]), family.depths(config), strict=True
    ):
        for number in range(depth):
            block, layer = f"{stack}_stack.blocks.{number}", f"model.{stack}.layers.{number}"
            for name in names:
                yield from _attention(f"{block}.{name}", f"{layer}.{ATTENTIONS[name]}")
            feed_forward = f"{block}.feed_forward"
            yield Weight(f"{feed_forward}.kernel_in", f"{layer}.fc1.weight", "FD", order=TRANSPOSED)
            yield Weight(f"{feed_forward}.bias_in", f"{layer}.fc1.bias", "F")
            yield Weight(f"{feed_forward}.kernel_out", f"{layer}.fc2.weight", "DF", order=TRANSPOSED)
            yield Weight(f"{feed_forward}.bias_out", f"{layer}.fc2.bias", "D")
            yield from norm_weights(f"{feed_forward}_residual.norm", f"{layer}.final_layer_norm")


def _attention(ours: str, theirs: str) -> Iterator[Weight]:
    for name, projection in PROJECTIONS.items():
        yield Weight(f"{ours}.{name}_kernel", f"{theirs}.{projection}.weight", "HD", order=TRANSPOSED)
        yield Weight(f"{ours}.{name}_bias", f"{theirs}.{projection}.bias", "H")
    yield Weight(f"{ours}.output_kernel", f"{theirs}.out_proj.weight", "DH", order=TRANSPOSED)
    yield Weight(f"{ours}.output_bias", f"{theirs}.out_proj.bias", "D")
    yield from norm_weights(f"{ours}_residual.norm", f"{theirs}_layer_norm")
