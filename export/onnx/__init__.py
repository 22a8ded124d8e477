"""ONNX: translators of ids and of text, with the search inside; and encoder and step, for a caller's own loop."""

from .export import (
    INT8_OPERATORS,
    TEXT_OPERATORS,
    encoder_model,
    export_onnx,
    ids_model,
    step_model,
    text_model,
    translate_model,
    write_computation,
    write_graph,
)

__all__ = [
    "INT8_OPERATORS",
    "TEXT_OPERATORS",
    "encoder_model",
    "export_onnx",
    "ids_model",
    "step_model",
    "text_model",
    "translate_model",
    "write_computation",
    "write_graph",
]
