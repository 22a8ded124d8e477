"""Serves models on Ray Serve, on this machine or on a cluster, by as many replicas as the load asks for.

Each replica is the application that `keras-transformer serve` runs. It needs `pip install -e '.[ray-serve]'`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import keras_transformer.serving
from keras_transformer.commands.parser import COUNT, CommandParser, number_from
from keras_transformer.core.errors import JobError, RequestError, Stopped, exit_status, say
from keras_transformer.runs.export_folder import DEMO
from keras_transformer.serving.hosting import Host, Limits, named_folders
from own_ray import start_ray

NAME = "keras-transformer"
HOOK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"  # Ray's proxies ask the function that it names for middleware
OWN_HOOK = "serve_on_ray:middleware"
BUSY = 8  # requests at a replica, on average, beyond which another one is started
MOST_AT_ONCE = 1_000  # requests at a replica, whose own bound is in tokens


class Launch(NamedTuple):
    """What to serve, and what to ask of Ray.

    Args:
        models: folders by the names of the models.
        replicas: at least and at most.
        threads: of each replica.
        host, port: where clients come.
        keys: a file of keys, as `serve --keys` takes it.
        address: of a cluster; None for this machine.
        dashboard: whether Ray serves its page.
    """

    models: Mapping[str, str]
    replicas: tuple[int, int]
    threads: int
    host: str
    port: int
    keys: str | None
    address: str | None
    dashboard: bool


class RetryLater:
    """Answers 503 where a replica died before it answered. Ray's proxy answers nothing then, which clients get as 500.

    Args:
        app: the proxy's.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as ASGI wants it."""
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        await self.app(scope, receive, noted)
        if scope["type"] == "http" and not has_begun:
            error = {"code": "unavailable", "message": "a replica was lost: try again later"}
            await JSONResponse({"error": error}, 503, {"Retry-After": "1"})(scope, receive, send)


def middleware() -> list[Middleware]:
    """What Ray's proxies put around their own application."""
    return [Middleware(RetryLater)]


def serve(launch: Launch) -> None:
    """Serves until a signal comes; requests that were accepted are answered then.

    Raises:
        RequestError: a model or an option is wrong, or Ray is not there.
        JobError: a model does not answer its probes, or Ray Serve cannot begin.
    """
    check(launch)
    os.environ.setdefault(HOOK, OWN_HOOK)
    # Ray's processes import this file by its name.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    most = launch.replicas[1] * launch.threads
    with (
        start_ray(launch.address, num_cpus=most, dashboard=launch.dashboard),
        serving(launch),
        contextlib.suppress(Stopped, KeyboardInterrupt),
    ):
        say(f"ready: http://{launch.host}:{launch.port}/ serves {', '.join(launch.models)}")
        threading.Event().wait()


def check(launch: Launch) -> None:
    """Loads the models once here, so that what is wrong is told before Ray begins."""
    keras_transformer.serving.app(launch.models, keys=launch.keys)
    host = Host(launch.models, num_threads=1)
    try:
        host.load()
    finally:
        host.close()


@contextlib.contextmanager
def serving(launch: Launch) -> Iterator[None]:
    """Runs the `with` block while Ray Serve has the application."""
    ray_serve = _import_ray_serve()
    models, keys, threads = dict(launch.models), launch.keys, launch.threads
    least, most = launch.replicas

    def build() -> ASGIApp:  # in a replica; Ray takes nothing but a function for what makes an application
        return keras_transformer.serving.app(models, keys=keys, num_threads=threads)

    deployment = ray_serve.deployment(
        name=NAME,
        ray_actor_options={"num_cpus": launch.threads},
        max_ongoing_requests=MOST_AT_ONCE,
        autoscaling_config={"min_replicas": least, "max_replicas": most, "target_ongoing_requests": BUSY},
        graceful_shutdown_timeout_s=Limits().seconds,
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )(ray_serve.ingress(build)())
    try:
        options = {"host": launch.host, "port": launch.port}
        ray_serve.start(http_options=options, logging_config={"log_level": "WARNING", "enable_access_log": False})
        ray_serve.run(deployment.bind(), name=NAME, route_prefix="/")
    except (RuntimeError, ValueError) as error:
        raise JobError(f"Ray Serve could not begin: {' '.join(str(error).split()):.500}") from error
    try:
        yield
    finally:
        ray_serve.shutdown()


def _import_ray_serve() -> Any:
    try:
        found = importlib.import_module("ray.serve")
    except ModuleNotFoundError as error:
        reason = f"expected Ray Serve, of which {error.name} is not installed: pip install 'ray[serve]>=2.60,<3'"
        raise RequestError(reason) from error
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = CommandParser(prog="serve_on_ray.py", description=__doc__.splitlines()[0] if __doc__ else None)
    add = made.add_argument
    models = "as `keras-transformer serve` takes them; every machine must have the folders under the same paths"
    add("models", nargs="+", metavar="[NAME=]FOLDER", help=models)
    add("--replicas", nargs=2, type=COUNT, default=(1, 2), metavar=("N", "M"), help="from N to M (default: 1 2)")
    add("--threads", type=COUNT, default=1, metavar="N", help="of each replica (default: 1)")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: 127.0.0.1, this machine)")
    add("--port", type=number_from(1, 65_535), default=8_000, metavar="N", help="(default: 8000)")
    add("--keys", metavar="FILE", help="who may ask, as for `keras-transformer serve`")
    add("--address", help="of a Ray cluster, `auto` or HOST:PORT (default: a Ray of its own on this machine)")
    add("--dashboard", action="store_true", help="serve Ray's dashboard on this machine")
    return made


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return exit_status(lambda: serve(_launch(parser().parse_args(argv))), argv)


def _launch(given: argparse.Namespace) -> Launch:
    least, most = given.replicas
    if least > most:
        raise RequestError(f"expected --replicas N M with N of at most M; received: {least} {most}")
    folders = named_folders(given.models)
    models = {name: folder if folder == DEMO else str(Path(folder).absolute()) for name, folder in folders.items()}
    keys = given.keys and str(Path(given.keys).absolute())
    others = {name: getattr(given, name) for name in ("threads", "host", "address", "dashboard")}
    return Launch(models=models, replicas=(least, most), port=int(given.port), keys=keys, **others)


if __name__ == "__main__":
    sys.exit(main())
