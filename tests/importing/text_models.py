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
LAYERS: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1}
HEADS: dict[str, Any] = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
BART = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def byte_bpe(
    size: int = 420, special: Sequence[str] = ("<|endoftext|>",), alphabet: bool = True, text: Sequence[str] = LINES
) -> Any:
    """Byte-level BPE, with all bytes unless `alphabet` is false."""
    whole = tokenizers.Tokenizer(tokenizers.models.BPE())
    whole.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = tokenizers.decoders.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    text = text if alphabet else LINES[:80]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*special], initial_alphabet=letters, show_progress=False
    )
    whole.train_from_iterator(text, trainer)
    return whole


def word_piece(size: int = 300, text: Sequence[str] = LINES) -> Any:
    """BERT's WordPiece in lower case."""
    words = tokenizers.BertWordPieceTokenizer(lowercase=True)
    words.train_from_iterator(text, vocab_size=size, special_tokens=[*SPECIAL], show_progress=False)
    sides = [(token, words.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    words._tokenizer.post_processor = tokenizers.processors.BertProcessing(*sides)
    return words._tokenizer


def piece_bpe(size: int = 420, text: Sequence[str] = LINES[:80]) -> Any:
    """BPE with `▁` for spaces and bytes for other characters, and a start before each text, as Llama 2 has it."""
    whole = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    sequence = [("Replace", ("▁", " ")), ("ByteFallback", ()), ("Fuse", ()), ("Strip", (" ", 1, 0))]
    whole.decoder = tokenizers.decoders.Sequence(
        [getattr(tokenizers.decoders, name)(*given) for name, given in sequence]
    )
    special = ["<unk>", "<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    whole.train_from_iterator(text, trainer)
    content = json.loads(whole.to_str())
    vocab = content["model"]["vocab"]
    first = len(vocab)
    vocab |= {f"<0x{byte:02X}>": first + byte for byte in range(256)}
    whole = tokenizers.Tokenizer.from_str(json.dumps(content))
    whole.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return whole


FLIPPED = {"model.decoder.layer_norm.weight", "model.decoder.layers.0.final_layer_norm.weight"}


def saved(folder: Path, model: Any, tokenizer: Any = None, **names: str) -> Any:
    """Writes a model of transformers, and perhaps its tokenizer, into a folder, with weights far from their start, so
    that texts differ from one another; the wider the model, the smaller.
    """
    import torch
    import transformers

    torch.manual_seed(1)
    spread = 1.6 * model.config.hidden_size**-0.5
    for name, tensor in model.named_parameters():
        is_norm = "norm" in name.lower() or "ln_" in name
        factor = -1 if name in FLIPPED else 4 if "encoder_attn." in name else 1
        values = is_norm * 1.0 + torch.randn(tensor.shape) * (0.2 if is_norm else spread)
        tensor.data.copy_(values * factor)  # a tied output would repeat what it reads
    for name, tensor in model.named_buffers():
        if name == "final_logits_bias":
            tensor.copy_(torch.randn(tensor.shape))
    model.eval().save_pretrained(str(folder))
    if tokenizer is not None:
        fast: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
        fast.save_pretrained(str(folder))
    return model


def gpt2(folder: Path, tokenizer: Any = None, width: int = 16) -> Any:
    """GPT-2, whose tokenizer puts nothing before a text."""
    import transformers

    tokenizer = tokenizer or byte_bpe()
    end = tokenizer.token_to_id("<|endoftext|>")
    sizes: Any = {"n_positions": 128, "n_embd": width, "n_layer": 1 + (width > 16), "n_head": 2}
    ids: Any = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    config = transformers.GPT2Config(vocab_size=tokenizer.get_vocab_size(), **sizes, **ids)
    model = transformers.GPT2LMHeadModel(config)
    return saved(folder, model, tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


def llama(folder: Path, tokenizer: Any = None, width: int = 16) -> Any:
    """Llama, whose tokenizer puts a start before a text."""
    import transformers

    tokenizer = tokenizer or piece_bpe()
    options: Any = {"bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 128, "pad_token_id": 2}
    config = transformers.LlamaConfig(vocab_size=tokenizer.get_vocab_size(), **sizes_of(width), **options)
    return saved(folder, transformers.LlamaForCausalLM(config), tokenizer, bos_token="<s>", eos_token="</s>")


def unigram(size: int = 200) -> Any:
    """XLM-R's: Unigram with `▁` for spaces, and RoBERTa's special tokens."""
    whole = tokenizers.Tokenizer(tokenizers.models.Unigram())
    whole.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKC(), tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    )
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    whole.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=size, special_tokens=[*BART], unk_token="<unk>", show_progress=False
    )
    whole.train_from_iterator(LINES, trainer)
    sides = [(token, whole.token_to_id(token)) for token in ("<s>", "</s>")]
    whole.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A </s>", special_tokens=sides)
    return whole


def sizes_of(width: int) -> Any:
    """The sizes of a model of one layer, or of two if it is wide."""
    sizes = {"hidden_size": width, "intermediate_size": 3 * width // 2, "num_attention_heads": 2}
    return {**sizes, "num_hidden_layers": 1 + (width > 16)}


def encoder(kind: str, make_tokenizer: Callable[[], Any], special: Sequence[str]) -> Callable[..., Any]:
    """A maker of an encoder with a head for masked tokens.

    Args:
        kind: what transformers' classes are called.
        make_tokenizer: makes the tokenizer, unless one is given.
        special: its pad, unknown, start, end and mask.
    """

    def make(folder: Path, tokenizer: Any = None, width: int = 16) -> Any:
        import transformers

        cut = tokenizer or make_tokenizer()
        ids = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
        sizes = sizes_of(width)
        if kind == "DistilBert":
            sizes = dict(zip(("dim", "hidden_dim", "n_heads", "n_layers"), sizes.values(), strict=True))
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=cut.get_vocab_size(),
            max_position_embeddings=128,
            pad_token_id=cut.token_to_id(ids["pad"]),
            **sizes,
        )
        model = getattr(transformers, f"{kind}ForMaskedLM")(config)
        return saved(folder, model, cut, **{f"{name}_token": token for name, token in ids.items()})

    return make


def byte_bpe_with_ends(size: int = 420, text: Sequence[str] = LINES) -> Any:
    """RoBERTa's and BART's."""
    whole = byte_bpe(size, BART, text=text)
    whole.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    return whole


def bart(folder: Path, tokenizer: Any = None, width: int = 16) -> Any:
    """BART, forced to begin with its start."""
    import transformers

    tokenizer = tokenizer or byte_bpe_with_ends()
    wider: Any = {"d_model": width, "encoder_ffn_dim": 3 * width // 2, "decoder_ffn_dim": 3 * width // 2}
    sizes: Any = {**LAYERS, **HEADS, **wider}
    config = transformers.BartConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=128, **sizes)
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), BART, strict=True))
    model: Any = transformers.BartForConditionalGeneration(config)
    model.generation_config.forced_bos_token_id = 0
    return saved(folder, model, tokenizer, **names)


ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
ENCODERS: dict[str, Callable[..., Any]] = {
    "bert": encoder("Bert", word_piece, SPECIAL),
    "roberta": encoder("Roberta", byte_bpe_with_ends, ROBERTA),
    "xlm-roberta": encoder("XLMRoberta", unigram, ROBERTA),
    "distilbert": encoder("DistilBert", word_piece, SPECIAL),
}
FOLDERS: dict[str, Callable[..., Any]] = {"gpt2": gpt2, "llama": llama, "bart": bart, **ENCODERS}
