"""Each command prints escape sequences of a model or a stranger as visible text, which a terminal does not obey."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_traces
import tiny_models
import trl
from packaging.version import Version
from trl.trainer import grpo_trainer

from trl_grpo_plus import registry
from trl_grpo_plus.cli.main import main
from trl_grpo_plus.cli.race import processes
from trl_grpo_plus.cli.race.plan import NAMES, STOCK, plan
from trl_grpo_plus.launch import Start
from trl_grpo_plus.scoring import RewardError
from trl_grpo_plus.trainer import completions_table
from trl_grpo_plus.utils.tables import FAILED, CheckRow, table
from trl_grpo_plus.utils.terminal import say


PRINTS_PARTS = Version(trl.__version__) >= Version("1.15")  # TRL before it fails on messages of parts
FOUL = "\x1b[2J\x1b]0;owned\x07\x9b31m\x08\r\u202e"
SEEN = r"\x1b[2J\x1b]0;owned\x07\x9b31m\x08\r\u202e"
REWARDS = r'''
from trl_grpo_plus.registry import Example, register_reward

FOUL = "\x1b[2J\x1b]0;owned\x07\x9b31m\x08\r\u202e"

@register_reward("foul", examples=[Example(FOUL, {}, 1.0)])
def foul(completions):
    """Quotes what it was given."""
    raise ValueError(f"cannot read {completions[0]}")
'''


def obeyed(text):
    """Return the characters of the text that a terminal would obey."""
    return re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", text)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Write a run with escape sequences in completions and in names of rewards, columns, a split and its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    (tmp_path / "mine.py").write_text(REWARDS)
    changes = {"prompt": FOUL, "reference": {FOUL: FOUL}, "extra": {FOUL: 1}, FOUL: 1}
    name = FOUL.replace("/", "")
    groups = []
    for split in ("train", f"eval_{name}"):
        rows = synthetic_traces.group([1.0, 0.0], split=split, **changes)
        groups.append([{**row, "completion": FOUL, "rewards": {FOUL: row["reward"]}} for row in rows])
    about = {"rewards": {FOUL: 1.0, "other": 1.0}}
    return str(synthetic_traces.write_traces(tmp_path / name, groups, about=about).relative_to(tmp_path))


def printed(capsys):
    out, err = capsys.readouterr()
    assert not obeyed(out + err)
    return out + err


def test_rescore(run, capsys):
    assert main(["rescore", run, "--reward", "mine.py:foul", "--against", FOUL]) == 0
    out = printed(capsys)
    assert out.count(SEEN) > 5
    assert f"'{SEEN}'  'ValueError: cannot read {SEEN}'" in out
    assert main(["rescore", run, "--reward", "exact_answer", "--split", "tain"]) == 2
    assert SEEN in printed(capsys)


def test_view_and_export(run, capsys):
    assert main(["view", run]) == 0
    assert SEEN in printed(capsys)
    for to in ("jsonl", "parquet", "hf"):
        assert main(["export", run, "--to", to, "-o", f"all-{to}"]) == 0
        assert "\\x1b" in printed(capsys)
    assert main(["export", run, "--to", "jsonl", "-o", "x.jsonl", "--drop", "nothing"]) == 2
    assert "\\x1b" in printed(capsys)
    (Path(run) / "rollouts" / "run.json").write_text("{")
    assert main(["view", run]) == 2
    assert f"error: {SEEN}/rollouts/run.json is not JSON" in printed(capsys)


def test_check(run, capsys):
    assert main(["check", "rewards", "mine.py:foul"]) == 1
    assert f"ValueError: cannot read {SEEN}" in " ".join(printed(capsys).split())
    assert main(["check", "rewards", "mine.py:missing"]) == 1
    printed(capsys)
    say(table([CheckRow("data", FAILED, f"row 1: {FOUL}, and\nmore"), CheckRow(FOUL, FAILED, "")]))
    rows = printed(capsys)
    name, below = SEEN, f"row 1: {SEEN}, and"
    assert f"{'data':<{len(name)}}  FAILED    {below}\n{'':<{len(name)}}            more\n" in rows


def test_race(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def start(command, environment, log):
        with open(log, "w") as file:
            code = f"print({FOUL!r} + 'the reason'); raise SystemExit(3)"
            return subprocess.Popen([sys.executable, "-c", code], stdout=file, stderr=file, start_new_session=True)

    monkeypatch.setattr(processes, "start", start)
    race = replace(plan(Start("arithmetic_cpu", ("--output_dir", "out"))), together=False)
    assert processes.run(race, "again") == 1
    err = printed(capsys)
    assert f"error: {NAMES[STOCK]} ended" in err
    assert "the reason" in err
    assert "\\x1b]0;owned\\x07\\x9b31m\\x08" in err


def test_a_run_that_a_reward_ends(tmp_path):
    def foul(completions, **kwargs):
        raise ValueError(FOUL)

    with pytest.raises(RewardError) as caught:
        tiny_models.trained(tmp_path, foul)
    assert not obeyed(str(caught.value))
    assert f"ValueError: {SEEN}" in str(caught.value)


def test_trls_table_of_completions(tmp_path, capsys):
    trainer = tiny_models.trainer(tmp_path, log_completions=True, per_device_train_batch_size=8, max_steps=1)
    parts = [{"type": "text", "text": FOUL}]
    messages = [{"role": "user", "content": parts if PRINTS_PARTS else FOUL}]
    arguments = json.dumps({"path": FOUL + "\x85"}, ensure_ascii=False)
    named = json.dumps({FOUL: {FOUL: 1}})
    calls = [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": named}}]},
        {"role": "assistant", "content": FOUL, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
    ]
    rows = {"prompt": messages, "completion": calls, "advantages": 1.0}
    for name, value in rows.items():
        trainer._logs[name].append(value)
    trainer._logs["rewards"]["mine"].append(1.0)
    trainer._logs["extra"]["note"].append(FOUL)
    original = grpo_trainer.print_prompt_completions_sample
    capsys.readouterr()
    trainer.log({"loss": 1.0})
    assert printed(capsys).count("x1b[") >= 3
    assert trainer._logs["prompt"][0] == messages, "what is written and sent stays as it was"
    assert grpo_trainer.print_prompt_completions_sample is original
    with completions_table.printed_visibly(object()):  # a release of TRL that prints in another way
        pass
