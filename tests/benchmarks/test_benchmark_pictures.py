"""The pictures of the benchmarks can be read: nothing is told by colour alone, and no text lies on data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from matplotlib.figure import Figure

from benchmarks import family, layers
from benchmarks.layers import Point


@pytest.fixture
def drawn(monkeypatch) -> Iterator[list[Any]]:
    """The figures that were saved."""
    figures: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **options: figures.append(figure))
    yield figures


def test_variants_have_a_row_each_and_marks_that_differ_in_shape(drawn):
    short, long = family.Quality(99.0, 0.9), family.Quality(40.0, 0.4)
    one = family.Figures(1_000, 2e9, 3_000.0, short, long, None)
    family.draw(dict.fromkeys(family.variants(), one), "family.png")
    quality, speed = drawn[0].axes
    assert [label.get_text() for label in quality.get_yticklabels()] == list(family.variants())
    assert {line.get_label(): set(line.get_xdata()) for line in quality.lines} == {
        "sources as in training": {99.0},
        "longer sources": {40.0},
    }
    assert len({line.get_marker() for line in quality.lines}) == 2
    assert set(speed.lines[0].get_xdata()) == {3_000.0} and speed.yaxis_inverted()
    heights = [label.get_window_extent() for label in quality.get_yticklabels()]
    assert not any(upper.overlaps(lower) for upper, lower in zip(heights, heights[1:], strict=False))
    assert "BLEU" in quality.get_xlabel() and "tokens a second" in speed.get_xlabel()


def test_kinds_of_layers_have_styles_and_axes_have_units(drawn):
    points = [Point(0.001, 210.0), Point(0.004, 390.0)]
    layers.draw([64, 128], dict.fromkeys(layers.KINDS, points), "layers.png")
    times, memory = drawn[0].axes
    for axes in (times, memory):
        drawn[0].draw_without_rendering()
        assert len({str(line._dash_pattern) for line in axes.lines}) == len(layers.KINDS)
        assert axes.get_legend() is None, "the legend stands above the panels"
        assert any(text.get_text() for text in axes.get_yticklabels(which="both")), "memory within a power of ten too"
    assert [list(line.get_ydata()) for line in times.lines] == [[1, 4]] * len(layers.KINDS)
    assert [axes.get_xlabel() for axes in (times, memory)] == ["length, positions"] * 2
    assert [axes.get_ylabel() for axes in (times, memory)] == ["time, ms", "memory at the peak, MiB"]
    assert len(drawn[0].legends[0].get_texts()) == len(layers.KINDS)
