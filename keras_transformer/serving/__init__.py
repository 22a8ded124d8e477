"""Serves models over HTTP."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from keras_transformer.serving.hosting import Limits


def app(
    models: Mapping[str, str | os.PathLike[str]],
    *,
    limits: Limits | None = None,
    keys: str | os.PathLike[str] | None = None,
    num_threads: int | None = None,
    hosts: Collection[str] = ("*",),
    prefix: str = "",
) -> Starlette:
    """Returns an ASGI application that answers with models, for a server of one's own, and for tests.

    It loads the models when it starts. `keras-transformer serve` is such an application with a server around it.

        application = keras_transformer.serving.app({"en-de": "exports/en-de"})

    Args:
        models: folders of exports, or of runs that keep graphs, by the names of the models; a name such as "en-de"
            tells the languages.
        limits: what a request may hold, and what may wait.
        keys: a file with the hashes of keys; without one, whoever reaches the application may ask.
        num_threads: how many threads compute; by default one for each core.
        hosts: the names under which it may be reached; by default any, because the server in front may check them.
        prefix: the path before all routes, such as "/translator".
    """
    from keras_transformer.serving.application import application, made_service

    named = {name: os.fspath(folder) for name, folder in models.items()}
    return application(made_service(named, limits, keys, num_threads, prefix), hosts)
