"""The processes of a race: they run side by side if there is room for both, and they end together."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ...launch.launchers import in_this_python
from ...utils.files import unused
from ...utils.terminal import outlive_reader, say
from ...utils.validation import ConfigError
from .live import Live
from .plan import NAMES, PICTURE, RESULT, Lane, Race, command


PATIENCE = 0.25  # seconds between two reads of the journals
STOPPING = 120.0  # seconds that a run has to end after a second Ctrl-C


def run(race: Race, go_on_with: str, go_on: bool = False) -> int:
    """Run a race, show the standings, and print the result.

    Args:
        race ([`Race`]): the race to run.
        go_on_with (`str`): command that continues the race.
        go_on (`bool`, *optional*, defaults to `False`): continue an interrupted race.

    Returns:
        `int`: the exit status: 0, 1 if a run failed, 130 after Ctrl-C.

    Raises:
        ConfigError: there is no race to continue.
    """
    outlive_reader()
    _settle(race, go_on)
    waiting = [lane for lane in race.lanes if not lane.finished]
    names = " and ".join(NAMES[lane.name] for lane in waiting)
    say(f"{race.folder}: {f'running {names}' if names else 'both runs have finished'}", flush=True)
    batches = [waiting] if race.together else [[lane] for lane in waiting]
    live, status = Live(race), 0
    for batch in batches:
        status = status or _run_together(race, batch, live, go_on_with)
    say(live.ended(), flush=True)
    if status == 130:
        say(f"\nInterrupted. To continue:\n\n  {go_on_with}\n")
    return status


def _settle(race: Race, go_on: bool) -> None:
    """Move an earlier race out of the way, or check that there is a race to continue."""
    there = [path for path in (race.folder.iterdir() if race.folder.is_dir() else ()) if _is_ours(path)]
    if go_on and not there:
        raise ConfigError(f"--resume: there is no race in {race.folder}. Start one without --resume.")
    if there and not go_on:
        earlier = unused(race.folder, "earlier")
        earlier.mkdir()
        for path in there:
            path.rename(earlier / path.name)
        say(f"Moved the earlier race in {race.folder} to {earlier}.")
    race.folder.mkdir(parents=True, exist_ok=True)


def _is_ours(path: Path) -> bool:
    return path.stem in NAMES or path.name in (RESULT, PICTURE)


def _run_together(race: Race, lanes: Sequence[Lane], live: Live, go_on_with: str) -> int:
    running: dict[Lane, Any] = {}
    try:
        with _ended_like_ctrl_c():
            try:
                for lane in lanes:
                    running[lane] = start(*command(race, lane, go_on_with), lane.log)
                while _going(running):
                    time.sleep(PATIENCE)
                    live.show()
                    if any(process.poll() not in (None, 0) for process in running.values()):
                        _interrupt(running)  # one run has failed, and the other should not go on alone
                        break
            except KeyboardInterrupt:
                say("\nFinishing the current step, then saving. Press Ctrl-C again to stop at once.", file=sys.stderr)
                live.below()
                _interrupt(running)
    finally:
        for process in running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    live.show()
    ended = {lane: process.poll() for lane, process in running.items()}
    failed = {lane: status for lane, status in ended.items() if status not in (0, 130)}
    for lane, status in failed.items():
        _say_failed(lane, status)
    return 1 if failed else 130 if len(ended) < len(lanes) or any(ended.values()) else 0


def _say_failed(lane: Lane, status: int) -> None:
    tail = "\n".join(lane.log.read_text(errors="replace").replace("\r", "\n").splitlines()[-15:])
    text = f"\nerror: {NAMES[lane.name]} ended with status {status}. The last lines of {lane.log}:\n{tail}"
    say(text, file=sys.stderr)


def _going(running: dict[Lane, Any]) -> list[Any]:
    return [process for process in running.values() if process.poll() is None]


def _interrupt(running: dict[Lane, Any]) -> None:
    """Let the runs finish their step, save and end. Another Ctrl-C ends them at once."""
    for process in _going(running):
        os.kill(process.pid, signal.SIGINT)
    try:
        while _going(running):
            time.sleep(PATIENCE)
    except KeyboardInterrupt:
        for process in _going(running):
            os.kill(process.pid, signal.SIGINT)
        end = time.monotonic() + STOPPING
        while _going(running) and time.monotonic() < end:
            time.sleep(PATIENCE)


def start(command: list[str], environment: dict[str, str], log: Path) -> Any:
    """Start a launcher's command in its own session, so that Ctrl-C reaches only the race, which passes it on."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            in_this_python(command),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True,
        )  # fmt: skip


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Treat a closed terminal and a supervisor's SIGTERM as Ctrl-C, so that the runs save.

    A signal that is ignored, as SIGHUP is under `nohup`, stays ignored.
    """
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]

    def end(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)  # a shell sends it again, which is no second Ctrl-C
        raise KeyboardInterrupt

    before = [signal.signal(number, end) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
