"""Counts BLEU by sacreBLEU (Post 2018, arXiv 1804.08771), with the effective order.

If at least one translation has four words, the figure equals sacreBLEU's default. If all are shorter, as number
words are, the default gives 0, but the effective order counts only the n-grams that exist.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.core.errors import RequestError, warn
from keras_transformer.spec.options import Config

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU

TOKENIZER = "13a"  # it divides words at spaces and punctuation
# The tokenizers for languages that write no spaces between words, or join particles to them, as sacreBLEU chooses them;
# by the codes of two and of three letters.
OF_LANGUAGES = {
    "zh": "zh", "zho": "zh", "cmn": "zh", "ja": "ja-mecab", "jpn": "ja-mecab", "ko": "ko-mecab", "kor": "ko-mecab",
}  # fmt: skip
RESAMPLES = 1000  # for a comparison; sacreBLEU draws them with the seed 12345
PACKAGES = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}


def bleu_metric(tokenize: str = TOKENIZER) -> BLEU:
    """sacreBLEU's metric with the effective order.

    Args:
        tokenize: the name of the tokenizer that divides texts into words, one of sacreBLEU's.

    Raises:
        RequestError: there is no such tokenizer, or what it needs is missing.
    """
    from sacrebleu.metrics import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise RequestError(f"expected a tokenizer among {', '.join(BLEU.TOKENIZERS)}; received: {tokenize}")
    try:
        return BLEU(effective_order=True, tokenize=tokenize)
    except (AssertionError, ImportError, OSError, RuntimeError) as error:
        if package := PACKAGES.get(tokenize):
            mend = f"needs packages that are missing or unfit: pip install '{package}'"
        else:
            mend = f"has a vocabulary that sacreBLEU downloads at its first use, which failed ({error}): try again"
        raise RequestError(f"the tokenizer {tokenize} {mend}, or name another tokenizer") from error


def tokenizer_for(language: str | None) -> str:
    """Returns the name of the tokenizer for texts of a language, such as "ja-mecab" for "ja"; "13a" for most.

    Where the packages of the language's own tokenizer are missing, the name is "13a" too, and a warning says so.
    """
    name = OF_LANGUAGES.get(re.split("[-_]", language or "")[0].lower(), TOKENIZER)
    try:
        bleu_metric(name)
    except RequestError as error:
        warn(f"BLEU is counted with the tokenizer {TOKENIZER}: {error}")
        return TOKENIZER
    return name


def bleu(texts: Sequence[str], references: Sequence[str], tokenize: str = TOKENIZER) -> float:
    """Counts the BLEU, from 0 to 100, of detokenised texts with a reference for each. Case counts."""
    return bleu_metric(tokenize).corpus_score(list(texts), [list(references)]).score


def bleu_signature(tokenize: str = TOKENIZER) -> str:
    """sacreBLEU's signature: the options that it counts with."""
    metric = bleu_metric(tokenize)
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())


def quality(texts: Sequence[str], references: Sequence[str], tokenize: str = TOKENIZER) -> Config:
    """Counts BLEU and chrF (0 to 100, cased, detokenised) of texts with a reference for each; names their
    signatures."""
    from sacrebleu.metrics import CHRF

    chrf = CHRF()
    return {
        "bleu": bleu(texts, references, tokenize),
        "chrf": chrf.corpus_score(list(texts), [list(references)]).score,
        "bleu_signature": bleu_signature(tokenize),
        "chrf_signature": str(chrf.get_signature()),
    }


def paired_quality(
    translations: Sequence[Sequence[str]], references: Sequence[str], tokenize: str = TOKENIZER
) -> list[Config]:
    """Counts BLEU and chrF of several systems on the same sentences, by sacreBLEU's paired bootstrap (Koehn 2004).

    Args:
        translations: the translations of each system, detokenised; the first system is the baseline.
        references: one for each sentence.
        tokenize: see `bleu_metric`.

    Returns:
        For each system bleu and chrf, with their means over the resamples (`_mean`), half the widths of their 95 %
        intervals (`_interval`) and p-values (`_p`): how probable such a difference from the baseline is by chance. The
        baseline has no p-value, nor has a system whose translations are all the baseline's. `same` counts the
        translations that are the baseline's. The signatures name the resamples and the seed.
    """
    from sacrebleu.metrics import CHRF
    from sacrebleu.significance import PairedTest

    named: list[tuple[str, Sequence[str]]] = [(str(place), list(texts)) for place, texts in enumerate(translations)]
    metrics = {"bleu": bleu_metric(tokenize), "chrf": CHRF()}
    signatures, results = PairedTest(named, metrics, [list(references)], "bs", RESAMPLES)()
    first = named[0][1]
    rows: list[Config] = [
        {"same": sum(one == other for one, other in zip(texts, first, strict=True))} for _, texts in named
    ]
    for name, key in zip(metrics, signatures, strict=True):  # sacreBLEU's keys are names such as "chrF2"
        figures: list[Any] = results[key]
        for row, found in zip(rows, figures, strict=True):
            p_value = None if row["same"] == len(first) else found.p_value  # sacreBLEU's is 1 / 1001 for equal texts
            row |= {name: found.score, f"{name}_mean": float(found.mean), f"{name}_interval": float(found.ci)}
            row |= {f"{name}_p": p_value, f"{name}_signature": str(signatures[key])}
    return rows


def checked_tokenizer(tokenize: str | None, language: str | None) -> str:
    """Returns the name of the tokenizer that BLEU counts with: the one that is asked for, or else the language's.

    Raises:
        RequestError: there is no such tokenizer, or what it needs is missing.
    """
    if tokenize is None:
        return tokenizer_for(language)
    bleu_metric(tokenize)
    return tokenize
