"""`compare` and the tokenizer of `evaluate`: figures of runs on the same text."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import pytest

from export.onnx import export_onnx
from export.signatures import Decoding, open_run
from keras_transformer.__main__ import main
from keras_transformer.bleu import paired_quality
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.translator import Translator, load
from keras_transformer.run_folder import RunFolder, read_config, write_config
from keras_transformer.text.tokenized import TokenizedCorpus

pytest_plugins = ["tests.tiny_run"]

SOURCES = ["to the sea", "seven hundred and two", "two dogs", "the cat sat on the mat"]
REFERENCES = ["the sea to", "two hundred and seven", "dogs", "the mat sat on the cat"]


@pytest.fixture
def texts(tmp_path) -> list[str]:
    """The flags that name a source and its reference."""
    for name, lines in {"source": SOURCES, "reference": REFERENCES}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]


@pytest.fixture
def other_run(tiny_model, tokenizer, tmp_path) -> Path:
    """A run of a model with other weights."""
    model = keras.models.clone_model(tiny_model)
    model.set_weights([-weights for weights in tiny_model.get_weights()])
    Translator(model, tokenizer).save(tmp_path / "other", ("en", "de"))
    return tmp_path / "other"


@pytest.fixture
def command(capsys):
    """`command(name, *arguments)` → exit status, the JSON objects on standard output, standard error."""

    def run(*arguments):
        status = main(list(map(str, arguments)))
        out, err = capsys.readouterr()
        return status, list(map(json.loads, out.splitlines())), err

    return run


def exported(run: Path) -> Path:
    """An export of a run, with greedy search."""
    export, trained = run.parent / "export", open_run(run)
    export_onnx(trained, export, Decoding(num_beams=1))
    trained.save_tokenizers(export)
    return export


def speaks(run: Path, language: str | None) -> None:
    """Writes a target language into the configuration of a run."""
    config = read_config(run)
    write_config(RunFolder(run), {**config, "corpus": {"source_language": "en", "target_language": language}})


def test_each_run_has_its_figures_against_the_first(run_folder, other_run, texts, command):
    """A folder, another folder, and an export of the first one with another search."""
    export = exported(run_folder)
    flags = ["--engine", "onnx", "--max-length", 9, "--beams", 2]
    status, rows, err = command("compare", run_folder, other_run, export, *texts, *flags)
    options = SearchOptions(num_beams=2, max_length=9)
    translations = [[best.text for best, *_ in load(run).stream(SOURCES, options)] for run in (run_folder, other_run)]
    expected = paired_quality([*translations, translations[0]], REFERENCES)
    search = {"sentences": len(SOURCES), "beams": 2, "length_penalty": 0.6, "split": "sentences"}
    assert (status, err) == (0, "") and expected[1]["same"] < len(SOURCES)
    named = zip((run_folder, other_run, export), expected, strict=True)
    assert rows == [{"run": str(run), **row, **search} for run, row in named]


def test_each_run_that_was_trained_on_the_sources_is_named(run_folder, other_run, texts, command, tokenizer):
    pairs = list(zip(SOURCES, REFERENCES, strict=True))
    for run, known in ((run_folder, pairs[1:3]), (other_run, [("two", "two")])):
        TokenizedCorpus.build(run / "cache" / "train", known, tokenizer, tokenizer)
    status, _, err = command("compare", other_run, run_folder, *texts, "--beams", 1)
    warning = f"{run_folder} was trained on 2 of these 4 sources: its figures say less of new text"
    assert (status, err) == (0, f"warning: {warning}\n")


def test_each_run_searches_as_its_own_model_does(run_folder, other_run, texts, command):
    config = read_config(other_run)
    write_config(RunFolder(other_run), {**config, "search": {"num_beams": 1, "length_penalty": 1.0, "max_length": 5}})
    _, rows, _ = command("compare", run_folder, other_run, *texts)
    assert [(row["beams"], row["length_penalty"]) for row in rows] == [(4, 0.6), (1, 1.0)]


def test_one_run_is_refused(run_folder, texts, command):
    message = "error: expected two runs or more, to be compared with the first; received one\n"
    assert command("compare", run_folder, *texts) == (2, [], message)


def test_a_model_of_another_kind_is_refused_before_anything_is_translated(run_folder, texts, command, tmp_path):
    from keras_transformer.models import model_config
    from keras_transformer.models.language_model import LanguageModel

    (tmp_path / "language-model").mkdir()
    config = model_config(LanguageModel(64, num_layers=1, num_heads=2, hidden_dim=8))
    write_config(RunFolder(tmp_path / "language-model"), {"model": config, "settings": {"seed": 1}, "versions": {}})
    status, rows, err = command("compare", run_folder, tmp_path / "language-model", *texts)
    assert (status, rows) == (2, []) and "expected a model of the kind translator; received language-model" in err


def test_files_of_different_lengths_are_refused(run_folder, other_run, texts, command):
    Path(texts[3]).write_text("one\n")
    status, rows, err = command("compare", run_folder, other_run, *texts)
    assert (status, rows) == (2, []) and f"{texts[1]} has 4, {texts[3]} has 1: align them" in err


def test_runs_of_languages_with_different_tokenizers_need_one_by_name(run_folder, other_run, texts, command):
    speaks(run_folder, "zh")
    status, rows, err = command("compare", run_folder, other_run, *texts)
    assert (status, rows) == (2, []) and "received runs for zh, 13a: name one by --tokenize" in err
    status, rows, _ = command("compare", run_folder, other_run, *texts, "--tokenize", "char")
    assert status == 0 and all("tok:char" in row["bleu_signature"] for row in rows)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_target_language_of_a_run_or_of_its_export_chooses_the_tokenizer(run_folder, texts, command, processes):
    speaks(run_folder, "zh")
    for folder in (run_folder, exported(run_folder)):
        status, [row], _ = command("evaluate", folder, *texts, "--beams", 1, "--processes", processes)
        assert status == 0 and "tok:zh" in row["bleu_signature"]


def test_evaluate_takes_the_tokenizer_that_it_is_given(run_folder, texts, command):
    speaks(run_folder, "zh")
    _, [row], _ = command("evaluate", run_folder, *texts, "--tokenize", "none")
    assert "tok:none" in row["bleu_signature"]
    status, rows, err = command("evaluate", run_folder, *texts, "--tokenize", "moses")
    assert (status, rows) == (2, []) and "received: moses" in err


def test_a_log_has_no_tokenizer(run_folder, command, tmp_path):
    status, rows, err = command("evaluate", run_folder, "--log", tmp_path / "log", "--tokenize", "char")
    assert (status, rows) == (2, []) and "leave out --tokenize" in err
