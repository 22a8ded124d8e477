"""Tells which layer and which heads of encoder-decoder attention align number words best.

    python -m benchmarks.alignments runs/numbers-en-de-auto

The words of a number in English and their parts in German are known by rule, so the right alignment is known. A piece
of the German text is right if the English piece that has the largest attention, the end left out, overlaps a word that
means the same. Pieces that mean nothing by themselves, such as "und", are left out. Texts are held-out numbers. The
command prints a Markdown table of the share that is right: of the mean of all heads, and of each head; where the model
looks as it writes the piece, and where it looks as it reads the piece, one step later.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence

import numpy as np

import keras_transformer
from benchmarks.contest import print_head, print_row
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.named_corpora import HELD_OUT, LIMIT, SAMPLED, spelled

Part = tuple[str, str]  # a word or a part of a word, and what it stands for
Span = tuple[int, int]


def main(arguments: list[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run of numbers:en-de")
    parser.add_argument("--numbers", type=int, default=300)
    options = parser.parse_args(arguments)
    numbers = random.Random(0).sample(range(LIMIT), HELD_OUT + SAMPLED)[:HELD_OUT][: options.numbers]
    for run in options.runs:
        translator = keras_transformer.load(run)
        shares = np.mean([right for number in numbers for right in judged(translator, number)], axis=0)
        print_head(("a piece is", "layer", "mean of heads", *(f"head {head}" for head in range(shares.shape[2] - 1))))
        for name, layers in zip(("written", "read"), shares, strict=True):
            for layer, row in enumerate(layers):
                print_row((name, layer, *(f"{100 * share:.1f} %" for share in row)))


def judged(translator: Translator, number: int) -> Iterator[np.ndarray]:
    """Yields for each piece that means something whether it is aligned rightly: (2, layers, 1 + heads), as it is
    written and as it is read, the mean of heads first."""
    (source,), (target,) = (list(spelled([number], language)) for language in ("en", "de"))
    english, german = parts_of(number)
    sources = spans_of_parts(source, english)
    targets = spans_of_parts(target, german)
    cross = translator.attention(source, target)["cross"]
    keys, queries = spans_of_pieces(cross.keys.labels[:-1]), spans_of_pieces(cross.queries.labels[:-1])
    scores = np.concatenate([cross.scores.mean(axis=1, keepdims=True), cross.scores], axis=1)
    places = scores[..., : len(keys)].argmax(axis=-1)  # (layers, 1 + heads, T)
    for place, query in enumerate(queries):
        meant = {name for name, span in targets.items() if overlap(span, query)}
        if meant:
            right = np.array([any(overlap(key, sources[name]) for name in meant) for key in keys])
            yield right[np.stack([places[..., place], places[..., place + 1]])]


def parts_of(number: int) -> tuple[list[Part], list[Part]]:
    """Returns the parts of a number's English and German words, in the order of each text."""
    english, german = list[Part](), list[Part]()
    for place, group in (("thousands", number // 1000), ("ones", number % 1000)):
        hundreds, rest = divmod(group, 100)
        tens, ones = (0, rest) if rest < 20 else (rest - rest % 10, rest % 10)
        for value, name in ((hundreds, "hundreds"), (tens, "tens"), (ones, "ones")):
            if value:
                english.append((next(spelled([value], "en")), f"{place} {name}"))
            if value and name == "hundreds":
                english.append(("hundred", f"{place} hundred"))
        for value, name in ((hundreds, "hundreds"), (ones, "ones"), (tens, "tens")):
            if value:
                german.append(("ein" if value == 1 else next(spelled([value], "de")), f"{place} {name}"))
            if value and name == "hundreds":
                german.append(("hundert", f"{place} hundred"))
        if group and place == "thousands":
            english.append(("thousand", place))
            german.append(("tausend", place))
    return english or [("zero", "zero")], german or [("null", "zero")]


def spans_of_parts(text: str, parts: Sequence[Part]) -> dict[str, Span]:
    """Returns where each part stands in its text."""
    found, last = dict[str, Span](), 0
    for part, name in parts:
        first = text.index(part, last)
        last = first + len(part)
        found[name] = (first, last)
    return found


def spans_of_pieces(pieces: Sequence[str]) -> list[Span]:
    """Returns where the pieces stand in a text whose spaces none has lost; a space belongs to no piece."""
    ends = np.cumsum([len(piece) for piece in pieces]) - 1  # the first piece begins with a space that no text has
    return [(int(end) - len(piece.lstrip("▁")), int(end)) for piece, end in zip(pieces, ends, strict=True)]


def overlap(one: Span, other: Span) -> bool:
    """Tells whether two spans share a character."""
    return max(one[0], other[0]) < min(one[1], other[1])


if __name__ == "__main__":
    main()
