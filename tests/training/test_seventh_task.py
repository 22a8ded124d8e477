"""A task that the package does not know is a folder and a line: it trains, goes on, answers, exports, holds."""

import json
import random
from pathlib import Path

import pytest

import export.__main__ as exporting
from export.certificate.comparison import KeptCertificate
from keras_transformer.__main__ import main
from keras_transformer.core.errors import RequestError
from keras_transformer.core.task_registry import TASKS, Task
from keras_transformer.runs.run_folder import read_config
from tests.answers import printed, refused
from tests.interrupted import interrupt
from tests.tagging.pipeline import Tagger
from tests.tiny_corpus import resolved
from tests.training.runs import assert_same_end, column, trained

TAGS = {"a": "VOWEL", "o": "VOWEL", "b": "LIP", "m": "LIP", "t": "TONGUE", "n": "TONGUE"}
FLAGS = (
    "--task tagging --text text --tag-mark : --preset tiny --num-layers 1 --hidden-dim 16 --num-heads 2 "
    "--intermediate-dim 16 --vocabulary-size 30 --context-length 24 --dropout 0 --token-budget 600 --warmup-steps 5 "
    "--learning-rate-factor 2 --steps 60 --checkpoint-every 30 --threads 1"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with tagged text and a run, `whole`; the task is there as long as the tests of this module."""
    folder, draw = tmp_path_factory.mktemp("tagging"), random.Random(3)
    words = ["".join(draw.choices("aobmtn", k=draw.randint(1, 3))) for _ in range(30)]
    lines = (" ".join(f"{word}:{TAGS[word[0]]}" for word in draw.choices(words, k=4)) for _ in range(240))
    (folder / "text").write_text("".join(f"{line}\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "tagging", Task("tests.tagging", "a tag for each word"))
        trained(folder, f"{FLAGS} --out whole", with_graph=True)
        yield folder


def test_it_trains_goes_on_and_shows_its_own_flags(place, capsys):
    config = read_config(place / "whole")
    assert (config.task, config.labels) == ("tagging", ["LIP", "TONGUE", "VOWEL"])
    losses = column(place / "whole", "val_loss")
    assert losses[-1] < 0.8 * losses[0]
    interrupt(str(place / "whole"), str(place / "begun"), 60)
    (left := place / "begun" / "checkpoints" / ".timing-3f2").mkdir()
    assert "resuming at step 30\n" in trained(place, "--resume --out begun", with_graph=True)
    assert not left.exists(), "what a killed process left"
    assert_same_end(place / "whole", place / "begun", 60)
    with pytest.raises(SystemExit):
        main(["train", "tagging", "--help"])
    shown = capsys.readouterr().out
    assert "--tag-mark MARK" in shown and "a tag for each word" in shown and "--source " not in shown
    assert "--tag-mark belongs to --task tagging" in refused("train", "--tag-mark", ":")


def test_a_task_of_the_same_kind_with_fewer_settings_fine_tunes_it(place):
    """Classification has no `--tag-mark`, and takes the rest of how the tagger was trained."""
    parent = read_config(place / "whole")
    settings = resolved({"task": "classification"}, parent=parent)
    assert (settings.task, settings.hidden_dim, settings.token_budget) == ("classification", 16, 600)
    assert not hasattr(settings, "tag_mark") and settings.steps == parent.settings["steps"]


def test_it_answers_by_a_command_and_other_commands_name_it(place):
    words = ["bat", "om", "na", "tob"]
    told = [answer.split("/") for answer in printed("tag", place / "whole", stdin=" ".join(words)).split()]
    assert [word for word, _ in told] == words
    assert sum(TAGS[word[0]] == tag for word, tag in told) >= 3
    assert "which `tag` takes" in refused("generate", place / "whole")
    assert "one of --task tagging, which `tag` takes" in refused("embed", place / "whole", "--out", place / "x.npy")


def test_a_run_of_a_task_that_nothing_defines_is_told_by_its_name(place, monkeypatch):
    monkeypatch.delitem(TASKS, "tagging")
    assert "the task 'tagging', which nothing here defines: import the module" in refused(
        "embed", place / "whole", "--out", place / "x.npy"
    )
    (certificate := place / "certificate.json").write_text(
        json.dumps({"kind": "encoder", "entries": [], "run": {"task": "tagging", "model": "{}"}})
    )
    with pytest.raises(RequestError, match="^received the task 'tagging', which nothing here defines"):
        KeptCertificate(certificate.parent)
    certificate.write_text(json.dumps({"kind": "strange", "entries": [], "run": {"model": "{}"}}))
    with pytest.raises(RequestError, match="certificate.json is damaged: expected a model of a kind"):
        KeptCertificate(certificate.parent)


def test_it_is_saved_from_python(place):
    tagger = Tagger.load(place / "whole")
    tagger.save(place / "saved")
    assert read_config(place / "saved").task == "tagging"
    assert Tagger.load(place / "saved").tag("bat om na tob") == tagger.tag("bat om na tob")


@pytest.mark.parametrize(
    "format", ["onnx", *(pytest.param(name, marks=pytest.mark.long) for name in ("saved_model", "tflite"))]
)
def test_it_is_exported_and_certified_with_the_run_and_without(place, format, capsys):
    out = place / f"exported-{format}"
    assert exporting.main([str(place / "whole"), "--format", format, "--out", str(out)]) == 0, capsys.readouterr()
    certificate = json.loads((out / "certificate.json").read_text())
    names = {entry["name"]: entry["holds"] for entry in certificate["entries"]}
    assert all(names.values())
    assert {"saved_model", "onnx/tag.onnx", "tflite/tag.tflite"} & {*names}
    assert certificate["run"]["task"] == "tagging" and certificate["run"]["labels"] == json.dumps(
        Tagger.load(place / "whole").labels
    )
    assert exporting.main(["--verify", str(out)]) == 0


def test_nothing_else_knows_of_it():
    root = Path(__file__).resolve().parents[2]
    for path in [*root.glob("keras_transformer/**/*.py"), *root.glob("export/**/*.py")]:
        assert "tagging" not in path.read_text(encoding="utf-8"), path
