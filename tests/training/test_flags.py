"""Every flag of train.py has an effect: a table of flags, what each changes, and who sees it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import train
from keras_transformer import family
from keras_transformer.models.presets import PRESETS
from keras_transformer.run_folder import read_tokenizers
from keras_transformer.text.batches import Place
from keras_transformer.text.normalization import normalizer_of
from keras_transformer.training import replicas, run
from keras_transformer.training.flags import parser
from keras_transformer.training.settings import Settings
from tests.graphs import is_compiled_by_xla
from tests.tiny_corpus import tiny_flags
from tests.training.runs import Begun, begun

pytest_plugins = ["tests.tiny_run"]

TESTS = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def begin(tmp_path_factory) -> Callable[..., Begun]:
    """`begin(*flags, with_model=False)` runs train.py on a tiny text, up to its first step."""
    folder, numbers = tmp_path_factory.mktemp("flags"), iter(range(999))

    def begin(*flags: object, with_model: bool = False) -> Begun:
        tiny = tiny_flags(folder, folder / f"run{next(numbers)}")
        return begun(folder, " ".join([*tiny, *map(str, flags)]), with_model)

    return begin


@pytest.fixture(scope="module")
def plain(begin) -> Begun:
    """What comes of no flag but those of the tiny text."""
    return begin(with_model=True)


# Text: flag, its value, what to look at, and what is there; without the flag something else is.


def batches(made: Begun, epoch: int = 0) -> list[Any]:
    return [made.data.plan.batch(Place(epoch, number)) for number in range(made.data.plan.num_batches(epoch))]


def sentences(made: Begun, epoch: int) -> list[tuple[int, ...]]:
    """The source sentences of an epoch as ids, in one order."""
    rows = (row for batch in batches(made, epoch) for row in batch.inputs["source_ids"])
    return sorted(tuple(id for id in row.tolist() if id) for row in rows)


def most_positions(made: Begun) -> int:
    return max(max(batch.labels.size, batch.inputs["source_ids"].size) for batch in batches(made))


def longest(made: Begun) -> int:
    return max(batch.inputs["source_ids"].shape[1] for batch in batches(made))


TEXT: dict[str, tuple[str, Callable[[Begun], Any], Any]] = {
    "vocabulary_size": ("30", lambda made: made.data.tokenizers.target.vocabulary_size, 30),
    "vocabulary_type": ("bpe", lambda made: made.data.tokenizers.source.model_type, "bpe"),
    "normalization": ("identity", lambda made: made.data.tokenizers.target.normalize("\u00a0"), "▁\u00a0"),
    "byte_fallback": ("--vocabulary-size 288", lambda made: made.data.tokenizers.source.has_bytes, True),
    "separate_vocabularies": (
        "", lambda made: made.data.tokenizers.source.model == made.data.tokenizers.target.model, False,
    ),
    "sampling": ("0.5", lambda made: sentences(made, 0) == sentences(made, 1), False),
    "max_length": ("4", lambda made: longest(made) <= 5, True),
    "clean": ("", lambda made: max(Counter(made.run.corpus.train()).values()), 1),
    "token_budget": ("64", lambda made: 32 < most_positions(made) <= 64, True),
    "accumulate": ("4", lambda made: {len(batch.labels) % 4 for batch in batches(made)}, {0}),
    "static_shapes": ("1", lambda made: len({batch.labels.shape for batch in batches(made)}), 1),
    "seed": ("9", lambda made: (made.data.plan.seed, made.run.settings.seed), (9, 9)),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXT)
def test_text(name, begin, plain):
    value, look, expected = TEXT[name]
    assert look(begin(flag_of(name), *value.split())) == expected
    assert look(plain) != expected


def test_source_and_target_may_be_normalized_apart(begin):
    """With one list of pieces, and in a folder that a run which is fine-tuned reads."""
    made = begin("--normalization", "nfkc,lossless")
    source, target = made.data.tokenizers
    assert source.pieces(range(32)) == target.pieces(range(32)) and made.run.folder.has_two_tokenizers
    assert (source.normalize("\uff42\uff41"), target.normalize("\u00a0")) == ("▁ba", "")
    assert normalizer_of("nfkc").normalize("½") == source.normalize("½") != target.normalize("½")
    read = read_tokenizers(made.run.folder, None, 32)
    assert [one.model for one in read] == [source.model, target.model]


def test_own_text_and_own_validation(begin, plain, tmp_path):
    source, target = tmp_path / "valid.source", tmp_path / "valid.target"
    source.write_text("ba do\nfi\n", encoding="utf-8")
    target.write_text("do ba\nfi\n", encoding="utf-8")
    made = begin("--valid-source", source, "--valid-target", target)
    assert list(made.run.corpus.valid()) == [("ba do", "do ba"), ("fi", "fi")]
    assert (made.run.folder.valid_source.read_text(), made.run.folder.valid_target.read_text()) == (
        "ba do\nfi\n",
        "do ba\nfi\n",
    )
    assert len(list(made.run.corpus.train())) == 240
    assert 10 <= len(plain.data.valid_sources) <= 12, "one line in twenty is held out"
    assert len(list(plain.run.corpus.train())) == 240 - len(plain.data.valid_sources)
    for one, other in plain.run.corpus.train():
        assert one.split() == other.split()[::-1]


def test_own_tokenizer(begin, plain, tokenizer, tmp_path):
    tokenizer.save(tmp_path / "own.model")
    made = begin("--tokenizer", tmp_path / "own.model")
    assert made.data.tokenizers.source.model == made.data.tokenizers.target.model == tokenizer.model
    assert made.run.folder.tokenizers(False)[0].read_bytes() == tokenizer.model
    assert made.run.config["model"]["vocabulary_size"] == tokenizer.vocabulary_size
    assert plain.data.tokenizers.source.model != tokenizer.model


def test_a_named_corpus_and_where_it_is(tmp_path, capsys):
    flags = ["--dataset", "multi30k:en-fr", "--data-dir", str(tmp_path), "--out", str(tmp_path / "run")]
    assert train.main(flags) == 2
    assert f"{tmp_path} holds neither train.en.gz nor train.en: check --data-dir" in capsys.readouterr().err


def test_a_preset_brings_its_sizes():
    for name, preset in PRESETS.items():
        opened = run.open_run({"preset": name, "source": __file__, "target": __file__, "out": "nowhere"})
        assert opened is not None
        assert {key: getattr(opened.settings, key) for key in preset} == preset


def test_the_run_is_where_out_says(begin, tmp_path):
    made = begin("--out", tmp_path / "here")
    assert made.run.folder.path == tmp_path / "here" and (tmp_path / "here" / "config.json").is_file()


def test_devices_and_threads_are_handed_on(begin, monkeypatch):
    """That threads are as many as asked is a case of `replicated.py`, in a process of its own."""
    configure, strategy = Mock(), Mock(return_value=replicas.strategy("cpu"))
    monkeypatch.setattr("tests.training.runs.configured", configure)
    monkeypatch.setattr(replicas, "strategy", strategy)
    begin("--devices", "cpu:3", "--threads", "5")
    configure.assert_called_once_with("cpu:3", 5)
    strategy.assert_called_once_with("cpu:3")


# The model: every argument reaches the configuration of which the model is made.

OTHER = family.Part("tests.toys:Nothing", "another", "a test")
MODEL: dict[str, tuple[str, Any]] = {
    "num_layers": ("3", 3),
    "encoder_layers": ("4", 4),
    "decoder_layers": ("5", 5),
    "hidden_dim": ("24", 24),
    "intermediate_dim": ("31", 31),
    "num_heads": ("4", 4),
    "key_dim": ("7", 7),
    "dropout": ("0.45", 0.45),
    "attention_dropout": ("0.15", 0.15),
    "max_source_length": ("77", 77),
    "positions": ("learned:offset=2", {"name": "learned", "offset": 2, "separate": False}),
    "attention": ("other", {"name": "other"}),
    "decoder_attention": ("other", {"name": "other"}),
    "score": ("other", {"name": "other"}),
    "residual": ("pre_norm", {"name": "pre_norm"}),
    "norm": ("layer:epsilon=0.001", {"name": "layer", "epsilon": 0.001}),
    "feed_forward": ("other", {"name": "other"}),
    "activation": ("other", {"name": "other"}),
    "stack": ("other", {"name": "other"}),
    "attention_bias": ("", True),
    "output_bias": ("", True),
    "tied_output": ("no", False),
    "embedding_scale": ("2.5", 2.5),
    "embedding_norm": ("", True),
}


@pytest.mark.parametrize("name", MODEL)
def test_an_argument_of_the_model(name, monkeypatch, tmp_path, plain):
    for slot in family.SLOTS:
        monkeypatch.setitem(family.SLOTS, slot, {**family.SLOTS[slot], "other": OTHER})
    value, expected = MODEL[name]
    flag = flag_of(name).replace("--", "--no-") if value == "no" else flag_of(name)
    flags = [*tiny_flags(tmp_path, tmp_path / "run"), flag, *([value] if value not in ("", "no") else [])]
    opened = run.open_run(vars(parser().parse_args(flags)))
    assert opened is not None and opened.config["model"][name] == expected
    assert plain.run.config["model"][name] != expected


def test_the_model_is_made_of_its_configuration(begin):
    flags = "--num-layers 2 --positions learned:offset=2 --residual pre_norm --output-bias --no-tied-output --key-dim 7"
    made = begin(*flags.split(), "--embedding-scale", "2.5", with_model=True)
    assert {"kind": "translator", **made.model.arguments()} == made.run.config["model"]
    assert made.model.count_params() == made.run.config["parameters"]


# Optimisation: all of these flags at once.

RATE = 3.0 * 16**-0.5 * 1 * 7**-1.5  # of the first step (paper, equation 3)
OPTIMISATION: dict[str, tuple[str, Callable[[Any], Any], Any]] = {
    "learning_rate_factor": ("3.0", lambda model: float(model.optimizer.learning_rate), pytest.approx(RATE)),
    "warmup_steps": ("7", lambda model: float(model.optimizer.learning_rate), pytest.approx(RATE)),
    "label_smoothing": ("0.3", lambda model: model.loss.label_smoothing, 0.3),
    "clip_norm": ("0.5", lambda model: model.optimizer.global_clipnorm, 0.5),
    "ema": ("0.7", lambda model: (model.optimizer.use_ema, model.optimizer.ema_momentum), (True, 0.7)),
    "accumulate": ("2", lambda model: model.micro_batches, 2),
    "r_drop": ("5", lambda model: model.r_drop, 5.0),
    "mixed_precision": ("bfloat16", lambda model: model.dtype_policy.name, "mixed_bfloat16"),
    "xla": ("", is_compiled_by_xla, True),
}


@pytest.fixture(scope="module")
def optimised(begin) -> Any:
    given = [[flag_of(name), *filter(None, [value])] for name, (value, *_) in OPTIMISATION.items()]
    return begin(*(word for words in given for word in words), with_model=True).model


@pytest.mark.parametrize("name", OPTIMISATION)
def test_optimisation(name, optimised, plain):
    _, look, expected = OPTIMISATION[name]
    assert look(optimised) == expected
    assert look(plain.model) != expected


def test_without_flags_training_is_the_papers(plain):
    config = plain.model.optimizer.get_config()
    assert (config["beta_1"], config["beta_2"], config["epsilon"]) == (0.9, 0.98, 1e-9)
    assert plain.model.loss.label_smoothing == 0.1
    assert config["global_clipnorm"] is None and not config["use_ema"]
    assert float(plain.model.optimizer.learning_rate) == pytest.approx(16**-0.5 * 10**-1.5)


def test_fine_tuning_begins_with_the_weights_of_that_run(begin, built_run, tiny_model):
    sizes = (
        f"--num-layers 2 --intermediate-dim 32 --max-source-length 40 --vocabulary-size {tiny_model.vocabulary_size}"
    )
    made = begin(*sizes.split(), "--init-from", built_run, with_model=True)
    for mine, theirs in zip(made.model.trainable_variables, tiny_model.trainable_variables, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


# What only a whole run shows: the test that sees it, and the flags.
PAIRS = "more_source more_target more_tag copies"
ELSEWHERE = {
    "mixed_runs::the_batches_hold_the_further_pairs_and_copies_of_the_corpus": PAIRS,
    "mixed_runs::both_directions_validate_with_the_tag_that_users_give": "both_directions",
    "language_modelling::a_run_has_what_a_run_has": "task text context_length",
    "language_modelling::own_validation_text": "valid_text",
    "next_item::a_run_measures_how_often_it_is_right": "log",
    "flags::fine_tuning_begins_with_the_weights_of_that_run": "init_from",
    "start_from_word_vectors::pieces_that_are_words_begin_with_the_vectors_and_others_as_without": "word_vectors",
    "flags::a_named_corpus_and_where_it_is": "dataset data_dir",
    "image_classification::a_run_says_what_it_is_and_how_well_it_does": "images image_size channels",
    "image_classification::where_a_pixel_looks": "patch_size",
    "image_classification::own_validation_images_and_settings_of_pixels": "valid_images pixel_mean pixel_std",
    "image_classification::settings_reach_the_model_and_the_batches": "stem random_shift",
    "flags::own_text_and_own_validation": "source target valid_source valid_target",
    "flags::own_tokenizer": "tokenizer",
    "flags::a_preset_brings_its_sizes": "preset",
    "flags::devices_and_threads_are_handed_on": "devices threads",
    "flags::the_run_is_where_out_says": "out",
    "timing::hours_set_the_steps_and_a_seed_still_fixes_the_run": "hours",
    "learning::a_run_has_checkpoints_where_it_was_told_and_ends": "steps checkpoint_every",
    "learning::overwrite_removes_the_run_that_was_there": "overwrite",
    "run::the_model_is_the_mean_of_the_last_checkpoints_that_end_a_round": "average_last",
    "run::a_run_folder_says_everything": "bleu_sentences",
    "run::a_run_that_stopped_early_and_was_killed_before_its_model_was_written_ends_at_once_with_it": "patience",
    "run::stopped_by_signals_and_resumed_ends_with_the_same_bits": "resume",
}


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def test_every_flag_is_seen():
    elsewhere = [name for names in ELSEWHERE.values() for name in names.split()]
    assert {*TEXT, *MODEL, *OPTIMISATION, *elsewhere} == {setting.name for setting in fields(Settings)}
    for test in ELSEWHERE:
        file, name = test.split("::")
        text = (TESTS / f"training/test_{file}.py").read_text(encoding="utf-8")
        assert re.search(rf"^def test_{name}\(", text, re.MULTILINE), test


def test_flags_are_told_by_help_and_spelled_out_and_version_0_1_s_are_known(capsys):
    assert all(action.help for action in parser()._actions)
    found = " ".join(parser().format_help().split())
    for name, setting in PRESETS["tiny"].items():
        others = ", ".join(f"{preset} {PRESETS[preset][name]}" for preset in ("modern", "base", "big"))
        assert f"(preset tiny {setting}, {others})" in found
    assert "from 5,000 pairs: --num-layers 4" in found
    assert "(default: 100000)" not in found
    assert "for comparison) (default: post_norm; preset modern pre_norm)" in found
    assert "numbers: --num-layers 2 --hidden-dim 128" in found and "multi30k: --num-layers 4" in found
    flags = set(re.findall(r"--[a-z][a-z-]*", parser().format_help()))
    assert not [flag for flag in flags if flag.endswith("-")], "no flag is broken at the end of a line"
    given = vars(parser().parse_args(["--normalize-first", "--learned-positions"]))
    assert (given["residual"], given["positions"]) == ("pre_norm", "learned")
    given = vars(parser().parse_args(["--no-normalize-first", "--no-learned-positions", "--no-xla"]))
    assert (given["residual"], given["positions"], given["xla"]) == ("post_norm", "sinusoidal", False)
    assert given["steps"] is None, "what was not given is None"
    with pytest.raises(SystemExit):
        parser().parse_args(["--num-lay", "2"])
    assert "unrecognized arguments: --num-lay" in capsys.readouterr().err
