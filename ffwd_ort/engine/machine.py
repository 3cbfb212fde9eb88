"""What this process may use: cores by affinity and cgroup, memory by cgroup and limits."""

import contextlib
import ctypes
import math
import os
import resource
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 for "no limit"


def available_cores(cgroup: Path = CGROUP) -> int:
    """Return the cores this process may keep busy: its affinity, less if a cgroup quota says so; at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(cgroup)
    return max(1, min(affinity, math.ceil(quota)) if quota else affinity)


def _cpu_quota(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def memory_limit(cgroup: Path = CGROUP) -> int:
    """Return the bytes this process may hold: the least of the machine's memory, a cgroup's limit and RLIMIT_AS."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limits.append(int((cgroup / name).read_text()))
        except (OSError, ValueError):
            continue
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    return min(limit for limit in limits if 0 < limit < UNLIMITED)


def resident_memory() -> int:
    """Return the bytes of memory this process holds now; 0 where /proc does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


M_ARENA_MAX = -8  # of malloc.h


def keep_memory_together() -> None:
    """Have glibc's allocator use two arenas instead of eight a core: hundreds of threads left 560 MiB in theirs."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(M_ARENA_MAX, 2)


def give_memory_back() -> None:
    """Have glibc's allocator return what it holds and nobody uses; takes milliseconds, and is for rare occasions."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
