"""Rewards in the trainer: names and options, outcomes that are logged, monitors, and failures that stop the run."""

import time
from pathlib import Path

import pytest
import tiny
import user_rewards

from trl_grpo_plus.reward import RewardError


FILE = Path(__file__).with_name("user_rewards.py")
HANGS = {"name": f"{FILE}:hangs_on_one", "timeout": 1.0}
# TRL shuffles: with all prompts in one batch, prompt 3 is in it.
ALL = {"per_device_train_batch_size": 24, "max_steps": 2}


def data(**columns):
    made = tiny.prompts(6)
    for name, value in columns.items():
        made = made.add_column(name, [value] * len(made))
    return made


def train(folder, rewards, **options):
    trained = tiny.trainer(folder, rewards, **{"data": data(), **ALL, **options})
    trained.train()
    return trained


def test_a_registered_reward_and_a_users_own_that_hangs_on_one_sample(tmp_path):
    rewards = [{"name": "countdown", "weight": 2}, HANGS, tiny.digits]
    start = time.monotonic()
    trained = train(tmp_path, rewards, data=data(numbers=[1, 2], target=3))
    assert time.monotonic() - start < 60  # it hangs for 600 s
    assert trained.state.global_step == 2
    assert trained.reward_weights.tolist() == [2.0, 1.0, 1.0]
    # 4 of 24 samples are of the prompt that hangs.
    assert tiny.logged(trained, "rewards/hangs_on_one/timeout") == [pytest.approx(4 / 24)] * 2
    assert tiny.logged(trained, "rewards/hangs_on_one/error") == [0.0] * 2
    assert tiny.logged(trained, "rewards/hangs_on_one/abstain") == [0.0] * 2
    assert tiny.logged(trained, "rewards/countdown/error") == [0.0] * 2
    assert not tiny.logged(trained, "rewards/digits/error")  # TRL's own kind, TRL's own metrics


def test_one_more_set_of_options_leaves_the_callers_config_alone(tmp_path):
    made = tiny.trainer(tmp_path, [{"name": "exact_answer", "weight": 3}], data=data(answer="1"))
    assert made.args.reward_weights == [3.0]
    config = made.args
    config.reward_weights = None
    again = type(made)(
        model=tiny.model_path(tmp_path),
        reward_funcs=[{"name": "exact_answer", "weight": 5}],
        args=config,
        train_dataset=data(answer="1"),
        processing_class=tiny.tokenizer(),
    )
    assert (config.reward_weights, again.args.reward_weights) == (None, [5.0])


def test_a_monitor_is_logged_and_changes_nothing(tmp_path):
    alone = train(tmp_path, [tiny.digits])
    watched = train(tmp_path, [tiny.digits, {"name": f"{FILE}:plain", "monitor": True, "label": "length"}])
    assert tiny.same_weights(tiny.weights(alone), tiny.weights(watched))
    assert tiny.logged(watched, "reward") == tiny.logged(alone, "reward")
    assert all(value > 1 for value in tiny.logged(watched, "rewards/length/mean"))


def scores_even(completions, number, **kwargs):
    """Digits' share for even prompts, nothing for odd ones."""
    return [None if n % 2 else share for n, share in zip(number, tiny.digits(completions), strict=True)]


@pytest.mark.parametrize("mode", ["drop", "resample"])
def test_what_only_a_monitor_scores_is_not_scored(tmp_path, mode):
    rewards = [scores_even, {"name": f"{FILE}:plain", "monitor": True}]
    options = {"zero_variance_groups": mode, "per_device_train_batch_size": 16, "max_steps": 3}
    trained = train(tmp_path, rewards, data=tiny.prompts(30), **options)
    unscored = tiny.logged(trained, "groups/unscored")
    assert sum(unscored) > 0
    alone = train(tmp_path, [scores_even], data=tiny.prompts(30), **options)
    assert unscored == tiny.logged(alone, "groups/unscored")
    assert tiny.same_weights(tiny.weights(alone), tiny.weights(trained))


def test_outcomes_of_resampled_rounds_are_counted_together(tmp_path):
    """Under resample a reward scores several rounds a step; the rate is over all that were sampled."""
    seen: dict[int, list[bool]] = {}

    def dead_for_most(completions, number, answer, trainer_state, **kwargs):
        seen.setdefault(trainer_state.global_step, []).extend(value is None for value in answer)
        return tiny.dead_for_most(completions, number)

    trained = train(
        tmp_path,
        [dead_for_most, {"name": "exact_answer", "monitor": True}],
        data=tiny.prompts(30).map(lambda row: {"answer": "1" if row["number"] % 4 else None}),
        zero_variance_groups="resample",
        per_device_train_batch_size=8,
        max_steps=4,
    )
    assert max(len(rows) for rows in seen.values()) > 8  # more than one round
    rates = [sum(rows) / len(rows) for _, rows in sorted(seen.items())]
    assert tiny.logged(trained, "rewards/exact_answer/abstain") == pytest.approx(rates)
    assert len(set(rates)) > 1


def test_evaluation_logs_outcomes_too(tmp_path):
    trained = tiny.trainer(
        tmp_path,
        [tiny.digits, {"name": "exact_answer", "monitor": True}],
        data=data(answer="1"),
        extra={"eval_dataset": data(answer="1")},
        per_device_eval_batch_size=8,
    )
    metrics = trained.evaluate()
    assert metrics["eval_rewards/exact_answer/error"] == 0.0
    assert metrics["eval_rewards/exact_answer/mean"] >= 0.0


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_an_error_stops_the_run_with_its_reason(tmp_path, timeout):
    entry = {"name": f"{FILE}:fails_on_one", "label": "mine", **({"timeout": timeout} if timeout else {})}
    with pytest.raises(RewardError, match="reward 'mine' failed on sample") as caught:
        train(tmp_path, [entry])
    assert "KeyError: 'a bug in the reward'" in str(caught.value)


def test_a_plain_functions_error_is_there_to_be_read(tmp_path):
    with pytest.raises(RewardError, match="reward 'fails_on_one' failed") as caught:
        train(tmp_path, [user_rewards.fails_on_one])
    assert "KeyError: 'a bug in the reward'" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_what_the_machine_starved_and_what_took_too_long_are_logged(tmp_path):
    trained = train(tmp_path, [tiny.digits, {"name": f"{FILE}:says_more", "timeout": 20.0}])
    assert tiny.logged(trained, "rewards/says_more/starved") == [pytest.approx(4 / 24)] * 2
    assert tiny.logged(trained, "rewards/says_more/too_long") == [pytest.approx(20 / 24)] * 2
    assert tiny.logged(trained, "rewards/says_more/error") == [0.0] * 2
    assert tiny.logged(trained, "rewards/says_more/mean") == [0.25] * 2


@pytest.mark.parametrize(("policy", "mean"), [("zero", 0.0), ("abstain", None)])
def test_an_error_may_be_gone_on_with(tmp_path, policy, mean):
    entry = {"name": f"{FILE}:fails_on_one", "on_error": policy}
    trained = train(tmp_path, [tiny.digits, entry])
    assert tiny.logged(trained, "rewards/fails_on_one/error") == [1.0, 1.0]
    assert tiny.logged(trained, "rewards/fails_on_one/mean") == [mean, mean]


def test_functions_that_are_trls_to_run_still_are(tmp_path):
    trained = train(tmp_path, [user_rewards.asynchronous])
    same = train(tmp_path, [tiny.digits])
    assert tiny.same_weights(tiny.weights(trained), tiny.weights(same))
    assert tiny.logged(trained, "rewards/asynchronous/mean") == tiny.logged(same, "rewards/digits/mean")


async def fails_asynchronously(completions, **kwargs):
    """A bug."""
    raise KeyError("an awaited bug")


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (fails_asynchronously, "KeyError: 'an awaited bug'"),
        (user_rewards.wrong_length, "it returned 1 rewards for 24 completions"),
    ],
)
def test_every_kind_of_failure_is_kept_for_all_ranks(tmp_path, reward, words):
    with pytest.raises(RewardError, match=words):
        train(tmp_path, [reward])


def test_a_missing_column_is_said_before_the_model_is_loaded(tmp_path):
    with pytest.raises(ValueError, match="train_dataset: reward 'countdown' needs the column 'numbers'"):
        tiny.trainer(tmp_path, ["countdown"], data=data())
    with pytest.raises(ValueError, match="eval_dataset second: reward 'hangs_on_one' needs the column 'number'"):
        tiny.trainer(
            tmp_path,
            [user_rewards.hangs_on_one],
            data=data(),
            extra={"eval_dataset": {"first": data(), "second": data().remove_columns("number")}},
        )


def test_columns_that_a_rollout_brings_are_not_missing(tmp_path):
    def rollout(prompts, trainer):
        made = tiny.scripted(prompts, trainer)
        return {**made, "brought": [float(len(ids)) for ids in made["completion_ids"]]}

    def length(completions, brought, **kwargs):
        return brought

    trained = train(tmp_path, [length], extra={"rollout_func": rollout})
    assert all(value > 1 for value in tiny.logged(trained, "reward"))


def test_the_size_of_the_pool_is_an_option(tmp_path):
    from trl_grpo_plus import workers

    tiny.trainer(tmp_path, [tiny.digits], reward_workers=3, reward_worker_memory_mb=700)
    assert (workers.shared().size, workers.shared().memory_mb) == (3, 700)
    tiny.trainer(tmp_path, [tiny.digits])
    assert workers.shared().size == workers.default_size()
