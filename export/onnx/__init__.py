"""ONNX: translators of ids and of text, with the search inside; and encoder and step, for a caller's own loop."""

from .export import export_onnx as export_onnx
