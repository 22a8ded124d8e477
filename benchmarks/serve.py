"""Compares servers under load on this machine: ours, and other ways to serve the same weights.

    python -m benchmarks.serve EXPORT --text test.en.gz --source en --against 'batches of one'
    python -m benchmarks.serve EXPORT --text test.en.gz --source en --against CTranslate2 --ctranslate2 FOLDER
    python -m benchmarks.serve EXPORT --text test.en.gz --source en --against 'a loop' --clients 1 --strings 50

Both servers run, and take turns: so many clients send the lines of the text, each its next request when it has the
answer to the last. The table has our lines a second, how many times longer the other takes (the median of the rounds,
with quartiles), and how many lines both translate the same. Then the milliseconds of our requests: the median with one
client; the 95th percentile where requests come at random, half as many a second as 64 clients were answered; and where
half of the clients send as before.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate, islice
from types import TracebackType
from typing import NamedTuple, Self

from benchmarks.contest import at_least_one, print_head, print_row, ratio, rounds
from keras_transformer.core.errors import JobError, exit_status
from keras_transformer.text.lines import read_lines

WAYS = ("batches of one", "CTranslate2", "a loop")
COLUMNS = ["clients", "lines a request", "against", "our lines/s", "times longer", "same"]
LATENCIES = ["alone, ms", "p95, half the rate", "p95, half the clients"]


class Answer(NamedTuple):
    """An answer as it came, and the seconds from the request to it."""

    content: bytes
    seconds: float

    @property
    def status(self) -> int:
        """The status of HTTP."""
        return int(self.content[9:12])

    @property
    def texts(self) -> list[str]:
        """The translations. Raises JobError if the server refused the request."""
        body = self.content.partition(b"\r\n\r\n")[2]
        if self.status != 200:
            raise JobError(f"a server answered {self.status}: {body[:200]!r}")
        return [one["text"] for one in json.loads(body)["translations"]]


def request_of(texts: Sequence[str], source: str | None) -> bytes:
    """Returns a request for translations."""
    body = json.dumps({"text": texts} | ({"source": source} if source else {})).encode()
    head = f"POST /v1/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + body


def send(port: int, requests: Sequence[bytes], num_clients: int, rate: float | None = None) -> list[Answer]:
    """Sends requests to this machine by so many connections, and returns their answers. It takes little of the
    processor, because the server needs it.

    Args:
        port: where the server listens.
        requests: what is sent.
        num_clients: how many connections there are.
        rate: requests a second, which come at random; each waits for a connection, and that time counts. None: a
            connection sends the next one when it has an answer.

    Raises:
        JobError: the server ended a connection.
    """
    draw = random.Random(1).expovariate
    due = list(accumulate(draw(rate) for _ in requests)) if rate else [0.0] * len(requests)
    answers = [Answer(b"", 0.0)] * len(requests)
    with ExitStack() as stack:
        address, next_place = ("127.0.0.1", port), 0
        free = deque(stack.enter_context(socket.create_connection(address)) for _ in range(num_clients))
        asked: dict[socket.socket, tuple[int, float, bytearray]] = {}
        begun = time.perf_counter()
        while asked or next_place < len(requests):
            now = time.perf_counter() - begun
            while free and next_place < len(requests) and due[next_place] <= now:
                connection = free.popleft()  # each is used in its turn: a server ends those that are idle
                connection.sendall(requests[next_place])
                asked[connection] = next_place, due[next_place] or time.perf_counter() - begun, bytearray()
                next_place += 1
            pause = max(due[next_place] - now, 0.0) if free and next_place < len(requests) else None
            for connection in select.select([*asked], [], [], pause)[0]:
                place, since, received = asked[connection]
                if not (more := connection.recv(2**20)):
                    raise JobError("a server ended a connection")
                received += more
                if is_whole(received):
                    answers[place] = Answer(bytes(received), time.perf_counter() - begun - since)
                    del asked[connection]
                    free.append(connection)
    return answers


def is_whole(received: bytearray) -> bool:
    """Whether an answer has come to its end."""
    head, _, body = received.partition(b"\r\n\r\n")
    _, _, size = head.lower().partition(b"content-length: ")
    return bool(size) and len(body) == int(size.partition(b"\r\n")[0])


class Server:
    """A server in a process of its own, and its load. It works as a `contest.Worker`.

    Args:
        way: how it serves, see `serve_sides`.
        arguments: of `serve_sides` behind the way.
        requests: what clients send.
        num_clients: how many send side by side.
    """

    def __init__(self, way: str, arguments: Sequence[str], requests: Sequence[bytes], num_clients: int):
        self._command = [sys.executable, "-m", "benchmarks.serve_sides", way, *arguments]
        self.requests, self.num_clients = requests, num_clients
        self.answers: list[Answer] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self.port = int(self._process.stdout.readline() or 0)
        if not self.port:
            raise JobError(f"the server {self._command[3]!r} did not start")
        self.work()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()

    def work(self) -> float:
        """Sends all requests, and returns the seconds until the last answer."""
        begun = time.perf_counter()
        self.answers = send(self.port, self.requests, self.num_clients)
        return time.perf_counter() - begun

    @property
    def texts(self) -> list[str]:
        """The translations of all requests, in their order."""
        return [text for answer in self.answers for text in answer.texts]


def main(arguments: list[str] | None = None) -> None:
    """Prints the table.

    Raises:
        RequestError: there is no such text.
        JobError: a server failed.
    """
    options = parse(arguments)
    lines = list(islice(read_lines(options.text), options.lines))
    starts = range(0, len(lines), options.strings)
    requests = [request_of(lines[first : first + options.strings], options.source) for first in starts]
    with ExitStack() as stack:
        sides = {}
        for way in ("ours", options.against):
            folder = options.ctranslate2 if way == "CTranslate2" else options.export
            own = [folder, options.vocabulary, str(options.beams), str(options.threads), options.compute_type]
            sides[way] = stack.enter_context(Server(way, own, requests, options.clients))
        seconds = rounds(sides, options.rounds)
        same = [one == other for one, other in zip(*(side.texts for side in sides.values()), strict=True)]
        ours = statistics.median(seconds["ours"])
        milliseconds = latencies(sides["ours"].port, requests, options.clients, len(requests) / ours)
    print_head([*COLUMNS, *LATENCIES])
    times = ratio(seconds[options.against], seconds["ours"])
    row = [options.clients, options.strings, options.against, f"{len(lines) / ours:.0f}", times]
    print_row([*row, f"{sum(same)} of {len(same)}", *(f"{one:.1f}" for one in milliseconds)])


def latencies(port: int, requests: Sequence[bytes], num_clients: int, rate: float) -> list[float]:
    """Returns the milliseconds of `LATENCIES`, where `rate` requests a second are answered to all clients."""
    loads = [send(port, requests[:200], 1), send(port, requests, num_clients, rate / 2)]
    loads.append(send(port, requests, max(1, num_clients // 2)))
    alone, *loaded = [[1_000 * answer.seconds for answer in load] for load in loads]
    return [statistics.median(alone), *(statistics.quantiles(one, n=20)[-1] for one in loaded)]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("export", help="the export, or a graph in it, which chooses the precision")
    add("--text", required=True, metavar="FILE", help="lines to translate")
    add("--against", choices=WAYS, default=WAYS[0])
    add("--source", metavar="CODE", help="the language of the text; without it servers look for it")
    add("--lines", type=at_least_one, default=1_000)
    add("--clients", type=at_least_one, default=64)
    add("--strings", type=at_least_one, default=1, help="texts in a request")
    add("--rounds", type=at_least_one, default=5)
    add("--threads", type=at_least_one, default=2, help="of each server")
    add("--beams", type=at_least_one, default=1, help="of CTranslate2; ours are the export's")
    add("--ctranslate2", metavar="FOLDER", default="", help="the model for CTranslate2")
    add("--vocabulary", metavar="FILE", default="", help="its vocabulary")
    add("--compute-type", default="float32", help="of CTranslate2")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(exit_status(main))
