"""Tests of the messages about a reward that fails: they show its own lines, and come once."""

import asyncio
import functools
import inspect
import math
import re
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_models
from datasets import Dataset
from trl import GRPOTrainer

from trl_grpo_plus.scoring import AnnotatedScore, RewardError, Scoring
from trl_grpo_plus.utils.signatures import taking_all


FILE = str(Path(__file__).parents[1] / "helpers" / "user_rewards.py")


def adds(completions, **columns):
    return [completion + 1 for completion in completions]


def strips(completions, **columns):
    return [float(len(completion.strip())) for completion in completions]


def searches(completions, **columns):
    return [float(bool(re.search("a", completion))) for completion in completions]


def warned(caplog):
    return [record.message for record in caplog.records if record.message.startswith("reward ")]


@pytest.mark.parametrize(("policy", "scored"), [("zero", "scores 0"), ("abstain", "has no score")])
def test_the_first_tolerated_failure_gives_one_warning(tmp_path, caplog, policy, scored):
    rewards = [tiny_models.digits, {"name": adds, "label": "mine", "on_error": policy}]
    tiny_models.trained(tmp_path, rewards)
    (said,) = warned(caplog)
    assert said.startswith("reward 'mine': 8 of 8 samples ended with status 'error': TypeError: can only concatenate")
    assert f"Such a sample {scored}." in said
    assert "rewards/mine/error logs their share. To stop the run at the first failure, with the whole" in said
    assert "message, set on_error" in said


def test_each_kind_of_failure_in_workers_gives_a_warning(tmp_path, caplog):
    entry = {"name": f"{FILE}:hangs_or_dies", "timeout": 1.0, "on_error": "abstain", "on_timeout": "zero"}
    tiny_models.trained(
        tmp_path, [tiny_models.digits, entry], max_steps=1, data=tiny_models.prompts(30).select([0, 1])
    )
    kinds = {said.partition("status ")[2].partition(":")[0] for said in warned(caplog)}
    assert kinds == {"'error'", "'timeout'"}


@pytest.mark.parametrize(("fails", "told", "by_trl"), [((0, 29), 1, 0), ((29,), 1, 3), ((), 0, 3)])
def test_trls_warning_of_no_score_comes_only_if_no_failure_explains_it(tmp_path, caplog, fails, told, by_trl):
    """The first failure's warning says that a failed sample has no score. TRL's warning comes with each batch."""
    failed = AnnotatedScore(math.nan, "error", "KeyError: 'mine'")

    def mine(completions, number, **columns):
        return [failed if n in fails else None for n in number]

    data = tiny_models.prompts(30).select([0, 29])  # each batch holds both prompts
    tiny_models.trained(tmp_path, {"name": mine, "on_error": "abstain"}, data=data)
    assert len(warned(caplog)) == told
    assert caplog.text.count("All reward functions returned None") == by_trl


def test_a_reward_that_works_gives_no_warning(tmp_path, caplog):
    tiny_models.trained(tmp_path, [tiny_models.digits, {"name": tiny_models.digits, "label": "mine"}])
    assert warned(caplog) == []


def raised(folder, reward, does="train", **options):
    """Return the text of a run's error, and what Python prints of it from the call of `train` on."""
    trainer = tiny_models.trainer(folder, reward, **options)
    with pytest.raises(RewardError) as caught:
        getattr(trainer, does)()
    return str(caught.value), "".join(traceback.format_exception(caught.value))


LINE = adds.__code__.co_firstlineno + 1


@pytest.mark.parametrize("does", ["train", "evaluate"])
def test_an_error_is_printed_with_the_users_frames_and_in_one_line(tmp_path, does):
    said, printed = raised(tmp_path, adds, does, extra={"eval_dataset": tiny_models.prompts(8)})
    what = 'TypeError: can only concatenate str (not "int") to str'
    assert said == f"reward 'adds' failed (test_failures.py:{LINE}): {what}"
    assert printed.count(what) == 2
    assert printed.count("in adds") == 1
    files = [Path(path).name for path in re.findall(r'File "(.*)", line', printed)]
    assert files == ["test_failures.py"] * (files.count("test_failures.py") - 1) + [
        "test_failures.py",
        "grpo_plus_trainer.py",
    ]
    assert len(printed.splitlines()) < 24


class Environment:
    """An environment whose reward fails."""

    def get_reward(self):
        """Raise an error."""
        raise ConnectionError("the server is gone")


def failure_of(environment):
    """Return the failure of an environment's reward, which a function of TRL's trainer calls."""
    calls = {"__name__": GRPOTrainer.__module__}
    exec("def get_reward(environments, **more):\n    return [one.get_reward() for one in environments]", calls)
    scoring = Scoring([calls["get_reward"]], ["environment"])
    scoring.functions[0](completions=["1"], environments=[environment])
    return scoring.failures[0]


def test_an_environments_error_names_the_environments_line_and_not_trls():
    line = Environment.get_reward.__code__.co_firstlineno + 2
    said = f"reward 'environment' failed (test_failures.py:{line}): ConnectionError: the server is gone"
    assert failure_of(Environment()) == said
    assert failure_of(object()).startswith("reward 'environment' failed (<string>:2): AttributeError: ")


def test_an_environments_wrong_reward_is_no_matter_of_options():
    wordy = SimpleNamespace(get_reward=lambda: "good")
    said = failure_of(wordy)
    assert "must be a finite number or None, got 'good'" in said
    assert said.endswith("get_reward. Let it return a number, or None for an attempt that it does not score.")
    assert "on_error" not in said


@pytest.mark.parametrize("timeout", [None, 9.0])
def test_a_reward_with_an_entry_names_the_sample_and_has_no_frames_of_the_package(tmp_path, timeout):
    rows = tiny_models.prompts(30).select([2, 3])
    said, printed = raised(tmp_path, {"name": f"{FILE}:fails_on_one", "label": "mine", "timeout": timeout}, data=rows)
    assert re.match(r"reward 'mine' failed on sample \d of 8\.", said)
    assert "Its completion is" in said
    assert "set on_error of the reward to 'zero' or 'abstain'" in said
    assert printed.count("KeyError: 'a bug in the reward'") == 1
    assert printed.count("in fails_on_one") == 1
    assert not re.search(r"trl_grpo_plus/scoring/|/signatures\.py|/transformers/|/trl/", printed)


@pytest.mark.parametrize("entry", [False, True])
@pytest.mark.parametrize(
    ("value", "words"),
    [([1.0], "it returned 1 rewards for 8 completions"), (None, "got NoneType"), (1.0, "got float")],
)
def test_a_wrong_return_is_one_sentence(tmp_path, entry, value, words):
    def mine(completions, **columns):
        return value

    said, printed = raised(tmp_path, {"name": mine, "on_error": "raise"} if entry else mine)
    first = said.splitlines()[0]
    assert words.lower() in first.lower()
    assert "Traceback" not in said
    assert printed.count("Traceback") == 1


@pytest.mark.parametrize("entry", [False, True])
@pytest.mark.parametrize("reward", [strips, searches])
def test_the_error_of_a_text_reward_on_messages_explains_messages(tmp_path, reward, entry):
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": "1"}]] * 8})
    extra = {"processing_class": tiny_models.chat_tokenizer()}
    chosen = {"name": reward, "on_error": "raise"} if entry else reward
    said, _ = raised(tmp_path, chosen, data=data, extra=extra)
    assert "Completions are lists of messages here: the text of one is completion[-1]['content']." in said


def test_another_error_is_not_blamed_on_messages(tmp_path):
    def looks_up(completions, **columns):
        return [completion.nothing for completion in completions]

    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": "1"}]] * 8})
    said, _ = raised(tmp_path, looks_up, data=data, extra={"processing_class": tiny_models.chat_tokenizer()})
    assert "lists of messages" not in said


@pytest.mark.parametrize("function", ["plain", "slow", "partial"])
def test_stock_trl_may_be_given_a_reward_without_keywords_of_its_own(function):
    """A race gives stock TRL the rewards of the recipe. TRL passes each of them all values."""

    def plain(completions, number):
        return [float(value) for value in number]

    async def slow(completions, number):
        return plain(completions, number)

    wrapped = taking_all({"plain": plain, "slow": slow, "partial": functools.partial(plain)}[function])
    name = "slow" if function == "slow" else "plain"
    assert (wrapped.__name__, inspect.iscoroutinefunction(wrapped)) == (name, function == "slow")
    given = {"prompts": ["a"], "completions": ["b"], "completion_ids": [[1]], "number": [3], "trainer_state": None}
    scored = wrapped(**given)
    assert (asyncio.run(scored) if function == "slow" else scored) == [3.0]
