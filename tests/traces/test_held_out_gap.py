"""The alarm `held_out_gap` comes on soon if only the training reward rises, and stays off otherwise."""

import io
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import benchmark_scripts
import pytest
import tiny_models
import torch
from test_alarms import batch

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.traces.alarms import Thresholds, Watch
from trl_grpo_plus.traces.alarms.evaluation_history import Evaluations, Pair, kendall
from trl_grpo_plus.traces.alarms.smoothing import Level
from trl_grpo_plus.trainer.recorder import Recorder


pytestmark = pytest.mark.long


ROOT = Path(__file__).parents[2]
NAME = "held_out_gap"
OTHERS = {name: None for name in Thresholds().names if name != NAME}
STEPS, EVERY = 400, 20


def watch(chosen=False, **limits):
    return Watch(Thresholds(**OTHERS, **limits), chosen)


def of_mean(step, mean, **changes):
    """Return a batch with this mean total, from 0.25 to 0.75. It has one total of 0 and one of 1."""
    return batch(step, {"a": [0.0, 1.0, 2 * mean - 0.5, 2 * mean - 0.5]}, size=4, **changes)


def evaluation(step, reward, split="eval"):
    """Return what the trainer logs for an evaluation."""
    return {"step": step, f"{split}_loss": 0.0, f"{split}_runtime": 1.0, "eval_reward": reward}


def alarms(train, held_out, watched=None, *, steps=STEPS, every=EVERY, noise=0.02, scatter=0.01, seed=0, **changes):
    """Return the new alarms of a run whose mean rewards are `train(step)` and `held_out(step)`.

    `noise` is the std of the noise on a batch's mean, `scatter` that on an evaluation's mean.
    """
    rng, watched, seen = random.Random(seed), watched or watch(), []
    for step in range(steps):
        made = of_mean(step, train(step) + rng.gauss(0, noise), **changes)
        seen += [alarm for alarm in watched.see(made) if alarm.new]
        if (step + 1) % every == 0:
            for split, reward in (held_out if isinstance(held_out, dict) else {"eval": held_out}).items():
                watched.note(evaluation(step + 1, reward(step + 1) + rng.gauss(0, scatter), split))
    return seen


def line(first, last):
    return lambda step: first + (last - first) * step / STEPS


def turning(at, fall=0.0):
    """Return a curve that rises as `line(0.3, 0.7)` does up to step `at`, and then falls by `fall` in 400 steps."""
    return lambda step: line(0.3, 0.7)(min(step, at)) - fall * max(0, step - at) / STEPS


RISES = line(0.3, 0.7)


def first(seen, low, high):
    """Assert that `held_out_gap` alone was raised, first at a step from `low` to `high`; return the first alarm."""
    assert {alarm.name for alarm in seen} == {NAME}, [alarm.message for alarm in seen]
    assert low <= seen[0].step <= high, seen[0].message
    assert f"step {seen[0].step}:" in seen[0].message
    return seen[0]


# -- the alarm comes on


@pytest.mark.parametrize(
    ("held_out", "low", "high"),
    [
        (line(0.4, 0.4), 100, 200),
        (line(0.5, 0.4), 100, 140),
        (turning(160), 220, 380),
        (turning(160, 0.3), 220, 300),
        (lambda step: 0.0, 100, 200),
    ],
    ids=["flat", "falls", "turns flat", "turns and falls", "never earned"],
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
def test_training_reward_that_rises_alone(held_out, low, high, seed):
    alarm = first(alarms(RISES, held_out, seed=seed), low, high)
    assert alarm.value >= alarm.threshold == 4
    assert "'eval'" in alarm.message


def test_the_message_has_the_numbers_and_what_to_do():
    def held_out(step):
        return {40: 0.35, 60: 0.45}.get(step, 0.35)

    alarm = first(alarms(RISES, held_out, noise=0, scatter=0), 100, 250)
    steps = [int(step) for step in re.search(r"\(steps (\d+) to (\d+)\)", alarm.message).groups()]
    assert steps[1] == alarm.step - 9  # the evaluation has waited for ten batches
    trained, held = ([float(value) for value in pair] for pair in re.findall(r"from (\S+) to ([\d.]+)", alarm.message))
    assert trained == [pytest.approx(RISES(step), abs=0.005) for step in steps]
    assert held == [held_out(step) for step in steps]
    assert "its best was 0.45 at step 60" in alarm.message
    grown = float(re.search(r"gap grew by (\S+),", alarm.message)[1])
    assert grown == pytest.approx(RISES(steps[1] - 10) - RISES(30), abs=0.01)
    for words in ("beta", "evaluate more often", "the page", "checkpoint of the best evaluation"):
        assert words in alarm.message


def test_the_alarm_names_groups_whose_attempts_are_all_rewarded():
    def make(step):
        high = RISES(step)
        columns = {"a": [high] * 4 + [0.0, 1.0] * 2 + [0.0] * 4}
        return batch(step, columns, size=4, traced=3)

    watched, on = watch(held_out_floor=0.01), []
    for step in range(STEPS):
        on += watched.see(make(step))
        if (step + 1) % EVERY == 0:
            watched.note(evaluation(step + 1, 0.3))
    assert {alarm.groups for alarm in on if alarm.step > 250} == {((0, 0, 0),)}


def test_the_split_with_the_gap_is_named():
    alarm = first(alarms(RISES, {"eval_near": RISES, "eval_far": line(0.4, 0.3)}), 100, 180)
    assert "'eval_far'" in alarm.message


def test_of_two_splits_with_a_gap_the_one_with_the_larger_gap_is_named():
    watched = watch()
    alarms(RISES, {"eval_far": line(0.6, 0.1), "eval_near": line(0.45, 0.4)}, watched)
    [alarm] = watched.see(of_mean(STEPS, 0.7))
    assert "'eval_far'" in alarm.message


def test_the_alarm_ends_when_the_held_out_reward_follows():
    watched, on = watch(), []
    for step in range(700):
        on += [step for _ in watched.see(of_mean(step, 0.3 + 0.4 * step / 700))]
        if (step + 1) % EVERY == 0:
            watched.note(evaluation(step + 1, 0.3 if step < 300 else 0.3 + 0.4 * (step - 300) / 400))
    assert on
    assert on == list(range(on[0], on[-1] + 1))
    assert 300 < on[-1] < 400


# -- the alarm stays off


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 11))])
@pytest.mark.parametrize(
    ("train", "held_out", "scatter"),
    [
        (RISES, RISES, 0.03),
        (line(0.3, 0.5), line(0.3, 0.5), 0.15),
        (RISES, line(0.25, 0.55), 0.01),
        (lambda s: 0.3 + 0.4 * min(1, s / 150), lambda s: 0.3 + 0.4 * min(1, s / 150), 0.01),
        (line(0.4, 0.4), line(0.4, 0.4), 0.01),
        (line(0.4, 0.4), line(0.4, 0.4), 0.1),
        (line(0.4, 0.4), line(0.5, 0.2), 0.02),
        (line(0.7, 0.3), line(0.6, 0.2), 0.02),
        (RISES, line(0.9, 0.9), 0.01),
        (line(0.4, 0.43), line(0.4, 0.4), 0.001),
    ],
    ids=[
        *(
            "both rise",
            "both rise and scatter",
            "less steeply",
            "both rise and stay",
            "both flat",
            "held out noisy",
            "train flat",
        ),
        *("both fall", "no room", "a small gap"),
    ],
)
def test_runs_without_a_gap_raise_nothing(train, held_out, scatter, seed):
    assert alarms(train, held_out, scatter=scatter, seed=seed) == []


def test_a_held_out_reward_at_the_top_is_judged_where_it_falls():
    assert alarms(RISES, line(0.9, 0.9)) == []
    first(alarms(RISES, line(0.99, 0.8)), 100, 200)


@pytest.mark.parametrize(("steps", "raises"), [(109, 0), (110, 1)])
def test_five_evaluations_are_judged_and_four_are_not(steps, raises):
    """The fifth evaluation, after 100 batches, counts once ten more batches have come."""
    seen = alarms(lambda step: 0.25 + 0.5 * step / 110, line(0.3, 0.2), steps=steps, noise=0.001, scatter=0.001)
    assert [alarm.name for alarm in seen] == [NAME] * raises


def test_a_rise_that_batches_scatter_over_is_not_believed():
    assert alarms(line(0.4, 0.5), line(0.4, 0.3), noise=0.2) == []
    first(alarms(line(0.4, 0.5), line(0.4, 0.3), noise=0.01), 100, 300)


def test_smoothing_makes_no_gap_where_both_rewards_reach_a_plateau_at_once():
    """If an evaluation were compared only with the batches before it, the training reward would seem to rise later."""

    def steep(step):
        return 0.3 + 0.4 * min(1, max(0, step - 40) / 20)

    for every in (5, 10, 20):
        assert alarms(steep, steep, every=every, noise=0.003, scatter=0.0005, steps=200) == []


@pytest.mark.parametrize(
    ("limits", "raises"),
    [
        ({}, 1),
        ({"held_out_gap": 100}, 0),
        ({"held_out_gap": None}, 0),
        ({"held_out_floor": 0.5}, 0),
        ({"held_out_window": 30}, 1),
    ],
)
def test_thresholds(limits, raises):
    watched = Watch(Thresholds(**{**OTHERS, **limits}))
    assert len(alarms(RISES, line(0.5, 0.4), watched)) == raises


@pytest.mark.parametrize(
    ("last", "limits", "raises"),
    [(0.45, {}, 0), (0.45, {"held_out_correlation": 1}, 1), (0.65, {"held_out_correlation": 1}, 0)],
)
def test_a_held_out_reward_that_rises_a_little(last, limits, raises):
    """The rank correlation keeps the alarm off. Without that rule, half of the training reward's rise is enough."""
    assert len(alarms(RISES, line(0.4, last), watch(**limits), scatter=0.001)) == raises


def test_a_window_of_fewer_evaluations_is_refused():
    with pytest.raises(ValueError, match="held_out_window=4 must be an integer and >= 5, a number of evaluations"):
        Thresholds(held_out_window=4)


@pytest.mark.parametrize(
    ("options", "judged"),
    [
        ({}, True),
        ({"zero_variance_groups": "drop"}, True),
        ({"zero_variance_groups": "resample"}, True),
        ({"prompt_selection": "belief"}, False),
        ({"prompt_selection": {"name": "mixture", "args": {"column": "kind", "weights": {"a": 1.0}}}}, False),
        ({"shuffle_dataset": False}, False),
    ],
)
def test_the_gap_is_not_judged_if_prompts_are_chosen_or_dealt_in_order(tmp_path, options, judged):
    """The training reward of a run that seeks easier prompts rises, and no held-out reward has to follow."""
    args = GRPOPlusConfig(str(tmp_path), use_cpu=True, bf16=False, trace_every=0, alarm_thresholds=OTHERS, **options)
    recorder = Recorder(args, ["a"], [1.0], rank=0)
    recorder.begin(0, STEPS)
    assert bool(alarms(RISES, line(0.4, 0.4), recorder._watch)) == judged
    assert bool(recorder.state_dict()["evaluations"]) == judged


def test_attempts_of_dropped_groups_count():
    """The alarm sees attempts as they were sampled, so dead groups that leave the batch do not lift its reward."""

    def make(step, solved):
        totals = [0.0] * 4 * (8 - solved) + [1.0] * 4 * solved
        return batch(step, {"a": totals}, size=4, verdicts=("all_bad",) * (8 - solved) + ("all_good",) * solved)

    watched = watch()
    watched.see(make(0, 2))
    assert watched.state_dict()["last"][0]["total"] == 0.25


# -- how evaluations are paired


def test_an_evaluation_is_paired_with_the_batches_on_either_side():
    watched = watch()
    for step in range(80):
        watched.see(of_mean(step, 0.3 + step / 400))
        if step in (4, 59):
            watched.note(evaluation(step + 1, 0.5))
    early, later = watched.state_dict()["evaluations"]["eval"]["last"]
    assert early["train"]["mean"] == pytest.approx(0.3 + 9.5 / 400)  # the mean of batches 0 to 19
    assert later["train"]["mean"] == pytest.approx(0.3 + 59.5 / 400)
    watched.note(evaluation(80, 0.5))
    for step in range(80, 89):
        watched.see(of_mean(step, 0.5))
    assert len(watched.state_dict()["evaluations"]["eval"]["waiting"]) == 1


def test_of_two_evaluations_at_one_step_the_first_counts():
    """This happens after a resume with `eval_on_start`, or if a script evaluates other data under the same name."""
    watched = watch()
    for step in range(60):
        watched.see(of_mean(step, 0.5))
        if (step + 1) % 20 == 0:
            watched.note(evaluation(step + 1, 0.4))
            watched.note(evaluation(step + 1, 0.9))
    kept = watched.state_dict()["evaluations"]["eval"]
    assert [pair["held_out"] for pair in kept["last"]] == [0.4, 0.4]
    assert [step for step, _, _ in kept["waiting"]] == [60]
    assert kept["best"] == [20, 0.4]


@pytest.mark.parametrize(
    "entry",
    [
        {"reward": 0.5},
        {"eval_runtime": 1.0},
        {"eval_runtime": 1.0, "eval_reward": math.nan},
        {"eval_runtime": 1.0, "eval_reward": None},
        {"train_runtime": 9.0},
    ],
)
def test_entries_that_are_no_evaluation(entry):
    watched = watch()
    watched.note({"step": 1, **entry})
    assert watched.state_dict()["evaluations"] == {}


@pytest.mark.parametrize("huge", [1e30, 1e200, 1e308])
def test_huge_rewards_do_not_raise(huge):
    watched = watch()
    for step in range(120):
        on = watched.see(batch(step, {"a": [huge * step / 120, 0.0]}, size=2))
        assert all(math.isfinite(alarm.value) for alarm in on)
        if step % 10 == 9:
            watched.note(evaluation(step + 1, (-1) ** (step // 10) * huge))
    json.dumps(watched.state_dict(), allow_nan=False)


def test_batches_without_a_score_leave_the_evaluations_out():
    watched = watch()
    for step in range(60):
        made = of_mean(step, 0.5)
        watched.see(replace(made, totals=made.totals * math.nan))
        watched.note(evaluation(step + 1, 0.5))
    kept = watched.state_dict()["evaluations"]["eval"]
    assert kept["last"] == []
    assert len(kept["waiting"]) <= 10


def test_kendall():
    assert kendall([1, 2, 3, 4], [1, 2, 3, 4]) == 1
    assert kendall([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert kendall([1, 2, 3, 4], [5, 5, 5, 5]) == 0
    assert kendall([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)
    assert kendall([1, 2, 3], [1, 1, 2]) == pytest.approx(2 / math.sqrt(6))


def evaluations_of(held_out, train, error=0.0):
    pairs = [
        Pair(step, one, Level(level, error)) for step, (one, level) in enumerate(zip(held_out, train, strict=True))
    ]
    return Evaluations(first=pairs[:2], last=pairs)


def test_a_gap_without_any_scatter_has_a_finite_size():
    parting = evaluations_of([0.5] * 8, [0.25 * step for step in range(8)]).parting(8, 0.0)
    assert (parting.gap, parting.size) == (1.5, 1000.0)


def test_the_error_pools_what_batches_and_evaluations_scatter():
    around = [0.1, -0.1, -0.1, 0.1, 0.1, -0.1, -0.1, 0.1]  # its least-squares slope is 0
    train = [float(step) for step in range(8)]
    scatter = math.sqrt(8 * 0.01 / 6)
    for error in (0.0, 0.05):
        parting = evaluations_of([0.5 + one for one in around], train, error).parting(8, 1.0)
        assert parting.error == pytest.approx(math.hypot(scatter, error))
        assert parting.size == pytest.approx(6 / parting.error)


def test_the_last_evaluations_are_looked_at():
    """A checkpoint can hold more evaluations than the window, if the window was larger then."""
    evaluations = evaluations_of([0.1 * step for step in range(12)] + [1.2] * 6, [float(step) for step in range(18)])
    assert evaluations.parting(6, 0.3).pairs == evaluations.last[-6:]
    assert evaluations.parting(18, 0.3) is None


def test_a_gap_that_is_not_finite_is_none():
    for scale, judged in ((1e300, True), (1e308, False)):
        held_out, train = [-scale] * 4 + [-1.7 * scale] * 4, [0.2 * scale * step for step in range(8)]
        assert (evaluations_of(held_out, train).parting(8, 0.0) is not None) == judged


# -- checkpoints


@pytest.mark.parametrize("at", [3, 47, 125, 205])
def test_a_resumed_watch_goes_on_as_if_never_interrupted(at):
    rng = random.Random(0)
    batches = [of_mean(step, RISES(step) + rng.gauss(0, 0.02)) for step in range(260)]

    def seen(watched, steps):
        on = []
        for step in steps:
            on.append(watched.see(batches[step]))
            if (step + 1) % EVERY == 0:
                watched.note(evaluation(step + 1, 0.4))
                watched.note(evaluation(step + 1, RISES(step), "eval_near"))
        return on

    whole = watch()
    expected = seen(whole, range(260))
    assert any(expected)
    first, second, file = watch(), watch(), io.BytesIO()
    before = seen(first, range(at))
    assert json.loads(json.dumps(first.state_dict())) == first.state_dict()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert before + seen(second, range(at, 260)) == expected
    assert second.state_dict() == whole.state_dict()
    [kept] = {len(one["last"]) for one in whole.state_dict()["evaluations"].values()}
    assert kept == 8


def test_other_weights_forget_the_evaluations():
    watched = watch()
    alarms(RISES, line(0.4, 0.4), watched, steps=100)
    made = of_mean(100, 0.5)
    watched.see(replace(made, weights={"a": 2.0}))
    assert watched.state_dict()["evaluations"] == {}


# -- how often it is wrong, and how late


parted = benchmark_scripts.imported("held_out_gap").parted
QUIET = {
    "flat": (line(0.4, 0.4), line(0.4, 0.4)),
    "rise": (RISES, RISES),
    "plateau": 2 * (lambda step: 0.3 + 0.4 * min(1, step / 150),),
    "offset": (
        lambda step: 0.3 + 0.5 * (1 - math.exp(-step / 120)),
        lambda step: 0.25 + 0.4 * (1 - math.exp(-step / 120)),
    ),
    "three quarters": (RISES, line(0.3, 0.6)),
}
# (std of a batch's mean, std of an evaluation): 8 x 8 attempts and 100 prompts, then about four times as many.
NOISE = {"small": (0.12, 0.035), "large": (0.06, 0.015)}


@pytest.mark.parametrize("size", NOISE)
@pytest.mark.parametrize("kind", QUIET)
def test_of_300_noisy_runs_fewer_than_2_percent_raise_it(kind, size):
    wrong = sum(parted(random.Random(f"{kind} {seed}"), *QUIET[kind], *NOISE[size]) is not None for seed in range(300))
    assert wrong < 0.02 * 300


@pytest.mark.parametrize(
    ("turn", "fall", "size", "least", "late"),
    [
        (120, 0.2, "large", 1.0, 7),
        (120, 0.2, "small", 0.8, 10),
        (120, 0.0, "large", 0.95, 9),
        (0, 0.0, "large", 1.0, 8),
    ],
)
def test_the_alarm_comes_within_some_evaluations_after_the_held_out_reward_turns(turn, fall, size, least, late):
    seen = [parted(random.Random(seed), RISES, turning(turn, fall), *NOISE[size]) for seed in range(100)]
    numbers = [number - turn / EVERY for number in seen if number is not None]
    assert len(numbers) >= least * 100
    assert 2 < median(numbers) <= late


def test_the_page_has_the_benchmarks_table():
    results = (ROOT / "benchmarks" / "results" / "held_out_gap.md").read_text()
    late, _ = results.split("\n\n")
    assert late in (ROOT / "docs" / "alarms.md").read_text()


# -- a training


def test_a_training_that_memorises_raises_the_alarm(tmp_path):
    """The reward rises with each call on training prompts, and stays the same on held-out prompts."""
    calls = [0]

    def memorised(completions, number, **kwargs):
        training = number[0] < 30
        calls[0] += training
        return [min(1.0, calls[0] / 60) * (i % 2) if training else 0.2 * (i % 2) for i in range(len(completions))]

    held_out = tiny_models.prompts(34).select(range(30, 34))
    trainer = tiny_models.trained(
        tmp_path,
        memorised,
        max_steps=44,
        eval_strategy="steps",
        eval_steps=4,
        per_device_eval_batch_size=8,
        alarm_thresholds={**OTHERS, "window": 8, "min_batches": 4},
        halt_on_alarm=[NAME],
        extra={"eval_dataset": held_out},
    )
    assert 20 < trainer.state.global_step < 44
    [alarm] = [json.loads(told) for told in (tmp_path / "run/rollouts/alarms.jsonl").read_text().splitlines()]
    assert alarm["name"] == NAME
    assert tiny_models.logged(trainer, f"alarms/{NAME}")[-1] == 1.0
    assert len(trainer._recorder.state_dict()["evaluations"]["eval"]["last"]) >= 5


def test_another_rank_than_the_first_keeps_no_evaluations(tmp_path):
    args = SimpleNamespace(alarms=True, trace_every=0, trace_thumbnails=0, output_dir=str(tmp_path))
    for name in ("zero_variance_tolerance", "solved_reward", "failed_reward", "num_generations"):
        setattr(args, name, 1)
    recorder = Recorder(args, ["a"], [1.0], rank=1)
    recorder.on_log(args, SimpleNamespace(global_step=1), None, evaluation(1, 0.5))
    assert recorder.state_dict() is None
