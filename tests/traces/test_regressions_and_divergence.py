"""Alarms for losses of a run and for logged metrics that run away: off on healthy runs, on in time on others."""

import io
import json
import math
import random
import re
from dataclasses import replace

import pytest
import torch
from test_alarms import GROUPS, SIZE, batch, only, raised, scores

from trl_grpo_plus.rollouts.groups import Attempt, Round
from trl_grpo_plus.traces import complete, part_of
from trl_grpo_plus.traces.alarms import Thresholds, Watch
from trl_grpo_plus.traces.alarms.metric_history import RUNAWAYS, SAMPLER
from trl_grpo_plus.traces.alarms.smoothing import Level, level_of


pytestmark = pytest.mark.long


NEW = ("reward_collapse", "tool_avoidance", "tool_failures", "diversity_loss", "runaway", "sampler_drift")
SEEDS = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
OTHERS = {name: None for name in Thresholds().names if name not in NEW}


def watch(**limits):
    return Watch(Thresholds(**OTHERS, **limits))


def new_of(alarms):
    return [alarm for alarm in alarms if alarm.name in NEW]


def answering(answers):
    """Return a function that writes completions with `answers(row)` as their answer."""
    return lambda row: f"so <answer>{answers(row)}</answer>"


# -- healthy runs


def healthy(seed, spread, groups=GROUPS, size=SIZE, steps=200):
    """Yield each batch and log entry of a run that improves; prompts differ in difficulty by `spread`.

    Tools are used a little less, wrong answers become more alike, KL grows as the square of the step, and gradient
    norms scatter.
    """
    rng = random.Random(f"{seed} {spread}")
    for step in range(steps):
        at = step / steps
        chances = [min(1.0, max(0.0, 0.15 + 0.6 * at + rng.gauss(0, spread))) for _ in range(groups)]
        accuracy = [float(rng.random() < chance) for chance in chances for _ in range(size)]
        common = 0.2 + 0.4 * at
        answers = answering(
            lambda row, common=common: 42 if row["reward"] else 1 if rng.random() < common else rng.random()
        )
        calls = [int(rng.random() < 0.8 - 0.3 * at) + int(rng.random() < 0.2) for _ in accuracy]
        made = batch(step, {"accuracy": accuracy}, size=size, traced=2, write=answers, calls=calls)
        logged = {
            "kl": 0.5 * at**2 * math.exp(rng.gauss(0, 0.4)),
            "grad_norm": math.exp(rng.gauss(0, 0.6)),
            SAMPLER[0]: 0.012 * (1 + at) * math.exp(rng.gauss(0, 0.3)),
        }
        yield made, {"step": step + 1, **logged}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 21))])
@pytest.mark.parametrize(("spread", "groups", "size"), [(0.0, 8, 8), (0.3, 8, 8), (0.4, 4, 4), (0.3, 16, 2)])
def test_a_run_that_improves_raises_none(seed, spread, groups, size):
    watched = watch()
    for made, entry in healthy(seed, spread, groups, size):
        assert watched.see(made) == []
        watched.note(entry)
    assert set(watched.state_dict()["peaks"]) >= {"total", "best", "calls"}


@pytest.mark.parametrize("level", [0.0, 0.05, 0.3, 0.9])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 5))])
def test_a_noisy_run_that_stays_where_it_is_raises_none(level, seed):
    rng = random.Random(seed)
    assert raised(lambda step: batch(step, {"a": scores(rng, level)}), 300, watch()) == []


def test_a_choice_of_harder_prompts_raises_none():
    """A choice of prompts that teach more can lower the mean: here it falls from 0.7 to 0.5."""
    rng = random.Random(0)
    assert raised(lambda step: batch(step, {"a": scores(rng, 0.7 - 0.2 * step / 300)}), 300, watch()) == []


# -- reward_collapse


def collapsing(rng, low=0.05, at=100, over=20):
    """Return a function that makes batches: the mean rises to 0.7 in `at` batches, then falls to `low` in `over`."""

    def make(step):
        level = 0.2 + 0.5 * step / at if step < at else 0.7 - (0.7 - low) * min(1.0, (step - at) / over)
        return batch(step, {"accuracy": scores(rng, level)}, traced=GROUPS)

    return make


@SEEDS
def test_a_mean_that_falls_from_its_peak(seed):
    rng = random.Random(seed)
    alarm = only(raised(collapsing(rng), 150, watch()), "reward_collapse", 105, 135)
    assert alarm.value >= alarm.threshold == 0.4
    assert alarm.groups
    [peak] = {int(word) for word in [alarm.message.split("since step ")[1].split()[0]]}
    assert 85 <= peak <= 115
    assert "over 20 batches" in alarm.message
    assert "checkpoint" in alarm.message


@pytest.mark.parametrize(("low", "least", "raises"), [(0.45, 0.4, 0), (0.45, 0.2, 1), (0.1, 0.4, 1), (0.1, 0.6, 0)])
def test_how_far_a_mean_falls_before_it_is_a_collapse(low, least, raises):
    def make(step):
        level = 0.7 if step < 60 else low
        return batch(step, {"a": [level + 0.01 * (-1) ** step] * 2 + [1.0, 0.0]}, size=4)

    alarms = raised(make, 120, watch(reward_collapse=least))
    assert [alarm.name for alarm in alarms] == ["reward_collapse"] * raises


def test_the_height_is_above_the_lowest_total():
    """Of rewards of -1 and 1, first 80 % and then 40 % are 1. The mean falls by half of its height above -1."""

    def make(step):
        right = 8 if step < 40 else 4
        return batch(step, {"a": [1.0] * right + [-1.0] * (10 - right)}, size=10)

    alarm = only(raised(make, 80, watch()), "reward_collapse", 50, 60)
    assert alarm.value == pytest.approx(0.4, abs=0.05)
    assert only(raised(make, 80, watch(reward_collapse=0.5)), "reward_collapse", 59, 59).value == pytest.approx(0.5)


def test_a_collapse_is_raised_once_and_ends_when_the_mean_is_back():
    rng = random.Random(0)
    down = collapsing(rng)

    def make(step):
        return down(step) if step < 150 else batch(step, {"accuracy": scores(rng, 0.7)})

    watched = watch()
    seen = [(step, alarm.new) for step in range(260) for alarm in watched.see(make(step))]
    assert [new for _, new in seen] == [True] + [False] * (len(seen) - 1)
    assert 150 <= seen[-1][0] <= 175


# -- tool_avoidance


def tools(rng, chance, gain=0.3, traced=GROUPS):
    """Return a function that makes batches in which attempts call a tool with probability `chance(step)`.

    They are right with probability 0.4, plus `gain` if they call the tool.
    """

    def make(step):
        calls = [int(rng.random() < chance(step)) for _ in range(GROUPS * SIZE)]
        accuracy = [float(rng.random() < 0.4 + gain * one) for one in calls]
        return batch(step, {"accuracy": accuracy}, calls=calls, traced=traced)

    return make


@pytest.mark.parametrize("gain", [0.4, -0.3])
@SEEDS
def test_tool_calls_that_vanish(gain, seed):
    rng = random.Random(seed)
    make = tools(rng, lambda step: max(0.0, 0.6 - 0.6 * max(0, step - 60) / 30), gain)
    watched = watch(reward_collapse=None)
    alarm = only(raised(make, 140, watched), "tool_avoidance", 80, 105)
    assert alarm.value <= alarm.threshold == 0.2
    assert alarm.groups
    [told] = [float(part.split()[0]) for part in alarm.message.split("with calls earned ")[1:]]
    assert told == pytest.approx(gain, abs=0.1)
    assert "tools/failure_frequency" in alarm.message
    on = watched.see(make(140))
    assert [one.name for one in on] == ["tool_avoidance"]
    assert "none since step" in on[0].message
    assert "no group" not in on[0].message


@pytest.mark.parametrize(
    "calls",
    [
        lambda step: [None] * GROUPS * SIZE if step > 40 else [1] * GROUPS * SIZE,  # the tools were removed
        lambda step: [int(step < 40)] * 5 + [0] * (GROUPS * SIZE - 5),  # hardly ever used
        lambda step: [1 if step < 40 else int(i % 3 == 0) for i in range(GROUPS * SIZE)],  # a third of them is left
        lambda step: [],
    ],
    ids=["gone", "hardly used", "fewer", "unknown"],
)
def test_tools_that_are_not_avoided(calls):
    rng = random.Random(0)
    assert raised(lambda step: batch(step, {"a": scores(rng, 0.5)}, calls=calls(step)), 100, watch()) == []


def test_tool_calls_that_were_learned_and_then_vanish():
    rng = random.Random(0)
    make = tools(rng, lambda step: min(0.5, step / 100) if step < 80 else 0.0, gain=0.0)
    assert only(raised(make, 120, watch()), "tool_avoidance", 85, 105)


def test_each_stretch_that_the_policy_did_not_write_counts_as_a_call():
    """The calls of two rounds on two ranks are counted; `None` means no tool mask."""
    masks = [[[None, [1, 1]], [[1, 0, 0, 1, 0], [0, 1]]], [[[], None], [[0], [1, 0, 1, 0, 1, 0]]]]
    attempts = [
        [tuple(Attempt({}, "p", [1], [1] * len(mask or [1]), "c", tool_mask=mask) for mask in own) for own in of_round]
        for of_round in masks
    ]
    made = batch(0, {"a": [0.0] * 8}, size=4, tokens=(), truncated=())
    halves = made.rewards[:4], made.rewards[4:]
    parts = []
    for rank in range(2):
        rounds = [Round(mine[rank], rewards, ("tied",)) for mine, rewards in zip(attempts, halves, strict=True)]
        parts.append(part_of(rank, replace(made, rounds=rounds), ()))
    assert complete(replace(made, rounds=rounds), (), parts).calls == [None, 0, 2, 1, 0, None, 1, 3]


@pytest.mark.parametrize("one", [None, 1])
def test_the_calls_of_a_large_batch_are_not_iterated_once_for_each_group(one):
    class Counted(list):
        gone_through = 0

        def __iter__(self):
            self.gone_through += 1
            return super().__iter__()

    calls = Counted([one] * 400)
    watch().see(batch(0, {"a": [0.0, 1.0] * 200}, size=2, calls=calls))
    assert calls.gone_through < 5


# -- diversity_loss


@SEEDS
def test_groups_that_are_solved_less_often_while_the_mean_rises(seed):
    """At first each prompt is solved at a rate of 0.3. Later half are solved nearly always, the others hardly ever."""
    rng = random.Random(seed)

    def make(step):
        at = min(1.0, max(0, step - 60) / 60)
        chances = [0.3 + at * (0.68 if group % 2 else -0.29) for group in range(GROUPS)]
        accuracy = [float(rng.random() < chance) for chance in chances for _ in range(SIZE)]
        return batch(step, {"accuracy": accuracy}, traced=GROUPS)

    alarm = only(raised(make, 160, watch()), "diversity_loss", 90, 135)
    assert alarm.value >= alarm.threshold == 0.1
    assert "best attempt" in alarm.message
    assert re.search(r"mean total rose from 0\.[23]", alarm.message)
    assert alarm.groups
    assert all(number % 2 == 0 for _, _, number in alarm.groups)


def test_groups_that_are_solved_less_often_as_the_mean_falls_are_no_loss_of_diversity():
    rng = random.Random(0)
    make = collapsing(rng, low=0.2)
    assert raised(make, 200, watch(reward_collapse=None)) == []


@pytest.mark.parametrize(("rise", "left", "raises"), [(0.5, 0.0, True), (0.0, 0.0, False), (0.5, 0.5, False)])
def test_failed_attempts_that_all_give_one_answer(rise, left, raises):
    rng = random.Random(0)

    def make(step):
        at = min(1.0, max(0, step - 40) / 40)
        own = 1.0 - at + at * left
        answers = answering(lambda row: 42 if row["reward"] else row["attempt"] if rng.random() < own else 7)
        return batch(step, {"a": scores(rng, 0.2 + rise * at)}, traced=GROUPS, write=answers)

    alarms = raised(make, 140, watch())
    assert len(alarms) == raises
    if raises:
        alarm = only(alarms, "diversity_loss", 50, 110)
        assert alarm.value <= alarm.threshold == 0.2
        assert "different answers" in alarm.message
        assert alarm.groups
    else:
        assert raised(make, 140, watch()) == []


# -- logged metrics


def logging(series, steps, every=1, made=None, watched=None):
    """Return the new alarms of a run that logs `series(step)` each `every` steps."""
    watched, seen = watched or watch(), []
    made = made or (lambda step: batch(step, {"a": [0.0, 1.0] * 4}, size=2))
    for step in range(steps):
        seen += [alarm for alarm in watched.see(made(step)) if alarm.new]
        if (step + 1) % every == 0:
            watched.note({"step": step + 1, **series(step + 1)})
    return seen


@pytest.mark.parametrize("name", RUNAWAYS)
@SEEDS
def test_a_metric_that_doubles_every_five_steps(name, seed):
    rng = random.Random(seed)

    def series(step):
        return {name: (0.02 if name == "kl" else 1.0) * 2 ** (max(0, step - 60) / 5) * math.exp(rng.gauss(0, 0.3))}

    alarm = only(logging(series, 120), "runaway", 72, 90)
    assert alarm.value >= alarm.threshold == 10
    assert f"{name} is " in alarm.message
    assert 65 <= int(alarm.message.split("since step ")[1].split(".")[0]) <= alarm.step
    assert alarm.groups == ()


def test_a_metric_that_is_logged_each_ten_steps():
    alarm = only(
        logging(lambda step: {"grad_norm": 2.0 ** (max(0, step - 120) / 5)}, 200, every=10), "runaway", 149, 171
    )
    assert "grad_norm" in alarm.message


@pytest.mark.parametrize(
    "series",
    [
        lambda step: {"kl": 5.0 + 0.01 * (step % 3), "grad_norm": 1e4},  # a level
        lambda step: {"kl": 1e-6 * 1.2 ** min(step, 60)},  # from nearly nothing to 0.06
        lambda step: {"grad_norm": 0.003 if step < 60 else 0.3},  # from nearly nothing to a norm that no one clips
        lambda step: {"kl": 0.01 * step, "grad_norm": 0.1 * step},  # steady growth
        lambda step: {"grad_norm": 1e3 if step % 7 < 2 else 1.0},  # single peaks
        lambda step: {"grad_norm": 1.0 if step % 3 == 0 else 0.0},  # batches with nothing to learn
        lambda step: {"kl": None, "grad_norm": math.nan},
        lambda step: {"kl": math.inf if step > 50 else 0.01, "grad_norm": "much"},
        lambda step: {"eval_kl": 2.0**step, "eval_grad_norm": 2.0**step},
        lambda step: {},
        lambda step: {"grad_norm": 1.0} if step < 60 else {},
    ],
    ids=["level", "tiny", "tiny norm", "steady", "peaks", "zeros", "nan", "inf", "evaluation", "nothing", "gone"],
)
def test_metrics_that_do_not_run_away(series):
    assert logging(series, 150) == []


@pytest.mark.parametrize(("floor", "raises"), [(0.1, 1), (0.31, 0)])
def test_the_floor_of_the_gradient_norm_is_a_setting(floor, raises):
    watched = watch(grad_norm_floor=floor)
    assert len(logging(lambda step: {"grad_norm": 0.003 if step < 60 else 0.3}, 100, watched=watched)) == raises


def test_an_earlier_single_peak_does_not_count_as_the_beginning():
    alarm = only(logging(lambda step: {"grad_norm": 50.0 if step == 30 or step > 60 else 1.0}, 80), "runaway", 64, 64)
    assert "since step 61." in alarm.message


def test_growth_is_judged_from_the_seventeenth_entry_on():
    seen = logging(lambda step: {"grad_norm": 1.0 if step <= 80 else 50.0}, 250, every=10)
    assert only(seen, "runaway", 170, 170)


def test_few_pairs_of_failed_attempts_are_not_judged():
    """With two failed attempts in a traced group, one pair of answers is too few to judge. With six it is enough."""
    for failed, raises in ((2, 0), (6, 1)):

        def make(step, failed=failed):
            level = 1.0 + (step >= 40) + 0.01 * (step % 2)
            scores = [0.0] * failed + [level] * (SIZE - failed)
            answers = answering(lambda row: row["attempt"] if step < 40 else 7)
            made = batch(step, {"a": scores * 2}, traced=1, write=answers, verdicts=("alive",) * 2)
            return made

        alarms = raised(make, 100, watch(reward_collapse=None))
        assert [alarm.name for alarm in alarms] == ["diversity_loss"] * raises


def test_a_runaway_is_over_when_the_median_has_followed():
    watched = watch(window=20, min_batches=10)
    on = []
    for step in range(100):
        on += [step for _ in watched.see(batch(step, {"a": [0.0, 1.0]}, size=2))]
        watched.note({"step": step + 1, "grad_norm": 1.0 if step < 40 else 100.0})
    assert on == list(range(44, 44 + len(on)))
    assert on[-1] < 60


@pytest.mark.parametrize("name", SAMPLER)
@pytest.mark.parametrize("growth", ["jump", "drift"])
def test_sampler_and_trainer_that_drift_apart(name, growth):
    rng = random.Random(0)

    def series(step):
        far = 10.0 if growth == "jump" and step > 60 else 1.0 + 0.1 * max(0, step - 60) * (growth == "drift")
        return {name: 0.015 * far * math.exp(rng.gauss(0, 0.2))}

    alarm = only(logging(series, 120), "sampler_drift", 62, 90)
    assert alarm.value >= alarm.threshold == 3
    assert f"({name})" in alarm.message
    assert "at first" in alarm.message
    assert int(alarm.message.split("since step ")[1].split()[0]) > 60


def test_a_sampler_that_is_checked_each_25_steps():
    name = SAMPLER[1]
    seen = logging(lambda step: {name: 0.01 if step <= 150 else 0.5} if step % 25 == 0 else {}, 300)
    assert only(seen, "sampler_drift", 250, 251)


@pytest.mark.parametrize(
    "series",
    [
        lambda step: {SAMPLER[0]: 0.5},  # a level
        lambda step: {SAMPLER[0]: 1e-7 * step},  # as small as rounding errors
        lambda step: {SAMPLER[0]: math.nan if step < 60 else None},
        lambda step: {SAMPLER[0]: 0.02 if step < 60 else math.inf},
        lambda step: {SAMPLER[0]: 0.02 if step % 10 else 2.0},  # one batch in ten
        lambda step: {},
    ],
    ids=["level", "rounding", "nan", "inf", "peaks", "nothing"],
)
def test_samplers_that_do_not_drift(series):
    assert logging(series, 150) == []


# -- tool_failures


def failing(share, calls=1.0):
    return {"tools/call_frequency": calls, "tools/failure_frequency": share}


def test_tools_that_begin_to_fail():
    answers = [{"role": "tool", "name": "add", "content": "{'error': 'no route to host'}"}]
    watched = watch()
    seen = []
    for step in range(60):
        made = batch(step, {"a": [0.0, 1.0]}, size=2, traced=1, write=lambda row: answers)
        seen += [alarm for alarm in watched.see(made) if alarm.new]
        watched.note(failing(0.1 if step < 40 else 0.9) | {"step": step + 1})
    alarm = only(seen, "tool_failures", 43, 43)  # 3 of the 5 entries before it
    assert (alarm.value, alarm.threshold) == (0.9, 0.5)
    assert alarm.groups == ((0, 0, 0),)


@pytest.mark.parametrize(
    "series",
    [
        lambda step: failing(0.4),
        lambda step: failing(0.9 if step % 5 < 2 else 0.0),  # in two of five batches
        lambda step: failing(0.9, calls=0.0),  # without a call there is no share
        lambda step: failing(math.nan),
        lambda step: {},
    ],
    ids=["some", "now and then", "no calls", "nan", "no tools"],
)
def test_tools_that_do_not_fail(series):
    assert logging(series, 60) == []


# -- all six alarms


def planted(seed=0):
    """Return functions for the batch and the log entry of a step. Five of the problems show by step 5."""
    rng = random.Random(seed)

    def make(step):
        late = step >= 5
        solved = [1.0] * GROUPS * SIZE if not late else [0.0] * GROUPS * SIZE
        noisy = [score if rng.random() < 0.98 else 1.0 - score for score in solved]
        calls = [int(not late)] * len(noisy)
        return batch(step, {"a": noisy}, traced=2, calls=calls, write=answering(lambda row: 7))

    return make, lambda step: {"step": step, "kl": 4.0**step, "grad_norm": 4.0**step, SAMPLER[0]: 4.0**step}


@pytest.mark.parametrize("first", [20, 35])
def test_no_alarm_in_the_first_batches(first):
    make, entry = planted()
    watched = watch(min_batches=first)
    for step in range(first - 1):
        assert watched.see(make(step)) == []
        watched.note(entry(step + 1))
    assert {"runaway", "sampler_drift"} <= {alarm.name for alarm in watched.see(make(first - 1))}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_alarm_if_nothing_is_finite(bad):
    rewards = [0.0, 1.0] * (GROUPS * SIZE // 2)
    watched = watch(min_batches=5, window=10)
    for step in range(60):
        level = rewards if step < 20 else [bad] * GROUPS * SIZE
        made = batch(step, {"a": level}, calls=[1] * (step < 20))
        assert watched.see(replace(made, totals=made.rewards[:, 0])) == []
        watched.note(dict.fromkeys((*RUNAWAYS, *SAMPLER), 0.1 if step < 20 else bad) | {"step": step + 1})
        json.dumps(watched.state_dict(), allow_nan=False)


def troubled():
    """Return batches and log entries of a run that raises each of the six alarms."""
    rng = random.Random(0)
    batches, entries = [], []
    for step in range(120):
        late, later = step >= 40, step >= 80
        chances = [(0.02 if group % 3 == 1 else 1.0) if late else 0.4 for group in range(GROUPS)]
        accuracy = [float(rng.random() < chance * (not later)) for chance in chances for _ in range(SIZE)]
        calls = [int(rng.random() < (0.0 if late else 0.7)) for _ in accuracy]
        answers = answering(lambda row, late=late: 7 if late else row["attempt"])
        batches.append(batch(step, {"a": accuracy}, traced=2, calls=calls, write=answers))
        grown = 2.0 ** (max(0, step - 50) / 3)
        diverging = {"kl": 0.05 * grown, "grad_norm": grown, SAMPLER[0]: 0.02 * grown}
        entries.append({"step": step + 1, **diverging, **failing(0.9 * late)})
    return batches, entries


@pytest.mark.parametrize("at", [3, 30, 60, 90])
def test_a_resumed_watch_goes_on_as_if_never_interrupted(at):
    batches, entries = troubled()

    def go(watched, steps):
        seen = []
        for step in steps:
            seen.append(watched.see(batches[step]))
            watched.note(entries[step])
        return seen

    limits = {"min_batches": 10, "window": 20}
    whole = watch(**limits)
    expected = go(whole, range(120))
    assert {alarm.name for alarms in expected for alarm in alarms if alarm.new} == set(NEW)
    first, second = watch(**limits), watch(**limits)
    before = go(first, range(at))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    go(first, range(5))  # must not change the state that was saved
    assert before + go(second, range(at, 120)) == expected
    assert second.state_dict() == whole.state_dict()


def weighted(weight, rng, steps=40):
    """Yield batches of a run with a steady accuracy, whose totals are `weight` times the accuracy."""
    for step in range(steps):
        accuracy = scores(rng, 0.5)
        calls = [int(rng.random() < 0.5) for _ in accuracy]
        yield batch(step, {"a": accuracy}, (weight,), calls=calls)


def resumed(before, later):
    """Return a watch that is resumed after `before`, and its alarms on `later`."""
    first, second = Watch(), Watch()
    for made in before:
        assert first.see(made) == []
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    return second, [alarm for made in later for alarm in second.see(made)]


@pytest.mark.parametrize(("was", "now"), [(1.0, 0.1), (1.0, 10.0), (1.0, -1.0)])
def test_resumed_with_other_weights(was, now):
    """Under other weights, old totals cannot be compared with new ones. All that does not depend on totals stays."""
    rng = random.Random(0)
    watched, alarms = resumed(weighted(was, rng), weighted(now, rng))
    assert alarms == []
    state = watched.state_dict()
    assert state["total_range"] == pytest.approx(sorted([0.0, now]))
    assert state["peaks"]["total"]["level"]["mean"] == pytest.approx(0.5 * now, rel=0.2)
    assert state["ranges"] == {"a": [0.0, 1.0]}
    assert state["count"] == 80
    assert all(record["tokens"] == 100 for record in state["first"])
    assert state["peaks"]["calls"]["step"] < 40


def test_a_collapse_after_other_weights_is_seen():
    rng = random.Random(0)
    worse = (batch(step, {"a": scores(rng, 0.05)}, (0.1,)) for step in range(40, 80))
    _, alarms = resumed(weighted(1.0, rng), [*weighted(0.1, rng), *worse])
    assert "reward_collapse" in {alarm.name for alarm in alarms}


def test_resumed_with_the_same_weights_nothing_is_forgotten():
    rng = random.Random(0)
    watched = Watch()
    for made in weighted(0.7, rng):
        watched.see(made)
    again = Watch()
    again.load_state_dict(watched.state_dict())
    made = batch(40, {"a": scores(rng, 0.5)}, (0.7,))
    assert watched.see(made) == again.see(made)
    assert watched.state_dict() == again.state_dict()


@pytest.mark.parametrize("name", ["weights", "peaks", "logged", "evaluations"])
def test_a_state_that_lacks_something_is_refused(name):
    watched = watch()
    watched.see(troubled()[0][0])
    state = watched.state_dict()
    del state[name]
    with pytest.raises(KeyError, match=name):
        watch().load_state_dict(state)


def test_levels():
    assert level_of([1.0, None, 3.0, 1.0, 3.0]) == Level(2.0, pytest.approx(math.sqrt(4 / 3 / 4)))
    assert level_of([1.0, 2.0, 3.0]) is None
    assert level_of([1.0] * 4 + [None] * 5) is None
    assert level_of([1e308] * 2 + [-1e308] * 2) is None
    assert Level(1.0, 0.0).surely_above(Level(0.5, 0.05))
    assert not Level(1.0, 0.0).surely_above(Level(0.5, 0.06))
    assert not Level(1.0, 0.0).surely_above(Level(1.0, 0.0))
