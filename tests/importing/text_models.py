"""Tokenizers that are trained here on a few lines, and small random models of transformers with them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from tests.tiny_text import lines

LINES = [
    *lines(0)[:80],
    "Zürich, naïve café déjà-vu.",
    "😀 👩\u200d👩\u200d👧 and 🇩🇪",
    "می\u200cخواهم به خانه بروم",
    "日本語のテスト。中文 字",
    "a\ttab and\ttabs",
    "Hello world: two  spaces",
    "Это проверка!",
    "don't (stop) [now] {x} @ #1",
]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SIZES: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}
HEADS: dict[str, Any] = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
BART = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def byte_bpe(size: int = 420, special: Sequence[str] = ("<|endoftext|>",), alphabet: bool = True) -> Any:
    """Byte-level BPE, with all bytes unless `alphabet` is false."""
    whole = tokenizers.Tokenizer(tokenizers.models.BPE())
    whole.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = tokenizers.decoders.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    text = LINES if alphabet else LINES[:80]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*special], initial_alphabet=letters, show_progress=False
    )
    whole.train_from_iterator(text, trainer)
    return whole


def word_piece(size: int = 300) -> Any:
    """BERT's WordPiece in lower case."""
    words = tokenizers.BertWordPieceTokenizer(lowercase=True)
    words.train_from_iterator(LINES, vocab_size=size, special_tokens=[*SPECIAL], show_progress=False)
    sides = [(token, words.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    words._tokenizer.post_processor = tokenizers.processors.BertProcessing(*sides)
    return words._tokenizer


def piece_bpe(size: int = 420) -> Any:
    """BPE with `▁` for spaces and bytes for other characters, and a start before each text, as Llama 2 has it."""
    whole = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    sequence = [("Replace", ("▁", " ")), ("ByteFallback", ()), ("Fuse", ()), ("Strip", (" ", 1, 0))]
    whole.decoder = tokenizers.decoders.Sequence(
        [getattr(tokenizers.decoders, name)(*given) for name, given in sequence]
    )
    special = ["<unk>", "<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    whole.train_from_iterator(LINES[:80], trainer)
    content = json.loads(whole.to_str())
    vocab = content["model"]["vocab"]
    first = len(vocab)
    vocab |= {f"<0x{byte:02X}>": first + byte for byte in range(256)}
    whole = tokenizers.Tokenizer.from_str(json.dumps(content))
    whole.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return whole


def _saved(folder: Path, model: Any, tokenizer: Any, **names: str) -> Any:
    """Writes a model of transformers and its tokenizer into a folder, with weights far from their start."""
    import torch
    import transformers

    torch.manual_seed(1)
    for name, tensor in model.named_parameters():
        is_norm = "norm" in name.lower() or "ln_" in name
        tensor.data.copy_(is_norm * 1.0 + torch.randn(tensor.shape) * (0.2 if is_norm else 0.4))
    model.eval().save_pretrained(str(folder))
    fast: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.save_pretrained(str(folder))
    return model


def gpt2(folder: Path) -> Any:
    """GPT-2, whose tokenizer puts nothing before a text."""
    import transformers

    tokenizer = byte_bpe()
    end = tokenizer.token_to_id("<|endoftext|>")
    sizes: Any = {"n_positions": 128, "n_embd": 16, "n_layer": 1, "n_head": 2}
    ids: Any = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    config = transformers.GPT2Config(vocab_size=tokenizer.get_vocab_size(), **sizes, **ids)
    model = transformers.GPT2LMHeadModel(config)
    return _saved(folder, model, tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


def llama(folder: Path) -> Any:
    """Llama, whose tokenizer puts a start before a text."""
    import transformers

    tokenizer = piece_bpe()
    sizes: Any = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    options: Any = {"bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 128, "pad_token_id": 2}
    config = transformers.LlamaConfig(vocab_size=tokenizer.get_vocab_size(), **sizes, **options)
    return _saved(folder, transformers.LlamaForCausalLM(config), tokenizer, bos_token="<s>", eos_token="</s>")


def bert(folder: Path) -> Any:
    """BERT with a head for masked tokens."""
    import transformers

    tokenizer = word_piece()
    sizes: Any = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=128,
        pad_token_id=tokenizer.token_to_id("[PAD]"),
        **sizes,
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    return _saved(folder, transformers.BertForMaskedLM(config), tokenizer, **names)


def bart(folder: Path) -> Any:
    """BART, forced to begin with its start."""
    import transformers

    tokenizer = byte_bpe(special=BART)
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    config = transformers.BartConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=128, **SIZES, **HEADS
    )
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), BART, strict=True))
    model: Any = transformers.BartForConditionalGeneration(config)
    model.generation_config.forced_bos_token_id = 0
    return _saved(folder, model, tokenizer, **names)


FOLDERS: dict[str, Callable[[Path], Any]] = {"gpt2": gpt2, "llama": llama, "bert": bert, "bart": bart}
