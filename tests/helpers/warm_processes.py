"""Processes that have imported TRL before they start: a start takes milliseconds, where a cold one takes seconds.

Each test process starts a fork server by exec. The server imports the heavy packages, but nothing of this package.
`Popen` and `run` take a Python command, as `subprocess` does, and fork a process from the server that runs it.
`run_ranks` starts several processes, as torchrun would. tests/process/test_warm_processes.py compares them with cold
processes. There are two differences. Environment variables that are read at import must have the values of the tests.
And processes with the same `PYTHONHASHSEED` order their sets in the same way.
"""

import atexit
import functools
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import weakref
from pathlib import Path
from unittest import mock


PRELOAD = ["torch", "torch.distributed", "datasets", "accelerate", "transformers", "peft", "trl"]
PRELOAD += ["trl.trainer.grpo_trainer", "trl.scripts.utils", "transformers.models.auto.modeling_auto"]
PRELOAD += ["transformers.models.qwen2.modeling_qwen2", "transformers.models.llama.modeling_llama"]
READ_AT_IMPORT = ("HF_", "TRANSFORMERS_", "TRL_", "TORCH_", "OMP_", "MKL_", "TOKENIZERS_", "TRACKIO_", "PYTHON")
READ_LATER = {"PYTHONPATH", "PYTHONHASHSEED", "PYTHONUNBUFFERED", "TRL_GRPO_PLUS_RUN_AS", "TRL_GRPO_PLUS_RACER"}
ENVIRONMENT = dict(os.environ)  # the tests' environment, before a test changes it


@functools.cache
def _zygote(hash_seed):
    from trl_grpo_plus.utils.fork_client import ForkServer

    seed = {} if hash_seed is None else {"PYTHONHASHSEED": hash_seed}
    with mock.patch.dict(os.environ, ENVIRONMENT, clear=True):
        return ForkServer(f"{__file__}:become", preload=PRELOAD, env=seed)


@functools.cache
def _path():
    """Return `sys.path` of an isolated Python."""
    command = [sys.executable, "-I", "-c", "import sys; print(*sys.path, sep='\\n')"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


class Popen:
    """A warm `subprocess.Popen` of `[sys.executable, "-m" MODULE | "-c" CODE | FILE, ...]`, in its own process group.

    `stdout` and `stderr` are paths of files to append to. There is no `stdin`.
    """

    def __init__(self, command, *, cwd=".", env=None, stdout=os.devnull, stderr=os.devnull):
        self.args, self.returncode = [str(word) for word in command], None
        env = dict(os.environ if env is None else env)
        early = {name for name in env.keys() | ENVIRONMENT.keys() if name.startswith(READ_AT_IMPORT)} - READ_LATER
        if changed := sorted(name for name in early if env.get(name) != ENVIRONMENT.get(name)):
            raise ValueError(f"{', '.join(changed)}: read at import, so another value needs a cold process.")
        places = {"cwd": cwd, "stdout": stdout, "stderr": stderr}
        options = {name: os.path.abspath(place) for name, place in places.items()}
        for stream in (options["stdout"], options["stderr"]):
            open(stream, "a").close()  # so that the file can be read before the process opens it
        self._zygote = _zygote(env.get("PYTHONHASHSEED"))
        self._child = self._zygote.fork({"argv": self.args, "env": env, "path": _path(), **options})
        self.pid = self._child.pid
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self, timeout=0.0):
        """Return the exit status, or `None` if the process still runs after `timeout` seconds."""
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if poll.poll(None if timeout is None else 1000 * timeout):
                os.close(self._pidfd)
                self.returncode = os.waitstatus_to_exitcode(self._zygote.end(self._child))
        return self.returncode

    def wait(self, timeout=None):
        if self.poll(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def kill(self):
        """Kill the process and its group."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait()


def cold(command, *, stdout=os.devnull, stderr=os.devnull, **options):
    """Start any command by exec, with the arguments of `Popen`."""
    with open(stdout, "a") as out, open(stderr, "a") as err:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        return subprocess.Popen(command, **streams, **options, start_new_session=True)


def run(command, *, cwd=".", env=None, timeout=300):
    """Run a command as `subprocess.run` with captured text output does."""
    return run_ranks(command, 1, cwd=cwd, env=env, timeout=timeout)


def run_ranks(command, count=2, *, cwd=".", env=None, timeout=300, end_all=True):
    """Run `command` as `count` processes that find each other, each with its own `PYTHONHASHSEED`.

    If one process fails, end the others, as torchrun does; without `end_all`, wait for the others. Return the exit
    status of a process that failed (0 if none did) and the outputs of the processes, one after another.
    """
    env = dict(os.environ if env is None else env)
    own, free = [{}], socket.socket()
    if count > 1:
        # The port stays bound while they run, so that no other program gets it. With SO_REUSEADDR the store of
        # torch.distributed can still listen on it.
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        env |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
        own[1:] = [{**place, "PYTHONHASHSEED": place["RANK"]} for place in own[1:]]
    with free, tempfile.TemporaryDirectory() as folder:
        files = {name: [Path(folder, f"{name}{rank}") for rank in range(count)] for name in ("stdout", "stderr")}
        running, end = [], time.monotonic() + timeout
        try:
            for rank in range(count):
                streams = {name: paths[rank] for name, paths in files.items()}
                running.append(Popen(command, cwd=cwd, env={**env, **own[rank]}, **streams))
            while None in (statuses := {process.poll(0.05) for process in running}):
                if end_all and not statuses <= {None, 0}:
                    break
                if time.monotonic() > end:
                    raise subprocess.TimeoutExpired(command, timeout)
        finally:
            for process in running:
                process.kill()
        status = next(iter(statuses - {None, 0}), 0)
        printed = {name: "".join(path.read_text() for path in paths) for name, paths in files.items()}
    return subprocess.CompletedProcess(command, status, **printed)


def accelerate(command, environment, limit_s=None):
    """Run the processes that this `accelerate launch` command would start, and return their exit status and stderr."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

    with mock.patch.dict(os.environ, environment, clear=True):
        args, _, _ = launch._validate_launch_command(launch.launch_command_parser().parse_args(command[2:]))
        env = prepare_multi_gpu_env(args) if args.multi_gpu else prepare_simple_launcher_cmd_env(args)[1]
    script = [sys.executable, "-m", args.training_script, *args.training_script_args]
    done = run_ranks(script, args.num_processes, env=env)
    return done.returncode, done.stderr


# -- in a forked process


def become(control, options):
    """Run the command in this forked process, from its first line to its exit."""
    control.close()
    for number, stream in enumerate((sys.stdout, sys.stderr), 1):
        file = os.open(options[stream.name.strip("<>")], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.chdir(options["cwd"])
    os.environ.clear()
    os.environ.update(options["env"])
    sys.stdout.reconfigure(line_buffering=False, write_through=bool(os.environ.get("PYTHONUNBUFFERED")))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore SIGINT
    # numpy and torch are seeded at import, so all forks would share their seeds. `random` reseeds itself after a fork.
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].default_generator.seed()
    for finalizer in list(weakref.finalize._registry):  # wandb makes a folder at import and removes it at exit
        if isinstance(folder := finalizer.peek()[0], tempfile.TemporaryDirectory):
            finalizer()
            folder.__init__()
    finishing = False

    def interrupt(*_):
        """Raise KeyboardInterrupt once in each function that finishes, and never between two of them."""
        nonlocal finishing
        if finishing:
            finishing = False
            raise KeyboardInterrupt

    try:
        status = _status_of(options["argv"], options["path"])
        signal.signal(signal.SIGINT, interrupt)
    except KeyboardInterrupt:  # a second Ctrl-C, while the first one's traceback was printed
        signal.signal(signal.SIGINT, interrupt)
        status = -signal.SIGINT
    for finish in (threading._shutdown, atexit._run_exitfuncs):
        try:
            finishing = True
            finish()
            finishing = False
        except KeyboardInterrupt:  # a cold process only reports it here, and exits
            pass
    sys.stdout.flush()
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


def _status_of(argv, path):
    try:
        _run_main(argv, path)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _run_main(argv, path):
    sys.orig_argv, (kind, *rest) = argv, argv[1:]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    added = os.environ.get("PYTHONPATH")
    first = {"-m": os.getcwd(), "-c": ""}.get(kind, os.path.dirname(os.path.abspath(kind)))
    sys.path[:] = [first, *(added.split(os.pathsep) if added else []), *path]
    if kind == "-m":
        sys.argv = rest
        runpy._run_module_as_main(rest[0])
        return
    sys.argv = ["-c", *rest[1:]] if kind == "-c" else [kind, *rest]
    code = rest[0] if kind == "-c" else Path(kind).read_text()
    if kind != "-c":
        main.__file__ = os.path.abspath(kind)
    exec(compile(code, "<string>" if kind == "-c" else kind, "exec"), main.__dict__)
