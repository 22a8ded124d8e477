"""`distill`: from teachers and a text to a student; stopped anywhere, the same command goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_transformer.__main__ import main
from keras_transformer.commands import distilled_text
from keras_transformer.decoding.ensembles import load_ensemble
from keras_transformer.decoding.translator import Translator, load
from keras_transformer.models.transformer import Transformer
from keras_transformer.run_folder import RunFolder, read_config, write_config
from keras_transformer.text.distillation import EMPTY, RATIO, REPEATED, UNFINISHED
from keras_transformer.text.tokenizer import END
from tests.layer_check import randomize
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

ROOT = Path(__file__).resolve().parents[2]
SIZES = "--preset tiny --num-layers 1 --hidden-dim 16 --intermediate-dim 24 --num-heads 2 --vocabulary-size 34"
SCHEDULE = "--devices cpu --steps 4 --warmup-steps 2 --checkpoint-every 2 --token-budget 256 --bleu-sentences 0"
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


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "mono.txt"
    path.write_text("".join(f"{line}\n" for line in TEXT))
    return path


@pytest.fixture
def distill(teacher, source, tmp_path, monkeypatch, capsys):
    """`distill(*options)` → exit status, standard output, standard error. All happens in this process."""
    monkeypatch.setattr("keras_transformer.decoding.processes.apart", lambda job, *arguments: job(*arguments))

    def run(*options, train=TRAIN):
        flags = ["--source", source, "--out", tmp_path / "student", *SEARCH, *options, *train]
        status = main(["distill", *map(str, [teacher, *flags])])
        return status, *capsys.readouterr()

    return run


def read(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_student_learns_from_what_its_teacher_says(distill, teacher, tmp_path):
    status, out, err = distill()
    text, student = tmp_path / "student-text", tmp_path / "student"
    said = load(teacher).translate(TEXT, num_beams=1, max_length=16)
    report = json.loads((text / "report.json").read_text())
    pairs = list(zip(read(text / "source.txt"), read(text / "target.txt"), strict=True))
    assert status == 0, err
    assert set(pairs) <= set(zip(TEXT, said, strict=True)) and len(set(pairs)) == len(pairs) == report["kept"] > 0
    assert report["left_out"]["its source is blank"] == 1
    assert {UNFINISHED, EMPTY, RATIO, REPEATED, "a duplicate"} < report["left_out"].keys()
    assert report["kept"] + sum(report["left_out"].values()) == report["lines"] == len(TEXT)
    assert f"{report['kept']:,} of {len(TEXT):,} translations are kept" in err
    for example in (one for some in report["examples"].values() for one in some):
        places = [number for number in (example["line"], example["like"]) if number]
        assert {(TEXT[place - 1], said[place - 1]) for place in places} == {(example["source"], example["target"])}

    assert (student / "validation.source").read_text() == (teacher / "validation.source").read_text()
    of_teacher, learnt = map(json.loads, out.splitlines())
    options = load(student).search_options(num_beams=1, max_length=16)
    for run, row in {teacher: of_teacher, student: learnt}.items():
        translator = load(run)
        own = translator.evaluate(read(student / "validation.source"), read(student / "validation.target"), options)
        assert row["runs"] == [str(run)] and row["parameters"] == [translator.model.count_params()]
        assert (row["bleu"], row["chrf"]) == (own["bleu"], own["chrf"])


def test_teachers_read_no_tags_of_the_student_and_their_language_chooses_the_tokenizer(
    distill, teacher, source, tmp_path, capsys
):
    chinese = Path(shutil.copytree(teacher, tmp_path / "chinese"))
    languages = {"source_language": "en", "target_language": "zh"}
    write_config(RunFolder(chinese), {**read_config(chinese), "corpus": languages})
    flags = ["--source", source, "--out", tmp_path / "student", *SEARCH, *TRAIN, "--both-directions"]
    assert main(["distill", *map(str, [chinese, *flags, "--vocabulary-size", 38])]) == 0
    of_teacher, learnt = map(json.loads, capsys.readouterr().out.splitlines())
    assert all("tok:zh" in row["bleu_signature"] for row in (of_teacher, learnt))
    translator = load(chinese)
    options = translator.search_options(num_beams=1, max_length=16)
    own = translator.evaluate(read(chinese / "validation.source"), read(chinese / "validation.target"), options)
    assert (of_teacher["bleu"], of_teacher["chrf"]) == (own["bleu"], own["chrf"])
    assert all(line.startswith("<2target> ") for line in read(tmp_path / "student" / "validation.source"))


def test_the_text_alone_is_what_a_student_learns_from(distill, teacher, source, tmp_path, capsys):
    alone = tmp_path / "alone"
    assert main(["distill", *map(str, [teacher, "--source", source, "--text", alone, *SEARCH])]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "translated 71 of 71 lines" in err and not (tmp_path / "student").exists()
    assert distill()[0] == 0
    for name in ("source.txt", "target.txt", "report.json"):
        assert (alone / name).read_bytes() == (tmp_path / "student-text" / name).read_bytes()


def test_a_student_does_not_learn_its_own_validation_text(distill, teacher, source, tmp_path):
    text = tmp_path / "text"
    assert main(["distill", *map(str, [teacher, "--source", source, "--text", text, *SEARCH])]) == 0
    kept = read(text / "source.txt")
    (tmp_path / "valid").write_text(f"{kept[0]}\n{kept[1]}\n")
    valid = ["--valid-source", str(tmp_path / "valid"), "--valid-target", str(tmp_path / "valid")]
    status, _, err = distill("--text", text, train=[*TRAIN, *valid])
    assert status == 0 and err.count("translated 71 of 71 lines") == 1, err
    assert read(text / "source.txt") == kept[2:]
    before = {path: path.read_bytes() for path in text.rglob("*") if path.is_file()}
    status, _, err = distill("--text", text)  # a student with the teacher's validation text again
    assert status == 2 and f"did not learn from {text}, or validates on another text: choose another --out" in err
    assert before == {path: path.read_bytes() for path in text.rglob("*") if path.is_file()}


def test_a_pipe_is_refused(teacher, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    flags = ["--source", tmp_path / "pipe", "--text", tmp_path / "text", *SEARCH]
    assert main(["distill", *map(str, [teacher, *flags])]) == 2
    assert f"{tmp_path / 'pipe'} is a pipe or a device, and" in capsys.readouterr().err
    assert not (tmp_path / "text").exists()


@pytest.mark.parametrize("options", [[], ["--text", "there", *TRAIN]], ids=["no text", "no student"])
def test_a_student_needs_a_folder(teacher, source, tmp_path, capsys, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    assert main(["distill", *map(str, [teacher, "--source", source, *options])]) == 2
    assert "expected --out with a run folder for the student" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mono.txt"]


def test_translations_that_are_there_are_not_made_again(distill, tmp_path, monkeypatch):
    monkeypatch.setattr(distilled_text, "SHARD_LINES", 25)
    translated: list[str] = []
    stream = Translator.stream

    def counted(self, lines, *options, **more):
        if len(translated) >= 25:
            raise OSError(28, "No space left on device")
        translated.extend(lines)
        return stream(self, lines, *options, **more)

    monkeypatch.setattr(Translator, "stream", counted)
    status, _, err = distill()
    shards = tmp_path / "student-text" / "translations"
    assert status == 1 and "No space left" in err
    assert [path.name for path in shards.iterdir()] == ["000000.jsonl"] and not (tmp_path / "student").exists()

    monkeypatch.setattr(Translator, "stream", lambda self, lines, *a, **b: stream(self, note(lines), *a, **b))

    def note(lines):
        translated.extend(lines)
        return lines

    # Another size of the shards changes nothing for a text that has begun.
    monkeypatch.setattr(distilled_text, "SHARD_LINES", 10)
    status, _, err = distill()
    assert status == 0, err
    assert translated[: len(TEXT)] == TEXT, "each line once"
    assert len(list(shards.iterdir())) == 3


def test_what_a_killed_translation_left_is_not_read(distill, tmp_path):
    assert distill()[0] == 0
    text = tmp_path / "student-text"
    whole = {path: path.read_bytes() for path in text.rglob("*") if path.is_file() and path.name != "report.json"}
    shutil.rmtree(tmp_path / "student")
    shard = text / "translations" / "000000.jsonl"
    (shard.parent / ".99-000000.jsonl").write_bytes(shard.read_bytes()[:200])
    for path in (shard, text / "report.json"):
        path.unlink()
    status, _, err = distill()
    assert status == 0, err
    assert all(path.read_bytes() == content for path, content in whole.items())


def test_a_damaged_file_of_a_text_is_named_and_made_again_once_it_is_gone(teacher, source, tmp_path, capsys):
    text = tmp_path / "text"
    command = ["distill", *map(str, [teacher, "--source", source, "--text", text, *SEARCH])]
    assert main(command) == 0
    whole = {path: path.read_bytes() for path in text.rglob("*") if path.is_file()}
    made_of, shard = text / "made_of.json", text / "translations" / "000000.jsonl"
    making, first = json.loads(whole[made_of]), whole[shard].split(b"\n")[0]
    damages = [
        (made_of, b"{"), (made_of, b"[]"), (made_of, b"[" * 100_000),
        (made_of, json.dumps({**making, "lines": "71"}).encode()),
        (made_of, json.dumps({**making, "shard_lines": 0}).encode()), (text / "report.json", b"3"),
        (shard, whole[shard][:-5]), (shard, whole[shard] + first), (shard, b""),
        *((shard, whole[shard].replace(first, other, 1)) for other in (
            b"\xff", b"3", b'["x"]', b'"ab"', b"[1, true]", b'["x", 1]', b'["a\\nb", true]', b'["\\ud800", true]',
        )),
    ]  # fmt: skip
    for path, content in damages:
        path.write_bytes(content)
        if path == shard:  # which nobody reads as long as the pairs are there
            (text / "report.json").unlink()
        assert main(command) == 2, content[:99]
        assert f"error: {path} is damaged (" in (err := capsys.readouterr().err) and "Traceback" not in err
        path.unlink()
        assert main(command) == 0
        assert whole == {path: path.read_bytes() for path in whole}


@pytest.mark.parametrize(
    "options, message",
    [
        (["--beams", "2"], "was made with another search"),
        (["--source", "other.txt"], "was made with another text"),
        (["--text", "."], "holds files that are not a distilled text's"),
        (["--text", "student/text"], "must not lie in the student's folder"),
        (["--source", "missing.txt"], "no such file"),
    ],
)
def test_what_does_not_fit_is_refused_before_work_starts(distill, tmp_path, options, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.txt").write_text("one\ntwo\n")
    (tmp_path / "empty.txt").write_text("")
    assert distill(train=["--train", "--steps", "4", *SIZES.split(), "--vocabulary-size", "4000"])[0] == 2
    text = tmp_path / "student-text"
    before = {path: path.read_bytes() for path in text.rglob("*") if path.is_file()}
    assert before and not (tmp_path / "student").exists()
    options = ["student/text" if option == "student/text" else option for option in options]
    status, out, err = distill(*options)
    assert (status, out) == (2, "") and err.count("\n") == 1 and message in err
    assert before == {path: path.read_bytes() for path in text.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "train, message",
    [
        (["--train", "--hidden-dim", "7"], "--num-heads must divide --hidden-dim"),
        (["--train", "--out", "there", "--steps", "3"], "--out: `distill` gives this to the student itself"),
        (["--train", "--valid-source", "here"], "expected"),
    ],
)
def test_a_student_that_cannot_be_is_refused_before_work_starts(distill, tmp_path, train, message):
    status, out, err = distill(train=train)
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert message in err or train[1] == "--valid-source"
    assert not (tmp_path / "student-text").exists() and not (tmp_path / "student").exists()


def test_a_student_without_flags_needs_a_folder_too(teacher, source, tmp_path, capsys):
    command = ["distill", str(teacher), "--source", str(source), "--text", str(tmp_path / "text"), "--train"]
    assert main(command) == 2
    assert "expected --out with a run folder for the student; or --text without --train" in capsys.readouterr().err
    assert not (tmp_path / "text").exists()


def test_a_run_that_learnt_from_something_else_is_not_a_student(distill, teacher, tmp_path):
    shutil.copytree(teacher, tmp_path / "student")
    status, _, err = distill()
    assert status == 2 and "did not learn from" in err
    assert not (tmp_path / "student-text").exists()


def test_several_teachers_translate_together(distill, teacher, tokenizer, source, tmp_path, capsys):
    other = teaching(tokenizer, 3, tmp_path / "other")
    flags = ["--source", source, "--out", tmp_path / "student", *SEARCH, *TRAIN]
    assert main(["distill", *map(str, [teacher, other, *flags])]) == 0
    (shard,) = (tmp_path / "student-text" / "translations").iterdir()
    expected = load_ensemble([teacher, other]).translate(TEXT, num_beams=1, max_length=16)
    assert [json.loads(line)[0] for line in read(shard)] == expected
    assert json.loads(capsys.readouterr().out.splitlines()[0])["runs"] == [str(teacher), str(other)]


def test_killed_while_it_trains_the_same_command_goes_on(teacher, source, tmp_path):
    student, shard = tmp_path / "student", tmp_path / "student-text" / "translations" / "000000.jsonl"
    command = [sys.executable, "-m", "keras_transformer", "distill", teacher, "--source", source, "--out", student]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def started():
        train = [*TRAIN, "--steps", "60", "--checkpoint-every", "20"]
        return subprocess.Popen([*map(str, command), *SEARCH, *train], env=environment, stdout=subprocess.PIPE)

    with started() as process:
        deadline = time.monotonic() + 240
        while not list(student.glob("checkpoints/*")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    translated = shard.stat().st_mtime_ns
    with started() as process:
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    assert [json.loads(line)["runs"] for line in out.splitlines()] == [[str(teacher)], [str(student)]]
    assert read_config(student)["weights"]["at_step"] == 60
    assert shard.stat().st_mtime_ns == translated
