"""Nearest neighbours by cosine: in agreement with gensim, from run folders, and through the command."""

import json

import numpy as np
import pytest
from gensim.models import KeyedVectors

from keras_transformer import Transformer, load_piece_vectors
from keras_transformer.__main__ import main as command
from keras_transformer.core.errors import RequestError
from keras_transformer.decoding.pipelines import PieceVectors
from keras_transformer.runs.run_folder import read_config
from keras_transformer.tasks.translation.pipeline import Translator


@pytest.fixture
def vectors(tokenizer) -> PieceVectors:
    drawn = np.random.default_rng(0).normal(size=(tokenizer.vocabulary_size, 6)).astype("float32")
    return PieceVectors(drawn * np.arange(1, len(drawn) + 1)[:, None], tokenizer)


def test_neighbours_are_gensims_among_all_other_pieces_of_text(vectors, tokenizer):
    pieces = tokenizer.pieces(range(4, tokenizer.vocabulary_size))
    keyed = KeyedVectors(6)
    keyed.add_vectors(pieces, vectors.vectors[4:])
    for word, id in tokenizer.words().items():
        assert vectors.id(word) == vectors.id(f"▁{word}") == id
        expected, found = keyed.most_similar("▁" + word, topn=7), vectors.neighbours(word, 7)
        assert [piece for piece, _ in found] == [piece for piece, _ in expected]
        np.testing.assert_allclose([cosine for _, cosine in found], [cosine for _, cosine in expected], atol=1e-6)
    assert sorted(["▁dog", *(piece for piece, _ in vectors.neighbours("dog", 1_000))]) == sorted(pieces)
    vectors.vectors[vectors.id("dog")] = 0
    assert {cosine for _, cosine in PieceVectors(vectors.vectors, tokenizer).neighbours("dog")} == {0.0}


def test_what_has_no_vector_is_refused(vectors, run_folder):
    for unknown in ("mountaingarden", "</s>", "<unk>", ""):
        with pytest.raises(RequestError, match="expected a word that is one piece of the vocabulary; received"):
            vectors.neighbours(unknown)
    with pytest.raises(RequestError, match="received 'dogcat', which is cut into ▁dog .*: give one of its pieces"):
        vectors.neighbours("dogcat")
    model = {"kind": "sequence-encoder", "vocabulary_size": 10}
    (run_folder / "config.json").write_text(json.dumps({**read_config(run_folder).sections, "model": model}))
    with pytest.raises(RequestError, match="expected a model of text, .* received sequence-encoder, which `recommend`"):
        load_piece_vectors(run_folder)


def test_the_vectors_of_a_run_are_the_sources(tokenizer, other_tokenizer, tmp_path, capfd):
    """The command prints an object for each word."""
    sizes, run = (tokenizer.vocabulary_size, other_tokenizer.vocabulary_size), str(tmp_path / "run")
    model = Transformer(sizes[1], 1, 2, 8, 16, source_vocabulary_size=sizes[0])
    Translator(model, tokenizer, other_tokenizer).save(run)
    found = load_piece_vectors(run)
    np.testing.assert_array_equal(found.vectors, np.asarray(model.source_embedding.embeddings))
    assert found.tokenizer.model == tokenizer.model != other_tokenizer.model
    assert command(["neighbours", run, "dog", "▁cat", "--count", "3"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["word"] for row in rows] == ["dog", "▁cat"]
    assert command(["neighbours", run, "dog", "dogcat", "cat", "--count", "3"]) == 1
    out, err = capfd.readouterr()
    assert [json.loads(line)["word"] for line in out.splitlines()] == ["dog", "cat"] and "'dogcat', which is cut" in err
    assert rows[0]["neighbours"] == {piece: round(cosine, 4) for piece, cosine in found.neighbours("dog", 3)}
