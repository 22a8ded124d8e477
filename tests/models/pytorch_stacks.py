"""Compares our stacks with PyTorch's, with the same weights, embedding and projection."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from keras_transformer.layers.attention import MultiHeadAttention
from tests.models.variants import make_inputs, make_model


def compare() -> None:
    """Memory and logits equal PyTorch's at every real token, for the variants that PyTorch has too."""
    inputs = {name: torch.tensor(ids) for name, ids in make_inputs().items()}
    source_pads, target_pads = (inputs[name] == 0 for name in ("source_ids", "target_ids"))
    future = torch.triu(torch.ones(target_pads.shape[1], target_pads.shape[1], dtype=torch.bool), 1)
    for variant in ("post-norm", "pre-norm", "unlike sides"):
        model = make_model(variant)
        encoder, decoder = torch_stacks(model)
        with torch.no_grad():
            embedded = model._encoder_inputs(inputs["source_ids"])[0]
            memory = encoder(embedded, src_key_padding_mask=source_pads)
            embedded = model._decoder_inputs(inputs["target_ids"])[0]
            states = decoder(
                embedded,
                memory,
                tgt_mask=future,
                tgt_key_padding_mask=target_pads,
                memory_key_padding_mask=source_pads,
            )
            expected = model.output_embedding.logits(states)
            ours, logits = model.encode(inputs["source_ids"]), model(inputs)
        np.testing.assert_allclose(ours[~source_pads], memory[~source_pads], atol=2e-5, err_msg=variant)
        np.testing.assert_allclose(logits[~target_pads], expected[~target_pads], atol=2e-5, err_msg=variant)


def torch_stacks(model) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    """PyTorch's stacks with the model's weights; where it has no attention biases, PyTorch's are zero."""
    arguments = model.arguments()
    normalize_first, epsilon = arguments["residual"]["name"] == "pre_norm", arguments["norm"]["epsilon"]
    settings = {
        "d_model": model.hidden_dim,
        "nhead": model.num_heads,
        "dim_feedforward": model.intermediate_dim,
        "dropout": 0.0,
        "layer_norm_eps": epsilon,
        "batch_first": True,
        "norm_first": normalize_first,
    }
    encoder_norm, decoder_norm = (nn.LayerNorm(model.hidden_dim, epsilon) for _ in range(2))
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**settings),
        model.encoder_layers,
        encoder_norm if normalize_first else None,
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(**settings), model.decoder_layers, decoder_norm if normalize_first else None
    )
    for ours, theirs in zip(model.encoder_blocks, encoder.layers, strict=True):
        copy_attention(ours.self_attention, theirs.self_attn)
        copy_feed_forward(ours.feed_forward, theirs)
        copy_norm(ours.self_attention_residual.norm, theirs.norm1)
        copy_norm(ours.feed_forward_residual.norm, theirs.norm2)
    for ours, theirs in zip(model.decoder_blocks, decoder.layers, strict=True):
        copy_attention(ours.self_attention, theirs.self_attn)
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        copy_feed_forward(ours.feed_forward, theirs)
        copy_norm(ours.self_attention_residual.norm, theirs.norm1)
        copy_norm(ours.cross_attention_residual.norm, theirs.norm2)
        copy_norm(ours.feed_forward_residual.norm, theirs.norm3)
    if normalize_first:
        copy_norm(model.encoder_norm, encoder_norm)
        copy_norm(model.decoder_norm, decoder_norm)
    return encoder.eval(), decoder.eval()


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    weights = {weight.name: torch.tensor(weight.numpy()) for weight in ours.weights}
    zeros = torch.zeros_like(theirs.out_proj.bias)
    names = ("query", "key", "value")
    state = {
        "in_proj_weight": torch.cat([weights[name].T for name in names]),
        "in_proj_bias": torch.cat([weights.get(f"{name}_bias", zeros) for name in names]),
        "out_proj.weight": weights["output"].T,
        "out_proj.bias": weights.get("output_bias", zeros),
    }
    theirs.load_state_dict(state)


def copy_feed_forward(ours, theirs) -> None:
    kernel_in, bias_in, kernel_out, bias_out = map(torch.tensor, ours.get_weights())
    theirs.linear1.load_state_dict({"weight": kernel_in.T, "bias": bias_in})
    theirs.linear2.load_state_dict({"weight": kernel_out.T, "bias": bias_out})


def copy_norm(ours, theirs: nn.LayerNorm) -> None:
    gain, shift = map(torch.tensor, ours.get_weights())
    theirs.load_state_dict({"weight": gain, "bias": shift})
