"""Resources of this machine: processors, memory, and the processes and threads that are left under every limit.

Linux counts processes and threads alike.
"""

import os
import resource
from collections.abc import Iterator
from pathlib import Path


FEWEST_THREADS, THREADS = 4, 32  # minimum and maximum for a program
PLENTY = 1 << 20
CONTROL_GROUPS = Path("/sys/fs/cgroup")
PROCESSOR = Path("/proc/cpuinfo")
BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # flags of x86 and ARM processors that multiply bfloat16 matrices
ADMIN, RESOURCES = 1 << 21, 1 << 24  # capabilities that exempt a process from RLIMIT_NPROC


def processors() -> int:
    """Return the number of processors that this process may use at once, 1 or more.

    This is the number of processors that the process may run on. It is smaller if a control group's `cpu.max` (v2) or
    `cpu.cfs_quota_us` (v1), as in containers, grants the time of fewer processors.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas()]))


def cores() -> int:
    """Return the number of processors that this process may use at once, at most the machine's physical cores."""
    import psutil  # here, because a sandbox imports this module with Python's own packages alone

    return min(processors(), psutil.cpu_count(logical=False) or processors())


def _quotas() -> Iterator[int]:
    """Yield the processor time that each control group of this process may use, in whole processors."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        for quota, period in _of_groups("cpu", *names):
            if quota >= 0 and period:  # -1: no limit
                yield quota // period


def multiplies_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16. Without them PyTorch computes it in slower ways."""
    try:
        return not BFLOAT16.isdisjoint(PROCESSOR.read_text().split())
    except OSError:
        return True  # it cannot be known


def memory_bytes() -> int:
    """Return the memory that this process may use, in bytes.

    This is the machine's memory, or less if a control group's `memory.max` (v2) or `memory.limit_in_bytes` (v1) is
    smaller.
    """
    limits = [size for name in ("memory.max", "memory.limit_in_bytes") for (size,) in _of_groups("memory", name)]
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits])


def threads_for(programs: int) -> int:
    """Return the threads that each of `programs` programs may have at once.

    A program gets at most 32 threads, and all programs together get half of the threads that are left. A program gets
    at least 4 threads.
    """
    return max(FEWEST_THREADS, min(THREADS, spare_tasks() // 2 // programs))


def spare_tasks() -> int:
    """Count the processes and threads that this process and all that share its limits may still start.

    This is the smallest rest of RLIMIT_NPROC, of the control groups' `pids.max` (v1 and v2) and of the kernel's
    `threads-max` and `pid_max`. A limit that cannot be read does not count.
    """
    left_of_groups = [most - now for most, now in _of_groups("pids", "pids.max", "pids.current")]
    return max(0, min([PLENTY, *_left_of_user(), *left_of_groups, *_left_of_kernel()]))


def tasks_of_user() -> int:
    """Count this user's threads if /proc shows those of all users; otherwise count all threads of the machine."""
    everyone = tasks_of_all()
    own = visible = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                count = os.stat(f"{entry.path}/task").st_nlink - 2
                visible += count
                own += count if entry.stat().st_uid == os.getuid() else 0
            except OSError:  # the process has ended
                continue
    return own if visible >= 0.9 * everyone else everyone


def tasks_of_all() -> int:
    """Count the threads on this machine."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def _left_of_user() -> Iterator[int]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and not _is_exempt():
        try:
            yield soft - tasks_of_user()
        except (OSError, ValueError, IndexError):
            return


def _is_exempt() -> bool:
    if os.getuid() == 0:
        return True
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return bool(effective & (ADMIN | RESOURCES))


def _of_groups(controller: str, *names: str) -> Iterator[list[int]]:
    """Yield the numbers in these files of each control group of this process that has a limit."""
    for folder in _groups(controller):
        try:
            numbers = [int(word) for name in names for word in (folder / name).read_text().split()]
        except (OSError, ValueError):  # a file of the other version, or none, as in the root; "max"
            continue
        yield numbers


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups, upwards; a container may see its own group as the root."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CONTROL_GROUPS / (controller if controllers else "")
        own = root / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder == root or root in folder.parents)


def _left_of_kernel() -> Iterator[int]:
    for name in ("threads-max", "pid_max"):
        try:
            yield int(Path(f"/proc/sys/kernel/{name}").read_text()) - tasks_of_all()
        except (OSError, ValueError, IndexError):
            continue
