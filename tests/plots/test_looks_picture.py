"""The picture of where a pixel looks: the image, and a panel for each attention."""

import numpy as np
import pytest

from keras_transformer.plots import looks_picture

LOOKS = {"pixels": np.eye(4) / 4, **{f"layer {number}": np.full((2, 2), 0.1 * number) for number in range(1, 5)}}


@pytest.mark.parametrize("channels", [1, 3])
def test_a_panel_for_the_image_and_for_each_attention(channels, tmp_path):
    image = np.arange(16 * channels, dtype="uint8").reshape(4, 4, channels)
    figure = looks_picture(image, (1, 3), LOOKS)
    shown = [axes for axes in figure.axes if axes.images]
    titles = [axes.get_title() for axes in shown]
    assert titles == [
        "image", "pixels, to 0.25", "layer 1, to 0.1", "layer 2, to 0.2", "layer 3, to 0.3", "layer 4, to 0.4",
    ]  # fmt: skip
    np.testing.assert_array_equal(np.asarray(shown[0].images[0].get_array()).ravel(), image.ravel())
    for axes, attention in zip(shown[1:], LOOKS.values(), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), attention)
        assert axes.images[0].get_clim()[0] == 0 and [*axes.images[0].get_extent()] == [-0.5, 3.5, 3.5, -0.5]
    for axes in shown:
        (mark,) = axes.lines
        np.testing.assert_array_equal(mark.get_xydata(), [[3, 1]])  # across, down
    figure.savefig(tmp_path / "looks.png")
    assert (tmp_path / "looks.png").stat().st_size > 1000
