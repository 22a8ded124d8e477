"""Lines of several sentences: taken apart for the model, which learned from sentences, and put together again."""

from __future__ import annotations

import heapq
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import regex as re

from keras_transformer.core.errors import warn, warn_of_news
from keras_transformer.decoding.decoder import Decoder, Hypothesis, Span, Word
from keras_transformer.spec.search_options import SearchOptions, penalty
from keras_transformer.tasks.translation.languages import NO_TAGS, Direction
from keras_transformer.tasks.translation.words import in_given, moved, without_spaces, words_of
from keras_transformer.text.corpora import into, untagged
from keras_transformer.text.lines import is_blank, plain
from keras_transformer.text.sentences import Ids, Sentence, batches_by_length
from keras_transformer.text.splitting import (
    LearnedText,
    divided,
    has_words,
    is_copied,
    joined,
    may_have_ordinals,
    sentences_in,
)
from keras_transformer.text.tokenizer import END, PAD, UNKNOWN, Tokenizer, Unread, warn_of_cuts

# Indentation, and the mark of a list's item; a number with a full stop is one, or an ordinal.
_ITEM = r"[-*+•‣◦·–—]|\(?(?:\d{1,3}|[A-Za-z]|[ivx]{2,4})\)"
LINE_START = re.compile(rf"[\s\p{{Cf}}]*(?:{_ITEM}|\d{{1,3}}\.)\s+|\s*")
LINE_START_BEFORE_ORDINALS = re.compile(rf"[\s\p{{Cf}}]*(?:{_ITEM})\s+|\s*")
NO_SENTENCES = "what begins with a prefix is of whole lines"


@dataclass(frozen=True)
class Passage:
    """A line as it is translated.

    Args:
        number: the number of the line in the whole stream.
        texts: what is translated; nothing of a line that is blank or copied.
        spaces: what stays as it is: before the first text, behind each text but the last, and behind the last.
        tags: with which each text begins.
        prefix: the text with which the translation of the only text begins.
        line: the line as it was given.
        num_tokens: how many tokens the model reads of each text, tags included; known once the texts fit.
    """

    number: int
    texts: Sequence[str]
    spaces: Sequence[str]
    tags: str = ""
    prefix: str = ""
    line: str = ""
    num_tokens: Sequence[int] = ()

    def divided(self, texts: Iterable[str]) -> Passage:
        """Returns the passage with other texts, which are its own but for the white space around them."""
        bodies, spaces = list[str](), [self.spaces[0]]
        for text in texts:
            body = text.strip()
            before, _, behind = text.partition(body) if body else (text, "", "")
            spaces[-1] += _on_one_line(before)
            if not is_blank(body):
                bodies.append(body)
                spaces.append(_on_one_line(behind))
        spaces[-1] += self.spaces[-1]
        return replace(self, texts=bodies, spaces=spaces)


class Passages:
    """Takes lines apart, makes them fit the model, and counts those that do not, those that are copied, and those that
    hold characters which the vocabulary cannot read.

    A line with a prefix stays whole.

    Args:
        tokenizers: the tokenizers of source and target.
        most: the most pieces of a source.
        options: how the lines are translated.
        learned: the text that the model learned from.
        direction: the tags of the languages, which take room of sources.
    """

    def __init__(
        self,
        tokenizers: tuple[Tokenizer, Tokenizer],
        most: int,
        options: SearchOptions,
        learned: LearnedText,
        direction: Direction = NO_TAGS,
    ):
        self.tokenizer, self.target_tokenizer = tokenizers
        self.tags = self.tokenizer.tags
        self.most, self.split, self.learned = most - len(direction.source), options.split, learned
        self.direction = direction
        self.joins, self.options = self.split != "off", options
        self.unread = [*map(Unread, tokenizers)]
        self.num_copied = self.num_long = self.num_cut = self.num_cut_prefixes = self.num_whole = self.num_unsplit = 0

    def taken_apart(self, numbered: Iterable[tuple[int, tuple[str, str]]]) -> list[Passage]:
        """Returns the passages of numbered (line, prefix) pairs."""
        return [replace(self._passage(number, plain(line), prefix), line=line) for number, (line, prefix) in numbered]

    def _passage(self, number: int, line: str, prefix: str) -> Passage:
        if is_blank(line):
            return Passage(number, [], [""])
        text = untagged(line, self.tags)
        tags = line.removesuffix(text)
        if not tags.strip():
            text, tags = line, ""
        copied = not is_blank(text) and is_blank(prefix) and is_copied(text, self.tokenizer)
        if not copied or has_words(text):  # nothing is lost of what has no words
            for unread, read in zip(self.unread, (text, prefix), strict=True):
                unread.look([read])
        if copied:
            self.num_copied += 1
            return Passage(number, [], [_on_one_line(text)], tags)
        whole = Passage(number, [text], ["", ""], tags, prefix)
        if self.split != "sentences" or is_blank(text):
            return whole
        before, body, behind = _framed(text, self._language(tags))
        texts = self._sentences(body, tags)
        if self.joins and not prefix:
            return replace(whole, texts=[body], spaces=[before, behind]).divided(texts)
        self.num_whole += len(texts) > 1
        return whole

    def _sentences(self, text: str, tags: str) -> list[str]:
        """Returns the sentences of a text, as many together as the model learned from."""
        sentences, count = sentences_in(text, self._language(tags)), self.learned.sentences_per_line
        return ["".join(sentences[first : first + count]) for first in range(0, len(sentences), count)]

    def _language(self, tags: str) -> str | None:
        """Returns the language of a source; a tag of the other direction stands before text of the target language."""
        source, target = self.learned.source_language, self.learned.target_language
        return target if into(source, "source") in tags.split() else source

    def fitted(self, passages: Sequence[Passage]) -> tuple[list[Passage], list[Sentence]]:
        """Splits texts that are too long. Returns the passages, and one sentence for each text, at the text's place.

        A text without any piece has no sentence.
        """
        found = iter(self._encoded(passages))
        texts = [passage.prefix for passage in passages]
        # Of an empty one too: some vocabularies begin each text with a token of their own.
        encode = self.target_tokenizer.encode
        prefixes = encode(texts) if any(texts) else encode([""]) * len(texts)
        fitting, sentences, place = list[Passage](), list[Sentence](), 0
        for passage, prefix in zip(passages, prefixes, strict=True):
            sources = [next(found) for _ in passage.texts]
            if any(len(source) > self.most for source in sources):
                passage, sources = self._shortened(passage, sources)
            self.num_cut_prefixes += len(prefix) > self.most
            free = [PAD if id == UNKNOWN else id for id in prefix]
            sentences += [
                self.direction.of(Sentence(place + part, passage.number, source, free, part).cut(self.most))
                for part, source in enumerate(sources)
                if source
            ]
            num_tags, most = len(self.direction.source), self.most
            counts = [num_tags + min(len(source), most) if source else 0 for source in sources]
            fitting.append(replace(passage, num_tokens=counts))
            place += len(sources)
        return fitting, sentences

    def _encoded(self, passages: Iterable[Passage]) -> list[Ids]:
        return self.tokenizer.encode([one.tags + text for one in passages for text in one.texts])

    def _shortened(self, passage: Passage, sources: list[Ids]) -> tuple[Passage, list[Ids]]:
        """Returns a passage with a text that is too long, in shorter texts if it may be split."""
        if not self.joins or passage.prefix:
            self.num_unsplit += self.split != "off"
        else:
            [tags] = self.tokenizer.encode([passage.tags])

            def sizes(texts: Sequence[str]) -> list[int]:
                return list(map(len, self.tokenizer.encode(texts)))

            parts = [
                part
                for text, space in zip(passage.texts, [*passage.spaces[1:-1], ""], strict=True)
                for part in divided(text + space, self.most - len(tags), sizes, self._language(passage.tags))
            ]
            shorter = passage.divided(parts)
            if len(shorter.texts) > len(passage.texts):
                self.num_long += 1
                passage, sources = shorter, self._encoded([shorter])
        self.num_cut += any(len(source) > self.most for source in sources)
        return passage, sources

    def joined(self, passages: Iterable[Passage], found: Sequence[list[Hypothesis]]) -> Iterator[list[Hypothesis]]:
        """Yields the translations of each passage.

        Args:
            passages: whose texts fit.
            found: the translations of all of their texts.
        """
        place = 0
        for passage in passages:
            texts = found[place : place + len(passage.texts)]
            place += len(texts)
            if texts:
                # The same for all translations of the passage, and asked for by few.
                spans = self._spans(passage) if self.options.words else []
                yield [self._one(passage, parts, spans) for parts in self._combined(texts)]
            else:
                yield [self._copied(passage)]

    def _combined(self, found: Sequence[list[Hypothesis]]) -> list[list[Hypothesis]]:
        return combined(found, self.options.n_best, self.options.sampling)

    def _copied(self, passage: Passage) -> Hypothesis:
        """Returns the translation of what is copied, or blank."""
        text, num_tags = passage.spaces[0], len(passage.tags)
        first, last = without_spaces(text, (0, len(text)))
        is_told = self.options.words and first < last
        sources = in_given(passage.line, [(num_tags + first, num_tags + last)]) if is_told else []
        return Hypothesis(text, 0.0, 0.0, words=tuple(Word(source, (first, last)) for source in sources))

    def _one(self, passage: Passage, parts: Sequence[Hypothesis], spans: Sequence[Sequence[Span | None]]) -> Hypothesis:
        """Returns the translation of a line: its score and its log P are the sums over its texts."""
        before, *between, behind = passage.spaces
        text, starts = joined([part.text for part in parts], between)
        has_ended = all(END in part.ids for part in parts)
        ids = [[id for id in part.ids if id != END] for part in parts]
        read, written = ([0, *accumulate(map(len, each))] for each in (map(range, passage.num_tokens), ids))
        words = [
            word
            for part, own, start, sources in zip(parts, ids, starts, spans, strict=False)
            for word in moved(self._words(passage, part, own, sources), 0, len(before) + start)
        ]
        return Hypothesis(
            before + text + behind,
            sum(part.score for part in parts),
            sum(part.log_prob for part in parts),
            (*(id for own in ids for id in own), *((END,) if has_ended else ())),
            tuple(
                (source + num_read, target + num_written)
                for part, num_read, num_written in zip(parts, read, written, strict=False)
                for source, target in part.alignment
            ),
            tuple(words),
        )

    def _words(
        self, passage: Passage, part: Hypothesis, ids: Sequence[int], sources: Sequence[Span | None]
    ) -> list[Word]:
        targets, looks = self.target_tokenizer.target_spans(ids), [source for source, _ in part.alignment]
        return words_of(passage.line, sources, part.text, targets, looks)

    def _spans(self, passage: Passage) -> list[list[Span | None]]:
        """Returns where each token of each text stands in the line; None for the tag of a language, which it lacks."""
        line, num_tags, found = plain(passage.line), len(passage.tags), list[list[Span | None]]()
        last = num_tags
        for text in passage.texts:
            first = line.find(text, last)
            last = first + len(text)
            own = self.tokenizer.source_spans(passage.tags + text)
            behind = first - num_tags
            in_line = [
                (begin, end)
                if end <= num_tags and end
                else (max(begin, num_tags) + behind, max(end, num_tags) + behind)
                for begin, end in own
            ]
            given = in_line if len(line) == len(passage.line) else in_given(passage.line, in_line)
            found.append([*[None] * len(self.direction.source), *given])
        return found

    def tell(self) -> None:
        """Warns of what was copied, split, cut, left whole, or could not be read."""
        copied = f"{self.num_copied} line(s) were copied: they have no words that the model could translate"
        warn_of_news(copied, self.tokenizer, [copied] if self.num_copied else [])
        if self.num_long:
            warn(f"{self.num_long} line(s) were over {self.most} pieces: their parts were translated and joined")
        if self.num_whole:
            warn(f"{self.num_whole} line(s) of several sentences were translated as they are: {NO_SENTENCES}")
        reason = f": {NO_SENTENCES}" if self.num_unsplit else ""
        warn_of_cuts(self.num_cut, self.most, reason=reason)
        warn_of_cuts(self.num_cut_prefixes, self.most, "prefix(es)")
        for unread in self.unread:
            unread.tell()


class Layout:
    """A text of several lines: what is translated of it, and the line breaks and blank lines that stay.

    Args:
        text: any number of lines.
    """

    def __init__(self, text: str):
        self.parts = re.split(r"(\r\n|\r|\n)", text)

    @property
    def lines(self) -> list[str]:
        """The lines to translate."""
        return [part for part in self.parts if not self._stays(part)]

    def filled(self, translations: Iterator[str]) -> str:
        """Returns the text with the next translations in the places of its lines."""
        return "".join(part if self._stays(part) else next(translations) for part in self.parts)

    def joined(self, lines: Iterator[list[Hypothesis]], options: SearchOptions) -> list[Hypothesis]:
        """Returns the translations of the text, from those of its lines: see `combined`. Their words are told against
        the whole text; alignments are of lines alone."""
        found = [next(lines) for _ in self.lines]
        if len(self.parts) == 1:
            return found[0]
        chosen = combined(found, options.n_best, options.sampling) if found else [[]]
        return [self._whole(hypotheses) for hypotheses in chosen]

    def _whole(self, hypotheses: list[Hypothesis]) -> Hypothesis:
        """Returns the translation of the text, from one of each line."""
        text, num_read, words, rest = "", 0, list[Word](), iter(hypotheses)
        for part in self.parts:
            own = Hypothesis(part, 0.0, 0.0) if self._stays(part) else next(rest)
            words += moved(own.words, num_read, len(text))
            text, num_read = text + own.text, num_read + len(part)
        return Hypothesis(
            text,
            sum(one.score for one in hypotheses),
            sum(one.log_prob for one in hypotheses),
            tuple(id for one in hypotheses for id in one.ids),
            words=tuple(words),
        )

    def _stays(self, part: str) -> bool:
        return len(self.parts) > 1 and part.isspace()


def _framed(text: str, language: str | None) -> tuple[str, str, str]:
    """Returns what stands before the sentences of a line, the sentences, and the white space behind them."""
    line_start = LINE_START_BEFORE_ORDINALS if may_have_ordinals(text, language) else LINE_START
    start = line_start.match(text).end()
    if is_blank(text[start:]):  # a mark without a text is a text
        start = len(text) - len(text.lstrip())
    body = text[start:].rstrip()
    return _on_one_line(text[:start]), body, _on_one_line(text[start + len(body) :])


def _on_one_line(kept: str) -> str:
    """Returns kept text in which every line break and control character but the tab is a space."""
    if kept.isprintable():
        return kept
    breaks = ("Cc", "Zl", "Zp")
    return "".join(" " if one != "\t" and unicodedata.category(one) in breaks else one for one in kept)


def combined(found: Sequence[list[Hypothesis]], n_best: int, is_sampled: bool = False) -> list[list[Hypothesis]]:
    """Combines the translations of several texts: returns the n best choices of one of each, the best first.

    Those in which fewer were cut at their limit come first, and of these those with the larger sum of scores. Text
    after text joins the n best choices so far, which no better ones can come of others. Of samples the k-th choice has
    the k-th of each text.

    Args:
        found: the translations of each text, the best first, as a search or sampling gives them.
        n_best: n; there are fewer choices where there are fewer translations.
        is_sampled: whether they were drawn at random.
    """
    if is_sampled or n_best == 1 or len(found) == 1:
        count = min(n_best, max(map(len, found)))
        return [[some[min(place, len(some) - 1)] for some in found] for place in range(count)]
    best: list[tuple[int, float, list[Hypothesis]]] = [(0, 0.0, [])]
    for some in found:
        each = (
            (num_cut + (END not in one.ids), score - one.score, [*parts, one])
            for num_cut, score, parts in best
            for one in some
        )
        best = heapq.nsmallest(n_best, each, key=lambda choice: choice[:2])
    return [parts for *_, parts in best]


def translations(
    decoder: Decoder, target: Tokenizer, num_lines: int, sentences: list[Sentence], options: SearchOptions
) -> list[list[Hypothesis]]:
    """Returns the translations of lines, in their order.

    Args:
        decoder: the model.
        target: the vocabulary of what it writes.
        num_lines: how many lines the sentences come from; a line without a sentence has the empty translation.
        sentences: in pieces.
        options: how to translate.
    """
    found = [[Hypothesis("", 0.0, 0.0)]] * num_lines
    all_places = batches_by_length([len(sentence.source) for sentence in sentences], options.batch_size)
    batches = [[sentences[place] for place in places] for places in all_places]
    for emitted in decoder.decode_all(batches, options):
        texts = target.decode([one.ids for one in emitted])
        alignments = decoder.align(emitted) if options.alignments else [()] * len(emitted)
        found_here: dict[int, list[Hypothesis]] = {one.sentence.place: [] for one in emitted}
        for one, text, alignment in zip(emitted, texts, alignments, strict=True):
            log_prob = one.score * penalty(len(one.ids), options.length_penalty)
            found_here[one.sentence.place].append(Hypothesis(text, one.score, log_prob, tuple(one.ids), alignment))
        for place, hypotheses in found_here.items():
            found[place] = hypotheses
    return found
