"""`distill`: from teachers and a text to a student; stopped anywhere, the same command goes on."""

import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import keras
import numpy as np
import pytest

from keras_transformer.__main__ import main
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.run_folder import CorpusFacts, RunFolder, read_config, write_config
from keras_transformer.tasks.translation.commands import distill as command
from keras_transformer.tasks.translation.commands import distilled_text
from keras_transformer.tasks.translation.loading import load, load_ensemble
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.cleaning import EMPTY, RATIO, REPEATED, UNFINISHED
from keras_transformer.text.tokenizer import END
from tests.golden.cases import write_lines
from tests.layer_check import randomize
from tests.tiny_text import lines
from tests.training.runs import eagerly

pytestmark = pytest.mark.usefixtures("eager")

SIZES = "--preset tiny --num-layers 1 --hidden-dim 16 --intermediate-dim 24 --num-heads 2 --vocabulary-size 34"
SCHEDULE = "--devices cpu --steps 2 --warmup-steps 2 --checkpoint-every 2 --token-budget 256 --bleu-sentences 0"
TRAIN = ["--train", *SIZES.split(), *SCHEDULE.split()]
SEARCH = ["--beams", "1", "--max-length", "16"]
TEXT = [*lines(4, 60), "", *lines(4, 10)]


def teaching(tokenizer, seed: int, folder: Path) -> Path:
    """A run of random weights that goes astray in every way, and translates some lines without a fault."""
    keras.utils.set_random_seed(seed)
    model = Transformer(tokenizer.vocabulary_size, 1, 2, 16, 32, max_source_length=40, output_bias=True)
    randomize(model)
    bias = np.zeros(tokenizer.vocabulary_size)
    bias[:END], bias[END] = -30, 3
    assert model.output_embedding.bias is not None
    model.output_embedding.bias.assign(bias)
    Translator(model, tokenizer).save(folder, validation=(lines(5, 8), lines(6, 8)))
    return folder


@pytest.fixture(scope="module")
def teacher(tokenizer, tmp_path_factory) -> Path:
    return teaching(tokenizer, 1, tmp_path_factory.mktemp("teachers") / "first")


def here(*job: Any) -> Any:
    """Calls a job with its arguments, as they come to another process."""
    function, *arguments = pickle.loads(pickle.dumps(job))
    return function(*arguments)


@pytest.fixture
def distill(teacher, tmp_path, monkeypatch, capsys):
    """`distill(*options)` → exit status, standard output, standard error. All happens in this process."""
    monkeypatch.setattr("keras_transformer.tasks.translation.commands.distill.run_in_subprocess", here)
    write_lines(tmp_path / "mono.txt", TEXT)

    def run(*options, teachers=(teacher,), train=TRAIN, out=("--out", tmp_path / "student")):
        flags = ["--source", tmp_path / "mono.txt", *out, *SEARCH, *options, *train]
        with eagerly():
            return main(["distill", *map(str, [*teachers, *flags])]), *capsys.readouterr()

    return run


@pytest.fixture
def untrained(distill, monkeypatch):
    """`distill`, but the student is not trained."""
    monkeypatch.setattr("keras_transformer.training.run.train", lambda given: given["resume"] and pytest.fail("again"))
    monkeypatch.setattr(command, "figures", vars)  # a stand-in that comes to another process too
    return distill


def read(path: Path) -> list[str]:
    return path.read_text().splitlines()


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_student_learns_from_what_its_teachers_say_and_goes_on_where_it_was_stopped(
    distill, teacher, tokenizer, tmp_path, monkeypatch
):
    """They read no tags of the student, and their language chooses BLEU's tokenizer."""
    text, student = tmp_path / "student-text", tmp_path / "student"
    chinese = Path(shutil.copytree(teacher, tmp_path / "chinese"))
    languages: CorpusFacts = {"source_language": "en", "target_language": "zh"}
    write_config(RunFolder(chinese), replace(read_config(chinese), corpus=languages))
    teachers = chinese, teaching(tokenizer, 3, tmp_path / "other")
    train = [*TRAIN, "--both-directions", "--vocabulary-size", 38]
    status, out, err = distill("--engine", "keras", teachers=teachers, train=train)
    assert status == 0, err
    said = load_ensemble(teachers).translate(TEXT, num_beams=1, max_length=16)
    (shard,) = (text / "translations").iterdir()
    assert [json.loads(line)[0] for line in read(shard)] == said
    pairs = list(zip(read(text / "source.txt"), read(text / "target.txt"), strict=True))
    report = json.loads((text / "report.json").read_text())
    assert set(pairs) <= set(zip(TEXT, said, strict=True)) and len(set(pairs)) == len(pairs) == report["kept"] > 0
    for example in (one for some in report["examples"].values() for one in some):
        assert (TEXT[example["line"] - 1], said[example["line"] - 1]) == (example["source"], example["target"])

    of_teachers, learnt = map(json.loads, out.splitlines())
    assert [row["runs"] for row in (of_teachers, learnt)] == [[*map(str, teachers)], [str(student)]]
    assert learnt["parameters"] == [load(student, engine="keras").model.count_params()]
    assert all("tok:zh" in row["bleu_signature"] for row in (of_teachers, learnt))
    assert read(student / "validation.source") == [f"<2target> {line}" for line in lines(5, 8)]

    # Stopped, the command goes on with its text and its student.
    before = files_in(text)
    monkeypatch.setattr("keras_transformer.training.run.train", asked := Mock())
    status, again, err = distill("--engine", "keras", teachers=teachers, train=train)
    assert (status, again) == (0, out) and "translated" not in err and files_in(text) == before
    assert asked.call_args.args[0].items() >= {"resume": True, "out": str(student)}.items()


def test_the_text_alone_is_what_a_student_learns_from_without_its_own_validation_text(untrained, tmp_path):
    text = tmp_path / "text"
    status, _, err = untrained("--text", text, out=(), train=())
    assert status == 0 and "translated 71 of 71 lines" in err
    report = json.loads((text / "report.json").read_text())
    assert report["left_out"]["its source is blank"] == 1
    assert {UNFINISHED, EMPTY, RATIO, REPEATED, "a duplicate"} < report["left_out"].keys()
    assert report["kept"] + sum(report["left_out"].values()) == report["lines"] == len(TEXT)
    kept = read(text / "source.txt")
    (tmp_path / "valid").write_text(f"{kept[0]}\n{kept[1]}\n")
    valid = ["--valid-source", tmp_path / "valid", "--valid-target", tmp_path / "valid"]
    assert "translated" not in untrained("--text", text, train=[*TRAIN, *valid])[2]
    assert read(text / "source.txt") == kept[2:]


def test_translations_that_are_there_are_not_made_again(untrained, tmp_path, monkeypatch):
    monkeypatch.setattr(distilled_text, "SHARD_LINES", 25)
    translated: list[str] = []
    stream, most = Translator.stream, [25]

    def counted(self, lines, *options, **more):
        for line in lines:
            if len(translated) >= most[0]:
                raise OSError(28, "No space left on device")
            translated.append(line)
            yield from stream(self, [line], *options, **more)

    monkeypatch.setattr(Translator, "stream", counted)
    status, _, err = untrained()
    text = tmp_path / "student-text"
    shards = text / "translations"
    assert status == 1 and "No space left" in err
    assert [path.name for path in shards.iterdir()] == ["000000.jsonl"] and not (tmp_path / "student").exists()
    monkeypatch.setattr(distilled_text, "SHARD_LINES", 10)  # which changes nothing for a text that has begun
    most[0] = 999
    status, _, err = untrained()
    assert status == 0 and translated == TEXT and len(list(shards.iterdir())) == 3, err
    # What a killed translation left is not read.
    whole, shard = files_in(text), shards / "000000.jsonl"
    shard.rename(shards / ".99-000000.jsonl").write_bytes(whole[shard][:200])
    (text / "report.json").unlink()
    assert untrained()[0] == 0 and files_in(text).items() >= whole.items()


def test_a_damaged_file_of_a_text_is_named_and_made_again_once_it_is_gone(untrained, tmp_path):
    text = tmp_path / "text"
    command = {"out": ("--text", text), "train": ()}
    assert untrained(**command)[0] == 0
    whole = files_in(text)
    made_of, shard = text / "made_of.json", text / "translations" / "000000.jsonl"
    making, first = json.loads(whole[made_of]), whole[shard].split(b"\n")[0]
    lines = [b"\xff", b"3", b'["x"]', b"[1, true]", b'["x", 1]', b'["a\\nb", true]', b'["\\ud800", true]']
    for path, content in [
        *((made_of, content) for content in (b"{", b"[" * 100_000, json.dumps({**making, "shard_lines": 0}).encode())),
        (made_of, json.dumps({**making, "shard_lines": 1, "lines": 10**12}).encode()),
        *((shard, content) for content in (whole[shard][:-5], whole[shard] + first, b"")),
        *((shard, whole[shard].replace(first, line, 1)) for line in lines),
    ]:
        path.write_bytes(content)
        (text / "report.json").unlink(missing_ok=True)  # nobody reads a shard as long as the pairs are there
        status, _, err = untrained(**command)
        assert status == 2 and f"error: {path} is damaged (" in err and "Traceback" not in err, content[:99]
        path.write_bytes(whole[path])
    for path in (made_of, shard):
        path.unlink()
        (text / "report.json").unlink(missing_ok=True)
        assert untrained(**command)[0] == 0
        assert files_in(text) == whole


def test_what_does_not_fit_is_refused_before_work_starts(untrained, teacher, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("other.txt").write_text("one\ntwo\n")
    os.mkfifo("pipe")
    assert untrained()[0] == 0
    before, new = files_in(tmp_path), ("--text", "new")
    refused: list[tuple[list[str], dict, str]] = [
        (["--beams", "2"], {}, "was made with another search"),
        (["--source", "other.txt"], {}, "was made with another text"),
        (["--source", "pipe"], {"out": new, "train": ()}, "pipe is a pipe or a device, and"),
        (["--text", "."], {}, "holds files that are not a distilled text's"),
        ([], {"out": new}, "expected --out with a run folder for the student; or --text without --train"),
        ([], {"train": ["--train", "--hidden-dim", "7"]}, "--num-heads must divide --hidden-dim"),
        ([], {"train": ["--train", "--out", "there"]}, "--out: `distill` gives this to the student itself"),
        ([], {"out": ("--out", teacher)}, "did not learn from"),
    ]  # fmt: skip
    for options, others, message in refused:
        status, _, err = untrained(*options, **others)
        assert status == 2 and err.count("\n") == 1 and message in err, err
        assert files_in(tmp_path) == before and not Path("student").exists()
