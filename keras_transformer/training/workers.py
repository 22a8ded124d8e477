"""The workers that train together, as `TF_CONFIG` names them; without it there is one."""

from __future__ import annotations

import json
import os
from typing import Any

from keras_transformer.errors import RequestError


def num_workers() -> int:
    """How many workers train together.

    Raises:
        RequestError: `TF_CONFIG` is no JSON object.
    """
    return len(_cluster().get("cluster", {}).get("worker", [])) or 1


def worker_index() -> int:
    """This worker's number, from 0. Worker 0 is the chief, which alone writes the run folder."""
    return int(_cluster().get("task", {}).get("index", 0))


def _cluster() -> dict[str, Any]:
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        cluster = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"`TF_CONFIG` must be JSON ({error}). Received: {text!r}") from error
    if not isinstance(cluster, dict):
        raise RequestError(f"`TF_CONFIG` must be a JSON object. Received: {text!r}")
    return cluster
