"""The command line of training: a flag for each setting."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import Field, fields
from typing import Any

from keras_transformer.errors import command_line
from keras_transformer.images.recipes import RECIPES as OF_IMAGES
from keras_transformer.presets import AUTO, AUTO_ROWS, PRESETS
from keras_transformer.text import corpora, labelled, logs, prose
from keras_transformer.training.settings import Settings, flag_of

DESCRIPTION = (
    "Trains a Transformer on parallel text, without arguments on number words, English to German; "
    "with --task another model."
)


class _WholeFlags(argparse.HelpFormatter):
    """Breaks lines at spaces alone, so that a reader finds flags, and copies them, whole."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.fill(
            " ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )


def parser() -> argparse.ArgumentParser:
    """The command line of train.py."""
    parser = argparse.ArgumentParser(prog=command_line("train"), description=DESCRIPTION, allow_abbrev=False)
    add_flags(parser)
    return parser


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each setting; a flag that is not given is None."""
    by_corpus = {**corpora.RECIPES, **prose.RECIPES, **labelled.RECIPES, **logs.RECIPES, **OF_IMAGES}
    recipes = "; ".join(f"{corpus}: {_as_flags(recipe)}" for corpus, recipe in by_corpus.items())
    parser.formatter_class = _WholeFlags
    rows = "; ".join(f"from {least:,} pairs: {_as_flags(row)}" for least, row in AUTO_ROWS.items())
    parser.epilog = (
        f"A named corpus brings a recipe, which wins over the preset; flags win over both. {recipes}. "
        f"--preset {AUTO} takes, {rows}."
    )
    for setting in fields(Settings):
        help = setting.metadata["help"] + _default(setting)
        parser.add_argument(flag_of(setting.name), default=None, help=help, **setting.metadata["options"])


def _default(setting: Field) -> str:
    """The value of a setting if neither a flag nor a recipe gives one: of each preset, or one for all."""
    by_preset = [f"{name} {preset[setting.name]}" for name, preset in PRESETS.items() if setting.name in preset]
    if by_preset:
        default = "" if len(by_preset) == len(PRESETS) else f"default: {setting.default}; "
        return f" ({default}preset {', '.join(by_preset)})"
    return "" if setting.default in (None, False) else f" (default: {setting.default})"


def _as_flags(settings: dict[str, Any]) -> str:
    return " ".join(f"{flag_of(name)} {value}" for name, value in settings.items())
