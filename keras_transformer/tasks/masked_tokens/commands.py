"""The commands of an encoder of masked tokens: `fill`, what masks stand for, and `embed`, a vector a line."""

from __future__ import annotations

import argparse
import json
from itertools import tee
from pathlib import Path

from keras_transformer.commands.command import RUN_OR_EXPORT, Command
from keras_transformer.commands.parser import COUNT, add_batch_size, add_engine_options
from keras_transformer.commands.streams import standard_input
from keras_transformer.core.errors import print_result
from keras_transformer.core.task_registry import TASKS
from keras_transformer.runs.run_folder import config_of, require_kind
from keras_transformer.tasks.classification.commands import EMBED, open_classifier


def fill(arguments: argparse.Namespace) -> None:
    """Prints a JSON object for each line of standard input: for each `<mask>` the likeliest pieces, or null for one
    behind the context.
    """
    from keras_transformer.decoding.computations import Fills
    from keras_transformer.tasks.classification.pipeline import require_masks

    require_masks(not require_kind(config_of(arguments.run), TASKS["masked-tokens"].kind, Path(arguments.run)).labels)
    lines, classifier = standard_input(), open_classifier(arguments, Fills(arguments.n_best))
    texts, read = tee(lines)
    for line, masks in zip(texts, classifier.stream_fills(read, arguments.n_best, arguments.batch_size), strict=True):
        fills = [None if best is None else {piece: round(one, 4) for piece, one in best} for best in masks]
        print_result(json.dumps({"text": line, "fills": fills}, ensure_ascii=False))
    lines.tell_of_invalid()


def add_fill_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `fill`."""
    add_batch_size(parser)
    add_engine_options(parser)
    parser.add_argument("--n-best", type=COUNT, default=5, metavar="N", help="pieces for each mask (default: 5)")


COMMANDS = {
    "fill": Command(
        fill, "tell what a <mask> in each line of standard input stands for", add_fill_options, RUN_OR_EXPORT
    ),
    "embed": EMBED,
}
