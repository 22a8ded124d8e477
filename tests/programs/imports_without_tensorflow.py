"""`imports_without_tensorflow.py MODULE …`: imports modules where TensorFlow cannot be imported."""

import importlib
import sys

sys.modules["tensorflow"] = None  # type: ignore[assignment]
for name in sys.argv[1:]:
    importlib.import_module(name)
