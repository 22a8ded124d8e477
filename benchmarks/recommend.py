"""What comes next in users' histories: a trained model, popularity, and what followed the last item.

    python -m benchmarks.recommend --log ml-100k.inter.gz -- --preset modern --num-layers 2 --threads 1

The last event of each user is the test (Kang and McAuley 2018, 4.2). `train.py --task next-item` gets the log without
these events, and the flags after `--`; it holds out the event before for its validation. Then each method ranks all
items after the history before the test. The two counts are taken of all events before the test; the model is not
trained on the events of its validation. The command prints a Markdown table: for each method recall and NDCG at each k.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contest import at_least_one, in_process, print_head, print_row
from keras_transformer.core.errors import JobError, exit_status
from keras_transformer.tasks.next_item.corpus import History, read_log


def main(arguments: list[str] | None = None) -> None:
    """Trains, and prints the table.

    Raises:
        RequestError: the log cannot be read.
        JobError: training failed.
    """
    options = parse(arguments)
    log = read_log(options.log)
    with tempfile.TemporaryDirectory() as name:
        run = Path(options.out or f"{name}/run")
        if not (options.out and run.is_dir()):
            train(Path(name) / "log", log.histories, run, options.flags)
        found = in_process(measure, run, log.histories, options.at)
    print_head(["method", *(f"{figure}@{k}" for k in options.at for figure in ("recall", "NDCG"))])
    for method, figures in found.items():
        print_row([method, *(f"{figure:.4f}" for figure in figures)])


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", required=True, help="user, item, time; see `train.py --log`")
    parser.add_argument("--out", help="where to keep the run; one that is there is measured, and not trained")
    parser.add_argument("--at", type=at_least_one, nargs="+", default=[5, 10, 20], help="the k of recall and NDCG")
    parser.add_argument("flags", nargs="*", help="flags of train.py, after --")
    return parser.parse_args(arguments)


def kept(history: History) -> History:
    """A history without its last event, if it has more than one."""
    return history[:-1] if len(history) > 1 else history


def train(path: Path, histories: Sequence[History], run: Path, flags: Sequence[str]) -> None:
    """Trains a run on the log without the last event of each user who has more than one.

    Raises:
        JobError: training failed.
    """
    with path.open("w", encoding="utf-8") as file:
        file.write("user\titem\ttime\n")
        for user, history in enumerate(histories):
            file.writelines(f"{user}\t{item}\t{time}\n" for time, item in enumerate(kept(history)))
    command = [sys.executable, "-m", "keras_transformer", "train", "--task", "next-item", *flags]
    if subprocess.run([*command, "--log", str(path), "--out", str(run)]).returncode:
        raise JobError("the training failed")


def measure(run: Path, histories: Sequence[History], at: Sequence[int]) -> dict[str, list[float]]:
    """Recall and NDCG at each k of each method, in a process of its own."""
    from keras_transformer import load_recommender
    from keras_transformer.metrics import mean_figures
    from keras_transformer.tasks.next_item.baselines import ItemToItem, Popularity, ranks
    from keras_transformer.tasks.next_item.corpus import FIRST_ITEM
    from keras_transformer.text.tokenizer import UNKNOWN

    recommender = load_recommender(run)
    items = recommender.items
    tested = [history for history in histories if len(history) > 1]
    counted = [items.encode(kept(history)) for history in histories]
    before, targets = [items.encode(kept(one)) for one in tested], [items.id(one[-1], UNKNOWN) for one in tested]
    found = {
        name: ranks(baseline(counted, items.vocabulary_size), before, targets, FIRST_ITEM)
        for name, baseline in (("popularity", Popularity), ("what followed the last item", ItemToItem))
    }
    found["SequenceEncoder"] = recommender.ranks(tested)
    return {name: [value for k in at for value in mean_figures(one, k).values()] for name, one in found.items()}


if __name__ == "__main__":
    sys.exit(exit_status(main))
