"""More to learn from than a corpus has: pairs that a model made half of, and the other direction. Tags tell them apart.

A tag is a word of its own before the source, such as `<2de>`, and one piece of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain, repeat

from keras_transformer.text.corpora import Corpus, Pair
from keras_transformer.text.lines import is_blank


def into(language: str | None, side: str) -> str:
    """The tag of the direction into a language: `<2de>` (Johnson et al. 2017, arXiv 1611.04558, section 3).

    Args:
        language: such as "de"; None where it is not known.
        side: "source" or "target", which then stands for the language.
    """
    return f"<2{language or side}>"


def directions(corpus: Corpus[Pair]) -> tuple[str, str]:
    """The tags of the corpus's direction and of the other."""
    return into(corpus.target_language, "target"), into(corpus.source_language, "source")


def tagged(pairs: Iterable[Pair], *tags: str) -> Iterator[Pair]:
    """Puts tags before the sources. A blank source stays blank."""
    start = "".join(f"{tag} " for tag in tags)
    return ((source if is_blank(source) else start + source, target) for source, target in pairs)


def untagged(source: str, tags: Collection[str]) -> str:
    """A source without the tags before it.

    >>> untagged("<2de> <bt> a dog", ["<bt>", "<2de>"])
    'a dog'
    """
    rest = source.lstrip() if tags else source
    while tag := next(filter(rest.startswith, tags), None):
        rest = rest.removeprefix(tag).lstrip()
    return rest


def mixed(corpus: Corpus[Pair], copies: int = 1, more_tag: str | None = None, both: bool = False) -> Corpus[Pair]:
    """The corpus with its further pairs.

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
