"""`first_import.py RUN MODULE …`: what importing the package does, told as JSON; then a line is translated."""

import gc
import importlib
import json
import os
import sys

LIBRARIES = {"asyncio", "keras", "numpy", "tensorflow", "wrapt"}


def imported() -> list[str]:
    """The libraries that were imported."""
    return sorted(LIBRARIES & sys.modules.keys())


package = importlib.import_module("keras_transformer")
facts: dict[str, object] = {"by the package": imported()}
for name in sys.argv[2:]:
    importlib.import_module(f"keras_transformer.{name}")
facts["by its modules"] = imported()
facts["its modules"] = [getattr(package, name).__name__ for name in sys.argv[2:]]
facts["a model"] = package.Transformer.__name__
facts["a layer"] = package.layers.MultiHeadAttention.__name__
facts["a loss"] = package.losses.SmoothedCrossEntropy.__name__
facts["the garbage collector is on"] = gc.isenabled()
facts["GPU memory is taken as needed"] = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH")
facts["a translation"] = package.load(sys.argv[1]).translate("to the sea", max_length=9)
print(json.dumps(facts))
