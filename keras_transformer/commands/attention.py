"""`attention`: a picture, or a page, of where the tokens of a text look."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import RequestError, load_tensorflow, say
from keras_transformer.files import check_writable, write_whole
from keras_transformer.run_folder import read_config
from keras_transformer.tasks import TASKS, task_of

if TYPE_CHECKING:
    from keras_transformer.decoding.attention import Attention

SUFFIXES = (".html", ".png", ".svg", ".pdf")


def attention(arguments: argparse.Namespace) -> None:
    """Draws the attentions of a text.

    Raises:
        RequestError: the options do not go together, or the picture cannot be written there.
    """
    out = Path(arguments.out)
    _check(arguments, out)
    load_tensorflow()
    found = attentions_of(arguments.run, arguments.text, arguments.target)
    if arguments.attention is not None:
        found = {arguments.attention: _named(arguments.attention, found)}
    if out.suffix == ".html":
        from keras_transformer.plots import attention_page

        with write_whole(out) as aside:
            aside.write_text(attention_page(found, title=arguments.text), encoding="utf-8")
    else:
        if not arguments.pieces:
            found = {name: one.joined() for name, one in found.items()}
        picture = _picture(found, arguments)
        with write_whole(out) as aside:
            picture.savefig(aside, dpi=150)
    say(f"wrote {out}")


def attentions_of(run: str, text: str, target: str | None) -> dict[str, Attention]:
    """The attentions of a run of any kind for a text.

    Args:
        run: the run folder.
        text: what the model takes: a sentence, a history with tabs between its items, or the path of an image.
        target: a translation, or an answer of a language model of pairs; by default the model's own.

    Raises:
        RequestError: the folder holds no run, or its model takes no target.
    """
    task = TASKS[task_of(read_config(run))]
    return task.module("pipeline").load(run).attention_of_line(text, target)


def _check(arguments: argparse.Namespace, out: Path) -> None:
    """Refuses options that do not go together, and files that cannot be written."""
    if out.suffix not in SUFFIXES or not out.parent.is_dir() or out.is_dir():
        raise RequestError(
            f"--out must be a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, in a folder that is "
            f"there; received: {out}"
        )
    check_writable(out.parent, "choose another file with --out")
    given = [name for name in ("layers", "heads", "word", "pieces") if getattr(arguments, name)]
    if out.suffix == ".html" and given:
        raise RequestError(f"the page has all layers, heads and words to choose from: leave out --{given[0]}")


def _named(name: str, found: dict[str, Attention]) -> Attention:
    if name not in found:
        raise RequestError(f"--attention must be {' or '.join(found)} for this model; received: {name}")
    return found[name]


def _picture(found: dict[str, Attention], arguments: argparse.Namespace) -> Any:
    from keras_transformer.plots import WordLines, attention_picture, word_lines_picture
    from keras_transformer.plots.attention import chosen

    try:
        if arguments.word is None:
            return attention_picture(found, arguments.layers, arguments.heads)
        one, query = _looking(found, arguments.word)
        layers, heads = chosen(one, arguments.layers, arguments.heads)
        return word_lines_picture([WordLines(one, query, layer, head) for layer in layers for head in heads])
    except IndexError as error:
        raise RequestError(str(error)) from None


def _looking(found: dict[str, Attention], word: str) -> tuple[Attention, int]:
    """The first attention in which a word looks, and its place.

    Raises:
        RequestError: no attention has the word.
    """
    *others, last = found.values()
    for one in others:
        with contextlib.suppress(RequestError):
            return one, one.queries.place_of(word)
    return last, last.queries.place_of(word)


def add_attention_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments and options of `attention`."""
    add = parser.add_argument
    add("text", help="what the run takes: a sentence, a history with its items by tabs, or an image file")
    add("--target", help="its translation, or the answer of a model of pairs (default: the model's own)")
    add("--out", required=True, metavar="FILE", help="an .html page, or a picture: .png, .svg or .pdf")
    add("--attention", metavar="NAME", help="only this one: encoder, decoder or cross, of a translator (default: all)")
    add("--layers", type=int, nargs="+", metavar="N", help="of a picture: only these layers, from 1 (default: all)")
    add("--heads", type=int, nargs="+", metavar="N", help="of a picture: only these heads, from 1 (default: all)")
    add("--word", help="of a picture: lines from this word, in place of heat maps")
    add("--pieces", action="store_true", help="of a picture: show pieces, and do not join them to words")
