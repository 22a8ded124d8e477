"""Makes the sentences that all decoders translate, and the batches that each takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from keras_transformer.text.tokenizer import Tokenizer

PAD, START, END = 0, 2, 3  # the first ids: <pad>, <unk>, <s>, </s>

Ids = list[list[int]]


def salad_words(count: int) -> np.ndarray:
    """Returns different random words of four letters."""
    numbers = np.random.default_rng(0).permutation(26**4)[:count]
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))[numbers[:, None] // 26 ** np.arange(4) % 26]
    return np.array(["".join(word) for word in letters])


def word_salad(tokenizer: Tokenizer, count: int, num_pieces: int) -> list[str]:
    """Returns lines of random words, each `num_pieces` pieces long."""
    words = salad_words(tokenizer.vocabulary_size).tolist()
    words = [word for word, pieces in zip(words, tokenizer.encode(words), strict=True) if len(pieces) == 1]
    return [" ".join(row) for row in np.random.default_rng(1).choice(words, (count, num_pieces))]


def trained_lines(run_folder: str, count: int) -> list[str]:
    """Returns the first validation sentences of a run, without blank lines."""
    lines = Path(run_folder, "validation.source").read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line.strip()][:count]


def write_sentences(folder: Path, tokenizer: Tokenizer, lines: list[str]) -> None:
    """Writes `sentences.json`: the texts, their ids, and the pieces of the vocabulary."""
    ids = [[*pieces, END] for pieces in tokenizer.encode(lines)]
    content = {"texts": lines, "ids": ids, "vocabulary": vocabulary_of(tokenizer)}
    tokenizer.save(folder / "tokenizer.model")
    (folder / "sentences.json").write_text(json.dumps(content), encoding="utf-8")


def vocabulary_of(tokenizer: Tokenizer) -> list[str]:
    """Returns all pieces, in the order of their ids."""
    return tokenizer.pieces(range(tokenizer.vocabulary_size))


def read_sentences(folder: Path) -> dict[str, Any]:
    """Reads what `write_sentences` wrote: `texts`, `ids` and `vocabulary`."""
    return json.loads((folder / "sentences.json").read_text(encoding="utf-8"))


def batches_of(folder: Path, kind: str, num_sentences: int, batch_size: int) -> list[list[Any]]:
    """Returns batches of `num_sentences` sentences of similar length.

    Args:
        folder: in which `write_sentences` wrote.
        kind: what a sentence is: "ids", "texts", or "pieces" of the vocabulary.
        num_sentences: in all batches.
        batch_size: sentences in a batch.
    """
    content = read_sentences(folder)
    ids = content["ids"][:num_sentences]
    if kind == "pieces":
        rows: list[Any] = [[content["vocabulary"][id] for id in row] for row in ids]
    else:
        rows = content[kind]
    order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
    return [[rows[place] for place in order[first : first + batch_size]] for first in range(0, len(order), batch_size)]


def padded(batch: Ids) -> np.ndarray:
    """Returns rows of ids as one array (B, S) int32, padded with 0."""
    rows = np.zeros((len(batch), max(map(len, batch))), "int32")
    for row, ids in zip(rows, batch, strict=True):
        row[: len(ids)] = ids
    return rows


def emitted(rows: np.ndarray) -> Ids:
    """Returns the ids in rows (B, T) without end and pad."""
    return [[id for id in row if id > END] for row in rows.tolist()]
