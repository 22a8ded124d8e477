"""What is asked of train.py: what a run takes from another that it fine-tunes, what is told, and what is refused."""

import functools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import train
from keras_transformer import family
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import load_model, read_config
from keras_transformer.training import translation
from keras_transformer.training.fine_tuning import fitting_warm_up
from keras_transformer.training.request import Run, open_run
from keras_transformer.training.run import compiled_model
from keras_transformer.training.schedules import InverseSquareRootDecay
from keras_transformer.training.settings import Settings
from tests.golden.stored import unpack
from tests.tiny_corpus import write_corpus

POSITIONS = ", ".join(family.SLOTS["positions"])
NUMBERS = {"dataset": "numbers:en-de"}


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> Path:
    """A run with other settings than the defaults."""
    run = unpack("translation", tmp_path_factory.mktemp("parent") / "parent")
    config = json.loads((run / "config.json").read_text())
    config["settings"] |= {"dropout": 0.2, "sampling": 0.3, "ema": 0.9}
    (run / "config.json").write_text(json.dumps(config))
    return run


@pytest.fixture(autouse=True, scope="module")
def made_once() -> Iterator[None]:
    """The numbers of a named corpus are drawn once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translation, "load_corpus", functools.cache(translation.load_corpus))
        yield


@pytest.fixture
def opened(tmp_path):
    """`opened(given)` → a run that is not finished, in a folder of its own."""

    def opened(given: dict[str, Any], **more: Any) -> Run:
        run = open_run({"out": str(tmp_path / "run"), **given, **more})
        assert run is not None
        return run

    return opened


@pytest.fixture
def text(tmp_path) -> dict[str, Any]:
    return dict(zip(("source", "target"), map(str, write_corpus(tmp_path)), strict=True))


def test_fine_tuning_inherits_the_settings_of_the_run_that_it_begins_with(parent, opened, text, capsys):
    run = opened({**text, "init_from": str(parent), "steps": 40})
    before, child = read_config(parent)["settings"], run.settings.as_dict()
    own = {"steps", "init_from", "source", "target", "valid_source", "valid_target", "warmup_steps", "normalization"}
    own |= {"learning_rate_factor", "devices", "average_last"}
    assert {name for name in before if before[name] != child[name]} <= own
    assert run.config["model"]["max_source_length"] == 24
    assert (child["sampling"], child["dropout"], child["steps"], child["warmup_steps"]) == (0.3, 0.2, 40, 4)
    peak, ended = run.settings.learning_rate(4), float(InverseSquareRootDecay(16, 100, 0.5)(1199))
    assert peak == pytest.approx(ended, rel=0.01)
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith(f"fine-tuning {parent}: "))
    told = f"learning rate of {peak:.2g} (--learning-rate-factor {child['learning_rate_factor']:.3g})"
    assert f"40 steps with a warm-up of 4, up to a {told}; from that run" in line
    assert "dropout 0.2" in line and "sampling 0.3" in line and "hidden_dim" not in line and "seed" not in line
    with pytest.raises(RequestError, match="--init-from: that run has --hidden-dim 16; received: 32"):
        opened({**text, "init_from": str(parent), "hidden_dim": 32})


def test_the_learning_rate_of_fine_tuning_rises_to_where_the_other_run_ended():
    for steps, warmup in ((900, 200), (100, 200)):  # past its warm-up, and within it
        parent = Settings(hidden_dim=64, steps=steps, warmup_steps=warmup, learning_rate_factor=0.7)
        ended = parent.learning_rate(steps)
        assert ended == pytest.approx(float(InverseSquareRootDecay(64, warmup, 0.7)(steps - 1)))
        for wanted, fits in ((6, True), (200, False)):
            fitting = fitting_warm_up(Settings(hidden_dim=64, steps=60, warmup_steps=200), ended, fits)
            assert fitting["warmup_steps"] == wanted
            schedule = InverseSquareRootDecay(64, fitting["warmup_steps"], fitting["learning_rate_factor"])
            assert float(schedule(wanted - 1)) == pytest.approx(ended, rel=0.01)


def test_a_flag_and_a_recipe_win_over_what_is_inherited(parent, opened, text):
    given = {**text, "init_from": str(parent)}
    settings = opened(given, dropout=0.4, warmup_steps=3).settings
    assert (settings.dropout, settings.warmup_steps, settings.ema) == (0.4, 3, 0.9)
    assert settings.learning_rate_factor == pytest.approx(0.5 * (3 / 1200) ** 0.5, rel=0.01)
    assert opened(given, learning_rate_factor=0.25).settings.learning_rate_factor == 0.25
    assert opened(given, preset="base").settings.dropout == 0.1
    settings = opened(NUMBERS, init_from=str(parent)).settings
    assert (settings.dropout, settings.steps, settings.warmup_steps) == (0.05, 2400, 400)
    assert (settings.hidden_dim, settings.sampling) == (16, 0.3)
    assert opened(NUMBERS, init_from=str(parent), steps=60).settings.warmup_steps == 6


def test_a_parent_that_is_damaged_or_has_no_model_is_refused(parent, opened, text, tmp_path):
    damaged = Path(shutil.copytree(parent, tmp_path / "damaged", ignore=shutil.ignore_patterns("model.keras")))
    with pytest.raises(RequestError, match="expected a trained model; .*damaged has no model.keras yet"):
        opened({**text, "init_from": str(damaged)})
    config = json.loads((parent / "config.json").read_text())
    config["settings"]["dropout"] = "high"
    (damaged / "config.json").write_text(json.dumps(config))
    with pytest.raises(RequestError, match="config.json is damaged: no --dropout is 'high'"):
        opened({**text, "init_from": str(damaged)})


def test_a_run_of_version_0_1_can_be_fine_tuned(format_1, opened):
    text = {side: str(format_1 / f"corpus.{side}") for side in ("source", "target")}
    given = {"init_from": str(format_1 / "run"), **text}
    run = opened(given)
    assert (run.settings.residual, run.settings.positions, run.settings.ema) == ("pre_norm", "learned", 0.9)
    assert run.config["model"] == read_config(format_1 / "run")["model"]
    for mine, theirs in zip(compiled_model(run).get_weights(), load_model(format_1 / "run").get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for flag, value, held in (("positions", "sinusoidal", "learned"), ("residual", "post_norm", "pre_norm")):
        message = f"--init-from: that run has --{flag} {held}; received: {value}; leave --{flag} out"
        with pytest.raises(RequestError, match=message):
            opened({**given, flag: value})
    assert opened({**given, "positions": "learned:offset=0", "residual": "pre_norm"}), "another spelling"


def test_a_warm_up_that_exceeds_the_steps_is_warned_of(parent, opened, capsys):
    for given in ({**NUMBERS, "warmup_steps": 10}, {**NUMBERS, "warmup_steps": 10, "init_from": str(parent)}):
        settings = opened(given, steps=9).settings
        *_, told = capsys.readouterr().err.splitlines()
        assert told.startswith(
            "warning: the learning rate is still rising when the run ends: --warmup-steps is 10, --st"
        )
        ((warmup, factor),) = re.findall(r"--warmup-steps (\d+) --learning-rate-factor (\S+)$", told)
        advised = opened(given, steps=9, warmup_steps=int(warmup), learning_rate_factor=float(factor)).settings
        assert advised.learning_rate(int(warmup)) == pytest.approx(settings.learning_rate(10), rel=0.01)
        opened(given, steps=10)
        assert "warning" not in capsys.readouterr().err


def test_what_a_recipe_sets_over_a_preset_that_was_given_and_xla_without_static_shapes_is_said(opened, text, capsys):
    given = {**NUMBERS, "num_heads": 2}
    assert opened(given, preset="base").settings.num_layers == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--num-heads" not in said
    won = "numbers:en-de brings a recipe, which wins over --preset base: --num-layers 2, --hidden-dim 128"
    assert said.startswith(won)
    for preset in (None, "auto"):
        opened(given, preset=preset)
        assert capsys.readouterr().err == "", "auto leaves all to a whole recipe"
    warning = "warning: --xla compiles anew for every shape of a batch: give --static-shapes too"
    for shapes, count in ((None, 1), (8, 0)):
        opened({**text, "xla": True, "static_shapes": shapes, "steps": 2})
        assert capsys.readouterr().err.count(warning) == count


def test_what_auto_takes_is_said_with_the_pairs_that_it_counted(opened, tmp_path, capsys):
    """Those to train on: of the lines a twentieth is held out, of further pairs none."""
    text = write_corpus(tmp_path, 6_000)
    given: dict[str, Any] = dict(
        zip(("source", "target", "more_source", "more_target"), map(str, text * 2), strict=True)
    )
    run = opened(given, steps=7)
    assert run.settings.vocabulary_size == 4_000
    count = len([*run.corpus.train()]) + 6_000
    said = capsys.readouterr().err
    assert said.startswith(f"preset auto: {count:,} pairs → 4 layers of 128, vocabulary 4,000, 7 steps")
    assert "its choice from 5,000 pairs on; a flag wins" in said
    opened(given, valid_source=given["source"], valid_target=given["target"])
    assert "preset auto: 12,000 pairs" in capsys.readouterr().err


REFUSED = {
    "--positions absolute": f"--positions must be one of {POSITIONS}; received: 'absolute'",
    "--norm layer:epsilon=0": "--norm epsilon must be a number from 1e-12 to 1.0; received: 0.0",
    "--positions learned:depth=2": "--positions: 'learned' has the options offset, separate; received: depth",
    "--hidden-dim 9 --num-heads 3": "--key-dim must be even for rotary positions; received: 3",
    "--hidden-dim 12 --num-heads 5": "--num-heads must divide --hidden-dim, or --key-dim must be given; received: ",
    "--feed-forward experts:num_experts=2,top_k=3": "received: --feed-forward top_k 3, --feed-forward num_experts 2",
    "--attention full:num_key_value_heads=3": "--attention num_key_value_heads must divide --num-heads; received: ",
    "--hours 1 --steps 5": "--hours sets the number of steps; received --steps too: give one of them",
    "--hours 1 --resume": "--hours times the first steps of a new run with one worker; received --resume",
    "--devices tpu": "Received: 'tpu'",
    "--devices 9": "`devices` must name GPUs that are there",
    "--source a --target b --dataset numbers:en-de": "--source is your own text, and --dataset",
    "--source absent.en --target absent.de": "absent.en",
    "--resume --overwrite": "--resume continues a run and --overwrite removes it",
    "--resume --out nowhere": "there is no run in 'nowhere'",
    "--init-from nowhere": "expected a run folder",
    "--tokenizer nowhere.model": "no tokenizer at nowhere.model",
}


def test_a_wrong_request_is_told_in_flags_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for flags, message in REFUSED.items():
        assert train.main(flags.split()) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, flags
        assert not any(tmp_path.iterdir())
