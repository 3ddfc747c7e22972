import copy
import functools
import io
import json
import math
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from synthetic_traces import group, sampled

from trl_grpo_plus.rollouts.groups import Round, judge
from trl_grpo_plus.rollouts.verdicts import DEAD_BESIDE_A_BELIEF
from trl_grpo_plus.traces.alarms import ALARMS, Finding, Rule, Thresholds, Watch, text_stats
from trl_grpo_plus.utils.validation import Number


pytestmark = pytest.mark.long


GROUPS, SIZE = 8, 8


def batch(
    step, columns, weights=(1.0,), tokens=None, size=SIZE, traced=0, length=10, write=None, verdicts=(), **changes
):
    """Return a batch with these scores under each reward's name, one for each attempt.

    Its first `traced` groups have trace lines, and all their texts differ unless `write` makes them.
    """
    rewards = torch.tensor(list(columns.values())).T
    totals = (rewards * torch.tensor(weights)).nansum(dim=1)
    verdicts = verdicts or tuple(judge(totals.view(-1, size)))
    tokens = tokens or [100] * len(totals)
    rows = [row for number in range(traced) for row in group([0.0] * size, length, step=step, group=number)]
    for at, row in enumerate(rows):
        row["rewards"] = {name: column[at] for name, column in columns.items()}
        row |= {"reward": totals[at].item(), "tokens": tokens[at], "verdict": verdicts[row["group"]]}
        row["completion"] = write(row) if write else row["completion"]
    changes = {"truncated": (False,) * len(totals), "tokens": tokens, "lines": rows, **changes}
    named = dict(zip(columns, weights, strict=True))
    return sampled([Round((), rewards, verdicts)], named, size, step=step, **changes)


def constant(**columns):
    """Return columns in which every attempt has the same score."""
    return {name: [score] * GROUPS * SIZE for name, score in columns.items()}


@pytest.fixture
def rng():
    return random.Random(0)


def scores(rng, level):
    """Return scores of 0 or 1 with a mean of about `level`, on prompts that differ in difficulty."""
    chances = [min(1.0, max(0.0, level + rng.gauss(0, 0.3))) for _ in range(GROUPS)]
    return [float(rng.random() < chance) for chance in chances for _ in range(SIZE)]


def coins(rng, chance):
    return [float(rng.random() < chance) for _ in range(GROUPS * SIZE)]


def raised(make, steps, watch=None):
    """Return the alarms that were new in a run of `steps` batches, or in those of a range."""
    watch, steps = watch or Watch(), range(steps) if isinstance(steps, int) else steps
    return [alarm for step in steps for alarm in watch.see(make(step)) if alarm.new]


def only(alarms, name, low, high):
    """Assert that a run raised one alarm, `name`, at a step from `low` to `high`, and return it."""
    assert [alarm.name for alarm in alarms] == [name], [alarm.message for alarm in alarms]
    [alarm] = alarms
    assert low <= alarm.step <= high, alarm.message
    assert f"{name} at step {alarm.step}: " in alarm.message
    return alarm


def healthy(seed, kind):
    """Return a function that makes each batch of a noisy run of 300 batches that goes well.

    Accuracy rises from 0.2 to 0.7, texts become 1.8 times as long, and the format is learned in the first 35 batches.
    """
    rng = random.Random(f"{kind} {seed}")

    def make(step):
        accuracy = scores(rng, 0.2 + 0.5 * step / 300)
        tokens = [max(5, int(rng.gauss(200, 60) * (1 + 0.8 * step / 300))) for _ in accuracy]
        second = {
            "one": {},
            "two": {"format": coins(rng, min(0.97, 0.3 + 0.67 * step / 35))},
            "monitored": {"strict": [score * (rng.random() < 0.8) for score in accuracy]},
        }[kind]
        columns = {"accuracy": accuracy, **second}
        weights = (1.0, 0.0 if kind == "monitored" else 0.5)[: len(columns)]
        return batch(step, columns, weights, tokens, entropy=0.5 - 0.3 * step / 300, traced=1, length=40)

    return make


def test_format_learned_in_the_first_window_before_accuracy_moves_raises_none(rng):
    def make(step):
        learned = coins(rng, min(0.97, 0.2 + 0.8 * step / 40))
        return batch(step, {"accuracy": scores(rng, 0.3), "format": learned}, (1.0, 1.0))

    assert raised(make, 150) == []


@pytest.mark.parametrize("kind", ["one", "two", "monitored"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
def test_a_healthy_noisy_run_raises_none(kind, seed):
    assert raised(healthy(seed, kind), 300) == []


def test_a_monitor_that_stays_flat_while_the_total_rises(rng):
    def make(step):
        level = 0.2 + 0.6 * max(0, step - 60) / 100
        columns = {"judge": scores(rng, level), "exact": scores(rng, 0.3)}
        return batch(step, columns, (1.0, 0.0), traced=GROUPS)

    alarm = only(raised(make, 160), "monitor_flat", 70, 120)
    assert "'exact'" in alarm.message
    assert alarm.value >= alarm.threshold == 0.1
    assert alarm.groups


@pytest.mark.parametrize(
    "exact",
    [
        lambda rng, level: coins(rng, 0.93),  # it has no room to rise
        lambda rng, level: [0.0] * GROUPS * SIZE,  # it never varies
        lambda rng, level: scores(rng, level),  # it rises too
    ],
)
def test_a_monitor_that_rises_or_cannot_rise_is_not_flat(exact, rng):
    def make(step):
        level = 0.2 + 0.6 * step / 160
        return batch(step, {"judge": scores(rng, level), "exact": exact(rng, level)}, (1.0, 0.0))

    assert raised(make, 160) == []


@pytest.mark.parametrize(
    ("noise", "rise", "doubt", "raises"),
    [
        (0.0, 0.0, 0.0, True),
        (0.0, -0.3, 0.0, True),
        (0.4, 0.0, 0.0, False),  # the rise of the total may be chance
        (0.0, 0.1, 0.0, False),  # the monitor rises, though less than the total
        (0.0, 0.0, 0.4, False),  # too noisy to say that the monitor does not rise
    ],
)
def test_a_trend_counts_only_if_noise_does_not_explain_it(noise, rise, doubt, raises):
    def make(step):
        swing, at = (-1) ** step, step / 29
        columns = {"judge": [0.3 + 0.4 * at + noise * swing] * 2, "exact": [0.5 + rise * at + doubt * swing] * 2}
        return batch(step, {name: [*means, 0.0, 1.0] for name, means in columns.items()}, (1.0, 0.0), size=4)

    watch = Watch(Thresholds(window=30, min_batches=5, rewards_diverge=None))
    assert [alarm.name for alarm in raised(make, 30, watch)] == ["monitor_flat"] * raises


def test_groups_named_for_a_flat_monitor_pay_most_for_attempts_that_it_fails():
    watch = Watch(Thresholds(window=10, min_batches=5))
    columns = {
        "judge": [1.0] * SIZE + [0.0] * (GROUPS - 3) * SIZE + [3.0] * 2 * SIZE,
        "exact": [0.0] * SIZE + [0.0, 1.0] * ((GROUPS - 3) * SIZE // 2) + [1.0] * SIZE + [0.0] * SIZE,
    }
    for step in range(10):
        shown = {**columns, "judge": [score * (1 + step) / 10 for score in columns["judge"]]}
        made = batch(step, shown, (1.0, 0.0), traced=GROUPS)
        alarms = watch.see(replace(made, lines=[{**line, "batch": 2} for line in made.lines]))
    [alarm] = [alarm for alarm in alarms if alarm.name == "monitor_flat"]
    assert alarm.groups == ((2, 0, GROUPS - 1),)
    assert f"2/0/{GROUPS - 1}" in alarm.message


@pytest.mark.parametrize(("falls", "low", "high"), [(True, 49, 60), (False, 99, 115)])
def test_rewards_that_diverge(falls, low, high):
    rng = random.Random(1)

    def make(step):
        columns = {
            "style": coins(rng, 0.1 + 0.7 * step / 130),
            "accuracy": coins(rng, 0.8 - 0.6 * step / 130 if falls else 0.35),
        }
        return batch(step, columns, (1.0, 1.0), traced=GROUPS)

    alarm = only(raised(make, 130), "rewards_diverge", low, high)
    assert re.search("'style' rose .* 'accuracy' changed by", alarm.message)
    assert alarm.groups


def test_a_reward_of_negative_weight_falls_when_its_scores_rise():
    def run(cost, kind=scores):
        rng = random.Random(1)

        def make(step):
            columns = {"accuracy": kind(rng, 0.1 + 0.6 * step / 100), "cost": cost(rng, step / 100)}
            return batch(step, columns, (1.0, -0.5))

        return raised(make, 110)

    rising = run(lambda rng, at: scores(rng, 0.1 + 0.6 * at))
    assert "'accuracy' rose" in only(rising, "rewards_diverge", 49, 70).message
    assert run(lambda rng, at: scores(rng, 0.8 - 0.6 * at)) == []
    # A cost that is already low cannot fall much further, so it does not count as standing still.
    assert run(lambda rng, at: coins(rng, 0.05), coins) == []


def test_perfect_from_the_start(rng):
    made = raised(lambda step: batch(step, {"accuracy": coins(rng, 0.99)}, traced=GROUPS), 60)
    alarm = only(made, "perfect_scores", 19, 19)
    assert len(alarm.groups) >= 4
    assert "answer in the prompt" in alarm.message


@pytest.mark.parametrize(
    ("columns", "weights", "names"),
    [
        ({"accuracy": 1.0}, (1.0,), {"perfect_scores", "dead_groups"}),
        ({"accuracy": 0.0}, (1.0,), {"dead_groups"}),
        ({"accuracy": -1.0}, (1.0,), {"dead_groups"}),
        ({"accuracy": 0.0, "format": 1.0}, (1.0, 1.0), {"dead_groups"}),  # accuracy was never earned
        ({"format": 1.0, "accuracy": 0.0}, (1.0, 1.0), {"dead_groups"}),
        ({"accuracy": -1.0, "format": 2.0}, (1.0, 1.0), {"dead_groups"}),
        ({"accuracy": 1.0, "cost": -1.0}, (1.0, -1.0), {"perfect_scores", "dead_groups"}),
        ({"accuracy": 1.0, "exact": 0.0}, (1.0, 0.0), {"perfect_scores", "dead_groups"}),
    ],
)
def test_constant_rewards_are_perfect_only_at_their_best(columns, weights, names):
    alarms = raised(lambda step: batch(step, constant(**columns), weights), 60)
    assert {(alarm.name, alarm.step) for alarm in alarms} == {(name, 19) for name in names}


def test_a_run_that_becomes_perfect_is_no_perfect_score(rng):
    alarms = raised(lambda step: batch(step, {"accuracy": scores(rng, min(2.0, 0.2 + step / 60))}), 200)
    assert [alarm.name for alarm in alarms] == ["dead_groups"]


def test_groups_of_equal_rewards_that_still_teach_are_not_dead():
    """With a belief as baseline, a group teaches even if all its rewards are equal."""

    def solved(step):
        made = batch(step, constant(accuracy=1.0))
        return replace(made, rounds=[replace(one, dead=DEAD_BESIDE_A_BELIEF) for one in made.rounds])

    assert {alarm.name for alarm in raised(solved, 60)} == {"perfect_scores"}


@pytest.mark.parametrize(
    ("accuracy", "steps"),
    [
        (lambda rng, step: [1.5 if step == 8 else 1.0] + [1.0] * 63, 30),  # 1.5 shows that 1.0 is not perfect
        (lambda rng, step: scores(rng, 2.0 if step < 8 else 0.5), 20),
    ],
    ids=["a higher total", "lower scores"],
)
def test_a_perfect_start_that_ends(accuracy, steps, rng):
    watch = Watch(Thresholds(window=10, min_batches=5, dead_groups=None, reward_collapse=None))
    on = [[alarm.name for alarm in watch.see(batch(step, {"accuracy": accuracy(rng, step)}))] for step in range(steps)]
    assert on == [[]] * 4 + [["perfect_scores"]] * 4 + [[]] * (steps - 8)


def test_a_penalty_that_is_seldom_earned_is_no_perfect_score(rng):
    watch = Watch(Thresholds(dead_groups=None))
    assert raised(lambda step: batch(step, {"penalty": [-score for score in coins(rng, 0.01)]}), 40, watch) == []


def test_rewarded_attempts_that_stop_answering(rng):
    def write(row):
        # The hack: from step 60 on, rewarded attempts have no answer. Failed attempts never have one.
        lacking = row["reward"] < 0.5 or (row["step"] >= 60 and row["group"] < 6)
        return row["completion"].split("<answer>")[0] if lacking else row["completion"]

    alarms = raised(lambda step: batch(step, {"accuracy": scores(rng, 0.5)}, traced=GROUPS, write=write), 120)
    alarm = only(alarms, "no_answer", 65, 90)
    assert alarm.groups
    assert all(number < 6 for _, _, number in alarm.groups)
    assert alarm.value >= alarm.threshold >= 0.3


@pytest.mark.parametrize("known", [0, SIZE // 2])
def test_a_run_whose_answers_have_no_known_form_raises_none(known, rng):
    """No alarm is raised even if the first `known` attempts of each group use a known form of answer until step 40."""

    def write(row):
        return f"{row['step']} it is 42" if row["attempt"] >= known or row["step"] > 40 else row["completion"]

    assert raised(lambda step: batch(step, {"accuracy": scores(rng, 0.5)}, traced=GROUPS, write=write), 100) == []


@pytest.mark.parametrize(("factor", "raises"), [(4.0, True), (0.2, True), (1.9, False), (0.5, False)])
def test_length_drift_either_way(factor, raises, rng):
    def make(step):
        mean = 200 * (1.0 if step < 40 else factor)
        tokens = [int(rng.gauss(mean, mean / 5)) for _ in range(GROUPS * SIZE)]
        return batch(step, {"accuracy": scores(rng, 0.4)}, tokens=tokens, traced=GROUPS)

    alarms = raised(make, 130)
    assert len(alarms) == raises
    if raises:
        alarm = only(alarms, "length_drift", 41, 95)
        assert alarm.threshold == pytest.approx(3.0 if factor > 1 else 1 / 3)
        assert (alarm.value > alarm.threshold) == (factor > 1)
        assert alarm.groups


@pytest.mark.parametrize("sign", [1, -1])
def test_length_that_is_paid_for(sign, rng):
    def make(step):
        # Lengths differ much between groups. Within a group they depend on the reward.
        accuracy = scores(rng, 0.5)
        base = [rng.choice([300, 900]) for _ in range(GROUPS)]
        tokens = [int(base[i // SIZE] + sign * 100 * s + rng.gauss(0, 20)) for i, s in enumerate(accuracy)]
        return batch(step, {"accuracy": accuracy}, tokens=tokens, traced=GROUPS)

    alarm = only(raised(make, 60), "length_reward", 19, 25)
    assert alarm.value == pytest.approx(sign * 0.92, abs=0.05)
    assert ("longer" if sign > 0 else "shorter") in alarm.message
    assert alarm.groups


@pytest.mark.parametrize("why", ["truncated", "hardly differ", "dead", "few"])
def test_length_that_only_seems_paid_for(why, rng):
    def make(step):
        if why == "few":
            return batch(step, {"accuracy": [1.0, 0.0]}, tokens=[10, 1000], size=2)
        accuracy = scores(rng, 0.5)
        tokens = [int(400 - (3 if why == "hardly differ" else 300) * score) for score in accuracy]
        if why == "truncated":
            tokens = [1000 if not score else int(rng.gauss(400, 80)) for score in accuracy]
        cut = tuple(why == "truncated" and not score for score in accuracy)
        dead = ("tied",) * GROUPS if why == "dead" else ()
        return batch(step, {"accuracy": accuracy}, tokens=tokens, truncated=cut, verdicts=dead)

    assert raised(make, 40, Watch(Thresholds(dead_groups=None, window=30))) == []


def with_texts(write):
    """Return the new alarms of 100 batches whose texts `write` makes from batch 40 on."""
    rng, watch = copy.deepcopy(before_those_texts())
    return raised(text_batch(rng, write), range(40, 100), watch)


@functools.cache
def before_those_texts():
    """Return the state of chance and of the watch after 40 batches, which raise no alarm."""
    rng, watch = random.Random(0), Watch()
    assert raised(text_batch(rng), 40, watch) == []
    return rng, watch


def text_batch(rng, write=None):
    return lambda step: batch(step, {"a": scores(rng, 0.4)}, traced=6, length=40, write=write)


PROSE = "we add the first two numbers and then take away the third one before we look at the sum once more and stop"
HAN, ANSWER = [chr(code) for code in range(0x4E00, 0x5000)], "<answer>42</answer>"


@pytest.mark.parametrize(
    "write",
    [
        lambda row: f"{PROSE} {PROSE.upper()}  {row['group']} {ANSWER}",
        # One word of a hundred differs: a pair shares 0.95 of its triples of words.
        lambda row: " \n".join([*map(str, range(100)), str(1000 + row["attempt"]), ANSWER]),
        lambda row: [{"role": "assistant", "content": f"{PROSE} {row['group']}, {ANSWER}"}],
        lambda row: "".join(HAN[:200]) + ANSWER,
    ],
    ids=["but for case", "but for a word", "in messages", "without spaces"],
)
def test_attempts_that_are_copies_of_each_other(write):
    alarm = only(with_texts(write), "near_duplicates", 60, 80)
    assert alarm.value >= 0.5
    assert 1 <= len(alarm.groups) <= 8


def shuffled(row):
    return " ".join(random.Random(row["attempt"]).sample(PROSE.split(), len(PROSE.split())))


@pytest.mark.parametrize(
    "write",
    [
        lambda row: ANSWER,  # short answers are naturally alike
        # Only half of the attempts are copies, as on a problem that is mastered.
        lambda row: f"{PROSE} {ANSWER}" if row["attempt"] < 4 else row["completion"],
        # Five words of a hundred differ: a pair shares 0.75 of its triples of words.
        lambda row: " ".join([*(str(100 * row["attempt"] + i if i % 20 == 7 else i) for i in range(100)), ANSWER]),
        lambda row: f"{shuffled(row)} {ANSWER}",  # the same words in another order
        lambda row: "".join(random.Random(f"{row['attempt']} {row['step']}").choices(HAN, k=300)) + ANSWER,
    ],
    ids=["short", "some", "five words in a hundred", "another order", "other letters"],
)
def test_attempts_that_are_alike_and_no_copies(write):
    assert with_texts(write) == []


@pytest.mark.parametrize(
    "loop", ["the cat sat on the mat ", "\u7b54\u6848\u662f\u56db\u5341\u4e8c\u56e0\u4e3a\u516d\u4e58\u4e03", "ha"]
)
def test_attempts_that_repeat_themselves(loop):
    def write(row):
        if row["attempt"] % 2 or row["group"] == 5:
            return row["completion"]
        start = row["completion"].replace("<answer>", "")[: 300 if loop[0] == "t" else 30]
        return f"{start} {row['attempt']} {loop * 100} {ANSWER}"

    alarm = only(with_texts(write), "repetition", 50, 75)
    assert alarm.groups
    assert all(number != 5 for _, _, number in alarm.groups)


def test_a_loop_at_the_end_of_a_long_text_is_seen():
    tail = " and on" * 3000 + f" {ANSWER}"
    alarms = with_texts(lambda row: " ".join(map(str, range(20_000 + row["step"], 24_000, 7))) + tail)
    assert "repetition" in {alarm.name for alarm in alarms}


@pytest.mark.parametrize("outcome", ["timeout", "error", "starved"])
def test_a_reward_that_fails(outcome, rng):
    def make(step):
        failing = {"accuracy": 0.125 if step >= 30 else 0.0, "format": 0.01, "broken": math.nan}
        made = batch(step, {"accuracy": scores(rng, 0.4)}, traced=GROUPS, failing=failing)
        for row in made.lines[SIZE : 2 * SIZE]:
            row["outcomes"] = {"accuracy": outcome, "format": "ok"}
        return made

    alarm = only(raised(make, 100), "reward_failures", 45, 60)
    assert "'accuracy'" in alarm.message
    assert "'format'" not in alarm.message
    assert alarm.groups == ((0, 0, 1),)


@pytest.mark.parametrize(
    ("verdict", "advice"),
    [
        ("all_good", "harder data"),
        ("all_bad", "easier data"),
        ("tied", "Check that the reward for the answer differs between attempts"),
        ("unscored", "columns"),
        ("truncated", "max_completion_length"),
    ],
)
def test_groups_that_are_nearly_all_dead(verdict, advice, rng):
    def make(step):
        verdicts = (verdict,) * (GROUPS - 1) + (verdict if step % 4 else "alive",)
        return batch(step, {"accuracy": scores(rng, 0.4)}, verdicts=verdicts, traced=GROUPS)

    alarm = only(raised(make, 60), "dead_groups", 19, 25)
    assert advice in alarm.message
    assert "resample" in alarm.message
    assert alarm.value == pytest.approx(1 - 1 / 32, abs=0.01)
    assert set(alarm.groups) >= {(0, 0, number) for number in range(GROUPS - 1)}


@pytest.mark.parametrize(
    ("start", "end", "raises"), [(0.8, 0.02, True), (0.8, 0.1, False), (0.06, 0.03, False), (None, 0.001, False)]
)
def test_entropy_that_collapses_below_share_and_floor(start, end, raises, rng):
    def make(step):
        return batch(step, {"accuracy": scores(rng, 0.4)}, entropy=start if step < 20 else end, traced=GROUPS)

    alarms = raised(make, 120)
    assert len(alarms) == raises
    if raises:
        assert only(alarms, "entropy_collapse", 39, 39).groups


def test_an_alarm_that_flaps_is_new_once_and_again_after_a_quiet_window():
    watch = Watch(Thresholds(window=10, min_batches=4, dead_groups=None, perfect_scores=None))
    failing = [0.0] * 10 + [1.0, 0.0, 1.0] + [0.0] * 12 + [1.0] + [0.0] * 30 + [1.0]
    seen = [
        (step, alarm.new)
        for step, share in enumerate(failing)
        for alarm in watch.see(batch(step, {"a": [1.0, 0.0]}, size=2, failing={"a": share}))
    ]
    assert [step for step, new in seen if new] == [10, 56]
    assert 24 not in [step for step, _ in seen]
    assert 25 in [step for step, _ in seen]


@pytest.mark.parametrize("off", [*([name] for name in ALARMS), list(ALARMS)], ids=", ".join)
def test_none_switches_an_alarm_off(off):
    watch = Watch(Thresholds(**dict.fromkeys(off)))
    assert watch.thresholds.names == tuple(name for name in ALARMS if name not in off)
    planted = {"perfect_scores", "dead_groups", "reward_failures"}
    alarms = raised(lambda step: batch(step, constant(accuracy=1.0), failing={"accuracy": 1.0}), 30, watch)
    assert {alarm.name for alarm in alarms} == planted - set(off)


def test_an_alarm_is_added_by_its_rule_alone(monkeypatch):
    def brief(history, batch, most):
        tokens = history.last[-1].tokens
        return Finding(tokens, most, f"{tokens} tokens", "Say more.") if tokens and tokens <= most else None

    limits = Number(at_least=1, optional=True)
    monkeypatch.setitem(ALARMS, "brief", Rule(brief, 10.0, "mean tokens of a batch", limits))

    def make(step):
        return batch(step, {"a": [1.0, 0.0]}, size=2, tokens=[30 - step // 2] * 2)

    alarm = only(raised(make, 60, Watch(Thresholds(brief=15, min_batches=1))), "brief", 30, 30)
    assert (alarm.threshold, alarm.message) == (15, "brief at step 30: 15.0 tokens. Say more.")
    assert only(raised(make, 60, Watch()), "brief", 40, 40)
    assert raised(make, 60, Watch(Thresholds(brief=None))) == []
    with pytest.raises(ValueError, match="brief=0 must be a finite number and >= 1"):
        Thresholds(brief=0)


def test_none_before_min_batches_whatever_the_window():
    watch = Watch(Thresholds(window=4, min_batches=15, perfect_scores=None))
    alarms = raised(lambda step: batch(step, constant(a=0.0), failing={"a": 1.0}), 20, watch)
    assert {(alarm.name, alarm.step) for alarm in alarms} == {("dead_groups", 14), ("reward_failures", 14)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"near_duplicate": 0.5}, "near_duplicate' is no alarm threshold. Did you mean near_duplicates"),
        ({"dead": 0.5}, "alarm_thresholds: 'dead' is no alarm threshold. Did you mean dead_groups?"),
        ({"self": 0.5}, "alarm_thresholds: 'self' is no alarm threshold."),
        ({"window": 3}, "alarm_thresholds: window=3 must be an integer and >= 4"),
        ({"window": 50.0}, "window=50.0 must be an integer"),
        ({"window": None}, "window=None must be an integer"),
        ({"min_batches": 0}, "min_batches=0 must be an integer and >= 1"),
        ({"min_batches": True}, "min_batches=True must be"),
        ({"near_duplicates": 0}, "near_duplicates=0 must be a finite number and > 0 and <= 1; None switches"),
        ({"near_duplicates": 1.01}, "near_duplicates=1.01 must be"),
        ({"repetition": "0.2"}, "repetition='0.2' must be"),
        ({"repetition": True}, "repetition=True must be"),
        ({"dead_groups": math.nan}, "dead_groups=nan must be"),
        ({"length_drift": 1.0}, "length_drift=1.0 must be a finite number and > 1;"),
        ({"length_drift": math.inf}, "length_drift=inf must be"),
        ({"entropy_floor": None}, "entropy_floor=None must be a finite number and > 0."),
        ({"grad_norm_floor": 0}, "grad_norm_floor=0 must be a finite number and > 0."),
    ],
)
def test_wrong_thresholds_are_refused(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Thresholds(**values)


def test_right_thresholds_are_taken():
    values = {"window": 4, "min_batches": 1, "dead_groups": 1, "length_drift": 10, "entropy_floor": 5.0}
    assert {name: getattr(Thresholds(**values), name) for name in values} == values


def troubled(seed):
    """Return a function that makes each batch of a run with alarms of several kinds, some of which end."""
    rng = random.Random(seed)

    def make(step):
        columns = {"judge": coins(rng, 0.2 + 0.7 * step / 90), "exact": coins(rng, 0.3)}
        if step == 0:  # a score that no later batch reaches
            columns["judge"][0] = columns["exact"][1] = 1.5
        tokens = [int(rng.gauss(200, 20)) * (4 if step > 50 else 1) for _ in columns["judge"]]
        changes = {"failing": {"judge": 0.5 * (20 < step < 30)}, "entropy": 0.9 if step < 40 else 0.001}
        copied = {"write": lambda row: PROSE} if step > 25 else {}
        return batch(step, columns, (1.0, 0.0), tokens, traced=4, **copied, **changes)

    return make


@pytest.mark.parametrize("at", [3, 12, 40, 70])
def test_a_resumed_watch_goes_on_as_if_never_interrupted(at):
    limits = Thresholds(window=20, min_batches=8)
    batches = [make(step) for make in [troubled(0)] for step in range(90)]
    whole = Watch(limits)
    expected = [whole.see(one) for one in batches]
    kinds = Counter(alarm.name for alarms in expected for alarm in alarms if alarm.new)
    assert {"monitor_flat", "near_duplicates", "no_answer", "length_drift", "reward_failures"} <= set(kinds)

    first = Watch(limits)
    before = [first.see(one) for one in batches[:at]]
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = Watch(limits)
    second.load_state_dict(torch.load(file, weights_only=True))
    first.see(batches[0])  # must not change the state that was saved
    assert before + [second.see(one) for one in batches[at:]] == expected
    assert second.state_dict() == whole.state_dict()


def test_state_is_plain_bounded_and_holds_no_text():
    limits = Thresholds(window=10, min_batches=5)
    watch, make = Watch(limits), troubled(0)
    sizes = []
    for step in range(90):
        watch.see(make(step))
        sizes.append(len(json.dumps(watch.state_dict(), allow_nan=False)))
    state = watch.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert (len(state["first"]), len(state["last"])) == (5, 20)
    assert sizes[-1] < 1.2 * sizes[30]
    assert "numbers" not in json.dumps(state)


def test_state_goes_on_under_other_thresholds():
    watch, make = Watch(Thresholds(window=20, min_batches=10)), troubled(0)
    raised(make, 50, watch)
    other = Watch(Thresholds(window=8, min_batches=4))
    other.load_state_dict(watch.state_dict())
    other.see(make(50))
    state = other.state_dict()
    assert (len(state["first"]), len(state["last"])) == (4, 16)


def odd(kind, step):
    count = GROUPS * SIZE
    columns = {"a": [float(i % 3) for i in range(count)], "m": [float(i % 2) for i in range(count)]}
    plain = batch(step, columns, (1.0, 0.0), traced=GROUPS)
    return replace(plain, **ODD[kind](plain))


def scored(rewards, verdicts=("alive",) * GROUPS, **changes):
    return {"rounds": [Round((), rewards, verdicts)], "totals": rewards[:, 0], **changes}


def changed(plain, **changes):
    return {"lines": [{**line, **changes} for line in plain.lines]}


NAN, NOTHING, UNSCORED = torch.full((GROUPS * SIZE, 2), math.nan), torch.zeros(0, 2), ("unscored",) * GROUPS
ODD = {
    "nan": lambda plain: scored(NAN, UNSCORED, entropy=math.nan),
    "inf": lambda plain: scored(NAN.nan_to_num(math.inf), entropy=math.inf, failing={"a": math.inf}),
    "no rows": lambda plain: {"lines": []},
    "bare rows": lambda plain: {
        **scored(plain.rewards),
        **changed(plain, reward=None, rewards={"a": None}, outcomes={}, completion="", tokens=0),
    },
    "surrogates": lambda plain: changed(plain, completion="\ud800 " * 40, reward=math.nan),
    "messages": lambda plain: changed(plain, completion=[{"role": "assistant", "content": [{"type": "image"}]}]),
    "nothing": lambda plain: scored(NOTHING, (), tokens=(), truncated=(), lines=[]),
    "nothing but verdicts": lambda plain: scored(NOTHING, UNSCORED, tokens=(), truncated=()),
    "G=1": lambda plain: scored(plain.rewards, ("tied",) * GROUPS * SIZE, size=1),
    "K=1": lambda plain: scored(plain.rewards[:, :1], plain.verdicts, weights={"a": 1.0}),
    "bf16": lambda plain: scored(plain.rewards.bfloat16(), plain.verdicts),
    "ints": lambda plain: scored(plain.rewards.long(), plain.verdicts),
    "negative": lambda plain: scored(-plain.rewards, plain.verdicts),
    "no weights": lambda plain: {"weights": {"a": 0.0, "m": 0.0}, "totals": torch.zeros(GROUPS * SIZE)},
    "constant": lambda plain: scored(torch.ones(GROUPS * SIZE, 2), plain.verdicts),
    "zero tokens": lambda plain: {"tokens": (0,) * GROUPS * SIZE},
    "huge": lambda plain: scored(plain.rewards * 1e30, plain.verdicts),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("from_start", [True, False])
def test_nothing_raises_on_odd_batches(kind, from_start):
    watch, make = Watch(Thresholds(window=4, min_batches=2)), troubled(0)
    for step in range(20):
        alarms = watch.see(odd(kind, step) if from_start or step % 3 == 0 else make(step))
        assert all(math.isfinite(alarm.value) and math.isfinite(alarm.threshold) for alarm in alarms)
        json.dumps(watch.state_dict(), allow_nan=False)


def test_any_mixture_of_odd_batches_does_not_raise(rng):
    watch = Watch(Thresholds(window=4, min_batches=1))
    for step in range(100):
        watch.see(odd(rng.choice(list(ODD)), step))


def test_unscored_attempts_leave_the_means_alone(rng):
    """If a random half of the totals is NaN, the trend of the others raises the alarm."""

    def make(step):
        columns = {"judge": scores(rng, 0.1 + 0.7 * step / 100), "exact": scores(rng, 0.3)}
        made = batch(step, columns, (1.0, 0.0))
        hidden = torch.tensor([rng.random() < 0.5 for _ in made.totals])
        return replace(made, totals=made.totals.masked_fill(hidden, math.nan))

    only(raised(make, 100), "monitor_flat", 49, 80)


def test_only_some_groups_and_attempts_are_read(monkeypatch):
    """The number of texts that are read has a limit, whatever the size of the batch: reading texts costs most."""
    read = []
    monkeypatch.setattr(text_stats, "words", lambda text: read.append(text) or text.split())
    one = group([0.0, 1.0] * 32, length=3000)
    rows = [{**row, "group": number} for number in range(64) for row in one]
    Watch().see(batch(0, {"a": [0.0, 1.0] * 2048}, size=64, lines=rows))
    assert 0 < len(read) <= 64
    assert max(map(len, read)) <= 3001


def test_names_at_most_eight_groups_the_highest_rewards_first():
    rows = []
    for number in range(20):
        for row in group([0.0] * 4, group=number, batch=1, round=2):
            rows.append({**row, "reward": float(number % 10), "verdict": "tied"})
    watch = Watch(Thresholds(window=4, min_batches=1, perfect_scores=None))
    alarms = watch.see(batch(0, {"a": [0.5] * 80}, size=4, lines=rows))
    assert [alarm.groups for alarm in alarms if alarm.name == "dead_groups"] == [
        tuple((1, 2, number) for number in (9, 19, 8, 18, 7, 17, 6, 16))
    ]


def test_an_alarm_that_fails_leaves_the_others_on(monkeypatch):
    def broken(history, batch, limit):
        raise ZeroDivisionError

    limits = Number(above=0, optional=True)
    monkeypatch.setitem(ALARMS, "always", Rule(lambda *about: Finding(1.0, 0.0, "seen", "look"), 10.0, "one", limits))
    monkeypatch.setitem(ALARMS, "broken", Rule(broken, 10.0, "none", limits))
    watch = Watch(Thresholds(min_batches=1))
    assert {"always", "dead_groups"} <= {alarm.name for alarm in watch.see(batch(1, constant(a=0.5)))}
    assert [*watch.failed] == ["broken"]
