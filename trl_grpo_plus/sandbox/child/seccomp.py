"""A seccomp filter: the system calls that a model-written program may make. The kernel refuses all others.

The filter is an allowlist in classic BPF, installed through ctypes (libseccomp is seldom installed). The allowed calls
let Python compute, start threads, read the files that Landlock opens, and read and write the descriptors that it was
given. All other calls fail with EPERM, a PermissionError in Python, so that an ordinary program that merely tries one
can continue. These include fork, exec, sockets, signals to other processes, ptrace, process_vm_*, prctl, mount,
namespaces, chmod, writing or creating files, memfd, shared memory, message queues, io_uring, bpf, keyrings and
userfaultfd.

Some calls are allowed with some arguments only. `clone` makes threads, but no processes. `kill` and `tgkill` reach
only the program itself. `open` opens for reading only. `fcntl` and `ioctl` have no command that makes the kernel send
signals elsewhere. `socketpair` makes connected streams only (asyncio needs one). `sendto` accepts no address, and
neither `sendto` nor `recvfrom` accepts out-of-band data.

The filter has the call numbers of x86-64, where it was tested, and of aarch64, where it was not tested. Other
architectures are refused.
"""

import ctypes
import os
import platform
import struct

from . import lockdown


KILL, ALLOW, EPERM, ENOSYS = 0x80000000, 0x7FFF0000, 0x00050001, 0x00050026
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, JUMP, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x05, 0x06
PR_SET_SECCOMP, FILTER = 22, 2

# From the kernel: uapi/linux/sched.h, fcntl.h, ioctls.h. The values are the same on both architectures.
THREAD = 0x00010000
OF_A_THREAD = 0x007D0F00  # VM FS FILES SIGHAND THREAD SYSVSEM SETTLS PARENT_SETTID CHILD_CLEARTID DETACHED
WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o20000000  # O_WRONLY RDWR CREAT TRUNC APPEND and TMPFILE's own bit
FCNTL = (0, 1, 2, 3, 4, 1030)  # DUPFD GETFD SETFD GETFL SETFL DUPFD_CLOEXEC
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX
SENDING = 0x40 | 0x4000  # MSG_DONTWAIT NOSIGNAL
RECEIVING = 0x2 | 0x40 | 0x100  # MSG_PEEK DONTWAIT WAITALL

OWN_PID = 0xFEEDF00D  # placeholder for the pid of the process under the filter

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86-64, aarch64); None if the architecture lacks the call. From the kernel's headers.
FREE: dict[str, tuple[int | None, int | None]] = {
    # descriptors that the program has
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "preadv": (295, 69),
    "close": (3, 57), "close_range": (436, 436), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "lseek": (8, 62), "fstat": (5, 80), "pipe": (22, None), "pipe2": (293, 59), "eventfd2": (290, 19),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None),
    "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    # names of files: Landlock does not hide them, and imports need these calls
    "stat": (4, None), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291), "access": (21, None),
    "faccessat": (269, 48), "faccessat2": (439, 439), "getdents64": (217, 61), "getcwd": (79, 17), "umask": (95, 166),
    # memory
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "brk": (12, 214),
    "madvise": (28, 233),
    # threads and own signals
    "futex": (202, 98), "futex_waitv": (449, 449), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "rseq": (334, 293), "set_tid_address": (218, 96), "membarrier": (324, 283), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigtimedwait": (128, 137), "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "setitimer": (38, 103), "getitimer": (36, 102),
    "alarm": (37, None), "pause": (34, None), "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
    # identity and time
    "gettid": (186, 178), "getpid": (39, 172), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150),
    "getgroups": (115, 158), "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156),
    "getrandom": (318, 278), "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101), "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    "getrusage": (98, 165), "getrlimit": (97, 163), "setrlimit": (160, 164), "getpriority": (140, 141),
    "getcpu": (309, 168), "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "sysinfo": (99, 179), "uname": (63, 160),
}  # fmt: skip
ABSENT = {"clone3": (435, 435), "openat2": (437, 437)}  # libraries then use older calls with checkable arguments


class Filter:
    """A seccomp filter, assembled once and installed in each child. The children's filters differ only in the pid.

    Args:
        may_open (`bool`): whether files may be opened for reading. Must be `False` without Landlock.

    Raises:
        OSError: the architecture is unknown.
    """

    def __init__(self, may_open: bool):
        code = _assemble(may_open)
        self._own_pid = [8 * i + 4 for i, line in enumerate(code) if line[3] == OWN_PID]
        self._code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
        self._program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(self._code)))

    def install(self) -> None:
        """Put this thread and the threads it starts under the filter, for good. `no_new_privs` must be set.

        Raises:
            OSError: the kernel has no seccomp filters.
        """
        for place in self._own_pid:
            struct.pack_into("I", self._code, place, os.getpid())
        lockdown.prctl(PR_SET_SECCOMP, FILTER, ctypes.addressof(self._program))


Line = tuple[int, int, int, int]  # instruction, lines to skip if true, lines to skip if false, operand
Code = list[Line]


def _assemble(may_open: bool) -> Code:
    machine = platform.machine()
    if machine not in ARCHITECTURES or struct.calcsize("P") != 8:
        raise OSError(f"no table of system calls for {machine}")
    start: Code = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, ARCHITECTURES[machine]), _give(KILL), (LOAD, 0, 0, 0)]
    if machine == "x86_64":  # x32 numbers of the same calls are refused
        start += [(AT_LEAST, 0, 1, 0x40000000), _give(KILL)]
    return start + _search(sorted(_verdicts(list(ARCHITECTURES).index(machine), may_open).items()))


def _verdicts(column: int, may_open: bool) -> dict[int, Code]:
    """Map the number of each system call to the code that decides on the call."""
    own = _one_of(0, (OWN_PID,))
    reading = (lambda flags: [*_refuse(flags, WRITING), _give(ALLOW)]) if may_open else (lambda flags: [_give(EPERM)])
    table: list[tuple[tuple[int | None, int | None], Code]] = [
        *((numbers, [_give(ALLOW)]) for numbers in FREE.values()),
        *((numbers, [_give(ENOSYS)]) for numbers in ABSENT.values()),
        ((2, None), reading(1)),  # open
        ((257, 56), reading(2)),  # openat
        ((56, 220), _thread()),  # clone
        ((62, 129), own),  # kill
        ((234, 131), own),  # tgkill
        ((302, 261), _one_of(0, (0, OWN_PID))),  # prlimit64
        ((72, 25), _one_of(1, FCNTL)),
        ((16, 29), _one_of(1, IOCTL)),
        ((53, 199), _stream_pair()),  # socketpair
        ((44, 206), [*_refuse(3, ~SENDING), *_null(4)]),  # sendto: no address
        ((45, 207), [*_refuse(3, ~RECEIVING), _give(ALLOW)]),  # recvfrom
    ]
    return {numbers[column]: code for numbers, code in table if numbers[column] is not None}  # type: ignore[misc]


def _search(cases: list[tuple[int, Code]]) -> Code:
    """Return code that finds a case by binary search.

    A linear search would be slow: the kernel runs the filter for every call number when the filter is installed.
    """
    if len(cases) <= 2:
        return [line for number, code in cases for line in _when(number, code)] + [_give(EPERM)]
    middle = len(cases) // 2
    below, above = _search(cases[:middle]), _search(cases[middle:])
    return [(AT_LEAST, 0, 1, cases[middle][0]), (JUMP, 0, 0, len(below)), *below, *above]


def _give(verdict: int) -> Line:
    return RETURN, 0, 0, verdict


def _when(number: int, then: Code) -> Code:
    return [(EQUAL, 0, len(then), number), *then]


def _argument(place: int, high: bool = False) -> Line:
    # The low half by default: the kernel reads these arguments as 32 bits. Both architectures are little-endian.
    return LOAD, 0, 0, 16 + 8 * place + 4 * high


def _one_of(place: int, values: tuple[int, ...]) -> Code:
    return [_argument(place), *(line for value in values for line in _when(value, [_give(ALLOW)])), _give(EPERM)]


def _refuse(place: int, bits: int) -> Code:
    return [_argument(place), (ANY_BIT, 0, 1, bits & 0xFFFFFFFF), _give(EPERM)]


def _null(place: int) -> Code:
    low, high = _argument(place), _argument(place, high=True)
    return [low, (EQUAL, 1, 0, 0), _give(EPERM), high, (EQUAL, 1, 0, 0), _give(EPERM), _give(ALLOW)]


def _thread() -> Code:
    return [*_refuse(0, ~OF_A_THREAD), (ANY_BIT, 1, 0, THREAD), _give(EPERM), _give(ALLOW)]


def _stream_pair() -> Code:
    unix, stream, kind = 1, 1, 0xF
    family = [_argument(0), (EQUAL, 1, 0, unix), _give(EPERM)]
    return [*family, _argument(1), (AND, 0, 0, kind), (EQUAL, 1, 0, stream), _give(EPERM), _give(ALLOW)]
