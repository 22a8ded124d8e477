"""BLEU is counted in one way, and how long a translation may become is said in one place."""

import re
from urllib.error import URLError

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers import tokenizer_ja_mecab, tokenizer_spm

from keras_transformer.core.errors import RequestError
from keras_transformer.spec import search_options
from keras_transformer.text.bleu import OF_LANGUAGES, bleu, bleu_metric, bleu_signature, paired_quality, tokenizer_for
from tests.sacrebleu_command import OTHER_TRANSLATIONS, REFERENCES, TRANSLATIONS, paired_bootstrap_command


def test_of_sentences_it_is_sacrebleus_default():
    expected = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES]).score
    assert bleu(TRANSLATIONS, REFERENCES) == pytest.approx(expected)
    assert abs(expected - bleu(REFERENCES, TRANSLATIONS)) > 1, "the two cannot be swapped unnoticed"


def test_of_texts_shorter_than_four_words_it_counts_what_they_hold():
    assert sacrebleu.corpus_bleu(["zwei"], [["zwei"]]).score == 0
    assert bleu(["zwei", "drei"], ["zwei", "drei"]) == pytest.approx(100)
    assert bleu(["zwei"], ["drei"]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("tokenize", ["none", "zh", "13a"])
def test_a_tokenizer_divides_the_words_and_is_in_the_signature(tokenize):
    texts, references = ["我们 sat—on the mat."], ["我们 sit—on the mat!"]
    figure = sacrebleu.corpus_bleu(texts, [references], tokenize=tokenize, use_effective_order=True).score
    assert bleu(texts, references, tokenize) == pytest.approx(figure)
    assert {"nrefs:1", "case:mixed", "eff:yes", f"tok:{tokenize}"} <= set(bleu_signature(tokenize).split("|"))


def test_languages_have_the_tokenizers_that_sacrebleu_gives_them(monkeypatch):
    monkeypatch.setattr("keras_transformer.text.bleu.bleu_metric", lambda name: None)  # as if all packages were there
    theirs = {language: BLEU._TOKENIZER_MAP.get(language, "13a") for language in ("zh", "ja", "ko", "de", "")}
    assert {language: tokenizer_for(language) for language in theirs} == theirs
    assert [tokenizer_for(code) for code in ("zh_CN", "zh-Hant", "zho", "jpn", "kor", "ZH", None)] == [
        *("zh", "zh", "zh", "ja-mecab", "ko-mecab", "zh", "13a")
    ]
    assert set(OF_LANGUAGES.values()) == set(BLEU._TOKENIZER_MAP.values())


def test_a_tokenizer_without_its_packages_names_them(monkeypatch, capsys):
    """Asked for, it is an error. Where the language chose it, BLEU is counted as for other languages."""
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(RequestError, match=re.escape("pip install 'sacrebleu[ja]'")):
        bleu_metric("ja-mecab")
    assert tokenizer_for("ja") == "13a"
    assert capsys.readouterr().err.startswith("warning: BLEU is counted with the tokenizer 13a: ")


def test_a_tokenizer_whose_vocabulary_cannot_be_downloaded_says_why(monkeypatch, tmp_path):
    def fail(*_):
        raise URLError("no route to host")

    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", tmp_path)
    monkeypatch.setattr(tokenizer_spm, "download_file", fail)
    with pytest.raises(RequestError, match=r"flores200 has a vocabulary that .* downloads.*no route to host"):
        bleu_metric("flores200")


def test_an_unknown_tokenizer_is_refused():
    with pytest.raises(RequestError, match="expected a tokenizer among none, zh, 13a.*; received: moses"):
        bleu_metric("moses")


def test_the_paired_bootstrap_has_the_figures_of_sacrebleus_command(tmp_path):
    """Of characters, so that every sentence has four, as the command has no effective order."""
    systems = [[*TRANSLATIONS[:3], "One, of many."], OTHER_TRANSLATIONS, [*TRANSLATIONS[:2], *OTHER_TRANSLATIONS[2:]]]
    rows = paired_quality(systems, REFERENCES, "char")
    names = [f"{metric}{kind}" for metric in ("bleu", "chrf") for kind in ("", "_mean", "_interval", "_p")]
    ours = [[row[name] for name in names if row[name] is not None] for row in rows]
    theirs = paired_bootstrap_command(tmp_path, systems, REFERENCES, "char")
    assert [len(row) for row in ours] == [6, 8, 8] and [row["same"] for row in rows] == [4, 0, 2]
    for found, expected in zip(ours, theirs, strict=True):
        assert found == pytest.approx(expected, abs=6e-5), "p-values are printed with four digits"
    assert {"bs:1000", "seed:12345", "tok:char", "eff:yes"} <= set(rows[1]["bleu_signature"].split("|"))


def test_translations_that_are_all_the_baselines_have_no_p_value():
    """Their difference is 0. sacreBLEU's count of larger ones would call it significant."""
    first, same = paired_quality([TRANSLATIONS, TRANSLATIONS], REFERENCES)
    assert first == same and same["bleu_p"] is same["chrf_p"] is None


def test_a_translation_may_be_fifty_tokens_longer_than_its_source():
    assert [search_options.longest(length) for length in (0, 7)] == [50, 57]
