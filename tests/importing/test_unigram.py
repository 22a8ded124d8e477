"""T5 with `tokenizer.json` alone, as transformers 5 writes folders: text is cut as by `spiece.model`."""

import json

import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface
from tests.importing.theirs import ODD_LINES, write
from tests.tiny_text import lines


def test_text_is_cut_as_by_the_sentencepiece_model_and_by_their_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    expected = read_huggingface(write("t5", tmp_path)).source
    (tmp_path / "spiece.model").unlink()
    found, texts = read_huggingface(tmp_path).source, [*ODD_LINES, *lines(9, 200)]
    assert (found.ids, found.num_control_ids) == (expected.ids, expected.num_control_ids)
    assert found.tokenizer.encode(texts) == expected.tokenizer.encode(texts)
    every = range(expected.tokenizer.vocabulary_size)
    assert found.tokenizer.pieces(every) == expected.tokenizer.pieces(every)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for line in [line for line in texts if "extra_id" not in line]:
        ids = [found.ids[id] for id in found.tokenizer.encode([line])[0]]
        assert ids == theirs.encode(line, add_special_tokens=False).ids, line


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("model", "type"), "BPE", "a model of the type Unigram"),
        (("model", "byte_fallback"), True, "without bytes"),
        (("model", "unk_id"), 900, "place of the unknown piece; received 900"),
        (("model", "vocab", 5), ["a", "b"], r"a piece and its score; received \['a', 'b'\]"),
        (("model", "vocab", 159), ["b", 0.0], "and so on with the last ids"),
        (("normalizer",), {"type": "Lowercase"}, "asks for 'Lowercase'"),
        (("pre_tokenizer", "pretokenizers", 1, "prepend_scheme"), "never", "asks for 'Metaspace'"),
        (("normalizer", "precompiled_charsmap"), "?", "tokenizer.json: "),
        (("added_tokens", 3, "id"), 170, "without a gap"),
        (("added_tokens", 3, "id"), None, "added tokens with ids and texts"),
    ],
)
def test_what_sentencepiece_would_cut_otherwise_is_refused(path, value, message, tmp_path):
    (write("t5", tmp_path) / "spiece.model").unlink()
    values = json.loads((tmp_path / "tokenizer.json").read_text())
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(RequestError, match=message):
        read_huggingface(tmp_path)
