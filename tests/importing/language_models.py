"""Small random models of transformers for many languages, with vocabularies trained on a few lines."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece

from tests.tiny_text import lines

TAGS = ["<2de>", "<2fr>", "<2zh_Latn>"]
TEXT = [*lines(0), "Zürich, naïve café déjà-vu.", "Это проверка!", "two  spaces"]
T5: dict[str, Any] = {
    "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 2, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6, "decoder_start_token_id": 0, "tie_word_embeddings": False,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip


def pieces(size: int, **options: Any) -> bytes:
    """A SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXT), model_writer=model, vocab_size=size, minloglevel=2, **options
    )
    return model.getvalue()


def saved(folder: Path, model: Any) -> Any:
    """Writes a model, with weights far from their start, so that texts differ from one another."""
    import torch

    torch.manual_seed(1)
    for name, tensor in model.named_parameters():
        is_norm = "norm" in name
        tensor.data.copy_(is_norm * 1.0 + torch.randn(tensor.shape) * (0.2 if is_norm else 0.4))
    model.eval().save_pretrained(str(folder))
    return model


def mt5(folder: Path) -> Any:
    """mT5: rows for more pieces than there are, bytes for rare characters, and an output of its own."""
    import transformers

    model = pieces(318, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, byte_fallback=True, character_coverage=0.98)
    (folder / "spiece.model").write_bytes(model)
    options: Any = {"extra_ids": 0, "additional_special_tokens": None, "pad_token": "<pad>", "sp_model_kwargs": {}}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    made: Any = transformers.MT5ForConditionalGeneration(transformers.MT5Config(vocab_size=352, **T5))
    made.lm_head.weight = made.lm_head.weight.__class__(made.lm_head.weight.clone())
    return saved(folder, made)


def madlad(folder: Path) -> Any:
    """MADLAD-400: no `<pad>`, decoding starts with `<unk>`, and tags of languages are pieces."""
    import transformers

    model = pieces(80, user_defined_symbols=TAGS)
    (folder / "spiece.model").write_bytes(model)
    options = {
        "extra_ids": 0, "additional_special_tokens": [], "bos_token": "<s>", "pad_token": "<s>", "unk_token": "<unk>",
        "added_tokens_decoder": {str(id): {"content": text} for id, text in enumerate(("<unk>", "<s>", "</s>"))},
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    own: Any = {"pad_token_id": 1, "eos_token_id": 2, "scale_decoder_outputs": False}
    config = transformers.T5Config(vocab_size=96, **own, **T5)
    made: Any = transformers.T5ForConditionalGeneration(config)
    made.lm_head.weight = made.lm_head.weight.__class__(made.lm_head.weight.clone())
    return saved(folder, made)


FOLDERS: dict[str, Callable[[Path], Any]] = {"mt5": mt5, "madlad": madlad}
