"""Pictures of attention: heat maps, and lines from a word."""

import numpy as np
import pytest
from matplotlib import font_manager

from keras_transformer.decoding.attention import Attention, Tokens
from keras_transformer.plots import WordLines, attention_picture, fonts, word_lines_picture
from tests.plots.some_attention import some_attention

STRANGE = ("$x$", "</s>", "_a^b", "\\frac", "%")


def attention(queries: tuple[str, ...] = ("a", "b"), keys: tuple[str, ...] = ("c", "d", "e")) -> Attention:
    return some_attention(Tokens.of_whole(queries), Tokens.of_whole(keys))


def test_a_map_for_each_layer_and_head_or_for_the_chosen_ones():
    both = {"cross": attention(), "decoder": attention()}
    figure = attention_picture(both)
    assert [part.get_suptitle() for part in figure.subfigs] == ["encoder-decoder attention", "decoder self-attention"]
    maps = {axes.get_title(): axes for axes in figure.subfigs[0].axes}
    assert list(maps) == [f"head {layer}.{head}" for layer in (1, 2) for head in (1, 2, 3)]
    axes = maps["head 2.3"]
    np.testing.assert_array_equal(axes.images[0].get_array(), both["cross"].scores[1, 2])
    assert axes.images[0].get_clim() == (0, 1), "maps can be compared"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["c", "d", "e"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    figure = attention_picture(both, layers=[2], heads=[3, 1])
    assert [axes.get_title() for axes in figure.subfigs[1].axes] == ["head 2.3", "head 2.1"]
    np.testing.assert_array_equal(figure.subfigs[1].axes[0].images[0].get_array(), both["decoder"].scores[1, 2])
    for chosen in ({"layers": [3]}, {"layers": [0]}, {"heads": [4]}):
        with pytest.raises(IndexError, match="layers go from 1 to 2, and heads from 1 to 3; received"):
            attention_picture(both, **chosen)


def test_signs_of_formulas_are_text(tmp_path):
    one = attention(STRANGE, STRANGE)
    attention_picture({"self": one}, layers=[1], heads=[1]).savefig(tmp_path / "maps.svg")
    figure = word_lines_picture([WordLines(one, 0, 0, 0, title="$\\frac$"), WordLines(one, 1, 1, 1)])
    figure.savefig(tmp_path / "lines.png")
    assert [text.get_text() for text in figure.axes[0].texts][:5] == [*STRANGE]
    assert [axes.get_title() for axes in figure.axes][1] == "head 2.2", "panels stand side by side"


def test_lines_go_from_the_word_to_what_it_looks_at():
    one = attention()
    one.scores[1, 2, 1] = [0.004, 0.8, 0.196]
    (axes,) = word_lines_picture([WordLines(one, 1, 1, 2)]).axes
    assert [np.array(line.get_ydata()).tolist() for line in axes.lines] == [[1, 1], [1, 2]], "none for almost nothing"
    wide, narrow = (line.get_linewidth() for line in axes.lines)
    assert wide > narrow and axes.get_title() == "head 2.3"
    assert [text.get_text() for text in axes.texts] == ["a", "b", "c", "d   0.80", "e   0.20"]
    assert [text.get_fontweight() for text in axes.texts] == ["normal", "bold", "normal", "bold", "normal"]


def test_another_script_takes_an_installed_font(monkeypatch, capsys):
    thai = font_manager.FontEntry(fname="thai.ttf", name="A Thai Font", style="normal")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [*font_manager.fontManager.ttflist, thai])
    usual = fonts._characters
    monkeypatch.setattr(fonts, "_characters", lambda path: frozenset("ไทย") if path == "thai.ttf" else usual(path))
    assert fonts.families_for(["abc", "ไทย"])[-1] == "A Thai Font"
    assert fonts.families_for(["abc"]) == fonts.families_for([])
    assert capsys.readouterr().err == ""


def test_characters_that_no_font_has_are_told(monkeypatch, capsys):
    entries = [entry for entry in font_manager.fontManager.ttflist if entry.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", entries)
    fonts.families_for(["a", "山"])
    assert "no installed font shows 1 character(s) of the text, such as '山': install one" in capsys.readouterr().err
