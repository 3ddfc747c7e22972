"""Made-up traces of runs, for tests of the code that reads traces."""

import functools
import itertools
import json
import random
from pathlib import Path
from typing import Any

import torch

from trl_grpo_plus.rollouts.groups import Plan, Round
from trl_grpo_plus.traces import Row, SampledBatch


def row(**changes: Any) -> dict[str, Any]:
    """Return one attempt, as a line of a trace."""
    return {
        "step": 0,
        "split": "train",
        "batch": 0,
        "round": 0,
        "group": 0,
        "attempt": 0,
        "size": 4,
        "prompt": "What is 6 times 7?",
        "completion": "<think>six sevens</think> <answer>42</answer>",
        "reference": {"answer": "42"},
        "rewards": {"accuracy": 1.0, "format": 1.0},
        "steps": {},
        "outcomes": {"accuracy": "ok", "format": "ok"},
        "reward": 2.0,
        "advantage": 0.0,
        "verdict": "all_good",
        "kept": True,
        "reason": None,
        "tokens": 12,
        "truncated": False,
        "kl": None,
        "extra": {},
        "alarms": [],
        **changes,
    }


def sampled(rounds: list[Round], weights: dict[str, float], size: int, **changes: Any) -> SampledBatch:
    """Return a training batch of step 0. All groups are trained on; totals are the weighted sums of the rewards."""
    rewards = torch.cat([one.rewards for one in rounds])
    values = {
        **{"split": "train", "step": 0, "size": size, "weights": weights, "rounds": rounds},
        "plan": Plan.as_sampled(len(rounds[0].verdicts)),
        "totals": (rewards * torch.tensor(list(weights.values()))).nansum(dim=1),
        "advantages": torch.zeros(len(rewards)),
        **{"kl": None, "alike": True, "failing": {}, "entropy": None},
    }
    return SampledBatch(**{**values, **changes})


def group(scores: list[float], length: int = 40, seed: int = 0, **changes: Any) -> list[dict[str, Any]]:
    """Return the attempts on one prompt. `scores` are their accuracies; each completion has about `length` words."""
    mean = sum(scores) / len(scores)
    spread = max(scores) - min(scores)
    alike = "all_good" if scores[0] >= 1 else "all_bad" if scores[0] <= 0 else "tied"
    completions = _completions(f"{seed} {changes}", tuple(score >= 1 for score in scores), length)
    return [
        row(
            attempt=attempt,
            size=len(scores),
            completion=completions[attempt],
            rewards={"accuracy": score, "format": 1.0},
            reward=score + 1.0,
            advantage=score - mean,
            verdict="alive" if spread > 0 else alike,
            kept=spread > 0,
            reason=None if spread > 0 else "zero_variance",
            tokens=length + 10,
            **changes,
        )
        for attempt, score in enumerate(scores)
    ]


def write_run(folder: Path, steps: int = 4, groups: int = 6, size: int = 4, length: int = 40, seed: int = 0) -> Path:
    """Write a run to `folder`: `steps` batches of `groups` groups, with metrics. Its accuracy rises."""
    rng = random.Random(seed)
    about = {"rewards": {"accuracy": 1.0, "format": 1.0}, "num_generations": size, "max_steps": steps}
    metrics, written = [], []
    for step in range(steps):
        ability = 0.2 + 0.6 * step / max(steps - 1, 1)
        rewards = []
        for number in range(groups):
            chance = min(1.0, max(0.0, ability + rng.choice([-1.0, 0.0, 0.0, 1.0])))
            scores = [float(rng.random() < chance) for _ in range(size)]
            place = {"step": step, "group": number, "prompt": f"Problem {step}.{number}: what is 6 times 7?"}
            written.append(group(scores, length, seed, **place))
            rewards += [score + 1.0 for score in scores]
        mean = sum(rewards) / len(rewards)
        metrics.append({"step": step + 1, "reward": mean, "kl": 0.001 * step, "entropy": 1.0 - 0.5 * step / steps})
    return write_traces(folder, written, metrics=metrics, about=about)


def write_traces(
    folder: Path, groups: Any, alarms: Any = (), metrics: Any = (), about: Any = None, first_prompt: Any = ()
) -> Path:
    """Write a run to `folder`, with these groups and journals."""
    files: dict[str, list[Row]] = {"alarms": list(alarms), "metrics": list(metrics)}
    files |= {"first_prompt": list(first_prompt)} if first_prompt else {}
    for rows in groups:
        files.setdefault(f"{rows[0]['split']}-{rows[0]['step']:08d}", []).extend(rows)
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / "rollouts" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if about is not None:
        (folder / "rollouts" / "run.json").write_text(json.dumps(about))
    return folder


SYLLABLES = ["ka", "to", "mi", "re", "su", "no", "ha", "li"]
# Words of one, two and three syllables are equally many (short words are repeated), so that each length is as likely.
WORDS = [
    "".join(made) for n in (1, 2, 3) for made in itertools.product(SYLLABLES, repeat=n) for _ in range(8 ** (3 - n))
]


@functools.lru_cache(10_000)  # many made-up runs have the same texts
def _completions(seed: str, right: tuple[bool, ...], length: int) -> list[str]:
    rng = random.Random(seed)
    answers = [42 if is_right else rng.randrange(40) for is_right in right]
    return [f"<think>{_prose(rng, length)}</think> <answer>{answer}</answer>" for answer in answers]


def _prose(rng: random.Random, length: int) -> str:
    return " ".join(rng.choices(WORDS, k=length))
