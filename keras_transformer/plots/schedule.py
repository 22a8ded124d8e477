"""The learning rate over the steps of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from keras_transformer.plots.lines import tell_lines_apart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 400  # of a curve


def schedule_picture(schedules: Mapping[str, Callable[[Any], Any]], num_steps: int) -> Figure:
    """The learning rate at each step, with the peak marked.

    Args:
        schedules: by their names, such as `InverseSquareRootDecay(512)`; each takes the number of updates made so far.
        num_steps: of the training.
    """
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    tell_lines_apart(axes)
    steps = np.unique(np.linspace(0, num_steps - 1, POINTS).astype(int))
    for name, schedule in schedules.items():
        rates = np.array([float(schedule(step)) for step in steps])
        peak = int(rates.argmax())
        (line,) = axes.plot(steps + 1, rates, label=name)
        axes.plot(steps[peak] + 1, rates[peak], marker="o", color=line.get_color())
        axes.annotate(f"{rates[peak]:.2g}", (steps[peak] + 1, rates[peak]), (4, 4), textcoords="offset points")
    axes.set(xlabel="step", ylabel="learning rate")
    axes.legend()
    return figure
