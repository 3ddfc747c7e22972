"""Measure the speed of rewards in samples per second: each one alone and in the pool, and compared with others.

    python benchmarks/rewards.py [--quick] [--workers 2] [--output results.json]

It prints three tables:

1. Every reward of the library on its own examples, repeated: called in this process ("alone"), and in the pool, where
   each sample is a message to a worker and back.
2. Math: TRL's `accuracy_reward`, which calls math-verify serially, and `math_answer` in the pool; on ordinary answers,
   and with 5 % of answers that are made to take very long ("burners").
3. Programs as models write them: a new `python` process for each, like most reward functions do; a new `python -I -S`;
   and the sandbox. The cost of isolation is measured against the same forked processes without their locks.

A figure is the best of `--repeat` runs. The runs with burners are done once, because time limits decide how long they
take.
"""

import argparse
import json
import logging
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import trl
from trl.rewards import accuracy_reward

from trl_grpo_plus.registry import Reward, find, list_rewards
from trl_grpo_plus.sandbox import Sandbox
from trl_grpo_plus.sandbox.isolation import NO_TIER, tiers
from trl_grpo_plus.scoring import configure


os.environ.setdefault("OMP_NUM_THREADS", "1")

Rate = float  # samples a second

BURNERS = [
    r"9^{9^{9^{9}}}", r"10^{10^{10}}", r"((10!)!)!", r"2^{3^{4^{5^{6}}}}", r"\frac{9^{9^{9}}}{9^{9^{9}}}",
    r"\sum_{k=1}^{100000000} k^{k}", r"(x+y+z+w)^{999}", r"\int_0^1 x^{x^{x}} dx", "{" * 5000 + "1" + "}" * 5000,
    r"\sqrt{" * 300 + "2" + "}" * 300,
]  # fmt: skip

PROGRAMS: list[tuple[str, Callable[[int], str]]] = [
    ("n = int(input())\nprint(n * (n + 1) // 2)\n", lambda n: str(n * (n + 1) // 2)),
    ("import sys\nn = int(sys.stdin.read())\nprint(sum(i * i for i in range(n)))\n",
     lambda n: str(sum(i * i for i in range(n)))),
    ("n = int(input())\nprint(' '.join(str(i) for i in range(n) if i % 3 == 0))\n",
     lambda n: " ".join(str(i) for i in range(n) if i % 3 == 0)),
    ("from collections import Counter\nn = int(input())\nprint(max(Counter(str(2 ** n)).values()))\n",
     lambda n: str(max(str(2**n).count(d) for d in "0123456789"))),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="What rewards cost.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3, help="number of runs; the best one counts")
    parser.add_argument("--quick", action="store_true", help="use a tenth of the samples, and run once")
    parser.add_argument("--output", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()
    scale, repeat = (0.1, 1) if options.quick else (1.0, options.repeat)
    configure(options.workers)
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it names each text that it gives up on
    logging.getLogger("trl_grpo_plus").setLevel(logging.ERROR)
    machine = f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, TRL {trl.__version__}"
    figures: dict[str, Any] = {"machine": machine, "workers": options.workers}
    print(f"{machine}, {options.workers} workers\n")
    figures["rewards"] = each_reward(scale, repeat)
    figures["math"] = math(scale, repeat)
    figures["programs"] = programs(scale, repeat, options.workers)
    if options.output:
        options.output.write_text(json.dumps(figures, indent=2) + "\n")


def rate(run: Callable[[], Any], count: int, repeat: int) -> Rate:
    """Return samples per second, the best of `repeat` runs."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return count / min(times)


# -- each reward


def each_reward(scale: float, repeat: int) -> dict[str, dict[str, Rate]]:
    print(f"{'reward':20} {'alone /s':>12} {'pool /s':>12}")
    found = {}
    for name in list_rewards():
        definition = find(name)
        args = definition.examples[0].args
        examples = [example for example in definition.examples if example.args == args]
        alone = _rate_of(Reward(definition, args), examples, _alone, scale, repeat)
        pool = _rate_of(Reward(definition, args, timeout=definition.timeout or 60), examples, _in_pool, scale, repeat)
        found[name] = {"alone": alone, "pool": pool}
        print(f"{name:20} {alone:12,.0f} {pool:12,.0f}")
    print()
    return found


def _rate_of(reward: Reward, examples: Sequence[Any], how: Callable[..., Any], scale: float, repeat: int) -> Rate:
    names = {name for example in examples for name in example.columns}

    def batch(count: int) -> dict[str, list[Any]]:
        rows = [examples[i % len(examples)] for i in range(count)]
        columns = {name: [row.columns.get(name) for row in rows] for name in names}
        return {"completions": [row.completion for row in rows], **columns}

    how(reward, batch(2 * len(examples)))
    start = time.perf_counter()
    how(reward, batch(len(examples)))
    # Choose the number of samples so that a run takes about half a second.
    count = max(len(examples), int(scale * 0.5 * len(examples) / (time.perf_counter() - start)))
    given = batch(count)
    return rate(lambda: how(reward, given), count, repeat)


def _alone(reward: Reward, given: dict[str, list[Any]]) -> Any:
    return reward.definition.function(**given, **reward.args)


def _in_pool(reward: Reward, given: dict[str, list[Any]]) -> Any:
    return reward.score(**given)


# -- math


def math(scale: float, repeat: int) -> dict[str, Rate]:
    clean = clean_answers(int(600 * scale))
    mixed = clean_answers(int(300 * scale))
    step = 20  # every twentieth: 5 %
    for i in range(0, len(mixed), step):
        mixed[i] = (BURNERS[(i // step) % len(BURNERS)], mixed[i][1])
    reward = Reward(find("math_answer"))
    runs: dict[str, tuple[Callable[[], Any], int, int]] = {
        "clean, math-verify serially (TRL's accuracy_reward)": (lambda: serial_math_verify(clean), len(clean), repeat),
        "clean, math_answer alone": (lambda: _alone(reward, as_batch(clean)), len(clean), repeat),
        "clean, math_answer in the pool": (lambda: _in_pool(reward, as_batch(clean)), len(clean), repeat),
        "5 % burners, math-verify serially (TRL's accuracy_reward)": (
            lambda: serial_math_verify(mixed),
            len(mixed),
            1,
        ),
        "5 % burners, math_answer in the pool": (lambda: _in_pool(reward, as_batch(mixed)), len(mixed), 1),
    }
    _in_pool(reward, as_batch(clean[:8]))
    serial_math_verify(clean[:8])
    print(f"{'math, math-verify ' + version('math-verify'):60} {'/s':>10}")
    found = {}
    for name, (run, count, times) in runs.items():
        found[name] = rate(run, count, times)
        print(f"{name:60} {found[name]:10,.1f}")
    names = list(runs)
    print(
        f"pool against math-verify serially: clean {found[names[2]] / found[names[0]]:.1f}x, with burners "
        f"{found[names[4]] / found[names[3]]:.1f}x; against itself alone: {found[names[2]] / found[names[1]]:.2f}x\n"
    )
    return found


def clean_answers(count: int) -> list[tuple[str, str]]:
    """Return pairs of answer and gold. Half of the answers are right. No two texts are equal: all need a parser."""
    draw = random.Random(0)
    found = []
    for i in range(count):
        a, b, c = draw.randint(2, 60), draw.randint(2, 60), draw.randint(2, 9)
        wrong = i % 2
        kinds: list[tuple[str, str]] = [
            (rf"\dfrac{{{a + wrong}}}{{{b}}}", rf"\frac{{{a}}}{{{b}}}"),
            (rf"{a}\sqrt{{{c + wrong}}}", rf"\sqrt{{{c}}} \cdot {a}"),
            (rf"{a} x + {b + wrong}", rf"{b}+{a}x"),
            (rf"\left[{a}, {a + b + wrong}\right)", rf"[{a},{a + b})"),
            (rf"\frac{{{a}\pi}}{{{b + wrong}}}", rf"{a}\pi/{b}"),
            (rf"\{{{b}, {a + wrong}\}}", rf"\{{{a}, {b}\}}"),
        ]
        found.append(kinds[i // 2 % len(kinds)])
    return found


def as_batch(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    return {
        "completions": [rf"The final answer is $\boxed{{{answer}}}$." for answer, _ in pairs],
        "answer": [gold for _, gold in pairs],
    }


def serial_math_verify(pairs: Sequence[tuple[str, str]]) -> list[float | None]:
    completions = [[{"role": "assistant", "content": rf"The final answer is $\boxed{{{a}}}$."}] for a, _ in pairs]
    return accuracy_reward(completions, [f"${gold}$" for _, gold in pairs])


# -- programs


def programs(scale: float, repeat: int, workers: int) -> dict[str, Rate]:
    count = int(400 * scale)
    cases = [(PROGRAMS[i % len(PROGRAMS)], 20 + i % 50) for i in range(count)]
    given: dict[str, list[Any]] = {
        "completions": [f"```python\n{source}```" for (source, _), _ in cases],
        "tests": [[{"stdin": f"{n}\n", "stdout": f"{answer(n)}\n"}] for (_, answer), n in cases],
    }
    reward = Reward(find("python_tests"))
    assert set(reward(**{name: values[:8] for name, values in given.items()})) == {1.0}
    # Use a sandbox without bubblewrap, because the sandbox without locks has none either.
    plain = next(tier.name for tier in tiers() if not tier.wrap)
    locked, bare = Sandbox(tier=plain), Sandbox(tier=NO_TIER.name, allow_unsafe=True)
    runs: dict[str, Callable[[], Any]] = {
        f"fresh python each, {workers} at a time": lambda: fresh([sys.executable], cases, workers),
        f"fresh python -I -S each, {workers} at a time": lambda: fresh([sys.executable, "-I", "-S"], cases, workers),
        f"python_tests in the pool, {workers} workers": lambda: reward(**given),
    }
    print(f"{'programs':60} {'/s':>10}")
    found = {name: rate(run, count, repeat) for name, run in runs.items()}
    # Alternate many times, because the speed of the machine drifts by more than the locks cost.
    turns = [[_rate_in(box, cases[:50]) for box in (locked, bare)] for _ in range(12)]
    found[f"one sandbox, {locked.tier.name}"] = statistics.median(turn[0] for turn in turns)
    found["one sandbox without its locks"] = statistics.median(turn[1] for turn in turns)
    for name, per_second in found.items():
        print(f"{name:60} {per_second:10,.1f}")
    cost = statistics.median(1000 / with_locks - 1000 / without for with_locks, without in turns)
    fresh_rate, _, pooled, *_ = found.values()
    print(
        f"sandboxed against a fresh python each: {pooled / fresh_rate:.1f}x; isolation costs {cost:.2f} ms a program"
    )
    return found


def _rate_in(sandbox: Sandbox, cases: Sequence[Any]) -> Rate:
    return rate(lambda: one_by_one(sandbox, cases), len(cases), 1)


def one_by_one(sandbox: Sandbox, cases: Sequence[Any]) -> None:
    for (source, answer), n in cases:
        assert sandbox.run(source, f"{n}\n").stdout.decode().strip() == answer(n)


def fresh(command: list[str], cases: Sequence[Any], workers: int) -> None:
    def run(case: Any) -> None:
        (source, answer), n = case
        done = subprocess.run([*command, "-c", source], input=f"{n}\n", capture_output=True, text=True, timeout=10)
        assert done.stdout.strip() == answer(n)

    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(run, cases))


if __name__ == "__main__":
    main()
