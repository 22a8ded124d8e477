"""The options of the search, which `translate` and `evaluate` share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from keras_transformer.errors import RequestError

if TYPE_CHECKING:
    from keras_transformer.decoding.translator import SearchOptions

OF_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of beam search."""
    penalty = "ALPHA of score = log P / ((5 + length) / 6)^ALPHA; a larger one favours long translations"
    longest = "the most pieces of a translation (default and maximum: the source's + 50)"
    add = parser.add_argument
    add("--beams", type=int, default=4, metavar="K", help="hypotheses that the search follows; 1: greedy (default: 4)")
    add("--length-penalty", type=float, default=0.6, metavar="ALPHA", help=f"{penalty} (default: 0.6)")
    add("--max-length", type=int, metavar="N", help=longest)
    add("--batch-size", type=int, default=64, metavar="N", help="sentences translated at once (default: 64)")


def search_options(arguments: argparse.Namespace) -> SearchOptions:
    """The options as the translator takes them.

    Raises:
        RequestError: an option is out of its range, or is for sampling and `--sample` was not given.
    """
    from keras_transformer.decoding.translator import SearchOptions

    given = vars(arguments)
    sampled = {name: given[name] for name in OF_SAMPLING if given.get(name) is not None}
    if sampled and not arguments.sample:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in sampled)
        raise RequestError(f"{flags} expects --sample, which was not given: add it, or leave out {flags}")
    return SearchOptions(
        num_beams=arguments.beams,
        length_penalty=arguments.length_penalty,
        max_length=arguments.max_length,
        batch_size=arguments.batch_size,
        n_best=1 if given.get("n_best") is None else given["n_best"],
        sampling=given.get("sample", False),
        alignments=given.get("alignments", False),
        **sampled,
    )
