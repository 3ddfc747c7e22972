"""Tests of `attach` on TRL's AsyncGRPOTrainer, with TRL's worker in its own process; see `async_runs`."""

import asyncio
import inspect
import queue
from types import SimpleNamespace

import async_runs
import numpy as np
import pytest
import tiny_models
import torch
from transformers import TrainerCallback
from trl.experimental.async_grpo import async_rollout_worker
from trl.experimental.async_grpo.async_rollout_worker import RolloutGroup, RolloutSample, TrainingSequence

import trl_grpo_plus
from trl_grpo_plus.traces import reader
from trl_grpo_plus.trainer.attach import asynchronous
from trl_grpo_plus.utils.validation import ConfigError, RunError


pytestmark = pytest.mark.long
runs = pytest.mark.skipif(not async_runs.RUNS, reason="this TRL has another attention, for which there is no stand-in")


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def rows_of(folder):
    return [row for group in reader.groups(str(folder / "run"), "train") for row in group]


class Killing(TrainerCallback):
    """Kills the process that samples, at the end of step 2. A few rows are in the queue then."""

    def __init__(self, worker):
        self.worker = worker

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            self.worker._process.kill()


# -- whole runs


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    with async_runs.trainer(tmp_path_factory.mktemp("alone")) as trainer:
        trainer.train()
        return SimpleNamespace(weights=weights(trainer), losses=tiny_models.losses(trainer))


@runs
@pytest.mark.full
def test_training_is_the_same_bit_for_bit_and_every_attempt_is_in_the_traces(tmp_path, alone):
    with async_runs.trainer(tmp_path) as trainer:
        before = weights(trainer)
        trl_grpo_plus.attach(trainer)
        trainer.train()
    assert not torch.equal(weights(trainer), before)
    assert torch.equal(weights(trainer), alone.weights)
    assert tiny_models.losses(trainer) == alone.losses
    assert 0.0 in alone.losses  # a step on dead groups alone
    rows = rows_of(tmp_path)
    assert {row["step"] for row in rows} == {1, 2, 3}
    assert len(rows) >= 3 * 8
    for place, row in enumerate(rows):
        number = place // 4
        assert row["prompt"][0]["content"] == f"{number:02d}+1="
        assert row["reference"] == {"number": number, "answer": "-1"}
        expected = float(number % 3 == 0 and int(row["completion"][0]["content"][-1]) % 2)
        assert row["rewards"] == {"live_for_thirds": expected}
        assert row["verdict"] == ("all_bad" if number % 3 else "alive")
        assert row["advantage"] == pytest.approx((expected - 0.5) / 0.5 if number % 3 == 0 else 0.0, abs=1e-6)
        assert (row["tokens"], row["truncated"], row["kept"]) == (5, False, True)
    about = reader.about(str(tmp_path / "run"))
    assert about["rewards"] == {"live_for_thirds": 1.0}
    assert reader.journal(str(tmp_path / "run"), "metrics")
    assert [one["step"] for one in reader.journal(str(tmp_path / "run"), "first_prompt")] == [1]


@runs
@pytest.mark.full
def test_a_run_whose_worker_is_killed_ends(tmp_path):
    """TRL's trainer alone would wait for ever for an answer from the dead process."""
    with async_runs.trainer(tmp_path, heartbeat_stale_after_s=2.0) as trainer:
        trl_grpo_plus.attach(trainer, trace_every=2)
        trainer.add_callback(Killing(trainer.rollout_worker))
        with pytest.raises(RuntimeError, match="heartbeat stale"):
            trainer.train()
    assert {row["step"] for row in rows_of(tmp_path)} - {3} == {1}  # rows of step 3 may be in the queue


@runs
@pytest.mark.full
def test_resample_trains_on_live_groups_alone(tmp_path):
    rewards = [async_runs.live_for_thirds, trl_grpo_plus.get_reward("math_answer")]  # it has a worker of its own
    with async_runs.trainer(tmp_path, rewards) as trainer:
        trl_grpo_plus.attach(trainer, zero_variance_groups="resample")
        trainer.train()
    assert len(tiny_models.losses(trainer)) == 3
    assert all(tiny_models.losses(trainer))
    rows = rows_of(tmp_path)
    assert {row["rewards"]["math_answer"] for row in rows} == {0.0}
    assert {row["verdict"] for row in rows if row["kept"]} == {"alive"}
    assert {row["reason"] for row in rows if not row["kept"]} == {"zero_variance"}
    shares = tiny_models.logged(trainer, "groups/alive")
    assert 0.2 < sum(shares) / len(shares) < 0.5
    assert sum(tiny_models.logged(trainer, "groups/trained")) == sum(row["kept"] for row in rows) / 4


@runs
@pytest.mark.full
def test_the_attempts_are_on_disk_when_the_worker_fails(tmp_path):
    with async_runs.trainer(tmp_path, async_runs.fails_at_twenty) as trainer:
        trl_grpo_plus.attach(trainer, zero_variance_groups="resample")
        with pytest.raises(RuntimeError) as failed:
            trainer.train()
    assert "ZeroDivisionError: prompt 20" in str(failed.value.__cause__)
    rows = rows_of(tmp_path)
    assert {row["reference"]["number"] for row in rows} == {*range(20)}
    assert {row["reason"] for row in rows} == {"zero_variance"}


# -- TRL's seam


def test_trl_has_what_is_wrapped():
    loop = async_rollout_worker._AsyncRolloutLoop
    assert [*inspect.signature(loop._score_group).parameters] == ["self", "group"]
    assert async_rollout_worker.AsyncRolloutWorker._loop_cls is loop
    own = inspect.getsource(async_rollout_worker.AsyncRolloutWorker)
    assert all(f"self.{name} = " in own for name in ("_loop_kwargs", "_process", "_failed_event"))


# -- the wrapper in the child, and the queue


def group(number, trained=(True, True)):
    """Return a group of one attempt for each entry of `trained`, which says whether the policy wrote a token."""
    size = len(trained)
    row = TrainingSequence([3, 4, 5, 1], [0, 0, 1, 1], [0.0] * 4, 0)
    return RolloutGroup(
        prompts=[[{"role": "user", "content": "1+1="}]] * size,
        reward_kwargs={"number": [number] * size},
        completions=[[{"role": "assistant", "content": str(i)}] for i in range(size)],
        completions_ids=[[5, 1] if own else [] for own in trained],
        completions_sequences=[[row] if own else [] for own in trained],
        tool_call_counts=[0] * size,
        tool_failure_counts=[0] * size,
        model_version=0,
        group_id=number,
        env_rewards=[],
        rollout_rewards=[],
    )


class Loop:
    """A loop that scores a group with the given rewards, as TRL's does."""

    reward_func_names, eos_token_ids, tokenizer = ["digits"], [1], SimpleNamespace(pad_token_id=0)

    def __init__(self, rewards):
        self.rewards = rewards

    async def _score_group(self, group):
        return [
            RolloutSample(
                prompt=group.prompts[i],
                completion=group.completions[i],
                input_ids=np.array(one.input_ids),
                completion_mask=np.array(one.completion_mask),
                old_log_probs=np.array(one.old_log_probs),
                advantage=reward,
                model_version=0,
                group_id=group.group_id,
                metrics={"rewards/digits": reward},
            )
            for i, (reward, sequences) in enumerate(zip(self.rewards, group.completions_sequences, strict=True))
            for one in sequences
        ]


JUDGING = asynchronous.Judging("total", 1e-6, 1.0, 0.0)


def scored(rewards, resamples=True, of=None):
    loop = asynchronous.watched_loop(Loop, JUDGING, resamples, rewards=rewards)
    return asyncio.run(loop._score_group(of or group(3)))


def test_the_first_row_has_the_groups_record():
    first, second = scored([1.0, 0.0])
    assert first.group.verdict == "alive"
    assert first.group.rewards == [[1.0], [0.0]]
    assert [attempt.inputs for attempt in first.group.attempts] == [{"number": 3}] * 2
    assert first.group.attempts[0].prompt_ids == [3, 4]
    assert not hasattr(second, "group")


def test_a_dead_group_sends_one_row_that_the_trainer_does_not_see():
    (row,) = scored([1.0, 1.0])
    assert (row.group.verdict, row.group.left_out) == ("all_good", True)
    rows, seen = queue.Queue(), []
    watched = asynchronous.WatchedQueue(rows, lambda row, group: seen.append(group.verdict))
    for one in (row, *scored([0.0, 1.0])):
        rows.put(one)
    assert watched.qsize() == 3
    taken = [watched.get(timeout=1), watched.get(timeout=1)]
    assert seen == ["all_good", "alive"]
    assert [one.advantage for one in taken] == [0.0, 1.0]
    with pytest.raises(queue.Empty):
        watched.get(timeout=0.01)


def test_kept_dead_groups_send_all_rows():
    assert [row.advantage for row in scored([1.0, 1.0], resamples=False)] == [1.0, 1.0]


def test_an_attempt_without_a_token_of_the_policy_has_no_row():
    (first,) = scored([0.0, 1.0], resamples=False, of=group(0, trained=(False, True)))
    assert [attempt.num_tokens for attempt in first.group.attempts] == [0, 2]
    assert first.group.rewards[1] == [1.0]
    assert np.isnan(first.group.rewards[0][0])
    assert scored([0.0, 1.0], of=group(0, trained=(False, False))) == []


def test_dead_groups_without_end_stop_the_worker(monkeypatch, caplog):
    monkeypatch.setattr(asynchronous, "DEAD_IN_A_ROW", 3)
    monkeypatch.setattr(asynchronous, "_WARN_EVERY", 2)
    loop = asynchronous.watched_loop(Loop, JUDGING, True, rewards=[0.0, 0.0])
    for _ in range(2):
        asyncio.run(loop._score_group(group(0)))
    assert "The last 2 groups were dead." in caplog.text
    with pytest.raises(RunError, match="3 groups in a row were dead, the last one all_bad"):
        asyncio.run(loop._score_group(group(0)))


# -- what is refused


@runs
def test_what_cannot_work_is_refused(tmp_path):
    with async_runs.trainer(tmp_path) as trainer:
        with pytest.raises(ConfigError, match="zero_variance_groups='drop' is not one of 'keep', 'resample'"):
            trl_grpo_plus.attach(trainer, zero_variance_groups="drop")
        with pytest.raises(ConfigError, match="filter_metric='accuracy' is neither"):
            trl_grpo_plus.attach(trainer, filter_metric="accuracy")
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'trace_evry'\. Did you mean trace_every"):
            trl_grpo_plus.attach(trainer, trace_evry=1)
        trl_grpo_plus.attach(trainer)
        with pytest.raises(TypeError, match="attached already"):
            trl_grpo_plus.attach(trainer)
    with async_runs.trainer(tmp_path) as trainer:
        trainer.rollout_worker, worker = SimpleNamespace(rollout_buffer=None), trainer.rollout_worker
        with pytest.raises(TypeError, match="rollout_worker is a SimpleNamespace"):
            trl_grpo_plus.attach(trainer)
        trainer.rollout_worker = worker
    twice = [async_runs.fails_at_twenty] * 2
    with (
        async_runs.trainer(tmp_path, twice) as trainer,
        pytest.raises(ConfigError, match="named fails_at_twenty, fails_at_twenty"),
    ):
        trl_grpo_plus.attach(trainer)
