"""Nearest neighbours by cosine: in agreement with gensim, from run folders, and through the command."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gensim.models import KeyedVectors

from keras_transformer import Transformer, load_piece_vectors
from keras_transformer.__main__ import main as command
from keras_transformer.decoding.neighbours import PieceVectors
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import read_config
from keras_transformer.written_runs import write_translator

pytest_plugins = ["tests.tiny_run"]


@pytest.fixture
def vectors(tokenizer) -> PieceVectors:
    drawn = np.random.default_rng(0).normal(size=(tokenizer.vocabulary_size, 6)).astype("float32")
    return PieceVectors(drawn * np.arange(1, len(drawn) + 1)[:, None], tokenizer)


def test_neighbours_are_gensims_among_all_other_pieces_of_text(vectors, tokenizer):
    pieces = tokenizer.pieces(range(4, tokenizer.vocabulary_size))
    keyed = KeyedVectors(6)
    keyed.add_vectors(pieces, vectors.vectors[4:])
    for word in tokenizer.words():
        expected = keyed.most_similar("▁" + word, topn=7)
        found = vectors.neighbours(word, 7)
        assert [piece for piece, _ in found] == [piece for piece, _ in expected]
        np.testing.assert_allclose([cosine for _, cosine in found], [cosine for _, cosine in expected], atol=1e-6)
    assert sorted(["▁dog", *(piece for piece, _ in vectors.neighbours("dog", 1_000))]) == sorted(pieces)


def test_a_word_or_a_piece(vectors, tokenizer):
    word, id = next(iter(tokenizer.words().items()))
    assert vectors.id(word) == vectors.id(f"▁{word}") == id
    pieces = tokenizer.pieces(range(64))
    within = next(piece for piece in pieces[4:] if "▁" not in piece and f"▁{piece}" not in pieces)
    assert tokenizer.pieces([vectors.id(within)]) == [within]
    for unknown in ("mountaingarden", "</s>", "<unk>", ""):
        with pytest.raises(RequestError, match="expected a word that is one piece of the vocabulary; received"):
            vectors.neighbours(unknown)
    with pytest.raises(RequestError, match="received 'dogcat', which is cut into ▁dog .*: give one of its pieces"):
        vectors.neighbours("dogcat")
    with pytest.raises(RequestError, match="count must be a whole number from 1; received: 0"):
        vectors.neighbours("dog", 0)


def test_a_vector_of_zeros_is_near_nothing(vectors, tokenizer):
    changed = vectors.vectors.copy()
    changed[vectors.id("dog")] = 0
    assert {cosine for _, cosine in PieceVectors(changed, tokenizer).neighbours("dog")} == {0.0}


def test_the_vectors_of_a_run_are_the_sources(built_run, tiny_model, tokenizer, other_tokenizer, tmp_path):
    of_one = load_piece_vectors(built_run)
    np.testing.assert_array_equal(of_one.vectors, np.asarray(tiny_model.source_embedding.embeddings))
    assert of_one.tokenizer.model == tokenizer.model
    sizes = (tokenizer.vocabulary_size, other_tokenizer.vocabulary_size)
    model = Transformer(sizes[1], 1, 2, 8, 16, source_vocabulary_size=sizes[0])
    write_translator(tmp_path / "run", model, (tokenizer, other_tokenizer))
    of_two = load_piece_vectors(tmp_path / "run")
    np.testing.assert_array_equal(of_two.vectors, np.asarray(model.source_embedding.embeddings))
    assert of_two.tokenizer.model == tokenizer.model != other_tokenizer.model


def test_the_command_prints_an_object_for_each_word(built_run, capfd):
    assert command(["neighbours", str(built_run), "dog", "▁cat", "--count", "3"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["word"] for row in rows] == ["dog", "▁cat"]
    expected = load_piece_vectors(built_run).neighbours("dog", 3)
    assert rows[0]["neighbours"] == {piece: round(cosine, 4) for piece, cosine in expected}
    assert command(["neighbours", str(built_run), "dog", "mountaingarden"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and "received 'mountaingarden', which is cut into" in err


def test_models_of_other_things_are_refused(run_folder):
    model = {"kind": "sequence-encoder", "vocabulary_size": 10}
    (run_folder / "config.json").write_text(json.dumps({**read_config(run_folder), "model": model}))
    with pytest.raises(RequestError, match="expected a model of text, .* received sequence-encoder, which `recommend`"):
        load_piece_vectors(run_folder)
