"""Flags of train.py have effects: tables of flags, and what each changes. Those of one task are in its file."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import train
from keras_transformer.__main__ import main
from keras_transformer.core.errors import RequestError
from keras_transformer.runs.run_folder import read_tokenizers
from keras_transformer.spec import options, part_registry
from keras_transformer.spec.options import flag_of
from keras_transformer.spec.presets import PRESETS, SIZES
from keras_transformer.text.feeding import Place
from keras_transformer.text.normalization import normalizer_of
from keras_transformer.training import devices, request
from keras_transformer.training.flags import parser
from tests.graphs import is_compiled_by_xla
from tests.processes import ROOT
from tests.tiny_corpus import tiny_flags
from tests.training.runs import Begun, begun


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


def most(made: Begun, size: Callable[[Any], int]) -> int:
    return max(size(array) for batch in batches(made) for array in (batch.labels, batch.inputs["source_ids"]))


TEXT: dict[str, tuple[str, Callable[[Begun], Any], Any]] = {
    "vocabulary_size": ("30", lambda made: made.data.tokenizers.target.vocabulary_size, 30),
    "vocabulary_type": ("bpe", lambda made: made.data.tokenizers.source.model_type, "bpe"),
    "normalization": ("identity", lambda made: made.data.tokenizers.target.normalize("\u00a0"), "▁\u00a0"),
    "byte_fallback": ("--vocabulary-size 288", lambda made: made.data.tokenizers.source.has_bytes, True),
    "separate_vocabularies": (
        "", lambda made: made.data.tokenizers.source.model == made.data.tokenizers.target.model, False,
    ),
    "sampling": ("0.5", lambda made: sentences(made, 0) == sentences(made, 1), False),
    "max_length": ("4", lambda made: most(made, lambda array: array.shape[1]) <= 5, True),
    "clean": ("", lambda made: max(Counter(made.run.corpus.train()).values()), 1),
    "token_budget": ("64", lambda made: 32 < most(made, lambda array: array.size) <= 64, True),
    "accumulate": ("4", lambda made: {len(batch.labels) % 4 for batch in batches(made)}, {0}),
    "static_shapes": ("1", lambda made: len({batch.labels.shape for batch in batches(made)}), 1),
    "seed": ("9", lambda made: (made.data.plan.seed, made.run.settings.seed), (9, 9)),
}  # fmt: skip
TOGETHER = [
    "vocabulary_size separate_vocabularies accumulate seed",
    "vocabulary_type normalization max_length token_budget",
    "byte_fallback clean static_shapes sampling",
]


@pytest.mark.parametrize("names", TOGETHER)
def test_text(names, begin, plain):
    made = begin(*(word for name in names.split() for word in (flag_of(name), *TEXT[name][0].split())))
    for name in names.split():
        _, look, expected = TEXT[name]
        assert look(made) == expected != look(plain), name


def test_source_and_target_may_be_normalized_apart(begin):
    """With one list of pieces, and in a folder that a run which is fine-tuned reads."""
    made = begin("--normalization", "nfkc,lossless")
    source, target = made.data.tokenizers
    assert source.pieces(range(32)) == target.pieces(range(32)) and made.run.folder.has_two_tokenizers
    assert (source.normalize("\uff42\uff41"), target.normalize("\u00a0")) == ("▁ba", "")
    assert normalizer_of("nfkc").normalize("½") == source.normalize("½") != target.normalize("½")
    assert [one.model for one in read_tokenizers(made.run.folder, None, 32)] == [source.model, target.model]


def test_own_text_own_validation_and_own_tokenizer(begin, plain, tokenizer, tmp_path):
    pairs = [("ba do", "do ba"), ("fi", "fi")]
    files = [tmp_path / f"valid.{side}" for side in ("source", "target")]
    for file, lines in zip(files, zip(*pairs, strict=True), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    tokenizer.save(tmp_path / "own.model")
    out, own = tmp_path / "here", tmp_path / "own.model"
    made = begin("--valid-source", files[0], "--valid-target", files[1], "--tokenizer", own, "--out", out)
    assert (out / "config.json").is_file()
    assert list(made.run.corpus.valid()) == pairs and len(list(made.run.corpus.train())) == 240
    kept = made.run.folder.valid_source, made.run.folder.valid_target
    assert [path.read_text() for path in kept] == [file.read_text() for file in files]
    assert made.data.tokenizers.source.model == made.data.tokenizers.target.model == tokenizer.model
    assert made.run.config.model["vocabulary_size"] == tokenizer.vocabulary_size
    assert all(one.split() == other.split()[::-1] for one, other in plain.run.corpus.train())


def test_devices_and_threads_are_handed_on(begin, monkeypatch):
    """That threads are as many as asked is a case of `replicated.py`, in a process of its own."""
    configure, strategy = Mock(), Mock(return_value=devices.strategy("cpu"))
    monkeypatch.setattr("tests.training.runs.configured", configure)
    monkeypatch.setattr(devices, "strategy", strategy)
    begin("--devices", "cpu:3", "--threads", "5")
    configure.assert_called_once_with("cpu:3", 5)
    strategy.assert_called_once_with("cpu:3")


# The model: every argument reaches the configuration of which the model is made.

OTHER = options.Part("tests.toys:Nothing", "another", "a test")
OTHERS = {"name": "other"}
MODEL: dict[str, tuple[str, Any]] = {
    "num_layers": ("3", 3), "encoder_layers": ("4", 4), "decoder_layers": ("5", 5), "hidden_dim": ("24", 24),
    "intermediate_dim": ("31", 31), "num_heads": ("4", 4), "key_dim": ("7", 7), "dropout": ("0.45", 0.45),
    "attention_dropout": ("0.15", 0.15), "max_source_length": ("77", 77),
    "positions": ("learned:offset=2", {"name": "learned", "offset": 2, "separate": False}),
    **dict.fromkeys(("attention", "decoder_attention", "score", "feed_forward"), ("other", OTHERS)),
    "activation": ("other", OTHERS), "stack": ("other", OTHERS),
    "residual": ("pre_norm", {"name": "pre_norm"}),
    "norm": ("layer:epsilon=0.001", {"name": "layer", "epsilon": 0.001}),
    "attention_bias": ("", True), "output_bias": ("", True), "tied_output": ("no", False),
    "embedding_scale": ("2.5", 2.5), "embedding_norm": ("", True),
}  # fmt: skip


def test_every_argument_of_the_model_reaches_its_configuration(monkeypatch, tmp_path, plain):
    for slot in part_registry.SLOTS:
        monkeypatch.setitem(part_registry.SLOTS, slot, {**part_registry.SLOTS[slot], "other": OTHER})
    for name, (value, expected) in MODEL.items():
        flag = flag_of(name).replace("--", "--no-") if value == "no" else flag_of(name)
        flags = [*tiny_flags(tmp_path, tmp_path / "run"), flag, *([value] if value not in ("", "no") else [])]
        opened = request.open_run(vars(parser().parse_args(flags)))
        assert opened is not None and opened.config.model[name] == expected != plain.run.config.model[name]


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


def test_optimisation(begin, plain, built_run, tiny_model):
    """And fine-tuning begins with the weights of that run."""
    given = [word for name, (value, *_) in OPTIMISATION.items() for word in (flag_of(name), value) if word]
    sizes = "--num-layers 2 --intermediate-dim 32 --max-source-length 40 --vocabulary-size"
    words = [*given, *sizes.split(), tiny_model.vocabulary_size, "--init-from", built_run]
    optimised = begin(*words, with_model=True).model
    for name, (_, look, expected) in OPTIMISATION.items():
        assert look(optimised) == expected != look(plain.model), name
    for mine, theirs in zip(optimised.trainable_variables, tiny_model.trainable_variables, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def test_flags_are_told_by_help_and_spelled_out():
    for task, others in {"translation": "images", "images": "translation", "next-item": "classification"}.items():
        found = " ".join(parser(task).format_help().split())
        assert "Other tasks: " in found and others in found and "(preset)" in found
        assert all(action.help for action in parser().of_task(task)._actions)
    given = vars(parser().parse_args(["--no-xla"]))
    assert (given["residual"], given["steps"], given["xla"]) == (None, None, False)


UNKNOWN = {
    "--batch-size 32": "there is no flag --batch-size; did you mean --token-budget?",
    "--epochs=3": "there is no flag --epochs; did you mean --steps?",
    "--zzz": "there is no flag --zzz",
    "--no-dropout": "there is no flag --no-dropout; did you mean --dropout?",
    "--no-image-size": "there is no flag --no-image-size",
    "images --source a": "--source belongs to --task translation or language-model; received --task images",
    "--task next-item --no-clean": "--no-clean belongs to --task translation or language-model; received --task next",
    "classification stray": "unrecognized arguments: stray",
    "--task translate": "argument --task: invalid choice: 'translate' (choose from",
}


@pytest.mark.parametrize("command", [train.main, lambda words: main(["train", *words])], ids=["train.py", "train"])
def test_a_flag_that_the_task_does_not_have_is_refused_with_the_one_that_is_meant(command, capsys):
    for flags, told in UNKNOWN.items():
        assert command(flags.split()) == 2
        [error] = capsys.readouterr().err.splitlines()
        assert error.startswith(f"error: {told}") and error.endswith(" train --help`"), flags
    assert "); did you mean translation?; see `" in error
    for words, shown in ((["images", "--help"], "--image-size N"), (["--version"], "keras-transformer 0")):
        with pytest.raises(SystemExit, match="^0$"):
            command(words)
        assert shown in capsys.readouterr().out


def test_a_run_that_goes_on_or_is_fine_tuned_names_its_task(tmp_path):
    for flags, settings in (("--resume --out", {"task": "images"}), ("--init-from", {})):  # an imported run has none
        config = {"settings": settings, "model": {"kind": "image-classifier"}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert parser().parse_args([*flags.split(), str(tmp_path), "--image-size", "64"]).image_size == 64
    with pytest.raises(RequestError, match="--image-size belongs to --task images"):
        parser().parse_args(["--out", str(tmp_path), "--image-size", "64"])  # a new run
    assert parser().parse_args(["--init-from", str(tmp_path), "--task", "translation", "--copies", "2"]).copies == 2


def test_build_holds_the_presets():
    build, names = (ROOT / "BUILD.md").read_text(encoding="utf-8"), [*PRESETS["base"]]
    assert names == [*SIZES, "label_smoothing", "steps", "token_budget", "vocabulary_size"]
    for told, preset in {"`tiny`, `modern`": "tiny", "`base`": "base", "`big`": "big"}.items():
        values = [f"{value:,}" for name, value in PRESETS[preset].items() if name != "label_smoothing"]
        assert f"| {told} | {' | '.join(values)} |\n" in build
    assert PRESETS["tiny"].items() <= PRESETS["modern"].items()
