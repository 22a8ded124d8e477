"""`benchmarks.multi30k`: which search each figure has, and what is kept. The translator is a stand-in."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from benchmarks import multi30k

SOURCES = ["Two dogs run .", "A man sits ."]
REFERENCES = ["Zwei Hunde rennen schnell.", "Ein Mann sitzt dort."]


@pytest.fixture
def score(monkeypatch, tmp_path, capsys):
    """`score(*flags)` → the figures, and the searches that were asked for."""
    for name, lines in {"en": SOURCES, "de": REFERENCES}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    corpus = {"name": "multi30k:en-de", "source_language": "en", "target_language": "de"}
    searches = []

    def stream(lines, options):
        """Right with four beams or more."""
        searches.append((options.num_beams, options.length_penalty))
        right = options.num_beams >= 4
        return [[SimpleNamespace(text=line if right else "Ein Hund.")] for line in REFERENCES[: len(lines)]]

    def opened(arguments, options):
        assert (arguments.run, arguments.others) == ("a", ["b"])
        return SimpleNamespace(stream=stream)

    monkeypatch.setattr(multi30k, "read_config", lambda run: {"corpus": corpus})
    monkeypatch.setattr(multi30k, "multi30k_file", lambda split, language, folder: tmp_path / language)
    monkeypatch.setattr(multi30k, "moses", lambda language: lambda lines: [line.lower() for line in lines])
    monkeypatch.setattr(multi30k, "own_search_of", lambda arguments: {"length_penalty": 0.8})
    monkeypatch.setattr(multi30k, "open_translator", opened)

    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["multi30k", "a", "b", *map(str, flags)])
        searches.clear()
        multi30k.main()
        return json.loads(capsys.readouterr().out), searches

    return run


def test_each_figure_has_its_own_search(score):
    figures, searches = score()
    assert searches == [(4, 0.8), (5, 0.8)]
    assert figures["bleu"] == figures["tokenised_lowercased_bleu"] == 100
    assert figures["sentences"] == 2
    assert "tok:13a" in figures["signature"] and "tok:none" in figures["tokenised_lowercased_signature"]


def test_a_search_that_is_asked_for_is_both_figures_and_its_translations_are_kept(score, tmp_path):
    figures, searches = score("--beams", 2, "--length-penalty", 1.5, "--out", tmp_path / "kept.de", "--lines", 1)
    assert searches == [(2, 1.5)]
    assert figures["bleu"] < 100 and figures["sentences"] == 1
    assert (tmp_path / "kept.de").read_text() == "Ein Hund.\n"
