"""What a machine has for a process: cores, and GPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # where Linux tells the limits of this process's container
# The files that tell microseconds of all cores in each period, and the period: of cgroups of version 2, and of 1.
QUOTA_FILES = (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"])


def num_cores(cgroup: Path = CGROUP) -> int:
    """How many cores this process may use, by its affinity and by the quota of its container; a part counts as one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_quota([cgroup / name for name in names]) for names in QUOTA_FILES]
    return min([allowed, *(math.ceil(quota) for quota in quotas if quota > 0)])


def _quota(files: Sequence[Path]) -> float:
    """A container's quota in cores; 0 or less if there is none."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # without a quota, version 2 says "max", and version 1 says -1
        return 0


def gpus_of_the_driver(folder: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """How many GPUs NVIDIA's driver has on this machine (Linux), whether CUDA's libraries are installed or not."""
    return len(list(folder.iterdir())) if folder.is_dir() else 0
