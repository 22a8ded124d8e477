"""How long a run will take: nothing of the timed steps stays, `--hours` sets steps, long runs name their ways out."""

import shlex
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_transformer.runs.run_folder import RunConfig, RunFolder, load_model, read_config, resume_command
from keras_transformer.spec import custom_parts, model_spec
from keras_transformer.spec.presets import AUTO_ROWS
from keras_transformer.tasks.translation.settings import Settings
from keras_transformer.text.feeding import Place
from keras_transformer.training import learning, timing
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.common_settings import Given
from keras_transformer.training.flags import parser
from keras_transformer.training.request import as_given, learning_rate, model_arguments, with_steps
from keras_transformer.training.timing import Estimate
from tests.tiny_corpus import corpus_with, resolved, tiny_flags, write_corpus
from tests.training.runs import assert_same_end, trained


def test_hours_set_the_steps_and_a_seed_still_fixes_the_run(tmp_path, monkeypatch):
    """The timed steps leave nothing behind. The run is timed, and then told that a step takes a second."""
    estimate, tiny, timed = timing.estimate, tiny_flags(tmp_path, Path("unused")), list[str]()
    place = tiny.index("--warmup-steps")
    flags = " ".join([*tiny[:place], *tiny[place + 2 :], "--checkpoint-every 2 --dropout 0.2 --ema 0.9"])

    def checkpoints(folder: Path) -> Checkpoints:
        timed.append(folder.name)
        return Checkpoints(folder)

    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        patch.setattr(timing, "MOST_STEPS", 2)
        patch.setattr(timing, "Checkpoints", checkpoints)
        patch.setattr(learning, "estimate", lambda *made: (estimate(*made), Estimate(1.0, 1.0, 0.0, 2))[1])
        told = trained(tmp_path, f"{flags} --hours {5 / 3600} --out hours")
    settings = read_config(tmp_path / "hours").settings
    assert (settings["steps"], settings["warmup_steps"]) == (3, 1)
    assert "timing the first steps\nabout 0:00:05 on this machine: 3 steps" in told
    same = f"--warmup-steps 1 --learning-rate-factor {settings['learning_rate_factor']} --steps 3"
    assert "on this machine" not in trained(tmp_path, f"{flags} {same} --out steps"), "it is too short to be timed"
    assert timed and all(name.startswith(".") for name in timed), "who is killed leaves what the next start removes"
    assert settings == read_config(tmp_path / "steps").settings, "--resume needs no hours"
    assert_same_end(tmp_path / "steps", tmp_path / "hours", 3)


def test_a_warm_up_that_was_given_stays_and_is_warned_of(capsys):
    settings = Settings(warmup_steps=20, steps=100, hours=1.0)
    assert with_steps(settings, 10, Given(Settings, {"warmup_steps": 20})).warmup_steps == 20
    assert "still rising" in capsys.readouterr().err
    fitted = with_steps(settings, 10, Given(Settings, {}))
    assert (fitted.steps, fitted.warmup_steps, fitted.hours) == (10, 1, None)
    assert learning_rate(fitted, 1) == pytest.approx(learning_rate(settings, 20), rel=0.01)


def test_the_steps_within_a_time_are_the_most_that_it_holds():
    estimate = Estimate(step=0.7, validation=2.0, end=1.5, every=5)
    for seconds in (0.5, 13.0, 1234.5):
        steps = estimate.steps_within(seconds)
        assert estimate.seconds(steps + 1) > seconds
        assert estimate.seconds(steps) <= seconds or steps == 1


@pytest.mark.parametrize("sizes", [np.arange(10, 60), np.full(9, 20), np.array([30]), np.tile([8, 70], 20)], ids=len)
def test_small_batches_stand_for_larger_ones_and_the_first_of_a_shape_is_not_timed(sizes):
    """The first time of a shape traces or compiles the step."""
    plan: Any = SimpleNamespace(
        num_batches=lambda epoch: len(sizes),
        place_after=lambda place: Place(0, (place.batch + 1) % len(sizes)),
        batch=lambda place: SimpleNamespace(inputs={"source_ids": np.zeros((1, sizes[place.batch]))}),
    )
    known, seconds = set[int](), []
    for place in timing.timed_places(plan, 6):
        size = int(sizes[place.batch])
        seconds.append(0.1 * size + (99 if size not in known else 0))
        known.add(size)
    for num_steps in (2, 3, 12):  # the time may be over before
        a_position = timing._seconds_a_position(plan, np.cumsum(seconds[:num_steps]).tolist())
        assert a_position == pytest.approx(0.1)
    assert a_position * timing._mean_positions(plan) == pytest.approx(0.1 * sizes.mean())


def run_of(given: dict[str, Any], recipe: dict[str, Any] | None = None, folder: Path = Path("x"), **more: Any) -> Any:
    settings, corpus = resolved(given, num_pairs=10**6), corpus_with(recipe or {}, num_pairs=10**6)
    config = RunConfig({"kind": "translator", **model_spec.complete(model_arguments(settings), "translator")}, {})
    made = SimpleNamespace(
        settings=replace(settings, **more), given=as_given(given, Settings), corpus=corpus, config=config
    )
    return SimpleNamespace(**vars(made), folder=RunFolder(folder), is_resumed=False)


def test_hours_take_the_next_smaller_model_of_auto_until_a_quarter_of_its_steps_fit(tmp_path, capsys):
    """The vocabulary and the batches stay, and so does a size that the user chose."""
    slow = Estimate(step=2.0, validation=0.0, end=0.0, every=500)
    for hours, widths in (14, [512]), (5, [512, 256]), (1, [512, 256, 128]), (0.1, [512, 256, 128]):
        run, seen = run_of({"hours": hours}, folder=tmp_path), [512]
        while timing.takes_smaller(run, slow):
            seen.append(read_config(tmp_path).model["hidden_dim"])
            assert (run.settings.vocabulary_size, run.settings.token_budget) == (37_000, 25_000)
        said = capsys.readouterr().err
        assert seen == widths and said.count(": taking 4 layers of ") == len(widths) - 1, said
        assert ("none is smaller" in said) == (hours == 0.1)
    for chosen in {"num_heads": 8}, {"preset": "base"}, {"positions": "rotary"}:
        assert not timing.takes_smaller(run_of({"hours": 0.1, **chosen}), slow)


def test_the_smaller_model_is_the_one_that_trains_and_stays(tmp_path, monkeypatch):
    row = {**AUTO_ROWS[0], "num_layers": 1, "num_heads": 2, "vocabulary_size": 32, "checkpoint_every": 2}
    for least, width in {0: 16, 99: 32}.items():
        monkeypatch.setitem(AUTO_ROWS, least, {**row, "hidden_dim": width, "intermediate_dim": width})
    found = iter([Estimate(9.0, 1.0, 0.0, 2), Estimate(1.0, 1.0, 0.0, 2)])
    monkeypatch.setattr(learning, "estimate", lambda *_: next(found))
    own = "--source {} --target {} --bleu-sentences 0 --devices cpu".format(*write_corpus(tmp_path))
    told = trained(tmp_path, f"{own} --hours {5 / 3600} --out run")
    assert ", 1 layers of 32: taking 1 layers of 16\n" in told and "step 3/3" in told
    assert load_model(tmp_path / "run").hidden_dim == read_config(tmp_path / "run").model["hidden_dim"] == 16


def test_the_ready_commands_keep_the_flags_and_can_be_given_after_ctrl_c(monkeypatch):
    """`distill` gives `resume`, and a module that the command imported is imported again."""
    monkeypatch.setenv(custom_parts.VARIABLE, "json")
    given = {"source": "a file.en", "target": "b.de", "clean": True, "xla": False, "dropout": 0.2}
    by_distill = {**given, "resume": False}
    commands = timing.shorter_commands(
        run_of(by_distill, hidden_dim=256, intermediate_dim=1024, num_heads=4, steps=8000)
    )
    ways: list[dict[str, Any]] = [{"hidden_dim": 128, "intermediate_dim": 512}, {"hours": 2.0}, {"steps": 8000}]
    for command, way in zip(commands, ways, strict=True):
        *words, flag, module = shlex.split(command)[2:]
        found = vars(parser().parse_args(words))
        assert (flag, module) == ("--import", "json")
        assert {name: found[name] for name in found if found[name] is not None} == {**given, "overwrite": True, **way}
    again = parser().parse_args(shlex.split(resume_command(RunFolder("my run")))[2:])
    assert (again.resume, again.out, vars(again)["import"]) == (True, "my run", "json")
    assert len(timing.shorter_commands(run_of(given, init_from="parent"))) == 2, "sizes are the parent's"


def test_a_run_of_over_two_hours_that_nobody_asked_for_offers_others(capsys):
    rows: list[tuple[dict[str, Any], dict[str, Any], int, int]] = [
        ({}, {"vocabulary_size": 9}, 1_000, 3), ({}, {}, 700, 0), ({"steps": 1_000}, {}, 1_000, 0),
        ({"preset": "base"}, {}, 1_000, 0), ({}, {"steps": 1_000}, 1_000, 0),
    ]  # fmt: skip
    for given, recipe, steps, num_offered in rows:
        assert timing.tell_time(run_of(given, recipe, steps=steps), Estimate(10.0, 0.0, 0.0, 500)) is False
        said = capsys.readouterr().err
        assert said.startswith(f"about {'2:46:40' if steps == 1_000 else '1:56:40'} on this machine: {steps:,} steps")
        assert said.count("\n  ") == num_offered


def test_timed_steps_end_when_there_are_enough_and_the_time_is_over(monkeypatch):
    """The first step is left out, for it traces the graph."""
    for seconds, last in (((0, 9, 20.5, 30), 3), ((0, 30), 3), ((0, 1, 2, 3, 20, 21), 6)):
        clock = iter([*seconds, *range(100, 200)])
        monkeypatch.setattr(timing.time, "monotonic", lambda clock=clock: next(clock))
        watch = timing.StepTimer()
        watch.set_model(SimpleNamespace(stop_training=False))
        while not watch.model.stop_training:
            watch.on_train_batch_end(0, {"loss": 1.0})
        assert len(watch.trained) == last, seconds
