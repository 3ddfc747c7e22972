"""Tests of rewards in the trainer: names and options, logged outcomes, monitors, and failures that stop the run."""

import asyncio
import functools
import inspect
from pathlib import Path

import pytest
import tiny_models
import torch
import user_rewards
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForSequenceClassification

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.registry import RewardSpec, get_reward, resolve
from trl_grpo_plus.rewards.combine import gate
from trl_grpo_plus.scoring import RewardError, Scoring, Step, check_columns
from trl_grpo_plus.traces import groups


FILE = Path(__file__).parents[1] / "helpers" / "user_rewards.py"
HANGS = {"name": f"{FILE}:hangs_on_one", "timeout": 1.0}
# TRL shuffles the prompts. A batch of all prompts surely holds prompt 3.
ALL = {"per_device_train_batch_size": 24, "max_steps": 2}


def data(**columns):
    made = tiny_models.prompts(6)
    for name, value in columns.items():
        made = made.add_column(name, [value] * len(made))
    return made


def train(folder, rewards, **options):
    trained = tiny_models.trainer(folder, rewards, **{"data": data(), **ALL, **options})
    trained.train()
    return trained


def test_a_registered_reward_and_a_users_own_that_hangs_on_one_sample(tmp_path):
    rewards = [{"name": "countdown", "weight": 2}, HANGS, tiny_models.digits]
    trained = train(tmp_path, rewards, data=data(numbers=[1, 2], target=3))
    assert trained.state.global_step == 2
    assert trained.reward_weights.tolist() == [2.0, 1.0, 1.0]
    # The reward hangs for 600 s on one prompt, which has 4 of the 24 samples. test_worker_pool.py measures the time.
    assert tiny_models.logged(trained, "rewards/hangs_on_one/timeout") == [pytest.approx(4 / 24)] * 2
    for key in ("hangs_on_one/error", "hangs_on_one/abstain", "countdown/error"):
        assert tiny_models.logged(trained, f"rewards/{key}") == [0.0] * 2
    assert not tiny_models.logged(trained, "rewards/digits/error")  # a plain function has TRL's metrics alone


def test_one_more_set_of_options_leaves_the_callers_config_alone(tmp_path):
    made = tiny_models.trainer(tmp_path, [{"name": "exact_answer", "weight": 3}], data=data(answer="1"))
    assert made.args.reward_weights == [3.0]
    config = made.args
    config.reward_weights = None
    rewards = [{"name": "exact_answer", "weight": 5}]
    options = {"args": config, "train_dataset": data(answer="1"), "processing_class": tiny_models.tokenizer()}
    again = type(made)(model=tiny_models.model_path(tmp_path), reward_funcs=rewards, **options)
    assert (config.reward_weights, again.args.reward_weights) == (None, [5.0])


def test_a_monitor_is_logged_and_changes_nothing(tmp_path):
    alone = train(tmp_path, [tiny_models.digits])
    watched = train(tmp_path, [tiny_models.digits, {"name": f"{FILE}:plain", "monitor": True, "label": "length"}])
    assert tiny_models.same_weights(tiny_models.weights(alone), tiny_models.weights(watched))
    assert tiny_models.logged(watched, "reward") == tiny_models.logged(alone, "reward")
    assert all(value > 1 for value in tiny_models.logged(watched, "rewards/length/mean"))


def scores_even(completions, number, **kwargs):
    """Reward even prompts with the share of digits, and odd ones with None."""
    return [None if n % 2 else share for n, share in zip(number, tiny_models.digits(completions), strict=True)]


@pytest.mark.parametrize("mode", ["drop", "resample"])
def test_attempts_that_only_a_monitor_scores_are_unscored(tmp_path, mode):
    rewards = [scores_even, {"name": f"{FILE}:plain", "monitor": True}]
    options = {"zero_variance_groups": mode, "per_device_train_batch_size": 16, "max_steps": 3}
    trained = train(tmp_path, rewards, data=tiny_models.prompts(30), **options)
    unscored = tiny_models.logged(trained, "groups/unscored")
    assert sum(unscored) > 0
    alone = train(tmp_path, [scores_even], data=tiny_models.prompts(30), **options)
    assert unscored == tiny_models.logged(alone, "groups/unscored")
    assert tiny_models.same_weights(tiny_models.weights(alone), tiny_models.weights(trained))


def test_outcomes_of_resampled_rounds_are_counted_together(tmp_path):
    """With resample a reward scores several rounds per step. The logged rate is over all sampled attempts."""
    seen: dict[int, list[bool]] = {}

    def dead_for_most(completions, number, answer, trainer_state, **kwargs):
        seen.setdefault(trainer_state.global_step, []).extend(value is None for value in answer)
        return tiny_models.dead_for_most(completions, number)

    trained = train(
        tmp_path,
        [dead_for_most, {"name": "exact_answer", "monitor": True}],
        data=tiny_models.prompts(30).map(lambda row: {"answer": "1" if row["number"] % 4 else None}),
        zero_variance_groups="resample",
        per_device_train_batch_size=8,
        max_steps=4,
    )
    assert max(len(rows) for rows in seen.values()) > 8  # more than one round
    rates = [sum(rows) / len(rows) for _, rows in sorted(seen.items())]
    assert tiny_models.logged(trained, "rewards/exact_answer/abstain") == pytest.approx(rates)
    assert len(set(rates)) > 1


def test_evaluation_logs_outcomes_too(tmp_path):
    trained = tiny_models.trainer(
        tmp_path,
        [tiny_models.digits, {"name": "exact_answer", "monitor": True}],
        data=data(answer="1"),
        extra={"eval_dataset": data(answer="1")},
        per_device_eval_batch_size=8,
    )
    metrics = trained.evaluate()
    assert metrics["eval_rewards/exact_answer/error"] == 0.0
    assert metrics["eval_rewards/exact_answer/mean"] >= 0.0


MINE = {"name": f"{FILE}:fails_on_one", "label": "mine"}
A_BUG = r"failed on sample[\s\S]*KeyError: 'a bug in the reward'"


async def fails_asynchronously(completions, **kwargs):
    """Fail when awaited."""
    raise KeyError("an awaited bug")


@pytest.mark.parametrize(
    ("entry", "words", "cause"),
    [
        (MINE, f"reward 'mine' {A_BUG}", type(None)),
        ({**MINE, "timeout": 5.0}, f"reward 'mine' {A_BUG}", type(None)),
        (user_rewards.fails_on_one, r"'fails_on_one' failed[\s\S]*KeyError: 'a bug in the reward'", KeyError),
        (fails_asynchronously, "KeyError: 'an awaited bug'", KeyError),
        (user_rewards.wrong_length, "it returned 1 rewards for 24 completions", type(None)),
    ],
)
def test_an_error_stops_the_run_with_its_reason(tmp_path, entry, words, cause):
    with pytest.raises(RewardError, match=words) as caught:
        train(tmp_path, [entry])
    assert isinstance(caught.value.__cause__, cause)


def test_a_streamed_row_that_cannot_be_scored_stops_the_run_whatever_on_error_is(tmp_path):
    rows = data(answer="The eggs cost $18.\n#### 18").to_iterable_dataset()
    trainer = tiny_models.trainer(tmp_path, ["math_answer"], data=rows, max_steps=1)
    with pytest.raises(RewardError, match=r"'math_answer' cannot score sample 0 of .*the reward gsm8k_answer takes"):
        trainer.train()


def test_starved_and_too_long_outcomes_are_logged(tmp_path):
    trained = train(tmp_path, [tiny_models.digits, {"name": f"{FILE}:says_more", "timeout": 20.0}])
    assert tiny_models.logged(trained, "rewards/says_more/starved") == [pytest.approx(4 / 24)] * 2
    assert tiny_models.logged(trained, "rewards/says_more/too_long") == [pytest.approx(20 / 24)] * 2
    assert tiny_models.logged(trained, "rewards/says_more/error") == [0.0] * 2
    assert tiny_models.logged(trained, "rewards/says_more/mean") == [0.25] * 2


def test_a_worker_gets_a_rows_tensors_on_the_cpu():
    class OnAGPU:
        """Stands for a tensor on a GPU, which a worker process cannot restore."""

        def cpu(self):
            return "7"

    reward = RewardSpec.of({"name": f"{FILE}:equals_nested", "timeout": 20.0}).build()
    assert reward(completions=["7", "8"], number=[[{"at": [OnAGPU()]}]] * 2) == [1.0, 0.0]


def test_the_outcome_of_a_combinations_part_is_logged_traced_and_raises_the_alarm(tmp_path):
    hangs = RewardSpec.of({**HANGS, "on_timeout": "zero"}).build()
    trained = train(tmp_path, [gate(tiny_models.digits, by=hangs, name="gated")], alarm_thresholds={"min_batches": 2})
    assert tiny_models.logged(trained, "rewards/gated/timeout") == [pytest.approx(4 / 24)] * 2
    assert tiny_models.logged(trained, "rewards/gated/error") == [0.0] * 2
    assert tiny_models.logged(trained, "alarms/reward_failures")[-1] == 1.0
    rows = [row for group in groups(trained.args.output_dir) for row in group]
    assert {row["outcomes"]["gated"] for row in rows if row["reference"]["number"] == 3} == {"timeout"}
    assert {row["outcomes"]["gated"] for row in rows if row["reference"]["number"] != 3} == {"ok"}


@pytest.mark.parametrize(("policy", "mean"), [("zero", 0.0), ("abstain", None)])
def test_on_error_lets_the_run_go_on(tmp_path, policy, mean):
    entry = {"name": f"{FILE}:fails_on_one", "on_error": policy}
    trained = train(tmp_path, [tiny_models.digits, entry])
    assert tiny_models.logged(trained, "rewards/fails_on_one/error") == [1.0, 1.0]
    assert tiny_models.logged(trained, "rewards/fails_on_one/mean") == [mean, mean]


def test_async_functions_are_still_run_by_trl(tmp_path):
    trained = train(tmp_path, [user_rewards.asynchronous])
    same = train(tmp_path, [tiny_models.digits])
    assert tiny_models.same_weights(tiny_models.weights(trained), tiny_models.weights(same))
    assert tiny_models.logged(trained, "rewards/asynchronous/mean") == tiny_models.logged(same, "rewards/digits/mean")


# -- every kind of reward is checked


def score(entry, **columns):
    """Return the scores that TRL gets for completions "1", "a" and "22", and the failures that must stop the run."""
    (reward,), _ = resolve([entry])
    scoring = Scoring([reward], ["mine"])
    batch = {"prompts": ["p"] * 3, "completions": ["1", "a", "22"], "completion_ids": [[1]] * 3, **columns}
    result = scoring.functions[0](**batch)
    return (asyncio.run(result) if inspect.iscoroutine(result) else result), scoring.failures


async def says_asynchronously(completions, scores, **kwargs):
    return scores


def says(completions, scores, **kwargs):
    return scores


KINDS = {
    "plain": says,
    "async": says_asynchronously,
    "object": type("Says", (), {"__call__": lambda self, completions, scores, **kwargs: scores})(),
    "partial": functools.partial(says),
    "registered": {"name": f"{FILE}:odd_values", "args": {"column": "scores"}, "label": "mine"},
    "in workers": {"name": f"{FILE}:odd_values", "args": {"column": "scores"}, "label": "mine", "timeout": 30.0},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bad", "words"),
    [(float("inf"), "got inf"), (1e39, "got 1e+39"), ("0.5", "got '0.5'"), ([0.5], "got [0.5]"), ({}, "got {}")],
)
def test_a_score_that_is_no_finite_number_or_none_is_a_failure(kind, bad, words):
    _, failures = score(KINDS[kind], scores=[1.0, bad, 0.5])
    assert len(failures) == 1
    parts = ["reward 'mine' failed on sample 1 of 3", "a finite number or None", words, "completion is 'a'", "'zero'"]
    assert [words for words in parts if words not in failures[0]] == [], failures[0]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_none_pass(kind):
    values, failures = score(KINDS[kind], scores=[True, None, float("nan")])
    assert failures == []
    assert values == [1.0, None, None]


def test_on_error_applies_to_an_invalid_score():
    for policy, instead in (("zero", 0.0), ("abstain", None)):
        entry = {"name": says, "label": "mine", "on_error": policy}
        assert score(entry, scores=[1.0, float("inf"), 0.5]) == ([1.0, instead, 0.5], [])


@pytest.mark.parametrize("scores", [[1, 2, 3], torch.tensor([[1.0], [2.0], [3.0]]), torch.arange(1.0, 4.0)])
def test_a_tensor_of_scores_is_a_list_of_them(scores):
    assert score(lambda completions, **kwargs: scores) == ([1.0, 2.0, 3.0], [])


@pytest.mark.parametrize("scores", [{1: 2, 3: 4, 5: 6}, {1.0, 2.0, 3.0}, b"abc", "abc", 1.0, None], ids=repr)
@pytest.mark.parametrize("entry", [says, {"name": says, "label": "mine"}], ids=["plain", "registered"])
def test_a_result_that_is_no_list_of_scores_is_refused(scores, entry):
    def mine(completions, **kwargs):
        return scores

    _, failures = score(mine if entry is says else {**entry, "name": mine})
    assert "reward 'mine' failed" in failures[0]
    assert "one reward for each completion" in failures[0]


def leaves(completions, **kwargs):
    """Try to end the process."""
    raise SystemExit(3)


async def leaves_asynchronously(completions, **kwargs):
    raise SystemExit(3)


async def is_cancelled(completions, **kwargs):
    """Fail as if a client's own task was cancelled."""
    raise asyncio.CancelledError("by the client")


@pytest.mark.parametrize("entry", [leaves, leaves_asynchronously, is_cancelled, {"name": leaves, "label": "mine"}])
def test_a_reward_cannot_end_the_run_without_a_word(entry):
    _, failures = score(entry)
    assert "reward 'mine' failed" in failures[0]
    assert "SystemExit: 3" in failures[0] or "CancelledError: by the client" in failures[0]


def test_ctrl_c_in_a_reward_is_the_users():
    def interrupted(completions, **kwargs):
        raise KeyboardInterrupt

    for entry in [interrupted, {"name": interrupted, "label": "mine"}]:
        with pytest.raises(KeyboardInterrupt):
            score(entry)


@pytest.mark.parametrize("mode", ["keep", "drop"])
def test_an_infinite_reward_leaves_the_weights_alone(tmp_path, mode):
    def infinite_once(completions, number, **kwargs):
        return [
            float("inf") if n == 3 else share for n, share in zip(number, tiny_models.digits(completions), strict=True)
        ]

    options = {**ALL, "zero_variance_groups": mode, "scale_rewards": "none"}
    trained = tiny_models.trainer(tmp_path, infinite_once, data=data(), **options)
    before = tiny_models.weights(trained)
    with pytest.raises(RewardError, match=r"reward 'infinite_once' failed on sample \d+ of 24.*got inf"):
        trained.train()
    assert tiny_models.same_weights(tiny_models.weights(trained), before)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_reward_model_that_overflows_is_named(tmp_path, value):
    shape = tiny_models.trainer(tmp_path, tiny_models.digits, data=data(), **ALL).model.config.to_dict()
    model = Qwen2ForSequenceClassification(Qwen2Config(**{**shape, "id2label": {0: "score"}}))
    model.config._name_or_path = "somewhere/judge"
    model.score = torch.nn.Linear(16, 1)
    extra = {"reward_processing_classes": [None, tiny_models.tokenizer()]}
    watched = train(tmp_path, [tiny_models.digits, model], extra=extra)
    assert tiny_models.logged(watched, "rewards/judge/mean")
    torch.nn.init.constant_(model.score.bias, value)
    with pytest.raises(RewardError, match=rf"reward model 'judge' gave {value} for sample 0 of 24"):
        train(tmp_path, [tiny_models.digits, model], extra=extra)


# -- arguments that a plain function's signature names


def narrow(completions, number):
    """Reward the share of digits, with only the arguments that the signature names."""
    assert len(completions) == len(number)
    return tiny_models.digits(completions)


async def narrow_async(number, completions, trainer_state, missing=None):
    assert (missing, trainer_state.global_step >= 0) == (None, True)
    return narrow(completions, number)


class Narrow:
    def __call__(self, completions, /, *, number):
        return narrow(completions, number)

    def method(self, number, completions):
        return narrow(completions, number)


class NarrowAsync:
    async def __call__(self, completions, number):
        return narrow(completions, number)


NARROW = {
    "function": narrow,
    "async": narrow_async,
    "object": Narrow(),
    "async object": NarrowAsync(),
    "method": Narrow().method,
    "lambda": lambda completions: tiny_models.digits(completions),
    "partial": functools.partial(lambda scale, completions: tiny_models.digits(completions), 1.0),
    "positional-only": lambda prompts, completions, missing=3, /: (
        tiny_models.digits(completions) if missing == 3 else None
    ),
    "*": lambda completions, *more, number: tiny_models.digits(completions),
    "positional-only and **": lambda completions, /, **rest: (
        tiny_models.digits(completions) if rest["prompts"] else None
    ),
    "** alone": lambda *every, **columns: (
        tiny_models.digits(columns["completions"]) if columns["trainer_state"] else None
    ),
    "by its path": f"{Path(__file__)}:narrow",
    "by its path, with options": {"name": f"{Path(__file__)}:narrow", "on_error": "zero", "label": "same"},
}


def test_functions_need_no_double_star(tmp_path):
    """All these functions score as `tiny_models.digits` does. TRL's own trainer runs only functions that take all."""
    trained = train(tmp_path, list(NARROW.values()))
    means = [key for key in trained.state.log_history[0] if key.startswith("rewards/") and key.endswith("/mean")]
    assert trained.state.global_step == 2
    assert len({tuple(tiny_models.logged(trained, key)) for key in means}) == 1
    assert tiny_models.logged(trained, "reward") == pytest.approx(
        [len(NARROW) * share for share in tiny_models.logged(trained, "rewards/narrow/mean")], rel=1e-5
    )


def decorated(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(kwargs["completions"]) if kwargs["trainer_state"] else None

    return call


@decorated
def behind_a_decorator(completions):
    """Reward the share of digits. The decorator's function takes all arguments, so it gets all, as in TRL."""
    return tiny_models.digits(completions)


def test_a_function_that_takes_all_gets_all(tmp_path):
    trained = train(tmp_path, [behind_a_decorator])
    assert trained.state.global_step == 2


def of_completion(completion, number):
    """Take `completion`, a mistake for `completions`."""
    return [0.0] * len(completion)


def by_rate(completions, *, rate):
    """A reward whose argument a script must give."""


def of_prompt(completions, prompt, **kwargs):
    """Take `prompt`, though TRL gives `prompts`."""
    return [0.0] * len(completions)


def of_numbers(completions, *, numbers, **kwargs):
    """Take `numbers`, a mistake for the column `number`."""
    return [0.0] * len(completions)


def test_only_a_reward_that_names_the_tool_mask_gets_it():
    """TRL gives it to none, so a function with `**kwargs` must not meet it, and a column of that name is the row's."""
    got = []

    def naming(completions, tool_mask):
        got.append(tool_mask)
        return [0.0, 0.0]

    async def async_naming(completions, tool_mask=None, **columns):
        return naming(completions, tool_mask)

    def taking_all(completions, **columns):
        return naming(completions, columns)

    masks, columns = [[1, 0], [1]], {"completions": ["a", "b"], "number": [1, 2]}
    plain, slow, whole = Scoring([naming, async_naming, taking_all], ["a", "b", "c"], tool_masks=masks).functions
    plain(**columns)
    asyncio.run(slow(**columns))
    whole(**columns)
    whole(**columns, tool_mask=["own"] * 2)
    assert got == [masks, masks, {"number": [1, 2]}, {"number": [1, 2], "tool_mask": ["own"] * 2}]


@pytest.mark.parametrize(
    ("reward", "column", "words"),
    [
        (of_completion, "number", "reward 'of_completion' needs the column 'completion'.*Did you mean completions"),
        (
            of_prompt,
            "number",
            "reward 'of_prompt' reads the column 'prompt', which TRL does not pass.*argument 'prompts'",
        ),
        (of_numbers, "number", "reward 'of_numbers' needs the column 'numbers'.*Did you mean number"),
        (
            by_rate,
            "number",
            "reward 'by_rate' needs .*If it is an argument, give the reward as .*'args': {'rate': VALUE}",
        ),
        (functools.partial(of_numbers), "number", "reward 'of_numbers' needs the column 'numbers'"),
        (Narrow().method, "count", "reward 'method' needs the column 'number'"),
        (NarrowAsync(), "count", "reward 'NarrowAsync' needs the column 'number'"),
        (
            {"name": of_prompt, "on_error": "zero"},
            "number",
            "reads the column 'prompt', which TRL does not pass.*argument 'prompts'",
        ),
    ],
)
def test_an_argument_that_nobody_gives_is_named_before_the_model_is_loaded(tmp_path, reward, column, words):
    config = GRPOPlusConfig(**{**tiny_models.BASE, "output_dir": str(tmp_path)})
    rows = Dataset.from_dict({"prompt": ["01+01="] * 6, column: [1] * 6})
    with pytest.raises(ValueError, match=f"train_dataset: .*{words}"):
        GRPOPlusTrainer(model="no/such-model", reward_funcs=[reward], args=config, train_dataset=rows)


@pytest.mark.parametrize(
    "options", [{"label": "mine"}, {"label": "mine", "timeout": 30.0}], ids=["here", "in workers"]
)
def test_a_registered_reward_need_not_read_the_text(options):
    assert score({"name": f"{FILE}:by_tokens", **options}) == ([1.0, 1.0, 1.0], [])


def test_a_decorator_may_bring_an_argument(tmp_path):
    @functools.wraps(of_numbers)
    def brings(completions, **kwargs):
        return of_numbers(completions, numbers=[1])

    train(tmp_path, [tiny_models.digits, brings])


def test_a_missing_column_is_named_before_the_model_is_loaded(tmp_path):
    with pytest.raises(ValueError, match="train_dataset: reward 'countdown' needs the column 'numbers'"):
        tiny_models.trainer(tmp_path, ["countdown"], data=data())
    extra = {"eval_dataset": {"first": data(), "second": data().remove_columns("number")}}
    with pytest.raises(ValueError, match="eval_dataset second: reward 'hangs_on_one' needs the column 'number'"):
        tiny_models.trainer(tmp_path, [user_rewards.hangs_on_one], data=data(), extra=extra)


def test_columns_that_a_rollout_brings_are_not_missing(tmp_path):
    def rollout(prompts, trainer):
        made = tiny_models.scripted(prompts, trainer)
        return {**made, "brought": [float(len(ids)) for ids in made["completion_ids"]]}

    def length(completions, brought, **kwargs):
        return brought

    trained = train(tmp_path, [length], extra={"rollout_func": rollout})
    assert all(value > 1 for value in tiny_models.logged(trained, "reward"))


def test_the_size_of_the_pool_is_an_option(tmp_path):
    from trl_grpo_plus.scoring import worker_pool

    tiny_models.trainer(tmp_path, [tiny_models.digits], reward_workers=3, reward_worker_memory_mb=700)
    assert (worker_pool.shared().size, worker_pool.shared().memory_mb) == (3, 700)
    tiny_models.trainer(tmp_path, [tiny_models.digits])
    assert worker_pool.shared().size == worker_pool.default_size()


async def halves_asynchronously(completions, **kwargs):
    return user_rewards.by_halves(completions)


def test_steps_of_every_kind_of_reward_are_kept_and_trl_gets_their_sum():
    path = f"{FILE}:by_halves"
    plain, named, killable = resolve([path, {"name": path, "label": "b"}, {"name": path, "label": "c", "timeout": 9}])[
        0
    ]
    scoring = Scoring([plain, named, killable, halves_asynchronously, tiny_models.digits], list("abcde"))
    scores = [function(completions=["1234", ""], prompts=["", ""]) for function in scoring.functions]
    scores[3] = asyncio.run(scores[3])
    assert scores == [[1.5, 0.0]] * 4 + [[1.0, 0.0]]
    assert scoring.failures == []
    steps = [((Step(2, 1.0), Step(4, 0.5)),) * 4 + (None,), ((),) * 4 + (None,)]
    assert scoring.steps_of(2) == steps


def test_numpys_integers_are_integers():
    """As a dataset in NumPy's format has them."""
    rows = Dataset.from_dict({"answer": [4, 5]}).with_format("numpy")
    math = get_reward("math_answer")
    check_columns(math, rows, "train_dataset")
    assert math(completions=[r"\boxed{4}"] * 2, answer=[row["answer"] for row in rows]) == [1.0, 0.0]


def test_a_column_that_a_transform_makes_is_there(tmp_path):
    def with_hint(batch):
        return {**batch, "hint": [f"{number}" for number in batch["number"]]}

    def hinted(completions, hint):
        return [float(len(text)) for text in hint]

    trained = tiny_models.trained(
        tmp_path, hinted, data=tiny_models.prompts(30).with_transform(with_hint), max_steps=1
    )
    assert 1.0 <= tiny_models.logged(trained, "reward")[0] <= 2.0


@pytest.mark.parametrize("entry", [functools.partial(of_numbers), NarrowAsync()], ids=["partial", "object"])
def test_options_for_an_object_name_it_as_one(entry):
    with pytest.raises(ValueError, match=r"timeout applies to functions only, .* is an object\. .*call it in a"):
        RewardSpec(entry, timeout=1.0).build()


@pytest.mark.parametrize(
    "entry", [Narrow, {"name": Narrow, "timeout": 1.0}, {"name": f"{FILE}:Judge", "timeout": 1.0}]
)
def test_a_class_is_refused_also_where_columns_are_not_checked(tmp_path, entry):
    extra = {"rollout_func": tiny_models.scripted}
    with pytest.raises(ValueError, match=r"^reward_funcs: '.*' cannot score: it is a class, .*make an instance"):
        tiny_models.trainer(tmp_path, entry, extra=extra)


def test_a_registered_reward_may_read_a_column_that_a_transform_makes(tmp_path):
    data = tiny_models.prompts(6).with_transform(lambda batch: {**batch, "answer": [f"{n}" for n in batch["number"]]})
    trained = tiny_models.trained(tmp_path, "math_answer", data=data, **ALL)
    assert tiny_models.logged(trained, "rewards/math_answer/error") == [0.0, 0.0]


def test_a_transform_that_fails_is_named(tmp_path):
    def hinted(completions, hint):
        return [0.0] * len(completions)

    data = tiny_models.prompts(6).with_transform(lambda batch: {}["gone"])
    with pytest.raises(ValueError, match=r"^train_dataset: the transform of the dataset failed at its first row: Key"):
        tiny_models.trainer(tmp_path, hinted, data=data)
