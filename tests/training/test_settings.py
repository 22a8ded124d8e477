"""Which settings win and are refused, what a run hands on and takes from one that it fine-tunes, what is told."""

import contextlib
import functools
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import train
from keras_transformer.core.errors import RequestError
from keras_transformer.core.task_registry import TASKS
from keras_transformer.runs.run_folder import RunConfig, read_config
from keras_transformer.schedules import InverseSquareRootDecay
from keras_transformer.spec import model_spec, options
from keras_transformer.spec.options import Config
from keras_transformer.spec.presets import AUTO_ROWS, PRESETS
from keras_transformer.tasks.classification import corpus as labelled
from keras_transformer.tasks.images import corpus
from keras_transformer.tasks.language_modelling import corpus as prose
from keras_transformer.tasks.next_item import corpus as logs
from keras_transformer.tasks.translation import training as translation
from keras_transformer.text import corpora
from keras_transformer.training import request
from keras_transformer.training.request import (
    as_given,
    check,
    fitting_warm_up,
    inherited_from,
    learning_rate,
    model_settings,
    open_run,
    resumed,
    wanted_settings,
)
from keras_transformer.training.task import Run
from tests.golden.stored import unpack
from tests.tiny_corpus import corpus_with, resolved, write_corpus

Settings: Any = TASKS["translation"].settings
NUMBERS = {"dataset": "numbers:en-de"}
load_corpus = functools.cache(corpora.load_corpus)  # the numbers are drawn once for all tests
RECIPE: dict[str, Any] = {"dropout": 0.05, "steps": 2400}


def test_flags_win_over_the_recipe_over_the_preset_over_the_defaults():
    settings = resolved({"preset": "big", "steps": 7, "seed": None}, RECIPE)
    assert (settings.steps, settings.dropout, settings.hidden_dim, settings.seed) == (7, 0.05, 1024, 1)
    assert resolved({"task": "language-model"}).hidden_dim == PRESETS["tiny"]["hidden_dim"]


CORPORA = {
    "translation": corpora, "language-model": prose, "masked-tokens": prose, "classification": labelled,
    "next-item": logs, "images": corpus,
}  # fmt: skip


def test_every_recipe_is_one_that_a_run_may_have():
    for task, module in CORPORA.items():
        for name, recipe in module.RECIPES.items():
            found = resolved({"task": task}, recipe).as_dict()
            assert {key: found[key] for key in recipe} == recipe, name


def spellings(slot: str) -> Iterator[str]:
    """Every part of a slot as flags spell it: with its defaults, and with each option at other values."""
    for name, part in model_spec.ALL_SLOTS[slot].items():
        yield name
        for key, option in part.options.items():
            values = [True, False] if option.kind is bool else [option.least, 3, 10, 64]
            yield from (f"{name}:{key}={value}" for value in values if option.least <= value <= option.most)


def fits(task: str, chosen: dict[str, Any], given: dict[str, str]) -> bool:
    """Whether a model has the parts that are given, if some of the parts that nobody gave have their defaults."""
    cls: Any = TASKS[task].settings
    usual = {name: cls.flags[name].default for name in model_settings(cls)}
    slots = {name: option.slot for name, option in model_spec.KINDS[cls.kind].arguments.items() if option.slot}
    free = [name for name in chosen if name in slots and name not in given]
    for count in range(len(free) + 1):
        for dropped in itertools.combinations(free, count):
            taken = {name: value for name, value in chosen.items() if name in usual and name not in dropped}
            arguments = usual | taken | given
            parts = {name: model_spec.parse(arguments[name], slots[name]) for name in slots if arguments.get(name)}
            with contextlib.suppress(options.Fault):
                return bool(model_spec.complete(arguments | parts, cls.kind))
    return False


@pytest.mark.parametrize("task", CORPORA)
def test_what_fits_the_recipe_is_accepted_and_nothing_else(task, capsys):
    """For each recipe and preset and each part with each option; a part that nobody asked for gives way."""
    cls = TASKS[task].settings
    below = {} if cls.preset == "auto" else PRESETS["tiny"]  # a recipe is whole
    sources: list[Any] = [
        ({}, recipe, 0, {**below, **cls.defaults, **recipe}) for recipe in CORPORA[task].RECIPES.values()
    ]
    sources += [({"preset": name}, {}, 0, {**preset, **cls.defaults}) for name, preset in PRESETS.items()]
    sources += [({}, {}, least, row) for least, row in AUTO_ROWS.items() if task == "translation"]
    accepted = {True: 0, False: 0}
    for preset, recipe, num_pairs, chosen in sources:
        for argument, option in model_spec.KINDS[cls.kind].arguments.items():
            for text in spellings(option.slot) if option.slot and argument in cls.flags else ():
                try:
                    found = resolved({"task": task, **preset, argument: text}, recipe, num_pairs=num_pairs)
                    is_accepted = getattr(found, argument).partition(":")[0] == text.partition(":")[0]
                except RequestError:
                    is_accepted = False
                assert is_accepted == fits(task, chosen, {argument: text}), (recipe or preset, argument, text)
                accepted[is_accepted] += 1
    assert min(accepted.values()) > 10
    assert ("gives way" in capsys.readouterr().err) == (task != "images"), "whose defaults win over the presets"


GIVES_WAY: list[tuple[dict[str, Any], Config, str, str]] = [
    ({"attention": "compressed"}, {}, "positions", "--positions rotary gives way to sinusoidal: --positions must be "),
    ({"hidden_dim": 36}, {}, "positions", "--positions rotary gives way to sinusoidal: --key-dim must be even for "),
    ({"task": "images", "image_size": 128}, corpus.DIGITS_RECIPE, "stem", "--stem attentive:filters=32 gives way to "),
]


def test_a_part_that_nobody_asked_for_gives_way_and_is_told(capsys):
    for given, recipe, name, message in GIVES_WAY:
        settings = resolved(given, recipe, num_pairs=29_000)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(message) and getattr(settings, name) == settings.flags[name].default
        with pytest.raises(RequestError):
            wanted: Any = wanted_settings(as_given(given, type(settings)), corpus_with(recipe, 29_000))
            resolved({**given, name: getattr(wanted, name)}, recipe)
        assert not capsys.readouterr().err, "two flags that contradict each other are refused"
    modern = resolved({"preset": "modern"})
    parent = RunConfig(model_of(modern), modern.as_dict())
    with pytest.raises(RequestError, match="^--init-from: that run has --attention full; received: compressed"):
        resolved({"attention": "compressed"}, parent=parent)


def test_auto_goes_by_the_number_of_pairs_and_flags_win():
    for num_pairs, least in ((1, 0), (4_999, 0), (5_000, 5_000), (19_999, 5_000), (10**7, 10**6)):
        row, settings = AUTO_ROWS[least], resolved({"dropout": 0.45}, {}, num_pairs=num_pairs)
        assert settings.preset == "auto"
        assert {name: getattr(settings, name) for name in row} == {**row, "dropout": 0.45}
        assert Settings(**settings.as_dict()) == settings, "what config.json keeps is whole"


def test_auto_completes_a_recipe_that_does_not_say_how_long_to_train_and_fine_tuning_where_it_is_asked_for():
    """The settings of the run that is fine-tuned are the recipe; of an imported model its sizes alone are known."""
    assert resolved({}, RECIPE, num_pairs=29_000) == replace(Settings(), **RECIPE)
    completed = resolved({}, {"vocabulary_size": 37}, num_pairs=29_000)
    assert completed == replace(Settings(), **{**AUTO_ROWS[20_000], "vocabulary_size": 37})
    own, corpus = {"dropout": 0.45}, corpus_with({}, 29_000)
    for given, inherited, name, value in (
        ({}, own, "steps", PRESETS["tiny"]["steps"]), ({"preset": "auto"}, own, "steps", AUTO_ROWS[20_000]["steps"]),
        ({}, {**own, "preset": "auto"}, "sampling", 0.0),
    ):  # fmt: skip
        found = wanted_settings(as_given(given, Settings), corpus, inherited)
        assert getattr(found, name) == value


def model_of(settings: Any) -> Config:
    """The model in the configuration of a run with these settings."""
    own = {"kind": settings.kind, "vocabulary_size": 37}
    return {name: getattr(settings, name) for name in model_settings(type(settings))} | own


def test_an_imported_model_is_fine_tuned_for_a_part_of_the_steps_that_as_many_pairs_take_unless_a_flag_wins():
    parent = RunConfig(model_of(resolved({})), {})
    for num_pairs, row in ((7_980, 5_000), (10**7, 10**6)):
        found = resolved({}, {}, num_pairs, parent)
        assert found.steps == AUTO_ROWS[row]["steps"] // 4 and found.steps >= 2 * found.checkpoint_every
        assert found.warmup_steps == found.steps // 10
        given = resolved({"steps": 70, "checkpoint_every": 35}, {}, num_pairs, parent)
        assert (given.steps, given.checkpoint_every, given.warmup_steps) == (70, 35, 7)
    trained = resolved({}, {}, 7_980, replace(parent, settings=resolved({"steps": 1_234}).as_dict()))
    assert trained.steps == 1_234, "a run that was trained here hands on its steps"


def test_a_run_hands_on_how_it_learns_and_not_its_text_or_machine():
    settings = Settings(dropout=0.4, ema=0.9, source="a", target="b", devices="cpu:2", threads=3, tokenizer="c")
    handed_on = inherited_from(settings.as_dict())
    assert (handed_on["dropout"], handed_on["ema"]) == (0.4, 0.9)
    assert not {"source", "target", "dataset", "devices", "threads", "tokenizer", "init_from"} & handed_on.keys()


def test_a_run_has_the_task_of_the_run_that_it_fine_tunes_unless_a_flag_names_another(monkeypatch, tmp_path):
    """The corpus is looked for with these settings; nothing else is resolved before."""

    class Looked(Exception):
        """The corpus is asked for."""

    def look(settings: Any) -> None:
        raise Looked(settings.task)

    trained = RunConfig({"kind": "encoder"}, resolved({"task": "masked-tokens", "text": "a"}).as_dict())
    imported = RunConfig({"kind": "language-model"}, {})
    monkeypatch.setattr(request, "_corpus", look)
    for parent, given, task in (
        (trained, {}, "masked-tokens"), (trained, {"task": "classification"}, "classification"),
        (imported, {}, "language-model"), (None, {}, "translation"),
    ):  # fmt: skip
        monkeypatch.setattr(request, "read_config", lambda _, parent=parent: parent)
        with pytest.raises(Looked, match=f"^{task}$"):
            open_run({**given, "init_from": str(tmp_path) if parent else None, "out": str(tmp_path / "new")})


def test_a_task_has_a_named_corpus_whose_place_own_text_takes_and_defaults_of_its_own():
    own = resolved({"source": "a", "target": "b", "preset": "base"})
    assert (own.dataset, own.name, str(own.folder)) == (None, "files", "runs/files-base")
    assert (resolved({}).name, str(resolved({}).folder)) == ("numbers:en-de", "runs/numbers-en-de-auto")
    for task, name in {"language-model": "pydoc-topics", "next-item": "series", "images": "digits"}.items():
        settings = resolved({"task": task})
        assert (settings.name, settings.label_smoothing, str(settings.folder)) == (name, 0, f"runs/{name}-tiny")
    assert (settings.positions, settings.residual) == ("learned", "pre_norm")
    assert resolved({"task": "images", "positions": "rotary"}).positions == "rotary"
    assert resolved({"task": "next-item", "preset": "modern"}).vocabulary_size == 4_000_000


BOUNDS: list[tuple[str, Any, Any]] = [
    *((name, 1, 0) for name in ("steps", "token_budget", "accumulate", "warmup_steps", "average_last", "max_length")),
    *((name, 0, -1) for name in ("patience", "bleu_sentences", "threads", "static_shapes")),
    *((name, 1e-9, 0.0) for name in ("clip_norm", "learning_rate_factor", "hours")),
    ("checkpoint_every", 1, 0), ("vocabulary_size", 5, 0), ("seed", 0, -1), ("seed", 2**32 - 1, 2**32),
    ("sampling", 0.0, -0.1), ("label_smoothing", 0.99, 1.0), ("ema", 0.0, 1.0), ("clip_norm", 1e9, float("inf")),
]  # fmt: skip


def test_bounds():
    for name, least, below in BOUNDS:
        check(replace(Settings(), **{name: least}))
        with pytest.raises(RequestError, match=f"^--{name.replace('_', '-')} must be .*; received: {below}$"):
            check(replace(Settings(), **{name: below}))


EXCLUDED: list[tuple[dict[str, Any], str]] = [
    ({"source": "a"}, "--source and --target go together; received only one of them"),
    ({"valid_source": "a", "valid_target": "b"}, "--valid-source and --valid-target need --source and --target"),
    ({"tokenizer": "a", "separate_vocabularies": True}, "--tokenizer goes neither with --separate-vocabularies"),
    ({"hours": 1.0, "xla": True, "static_shapes": 0}, "--hours times the first steps, in which --xla compiles"),
    ({"patience": 1, "bleu_sentences": 0}, "--patience needs validation BLEU"),
    ({"init_from": "a", "normalization": "nfc"}, "--normalization is .* --init-from brings one"),
    ({"task": "language-model", "normalization": "nfc"}, "--normalization needs --source: a language model of one"),
    ({"patch_size": 2}, "--patch-size belongs to --task images; received --task translation"),
    ({"task": "translation", "log": "a"}, "--log belongs to --task next-item; received --task translation"),
    ({"task": "masked-tokens", "normalization": "nfc,nfkc"}, "--normalization SOURCE,TARGET is for text in two lang"),
    ({"task": "images", "preset": "auto"}, "--preset must be one of tiny, modern, base, big; received: auto"),
]


def test_settings_that_exclude_each_other():
    """A normalization is for text that the run learns to cut, and auto for translation alone."""
    for given, message in EXCLUDED:
        with pytest.raises(RequestError, match=f"^{message}"):
            resolved(given)


def go_on(stored: Config, flags: Config, version: str = "0", **model: Any) -> Any:
    """The settings of a run that goes on, by those that its config.json keeps."""
    config = RunConfig({"kind": "translator", **model}, stored, versions={"keras-transformer": version})
    return resumed(config, flags)


def test_settings_tell_whose_normalization_it_is():
    pairs = {"source": "a", "target": "b"}
    assert resolved(pairs).normalization == "lossless"
    assert resolved({**pairs, "normalization": "nfc,nfkc"}).as_dict()["normalization"] == "nfc,nfkc"
    assert resolved({**pairs, "task": "language-model"}).normalization == "lossless"
    keeps_its_own = ({"tokenizer": "a"}, {"task": "language-model"})
    assert [resolved(given).normalization for given in keeps_its_own] == [None, None]
    older = {name: value for name, value in Settings().as_dict().items() if name != "normalization"}
    assert go_on(older, {}).normalization is None


def test_a_run_that_goes_on_may_have_more_steps_and_run_elsewhere_and_nothing_else():
    stored = Settings(steps=10).as_dict()
    assert go_on(stored, {"steps": 11}).steps == 11
    elsewhere = {"data_dir": "elsewhere", "devices": "cpu:2", "threads": 3}
    assert go_on(stored, {"steps": 10, **elsewhere}) == Settings(steps=10, **elsewhere)
    for given in ({"steps": 9}, {"seed": 2}, {"accumulate": 2}, {"dropout": 0.25}, {"xla": True}):
        with pytest.raises(RequestError, match=r"^--resume: --\w+ was .* when the run began; received: "):
            go_on(stored, given)


def test_a_setting_that_a_version_before_did_not_know_has_its_default():
    stored = Settings().as_dict()
    older = {name: value for name, value in stored.items() if name not in ("norm", "tied_output", "encoder_layers")}
    assert go_on(older, {}) == go_on(stored, {}) == Settings()
    assert go_on({**stored, "average_last": 5}, {}).average_last == 5, "as a version before did without a flag"
    message = "version 9.1 of keras-transformer wrote the run, with a setting that this version does not know, depth: "
    with pytest.raises(RequestError, match=f"^--resume: {message}install that version$"):
        go_on({**stored, "depth": 3}, {}, "9.1")


def test_the_model_tells_its_own_settings():
    """The schedule goes by the width of the model, also in a run of format 2, whose settings tell it once more."""
    stored = Settings(hidden_dim=64, vocabulary_size=9).as_dict()
    norm = {"name": "rms", "epsilon": 1e-5}
    for settings in (stored, {"vocabulary_size": 9}):
        found = go_on(settings, {}, hidden_dim=32, vocabulary_size=7, norm=norm)
        assert (found.hidden_dim, found.vocabulary_size, found.norm) == (32, 9, "rms:epsilon=1e-05")
    with pytest.raises(RequestError, match="^--resume: --hidden-dim was 32 when the run began; received: 64; "):
        go_on({"steps": 9}, {"hidden_dim": 64}, hidden_dim=32)


DAMAGED: list[tuple[str, Any]] = [
    ("steps", True), ("seed", None), ("source", 5), ("dropout", "0.1"), ("checkpoint_every", 2.5),
    ("mixed_precision", "float8"), ("residual", None), ("tied_output", 1), ("embedding_scale", "1"),
]  # fmt: skip


def test_a_setting_that_no_flag_gives_is_damage():
    stored = {**Settings().as_dict(), "dropout": 0}  # as JSON may spell 0.0
    assert go_on(stored, {}).dropout == 0
    for name, value in DAMAGED:
        with pytest.raises(RequestError, match=f"config.json is damaged: no --{name.replace('_', '-')} is "):
            go_on({**stored, name: value}, {"steps": 7})


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> Path:
    """A run with other settings than the defaults."""
    run = unpack("translation", tmp_path_factory.mktemp("parent") / "parent")
    config = json.loads((run / "config.json").read_text())
    config["settings"] |= {"dropout": 0.2, "sampling": 0.3, "ema": 0.9}
    config["model"]["dropout"] = 0.2
    (run / "config.json").write_text(json.dumps(config))
    return run


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """`opened(given)` → a run that is not finished, in a folder of its own."""
    monkeypatch.setattr(translation, "load_corpus", load_corpus)

    def opened(given: dict[str, Any], **more: Any) -> Run:
        run = open_run({"out": str(tmp_path / "run"), **given, **more})
        assert run is not None
        return run

    return opened


def test_fine_tuning_inherits_the_settings_of_the_run_that_it_begins_with(parent, opened, text, capsys):
    run = opened({**text, "init_from": str(parent), "steps": 40})
    before, child = read_config(parent).settings, run.settings.as_dict()
    own = {"steps", "init_from", "source", "target", "valid_source", "valid_target", "warmup_steps", "normalization"}
    own |= {"learning_rate_factor", "devices", "average_last"}
    assert {name for name in before if before[name] != child[name]} <= own
    assert run.config.model["max_source_length"] == 24
    assert (child["sampling"], child["dropout"], child["steps"], child["warmup_steps"]) == (0.3, 0.2, 40, 4)
    peak, ended = learning_rate(run.settings, 4), float(InverseSquareRootDecay(16, 100, 0.5)(1199))
    assert peak == pytest.approx(ended, rel=0.01)
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith(f"fine-tuning {parent}: "))
    assert f"40 steps with a warm-up of 4, up to a learning rate of {peak:.2g} (--learning-rate-factor" in line
    assert "dropout 0.2" in line and "hidden_dim" not in line
    with pytest.raises(RequestError, match="--init-from: that run has --hidden-dim 16; received: 32"):
        opened({**text, "init_from": str(parent), "hidden_dim": 32})
    for task in ("language-model", "classification"):
        with pytest.raises(RequestError, match=f"--init-from: that run holds a translator; received --task {task}"):
            opened({"task": task, "init_from": str(parent)})


def test_the_learning_rate_of_fine_tuning_rises_to_where_the_other_run_ended():
    for steps in (900, 100):  # past its warm-up, and within it
        ended = learning_rate(Settings(hidden_dim=64, steps=steps, warmup_steps=200, learning_rate_factor=0.7), steps)
        assert ended == pytest.approx(float(InverseSquareRootDecay(64, 200, 0.7)(steps - 1)))
        for wanted, fits in ((5, True), (200, False)):
            fitting = fitting_warm_up(Settings(hidden_dim=64, steps=59, warmup_steps=200), ended, fits)
            assert fitting.warmup_steps == wanted
            schedule = InverseSquareRootDecay(64, wanted, fitting.learning_rate_factor)
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
    config = (parent / "config.json").read_text()
    (damaged / "config.json").write_text(config.replace('"sampling": 0.3', '"sampling": "high"'))
    with pytest.raises(RequestError, match="config.json is damaged: no --sampling is 'high'"):
        opened({**text, "init_from": str(damaged)})


def test_a_warm_up_that_exceeds_the_steps_is_warned_of(parent, opened, capsys):
    warning = "warning: the learning rate is still rising when the run ends: --warmup-steps is 10, --st"
    for given in ({**NUMBERS, "warmup_steps": 10}, {**NUMBERS, "warmup_steps": 10, "init_from": str(parent)}):
        settings = opened(given, steps=9).settings
        *_, told = capsys.readouterr().err.splitlines()
        assert told.startswith(warning)
        ((warmup, factor),) = re.findall(r"--warmup-steps (\d+) --learning-rate-factor (\S+)$", told)
        advised = opened(given, steps=9, warmup_steps=int(warmup), learning_rate_factor=float(factor)).settings
        assert learning_rate(advised, int(warmup)) == pytest.approx(learning_rate(settings, 10), rel=0.01)
        opened(given, steps=10)
        assert "warning" not in capsys.readouterr().err


def test_what_a_recipe_sets_over_a_preset_that_was_given_and_xla_without_static_shapes_is_said(opened, text, capsys):
    given = {**NUMBERS, "num_heads": 2}
    assert opened(given, preset="base").settings.num_layers == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--num-heads" not in said
    assert said.startswith("numbers:en-de brings a recipe, which wins over --preset base: --num-layers 2, --hidden-dim")
    opened(given, preset="auto")
    assert capsys.readouterr().err == "", "auto leaves all to a whole recipe"
    for shapes, warns in ((0, True), (None, False), (8, False)):
        opened({**text, "xla": True, "static_shapes": shapes, "steps": 2})
        assert ("give --static-shapes too" in capsys.readouterr().err) == warns


def test_flags_that_fit_the_recipe_alone_are_accepted(opened):
    """Without the recipe an image has 224 pixels a side, and a history 256 items."""
    for preset in ({}, {"preset": "tiny"}):
        images = opened({"task": "images", "stem": "attentive:filters=8", **preset})
        assert images.config.model["stem"]["filters"] == 8
        items = opened({"task": "next-item", "positions": "xpos:scale_base=10", **preset})
        assert items.config.model["positions"]["scale_base"] == 10


def test_what_auto_takes_is_said_with_the_pairs_that_it_counted(opened, tmp_path, capsys):
    """Those to train on: of the lines a twentieth is held out, of further pairs none."""
    source, target = map(str, write_corpus(tmp_path, 6_000))
    given = {"source": source, "target": target, "more_source": source, "more_target": target}
    run = opened(given, steps=7)
    assert run.settings.vocabulary_size == 4_000
    count = len([*run.corpus.train()]) + 6_000
    said = capsys.readouterr().err
    assert said.startswith(f"preset auto: {count:,} pairs → 4 layers of 128, vocabulary 4,000, 7 steps")
    opened(given, valid_source=source, valid_target=target)
    assert "preset auto: 12,000 pairs" in capsys.readouterr().err


REFUSED = {
    "--positions absolute": "--positions must be one of sinusoidal, ",
    "--positions learned:depth=2": "--positions: 'learned' has the options offset, separate; received: depth",
    "--hidden-dim 12 --num-heads 5": "--num-heads must divide --hidden-dim, or --key-dim must be given; received: ",
    "--feed-forward experts:num_experts=2,top_k=3": "received: --feed-forward top_k 3, --feed-forward num_experts 2",
    "--hours 1 --steps 5": "--hours sets the number of steps; received --steps too: give one of them",
    "--hours 1 --resume": "--hours times the first steps of a new run with one worker; received --resume",
    "--devices tpu": "received: 'tpu'",
    "--devices 9": "`devices` must name GPUs that are there",
    "--source a --target b --dataset numbers:en-de": "--source is your own text, and --dataset",
    "--dataset multi30k:en-fr --data-dir .": " . holds neither train.en.gz nor train.en: check --data-dir",
    "--resume --overwrite": "--resume continues a run and --overwrite removes it",
}


def test_a_wrong_request_is_told_in_flags_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for flags, message in REFUSED.items():
        assert train.main(flags.split()) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, flags
        assert not any(tmp_path.iterdir())


def test_xla_is_for_long_runs_of_few_shapes_on_a_gpu():
    long, short = {"steps": request.LEAST_STEPS_FOR_XLA}, {"steps": request.LEAST_STEPS_FOR_XLA - 1}
    decided: dict[str, tuple[dict[str, Any], bool, tuple[bool, int]]] = {
        "long": (long, True, (True, request.USUAL_SHAPES)),
        "long, on a processor": (long, False, (False, 0)),
        "short": (short, True, (False, 0)),
        "of hours": ({**short, "hours": 1.0}, True, (True, request.USUAL_SHAPES)),
        "of free widths": ({**long, "static_shapes": 0}, True, (False, 0)),
        "of shapes that are given": ({**long, "static_shapes": 3}, True, (True, 3)),
        "without": ({**long, "xla": False}, True, (False, 0)),
        "with": ({**short, "xla": True}, False, (True, request.USUAL_SHAPES)),
    }
    for name, (given, on_gpu, expected) in decided.items():
        settings: Any = request.with_xla_decided(replace(Settings(), **given), on_gpu)
        assert (settings.xla, settings.static_shapes) == expected, name
    for task, has_few in {"images": True, "language-model": True, "masked-tokens": False}.items():
        settings = request.with_xla_decided(TASKS[task].settings(**long), True)
        assert settings.xla is has_few, task
    pairs = TASKS["language-model"].settings(**long, source="a", target="b")
    assert request.with_xla_decided(pairs, True).xla is False, "pairs have many lengths"
