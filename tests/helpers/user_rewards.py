"""A user's own file of rewards, as the tests load it by path and by name."""

import math
import os
import subprocess
import time

from trl_grpo_plus.registry import Step, register_reward
from trl_grpo_plus.scoring import AnnotatedScore, excuse


LONG = 600


@register_reward("user_judge", timeout=1.0)
def judge(completions, answer, hint=None, *, points: float = 1.0):
    """`points` for the answer; some completions do what a judge should survive."""
    return [points if _judged(text) == wanted else 0.0 for text, wanted in zip(completions, answer, strict=True)]


@register_reward("user_forgiving", timeout=1.0, on_timeout="zero", on_error="zero")
def forgiving(completions, answer):
    """As `user_judge`, with 0 for what hangs or raises."""
    return [float(_judged(text) == wanted) for text, wanted in zip(completions, answer, strict=True)]


def _judged(text):
    if text == "hang":
        time.sleep(LONG)
    elif text.startswith("spawn"):
        seconds = text.removeprefix("spawn ")
        # In a session of its own it is no part of the worker's process group.
        subprocess.Popen(["sleep", seconds], start_new_session=True)
        subprocess.Popen(["sh", "-c", f"sleep {seconds} & sleep {seconds}"])
        time.sleep(LONG)
    elif text == "orphan":
        os.kill(os.getppid(), 9)
        time.sleep(LONG)
    elif text.startswith("killed"):
        _be_killed(text.removeprefix("killed").strip())
    elif text.startswith("compute"):
        end = time.process_time() + float(text.removeprefix("compute"))
        while time.process_time() < end:
            pass
    elif text == "die":
        os._exit(3)
    elif text == "segfault":
        os.kill(os.getpid(), 11)
    elif text == "raise":
        raise KeyError("no such key")
    elif text == "leave":
        raise SystemExit(0)
    elif text.startswith("memory"):
        return str(len(bytearray(int(text.removeprefix("memory")) << 20)))
    return text


def _be_killed(mark):
    """Die as of the kernel's OOM killer; with a mark, a file, once."""
    if not mark or not os.path.exists(mark):
        if mark:
            open(mark, "x").close()
        os.kill(os.getpid(), 9)


@register_reward("user_pid", timeout=5.0)
def pid(completions):
    """The process that it runs in."""
    return [float(os.getpid())] * len(completions)


@register_reward("user_slow", timeout=5.0)
def slow(completions):
    """A third of a second, then 1.0."""
    time.sleep(0.3)
    return [1.0] * len(completions)


def excused(completions):
    """A second, most of which went by while something else waited for a processor."""
    for _ in range(10):
        time.sleep(0.1)
        excuse(0.09)
    return [1.0] * len(completions)


def says_more(completions, number, **kwargs):
    """0.25, late; nothing for prompt 3."""
    return [AnnotatedScore(math.nan, "starved") if n == 3 else AnnotatedScore(0.25, "too_long") for n in number]


def dawdles(completions, **kwargs):
    """Takes longer than a step of a tiny model."""
    time.sleep(0.03 * len(completions))
    return [float(len(text)) for text in completions]


def plain(completions, **kwargs):
    """Length."""
    return [float(len(text)) for text in completions]


def by_tokens(completion_ids):
    """A reward that does not look at the text."""
    return [len(ids) for ids in completion_ids]


def with_options(completions, answer, scale=1.0, **kwargs):
    """TRL's users write options as parameters with a default."""
    return [scale * (text == wanted) for text, wanted in zip(completions, answer, strict=True)]


def hangs_on_one(completions, number, **kwargs):
    """1.0 for a digit in front; hangs on prompt 3."""
    if number[0] == 3:
        time.sleep(LONG)
    return [float(text[:1].isdigit()) for text in completions]


def fails_on_one(completions, number, **kwargs):
    """Raises where prompt 3 is in the batch."""
    if 3 in number:
        raise KeyError("a bug in the reward")
    return [float(text[:1].isdigit()) for text in completions]


async def asynchronous(completions, **kwargs):
    """Share of digits."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def wrong_length(completions, **kwargs):
    """One reward for all."""
    return [1.0]


class Judge:
    """Has a reward that is a method."""

    def score(self, completions, **kwargs):
        """Nothing."""
        return [0.0] * len(completions)


def logs_rows(completions, answer, log_extra):
    """Length, which it logs."""
    log_extra("length", [len(text) for text in completions])
    return [float(len(text)) for text in completions]


def odd_values(completions, value, **kwargs):
    """What the row says."""
    return value


NOT_A_FUNCTION = 3


def by_halves(completions, **kwargs):
    return [[Step(len(text) // 2, 1.0), Step(len(text), 0.5)] if text else [] for text in completions]


def hangs_or_dies(completions, number, **kwargs):
    """Hangs for even rows, and ends its process for the others."""
    if number[0] % 2:
        os._exit(1)
    time.sleep(60)
