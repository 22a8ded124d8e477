"""Fetches text files over HTTP and checks them by their SHA-256."""

from __future__ import annotations

import hashlib
import time
import zlib
from pathlib import Path

from keras_transformer.errors import JobError
from keras_transformer.files import write_whole
from keras_transformer.text.lines import opened

MAX_TEXT_BYTES = 64 * 2**20
MAX_DOWNLOAD_BYTES = 16 * 2**20
_DOWNLOAD_SECONDS, _SILENCE_SECONDS = 120, 30
_MEND = "fetch it by other means and pass its folder with --data-dir"


def fetch(url: str, path: Path, sha256: str) -> None:
    """Fetches `url` to `path`. The file appears only when it is whole and its text has the SHA-256.

    Raises:
        JobError: it could not be fetched, or is another text.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(path) as aside:
        aside.write_bytes(download(url))
        if text_sha256(aside) != sha256:
            raise JobError(f"{url} sent another text than expected (its SHA-256 differs); {_MEND}")


def text_sha256(path: Path) -> str | None:
    """The SHA-256 of a file's text, decompressed; None if the file is broken or its text is too large."""
    digest, size = hashlib.sha256(), 0
    try:
        with opened(path) as file:
            while block := file.read(2**20):
                size += len(block)
                if size > MAX_TEXT_BYTES:
                    return None
                digest.update(block)
    except (EOFError, OSError, zlib.error):
        return None
    return digest.hexdigest()


def download(url: str) -> bytes:
    """What a server sends for `url`.

    Raises:
        JobError: it could not be fetched, is too large, or takes too long.
    """
    # Imported late: they take a while, and `train.py --help` imports this module.
    import http.client
    import urllib.request

    body, deadline = bytearray(), time.monotonic() + _DOWNLOAD_SECONDS
    try:
        with urllib.request.urlopen(url, timeout=_SILENCE_SECONDS) as response:
            while block := response.read(2**16):
                body += block
                if len(body) > MAX_DOWNLOAD_BYTES or time.monotonic() > deadline:
                    raise OSError(f"over {MAX_DOWNLOAD_BYTES} bytes or {_DOWNLOAD_SECONDS} seconds")
    except (OSError, http.client.HTTPException) as error:
        raise JobError(f"could not fetch {url} ({error}); {_MEND}") from None
    return bytes(body)
