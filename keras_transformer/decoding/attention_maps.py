"""Reads the attention of a model between the tokens of a text, or the words that they make up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from keras_transformer import ops
from keras_transformer.core.errors import RequestError
from keras_transformer.text.sentences import Ids, padded
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, LINE_BREAK, SPACE, START, Tokenizer

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel


class Tokens(NamedTuple):
    """The tokens of a text.

    Args:
        labels: what each token is called.
        words: for each token the number of its word, from 0. Tokens of a word stand side by side.
    """

    labels: tuple[str, ...]
    words: tuple[int, ...]

    @classmethod
    def of_pieces(cls, pieces: Iterable[str]) -> Tokens:
        """Makes tokens of pieces. A word begins with a space, so a script without spaces has words of many pieces."""
        labels = tuple(pieces)
        alone = {CONTROL_PIECES[START], CONTROL_PIECES[END], LINE_BREAK}
        begins = [
            place == 0 or piece.startswith(SPACE) or not alone.isdisjoint((piece, labels[place - 1]))
            for place, piece in enumerate(labels)
        ]
        return cls(labels, tuple((np.cumsum(begins, dtype=int) - 1).tolist()))

    @classmethod
    def of_whole(cls, labels: Iterable[str]) -> Tokens:
        """Makes tokens that are words by themselves, such as the items of a history."""
        labels = tuple(labels)
        return cls(labels, tuple(range(len(labels))))

    def joined(self) -> Tokens:
        """Returns the words."""
        words = [""] * (self.words[-1] + 1 if self.words else 0)
        for label, word in zip(self.labels, self.words, strict=True):
            words[word] += label
        return Tokens.of_whole(word.removeprefix(SPACE) or word for word in words)

    def place_of(self, word: str) -> int:
        """Finds the place, from 0, of the first token that is a word: as it stands, or between signs, as in `tired.`.

        Raises:
            RequestError: no token is this word.
        """
        plain = [label.removeprefix(SPACE) for label in self.labels]
        bare = [re.sub(r"^\W+|\W+$", "", label) for label in plain]
        parts = [word if word in re.split(r"\W+", label) else "" for label in plain]
        for names in (plain, bare, parts):
            if word in names:
                return names.index(word)
        raise RequestError(f"expected one of the words {' '.join(plain)}; received: {word}")


class Attention(NamedTuple):
    """One of a model's attentions: how much each query looks at each key.

    Args:
        queries: T tokens, those that look.
        keys: S tokens, those that are looked at.
        scores: (layers, heads, T, S) float32. A row sums to 1, or to 0 where a query sees no key.
    """

    queries: Tokens
    keys: Tokens
    scores: np.ndarray

    def joined(self) -> Attention:
        """Returns the attention between words: a word's keys are added up, its queries are averaged.

        Reference: Clark et al. 2019, "What Does BERT Look At?" (arXiv 1906.04341), section 4.1.
        """
        by_key = np.add.reduceat(self.scores, _starts(self.keys), axis=3)
        by_word = np.add.reduceat(by_key, _starts(self.queries), axis=2)
        by_word /= np.bincount(self.queries.words)[:, None]
        return Attention(self.queries.joined(), self.keys.joined(), by_word.astype("float32"))

    def mean_distances(self) -> np.ndarray:
        """Returns how far each head looks, (layers, heads), in tokens: near-sighted heads have small numbers.

        It has a meaning only in self-attention, where queries and keys are places of the same text.
        """
        distances = np.abs(np.arange(len(self.queries.labels))[:, None] - np.arange(len(self.keys.labels)))
        return (self.scores * distances).sum((2, 3)) / np.maximum(self.scores.sum((2, 3)), 1e-9)


def translation_attention(
    model: FamilyModel, source: Ids, target: Ids, tokenizers: tuple[Tokenizer, Tokenizer]
) -> dict[str, Attention]:
    """Returns the attentions of a translator for a source and its translation in pieces, see `Translator.attention`."""
    encoded, read, written = [*source, END], [START, *target], [*target, END]
    sources, reads, writes = (
        Tokens.of_pieces(tokenizer.pieces(ids))
        for tokenizer, ids in zip((tokenizers[0], tokenizers[1], tokenizers[1]), (encoded, read, written), strict=True)
    )
    inputs = {"source_ids": padded([encoded]), "target_ids": padded([read])}
    return attention_of(
        model, inputs, {"encoder": (sources, sources), "decoder": (reads, reads), "cross": (writes, sources)}
    )


def text_attention(model: FamilyModel, ids: Ids, tokenizer: Tokenizer) -> dict[str, Attention]:
    """Returns the attention of a model of one stack for a text in pieces."""
    tokens = Tokens.of_pieces(tokenizer.pieces(ids))
    return attention_of(model, {"ids": padded([ids])}, {"self": (tokens, tokens)})


def attention_of(
    model: FamilyModel, inputs: Mapping[str, np.ndarray], tokens: Mapping[str, tuple[Tokens, Tokens]]
) -> dict[str, Attention]:
    """Returns the attentions of a model for one text.

    Args:
        model: a model of the family.
        inputs: as its `call` takes them, a batch of one.
        tokens: for each of its attentions the queries and the keys; for the only one of a stack under "self".
    """
    scores = model.attention_scores({name: ops.convert_to_tensor(array) for name, array in inputs.items()})
    by_name = scores if isinstance(scores, dict) else {"self": scores}
    arrays = {name: ops.convert_to_numpy(ops.cast(one, "float32"))[:, 0] for name, one in by_name.items()}
    return {name: Attention(*named, arrays[name]) for name, named in tokens.items()}


def _starts(tokens: Tokens) -> np.ndarray:
    """Returns the place of the first token of each word."""
    return np.unique(tokens.words, return_index=True)[1]
