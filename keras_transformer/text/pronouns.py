"""Makes sentences whose pronoun cannot be translated without knowing what it refers to, with their translations.

"The animal didn't cross the street because it was too tired": German says `es`, for the animal (das Tier), and `sie` in
"because it was too wide", for the street (die Straße). Each sentence has two nouns, and a quality that fits one of
them alone, as in the Winograd schemas (Levesque et al. 2012). All words are those of pronouns.tsv.
"""

from __future__ import annotations

import csv
import functools
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple

from keras_transformer.core.errors import RequestError

LANGUAGES = ("de", "fr")  # into which English is translated
THINGS = ("way", "place", "food")  # kinds of what an animal does not cross, explore or eat
NUM_TRAIN = 24_000
NUM_HELD_OUT = 1_000  # sentences to validate on, and as many to test on
HELD_OUT_SHARE = 0.1  # so many pairs of nouns are for the validation, and as many for the test

Word = dict[str, str]  # a row of the table: its kind, the word in each language, and its forms

NO_OPENING: Word = {"en": "", "de": "", "fr": ""}


class Example(NamedTuple):
    """A sentence, and what its pronoun refers to.

    Args:
        source, target: the sentence and its translation.
        pronoun: in the translation.
        refers_to: the English noun that the pronoun stands for.
        noun: this noun in the translation.
        other: the other English noun.
        genders_differ: whether the two nouns take different pronouns in the translation.
        adjective: in English.
    """

    source: str
    target: str
    pronoun: str
    refers_to: str
    noun: str
    other: str
    genders_differ: bool
    adjective: str


@functools.cache
def words() -> dict[str, list[Word]]:
    """Reads the table: its rows by their kind, such as "animal", "quality of animal" and "opening"."""
    found = defaultdict[str, list[Word]](list)
    table = files("keras_transformer.text").joinpath("pronouns.tsv").read_text("utf-8")
    for row in csv.DictReader(table.splitlines(), delimiter="\t", restval=""):
        found[row["kind"]].append(row)
    found["opening"] = 3 * [NO_OPENING] + found["opening"]  # three sentences of ten begin with the noun
    return found


@functools.cache
def pronoun_examples(source: str, target: str) -> tuple[list[Example], list[Example], list[Example]]:
    """Makes sentences to train on, to validate on and to test on. No pair of nouns is in two of them.

    Args:
        source: "en".
        target: "de" or "fr".

    Raises:
        RequestError: these languages are not made.
    """
    if source != "en" or target not in LANGUAGES:
        raise RequestError(
            f"pronouns are made from English, en, into {' or '.join(LANGUAGES)}; received: {source}-{target}"
        )
    draw = random.Random(1)
    pairs = [(animal, thing) for kind in THINGS for animal in words()["animal"] for thing in words()[kind]]
    draw.shuffle(pairs)
    count = round(HELD_OUT_SHARE * len(pairs))
    valid, test, train = pairs[:count], pairs[count : 2 * count], pairs[2 * count :]
    return (
        list(_drawn(train, NUM_TRAIN, target, draw)),
        list(_drawn(valid, NUM_HELD_OUT, target, draw)),
        list(_drawn(test, NUM_HELD_OUT, target, draw)),
    )


def known_examples(language: str) -> list[Example]:
    """Makes "… too tired" and "… too wide", of the first animal and the first way: a pair of the test."""
    nouns = words()["animal"][0], words()["way"][0]
    return [_example(nouns, noun, words()[f"quality of {noun['kind']}"][0], NO_OPENING, language) for noun in nouns]


def _drawn(pairs: list[tuple[Word, Word]], count: int, language: str, draw: random.Random) -> Iterator[Example]:
    """Yields different sentences about these nouns, in equal numbers about the animal and about the thing."""
    seen = set[str]()
    while len(seen) < count:
        nouns = draw.choice(pairs)
        meant = nouns[len(seen) % 2]
        quality = draw.choice(words()[f"quality of {meant['kind']}"])
        example = _example(nouns, meant, quality, draw.choice(words()["opening"]), language)
        if example.source not in seen:
            seen.add(example.source)
            yield example


def _example(nouns: tuple[Word, Word], meant: Word, quality: Word, opening: Word, language: str) -> Example:
    """Makes a sentence that an animal does not do something with a thing, as one of both is too tired or too wide."""
    animal, thing = nouns
    other = animal if meant is thing else thing
    verb = words()[f"verb of {thing['kind']}"][0]
    pronoun = meant[f"{language} pronoun"]
    source = f"{opening['en']} the {animal['en']} {verb['en']} the {thing['en']} because it was too {quality['en']}."
    if language == "de":  # the verb stands second
        begin = f"{opening['de']} {verb['de']} {animal['de']}" if opening["de"] else f"{animal['de']} {verb['de']}"
        target = f"{begin} {thing['de object']} nicht, weil {pronoun} zu {quality['de']} war."
    else:
        form = "fr feminine" if pronoun == "elle" else "fr"
        begin = f"{opening['fr']} {animal['fr']} {verb['fr']} {thing['fr']}"
        target = f"{begin} parce qu'{pronoun} était trop {quality[form]}."
    source, target = (text.strip()[0].upper() + text.strip()[1:] for text in (source, target))
    noun = re.split("[ ']", meant[language])[1]
    genders_differ = pronoun != other[f"{language} pronoun"]
    return Example(source, target, pronoun, meant["en"], noun, other["en"], genders_differ, quality["en"])
