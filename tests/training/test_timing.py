"""How long a run will take: nothing of the timed steps stays, `--hours` sets steps, long runs name their ways out."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_transformer.errors import RequestError
from keras_transformer.text.feeding import BEGINNING, Place
from keras_transformer.training import timing, translation
from keras_transformer.training.flags import parser
from keras_transformer.training.preparation import Tokenizers
from keras_transformer.training.request import open_run
from keras_transformer.training.settings import Settings
from keras_transformer.training.timing import Estimate
from tests.processes import run_python
from tests.tiny_corpus import tiny_flags

HOUR = 3600.0
OPTIONS = "--steps 12 --dropout 0.2 --ema 0.9 --bleu-sentences 4"

# TensorFlow takes seconds to start: the runs share a process. Two devices make mirrored replicas.
RUNS = """
import contextlib, io, json
import train
from keras_transformer.training import devices, records, timing

records.Records._write_curves = lambda self: None
devices.configure("cpu:2", 1)
devices.configure = lambda *_: None
outcomes = {{}}
def run(*flags, out):
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        status = train.main([*flags, "--out", out])
    outcomes[out] = [status, error.getvalue()]

tiny, options = {tiny!r}, {options!r}.split()
for device in ("cpu", "cpu:2"):
    for shortest in (0, 100):
        timing.SHORTEST = shortest
        run(*tiny, *options, "--devices", device, out=f"{{device}} {{shortest}}")
number = tiny.index("--warmup-steps")
tiny = [*tiny[:number], *tiny[number + 2:], "--dropout", "0.2"]
estimate = timing.estimate
timing.estimate = lambda *made: (estimate(*made), timing.Estimate(1.0, 1.0, 0.0, 5))[1]
run(*tiny, "--hours", str(13 / 3600), out="hours")
timing.estimate = estimate
def stop(*made):
    raise KeyboardInterrupt
timing.estimate = stop
run(*tiny, "--hours", "1", out="untimed")
settings = json.load(open("hours/config.json"))["settings"]
warm_up, factor = str(settings["warmup_steps"]), str(settings["learning_rate_factor"])
run(*tiny, "--steps", "10", "--warmup-steps", warm_up, "--learning-rate-factor", factor, out="steps")
json.dump(outcomes, open("outcomes.json", "w"))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("timed")
    code = RUNS.format(tiny=tiny_flags(folder, Path("unused")), options=OPTIONS)
    run_python(folder, code, "tensorflow")
    return folder


@pytest.fixture(scope="module")
def outcomes(runs) -> dict[str, tuple[int, str]]:
    return json.loads((runs / "outcomes.json").read_text())


def assert_equal_runs(one: Path, other: Path, step: int) -> None:
    for part in ("weights", "state"):
        ours, theirs = (np.load(run / "checkpoints" / f"{step:08d}.{part}.npz") for run in (one, other))
        for name in {*ours.files} - {"progress"}:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    rows = [[line.split(",")[:-1] for line in (run / "metrics.csv").read_text().splitlines()] for run in (one, other)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("device", ["cpu", "cpu:2"])
def test_the_timed_steps_leave_nothing_behind(runs, outcomes, device):
    said, silent = outcomes[f"{device} 0"], outcomes[f"{device} 100"]
    assert (said[0], silent[0]) == (0, 0), said[1] + silent[1]
    assert "on this machine: 12 steps of " in said[1] and "on this machine" not in silent[1]
    assert_equal_runs(runs / f"{device} 0", runs / f"{device} 100", 12)
    left = {path.name for path in (runs / f"{device} 0" / "checkpoints").iterdir()}
    assert all(name.endswith(".npz") for name in left)


def test_hours_set_the_steps_and_a_seed_still_fixes_the_run(runs, outcomes):
    assert outcomes["hours"][0] == outcomes["steps"][0] == 0, outcomes["hours"][1]
    config, spelled_out = (json.loads((runs / name / "config.json").read_text()) for name in ("hours", "steps"))
    assert (config["settings"]["steps"], config["settings"]["warmup_steps"]) == (10, 1)
    assert config["settings"] == spelled_out["settings"], "--resume needs no hours"
    assert "about 0:00:12 on this machine: 10 steps" in outcomes["hours"][1]
    assert_equal_runs(runs / "hours", runs / "steps", 10)


def test_a_run_that_was_stopped_before_its_steps_were_known_leaves_nothing_behind(runs, outcomes):
    assert outcomes["untimed"][0] == 130 and not (runs / "untimed").exists()


def test_a_warm_up_that_was_given_stays_and_is_warned_of(capsys):
    settings = Settings(warmup_steps=20, steps=100, hours=1.0)
    assert timing._fitting(settings, 10, {"warmup_steps": 20}).warmup_steps == 20
    assert "still rising" in capsys.readouterr().err
    fitted = timing._fitting(settings, 10, {})
    assert (fitted.steps, fitted.warmup_steps, fitted.hours) == (10, 1, None)
    assert fitted.learning_rate(1) == pytest.approx(settings.learning_rate(20), rel=0.01)


@pytest.mark.parametrize("seconds", [0.5, 7.0, 13.0, 100.0, 1234.5])
def test_the_steps_within_a_time_are_the_most_that_it_holds(seconds):
    estimate = Estimate(step=0.7, validation=2.0, end=1.5, every=5)
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
