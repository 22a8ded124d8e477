"""Pictures show what was computed: attention, positions, masks, learning rates, curves and certificates."""

import itertools
from typing import Any

import numpy as np
import pytest
from keras import ops
from matplotlib import font_manager

from keras_transformer import plots
from keras_transformer.decoding.attention_maps import Attention, Tokens
from keras_transformer.layers import positions, score
from keras_transformer.plots import WordLines, pictures
from keras_transformer.plots.pictures import PANELS, certificate_picture, learning_curves
from keras_transformer.schedules import InverseSquareRootDecay
from tests.plots.some_attention import some_attention

STRANGE = ("$x$", "</s>", "_a^b", "\\frac", "%")


def attention(queries: tuple[str, ...] = ("a", "b"), keys: tuple[str, ...] = ("c", "d", "e")) -> Attention:
    return some_attention(Tokens.of_whole(queries), Tokens.of_whole(keys))


def test_attention_has_a_map_for_each_layer_and_head_or_for_the_chosen_ones():
    both = {"cross": attention(), "decoder": attention()}
    figure = plots.attention_picture(both)
    assert [part.get_suptitle() for part in figure.subfigs] == ["encoder-decoder attention", "decoder self-attention"]
    maps = {axes.get_title(): axes for axes in figure.subfigs[0].axes}
    assert list(maps) == [f"head {layer}.{head}" for layer in (1, 2) for head in (1, 2, 3)]
    axes = maps["head 2.3"]
    np.testing.assert_array_equal(axes.images[0].get_array(), both["cross"].scores[1, 2])
    assert axes.images[0].get_clim() == (0, 1), "maps can be compared"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["c", "d", "e"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    figure = plots.attention_picture(both, layers=[2], heads=[3, 1])
    assert [axes.get_title() for axes in figure.subfigs[1].axes] == ["head 2.3", "head 2.1"]
    np.testing.assert_array_equal(figure.subfigs[1].axes[0].images[0].get_array(), both["decoder"].scores[1, 2])
    for chosen in ({"layers": [3]}, {"layers": [0]}, {"heads": [4]}):
        with pytest.raises(IndexError, match="layers go from 1 to 2, and heads from 1 to 3; received"):
            plots.attention_picture(both, **chosen)


def test_lines_go_from_the_word_to_what_it_looks_at():
    one = attention()
    one.scores[1, 2, 1] = [0.004, 0.8, 0.196]
    (axes,) = plots.word_lines_picture([WordLines(one, 1, 1, 2)]).axes
    assert [np.array(line.get_ydata()).tolist() for line in axes.lines] == [[1, 1], [1, 2]], "none for almost nothing"
    wide, narrow = (line.get_linewidth() for line in axes.lines)
    assert wide > narrow and axes.get_title() == "head 2.3"
    assert [text.get_text() for text in axes.texts] == ["a", "b", "c", "d   0.80", "e   0.20"]
    assert [text.get_fontweight() for text in axes.texts] == ["normal", "bold", "normal", "bold", "normal"]


def test_signs_of_formulas_are_text(tmp_path):
    one = attention(STRANGE, STRANGE)
    plots.attention_picture({"self": one}, layers=[1], heads=[1]).savefig(tmp_path / "maps.svg")
    figure = plots.word_lines_picture([WordLines(one, 0, 0, 0, title="$\\frac$"), WordLines(one, 1, 1, 1)])
    figure.savefig(tmp_path / "lines.png")
    assert [text.get_text() for text in figure.axes[0].texts][:5] == [*STRANGE]


def test_another_script_takes_an_installed_font_and_characters_that_none_has_are_told(monkeypatch, capsys):
    dejavu = [entry for entry in font_manager.fontManager.ttflist if entry.name == "DejaVu Sans"]
    thai = font_manager.FontEntry(fname="thai.ttf", name="A Thai Font", style="normal")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [*dejavu, thai])
    usual = pictures._characters
    monkeypatch.setattr(pictures, "_characters", lambda path: frozenset("ไทย") if path == "thai.ttf" else usual(path))
    assert pictures.families_for(["abc", "ไทย"])[-1] == "A Thai Font"
    assert pictures.families_for(["abc"]) == pictures.families_for([]) and capsys.readouterr().err == ""
    pictures.families_for(["a", "山"])
    assert "no installed font shows 1 character(s) of the text, such as '山': install one" in capsys.readouterr().err


def maps(figure: Any) -> dict[str, np.ndarray]:
    """The numbers of each map by its title."""
    return {axes.get_title(): np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images}


def test_positions_show_what_they_add_or_turn():
    figure: Any = plots.positions_picture(positions.SinusoidalPositions(16), length=10)
    expected = ops.convert_to_numpy(positions.sinusoidal_positions(np.arange(10), 16))
    np.testing.assert_allclose(maps(figure)["what is added"], expected, atol=1e-6)
    curves = {str(line.get_label()): line.get_ydata() for line in figure.axes[1].lines}
    assert list(curves) == [f"dimension {number}" for number in (8, 9)]
    assert len({line.get_linestyle() for line in figure.axes[1].lines}) == 2, "colour alone does not tell them apart"
    np.testing.assert_allclose(curves["dimension 8"], expected[:, 8], atol=1e-6)
    shown = maps(plots.positions_picture(positions.RotaryPositions(8), length=6))
    angles = np.arange(6)[:, None] / 10_000 ** (np.arange(4) / 4)
    np.testing.assert_allclose(shown["cosine of the angle"], np.cos(angles), atol=1e-5)
    with pytest.raises(ValueError, match="expected positions that add something; received: NoPositions"):
        plots.positions_picture(positions.NoPositions())


def test_biases_show_a_map_for_each_of_the_first_heads(tmp_path):
    distance = np.arange(5)[:, None] - np.arange(5)
    for is_causal in (False, True):
        figure: Any = plots.positions_picture(score.AlibiPositions(8), length=5, is_causal=is_causal)
        shown = {title: numbers for title, numbers in maps(figure).items() if title}
        assert list(shown) == [f"head {head}" for head in (1, 2, 3, 4)]
        seen = distance >= 0 if is_causal else np.ones_like(distance, bool)
        np.testing.assert_allclose(shown["head 2"][seen], -0.25 * np.abs(distance)[seen], atol=1e-6)
    figure.savefig(tmp_path / "alibi.png")


def test_the_peak_of_the_learning_rate_is_marked():
    schedules = {"paper": InverseSquareRootDecay(512), "short": InverseSquareRootDecay(512, warmup_steps=100)}
    figure: Any = plots.schedule_picture(schedules, 8_000)
    curves, marks = ([line for line in figure.axes[0].lines if (len(line.get_xdata()) > 1) == many] for many in (1, 0))
    assert [line.get_label() for line in curves] == ["paper", "short"]
    assert curves[0].get_linestyle() != curves[1].get_linestyle(), "colour alone does not tell them apart"
    assert [float(line.get_xdata()[0]) for line in marks] == pytest.approx([4_000, 100], abs=20)
    np.testing.assert_allclose(curves[0].get_ydata()[0], 512**-0.5 * 4_000**-1.5, rtol=1e-5)


def test_learning_curves_have_a_panel_for_each_quantity_that_was_measured(tmp_path):
    history = {"step": [1.0, 2.0, 3.0], "loss": [3.0, 2.0, 1.0], "val_loss": [3.5, 2.5, 2.0], "perplexity": [9.0, 8, 3]}
    figure: Any = learning_curves(history)
    assert [axes.get_title() for axes in figure.axes] == ["loss\nbest 2, step 3", "perplexity"]
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    assert labels == [("step", "nats"), ("step", "perplexity")]
    training, validation, best = figure.axes[0].lines
    assert (list(best.get_xdata()), list(best.get_ydata())) == ([3], [2.0])
    np.testing.assert_array_equal(training.get_xydata(), list(zip(history["step"], history["loss"], strict=True)))
    np.testing.assert_array_equal(validation.get_ydata(), history["val_loss"])
    assert training.get_linestyle() != validation.get_linestyle(), "colour alone does not tell them apart"
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["training", "validation"]
    figure = learning_curves({"step": [1, 2, 3, 4], "val_bleu": [1.0, 9.0, float("nan"), 8.0]})
    assert [axes.get_title() for axes in figure.axes] == ["bleu\nbest 9, step 2"], "validation alone"
    figure.savefig(tmp_path / "curves.png")
    figure = learning_curves({"step": [1.0], **dict.fromkeys(["loss", "perplexity", "accuracy", "bleu"], [0.5])})
    assert [axes.get_subplotspec().rowspan.start for axes in figure.axes] == [0, 0, 0, 1], "rows of three"
    assert not learning_curves({"step": []}).axes[0].lines


def test_a_certificate_has_a_bar_for_each_artefact_that_was_run_in_each_panel(tmp_path):
    measured = {"sentences": 200, "identical": 199, "bleu": 41.0, "model_bleu": 41.5, "peak_bytes": 3e8,
                "latency_seconds": 0.012, "sentences_per_second": 40.0}  # fmt: skip
    entries: list[dict[str, Any]] = [
        {"name": "good", "holds": True, "contents": {"bytes": 8_600_000}, "judgement": {"measured": measured}},
        {"name": "bad", "holds": False, "contents": {"bytes": 9}, "judgement": {"measured": measured | {"bleu": None}}},
        {"name": "part", "holds": None, "contents": {"bytes": 10}, "judgement": None},
    ]
    figure: Any = certificate_picture({"entries": entries})
    assert [axes.get_title() for axes in figure.axes] == [title for title, _, _ in PANELS]
    widths = {axes.get_title(): [bar.get_width() for bar in axes.patches] for axes in figure.axes}
    assert widths["identical, %"] == [99.5, 99.5] and widths["BLEU (line: the model)"] == [41.0, 0]
    assert widths["size, MB"] == pytest.approx([8.6, 9e-6])
    assert [bar.get_hatch() for bar in figure.axes[0].patches] == ["", "//"]
    np.testing.assert_array_equal(figure.axes[1].lines[0].get_xdata(), [41.5, 41.5])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["good", "bad"]
    assert figure.get_supxlabel() == "hatched: does not hold"
    figure.savefig(tmp_path / "certificate.png")
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2)), "labels run into each other"
    assert not certificate_picture({"entries": entries[:1]}).get_supxlabel(), "nothing is hatched"
