"""Makes or fetches the corpora with a name: number words and sentences with pronouns are made here; Multi30k and WMT14
are fetched and checked.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import itertools
import os
import random
import re
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.core.extras import required
from keras_transformer.core.files import user_cache, write_whole
from keras_transformer.core.lazy import tf
from keras_transformer.text.lines import opened

MAX_TEXT_BYTES = 64 * 2**20
MAX_DOWNLOAD_BYTES = 16 * 2**20
_DOWNLOAD_SECONDS, _SILENCE_SECONDS = 120, 30
_MEND = "fetch it by other means and pass its folder with --data-dir"
MULTI30K_URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/2eed49f9b40b6d30566775c99823b23f2457bd55/data/task1/raw"
)
# SHA-256 of the text, not of its compressed form: a copy compressed again, or not at all, passes too.
MULTI30K_SHA256 = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}
PairSource = Callable[[], Iterator[tuple[str, str]]]  # yields pairs anew at each call
WMT14_LANGUAGES = ("cs", "de", "fr", "hi", "ru")
LIMIT = 1_000_000  # numbers are below this
SAMPLED = 24_000  # drawn at random for training
HELD_OUT = 2_000  # drawn at random for validation
ALL_BELOW = 1_000  # below this, all numbers that are not held out are trained on
PRONOUN_LANGUAGES = ("de", "fr")  # into which English is translated
THINGS = ("way", "place", "food")  # kinds of what an animal does not cross, explore or eat
PRONOUNS_TRAINED = 24_000
PRONOUNS_HELD_OUT = 1_000  # sentences to validate on, and as many to test on
PRONOUNS_HELD_OUT_SHARE = 0.1  # so many pairs of nouns are for the validation, and as many for the test

Word = dict[str, str]  # a row of the table: its kind, the word in each language, and its forms

NO_OPENING: Word = {"en": "", "de": "", "fr": ""}


def fetch(url: str, path: Path, sha256: str) -> None:
    """Fetches `url` to `path`. The file appears only when it is whole and its text has the SHA-256.

    Raises:
        JobError: it could not be fetched, or is another text.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(path) as aside:
        aside.write_bytes(download(url))
        if text_sha256(aside) != sha256:
            raise JobError(f"{url} sent another text than expected (its SHA-256 differs); {_MEND}")


def text_sha256(path: Path) -> str | None:
    """Returns the SHA-256 of a file's text, decompressed; None if the file is broken or its text is too large."""
    digest, size = hashlib.sha256(), 0
    try:
        with opened(path) as file:
            while block := file.read(2**20):
                size += len(block)
                if size > MAX_TEXT_BYTES:
                    return None
                digest.update(block)
    except (EOFError, OSError, zlib.error):
        return None
    return digest.hexdigest()


def download(url: str) -> bytes:
    """Fetches what a server sends for `url`.

    Raises:
        JobError: it could not be fetched, is too large, or takes too long.
    """
    # Imported late: they take a while, and `train.py --help` imports this module.
    import http.client
    import urllib.request

    body, deadline = bytearray(), time.monotonic() + _DOWNLOAD_SECONDS
    try:
        with urllib.request.urlopen(url, timeout=_SILENCE_SECONDS) as response:
            while block := response.read(2**16):
                body += block
                if len(body) > MAX_DOWNLOAD_BYTES or time.monotonic() > deadline:
                    raise OSError(f"over {MAX_DOWNLOAD_BYTES} bytes or {_DOWNLOAD_SECONDS} seconds")
    except (OSError, http.client.HTTPException) as error:
        raise JobError(f"could not fetch {url} ({error}); {_MEND}") from None
    return bytes(body)


def multi30k_file(
    split: str, language: str, data_dir: str | os.PathLike[str] | None = None, base_url: str = MULTI30K_URL
) -> Path:
    """Returns the path of a file of Multi30k (Elliott et al. 2016, arXiv 1605.00459), a sentence a line; its text is
    checked.

    Without `data_dir` the file is in `${XDG_CACHE_HOME:-~/.cache}/keras_transformer/multi30k` and is fetched if it is
    not there yet.

    Args:
        split: train, val or test_2016_flickr.
        language: de, en or fr.
        data_dir: a folder that holds the file, .gz or plain.
        base_url: where to fetch from.

    Raises:
        RequestError: unknown split or language, or `data_dir` does not hold the file or holds another text.
        JobError: it could not be fetched.
    """
    sha256 = multi30k_sha256(split, language)
    name = f"{split}.{language}"
    if data_dir is not None:
        return _local_copy(name, Path(data_dir), sha256)
    path = user_cache() / "multi30k" / f"{name}.gz"
    if not path.exists() or text_sha256(path) != sha256:
        fetch(f"{base_url}/{name}.gz", path, sha256)
    return path


def multi30k_sha256(split: str, language: str) -> str:
    """Returns the SHA-256 of a file's text.

    Raises:
        RequestError: the corpus has no such file.
    """
    name = f"{split}.{language}"
    if name not in MULTI30K_SHA256:
        raise RequestError(f"multi30k has no {name}; expected one of {', '.join(MULTI30K_SHA256)}")
    return MULTI30K_SHA256[name]


def _local_copy(name: str, folder: Path, sha256: str) -> Path:
    """Returns the file in a folder of the user's, .gz or plain, once its text is checked."""
    for path in (folder / f"{name}.gz", folder / name):
        if path.exists():
            if text_sha256(path) != sha256:
                raise RequestError(f"{path} is not Multi30k's {name} (its SHA-256 differs): copy it again")
            return path
    raise RequestError(f"{folder} holds neither {name}.gz nor {name}: check --data-dir")


def wmt14(source: str, target: str, data_dir: Path | None) -> tuple[PairSource, PairSource, int, str]:
    """Prepares WMT14 in one direction.

    Args:
        source, target: the languages; one of them is English (en).
        data_dir: where tensorflow-datasets keeps its files.

    Returns:
        What yields the pairs to train on and those to validate on, how many there are to train on, and the full name of
        what was prepared, its version included.

    Raises:
        RequestError: other languages, or tensorflow-datasets is not installed.
        JobError: tensorflow-datasets could not prepare the corpus.
    """
    other = target if source == "en" else source
    if other not in WMT14_LANGUAGES or "en" not in (source, target):
        raise RequestError(f"wmt14 pairs English (en) with {', '.join(WMT14_LANGUAGES)}; received: {source}-{target}")
    tfds = required("tensorflow_datasets", "wmt", "wmt14")
    # One configuration serves both directions: its examples name their languages.
    name, splits = f"wmt14_translate/{other}-en", ["train", "validation"]
    try:
        (train, valid), info = tfds.load(name, split=splits, data_dir=data_dir, shuffle_files=False, with_info=True)
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise JobError(f"tensorflow-datasets could not prepare {name} ({reason}); see --data-dir") from error

    def pairs(split: tf.data.Dataset) -> Iterator[tuple[str, str]]:
        return ((_one_line(one[source]), _one_line(one[target])) for one in tfds.as_numpy(split))

    return lambda: pairs(train), lambda: pairs(valid), int(train.cardinality()), str(info.full_name)


def _one_line(text: bytes) -> str:
    return " ".join(text.decode("utf-8", "replace").splitlines()).strip()


@functools.cache
def number_pairs(source: str, target: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Makes training and held-out pairs; no number and no spelling is in both.

    Raises:
        RequestError: num2words cannot spell numbers in a language.
    """
    drawn = random.Random(0).sample(range(LIMIT), HELD_OUT + SAMPLED)
    held_out = drawn[:HELD_OUT]
    trained = sorted(set(drawn[HELD_OUT:]).union(range(ALL_BELOW)).difference(held_out))
    valid = list(zip(spelled(held_out, source), spelled(held_out, target), strict=True))
    apart = set(itertools.chain.from_iterable(valid))
    train = zip(spelled(trained, source), spelled(trained, target), strict=True)
    # Some languages spell two numbers alike.
    return [pair for pair in train if apart.isdisjoint(pair)], valid


def spelled(numbers: Iterable[int], language: str) -> Iterator[str]:
    """Yields the numbers in words."""
    import num2words

    if language not in num2words.CONVERTER_CLASSES:
        known = [code for code in sorted(num2words.CONVERTER_CLASSES) if "_" not in code]
        raise RequestError(
            f"num2words spells no numbers in {language!r}; expected one of {', '.join(known)}, "
            "or a regional form such as pt_BR"
        )
    for number in numbers:
        try:
            words = num2words.num2words(number, lang=language)
        except Exception as error:
            raise RequestError(
                f"num2words fails to spell {number} in {language!r} ({error}): choose another language"
            ) from None
        yield " ".join(words.split())


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
def pronoun_words() -> dict[str, list[Word]]:
    """Reads the table: its rows by their kind, such as "animal", "quality of animal" and "opening"."""
    found = defaultdict[str, list[Word]](list)
    table = files("keras_transformer.text").joinpath("pronouns.tsv").read_text("utf-8")
    for row in csv.DictReader(table.splitlines(), delimiter="\t", restval=""):
        found[row["kind"]].append(row)
    found["opening"] = 3 * [NO_OPENING] + found["opening"]  # three sentences of ten begin with the noun
    return found


@functools.cache
def pronoun_examples(source: str, target: str) -> tuple[list[Example], list[Example], list[Example]]:
    """Makes sentences whose pronoun cannot be translated without knowing what it refers to, with their translations: to
    train on, to validate on and to test on. No pair of nouns is in two of them.

    "The animal didn't cross the street because it was too tired": German says `es`, for the animal (das Tier), and
    `sie` in "because it was too wide", for the street (die Straße). Each sentence has two nouns, and a quality that
    fits one of them alone, as in the Winograd schemas (Levesque et al. 2012). All words are those of pronouns.tsv.

    Args:
        source: "en".
        target: "de" or "fr".

    Raises:
        RequestError: these languages are not made.
    """
    if source != "en" or target not in PRONOUN_LANGUAGES:
        raise RequestError(
            f"pronouns are made from English, en, into {' or '.join(PRONOUN_LANGUAGES)}; received: {source}-{target}"
        )
    draw = random.Random(1)
    pairs = [
        (animal, thing) for kind in THINGS for animal in pronoun_words()["animal"] for thing in pronoun_words()[kind]
    ]
    draw.shuffle(pairs)
    count = round(PRONOUNS_HELD_OUT_SHARE * len(pairs))
    valid, test, train = pairs[:count], pairs[count : 2 * count], pairs[2 * count :]
    return (
        list(_drawn_examples(train, PRONOUNS_TRAINED, target, draw)),
        list(_drawn_examples(valid, PRONOUNS_HELD_OUT, target, draw)),
        list(_drawn_examples(test, PRONOUNS_HELD_OUT, target, draw)),
    )


def known_examples(language: str) -> list[Example]:
    """Makes "… too tired" and "… too wide", of the first animal and the first way: a pair of the test."""
    nouns = pronoun_words()["animal"][0], pronoun_words()["way"][0]
    return [
        _example(nouns, noun, pronoun_words()[f"quality of {noun['kind']}"][0], NO_OPENING, language) for noun in nouns
    ]


def _drawn_examples(
    pairs: list[tuple[Word, Word]], count: int, language: str, draw: random.Random
) -> Iterator[Example]:
    """Yields different sentences about these nouns, in equal numbers about the animal and about the thing."""
    seen = set[str]()
    while len(seen) < count:
        nouns = draw.choice(pairs)
        meant = nouns[len(seen) % 2]
        quality = draw.choice(pronoun_words()[f"quality of {meant['kind']}"])
        example = _example(nouns, meant, quality, draw.choice(pronoun_words()["opening"]), language)
        if example.source not in seen:
            seen.add(example.source)
            yield example


def _example(nouns: tuple[Word, Word], meant: Word, quality: Word, opening: Word, language: str) -> Example:
    """Makes a sentence that an animal does not do something with a thing, as one of both is too tired or too wide."""
    animal, thing = nouns
    other = animal if meant is thing else thing
    verb = pronoun_words()[f"verb of {thing['kind']}"][0]
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
