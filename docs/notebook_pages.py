"""Notebooks as pages of the site: their text, their code, what they printed, and their pictures and formulas."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

# A formula of its own, or one within a line; code has none.
CODE_OR_FORMULA = re.compile(r"^```.*?^```|`[^`\n]*`|\$\$(.+?)\$\$|\$([^$\n]+)\$", re.MULTILINE | re.DOTALL)


def notebook_page(path: Path) -> str:
    """A notebook in Markdown, with its pictures inside."""
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(part for cell in cells for part in _parts(cell)) + "\n"


def _parts(cell: Any) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield CODE_OR_FORMULA.sub(_formula, cell.source)
    elif cell.cell_type == "code":
        yield fenced(cell.source, "python")
        for is_printed, outputs in itertools.groupby(cell.outputs, lambda output: output.output_type == "stream"):
            if is_printed:  # one block, in however many pieces it came
                yield fenced("".join(output.text for output in outputs), "text")
            else:
                yield from (_shown(output.data, cell.source) for output in outputs)


def fenced(text: str, language: str) -> str:
    """A block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def _shown(data: Any, source: str) -> str:
    """A result: a picture, Markdown, or text."""
    if "image/png" in data:
        alt = f"The picture that `{source.splitlines()[-1]}` shows; the text beside it tells what is seen."
        return f"![{alt}](data:image/png;base64,{data['image/png'].replace(chr(10), '')})"
    return data["text/markdown"] if "text/markdown" in data else fenced(data["text/plain"], "text")


def _formula(found: re.Match[str]) -> str:
    """MathML in place of TeX: browsers show it without a script."""
    if found[1] is None and found[2] is None:
        return found[0]
    from latex2mathml.converter import convert

    formula = convert(found[1] or found[2], display="inline" if found[1] is None else "block")
    return formula if found[1] is None else f"<div>{formula}</div>"
