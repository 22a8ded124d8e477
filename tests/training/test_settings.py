"""Which setting wins, which are refused, and what a run hands on: no file is read, nothing is trained."""

from dataclasses import replace
from typing import Any

import pytest

from keras_transformer.errors import RequestError
from keras_transformer.images import recipes
from keras_transformer.models.presets import AUTO_ROWS, PRESETS
from keras_transformer.text import corpora, labelled, logs, prose
from keras_transformer.training.fine_tuning import inherited_from
from keras_transformer.training.settings import Settings, check, resolve
from keras_transformer.training.stored_settings import resumed

RECIPE: dict[str, Any] = {"dropout": 0.05, "steps": 2400}


def test_flags_win_over_the_recipe_over_the_preset_over_the_defaults():
    settings = resolve({"preset": "big", "steps": 7, "seed": None}, RECIPE)
    assert (settings.steps, settings.dropout, settings.hidden_dim, settings.seed) == (7, 0.05, 1024, 1)
    assert resolve({"task": "language-model"}, {}).hidden_dim == PRESETS["tiny"]["hidden_dim"]


def test_every_recipe_is_one_that_a_run_may_have():
    of_tasks = {"translation": corpora, "language-model": prose, "classification": labelled, "next-item": logs}
    for task, module in {**of_tasks, "images": recipes}.items():
        for name, recipe in module.RECIPES.items():
            found = resolve({"task": task}, recipe).as_dict()
            assert {key: found[key] for key in recipe} == recipe, name


def test_auto_goes_by_the_number_of_pairs_and_flags_win():
    for num_pairs, least in ((1, 0), (4_999, 0), (5_000, 5_000), (19_999, 5_000), (10**7, 10**6)):
        row, settings = AUTO_ROWS[least], resolve({"dropout": 0.45}, {}, num_pairs=num_pairs)
        assert settings.preset == "auto"
        assert {name: getattr(settings, name) for name in row} == {**row, "dropout": 0.45}
        assert Settings(**settings.as_dict()) == settings, "what config.json keeps is whole"


def test_auto_completes_a_recipe_that_does_not_say_how_long_to_train_and_fine_tuning_where_it_is_asked_for():
    """The settings of the run that is fine-tuned are the recipe; of an imported model its sizes alone are known."""
    assert resolve({}, RECIPE, num_pairs=29_000) == replace(Settings(), **RECIPE)
    completed = resolve({}, {"vocabulary_size": 37}, num_pairs=29_000)
    assert completed == replace(Settings(), **{**AUTO_ROWS[20_000], "vocabulary_size": 37})
    assert resolve({}, {}, {"dropout": 0.45}).steps == PRESETS["tiny"]["steps"]
    assert resolve({"preset": "auto"}, {}, {"dropout": 0.45}, 29_000).steps == AUTO_ROWS[20_000]["steps"]
    assert resolve({}, {}, {"dropout": 0.45, "preset": "auto"}, 29_000).sampling == 0.0


def test_what_is_inherited_stands_over_a_preset_that_was_not_asked_for():
    """A run hands on how it learns, and not its text or machine."""
    inherited = {"dropout": 0.45, "label_smoothing": 0.2}
    for given, recipe, dropout in (
        ({}, {}, 0.45), ({"preset": "base"}, {}, 0.1), ({}, RECIPE, 0.05), ({"dropout": 0.4}, RECIPE, 0.4),
    ):  # fmt: skip
        assert resolve(given, recipe, inherited).dropout == dropout
    settings = Settings(dropout=0.4, ema=0.9, source="a", target="b", devices="cpu:2", threads=3, tokenizer="c")
    handed_on = inherited_from(settings.as_dict())
    assert (handed_on["dropout"], handed_on["ema"]) == (0.4, 0.9)
    assert not {"source", "target", "dataset", "devices", "threads", "tokenizer", "init_from"} & handed_on.keys()


def test_own_text_takes_the_place_of_the_named_corpus():
    own = {"source": "a", "target": "b"}
    assert (resolve(own, {}).dataset, resolve(own, {}).name, resolve({}, {}).name) == (None, "files", "numbers:en-de")
    assert str(resolve({}, {}).folder) == "runs/numbers-en-de-auto"
    assert str(resolve({**own, "preset": "base"}, {}).folder) == "runs/files-base"


def test_a_task_has_defaults_of_its_own():
    for task, name in {"language-model": "pydoc-topics", "next-item": "series", "images": "digits"}.items():
        settings = resolve({"task": task}, {})
        assert (settings.name, settings.label_smoothing, str(settings.folder)) == (name, 0, f"runs/{name}-tiny")
    assert (settings.positions, settings.residual) == ("learned", "pre_norm")
    assert resolve({"task": "images", "positions": "rotary"}, {}).positions == "rotary"
    assert resolve({"task": "next-item", "preset": "modern"}, {}).vocabulary_size == 4_000_000


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
    ({"hours": 1.0, "xla": True}, "--hours times the first steps, in which --xla compiles"),
    ({"patience": 1, "bleu_sentences": 0}, "--patience needs validation BLEU"),
    ({"init_from": "a", "normalization": "nfc"}, "--normalization is .* --init-from brings one"),
    ({"tokenizer": "a", "byte_fallback": True}, "--byte-fallback is .* --tokenizer brings one"),
    ({"task": "language-model", "normalization": "nfc"}, "--normalization needs --source: a language model of one"),
    ({"patch_size": 2}, "--patch-size belongs to --task images; received --task translation"),
    ({"task": "translation", "log": "a"}, "--log belongs to --task next-item; received --task translation"),
    ({"task": "masked-tokens", "normalization": "nfc,nfkc"}, "--normalization SOURCE,TARGET is for --task transl"),
    ({"task": "images", "preset": "auto"}, "--preset auto goes by pairs of translation; received --task images"),
]


def test_settings_that_exclude_each_other():
    """A normalization is for text that the run learns to cut, and auto for translation alone."""
    for given, message in EXCLUDED:
        with pytest.raises(RequestError, match=f"^{message}"):
            resolve(given, {})


def test_settings_tell_whose_normalization_it_is():
    pairs = {"source": "a", "target": "b"}
    assert resolve(pairs, {}).normalization == "lossless"
    assert resolve({**pairs, "normalization": "nfc,nfkc"}, {}).as_dict()["normalization"] == "nfc,nfkc"
    assert resolve({**pairs, "task": "language-model"}, {}).normalization == "lossless"
    keeps_its_own = ({"tokenizer": "a"}, {"task": "language-model"})
    assert [resolve(given, {}).normalization for given in keeps_its_own] == [None, None]
    older = {name: value for name, value in Settings().as_dict().items() if name != "normalization"}
    assert resumed(older, {}).normalization is None


def test_a_run_that_goes_on_may_have_more_steps_and_its_text_elsewhere_and_nothing_else():
    stored = Settings(steps=10).as_dict()
    assert resumed(stored, {"steps": 11}).steps == 11
    assert resumed(stored, {"steps": 10, "data_dir": "elsewhere"}).data_dir == "elsewhere"
    for given in ({"steps": 9}, {"seed": 2}, {"dropout": 0.25}, {"xla": True}, {"devices": "cpu"}):
        with pytest.raises(RequestError, match=r"^--resume: --\w+ was .* when the run began; received: "):
            resumed(stored, given)


def test_a_setting_that_a_version_before_did_not_know_has_its_default():
    stored = Settings().as_dict()
    older = {name: value for name, value in stored.items() if name not in ("norm", "tied_output", "encoder_layers")}
    assert resumed(older, {}) == resumed(stored, {}) == Settings()
    assert resumed({**stored, "average_last": 5}, {}).average_last == 5, "as a version before did without a flag"
    message = "version 9.1 of keras-transformer wrote the run, with a setting that this version does not know, depth: "
    with pytest.raises(RequestError, match=f"^--resume: {message}install that version$"):
        resumed({**stored, "depth": 3}, {}, "9.1")


def test_a_part_that_was_asked_for_may_be_spelled_again_in_another_way():
    assert resumed(Settings().as_dict(), {"positions": "sinusoidal:offset=0", "residual": "post_norm"}) == Settings()
    stored = Settings(positions="learned:offset=2").as_dict()
    message = "--resume: --positions was learned:offset=2 when the run began; received: learned; "
    with pytest.raises(RequestError, match=message):
        resumed(stored, {"positions": "learned"})


DAMAGED: list[tuple[str, Any]] = [
    ("steps", True), ("seed", None), ("source", 5), ("dropout", "0.1"), ("checkpoint_every", 2.5),
    ("mixed_precision", "float8"), ("residual", None), ("tied_output", 1), ("embedding_scale", "1"),
]  # fmt: skip


def test_a_setting_that_no_flag_gives_is_damage():
    stored = {**Settings().as_dict(), "dropout": 0}  # as JSON may spell 0.0
    assert resumed(stored, {}).dropout == 0
    for name, value in DAMAGED:
        with pytest.raises(RequestError, match=f"config.json is damaged: no --{name.replace('_', '-')} is "):
            resumed({**stored, name: value}, {"steps": 7})
