"""Tests of groups whose tokens are all masked: they are dead, whatever their rewards."""

import pytest
import tiny_models
import torch
from trl import GRPOTrainer

from trl_grpo_plus.traces import reader as traces


MASKED = {**tiny_models.EXACT, "mask_truncated_completions": True, "per_device_train_batch_size": 16}
MASKED["data"] = tiny_models.prompts(40)


def cut_off(prompts, trainer):
    """Sample as `tiny_models.scripted`, with some attempts cut off at the limit.

    Of each four prompts in a row, these are all attempts at the third and the first two attempts at the fourth.
    """
    sampled = tiny_models.scripted(prompts, trainer)
    first_row = trainer.accelerator.process_index * len(prompts)
    for i, (prompt, ids) in enumerate(zip(prompts, sampled["completion_ids"], strict=True)):
        attempt = (first_row + i) % trainer.num_generations
        if int(prompt[:2]) % 4 == 2 or (int(prompt[:2]) % 4 == 3 and attempt < 2):
            del ids[-1]  # the end-of-sequence token
    return sampled


def outside(prompts, trainer):
    """Sample as `tiny_models.scripted`, with no token written by the policy at prompts with an even number."""
    sampled = tiny_models.scripted(prompts, trainer)
    pairs = zip(prompts, sampled["completion_ids"], strict=True)
    return {**sampled, "env_mask": [[int(prompt[:2]) % 2] * len(ids) for prompt, ids in pairs]}


def begun(prompts, trainer):
    """Sample as `tiny_models.scripted`. The environment wrote the first two tokens at prompts with an even number."""
    sampled = tiny_models.scripted(prompts, trainer)
    pairs = zip(prompts, sampled["completion_ids"], strict=True)
    return {**sampled, "env_mask": [[int(prompt[:2]) % 2] * 2 + [1] * (len(ids) - 2) for prompt, ids in pairs]}


def differing(completions, **kwargs):
    """Give each attempt of a group of four another reward."""
    return [0.1 * (i % 4) for i in range(len(completions))]


def train(tmp_path, rollout=cut_off, reward=differing, **options):
    return tiny_models.trained(tmp_path, reward, **{**MASKED, **options, "extra": {"rollout_func": rollout}})


def groups(trained, *names):
    return {name: tiny_models.logged(trained, f"groups/{name}")[0] for name in names}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return train(tmp_path_factory.mktemp("kept"))


def test_a_masked_group_has_the_verdict_truncated(kept):
    assert groups(kept, "alive", "truncated", "tied") == {"alive": 0.75, "truncated": 0.25, "tied": 0.0}
    rows = [row for group in traces.groups(kept.args.output_dir) for row in group]
    traced = {(row["reference"]["number"] % 4 == 2, row["verdict"], row["kept"], row["reason"]) for row in rows}
    assert traced == {(True, "truncated", False, "truncated"), (False, "alive", True, None)}
    assert tiny_models.logged(kept, "groups/trained") == [3, 3]


def test_masked_groups_do_not_change_trls_share_of_equal_rewards(kept, tmp_path):
    theirs = train(tmp_path, cls=GRPOTrainer)
    assert (
        tiny_models.logged(kept, "frac_reward_zero_std")
        == tiny_models.logged(theirs, "frac_reward_zero_std")
        == [0.0, 0.0]
    )
    tiny_models.assert_same(kept, theirs)


@pytest.mark.parametrize(
    ("options", "verdicts"),
    [
        ({"mask_truncated_completions": False}, {"alive": 1.0, "truncated": 0.0, "tied": 0.0}),
        # `truncated` comes before `tied`.
        ({"reward": tiny_models.always_dead}, {"alive": 0.0, "truncated": 0.25, "tied": 0.75}),
    ],
)
def test_the_verdict_truncated_needs_the_mask_and_ignores_rewards(tmp_path, options, verdicts):
    assert groups(train(tmp_path, max_steps=1, **options), *verdicts) == verdicts


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_a_masked_group_is_dropped(tmp_path, loss_type):
    """The losses equal those of the other groups alone."""
    dropped = train(tmp_path, zero_variance_groups="drop", loss_type=loss_type)
    assert groups(dropped, "truncated", "trained") == {"truncated": 0.25, "trained": 3}
    rows = [row for group in traces.groups(tmp_path / "run") for row in group]
    assert {(row["kept"], row["reason"]) for row in rows if row["verdict"] == "truncated"} == {(False, "truncated")}
    data = tiny_models.prompts(40).filter(lambda row: row["number"] % 4 != 2)
    alone = train(tmp_path, cls=GRPOTrainer, loss_type=loss_type, data=data, per_device_train_batch_size=12)
    assert tiny_models.losses(dropped) == pytest.approx(tiny_models.losses(alone), rel=1e-5, abs=2e-6)


def test_a_masked_group_is_replaced(tmp_path):
    trained = train(tmp_path, zero_variance_groups="resample", max_resample_rounds=5)
    assert sum(tiny_models.logged(trained, "groups/truncated")) > 0
    assert tiny_models.logged(trained, "groups/trained") == [4, 4]
    assert all(rounds > 0 for rounds in tiny_models.logged(trained, "groups/rounds"))


def test_a_group_without_tokens_of_the_policy_is_truncated(tmp_path):
    trained = train(tmp_path, outside, zero_variance_groups="drop", mask_truncated_completions=False)
    assert groups(trained, "alive", "truncated", "trained") == {"alive": 0.5, "truncated": 0.5, "trained": 2}


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
@pytest.mark.parametrize("rollout", [cut_off, outside, begun])
def test_skip_counts_the_tokens_that_trl_counts(tmp_path, rollout, loss_type):
    """TRL counts neither tokens of truncated attempts nor those that the policy did not write."""

    def first_half_dead(completions, number, **kwargs):
        return [0.3 if n % 4 < 2 else 0.1 * (i % 4) for i, n in enumerate(number)]

    options = {"rollout": rollout, "reward": first_half_dead, "loss_type": loss_type}
    theirs = train(tmp_path, **options, cls=GRPOTrainer)
    ours = train(tmp_path, **options, zero_variance_groups="skip")
    assert 0 < groups(ours, "trained")["trained"] < 4
    expected = tiny_models.weights(theirs)
    for name, value in tiny_models.weights(ours).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=2e-6)


SPREADS = [{"scale_rewards": "batch"}, {"multi_objective_aggregation": "normalize_then_sum"}]


@pytest.mark.parametrize("options", SPREADS, ids=str)
def test_skip_counts_masked_groups_in_the_spread_of_the_batch(tmp_path, options):
    """A masked group leaves the batch although its rewards differ, and TRL divides by the std of all groups."""
    options = {**options, "max_steps": 1, "loss_type": "grpo"}
    ours = train(tmp_path, zero_variance_groups="skip", **options)
    theirs = train(tmp_path, cls=GRPOTrainer, **options)
    assert tiny_models.losses(ours) == pytest.approx(tiny_models.losses(theirs), abs=1e-6)
    for name, value in tiny_models.weights(theirs).items():
        torch.testing.assert_close(tiny_models.weights(ours)[name], value, rtol=1e-5, atol=1e-6)


def test_groups_of_an_evaluation_have_verdicts_too(kept, tmp_path):
    extra = {"rollout_func": cut_off, "eval_dataset": tiny_models.prompts(4)}
    options = {"mask_truncated_completions": True, "per_device_eval_batch_size": 8, "extra": extra}
    tiny_models.trainer(tmp_path, differing, **options).evaluate()
    verdicts = [group[0]["verdict"] for group in traces.groups(tmp_path / "run")]
    assert sorted(verdicts) == ["alive"] * 3 + ["truncated"]


@pytest.mark.parametrize("mode", ["keep", "drop"])
def test_micro_batches_without_a_token_in_the_loss_do_not_lower_the_entropy(tmp_path, mode):
    """TRL logs an entropy of 0 for such a micro-batch. The policy stands still, so its size changes nothing else."""
    alike = {"zero_variance_groups": mode, "max_steps": 2, "learning_rate": 0.0, "alarms": False}
    whole = train(tmp_path / "whole", **alike)
    split = train(tmp_path / "split", **alike, per_device_train_batch_size=2, gradient_accumulation_steps=8)
    assert whole._entropy == pytest.approx(split._entropy, rel=1e-5)
    logged = [tiny_models.logged(run, "entropy") for run in (whole, split)]
    if mode == "drop":  # a mean over micro-batches, which have unequal numbers of tokens
        assert logged[0] == pytest.approx(logged[1], rel=0.02)
    else:  # as TRL logs it
        assert logged[1] < [0.9 * value for value in logged[0]]
