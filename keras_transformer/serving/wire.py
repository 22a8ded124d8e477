"""Reads what clients send, within bounds, works for them only as long as they stay, and tells them what went wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.core.schema import Mismatch, parse_json, printable
from keras_transformer.serving.batching import Part, Refusal
from keras_transformer.serving.described import JSON, LIBRE, OPENAI, OWN

LOG = logging.getLogger("keras_transformer.serving")
BODY_SECONDS = 20.0  # in which a body must have come
BOUNDARY = re.compile(r"""(?i)\bboundary="?([\w'()+,./:=?-]{1,70})""", re.ASCII)
PART_NAME = re.compile(rb'(?i)\bname="([^"\r\n]*)"')
KEY = re.compile(rb'"api_key"\s{0,9}:\s{0,9}("(?:[^"\\\x00-\x1f]|\\.){0,400}")')
MOST_PARAMETERS = 1_000  # bytes of a form's head that are read
MOST_FIELDS = 2_000  # of a form
CLOSE = {"Connection": "close"}  # what is left of the body is not read
Result = TypeVar("Result")
Answer = TypeVar("Answer")


class Work(Protocol[Answer]):
    """What a client waits for; see `batching.Request`."""

    def cancel(self) -> None:
        """Ends it, because nobody waits any more."""

    async def answers(self) -> list[Answer]:
        """Returns all answers."""

    def parts(self) -> AsyncIterator[Part[Answer]]:
        """Yields each part of an answer when it is done."""


async def read_body(http: Request, most: int) -> bytes:
    """Returns the body of a request. It is never kept beyond its bound.

    Raises:
        HTTPException: it is too large, or comes too slowly.
    """
    too_large = HTTPException(413, f"expected a body of at most {most:,} bytes: divide the request", CLOSE)
    declared = http.headers.get("content-length", "0")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in http.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, f"the body did not come within {BODY_SECONDS:g} seconds", CLOSE) from None
    return bytes(body)


async def read_values(http: Request, most: int, takes_forms: bool, admit: Callable[[str | None], object]) -> JSON:
    """Returns what a request holds: JSON, or where forms are taken those, and values in the address.

    Args:
        http: the request.
        most: the most bytes of its body.
        takes_forms: whether it may be a form.
        admit: takes the key in the body, if there is one, before JSON is parsed.

    Raises:
        HTTPException: see `read_body`, or the body has another type.
        Mismatch: it is not JSON, or no form.
    """
    kind, _, parameters = http.headers.get("content-type", "").partition(";")
    kind = kind.strip().lower()
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if not (is_json or takes_forms):
        raise HTTPException(415, "expected JSON: send the header Content-Type: application/json", CLOSE)
    body = await read_body(http, most)
    try:
        if is_json:
            admit(_key_in(body))
            return parse_json(body, object, is_strict=True)
        in_body = _multipart(body, parameters) if kind == "multipart/form-data" else _pairs(body)
        values = _pairs(http.scope["query_string"]) | in_body
        admit(values.get("api_key"))
        return {name: value.replace("\r\n", "\n") for name, value in values.items()}  # forms end lines with both
    except Mismatch:
        raise
    except ValueError as error:  # of UTF-8, JSON or a form; its own text may hold what was sent
        raise Mismatch(
            f"expected {'JSON' if is_json else 'a form'} in UTF-8; received another text ({_where(error)})"
        ) from None


def _key_in(body: bytes) -> str | None:
    """Returns the key in JSON, without reading what else there is."""
    found = KEY.search(body)
    key = found and parse_json(found[1], object)
    return key if isinstance(key, str) else None


def _where(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start}"
    return "it is damaged, or too large"


def _pairs(text: bytes) -> dict[str, str]:
    return dict(parse_qsl(text.decode("utf-8"), True, errors="strict", max_num_fields=MOST_FIELDS))


def _multipart(body: bytes, parameters: str) -> dict[str, str]:
    """Returns the names and values of a form in parts (RFC 7578). No part holds parts, and each byte is read once."""
    found = BOUNDARY.search(parameters[:MOST_PARAMETERS])
    parts = (b"\r\n" + body).split(b"\r\n--" + found[1].encode()) if found else []
    if not 3 <= len(parts) <= MOST_FIELDS:
        raise Mismatch("expected a form in parts; received another text: see RFC 7578")
    pairs = dict[str, str]()
    for part in parts[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        if name := PART_NAME.search(head[:MOST_PARAMETERS]):
            pairs[name[1].decode("utf-8")] = content.decode("utf-8")
    return pairs


async def answers_of(http: Request, work: Work[Answer]) -> list[Answer]:
    """Returns the answers of work for a client; the work ends if the client leaves, or time is over.

    Raises:
        ClientDisconnect: the client left.
        Refusal: time is over.
    """
    return await _unless_gone(http.receive, _in_time(work.answers(), _seconds_of(http)), work)


def _seconds_of(http: Request) -> float:
    seconds: float = http.app.state.service.limits.seconds
    return seconds


async def _in_time(coroutine: Awaitable[Result], seconds: float, until: float | None = None) -> Result:
    try:
        async with asyncio.timeout(seconds) if until is None else asyncio.timeout_at(until):
            return await coroutine
    except TimeoutError:
        raise Refusal(504, "timed_out", f"no answer within {seconds:g} seconds: send less, or try again", 1.0) from None


async def _unless_gone(receive: Receive, coroutine: Coroutine[object, object, Result], work: Work[Answer]) -> Result:
    """Awaits a coroutine while a client stays. What ends it early ends the work."""
    done, gone = asyncio.ensure_future(coroutine), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({done, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise ClientDisconnect
        return done.result()
    except BaseException:
        work.cancel()
        raise
    finally:
        done.cancel()
        gone.cancel()
        await asyncio.gather(done, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    """Returns when the client has left. Starlette's `is_disconnected` alone does not wait."""
    while (await receive())["type"] != "http.disconnect":
        pass


def event(data: JSON, name: str = "") -> bytes:
    """Returns a server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


class Events(StreamingResponse, Generic[Answer]):
    """Tells a client events as they come; the work ends if the client leaves, or time is over. What goes wrong is the
    last event.

    Args:
        http: the request.
        events: what is told, encoded.
        work: what is ended early.
        errors: the shape of an error.
    """

    def __init__(self, http: Request, events: AsyncGenerator[bytes, None], work: Work[Answer], errors: str = OWN):
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(self._in_time(http, events, errors), media_type="text/event-stream", headers=headers)
        self._work = work

    async def _in_time(
        self, http: Request, events: AsyncGenerator[bytes, None], errors: str
    ) -> AsyncGenerator[bytes, None]:
        seconds = _seconds_of(http)
        until = asyncio.get_running_loop().time() + seconds
        try:
            while told := await _in_time(anext(events, b""), seconds, until):
                yield told
        except Exception as error:
            self._work.cancel()
            log_failure(error, http.state.request_id)
            told = failure_of(error).as_json(errors, http.state.request_id)
            yield event(told, "error" if errors == OWN else "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As in Starlette, but it hears on every server that the client left."""
        await _unless_gone(receive, self.stream_response(send), self._work)


class Failure(NamedTuple):
    """What a client is told of an error.

    Args:
        status: of HTTP.
        code: the reason in a word.
        message: the reason for people.
        headers: of the answer.
    """

    status: int
    code: str
    message: str
    headers: Mapping[str, str] = {}

    def as_json(self, shape: str, request_id: str) -> JSON:
        """Returns what is told, in the shape of an API; see `described.ERRORS`."""
        if shape == LIBRE:
            return {"error": self.message}
        if shape == OPENAI:
            kind = "server_error" if self.status >= 500 else "invalid_request_error"
            return {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}}
        return {"error": {"code": self.code, "message": self.message, "request_id": request_id}}


CODES = {
    400: "invalid", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 408: "too_slow",
    413: "too_long", 415: "unsupported", 421: "wrong_host", 429: "overloaded", 503: "unavailable",
}  # fmt: skip
GONE = Failure(499, "dropped", "the client left")  # which nobody reads but the log


def failure_of(error: Exception) -> Failure:
    """Returns what a client is told of an error. What nobody expects is told by a number alone."""
    if isinstance(error, Refusal):
        again = {} if error.retry_after is None else {"Retry-After": str(math.ceil(error.retry_after))}
        return Failure(error.status, error.code, str(error), again)
    if isinstance(error, HTTPException):
        code = CODES.get(error.status_code, "failed")
        return Failure(error.status_code, code, error.detail, error.headers or {})
    if isinstance(error, RequestError | Mismatch):
        return Failure(400, "invalid", str(error))
    if isinstance(error, ClientDisconnect):
        return GONE
    if isinstance(error, JobError):
        return Failure(500, "inference", "the model could not answer this; the server's log has more")
    return Failure(500, "internal", "the server failed; its log has more under the request's id")


def log_failure(error: Exception, request_id: str) -> None:
    """Writes where an error arose that is the server's own fault. The error's text may hold a client's, and is left
    out, but for a failed job's."""
    if isinstance(error, JobError):
        LOG.error("%s: %s", request_id, printable(str(error)))
    elif failure_of(error).code == "internal":
        frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
        LOG.error("%s: %s\n%s", request_id, type(error).__name__, frames)
