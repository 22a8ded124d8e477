"""`neighbours`: the pieces of a run's vocabulary whose vectors are nearest to those of words."""

from __future__ import annotations

import argparse
import json

from keras_transformer.errors import load_tensorflow


def neighbours(arguments: argparse.Namespace) -> None:
    """Prints a JSON object for each word: the pieces with the nearest vectors, and their cosines."""
    load_tensorflow()
    from keras_transformer.decoding.neighbours import load_piece_vectors

    vectors = load_piece_vectors(arguments.run)
    found = {word: vectors.neighbours(word, arguments.count) for word in arguments.words}
    for word, nearest in found.items():
        cosines = {piece: round(cosine, 4) for piece, cosine in nearest}
        print(json.dumps({"word": word, "neighbours": cosines}, ensure_ascii=False))


def add_neighbours_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments and options of `neighbours`."""
    add = parser.add_argument
    add("words", nargs="+", metavar="WORD", help="a word that is one piece of the vocabulary, or a piece")
    add("--count", type=int, default=10, metavar="N", help="neighbours of each word (default: 10)")
