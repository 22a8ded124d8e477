"""`benchmarks.multi30k`: which search each figure has, and what is kept. The translator is a stand-in."""

import json
import sys
from types import SimpleNamespace

from benchmarks import multi30k

REFERENCES = ["Zwei Hunde rennen schnell.", "Ein Mann sitzt dort."]


def test_each_figure_has_its_own_search_unless_one_is_asked_for(monkeypatch, tmp_path, capsys):
    for name, lines in {"en": ["Two dogs run .", "A man sits ."], "de": REFERENCES}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    searches: list[tuple[int, float]] = []

    def stream(lines, options):
        """Right with four beams or more."""
        searches.append((options.num_beams, options.length_penalty))
        texts = REFERENCES[: len(lines)] if options.num_beams >= 4 else ["Ein Hund."] * len(lines)
        return [[SimpleNamespace(text=text)] for text in texts]

    corpus = {"name": "multi30k:en-de", "source_language": "en", "target_language": "de"}
    for name, stand_in in {
        "read_config": lambda run: {"corpus": corpus},
        "multi30k_file": lambda split, language, folder: tmp_path / language,
        "moses": lambda language: lambda lines: [line.lower() for line in lines],
        "own_search_of": lambda arguments: {"length_penalty": 0.8},
        "open_translator": lambda arguments, options: SimpleNamespace(stream=stream),
    }.items():
        monkeypatch.setattr(multi30k, name, stand_in)

    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["multi30k", "a", "b", *map(str, flags)])
        searches.clear()
        multi30k.main()
        return json.loads(capsys.readouterr().out)

    figures = run()
    assert searches == [(4, 0.8), (5, 0.8)]
    assert figures["bleu"] == figures["tokenised_lowercased_bleu"] == 100 and figures["sentences"] == 2
    assert "tok:13a" in figures["signature"] and "tok:none" in figures["tokenised_lowercased_signature"]
    figures = run("--beams", 2, "--length-penalty", 1.5, "--out", tmp_path / "kept.de", "--lines", 1)
    assert searches == [(2, 1.5)] and figures["bleu"] < 100 and figures["sentences"] == 1
    assert (tmp_path / "kept.de").read_text() == "Ein Hund.\n"
