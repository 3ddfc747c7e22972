r"""Run model-written programs on this machine, unprivileged and in milliseconds, and judge them without being fooled.

    with Sandbox() as sandbox:
        sandbox.run("print(int(input()) + 1)", stdin="41\n").stdout        # b"42\n"
        with sandbox.load("def double(x): return 2 * x", "double") as program:
            program.call([21]).equals(42)                                  # True
        sandbox.check("def double(x): return 2 * x", "double", "assert double(2) == 4").passed

This process (the judge) and the tests are trusted. The program is not trusted: it may try to read the trainer's files,
keys and processes, to reach the network, to exhaust the machine, and above all to earn a reward without solving the
task.

- Each program has a process of its own, forked in milliseconds from a `ForkServer` that was started clean: no
  environment, no descriptors, no tests. The process gives up all privileges before it reads the program (`child/`).
- The verdict is made in this process, from plain data (`child/plain_data.py`), never from the program's claims about
  itself. The expected output never reaches the program's process. Asserts run in a second process, which sees only the
  candidate's answers.
- Time, memory, processor time, threads and the size of every message are limited. A program that ended leaves nothing
  behind: it can start no process and write no file.

Not stopped: side channels through the processor and timing, slowing down other processes for the program's few
seconds, bugs of the kernel. Without bubblewrap or chroot, a program can learn names and sizes of files (stat), but not
their contents.
"""

import contextlib
import functools
import logging
import math
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence

from ..utils.fork_client import WAIT_STEP_S, Child, ForkServer, NoProcess
from ..utils.resources import threads_for
from ..utils.run_clock import Clock
from .errors import Killed, SandboxError, Starved
from .isolation import CHILD, NO_TIER, Tier, tiers
from .protocol import ENDED, KILLED, REASON_CHARS, Channel, Checked, Fault, Program, Ran, collect, file_of, pipe, relay
from .resource_pressure import Wait, as_starved, is_scarcity, tasks_of_user
from .self_test import escapes


logger = logging.getLogger(__name__)

START_LIMIT_S = 30.0  # limit for a forked process to lock itself down, which usually takes a millisecond
TESTS_MESSAGE_KB = 1 << 16
FORK_PATIENCE_S = 20.0  # wait for a free process; a program that takes them all is stopped by then
MOST_CPU_S = 10**6
NAMESPACE_TASKS = 4  # tasks of bubblewrap and the zygote in a user namespace
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
UNFIT = "UnfitTests: "  # prefix of the report of child/assert_runner.py about tests that it cannot run


class Sandbox:
    """A sandbox for model-written programs. Safe to use from any thread; must not be used in a fork of its process.

    Args:
        time_s (`float`, *optional*, defaults to `3.0`):
            Time limit, in seconds, for a script, for loading a program, for each call, and for all asserts together.
            It applies to the wall clock, less the time spent waiting for a processor, and to processor time. After 10
            times the limit on the wall clock, the program counts as [`Starved`]. See `utils/run_clock.py`.
        memory_mb (`int`, *optional*, defaults to `512`): address space in MiB, including the interpreter's (about 40).
        output_kb (`int`, *optional*, defaults to `1024`):
            Limit on the output of a script or the return value of a call, in KiB.
        threads (`int`, *optional*): threads per program; by default the result of `resources.threads_for`.
        peers (`int`, *optional*, defaults to `1`):
            Number of programs that may run at once as this user, over all sandboxes. If a program has no user of its
            own, one limit counts the threads of all of them together.
        on_wait (`Callable`, *optional*):
            Called now and then with the additional seconds that programs have waited for a processor or a process.
        allow_unsafe (`bool`, *optional*, defaults to `False`): if no tier works, run programs with limits alone.
        tier (`str`, *optional*): name of the tier to use; by default the best that works (see `isolation.py`).
        self_test (`bool`, *optional*, defaults to `True`): attack the sandbox once before it is used.

    Raises:
        RuntimeError: no tier works, and the message says how to fix this; or an attack of the self-test came through.
        Starved: no tier could be started now, for lack of processes.
    """

    def __init__(
        self,
        *,
        time_s: float = 3.0,
        memory_mb: int = 512,
        output_kb: int = 1024,
        threads: int | None = None,
        peers: int = 1,
        on_wait: Callable[[float], None] | None = None,
        allow_unsafe: bool = False,
        tier: str | None = None,
        self_test: bool = True,
    ):
        self.time_s, self.memory_mb, self.output_bytes = time_s, memory_mb, output_kb << 10
        self.threads = threads_for(peers) if threads is None else threads
        self._peers, self._on_wait = peers, on_wait
        self._closed = False
        self._running: set[Child] = set()
        self.tier, self._zygote = self._pick(tier, allow_unsafe)
        if self.tier == NO_TIER:
            logger.warning("Model-written programs run UNPROTECTED, only with limits, because allow_unsafe is set.")
        elif self_test:
            self._attack()
            logger.info(
                "Model-written programs run in the sandbox tier %s, which passed its self-test.", self.tier.name
            )

    def run(self, source: str, stdin: str = "", *, time_s: float | None = None) -> Ran:
        """Run a script on some input, as `python program.py < stdin` would. Run a killed script once more.

        Args:
            source (`str`): the program.
            stdin (`str`, *optional*, defaults to `""`): its standard input, which the script sees as a file.
            time_s (`float`, *optional*): time limit in seconds, instead of the sandbox's own.

        Raises:
            SandboxError: there is no verdict. [`Starved`] and [`Killed`] are caused by the machine.
        """
        time_s = self.time_s if time_s is None else time_s
        ran = self._run(source, stdin, time_s)
        # If the kernel killed the script for lack of memory, a second run may succeed.
        return self._run(source, stdin, time_s) if ran.reason == KILLED else ran

    def _run(self, source: str, stdin: str, time_s: float) -> Ran:
        with as_starved(), file_of(stdin) as stdin_fd, pipe() as (errors, their_errors):
            child, pids = self._start("stdin", time_s, fds=[stdin_fd, their_errors])
            try:
                clock = self._clock(time_s, pids)
                fault, stdout, stderr = "", bytearray(), bytearray()
                try:
                    Channel(child.socket, 0).send({"program": source}, clock)
                    collect(child.socket.fileno(), stdout, self.output_bytes, errors, stderr, clock)
                except Fault as error:
                    fault = str(error)
                clock.stop()
            finally:
                status = self._end(child)
        if status == -signal.SIGKILL and fault in ("", ENDED):
            fault = KILLED
        return Ran(status, bytes(stdout), fault or _how_it_ended(status, bytes(stderr)))

    @contextlib.contextmanager
    def load(self, source: str, entry_point: str, calls: int = 1000) -> Iterator[Program]:
        """Start a program whose function can be called until the `with` block ends. Its prints are discarded.

        If the program's `fault` is [`KILLED`], load it once more, as `run` and `check` do: the program may not have
        caused it.

        Args:
            source (`str`): the program; it runs as a module, not as `__main__`.
            entry_point (`str`): `function`, or `Class.method`, which is called on a new instance each time.
            calls (`int`, *optional*, defaults to `1000`): maximum number of calls, for the limit on processor time.

        Raises:
            SandboxError: as for [`Sandbox.run`]. A call may raise it, too.
        """
        with as_starved():
            child, pids = self._start("calls", self.time_s * (calls + 1))
            end = functools.cache(functools.partial(self._end, child))
            try:
                channel = Channel(child.socket, self.output_bytes)
                yield Program(channel, source, entry_point, pids, functools.partial(self._clock, self.time_s), end)
            finally:
                end()

    def check(self, source: str, entry_point: str, tests: str) -> Checked:
        """Check whether a program passes asserts, which run in a separate process and can only call the program.

        Args:
            source (`str`), entry_point (`str`): as for [`Sandbox.load`].
            tests (`str`):
                A script of asserts that call the entry point by its name. If it defines `check(candidate)`, that
                function is called. Otherwise each function `test...()` is called, including `async` functions, each
                method `test...` of a class `Test...`, and each `unittest.TestCase`. The script runs as `__main__`;
                `unittest.main()` does nothing. Only plain data is passed to the candidate and back. An exception is
                passed back by the name of its builtin type.

        Raises:
            ValueError: the tests are at fault. They pass or fail without a call, call the candidate with an argument
                that is not plain data, or hold a test that cannot be run, such as a generator or a test that takes
                arguments.
            SandboxError: as for [`Sandbox.run`].
        """
        checked = self._check(source, entry_point, tests)
        return self._check(source, entry_point, tests) if checked.reason == KILLED else checked

    def _check(self, source: str, entry_point: str, tests: str) -> Checked:
        with self.load(source, entry_point) as program:
            if program.fault:
                return Checked(False, program.fault)
            child, pids = self._start("tests", self.time_s)
            end = functools.cache(functools.partial(self._end, child))
            try:
                channel = Channel(child.socket, TESTS_MESSAGE_KB << 10)
                clock = self._clock(self.time_s, [*pids, *program.pids], fresh=False)
                checked = relay(channel, program, entry_point, tests, clock)
                clock.stop()
                if checked.reason.startswith(UNFIT):
                    raise ValueError(f"the tests cannot be run: {checked.reason}: {tests!r:.200}")
                return checked
            except Fault as error:
                if str(error) == ENDED and end() == -signal.SIGKILL:
                    raise Killed("the tests' process was killed") from None
                return Checked(False, str(error))
            finally:
                end()

    def close(self) -> None:
        """End the zygote. The sandbox can run no more programs."""
        self._closed = True
        self._zygote.close()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _pick(self, name: str | None, allow_unsafe: bool) -> tuple[Tier, ForkServer]:
        failures = []
        for tier in [*tiers(), *([NO_TIER] if allow_unsafe else [])]:
            if name in (None, tier.name):
                try:
                    return tier, self._probe(tier)
                except (RuntimeError, OSError) as error:
                    failure = f"{tier.name}: {str(error).strip()[-REASON_CHARS:]}"
                    if is_scarcity(error):  # a shortage passes, but the choice of a weaker tier would stay
                        raise Starved(f"the machine could start no process for a sandbox: {failure}") from error
                    failures.append(failure)
        raise RuntimeError(
            "There is no safe way to run model-written programs on this machine. It needs Linux 5.13 or newer with "
            "Landlock turned on, or bubblewrap (apt-get install bubblewrap) with user namespaces allowed, and in any "
            "case seccomp on x86-64 or aarch64. To run them all the same, with no protection but limits, set "
            f"allow_unsafe_code_execution=True. What was tried: {'; '.join(failures) or f'no tier is named {name}'}"
        )

    def _probe(self, tier: Tier) -> ForkServer:
        self.tier, wait = tier, Wait(self._on_wait)
        entry, env = f"{CHILD / 'entrypoint.py'}:enter", {"SANDBOX_MODE": tier.mode}
        self._zygote = ForkServer(
            entry, isolated=True, env=env, wrap=tier.wrap, patience_s=FORK_PATIENCE_S, on_wait=wait.tell
        )
        wait.tell()
        try:
            ran = self.run("print(6 * 7)", time_s=START_LIMIT_S)
            if ran.stdout != b"42\n":
                failure = Killed if ran.reason == KILLED else SandboxError
                raise failure(f"a program that prints does not run: {ran.reason}")
        except BaseException:
            self._zygote.close()
            raise
        return self._zygote

    def _attack(self) -> None:
        try:
            if escaped := escapes(self.run, self.memory_mb):
                raise RuntimeError(
                    f"The sandbox tier {self.tier.name} does not hold on this machine. These attacks came through: "
                    f"{', '.join(escaped)}. Model-written programs are not run in it."
                )
        except BaseException:
            self.close()
            raise

    def _start(self, form: str, time_s: float, fds: Sequence[int] = ()) -> tuple[Child, list[int]]:
        """Start a process and wait until it is locked down.

        Returns:
            `tuple[Child, list[int]]`: the process, and its pid in this namespace, if the kernel reports it.
        """
        cpu_s = math.ceil(min(time_s, MOST_CPU_S)) + 1
        if self._closed:
            raise SandboxError("this sandbox is closed")
        limits = [self.memory_mb, cpu_s, self.threads, self._others()]
        wait = Wait(self._on_wait)
        try:
            child = self._zygote.fork({"form": form, "limits": limits}, wait.tell)
        except NoProcess as error:
            raise Starved(f"the machine could start no process within {FORK_PATIENCE_S:g} s: {error}") from error
        except (RuntimeError, OSError, EOFError) as error:
            raise SandboxError(f"the machine could start no process: {error}") from error
        try:
            pids = _locked_in(child, fds, wait)
        except BaseException as error:
            status = self._zygote.end(child)
            if not isinstance(error, OSError | EOFError):
                raise
            how = "with what forks it" if status is None else _how_it_ended(os.waitstatus_to_exitcode(status), b"")
            failure = Killed if status in (None, signal.SIGKILL) else SandboxError
            raise failure(f"a process died before it was locked in: {how}") from None
        self._running.add(child)
        wait.tell()
        return child, pids

    def _end(self, child: Child) -> int:
        self._running.discard(child)
        status = self._zygote.end(child)
        if status is None:
            raise Killed("the process that forks programs was killed")
        return os.waitstatus_to_exitcode(status)

    def _clock(self, time_s: float, pids: Sequence[int], fresh: bool = True) -> Clock:
        return Clock(time_s, pids, fresh, self._on_wait)

    def _others(self) -> int:
        """Return the number of threads besides the program's own that may count for its user."""
        if self.tier.counts_alone:
            return NAMESPACE_TASKS + self.threads * len(self._running)
        return tasks_of_user() + self.threads * (self._peers - 1)


def _locked_in(child: Child, fds: Sequence[int], wait: Wait) -> list[int]:
    """Wait until a process is locked down. Return a list with its pid in this namespace, if the kernel reports it.

    Raises:
        Starved: the process took too long.
        OSError, EOFError: the process died.
    """
    child.socket.settimeout(WAIT_STEP_S)
    give_up = time.monotonic() + START_LIMIT_S
    if fds:
        socket.send_fds(child.socket, [b"x"], fds)
    while True:
        try:
            report, ancillary, _, _ = child.socket.recvmsg(REASON_CHARS, socket.CMSG_SPACE(CREDENTIALS.size))
            break
        except TimeoutError:
            wait.tell()
            if time.monotonic() >= give_up:
                raise Starved(f"a process was not locked in within {START_LIMIT_S:g} s") from None
    if not report:
        raise EOFError
    if report != b"R":
        raise SandboxError(f"a process could not be locked in: {report[1:].decode(errors='replace')}")
    return [pid for _, _, data in ancillary for pid in CREDENTIALS.unpack(data)[:1] if pid > 0]


def _how_it_ended(status: int, stderr: bytes) -> str:
    if not status:
        return ""
    lines = stderr.decode(errors="replace").strip().splitlines()
    how = f"exit status {status}" if status > 0 else f"signal {-status}"
    return how + (f": {lines[-1][:REASON_CHARS]}" if lines else "")
