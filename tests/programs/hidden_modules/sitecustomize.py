"""Hides the modules that an environment variable names from every process that has this folder in its path."""

import os
import sys

sys.modules.update(dict.fromkeys(os.environ.get("HIDDEN_MODULES", "").split()))  # type: ignore[arg-type]
