"""Tests of beliefs in training: the baseline's gradient by enumeration, dropped groups, and the choice of prompts."""

import itertools
import math
import re
from datetime import datetime
from types import SimpleNamespace

import pandas as pd
import pytest
import tiny_models
import torch
from advantages_by_keyword import compute
from datasets import Dataset
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.curriculum import selection
from trl_grpo_plus.curriculum.belief_store import BeliefStore
from trl_grpo_plus.curriculum.beliefs import Belief
from trl_grpo_plus.curriculum.samplers import ColumnSampler, LearnabilitySampler
from trl_grpo_plus.objective.baselines import MOST_BELIEVED
from trl_grpo_plus.traces import reader


def traces(folder):
    """Return the traces as a table with a row per attempt."""
    return pd.DataFrame(row for group in reader.groups(folder) for row in group)


BELIEF = {"advantage_baseline": "belief", "scale_rewards": "prior"}
CHOICE = {"prompt_selection": "belief", "zero_variance_groups": "drop", **BELIEF}
PAIRS = {"num_generations": 2, "per_device_train_batch_size": 8, "max_steps": 6}


def expected_gradient(p, size, belief, dead=()):
    """Yield the expected gradient, the mean of A x d log pi / d theta, under the scales none and prior.

    The mean is over all outcomes of `size` attempts that succeed with p = sigmoid(theta). Groups whose number of
    successes is in `dead` have no advantage.
    """
    outcomes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=size)), dtype=torch.float64)
    every = Belief(*(value.expand(len(outcomes)) for value in (belief.mean, belief.variance, belief.count)))
    teaching = torch.tensor([sum(outcome) not in dead for outcome in outcomes.tolist()])
    for scale in ("none", "prior"):
        values = compute(outcomes, "belief", scale, eps=0.0, belief=every, teaching=teaching)
        chance = (outcomes * p + (1 - outcomes) * (1 - p)).prod(dim=1)
        yield (chance * (values * (outcomes - p)).mean(dim=1)).sum().item()


def belief_of(mean, count):
    return Belief(*(torch.tensor([value], dtype=torch.float64) for value in (mean, mean * (1 - mean), count)))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_expected_gradient_is_that_of_the_pass_rate(size):
    """The expected gradient is dp / dtheta = p (1 - p) for any belief. The scale prior multiplies it by a factor."""
    for p, mean, count in itertools.product([0.05, 0.3, 0.5, 0.9], [0.02, 0.4, 0.97], [0.5, 2.0, 30.0]):
        plain, scaled = expected_gradient(p, size, belief_of(mean, count))
        assert plain == pytest.approx(p * (1 - p), rel=1e-12)
        assert scaled == pytest.approx(p * (1 - p) / math.sqrt(mean * (1 - mean)), rel=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_dropping_failed_groups_scales_the_expected_gradient(size):
    for p, mean, count in itertools.product([0.05, 0.3, 0.9], [0.1, 0.6], [2.0, 30.0]):
        k = min(count, MOST_BELIEVED)
        factor = 1 - k * mean / (size - 1 + k) * (1 - p) ** (size - 1)
        assert next(expected_gradient(p, size, belief_of(mean, count), dead=[0])) == pytest.approx(
            factor * p * (1 - p), rel=1e-9
        )


def test_by_hand():
    belief = Belief(*(torch.tensor(values, dtype=torch.float64) for values in ([0.5, 0.2], [0.25, 0.16], [2.0, 20.0])))
    values = compute(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), "belief", "prior", eps=0.0, belief=belief)
    # The baselines are (0 + 2 x .5) / 3 and (1 + 2 x .5) / 3. The std is .5.
    torch.testing.assert_close(values, torch.tensor([[4 / 3, -4 / 3], [0.0, 0.0]]))
    taught = compute(torch.ones(2, 2), "belief", "none", belief=belief, teaching=torch.tensor([False, True]))
    b = (1 + 8 * 0.2) / 9  # at most 8 of the 20 attempts count
    torch.testing.assert_close(taught, torch.tensor([[0.0, 0.0], [1 - b, 1 - b]]))


def solved_in_part(completions, number, **kwargs):
    """Reward by the prompt's number modulo 3: no attempt succeeds, all do, or every second one does."""
    return [[0.0, 1.0, float(i % 2)][n % 3] for i, n in enumerate(number)]


@pytest.mark.parametrize("mode", ["keep", "drop", "resample"])
def test_failed_groups_leave_and_solved_ones_teach(tmp_path, mode):
    trained = tiny_models.trained(tmp_path, solved_in_part, **PAIRS, **BELIEF, zero_variance_groups=mode)
    rows = traces(tmp_path / "run")
    of = {verdict: rows[(rows.verdict == verdict) & rows.kept] for verdict in ("alive", "all_good", "all_bad")}
    assert (of["alive"].advantage != 0).all()
    assert len(of["alive"]) > 4
    assert (of["all_good"].advantage > 0).all()
    assert len(of["all_good"]) > 4
    # Solved prompts are expected to be solved more and more, so their advantage falls.
    assert of["all_good"].advantage.iloc[-1] < of["all_good"].advantage.iloc[0]
    assert len(of["all_bad"]) == 0 if mode != "keep" else (of["all_bad"].advantage == 0).all()
    left = rows[~rows.kept]
    assert set(left.verdict) == ({"all_bad"} if mode == "drop" else set() if mode == "keep" else set(left.verdict))
    assert set(left[left.verdict == "all_bad"].reason) <= {"zero_variance", "filler"}
    assert tiny_models.logged(trained, "beliefs/skill")[-1] >= 0
    assert tiny_models.logged(trained, "beliefs/never_tried")[-1] < 1


def test_the_first_step_is_by_hand(tmp_path):
    """Nothing is known yet, so the belief is the middle of the range, on the prior's two attempts."""
    tiny_models.trained(
        tmp_path, solved_in_part, **{**PAIRS, **BELIEF, "max_steps": 1, "zero_variance_groups": "drop"}
    )
    rows = traces(tmp_path / "run")
    rows = rows[rows.kept]
    expected = {("alive", 1.0): 2 / 3, ("alive", 0.0): -2 / 3, ("all_good", 1.0): 1 / 3}
    for verdict, reward, advantage in zip(rows.verdict, rows.reward, rows.advantage, strict=True):
        assert advantage == pytest.approx(expected[verdict, reward] / (0.5 + 1e-4), rel=1e-5)
    assert list(rows.belief) == [{"mean": 0.5, "std": 0.5, "attempts": 2.0}] * len(rows)


@pytest.mark.parametrize(("solved", "warned"), [(1.0, True), (25.0, False)])
def test_rewards_far_outside_of_the_range_are_warned_of_once(tmp_path, caplog, solved, warned):
    def points(completions, **columns):
        return [48 * share for share in tiny_models.digits(completions)]

    tiny_models.trained(tmp_path, points, **{**PAIRS, "max_steps": 2}, **BELIEF, solved_reward=solved)
    words = r"go from [0-9.]+ to [0-9.]+\. Beliefs begin with the range from failed_reward=0 to solved_reward=1,"
    assert len(re.findall(words, caplog.text)) == warned


def test_filtered_verdicts_decides_which_groups_leave(tmp_path):
    options = {**PAIRS, **BELIEF, "zero_variance_groups": "drop", "filtered_verdicts": ["all_good", "unscored"]}
    tiny_models.trained(tmp_path, solved_in_part, **options)
    rows = traces(tmp_path / "run")
    assert set(rows[rows.kept].verdict) == {"alive", "all_bad"}
    assert (rows[rows.kept & (rows.verdict == "all_bad")].advantage < 0).all()


def often_tried(trained):
    """Return how often each prompt was sampled, by prompt."""
    return traces(trained.args.output_dir).groupby("prompt").size() / trained.num_generations


def test_what_there_is_to_learn_is_sampled_more(tmp_path):
    data = tiny_models.prompts(90)  # with 30 prompts all would soon rest
    options = {**PAIRS, **CHOICE, "max_steps": 70}
    trained = tiny_models.trained(tmp_path, solved_in_part, **options, selection_pool=4, data=data)
    by_kind = dict.fromkeys(range(3), 0.0)
    for prompt, times in often_tried(trained).items():
        by_kind[int(prompt[:2]) % 3] += times
    assert by_kind[2] > 1.5 * max(by_kind[0], by_kind[1])
    assert min(often_tried(trained)) >= 1
    assert len(often_tried(trained)) == 90
    assert tiny_models.logged(trained, "beliefs/skill")[-1] > 0.3
    assert tiny_models.logged(trained, "selection/pool")[0] == 16


@pytest.mark.parametrize(("order", "first"), [("easy_first", [0, 1, 2, 3]), ("hard_first", [26, 27, 28, 29])])
def test_prompts_by_a_column(tmp_path, order, first):
    by_column = {"name": "by_column", "args": {"column": "number", "order": order}}
    trained = tiny_models.trained(tmp_path, **{**PAIRS, "max_steps": 1}, prompt_selection=by_column)
    assert sorted({int(prompt[:2]) for prompt in often_tried(trained).index}) == first
    assert trained.args.prompt_selection == by_column


def test_adding_a_stream_is_an_entry(tmp_path, monkeypatch):
    def in_turn(train_set, args):
        return ColumnSampler(train_set["number"], "easy_first", 0)

    monkeypatch.setitem(selection.SAMPLERS, "in_turn", selection.Selection(in_turn))
    trained = tiny_models.trained(tmp_path, **{**PAIRS, "max_steps": 1}, prompt_selection="in_turn")
    assert sorted(int(prompt[:2]) for prompt in often_tried(trained).index) == [0, 1, 2, 3]


OWN = """
class Backwards:
    def __init__(self, train_set, seed):
        self.rows = len(train_set)
        self.at = 0

    def take(self, count, accepts, multiple_of=1, patience=None, believe=None):
        self.at += count
        return [(self.rows - 1 - row) % self.rows for row in range(self.at - count, self.at)]

    def observe(self, rows, rewards, verdicts):
        assert len(rows) == len(rewards) == len(verdicts) == 4

    def metrics(self):
        return {"selection/at": self.at}

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]
"""


def test_a_users_own_sampler_deals_the_rows(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    options = {**PAIRS, "max_steps": 3, "prompt_selection": f"{tmp_path / 'own.py'}:Backwards"}
    trained = tiny_models.trained(tmp_path, **options, save_strategy="steps", save_steps=2)
    assert sorted(int(prompt[:2]) for prompt in often_tried(trained).index) == list(range(18, 30))
    assert tiny_models.logged(trained, "selection/at") == [4, 8, 12]
    assert tiny_models.logged(trained, "rollouts") == [8, 16, 24]


def test_a_users_own_sampler_takes_arguments(tmp_path):
    (tmp_path / "own.py").write_text(
        OWN.replace("self, train_set, seed):", "self, train_set, seed, skip: int = 0):").replace(
            "self.at = 0", "self.at = skip"
        )
    )
    path = f"{tmp_path / 'own.py'}:Backwards"
    options = {**PAIRS, "max_steps": 1}
    trained = tiny_models.trained(tmp_path, **options, prompt_selection={"name": path, "args": {"skip": 10}})
    assert sorted(int(prompt[:2]) for prompt in often_tried(trained).index) == [16, 17, 18, 19]
    for arguments, words in (
        ({"skp": 1}, "there is no argument 'skp'; it takes skip. Did you mean skip"),
        ({"skip": "many"}, "skip='many' must be an integer"),
    ):
        own = {"name": path, "args": arguments}
        config = GRPOPlusConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", prompt_selection=own)
        with pytest.raises(ValueError, match=words):
            selection.check_class(config)


def test_several_rewards_by_themselves(tmp_path):
    """Each reward has a belief of its own. Prompts are chosen by the reward in `filter_metric`, else the total."""
    options = {**PAIRS, **CHOICE, "multi_objective_aggregation": "normalize_then_sum"}
    trained = tiny_models.trained(
        tmp_path, [solved_in_part, tiny_models.digits], **options, filter_metric="solved_in_part"
    )
    state = trained._prompts.state_dict()["memory"]
    assert set(state["beliefs"]) == {"solved_in_part", "digits", "solved_in_part, else total"}
    rows = traces(tmp_path / "run")
    assert (rows[rows.kept].advantage != 0).any()
    assert {belief["of"] for belief in rows.belief} == {"solved_in_part"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"advantage_baseline": "belief"}, "scale_rewards='group': .*'batch', 'none', 'running' or 'prior'"),
        ({"advantage_baseline": "belief", "scale_rewards": "mad"}, "does not go with scale_rewards='mad'"),
        ({"scale_rewards": "prior"}, "It needs advantage_baseline='belief' .now 'mean'.*Leave scale_rewards out."),
        ({"preset": "belief", "advantage_baseline": "mean"}, "preset='belief' sets it. Set scale_rewards='group' be"),
        (
            {**BELIEF, "filtered_verdicts": ["alive"]},
            "filtered_verdicts='alive' is not one of 'low_variance', 'all_good', 'all_bad'",
        ),
        ({"filtered_verdicts": ["all_bad"]}, "has no effect: zero_variance_groups='keep' keeps every group"),
        ({**BELIEF, "belief_head": "promp"}, "belief_head='promp' is not one of None, 'prompt'. Did you mean prompt"),
        ({"belief_key": "level"}, "belief_key='level' has no effect"),
        ({**BELIEF, "selection_pool": 4}, "selection_pool=4 has no effect with prompt_selection='shuffle'"),
        ({**BELIEF, "belief_key": 3}, "belief_key=3 must be the name of a column"),
        ({"prompt_selection": "beleif"}, "prompt_selection='beleif' is not one of .*Did you mean belief"),
        ({"prompt_selection": {"name": "by_column"}}, 'it needs column, order: {"name": ..., "args": {"column": ...'),
        (
            {"prompt_selection": {"column": "level"}},
            'with arguments it is {"name": "by_column"',
        ),
        (
            {"prompt_selection": {"name": "mixture", "column": "level", "weights": {"a": 1}}},
            re.escape('with arguments it is {"name": "mixture", "args": {"column": "level", "weights": {"a": 1}}}.'),
        ),
        ({"prompt_selection": {"name": "belief", "args": [3]}}, r"'args': \[3\]}: with arguments it is"),
        ({"prompt_selection": {"name": print}}, "is not one of 'shuffle'"),
        ({"prompt_selection": LearnabilitySampler}, "Give the path: 'trl_grpo_plus.curriculum.samplers:Learnability"),
        (
            {"prompt_selection": {"name": "belief", "args": {"pool": 3}}},
            "prompt_selection='belief': there is no argument 'pool'; it takes none",
        ),
        (
            {"prompt_selection": {"name": "mixture", "args": {"column": "level", "weights": [1, 2]}}},
            r"prompt_selection='mixture': weights=\[1, 2\] must be a mapping",
        ),
        (
            {"prompt_selection": {"name": "by_column", "args": {"column": "number", "order": "easy"}}},
            "order='easy' must be one of 'easy_first'",
        ),
        (
            {**BELIEF, "scale_rewards": "batch", "multi_objective_aggregation": "normalize_then_sum"},
            "Set scale_rewards='prior'",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        GRPOPlusConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({**BELIEF, "belief_key": "nummer"}, "belief_key='nummer' is no column .*'number'. Did you mean number"),
        (
            {"prompt_selection": {"name": "by_column", "args": {"column": "level", "order": "easy_first"}}},
            "the training set has no column 'level'. It has 'prompt', 'number'",
        ),
        (
            {**BELIEF, "belief_key": "tags", "data": tiny_models.prompts(30).map(lambda row: {"tags": ["a"]})},
            "belief_key='tags' holds list values, which are no keys",
        ),
        ({"prompt_selection": "tiny_models:qwen3"}, "tiny_models has no function 'qwen3'. Did you mean qwen2"),
        ({"prompt_selection": "itertools:repeat"}, "a repeat without take, observe, metrics, state_dict, load_"),
        ({**BELIEF, "reward_weights": [0.0]}, "no reward is left for advantage_baseline='belief'"),
    ],
)
def test_options_that_do_not_fit_the_data_are_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        tiny_models.trainer(tmp_path, **options)


@pytest.mark.parametrize("options", [BELIEF, CHOICE, {"prompt_selection": "belief"}])
def test_prompts_that_an_environment_supplies_are_no_rows(tmp_path, options):
    with pytest.raises(ValueError, match=r"train_dataset is None, but .*='belief'.* needs rows") as refused:
        tiny_models.trainer(tmp_path, **options, extra={"train_dataset": None}, max_steps=1)
    assert "drop" not in str(refused.value)  # dead groups can be dropped without a dataset


@pytest.mark.parametrize("names", [["one", "one"], ["total", "one"], ["one", "total"]])
def test_rewards_of_one_name_have_beliefs_of_their_own(tmp_path, names):
    options = {**CHOICE, "multi_objective_aggregation": "normalize_then_sum", "report_to": "none"}
    memory = BeliefStore(
        GRPOPlusConfig(str(tmp_path), use_cpu=True, bf16=False, **options), tiny_models.prompts(4), names, [1, 1]
    )
    for _ in range(9):
        memory.credited([0, 1])
        memory.observe([0, 1], torch.tensor([[1.0, 0.0]] * 4).view(2, 2, 2))
    first, second = (belief.mean.tolist() for belief in memory.credited([0, 1]))
    assert min(first) > 0.8 > 0.2 > max(second)
    assert memory.candidate_beliefs([0])[0].mean.item() == pytest.approx(1.0, abs=0.1)


def test_the_head_tells_prompts_whose_attempts_differ_from_those_stuck_in_between(tmp_path):
    """By the means alone, prompts that always earn 2/3 would promise most. The head also predicts the variance."""
    kinds, generator = torch.arange(900) % 3, torch.Generator().manual_seed(0)
    earns = torch.tensor([[2 / 3, 2 / 3], [2 / 3, 1.0], [1.0, 1.0]])

    def states(rows):
        return torch.eye(3)[kinds[rows]] + 0.1 * torch.randn(len(rows), 3, generator=generator)

    options = {**CHOICE, "belief_head": "prompt", "report_to": "none"}
    config = GRPOPlusConfig(str(tmp_path), use_cpu=True, bf16=False, **options)
    memory = BeliefStore(config, tiny_models.prompts(900), ["digits"], [1.0], states)
    for rows in torch.arange(600).split(15):
        rewards = earns[kinds[rows]].gather(1, torch.randint(2, (15, 2), generator=generator))
        memory.observe(rows.tolist(), rewards.unsqueeze(-1))
    belief, _ = memory.candidate_beliefs(list(range(600, 630)))
    stuck, alive, solved = (belief.variance[kinds[600:630] == kind] for kind in range(3))
    assert alive.min() > 2 * max(stuck.max(), solved.max())
    assert belief.count.tolist() == [4.0] * 30


def in_format(form, data):
    """Return the dataset in a format, or with a transform that makes tensors of numbers."""
    if form != "transform":
        return data.with_format(form)

    def tensors(rows):
        return {name: torch.tensor(v) if isinstance(v[0], int) else v for name, v in rows.items()}

    return data.with_transform(tensors)


@pytest.mark.parametrize("form", [None, "torch", "numpy", "pandas", "transform"])
@pytest.mark.parametrize("column", ["level", "kind"])
def test_rows_of_one_key_share_beliefs_whatever_the_dataset_s_format(tmp_path, form, column):
    data = tiny_models.prompts(30).map(lambda row: {"level": row["number"] % 3, "kind": "abc"[row["number"] % 3]})
    config = GRPOPlusConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **BELIEF, belief_key=column)
    memory = BeliefStore(config, in_format(form, data), ["digits"], [1.0])
    for _ in range(9):
        memory.observe([0, 1, 2], torch.tensor([0.0, 1.0, 0.0]).view(3, 1, 1).expand(3, 2, 1))
    (belief,) = memory.credited([3, 4, 28, 29])  # their levels are 0, 1, 1, 2
    other, *same_level, last = belief.mean.tolist()
    assert min(same_level) > 0.5 > max(other, last) + 0.2
    memory_of_lists = BeliefStore(config, data, ["digits"], [1.0])
    memory_of_lists.load_state_dict(memory.state_dict())  # accepted: the rows and keys are the same
    assert torch.equal(memory_of_lists.credited([3, 4, 28, 29])[0].mean, belief.mean)


@pytest.mark.parametrize("form", [None, "torch", "numpy", "pandas", "transform"])
def test_prompts_by_a_column_whatever_the_dataset_s_format(form):
    data = in_format(form, tiny_models.prompts(6).map(lambda row: {"level": row["number"] % 3}))
    by_column = {"name": "by_column", "args": {"column": "level", "order": "hard_first"}}
    args = SimpleNamespace(prompt_selection=by_column, seed=0)
    stream = selection.SAMPLERS["by_column"].make(data, args, column="level", order="hard_first")
    assert [row % 3 for row in stream.take(6, lambda row: True)] == [2, 2, 1, 1, 0, 0]


@pytest.mark.parametrize("value", [["a"], {"of": 1}, datetime(2000, 1, 1), b"a"])
def test_a_value_that_cannot_be_a_key_is_refused_in_any_row(tmp_path, value):
    data = Dataset.from_dict({"prompt": ["1=", "2="], "level": [None, value]})
    config = GRPOPlusConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **BELIEF, belief_key="level")
    words = f"belief_key='level' holds {type(value).__name__} values, which are no keys: {value!r}. A key is a text"
    with pytest.raises(ValueError, match=re.escape(words)):
        BeliefStore(config, data, ["digits"], [1.0])


def test_levels_without_an_order_are_refused_by_their_column(tmp_path):
    data = Dataset.from_dict({"prompt": ["1=", "2="], "level": [1, None]}).with_format("torch")
    by_column = {"name": "by_column", "args": {"column": "level", "order": "easy_first"}}
    with pytest.raises(ValueError, match="prompt_selection: column='level': the level of row 1 is None, and must be"):
        selection.check_column(data, SimpleNamespace(prompt_selection=by_column, seed=0))


@pytest.mark.parametrize(
    ("weights", "variance"), [([3.0, 0.0], 9 / 4), ([3.0, 2.0], 9 / 4 + 4 / 4), ([3.0, -2.0], 9 / 4 + 4 / 4)]
)
def test_the_believed_variance_is_that_of_a_weighted_sum_of_rewards(tmp_path, weights, variance):
    memory = remembering(tmp_path, ["first", "second"], weights, multi_objective_aggregation="normalize_then_sum")
    # Nothing is known, so each reward's variance is 1/4.
    assert memory.candidate_beliefs([0, 3])[0].variance.tolist() == [pytest.approx(variance)] * 2


def test_without_a_choice_beliefs_are_about_the_total(tmp_path):
    """Without a choice of prompts `filter_metric` only decides on groups, so beliefs are about the total alone."""
    options = {"prompt_selection": "shuffle", "zero_variance_groups": "keep", "filter_metric": "second"}
    memory = remembering(tmp_path, ["first", "second"], [1.0, 1.0], **options)
    for _ in range(9):
        memory.observe([0], torch.tensor([[0.2, 0.6]] * 2).unsqueeze(0))
    assert set(memory.state_dict()["beliefs"]) == {"total"}
    assert memory.believed_quantity == "total"
    assert memory.candidate_beliefs([0])[0].mean.item() == pytest.approx(0.8, abs=0.02)
    choosing = remembering(tmp_path, ["first", "second"], [1.0, 1.0], filter_metric="second")
    assert set(choosing.state_dict()["beliefs"]) == {"total", "second, else total"}


def test_a_head_without_skill_changes_no_belief(tmp_path):
    """Beliefs equal those without a head, before the head has learnt anything and if its states are noise."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(600, 4, generator=generator)
    with_head = remembering(tmp_path, states=lambda rows: noise[rows], belief_head="prompt")
    without = remembering(tmp_path)
    for first in range(0, 80, 8):
        rows = [*range(first, first + 8)]
        for memory in (with_head, without):
            (belief,) = memory.credited([590, 591, 0])
            assert belief.count[:2].tolist() == [2.0, 2.0]
        rewards = torch.rand(8, 2, 1, generator=generator).round()
        for memory in (with_head, without):
            memory.observe(rows, rewards)
        assert with_head.metrics()["beliefs/head_skill"] == 0
    head, plain = (memory.credited([590, 591, 0])[0] for memory in (with_head, without))
    assert torch.equal(head.mean, plain.mean)


# -- rows of a batch need an index


class OwnLoader(GRPOPlusTrainer):
    """A user's subclass with another dataloader than the trainer's."""

    def get_train_dataloader(self):
        return GRPOTrainer.get_train_dataloader(self)


def test_rows_that_do_not_say_their_index_are_refused(tmp_path):
    made = tiny_models.trainer(tmp_path, cls=OwnLoader, **PAIRS, **BELIEF)
    with pytest.raises(
        ValueError, match=r"='belief' remembers rows by their index .* come from another dataloader than the trainer's"
    ):
        made.train()


# -- resuming: beliefs go on if they are about the same rows and rewards


LEVELS = tiny_models.prompts(600).map(lambda row: {"level": row["number"] % 3, "kind": row["number"] % 3})
SHUFFLED = LEVELS.shuffle(seed=1)


def remembering(tmp_path, names=("digits",), weights=(1.0,), data=LEVELS, states=None, **options):
    options = {**CHOICE, "belief_key": "level", "report_to": "none", **options}
    return BeliefStore(
        GRPOPlusConfig(str(tmp_path), use_cpu=True, bf16=False, **options), data, names, weights, states
    )


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"names": ["length"]}, "about rewards={'digits': 1.0}, this run has rewards={'length': 1.0}."),
        ({"weights": [-1.0]}, "about rewards={'digits': 1.0}, this run has rewards={'digits': -1.0}."),
        ({"names": ["digits", "length"], "weights": [1, 1]}, "this run has rewards={'digits': 1.0, 'length': 1.0}."),
        ({"solved_reward": 2.0}, "about solved_reward=1.0, this run has solved_reward=2.0."),
        ({"failed_reward": -1.0}, "about failed_reward=0.0, this run has failed_reward=-1.0."),
        ({"belief_key": "kind"}, "about belief_key='level', this run has belief_key='kind'."),
        ({"data": SHUFFLED}, "the same rows in another order: of 256 rows that were compared 25"),
        (
            {"data": LEVELS.map(lambda row: {"level": (row["level"] + 1) % 3})},
            "256 rows that were compared 256 differ",
        ),
        ({"data": LEVELS.select([*range(599), 7])}, "256 rows that were compared 1 differ, first row 599."),
    ],
)
def test_beliefs_about_other_rows_rewards_or_options_are_refused_with_remedies(tmp_path, now, words):
    state = remembering(tmp_path).state_dict()
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        remembering(tmp_path, **now).load_state_dict(state)
    assert "Resume with the same dataset, rewards and options; or start a new run" in str(refused.value)
    assert "or remove the checkpoint's grpo_plus_state_*.pt files" in str(refused.value)


@pytest.mark.parametrize(
    "now",
    [
        {"names": ["monitor", "digits"], "weights": [0.0, 1.0]},
        {"data": LEVELS.with_format("torch")},
        {"data": Dataset.from_list(LEVELS.to_list())},
        {"data": LEVELS.map(lambda row: {"other": row["number"]}).shuffle(seed=2).sort("number")},
        {"data": LEVELS.with_transform(lambda rows: {**rows, "prompt": ["?"] * len(rows["prompt"])})},
    ],
    ids=["a monitor more", "another format", "made again", "sorted again", "a transform"],
)
def test_beliefs_go_on_with_the_same_rows_and_rewards(tmp_path, now):
    """The rows are the same, although the datasets were made differently and their fingerprints differ."""
    memory, resumed = remembering(tmp_path), remembering(tmp_path, **now)
    memory.observe([0, 1], torch.tensor([[1.0, 1.0], [0.0, 0.0]]).unsqueeze(-1))
    resumed.load_state_dict(memory.state_dict())
    assert torch.equal(resumed.credited([0, 1, 5])[0].mean, memory.credited([0, 1, 5])[0].mean)


@pytest.mark.parametrize("dealt", [[0, 1, 2], [0, 1, 2, 2]])
def test_a_users_own_sampler_must_fill_the_batch(tmp_path, dealt):
    (tmp_path / "own.py").write_text(OWN.replace("self.at += count", f"return {dealt}"))
    made = tiny_models.trainer(tmp_path, **PAIRS, prompt_selection=f"{tmp_path / 'own.py'}:Backwards")
    with pytest.raises(ValueError, match=r"dealt the rows \[0, 1, 2.*[Aa] batch needs (4 )?distinct rows"):
        made.train()


@pytest.mark.parametrize(("weights", "expected"), [([3.0, 0.0], 1.5), ([3.0, 2.0], 2.5)])
def test_candidates_are_compared_by_the_total_if_each_reward_has_a_belief(tmp_path, weights, expected):
    options = {**BELIEF, "multi_objective_aggregation": "normalize_then_sum", "report_to": "none"}
    config = GRPOPlusConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **options)
    memory = BeliefStore(config, tiny_models.prompts(4), ["first", "second"], weights)
    assert memory.believed_quantity == "total"
    # Nothing is known, so the mean is half of what the rewards can give.
    assert memory.candidate_beliefs([0, 3])[0].mean.tolist() == [expected] * 2


NAN = float("nan")


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_the_total_is_remembered_where_the_metric_does_not_apply(tmp_path, aggregation):
    """Only `first` scores rows 0 to 9, and only `second` scores rows 10 to 19. Prompts are chosen by `first`."""
    options = {"filter_metric": "first", "multi_objective_aggregation": aggregation}
    memory = remembering(
        tmp_path, ["first", "second"], [1.0, 1.0], tiny_models.prompts(30), **options, belief_key=None
    )
    rows = list(range(20))
    for _ in range(12):
        rewards = torch.full((20, 2, 2), NAN)
        rewards[:5, :, 0], rewards[5:10, :, 0] = 1.0, 0.0
        rewards[10:15, :, 1], rewards[15:, :, 1] = 1.0, 0.0
        memory.observe(rows, rewards)
    belief, skill = memory.candidate_beliefs([0, 5, 10, 15])
    assert belief.count.min() > 10  # attempts that are not forgotten, and the prior's
    assert belief.mean.round(decimals=1).tolist() == [1, 0, 1, 0]
    assert skill > 0.5
    assert memory.believed_quantity == "first"  # the name in the traces
    assert memory.metrics()["beliefs/never_tried"] == pytest.approx(10 / 30)
    if aggregation == "normalize_then_sum":  # advantages still use each reward's own belief
        first, second = memory.credited([0, 10])
        assert first.count.tolist() == [pytest.approx(second.count[1].item()), pytest.approx(2.0)]
        assert second.count[0] == pytest.approx(2.0)


def test_the_metric_counts_if_it_applies_to_some_attempts(tmp_path):
    memory = remembering(tmp_path, ["first", "second"], [1.0, 1.0], filter_metric="first")
    for _ in range(12):
        memory.observe([0], torch.tensor([[[0.0, 1.0], [NAN, 1.0]]]))
    assert memory.candidate_beliefs([0])[0].mean.item() == pytest.approx(0.0, abs=0.1)
