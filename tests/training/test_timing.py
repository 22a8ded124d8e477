"""How long a run will take: nothing of the timed steps stays, `--hours` sets steps, long runs name their ways out."""

from __future__ import annotations

import json
import shlex
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_transformer.errors import RequestError
from keras_transformer.run_folder import read_config
from keras_transformer.text.feeding import BEGINNING, Place
from keras_transformer.training import timing, translation
from keras_transformer.training.flags import parser
from keras_transformer.training.preparation import Tokenizers
from keras_transformer.training.request import open_run
from keras_transformer.training.settings import Settings
from keras_transformer.training.timing import Estimate
from tests.tiny_corpus import tiny_flags
from tests.training.runs import assert_same_end, trained

HOUR = 3600.0


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, str]:
    """What was said of a run of some seconds, and of the same that is given steps; and their folder.

    The first is timed, and then told that a step takes a second.
    """
    folder, estimate = tmp_path_factory.mktemp("timed"), timing.estimate
    tiny = tiny_flags(folder, Path("unused"))
    place = tiny.index("--warmup-steps")
    flags = " ".join([*tiny[:place], *tiny[place + 2 :], "--checkpoint-every 3 --dropout 0.2 --ema 0.9"])
    said = {"folder": str(folder)}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        patch.setattr(timing, "MOST_STEPS", 2)
        patch.setattr(timing, "estimate", lambda *made: (estimate(*made), Estimate(1.0, 1.0, 0.0, 3))[1])
        said["hours"] = trained(folder, f"{flags} --hours {8 / HOUR} --out hours")
    settings = read_config(folder / "hours")["settings"]
    same = f"--warmup-steps {settings['warmup_steps']} --learning-rate-factor {settings['learning_rate_factor']}"
    said["steps"] = trained(folder, f"{flags} {same} --steps 6 --out steps")
    return said


def test_hours_set_the_steps_and_a_seed_still_fixes_the_run(runs):
    """And the timed steps leave nothing behind."""
    hours, steps = (Path(runs["folder"]) / name for name in ("hours", "steps"))
    settings = read_config(hours)["settings"]
    assert (settings["steps"], settings["warmup_steps"]) == (6, 1)
    assert settings == read_config(steps)["settings"], "--resume needs no hours"
    assert "about 0:00:08 on this machine: 6 steps" in runs["hours"]
    assert "on this machine" not in runs["steps"], "it is too short to be timed"
    assert_same_end(steps, hours, 6)
    assert all(path.name.endswith(".npz") for path in (hours / "checkpoints").iterdir())


def test_a_run_that_was_stopped_before_its_steps_were_known_leaves_nothing_behind(tmp_path, monkeypatch):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(timing, "estimate", stop)
    trained(tmp_path, f"{' '.join(tiny_flags(tmp_path, Path('untimed')))} --hours 1", status=130)
    assert not (tmp_path / "untimed").exists()


def test_a_warm_up_that_was_given_stays_and_is_warned_of(capsys):
    settings = Settings(warmup_steps=20, steps=100, hours=1.0)
    assert timing._fitting(settings, 10, {"warmup_steps": 20}).warmup_steps == 20
    assert "still rising" in capsys.readouterr().err
    fitted = timing._fitting(settings, 10, {})
    assert (fitted.steps, fitted.warmup_steps, fitted.hours) == (10, 1, None)
    assert fitted.learning_rate(1) == pytest.approx(settings.learning_rate(20), rel=0.01)


def test_the_steps_within_a_time_are_the_most_that_it_holds():
    estimate = Estimate(step=0.7, validation=2.0, end=1.5, every=5)
    for seconds in (0.5, 7.0, 13.0, 100.0, 1234.5):
        steps = estimate.steps_within(seconds)
        assert estimate.seconds(steps + 1) > seconds
        assert estimate.seconds(steps) <= seconds or steps == 1


class Batches:
    """A plan of batches with so many ids."""

    sizes = np.arange(10, 60)

    def num_batches(self, epoch: int) -> int:
        return len(self.sizes)

    def place_after(self, place: Place) -> Place:
        return Place(0, place.batch + 1)

    def batch(self, place: Place) -> Any:
        return SimpleNamespace(inputs={"source_ids": np.zeros((1, self.sizes[place.batch]))})


def test_small_batches_stand_for_larger_ones_by_their_positions():
    plan: Any = Batches()
    ends = np.cumsum([99.0, *(0.1 * Batches.sizes[1:6])])  # the first traces the graph
    a_position = timing._seconds_a_position(plan, list(ends))
    assert a_position == pytest.approx(0.1)
    assert a_position * timing._mean_positions(plan) == pytest.approx(0.1 * Batches.sizes.mean())
    assert timing._seconds_a_position(plan, [1.0]) == 0.0
    assert timing._positions(plan, BEGINNING) == 10


def test_slow_steps_are_stopped_after_two_and_quick_ones_go_on(monkeypatch):
    for seconds, most in ((30.0, 3), (1.0, 13)):
        clock = iter(np.arange(0.0, 999.0, seconds))
        monkeypatch.setattr(timing.time, "monotonic", lambda clock=clock: next(clock))
        watch = timing.Watch()
        watch.set_model(SimpleNamespace(stop_training=False))
        while not watch.model.stop_training and len(watch.trained) < 1 + timing.MOST_STEPS:
            watch.on_train_batch_end(0, {"loss": 1.0})
        assert len(watch.trained) == most


def test_a_translation_is_counted_by_the_references_of_its_batches(monkeypatch):
    """Two batches, of which the longest references have 9 and 3 tokens with their ends."""
    asked: list[int] = []

    class Translator:
        def __init__(self, *made: Any):
            pass

        def translate(self, lines: list[str], num_beams: int, max_length: int, split: str) -> None:
            assert (num_beams, split, len(lines)) == (1, "off", 3)
            asked.append(max_length)

    monkeypatch.setattr("keras_transformer.decoding.translator.Translator", Translator)
    monkeypatch.setattr(translation, "make_model", lambda config: None)
    monkeypatch.setattr(translation, "BATCH", 3)
    clock = iter([0.0, 50.0, 100.0, 106.0])  # the first call traces the search
    monkeypatch.setattr(translation.time, "monotonic", lambda: next(clock))
    encode = lambda lines: [[7] * len(line) for line in lines]  # noqa: E731
    references = ["a" * length for length in (1, 8, 2, 5, 6)]
    tokenizers = Tokenizers(None, SimpleNamespace(encode=encode))  # type: ignore[arg-type]
    data = SimpleNamespace(bleu_sentences=lambda count: (["b"] * 5, references), tokenizers=tokenizers)
    run = SimpleNamespace(settings=Settings(), config={"model": {}})
    assert translation.decoding_seconds(run, data, None) == pytest.approx(6.0 * (9 + 3) / 6)  # type: ignore[arg-type]
    assert asked == [6, 6]


def run_of(given: dict[str, Any], recipe: dict[str, Any] | None = None, **settings: Any) -> Any:
    corpus = SimpleNamespace(recipe=recipe or {})
    return SimpleNamespace(settings=Settings(**settings), given=given, corpus=corpus, config={})


def test_the_ready_commands_keep_the_flags_and_can_be_given_after_ctrl_c():
    given = {"source": "a file.en", "target": "b.de", "clean": True, "xla": False, "dropout": 0.2}
    commands = timing.shorter_commands(run_of(given, hidden_dim=256, intermediate_dim=1024, num_heads=4, steps=8000))
    found = [vars(parser().parse_args(shlex.split(command)[2:])) for command in commands]
    ways: list[dict[str, Any]] = [{"hidden_dim": 128, "intermediate_dim": 512}, {"hours": 2.0}, {"steps": 8000}]
    for one, way in zip(found, ways, strict=True):
        assert {name: value for name, value in one.items() if value is not None} == {**given, "overwrite": True, **way}
    assert len(timing.shorter_commands(run_of(given, init_from="parent"))) == 2, "sizes are the parent's"


@pytest.mark.parametrize(
    ("given", "recipe", "steps", "is_offered"),
    [
        ({}, {}, 1_000, True),
        ({}, {"vocabulary_size": 9}, 1_000, True),
        ({}, {}, 700, False),
        ({"steps": 1_000}, {}, 1_000, False),
        ({"preset": "base"}, {}, 1_000, False),
        ({}, {"steps": 1_000}, 1_000, False),
    ],
)
def test_a_run_of_over_two_hours_that_nobody_asked_for_offers_others(
    monkeypatch, capsys, given, recipe, steps, is_offered
):
    monkeypatch.setattr(timing, "estimate", lambda *_: Estimate(10.0, 0.0, 0.0, 500))
    assert timing.tell_time(run_of(given, recipe, steps=steps), None, None, None, None) is False  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert said.startswith(f"about {'2:46:40' if steps == 1_000 else '1:56:40'} on this machine: {steps:,} steps")
    assert said.count("\n  ") == (3 if is_offered else 0)


def test_hours_are_for_one_worker(monkeypatch, tmp_path):
    workers = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(workers))
    with pytest.raises(RequestError, match="^--hours times .*; received `TF_CONFIG` with several too: give --steps$"):
        open_run({"hours": 1.0, "out": str(tmp_path / "run")})
