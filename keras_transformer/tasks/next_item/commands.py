"""The commands of a model of histories: what comes next (`recommend`), vectors (`embed`), NDCG (`evaluate`)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.commands.command import RUN_OR_EXPORT, Command
from keras_transformer.commands.parser import COUNT, add_batch_size, add_engine_options, add_vector_options
from keras_transformer.commands.streams import standard_input, write_vectors
from keras_transformer.core.errors import RequestError, print_result, warn
from keras_transformer.core.extras import load_tensorflow
from keras_transformer.core.task_registry import TASKS
from keras_transformer.runs.run_folder import config_of, require_kind

if TYPE_CHECKING:
    import numpy as np

    from keras_transformer.decoding.computations import OfGraph
    from keras_transformer.tasks.next_item.corpus import Log
    from keras_transformer.tasks.next_item.pipeline import Recommendation, Recommender

EVALUATED_AT = (1, 5, 10, 20)  # the k of recall and NDCG


def recommend(arguments: argparse.Namespace) -> None:
    """Prints a JSON object for each history of standard input, or for each user of a log."""
    log = None if arguments.log is None else log_in(arguments.log)
    from keras_transformer.decoding.computations import NextItems
    from keras_transformer.tasks.next_item.pipeline import history_of

    sizes = require_kind(config_of(arguments.run), TASKS["next-item"].kind, Path(arguments.run)).model
    most = sizes["vocabulary_size"] - sizes["num_control_ids"] if arguments.only_new else arguments.count
    recommender = opened(arguments, NextItems(most))
    options = (arguments.count, arguments.only_new, arguments.batch_size)
    if log is not None:
        for user, found in zip(log.users, recommender.stream(log.histories, *options), strict=True):
            show(found, user=user)
        return
    lines = standard_input()
    for found in recommender.stream(map(history_of, lines), *options):
        show(found)
    lines.tell_of_invalid()


def opened(arguments: argparse.Namespace, computation: OfGraph) -> Recommender:
    """Returns the recommender of the run or export that a command names, to compute one thing."""
    from keras_transformer.commands.graph_cache import Engine, open_model
    from keras_transformer.tasks.next_item.pipeline import Recommender

    kind = TASKS[Recommender.task].kind
    return Recommender.of_run(*open_model(arguments.run, kind, Engine.of(arguments), computation))


def log_in(path: str) -> Log:
    """Reads the log in a file; `--help` does not wait for what reads it."""
    from keras_transformer.tasks.next_item.corpus import read_log

    return read_log(path)


def show(found: list[Recommendation], **whose: str) -> None:
    """Prints one JSON object: whose history it was, if that is known, and the items with their probabilities."""
    items = {item: round(probability, 4) for item, probability in found}
    print_result(json.dumps({**whose, "items": items}, ensure_ascii=False))


def vectors(arguments: argparse.Namespace) -> np.ndarray:
    """Returns the vectors that `embed` writes of a sequence encoder: (N, D) float32, of histories or of items."""
    if arguments.items and arguments.log is not None:
        raise RequestError("--items writes the vectors of items, and --log gives users; received both: give one")
    log = None if arguments.log is None else log_in(arguments.log)
    from keras_transformer.decoding.computations import Embedding
    from keras_transformer.tasks.next_item.pipeline import Recommender, history_of

    if arguments.items:
        load_tensorflow()
        return Recommender.load(arguments.run).item_vectors()
    recommender = opened(arguments, Embedding())
    if log is not None:
        return recommender.embed(log.histories, arguments.batch_size)
    lines = standard_input()
    found = recommender.embed(map(history_of, lines), arguments.batch_size)
    lines.tell_of_invalid()
    return found


def evaluate(arguments: argparse.Namespace) -> None:
    """Prints one JSON object: how well the last event of each user of a log is told from the events before."""
    if arguments.log is None:
        raise RequestError("expected --log, whose users' last events are to be told; received none")
    histories = [history for history in log_in(arguments.log).histories if len(history) > 1]
    if not histories:
        raise RequestError(f"{arguments.log}: expected users with two events or more; received none")
    from keras_transformer.decoding.computations import Ranks
    from keras_transformer.tasks.next_item.pipeline import mean_figures
    from keras_transformer.text.tokenizer import UNKNOWN

    recommender = opened(arguments, Ranks())
    ranks = recommender.ranks(histories, arguments.batch_size)
    found = {f"{name}@{k}": value for k in EVALUATED_AT for name, value in mean_figures(ranks, k).items()}
    if unknown := sum(recommender.items.id(history[-1], UNKNOWN) == UNKNOWN for history in histories):
        warn(f"{unknown} of {len(ranks)} last event(s) have items that the model does not know, and count as missed")
    print_result(json.dumps({"users": len(histories), "unknown": unknown, **found}))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `recommend`."""
    add = parser.add_argument
    add("--log", metavar="FILE", help="a log of events, as for training; by default a history a line, items by tabs")
    add("--count", type=COUNT, default=10, metavar="N", help="items for each history (default: 10)")
    add("--only-new", action="store_true", help="leave out the items of the history itself")
    add_batch_size(parser)
    add_engine_options(parser)


def embed(arguments: argparse.Namespace) -> None:
    """Writes a vector for each history, or for each item."""
    write_vectors(arguments, vectors)


def add_embed_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `embed`."""
    add_vector_options(parser)
    add_engine_options(parser)
    parser.add_argument("--log", metavar="FILE", help="of a next-item run: the histories of the users of a log")
    parser.add_argument("--items", action="store_true", help="of a next-item run: the vectors of its items.txt")


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `evaluate`."""
    parser.add_argument(
        "--log", metavar="FILE", help="a log of a next-item run, whose users' last events are to be told"
    )
    add_batch_size(parser)
    add_engine_options(parser)


COMMANDS = {
    "recommend": Command(recommend, "tell which items come next in users' histories", add_options, RUN_OR_EXPORT),
    "evaluate": Command(evaluate, "tell recall and NDCG on a log", add_evaluate_options, RUN_OR_EXPORT),
    "embed": Command(embed, "write a vector for each line of standard input", add_embed_options, RUN_OR_EXPORT),
}
