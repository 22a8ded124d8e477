"""`first_import.py RUN MODULE …`: what importing the package does, told as JSON; then a line is translated."""

import gc
import importlib
import json
import os
import sys

LIBRARIES = {"asyncio", "keras", "numpy", "tensorflow", "wrapt"}

finders = list(sys.meta_path)
package = importlib.import_module("keras_transformer")
facts: dict[str, object] = {"by the package": sorted(LIBRARIES & sys.modules.keys())}
facts["import machinery is as it was"] = sys.meta_path == finders
importlib.import_module("keras_transformer.models")
facts["registered"] = sorted(sys.modules["keras"].saving.get_custom_objects())
facts["its modules"] = [getattr(package, name).__name__ for name in sys.argv[2:]]
facts["the garbage collector is on"] = gc.isenabled()
facts["GPU memory is taken as needed"] = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH")
facts["a translation"] = package.load(sys.argv[1]).translate("to the sea", max_length=9)
try:  # without oneDNN, TensorFlow's own allocator counts nothing
    facts["memory of tensors is kept"] = (
        sys.modules["tensorflow"].config.experimental.get_memory_info("CPU:0")["peak"] > 0
    )
except ValueError:
    facts["memory of tensors is kept"] = False
print(json.dumps(facts))
