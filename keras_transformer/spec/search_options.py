"""Says how to decode: the checked options of a search, the longest translation, and the length penalty."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from keras_transformer.core.errors import RequestError
from keras_transformer.core.schema import Mismatch, Schema, number, object_of, one_of, or_null, shown, whole
from keras_transformer.spec.options import Config

# A translation may be this many tokens longer than its source (paper, 6.1).
EXTRA_LENGTH = 50
# The options that a model may bring, in place of the defaults.
OF_A_MODEL = ("num_beams", "length_penalty", "max_length")
OF_GUARDS = ("min_length", "no_repeat_ngram_size", "repetition_penalty", "max_length_factor")
MAX_OWN_BEAMS = 1_000
MAX_NGRAM = 100  # a search compares each of n tokens for itself
MAX_MIN_LENGTH = 1_000_000
WAYS_TO_SPLIT = ("sentences", "lines", "off")
OTHER_SPELLINGS = {"split": "lines", "cut": "off"}  # those of `--long`
VALUES: dict[str, Schema] = {
    "num_beams": whole(1),
    "length_penalty": number(-100, 100),
    "max_length": or_null(whole(1)),
    "min_length": whole(0, MAX_MIN_LENGTH),
    "no_repeat_ngram_size": whole(0, MAX_NGRAM),
    "repetition_penalty": number(1e-3, 1e3),
    "max_length_factor": or_null(number(0.1, 100)),
    "n_best": whole(1),
    "temperature": number(1e-6, 1e6, told="a number from 1e-6 to 1e6"),
    "top_k": whole(0),
    "top_p": number(sys.float_info.min, 1, told="a number over 0 and at most 1"),
    "seed": whole(0),
    "batch_size": whole(1),
    "split": one_of((*WAYS_TO_SPLIT, *OTHER_SPELLINGS), told=" or ".join(map(repr, WAYS_TO_SPLIT))),
}
GUARDS = {name: VALUES[name] for name in OF_GUARDS}
DECODING = object_of({name: VALUES[name] for name in OF_A_MODEL}, {"n_best": or_null(whole(1)), **GUARDS})
OWN_SEARCH = object_of(
    {}, {name: or_null(VALUES[name]) for name in OF_A_MODEL} | {"num_beams": or_null(whole(1, MAX_OWN_BEAMS)), **GUARDS}
)

GREEDY = {"num_beams": 1, "length_penalty": 0.0}  # what the best text of a language model is, unless one asks for beams


@dataclass(frozen=True, kw_only=True)
class Guards:
    """Keeps a search or a drawing from texts that end at once, and from texts that repeat themselves. By default off.

    Args:
        min_length: the fewest tokens before the end.
        no_repeat_ngram_size: n: no text has the same n tokens in a row twice.
        repetition_penalty: θ: what a text has already is less likely. A log-probability of such a token is multiplied
            by θ; where one hypothesis is followed, or texts are drawn, a logit is, or divided by θ if it is positive
            (Keskar et al. 2019, arXiv 1909.05858, section 4.1). 1 changes nothing.
        max_length_factor: of a translator: a translation has at most so many times the tokens of its source, both with
            their end, rounded up; to a thousandth.
    """

    min_length: int = 0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    max_length_factor: float | None = None

    @property
    def guards(self) -> Guards | None:
        """Returns the guards alone that look at tokens; None if all are off."""
        own = Guards(**{name: getattr(self, name) for name in OF_GUARDS if name != "max_length_factor"})
        return None if own == NO_GUARDS else own

    def active_guards(self) -> Config:
        """Returns the guards that are on, by their names."""
        return {name: value for name in OF_GUARDS if (value := getattr(self, name)) != getattr(NO_GUARDS, name)}


NO_GUARDS = Guards()


@dataclass(frozen=True)
class SearchOptions(Guards):
    """How to translate: by beam search, or by drawing translations at random.

    Args:
        num_beams: how many hypotheses the search follows at once; 1 is greedy search.
        length_penalty: α of the score log P(y) / ((5 + |y|) / 6)^α. Larger values favour longer translations.
        max_length: the most pieces to emit, the end included. The limit is never more than the length of the source
            (or of the prefix, if it is longer) + 50, which is also the default.
        n_best: how many translations to return for each line; a search returns at most `num_beams`.
        sampling: draw `n_best` translations at random instead of searching.
        temperature, top_k, top_p: for sampling, see `keras_transformer.search.sampling.sample`.
        seed: for sampling. The same seed gives the same line in the same place the same translations, whatever the
            batch size.
        alignments: also align each translation with its source.
        words: also tell which characters of the source each word was translated from; it sets `alignments`.
        batch_size: how many sentences to translate at once.
        split: "sentences": the sentences of a line are translated apart, as many together as the lines hold that the
            model learned from, and joined by the white space between them; indentation and the mark of a list's item
            stay. "lines": only a line that is too long for the model is split. "off": such a line is cut. Of a line
            that is split, the score is the sum of its parts' scores, and so is log P; its n best are those with the
            best sums, of samples the k-th has the k-th of each part. Lines with a prefix are translated as they are.
            "split" and "cut" are other spellings of "lines" and "off".
        min_length, no_repeat_ngram_size, repetition_penalty, max_length_factor: see `Guards`. They count in each
            sentence for itself.

    Raises:
        RequestError: a value is out of its range.
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    max_length: int | None = None
    n_best: int = 1
    sampling: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    alignments: bool = False
    words: bool = False
    batch_size: int = 64
    split: str = "sentences"

    @property
    def can_be_baked(self) -> bool:
        """Tells whether an artefact may search so: its scores are the model's log P, which certificates know."""
        return self.num_beams == 1 or self.repetition_penalty == 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "alignments", self.alignments or self.words)
        for name, allowed in VALUES.items():
            require(name, getattr(self, name), allowed)
        object.__setattr__(self, "split", OTHER_SPELLINGS.get(self.split, self.split))
        if not self.sampling and self.n_best > self.num_beams:
            raise RequestError(
                f"n_best must be at most the number of beams, {self.num_beams}; received: {self.n_best}; "
                "ask for fewer or search with more beams"
            )


@dataclass(frozen=True)
class Decoding(Guards):
    """How an artefact searches. The options are baked into the artefact and recorded in it.

    Args:
        num_beams: K; 1 is greedy search.
        length_penalty: α of the score log P(y) / ((5 + |y|) / 6)^α.
        max_length: the most pieces to emit, with the end; at most, and by default, the source's length + 50, what the
            context of a language model holds, or its longest answer.
        n_best: how many hypotheses of each sentence a list holds; all K by default.

    Raises:
        RequestError: a value is out of its range.
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    max_length: int | None = None
    n_best: int | None = None

    def __post_init__(self) -> None:
        self.options(self.num_listed)  # raises RequestError
        if not self.options().can_be_baked:
            raise RequestError(
                "a repetition penalty in an artefact needs greedy search, because a certificate compares scores with "
                f"the model's log P; received num_beams {self.num_beams}: ask for one beam, or for no_repeat_ngram_size"
            )
        object.__setattr__(self, "n_best", self.num_listed)

    @property
    def num_listed(self) -> int:
        """Returns how many hypotheses of each sentence a list holds."""
        return self.num_beams if self.n_best is None else self.n_best

    def options(self, n_best: int = 1, **others: Any) -> SearchOptions:
        """Returns the same search as the options of a decoder."""
        return SearchOptions(
            self.num_beams, self.length_penalty, self.max_length, n_best, **self.active_guards(), **others
        )

    def as_dict(self) -> Config:
        """Returns what artefacts keep of it: guards only where they are on."""
        return {name: getattr(self, name) for name in (*OF_A_MODEL, "n_best")} | self.active_guards()

    @classmethod
    def of(cls, pipeline: Any, n_best: int | None = None, **given: Any) -> Decoding:
        """Returns the options that are given; where one is None or missing, those of the pipeline's own search.

        Raises:
            RequestError: a value is out of its range, or the model does not search.
        """
        given = {name: value for name, value in given.items() if value is not None}
        own, longest = pipeline.own_search, pipeline.longest_answer
        if own is None and (given or n_best is not None):
            raise RequestError(
                f"this model does not search; received {', '.join([*given, *['n_best'] * bool(n_best)])}"
            )
        decoding = cls(**{**(GREEDY if own is None else own), **given}, n_best=n_best)
        return (
            decoding if longest is None else replace(decoding, max_length=min(decoding.max_length or longest, longest))
        )

    def one_best(self) -> Decoding:
        """Returns the same search for one hypothesis, which can stop earlier."""
        return replace(self, n_best=1)


def own_search(options: Any) -> dict[str, Any]:
    """Checks the options of the search that a model brings, and returns those that are set.

    Raises:
        RequestError: an option is unknown or out of its range.
    """
    try:
        found = OWN_SEARCH.checked(options, "search")
    except Mismatch as error:
        raise RequestError(str(error)) from None
    return {name: found[name] for name in (*OF_A_MODEL, *OF_GUARDS) if found.get(name) is not None}


def require(name: str, value: Any, allowed: Schema) -> None:
    """Raises RequestError unless a schema allows the value."""
    if not allowed.holds(value):
        raise RequestError(f"{name} must be {allowed.expected}; received: {shown(value)}")


def require_whole(name: str, value: Any, least: int) -> None:
    """Raises RequestError unless the value is a whole number and at least `least`."""
    require(name, value, whole(least))


def require_no_factor(options: Guards) -> None:
    """Raises RequestError if a language model is given a limit relative to a source."""
    if options.max_length_factor is not None:
        raise RequestError("max_length_factor is relative to a source, which a language model has not: leave it out")


def longest(source_length: Any) -> Any:
    """Returns the most tokens, the end included, of a translation of `source_length` tokens without their end."""
    return source_length + EXTRA_LENGTH


def times_as_long(source_length: Any, factor: float) -> Any:
    """Returns `factor` times as many tokens as a source has, both with their end, rounded up. Whole numbers compute
    the same in every engine."""
    return ((source_length + 1) * round(1000 * factor) + 999) // 1000


def penalty(length: Any, length_penalty: float) -> Any:
    """Returns ((5 + |y|) / 6)^α, by which a search divides log P(y) (Wu et al. 2016, arXiv 1609.08144, equation 14).

    Args:
        length: |y| with the end: a number, an array, or a float32 tensor.
        length_penalty: α.
    """
    return ((5.0 + length) / 6.0) ** length_penalty
