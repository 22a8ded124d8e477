"""Converts a SavedModel to a TFLite file, as a function, and as a program that gives its memory back when it ends.

The program imports nothing of this project: `tflite_converter.py FOLDER SIGNATURES PRECISION TAKES_TEXT FILE`.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(folder: str, signatures: str, precision: str, takes_text: bool, path: str) -> None:
    """Converts signatures, which share their weights.

    Args:
        folder: the SavedModel.
        signatures: their names, with commas between.
        precision: "float32", "float16" or "int8".
        takes_text: whether it has operators of tensorflow-text.
        path: the file to write.
    """
    import tensorflow as tf

    if takes_text:
        import tensorflow_text  # noqa: F401 (it registers the operators)
    converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=signatures.split(","))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    converter.allow_custom_ops = takes_text
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    Path(path).write_bytes(converter.convert())


if __name__ == "__main__":
    FOLDER, SIGNATURES, PRECISION, TAKES_TEXT, FILE = sys.argv[1:]
    convert(FOLDER, SIGNATURES, PRECISION, TAKES_TEXT == "True", FILE)
