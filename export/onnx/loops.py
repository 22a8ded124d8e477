"""Writes loops as ONNX `Loop` nodes: any loop of `ops`, and the search's, which drops the sentences that are done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import keras
import numpy as np

from .graph import Graph
from .operations import operation
from .tracer import Array, Nest, Operand, Size, SymbolicTensor, Tracer, same

Body = Callable[..., Sequence[Nest]]
DONE_SHARE = 8  # a round ends when one in so many of its sentences is done
# The state of a search, and what its steps are given, see `keras_transformer.search.loop`.
State: TypeAlias = Nest
Advance: TypeAlias = Callable[[State, State], State]
Done: TypeAlias = Callable[[State], SymbolicTensor]


class Variable(NamedTuple):
    """What a loop knows of one of its variables while its body is recorded."""

    first: Array | None  # before the loop
    sizes: list[Size]  # in the loop; None where they change
    is_fixed: bool  # whether the body hands on what it gets


@operation
def _while_loop(r: Tracer, cond: Callable[..., Operand], body: Body, loop_vars: Nest) -> Nest:
    return loop(r, cond, body, loop_vars, r.as_type(cond(*loop_vars), "bool"))


def loop(r: Tracer, cond: Callable[..., Operand], body: Body, loop_vars: Nest, starts: Array) -> Nest:
    """Writes a loop that goes on while `cond(*loop_vars)` is true; `starts` tells whether it begins."""
    flat = [
        one if one is None or isinstance(one, SymbolicTensor) else r.array(one) for one in keras.tree.flatten(loop_vars)
    ]
    depth, variables, inside, after = recorded_body(r, body, loop_vars, flat)
    goes_on = r.as_type(cond(*keras.tree.pack_sequence_as(loop_vars, after)), "bool")
    graph, moving = r.graphs[-1], [place for place, one in enumerate(variables) if not one.is_fixed]
    outputs = graph.distinct([name_of(r, graph, one) for one in (goes_on, *(after[place] for place in moving))])
    r.leave()
    outer = r.graphs[-1]
    given = [name_of(r, outer, one) for one in (starts, *(flat[place] for place in moving))]
    names = outer.loop(graph, [inside[place].described() for place in moving], given, outputs)
    for name, place in zip(names, moving, strict=True):
        sizes = [
            None if isinstance(size, SymbolicTensor) and size.depth >= depth else size
            for size in variables[place].sizes
        ]
        flat[place] = SymbolicTensor(r, name, inside[place].dtype, sizes, depth - 1)
    return keras.tree.pack_sequence_as(loop_vars, flat)


def recorded_body(
    r: Tracer, body: Body, loop_vars: Nest, flat: Sequence[Array | None]
) -> tuple[int, list[Variable], list[Nest], list[Nest]]:
    """Records a body again until the sizes that change and the variables that do not are known.

    Args:
        r, body, loop_vars: what records, the body, and its variables before the loop.
        flat: the variables, symbolic values, arrays or None.

    Returns:
        The depth of the graph that was entered for the body, what is known of the variables, the variables as the body
        gets them, and as it hands them on.
    """
    variables = [Variable(one, [] if one is None else [*r.sizes_of(one)], one is None) for one in flat]
    while True:
        depth = r.enter()
        inside = [_inside(r, one) for one in variables]
        after = keras.tree.flatten(tuple(body(*keras.tree.pack_sequence_as(loop_vars, inside))))
        known = [_known(r, *each) for each in zip(variables, inside, after, strict=True)]
        if all(one is other for one, other in zip(known, variables, strict=True)):
            return depth, variables, inside, after
        r.leave()
        variables = known


def _inside(r: Tracer, variable: Variable) -> Array | None:
    """Returns a variable as the body gets it."""
    if variable.is_fixed or variable.first is None:
        return variable.first
    dtype = str(variable.first.dtype)
    return SymbolicTensor(r, r.graphs[-1].new_name("state"), dtype, [*variable.sizes], len(r.graphs) - 1)


def _known(r: Tracer, variable: Variable, inside: Nest, after: Nest) -> Variable:
    """Returns what is known of a variable after the body was recorded.

    Raises:
        Untraceable: the body changes the type or the number of axes.
    """
    if after is inside:
        return variable if variable.is_fixed else variable._replace(is_fixed=True)
    sizes = r.sizes_of(after)
    after_type = after.dtype if isinstance(after, SymbolicTensor) else str(r.array(after).dtype)
    if after_type != str(inside.dtype) or len(sizes) != len(variable.sizes):
        raise r.untraceable(f"a loop that makes {after_type} {sizes} of {inside.dtype} {variable.sizes}")
    known = [one if one is None or same(one, size) else None for one, size in zip(variable.sizes, sizes, strict=True)]
    return variable if known.count(None) == variable.sizes.count(None) else variable._replace(sizes=known)


def name_of(r: Tracer, graph: Graph, value: Operand) -> str:
    """Returns the name in a graph of a symbolic value, or of a constant."""
    return value.name if isinstance(value, SymbolicTensor) else graph.value(r.array(value))


def run_loop_in_rounds(
    r: Tracer,
    advance: Advance,
    state: State,
    done: Done,
    given: State,
    begin: Callable[[State], State] = lambda state: state,
) -> State:
    """Writes `run_loop` in rounds: when one sentence in `DONE_SHARE` is done, the next round goes on with the others.

    The outer loop runs rounds, the inner loop the steps of a round. After a round the state of its sentences goes to
    their places in the results.
    """
    rounds = _Rounds(r, advance, type(state), done, type(given))
    batch = r.size(done(state), 0)
    results = [value for name, value in state._asdict().items() if rounds.is_result(name, value)]
    active = r.arange(batch)
    begun = tuple(begin(state))
    first = rounds.kept(state, (active, begun, tuple(given), r.seen))
    r.rounds.append((len(r.graphs), batch))
    results, (_, last, *_) = loop(r, rounds.goes_on, rounds.next, (results, first), rounds.goes_on(results, first))
    r.rounds.pop()
    r.num_sharing, r.seen = 1, None
    found = iter(results)
    return rounds.state_of(
        next(found) if rounds.is_result(name, old) else new
        for (name, old), new in zip(state._asdict().items(), last, strict=True)
    )


class _Rounds:
    """The body of the loop of rounds. What it hands on: the results, and of the active sentences their places in the
    batch, their state, what is given of them, and which keys their beams see."""

    def __init__(self, r: Tracer, advance: Advance, state_type: type[State], done: Done, given_type: type[State]):
        self.r = r
        self.advance = advance
        self.state_type = state_type
        self.done = done
        self.given_type = given_type

    def state_of(self, values: Iterable[Nest]) -> State:
        return self.state_type(*values)

    def is_result(self, name: str, value: Operand) -> bool:
        """Whether a field of the state has a place for each sentence in the results."""
        return name != "cache" and bool(self.r.sizes_of(value))

    def of_sentences(self, function: Callable[[SymbolicTensor], SymbolicTensor], nest: Nest) -> Nest:
        """Applies a function to each value of a nest that has a row for each sentence."""
        return keras.tree.map_structure(
            lambda value: function(value) if value is not None and self.r.sizes_of(value) else value, nest
        )

    def kept(self, state: State, nest: Nest) -> Nest:
        """Keeps the rows of the sentences that are not done."""
        is_left = self.r.logical_not(self._is_done(state))
        left = self.r.squeeze(self.r.emit("NonZero", is_left, dtype="int64", sizes=[1, None]), 0)
        return self.of_sentences(lambda value: self.r.take(value, left, axis=0), nest)

    def _is_done(self, state: State) -> SymbolicTensor:
        """(A,) Whether a sentence is done: all its samples are, where `done` tells of each."""
        done = self.done(state)
        return done if done.ndim == 1 else self.r.all(done, axis=-1)

    def goes_on(self, results: Nest, active: Nest) -> SymbolicTensor:
        """Whether a sentence is left. Not by a comparison: sizes are on the host, and the number would be copied."""
        return self.r.cast(self.r.emit("Size", active[0], dtype="int64", sizes=[]), "bool")

    def next(self, results: Nest, active: Nest) -> Nest:
        """Runs a round."""
        r, (places, state, given, seen) = self.r, active
        count = r.size(places, 0)

        def sized(value: SymbolicTensor) -> SymbolicTensor:
            if isinstance(value, SymbolicTensor) and value.sizes[0] is None:
                value.sizes[0] = count
            return value

        state, given, seen = self.of_sentences(sized, (state, given, seen))
        given = self.given_type(*given)

        def goes_on(seen: SymbolicTensor | None, *fields: Nest) -> SymbolicTensor:
            # Negative while fewer than one in `DONE_SHARE` are done.
            return r.less(r.sum(r.where(self._is_done(self.state_of(fields)), DONE_SHARE - 1, -1)), 0)

        def body(seen: SymbolicTensor | None, *fields: Nest) -> tuple:
            r.seen = seen
            self.count_beams((seen, *fields))
            new = self.advance(self.state_of(fields), given)
            return r.seen, *new

        seen, *fields = loop(r, goes_on, body, (seen, *state), np.array(True))
        new = self.state_of(fields)
        at = r.expand_dims(places, -1)
        rows = [value for name, value in new._asdict().items() if self.is_result(name, value)]
        results = [
            r.emit("ScatterND", old, at, row, dtype=old.dtype, sizes=old.sizes)
            for old, row in zip(results, rows, strict=True)
        ]
        return results, self.kept(new, (places, tuple(new), tuple(given), seen))

    def count_beams(self, nest: Nest) -> None:
        """Gives the axis of beams one size in all values (A, K, ...): beams that share keys begin as one."""
        values = [one for one in keras.tree.flatten(nest) if isinstance(one, SymbolicTensor) and self.r.num_sharing > 1]
        unknown = [one for one in values if one.ndim > 1 and one.sizes[1] is None]
        for value in unknown:
            value.sizes[1] = self.r.size(unknown[0], 1)
