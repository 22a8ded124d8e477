"""Files from strangers, changed at random, each read in a process of at most 1 GiB more memory and 10 s.

Every answer is status 0, for a change that is harmless, or status 2 with one line that begins with "error: ".
`python -m tests.fuzz --mutations 10000` reads so many of every kind, `--kind NAME` of those whose names hold NAME alone.
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
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.errors import exit_status
from tests.fuzz_kinds import KINDS, Kind

MEMORY, SECONDS = 2**30, 10  # of a mutation
LIBRARIES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE}  # how a library in C++ may end a process
STRANGE: list[Any] = [
    None, True, -1, 0, 1.5, 10**30, 10**400, float("inf"), float("nan"), "", "x", "0.6", "x " * 100, "\ud800", "\0", [],
    ["de"], [1], [[]], {}, {"name": "x"}, "\x1b[31m\r\n", 2**31, 2**63, -(2**63), "../../x", "/dev/zero", 1e308, [[[1]]],
]  # fmt: skip
# Texts in place of a value that no value has.
RAW = ["[" * 90_000, '{"a":' * 90_000, "9" * 5_000, "1e999", "-0", '"\\u0000"', '{"a":1,"a":2}', '"' + "x" * 90_000 + '"', "nul"]
LARGE = [0, 1, 0x7F, 0x80, 0xFF, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
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
    for key in place:
        value = value[key]
    return value


def strange(value: Any, count: int) -> Iterator[tuple[tuple, Any]]:
    """For each place in a value some strange values; the same in each run of the test."""
    for place in places(value):
        yield from ((place, new) for new in random.Random(repr(place)).sample(STRANGE, count))


def changed_json(content: bytes, draw: random.Random) -> bytes:
    """JSON with something strange in one place or two, with a place less, or with one that is another's copy."""
    value = json.loads(content)
    raw = ""
    for _ in range(draw.choice([1, 1, 1, 2])):
        all_places = [*places(value)]
        place = draw.choice(all_places)
        within = at(value, place[:-1]) if place else None
        match draw.randrange(6):
            case 0 if place:
                copy = dict(within) if isinstance(within, dict) else list(within)
                del copy[place[-1]]
                value = put(value, place[:-1], copy)
            case 1:
                value = put(value, place, at(value, draw.choice(all_places)))
            case 2:
                raw, value = draw.choice(RAW), put(value, place, HOLE)
            case 3 if isinstance(at(value, place), dict):
                value = put(value, place, {**at(value, place), draw.choice(["x", "\x1b", "name", ""]): draw.choice(STRANGE)})
            case 4 if isinstance(at(value, place), str):
                text = at(value, place)
                where = draw.randrange(len(text) + 1)
                value = put(value, place, text[:where] + draw.choice(["\0", "\x1b", "\n", "\ud800", "/", "é" * 999]) + text[where:])
            case _:
                value = put(value, place, draw.choice(STRANGE))
    return json.dumps(value).replace(json.dumps(HOLE), raw).encode()


def changed_bytes(content: bytes, draw: random.Random) -> bytes:
    """Bytes with some of them others, most in the headers, with a part less, twice, elsewhere, or with a huge number."""
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 8])):
        size = len(changed)
        first, last = sorted(draw.randrange(size + 1) for _ in range(2))
        near = draw.randrange(min(size, draw.choice([64, 4096, size])) or 1)
        near = near if draw.random() < 0.7 else max(0, size - 1 - near)
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
                width = draw.choice([1, 2, 4, 8])
                number = draw.choice(LARGE) % 2 ** (8 * width)
                changed[near : near + width] = number.to_bytes(width, draw.choice(["little", "big"]))  # type: ignore[arg-type]
            case 5 if (found := [place for sign in (b"PK\1\2", b"PK\3\4", b"PK\5\6") if (place := changed.find(sign)) >= 0]):
                place = draw.choice(found) + draw.randrange(4, 46)  # a field of an archive
                changed[place : place + 4] = draw.choice(LARGE).to_bytes(8, "little")[:4]
            case _:
                changed[near : near + 1] = bytes([draw.randrange(256)])
    return bytes(changed)


def changed_text(content: bytes, draw: random.Random) -> bytes:
    """Lines of which one is strange, left out, twice, very long, or elsewhere."""
    lines = content.split(b"\n")
    place = draw.randrange(len(lines))
    odd = [b"\0", b"\x1b[31m", b"\xff", b"\r", b",", b"\t", b'"', b"\xe2\x80\xa8", b"9" * 5000, b"x" * 300_000, b"1e999", b"nan"]
    match draw.randrange(6):
        case 0:
            del lines[place]
        case 1:
            lines[place:place] = [lines[place]] * draw.choice([1, 2, 10_000])
        case 2:
            draw.shuffle(lines)
        case 3:
            return changed_bytes(content, draw)
        case _:
            where = draw.randrange(len(lines[place]) + 1)
            lines[place] = lines[place][:where] + draw.choice(odd) + lines[place][where:]
    return b"\n".join(lines)


def changed_metadata(content: bytes, draw: random.Random) -> bytes:
    """An ONNX graph with something strange in its metadata."""
    import onnx

    model = onnx.load_from_string(content)
    entry = draw.choice(model.metadata_props)
    try:
        entry.value = changed_json(entry.value.encode(), draw).decode("utf-8", "replace")
    except ValueError:
        entry.value = changed_text(entry.value.encode(), draw).decode("utf-8", "replace")
    if draw.random() < 0.1:
        entry.key = draw.choice(["", "kind", "task", "x"])
    return model.SerializeToString()


CHANGES = {"json": changed_json, "bytes": changed_bytes, "text": changed_text, "metadata": changed_metadata}


def mutated(kind: Kind, content: bytes, seed: int) -> bytes:
    """The file of a kind with a change; the same for each seed."""
    draw = random.Random(f"{kind.name} {seed}")
    form = "bytes" if kind.form != "metadata" and draw.random() < 0.15 else kind.form
    return CHANGES[form](content, draw)


def fault_of(read: Callable[[], object]) -> str | None:
    """What is wrong with the answer to a file; None if it is as it should be."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            status = exit_status(read, [])
        except (Exception, KeyboardInterrupt) as error:
            lines = [line.strip() for line in traceback.format_exception(error)]
            return f"traceback: {lines[-1][:300]} at {lines[-2][:200]}"
        sys.stdout.flush()
        told, said = (Path(f"/proc/self/fd/{file.fileno()}").read_bytes().decode(errors="replace") for file in (out, err))
    errors = [line for line in said.split("\n") if line.startswith("error: ")]
    if status != (2 if errors else 0) or len(errors) > 1 or (errors and not said.endswith(f"{errors[0]}\n")):
        return f"status {status}: {said[-400:]!r}"
    if not all(line.isprintable() for line in said.split("\n")) or not told.replace("\n", "").replace("\t", "").isprintable():
        return f"not printable: {said[-300:]!r} {told[-2000:]!r}"
    return f"{len(errors[0])} characters: {errors[0][:200]}" if errors and len(errors[0]) > 2000 else None


def read_all(kind: Kind, folder: Path, path: Path, whole: bytes, seeds: Sequence[int], pipe: int) -> None:
    """In a process of its own: writes, for each seed, that it begins, and what came of it."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for seed in seeds:
        os.write(pipe, f"{seed}\n".encode())
        path.write_bytes(mutated(kind, whole, seed))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        fault = fault_of(partial(kind.read, folder))
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(pipe, f"{json.dumps(fault)[:2000]}\n".encode() if fault is None else f"{json.dumps(fault[:900])}\n".encode())


def apart(job: Callable[[int], None]) -> tuple[list[str], int]:
    """Lines that a job writes to a pipe in a fork of this process, and how the fork ended."""
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        status = 1
        try:
            os.close(ours)
            job(theirs)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as file:
        lines = file.read().split("\n")[:-1]
    return lines, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def faults(kind: Kind, folder: Path, seeds: Sequence[int]) -> Iterator[tuple[int, str]]:
    """The seeds whose files are not answered as they should be, with what was wrong; each was read alone again."""
    (path,) = folder.glob(kind.file)
    whole, left = path.read_bytes(), list(seeds)
    try:
        while left:
            some, left = left[:500], left[500:]
            while some:
                lines, status = apart(partial(read_all, kind, folder, path, whole, some))
                done, suspects = lines[: len(lines) // 2 * 2], []
                suspects += [int(seed) for seed, fault in zip(done[::2], done[1::2], strict=True) if fault != "null"]
                suspects += [int(lines[-1])] if len(lines) % 2 else []
                assert lines, f"{kind.name}: the process ended with {status}"
                some = some[-(-len(lines) // 2) :]
                for seed in suspects:
                    again, status = apart(partial(read_all, kind, folder, path, whole, [seed]))
                    if len(again) < 2 and not (kind.library and -status in LIBRARIES):
                        yield seed, f"ended by {-status}"
                    elif len(again) == 2 and again[1] != "null":
                        yield seed, json.loads(again[1])
    finally:
        path.write_bytes(whole)


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads mutations of kinds, and prints what is wrong; the status is 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", default="", help="a part of the names of kinds")
    given = parser.parse_args(arguments)
    kinds = [kind for kind in KINDS if given.kind in kind.name]
    for kind in kinds:
        kind.prepare()
    gc.collect()
    gc.freeze()
    num_faults, made = 0, dict[Any, Path]()
    home = Path(tempfile.mkdtemp())
    try:
        for kind in kinds:
            if kind.make not in made:
                made[kind.make] = folder = home / str(len(made))
                _, status = apart(lambda _, folder=folder, kind=kind: kind.make(folder))  # type: ignore[misc]
                assert status == 0, f"{kind.name} cannot be made"
            folder = made[kind.make]
            seeds = range(given.first, given.first + given.mutations)
            assert (fault := _whole(kind, folder)) is None, f"{kind.name}: {fault}"
            found = list(faults(kind, folder, seeds))
            num_faults += len(found)
            print(f"{kind.name}: {given.mutations} mutations, {len(found)} faults", flush=True)
            for seed, fault in found:
                print(f"  {kind.name}, seed {seed}: {fault}", flush=True)
    finally:
        shutil.rmtree(home)
    return 1 if num_faults else 0


def _whole(kind: Kind, folder: Path) -> str | None:
    """What is wrong with the answer to the whole file."""
    lines, _ = apart(lambda pipe: os.write(pipe, f"{json.dumps(fault_of(partial(kind.read, folder)))}\n".encode()) and None)
    return json.loads(lines[0]) if lines else "the process ended"


if __name__ == "__main__":
    sys.exit(main())
