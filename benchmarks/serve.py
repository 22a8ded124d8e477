"""Compares servers under load on this machine: ours, and other ways to serve the same weights.

    python -m benchmarks.serve EXPORT --text test.en.gz --clients 64 --against 'batches of one'
    python -m benchmarks.serve EXPORT --text test.en.gz --clients 64 --against CTranslate2 --ctranslate2 FOLDER
    python -m benchmarks.serve EXPORT --text test.en.gz --clients 1 --strings 50 --against 'a loop'

Both servers run, and take turns: so many clients send the lines of the text, each its next request when it has the
answer to the last. The table has our sentences a second, how many times longer the other takes (the median of the
rounds, with quartiles), and the latencies of our requests: alone, and the 95th percentile with half of the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from types import TracebackType
from typing import Self

from benchmarks.contest import at_least_one, print_head, print_row, ratio, rounds
from keras_transformer.core.errors import JobError, exit_status
from keras_transformer.text.lines import read_lines

WAYS = ("batches of one", "CTranslate2", "a loop")


class Server:
    """A server in a process of its own, and its load. It works as a `contest.Worker`.

    Args:
        way: how it serves, see `serve_sides`.
        arguments: of `serve_sides` behind the way.
        requests: the texts of each request.
        num_clients: how many send them side by side.
    """

    def __init__(self, way: str, arguments: Sequence[str], requests: list[list[str]], num_clients: int):
        self._command = [sys.executable, "-m", "benchmarks.serve_sides", way, *arguments]
        self.requests, self.num_clients = requests, num_clients
        self.answers: list[list[str]] = []
        self.latencies: list[float] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self._port = int(self._process.stdout.readline() or 0)
        if not self._port:
            raise JobError(f"the server {self._command[3]!r} did not start")
        self.work()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()

    def work(self) -> float:
        """Sends all requests, and returns the seconds until the last answer."""
        return asyncio.run(self._load())

    async def _load(self) -> float:
        waiting, self.latencies = iter(enumerate(self.requests)), []
        self.answers = [[] for _ in self.requests]
        begun = time.perf_counter()
        await asyncio.gather(*(self._client(waiting) for _ in range(self.num_clients)))
        return time.perf_counter() - begun

    async def _client(self, waiting: Iterator[tuple[int, list[str]]]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for place, texts in waiting:
            body = json.dumps({"text": texts}).encode()
            begun = time.perf_counter()
            head = f"POST /v1/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            self.answers[place] = await answer(reader)
            self.latencies.append(time.perf_counter() - begun)
        writer.close()
        await writer.wait_closed()


async def answer(reader: asyncio.StreamReader) -> list[str]:
    """Reads the translations of one answer.

    Raises:
        JobError: the server refused the request.
    """
    status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    sizes = dict(header.split(": ", 1) for header in headers if ": " in header)
    content = await reader.readexactly(int(sizes["content-length"]))
    if " 200 " not in status:
        raise JobError(f"{status}: {content[:200]!r}")
    return [one["text"] for one in json.loads(content)["translations"]]


def main(arguments: list[str] | None = None) -> None:
    """Prints the table.

    Raises:
        RequestError: there is no such text.
        JobError: a server failed.
    """
    options = parse(arguments)
    lines = list(islice(read_lines(options.text), options.lines))
    requests = [lines[first : first + options.strings] for first in range(0, len(lines), options.strings)]
    with ExitStack() as stack:
        sides = {}
        for way in ("ours", options.against):
            folder = options.ctranslate2 if way == "CTranslate2" else options.export
            own = [folder, options.vocabulary, str(options.beams), str(options.threads), options.compute_type]
            sides[way] = stack.enter_context(Server(way, own, requests, options.clients))
        seconds = rounds(sides, options.rounds)
        same = [one == other for one, other in zip(*(side.answers for side in sides.values()), strict=True)]
        mine = sides["ours"]
        mine.num_clients = 1
        mine.requests = requests[:100]
        mine.work()
        alone = statistics.median(mine.latencies)
        mine.num_clients, mine.requests = max(1, options.clients // 2), requests
        mine.work()
        late = statistics.quantiles(mine.latencies, n=20)[-1]
    print_head(
        ["clients", "texts a request", "against", "our sentences/s", "times longer", "same", "alone, s", "p95, s"]
    )
    ours = statistics.median(seconds["ours"])
    times = ratio(seconds[options.against], seconds["ours"])
    row = [
        options.clients,
        options.strings,
        options.against,
        f"{len(lines) / ours:.0f}",
        times,
        f"{statistics.mean(same):.1%}",
    ]
    print_row([*row, f"{alone:.3f}", f"{late:.3f}"])


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("export", help="the export, or a graph in it, which chooses the precision")
    add("--text", required=True, metavar="FILE", help="lines to translate")
    add("--against", choices=WAYS, default=WAYS[0])
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
