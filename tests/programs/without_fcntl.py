"""Imports the package's batches where there is no `fcntl`, as on Windows, as a command does."""

import sys

sys.modules["fcntl"] = None  # type: ignore[assignment]
from keras_transformer.errors import exit_status  # noqa: E402


def command() -> None:
    """Imports them."""
    import keras_transformer.text.batches  # noqa: F401


sys.exit(exit_status(command))
