"""Learning curves: a panel for each quantity that was measured, and no other."""

from typing import Any

import numpy as np

from keras_transformer.plots.curves import learning_curves

HISTORY: dict[str, list[float]] = {
    "step": [1, 2, 3], "loss": [3.0, 2.0, 1.0], "val_loss": [3.5, 2.5, 2.0], "perplexity": [20.0, 8.0, 3.0],
}  # fmt: skip


def test_a_panel_for_each_quantity():
    figure: Any = learning_curves(HISTORY)
    assert [axes.get_title() for axes in figure.axes] == ["loss\nbest 2, step 3", "perplexity"]
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    assert labels == [("step", "nats"), ("step", "perplexity")]
    training, validation, best = figure.axes[0].lines
    assert (list(best.get_xdata()), list(best.get_ydata())) == ([3], [2.0])
    np.testing.assert_array_equal(training.get_xydata(), list(zip(HISTORY["step"], HISTORY["loss"], strict=True)))
    np.testing.assert_array_equal(validation.get_ydata(), HISTORY["val_loss"])
    legend = figure.axes[0].get_legend()
    assert training.get_linestyle() != validation.get_linestyle(), "colour alone does not tell them apart"
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == ["training", "validation"]


def test_validation_alone_has_its_panel_and_panels_stand_in_rows_of_three(tmp_path):
    figure: Any = learning_curves({"step": [1, 2, 3, 4], "val_bleu": [1.0, 9.0, float("nan"), 8.0]})
    assert [axes.get_title() for axes in figure.axes] == ["bleu\nbest 9, step 2"]
    figure.savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
    figure = learning_curves({"step": [1.0], **dict.fromkeys(["loss", "perplexity", "accuracy", "bleu"], [0.5])})
    assert [axes.get_title() for axes in figure.axes] == ["loss", "perplexity", "accuracy", "bleu"]
    assert [axes.get_subplotspec().rowspan.start for axes in figure.axes] == [0, 0, 0, 1]
    assert not learning_curves({"step": []}).axes[0].lines
