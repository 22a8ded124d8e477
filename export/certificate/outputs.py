"""Checks that an artefact gives what it has to give: all outputs, finite, of their types and shapes, in every trial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.decoding.signature import Output, Searching, Signature

from ..artefacts import Artefact, BrokenArtefact
from .expected import Expected
from .runner import Answers, Result


def signatures_of(artefact: Artefact, signature: type[Signature]) -> list[str]:
    """The names of the signatures that an artefact has to have."""
    if artefact.format == "saved_model":
        return ["serving_default", *["n_best"] * issubclass(signature, Searching)]
    return [artefact.signature]


def check_outputs(expected: Expected, artefact: Artefact, result: Result) -> None:
    """Raises BrokenArtefact unless every signature gives what it has to give, and all numbers are finite."""
    names = signatures_of(artefact, expected.signature)
    if sorted(result["signatures"]) != sorted(names):
        raise BrokenArtefact(f"expected the signatures {', '.join(names)}; it has {', '.join(result['signatures'])}")
    for signature, trials in result["signatures"].items():
        takes_text = artefact.takes == "text"
        outputs = expected.signature.outputs(signature, takes_text)
        if artefact.takes == "pieces":
            outputs = {"target_pieces": Output("text", "L"), "score": outputs["score"]}
        for given, answers in trials.items():
            where = f"{signature} {given}".strip() if len(names) > 1 else given
            check_answers(expected, outputs, answers, where)  # type: ignore[arg-type]


def check_answers(expected: Expected, outputs: dict[str, Output], answers: Answers, where: str) -> None:
    """Raises BrokenArtefact unless the answers of a trial have these outputs, and all numbers are finite."""
    given = answers["types"]
    if {*given} != {*outputs}:
        raise BrokenArtefact(f"{where}: expected the outputs {', '.join(outputs)}; it gives {', '.join(given)}")
    for name, output in outputs.items():
        if given[name].startswith("float"):
            check_finite(name, answers["outputs"][name], where, allows_none="n" in output.axes)
    sizes = expected.sizes()
    for name, output in outputs.items():
        kind = f"{output.type} {1 + len(output.axes)}"
        if given[name] != kind:
            raise BrokenArtefact(f"{where}: expected {name} to be {in_words(kind)}; it is {in_words(given[name])}")
        shape = [sizes.get(axis) for axis in output.axes]
        for row in answers["outputs"][name]:
            if shape and not fits(np.shape(row), shape):
                raise BrokenArtefact(f"{where}: expected {name} of shape {shape}; it has {list(np.shape(row))}")


def check_finite(name: str, rows: Sequence[Any], where: str, allows_none: bool) -> None:
    """Raises BrokenArtefact unless all numbers are finite; -inf may be the score of a row without hypothesis."""
    for number, row in enumerate(rows, start=1):
        values = np.asarray(row, "float64")
        if not np.all(np.isfinite(values) | (allows_none & np.isneginf(values))) or (
            allows_none and values.size and not np.isfinite(values.flat[0])
        ):
            found = values[~np.isfinite(values)].flat[0]
            raise BrokenArtefact(f"{where}: {name} of text {number} is not finite: {found}")


def fits(shape: tuple[int, ...], expected: Sequence[int | None]) -> bool:
    """Whether a shape has the expected sizes; None allows every size."""
    return len(shape) == len(expected) and all(
        size is None or size == given for size, given in zip(expected, shape, strict=True)
    )


def in_words(kind: str) -> str:
    """ "float32 2" in words."""
    dtype, _, axes = kind.partition(" ")
    return f"{dtype} with {axes} ax{'i' if axes == '1' else 'e'}s"
