"""Counts the CPU cores and GPUs that this process may use, and has the runtimes keep memory and send nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # where Linux tells the limits of this process's container
# The files that tell microseconds of all cores in each period, and the period: of cgroups of version 2, and of 1.
QUOTA_FILES = (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"])
# TensorFlow turns oneDNN on where a processor has one of these, unless TF_ENABLE_ONEDNN_OPTS says otherwise.
ONEDNN_FLAGS = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
NO_LIMIT = 2**24  # MiB


def num_cores(cgroup: Path = CGROUP) -> int:
    """Counts the cores that this process may use, by its affinity and its container's quota; a part counts as one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_quota([cgroup / name for name in names]) for names in QUOTA_FILES]
    return min([allowed, *(math.ceil(quota) for quota in quotas if quota > 0)])


def _quota(files: Sequence[Path]) -> float:
    """Returns a container's quota in cores; 0 or less if there is none."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # without a quota, version 2 says "max", and version 1 says -1
        return 0


def gpus_of_the_driver(folder: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Counts the GPUs that NVIDIA's driver has on this machine (Linux), with and without CUDA's libraries."""
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def send_nothing() -> None:
    """Keeps ONNX Runtime from telling Microsoft about this machine and its models, and from noting them in a file.

    Its packages do so from 1.31 on. It reads the variable when it is imported; what the user set stays.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def keep_memory(cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Makes TensorFlow keep the memory of large tensors for the next step, where it would give it back to the system.

    TensorFlow then takes fresh pages in every step, and the kernel clears them. Where oneDNN is on, TensorFlow keeps
    the memory by itself. What the user set stays. TensorFlow reads the variables when it first allocates a tensor.

    Args:
        cpuinfo: the file in which Linux describes the processors; without one nothing changes.
    """
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as file:
            flags = next((line.split() for line in file if line.startswith("flags")), [])
    except OSError:
        return
    by_default = not ONEDNN_FLAGS.isdisjoint(flags)
    has_onednn = {"0": False, "false": False, "1": True, "true": True}.get(
        os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower(), by_default
    )
    if flags and not has_onednn and "TF_CPU_ALLOCATOR_USE_BFC" not in os.environ:
        os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
        os.environ.setdefault("TF_CPU_BFC_MEM_LIMIT_IN_MB", str(NO_LIMIT))  # by default 64 GiB
