"""What this process may use: cores by affinity and cgroup, memory by cgroup and limits."""

import contextlib
import ctypes
import math
import os
import resource
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 for "no limit"


@dataclass(frozen=True)
class Memory:
    """The bytes this process may hold, and what says so: "machine", "cgroup" or "RLIMIT_AS"."""

    bytes: int
    bound_by: str


def _cgroup_folders(controller: str, cgroup: Path, membership: Path) -> list[Path]:
    """Return this process's group of a controller and every group around it: each has a limit that holds.

    A line of /proc/self/cgroup is `0::/path` in version 2, `number:controller,…:/path` in version 1. In a container
    the path may be that of the host, which is not to be seen there: the root then is the container's own group.
    """
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        lines = []
    folders = [cgroup, cgroup / controller]
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroup / controller if controllers else cgroup
        own = root / path.strip("/")
        folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return list(dict.fromkeys(folders))


def available_cores(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> int:
    """Return the cores this process may keep busy: its affinity, less if a cgroup quota says so; at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_cpu_quota(folder) for folder in _cgroup_folders("cpu", cgroup, membership)]
    return max(1, min([affinity, *(math.ceil(quota) for quota in quotas if quota)]))


def _cpu_quota(folder: Path) -> float | None:
    """Return the cores that one group may keep busy; None where it sets no limit."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with contextlib.suppress(OSError, ValueError):
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            return None if quota in ("max", "-1") else int(quota) / int(period)
    return None


def memory_limit(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> Memory:
    """Return the least of the machine's memory, the cgroups' limits and RLIMIT_AS."""
    limits = [Memory(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "machine")]
    for folder in _cgroup_folders("memory", cgroup, membership):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                limits.append(Memory(int((folder / name).read_text()), "cgroup"))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(Memory(soft, "RLIMIT_AS"))
    return min((limit for limit in limits if 0 < limit.bytes < UNLIMITED), key=lambda limit: limit.bytes)


def resident_memory() -> int:
    """Return the bytes of memory this process holds now; 0 where /proc does not tell."""
    return _held(1)


def held_of(memory: Memory) -> int:
    """Return the bytes that a limit already counts: what is resident, or for RLIMIT_AS all addresses in use."""
    return _held(0 if memory.bound_by == "RLIMIT_AS" else 1)


def _held(column: int) -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[column]) * os.sysconf("SC_PAGE_SIZE")
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
