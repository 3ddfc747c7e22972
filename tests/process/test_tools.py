"""A policy that really calls a tool, from `tools` or of an environment: when rows are dropped or moved, each row keeps
its calls, answers, reward and mask.
"""

import copy
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import warm_processes
from accelerate.logging import MultiProcessAdapter
from datasets import Dataset
from tool_models import (
    CALL,
    END,
    OPTIONS,
    TOOL_TURN,
    Adder,
    World,
    acting,
    adder,
    encode,
    numbers,
    question,
    taught,
    tokenizer,
)
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer, attach
from trl_grpo_plus.traces import reader as traces


WORKER = Path(__file__).parents[1] / "helpers" / "distributed_worker.py"


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> str:
    return taught(tmp_path_factory.mktemp("policy"))


@dataclass
class Scored:
    """A row as the reward saw it."""

    step: int
    number: int
    ids: list[int]
    messages: list[dict[str, Any]]
    tool_mask: list[int]
    reward: float

    @property
    def runs(self) -> list[tuple[int, str]]:
        """Return the texts of the messages as the tokens hold them: pairs of (1 if the policy wrote it, text)."""
        return [self._run(message) for message in self.messages]

    def _run(self, message: dict[str, Any]) -> tuple[int, str]:
        if message["role"] == "tool":
            return 0, TOOL_TURN.format(message["content"])
        calls = [CALL.format(**call["function"]["arguments"]) for call in message.get("tool_calls", [])]
        return 1, "".join([message["content"], *calls, END])

    @property
    def written(self) -> int:
        """Return how many tokens the policy wrote."""
        return sum(len(encode(text)) for mine, text in self.runs if mine)


@dataclass
class Buffered:
    """A live row of the batch that a step trained on."""

    number: int
    ids: list[int]
    tool_mask: list[int]
    advantage: float

    @property
    def runs(self) -> list[tuple[int, str]]:
        places = itertools.groupby(range(len(self.ids)), key=self.tool_mask.__getitem__)
        return [(mine, tokenizer().decode([self.ids[i] for i in run])) for mine, run in places]


class Run(TrainerCallback):
    """A run that records every tool call, every scored row and every trained row. Dead prompts earn 0.3."""

    def __init__(self, policy: str, folder: Path, dead: Callable[[int], bool], **options: Any):
        self.dead = dead
        self.calls: list[tuple[int, int]] = []
        self.scored: list[Scored] = []
        self.buffered: list[list[Buffered]] = []  # a list for each step
        self.rows: list[int] = []  # number of rows of each step, with filler
        data = Dataset.from_dict({"prompt": [question(n) for n in range(30)], "number": list(range(30))})
        config = GRPOPlusConfig(**{**tiny_models.BASE, **OPTIONS, "output_dir": str(folder), **options})
        extra = {"processing_class": tokenizer(), "tools": [adder(self.calls)], "callbacks": [self]}
        self.trainer = GRPOPlusTrainer(policy, self.reward, config, data, **extra)
        self.trainer.train()

    def reward(self, prompts, completions, completion_ids, tool_mask, number, trainer_state, **kwargs) -> list[float]:
        """Return a ninth of the digit that the attempt answers, or 0.3 for a dead prompt."""
        assert prompts == [question(n) for n in number]
        answers = [int(messages[-1]["content"]) for messages in completions]
        rewards = [0.3 if self.dead(n) else answer / 9 for n, answer in zip(number, answers, strict=True)]
        rows = copy.deepcopy(list(zip(number, completion_ids, completions, tool_mask, rewards, strict=True)))
        self.scored += [Scored(trainer_state.global_step, *row) for row in rows]
        return rewards

    def on_step_end(self, *args, **kwargs) -> None:
        batches = self.trainer._buffered_inputs
        self.buffered.append([row for batch in batches for row in live_rows(batch)])
        self.rows.append(sum(len(batch["completion_ids"]) for batch in batches))

    def logged(self, key: str) -> list[float]:
        return tiny_models.logged(self.trainer, key)


def live_rows(batch: dict[str, torch.Tensor]) -> list[Buffered]:
    """Return the rows of a micro-batch that are not filler, without padding."""
    shown = batch["completion_mask"].bool()
    live = batch.get("live", torch.ones(len(shown), dtype=torch.bool))
    assert not batch["tool_mask"][~live].any()
    assert batch["tool_mask"].shape == batch["completion_ids"].shape == shown.shape
    prompts = tokenizer().batch_decode(batch["prompt_ids"])
    rows = []
    for i in live.nonzero().flatten().tolist():
        columns = (batch[key][i][shown[i]].tolist() for key in ("completion_ids", "tool_mask"))
        number = int(prompts[i].rpartition("user\n")[2][:2])
        rows.append(Buffered(number, *columns, batch["advantages"][i].item()))
    return rows


def check(run: Run) -> None:
    """Assert that tool calls, scored rows, trained rows and logged counts agree."""
    tool_messages = [m for row in run.scored for m in row.messages if m["role"] == "tool"]
    assert [m["content"] for m in tool_messages] == [str(a + b) for a, b in run.calls]
    assert {len(row.messages) for row in run.scored} == {1, 3}  # some rows answer without the tool
    for row in run.scored:
        assert "".join(text for _, text in row.runs) == tokenizer().decode(row.ids)
        assert row.tool_mask == [mine for mine, text in row.runs for _ in encode(text)]
    steps = [[row for row in run.scored if row.step == step] for step in range(3)]
    for scored, buffered in zip(steps, run.buffered, strict=True):
        check_batch(scored, buffered)
    assert run.logged("tokens/generated") == [sum(row.written for row in scored) for scored in steps]
    assert sum(run.logged("tokens/generated")) < sum(len(row.ids) for row in run.scored)  # tool output is not counted
    assert run.logged("tokens/trained") == [sum(sum(row.tool_mask) for row in rows) for rows in run.buffered]
    assert run.logged("groups/generated") == [len(scored) / 4 for scored in steps]
    assert run.logged("groups/trained") == [len(rows) / 4 for rows in run.buffered]
    assert min(run.logged("tools/call_frequency")) > 0
    assert run.logged("tools/failure_frequency") == [0] * 3
    seen = [tuple(record["calls"]) for record in run.trainer._recorder.state_dict()["last"]]  # what the alarms saw
    assert seen == [(sum(len(row.messages) > 1 for row in scored), len(scored)) for scored in steps]


def check_batch(scored: list[Scored], buffered: list[Buffered]) -> None:
    """Assert that the batch holds whole groups, and each row its own ids, mask and reward."""
    for number in {row.number for row in buffered}:
        attempts = sorted((row for row in scored if row.number == number), key=lambda row: row.ids)
        kept = sorted((row for row in buffered if row.number == number), key=lambda row: row.ids)
        mean = sum(row.reward for row in attempts) / 4
        assert len({row.reward for row in attempts}) > 1
        assert [row.ids for row in kept] == [row.ids for row in attempts]
        assert [row.runs for row in kept] == [row.runs for row in attempts]
        assert [row.advantage for row in kept] == pytest.approx([row.reward - mean for row in attempts], abs=1e-6)


@pytest.mark.parametrize(("micro_batches", "rows"), [(1, [8, 4, 4]), (8, [8, 8, 8])])
def test_drop(policy, tmp_path, micro_batches, rows):
    """The batches hold prompts 0 to 3, 4 to 7 and 8 to 11, and the multiples of 3 stay.

    With 8 micro-batches, filler makes each batch divide.
    """
    options = {"per_device_train_batch_size": 16 // micro_batches, "gradient_accumulation_steps": micro_batches}
    options |= {"zero_variance_groups": "drop", "shuffle_dataset": False}
    run = Run(policy, tmp_path, dead=lambda number: number % 3 > 0, **options)
    check(run)
    assert [{row.number for row in live} for live in run.buffered] == [{0, 3}, {6}, {9}]
    assert run.rows == rows
    assert run.logged("groups/generated") == [4] * 3
    assert run.logged("groups/trained") == [2, 1, 1]
    called = [sum(len(row.messages) > 1 for row in run.scored if row.step == step) for step in range(3)]
    assert run.logged("tools/call_frequency") == [count / 16 for count in called]


def test_resample(policy, tmp_path):
    """In each batch of four prompts, the two odd ones are dead and replaced."""
    options = {"zero_variance_groups": "resample", "max_resample_rounds": 8, "shuffle_dataset": False}
    run = Run(policy, tmp_path, dead=lambda number: number % 2 > 0, **options)
    check(run)
    assert min(run.logged("groups/rounds")) > 0
    assert min(run.logged("groups/generated")) > 4
    assert run.logged("groups/trained") == [4] * 3
    numbers = {row.number for rows in run.buffered for row in rows}
    assert not any(number % 2 for number in numbers)
    assert max(numbers) > 11


# -- environments


def distance(first: Any, second: Any) -> float:
    """Return the largest difference between two trainers' weights."""
    mine, other = tiny_models.weights(first), tiny_models.weights(second)
    return max((mine[name] - other[name]).abs().max().item() for name in mine)


def moved(trained: Any, policy: str) -> bool:
    """Return whether training changed the weights."""
    return not tiny_models.same_weights(
        tiny_models.weights(trained), dict(type(trained.model).from_pretrained(policy).state_dict())
    )


def assert_one_rollout_at_a_time(world: World, rollouts: int) -> None:
    """Assert that an environment is reset for a new rollout only after its last rollout was scored."""
    assert len(world.events) == 2 * rollouts
    for place in range(world.made):
        lives = [event for event in world.events if event[1] == place]
        assert [what for what, *_ in lives] == ["reset", "reward"] * (len(lives) // 2)
        assert [number for *_, number in lives[::2]] == [number for *_, number in lives[1::2]]


def attempts(folder: Path) -> list[dict[str, Any]]:
    return list(itertools.chain.from_iterable(traces.groups(folder / "run")))


IN_THE_REWARD = {"beta": 0.1, "kl_placement": "reward", "kl_estimator": "k1"}


@pytest.mark.parametrize("options", [{}, IN_THE_REWARD, {"beta": 0.1, "num_iterations": 2}])
def test_dropping_rollouts_is_training_on_the_live_environments_alone(policy, tmp_path, options):
    mine, alone = World(lambda n: n % 4 > 1), World(lambda n: False)
    ours = acting(mine, policy, tmp_path, zero_variance_groups="drop", **options)
    theirs = {"per_device_train_batch_size": 8, "data": numbers(30).filter(lambda row: row["number"] % 4 < 2)}
    cls = GRPOPlusTrainer if "kl_placement" in options else GRPOTrainer
    both = ours, acting(alone, policy, tmp_path, cls, **theirs, **options)
    assert set(tiny_models.logged(ours, "groups/trained")) == {2}
    assert min(tiny_models.logged(ours, "tools/call_frequency")) > 0
    assert distance(*both) < 5e-6
    assert moved(ours, policy)
    assert_one_rollout_at_a_time(mine, rollouts=2 * 16 // options.get("num_iterations", 1))


def test_resampled_rollouts_have_environments_of_their_own(policy, tmp_path):
    """The first step with resampling equals TRL's step on the prompts that resampling found."""
    mine, alone = World(lambda n: n % 4 > 1), World(lambda n: False)
    resampled = {"zero_variance_groups": "resample", "max_resample_rounds": 8, "max_steps": 1, "trace_every": 1}
    ours = acting(mine, policy, tmp_path, **resampled)
    traced = attempts(tmp_path)
    found = [attempt["reference"]["number"] for attempt in traced if attempt["kept"]][::4]
    assert found[:2] == [0, 1]
    assert len(found) == 4
    assert all(n % 4 < 2 for n in found)
    assert tiny_models.logged(ours, "groups/rounds")[0] > 0
    theirs = acting(alone, policy, tmp_path, GRPOTrainer, data=numbers(30).select(found), max_steps=1)
    assert distance(ours, theirs) < 5e-6
    assert moved(ours, policy)
    assert_one_rollout_at_a_time(mine, rollouts=int(tiny_models.logged(ours, "groups/generated")[0]) * 4)
    assert mine.made == 16  # a later round has fewer rows, and reuses TRL's environments, whose rollouts are scored
    check_turns(traced)


def check_turns(traced: list[dict[str, Any]]) -> None:
    """Assert that traces hold what each attempt was asked, what it called and what the tool answered."""
    assert len(traced) > 16
    called = 0
    for attempt in traced:
        number, place = attempt["reference"]["number"], attempt["attempt"]
        assert attempt["prompt"] == [{"role": "user", "content": f"{(7 * number + 3 * place) % 30:02d}"}]
        assert [turn["role"] for turn in attempt["completion"]] in (["assistant"], ["assistant", "tool", "assistant"])
        if len(attempt["completion"]) > 1:
            [call] = attempt["completion"][0]["tool_calls"]
            assert str(sum(call["function"]["arguments"].values())) == attempt["completion"][1]["content"]
            called += 1
    assert called


@pytest.mark.parametrize("mode", ["drop", "resample"])
def test_each_row_has_the_environment_that_it_names(policy, tmp_path, mode):
    world = World(lambda n: n % 4 > 1)
    factory = {"adds": world.adder, "subtracts": world.subtracter}
    named = numbers(30, environment=["adds", "subtracts"] * 15)
    options = {"zero_variance_groups": mode, "trace_every": 1, "max_steps": 1}
    ours = acting(world, policy, tmp_path, factory=factory, data=named, **options)
    assert {"rewards/Adder/mean", "rewards/Subtracter/mean"} <= set(ours.state.log_history[0])
    [batch] = ours._buffered_inputs
    texts = tokenizer().batch_decode(batch["prompt_ids"])
    assert {"Subtract." in text for text in texts} == {False, True}
    kept = [attempt for attempt in attempts(tmp_path) if attempt["kept"]]
    wanted = Counter((attempt["prompt"][0]["content"], attempt["reference"]["environment"]) for attempt in kept)
    asked = [text.rpartition("user\n")[2][:2] for text in texts]
    assert wanted == Counter(
        zip(asked, ["subtracts" if "Subtract." in text else "adds" for text in texts], strict=True)
    )
    for attempt in attempts(tmp_path):
        scored = {name for name, reward in attempt["rewards"].items() if reward is not None}
        assert scored == {"Adder" if attempt["reference"]["environment"] == "adds" else "Subtracter"}


def test_an_environment_that_owns_its_data(policy, tmp_path):
    class Counting(Adder):
        """An environment that chooses its numbers itself. Four environments in a row choose the same number."""

        begun = -1

        def reset(self, **row: Any) -> str:
            self.begun += 1
            return super().reset(number=self._place // 4 + 4 * self.begun)

    class Alone(World):
        def adder(self) -> Adder:
            self.made += 1
            return Counting(self, self.made - 1)

    world = Alone(lambda n: n % 4 > 1)
    ours = acting(world, policy, tmp_path, data=None, zero_variance_groups="drop")
    assert tiny_models.logged(ours, "groups/trained") == [2] * 2
    assert {number for _, _, number in world.events} == set(range(8))
    with pytest.raises(ValueError, match="train_dataset is None, but zero_variance_groups='resample' needs rows"):
        acting(world, policy, tmp_path, data=None, zero_variance_groups="resample")


def test_a_tool_that_is_down_raises_an_alarm(policy, tmp_path):
    class Down(Adder):
        def add(self, a: int, b: int) -> int:
            """
            Add.

            Args:
                a: One.
                b: Other.
            """
            raise ConnectionError("down")

    world = World(lambda n: False)
    limits = {"window": 4, "min_batches": 2}
    options = {"alarm_thresholds": limits, "trace_every": 1, "max_steps": 6, "max_completion_length": 96}
    ours = acting(world, policy, tmp_path, factory=lambda: Down(world, 0), **options)
    assert tiny_models.logged(ours, "alarms/tool_failures") == [0] * 5 + [1]
    lines = map(json.loads, (tmp_path / "run" / "rollouts" / "alarms.jsonl").read_text().splitlines())
    [alarm] = [line for line in lines if line["name"] == "tool_failures"]
    assert "100 % of the calls of tools fail" in alarm["message"]
    assert alarm["groups"]


def test_beliefs_choose_among_environments_rows(policy, tmp_path):
    options = {"advantage_baseline": "belief", "scale_rewards": "none", "prompt_selection": "belief", "max_steps": 3}
    world = World(lambda n: n > 20)
    ours = acting(world, policy, tmp_path, **options, zero_variance_groups="drop", trace_every=1)
    assert moved(ours, policy)
    last = [attempt for attempt in attempts(tmp_path) if attempt["step"] == 3]
    assert all(attempt["belief"] is not None for attempt in last)
    assert_one_rollout_at_a_time(world, rollouts=3 * 16)


@pytest.mark.full
def test_environments_on_two_processes(policy, tmp_path):
    command = [sys.executable, WORKER, tmp_path, "environments"]
    done = warm_processes.run_ranks(
        command, env={**os.environ, "ACCELERATE_USE_CPU": "true", "POLICY": policy}, timeout=300
    )
    assert done.returncode == 0, done.stderr[-5000:]
    first, second = (json.loads((tmp_path / f"environments-{rank}.json").read_text()) for rank in range(2))
    assert max(first["distance"], second["distance"]) < 5e-6
    assert first["trained"] == [2, 2]
    assert first["resampled"] == second["resampled"]
    assert first["resampled"]["trained"] == [4, 4]
    # Each rank has its own environments, and each rollout is begun once.
    assert len(first["resets"]) + len(second["resets"]) == first["generated"] * 4
    assert set(first["resets"] + second["resets"]) > set(range(8))


@pytest.mark.parametrize("cls", [GRPOPlusTrainer, GRPOTrainer], ids=["swapped", "attached"])
def test_a_tool_whose_answers_the_model_does_not_read_is_named(policy, tmp_path, caplog, cls):
    def add(a: int, b: int) -> int:
        """
        Add.

        Args:
            a: One.
            b: Other.
        """
        return [a + b]  # type: ignore[return-value]

    MultiProcessAdapter.warning_once.cache_clear()
    config = GRPOPlusConfig if cls is GRPOPlusTrainer else GRPOConfig
    args = config(**{**tiny_models.BASE, **OPTIONS, "max_steps": 1, "output_dir": str(tmp_path / "run")})
    data = Dataset.from_dict({"prompt": [question(n) for n in range(30)]})
    trainer = cls(policy, by_length, args, data, processing_class=tokenizer(), tools=[add])
    if cls is GRPOTrainer:
        attach(trainer)
    trainer.train()
    said = [record.message for record in caplog.records if "does not see this answer" in record.message]
    assert ["The tool add returned a list of int values." in message for message in said] == [True]
    rows = [row for group in traces.groups(tmp_path / "run", "train") for row in group]
    answers = [message["content"] for row in rows for message in row["completion"] if message["role"] == "tool"]
    assert {type(answer) for answer in answers} == {list}


def by_length(completions, **kwargs) -> list[float]:
    """Return the number of messages of each completion."""
    return [float(len(messages)) for messages in completions]
