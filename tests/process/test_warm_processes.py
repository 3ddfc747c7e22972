"""A process that is forked warm behaves like a cold one in everything that a test may observe."""

import json
import os
import signal
import subprocess
import sys

import pytest
import warm_processes


FACTS = """
import json, os, random, signal, sys, threading, __main__
import numpy, torch
print(json.dumps({
    "argv": sys.argv, "orig": sys.orig_argv[1:], "path": sys.path, "cwd": os.getcwd(), "name": __name__,
    "main": [__main__.__dict__ is globals(), getattr(__main__, "__file__", None)], "environ": dict(os.environ),
    "stdin": sys.stdin.read(), "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "streams": [[s.isatty(), s.line_buffering, s.write_through] for s in (sys.stdout, sys.stderr)],
    "threads": [torch.get_num_threads(), threading.active_count(), threading.current_thread().name],
    "group": os.getpgid(0) == os.getpid(),
    "ours": sorted(name for name in sys.modules if name.startswith("trl_grpo_plus")),
}))
print(random.random(), numpy.random.random(), torch.rand(()).item(), file=sys.stderr)
"""


def both(command, folder, **variables):
    environment = {**os.environ, **variables}
    streams = {name: folder / name for name in ("stdout", "stderr")}
    status = warm_processes.cold([sys.executable, *command], cwd=folder, env=environment, **streams).wait(60)
    printed = {name: path.read_text() for name, path in streams.items()}
    cold = subprocess.CompletedProcess(command, status, **printed)
    return cold, warm_processes.run([sys.executable, *command], cwd=folder, env=environment)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["-c", FACTS, "a b", "--c"], id="code"),
        pytest.param(["facts.py", "a b"], id="file", marks=pytest.mark.full),
        pytest.param(["-m", "facts", "-c"], id="module", marks=pytest.mark.full),
        pytest.param(["-m", "package.facts"], id="module of a package"),
    ],
)
def test_a_process_finds_itself_where_a_cold_one_does(tmp_path, command):
    (tmp_path / "package").mkdir()
    for folder in (tmp_path, tmp_path / "package"):
        (folder / "facts.py").write_text(FACTS)
    own = {"PYTHONUNBUFFERED": "1", "MORE": "x\ny", "PYTHONPATH": f"{tmp_path}/one:{tmp_path}/two"}
    cold, forked = both(command, tmp_path, **own)
    assert json.loads(forked.stdout) == json.loads(cold.stdout)
    assert set(forked.stderr.split()).isdisjoint(cold.stderr.split())
    again = warm_processes.run([sys.executable, *command], cwd=tmp_path, env={**os.environ, **own})
    assert set(forked.stderr.split()).isdisjoint(again.stderr.split()), "the same random numbers in each fork"


@pytest.mark.parametrize(
    ("end", "status"),
    {
        "": 0,
        "sys.exit()": 0,
        "sys.exit(130)": 130,
        "sys.exit('why')": 1,
        "raise KeyError('why')": 1,
        "raise KeyboardInterrupt": -signal.SIGINT,
        "os.kill(os.getpid(), signal.SIGINT)": -signal.SIGINT,
        "os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
        "os._exit(3)": 3,
        "os.execv(sys.executable, [sys.executable, '-c', 'print(5); raise SystemExit(4)'])": 4,
    }.items(),
)
def test_a_process_ends_as_a_cold_one_does(tmp_path, end, status):
    """The forked process has the same exit status and output. Threads are waited for, and exit functions run."""
    code = "import atexit, os, signal, sys, threading, time\natexit.register(print, 'bye')\n"
    code += "threading.Timer(0.2, print, ['late']).start()\nprint('begun', file=sys.stderr)\n"
    cold, forked = both(["-c", code + end], tmp_path, PYTHONUNBUFFERED="")
    assert forked.returncode == cold.returncode == status
    assert forked.stdout == cold.stdout
    last = [done.stderr.strip().splitlines()[-1] for done in (cold, forked)]
    assert last[0] == last[1]


def test_wait_signals_and_timeouts_work_as_in_subprocess(tmp_path):
    # The script gives the sleeper a name: a Ctrl-C that comes while an object is deleted would be lost.
    code = "import subprocess, time\nsleeper = subprocess.Popen(['sleep', '600'])\nprint('begun', flush=True)\n"
    code += "time.sleep(60)"
    process = warm_processes.Popen([sys.executable, "-c", code], stdout=tmp_path / "out", stderr=tmp_path / "err")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    while "begun" not in (tmp_path / "out").read_text():
        assert process.poll(0.01) is None
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == process.poll() == -signal.SIGINT
    assert (tmp_path / "err").read_text().endswith("KeyboardInterrupt\n")
    with pytest.raises(ProcessLookupError):  # no process of its group is left
        os.killpg(process.pid, 0)
    with pytest.raises(subprocess.TimeoutExpired):
        warm_processes.run([sys.executable, "-c", code], timeout=0.5)


def test_several_processes_find_each_other_and_end_if_one_fails():
    code = "import os, sys, time, torch.distributed as d\nd.init_process_group('gloo')\nrank = d.get_rank()\n"
    code += "print(rank, d.get_world_size(), os.environ['LOCAL_WORLD_SIZE'], hash('a'))\n"
    done = warm_processes.run_ranks([sys.executable, "-c", code])
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert (first[:5], second[:5]) == ("0 2 2", "1 2 2")
    assert first[5:] != second[5:]
    failed = warm_processes.run_ranks(
        [sys.executable, "-c", code + "print(os.getpid(), flush=True)\ntime.sleep(600 * rank)\nsys.exit(3)"]
    )
    assert failed.returncode == 3
    for pid in failed.stdout.splitlines()[1::2]:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"])
def test_what_is_read_at_import_needs_a_cold_process(name):
    with pytest.raises(ValueError, match=f"^{name}: read at import"):
        warm_processes.run([sys.executable, "-c", ""], env={**os.environ, name: "another"})
