"""Translators as wide as real ones, with vocabularies of real size, read and write as in transformers.

Their weights are random, and their folders are those that transformers 5 writes.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from num2words import num2words

import keras_transformer
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.text.tokenizer import END
from tests.importing.language_models import greedy, logits_agree, tokenizer_of_m2m
from tests.importing.theirs import TAGS, pieces_of, sentencepiece_of
from tests.processes import ROOT

pytestmark = [pytest.mark.parity, pytest.mark.long]
NUM_PIECES, LONGEST, NUM_TRANSLATED, NUM_BEAMS = 8_000, 32, 20, 4
SIDES: dict[str, Any] = {
    "d_model": 512, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 8,
    "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "max_position_embeddings": 512,
}  # fmt: skip
T5: dict[str, Any] = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 2, "num_heads": 8}
# By parts of the names of kernels, what their numbers are multiplied by. Norms behind sub-layers want little of these.
FACTORS: dict[str, dict[str, float]] = {
    "marian": {"self_attn.out": 0.4, "fc2": 0.4, "encoder_attn.out": 0.6, "encoder_attn.q": 4},
    "": {"encoder_attn.out": 2, "encoder_attn.q": 4, "EncDecAttention.o": 4, ".q.": 0.125, "relative": 5},
}


class Folder(NamedTuple):
    """A folder of theirs.

    Args:
        model: which made it.
        tokenizer: which reads lines of the source, and writes translations.
        languages: those of a direction, of a model between many languages.
        tag: the id that a translation begins with there.
    """

    model: Any
    tokenizer: Any
    languages: tuple[str, str] | None = None
    tag: int | None = None


@cache
def lines() -> list[str]:
    """Lines that no change of the project changes: of its licence, invented ones, and numbers in words.

    The vocabularies are learned on them, and some are translated: with other ones, other translations would be as
    likely as one another but for rounding.
    """
    return [*worded(ROOT / "LICENSE"), *invented_lines(), *numbers_in_words()]


def worded(page: Path) -> Iterator[str]:
    """Lines of a page that have some words, without what spells a special token."""
    for line in page.read_text(encoding="utf-8").splitlines():
        if len(re.findall(r"\w+", line)) > 4 and not re.search("<|>>", line):
            yield " ".join(line.split())


def invented_lines() -> Iterator[str]:
    """Some words are frequent, most are rare, as in a language."""
    draw = np.random.default_rng(2)
    syllables = [
        f"{first}{vowel}{last}" for first in "bdfgklmnprstvzžшд" for vowel in "aeiouäéо" for last in ["", *"nrst"]
    ]
    words = ["".join(draw.choice(syllables, draw.integers(1, 4))) for _ in range(40_000)]
    for _ in range(30_000):
        yield " ".join(words[place % len(words)] for place in draw.zipf(1.2, draw.integers(5, 20)))


def numbers_in_words() -> Iterator[str]:
    draw = np.random.default_rng(1)
    for number in draw.integers(0, 1_000_000, 100).tolist():
        yield ", ".join(num2words(number, lang=language) for language in ("fr", "cs", "ru", "ar", "ja"))


@cache
def piece_model(seed: int, **options: Any) -> bytes:
    """A SentencePiece model of nine in ten of the lines, and of all their characters: theirs gives a character that the
    source's model alone lacks the target's id."""
    draw = np.random.default_rng(seed)
    text = (line for line in lines() if draw.random() < 0.9)
    characters = "".join(sorted({*"".join(lines())} - {" "}))
    return sentencepiece_of(text, NUM_PIECES, required_chars=characters, **options)


def saved(folder: Path, model: Any, end: int, **form: Any) -> Any:
    """Writes a model whose weights make texts that differ from one another, in a form; the model as they read it."""
    import torch

    torch.manual_seed(2)
    kind, is_tied = model.config.model_type, model.config.tie_word_embeddings
    drawn = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}  # no sinusoids
    for name, tensor in drawn.items():
        is_gain = "norm" in name and name.endswith("weight")
        width = 0.2 if tensor.ndim == 1 else 1.5 / tensor.shape[-1] ** 0.5
        if re.search("shared|embed_|lm_head", name):
            width = 3.0 if kind == "t5" and is_tied else 0.12
        factors = {part: factor for part, factor in FACTORS.get(kind, FACTORS[""]).items() if part in name}
        tensor.data.copy_((torch.randn(tensor.shape) * width + is_gain) * next(iter(factors.values()), 1))
    last = [name for name in drawn if re.search(r"decoder.*norm.weight", name)][-1]
    signs = torch.randn(model.config.d_model).sign()  # without them a tied output repeats what it reads
    model.get_parameter(last).data.mul_(signs)
    if hasattr(model, "final_logits_bias"):  # some translations end
        model.final_logits_bias[0, end] = 9
    else:
        model.get_output_embeddings().weight.data[end].mul_(3)
    dtype = form.pop("dtype", torch.float32)
    model.eval().to(dtype).save_pretrained(str(folder), **form)
    return type(model).from_pretrained(str(folder), dtype=torch.float32).eval()


def marian(folder: Path, is_apart: bool) -> Folder:
    """A Marian model of OPUS-MT's tc-big: ids that no order has, tags of targets, float16; or sides apart in shards."""
    import torch
    import transformers

    models = {"source.spm": piece_model(0), "target.spm": piece_model(1)}
    sides = [{*pieces_of(model)} for model in models.values()]
    texts = [sides, [sides[0] | sides[1]]][not is_apart]
    names = ["vocab.json", "target_vocab.json"][: len(texts)]
    for name, content in models.items():
        (folder / name).write_bytes(content)
    for name, own in zip(names, texts, strict=True):
        order = sorted([*own, "<unk>", "</s>", "<s>", *(TAGS if name == "vocab.json" else [])])
        (folder / name).write_text(json.dumps({piece: id for id, piece in enumerate([*order, "<pad>"])}))
    made: Any = transformers.MarianTokenizer
    paths = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json", "target_vocab.json")]
    tokenizer = made(*paths[: len(names) + 2], separate_vocabs=is_apart, source_lang="en", target_lang="de")
    tokenizer.save_pretrained(str(folder))
    ids = [json.loads((folder / name).read_text()) for name in names]
    target = ids[-1]
    config = transformers.MarianConfig(
        vocab_size=len(ids[0]), decoder_vocab_size=len(target), pad_token_id=target["<pad>"],
        eos_token_id=target["</s>"], forced_eos_token_id=target["</s>"], decoder_start_token_id=target["<pad>"],
        share_encoder_decoder_embeddings=not is_apart, tie_word_embeddings=not is_apart, scale_embedding=True,
        activation_function="swish" if is_apart else "relu", **SIDES,
    )  # fmt: skip
    model: Any = transformers.MarianMTModel(config)
    model.generation_config.update(bad_words_ids=[[target["<pad>"]]], num_beams=6, max_length=512)
    form: Any = {"max_shard_size": "8MB"} if is_apart else {"dtype": torch.float16}
    return Folder(saved(folder, model, target["</s>"], **form), tokenizer)


def m2m(folder: Path, model_class: str, tokenizer: Any, **options: Any) -> Folder:
    """A model between many languages, whose tokenizer is written too."""
    import torch
    import transformers

    tokenizer.save_pretrained(str(folder))
    source, target = list(getattr(tokenizer, "lang_code_to_id", ("eng_Latn", "deu_Latn")))[:2]
    config_class = getattr(transformers, f"{model_class}Config")
    config = config_class(vocab_size=len(tokenizer) + 3, decoder_start_token_id=2, **SIDES, **options)
    model: Any = getattr(transformers, f"{model_class}ForConditionalGeneration")(config)
    model = saved(folder, model, 2, dtype=torch.float16, max_shard_size="8MB")
    tokenizer.src_lang = source
    tag = tokenizer.convert_tokens_to_ids(f"__{target}__" if model_class == "M2M100" and len(target) < 4 else target)
    return Folder(model, tokenizer, (source, target), tag)


def m2m_100(folder: Path) -> Folder:
    """M2M-100 with vocab.json, the SentencePiece model, and the tags that transformers wrote."""
    (folder / "sentencepiece.bpe.model").write_bytes(piece_model(0))
    texts = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(piece_model(0))]
    (folder / "vocab.json").write_text(json.dumps({text: id for id, text in enumerate(texts)}))
    return m2m(folder, "M2M100", tokenizer_of_m2m(folder))


def nllb(folder: Path) -> Folder:
    """NLLB-200 with tokenizer.json alone."""
    import transformers

    (folder / "sentencepiece.bpe.model").write_bytes(piece_model(0, model_type="bpe"))
    named = {"tokenizer_class": "NllbTokenizer", "additional_special_tokens": ["eng_Latn", "deu_Latn"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    tokenizer = transformers.NllbTokenizer.from_pretrained(str(folder))
    (folder / "sentencepiece.bpe.model").unlink()
    return m2m(folder, "M2M100", tokenizer)


def mbart(folder: Path, is_alone: bool) -> Folder:
    """mBART-50 with tokenizer.json, alone or beside its SentencePiece model."""
    import transformers

    (folder / "sentencepiece.bpe.model").write_bytes(piece_model(0))
    made: Any = transformers.MBart50Tokenizer
    tokenizer = made.from_pretrained(str(folder))
    if is_alone:
        (folder / "sentencepiece.bpe.model").unlink()
    return m2m(folder, "MBart", tokenizer, scale_embedding=True)


def t5(folder: Path, is_mt5: bool) -> Folder:
    """T5 v1.0 with tokenizer.json alone; or mT5, gated, with an output of its own, padding, and `spiece.model` too."""
    import torch
    import transformers

    named = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "pad_piece": "<pad>"}
    (folder / "spiece.model").write_bytes(piece_model(0, **named))
    (folder / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 0} if is_mt5 else {}))
    made: Any = transformers.T5Tokenizer
    tokenizer = made.from_pretrained(str(folder), **({"extra_ids": 0} if is_mt5 else {}))
    tokenizer.save_pretrained(str(folder))
    name = "T5"
    options: Any = {"decoder_start_token_id": 0, "vocab_size": len(tokenizer)}
    if is_mt5:
        name = "MT5"
        options |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "vocab_size": len(tokenizer) + 112}
    else:
        (folder / "spiece.model").unlink()
    config = getattr(transformers, f"{name}Config")(**T5, **options)
    model: Any = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    if is_mt5:
        model.lm_head.weight = model.lm_head.weight.__class__(model.lm_head.weight.clone())
    form: Any = {"max_shard_size": "8MB"} if is_mt5 else {"dtype": torch.float16}
    return Folder(saved(folder, model, 1, **form), tokenizer)


FOLDERS: dict[str, Callable[[Path], Folder]] = {
    "tc-big": lambda folder: marian(folder, is_apart=False),
    "marian-apart": lambda folder: marian(folder, is_apart=True),
    "m2m": m2m_100,
    "nllb": nllb,
    "mbart": lambda folder: mbart(folder, is_alone=True),
    "mbart-sentencepiece": lambda folder: mbart(folder, is_alone=False),
    "t5": lambda folder: t5(folder, is_mt5=False),
    "mt5": lambda folder: t5(folder, is_mt5=True),
}


def check(path: Path, folder: Folder, texts: list[str]) -> None:
    """Pieces of all texts, logits of four, greedy texts and beams of the first ones are those of transformers."""
    import torch

    imported, translator = read_huggingface(path), keras_transformer.import_huggingface(path)
    source, ids = imported.source, imported.target.ids
    tag: list[int] = []
    if folder.languages:
        translator = translator.between(*folder.languages)
        tag = translator.direction.source
    rows = folder.tokenizer(texts)["input_ids"]
    for line, cut, row in zip(texts, source.tokenizer.encode(texts), rows, strict=True):
        assert [source.ids[id] for id in [*tag, *cut, END]] == row, line
    texts, rows = texts[:NUM_TRANSLATED], rows[:NUM_TRANSLATED]
    logits_agree(imported, folder.model, rows[:4])
    never = {*ids[: imported.config["num_control_ids"]], *without_padding(folder.model, max(ids) + 1)} - {ids[END]}
    forced: Any = {"forced_eos_token_id": None, "forced_bos_token_id": folder.tag}
    expected = greedy(folder.model, rows, never, LONGEST, **forced)
    found = translator.n_best(texts, num_beams=1, max_length=LONGEST, split="off")
    assert len({*map(tuple, expected)}) > 1
    for (best,), row in zip(found, expected, strict=True):
        assert [ids[id] for id in best.ids][: LONGEST - 1] == row
        if imported.config["source_vocabulary_size"] is None:  # theirs takes special ids of the source out of a target
            text = folder.tokenizer.decode([ids[id] for id in best.ids], skip_special_tokens=True)
            assert re.sub(r" ?<extra_id_\d+>", "", best.text).strip() == text.strip()
    banned = [[id] for id in sorted(never)]
    options: Any = {"num_beams": NUM_BEAMS, "length_penalty": 0.0, "max_new_tokens": LONGEST, "bad_words_ids": banned}
    search: Any = {"num_beams": NUM_BEAMS, "length_penalty": 0.0, "max_length": LONGEST, "split": "off"}
    ended = 0
    for row, [best, *_] in zip(rows, translator.n_best(texts, **search), strict=True):
        with torch.no_grad():
            theirs = folder.model.generate(torch.tensor([row]), do_sample=False, **options, **forced)[0].tolist()
        if ids[END] in theirs[1:]:
            ended += 1
            written = theirs[: theirs.index(ids[END], 1) + 1]
            ours = [theirs[0], *(ids[id] for id in best.ids)]
            assert log_prob(folder, row, ours) > log_prob(folder, row, written) - 1e-3
    assert ended > 2


def without_padding(model: Any, size: int) -> range:
    """Rows of the output above the vocabulary, which get no probability, as trained models give them none."""

    def hide(_layer: object, _inputs: object, logits: Any) -> None:
        logits[..., size:] = -1e30

    output = model.get_output_embeddings()
    output.register_forward_hook(hide)
    return range(size, len(output.weight))


def log_prob(folder: Folder, row: list[int], written: list[int]) -> float:
    """log P of a translation, without its tag, with their model."""
    import torch

    with torch.no_grad():
        logits = folder.model(input_ids=torch.tensor([row]), decoder_input_ids=torch.tensor([written])).logits[0]
    log_probs = torch.log_softmax(logits.double(), -1)[range(len(written) - 1), written[1:]]
    return float(log_probs[folder.tag is not None :].sum())


@pytest.mark.parametrize("kind", [*FOLDERS])
def test_a_translator_as_wide_as_real_ones(kind, tmp_path):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = FOLDERS[kind](tmp_path)
    fixed = [*lines()[:300], *lines()[-100:]]
    pages = [line for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]) for line in worded(page)]
    texts = [line[:100].strip() for line in fixed[:: len(fixed) // NUM_TRANSLATED]] + fixed + pages[:800]
    if kind in ("tc-big", "marian-apart"):
        texts = [f"{TAGS[place % 2]} {line}" for place, line in enumerate(texts)]
    check(tmp_path, folder, texts)
