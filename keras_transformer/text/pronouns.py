"""Sentences whose pronoun cannot be translated without knowing what it refers to, with their translations.

"The animal didn't cross the street because it was too tired": German says `es`, for the animal (das Tier), and `sie` in
"because it was too wide", for the street (die Straße). Each sentence has two nouns, and an adjective that fits one of
them alone, as in the Winograd schemas (Levesque et al. 2012). All sentences are made from the tables below.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator
from typing import NamedTuple

from keras_transformer.errors import RequestError

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


ANIMALS = _nouns("""
    animal | das Tier | l'animal (m)
    dog | der Hund | le chien
    cat | die Katze | le chat
    horse | das Pferd | le cheval
    cow | die Kuh | la vache
    goat | die Ziege | la chèvre
    fox | der Fuchs | le renard
    wolf | der Wolf | le loup
    bear | der Bär | l'ours (m)
    sheep | das Schaf | le mouton
    pig | das Schwein | le cochon
    mouse | die Maus | la souris
    duck | die Ente | le canard
    goose | die Gans | l'oie (f)
    hen | das Huhn | la poule
    donkey | der Esel | l'âne (m)
    camel | das Kamel | le chameau
    deer | das Reh | la biche
    tortoise | die Schildkröte | la tortue
    hedgehog | der Igel | le hérisson
    rabbit | das Kaninchen | le lapin
    hare | der Hase | le lièvre
    squirrel | das Eichhörnchen | l'écureuil (m)
    lizard | die Eidechse | le lézard
    lion | der Löwe | le lion
    giraffe | die Giraffe | la girafe
    zebra | das Zebra | le zèbre
    crocodile | das Krokodil | le crocodile
    elephant | der Elefant | l'éléphant (m)
    calf | das Kalb | le veau
""")
WAYS = _nouns("""
    street | die Straße | la rue
    bridge | die Brücke | le pont
    meadow | die Wiese | la prairie
    gorge | die Schlucht | la gorge
    bay | die Bucht | la baie
    plain | die Ebene | la plaine
    dune | die Düne | la dune
    river | der Fluss | la rivière
    lake | der See | le lac
    canal | der Kanal | le canal
    path | der Weg | le chemin
    stream | der Bach | le ruisseau
    square | der Platz | la place
    glacier | der Gletscher | le glacier
    yard | der Hof | la cour
    field | das Feld | le champ
    valley | das Tal | la vallée
    track | das Gleis | la voie
    ice | das Eis | la glace
    riverbed | das Flussbett | le lit de la rivière
    plateau | das Plateau | le plateau
""")
PLACES = _nouns("""
    island | die Insel | l'île (f)
    cave | die Höhle | la grotte
    barn | die Scheune | la grange
    ruin | die Ruine | la ruine
    hut | die Hütte | la cabane
    fortress | die Festung | la forteresse
    forest | der Wald | la forêt
    swamp | der Sumpf | le marais
    park | der Park | le parc
    garden | der Garten | le jardin
    attic | der Dachboden | le grenier
    tunnel | der Tunnel | le tunnel
    moor | das Moor | la lande
    village | das Dorf | le village
    terrain | das Gelände | le terrain
    house | das Haus | la maison
    castle | das Schloss | le château
    maze | das Labyrinth | le labyrinthe
    thicket | das Dickicht | le fourré
""")
FOODS = _nouns("""
    soup | die Suppe | la soupe
    cake | der Kuchen | le gâteau
    bread | das Brot | le pain
    cheese | der Käse | le fromage
    meat | das Fleisch | la viande
    sausage | die Wurst | la saucisse
    fish | der Fisch | le poisson
    egg | das Ei | l'œuf (m)
    apple | der Apfel | la pomme
    pear | die Birne | la poire
    grass | das Gras | l'herbe (f)
    hay | das Heu | le foin
    carrot | die Karotte | la carotte
    porridge | der Brei | la bouillie
    salad | der Salat | la salade
    fruit | das Obst | le fruit
    nut | die Nuss | la noix
    potato | die Kartoffel | la pomme de terre
    cabbage | der Kohl | le chou
    vegetable | das Gemüse | le légume
""")
OF_ANIMALS = _adjectives("""
    tired | müde | fatigué, fatiguée
    hungry | hungrig | affamé, affamée
    thirsty | durstig | assoiffé, assoiffée
    ill | krank | malade
    scared | ängstlich | craintif, craintive
    lazy | faul | paresseux, paresseuse
    sleepy | schläfrig | somnolent, somnolente
    shy | scheu | timide
    exhausted | erschöpft | épuisé, épuisée
    stubborn | störrisch | têtu, têtue
    nervous | nervös | nerveux, nerveuse
    sad | traurig | triste
""")
OF_WAYS = _adjectives("""
    wide | breit | large
    icy | vereist | verglacé, verglacée
    slippery | rutschig | glissant, glissante
    steep | steil | raide
    uneven | uneben | inégal, inégale
    foggy | neblig | brumeux, brumeuse
    stony | steinig | caillouteux, caillouteuse
    windy | windig | venteux, venteuse
    exposed | ungeschützt | exposé, exposée
    crowded | überfüllt | bondé, bondée
""")
OF_PLACES = _adjectives("""
    dark | dunkel | sombre
    gloomy | düster | lugubre
    damp | feucht | humide
    remote | abgelegen | isolé, isolée
    eerie | unheimlich | sinistre
    vast | weitläufig | vaste
    muddy | schlammig | boueux, boueuse
    dusty | staubig | poussiéreux, poussiéreuse
    overgrown | zugewachsen | envahi, envahie
    narrow | eng | étroit, étroite
""")
OF_FOODS = _adjectives("""
    salty | salzig | salé, salée
    bitter | bitter | amer, amère
    sour | sauer | acide
    mouldy | schimmelig | moisi, moisie
    burnt | verbrannt | brûlé, brûlée
    tough | zäh | coriace
    sweet | süß | sucré, sucrée
    tasteless | geschmacklos | fade
    spicy | scharf | épicé, épicée
    rotten | faulig | pourri, pourrie
""")
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
