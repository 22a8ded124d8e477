"""Which pieces of a run's vocabulary have like vectors: nearest neighbours by cosine."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.search_options import require_whole
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import RunFolder, load_model, main_verb, read_config, read_tokenizers
from keras_transformer.tasks import TASKS, task_of
from keras_transformer.text.lines import string_of
from keras_transformer.text.tokenizer import SPACE, UNKNOWN, Tokenizer


class Neighbour(NamedTuple):
    """A piece, and the cosine between its vector and the one in question."""

    piece: str
    cosine: float


class PieceVectors:
    """The vectors of the pieces of a vocabulary:

        vectors = keras_transformer.load_piece_vectors("runs/reviews")
        vectors.neighbours("good", 5)

    Args:
        vectors: (V, D), a row for each id.
        tokenizer: the vocabulary.
    """

    def __init__(self, vectors: np.ndarray, tokenizer: Tokenizer):
        self.vectors = vectors
        self.tokenizer = tokenizer
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._directions = vectors / np.where(lengths > 0, lengths, 1)
        self._spellings = tokenizer.pieces(range(len(vectors)))
        # Without the control ids, which add nothing to a text, and the unknown.
        self._text = [id for id, surface in enumerate(tokenizer.surfaces()) if surface and id != UNKNOWN]

    def neighbours(self, word: str, count: int = 10) -> list[Neighbour]:
        """The pieces whose vectors are nearest to a word's by cosine, the nearest first, without the word itself.

        Args:
            word: a word that is one piece, or a piece as the vocabulary spells it.
            count: the most neighbours.

        Raises:
            RequestError: the vocabulary has no such piece, or the count is not a whole number from 1.
        """
        require_whole("count", count, 1)
        id = self.id(word)
        others = np.array([other for other in self._text if other != id], "int64")
        cosines = self._directions[others] @ self._directions[id]
        nearest = np.argsort(-cosines, kind="stable")[:count]
        return [Neighbour(self._spellings[others[place]], float(cosines[place])) for place in nearest]

    def id(self, word: str) -> int:
        """The id of the piece that begins with a space and is the word, or else of the piece that is spelled so.

        Raises:
            RequestError: there is none, or `word` is no string.
        """
        string_of(word)
        ids = {self._spellings[id]: id for id in self._text}
        for spelled in (SPACE + word, word):
            if word and spelled in ids:
                return ids[spelled]
        pieces = self.tokenizer.pieces(self.tokenizer.encode([word])[0])
        raise RequestError(
            f"expected a word that is one piece of the vocabulary; received {word!r:.60}, which is cut into "
            f"{' '.join(pieces) or 'nothing':.60}: give one of its pieces, or another word"
        )


def takes_text(config: dict[str, Any]) -> bool:
    """Whether the model of a run's `config.json` takes text."""
    return bool(TASKS[task_of(config)].signature(config).text_stem)


def load_piece_vectors(run: str | os.PathLike[str]) -> PieceVectors:
    """The vectors of a run folder of a model of text; of a translator those of the source. Nothing in it is executed.

    Raises:
        RequestError: the folder holds no run of a model of text, no model yet, or a file is damaged.
    """
    folder = RunFolder(run)
    if not takes_text(whole := read_config(folder)):
        raise RequestError(
            f"{folder.path}: expected a model of text, with a vocabulary of pieces; received "
            f"{whole['model']['kind']}, which `{main_verb(whole)}` takes"
        )
    config = whole["model"]
    model = load_model(folder)
    tokenizer, _ = read_tokenizers(folder, config.get("source_vocabulary_size"), config["vocabulary_size"])
    return PieceVectors(ops.convert_to_numpy(model.input_embedding().embeddings), tokenizer)
