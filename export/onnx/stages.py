"""A translator's search in three graphs, with the loop outside of them, where the host runs it.

`begin` makes the state before the first step, `advance` makes a state from the one before, `end` reads the hypotheses
off the last one. No shape changes from step to step: a runtime can capture `advance` once, and launch it as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
from onnx import helper

from keras_transformer import ops
from keras_transformer.spec.search_options import longest
from keras_transformer.tasks.translation.signature import beginnings, translate_ids

from ..artefacts import Decoding, TrainedRun
from .export import SOURCE
from .graph import Graph, Model, ValueInfo, write_model
from .loops import name_of, recorded_body
from .operations import broadcast_sizes
from .overrides import OVERRIDES
from .recorded import Recorded, all_same
from .recorder import Recorder, recorder_of

# Other ways make caches grow, or need tables from the host's memory.
FIXED = ("product", "embedding_lookup", "by_position", "projected_heads", "seen_softmax")
# What sizes are made of, beside `Shape`.
OF_SIZES = {"Squeeze", "Reshape", "Concat", "Cast", "Add", "Sub", "Mul", "Div", "Mod", "Min", "Max"}


def stage_models(run: TrainedRun, decoding: Decoding, precision: str) -> dict[str, Model]:
    """The graphs of a search, by the names of `export_folder.STAGES`.

    `begin`: `source_ids` (batch, source) int32 → the inputs of the others. `advance`: what the steps only read, then
    the state → the new state in the same order, of which `done` (batch,) bool tells which sentences are complete; the
    last inputs are as many as the outputs. `end`: some of the same → `ids` (batch, n, length) int32 and `scores`
    (batch, n) float32, as `translate_ids` returns them. The axis called `length` of the state is what `source` permits:
    more steps have no meaning. No size may be 0.

    Args:
        run, decoding, precision: as for `export_onnx`.

    Raises:
        Unrecordable: a part of the model has no form in ONNX here, or a size changes from step to step.
    """
    translator: Any = run.pipeline
    r: Any = recorder_of(run.model, precision, StageRecorder)
    with ops.on(r):
        ids = r.input(SOURCE)
        most = r.num_positions if decoding.max_length is None else min(decoding.max_length, r.num_positions)
        length = ops.minimum(longest(ids.sizes[1]), most)
        r.axes = {r.shape(ids)[0].name: "batch", length.name: "length"}
        prefix_ids = beginnings(translator.beginning, ids)
        ids, scores = translate_ids(run.model, ids, decoding, max_length=length, prefix_ids=prefix_ids)
        return r.models({"ids": ids, "scores": scores})


def write_stages(run: TrainedRun, paths: Mapping[str, Path], decoding: Decoding, precision: str) -> None:
    """Writes the graphs of `stage_models` to the paths of their names."""
    for name, model in stage_models(run, decoding, precision).items():
        write_model(paths[name], model, run.metadata(decoding, precision))


class StageRecorder(Recorder):
    """Divides what it records at the search's loop; what no step changes belongs to `begin`.

    Attributes:
        axes: the names of axes, by the names of their sizes; others are called as their sizes.
    """

    OVERRIDES = {name: OVERRIDES[name] for name in FIXED}

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.axes: dict[str, str] = {}
        self.overrides |= {"run_loop": self._run_loop}

    def emit(self, operator: str, *inputs: Any, **named: Any) -> Any:
        """As any recorder, but for nodes in a step that ONNX Runtime's CUDA kernels compute with tables from the host's
        memory: a captured graph would read the tables at each launch, when they have gone."""
        if any(isinstance(value, Recorded) and value.depth for value in inputs):
            if operator == "Concat" and len({self.sizes_of(one)[named["axis"]] for one in inputs}) > 1:
                return reduce(partial(self._joined, axis=named["axis"]), inputs)
            if operator == "Split" and len(inputs) > 1:
                ends = np.cumsum(inputs[1])
                places = [np.arange(end - count, end) for count, end in zip(inputs[1], ends, strict=True)]
                return [self.take(inputs[0], one, axis=named["axis"]) for one in places]
            if operator == "MatMul" and len(self.sizes_of(inputs[1])) > 2:
                inputs = self._in_one_batch(*inputs)
        return super().emit(operator, *inputs, **named)

    def _in_one_batch(self, *factors: Any) -> tuple[Any, ...]:
        """Two factors whose axes but the last two are the same."""
        shapes = [self.sizes_of(one) for one in factors]
        batch = broadcast_sizes(*(sizes[:-2] for sizes in shapes))
        return tuple(
            one if all_same(sizes[:-2], batch) else self.broadcast_to(one, [*batch, *sizes[-2:]])
            for one, sizes in zip(factors, shapes, strict=True)
        )

    def _joined(self, one: Any, other: Any, axis: int) -> Recorded:
        """Two values, one behind the other."""
        (first, second), ndim = (self.sizes_of(each)[axis] for each in (one, other)), len(self.sizes_of(one))
        if not (isinstance(first, int) and isinstance(second, int)):
            raise self.unrecordable("a step that joins values of unknown sizes")
        places = np.arange(first + second)
        is_first = (places < first).reshape(-1, *[1] * (ndim - axis - 1))
        taken = self.take(one, np.minimum(places, first - 1), axis)
        return self.where(is_first, taken, self.take(other, np.maximum(places - first, 0), axis))

    def _run_loop(
        self,
        advance: Callable[..., Any],
        state: Any,
        done: Callable[[Any], Any],
        given: Any,
        begin: Callable[[Any], Any] = lambda state: state,
    ) -> Any:
        """The last state, as the inputs of a graph of its own."""

        def body(*fields: Any) -> tuple:
            return tuple(advance(state._make(fields), given))

        loop_vars = tuple(begin(state))
        _, first, variables, inside, after = recorded_body(self, body, loop_vars)
        moving = [place for place, one in enumerate(variables) if not one.is_fixed]
        if any(None in variables[place].sizes for place in moving):
            raise self.unrecordable("a search whose sizes change from step to step")
        is_done = done(state._make(keras.tree.pack_sequence_as(loop_vars, after)))
        self.first = [first[place] for place in moving]
        self.states = [inside[place] for place in moving]
        self.advance = self.graphs[-1]
        names = self.advance.distinct([name_of(self, self.advance, after[place]) for place in moving])
        at = next(at for at, place in enumerate(moving) if after[place] is is_done)
        names[at] = self.advance.named(names[at], "done")
        self.outputs = [self._info(one, name) for name, one in zip(names, self.states, strict=True)]
        self.leave()
        self.enter()
        return state._make(keras.tree.pack_sequence_as(loop_vars, inside))

    def models(self, found: dict[str, Recorded]) -> dict[str, Model]:
        """The models, after the end was recorded."""
        begin, end = self.graphs
        outputs = [self._info(one, end.named(one.name, name)) for name, one in found.items()]
        given, models = dict[str, Recorded](), {}
        for name, graph, out in (("advance", self.advance, self.outputs), ("end", end, outputs)):
            own = _alone(self, graph, self.states)
            given |= own
            models[name] = Model(graph, [self._info(one) for one in [*own.values(), *self.states]], out)
        self.leave()
        for one, state in zip(self.first, self.states, strict=True):
            begin.named(name_of(self, begin, one), state.name)
        taken = [self._info(one) for one in [*given.values(), *self.states]]
        return {"begin": Model(begin, [SOURCE], taken), **models}

    def _info(self, value: Recorded, name: str | None = None) -> ValueInfo:
        """A value as an input or an output. Axes of one size have one name."""
        shape = [self.axes.get(size.name, size.name) if isinstance(size, Recorded) else size for size in value.sizes]
        return ValueInfo(name or value.name, np.dtype(value.dtype), shape)


def _alone(r: Recorder, graph: Graph, states: Sequence[Recorded]) -> dict[str, Recorded]:
    """Makes a body the graph of a model, which looks sizes up at its inputs. Returns what it takes beside its state."""
    before = {name: node for node in r.graphs[0].nodes for name in node.output}
    scalars = {vector.name: scalar for scalar, vector in r.vectors.items()}
    axes = _axes(states)

    @cache
    def is_size(name: str) -> bool:
        """Whether a value from before the loop is made of sizes alone: numbers on the host."""
        node = before[name]
        made_of = [one for one in node.input if one in before]
        is_made = node.op_type in OF_SIZES and bool(made_of) and all(map(is_size, made_of))
        return is_made or name in axes or node.op_type == "Shape"

    given: dict[str, Recorded] = {}
    sizes: dict[str, bool] = {}  # whether they are looked up
    copied: list[onnx.NodeProto] = []

    def take(name: str) -> None:
        if name not in before or name in given or name in sizes:
            return
        if not is_size(name):
            given[name] = r.value_of(name)
            return
        sizes[name] = scalars.get(name, name) in axes or before[name].op_type == "Shape"
        if not sizes[name]:
            for one in before[name].input:
                take(one)
            copied.append(before[name])

    for node in graph.nodes:
        for name in node.input:
            take(name)
    axes |= _axes([*given.values()])
    looked_up = {name: scalars.get(name, name) for name in sizes if sizes[name]}
    if not axes.keys() >= {*looked_up.values()}:
        raise r.unrecordable("a step that takes the size of a value, but not the value")
    nodes = [node for name, size in looked_up.items() for node in _lookup(graph, name, axes[size], size != name)]
    graph.stand_alone([*nodes, *copied])
    return given


def _axes(values: Sequence[Recorded]) -> dict[str, tuple[str, int]]:
    """Where the sizes of values can be looked up: (value, axis) by the name of the size."""
    return {
        size.name: (value.name, axis)
        for value in values
        for axis, size in enumerate(value.sizes)
        if isinstance(size, Recorded)
    }


def _lookup(graph: Graph, name: str, place: tuple[str, int], is_vector: bool) -> list[onnx.NodeProto]:
    """The nodes that make a size, as a vector (1,) or as a scalar."""
    value, axis = place
    vector = name if is_vector else graph.new_name("Shape")
    nodes = [helper.make_node("Shape", [value], [vector], name=vector, start=axis, end=axis + 1)]
    if not is_vector:
        nodes.append(helper.make_node("Squeeze", [vector], [name], name=name))
    return nodes
