"""Files from strangers, changed at random, each read in a process of at most 1 GiB more memory and 10 s.

Every answer is status 0, for a change that is harmless, or status 2 and one line that begins with "error: ".
`python -m tests.fuzz --mutations 10000` reads so many of every kind, `--kind NAME` of those whose names hold NAME.
"""

import argparse
import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from keras_transformer.core.errors import exit_status
from keras_transformer.core.schema import UNPRINTABLE
from tests.fuzz_kinds import KINDS, Kind

MEMORY, SECONDS = 2**30, 10  # of a mutation
AT_ONCE = 500  # mutations that a process reads
DEATHS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE}  # how a library in C++ may end a process
STRANGE: list[Any] = [
    None, True, -1, 0, 1.5, 10**30, 10**400, float("inf"), float("nan"), "", "x", "0.6", "x " * 100, "\ud800", "\0", [],
    ["de"], [1], [[]], {}, {"name": "x"}, "\x1b[31m\r\n", 2**31, 2**63, -(2**63), "../../x", "/dev/zero", 1e308,
    [[[1]]],
]  # fmt: skip
ODD = ["\0", "\x1b", "\n", "\ud800", "/", "é" * 999]  # within texts
# In place of a value, what no value is spelled as.
RAW = [
    *("[" * 90_000, '{"a":' * 90_000, "9" * 5_000, "1e999", "-0", '"\\u0000"', '{"a":1,"a":2}', f'"{"x" * 90_000}"'),
    "nul",
]
LARGE = [0, 1, 0x7F, 0x80, 0xFF, *(2**bits - less for bits in (15, 16, 31, 32, 63, 64) for less in (0, 1))]
LINES = [
    *(b"\0", b"\x1b[31m", b"\xff", b"\r", b",", b"\t", b'"', b"\xe2\x80\xa8", b"9" * 5_000, b"x" * 300_000, b"1e999"),
    b"nan",
]
SIGNS = (b"PK\1\2", b"PK\3\4", b"PK\5\6")  # of the parts of an archive
# Seeds of which something was wrong once.
KNOWN = {
    "config.json of translation": [108], "config.json of images": [96], "config.json of answers": [141],
    "config.json to resume images": [86], "config.json to resume masked-tokens": [18],
    "config.json with modules": [0, 4], "metrics.csv": [1, 10, 2305], "cache/train/meta.json": [19, 25, 118],
    "cache/train/source.offsets": [12, 15, 34], "cache/train/target.offsets": [93],
    "pytorch_model.bin of marian, row": [19], "tokenizer.json of bert-labels, license": [32, 62, 257],
    "tokenizer.json of bart, license": [42, 238], "modules.json of bert, pooled": [59, 111, 137, 148],
    "kept probes": [89, 101, 1752], "kept graph": [145, 3036],
}  # fmt: skip
HOLE = "a hole in the text"


def places(value: Any, place: tuple = ()) -> Iterator[tuple]:
    """The place of everything in a value of JSON, of the whole first."""
    yield place
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*place, key))


def put(value: Any, place: tuple, new: Any) -> Any:
    """A copy with something else at a place."""
    if not place:
        return new
    copy = value.copy()
    copy[place[0]] = put(value[place[0]], place[1:], new)
    return copy


def at(value: Any, place: tuple) -> Any:
    """What stands at a place."""
    return at(value[place[0]], place[1:]) if place else value


def without(value: Any, place: tuple) -> Any:
    """A copy without what stands at a place."""
    copy = at(value, place[:-1]).copy()
    del copy[place[-1]]
    return put(value, place[:-1], copy)


def strange(value: Any, count: int) -> Iterator[tuple[tuple, Any]]:
    """For each place in a value some strange values; the same in each run of the test."""
    for place in places(value):
        yield from ((place, new) for new in random.Random(repr(place)).sample(STRANGE, count))


def changed_json(content: bytes, draw: random.Random) -> bytes:
    """JSON with something strange in a place or two, with a place less, or with another's copy in one."""
    value, raw = json.loads(content), ""
    for _ in range(draw.choice([1, 1, 1, 2])):
        every = [*places(value)]
        place = draw.choice(every)
        there, new = at(value, place), draw.choice(STRANGE)
        match draw.randrange(6):
            case 0 if place:
                value = without(value, place)
                continue
            case 1:
                new = at(value, draw.choice(every))
            case 2:
                raw, new = draw.choice(RAW), HOLE
            case 3 if isinstance(there, dict):
                new = {**there, draw.choice(["x", "\x1b", "name", ""]): new}
            case 4 if isinstance(there, str):
                where = draw.randrange(len(there) + 1)
                new = there[:where] + draw.choice(ODD) + there[where:]
        value = put(value, place, new)
    return json.dumps(value).replace(json.dumps(HOLE), raw).encode()


def changed_bytes(content: bytes, draw: random.Random) -> bytes:
    """Bytes of which some are others, most near an end; a part is away, twice, or cut off; or a number is huge."""
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 8])):
        size = len(changed)
        first, last = sorted(draw.randrange(size + 1) for _ in range(2))
        near = draw.randrange(min(size, draw.choice([64, 4096, size])) or 1)
        near = near if draw.random() < 0.7 else max(0, size - 1 - near)
        parts = [found for sign in SIGNS if (found := changed.find(sign)) >= 0]
        match draw.randrange(8):
            case 0:
                del changed[first : min(last, first + draw.choice([1, 8, size]))]
            case 1:
                changed[first:first] = changed[first : min(last, first + 4096)]
            case 2:
                changed[near:near] = draw.randbytes(draw.choice([1, 4, 64]))
            case 3:
                del changed[draw.randrange(size + 1) :]
            case 4:
                width, order = draw.choice([1, 2, 4, 8]), draw.choice([1, -1])
                changed[near : near + width] = draw.choice(LARGE).to_bytes(9, "little")[:width][::order]
            case 5 if parts:
                place = draw.choice(parts) + draw.randrange(4, 46)
                changed[place : place + 4] = draw.choice(LARGE).to_bytes(9, "little")[:4]
            case _:
                changed[near : near + 1] = draw.randbytes(1)
    return bytes(changed)


def changed_text(content: bytes, draw: random.Random) -> bytes:
    """Lines of which one is strange, left out, many times there, or all are in another order."""
    lines = content.split(b"\n")
    place = draw.randrange(len(lines))
    match draw.randrange(5):
        case 0:
            del lines[place]
        case 1:
            lines[place:place] = [lines[place]] * draw.choice([1, 2, 10_000])
        case 2:
            draw.shuffle(lines)
        case _:
            where = draw.randrange(len(lines[place]) + 1)
            lines[place] = lines[place][:where] + draw.choice(LINES) + lines[place][where:]
    return b"\n".join(lines)


def changed_metadata(content: bytes, draw: random.Random) -> bytes:
    """An ONNX graph with something strange in its metadata."""
    model = onnx.load_from_string(content)
    entry = draw.choice(model.metadata_props)
    is_json = entry.value[:1] in ("{", "[", '"') or entry.value.isdigit()
    entry.value = (changed_json if is_json else changed_text)(entry.value.encode(), draw).decode("utf-8", "replace")
    return model.SerializeToString()


CHANGES = {"json": changed_json, "bytes": changed_bytes, "text": changed_text, "metadata": changed_metadata}


def mutated(kind: Kind, content: bytes, seed: int) -> bytes:
    """The file of a kind with a change; the same for each seed."""
    draw = random.Random(f"{kind.name} {seed}")
    form = "bytes" if kind.form in ("json", "text") and draw.random() < 0.15 else kind.form
    return CHANGES[form](content, draw)


def fault_of(read: Callable[[], Any], refusals: Collection[int]) -> str | None:
    """What is wrong with the answer to a file; None if it is as it should be. Standard output and error are lost.

    Args:
        read: reads it, see `Kind`.
        refusals: the statuses with which it may be refused.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        own: list[Any] = []  # the status of a command that told its errors itself
        try:
            status = exit_status(lambda: own.append(read()), []) or (own[0] if isinstance(own[0], int) else 0)
        except BaseException as error:
            lines = [" ".join(line.split()) for line in traceback.format_exception(error)]
            return f"traceback: {lines[-1][:300]} at {lines[-2][:200]}"
        sys.stdout.flush()
        told, said = (os.pread(file.fileno(), 2**20, 0).decode(errors="replace") for file in (out, err))
    errors = [line for line in said.split("\n") if line.startswith("error: ")]
    is_last = said.endswith("".join(f"{line}\n" for line in errors))
    if status not in (refusals if errors else (0,)) or len(errors) > 1 or not is_last:
        return f"status {status}: {said[-400:]!r}"
    if found := UNPRINTABLE.search((said + told).replace("\n", "").replace("\t", "")):
        return f"not printable: {found.string[max(0, found.start() - 200) : found.end() + 40]!r}"
    return None


def apart(job: Callable[[int], object]) -> tuple[list[str], int]:
    """The lines that a job writes to a pipe in a fork of this process, and the status of the fork."""
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        status = 1
        try:
            job(theirs)
            status = 0
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as file:
        lines = file.read().splitlines()
    return lines, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def read_each(kind: Kind, folder: Path, path: Path, whole: bytes, seeds: Sequence[int], pipe: int) -> None:
    """Reads mutations in a process with bounds. It writes a line when one begins, and one of what is wrong with it."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for seed in seeds:
        os.write(pipe, f"{seed}\n".encode())
        path.write_bytes(whole if seed < 0 else mutated(kind, whole, seed))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor, then a signal ends the process
        fault = fault_of(partial(kind.read, folder), () if seed < 0 else (1, 2) if kind.may_differ else (2,))
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(pipe, f"{fault and fault[:900]!a}\n".encode())


def faults(kind: Kind, folder: Path, seeds: Sequence[int]) -> Iterator[tuple[int, str]]:
    """The seeds of which something is wrong, and what; each of these was read once more, alone."""
    (path,) = folder.glob(kind.file)
    whole, left, alone = path.read_bytes(), [*seeds], list[int]()
    try:
        while left or alone:
            some = alone[:1] or left[:AT_ONCE]
            lines, status = apart(partial(read_each, kind, folder, path, whole, some))
            begun, ended = lines[::2], lines[1::2]
            told = [*ended, f"ended by {-status}"][: len(begun)]
            wrong = {int(seed): fault for seed, fault in zip(begun, told, strict=True) if fault != "None"}
            if not alone:
                left, alone = left[len(begun) :], [*wrong]
                continue
            alone = alone[1:]
            if wrong and not (kind.library and -status in DEATHS):
                yield from wrong.items()
    finally:
        path.write_bytes(whole)


def made(kind: Kind, folder: Path, pipe: int) -> None:
    """Makes a folder in silence."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    kind.make(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads mutations of kinds, and prints what is wrong; the status is 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", action="append", help="a part of the names of kinds (default: all)")
    given = parser.parse_args(arguments)
    kinds = [kind for kind in KINDS if any(part in kind.name for part in given.kind or [""])]
    gc.freeze()
    num_faults, homes, home = 0, dict[Any, Path](), Path(tempfile.mkdtemp())
    os.environ["XDG_CACHE_HOME"] = str(home / "cache")
    try:
        for kind in kinds:
            begin, folder = time.monotonic(), homes.setdefault(kind.make, home / str(len(homes)))
            seeds = [-1, *KNOWN.get(kind.name, []), *range(given.first, given.first + given.mutations)]
            status = 0 if folder.exists() else apart(partial(made, kind, folder))[1]
            found = [(-1, "cannot be made")] if status else [*faults(kind, folder, seeds)]
            print(f"{kind.name}: {len(seeds)} read, {len(found)} faults, {time.monotonic() - begin:.0f} s", flush=True)
            for seed, fault in found:
                print(f"  {kind.name}, seed {seed}: {fault}", flush=True)
            num_faults += len(found)
    finally:
        shutil.rmtree(home)
    return 1 if num_faults else 0


if __name__ == "__main__":
    sys.exit(main())
