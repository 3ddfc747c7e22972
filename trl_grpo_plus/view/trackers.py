"""Whole groups of attempts in wandb and trackio: a table that grows, a page to read, and two histograms.

All of it is made and sent in a thread of its own, and what goes wrong there is said once. The record of a run is its
files under `output_dir/rollouts`; this is the sample that is looked at while it goes on.
"""

import contextvars
import math
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from accelerate.logging import get_logger

from ..common import packages
from .tracker_table import columns, inert, pick, table, valid


logger = get_logger(__name__)

# wandb's interface shows the last 100 increments of a table.
MOST_LOGS = 100
# What is logged through, and the run that is open there.
OPEN_RUN: dict[str, Callable[[Any], Any]] = {
    "wandb": lambda wandb: wandb.run,
    "trackio": lambda trackio: trackio.context_vars.current_run.get(),
}


class Trackers:
    """
    Logs some whole groups of a batch to the trackers of a run: at the first batch, and at about 100 batches in all.

    Each log is one row of history with `train/global_step` and
    - `traces/attempts`: a table with one row an attempt, groups together, the highest advantage of each first. wandb
      shows the rows of all logs in one table, trackio a table for each;
    - `traces/panel`: the same groups as a page;
    - `traces/reward` and `traces/spread`: histograms of the rewards, and of max - min within groups, over all groups.

    Nothing here raises or waits: a thread makes and sends each log, one more may wait for it, and the next is skipped.

    Args:
        report_to (`list[str]`): as in [`~transformers.TrainingArguments`]. Others than wandb and trackio are ignored.
        max_steps (`int`): optimizer steps of the whole run.
        groups (`int`, *optional*, defaults to `4`): most groups in a log; 0 logs nothing.

    Example:

    ```python
    trackers = Trackers(args.report_to, state.max_steps)
    if trackers.due(state.global_step):
        trackers.log(state.global_step, groups, totals)
    trackers.close()
    ```
    """

    # wandb's run, and the table that grows in it: of the class, so that it goes on where one run is trained in twice.
    _growing: tuple[Any, Any] = (None, None)

    def __init__(self, report_to: list[str], max_steps: int, groups: int = 4):
        self.names = [name for name in OPEN_RUN if name in report_to]
        self.groups = groups
        self.every = max(1, math.ceil(max_steps / MOST_LOGS))
        self._last: int | None = None  # which span of `every` steps was logged last
        self._offered = self._skipped = 0
        self._worker = _Worker()
        self._said: set[tuple[str, str]] = set()
        self._reward_names: list[str] = []

    def due(self, step: int) -> bool:
        """Whether a batch generated after `step` optimizer steps is to be logged: the first one seen in each span."""
        return bool(self.names) and self.groups > 0 and step // self.every != self._last

    def log(self, step: int, groups: list[list[dict[str, Any]]], totals: Any) -> None:
        """Log a batch if it is due. Returns at once.

        Args:
            step (`int`): optimizer steps done.
            groups (`list[list[dict]]`): rows of whole groups, to choose from. They must not be changed afterwards.
            totals (`Tensor` or nested `list`): `(P, G)`, total rewards of all groups sampled; NaN or `None`: unscored.
        """
        if not self.due(step):
            return
        self._last = step // self.every
        totals = totals.tolist() if hasattr(totals, "tolist") else totals
        # trackio keeps its run in a context variable.
        job = partial(contextvars.copy_context().run, self._send, step, groups, totals)
        self._offered += 1
        try:
            accepted = self._worker.offer(job)
        except RuntimeError as error:  # no more threads
            accepted = False
            self._say("worker", "refused", f"Groups cannot be logged: {error}.")
        if not accepted:
            self._skipped += 1
            names = " and ".join(self.names)
            self._say(
                "worker",
                "slow",
                f"{names}: slower than training. Batches whose groups it has no time for are skipped.",
            )

    def close(self, timeout: float = 30.0) -> None:
        """Wait up to `timeout` seconds for what is being sent. To be called before the trackers' runs are finished."""
        if not self._worker.wait(timeout):
            logger.warning(f"Groups are still being sent after {timeout:g} s: the last of them may be missing.")
        if self._skipped:
            logger.warning(f"{self._skipped} of {self._offered} logs of groups were skipped.")
            self._offered = self._skipped = 0

    def _send(self, step: int, groups: list[list[dict[str, Any]]], totals: list[list[float | None]]) -> None:
        page, picked = None, list[list[dict[str, Any]]]()
        for name in self.names:
            try:
                module = import_module(name)
                run = OPEN_RUN[name](module)
                if run is None:
                    self._say(name, "closed", f"{name} is in report_to and no run of it is open: call {name}.init().")
                    continue
                if page is None:
                    from . import page as view

                    picked = pick(groups, self.groups)
                    page = valid(view.panel(picked, f"Step {step}"))
                # Before the table, which would keep rows of a log that failed.
                values = {"traces/panel": module.Html(page, inject=False), **_histograms(module, totals)}
                values["traces/attempts"] = self._grown(name, module, run, picked)
                run.log({**values, "train/global_step": step})
            except BaseException as error:  # this thread's own: there is nothing above it to stop
                self._say(name, "failed", _failure(name, error))

    def _grown(self, name: str, module: Any, run: Any, groups: list[list[dict[str, Any]]]) -> Any:
        """The table to log: for wandb the run's one table, which sends what is new in it."""
        # Fixed, since the columns of a growing table are.
        self._reward_names = self._reward_names or list(groups[0][0]["rewards"])
        names, rows = columns(self._reward_names), table(groups, self._reward_names)
        if name == "trackio":
            return module.Table(columns=names, data=[[inert(value) for value in row] for row in rows])
        of_run, grown = Trackers._growing
        if of_run is not run or grown.columns != names:
            grown = module.Table(columns=names, log_mode="INCREMENTAL")
            Trackers._growing = (run, grown)
        for row in rows:
            grown.add_data(*row)
        return grown

    def _say(self, name: str, what: str, message: str) -> None:
        if (name, what) not in self._said:
            self._said.add((name, what))
            logger.warning(f"{message} Training goes on; the files under output_dir/rollouts do not depend on it.")


def _histograms(module: Any, totals: list[list[float | None]]) -> dict[str, Any]:
    # numpy cannot divide a range of one rounding error into bins.
    scored = [[round(value, 6) for value in group if value is not None and math.isfinite(value)] for group in totals]
    values = {
        "traces/reward": [value for group in scored for value in group],
        "traces/spread": [round(max(group) - min(group), 6) for group in scored if group],
    }
    return {key: module.Histogram(numbers) for key, numbers in values.items() if numbers}


def _failure(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == name:
        return f"{name} is in report_to and is not installed: {packages.install(name)}, or take it out of report_to."
    oldest = {"wandb": "0.20", "trackio": "0.34"}[name]
    return (
        f"Groups could not be logged to {name}: {type(error).__name__}: {error}. See whether the run is still open, "
        f"its disk has room and {name} is {oldest} or newer; it is tried again with the next log."
    )


class _Worker:
    """Does one job after another in a daemon thread that lives while there are any; one may wait its turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting: Callable[[], None] | None = None

    def offer(self, job: Callable[[], None]) -> bool:
        """Take on `job`, unless another one is waiting already."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._work, args=(job,), name="trackers", daemon=True)
                thread.start()
                self._thread = thread
            elif self._waiting is None:
                self._waiting = job
            else:
                return False
            return True

    def wait(self, timeout: float) -> bool:
        """Whether all jobs were done within `timeout` seconds."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def _work(self, job: Callable[[], None] | None) -> None:
        while job is not None:
            job()
            job = self._next()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            job, self._waiting = self._waiting, None
            if job is None:
                self._thread = None
            return job
