"""Checks the keys of clients, which a file holds as hashes, and how often each may ask."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keras_transformer.core.errors import RequestError
from keras_transformer.serving.batching import Refusal

LINE = re.compile(r"([A-Za-z0-9._-]{1,64})[ \t]+([0-9a-f]{64})(?:[ \t]+([1-9]\d{0,6}))?")
MAX_BYTES = 2**20


@dataclass
class Client:
    """Whoever holds a key.

    Args:
        name: who it is.
        digest: the SHA-256 of the key, in hexadecimal.
        per_minute: how many requests are taken in a minute; None for any number.
    """

    name: str
    digest: str
    per_minute: int | None = None
    left: float = 0.0
    since: float = 0.0

    def take(self, now: float) -> float:
        """Takes one request at a time in seconds; returns after how many seconds it may come, 0 for now."""
        if self.per_minute is None:
            return 0.0
        rate = self.per_minute / 60
        self.left = min(float(self.per_minute), self.left + (now - self.since) * rate)
        self.since = now
        if self.left < 1:
            return (1 - self.left) / rate
        self.left -= 1
        return 0.0


class Keys:
    """The keys of a server.

    Args:
        clients: who holds one.
        clock: tells the time in seconds.
    """

    def __init__(self, clients: list[Client], clock: Callable[[], float] = time.monotonic):
        self.clients, self._clock, self._lock = clients, clock, threading.Lock()
        for client in clients:
            client.left, client.since = float(client.per_minute or 0), clock()

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Reads a file: in each line a name, the SHA-256 of a key, and the requests that are taken in a minute, if
        there is a limit; `#` begins a line for people.

        Raises:
            RequestError: the file is not there, or a line is something else.
        """
        try:
            text = path.read_bytes()[:MAX_BYTES].decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"cannot read the keys {path}: {error}") from None
        clients = list[Client]()
        for number, line in enumerate(text.splitlines(), start=1):
            if not (line := line.strip()) or line.startswith("#"):
                continue
            if not (found := LINE.fullmatch(line)):  # the line itself may be a key, so no message holds it
                raise RequestError(
                    f"{path}, line {number}: expected NAME SHA256 [REQUESTS-PER-MINUTE]; received another line: "
                    "`serve --new-key NAME` makes one"
                )
            clients.append(Client(found[1], found[2], int(found[3]) if found[3] else None))
        if not clients:
            raise RequestError(f"{path} has no keys: `serve --new-key NAME` makes one")
        return cls(clients)

    def admit(self, key: str | None) -> bool:
        """Whether a key is one of the server's. Takes one request of its rate.

        Raises:
            Refusal: its rate is reached.
        """
        digest = hashlib.sha256((key or "").encode("utf-8", "surrogateescape")).hexdigest()
        # All are compared, so that the time tells nothing.
        found = [client for client in self.clients if hmac.compare_digest(client.digest, digest)]
        if key is None or not found:
            return False
        with self._lock:
            seconds = found[0].take(self._clock())
        if seconds:
            raise Refusal(429, "rate", f"this key may send {found[0].per_minute:,} requests a minute", seconds)
        return True


def new_key(name: str) -> tuple[str, str]:
    """Makes a key; returns the key, and the line of the file that knows it.

    Raises:
        RequestError: the name cannot stand in the file.
    """
    key = secrets.token_urlsafe(32)
    line = f"{name} {hashlib.sha256(key.encode()).hexdigest()}"
    if not LINE.fullmatch(line):
        raise RequestError(f"expected a name of letters, digits, dots, - and _; received {name!r:.80}")
    return key, line
