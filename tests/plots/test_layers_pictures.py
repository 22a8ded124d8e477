"""Pictures of positions, masks and the learning rate: they show what the layers compute."""

from typing import Any

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import position_biases, positions, rotary
from keras_transformer.plots import masks_picture, positions_picture, schedule_picture
from keras_transformer.training.schedules import InverseSquareRootDecay


def maps(figure: Any) -> dict[str, np.ndarray]:
    """The numbers of each map by its title."""
    return {axes.get_title(): np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images}


def test_sinusoids_are_a_map_and_curves():
    figure: Any = positions_picture(positions.SinusoidalPositions(16), length=10)
    expected = ops.convert_to_numpy(positions.sinusoidal_positions(np.arange(10), 16))
    np.testing.assert_allclose(maps(figure)["what is added"], expected, atol=1e-6)
    curves = {str(line.get_label()): line.get_ydata() for line in figure.axes[1].lines}
    assert list(curves) == [f"dimension {number}" for number in (8, 9)]
    assert len({line.get_linestyle() for line in figure.axes[1].lines}) == 2, "colour alone does not tell them apart"
    np.testing.assert_allclose(curves["dimension 8"], expected[:, 8], atol=1e-6)


def test_learned_positions_buckets_and_rotations_show_their_numbers():
    learned = positions.LearnedPositions(20, 12)
    learned.build((None,))
    shown = maps(positions_picture(learned, length=9))
    np.testing.assert_allclose(shown["what is added"], ops.convert_to_numpy(learned(np.arange(9))), atol=1e-6)
    shown = maps(positions_picture(rotary.RotaryPositions(8), length=6))
    angles = np.arange(6)[:, None] / 10_000 ** (np.arange(4) / 4)
    np.testing.assert_allclose(shown["cosine of the angle"], np.cos(angles), atol=1e-5)
    buckets = position_biases.BucketPositions(2, 16)
    buckets.build((None,))
    places = np.arange(7)
    shown, biases = maps(positions_picture(buckets, length=7)), buckets.bias(places, places, False)
    np.testing.assert_allclose(shown["head 1"], ops.convert_to_numpy(biases)[0], atol=1e-6)
    with pytest.raises(ValueError, match="expected positions that add something; received: NoPositions"):
        positions_picture(positions.NoPositions())


def test_biases_show_a_map_for_each_of_the_first_heads(tmp_path):
    distance = np.arange(5)[:, None] - np.arange(5)
    for is_causal in (False, True):
        figure: Any = positions_picture(position_biases.AlibiPositions(8), length=5, is_causal=is_causal)
        shown = {title: numbers for title, numbers in maps(figure).items() if title}
        assert list(shown) == [f"head {head}" for head in (1, 2, 3, 4)]
        seen = distance >= 0 if is_causal else np.ones_like(distance, bool)
        np.testing.assert_allclose(shown["head 2"][seen], -0.25 * np.abs(distance)[seen], atol=1e-6)
    figure.savefig(tmp_path / "alibi.png")


def test_masks_stand_side_by_side(tmp_path):
    causal = np.tril(np.ones((4, 4), bool))
    padding = np.broadcast_to([True, True, True, False], (4, 4))
    figure: Any = masks_picture({"causal": causal, "padding": padding, "both": causal & padding})
    assert [title for title in maps(figure) if title] == ["causal", "padding", "both"]
    np.testing.assert_array_equal(maps(figure)["both"], causal & padding)
    figure.savefig(tmp_path / "masks.png")


def test_the_peak_of_the_learning_rate_is_marked():
    schedules = {"paper": InverseSquareRootDecay(512), "short": InverseSquareRootDecay(512, warmup_steps=100)}
    figure: Any = schedule_picture(schedules, 8_000)
    (axes,) = figure.axes
    curves = [line for line in axes.lines if len(line.get_xdata()) > 1]
    marks = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [line.get_label() for line in curves] == ["paper", "short"]
    assert curves[0].get_linestyle() != curves[1].get_linestyle(), "colour alone does not tell them apart"
    assert [float(line.get_xdata()[0]) for line in marks] == pytest.approx([4_000, 100], abs=20)
    np.testing.assert_allclose(curves[0].get_ydata()[0], 512**-0.5 * 4_000**-1.5, rtol=1e-5)
