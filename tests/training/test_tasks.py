"""Runs of each task but translation: what they say and measure, how they go on, and what begins with them."""

from pathlib import Path

import pytest

from keras_transformer.runs.run_folder import load_model, read_config
from keras_transformer.tasks.language_modelling import training as language_modelling
from keras_transformer.training.result import _validation_loss
from tests.golden.cases import flags_of, write_files
from tests.interrupted import interrupt
from tests.training.runs import assert_same_end, assert_weights_of, begun, column, trained

SCHEDULE = "--dropout 0.1 --warmup-steps 5 --learning-rate-factor 0.5 --steps 5 --checkpoint-every 4"
# Flags beside those of the golden case, and what is said of the text.
TASKS = {
    "language-model": ("--mixed-precision float16", "files: 9,600 tokens, 192 for validation"),
    "answers": (
        "--attention compressed:width=4 --r-drop 1 --clip-norm 1",
        "600 pairs kept, 0 left out of training: 0 empty on a",
    ),
    "masked-tokens": ("--mixed-precision bfloat16", "files: 600 lines, 8 for validation"),
    "classification": ("", "files: 400 texts with 3 labels, 8 for validation"),
    "images": (
        "--stem attentive:filters=4 --random-shift 1 --accumulate 2 --learning-rate-factor 0.2",
        "files: 90 images with 3 lab",
    ),
    "next-item": ("--learning-rate-factor 0.2 --feed-forward experts", "200 held out for validation\nto beat: "),
}


@pytest.fixture(scope="module", params=TASKS)
def made(request, tmp_path_factory) -> tuple[str, Path, str]:
    """A task, a folder with its text and a run of it, `whole`, and what was said of the run."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    write_files(name, folder)
    return name, folder, made_of(name, folder, *flags_of(name, SCHEDULE, TASKS[name][0], "--out whole"))


def made_of(name: str, folder: Path, *flags: str) -> str:
    """What is said of a run. One task trains with a graph, as users do; a language model draws short samples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language_modelling, "SAMPLE_TOKENS", 3)
        return trained(folder, " ".join(flags), with_graph=name == "classification")


def test_a_run_says_what_it_trains_on_and_measures_itself(made):
    name, folder, said = made
    config, whole, (flags, told) = read_config(folder / "whole"), folder / "whole", TASKS[name]
    assert told in said, said
    assert config.parameters == load_model(whole).count_params()
    losses = column(whole, "val_loss")
    assert column(whole, "step") == [4, 5] and losses[1] < losses[0]
    figures = {name: value for name, value in config.weights.items() if name.startswith("val_")}
    assert figures, "of the weights of one checkpoint, which are their own mean"
    for name, value in figures.items():
        assert value == pytest.approx(column(whole, name)[1], abs=0.02 if "mixed" in flags else 1e-4), name
    assert f"wrote {Path('whole/model.keras')} · validation · " in said.splitlines()[-1]


def test_a_resumed_run_ends_with_the_same_bits(made):
    name, folder, _ = made
    interrupt(str(folder / "whole"), str(folder / "begun"), 5)
    assert "resuming at step 4\n" in made_of(name, folder, "--resume --out begun")
    assert_same_end(folder / "whole", folder / "begun", 5)


def test_a_run_that_is_fine_tuned_begins_with_sizes_vocabulary_and_weights(made):
    name, folder, _ = made
    own, whole, tuned = TASKS[name][0], folder / "whole", folder / "tuned"
    flags = flags_of(name, own, "--dropout 0.1 --init-from whole --out tuned")
    run, data, model, _ = begun(folder, " ".join(flags))
    assert_weights_of(model, whole)
    loss = _validation_loss(run, data, model, num_replicas=1)
    assert loss == pytest.approx(column(whole, "val_loss")[1], rel=0.02 if "mixed" in own else 1e-4)
    assert read_config(tuned).model == read_config(whole).model
    for name in ("tokenizer.model", "items.txt"):
        assert [path.read_bytes() for path in tuned.glob(name)] == [path.read_bytes() for path in whole.glob(name)]
