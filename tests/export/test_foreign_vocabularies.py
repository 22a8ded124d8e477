"""Runs whose vocabulary is not SentencePiece are exported as artefacts of ids, those with WordPiece of text too."""

import json
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tokenizers

from export import word_pieces
from export.__main__ import main as export
from export.artefacts import signature_of
from export.onnx.graph import Graph, Model, ValueInfo, write_model
from export.onnx.text_graph import tokenized
from export.saved_model import of_words, pieces_in
from keras_transformer.__main__ import main
from keras_transformer.checking.certificate_texts import ODD_TEXTS, valid
from keras_transformer.checking.signatures import ONE_LINE
from keras_transformer.text.huggingface_tokenizer import HuggingFaceTokenizer
from keras_transformer.text.tokenizer import PAD
from tests.importing.text_models import LINES, SPECIAL, byte_bpe, word_piece
from tests.importing.theirs import SIZE, WORDS, change, write
from tests.text_operators import answers

FORMATS = {
    ("gpt2", "onnx"): {"onnx/generate.onnx": "ids", "onnx/step.onnx": "step"},
    ("gpt2", "saved_model"): {"saved_model": "ids"},
    ("llama", "onnx"): {"onnx/generate.onnx": "ids", "onnx/step.onnx": "step"},
    ("llama", "tflite"): {"tflite/generate.tflite": "ids"},
    ("bert-tokens", "onnx"): {"onnx/embed_text.onnx": "text", "onnx/fill.onnx": "ids"},
    ("bert-tokens", "tflite"): {"tflite/fill.tflite": "ids"},
    ("bert-labels", "saved_model"): {"saved_model": "text"},
}
SAID = {
    "llama": "left out: artefacts that take text: no operators of runtimes read and join WordLevel",
    "gpt2": "left out: artefacts that take text: no operators of runtimes read and join WordLevel",
    "tflite": "tflite/embed_text.tflite is left out: LiteRT has no operator for WordPiece",
}
# Options of BERT's normalizer. A vocabulary that keeps all characters has SentencePiece's sign for a space.
NORMALIZERS = {
    "bert": {},
    "as it is": {"lowercase": False, "strip_accents": False, "clean_text": False, "handle_chinese_chars": False},
}
HARD_TEXTS = [
    *[text for text in ODD_TEXTS if "\0" not in text], *LINES, "a" * 99, "a" * 100, "a" * 101, "das" * 60,
    "[MASK] in[MASK]side [CLS][SEP]x [UNK] [mask] [MASK", "[[MASK]]", "[PAD]", "ΑΣ ὈΔΥΣΣΕΎΣ İIı", "Straße ẞ",
    "한국어 힣각 中a国b", " ".join(word_pieces.PRIVATE[:12]), "a.b.c",
    "▁the ▁ the▁ ▁▁", "##the # #", "a\u0301\u0327b \ue000 \ue001a \U000f0000", "$5.00 + 3^2 = `a` ~b~ |c|",
]  # fmt: skip


def vocabulary(**options: bool) -> HuggingFaceTokenizer:
    """WordPiece with these options of BERT's normalizer, our ids not in its order, and a piece that no word has."""
    words = tokenizers.BertWordPieceTokenizer(**options)
    text = [*LINES, "▁▁ the▁ ▁the", "\ue000 \ue001 \ufffd", "über Über"]
    words.train_from_iterator(text, vocab_size=400, special_tokens=[*SPECIAL], show_progress=False)
    sides = [(token, words.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    words._tokenizer.post_processor = tokenizers.processors.BertProcessing(*sides)
    content = json.loads(words._tokenizer.to_str())
    content["model"]["vocab"]["##."] = len(content["model"]["vocab"])
    return of(tokenizers.Tokenizer.from_str(json.dumps(content)))


def of(whole: Any) -> HuggingFaceTokenizer:
    control = [whole.token_to_id(token) or 0 for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")]
    others = [id for id in reversed(range(whole.get_vocab_size())) if id not in control]
    return HuggingFaceTokenizer.of(whole.to_str(), control + others)


def texts() -> list[str]:
    """Hard ones, random ones, and one of every 61 characters."""
    generator = random.Random(3)
    parts = [*"aeuß cdÀÉİ#'.,▁中한😀\u0301\u200b\u00a0", "[MASK]", "[SEP]", "the", "ing", "##", "  ", *SPECIAL]
    drawn = ["".join(generator.choices(parts, k=generator.randrange(1, 30))) for _ in range(1000)]
    points = [point for point in range(1, 0x110000, 61) if not 0xD800 <= point < 0xE000]
    return [*map(valid, HARD_TEXTS), *drawn, *(f"x{chr(point)}y {chr(point)}" for point in points)]


@pytest.mark.parametrize("name", NORMALIZERS)
def test_text_is_read_as_the_tokenizer_reads_it(name, tmp_path):
    """By ONNX Runtime and by TensorFlow, all texts at once."""
    import tensorflow_text

    tokenizer, given = vocabulary(**NORMALIZERS[name]), texts()
    assert not word_pieces.reason_against_text(tokenizer)
    expected = tokenizer.encode(given)
    g, read = Graph(), word_pieces.word_pieces(tokenizer)
    name = g.named(tokenized(g, "text", tokenizer, [ONE_LINE], 1000, PAD), "ids")
    model = Model(g, [ValueInfo("text", object, ["batch"])], [ValueInfo(name, np.int32, ["batch", "length"])])
    (path,) = write_model(tmp_path / "m.onnx", model, {})
    feeds = [{"text": np.array(some, object)} for some in (given, ["", " "], [])]
    (rows,), *empty = answers({path: feeds})[path]
    assert [len(one) for (one,) in empty] == [2, 0] and not np.any(empty[0][0])
    for text, ids, row in zip(given, expected, rows, strict=True):
        assert [id for id in np.array(row).tolist() if id] == ids, text
    pieces = pieces_in(tensorflow_text.SentencepieceTokenizer(read.model, tf.int32), given, [ONE_LINE, *read.cleaning])
    for text, ids, row in zip(given, expected, of_words(pieces, read).to_list(), strict=True):
        assert row == ids, text


def changed(*keys: str, **values: Any) -> HuggingFaceTokenizer:
    """WordPiece whose tokenizer.json has other values at one place."""
    content = json.loads(word_piece().to_str())
    place = content
    for key in keys:
        place = place[key]
    place.update(values)
    return of(tokenizers.Tokenizer.from_str(json.dumps(content)))


def test_a_vocabulary_that_no_operator_reads_is_named():
    token = {"id": 300, "content": "[a]", "single_word": False, "lstrip": False, "rstrip": False, "special": False}
    assert not word_pieces.reason_against_text(changed())
    for reason, tokenizer in {
        "no operators of runtimes read and join BPE": of(byte_bpe()),
        "its words are cut by Lowercase and BertPreTokenizer": changed(normalizer={"type": "Lowercase"}),
        "its words are cut by BertNormalizer and Whitespace": changed(pre_tokenizer={"type": "Whitespace"}),
        "one start and one end around": changed(post_processor=None),
        "have no prefix": changed("model", continuing_subword_prefix=""),
        r"its token '\[a\]' is found": changed(added_tokens=[{**token, "normalized": True}]),
        "its token 'word' is found": changed(added_tokens=[{**token, "normalized": False, "content": "word"}]),
    }.items():
        with pytest.raises(AssertionError, match=reason):
            raise AssertionError(word_pieces.reason_against_text(tokenizer))
    kinds = {"translation": "", "masked-tokens": "embed_text"}
    assert {task: signature_of(task, {}, [changed()]).text_stem for task in kinds} == kinds


def exported(kind: str, format: str, tmp_path: Any) -> tuple[int, list[str]]:
    """The exit code of an export, and the command."""
    run, out, text = (tmp_path / name for name in ("run", "export", "text"))
    folder = write(kind, tmp_path / "model")
    modules = [{"path": name, "type": f"models.{name}"} for name in ("Pooling", "Normalize")]
    (folder / "modules.json").write_text(json.dumps(modules))
    if kind == "llama":  # any of these ends a text
        change(folder, "generation_config.json", eos_token_id=[2, 12, 30])
    (folder / "Pooling").mkdir()
    (folder / "Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    assert main(["import", str(folder), str(run)]) == 0
    words = [word for word in WORDS if word[0] != "["] if kind.startswith("bert") else [*map(str, range(3, SIZE - 1))]
    text.write_text("".join(f"{' '.join(words[place : place + 6])}\n" for place in range(20)))
    asked = [str(run), "--format", format, "--out", str(out), "--sentences", str(text)]
    return export(asked), asked


def cells(pairs: Iterable[tuple[str, str]]) -> list[Any]:
    """Those of one format are quick; each other format takes TensorFlow's converters."""
    return [pair if pair[1] == "onnx" else pytest.param(*pair, marks=pytest.mark.long) for pair in pairs]


@pytest.mark.parametrize(("kind", "format"), cells(FORMATS))
def test_an_export_takes_what_its_runtime_reads_and_holds(kind, format, tmp_path, capsys):
    code, asked = exported(kind, format, tmp_path)
    run, out = tmp_path / "run", tmp_path / "export"
    assert code == 0
    said, expected = capsys.readouterr().err, SAID.get(kind, SAID.get(format))
    assert expected in said if expected else "left out" not in said
    entries = json.loads((out / "certificate.json").read_text())["entries"]
    assert {entry["name"]: entry["takes"] for entry in entries} == FORMATS[kind, format]
    assert all(entry["holds"] for entry in entries)
    assert (out / "tokenizer.json").read_bytes() == (run / "tokenizer.json").read_bytes()
    assert export(["--verify", str(out)]) == 0
    if "ids" in FORMATS[kind, format].values():
        other = (out / "tokenizer.json").read_bytes().replace(b'{"ids"', b'{ "ids"')
        (out / "tokenizer.json").write_bytes(other)
        capsys.readouterr()
        assert export(["--verify", str(out), str(run), *asked[-2:]]) == 1
        assert "tokenizer.json is not the model's vocabulary" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "format"), cells(key for key, found in FORMATS.items() if "text" in found.values()))
def test_the_certificate_refuses_text_that_is_read_otherwise(kind, format, tmp_path, monkeypatch, capsys):
    """Long words are unknown in it."""
    whole = word_pieces.word_pieces
    monkeypatch.setattr(word_pieces, "word_pieces", lambda tokenizer: whole(tokenizer)._replace(longest=2))
    assert exported(kind, format, tmp_path)[0] == 1
    assert "its tokenizer reads" in capsys.readouterr().out


def test_what_takes_sentencepiece_is_refused_by_name(tmp_path, capsys):
    assert main(["import", str(write("bart", tmp_path / "model")), str(tmp_path / "run")]) == 0
    text = tmp_path / "text"
    text.write_text("4 5 6\n")
    asked = [str(tmp_path / "run"), "--format", "ctranslate2", "--out", str(tmp_path / "export")]
    assert export([*asked, "--sentences", str(text)]) == 2
    assert "ctranslate2 takes SentencePiece's pieces" in capsys.readouterr().err and not (tmp_path / "export").exists()
