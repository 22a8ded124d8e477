"""`--word-vectors`: the embedding of a model begins with the vectors of words from a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from keras_transformer.errors import RequestError, say
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.word_vectors import read_word_vectors

if TYPE_CHECKING:
    from keras_transformer.models.token_model import TokenModel
    from keras_transformer.models.transformer import Transformer


def start_from_word_vectors(
    model: TokenModel | Transformer, tokenizer: Tokenizer, path: str | os.PathLike[str]
) -> None:
    """Gives the rows of pieces that are whole words the vectors of these words; other rows keep their random start.

    The rows are those of what the model takes: of a translator the source's. One factor scales all vectors, so that
    their root mean square is that of the random start, D^−0.5: the embedding multiplies its rows by √D, and a tied
    output takes their inner products for logits. Directions, and lengths in proportion to each other, are the file's.

    Args:
        model: its embedding has D numbers for each piece; a tied output shares the matrix.
        tokenizer: the embedding's vocabulary.
        path: a file of vectors with D numbers, see `read_word_vectors`.

    Raises:
        RequestError: see `read_word_vectors`; or no piece has a vector in the file, or all vectors are 0.
    """
    from keras import ops

    embedding = model.input_embedding()
    ids, size = tokenizer.words(), tokenizer.vocabulary_size
    found, vectors = read_word_vectors(path, embedding.hidden_dim, ids)
    root_mean_square = np.sqrt(np.mean(np.square(vectors, dtype="float64"))) if found else 0.0
    if not root_mean_square:
        raise RequestError(
            f"{path}: expected vectors of words that are pieces of the vocabulary; received "
            f"{'zeros alone' if found else 'none'}, of {len(ids):,} such words: give vectors of the text's language, "
            "or a larger --vocabulary-size"
        )
    rows = ops.convert_to_numpy(embedding.embeddings).copy()
    rows[[ids[word] for word in found]] = vectors * (embedding.hidden_dim**-0.5 / root_mean_square)
    embedding.embeddings.assign(rows)
    say(
        f"{len(found):,} of {size:,} pieces begin with vectors of {path}; of the others, which begin at random, "
        f"{len(ids) - len(found):,} are words"
    )
