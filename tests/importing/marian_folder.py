"""A tiny Marian model in Hugging Face's format, made by hand: NumPy's numbers and two small SentencePiece models."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from tests.tiny_text import lines

TAG = ">>deu<<"
WIDTH, HEADS, HIDDEN, LAYERS = 16, 2, 24, 2


def piece_model(seed: int, size: int, kind: str = "unigram", **ids: Any) -> bytes:
    """A SentencePiece model, by default with the control ids of SentencePiece and of OPUS-MT."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines(seed)), model_writer=model, vocab_size=size, model_type=kind, minloglevel=2, **ids
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    """The pieces of a model that are text."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(id) for id in range(processor.vocab_size())]
    return [piece for id, piece in enumerate(pieces) if not processor.is_control(id) and not processor.is_unknown(id)]


def joint_ids(source: bytes, target: bytes, lacking: int = 2) -> dict[str, int]:
    """The ids of vocab.json in the order of OPUS-MT: end, unknown, pieces of both sides, tags, pad.

    The last pieces of the source alone are left out, as pieces are that the training text never had.
    """
    of_source_alone = [piece for piece in pieces_of(source) if piece not in pieces_of(target)]
    pieces = sorted({*pieces_of(source), *pieces_of(target)} - {*of_source_alone[-lacking:]})
    return {piece: id for id, piece in enumerate(["</s>", "<unk>", *pieces, TAG, ">>fra<<", "<pad>"])}


def configuration(ids: dict[str, int]) -> dict[str, Any]:
    """The configuration of an old OPUS-MT model, in small."""
    pad = ids["<pad>"]
    return {
        "_num_labels": 3, "activation_dropout": 0.0, "activation_function": "swish", "add_bias_logits": False,
        "add_final_layer_norm": False, "architectures": ["MarianMTModel"], "attention_dropout": 0.0,
        "bad_words_ids": [[pad]], "bos_token_id": 0, "classif_dropout": 0.0, "d_model": WIDTH,
        "decoder_attention_heads": HEADS, "decoder_ffn_dim": HIDDEN, "decoder_layerdrop": 0.0,
        "decoder_layers": LAYERS, "decoder_start_token_id": pad, "dropout": 0.1, "encoder_attention_heads": HEADS,
        "encoder_ffn_dim": HIDDEN, "encoder_layerdrop": 0.0, "encoder_layers": LAYERS, "eos_token_id": 0,
        "extra_pos_embeddings": pad, "id2label": {"0": "LABEL_0"}, "init_std": 0.02, "is_encoder_decoder": True,
        "label2id": {"LABEL_0": 0}, "max_length": 40, "max_position_embeddings": 64, "model_type": "marian",
        "normalize_before": False, "normalize_embedding": False, "num_beams": 3, "num_hidden_layers": LAYERS,
        "pad_token_id": pad, "scale_embedding": True, "static_position_embeddings": True, "vocab_size": len(ids),
    }  # fmt: skip


def tensors(size: int, seed: int = 2) -> dict[str, np.ndarray]:
    """Random weights by Marian's names, such that sources have different translations."""
    generator = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.shared.weight": (size, WIDTH), "final_logits_bias": (1, size)}
    for stack, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        for number in range(LAYERS):
            layer = f"model.{stack}.layers.{number}"
            for attention in attentions:
                for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    shapes[f"{layer}.{attention}.{name}.weight"] = (WIDTH, WIDTH)
                    shapes[f"{layer}.{attention}.{name}.bias"] = (WIDTH,)
            for name in (*(f"{attention}_layer_norm" for attention in attentions), "final_layer_norm"):
                shapes |= {f"{layer}.{name}.weight": (WIDTH,), f"{layer}.{name}.bias": (WIDTH,)}
            shapes |= {f"{layer}.fc1.weight": (HIDDEN, WIDTH), f"{layer}.fc1.bias": (HIDDEN,)}
            shapes |= {f"{layer}.fc2.weight": (WIDTH, HIDDEN), f"{layer}.fc2.bias": (WIDTH,)}
    arrays = {name: generator.normal(0, 0.3, shape).astype("float32") for name, shape in shapes.items()}
    for name in arrays:
        if name.endswith("norm.weight"):
            arrays[name] += 1
        if "encoder_attn." in name:
            arrays[name] *= 4
    arrays["model.shared.weight"] *= 3
    # Its own embedding makes an id likely to come again, so the last norm turns the states around.
    arrays[f"model.decoder.layers.{LAYERS - 1}.final_layer_norm.weight"] *= -1
    arrays["final_logits_bias"][0, :2] = 0, -100  # no unknown id, which our search never emits
    return arrays


def safetensors(arrays: dict[str, np.ndarray]) -> bytes:
    """Arrays in safetensors' format, written by hand."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in arrays.values())


def write_marian(folder: Path, **changes: Any) -> Path:
    """Writes the folder; `changes` are options of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    source, target = piece_model(0, 60), piece_model(1, 56)
    ids = joint_ids(source, target)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({**configuration(ids), **changes}), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}', encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(tensors(len(ids))))
    return folder
