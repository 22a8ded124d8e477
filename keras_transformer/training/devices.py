"""The devices and the workers that train together, and the strategy under which their replicas train.

`TF_CONFIG` names the workers; without it there is one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from keras_transformer.core.errors import JobError, RequestError, say
from keras_transformer.core.files import user_cache
from keras_transformer.core.lazy import LazyModule, on_tensorflow, tf
from keras_transformer.core.machine import gpus_of_the_driver
from keras_transformer.core.schema import having, list_of, object_of, parse_json, whole
from keras_transformer.spec.options import Config

if TYPE_CHECKING:
    from keras_transformer.training import jax_devices
    from keras_transformer.training.common_settings import Settings

    Strategy: TypeAlias = tf.distribute.Strategy | jax_devices.DataParallel
else:
    jax_devices = LazyModule("keras_transformer.training.jax_devices")

MEETING_SECONDS = 600.0  # how long the first worker waits for the last
MESSAGE_SECONDS, MAX_MESSAGE_BYTES = 10.0, 100_000
MAX_CALLERS = 256  # whose lines the chief waits for at once
BETWEEN_CALLS = 0.3  # seconds
TF_CONFIG = object_of({}, {"cluster": object_of({}, others=list_of(str)), "task": dict}, others=object)


class Devices(NamedTuple):
    """What `--devices` asks for.

    Args:
        kind: "auto" (all GPUs, else the processor), "cpu" or "gpu".
        numbers: the numbers of the GPUs, or of the replicas on the processor; empty for "auto".
    """

    kind: str
    numbers: list[int]


def parse_devices(text: str) -> Devices:
    """Reads `auto`, `cpu`, `cpu:2` (two replicas on the processor) or `0,1` (numbers of GPUs).

    Raises:
        RequestError: it is none of these.
    """
    if text == "auto":
        return Devices("auto", [])
    if match := re.fullmatch(r"cpu(?::([1-9]\d?))?", text):
        return Devices("cpu", list(range(int(match[1] or 1))))
    if re.fullmatch(r"\d+(,\d+)*", text) and len(set(text.split(","))) == len(text.split(",")):
        return Devices("gpu", [int(number) for number in text.split(",")])
    raise RequestError(
        "--devices must be auto, cpu, cpu:N for N replicas on the processor, or numbers of GPUs such as 0,1; "
        f"received: {text!r}"
    )


@contextmanager
def started(settings: Settings, facts: Config) -> Iterator[Strategy]:
    """Starts the devices, seeds all random numbers, meets the other workers, and yields the strategy to train under.
    JAX has one worker.

    Args:
        settings: `devices`, `threads` and `seed`.
        facts: what all workers must have the same, see `meet`.

    Raises:
        RequestError: a GPU is not there, or a worker differs from the chief.
        WorkerLost: another worker did not come, or was lost within.
    """
    if not on_tensorflow():
        with jax_devices.started(*parse_devices(settings.devices)) as found:
            seed(settings.seed)
            yield found
        return
    configure(settings.devices, settings.threads)
    say(describe_devices(settings.devices))
    seed(settings.seed)
    meet(facts)
    with lost_workers():
        yield strategy(settings.devices)


def configure(devices: str = "auto", threads: int = 0, deterministic: bool = True) -> None:
    """Configures TensorFlow before its first operation: visible GPUs and their memory, replicas on the processor,
    threads.

    Args:
        devices: see `parse_devices`.
        threads: processor threads within an operation, and as many between operations; 0 leaves both to TensorFlow.
        deterministic: the same run gives the same bits.

    Raises:
        RequestError: a GPU is not there.
    """
    kind, numbers = parse_devices(devices)
    gpus = tf.config.list_physical_devices("GPU")
    if kind == "gpu" and max(numbers) >= len(gpus):
        raise RequestError(f"`devices` must name GPUs that are there ({len(gpus)} found). Received: {devices!r}")
    visible = [gpus[number] for number in numbers] if kind == "gpu" else gpus if kind == "auto" else []
    tf.config.set_visible_devices(visible, "GPU")
    for gpu in visible:
        tf.config.experimental.set_memory_growth(gpu, True)
    if kind == "cpu" and len(numbers) > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * len(numbers))
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    if deterministic:
        tf.config.experimental.enable_op_determinism()


def describe_devices(devices: str) -> str:
    """One line for people: what a run trains on. If TensorFlow does not see a GPU of the driver, the line says why."""
    kind, numbers = parse_devices(devices)
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
        return f"training on {len(gpus)} GPU(s): {', '.join(names)}"
    if kind == "auto" and (count := gpus_of_the_driver()):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "Its CUDA libraries are not installed, or do not fit: pip install 'tensorflow[and-cuda]>=2.21,<2.22'"
        if hidden is not None:
            why = f"CUDA_VISIBLE_DEVICES is {hidden!r}, which may hide them"
        return f"training on the processor: the NVIDIA driver has {count} GPU(s), but TensorFlow sees none. {why}"
    return "training on the processor" + (f", in {len(numbers)} replicas" if len(numbers) > 1 else "")


def has_gpu(devices: str) -> bool:
    """Whether training on these devices is training on GPUs."""
    kind, _ = parse_devices(devices)
    if kind == "auto":
        return bool(tf.config.list_physical_devices("GPU")) if on_tensorflow() else jax_devices.has_gpu()
    return kind == "gpu"


def keep_programs(gpus: Path = Path("/proc/driver/nvidia/gpus")) -> None:
    """Makes XLA keep what it compiles, in this user's folder for caches, apart for each kind of machine and version.

    TensorFlow reads the flags when it first looks for devices. Keras is not imported yet.
    """
    backend, flags = os.environ.get("KERAS_BACKEND") or "tensorflow", os.environ.get("TF_XLA_FLAGS", "")
    if "persistent_cache" in flags or flags.strip()[:1] not in ("", "-"):  # such as the name of a file with flags
        return
    machine = [backend, importlib.metadata.version(backend), platform.machine()]
    with suppress(OSError):
        machine += re.findall(r"^flags.*$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)[:1]
        machine += sorted((gpu / "information").read_text(encoding="utf-8").split("\n")[0] for gpu in gpus.glob("*"))
    try:
        folder = user_cache() / "xla" / hashlib.sha256("\n".join(machine).encode()).hexdigest()[:16]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:  # without a home, or without permission, nothing is kept
        return
    if backend == "jax":
        jax_devices.keep_programs(folder)
        return
    quoted = re.sub(r'(["\\])', r"\\\1", str(folder))  # TensorFlow divides the flags at white space outside quotes
    keep = f'--tf_xla_persistent_cache_directory="{quoted}" --tf_xla_persistent_cache_prefix=keras_transformer'
    os.environ["TF_XLA_FLAGS"] = f"{flags} {keep}".strip()


class WorkerLost(JobError):
    """Another worker stopped, or cannot be reached. The checkpoints are intact, and all workers may start again."""


class Workers(NamedTuple):
    """Who trains together.

    Args:
        total: how many workers.
        own: this worker's number, from 0.
        addresses: the addresses of all workers, as "HOST:PORT"; empty if there is one.
    """

    total: int
    own: int
    addresses: tuple[str, ...] = ()


def num_workers() -> int:
    """How many workers train together.

    Raises:
        RequestError: `TF_CONFIG` does not name workers alone, or not this one among them.
    """
    return _workers().total


def worker_index() -> int:
    """This worker's number, from 0. Worker 0 is the chief, which alone writes the run folder."""
    return _workers().own


def meet(facts: Config, seconds: float = MEETING_SECONDS) -> None:
    """Waits until all workers have come, and compares what they are about to do.

    The chief listens at its address in `TF_CONFIG`, as TensorFlow does later. The others send their facts there, and
    the chief tells all of them what it found.

    Args:
        facts: what must be the same, by names for people; values of JSON.
        seconds: how long to wait.

    Raises:
        RequestError: a worker has other facts than the chief.
        WorkerLost: a worker did not come; the message names it.
    """
    found = _workers()
    if found.total == 1:
        return
    end = time.monotonic() + seconds
    if found.own:
        say(f"waiting for the chief at {found.addresses[0]}")
        error, message = _told_by_chief({"worker": found.own, "facts": facts}, found.addresses[0], end)
    else:
        say(f"waiting for {found.total - 1} other worker(s), up to {seconds:.0f} s")
        error, message = _found_by_chief(json.loads(json.dumps(facts)), found.addresses, end)
    if message:
        raise (RequestError if error == "RequestError" else WorkerLost)(message)


def _found_by_chief(facts: Config, addresses: tuple[str, ...], end: float) -> list[str]:
    """Hears all workers and answers them: the name of an error and its message, which is empty if all is well."""
    port, has_both = int(addresses[0].rpartition(":")[2]), socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_both else socket.AF_INET
    with ExitStack() as stack:
        try:
            server = stack.enter_context(socket.create_server(("", port), family=family, dualstack_ipv6=has_both))
        except OSError as error:
            reason = error.strerror or error
            raise JobError(f"cannot listen at {addresses[0]}, the chief's address ({reason})") from None
        heard = _heard_of(server, len(addresses), end)
        missing = [f"{number} ({addresses[number]})" for number in range(1, len(addresses)) if number not in heard]
        answer = ["", ""]
        if missing:
            answer = ["WorkerLost", f"worker(s) {', '.join(missing)} did not come in time: start all workers together"]
        elif differing := [told for number in sorted(heard) if (told := _differing(number, heard[number][1], facts))]:
            answer = ["RequestError", f"{'; '.join(differing)}: start all workers with the same text and settings"]
        for caller, _ in heard.values():
            with suppress(OSError):
                _send(stack.enter_context(caller), answer)
                caller.recv(1)  # until the worker hangs up, so that the port is free at once for TensorFlow
        return answer


def _heard_of(server: socket.socket, total: int, end: float) -> dict[int, tuple[socket.socket, Config]]:
    """The connection of each other worker that calls in time, and its facts. Whoever else calls, silent or not, is not
    heard, and keeps nobody waiting.
    """
    heard, begun = dict[int, tuple[socket.socket, Config]](), dict[Any, bytes]()
    server.setblocking(False)
    ready: Any
    while len(heard) < total - 1 and (left := end - time.monotonic()) > 0:
        for ready in wait([server, *begun], left):
            with suppress(OSError, ValueError):  # a stranger's
                if ready is server:
                    begun[server.accept()[0]] = b""
                    continue
                line = begun.pop(ready)
                line += (part := ready.recv(MAX_MESSAGE_BYTES))
                if part and not part.endswith(b"\n") and len(line) < MAX_MESSAGE_BYTES:
                    begun[ready] = line
                    continue
                message = parse_json(line, having(worker=whole(1, total - 1), facts=dict))
                heard[message["worker"]] = ready, message["facts"]
        for caller in [*begun][:-MAX_CALLERS]:
            del begun[caller]
    return heard


def _differing(number: int, theirs: Config, facts: Config) -> str:
    names = [name for name in {**facts, **theirs} if theirs.get(name) != facts.get(name)]
    told = ", ".join(f"{name} {theirs.get(name)!s:.60} (the chief: {facts.get(name)!s:.60})" for name in names)
    return f"worker {number} differs from the chief: {told}" if told else ""


def _told_by_chief(message: Config, address: str, end: float) -> list[str]:
    """Calls the chief until it answers; see `_found_by_chief`."""
    host, _, port = address.rpartition(":")
    place = host.strip("[]"), int(port)
    while (left := end - time.monotonic()) > 0:
        with (
            suppress(OSError, ValueError),  # the chief is not there yet
            socket.create_connection(place, timeout=min(left, MESSAGE_SECONDS)) as connection,
        ):
            # A port of this machine that nobody listens at may be connected with itself.
            if connection.getsockname() != connection.getpeername():
                _send(connection, message)
                connection.settimeout(left + MESSAGE_SECONDS)
                with connection.makefile("rb") as file:
                    return list(parse_json(file.readline(MAX_MESSAGE_BYTES), list_of(str, 2, 2)))
        time.sleep(BETWEEN_CALLS)
    return ["WorkerLost", f"the chief, {address}, did not come in time: start all workers together"]


def _send(connection: socket.socket, message: object) -> None:
    connection.settimeout(MESSAGE_SECONDS)
    connection.sendall(json.dumps(message).encode() + b"\n")


@contextmanager
def lost_workers() -> Iterator[None]:
    """Raises `WorkerLost` where an operation fails because another worker is gone; TensorFlow notices in seconds."""
    try:
        yield
    except operation_errors() as error:
        is_lost = isinstance(error, tf.errors.UnavailableError) or "Collective ops is aborted" in error.message
        if num_workers() == 1 or not is_lost:
            raise
        raise WorkerLost(
            "another worker stopped, or cannot be reached; the checkpoints are intact: start all workers again with "
            "--resume"
        ) from error


def operation_errors() -> tuple[type[Any], ...]:
    """The errors in which TensorFlow wraps what an operation raised; JAX and PyTorch wrap nothing."""
    return (tf.errors.OpError,) if on_tensorflow() else ()


def _workers() -> Workers:
    """Reads `TF_CONFIG`. A cluster of one machine, whatever its job, is one worker."""
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        config = parse_json(text, TF_CONFIG)
        jobs, task = config.get("cluster", {}), config.get("task", {})
        addresses = [address for job in jobs.values() for address in job]
        if len(addresses) <= 1:
            return Workers(1, 0)
        index = int(str(task.get("index")))
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        of_workers = jobs.keys() == {"worker"} and all(0 < port < 2**16 for port in ports)
        if of_workers and task.get("type") == "worker" and 0 <= index < len(addresses):
            return Workers(len(addresses), index, tuple(addresses))
    except ValueError:
        pass  # the error below tells what is expected
    example = {"cluster": {"worker": ["HOST:PORT", "HOST:PORT"]}, "task": {"type": "worker", "index": 0}}
    raise RequestError(
        "`TF_CONFIG` must name workers alone, of which the first is the chief, and this one's index, as in "
        f"{json.dumps(example)}. Received: {text:.500}"
    )


class LocalReplicas(NamedTuple):
    """The replicas of this worker.

    Args:
        indices: their numbers among all replicas.
        total: how many replicas all workers have together.
    """

    indices: range
    total: int


def seed(number: int) -> None:
    """Seeds Python, NumPy, Keras and TensorFlow."""
    import keras

    keras.utils.set_random_seed(number)


def strategy(devices: str = "auto") -> tf.distribute.Strategy:
    """The strategy for `--devices` (see `parse_devices`).

    Several workers if `TF_CONFIG` names them, mirrored replicas on several devices, else TensorFlow's default strategy.
    It uses all GPUs that TensorFlow sees: `configure` must have hidden the others.
    """
    if os.environ.get("TF_CONFIG") == "":
        del os.environ["TF_CONFIG"]  # TensorFlow reads it too, and takes an empty one for broken JSON
    if num_workers() > 1:
        return tf.distribute.MultiWorkerMirroredStrategy()
    kind, numbers = parse_devices(devices)
    gpus = [gpu.name for gpu in tf.config.list_logical_devices("GPU")]
    names = [f"/cpu:{number}" for number in numbers] if kind == "cpu" else gpus
    return tf.distribute.MirroredStrategy(names) if len(names) > 1 else tf.distribute.get_strategy()


def local_replicas(strategy: tf.distribute.Strategy) -> LocalReplicas:
    """The replicas of this worker under a strategy."""
    count = strategy.num_replicas_in_sync
    each = count // num_workers()
    return LocalReplicas(range(worker_index() * each, (worker_index() + 1) * each), count)
