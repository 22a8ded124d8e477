"""The ONNX files read and write text as the tokenizer does, for every kind of vocabulary."""

import io
from typing import Any

import keras
import numpy as np
import sentencepiece

from export.artefacts import Decoding, TrainedRun
from export.onnx.export import text_model
from export.onnx.graph import Graph, Model, ValueInfo, write_model
from export.onnx.text_graph import detokenized, utf_8
from keras_transformer.models import Transformer
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.sentences import padded
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, PAD, UNKNOWN, Tokenizer
from tests.layer_check import randomize
from tests.text_operators import answers
from tests.tiny_text import lines

ODD_TEXT = [
    "one two", "", " \t ", "\u200b\u2060", "\u00ad", "\x07\x1b one", "one\ntwo\r\nthree", "<s> dog </s> <pad> <unk>",
    "日本語 two", "\u3000 one \u3000", "e\u0301 cat", "\ufeffone", "x" * 300, "one " * 100,
]  # fmt: skip

NO_UTF_8 = [[b"one \xff\xfe two"], [b"\x80"], [b"\xed\xa0\x80", b"one"]]
# SentencePiece's options for vocabularies that `--tokenizer` takes and `Tokenizer.train` does not make.
VOCABULARIES: dict[str, dict[str, Any]] = {
    "unigram": {},
    "bpe": {"model_type": "bpe"},
    "bytes": {"byte_fallback": True},
    "bpe with bytes": {"model_type": "bpe", "byte_fallback": True},
    "symbols": {"user_defined_symbols": "a▁b,\x0bx,\x1cy,\x85z", "control_symbols": "<sep>", "unk_surface": "?▁?"},
    "no prefix": {"add_dummy_prefix": False},
    "all spaces": {"remove_extra_whitespaces": False, "normalization_rule_name": "identity"},
    "spaces behind": {"treat_whitespace_as_suffix": True},
    "denormalizer": {},
}
RULES = "64 6F 67\t68 75 6E 64\n20 64\t20 20 44\n"  # dog: hund; a space and d: two spaces and D
# Characters of each length, and at the edges of what is one.
CHARACTERS = "\0 \n \r \x7f \x80 \xa0 ä \u07ff \u0800 ▁ \u2028 日 \ud7ff \ue000 \ufffd \U00010000 😀 \U0010ffff"
NO_CHARACTERS = [b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xe6\x97",
                 b"\xf0\x8f\xbf\xbf", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff"]  # fmt: skip


def vocabulary(name: str, folder) -> Tokenizer:
    options: dict[str, Any] = {"vocab_size": 330, "normalization_rule_name": "nmt_nfkc", **VOCABULARIES[name]}
    if name == "denormalizer":
        (folder / "rules.tsv").write_text(RULES)
        options["denormalization_rule_tsv"] = str(folder / "rules.tsv")
    text = lines(0, 200) + ["ä\u2029日本 \u3000😀", "a  b   c "]
    model = io.BytesIO()
    names: dict[str, Any] = {f"{kind}_id": id for id, kind in enumerate(("pad", "unk", "bos", "eos"))}
    names |= {f"{kind}_piece": piece for kind, piece in zip(("pad", "unk", "bos", "eos"), CONTROL_PIECES, strict=True)}
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(text), model_writer=model, hard_vocab_limit=False, minloglevel=2, **names, **options
    )
    return Tokenizer(model.getvalue())


def rows_of(tokenizer: Tokenizer, count: int) -> np.ndarray:
    """(B, T) Random pieces, among them bytes of whole and broken characters where the vocabulary has bytes."""
    generator = np.random.default_rng(1)
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    byte_ids = {int(piece[1:-1], 16): id for id, piece in enumerate(pieces) if piece.startswith("<0x")}
    bites = [*(character.encode() for character in CHARACTERS.split(" ")), *NO_CHARACTERS]
    rows = []
    for _ in range(count):
        row = [END] if generator.random() < 0.8 else []
        for _ in range(generator.integers(12)):
            chosen = bites[generator.integers(len(bites))][: generator.integers(1, 5)]
            piece = int(generator.integers(END + 1, len(pieces)))
            id = int(generator.choice([UNKNOWN, piece, tokenizer.encode([" x"])[0][0]]))
            row = [*([byte_ids[byte] for byte in chosen] if byte_ids and generator.random() < 0.7 else [id]), *row]
        rows.append(row)
    return padded(rows)


def test_ids_become_the_text_that_the_tokenizer_makes_of_them(tmp_path):
    """The graphs run in one other process."""
    tokenizers, feeds = {}, {}
    for name in VOCABULARIES:
        tokenizer, g = vocabulary(name, tmp_path), Graph()
        outputs = [ValueInfo(g.named(detokenized(g, "ids", tokenizer), "text"), object, ["batch"])]
        model = Model(g, [ValueInfo("ids", np.int32, ["batch", "target"])], outputs)
        (path,) = write_model(tmp_path / f"{name}.onnx", model, {})
        ids = rows_of(tokenizer, 300)
        feeds[path] = [{"ids": each} for each in (ids, ids[:1], ids[:0], ids[:3, :0], np.full((2, 5), PAD, "int32"))]
        tokenizers[path] = tokenizer
    for path, found in answers(feeds).items():
        for given, (texts,) in zip(feeds[path], found, strict=True):
            assert texts == tokenizers[path].decode(given["ids"].tolist()), path.stem
        assert len(set(found[0][0])) > 210


def test_the_table_of_utf_8_allows_what_python_reads():
    lengths, lowest, highest = utf_8()
    for first in range(256):
        row = bytes([first, *lowest[first, 1 : lengths[first]]])
        assert (lengths[first] > 0) == is_utf_8(row) if first > 0x7F else lengths[first] <= 1, hex(first)
        for place in range(1, lengths[first]):
            allowed = [is_utf_8(row[:place] + bytes([byte]) + row[place + 1 :]) for byte in range(256)]
            bounds = int(lowest[first, place]), int(highest[first, place])
            assert [byte for byte in range(256) if allowed[byte]] == [*range(bounds[0], bounds[1] + 1)], hex(first)


def is_utf_8(data: bytes) -> bool:
    try:
        return bool(data.decode())
    except UnicodeDecodeError:
        return False


def test_odd_text_is_read_and_written_as_the_translator_does(tmp_path, monkeypatch):
    """With a vocabulary for each side; tests/golden has one for both."""
    source, target = (Tokenizer.train(lines(seed), 60 + seed, "bpe") for seed in range(2))
    keras.utils.set_random_seed(4)
    model = Transformer(61, 1, 2, 16, 32, source_vocabulary_size=60, max_source_length=40)
    randomize(model)
    translator = Translator(model, source, target)
    monkeypatch.setattr("keras_transformer.tasks.translation.passages.is_copied", lambda *_: False)  # as in a graph
    decoding = Decoding(2, max_length=12)
    (path,) = write_model(tmp_path / "m.onnx", text_model(TrainedRun(translator), decoding, "float32"), {})
    batches = [ODD_TEXT, ["", " "], []]
    found = answers({path: [{"text": np.array(texts, object)} for texts in (*batches, *NO_UTF_8)]})[path]
    for some, (texts, scores) in zip(batches, found, strict=False):
        expected = [best for (best,) in translator.n_best(some, split="off", num_beams=2, max_length=12)]
        assert texts == [best.text for best in expected]
        np.testing.assert_allclose(scores, [best.score for best in expected], atol=1e-4)
    for broken, (texts, scores) in zip(NO_UTF_8, found[len(batches) :], strict=True):
        assert len(texts) == len(scores) == len(broken)
        assert all(text.splitlines() in ([text], []) for text in texts)
