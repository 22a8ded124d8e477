"""Fonts for text that may hold any script."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from keras_transformer.errors import warn


def families_for(texts: Iterable[str]) -> list[str]:
    """The font families with which Matplotlib shows texts: the usual ones, then installed ones for other characters.

    A warning names the characters that no installed font has.
    """
    import matplotlib
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    families = list(matplotlib.rcParams["font.family"])
    usual = findfont(FontProperties(family=families))
    missing = {char for text in texts for char in text if char.isprintable()} - _characters(usual)
    for font in sorted(fontManager.ttflist, key=lambda font: (font.style, font.name)):
        if not missing:
            break
        if font.name.startswith("Last Resort") or font.style != "normal":  # it shows a box for every character
            continue
        if found := missing & _characters(font.fname):
            families.append(font.name)
            missing -= found
    if missing:
        warn(
            f"no installed font shows {len(missing)} character(s) of the text, such as {min(missing)!r}: install one, "
            "such as Noto, or write an HTML page, which the browser's fonts show"
        )
    return families


@cache
def _characters(path: str) -> frozenset[str]:
    """The characters of a font; none if Matplotlib cannot read it."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):
        return frozenset()
