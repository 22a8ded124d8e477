"""Lines with more pieces than the model takes: cut, or split into parts whose translations are joined."""

from __future__ import annotations

from collections.abc import Sequence

from keras_transformer.decoding.options import SearchOptions, require
from keras_transformer.decoding.results import Hypothesis
from keras_transformer.decoding.sentences import Sentence
from keras_transformer.errors import warn
from keras_transformer.lengths import penalty
from keras_transformer.text.lines import is_blank
from keras_transformer.text.mixing import untagged
from keras_transformer.text.splitting import divided, joined
from keras_transformer.text.tokenizer import END, Tokenizer

WAYS = ("split", "cut")


class LongLines:
    """Makes sentences fit the model, and counts those that are too long.

    A line is split only where its one translation is asked for: with n-best lists, alignments, or a prefix, it is cut.

    Args:
        tokenizer: of the source.
        most: the most pieces of a source.
        way: "split" or "cut".
        options: how the lines are translated.

    Raises:
        RequestError: there is no such way.
    """

    def __init__(self, tokenizer: Tokenizer, most: int, way: str, options: SearchOptions):
        require("long", way, way in WAYS, " or ".join(map(repr, WAYS)))
        self.tokenizer, self.most, self.way, self.options = tokenizer, most, way, options
        self.splits = way == "split" and options.n_best == 1 and not options.alignments
        self.num_split = self.num_cut = self.num_unsplit = self.num_cut_prefixes = 0

    def fitted(self, lines: Sequence[str], sentences: list[Sentence]) -> tuple[list[Sentence], dict[int, list[int]]]:
        """The sentences, cut or in parts, and the places of the parts of each line that was split.

        Args:
            lines: those that were read ahead. The first part of a line has the line's place; all further parts have the
                places behind the last line's.
            sentences: of these lines.
        """
        fitting, places, free = list[Sentence](), dict[int, list[int]](), len(lines)
        for sentence in sentences:
            is_long = len(sentence.source) > self.most
            parts = self._parts(sentence, lines[sentence.place], free) if is_long else [sentence]
            if len(parts) > 1:
                self.num_split += 1
                places[sentence.place] = [part.place for part in parts]
                free += len(parts) - 1
            self.num_cut += is_long and any(len(part.source) > self.most for part in parts)
            self.num_cut_prefixes += len(sentence.prefix) > self.most
            fitting += [part.cut(self.most) for part in parts]
        return fitting, places

    def _parts(self, sentence: Sentence, line: str, free: int) -> list[Sentence]:
        """A sentence in parts: the first in its place, the others in free places."""
        if not self.splits or sentence.prefix:
            self.num_unsplit += self.way == "split"
            return [sentence]
        text = untagged(line, self.tokenizer.tags)
        start = line.removesuffix(text)  # the tags, with which each part begins
        [tags] = self.tokenizer.encode([start])
        texts = divided(text, self.most - len(tags), lambda texts: list(map(len, self.tokenizer.encode(texts))))
        sources = filter(None, self.tokenizer.encode([start + text for text in texts if not is_blank(text)]))
        return [
            Sentence(free + part - 1 if part else sentence.place, sentence.number, source, [], part)
            for part, source in enumerate(sources)
        ] or [sentence]  # it has nothing but tags

    def joined(
        self, found: list[list[Hypothesis]], places: dict[int, list[int]], num_lines: int
    ) -> list[list[Hypothesis]]:
        """The translations of the lines, of those of all parts.

        Args:
            found: the translations in all places.
            places: of the parts of each line that was split.
            num_lines: how many lines were read ahead.
        """
        for line, parts in places.items():
            found[line] = [self._one([found[place][0] for place in parts])]
        return found[:num_lines]

    def _one(self, parts: list[Hypothesis]) -> Hypothesis:
        has_ended = all(END in part.ids for part in parts)
        ids = (*(id for part in parts for id in part.ids if id != END), *((END,) if has_ended else ()))
        log_prob = sum(part.log_prob for part in parts)
        score = log_prob / penalty(len(ids), self.options.length_penalty)
        return Hypothesis(joined([part.text for part in parts]), score, log_prob, ids)

    def tell(self) -> None:
        """Warns of what was split or cut."""
        if self.num_split:
            warn(f"{self.num_split} line(s) were over {self.most} pieces: their parts were translated and joined")
        reason = ": n-best lists, alignments and what begins with a prefix are not joined" if self.num_unsplit else ""
        warn_of_cuts(self.num_cut, self.most, reason=reason)
        warn_of_cuts(self.num_cut_prefixes, self.most, "prefix(es)")


def warn_of_cuts(num_cut: int, most: int, kind: str = "source(s)", reason: str = "") -> None:
    """Warns of sources, or of something else, that were too long."""
    if num_cut:
        warn(f"{num_cut} {kind} were over {most} pieces and were cut{reason}")
