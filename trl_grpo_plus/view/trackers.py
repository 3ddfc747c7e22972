"""Whole groups of attempts in wandb and trackio: a table that grows, a page to read, and two histograms.

A separate thread makes and sends each log. Each kind of error is reported once. The full record of a run is its files
under `output_dir/rollouts`. The trackers get only a sample, to look at while the run goes on.
"""

import contextvars
import json
import math
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

from accelerate.logging import get_logger

from ..rollouts.verdicts import VERDICTS
from ..traces import Row, best_first
from ..utils import optional_packages
from ..utils.text import as_text, without_middle
from ..utils.validation import finite_or_none
from . import page


logger = get_logger(__name__)

# wandb's interface shows the last 100 increments of a table.
MOST_LOGS = 100
# tracker -> function from its module to the run that is open in it
OPEN_RUN: dict[str, Callable[[Any], Any]] = {
    "wandb": lambda wandb: wandb.run,
    "trackio": lambda trackio: trackio.context_vars.current_run.get(),
}
# Maximum length of a text in a table: wandb keeps all rows of a growing table in memory.
MOST_CHARACTERS = 20_000

BEFORE_REWARDS = ("step", "split", "round", "group", "attempt", "verdict", "kept", "reason", "reward", "advantage")
AFTER_REWARDS = ("outcome", "tokens", "truncated", "prompt", "completion", "reference", "alarms")


class Trackers:
    """A logger of some whole groups to a run's trackers: at the first batch, and at about 100 batches in all.

    Each log is one row of history with `train/global_step` and
    - `traces/attempts`: a table with one row for each attempt. Groups stay together, with the highest advantage first.
      wandb shows the rows of all logs in one table, trackio shows a table for each log;
    - `traces/panel`: the same groups as a page;
    - `traces/reward` and `traces/spread`: histograms of the rewards, and of max - min within groups, over all groups.

    Logging neither raises nor waits. A thread makes and sends each log. One more log may wait for that thread, and
    further logs are skipped.

    Args:
        report_to (`list[str]`): as in [`~transformers.TrainingArguments`]. Only wandb and trackio are used.
        max_steps (`int`): optimizer steps of the whole run.
        groups (`int`, *optional*, defaults to `4`): maximum number of groups in a log; 0 logs nothing.

    Example:

    ```python
    trackers = Trackers(args.report_to, state.max_steps)
    if trackers.due(state.global_step + 1):
        trackers.log(state.global_step + 1, groups, totals)  # the step at which the batch is logged
    trackers.close()
    ```
    """

    # wandb's run and its growing table. A class attribute, so that a second training in one run continues the table.
    _growing: tuple[Any, Any] = (None, None)

    def __init__(self, report_to: list[str], max_steps: int, groups: int = 4):
        self.names = [name for name in OPEN_RUN if name in report_to]
        self.groups = groups
        self.every = max(1, math.ceil(max_steps / MOST_LOGS))
        self._last: int | None = None  # the last logged span of `every` steps
        self._offered = self._skipped = 0
        self._sending: list[threading.Thread] = []  # each waits for the one before it
        self._warned: set[tuple[str, str]] = set()
        self._reward_names: list[str] = []

    def due(self, step: int) -> bool:
        """Return `True` if the batch of `step` is due: the first in its span of steps."""
        return bool(self.names) and self.groups > 0 and (step - 1) // self.every != self._last

    def log(self, step: int, groups: list[list[Row]], totals: Any) -> None:
        """Log a batch if it is due, and return at once.

        Args:
            step (`int`): the step at which the batch is logged.
            groups (`list[list[dict]]`): rows of whole groups, to choose from. They must not be changed afterwards.
            totals (`Tensor` or nested `list`): `(P, G)`, total rewards of all sampled groups. NaN or `None` means that
                an attempt is unscored.
        """
        if not self.due(step):
            return
        self._last = (step - 1) // self.every
        totals = totals.tolist() if hasattr(totals, "tolist") else totals
        self._offered += 1
        self._sending = [thread for thread in self._sending if thread.is_alive()]
        if len(self._sending) > 1:
            self._skipped += 1
            slow = f"{' and '.join(self.names)}: slower than training."
            self._warn("thread", "slow", f"{slow} Batches whose groups it has no time for are skipped.")
            return
        # trackio keeps its run in a context variable.
        send, work = contextvars.copy_context().run, (self._send, step, groups, totals, self._sending[-1:])
        thread = threading.Thread(target=send, args=work, name="trackers", daemon=True)
        try:
            thread.start()
            self._sending.append(thread)
        except RuntimeError as error:  # no more threads
            self._skipped += 1
            self._warn("thread", "refused", f"Groups cannot be logged: {error}.")

    def close(self, timeout: float = 30.0) -> None:
        """Wait up to `timeout` seconds for the logs being sent. Call this before the trackers' runs are finished."""
        for thread in self._sending[-1:]:
            thread.join(timeout)
        if any(thread.is_alive() for thread in self._sending):
            logger.warning(f"Groups are still being sent after {timeout:g} s: the last of them may be missing.")
        if self._skipped:
            logger.warning(f"{self._skipped} of {self._offered} logs of groups were skipped.")
            self._offered = self._skipped = 0

    def _send(self, step: int, groups: list[list[Row]], totals: list[Any], before: list[threading.Thread]) -> None:
        for thread in before:
            thread.join()
        html, picked = "", list[list[Row]]()
        for name in self.names:
            try:
                module = import_module(name)
                run = OPEN_RUN[name](module)
                if run is None:
                    self._warn(
                        name, "closed", f"{name} is in report_to, but no {name} run is open: call {name}.init()."
                    )
                    continue
                if not html:
                    picked = pick(groups, self.groups)
                    html = valid(page.panel(picked, f"Step {step}"))
                # Made before the table: if they fail, the table must not have grown.
                values = {"traces/panel": module.Html(html, inject=False), **_histograms(module, totals)}
                values["traces/attempts"] = self._grown(name, module, run, picked)
                run.log({**values, "train/global_step": step})
            except BaseException as error:  # the thread has no caller that could handle it
                self._warn(name, "failed", _failure(name, error))

    def _grown(self, name: str, module: Any, run: Any, groups: list[list[Row]]) -> Any:
        """Return the table to log: for wandb the run's one growing table, which sends only its new rows."""
        # Kept from the first log: the columns of a growing table cannot change.
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

    def _warn(self, name: str, what: str, message: str) -> None:
        if (name, what) not in self._warned:
            self._warned.add((name, what))
            logger.warning(f"{message} Training goes on; the files under output_dir/rollouts do not depend on it.")


def _histograms(module: Any, totals: list[list[float | None]]) -> dict[str, Any]:
    # numpy cannot divide a range of one rounding error into bins.
    scored = [[round(value, 6) for value in map(finite_or_none, group) if value is not None] for group in totals]
    values = {
        "traces/reward": [value for group in scored for value in group],
        "traces/spread": [round(max(group) - min(group), 6) for group in scored if group],
    }
    return {key: module.Histogram(numbers) for key, numbers in values.items() if numbers}


def _failure(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == name:
        how = optional_packages.install(name)
        return f"{name} is in report_to and is not installed: {how}, or take it out of report_to."
    oldest = {"wandb": "0.20", "trackio": "0.34"}[name]
    return (
        f"Groups could not be logged to {name}: {type(error).__name__}: {error}. See whether the run is still open, "
        f"its disk has room and {name} is {oldest} or newer; it is tried again with the next log."
    )


def failed_in(error: BaseException) -> str | None:
    """Return the tracker that transformers or TRL called and that raised an error; `None` if there is none.

    A reward or a callback of the user's may call a tracker too. Its errors are its own.
    """
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [module.partition(".")[0] for module in modules]
    called = ((caller, name) for caller, name in pairwise(packages) if name in OPEN_RUN)
    caller, name = next(called, ("", ""))
    return name if caller in ("transformers", "trl") else None


# -- choice of the groups, and their rows in a table


def pick(groups: list[list[Row]], count: int) -> list[list[Row]]:
    """Pick at most `count` groups to look at, and return them in the given order.

    Up to half are groups that alarms name, those with the most alarms first. One is the group with the highest reward.
    Each of the rest has the verdict that is rarest among the groups picked so far.
    """
    verdicts = [group[0]["verdict"] for group in groups]
    alarmed = [i for i, group in enumerate(groups) if _alarms(group)]
    picked = sorted(alarmed, key=lambda i: -_alarms(groups[i]))[: max(1, count // 2)]
    rest = sorted(set(range(len(groups))) - set(picked), key=lambda i: (-_highest(groups[i]), i))
    if rest and len(picked) < count:
        picked.append(rest.pop(0))
    rest.sort()
    while rest and len(picked) < count:
        counts = Counter(verdicts[i] for i in picked)
        picked.append(min(rest, key=lambda i: (counts[verdicts[i]], VERDICTS.index(verdicts[i]))))
        rest.remove(picked[-1])
    return [groups[i] for i in sorted(picked)]


def columns(rewards: list[str]) -> list[str]:
    """Return the column names of [`table`]. A reward named like another column gets the prefix `rewards/`."""
    taken = {*BEFORE_REWARDS, *AFTER_REWARDS}
    return [*BEFORE_REWARDS, *(f"rewards/{name}" if name in taken else name for name in rewards), *AFTER_REWARDS]


def table(groups: list[list[Row]], rewards: list[str]) -> list[list[Any]]:
    """Return one row for each attempt. Groups stay together, each with its best attempt first."""
    return [_row(row, rewards) for group in groups for row in best_first(group)]


def storable(text: str) -> str:
    """Return `text` as a tracker can store it, without the middle of a long text."""
    return without_middle(valid(text), MOST_CHARACTERS)


def _row(row: Row, rewards: list[str]) -> list[Any]:
    last = {
        "outcome": ", ".join(f"{name}: {status}" for name, status in row["outcomes"].items() if status != "ok"),
        "prompt": storable(as_text(row["prompt"])),
        "completion": storable(as_text(row["completion"])),
        "reference": storable(json.dumps(row["reference"], ensure_ascii=False)),
        "alarms": ", ".join(row["alarms"]),
    }
    scores = [row["rewards"].get(name) for name in rewards]
    after = [last.get(name, row.get(name)) for name in AFTER_REWARDS]
    return [row[name] for name in BEFORE_REWARDS] + scores + after


def _alarms(group: list[Row]) -> int:
    return len({name for row in group for name in row["alarms"]})


def _highest(group: list[Row]) -> float:
    return max((row["reward"] for row in group if row["reward"] is not None), default=-math.inf)


def valid(text: str) -> str:
    """Return `text` with lone surrogates, which cannot be written as UTF-8, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def inert(value: Any) -> Any:
    """Return text that looks the same but holds no Markdown or HTML: trackio documents a table's text as Markdown.

    A zero-width space after each `<` and `]` leaves no tag, link, image or reference. Other values are returned as
    they are.
    """
    return value.replace("<", "<\u200b").replace("]", "]\u200b") if isinstance(value, str) else value
