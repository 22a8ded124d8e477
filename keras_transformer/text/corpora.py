"""Reads parallel text to train on: the user's files, named corpora, back-translated pairs, and the reverse direction.

A tag tells the last two apart. It is a word of its own before the source, such as `<2de>`, and one piece of the
vocabulary.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.spec.options import Config
from keras_transformer.spec.presets import MULTI30K_RECIPE
from keras_transformer.text.held_out import drawn_identity, whole_groups
from keras_transformer.text.lines import is_blank, read_lines, refuse_pipe, sha256_of
from keras_transformer.text.named_corpora import (
    PairSource,
    multi30k_file,
    multi30k_sha256,
    number_pairs,
    pronoun_examples,
    wmt14,
)

Pair = tuple[str, str]
Parts = tuple[PairSource, PairSource, str, int]  # to train on, to validate on, their identity, and how many to train on
Item = TypeVar("Item")  # what a corpus is made of: pairs, lines, or histories

HELD_OUT_SHARE = 20  # without validation files, one line in this many is held out of training,
HELD_OUT_LINES = 2_000  # but no more than these
MAX_VALIDATION_PAIRS = 2_000  # what training validates on, of any corpus

NUMBERS_RECIPE = {
    "num_layers": 2,
    "hidden_dim": 128,
    "intermediate_dim": 256,
    "num_heads": 4,
    "dropout": 0.05,
    "vocabulary_size": 200,
    "token_budget": 2_560,
    "steps": 2_400,
    "warmup_steps": 400,
    "learning_rate_factor": 0.6,
    "checkpoint_every": 200,
    "bleu_sentences": 100,
}
# Sentences with pronouns are few words in few patterns, as number words are.
RECIPES: dict[str, Config] = {
    "numbers": NUMBERS_RECIPE,
    "pronouns": {**NUMBERS_RECIPE, "vocabulary_size": 500},
    "multi30k": MULTI30K_RECIPE,
    "wmt14": {"vocabulary_size": 37_000},
}


@dataclass(frozen=True)
class Corpus(Generic[Item]):
    """What to train on and to validate on: pairs of parallel text, the lines of one text, or histories.

    Args:
        name: such as "numbers:en-de".
        source_language, target_language: such as "en"; None where they are not known.
        train, valid: each call returns a new iterator over the pairs or lines.
        identity: the SHA-256 of the text, with which a resumed run checks that its corpus is the same.
        recipe: settings that suit the corpus; they override those of a preset.
        lines: each call returns the line numbers of `train`, from 1; None if every line is in `train`.
        more: further text to train on, beside the corpus's own.
        num_held_out: how many lines of the user's training text are in `valid`, and not in `train`.
        num_pairs: how many pairs `train` has, and `more` with it; 0 where nobody counted them.
    """

    name: str
    source_language: str | None
    target_language: str | None
    train: Callable[[], Iterator[Item]]
    valid: Callable[[], Iterator[Item]]
    identity: str
    recipe: Config = field(default_factory=dict)
    lines: Callable[[], Iterator[int]] | None = None
    more: Corpus[Item] | None = None
    num_held_out: int = 0
    num_pairs: int = 0

    def numbered(self) -> Iterator[tuple[int, Item]]:
        """Yields what to train on, each with the number of its line."""
        return zip(itertools.count(1) if self.lines is None else self.lines(), self.train(), strict=False)


def load_corpus(dataset: str = "numbers:en-de", data_dir: str | os.PathLike[str] | None = None) -> Corpus[Pair]:
    """Loads a named corpus: `numbers:…`, `pronouns:…`, `multi30k:…` or `wmt14:…`, each with its languages, as in
    `…:en-de`.

    Raises:
        RequestError: unknown name or languages, or `data_dir` does not hold the corpus.
        JobError: it could not be fetched.
    """
    name, _, languages = dataset.partition(":")
    source, dash, target = languages.partition("-")
    if name not in _NAMED or not (source and dash and target) or source == target:
        raise RequestError(
            f"a dataset is one of {', '.join(f'{known}:<src>-<tgt>' for known in _NAMED)}, such as "
            f"multi30k:en-de; received: {dataset!r}"
        )
    folder = Path(data_dir) if data_dir is not None else None
    train, valid, identity, num_pairs = _NAMED[name](source, target, folder)
    return Corpus(dataset, source, target, train, valid, identity, RECIPES[name], num_pairs=num_pairs)


def corpus_from_files(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    valid_source: str | os.PathLike[str] | None = None,
    valid_target: str | os.PathLike[str] | None = None,
    *,
    seed: int | None = 0,
) -> Corpus[Pair]:
    """Reads the user's own parallel text: UTF-8 files, plain or .gz, one sentence a line.

    Without validation files pairs of lines that the seed draws are held out: one line in twenty, at most 2,000.
    Wherever a pair that is held out stands, it is held out too, so the rarest are chosen (see `whole_groups`).

    Args:
        source, target, valid_source, valid_target: the files.
        seed: the same seed holds out the same lines of a text. None takes the last lines, as runs of before did.

    Raises:
        RequestError: a file is missing, empty, unreadable or not UTF-8, or two files differ in length.
    """
    if (valid_source is None) != (valid_target is None):
        raise RequestError("validation takes a source and a target file; received one: give both or none")
    train = _ParallelFiles(Path(source), Path(target))
    if valid_source is not None and valid_target is not None:
        valid = _ParallelFiles(Path(valid_source), Path(valid_target))
        identity = sha256_of([train.identity, valid.identity])
        return Corpus("files", None, None, train.pairs, valid.pairs, identity, num_pairs=train.count)
    if train.count < 2:
        raise RequestError(f"{source} holds one line, which cannot be trained on and held out: add more")
    valid_pairs = _held_out(train, seed)
    held_out = set(valid_pairs)

    def remaining() -> Iterator[tuple[int, Pair]]:
        return ((number, pair) for number, pair in enumerate(train.pairs(), start=1) if pair not in held_out)

    return Corpus(
        "files", None, None, lambda: (pair for _, pair in remaining()), lambda: iter(valid_pairs),
        drawn_identity(train.identity, seed), lines=lambda: (number for number, _ in remaining()),
        num_held_out=len(valid_pairs), num_pairs=train.count - len(valid_pairs),
    )  # fmt: skip


def _held_out(train: _ParallelFiles, seed: int | None) -> list[Pair]:
    """Returns the pairs of a text that are held out, each as often as the text has it; see `corpus_from_files`.

    They stand as they were drawn, so that the first of them, such as those of BLEU, are a drawn share too.
    """
    most = max(1, train.count // HELD_OUT_SHARE)
    places: Sequence[int] = range(train.count)[-min(most, HELD_OUT_LINES) :]
    if seed is not None:
        places = np.random.default_rng(seed).choice(train.count, len(places), replace=False).tolist()
    wanted = set(places)
    found = {place: pair for place, pair in enumerate(train.pairs()) if place in wanted}
    candidates = dict.fromkeys(map(found.__getitem__, places))
    counts = Counter(pair for pair in train.pairs() if pair in candidates)
    chosen = whole_groups(candidates, counts, most)
    pairs = [pair for pair in candidates if pair in chosen for _ in range(counts[pair])]
    if len(pairs) == train.count and any(map(any, chosen)):
        raise RequestError(
            f"{train.source}, {train.target}: all {train.count:,} pairs are equal, so none can be held out for "
            "validation: add other text, or give --valid-source and --valid-target"
        )
    return pairs


def with_more(corpus: Corpus[Pair], source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Corpus[Pair]:
    """Returns the corpus with further pairs from files, all of them to train on, such as pairs that a model made half
    of.

    Raises:
        RequestError: see `corpus_from_files`.
    """
    files = _ParallelFiles(Path(source), Path(target))
    more = Corpus(f"{source}, {target}", None, None, files.pairs, corpus.valid, files.identity)
    identity = sha256_of([corpus.identity, more.identity])
    return replace(corpus, more=more, identity=identity, num_pairs=corpus.num_pairs + files.count)


class _ParallelFiles:
    """Two files that translate each other line by line; they are read once to count, hash and compare them."""

    def __init__(self, source: Path, target: Path):
        self.source, self.target = source, target
        (self.count, source_sha256), (count, target_sha256) = _survey(source), _survey(target)
        if self.count != count:
            raise RequestError(
                f"{source} has {self.count:,} lines and {target} has {count:,}: "
                "each line of one must translate the same line of the other; align them"
            )
        self.identity = sha256_of([source_sha256, target_sha256])

    def pairs(self) -> Iterator[Pair]:
        return _read_pairs(self.source, self.target)


def _read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Returns the pairs of two files, without the white space around a line: a model would learn to write it."""
    return ((one.strip(), other.strip()) for one, other in zip(read_lines(source), read_lines(target), strict=True))


def _survey(path: Path) -> tuple[int, str]:
    """Counts the lines of a file; returns their number and their SHA-256."""
    refuse_pipe(path)
    digest, count = hashlib.sha256(), 0
    for line in read_lines(path):
        count += 1
        digest.update(line.encode() + b"\n")
    if not count:
        raise RequestError(f"{path} is empty; expected a sentence a line")
    return count, digest.hexdigest()


def _numbers(source: str, target: str, data_dir: Path | None) -> Parts:
    return _made("number words", data_dir, lambda: number_pairs(source, target))


def _pronouns(source: str, target: str, data_dir: Path | None) -> Parts:
    def made() -> Iterator[list[Pair]]:
        return ([(one.source, one.target) for one in part] for part in pronoun_examples(source, target)[:2])

    return _made("sentences with pronouns", data_dir, made)


def _made(what: str, data_dir: Path | None, make: Callable[[], Iterable[list[Pair]]]) -> Parts:
    """Returns the parts of a corpus that is made on the spot."""
    if data_dir is not None:
        raise RequestError(f"{what} are made, not read: leave out --data-dir; received: {data_dir}")
    train, valid = make()
    identity = sha256_of(line for pair in itertools.chain(train, valid) for line in pair)
    return lambda: iter(train), lambda: iter(valid), identity, 0


def _multi30k(source: str, target: str, data_dir: Path | None) -> Parts:
    languages = (source, target)
    identity = sha256_of(multi30k_sha256(split, language) for split in ("train", "val") for language in languages)
    train, valid = ([multi30k_file(split, each, data_dir) for each in languages] for split in ("train", "val"))
    if data_dir is None:
        for language in languages:
            multi30k_file("test_2016_flickr", language)  # Fetched with the rest, for `evaluate`.
    return lambda: _read_pairs(*train), lambda: _read_pairs(*valid), identity, 0


def _wmt14(source: str, target: str, data_dir: Path | None) -> Parts:
    train, valid, num_pairs, full_name = wmt14(source, target, data_dir)
    return train, valid, sha256_of([full_name, source, target]), num_pairs


_NAMED: dict[str, Callable[[str, str, Path | None], Parts]] = {
    "numbers": _numbers,
    "pronouns": _pronouns,
    "multi30k": _multi30k,
    "wmt14": _wmt14,
}


def into(language: str | None, side: str) -> str:
    """Returns the tag of the direction into a language: `<2de>` (Johnson et al. 2017, arXiv 1611.04558, section 3).

    Args:
        language: such as "de"; None where it is not known.
        side: "source" or "target", which then stands for the language.
    """
    return f"<2{language or side}>"


def directions(corpus: Corpus[Pair]) -> tuple[str, str]:
    """Returns the tags of the corpus's direction and of the other."""
    return into(corpus.target_language, "target"), into(corpus.source_language, "source")


def tagged(pairs: Iterable[Pair], *tags: str) -> Iterator[Pair]:
    """Puts tags before the sources. A blank source stays blank."""
    start = "".join(f"{tag} " for tag in tags)
    return ((source if is_blank(source) else start + source, target) for source, target in pairs)


def untagged(source: str, tags: Collection[str]) -> str:
    """Returns a source without the tags before it.

    >>> untagged("<2de> <bt> a dog", ["<bt>", "<2de>"])
    'a dog'
    """
    rest = source.lstrip() if tags else source
    while tag := next(filter(rest.startswith, tags), None):
        rest = rest.removeprefix(tag).lstrip()
    return rest


def mixed(corpus: Corpus[Pair], copies: int = 1, more_tag: str | None = None, both: bool = False) -> Corpus[Pair]:
    """Merges the further pairs of a corpus into its training.

    Args:
        corpus: validation stays in its direction.
        copies: how many times the pairs of the corpus come for each time that its further pairs, `Corpus.more`, come.
        more_tag: before the sources of the further pairs (tagged back-translation, Caswell et al. 2019,
            arXiv 1906.06442).
        both: learn the other direction too, from the pairs of the corpus alone. Every source then begins with the tag
            of its direction.
    """
    there, back = [[tag] if both else [] for tag in directions(corpus)]
    more, more_tags = corpus.more, [*there, *([more_tag] if more_tag else [])]

    def train() -> Iterator[Pair]:
        own = chain.from_iterable(pairs() for pairs in repeat(corpus.train, copies))
        yield from tagged(own, *there)
        if both:
            reversed_pairs = chain.from_iterable(pairs() for pairs in repeat(corpus.train, copies))
            yield from tagged(((target, source) for source, target in reversed_pairs), *back)
        if more is not None:
            yield from tagged(more.train(), *more_tags)

    return replace(corpus, train=train, valid=lambda: tagged(corpus.valid(), *there), lines=None, more=None)
