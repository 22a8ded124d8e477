"""Makes the ASGI application of the routes: who may ask, for what, and what each answer's header and log line say."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.serving import described as a
from keras_transformer.serving.batching import Refusal
from keras_transformer.serving.described import JSON, LIBRE, OWN, Door, openapi
from keras_transformer.serving.hosting import Host, Limits
from keras_transformer.serving.libretranslate import libre_doors
from keras_transformer.serving.openai_api import openai_doors
from keras_transformer.serving.own_api import own_doors
from keras_transformer.serving.service import Keys, Service, Telemetry, service_of
from keras_transformer.serving.wire import CLOSE, LOG, failure_of, log_failure, read_values

PAGE = Path(__file__).parent / "page"
# The page loads nothing from elsewhere, and runs no script but its own.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
POLICY = "default-src 'none'; frame-ancestors 'none'"
HEADERS = {
    "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin", "Content-Security-Policy": POLICY, "Cache-Control": "no-store",
}  # fmt: skip
MEDIA_TYPES = {
    ".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".json": "application/json",
    ".svg": "image/svg+xml",
}  # fmt: skip
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
ANY_HOST = "*"
PROBES = ("/health/live", "/health/ready")  # an orchestrator asks for them by the address of the moment
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
StrPath: TypeAlias = str | os.PathLike[str]
RELOADED = a.shape(models=a.several(a.STRING), is_done=a.BOOLEAN)


def application(service: Service, hosts: Collection[str] = LOCAL_HOSTS, loads: bool = True) -> Starlette:
    """Returns the ASGI application of a server.

    Args:
        service: the models, and what the routes share.
        hosts: the names under which it may be reached; "*" is any.
        loads: whether it loads the models when it starts, and ends their threads when it ends.
    """
    routes = [Route(door.path, _endpoint(door), methods=[door.method]) for door in all_doors(service.limits)]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if loads:
            await asyncio.to_thread(service.host.load)
        try:
            yield
        finally:
            if loads:
                await asyncio.to_thread(service.host.close)

    app = Starlette(
        routes=[*routes, *page_routes()],
        lifespan=lifespan,
        middleware=[Middleware(Guard, service=service, hosts=hosts)],
        exception_handlers={HTTPException: _no_route},
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def made_service(
    named: Mapping[str, str], limits: Limits | None, keys: StrPath | None, num_threads: int | None, prefix: str
) -> Service:
    """Makes what the routes share; no model is loaded yet. See `serving.app`.

    Raises:
        RequestError: a name, a prefix or the file of keys is not right.
    """
    prefix = prefix.rstrip("/")
    if prefix and not PREFIX.fullmatch(prefix):
        raise RequestError(f"expected a prefix such as /translator; received {prefix!r:.80}")
    known = None if keys is None else Keys.read(Path(keys))
    telemetry = Telemetry()
    telemetry.host = Host(named, limits, num_threads, telemetry)
    return Service(telemetry.host, telemetry, known, prefix)


def all_doors(limits: Limits) -> list[Door]:
    """Returns all routes but those of the page."""
    status, free = a.shape(status=a.STRING), partial(Door, "GET", needs_key=False, needs_models=False)
    metrics = partial(Door, "GET", needs_models=False, media_type="text/plain")
    reloading = "Loads the models again. Needs keys. 202: each of several processes will; see the log."
    return [
        *own_doors(limits),
        *libre_doors(limits),
        *openai_doors(limits),
        free("/health/live", "Tells that the server runs.", tell_live, status),
        free("/health/ready", "Tells whether the models answered probes here.", tell_ready, status),
        free("/openapi.json", "Tells this document.", tell_document, a.OBJECT),
        metrics("/metrics", "Tells metrics, for Prometheus.", tell_metrics, a.STRING),
        Door("POST", "/v1/reload", reloading, reload, RELOADED),
    ]


async def tell_document(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/openapi.json`."""
    service, limits = service_of(http), service_of(http).limits
    return JSONResponse(openapi(all_doors(limits), service.prefix, limits.seconds, limits.max_body_bytes))


async def tell_live(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/health/live`."""
    return JSONResponse({"status": "live"})


async def tell_ready(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/health/ready`: whether the models are loaded, warm, and answered their probes on this machine."""
    service = service_of(http)
    if service.host.is_ready and not service.is_draining:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "draining" if service.is_draining else "loading"}, 503)


async def tell_metrics(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/metrics`."""
    return Response(service_of(http).telemetry.text(), media_type="text/plain; version=0.0.4")


async def reload(http: Request, given: dict[str, JSON]) -> Response:
    """Answers `/v1/reload`."""
    service = service_of(http)
    if service.keys is None:
        raise HTTPException(
            403, "models are loaded again by whoever has a key, and this server has no keys: send SIGHUP"
        )
    if service.supervisor is not None:
        os.kill(service.supervisor, signal.SIGHUP)
        return JSONResponse({"models": [*service.host.models], "is_done": False}, 202)
    try:
        await asyncio.to_thread(service.host.load)
    except (RequestError, JobError) as error:  # it tells folders
        log_failure(JobError(error), http.state.request_id)
        raise HTTPException(500, "the models could not be loaded, and those before go on: see the log") from error
    return JSONResponse({"models": [*service.host.models], "is_done": True})


def page_routes() -> list[Route]:
    """Returns the routes of the page: the files that are there when the server starts, and no others."""
    return [_file_route(path) for path in sorted(PAGE.glob("*.*"))]


def _file_route(path: Path) -> Route:
    content = path.read_bytes()
    headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache"}

    async def tell(http: Request) -> Response:
        http.state.route = "page"
        return Response(content, media_type=MEDIA_TYPES[path.suffix], headers=headers)

    return Route("/" if path.name == "index.html" else f"/{path.name}", tell, methods=["GET"])


def _endpoint(door: Door) -> Callable[[Request], Awaitable[Response]]:
    """Returns what answers the requests of a route, and tells its errors in the route's shape."""

    is_key_in_body = door.errors == LIBRE and door.body is not None

    async def endpoint(http: Request) -> Response:
        http.state.route = door.path
        service = service_of(http)
        try:
            admit = partial(require_key, service, http) if door.needs_key else _anybody
            if not is_key_in_body:
                admit(None)
                admit = _anybody
            if door.needs_models:
                accept(service, http)
            given: dict[str, JSON] = {}
            if door.body:
                most = service.limits.max_body_bytes
                given = door.body.read(await read_values(http, most, door.errors == LIBRE, admit))
            return await door.answer(http, given)
        except Exception as error:
            return _failed(http, error, door.errors)

    return endpoint


def _anybody(key: str | None) -> None:
    """Asks for no key."""


def accept(service: Service, http: Request) -> None:
    """Counts a request among those that are answered before the server ends.

    Raises:
        Refusal: the models are being loaded, or the server ends.
    """
    if service.is_draining or not service.host.is_ready:
        why = "the server is about to end" if service.is_draining else "the models are being loaded"
        raise Refusal(503, "unavailable", f"{why}: try again later", 1.0)
    service.num_accepted += 1
    http.state.is_accepted = True


def require_key(service: Service, http: Request, in_body: str | None) -> None:
    """Raises HTTPException unless a request has a key of the server, where the server has keys, and Refusal where its
    rate is reached."""
    scheme, _, token = http.headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else None
    key = bearer or http.headers.get("x-api-key") or in_body
    if service.keys is not None and not service.keys.admit(key):
        told = "expected a key: send the header Authorization: Bearer KEY, or X-API-Key: KEY"
        raise HTTPException(401, told, {"WWW-Authenticate": "Bearer"})


def _failed(http: Request, error: Exception, errors: str) -> Response:
    log_failure(error, http.state.request_id)
    failure = failure_of(error)
    if errors == LIBRE:  # which has codes of its own
        failure = failure._replace(status={401: 403, 413: 400}.get(failure.status, failure.status))
    http.state.error = failure.code
    return JSONResponse(failure.as_json(errors, http.state.request_id), failure.status, dict(failure.headers))


async def _no_route(http: Request, error: Exception) -> Response:
    told = {404: "there is nothing here: see /openapi.json", 405: "this route has another method: see /openapi.json"}
    status = failure_of(error).status
    return _failed(http, HTTPException(status, told.get(status), failure_of(error).headers), OWN)


class Guard:
    """Gives each request an id, refuses names of hosts that are not the server's, and logs one line without any text.

    Args:
        app: what answers.
        service: with the metrics.
        hosts: the names under which the server may be reached.
    """

    def __init__(self, app: ASGIApp, service: Service, hosts: Collection[str]):
        self.app, self.service, self.hosts = app, service, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as ASGI wants it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, http = time.perf_counter(), Request(scope, receive)
        wished = http.headers.get("x-request-id", "")
        http.state.request_id = wished if REQUEST_ID.fullmatch(wished) else f"{random.getrandbits(64):016x}"
        http.state.route, http.state.error, http.state.num_inputs, http.state.is_accepted = "other", "", 0, False
        self._take_prefix(scope)
        status = 0

        async def telling(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._add_headers(message, http.state.request_id)
            await send(message)

        try:
            await self._answer(scope, receive, telling, http)
        except ClientDisconnect:
            status, http.state.error = 499, "dropped"
        except Exception as error:  # of what made no answer
            failed = _failed(http, error, OWN)
            if not status:
                await failed(scope, receive, telling)
        finally:
            self.service.num_accepted -= http.state.is_accepted
            self._note(http, status, time.perf_counter() - begun)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, http: Request) -> None:
        host, prefix = HOST.fullmatch(http.headers.get("host", "")), self.service.prefix
        is_probe = scope["path"].removeprefix(prefix) in PROBES
        if ANY_HOST in self.hosts or is_probe or (host and host[1].lower() in self.hosts):
            # The addresses in the page are relative.
            app = RedirectResponse(f"{prefix}/", 308) if prefix and scope["path"] == prefix else self.app
            await app(scope, receive, send)
        else:
            told = "expected a name of this server as Host; received another: start it with --allow-host NAME"
            await _failed(http, HTTPException(421, told, CLOSE), OWN)(scope, receive, send)

    def _take_prefix(self, scope: Scope) -> None:
        """Tells the routes of the prefix, which a proxy may have taken off the path, or not."""
        if prefix := self.service.prefix:
            if not f"{scope['path']}/".startswith(f"{prefix}/"):
                scope["path"] = prefix + scope["path"]
            scope["root_path"] = prefix

    def _add_headers(self, message: Message, request_id: str) -> None:
        headers = MutableHeaders(scope=message)
        headers["X-Request-Id"] = request_id
        for name, value in HEADERS.items():
            headers.setdefault(name, value)
        if self.service.is_draining:
            headers["Connection"] = "close"

    def _note(self, http: Request, status: int, seconds: float) -> None:
        state = http.state
        self.service.telemetry.request(state.route, status, seconds, state.error)
        inputs = f" inputs={state.num_inputs}" if state.num_inputs else ""
        method = http.method if http.method in ("GET", "HEAD", "POST") else "other"
        error = f" {state.error}" if state.error else ""
        LOG.info(
            "%s %s %d %.0fms%s%s id=%s", method, state.route, status, 1000 * seconds, inputs, error, state.request_id
        )
