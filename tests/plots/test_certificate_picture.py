"""A certificate's picture: a bar for each artefact that was run, in every panel."""

import itertools
from typing import Any

import numpy as np
import pytest

from keras_transformer.plots.certificate import PANELS, certificate_picture

MEASURED = {"sentences": 200, "identical": 199, "bleu": 41.0, "model_bleu": 41.5, "peak_bytes": 3e8,
            "latency_seconds": 0.012, "sentences_per_second": 40.0}  # fmt: skip
ENTRIES = [
    {"name": "good", "holds": True, "contents": {"bytes": 8_600_000}, "judgement": {"measured": MEASURED}},
    {"name": "bad", "holds": False, "contents": {"bytes": 10}, "judgement": {"measured": MEASURED | {"bleu": None}}},
    {"name": "part", "holds": None, "contents": {"bytes": 10}, "judgement": None},
]


def test_a_bar_for_each_artefact_in_each_panel(tmp_path):
    figure: Any = certificate_picture({"entries": ENTRIES})
    assert [axes.get_title() for axes in figure.axes] == [title for title, _, _ in PANELS]
    widths = {axes.get_title(): [bar.get_width() for bar in axes.patches] for axes in figure.axes}
    assert widths["identical, %"] == [99.5, 99.5]
    assert widths["size, MB"] == pytest.approx([8.6, 1e-5])
    assert widths["BLEU (line: the model)"] == [41.0, 0]
    assert [bar.get_hatch() for bar in figure.axes[0].patches] == ["", "//"]
    np.testing.assert_array_equal(figure.axes[1].lines[0].get_xdata(), [41.5, 41.5])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["good", "bad"]
    assert figure.get_supxlabel() == "hatched: does not hold"
    figure.savefig(tmp_path / "certificate.png")
    boxes = [box for axes in figure.axes if (box := axes.get_tightbbox())]
    assert len(boxes) == len(PANELS)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2)), "labels run into each other"


def test_where_all_hold_nothing_is_told_of_hatching_and_what_was_not_run_is_not_drawn():
    assert not certificate_picture({"entries": ENTRIES[:1]}).get_supxlabel()
    assert not certificate_picture({"entries": ENTRIES[2:]}).axes[0].patches
