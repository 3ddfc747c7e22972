"""Tests of rewards by name, by path and with options: found rewards, refusals, and their messages."""

import asyncio
import contextlib
import email.utils
import os
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Literal

import pytest
import trl.rewards
import user_rewards
from datasets import Dataset, IterableDataset
from user_rewards import judge, plain

from trl_grpo_plus import registry
from trl_grpo_plus.objective.baselines import baseline_of
from trl_grpo_plus.registry import (
    TRL_NAMES,
    Example,
    Reward,
    RewardError,
    RewardSpec,
    check_columns,
    get_reward,
    list_rewards,
    register_reward,
    resolve,
)
from trl_grpo_plus.rewards import LIBRARY
from trl_grpo_plus.utils import import_path
from trl_grpo_plus.utils.validation import ConfigError


FILE = Path(__file__).parents[1] / "helpers" / "user_rewards.py"


class Later:
    __name__ = "later"

    async def __call__(self, completions):
        return [0.0] * len(completions)


@contextlib.contextmanager
def refused(*words):
    with pytest.raises(ConfigError, match=re.escape(words[0])) as caught:
        yield
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


@pytest.fixture
def scratch(monkeypatch):
    """Let a test register rewards, which are forgotten after it."""
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))


# -- names


def test_the_library_and_what_was_registered_are_listed():
    assert {*LIBRARY, "user_judge", "user_pid"} <= set(list_rewards())
    assert list_rewards() == sorted(list_rewards())


def test_a_registered_reward_is_a_plain_reward_function():
    assert judge(["1", "2"], ["1", "1"]) == [1.0, 0.0]
    assert judge(completions=["1"], answer=["1"], prompts=["p"], completion_ids=[[1]], trainer_state=None) == [1.0]
    assert judge.__name__ == "user_judge"
    assert "Some completions make the judge hang" in judge.__doc__


def test_a_name_or_a_path():
    for name in ["user_judge", "user_rewards.judge", "user_rewards:judge", f"{FILE}:judge"]:
        assert get_reward(name, points=3.0)(completions=["1"], answer=["1"]) == [3.0]


def test_a_file_that_is_imported_twice_is_one_reward(tmp_path):
    assert registry.find(f"{FILE}:judge").function is judge.definition.function
    code = f"""
    import sys
    from trl_grpo_plus.registry import get_reward
    get_reward("{FILE}:judge")
    sys.path.insert(0, "{FILE.parent}")
    import user_rewards
    print(user_rewards.judge.__name__, get_reward("{FILE}:judge").__name__)
    """
    assert run(code, tmp_path).stdout == "user_judge user_judge\n"


def test_a_plain_function_by_its_path_takes_options():
    reward = get_reward(f"{FILE}:with_options", scale=5.0, column="solution")
    assert reward(completions=["a", "b"], solution=["a", "a"]) == [5.0, 0.0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("user_juge", ["no reward named 'user_juge'", "Did you mean user_judge", "countdown", "file.py:func"]),
        ("zzzz", ["there is no reward named 'zzzz'. There are"]),
        ("accuracy_reward", ["no reward named 'accuracy_reward'. It is TRL's: write trl.rewards.accuracy_reward."]),
        ("get_soft_overlong_punishment", ["It is TRL's: take overlong instead"]),
        (f"{FILE}:juge", ["has no function 'juge'", "Did you mean judge"]),
        (f"{FILE}:NOT_A_FUNCTION", ["has no function 'NOT_A_FUNCTION'"]),
        ("no_such_file.py:judge", [f"there is no file no_such_file.py. A relative path starts in {os.getcwd()}"]),
        ("test", ["there is no reward named 'test'. Did you mean tests"]),  # a folder here could hold a reward model
        ("no_such_package.rewards:judge", ["there is no module no_such_package"]),
    ],
)
def test_an_unknown_name(name, words):
    with refused(*words):
        get_reward(name)


@pytest.mark.parametrize("path", ["no_such_file.py:judge", "no_such_package.rewards:judge", "./reward_model"])
def test_a_path_in_a_current_folder_that_was_removed(tmp_path, monkeypatch, path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with refused(f" The current folder was removed: {tmp_path / 'gone'}. Start again in a folder that exists."):
        resolve([path])
    assert import_path.load("email.utils:quote") is email.utils.quote  # installed: it needs no folder


@pytest.mark.parametrize("path", ["train.py:mine", "train.mine", "__main__:mine"])
def test_a_script_that_names_its_own_function_by_a_path(tmp_path, path):
    """Loaded by the script's path, the whole script would run a second time, and train twice."""
    (tmp_path / "train.py").write_text(
        "import sys\n"
        "from trl_grpo_plus.utils.import_path import load\n"
        "def mine(): return 1\n"
        "load(sys.argv[1])\n"
        "print('trained')\n"
    )
    command = [sys.executable, "train.py", path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    if path.startswith("__main__"):
        assert done.stdout == "trained\n", done.stderr
    else:
        assert not done.stdout
        assert "names its own 'mine' by a path, so the whole script began to run a second time" in done.stderr
        assert "'__main__:mine'" in done.stderr


def test_a_script_with_a_guard_may_name_its_own_function_by_a_path(tmp_path):
    (tmp_path / "train.py").write_text(
        "from trl_grpo_plus.utils.import_path import load\n"
        "def mine(): return 1\n"
        "if __name__ == '__main__':\n"
        "    print(load('train.py:mine')())\n"
    )
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "1\n", done.stderr


def test_a_missing_folder_of_a_reward_model():
    with refused("there is no folder ./test with a reward model. Did you mean ./tests", f"starts in {os.getcwd()}."):
        resolve(["./test"])
    with refused("there is no folder /no/such with a reward model"):
        resolve(["/no/such"])


@pytest.mark.parametrize("name", [name for name, hint in TRL_NAMES.items() if "write" in hint])
def test_the_path_that_replaces_a_name_of_trls(name):
    path = TRL_NAMES[name].removeprefix("It is TRL's: write ").removesuffix(".")
    assert get_reward(path).definition.function is getattr(trl.rewards, name)


def test_one_name_for_two_functions_is_refused(scratch):
    register_reward("user_twice")(plain)
    register_reward("user_twice")(plain)  # allowed: the module may be imported again
    with refused("a reward named 'user_twice' exists already: user_rewards:plain"):
        register_reward("user_twice")(user_rewards.wrong_length)
    with refused("'countdown' exists already: trl_grpo_plus.rewards.countdown:countdown"):
        register_reward("countdown")(plain)


def install(folder, package, reward):
    """Write the metadata of a package whose entry point names a reward; the registry reads nothing else."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[trl_grpo_plus.rewards]\n{reward} = {package}:{reward}\n")


def test_another_package_adds_its_own(tmp_path):
    (tmp_path / "their_rewards.py").write_text("def theirs(completions):\n    return [0.5] * len(completions)\n")
    install(tmp_path, "their_rewards", "theirs")
    code = """
    from trl_grpo_plus.registry import get_reward, list_rewards
    assert "theirs" in list_rewards()
    print(get_reward("theirs")(completions=["a", "b"]))
    """
    done = run(code, tmp_path)
    assert done.stdout == "[0.5, 0.5]\n", done.stderr


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("clash", "first:clash and second:clash"),
        ("countdown", "first:countdown and second:countdown and trl_grpo_plus.rewards.countdown:countdown"),
    ],
)
def test_two_packages_with_one_name(tmp_path, name, paths):
    for package in ("first", "second"):
        install(tmp_path, package, name)
    code = f"""
    from trl_grpo_plus.registry import get_reward, list_rewards
    assert "{name}" in list_rewards()
    print(get_reward("exact_answer")(completions=["1"], answer=["1"]), flush=True)
    get_reward("{name}")
    """
    done = run(code, tmp_path)
    assert done.stdout == "[1.0]\n", done.stderr
    assert f"two packages register a reward '{name}': {paths}" in done.stderr


def run(code, folder):
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_names_and_workers_need_no_torch(tmp_path):
    """An import of torch takes seconds, in each process that scores."""
    code = "import sys, trl_grpo_plus.registry as r, trl_grpo_plus.scoring.worker_main; r.list_rewards()"
    assert run(f"{code}; print('torch' in sys.modules)", tmp_path).stdout == "False\n"


# -- arguments


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"point": 1.0}, ["has no argument 'point', it takes points", "Did you mean points"]),
        ({"colum": "gold"}, ["has no argument 'colum', it takes points, column, columns. Did you mean column"]),
        ({"answer": "x"}, ["has no argument 'answer'"]),
        ({"points": "2"}, ["points='2' must be a number"]),
        ({"points": True}, ["points=True must be a number"]),
        ({"columns": {"anser": "x"}}, ["reads no column 'anser'. It reads answer, hint", "Did you mean answer"]),
        ({"columns": ["answer"]}, ["columns must map names to names, got ['answer']"]),
    ],
)
def test_an_argument_that_is_refused(args, words):
    with refused(*words):
        get_reward("user_judge", **args)


def test_column_renames_the_one_column_and_columns_any(scratch):
    assert get_reward("user_judge", column="gold")(completions=["1"], gold=["1"]) == [1.0]
    assert get_reward("user_judge", columns={"answer": "gold"})(completions=["1"], gold=["1"], answer=["2"]) == [1.0]

    @register_reward("user_two")
    def two(completions, low, high):
        """Reward lengths between low and high."""
        return [float(lo <= len(c) <= hi) for c, lo, hi in zip(completions, low, high, strict=True)]

    assert get_reward("user_two", columns={"low": "a"})(completions=["xx"], a=[1], high=[3]) == [1.0]
    with refused("reads the columns low, high, so column does not say which one it renames. Use columns: {"):
        get_reward("user_two", column="a")


def test_a_missing_argument_and_one_that_the_reward_refuses(scratch):
    def even(*, size, **others):
        if not size:
            raise RuntimeError("there is no room")
        if size % 2:
            raise ValueError(f"size={size} is odd, use an even one")

    @register_reward("user_strict", check_args=even)
    def strict(completions, *, size: int, way: Literal["up", "down"] = "up"):
        """Reward the size."""
        return [float(size)] * len(completions)

    assert get_reward("user_strict", size=4)(completions=["a"]) == [4.0]
    with refused("reward 'user_strict' needs args: {size: ...}"):
        get_reward("user_strict")
    with refused("size=3 is odd, use an even one"):
        get_reward("user_strict", size=3)
    with refused("reward 'user_strict' cannot run here: there is no room"):
        get_reward("user_strict", size=0)
    with refused("way='left' must be one of 'up', 'down'"):
        get_reward("user_strict", size=4, way="left")


def test_expensive_checks_of_arguments_run_once(scratch):
    """The recipe resolves rewards before the model is loaded, and the trainer resolves the results again."""
    calls = []
    register_reward("user_dear", check_args=lambda **args: calls.append(args))(
        lambda completions: [0.0] * len(completions)
    )
    (reward,), _ = resolve(["user_dear"])
    (again,), _ = resolve([{"name": reward, "weight": 2}])
    assert again is reward
    assert calls == [{}]


def test_a_missing_library_is_named_before_the_run(scratch):
    register_reward("user_needy", preload=["json", "no_such.library"])(plain)
    with refused("needs no_such.library, which is not installed: pip install no_such."):
        get_reward("user_needy")


# -- calls


def test_a_row_without_the_column_is_not_scored():
    assert judge(completions=["1", "1", "2"], answer=["1", None, None]) == [1.0, None, None]
    assert get_reward("exact_answer")(completions=["1", "1"], answer=[None, "1"]) == [None, 1.0]


def test_an_optional_column_need_not_be_there_and_may_hold_none(scratch):
    @register_reward("user_hinted")
    def hinted(completions, answer, hint=None):
        """Reward 1.0 where there is a hint."""
        return [float(h is not None) for h in hint or [None] * len(answer)]

    assert hinted(completions=["a", "b"], answer=["a", "a"]) == [0.0, 0.0]
    assert hinted(completions=["a", "b"], answer=["a", "a"], hint=[None, "h"]) == [0.0, 1.0]


def test_a_column_that_is_not_given():
    with pytest.raises(TypeError, match=r"reward 'user_judge' needs the column 'answer'\. It got gold"):
        judge(completions=["1"], gold=["1"])


def test_an_argument_is_not_given_with_the_samples():
    with pytest.raises(
        TypeError, match=re.escape("Set it before the call, as in get_reward('user_judge', points=2.0)")
    ):
        judge(completions=["1"], answer=["1"], points=2.0)
    assert judge(completions=["1"], answer=["1"], points=["a column of the data"]) == [1.0]


@pytest.mark.parametrize("answers", [["1"], ["1", "1", "1"]])
def test_a_column_of_another_length(answers):
    with pytest.raises(ValueError, match=f"{len(answers)} values of answer for 2 completions"):
        judge(completions=["1", "1"], answer=answers)


def test_kwargs_are_every_column(scratch):
    @register_reward("user_all")
    def everything(completions, answer, **columns):
        """Reward the number of columns."""
        return [float(len(columns))] * len(completions)

    assert everything(completions=["a"], answer=["x"], other=["y"], third=[None], trainer_state=None) == [3.0]


def test_failures_raise_score_zero_or_abstain():
    texts, answers = ["1", "raise", "hang"], ["1"] * 3
    spec = {"name": "user_judge", "timeout": 0.5}
    zero = RewardSpec.of({**spec, "on_error": "zero", "on_timeout": "zero"}).build()
    assert zero(completions=texts, answer=answers) == [1.0, 0.0, 0.0]
    assert [o.status for o in zero.score(completions=texts, answer=answers)] == ["ok", "error", "timeout"]
    none = RewardSpec.of({**spec, "on_error": "abstain"}).build()
    assert none(completions=texts, answer=answers) == [1.0, None, None]
    with pytest.raises(RewardError, match="reward 'user_judge' failed on sample 1 of 3") as caught:
        RewardSpec.of(spec).build()(completions=texts, answer=answers)
    assert "KeyError: 'no such key'" in str(caught.value)
    assert "on_error" in str(caught.value)
    late = RewardSpec.of({**spec, "on_timeout": "raise"}).build()
    with pytest.raises(RewardError, match="ran out of time on sample 1 of 2"):
        late(completions=["1", "hang"], answer=["1", "1"])


@pytest.mark.parametrize("way", ["process", "workers"])
def test_wrong_results_of_a_function_are_errors(way):
    timeout = 5.0 if way == "workers" else None
    reward = Reward(registry.find(f"{FILE}:wrong_length"), timeout=timeout)
    statuses = [outcome.status for outcome in reward.score(completions=["a", "b"])]
    assert statuses == (["ok", "ok"] if way == "workers" else ["error", "error"])  # a call has one sample
    odd = Reward(registry.find(f"{FILE}:odd_values"), timeout=timeout)
    outcomes = odd.score(completions=["a"] * 5, value=[1, "high", float("nan"), float("inf"), True])
    assert [outcome.status for outcome in outcomes] == ["ok", "error", "abstain", "error", "ok"]
    assert "'high'" in outcomes[1].message


def test_without_a_timeout_a_reward_runs_in_this_process():
    import os

    assert get_reward("user_pid")(completions=["a"]) != [float(os.getpid())]
    reward = Reward(registry.define(user_rewards.pid.definition.function))
    assert reward(completions=["a"]) == [float(os.getpid())]


def test_it_can_be_pickled():
    spec = RewardSpec("user_judge", {"points": 2.0, "column": "gold"}, label="mine", timeout=3.0, on_error="zero")
    copied = pickle.loads(pickle.dumps(spec.build()))
    assert (copied.__name__, copied.timeout, copied.on_error, copied.on_timeout) == ("mine", 3.0, "zero", "abstain")
    assert copied(completions=["1"], gold=["1"]) == [2.0]
    assert pickle.loads(pickle.dumps(get_reward(f"{FILE}:judge")))(completions=["1"], answer=["1"]) == [1.0]


# -- reward_funcs


def test_entries_of_every_kind():
    built, weights = resolve([plain, "user_judge", f"{FILE}:plain", {"name": "user_judge", "label": "other"}])
    assert built[0] is plain
    assert isinstance(built[1], Reward)
    assert built[2].__name__ == "plain"
    assert not isinstance(built[2], Reward)
    assert built[3].__name__ == "other"
    assert weights is None


def test_entries_for_trl_are_passed_on():
    import torch

    model = torch.nn.Linear(1, 1)
    for entry in [model, "org/reward-model", user_rewards.asynchronous]:
        assert resolve([entry]) == ([entry], None)
    built, _ = resolve([f"{FILE}:asynchronous"])
    assert asyncio.run(built[0](completions=["12", "ab"])) == [1.0, 0.0]
    assert resolve(None) == (None, None)
    assert resolve("user_judge")[0][0].__name__ == "user_judge"
    assert resolve({"name": "user_judge", "args": None})[0][0].args == {}


def test_a_folder_is_a_model_unless_a_reward_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge_model").mkdir()
    (tmp_path / "countdown").mkdir()
    assert resolve(["judge_model"]) == (["judge_model"], None)
    assert isinstance(resolve(["countdown"])[0][0], Reward)


def test_a_reward_given_with_options_keeps_its_own():
    options = {"label": "mine", "timeout": 3, "on_error": "zero", "on_timeout": "raise"}
    mine = RewardSpec("user_judge", {"points": 2.0}, **options).build()
    other = {"name": mine, "label": "other", "args": {"column": "a"}}
    (same, other), _ = resolve([{"name": mine, "weight": 2}, other])
    assert same is mine
    assert (other.__name__, other.timeout, other.on_error, other.on_timeout) == ("other", 3, "zero", "raise")
    assert other(completions=["1"], a=["1"]) == [2.0]


def test_a_combination_may_be_labelled():
    from trl_grpo_plus.rewards.combine import scale

    (labelled,), _ = resolve([{"name": scale("user_judge", 3.0), "label": "thrice"}])
    assert labelled(completions=["1"], answer=["1"]) == [3.0]
    assert labelled.__name__ == "thrice"
    with refused("cannot be imported"):
        resolve([{"name": scale("user_judge", 3.0), "timeout": 1}])


def test_logged_columns_have_none_for_rows_that_are_left_out():
    logged = {}
    reward = get_reward("user_rewards:logs_rows")
    batch = {"completions": ["a", "bb", "ccc"], "answer": ["x", None, "x"], "log_extra": logged.__setitem__}
    assert reward(**batch) == [1.0, None, 3.0]
    assert logged == {"length": [1, None, 3]}


@pytest.mark.parametrize(
    ("entries", "reward_weights", "weights"),
    [
        (["user_judge", plain], [1.0, 0.5], [1.0, 0.5]),
        ([{"name": "user_judge", "weight": 2}, plain], None, [2.0, 1.0]),
        ([{"name": "user_judge", "weight": 2}, plain], [2.0, 0.5], [2.0, 0.5]),
        ([{"name": "user_judge", "monitor": True}, plain], None, [0.0, 1.0]),
        ([{"name": "user_judge", "monitor": True}, plain], [0.0, 3.0], [0.0, 3.0]),
    ],
)
def test_weights(entries, reward_weights, weights):
    assert resolve(entries, reward_weights)[1] == weights


@pytest.mark.parametrize(
    ("entries", "reward_weights", "words"),
    [
        (
            [{"name": "user_judge", "weight": 2}],
            [1.0],
            ["gives 'user_judge' the weight 2, but reward_weights gives it 1.0"],
        ),
        ([{"name": "user_judge", "monitor": True}, plain], [1.0, 1.0], ["(a monitor)"]),
        (
            [{"name": "user_judge", "monitor": True, "weight": 1}, plain],
            None,
            ["monitor=True and weight=1, but a monitor has no weight"],
        ),
        ([{"name": "user_judge", "monitor": True}], None, ["monitors only", "Leave monitor out of one"]),
        ([{"name": "user_judge", "weight": 2}, plain], [2.0], ["has 1 values for 2", "Give one weight per reward."]),
        ([plain], [1.0, 1.0], ["reward_weights has 2 values for 1 reward_funcs. Give one weight per reward."]),
        ([{"name": "user_judge", "wieght": 2}], None, ["unknown key 'wieght'", "Did you mean weight", "monitor"]),
        ([{"args": {}}], None, ["has no name"]),
        ([{"name": "user_judge", "weight": "2"}], None, ["weight='2' must be a finite number"]),
        ([{"name": "user_judge", "args": [1]}], None, ["args=[1] must be a mapping"]),
        ([{"name": "user_judge", "timeout": 0}], None, ["timeout=0 must be", "> 0 and <= 86400 (seconds)"]),
        ([{"name": "user_judge", "timeout": float("inf")}], None, ["timeout=inf must be"]),
        ([{"name": "user_judge", "timeout": 1e6}], None, ["timeout=1000000.0 must be"]),
        ([{"name": "user_judge", "weight": float("nan")}], None, ["weight=nan must be a finite number"]),
        ([plain], [float("nan")], ["reward_weights=nan must be a finite number"]),
        ([plain], ["0.5"], ["reward_weights='0.5' must be a finite number", "leave the quotes out"]),
        ([{"name": "user_judge", "label": ""}], None, ["label='' must be a text"]),
        ([{"name": None}], None, ["None is no name, path, model id, function or model"]),
        ([3], None, ["3 is no name"]),
        ([{"name": "user_judge", "label": "plain"}, plain], None, ["'plain' is there twice"]),
        ([{"name": user_rewards.Judge().score, "timeout": 1}], None, ["has a timeout", "cannot be imported"]),
        ([{"name": "user_judge", "on_error": "zeros"}], None, ["on_error='zeros' is not one of 'zero', 'abstain'"]),
        (["user_judge", "user_judge"], None, ["'user_judge' is there twice", "label"]),
        (
            [{"name": "org/model", "timeout": 1}],
            None,
            ["timeout applies to functions only, but 'org/model' is a model"],
        ),
        ([{"name": lambda completions: [0.0], "timeout": 1}], None, ["has a timeout", "cannot be imported"]),
        ([{"name": f"{FILE}:asynchronous", "args": {"a": 1}}], None, ["is an async function"]),
        ([{"name": Later(), "label": "a"}], None, ["'later' is an async function"]),
    ],
)
def test_an_entry_that_is_refused(entries, reward_weights, words):
    with refused(*words):
        resolve(entries, reward_weights)


def test_a_function_of_a_script_is_refused_for_workers(tmp_path):
    """Workers would have to run the script again to import the function."""
    code = """
    from trl_grpo_plus.registry import resolve
    def mine(completions):
        return [1.0] * len(completions)
    print(resolve([{"name": mine, "weight": 2.0}])[1])
    resolve([{"name": mine, "timeout": 1.0}])
    """
    done = run(code, tmp_path)
    assert done.stdout == "[2.0]\n"
    assert "Move the function to the top level of its own module" in done.stderr


def test_arguments_that_workers_do_not_have_are_refused(scratch):
    def logs(completions, log_extra):
        """Reward 0."""
        return [0.0] * len(completions)

    with refused("worker processes, which have no log_extra. Leave out the parameter log_extra"):
        resolve([{"name": logs, "timeout": 1.0}])


# -- columns


def of_solution(completions, solution, **columns):
    return [float(text == right) for text, right in zip(completions, solution, strict=True)]


ROWS = Dataset.from_dict({"prompt": ["a", "b", "c"], "answr": ["1", "2", "3"], "gold": ["1", None, "3"]})


PATH = f"{__name__}:of_solution"


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (lambda completions, solution: [], ["{'name': FUNCTION, 'args': {'columns': {'solution': NAME}}}"]),
        ("user_judge", ["train: reward 'user_judge' needs the column 'answer'", "Did you mean answr", "column: NAME"]),
        ({"name": "user_judge", "args": {"column": "golf"}}, ["needs the column 'golf'", "Did you mean gold"]),
        ({"name": "user_judge", "args": {"columns": {"answer": "gold", "hint": "clue"}}}, ["the column 'clue'"]),
        (user_rewards.hangs_on_one, ["reward 'hangs_on_one' needs the column 'number', the data has prompt, answr"]),
        (
            of_solution,
            ["data has prompt, answr, gold. If", f"'name': {PATH!r}, 'args': {{'columns': {{'solution': NAME}}}}"],
        ),
    ],
)
def test_a_missing_column(reward, words):
    (built,), _ = resolve([reward])
    with refused(*words):
        check_columns(built, ROWS, "train")


def test_columns_that_are_there_pass():
    renamed = {"name": PATH, "args": {"columns": {"solution": "gold"}}}  # the form that the message gives
    for reward in [{"name": "user_judge", "args": {"column": "gold"}}, plain, user_rewards.asynchronous, renamed]:
        (built,), _ = resolve([reward])
        check_columns(built, ROWS, "train")


def test_values_of_scored_rows_are_checked_before_the_run(scratch):
    seen = {}

    def digits_only(*, answer, points, hint=None):
        seen.update(answer=answer, points=points, hint=hint)
        if "3" in answer:
            raise ValueError("row 2: '3' is no answer")

    register_reward("user_checked", check_columns=digits_only)(judge.definition.function)
    reward = get_reward("user_checked", column="gold", points=2.0)
    with refused("eval: row 2: '3' is no answer"):
        check_columns(reward, ROWS, "eval")
    assert seen == {"answer": ["1", "3"], "points": 2.0, "hint": None}
    check_columns(reward, ROWS.select([0]), "eval")


def test_columns_of_the_rewards_that_a_reward_calls(scratch):
    @register_reward("user_half", parts=lambda of: [get_reward(of, column="solution")])
    def half(completions, *, of: str, **columns):
        """Reward half of another reward."""
        return [score / 2 for score in get_reward(of, column="solution")(completions=completions, **columns)]

    reward = get_reward("user_half", of="user_judge")
    assert reward(completions=["1"], solution=["1"]) == [0.5]
    with refused("train: reward 'user_judge' needs the column 'solution'"):
        check_columns(reward, ROWS, "train")
    check_columns(reward, ROWS.rename_column("gold", "solution"), "train")


def test_a_stream_is_checked_by_its_names():
    stream = ROWS.to_iterable_dataset()
    assert isinstance(stream, IterableDataset)
    with refused("needs the column 'answer'"):
        check_columns(get_reward("user_judge"), stream, "train")
    check_columns(get_reward("user_judge", column="gold"), stream, "train")
    check_columns(get_reward("user_judge"), None, "train")


def test_an_example_is_a_record():
    example = Example("46", {"answer": "46"})
    assert (example.reward, dict(example.args)) == (1.0, {})


def test_an_object_by_its_path_is_refused(tmp_path):
    source = "class Judge:\n    def __call__(self, completions):\n        return [1.0]\n\njudge = Judge()\n"
    (tmp_path / "objects.py").write_text(source)
    with refused("is an object, not a function. Name a function that calls it."):
        get_reward(f"{tmp_path / 'objects.py'}:judge")


# Until Python 3.14 this import keeps annotations from being evaluated at once.
LAZY = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
LAZY += """
import typing
from trl_grpo_plus.registry import register_reward
if typing.TYPE_CHECKING:
    from collections.abc import Sequence

@register_reward("shortest")
def shortest(completions: Sequence[str], *, points: float | Sequence[float] = 1.0) -> Sequence[float]:
    return [points / len(text) for text in completions]

def plain(completions: Sequence[str], **kwargs: Sequence[str]) -> Sequence[float]:
    return [1.0 / len(text) for text in completions]

def baseline(values: Sequence[float], scored, batch) -> Sequence[float]:
    return values
"""


def test_annotations_may_name_what_only_a_type_checker_imports(tmp_path):
    file = tmp_path / "lazy_rewards.py"
    file.write_text(LAZY)
    assert get_reward(f"{file}:plain")(completions=["ab"], prompts=["p"]) == [0.5]
    assert get_reward(f"{file}:shortest", points=3.0)(completions=["abc"], prompts=["p"]) == [1.0]
    assert baseline_of(f"{file}:baseline")


def test_one_broken_package_hides_no_other_reward_from_the_list(tmp_path):
    install(tmp_path, "lacking", "gone")
    code = "from trl_grpo_plus.cli.main import main; main(['ls', 'rewards'])"
    listed = run(code, tmp_path).stdout
    assert re.search(r"^  gone +cannot be loaded: .*lacking", listed, re.MULTILINE), listed
    assert re.search(r"^  exact_answer +\w", listed, re.MULTILINE)


def test_a_file_may_import_a_module_beside_it(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "helpers_of_mine.py").write_text("SCORE = 0.25\n")
    code = "from helpers_of_mine import SCORE\n\n\ndef mine(completions):\n    return [SCORE] * len(completions)\n"
    (tmp_path / "mine" / "scores.py").write_text(code)
    done = run(
        "from trl_grpo_plus.registry import get_reward; print(get_reward('mine/scores.py:mine')(completions=['a']))",
        tmp_path,
    )
    assert done.stdout == "[0.25]\n", done.stderr


def test_a_file_that_gets_another_module_than_the_one_beside_it_is_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helpers_of_both.py").write_text(f"SCORE = {folder!r}\n")
        (tmp_path / folder / "scores.py").write_text("import helpers_of_both\n\n\ndef mine(completions):\n    pass\n")
    code = """
    from trl_grpo_plus.registry import get_reward
    get_reward("a/scores.py:mine")
    get_reward("b/scores.py:mine")
    """
    told = run(code, tmp_path).stderr
    assert re.search(
        r"b/scores.py imports helpers_of_both, and got .*/a/.*, not .*/b/.*Rename helpers_of_both.py", told
    )


def test_a_file_beside_a_module_with_an_installed_name_gets_the_installed_one(tmp_path):
    (tmp_path / "datasets.py").write_text("raise AssertionError\n")
    (tmp_path / "scores.py").write_text("import datasets\n\n\ndef mine(completions):\n    return [0.5]\n")
    code = f"""
    from trl_grpo_plus.registry import get_reward
    print(get_reward("{tmp_path}/scores.py:mine")(completions=["a"]))
    """
    (tmp_path / "elsewhere").mkdir()
    done = run(code, tmp_path / "elsewhere")
    assert done.stdout == "[0.5]\n", done.stderr
