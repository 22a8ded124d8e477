"""Translates with an export in Python, in bulk and by the commands, and tells at the end what was imported for it."""

import json
import sys

import numpy as np

import keras_transformer
from bulk_translator import BulkTranslator
from keras_transformer.__main__ import main

HEAVY = {"keras", "tensorflow", "jax", "torch", "onnx", "ray", "pandas", "pyarrow"}


def texts(export: str) -> list[str]:
    """The translations of one text in three ways."""
    translator = keras_transformer.load(export)
    (in_bulk,) = BulkTranslator(export)({"text": np.array(["two dogs"], object)})["translation"]
    return [translator.translate("two dogs", num_beams=3), translator.translate("two dogs", num_beams=2), in_bulk]


if __name__ == "__main__":
    export, text = sys.argv[1:]
    files = ["--source", text, "--target", text]
    wrong = [main(["score", "nowhere", *files]), main(["score", export, *files[:-1], "nothing"])]
    found = {"wrong": wrong, "texts": texts(export), "score": main(["score", export, *files])}
    print(json.dumps({**found, "imported": sorted(HEAVY & set(sys.modules))}))
