"""`KERAS_BACKEND=jax python -m tests.training.on_jax CASE` trains with JAX where TensorFlow cannot be imported."""

import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import train
from keras_transformer.__main__ import main as main_of_package
from tests.interrupted import interrupt
from tests.tiny_corpus import tiny_flags, write_corpus


class Nowhere:
    """A finder of modules that has no TensorFlow."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Refuses TensorFlow; other finders have the rest."""
        if name.partition(".")[0] == "tensorflow":
            raise ModuleNotFoundError(f"no {name} here", name=name)


def trained(flags: str, status: int = 0) -> None:
    """Trains a tiny translator on batches of two shapes."""
    words = [*tiny_flags(Path(), Path("unused")), "--static-shapes", "2", *flags.split()]
    assert train.main(words) == status


def go_on(run: str) -> None:
    """Resumes a run."""
    assert train.main(["--resume", "--out", run]) == 0


def resumed() -> None:
    """A run that was stopped within a round, or killed, ends as one that was not."""
    from keras_transformer.training import callbacks
    from tests.training.runs import assert_same_end

    flags = "--steps 15 --dropout 0.2 --bleu-sentences 3 --ema 0.9"
    trained(f"{flags} --out whole")
    interrupt("whole", "killed", last_step=15)
    go_on("killed")
    assert_same_end(Path("whole"), Path("killed"), 15)
    follow = callbacks.ProgressCounter.on_train_batch_end

    def follow_and_stop(self: callbacks.ProgressCounter, batch: int, logs: Any = None) -> None:
        follow(self, batch, logs)
        if self.progress.step == 8:
            signal.raise_signal(signal.SIGTERM)

    callbacks.ProgressCounter.on_train_batch_end = follow_and_stop  # type: ignore[method-assign]
    trained(f"{flags} --out stopped", 128 + signal.SIGTERM)
    callbacks.ProgressCounter.on_train_batch_end = follow  # type: ignore[method-assign]
    assert Path("stopped/checkpoints/00000008.state.npz").exists()
    go_on("stopped")
    assert_same_end(Path("whole"), Path("stopped"), 15)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for engine in ("keras", "onnx"):
            with Path("corpus.source").open(encoding="utf-8") as sys.stdin:
                assert main_of_package(["translate", "whole", "--engine", engine]) == 0


def other_tasks() -> None:
    """Tasks whose batches have free widths train on padded ones."""
    write_corpus(Path())
    sizes = "--preset tiny --num-layers 1 --hidden-dim 16 --intermediate-dim 24 --num-heads 2 --warmup-steps 2"
    text = "--text corpus.source --valid-text corpus.target --vocabulary-size 32 --context-length 8"
    for task, data in {"masked-tokens": text, "language-model": text, "images": "", "next-item": ""}.items():
        assert train.main([task, *sizes.split(), *data.split(), "--steps", "3", "--out", task]) == 0, task


def on_two_devices() -> None:
    """Two devices learn what one does, from the same batches: the budget holds 88 and 40 lines of the two widths."""
    import jax
    import numpy as np

    from tests.training.runs import arrays

    trained("--steps 10 --dropout 0 --token-budget 440 --devices cpu:2 --out two")
    assert len(jax.devices()) == 2
    one, two = (arrays(Path(name), 10) for name in ("one", "two"))
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, atol=1e-5, err_msg=name)


def on_one_device() -> None:
    """For the other case."""
    trained("--steps 10 --dropout 0 --token-budget 440 --out one")


def main(names: list[str]) -> None:
    """Runs cases in the present folder; the first that fails ends it."""
    sys.meta_path.insert(0, Nowhere)  # type: ignore[arg-type]
    for name in names:
        globals()[name]()
    assert not [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]


if __name__ == "__main__":
    main(sys.argv[1:])
