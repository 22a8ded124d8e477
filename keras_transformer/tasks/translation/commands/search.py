"""The options of the search and of splitting text, which `translate`, `evaluate`, `compare` and `distill` share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import RequestError

if TYPE_CHECKING:
    from keras_transformer.tasks.translation.pipeline import SearchOptions

OF_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of beam search, and of splitting lines."""
    from keras_transformer.decoding.options import OTHER_SPELLINGS, WAYS_TO_SPLIT

    penalty = "ALPHA of score = log P / ((5 + length) / 6)^ALPHA; a larger one favours long translations"
    longest = "the most pieces of a translation (default and maximum: the source's + 50)"
    add = parser.add_argument
    own = "default: the model's own, mostly"
    add("--beams", type=int, metavar="K", help=f"hypotheses that the search follows; 1: greedy ({own} 4)")
    add("--length-penalty", type=float, metavar="ALPHA", help=f"{penalty} ({own} 0.6)")
    add("--max-length", type=int, metavar="N", help=longest)
    add("--batch-size", type=int, default=64, metavar="N", help="sentences translated at once (default: 64)")
    split = (
        "translate the sentences of a line apart and join them; split only lines that are too long for the model; or "
        "off: cut those. The score of a line is the sum (default: sentences; but with "
        "n-best lists, alignments or a prefix a line is translated as it is)"
    )
    add("--split", choices=WAYS_TO_SPLIT, default="sentences", help=split)
    add("--long", dest="split", choices=OTHER_SPELLINGS, help="split: another spelling of --split lines; cut: of off")


def own_search_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the search that the run brings; an export's are known once it is open.

    Raises:
        RequestError: the run's configuration is damaged, or its model is no translator.
    """
    from keras_transformer.run_folder import RunFolder, config_of_kind
    from keras_transformer.tasks import TASKS

    run = RunFolder(arguments.run)
    return config_of_kind(run, TASKS["translation"].kind).get("search", {}) if run.is_run() else {}


def search_options(arguments: argparse.Namespace, own: dict[str, Any]) -> SearchOptions:
    """The options as the translator takes them.

    Args:
        arguments: the command's.
        own: the model's own options, which hold where no flag is given.

    Raises:
        RequestError: an option is out of its range, or is for sampling and `--sample` was not given.
    """
    from keras_transformer.decoding.options import SearchOptions

    given = vars(arguments)
    sampled = {name: given[name] for name in OF_SAMPLING if given.get(name) is not None}
    if sampled and not arguments.sample:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in sampled)
        raise RequestError(f"{flags} expects --sample, which was not given: add it, or leave out {flags}")
    searched = {
        "num_beams": arguments.beams, "length_penalty": arguments.length_penalty, "max_length": arguments.max_length,
    }  # fmt: skip
    return SearchOptions(
        **{**own, **{name: value for name, value in searched.items() if value is not None}},
        batch_size=arguments.batch_size,
        split=arguments.split,
        n_best=1 if given.get("n_best") is None else given["n_best"],
        sampling=given.get("sample", False),
        alignments=given.get("alignments", False),
        **sampled,
    )
