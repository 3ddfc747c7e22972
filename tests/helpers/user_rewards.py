"""Rewards as a user writes them in a file. The tests load them by path and by name."""

import math
import os
import subprocess
import time

from trl_grpo_plus.registry import Step, register_reward
from trl_grpo_plus.scoring import AnnotatedScore, excuse


LONG = 600


@register_reward("user_judge", timeout=1.0)
def judge(completions, answer, hint=None, *, points: float = 1.0):
    """Return `points` for the answer. Some completions make the judge hang, raise or die instead; see `_judged`."""
    return [points if _judged(text) == wanted else 0.0 for text, wanted in zip(completions, answer, strict=True)]


@register_reward("user_forgiving", timeout=1.0, on_timeout="zero", on_error="zero")
def forgiving(completions, answer):
    """Judge as `user_judge` does. A completion that hangs or raises earns 0."""
    return [float(_judged(text) == wanted) for text, wanted in zip(completions, answer, strict=True)]


def _judged(text):
    if text == "hang":
        time.sleep(LONG)
    elif text.startswith("spawn"):
        seconds = text.removeprefix("spawn ")
        # In its own session this process does not belong to the worker's process group.
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
    elif text.startswith("signal"):
        os.kill(os.getpid(), int(text.split()[1]))
    elif text == "raise":
        raise KeyError("no such key")
    elif text == "leave":
        raise SystemExit(0)
    elif text.startswith("memory"):
        return str(len(bytearray(int(text.removeprefix("memory")) << 20)))
    return text


def _be_killed(mark):
    """Die by SIGKILL, as by the kernel's OOM killer. If `mark` is a path, die only once: the file marks the death."""
    if not mark or not os.path.exists(mark):
        if mark:
            open(mark, "x").close()
        os.kill(os.getpid(), 9)


@register_reward("user_pid", timeout=5.0)
def pid(completions):
    """Return the pid of the process that runs the reward."""
    return [float(os.getpid())] * len(completions)


@register_reward("user_slow", timeout=5.0)
def slow(completions):
    """Return 1.0 after 0.3 seconds."""
    time.sleep(0.3)
    return [1.0] * len(completions)


def excused(completions):
    """Return 1.0 after a second, of which 0.9 seconds are excused: they do not count towards the timeout."""
    for _ in range(10):
        time.sleep(0.1)
        excuse(0.09)
    return [1.0] * len(completions)


def says_more(completions, number, **kwargs):
    """Return 0.25 with the outcome `too_long`, and no score with the outcome `starved` for prompt 3."""
    return [AnnotatedScore(math.nan, "starved") if n == 3 else AnnotatedScore(0.25, "too_long") for n in number]


def dawdles(completions, **kwargs):
    """Return the length, after a time that is longer than a step of a tiny model."""
    time.sleep(0.03 * len(completions))
    return [float(len(text)) for text in completions]


def plain(completions, **kwargs):
    """Return the length of each completion."""
    return [float(len(text)) for text in completions]


def by_tokens(completion_ids):
    """Return the number of tokens. This reward does not read the text."""
    return [len(ids) for ids in completion_ids]


def with_options(completions, answer, scale=1.0, **kwargs):
    """Return `scale` for the answer. Users of TRL write options as parameters with a default."""
    return [scale * (text == wanted) for text, wanted in zip(completions, answer, strict=True)]


def hangs_on_one(completions, number, **kwargs):
    """Return 1.0 for a completion that begins with a digit, but hang on prompt 3."""
    if number[0] == 3:
        time.sleep(LONG)
    return [float(text[:1].isdigit()) for text in completions]


def fails_on_one(completions, number, **kwargs):
    """Raise if prompt 3 is in the batch."""
    if 3 in number:
        raise KeyError("a bug in the reward")
    return [float(text[:1].isdigit()) for text in completions]


async def asynchronous(completions, **kwargs):
    """Return the share of digits."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def wrong_length(completions, **kwargs):
    """Return one reward, however many completions there are."""
    return [1.0]


class Judge:
    """A class whose method is a reward."""

    def score(self, completions, **kwargs):
        """Return 0.0 for each completion."""
        return [0.0] * len(completions)


def logs_rows(completions, answer, log_extra):
    """Return and log the length."""
    log_extra("length", [len(text) for text in completions])
    return [float(len(text)) for text in completions]


def odd_values(completions, value, **kwargs):
    """Return the column `value`."""
    return value


NOT_A_FUNCTION = 3


def by_halves(completions, **kwargs):
    return [[Step(len(text) // 2, 1.0), Step(len(text), 0.5)] if text else [] for text in completions]


def hangs_or_dies(completions, number, **kwargs):
    """Hang on prompts with an even number, and end the process on the others."""
    if number[0] % 2:
        os._exit(1)
    time.sleep(60)


def equals_nested(completions, number, **kwargs):
    """Return 1 for a completion that equals the text within its row's `number`."""
    return [float(text == nested[0]["at"][0]) for text, nested in zip(completions, number, strict=True)]
