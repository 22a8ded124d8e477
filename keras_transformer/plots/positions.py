"""What position encodings add: vectors, angles, or biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.plots.lines import tell_lines_apart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = (8, 9, 32, 33)  # dimensions that are drawn as curves, where there are so many
HEADS = 4  # whose biases are drawn


def positions_picture(positions: Any, length: int = 64, hidden_dim: int = 128, is_causal: bool = False) -> Figure:
    """What a layer of positions adds, for each of the first positions.

    Args:
        positions: a layer, such as `SinusoidalPositions(128)`, `RotaryPositions(32)` or `AlibiPositions(8)`.
        length: how many positions, S.
        hidden_dim: D of the vectors to which positions are added; that of the layer if it has one.
        is_causal: whether the biases are those of a decoder.

    Returns:
        A figure. Of vectors (S, D) a map, and single dimensions as curves. Of angles by which pairs of dimensions are
        rotated, a map of their cosines. Of biases (heads, S, S) a map for each of the first heads.

    Raises:
        ValueError: the layer adds nothing.
    """
    import numpy as np
    from matplotlib.figure import Figure

    places, hidden_dim = np.arange(length), getattr(positions, "hidden_dim", hidden_dim)
    bias, rotation = positions.bias(places, places, is_causal), positions.rotation(places, is_causal)
    if bias is not None:
        maps = {f"head {head + 1}": bias for head, bias in enumerate(_array(bias)[:HEADS])}
        return _maps(maps, "position of the key", "position of the query")
    if rotation is not None:
        angles = _array(rotation[0])[:, : _array(rotation[0]).shape[-1] // 2]
        return _maps({"cosine of the angle": angles}, "pair of dimensions", "position")
    vectors = _array(positions.embed(np.zeros((1, length, hidden_dim), "float32"), places))[0]
    if not vectors.any():
        raise ValueError(f"expected positions that add something; received: {type(positions).__name__}")
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_map(figure, left, vectors, "what is added", ("dimension", "position"))
    tell_lines_apart(right)
    for dimension in (one for one in CURVES if one < hidden_dim):
        right.plot(places, vectors[:, dimension], label=f"dimension {dimension}")
    right.set(title="single dimensions", xlabel="position")
    right.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _maps(maps: Mapping[str, Any], across: str, down: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.8 + 2.8 * len(maps), 3.2), layout="constrained")
    for axes, (title, values) in zip(_row(figure, len(maps)), maps.items(), strict=True):
        _draw_map(figure, axes, values, title, (across, down))
    return figure


def _row(figure: Figure, count: int) -> Sequence[Any]:
    return list(figure.subplots(1, count, squeeze=False)[0])


def _draw_map(figure: Figure, axes: Any, values: Any, title: str, names: tuple[str, str]) -> None:
    image = axes.imshow(values, cmap="viridis", aspect="auto", interpolation="nearest")
    axes.set(title=title, xlabel=names[0], ylabel=names[1])
    figure.colorbar(image, ax=axes)


def _array(tensor: Any) -> Any:
    import keras

    return keras.ops.convert_to_numpy(tensor)
