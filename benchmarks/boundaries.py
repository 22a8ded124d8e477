"""Libraries that split text into sentences, on lines whose sentences are known.

    python -m benchmarks.boundaries tests/text/hard_sentences.tsv
    python -m benchmarks.boundaries tests/text/hard_sentences.tsv --candidates ours choppa --languages de --errors

A line of the file is a language code, a tab, and a text with `‖` where a new sentence begins. The command prints a
Markdown table with a row for each candidate that is installed: the lines whose boundaries are all right, precision,
recall and F1 of the boundaries, and the characters that one thread splits in a second. White space is ignored: it may
stand at a sentence's end or at its beginning. A language that a library does not know gets what its users would take
(`FALLBACK`).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.contest import print_head, print_row
from keras_transformer.core.errors import RequestError, exit_status
from keras_transformer.text.splitting import sentences_in

MARK = "‖"
FALLBACK = "en"
SECONDS = 0.5  # at least, for the speed

Split = Callable[[str], Sequence[str]]


class Line(NamedTuple):
    """A text in a language, as its sentences."""

    language: str
    sentences: list[str]


class Score(NamedTuple):
    """Of one candidate: exact lines, and right, proposed and true boundaries."""

    exact: int
    right: int
    proposed: int
    true: int

    @property
    def row(self) -> list[str]:
        """Exact lines, precision, recall and F1."""
        precision, recall = self.right / max(1, self.proposed), self.right / max(1, self.true)
        f1 = 2 * self.right / max(1, self.proposed + self.true)
        return [str(self.exact), *(f"{share:.3f}" for share in (precision, recall, f1))]


def ours(language: str) -> Split:
    """What translators take: the rules of choppa, with marks where these are weak."""
    return lambda text: sentences_in(text, language)


def choppa(language: str) -> Split:
    """LanguageTool's rules in SRX, as they come."""
    from choppa import DEFAULT_SRX_RULESET, SrxDocument, SrxTextIterator

    document = SrxDocument(ruleset=DEFAULT_SRX_RULESET)
    return lambda text: list(SrxTextIterator(document, f"{language}_one", text))


def sentencex(language: str) -> Split:
    """Wikimedia's library, in Rust."""
    from sentencex import segment

    return lambda text: segment(language, text)


def pysbd(language: str) -> Split:
    """A port of the Pragmatic Segmenter."""
    from pysbd import Segmenter
    from pysbd.languages import LANGUAGE_CODES

    return Segmenter(language if language in LANGUAGE_CODES else FALLBACK).segment


def sentencesplit(language: str) -> Split:
    """A successor of pysbd."""
    from sentencesplit import Segmenter
    from sentencesplit.languages import LANGUAGE_CODES

    return Segmenter(language if language in LANGUAGE_CODES else FALLBACK).segment


def icu(language: str) -> Split:
    """Unicode's sentences (UAX 29), with CLDR's abbreviations."""
    from icu4py.breakers import SentenceBreaker

    return lambda text: list(SentenceBreaker(text, f"{language}@ss=standard"))


def icu_plain(language: str) -> Split:
    """Unicode's sentences without abbreviations."""
    from icu4py.breakers import SentenceBreaker

    return lambda text: list(SentenceBreaker(text, language))


def uniseg(language: str) -> Split:
    """Unicode's sentences (UAX 29), in Python."""
    from uniseg.sentencebreak import sentences

    return lambda text: list(sentences(text))


def sentence_splitter(language: str) -> Split:
    """A port of Moses's script."""
    from sentence_splitter import SentenceSplitter, SentenceSplitterException

    try:
        return SentenceSplitter(language).split
    except SentenceSplitterException:
        return SentenceSplitter(FALLBACK).split


def nupunkt(language: str) -> Split:
    """Punkt, trained on English law."""
    from nupunkt import sent_tokenize

    return sent_tokenize


def syntok(language: str) -> Split:
    """Rules for English, Spanish and German."""
    from syntok.segmenter import analyze

    def split(text: str) -> list[str]:
        return ["".join(map(str, tokens)) for paragraph in analyze(text) for tokens in paragraph]

    return split


def blingfire(language: str) -> Split:
    """Microsoft's automata."""
    from blingfire import text_to_sentences

    return lambda text: text_to_sentences(text).split("\n")


CANDIDATES: dict[str, Callable[[str], Split]] = {
    "ours": ours,
    "choppa": choppa,
    "sentencex": sentencex,
    "icu": icu,
    "icu, plain": icu_plain,
    "uniseg": uniseg,
    "pysbd": pysbd,
    "sentencesplit": sentencesplit,
    "sentence-splitter": sentence_splitter,
    "nupunkt": nupunkt,
    "syntok": syntok,
    "blingfire": blingfire,
}


def main(arguments: list[str] | None = None) -> None:
    """Prints the table.

    Raises:
        RequestError: the file is not as expected.
    """
    options = parse(arguments)
    lines = [line for line in read(options.file) if not options.languages or line.language in options.languages]
    print(f"{len(lines)} lines, {sum(len(line.sentences) - 1 for line in lines)} boundaries\n")
    print_head(["candidate", "exact", "precision", "recall", "F1", "characters a second"])
    for name in options.candidates:
        try:
            splits = {language: CANDIDATES[name](language) for language in {line.language for line in lines}}
        except ImportError:
            continue
        wrong: list[str] = []
        row = score(lines, splits, wrong).row
        print_row([name, *row, f"{speed(lines, splits):,.0f}"])
        if options.errors:
            print(*wrong, sep="\n")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("file", help="lines of language, tab, text with marks")
    add("--candidates", nargs="+", choices=CANDIDATES, default=list(CANDIDATES), metavar="NAME", help="(default: all)")
    add("--languages", nargs="+", metavar="CODE", help="(default: all in the file)")
    add("--errors", action="store_true", help="print each line that is wrong, as the candidate splits it")
    return parser.parse_args(arguments)


def read(path: str) -> list[Line]:
    """Reads the lines.

    Raises:
        RequestError: a line has no tab.
    """
    lines = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").rstrip("\n").split("\n"), 1):
        language, tab, text = line.partition("\t")
        if not tab:
            raise RequestError(f"{path}: line {number} must be a language code, a tab and a text. Received: {line!r}")
        lines.append(Line(language, text.split(MARK)))
    return lines


def score(lines: Sequence[Line], splits: dict[str, Split], wrong: list[str]) -> Score:
    """Compares boundaries. What is not as it should be is appended to `wrong`."""
    scores = []
    for language, sentences in lines:
        found = splits[language]("".join(sentences))
        true, proposed = set(boundaries(sentences)), set(boundaries(found))
        scores.append((true == proposed, len(true & proposed), len(proposed), len(true)))
        if true != proposed:
            wrong.append(f"{language}\t{MARK.join(found)}")
    return Score(*map(sum, zip(*scores, strict=True)))


def boundaries(sentences: Sequence[str]) -> Iterator[int]:
    """How many characters that are not white space stand before each sentence but the first."""
    sizes = [len("".join(sentence.split())) for sentence in sentences]
    return (before for before in itertools.accumulate(sizes) if 0 < before < sum(sizes))


def speed(lines: Sequence[Line], splits: dict[str, Split]) -> float:
    """Characters a second, after the first call."""
    texts = [(splits[language], "".join(sentences)) for language, sentences in lines]
    started, rounds = time.perf_counter(), 0
    while (seconds := time.perf_counter() - started) < SECONDS:
        for split, text in texts:
            split(text)
        rounds += 1
    return rounds * sum(len(text) for _, text in texts) / seconds


if __name__ == "__main__":
    sys.exit(exit_status(main))
