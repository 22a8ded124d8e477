"""`evaluate` and `compare`: figures of runs on a text, lines that a run was trained on; how progress is shown."""

import io
import itertools
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest

from export.artefacts import Decoding, open_run
from keras_transformer.commands import graph_cache, streams
from keras_transformer.commands.streams import ParallelLines
from keras_transformer.runs.run_folder import CorpusFacts, RunFolder, read_config, write_config
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation import loading
from keras_transformer.tasks.translation.commands import translate as engines
from keras_transformer.tasks.translation.commands.evaluate import are_swapped
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.bleu import paired_quality
from keras_transformer.text.tokenized import TokenizedCorpus
from tests.answers import answer, refused
from tests.export.sessions import exported
from tests.golden.cases import write_lines
from tests.golden.stored import unpack

CHINESE: CorpusFacts = {"source_language": "en", "target_language": "zh"}
TRAINED = [("to the sea", "ans Meer"), ("two dogs", "zwei Hunde"), ("seven hundred and two", "702")]


@pytest.fixture
def evaluate(tmp_path) -> Callable[..., tuple[int, Any, str]]:
    """`evaluate(run, lines, *options)` → exit status, the figures, and standard error."""

    def evaluate(run: Path, lines: list[str], *options: object) -> tuple[int, Any, str]:
        write_lines(file := tmp_path / "lines", lines)
        text = ["--source", file, "--reference", file, "--beams", 1, "--max-length", 4]
        status, out, err = answer("evaluate", run, *text, *options)
        return status, json.loads(out or "null"), err

    return evaluate


def test_sources_of_the_training_text_are_counted(evaluate, run_folder, translator, tokenizer, monkeypatch):
    monkeypatch.setattr(engines, "decoder_for", lambda *of_the_command: lambda: translator.decoder)
    TokenizedCorpus.build(run_folder / "cache" / "train", TRAINED, tokenizer, tokenizer)
    _, figures, told = evaluate(run_folder, ["two dogs", "to the", "", "two dogs", "to the sea "])
    warning = f"{run_folder} was trained on 3 of these 5 sources: its figures say less of new text"
    assert (told, figures["sentences"]) == (f"warning: {warning}\n", 5)
    assert evaluate(run_folder, ["to the", "dogs two", "two sea", ""])[2] == ""
    (run_folder / "cache" / "train" / "meta.json").write_text("damaged")
    _, figures, told = evaluate(run_folder, ["two dogs"])
    assert (told, figures["sentences"]) == ("", 1)


def test_swapped_sides_are_told_and_good_ones_never(evaluate, run_folder, translator, monkeypatch, tmp_path):
    of: dict[str, list[str]] = {}
    for line in (Path(__file__).parents[1] / "text" / "hard_sentences.tsv").read_text("utf-8").splitlines():
        of.setdefault(line[:2], []).append(line[3:])
    for one, other in itertools.permutations(of, 2):
        kept = ParallelLines(of[one][10:], of[other][10:])
        assert are_swapped(ParallelLines(of[other][:10], of[one][:10]), kept), (one, other)
        assert not any(are_swapped(ParallelLines(of[one][:n], of[other][:n]), kept) for n in (1, 3, 10)), (one, other)
    monkeypatch.setattr(engines, "decoder_for", lambda *of_the_command: lambda: translator.decoder)
    write_lines(source := RunFolder(run_folder).valid_source, of["en"])
    write_lines(target := RunFolder(run_folder).valid_target, of["de"])
    assert evaluate(run_folder, [], "--source", source, "--reference", target)[2].count("swap") == 0
    told = evaluate(run_folder, [], "--source", target, "--reference", source)[2]
    assert f"looks like what {run_folder} writes, the reference like what it reads: swap the two files\n" in told


def test_the_target_language_of_a_run_or_of_its_export_chooses_the_tokenizer(
    run_folder, tokenizer, tmp_path, evaluate, translator, monkeypatch
):
    write_config(RunFolder(run_folder), replace(read_config(run_folder), corpus=CHINESE))
    export = exported(open_run(run_folder), tmp_path / "export", Decoding(num_beams=1))
    monkeypatch.setattr(loading, "keras_decoder", lambda *_: translator.decoder)
    for folder, options in ((export, []), (export, ["--processes", 2]), (run_folder, ["--engine", "keras"])):
        status, figures, _ = evaluate(folder, ["two"], *options)
        assert status == 0 and "tok:zh" in figures["bleu_signature"]
    assert "tok:none" in evaluate(export, ["two"], "--tokenize", "none")[1]["bleu_signature"]
    told = refused("evaluate", run_folder, "--log", __file__, "--tokenize", "char")
    assert "--log is for --task next-item; received it for --task translation" in told


SOURCES = ["to the sea", "seven hundred and two", "two dogs", "the cat sat on the mat"]
REFERENCES = ["the sea to", "two hundred and seven", "dogs", "the mat sat on the cat"]


@pytest.fixture
def texts(tmp_path) -> list[str]:
    """The flags that name a source and its reference."""
    for name, lines in {"source": SOURCES, "reference": REFERENCES}.items():
        write_lines(tmp_path / name, lines)
    return ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]


@pytest.fixture(scope="module")
def other(tiny_model, tokenizer) -> Translator:
    """A translator with other weights."""
    model = keras.models.clone_model(tiny_model)
    model.set_weights([-weights for weights in tiny_model.get_weights()])
    return Translator(model, tokenizer)


@pytest.fixture
def other_run(other, tmp_path) -> Path:
    other.save(tmp_path / "other", ("en", "de"))
    return tmp_path / "other"


@pytest.fixture
def compare(monkeypatch, eager, translator, other):
    """`compare(*arguments)` → exit status, the JSON objects on standard output, standard error.

    Keras translates, with models that are in memory already.
    """
    decoders = {False: translator.decoder, True: other.decoder}
    monkeypatch.setattr(graph_cache, "gpus_of_the_driver", lambda: 1)  # so no graphs are built
    monkeypatch.setattr(loading, "keras_decoder", lambda runs, threads: decoders[Path(runs[0]).name == "other"])

    def run(*arguments):
        status, out, err = answer("compare", *arguments, "--max-length", 4)
        return status, list(map(json.loads, out.splitlines())), err

    return run


def test_each_run_has_its_figures_against_the_first(run_folder, other_run, texts, compare, translator, other, tmp_path):
    """A folder, another folder, and an export of the first one with another search."""
    export = exported(translator, tmp_path / "export", Decoding(num_beams=1))
    status, rows, err = compare(run_folder, other_run, export, *texts, "--beams", 2)
    options = SearchOptions(num_beams=2, max_length=4)
    translations = [[best.text for best, *_ in each.stream(SOURCES, options)] for each in (translator, other)]
    expected = paired_quality([*translations, translations[0]], REFERENCES)
    search = {"sentences": len(SOURCES), "beams": 2, "length_penalty": 0.6, "split": "sentences"}
    assert (status, err) == (0, "") and expected[1]["same"] < len(SOURCES)
    named = zip((run_folder, other_run, export), expected, strict=True)
    assert rows == [{"run": str(run), **row, **search} for run, row in named]


def test_runs_that_were_trained_on_the_sources_are_named_and_each_searches_as_its_own_model_does(
    run_folder, other_run, texts, compare, tokenizer
):
    pairs = list(zip(SOURCES, REFERENCES, strict=True))
    for run, known in ((run_folder, pairs[1:3]), (other_run, [("two", "two")])):
        TokenizedCorpus.build(run / "cache" / "train", known, tokenizer, tokenizer)
    own = {"num_beams": 1, "length_penalty": 1.0, "max_length": 5}
    write_config(RunFolder(other_run), replace(read_config(other_run), search=own))
    status, rows, err = compare(other_run, run_folder, *texts)
    warning = f"{run_folder} was trained on 2 of these 4 sources: its figures say less of new text"
    assert (status, err) == (0, f"warning: {warning}\n")
    assert [(row["beams"], row["length_penalty"]) for row in rows] == [(1, 1.0), (4, 0.6)]


def test_what_cannot_be_compared_is_refused_before_anything_is_translated(
    run_folder, other_run, texts, compare, tmp_path
):
    alone = "error: expected two runs or more, to be compared with the first; received one\n"
    assert compare(run_folder, *texts) == (2, [], alone)
    chinese = shutil.copytree(run_folder, tmp_path / "chinese")
    write_config(RunFolder(chinese), replace(read_config(chinese), corpus=CHINESE))
    short = [*texts[:3], str(tmp_path / "short")]
    Path(short[3]).write_text("one\n")
    language_model = unpack("language-model", tmp_path / "language-model")
    for run, files, message in (
        (language_model, texts, "expected a model of the kind translator; received language-model"),
        (other_run, short, f"{texts[1]} has 4, {short[3]} has 1: align them"),
        (chinese, texts, "received runs for 13a, zh: name one by --tokenize"),
    ):
        status, rows, err = compare(run_folder, run, *files)
        assert (status, rows) == (2, []) and message in err
    _, rows, _ = compare(chinese, other_run, *texts, "--tokenize", "char")
    assert all("tok:char" in row["bleu_signature"] for row in rows)


def shown(monkeypatch, terminals: str, count: int = 3) -> tuple[list[int], str]:
    """What came through, and what standard error shows, if the streams named in `terminals` are terminals."""
    monkeypatch.setattr(streams, "SECONDS", 0.0)
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream := io.StringIO())
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=name in terminals: is_terminal)
    return list(streams.counted(iter(range(count)), "lines")), stream.getvalue()


def test_lines_are_counted_for_a_person_who_sees_no_translations(monkeypatch):
    items, text = shown(monkeypatch, "stderr", 1200)
    assert items == list(range(1200))
    assert "\r1,199 lines · " in text and text.endswith("\r") and "\n" not in text
    for terminals in ("", "stdin stderr", "stdout stderr", "stdin stdout stderr"):
        assert shown(monkeypatch, terminals) == ([0, 1, 2], "")
