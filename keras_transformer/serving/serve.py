"""The command `serve`: a server around the application, which finishes what it accepted before it ends."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING

from keras_transformer.commands.parser import COUNT, FEW, number_from
from keras_transformer.core.errors import (
    JobError,
    RequestError,
    Stopped,
    exit_status,
    print_result,
    raise_if_stopped,
    say,
    warn,
)
from keras_transformer.core.machine import num_cores

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from uvicorn import Server
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from keras_transformer.serving.service import Service

HEADER_SECONDS = 10.0  # in which the headers of a request must have come
MOST_HEADER_BYTES = 2**15
KEEP_ALIVE_SECONDS = 30
UNREAD_SECONDS = 60.0  # in which a client must go on reading an answer
GRACEFUL_SECONDS = 5  # for connections that are open when all answers were given
ONE_SIGNAL_SECONDS = 1.0  # in which the same signal may come from the group and from the supervisor
MOST_CONNECTIONS = 900  # beyond which requests are refused by 503; systems let a process open 1,024 files
BACKLOG = 2_048
PAUSES = (1.0, 60.0)  # seconds before a process that could not begin is tried again: at first, and at most
TICK = 0.02  # seconds between two looks whether all answers were sent


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments and options of `serve`."""
    add = parser.add_argument
    models = "an export, or a run that keeps graphs, perhaps with a name; a name such as en-de tells the languages"
    add("models", nargs="*", metavar="[NAME=]FOLDER", help=f"{models}; demo: English number words to German")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: 127.0.0.1, this machine)")
    add("--port", type=number_from(0, 65_535), default=8_000, metavar="N", help="0: any free one (default: 8000)")
    allow = "a name under which clients reach the server, beside localhost and --host; *: any"
    add("--allow-host", action="append", default=[], metavar="NAME", help=allow)
    add("--prefix", default="", metavar="PATH", help="the path before all routes, behind a proxy, such as /translator")
    add("--keys", metavar="FILE", help="who may ask: a line NAME SHA256 [REQUESTS-PER-MINUTE] for each key")
    add("--new-key", metavar="NAME", help="print a new key, and the line for --keys that knows it, and end")
    add("--threads", type=FEW, metavar="N", help="that compute (default: the cores, shared out to the processes)")
    add("--processes", type=FEW, default=1, metavar="N", help="behind the one port (default: 1)")
    add("--max-waiting-tokens", type=COUNT, metavar="N", help="beyond which requests are refused (default: 200,000)")
    add("--seconds", type=number_from(1, 3_600), metavar="N", help="for an answer, then 504 (default: 60)")


def serve(arguments: argparse.Namespace) -> None:
    """Serves models until a signal ends it.

    Raises:
        RequestError: the arguments are not right, or a model cannot be served.
        JobError: a model does not answer its probes on this machine.
    """
    import uvicorn  # noqa: F401 (the extra is missing, or not, before anything else happens)

    from keras_transformer.serving.service import new_key

    if arguments.new_key:
        for line in new_key(arguments.new_key):
            print_result(line)
        return
    if not arguments.models:
        raise RequestError("expected models to serve, as in `serve demo` or `serve en-de=FOLDER`; received none")
    with listening(arguments.host, int(arguments.port)) as listener:
        if not arguments.keys and not _is_local(listener):
            warn(f"whoever reaches {arguments.host} may ask this server, because it has no --keys")
        if arguments.processes == 1:
            run_server(arguments, listener, say)
        else:
            Supervisor(arguments, listener).run()


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Opens a socket that clients reach.

    Raises:
        RequestError: the address is not free, or not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise RequestError(
            f"cannot listen at {host}, port {port} ({error.strerror}): choose another --host or --port"
        ) from None
    # An answer's head and body are sent apart: without this the body waits 40 ms, until the client confirms the head.
    # asyncio sets it only on sockets that know their protocol, which those of `create_server` do not.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    with listener:
        yield listener


def _is_local(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def address_of(listener: socket.socket, prefix: str) -> str:
    """Returns the address of the server for a browser."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{prefix}/"


def run_server(arguments: argparse.Namespace, listener: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Serves in this process.

    Args:
        arguments: of the command.
        listener: where clients come.
        on_ready: takes the line that tells where, when the models are loaded.
    """
    from keras_transformer.serving.application import LOCAL_HOSTS, application, made_service
    from keras_transformer.serving.hosting import Limits, named_folders

    given = {"max_waiting_tokens": arguments.max_waiting_tokens, "seconds": arguments.seconds}
    limits = Limits(**{name: value for name, value in given.items() if value is not None})
    threads = arguments.threads or max(1, num_cores() // arguments.processes)
    service = made_service(named_folders(arguments.models), limits, arguments.keys, threads, arguments.prefix)
    if parent := multiprocessing.parent_process():
        service.supervisor = parent.pid
    bound = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    app = application(service, [*LOCAL_HOSTS, bound, *arguments.allow_host], loads=False)
    _log_to_standard_error()
    address = address_of(listener, service.prefix)
    try:
        asyncio.run(Running(service, server_of(app), listener).run(partial(_tell_ready, on_ready, address, service)))
    finally:
        service.host.close()


def _tell_ready(on_ready: Callable[[str], None], address: str, service: Service) -> None:
    models = ", ".join(f"{one.name} ({one.precision})" for one in service.host.models.values())
    on_ready(f"ready: {address} serves {models}")


def _log_to_standard_error() -> None:
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # it logs bytes that are no HTTP
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of clients that left
    log = logging.getLogger("keras_transformer.serving")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def _protocol() -> type[H11Protocol]:
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        """A connection, which ends where headers do not come in time, or answers are not read."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._until = self.loop.call_later(HEADER_SECONDS, self._end, None)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._until.cancel()  # it holds the last request
            self._until = self.loop.call_later(HEADER_SECONDS + KEEP_ALIVE_SECONDS, self._end, self.cycle)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._unread.cancel()

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
                if self.cycle:  # a request whose body is no HTTP; what answers it is not sent any more
                    self.cycle.disconnected = True
                    self.cycle.message_event.set()
            else:  # an answer is under way
                self.transport.close()

        def _end(self, cycle: object) -> None:
            if self.cycle is cycle and (cycle is None or self.cycle.response_complete):  # no other request has come
                self.transport.close()

    return Protocol


def server_of(app: Starlette) -> Server:
    """Returns a server for an application. What its clients send is bounded in size and time."""
    import uvicorn

    class Server(uvicorn.Server):
        """A server that leaves signals to `Running`."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app, http=_protocol(), ws="none", loop="asyncio", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_SECONDS, backlog=BACKLOG,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES, timeout_graceful_shutdown=GRACEFUL_SECONDS,
        limit_concurrency=MOST_CONNECTIONS,
    )  # fmt: skip
    return Server(config)


@dataclass
class Running:
    """A server that runs: signals end it, or let it load its models again.

    Args:
        service: what it serves.
        server: what answers.
        listener: where clients come.
    """

    service: Service
    server: Server
    listener: socket.socket
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    asked_at: float = 0.0  # to end

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serves until a signal comes; what was accepted is answered then.

        Raises:
            RequestError, JobError: a model cannot be served.
            Stopped: a signal came before.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._start(self._reload()))
        if parent := multiprocessing.parent_process():  # without a supervisor nobody would end this process
            loop.add_reader(parent.sentinel, self._without_supervisor)
        raise_if_stopped()  # before the handlers of this loop, while modules were imported
        serving = asyncio.create_task(self.server.serve([self.listener]))
        try:
            await asyncio.to_thread(self.service.host.load)
            if not self.service.is_draining:
                on_ready()
                await serving
        finally:
            self.server.should_exit = True
            await serving

    def stop(self) -> None:
        """Answers what was accepted, and ends; ends at once if it is asked again."""
        if self.service.is_draining:
            if time.monotonic() > self.asked_at + ONE_SIGNAL_SECONDS:
                self.server.should_exit = self.server.force_exit = True
            return
        self.service.is_draining, self.asked_at = True, time.monotonic()
        self._start(self._drain())

    def _without_supervisor(self) -> None:
        if not self.service.is_draining:
            self.stop()

    async def _drain(self) -> None:
        until = time.monotonic() + self.service.limits.seconds
        while self.service.num_accepted and time.monotonic() < until:
            await asyncio.sleep(TICK)
        self.server.should_exit = True

    async def _reload(self) -> None:
        """Loads the models again; those that answer go on if that fails."""
        from keras_transformer.serving.batching import Refusal

        try:
            await asyncio.to_thread(self.service.host.load)
            say(f"loaded again: {', '.join(self.service.host.models)}")
        except (RequestError, JobError, Refusal, OSError) as error:
            warn(f"the models were not loaded again, and those before go on: {error}")

    def _start(self, call: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self.tasks.add(task)  # a task that nobody holds may vanish
        task.add_done_callback(self.tasks.discard)


class Supervisor:
    """Several processes that accept clients at one socket. One that ends is replaced, as soon as that can be.

    Args:
        arguments: of the command.
        listener: where clients come.
    """

    def __init__(self, arguments: argparse.Namespace, listener: socket.socket):
        self._arguments, self._listener = arguments, listener
        self._context = multiprocessing.get_context("fork")  # nothing has threads yet
        self._children: list[ForkProcess] = []

    def run(self) -> None:
        """Serves until a signal comes.

        Raises:
            JobError: not one process could begin.
        """
        try:
            signal.signal(signal.SIGHUP, lambda number, frame: self._send(signal.SIGHUP))
            line = self._start()  # alone, so that what is wrong is told once
            self._start_others()
            say(f"{line} in {self._arguments.processes} processes")
            while True:
                self._forget_ended()
                self._start_others()
        except Stopped:
            pass
        finally:
            self._send(signal.SIGTERM)
            for child in self._children:
                child.join()

    def _start(self) -> str:
        """Starts a process; returns the line that it tells when it is ready."""
        receiver, sender = self._context.Pipe(duplex=False)
        child = self._context.Process(target=_serve_in_child, args=(self._arguments, self._listener, sender))
        child.start()
        self._children.append(child)
        sender.close()
        try:
            return str(receiver.recv())
        except Stopped:  # it serves nobody yet, and may be where it hears no signal
            child.terminate()
            child.join(GRACEFUL_SECONDS)
            child.kill()
            raise
        except EOFError:
            child.join()
            self._children.remove(child)
            raise JobError(f"a process of the server could not begin; it ended with {child.exitcode}") from None

    def _start_others(self) -> None:
        """Starts processes in the places of those that are not there; what cannot begin is tried again."""
        pause, longest = PAUSES
        while len(self._children) < self._arguments.processes:
            try:
                self._start()
            except JobError as error:
                warn(f"{error}: trying again in {pause:g} s; {sum(one.is_alive() for one in self._children)} serve")
                time.sleep(pause)
                pause = min(2 * pause, longest)

    def _forget_ended(self) -> None:
        """Waits until processes end."""
        wait([child.sentinel for child in self._children])
        for child in [one for one in self._children if not one.is_alive()]:
            self._children.remove(child)
            warn(f"a process ended with {child.exitcode}: another one takes its place")

    def _send(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.pid and child.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(child.pid, number)


def _serve_in_child(arguments: argparse.Namespace, listener: socket.socket, sender: Connection) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # before there is something to load again
    sys.exit(exit_status(lambda: run_server(arguments, listener, sender.send)))
