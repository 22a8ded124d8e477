"""A model's folder as it came from outside: its files are data, bounded in size, and none lies outside the folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from keras_transformer.errors import RequestError

MAX_JSON_BYTES = 64 * 2**20


class ModelFolder:
    """A folder from outside. Nothing in it is executed.

    Args:
        path: the folder.

    Raises:
        RequestError: there is no such folder.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        if not self.path.is_dir():
            raise RequestError(
                f"expected a folder with a config.json; found none at {str(self.path)!r}: check the path"
            )

    def has(self, name: str) -> bool:
        """Whether the folder has an entry of this name, whatever it is."""
        return os.path.lexists(self.path / name)

    def file(self, name: str) -> Path:
        """The path of a file in the folder.

        Raises:
            RequestError: there is none, or it is a link that leaves the folder.
        """
        path = self.path / name
        try:
            found = path.resolve(strict=True)
        except (OSError, RuntimeError):  # a link in a circle raises either, by the version of Python
            raise RequestError(f"expected a file {name} in {self.path}; found none: download the whole model") from None
        if not found.is_relative_to(self.path.resolve()):
            raise RequestError(f"{path} is a link that leaves the folder: copy the files themselves, as with `cp -RL`")
        if not found.is_file():
            raise RequestError(f"expected a file at {path}; found something else")
        return found

    def read(self, name: str, max_bytes: int) -> bytes:
        """The content of a file.

        Raises:
            RequestError: see `file`; or it is larger than `max_bytes`.
        """
        path = self.file(name)
        if path.stat().st_size > max_bytes:
            raise RequestError(f"{self.path / name} is larger than {max_bytes:,} bytes: it is no file of such a model")
        return path.read_bytes()

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file.

        Raises:
            RequestError: see `file`; or it is too large, or holds no JSON object.
        """
        content = self.read(name, MAX_JSON_BYTES)
        try:
            values = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{self.path / name} is damaged: {str(error)[:200]}; download it again") from error
        if not isinstance(values, dict):
            raise RequestError(f"{self.path / name} is damaged: expected an object; received {values!r:.40}")
        return values


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is no JSON")
