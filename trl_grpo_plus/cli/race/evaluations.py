"""The standings of a race: held-out rewards against rollouts and seconds, as lines, a table and a picture."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...traces import evaluated
from ...utils.optional_packages import install
from ...utils.tables import aligned


COLOURS = ("#c4570a", "#0072b2")
SHARES = (0.25, 0.5, 0.75, 1.0)  # shares of the longest run's rollouts; each is a column of the table


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of all splits: steps, rollouts and seconds of training so far, and each split's mean reward."""

    step: int
    rollouts: float
    seconds: float
    rewards: dict[str, float]


@dataclass(frozen=True)
class Standing:
    """The progress of one run.

    Args:
        name (`str`): name of the run.
        settings (`dict[str, Any]`): settings of the run, as [`trl_grpo_plus.cli.race.script`] writes them; empty
            before that.
        step (`int`), rollouts (`float`), seconds (`float`): totals so far. Seconds are TRL's `step_time`: sampling,
            scoring, choosing and training, without evaluations and checkpoints.
        evaluations (`tuple[Evaluation, ...]`): the evaluations, in order.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    step: int = 0
    rollouts: float = 0.0
    seconds: float = 0.0
    evaluations: tuple[Evaluation, ...] = ()


def standing(name: str, settings: dict[str, Any], entries: Iterable[dict[str, Any]]) -> Standing:
    """Compute a run's standing from its journal.

    Args:
        name (`str`), settings (`dict[str, Any]`): as in [`Standing`]. The settings must hold `rollouts` (of a step,
            without resampling), `prompts` (of a generation batch) and `splits` (number of evaluated splits).
        entries (`Iterable[dict[str, Any]]`): log entries of the trainer, at each step.
    """
    step, seconds, rate = 0, 0.0, float(settings["rollouts"])
    generated: list[float] = []  # groups in each generation batch, if the trainer counts them
    rewards: dict[int, dict[str, float]] = {}
    evaluations = []
    for entry in entries:
        if "step_time" in entry:
            seconds += entry["step_time"] * (entry["step"] - step)
            step = entry["step"]
            if "groups/generated" in entry:
                generated.append(entry["groups/generated"])
                rate = settings["rollouts"] * sum(generated) / len(generated) / settings["prompts"]
        elif (of_split := evaluated(entry)) is not None:
            at = rewards.setdefault(entry["step"], {})
            at[of_split[0].removeprefix("eval_")] = of_split[1]
            if len(at) == settings["splits"]:
                evaluations.append(Evaluation(entry["step"], entry["step"] * rate, seconds, at))
    return Standing(name, settings, step, step * rate, seconds, tuple(evaluations))


def lines(standings: Sequence[Standing]) -> list[str]:
    """Return a heading and a line for each run, for a terminal that shows them in place."""
    every = (evaluation for run in standings for evaluation in run.evaluations)
    splits = list(dict.fromkeys(split for evaluation in every for split in evaluation.rewards))
    rows = [["", "step", "rollouts", "seconds", *splits]]
    for run in standings:
        last = run.evaluations[-1].rewards if run.evaluations else {}
        of = f"{run.step}/{run.settings['max_steps']}" if run.settings else "starting"
        rewards = [f"{last[split]:.3f}" if split in last else "-" for split in splits]
        rows.append([run.name, of, f"{run.rollouts:,.0f}", f"{run.seconds:.1f}", *rewards])
    return aligned(rows, right=range(1, len(rows[0])))


def line(name: str, evaluation: Evaluation) -> str:
    """Return a line about one evaluation, for an output that is not a terminal."""
    rewards = "  ".join(f"{split} {reward:.3f}" for split, reward in evaluation.rewards.items())
    spent = f"step {evaluation.step:>5}  rollouts {evaluation.rollouts:>9,.0f}  seconds {evaluation.seconds:>7.1f}"
    return f"{name:<14} {spent}  {rewards}"


def moved_most(standings: Sequence[Standing]) -> str | None:
    """Return the split whose reward moved most in any run, which is the one to show; `None` before any evaluation."""
    spans: dict[str, float] = {}
    for run in standings:
        for split in run.evaluations[0].rewards if run.evaluations else ():
            rewards = [evaluation.rewards[split] for evaluation in run.evaluations]
            spans[split] = max(spans.get(split, 0.0), max(rewards) - min(rewards))
    return max(spans, key=lambda split: spans[split]) if spans else None


def table(standings: Sequence[Standing], split: str) -> str:
    """Return the result of a race as text: rewards of `split` at equal rollouts, costs and settings."""
    most = max(run.evaluations[-1].rollouts for run in standings if run.evaluations)
    rows = [[split, "0", *(f"{share * most:,.0f}" for share in SHARES), "seconds"]]
    for run in standings:
        cells = [f"{at:.3f}" if (at := _reward_at(run, split, share * most)) is not None else "-"
                 for share in (0.0, *SHARES)]  # fmt: skip
        rows.append([run.name, *cells, f"{run.seconds:.1f}"])
    texts = ["Held-out reward after so many rollouts:", "", *aligned(rows, right=range(1, len(rows[0])))]
    for other in standings[0].evaluations[-1].rewards if standings[0].evaluations else ():
        if other != split:
            ends = (f"{run.name} {run.evaluations[-1].rewards[other]:.3f}" for run in standings if run.evaluations)
            texts.append(f"Final reward of {other}: {', '.join(ends)}")
    texts += ["", *(caught_up(behind, ahead, split) for behind, ahead in pairwise(standings)), ""]
    return "\n".join([*texts, *(f"{run.name}: {settings_of(run)}" for run in standings)])


def caught_up(first: Standing, second: Standing, split: str) -> str:
    """Say when the second run reached the first run's final reward.

    The second run reaches the reward if two evaluations in a row are at least as high, or the last one is.
    """
    if not first.evaluations:
        return f"{first.name} has no evaluation yet."
    end = first.evaluations[-1]
    target = end.rewards[split]
    there = [evaluation.rewards[split] >= target for evaluation in second.evaluations] + [True]
    for evaluation, now, after in zip(second.evaluations, there, there[1:], strict=False):
        if now and after:
            reaches = f"{second.name} reaches {first.name}'s final reward ({target:.3f})"
            spent = f"after {evaluation.rollouts:,.0f} rollouts and {evaluation.seconds:.1f} s"
            return f"{reaches} {spent}. {first.name} took {end.rollouts:,.0f} rollouts and {end.seconds:.1f} s."
    return f"{second.name} does not reach {first.name}'s final reward ({target:.3f})."


def settings_of(run: Standing) -> str:
    """Return a run's settings in one line."""
    settings = run.settings
    if not settings:
        return "did not start"
    options = "".join(f", {name} {value}" for name, value in settings["options"].items())
    return (
        f"{settings['trainer']}, {settings['prompts']} prompts x num_generations {settings['num_generations']} per "
        f"batch, {settings['max_steps']} steps, learning_rate {settings['learning_rate']:g}, seed {settings['seed']}"
        f"{options}"
    )


def plot(standings: Sequence[Standing], split: str, target: Path) -> str:
    """Draw the rewards of `split` against rollouts and against seconds, and write the picture.

    Returns:
        `str`: the picture's path, or how to install matplotlib if it is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return f"not drawn. Install matplotlib first: {install('matplotlib')}"
    figure = Figure(figsize=(8, 3), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, by in zip(panels, ("rollouts", "seconds"), strict=True):
        for run, colour in zip(standings, COLOURS, strict=False):
            points = [(getattr(evaluation, by), evaluation.rewards[split]) for evaluation in run.evaluations]
            label = f"{run.name}, {run.settings['num_generations']} attempts per prompt" if run.settings else run.name
            if points:
                panel.plot(*zip(*points, strict=True), "o-", ms=3, color=colour, label=label)
        panel.set(xlabel="seconds of training" if by == "seconds" else by, xlim=(0, None))
        panel.spines[["top", "right"]].set_visible(False)
        panel.locator_params("x", nbins=5)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    panels[0].set(ylabel=f"held-out reward, {split}")
    panels[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(target)
    return str(target)


def _reward_at(run: Standing, split: str, rollouts: float) -> float | None:
    """Return the reward at a number of rollouts, interpolated between two evaluations; `None` after the last one."""
    for before, after in pairwise(run.evaluations):
        if before.rollouts <= rollouts <= after.rollouts:
            share = (rollouts - before.rollouts) / max(after.rollouts - before.rollouts, 1e-9)
            return before.rewards[split] + share * (after.rewards[split] - before.rewards[split])
    return run.evaluations[0].rewards[split] if run.evaluations and not rollouts else None
