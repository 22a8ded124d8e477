"""Translations against references: BLEU, chrF and speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from keras_transformer.bleu import bleu_metric, quality, tokenizer_for
from keras_transformer.errors import RequestError
from keras_transformer.options import Config
from keras_transformer.text.lines import strings_of

if TYPE_CHECKING:
    from keras_transformer.decoding.pipelines import Hypothesis
    from keras_transformer.decoding.search_options import SearchOptions

    Stream = Callable[[list[str], SearchOptions], Iterable[list[Hypothesis]]]


def evaluate(
    stream: Stream, sources: Sequence[str], references: Sequence[str], options: SearchOptions, tokenize: str
) -> Config:
    """What `Translator.evaluate` returns.

    Args:
        stream: `Translator.stream`.
        sources, references, options: as for `Translator.evaluate`.
        tokenize: see `checked_tokenizer`.

    Raises:
        RequestError: see `Translator.evaluate`.
    """
    sources, references = list(strings_of(sources, "sources")), list(strings_of(references, "references"))
    if len(sources) != len(references) or not sources:
        raise RequestError(
            "expected a reference for each source, and one at least; received "
            f"{len(sources)} sources and {len(references)} references"
        )
    start = time.perf_counter()
    best = [hypotheses[0] for hypotheses in stream(sources, options)]
    seconds = time.perf_counter() - start
    return {
        **quality([hypothesis.text for hypothesis in best], references, tokenize),
        "sentences": len(best),
        "seconds": seconds,
        "tokens_per_second": sum(len(hypothesis.ids) for hypothesis in best) / seconds,
        "beams": options.num_beams,
        "length_penalty": options.length_penalty,
        "split": options.split,
    }


def checked_tokenizer(tokenize: str | None, language: str | None) -> str:
    """The name of the tokenizer that BLEU counts with: the one that is asked for, or else the language's.

    Raises:
        RequestError: there is no such tokenizer, or what it needs is missing.
    """
    if tokenize is None:
        return tokenizer_for(language)
    bleu_metric(tokenize)
    return tokenize
