"""Runs a TFLite file for `runner`, with LiteRT. It imports nothing of this project."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def prepare(task: dict[str, Any]) -> Callable[[], tuple]:
    """LiteRT; for text with the operators of tensorflow_text. See `runner`."""
    from ai_edge_litert import interpreter as litert

    options: dict[str, Any] = {"num_threads": task["threads"]}
    kind = litert.Interpreter
    if task["takes"] == "text":
        from tensorflow_text.core.pybinds import tflite_registrar

        kind = litert.InterpreterWithCustomOps
        options["custom_op_registerers"] = tflite_registrar.SELECT_TFTEXT_OPS

    def load() -> tuple:
        interpreter = kind(model_path=task["paths"][0], **options)

        def answers_of(name: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
            runner = interpreter.get_signature_runner(name)
            return lambda batch: runner(**{task["input"]: given(batch)})

        def given(batch: np.ndarray) -> np.ndarray:
            return np.array([*map(to_bytes, batch)], object) if batch.dtype == object else batch

        signatures = {name: answers_of(name) for name in interpreter.get_signature_list()}
        return signatures, "CPU", "CPU", reader if task["tokenizer"] else None

    def reader(texts: Sequence[str]) -> list[list[int]]:
        interpreter = kind(model_path=task["tokenizer"], **options)
        (given,), (ids, starts) = interpreter.get_input_details(), interpreter.get_output_details()
        interpreter.resize_tensor_input(given["index"], [len(texts)])
        interpreter.allocate_tensors()
        interpreter.set_tensor(given["index"], np.array([*map(to_bytes, texts)], object))
        interpreter.invoke()
        ids, starts = (interpreter.get_tensor(one["index"]) for one in (ids, starts))
        return [row.tolist() for row in np.split(ids, starts[1:-1])]

    return load


def to_bytes(text: str) -> bytes:
    """UTF-8; a byte that was none stands in the text as a surrogate."""
    return text.encode("utf-8", "surrogateescape")
