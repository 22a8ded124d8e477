"""Tells what a run of the corpus `pronouns` gets right, and which heads look from a pronoun to what it stands for.

    python -m benchmarks.pronouns runs/pronouns --out it.png

Where there is no such run, the command trains it first: `train.py --dataset pronouns:en-de --out runs/pronouns`.

The sentences are of pairs of nouns that no training sentence has. The heads are chosen on the validation, and measured
on test sentences, whose pairs of nouns no validation sentence has. A word looks at the word of its largest score, of
all words of the sentence. French `qu'il` is two words. Sentences whose two nouns take the same pronoun are left out
there. The last columns part the test sentences by the noun that the pronoun stands for: a head that always looks at
the subject has 100 % and 0 %. The command prints a Markdown table.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import keras_transformer
from benchmarks.contest import check_picture, print_head, print_row
from keras_transformer.core.errors import RequestError, exit_status
from keras_transformer.decoding.attention_maps import Attention, Tokens
from keras_transformer.plots import WordLines, word_lines_picture
from keras_transformer.runs.run_folder import read_config
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.named_corpora import Example, known_examples, pronoun_examples, pronoun_words
from train import main as train

ASKED = 200  # sentences whose attention is looked at, of each part
ELIDED = re.compile("'[aeiouyhâéèêîô]")
PRONOUN = {"de": r"weil (\w+) zu", "fr": r"parce qu'(\w+) était"}


class Look(NamedTuple):
    """Asks every head whether this word looks there.

    Args:
        title: what is asked.
        attention: the name of the attention.
        query: the word that looks: "it", the pronoun that is written, or the word that is read before that.
        key: where it looks: at "it", the adjective, or the noun; in the translation at the noun or its article.
    """

    title: str
    attention: str
    query: str
    key: str


LOOKS = (
    Look("encoder, from “it” to its noun", "encoder", "it", "noun"),
    Look("encoder, from “it” to the adjective", "encoder", "it", "adjective"),
    Look("decoder, before the pronoun is written, to its noun or the article", "decoder", "before", "translated noun"),
    Look("cross, from the pronoun to its noun", "cross", "pronoun", "noun"),
    Look("cross, from the pronoun to the adjective", "cross", "pronoun", "adjective"),
    Look("cross, from the pronoun to “it”", "cross", "pronoun", "it"),
    Look("cross, from the word before the pronoun to the adjective", "cross", "before", "adjective"),
)

DRAWN = (LOOKS[4], LOOKS[2])


def main(arguments: list[str] | None = None) -> None:
    """Prints the table.

    Raises:
        RequestError: the run was not trained on the corpus.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--out", help="draw where two sentences look here, .png")
    options = parser.parse_args(arguments)
    check_picture(options.out)
    run = options.run
    if not Path(run).exists():
        train(["--dataset", "pronouns:en-de", "--out", run])
    corpus = read_config(run).corpus
    if not str(corpus.get("name")).startswith("pronouns:"):
        raise RequestError(f"expected a run of `--dataset pronouns:…`; received one of {corpus.get('name')!r}")
    translator, languages = (
        keras_transformer.load(run, engine="keras"),
        (str(corpus["source_language"]), str(corpus["target_language"])),
    )
    _, valid, test = pronoun_examples(*languages)
    print_head(["measured", "head", "validation", "test", "test: of the subject", "test: of the object"])
    both = [shares_right(translator, examples, languages[1]) for examples in (valid, test)]
    for name in both[0]:
        print_row([name, "", *(f"{one[name]:.1%}" for one in both), "", ""])
    heads = print_heads(translator, *([one for one in part if one.genders_differ][:ASKED] for part in (valid, test)))
    if options.out:
        draw(translator, heads, known_examples(languages[1]), options.out)


def print_heads(translator: Translator, valid: Sequence[Example], test: Sequence[Example]) -> dict[Look, tuple]:
    """Prints a row for each of `LOOKS`; returns the head (layer, head) that looks so most often on the validation."""
    is_subject = np.isin([one.refers_to for one in test], [animal["en"] for animal in pronoun_words()["animal"]])
    heads: dict[Look, tuple] = {}
    for look, on_valid, on_test in zip(LOOKS, look_hits(translator, valid), look_hits(translator, test), strict=True):
        share = on_valid.mean(0)
        layer, head = heads[look] = np.unravel_index(share.argmax(), share.shape)
        of_head = on_test[:, layer, head]
        parts = [on_valid[:, layer, head], of_head, of_head[is_subject], of_head[~is_subject]]
        print_row([look.title, f"{layer + 1}.{head + 1}", *(f"{part.mean():.1%}" for part in parts)])
    return heads


def shares_right(translator: Translator, examples: Sequence[Example], language: str) -> dict[str, float]:
    """Returns the shares of right pronouns, in all sentences and those with nouns of two genders, and of exact ones."""
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


def look_hits(translator: Translator, examples: Sequence[Example]) -> list[np.ndarray]:
    """Tells for each of `LOOKS` whether each head looks so in each sentence: (sentences, layers, heads)."""
    seen = []
    for example in examples:
        by_name = {name: in_words(one) for name, one in translator.attention(example.source, example.target).items()}
        seen.append([_looks(by_name[look.attention], look, example) for look in LOOKS])
    return [np.stack(rows) for rows in zip(*seen, strict=True)]


def in_words(attention: Attention) -> Attention:
    """Returns the attention between words, where French `qu'il` is two words."""
    sides = (split_at_apostrophes(attention.queries), split_at_apostrophes(attention.keys))
    return Attention(*sides, attention.scores).joined()


def split_at_apostrophes(tokens: Tokens) -> Tokens:
    """Begins another word after an apostrophe that ends a piece before a vowel or h, as in `qu'il`."""
    labels, words = tokens
    elided = [ELIDED.fullmatch(one[-1:] + other[:1]) is not None for one, other in itertools.pairwise(labels)]
    begins = [one != other for one, other in itertools.pairwise(words)]
    return Tokens(labels, tuple(np.cumsum([0, *np.logical_or(begins, elided)]).tolist()))


def _looks(attention: Attention, look: Look, example: Example) -> np.ndarray:
    """Tells whether the query's largest score is that of a key: (layers, heads)."""
    row = query_of(attention, look, example)
    keys = {"it": "it", "adjective": example.adjective, "noun": example.refers_to, "translated noun": example.noun}
    column = attention.keys.place_of(keys[look.key])
    has_article = look.key == "translated noun" and "'" not in attention.keys.labels[column]  # it may be one piece
    columns = [column - 1, column] if has_article else [column]
    return np.isin(attention.scores[:, :, row].argmax(-1), columns)


def query_of(attention: Attention, look: Look, example: Example) -> int:
    """Returns the place of the word that looks.

    The decoder reads a word, and then writes the next: before the pronoun it reads `weil`, or French `qu'`.
    """
    place = attention.queries.place_of("it" if look.query == "it" else example.pronoun)
    return place - 1 if look.query == "before" else place


def draw(translator: Translator, heads: Mapping[Look, tuple], examples: Sequence[Example], path: str) -> None:
    """Draws where the heads of `DRAWN` look in sentences side by side, a row for each head."""
    panels = []
    for look in DRAWN:
        layer, head = heads[look]
        for example in examples:
            attention = in_words(translator.attention(example.source)[look.attention])
            row, title = query_of(attention, look, example), f"{look.attention}, head {layer + 1}.{head + 1}"
            panels.append(WordLines(attention, row, int(layer), int(head), title))
    word_lines_picture(panels, columns=len(examples)).savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(exit_status(main))
