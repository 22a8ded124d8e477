"""Sentences whose pronoun cannot be translated without knowing what it refers to, with their translations.

"The animal didn't cross the street because it was too tired": German says `es`, for the animal (das Tier), and `sie` in
"because it was too wide", for the street (die Straße). Each sentence has two nouns, and an adjective that fits one of
them alone, as in the Winograd schemas (Levesque et al. 2012). All sentences are made from the tables in pronouns.txt.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple

from keras_transformer.core.errors import RequestError

LANGUAGES = ("de", "fr")  # into which English is translated
NUM_TRAIN = 24_000
NUM_HELD_OUT = 1_000  # sentences to validate on, and as many to test on
HELD_OUT_SHARE = 0.1  # as many pairs of nouns for the validation, and again for the test


class Noun(NamedTuple):
    """A noun with its article: in German as subject, and in French. Its genders are "m", "f" or "n"."""

    en: str
    de: str
    fr: str
    genders: dict[str, str]

    def in_language(self, language: str) -> str:
        """The noun with its article, as a subject."""
        return self.de if language == "de" else self.fr

    def object(self, language: str) -> str:
        """The noun as an object: the German article `der` becomes `den`."""
        if language == "de" and self.genders["de"] == "m":
            return f"den {self.de[4:]}"
        return self.in_language(language)


class Adjective(NamedTuple):
    """An adjective: in German, and in French for a masculine and for a feminine noun."""

    en: str
    de: str
    fr: str
    fr_feminine: str


class Frame(NamedTuple):
    """A kind of sentence: an animal does not do something with a thing, because one of both is too …

    Args:
        en, de, fr: the verb as each language's sentence has it.
        things: with which the animal does not do it.
        adjectives: what only these things can be.
    """

    en: str
    de: str
    fr: str
    things: list[Noun]
    adjectives: list[Adjective]


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


def _nouns(table: str) -> list[Noun]:
    """The nouns of a table: English | German | French, with the gender where the French article does not show it."""
    found = []
    for row in table.strip().splitlines():
        en, de, fr = (cell.strip() for cell in row.split("|"))
        fr, _, shown = fr.partition(" (")
        of_article = {"le": "m", "la": "f"}.get(fr.split()[0], shown[:1])
        found.append(Noun(en, de, fr, {"de": {"der": "m", "die": "f", "das": "n"}[de[:3]], "fr": of_article}))
    return found


def _adjectives(table: str) -> list[Adjective]:
    """The adjectives of a table: English | German | French, after a comma for a feminine noun."""
    rows = [[cell.strip() for cell in row.split("|")] for row in table.strip().splitlines()]
    return [Adjective(en, de, *(fr.split(", ") * 2)[:2]) for en, de, fr in rows]


# The tables of pronouns.txt, each under its name.
_, *_TABLES = re.split(r"# \w+\n", files("keras_transformer.text").joinpath("pronouns.txt").read_text("utf-8"))
ANIMALS, WAYS, PLACES, FOODS = map(_nouns, _TABLES[:4])
OF_ANIMALS, OF_WAYS, OF_PLACES, OF_FOODS = map(_adjectives, _TABLES[4:])
FRAMES = [
    Frame("didn't cross", "überquerte", "n'a pas traversé", WAYS, OF_WAYS),
    Frame("didn't explore", "erkundete", "n'a pas exploré", PLACES, OF_PLACES),
    Frame("didn't eat", "aß", "n'a pas mangé", FOODS, OF_FOODS),
]
# What a sentence begins with, in three languages. Three sentences of ten begin with the noun.
OPENINGS = 3 * [("", "", "")] + [
    ("Yesterday", "Gestern", "Hier"),
    ("Today", "Heute", "Aujourd'hui"),
    ("Last week", "Letzte Woche", "La semaine dernière"),
    ("On Monday", "Am Montag", "Lundi"),
    ("At noon", "Am Mittag", "À midi"),
    ("In the evening", "Am Abend", "Le soir"),
    ("In winter", "Im Winter", "En hiver"),
]
PRONOUNS = {"de": {"m": "er", "f": "sie", "n": "es"}, "fr": {"m": "il", "f": "elle"}}


@functools.cache
def pronoun_examples(source: str, target: str) -> tuple[list[Example], list[Example], list[Example]]:
    """Sentences to train on, to validate on and to test on. No pair of nouns is in two of them.

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
    pairs = [(frame, animal, thing) for frame in FRAMES for animal in ANIMALS for thing in frame.things]
    draw.shuffle(pairs)
    count = round(HELD_OUT_SHARE * len(pairs))
    valid, test, train = pairs[:count], pairs[count : 2 * count], pairs[2 * count :]
    return (
        list(_drawn(train, NUM_TRAIN, target, draw)),
        list(_drawn(valid, NUM_HELD_OUT, target, draw)),
        list(_drawn(test, NUM_HELD_OUT, target, draw)),
    )


def known_examples(language: str) -> list[Example]:
    """The animal that was too tired, and the street that was too wide. Their pair of nouns is one of the test."""
    nouns = ANIMALS[0], WAYS[0]
    return [
        _example(FRAMES[0], nouns, is_animal, adjective, OPENINGS[0], language)
        for is_animal, adjective in ((True, OF_ANIMALS[0]), (False, OF_WAYS[0]))
    ]


def _drawn(pairs: list[tuple[Frame, Noun, Noun]], count: int, language: str, draw: random.Random) -> Iterator[Example]:
    """Different sentences about these nouns, in equal numbers about the animal and about the thing."""
    seen = set[str]()
    while len(seen) < count:
        frame, animal, thing = draw.choice(pairs)
        is_animal = len(seen) % 2 == 0
        adjective = draw.choice(OF_ANIMALS if is_animal else frame.adjectives)
        example = _example(frame, (animal, thing), is_animal, adjective, draw.choice(OPENINGS), language)
        if example.source not in seen:
            seen.add(example.source)
            yield example


def _example(
    frame: Frame,
    nouns: tuple[Noun, Noun],
    is_subject: bool,
    adjective: Adjective,
    opening: tuple[str, str, str],
    language: str,
) -> Example:
    """A sentence. The pronoun refers to the subject, or to the object."""
    subject, thing = nouns
    meant, other = nouns if is_subject else (thing, subject)
    gender = meant.genders[language]
    pronoun = PRONOUNS[language][gender]
    en = f"{opening[0]} the {subject.en}".strip()
    source = f"{en} {frame.en} the {thing.en} because it was too {adjective.en}."
    if language == "de":
        begin = f"{opening[1]} {frame.de} {subject.de}" if opening[1] else f"{subject.de} {frame.de}"
        translated = f"{begin} {thing.object('de')} nicht, weil {pronoun} zu {adjective.de} war."
    else:
        begin = f"{opening[2]}, {subject.fr}" if opening[2] else subject.fr
        quality = adjective.fr_feminine if gender == "f" else adjective.fr
        translated = f"{begin} {frame.fr} {thing.fr} parce qu'{pronoun} était trop {quality}."
    first = source[0].upper() + source[1:], translated[0].upper() + translated[1:]
    noun = re.split("[ ']", meant.in_language(language))[1]
    return Example(*first, pronoun, meant.en, noun, other.en, gender != other.genders[language], adjective.en)
