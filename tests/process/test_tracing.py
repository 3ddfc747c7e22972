"""Traces of real runs: every row's prompt, completion, rewards, advantage and verdict belong to the same attempt."""

import copy
import json
import math
import os
import signal
import sys
from collections.abc import KeysView
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch
import warm_processes
from datasets import Dataset
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusTrainer, attach
from trl_grpo_plus.rollouts.groups import judge
from trl_grpo_plus.traces import ADDS_SYSTEM, by_group
from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.traces.alarms import ALARMS, Finding, Rule
from trl_grpo_plus.trainer import recorder
from trl_grpo_plus.utils.text import distinct
from trl_grpo_plus.utils.validation import Number


MODES = {
    "keep": {},
    "drop": {"zero_variance_groups": "drop"},
    "resample": {"zero_variance_groups": "resample", "max_resample_rounds": 2},
    "resample, filled up": {"zero_variance_groups": "resample", "resample_fallback": "keep"},
    "normalize_then_sum": {"multi_objective_aggregation": "normalize_then_sum", "zero_variance_groups": "drop"},
    "kl in the reward": {"beta": 0.1, "kl_placement": "reward", "kl_estimator": "k1", "zero_variance_groups": "drop"},
    "kl to go": {"beta": 0.1, "kl_placement": "reward", "kl_estimator": "k1", "kl_reward_form": "reward_to_go"},
    "batches of several steps": {"steps_per_generation": 4, "num_iterations": 2, "zero_variance_groups": "resample"},
    "accumulation": {"gradient_accumulation_steps": 4, "steps_per_generation": 2},
}


KEEPING = {mode for mode, options in MODES.items() if not options.get("zero_variance_groups")}
SOON_DEAD = {"window": 4, "min_batches": 4, "dead_groups": 0.5}


def train(folder, rewards=None, **options):
    trained = tiny_models.trainer(folder, rewards or half, **options)
    trained.train()
    return trained


def groups_of(folder):
    return list(traces.groups(folder / "run"))


def rows_of(folder):
    return [row for group in groups_of(folder) for row in group]


def steps_of(folder):
    """Return the step of each group."""
    return [group[0]["step"] for group in groups_of(folder)]


def half(completions, number, completion_ids, log_extra=None, **kwargs):
    """Return the rewards of `tiny_models.half_dead`, and log which completion the reward saw, and its length."""
    attempts = zip(number, completions, completion_ids, strict=True)
    log_extra("seen", [f"{n}|{text}|{len(ids)}" for n, text, ids in attempts])
    return tiny_models.half_dead(completions, number)


def letters(completions, **kwargs):
    """Return the share of letters, or `None` for an empty completion."""
    return [sum(c in "ab" for c in text) / len(text) if text else None for text in completions]


def check_identity(groups):
    """Assert everything about the rows that follows from prompt and completion alone."""
    for group in groups:
        assert [row["attempt"] for row in group] == list(range(group[0]["size"]))
        assert len({(row["prompt"], row["verdict"], row["kept"], row["reason"]) for row in group}) == 1
        for row in group:
            number = row["reference"]["number"]
            assert row["prompt"] == f"{number:02d}+{number:02d}="
            assert row["extra"]["seen"] == f"{number}|{row['completion']}|{row['tokens']}"
            expected = tiny_models.half_dead([row["completion"]], [number])[0], letters([row["completion"]])[0]
            assert list(row["rewards"].values()) == pytest.approx(expected, abs=1e-6)
            assert row["reward"] == pytest.approx(expected[0], abs=1e-6)
            assert list(row["outcomes"].values()) == ["ok", "ok" if expected[1] is not None else "abstain"]
            assert row["truncated"] <= (row["tokens"] == 6)
            assert row["alarms"] == []


def check_advantages(groups):
    for group in groups:
        rewards = torch.tensor([[row["reward"] for row in group]])
        assert group[0]["verdict"] == judge(rewards, 1e-6, 1.0, 0.0)[0]
        if group[0]["kept"]:
            expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            assert [row["advantage"] for row in group] == pytest.approx(expected[0].tolist(), abs=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_each_row_is_about_one_attempt(tmp_path, mode):
    options = {"max_steps": 6, "logging_steps": 6, "reward_weights": [1.0, 0.0], **MODES[mode]}
    trained = train(tmp_path, [half, letters], **options)
    groups = groups_of(tmp_path)
    assert all(group[0]["split"] == "train" for group in groups)
    check_identity(groups)
    if mode not in ("normalize_then_sum", "kl in the reward", "kl to go"):
        check_advantages(groups)
    assert {group[0]["kept"] for group in groups} == ({True} if mode in KEEPING else {True, False})

    for row in (row for group in groups if group[0]["kept"] for row in group):
        by_token = row.get("advantages")
        assert (by_token is not None) == (mode == "kl to go")
        if by_token:
            if row["tokens"] == len(row["completion"]) + (not row["truncated"]):  # one character a token
                assert by_token[0][1] == pytest.approx(row["advantage"], abs=1e-4)
            assert [end for end, _ in by_token] == sorted({end for end, _ in by_token})
            assert by_token[-1][0] == len(row["completion"])

    every = options.get("steps_per_generation", 1) * options.get("num_iterations", 1)
    every = every / options.get("gradient_accumulation_steps", 1)
    steps = {group[0]["step"] for group in groups}
    assert steps == {step + 1 for step in range(6) if step % max(every, 1) == 0}
    if mode == "accumulation":
        assert {group[0]["batch"] for group in groups} == {0, 1}
    (generated,) = tiny_models.logged(trained, "groups/generated")  # a mean over batches
    # With accumulation the epoch's last step has half of its batches.
    batches = 11 if mode == "accumulation" else math.ceil(6 / every)
    assert len({(group[0]["step"], group[0]["batch"]) for group in groups}) == batches
    assert len(groups) == pytest.approx(generated * batches)
    assert traces.journal(tmp_path / "run", "metrics")[0]["step"] == 6
    about = traces.about(tmp_path / "run")
    assert about["rewards"] == {"half": 1.0, "letters": 0.0}
    assert (about["zero_variance_tolerance"], about["solved_reward"], about["failed_reward"]) == (1e-6, 1.0, 0.0)


def test_kl_is_that_of_the_attempt(tmp_path):
    options = {"beta": 0.1, "kl_placement": "reward", "kl_estimator": "k1", "kl_reward_form": "sequence"}
    options |= {"scale_rewards": "none", "max_steps": 4}
    trained = train(tmp_path, [half, letters], **options, reward_weights=[1.0, 0.0])
    last = [group for group in groups_of(tmp_path) if group[0]["step"] == 4]
    for group in last:
        # The advantage comes from the reward less beta x the completion's KL. So groups of equal rewards have one too.
        net = [row["reward"] - 0.1 * row["kl"] * row["tokens"] for row in group]
        expected = [value - sum(net) / len(net) for value in net]
        assert [row["advantage"] for row in group] == pytest.approx(expected, abs=1e-5)
    assert any(abs(row["kl"]) > 1e-3 for group in last for row in group)
    mean = sum(row["kl"] * row["tokens"] for g in last for row in g) / sum(row["tokens"] for g in last for row in g)
    assert mean == pytest.approx(tiny_models.logged(trained, "kl")[3], abs=1e-5)


def test_evaluations_are_traced_by_split(tmp_path):
    data = {"easy": tiny_models.prompts(4), "hard/er": tiny_models.prompts(6)}
    options = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4, "num_generations_eval": 2}
    train(tmp_path, **options, max_steps=4, trace_every=3, extra={"eval_dataset": data})
    groups, numbers = groups_of(tmp_path), {}
    for group in groups:
        numbers.setdefault((group[0]["split"], group[0]["step"]), []).append(group[0]["reference"]["number"])
        assert len(group) == (4 if group[0]["split"] == "train" else 2)
    evaluations = {(f"eval_{name}", step) for name in ("easy", "hard_er") for step in (2, 4)}
    assert set(numbers) == {("train", 1), ("train", 4), *evaluations}
    assert sorted(numbers["eval_easy", 4]) == list(range(4))
    assert sorted(numbers["eval_hard_er", 2]) == list(range(6))
    evaluated = [row for group in groups if group[0]["split"] != "train" for row in group]
    assert {(row["kept"], row["reason"]) for row in evaluated} == {(False, "evaluation")}
    for row in evaluated:
        assert row["extra"]["seen"] == f"{row['reference']['number']}|{row['completion']}|{row['tokens']}"


def test_messages_stay_messages(tmp_path, monkeypatch):
    def says(completions, **kwargs):
        return [float(len(messages[0]["content"])) for messages in completions]

    monkeypatch.setattr(
        tiny_models.tokenizer(), "chat_template", "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    )
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"{i:02d}+1="}] for i in range(20)]})
    train(tmp_path, says, data=data)
    for row in rows_of(tmp_path):
        assert row["prompt"][0]["role"] == "user"
        assert row["completion"][0]["role"] == "assistant"
        assert row["reward"] == len(row["completion"][0]["content"])


@pytest.mark.parametrize("mode", ["keep", "drop", "attach"])
def test_what_a_reward_does_to_the_values_that_it_gets_is_not_in_the_traces(tmp_path, monkeypatch, mode):
    sampled = []

    def changes(prompts, completions, answers, **kwargs):
        pairs = list(zip(prompts, completions, strict=True))
        sampled.extend((prompt[0]["content"], messages[0]["content"]) for prompt, messages in pairs)
        for (prompt, messages), of_row in zip(pairs, answers, strict=True):
            prompt[0]["content"], messages[0]["content"] = "?", "x"
            of_row.pop()
        completions[0] = "y"
        return tiny_models.digits([text for _, text in sampled[-len(completions) :]])

    monkeypatch.setattr(
        tiny_models.tokenizer(), "chat_template", "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    )
    prompts = [[{"role": "user", "content": f"{i:02d}+1="}] for i in range(20)]
    data = Dataset.from_dict({"prompt": prompts, "answers": [[f"{i:02d}+1=", "1"] for i in range(20)]})
    if mode == "attach":
        trained = tiny_models.trainer(tmp_path, changes, GRPOTrainer, data=data)
        attach(trained)
        trained.train()
    else:
        train(tmp_path, changes, data=data, zero_variance_groups=mode)
    rows = rows_of(tmp_path)
    assert [(row["prompt"][0]["content"], row["completion"][0]["content"]) for row in rows] == sampled
    assert [row["reference"]["answers"] for row in rows] == [[prompt, "1"] for prompt, _ in sampled]


# Like SmolLM2's template, it adds a system message that no row has.
CHAT = (
    "{% if messages[0]['role'] != 'system' %}a 00<eos>{% endif %}{% for m in messages %}{{ m['content'] }}<eos>"
    "{% endfor %}{% if add_generation_prompt %}b={% endif %}"
)


@pytest.fixture
def asked(monkeypatch):
    """Return a dataset of messages, and a list that gets the tokens of the first prompt at each generation."""
    monkeypatch.setattr(tiny_models.tokenizer(), "chat_template", CHAT)
    generated, generate = [], GRPOTrainer._generate_single_turn

    def spied(self, prompt_ids, *rest, **more):
        generated.append(list(prompt_ids[0]))
        return generate(self, prompt_ids, *rest, **more)

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", spied)
    prompts = [[{"role": "user", "content": f"{i:02d}+1="}] for i in range(20)]
    return Dataset.from_dict({"prompt": prompts, "number": range(20)}), generated


def said(completions, number, **kwargs):
    return [
        float("1" in messages[0]["content"]) * (n % 3 > 0) for messages, n in zip(completions, number, strict=True)
    ]


def first_prompts(folder):
    return traces.journal(folder / "run", "first_prompt")


@pytest.mark.parametrize("mode", ["keep", "resample"])
def test_the_first_prompt_is_kept_as_generation_got_it(tmp_path, asked, mode):
    data, generated = asked
    train(tmp_path, said, data=data, trace_every=2, **MODES[mode])
    text = tiny_models.tokenizer().decode(generated[0], skip_special_tokens=False)
    assert text.startswith("a 00<eos>")
    assert text.endswith("+1=<eos>b=")
    first = rows_of(tmp_path)[0]["prompt"][0]["content"]
    assert text[len("a 00<eos>") : -len("<eos>b=")] == first
    told = {"step": 1, "text": text, "tokens": len(generated[0]), "flags": [ADDS_SYSTEM]}
    assert first_prompts(tmp_path) == [told]
    assert len(generated) >= 3


def test_the_first_prompt_is_not_that_of_an_evaluation(tmp_path, asked):
    data, _ = asked
    held_out = Dataset.from_dict({"prompt": [[{"role": "user", "content": "99+9="}]] * 4, "number": [1] * 4})
    evaluated = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 9, "per_device_eval_batch_size": 4}
    train(tmp_path, said, data=data, extra={"eval_dataset": held_out}, max_steps=1, **evaluated)
    [told] = first_prompts(tmp_path)
    assert "99+9=" not in told["text"]


def test_a_first_prompt_that_cannot_be_told_costs_nothing_else(tmp_path, asked, caplog, monkeypatch):
    def broken(*args, **kwargs):
        raise KeyError("a bug")

    monkeypatch.setattr(recorder, "as_given", broken)
    data, _ = asked
    assert train(tmp_path, said, data=data).state.global_step == 3
    assert sum("The first prompt could not be kept; training goes on" in one.message for one in caplog.records) == 1
    assert (first_prompts(tmp_path), len(groups_of(tmp_path))) == ([], 6)


def test_size_is_bounded(tmp_path):
    train(tmp_path, trace_every=3, trace_max_groups=1, trace_compress=True, max_steps=7)
    assert steps_of(tmp_path) == [1, 4, 7]
    assert len(list((tmp_path / "run" / "rollouts").glob("*.gz"))) == 3


def test_nothing_is_traced_where_that_is_asked_for(tmp_path):
    trained = train(tmp_path, trace_every=0)
    assert not (tmp_path / "run" / "rollouts").exists()
    assert tiny_models.logged(trained, "alarms/dead_groups") == [0.0] * 3
    trained = train(tmp_path, trace_every=0, alarms=False)
    assert not tiny_models.logged(trained, "alarms/dead_groups")


@pytest.mark.parametrize("mode", ["keep", "resample"])
def test_tracing_does_not_touch_the_training(tmp_path, mode):
    runs = []
    for options in ({}, {"trace_every": 0, "alarms": False}):
        trained = train(tmp_path, half, **MODES[mode], **options, beta=0.1)
        runs.append((tiny_models.weights(trained), tiny_models.losses(trained)))
    (weights, losses), (other_weights, other_losses) = runs
    assert tiny_models.same_weights(weights, other_weights)
    assert losses == other_losses


def test_training_goes_on_where_traces_cannot_be_written(tmp_path, caplog):
    """One warning is given, however many files fail. Alarms still work."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rollouts").write_text("in the way")
    trained = train(tmp_path, tiny_models.always_dead, max_steps=6, alarm_thresholds=SOON_DEAD)
    assert trained.state.global_step == 6
    warnings = [record.message for record in caplog.records if "training goes on" in record.message]
    assert sum("Traces could not be kept" in message for message in warnings) == 1
    assert len(warnings) == len({message.partition(":")[0] for message in warnings})
    assert tiny_models.logged(trained, "alarms/dead_groups")[-1] == 1.0


class Unprintable:
    """A value of a row that cannot be written, like an image whose file is cut off."""

    def __str__(self):
        raise OSError("image file is truncated")


def test_alarms_go_on_where_a_row_cannot_be_written(tmp_path, caplog):
    odd = tiny_models.prompts(30).with_transform(lambda rows: {**rows, "odd": [Unprintable() for _ in rows["number"]]})
    trained = train(tmp_path, tiny_models.always_dead, max_steps=6, alarm_thresholds=SOON_DEAD, data=odd)
    assert tiny_models.logged(trained, "alarms/dead_groups")[-1] == 1.0
    assert len(tiny_models.logged(trained, "completions/mean_length_of/tied")) == 6
    assert sum("image file is truncated" in record.message for record in caplog.records) == 1
    assert not list((tmp_path / "run" / "rollouts").glob("train-*"))


@pytest.mark.parametrize("attached", [False, True])
def test_a_forked_process_keeps_the_batches_of_a_trainer_that_its_parent_made(tmp_path, attached):
    """The parent's thread is not in the child."""
    trained = tiny_models.trainer(tmp_path, tiny_models.digits, GRPOTrainer if attached else GRPOPlusTrainer)
    if attached:
        attach(trained)
    trained.train()
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a child that waits for the thread
        trained.evaluate(tiny_models.prompts(4))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(traces.groups(tmp_path / "run", "eval"))) == 4


@pytest.mark.parametrize("attached", [False, True])
def test_a_copy_of_a_trainer_trains_and_keeps_its_own_attempts(tmp_path, attached):
    made = tiny_models.trainer(tmp_path, tiny_models.digits, GRPOTrainer if attached else GRPOPlusTrainer)
    if isinstance(getattr(made, "model_kwarg_keys", None), KeysView):
        pytest.skip("this release's own trainer holds a view of keys, which cannot be copied")
    if attached:
        attach(made)
    copied = copy.deepcopy(made)
    copied.args.output_dir = str(tmp_path / "copy")
    copied.train()
    assert not (tmp_path / "run" / "rollouts").exists()
    steps = [row["step"] for group in traces.groups(tmp_path / "copy", "train") for row in group]
    assert steps == sorted([1, 2, 3] * 8)
    made.train()
    copy.deepcopy(made)
    assert (tmp_path / "run" / "rollouts" / "train-00000003.jsonl").exists()


def test_an_alarm_that_is_added_has_its_threshold_from_the_config(tmp_path, monkeypatch):
    def brief(history, batch, most):
        return Finding(1.0, most, "all are short", "Say more.", tuple(by_group(batch.lines))) if most > 6 else None

    monkeypatch.setitem(ALARMS, "brief", Rule(brief, 5.0, "tokens of an attempt", Number(above=0, optional=True)))
    for most, on in ((7, 1.0), (None, None), (6, 0.0)):
        thresholds = {"min_batches": 1, "brief": most}
        trained = train(tmp_path / str(most), max_steps=1, alarm_thresholds=thresholds)
        assert tiny_models.logged(trained, "alarms/brief") == ([] if on is None else [on])
        alarms = traces.journal(tmp_path / str(most) / "run", "alarms")
        assert [(alarm["name"], alarm["threshold"]) for alarm in alarms] == [("brief", 7)] * (on == 1.0)
    with pytest.raises(ValueError, match="brief=0 must be a finite number and > 0"):
        tiny_models.trainer(tmp_path, half, alarm_thresholds={"brief": 0})


def test_traces_do_not_depend_on_alarms(tmp_path, caplog, monkeypatch):
    def broken(*args):
        raise KeyError("a bug")

    monkeypatch.setitem(ALARMS, "dead_groups", replace(ALARMS["dead_groups"], function=broken))
    train(tmp_path, max_steps=3, alarm_thresholds={"min_batches": 1})
    assert len(groups_of(tmp_path)) == 6
    told = "What the alarm 'dead_groups' finds could not be kept"
    assert sum(told in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_columns_may_be_tensors(tmp_path, form):
    vectors = {"vector": [[float(i), 0.5] for i in range(30)]}
    data = Dataset.from_dict({"prompt": [f"{i:02d}+1=" for i in range(30)], **vectors}).with_format(form)
    train(tmp_path, tiny_models.digits, data=data, max_steps=2)
    for row in rows_of(tmp_path):
        assert row["reference"]["vector"] == [float(row["prompt"][:2]), 0.5]


def test_what_cannot_be_told_of_an_attempt_costs_its_batch_only(tmp_path, caplog):
    """The other batches are traced. (The failure is gathered, so that no rank waits for one that failed.)"""

    class Odd:
        def __str__(self):
            raise RuntimeError("odd")

    def logs(completions, trainer_state, log_extra=None, **kwargs):
        log_extra("odd", [Odd() if trainer_state.global_step == 1 else np.longdouble(2)] * len(completions))
        return tiny_models.digits(completions)

    train(tmp_path, logs, max_steps=3)
    groups = groups_of(tmp_path)
    assert {group[0]["step"] for group in groups} == {1, 3}
    assert groups[0][0]["extra"]["odd"] in (2.0, "2.0")
    assert sum("RuntimeError: odd" in record.message for record in caplog.records) == 1


def test_a_rollout_function_may_return_tensors_and_columns_of_its_own(tmp_path):
    def rollout(prompts, trainer):
        sampled = tiny_models.scripted(prompts, trainer)
        sampled["completion_ids"] = [torch.tensor(ids) for ids in sampled["completion_ids"]]
        return {**sampled, "of_attempt": [f"{i}" for i in range(len(prompts))]}

    train(tmp_path, tiny_models.digits, extra={"rollout_func": rollout}, max_steps=1)
    rows = rows_of(tmp_path)
    assert [row["returned"]["of_attempt"] for row in rows] == [f"{i}" for i in range(8)]
    assert [list(row["reference"]) for row in rows] == [["number"]] * 8  # the columns of the dataset
    assert not any(row["truncated"] for row in rows)
    assert all(row["tokens"] == len(row["completion"]) + 1 for row in rows)


def test_no_metric_is_a_folder_of_another(tmp_path):
    """mlflow's file store writes a metric's values into a file of its name. It loses what is logged after a clash."""
    trained = train(tmp_path, zero_variance_groups="resample", beta=0.1, kl_target=0.1, max_steps=3)
    trained.evaluate(tiny_models.prompts(4))
    names = {name for entry in trained.state.log_history for name in entry}
    assert {"completions/mean_length", "completions/mean_length_of/alive", "alarms/dead_groups"} <= names
    assert [name for name in names if any(other.startswith(f"{name}/") for other in names)] == []


def test_truncated_is_what_trl_calls_clipped(tmp_path):
    trained = train(tmp_path, max_steps=3)
    shares = tiny_models.logged(trained, "completions/clipped_ratio")
    for step, share in enumerate(shares, 1):
        rows = [row for row in rows_of(tmp_path) if row["step"] == step]
        assert sum(row["truncated"] for row in rows) / len(rows) == pytest.approx(share)
    assert 0 < sum(shares) < len(shares)


def test_the_attempts_that_stopped_a_run_are_in_the_traces(tmp_path):
    options = {"zero_variance_groups": "resample", "resample_fallback": "raise", "max_resample_rounds": 1}
    trained = tiny_models.trainer(tmp_path, tiny_models.always_dead, **options)
    with pytest.raises(RuntimeError, match="still dead"):
        trained.train()
    groups = groups_of(tmp_path)
    assert [(group[0]["round"], group[0]["group"]) for group in groups] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {row["reason"] for group in groups for row in group} == {"zero_variance"}


def test_rewards_of_one_name_have_a_column_each(tmp_path):
    def same(completions, **kwargs):
        return [0.25] * len(completions)

    same.__name__ = "half"
    train(tmp_path, [half, same], max_steps=1)
    row = next(traces.groups(tmp_path / "run"))[0]
    assert row["rewards"]["half-2"] == 0.25
    assert row["reward"] == pytest.approx(row["rewards"]["half"] + 0.25)
    assert distinct(["a", "a", "a-2", "a"]) == ("a", "a-2", "a-2-2", "a-3")


def test_alarms_are_logged_journalled_and_marked(tmp_path, caplog):
    trained = train(tmp_path, tiny_models.always_dead, max_steps=8, alarm_thresholds=SOON_DEAD)
    on = tiny_models.logged(trained, "alarms/dead_groups")
    first = on.index(1.0) + 1
    assert 1 < first < 8
    alarms = [alarm for alarm in traces.journal(tmp_path / "run", "alarms") if alarm["name"] == "dead_groups"]
    assert [alarm["step"] for alarm in alarms] == [first]
    assert sum("Alarm dead_groups" in record.message for record in caplog.records) == 1
    marked = [group[0] for group in groups_of(tmp_path) if "dead_groups" in group[0]["alarms"]]
    assert {row["step"] for row in marked} == set(range(first, 9))
    of_first = {(row["batch"], row["round"], row["group"]) for row in marked if row["step"] == first}
    assert of_first == {tuple(place) for place in alarms[0]["groups"]}


def test_a_run_without_traces_says_that_little_was_learned(tmp_path, capsys):
    train(tmp_path, tiny_models.always_dead, max_steps=4, trace_every=0)
    out = capsys.readouterr().out
    assert "Little was learned in step" in out
    assert "To look at them" not in out


def test_alarms_hear_what_is_logged(tmp_path):
    """Alarms get the logged metrics of training, and not those of evaluations."""
    evaluated = {"eval_strategy": "steps", "eval_steps": 1, "extra": {"eval_dataset": tiny_models.prompts(4)}}
    trained = train(tmp_path, beta=0.1, **evaluated)
    heard = trained._recorder.state_dict()["logged"]
    for name in ("kl", "grad_norm"):
        assert heard[name]["last"] == [
            [entry["step"], entry[name]] for entry in trained.state.log_history if entry.get(name, 0.0) > 0
        ]
    assert len(heard["grad_norm"]["last"]) == 3
    assert any("eval_kl" in entry for entry in trained.state.log_history)
    assert set(heard) == {"kl", "grad_norm"}


KILLED = """
import os, signal, sys
from collections.abc import KeysView
from pathlib import Path
import tiny_models
from test_tracing import half

def deadly(completions, number, log_extra=None, **kwargs):
    deadly.calls += 1
    if deadly.calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return half(completions, number, log_extra=log_extra, **kwargs)

deadly.calls = 0
options = {"max_steps": 9, "save_strategy": "steps", "save_steps": 4, "zero_variance_groups": "drop"}
trained = tiny_models.trainer(Path(sys.argv[1]), deadly, **options)
trained.train(resume_from_checkpoint=True if sys.argv[3:] else None)
"""


def run_killed(*arguments, code=KILLED):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parent, Path(tiny_models.__file__).parent))),
    }
    return warm_processes.run([sys.executable, "-c", code, *arguments], env=environment)


def test_a_kill_loses_the_batch_in_flight_and_a_resume_tells_each_step_once(tmp_path):
    assert run_killed(tmp_path, "7").returncode == -signal.SIGKILL
    assert sorted(set(steps_of(tmp_path))) == list(range(1, 7))
    [first] = first_prompts(tmp_path)
    assert (first["step"], first["text"]) == (1, groups_of(tmp_path)[0][0]["prompt"])

    resumed = run_killed(tmp_path, "0", "resume")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    places = [(g[0]["step"], g[0]["batch"], g[0]["round"], g[0]["group"]) for g in groups_of(tmp_path)]
    assert places == [(step, 0, 0, group) for step in range(1, 10) for group in range(2)]
    check_identity(_as_two_rewards(groups_of(tmp_path)))
    aside = tmp_path / "run" / "rollouts" / "superseded-1"
    assert sorted(path.name for path in aside.glob("train*")) == ["train-00000005.jsonl", "train-00000006.jsonl"]
    steps = [entry["step"] for entry in traces.journal(tmp_path / "run", "metrics") if "reward" in entry]
    assert steps == list(range(1, 10))
    assert first_prompts(tmp_path) == [first]


def test_a_crash_loses_nothing_that_was_sampled(tmp_path):
    """Before Python exits, it writes the traces that the writing thread has not written yet."""
    slow = "import time; from trl_grpo_plus.traces import writer as w; append = w._append\n"
    slow += "w._append = lambda *given: (time.sleep(1), append(*given))\n"
    code = slow + KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(3)")
    code = code.replace('"max_steps": 9', '"max_steps": 9, "logging_steps": 100')
    done = run_killed(tmp_path, "4", code=code)
    assert done.returncode == 1
    assert "RewardError: reward 'deadly' failed" in done.stderr
    assert steps_of(tmp_path) == [1, 1, 2, 2, 3, 3]


def _as_two_rewards(groups):
    for group in groups:
        for row in group:
            score = letters([row["completion"]])[0]
            row["rewards"]["letters"] = score
            row["outcomes"]["letters"] = "ok" if score is not None else "abstain"
        yield group


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trace_every": -1}, "trace_every=-1"),
        ({"trace_every": 1.5}, "trace_every=1.5"),
        ({"trace_max_groups": 0}, "trace_max_groups=0"),
        ({"trace_log_groups": -2}, "trace_log_groups=-2"),
        ({"trace_compress": "no"}, "trace_compress='no'"),
        ({"alarms": 1}, "alarms=1"),
        ({"alarm_thresholds": "none"}, "alarm_thresholds='none'"),
        ({"alarm_thresholds": {"dead_group": 0.5}}, "dead_groups"),
        ({"alarm_thresholds": {1: 0.5}}, "alarm_thresholds: '1' is no alarm threshold"),
        ({"alarm_thresholds": {"dead_groups": "much"}}, "dead_groups"),
        ({"alarm_thresholds": '{"dead_groups": 2.0}'}, "dead_groups"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        tiny_models.trainer(tmp_path, half, **options)


def test_every_line_is_strict_json(tmp_path):
    def strange(completions, log_extra=None, **kwargs):
        log_extra("odd", [float("inf"), float("nan")] * (len(completions) // 2))
        return [float("nan") if i % 4 else 1.0 for i in range(len(completions))]

    train(tmp_path, strange, max_steps=2)
    for path in (tmp_path / "run" / "rollouts").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)
    rows = rows_of(tmp_path)
    assert {row["extra"]["odd"] for row in rows} == {None}
    assert [row["rewards"]["strange"] for row in rows[:4]] == [1.0, None, None, None]


def test_a_run_is_a_table(tmp_path):
    """pandas reads a run as docs/traces.md shows, even if a column is null in one step and not in the next."""
    tiny_models.trainer(tmp_path, tiny_models.half_dead, zero_variance_groups="drop", max_steps=6).train()
    attempts = pd.DataFrame(row for group in groups_of(tmp_path) for row in group)
    assert len(attempts) == 6 * 8
    assert "zero_variance" in set(attempts["reason"].dropna()) <= {"zero_variance", "filler"}
