"""Splits lines into sentences for a translator that splits no text. The clients beside this file use it.

pip install choppa-srx
"""

from __future__ import annotations

from collections.abc import Callable

from choppa import DEFAULT_SRX_RULESET, SrxDocument, SrxTextIterator


def translated(lines: list[str], language: str, translate: Callable[[list[str]], list[str]]) -> list[str]:
    """The translation of each line: its sentences are translated apart, and joined by the white space between them.

    Args:
        lines: any text.
        language: of the lines, such as "en", among those of LanguageTool's rules.
        translate: the translation of each of several sentences.
    """
    rules = SrxDocument(ruleset=DEFAULT_SRX_RULESET)
    sentences = [list(SrxTextIterator(rules, f"{language}_one", line)) or [""] for line in lines]
    found = iter(translate([sentence.strip() for line in sentences for sentence in line]))
    return ["".join(next(found) + space_behind(sentence) for sentence in line).rstrip() for line in sentences]


def space_behind(sentence: str) -> str:
    """The white space at the end of a sentence."""
    return sentence[len(sentence.rstrip()) :]
