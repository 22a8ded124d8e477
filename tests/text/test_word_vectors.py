"""Word vectors from files: every format as gensim reads it, whatever is damaged refused by its row."""

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors

from keras_transformer.core.errors import RequestError
from keras_transformer.text.word_vectors import check_word_vectors, read_word_vectors

WORDS = ["the", "cat", "größe", "a\u00a0b", "hund", "0.5"]
DIM = 4
VECTORS = np.random.default_rng(0).normal(size=(len(WORDS), DIM)).astype("float32")
FORMATS = {"word2vec": {}, "binary word2vec": {"binary": True}, "GloVe": {"write_header": False}}


def keyed() -> KeyedVectors:
    """The vectors in gensim."""
    vectors = KeyedVectors(DIM)
    vectors.add_vectors(WORDS, VECTORS)
    return vectors


def written(path: Path, **options: bool) -> Path:
    """A file of the vectors, which gensim writes."""
    keyed().save_word2vec_format(str(path), **options)
    return path


def binary(words: list[bytes], vectors: np.ndarray, end: bytes = b"") -> bytes:
    """Binary word2vec, with something after each vector."""
    rows = b"".join(word + b" " + row.tobytes() + end for word, row in zip(words, vectors, strict=True))
    return b"%d %d\n" % vectors.shape + rows


@pytest.mark.parametrize(("name", "suffix"), [*zip(FORMATS, ["", ".gz", ""], strict=True), ("word2vec", ".gz")])
def test_every_format_is_read_as_gensim_reads_it(tmp_path, name, suffix):
    path = written(tmp_path / f"vectors{suffix}", **FORMATS[name])
    found, vectors = read_word_vectors(path, DIM, {"größe", "the", "bird"})
    is_binary, has_header = name == "binary word2vec", name != "GloVe"
    expected = KeyedVectors.load_word2vec_format(str(path), binary=is_binary, no_header=not has_header)
    assert found == ["the", "größe"] and vectors.dtype == "float32"
    np.testing.assert_array_equal(vectors, [expected[word] for word in found])
    layout = check_word_vectors(path, DIM)
    assert layout == (DIM, len(WORDS) if has_header else None, is_binary)


TEXTS = {
    "spaces at the end of a line, as fastText's": b"2 2\nthe 1 2 \ncat 3 4 \n",
    "a byte order mark, line breaks of Windows, no last one": b"\xef\xbb\xbf2 2\r\nthe 1 2\r\n\r\ncat 3 4",
    "words with spaces, as some of GloVe's": b"the 1 2\nat name@domain.com 5 6\n. . . 7 8\ncat 3 4\n",
    "a word twice: the first counts": b"the 1 2\ncat 3 4\ncat 5 6\n",
    "a word that is not looked up and has no numbers": b"the 1 2\nzero x y\ncat 3 4\n",
    "line breaks after binary vectors": binary([b"the", b"cat"], np.array([[1, 2], [3, 4]], "float32"), b"\n"),
}


def test_what_other_programs_write_is_read(tmp_path):
    path = tmp_path / "vectors"
    for name, content in TEXTS.items():
        path.write_bytes(content)
        found, vectors = read_word_vectors(path, 2, {"the", "cat"})
        assert found == ["the", "cat"] and vectors.tolist() == [[1, 2], [3, 4]], name
    found, vectors = read_word_vectors(path, 2, {"bird"})
    assert found == [] and vectors.shape == (0, 2)
    path.write_bytes(binary([b"one", b"two"], np.array([[1.5], [-2]], "float32")))  # is no text
    assert read_word_vectors(path, 1, {"two"})[1].tolist() == [[-2.0]]
    vectors = np.random.default_rng(1).normal(size=(900, 50)).astype("float32")  # more than are read at once
    path.write_bytes(binary([b"w%d" % number for number in range(900)], vectors))
    found, read = read_word_vectors(path, 50, {"w0", "w333", "w899"})
    assert found == ["w0", "w333", "w899"]
    np.testing.assert_array_equal(read, vectors[[0, 333, 899]])


CUT = binary([b"the", b"cat"], np.ones((2, 2), "float32"))
REFUSED = {
    "nothing": (b"", r"expected word vectors of word2vec or GloVe, .* its first line is ''"),
    "a zip archive": (b"PK\x03\x04the 1 2\n", r"is a zip archive: unpack it"),
    "fastText's own format": (b"\xba\x16O/\x0c\0\0\0", r"give its \.vec file"),
    "another size": (b"the 1 2 3\n", r"vectors of 3 numbers, and the model's --hidden-dim is 2: give --hidden-dim 3,"),
    "a huge count": (b"1000000000000 2\nthe 1 2\n", r"take at least 5,999,999,999,999 bytes; it has 24:"),
    "a huge count, binary": (CUT.replace(b"2 2", b"9999 2", 1), r"which take at least 99,989 bytes"),
    "fewer rows than it says": (b"3 2\nthe 1.25 2.25\ncat 3.25 4.25\n", r"says 3 vectors; it has 2: it is cut off"),
    "a row too long": (b"2 2\nthe 1 2\ncat 3 4 5\n", r"vectors, line 3: expected a word and 2 numbers"),
    "tabs": (b"2 2\nthe\t1\t2\ncat\t3\t4\n", r"vectors, line 2: expected a word and 2 numbers, with spaces between"),
    "other bytes than UTF-8": ("the 1 2\ngröße 1 2\n".encode("latin-1"), r"line 2: not UTF-8; convert the file"),
    "not a number": (b"the 1 2\ncat 3 nan\n", r"vectors, line 2: expected finite numbers; the vector of 'cat' has"),
    "an infinite number": (
        binary([b"the", b"cat"], np.array([[1, 2], [3, np.inf]], "float32")), r"vectors, vector 2: expected finite",
    ),
    "a vector cut off": (CUT[:-3], r"vectors, vector 2: expected a word, a space and 2 numbers of 4 bytes: .* cut off"),
    "a binary word without an end": (
        CUT[:16].replace(b"2 2", b"9 2", 1) + b"\xff" * 3_000_000, r"vectors, vector 2: .* cut off or damaged",
    ),
}  # fmt: skip


def test_what_is_refused(tmp_path):
    for content, message in REFUSED.values():
        (tmp_path / "vectors").write_bytes(content)
        with pytest.raises(RequestError, match=message):
            read_word_vectors(tmp_path / "vectors", 2, {"the", "cat"})


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(os.urandom(100).hex().encode())[:-20])
    for name, message in {"missing": "no such file", ".": "cannot read", "cut.gz": r"cut\.gz: broken gzip"}.items():
        with pytest.raises(RequestError, match=message):
            check_word_vectors(tmp_path / name, 2)
    rows = b"".join(b"w%d 1 2\n" % number for number in range(5000))
    path = tmp_path / "more.gz"  # how long it becomes is seen only as it is read
    path.write_bytes(gzip.compress(b"5000 2\n" + rows))
    assert path.stat().st_size < 5000 * 6 and read_word_vectors(path, 2, {"w4999"})[0] == ["w4999"]


def test_a_pickle_is_never_read(tmp_path):
    """These would end the process."""
    for content, message in (
        (b"\x80\x04cbuiltins\nexit\n)R.", "a pickle, .* never read: write it anew with `save_word2vec_format`"),
        (b"cbuiltins\nexit\n(tR.", "expected word vectors"),
    ):
        for name, file in {"model": content, "model.gz": gzip.compress(content)}.items():
            (tmp_path / name).write_bytes(file)
            with pytest.raises(RequestError, match=message):
                read_word_vectors(tmp_path / name, DIM, WORDS)
        with pytest.raises(SystemExit):
            pickle.loads(content)
