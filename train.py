"""Trains a Transformer: `python train.py --help` lists every knob."""

from __future__ import annotations

import sys

from keras_transformer.errors import exit_status, load_tensorflow, say
from keras_transformer.training.settings import parser


def train(given: dict) -> None:
    """From flags to a trained run."""
    load_tensorflow()
    from keras_transformer.training import replicas, run

    job = run.open_run(given)  # all that can be refused is refused here, before anything is written
    if job is None:
        return
    replicas.configure(job.settings.devices, job.settings.threads)
    say(replicas.describe_devices(job.settings.devices))
    replicas.seed(job.settings.seed)
    strategy = replicas.strategy(job.settings.devices)
    with run.begun(job) as cache:
        text = run.prepare_text(job, cache, strategy.num_replicas_in_sync)
        with strategy.scope():
            model = run.compiled_model(job)
        run.fit(job, text, model, strategy)


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    given = vars(parser().parse_args(argv))
    return exit_status(lambda: train(given))


if __name__ == "__main__":
    sys.exit(main())
