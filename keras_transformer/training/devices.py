"""Starts the devices that train together in one process, on TensorFlow and on JAX, under one strategy."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from keras_transformer.core.errors import RequestError, say
from keras_transformer.core.extras import install
from keras_transformer.core.files import user_cache
from keras_transformer.core.lazy import on_tensorflow, tf
from keras_transformer.core.machine import gpus_of_the_driver
from keras_transformer.training import workers
from keras_transformer.training.common_settings import Settings


class Devices(NamedTuple):
    """The devices that `--devices` asks for.

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


class DataParallel:
    """Takes the place of a `tf.distribute` strategy on JAX, where Keras divides each batch among the devices.

    Args:
        num_devices: how many devices train together.
    """

    def __init__(self, num_devices: int):
        self.num_replicas_in_sync = num_devices

    def scope(self) -> AbstractContextManager[None]:
        """Returns a context in which models are made."""
        return nullcontext()


Strategy: TypeAlias = "tf.distribute.Strategy | DataParallel"


@contextmanager
def started(settings: Settings, facts: Mapping[str, str]) -> Iterator[Strategy]:
    """Starts the devices, seeds all random numbers, meets the other workers, and yields the strategy to train under.
    JAX has one worker.

    Args:
        settings: `devices`, `threads` and `seed`.
        facts: what all workers must have the same, by names for people.

    Raises:
        RequestError: a GPU is not there, or a worker differs from the chief.
        WorkerLost: another worker did not come, or was lost within.
    """
    if not on_tensorflow():
        with _started_on_jax(parse_devices(settings.devices)) as found:
            seed(settings.seed)
            yield found
        return
    configure(settings.devices, settings.threads)
    say(describe_devices(settings.devices))
    seed(settings.seed)
    with workers.lost_workers():
        yield workers.connected(facts) if workers.num_workers() > 1 else strategy(settings.devices)


@contextmanager
def _started_on_jax(devices: Devices) -> Iterator[DataParallel]:
    """Starts JAX's devices; within, Keras trains on all of them (`keras.distribution.DataParallel`)."""
    import jax
    import keras

    if devices.kind == "cpu":
        jax.config.update("jax_platforms", "cpu")
        if len(devices.numbers) > 1:
            jax.config.update("jax_num_cpu_devices", len(devices.numbers))
    found = jax.devices()
    if devices.kind == "gpu":
        count = len(found) if _jax_has_gpu() else 0
        if max(devices.numbers) >= count:
            raise RequestError(
                f"`devices` must name GPUs that are there ({count} found by JAX). Received: {devices.numbers}"
            )
        found = [found[number] for number in devices.numbers]
    told = f"on {len(found)} GPU(s) with JAX: {', '.join(one.device_kind for one in found)}"
    if found[0].platform == "cpu":
        told = "on the processor with JAX" + (f", in {len(found)} replicas" if len(found) > 1 else "")
    say(f"training {told}")
    if len(found) == 1:
        with jax.default_device(found[0]):
            yield DataParallel(1)
        return
    names = [f"{one.platform}:{one.id}" for one in found]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=names))
    try:
        yield DataParallel(len(found))
    finally:
        keras.distribution.set_distribution(None)


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
    """Says in one line what a run trains on. If TensorFlow does not see a GPU of the driver, the line says why."""
    kind, numbers = parse_devices(devices)
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
        return f"training on {len(gpus)} GPU(s): {', '.join(names)}"
    if kind == "auto" and (count := gpus_of_the_driver()):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"Its CUDA libraries are not installed, or do not fit: {install('gpu')}"
        if hidden is not None:
            why = f"CUDA_VISIBLE_DEVICES is {hidden!r}, which may hide them"
        return f"training on the processor: the NVIDIA driver has {count} GPU(s), but TensorFlow sees none. {why}"
    return "training on the processor" + (f", in {len(numbers)} replicas" if len(numbers) > 1 else "")


def has_gpu(devices: str) -> bool:
    """Returns whether training on these devices is training on GPUs."""
    kind, _ = parse_devices(devices)
    if kind == "auto":
        return bool(tf.config.list_physical_devices("GPU")) if on_tensorflow() else _jax_has_gpu()
    return kind == "gpu"


def _jax_has_gpu() -> bool:
    import jax

    return bool(jax.default_backend() != "cpu")


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
        import jax

        jax.config.update("jax_compilation_cache_dir", str(folder))
        return
    quoted = re.sub(r'(["\\])', r"\\\1", str(folder))  # TensorFlow divides the flags at white space outside quotes
    keep = f'--tf_xla_persistent_cache_directory="{quoted}" --tf_xla_persistent_cache_prefix=keras_transformer'
    os.environ["TF_XLA_FLAGS"] = f"{flags} {keep}".strip()


def seed(number: int) -> None:
    """Seeds Python, NumPy, Keras and TensorFlow."""
    import keras

    keras.utils.set_random_seed(number)


def strategy(devices: str = "auto") -> tf.distribute.Strategy:
    """Returns the strategy of one worker for `--devices` (see `parse_devices`): mirrored replicas on several devices,
    else TensorFlow's default strategy.

    It uses all GPUs that TensorFlow sees: `configure` must have hidden the others.
    """
    if os.environ.get("TF_CONFIG") == "":
        del os.environ["TF_CONFIG"]  # TensorFlow reads it too, and takes an empty one for broken JSON
    kind, numbers = parse_devices(devices)
    gpus = [gpu.name for gpu in tf.config.list_logical_devices("GPU")]
    names = [f"/cpu:{number}" for number in numbers] if kind == "cpu" else gpus
    return tf.distribute.MirroredStrategy(names) if len(names) > 1 else tf.distribute.get_strategy()
