"""The direction of a translator between many languages: the tags of its source and of its target."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from keras_transformer.core.errors import RequestError
from keras_transformer.runs.run_folder import RunConfig
from keras_transformer.spec.options import Config, flag_of
from keras_transformer.text.sentences import Ids, Sentence
from keras_transformer.text.splitting import LearnedText
from keras_transformer.text.tokenizer import Tokenizer

MOST_SHOWN = 8  # so many languages a message names
SIDES = ("source_language", "target_language")


class Direction(NamedTuple):
    """The tags of a direction; a model of one direction has none.

    Args:
        source: the ids with which each source begins.
        target: the ids with which each translation is forced to begin.
    """

    source: Ids = []
    target: Ids = []

    def of(self, sentence: Sentence) -> Sentence:
        """Returns the sentence with its tags."""
        return replace(sentence, source=self.source + sentence.source, prefix=self.target + sentence.prefix)


NO_TAGS = Direction()


def with_languages(learned: LearnedText, tags: Mapping[str, str], *languages: str | None) -> LearnedText:
    """Returns what tells of the text that a model learned from, with the languages that are asked for.

    Args:
        learned: with the languages that hold where None is asked for.
        tags: the tag of each language, by the model's own code.
        languages: those of source and target.

    Raises:
        RequestError: the model has no tags, or not of a language that is asked for.
    """
    own = (learned.source_language, learned.target_language)
    asked: Config = {s: code for s, code, its in zip(SIDES, languages, own, strict=True) if code not in (None, its)}
    for side, code in asked.items():
        if not tags:
            raise RequestError(
                f"{flag_of(side)} {code!r:.40} is for a model of many languages; this one translates from "
                f"{own[0] or 'one language'} to {own[1] or 'another'} alone: leave it out"
            )
        if code not in tags:
            near = difflib.get_close_matches(str(code), tags, MOST_SHOWN, cutoff=0.0)
            raise RequestError(
                f"{flag_of(side)}: expected one of the model's {len(tags):,} languages, such as {', '.join(near)}; "
                f"received {code!r:.40}"
            )
    return replace(learned, **asked)


def languages_of_run(config: RunConfig, *languages: str | None) -> Config:
    """Returns the languages between which a run translates, by the names of its settings.

    Args:
        config: the run's, with the tags of many languages.
        languages: those of source and target that are asked for; None asks for the run's own.

    Raises:
        RequestError: see `with_languages` and `require_languages`.
    """
    learned = with_languages(LearnedText.of_corpus(config.corpus), config.language_tags, *languages)
    require_languages(learned, config.language_tags)
    return dict(zip(SIDES, (learned.source_language, learned.target_language), strict=True))


def require_languages(learned: LearnedText, tags: Mapping[str, str]) -> None:
    """Raises RequestError if a model between many languages does not know which are meant."""
    codes = (learned.source_language, learned.target_language)
    if missing := [side for side, code in zip(SIDES, codes, strict=True) if tags and code not in tags]:
        flags = " and ".join(map(flag_of, missing))
        raise RequestError(
            f"this model translates between {len(tags):,} languages, such as {', '.join([*tags][:MOST_SHOWN])}: name "
            f"those that are meant by {flags}, in Python by `translator.between(source_language, target_language)`"
        )


def direction_of(learned: LearnedText, tags: Mapping[str, str], tokenizer: Tokenizer) -> Direction:
    """Returns the tags of a direction.

    Args:
        learned: with the languages of source and target.
        tags: see `with_languages`; a model of one direction has none.
        tokenizer: the vocabulary of sources, in which a tag has the same id as in that of translations.

    Raises:
        RequestError: a language is not known, or its tag is no piece.
    """
    if not tags:
        return NO_TAGS
    require_languages(learned, tags)
    codes = (learned.source_language, learned.target_language)
    sides = tokenizer.encode([tags[str(code)] for code in codes])
    if strange := [code for code, ids in zip(codes, sides, strict=True) if len(ids) != 1]:
        raise RequestError(f"the vocabulary has no piece for the tag of {strange[0]}: it is another run's")
    return Direction(*sides)
