"""Depth without warm-up: models of growing depth train at a constant rate from the first step, with each residual.

    python -m benchmarks.depth --out depth.png
    python -m benchmarks.depth --residuals post_norm sub_norm --depths 2 24 --rates 0.0003 0.001 --seeds 1 2 3

The models are narrow, have as many layers in the encoder as in the decoder, and no dropout. They learn number words
with Adam. The command prints a Markdown table with a row for each residual and depth. For each learning rate a cell has
the loss of every seed: the mean over the last 50 steps, in nats a piece, without label smoothing. The default steps are
less than an epoch, so this is the loss of pairs that no weight has seen yet. The last row is the entropy of the pieces:
the loss of a model that knows how frequent each piece is, and nothing of its inputs.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.contest import at_least_one, check_picture, in_process, print_head, print_row
from keras_transformer.core.errors import RequestError, exit_status
from keras_transformer.plots.pictures import tell_lines_apart
from keras_transformer.spec import part_registry
from keras_transformer.text.corpora import load_corpus
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import END, Tokenizer

SIZES: dict[str, Any] = {"num_heads": 2, "hidden_dim": 64, "intermediate_dim": 128, "dropout": 0.0}
VOCABULARY, TOKEN_BUDGET = 200, 512
STEPS_OF_A_MEAN = 50  # the last steps, over which the loss is averaged

Losses = dict[tuple[str, int], dict[float, list[float]]]  # by residual and depth, by rate: of each seed


def main(arguments: list[str] | None = None) -> None:
    """Prints the table and draws the losses over the depth.

    Raises:
        RequestError: the picture cannot be written there, or the steps are no multiple of `STEPS_OF_A_MEAN`.
    """
    options = parse(arguments)
    check_picture(options.out)
    if options.steps % STEPS_OF_A_MEAN:
        raise RequestError(f"`--steps` must be a multiple of {STEPS_OF_A_MEAN}. Received: {options.steps}")
    losses: Losses = {}
    with tempfile.TemporaryDirectory() as name:
        entropy = write_text(Path(name))
        print_head(["residual", "layers a stack", *(f"rate {rate:g}" for rate in options.rates)])
        for depth in options.depths:
            for residual in options.residuals:
                losses[residual, depth] = in_process(train, Path(name), residual, depth, options)
                cells = [", ".join(f"{loss:.2f}" for loss in seeds) for seeds in losses[residual, depth].values()]
                print_row([residual, depth, *cells])
    print_row(["the frequencies alone", "", *[f"{entropy:.2f}"] * len(options.rates)])
    if options.out:
        draw(losses, entropy, options.out)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, residuals = parser.add_argument, list(part_registry.SLOTS["residual"])
    add("--residuals", nargs="+", choices=residuals, default=residuals, help="(default: all)")
    add("--depths", nargs="+", type=at_least_one, default=[2, 6, 12], help="layers of the encoder, and of the decoder")
    add("--rates", nargs="+", type=float, default=[0.001, 0.003], help="learning rates (default: 0.001 0.003)")
    add("--seeds", nargs="+", type=int, default=[1, 2], help="of weights and batches (default: 1 2)")
    add("--steps", type=at_least_one, default=150)
    add("--threads", type=at_least_one, default=1)
    add("--out", help="write a picture of the losses over the depth here, .png")
    return parser.parse_args(arguments)


def write_text(folder: Path) -> float:
    """Writes number words as pieces, and returns the entropy of the target's pieces in nats."""
    pairs = list(load_corpus("numbers:en-de").train())
    tokenizer = Tokenizer.train([line for pair in pairs for line in pair], VOCABULARY)
    TokenizedCorpus.build(folder / "text", pairs, tokenizer, tokenizer, max_length=250)
    pieces = Counter(id for ids in tokenizer.encode([target for _, target in pairs]) for id in [*ids, END])
    return -sum(count / pieces.total() * math.log(count / pieces.total()) for count in pieces.values())


def train(folder: Path, residual: str, depth: int, options: argparse.Namespace) -> dict[float, list[float]]:
    """Trains with each rate and seed, in a process of its own: by rate, the loss of each seed.

    One model serves all of them, because tracing a deep model takes longer than training it.
    """
    from benchmarks.devices import configure_tensorflow

    configure_tensorflow("cpu", options.threads)
    from keras_transformer.losses import SmoothedCrossEntropy
    from keras_transformer.optimizers import Adam
    from keras_transformer.text.batch_sampler import BatchPlan
    from keras_transformer.text.feeding import dataset

    corpus, model = TokenizedCorpus.open(folder / "text"), make_model(residual, depth, 0)
    model.compile(optimizer=Adam(), loss=SmoothedCrossEntropy(0.0))
    model.build_for_training()
    losses: dict[float, list[float]] = {}
    for rate in options.rates:
        for seed in options.seeds:
            begin_again(model, make_model(residual, depth, seed), rate)
            batches = dataset(BatchPlan(corpus, TOKEN_BUDGET, seed))
            rounds = {"steps_per_epoch": STEPS_OF_A_MEAN, "epochs": options.steps // STEPS_OF_A_MEAN}
            means = model.fit(batches, **rounds, verbose=0, shuffle=False).history["loss"]
            losses.setdefault(rate, []).append(means[-1])
    return losses


def make_model(residual: str, depth: int, seed: int) -> Any:
    """A model with the weights of this seed."""
    import keras

    from keras_transformer.models import Transformer

    keras.utils.set_random_seed(seed)
    return Transformer(VOCABULARY, num_layers=depth, residual=residual, **SIZES)


def begin_again(model: Any, beginning: Any, rate: float) -> None:
    """Gives the model the weights of another one, and clears its optimizer."""
    import keras

    model.set_weights(beginning.get_weights())
    for variable in model.optimizer.variables:
        variable.assign(keras.ops.zeros_like(variable))  # not 0 times it: it may be NaN
    model.optimizer.learning_rate = rate


def draw(losses: Losses, entropy: float, path: str) -> None:
    """Draws the mean loss of the seeds over the depth, a panel for each rate and a line for each residual."""
    from matplotlib.figure import Figure

    rates = list(next(iter(losses.values())))
    figure = Figure(figsize=(4.5 * len(rates), 4), layout="constrained")
    panels = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
    for axes, rate in zip(panels, rates, strict=True):
        tell_lines_apart(axes)
        for residual in dict.fromkeys(residual for residual, _ in losses):
            of_depth = {depth: by_rate[rate] for (one, depth), by_rate in losses.items() if one == residual}
            axes.plot(
                list(of_depth), [sum(seeds) / len(seeds) for seeds in of_depth.values()], marker="o", label=residual
            )
        axes.axhline(entropy, color="grey", linestyle="--", label="the frequencies alone")
        axes.set_title(f"rate {rate:g}, no warm-up")
        axes.set_xlabel("layers of the encoder, and of the decoder")
        axes.grid(True, alpha=0.3)
    panels[0].set_ylabel("loss, nats a piece")
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    sys.exit(exit_status(main))
