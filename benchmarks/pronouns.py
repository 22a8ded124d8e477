"""What a run of the corpus `pronouns` gets right, and which heads look from a pronoun to what it stands for.

    python train.py --dataset pronouns:en-de --out runs/pronouns
    python -m benchmarks.pronouns runs/pronouns

The sentences are of pairs of nouns that no training sentence has. The heads are chosen on the validation, and measured
on test sentences, whose pairs of nouns no validation sentence has. A word looks at the word of its largest score, of
all words of the sentence. The command prints a Markdown table.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import keras_transformer
from benchmarks.contest import print_head, print_row
from keras_transformer.decoding.attention import Attention
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError, exit_status
from keras_transformer.run_folder import read_config
from keras_transformer.text.pronouns import Example, pronoun_examples

ASKED = 300  # sentences whose attention is looked at, of each part
PRONOUN = {"de": r"weil (\w+) zu", "fr": r"parce qu'(\w+) était"}


class Look(NamedTuple):
    """A question to every head: does this word look at that word?

    Args:
        title: what is asked.
        attention: the name of the attention.
        query, key: fields of an `Example`, or "it".
    """

    title: str
    attention: str
    query: str
    key: str


LOOKS = (
    Look("from “it” to the noun that it stands for", "encoder", "it", "refers_to"),
    Look("from “it” to the adjective", "encoder", "it", "adjective"),
    Look("from the pronoun that is written to that noun", "cross", "pronoun", "refers_to"),
    Look("from the pronoun that is written to “it”", "cross", "pronoun", "it"),
)


def main(arguments: list[str] | None = None) -> None:
    """Prints the table.

    Raises:
        RequestError: there is no such run, or it was not trained on the corpus.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    run = parser.parse_args(arguments).run
    corpus = read_config(run).get("corpus", {})
    if not str(corpus.get("name")).startswith("pronouns:"):
        raise RequestError(f"expected a run of `--dataset pronouns:…`; received one of {corpus.get('name')!r}")
    translator, languages = keras_transformer.load(run), (corpus["source_language"], corpus["target_language"])
    _, valid, test = pronoun_examples(*languages)
    print_head(["measured", "head", "validation", "test"])
    both = [figures(translator, examples, languages[1]) for examples in (valid, test)]
    for name in both[0]:
        print_row([name, "", *(f"{one[name]:.1%}" for one in both)])
    shares = [looking(translator, examples[:ASKED]) for examples in (valid, test)]
    for look, on_valid, on_test in zip(LOOKS, *shares, strict=True):
        layer, head = np.unravel_index(on_valid.argmax(), on_valid.shape)
        print_row([look.title, f"{layer + 1}.{head + 1}", f"{on_valid.max():.1%}", f"{on_test[layer, head]:.1%}"])


def figures(translator: Translator, examples: Sequence[Example], language: str) -> dict[str, float]:
    """The share of right pronouns, of all sentences and of those whose nouns have different genders; of exact ones."""
    translations = translator.translate([example.source for example in examples])
    found = [re.search(PRONOUN[language], text) for text in translations]
    right = [one is not None and one[1] == example.pronoun for one, example in zip(found, examples, strict=True)]
    differ = [is_right for is_right, example in zip(right, examples, strict=True) if example.genders_differ]
    exact = [text == example.target for text, example in zip(translations, examples, strict=True)]
    return {
        "right pronouns": float(np.mean(right)),
        "right pronouns, of nouns of two genders": float(np.mean(differ)),
        "exact translations": float(np.mean(exact)),
    }


def looking(translator: Translator, examples: Sequence[Example]) -> list[np.ndarray]:
    """For each of `LOOKS` the share (layers, heads) of sentences in which the head looks so."""
    seen = []
    for example in examples:
        by_name = {name: one.joined() for name, one in translator.attention(example.source, example.target).items()}
        seen.append([_looks(by_name[look.attention], look, example) for look in LOOKS])
    return [np.mean(rows, axis=0) for rows in zip(*seen, strict=True)]


def _looks(attention: Attention, look: Look, example: Example) -> np.ndarray:
    """(layers, heads): whether the query's largest score is the key's."""
    query, key = ("it" if name == "it" else getattr(example, name) for name in (look.query, look.key))
    row, column = attention.queries.place_of(query), attention.keys.place_of(key)
    return attention.scores[:, :, row].argmax(-1) == column


if __name__ == "__main__":
    sys.exit(exit_status(main))
