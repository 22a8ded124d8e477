"""The devices to train on: reads `--devices`, configures TensorFlow, and describes the devices to people."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from keras_transformer.errors import RequestError


class Devices(NamedTuple):
    """What `--devices` asks for.

    Args:
        kind: "auto" (all GPUs, else the processor), "cpu" or "gpu".
        numbers: of the GPUs, or of the replicas on the processor; empty for "auto".
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
        "`devices` must be `auto`, `cpu`, `cpu:N` for N replicas on the processor, or GPU numbers such as `0,1`. "
        f"Received: {text!r}"
    )


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
    import tensorflow as tf

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
    import tensorflow as tf

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


def gpus_of_the_driver(folder: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """How many GPUs NVIDIA's driver has on this machine (Linux), whether CUDA's libraries are installed or not."""
    return len(list(folder.iterdir())) if folder.is_dir() else 0
