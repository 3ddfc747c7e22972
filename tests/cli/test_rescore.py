"""`trl-grpo-plus rescore`, on made-up runs."""

import dataclasses
import io
import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import synthetic_traces
import torch

from trl_grpo_plus.cli.main import main
from trl_grpo_plus.cli.rescore import agreement, command, effect, page, requested_rewards, scored_groups, scoring_loop
from trl_grpo_plus.cli.rescore.command import limits
from trl_grpo_plus.cli.rescore.scored_groups import ScoredGroups
from trl_grpo_plus.objective import advantages
from trl_grpo_plus.scoring import Outcome
from trl_grpo_plus.traces import Writer, group_index
from trl_grpo_plus.utils.validation import ConfigError


REWARDS = '''
import time
from trl_grpo_plus.registry import RewardSpec
from trl_grpo_plus.rewards.combine import gate

def broken(completions, answer, number):
    """Every 7th is wrong."""
    right = [float(text == wanted) for text, wanted in zip(completions, answer)]
    return [1.0 - one if at % 7 == 0 else one for one, at in zip(right, number)]

async def later(completions, answer, **kwargs):
    return [0.25 for _ in completions]

def of_prompts(prompts, completions, log_extra, log_metric):
    log_extra("length", [len(prompt) for prompt in prompts])
    log_metric("mean", 1.0)
    return [None if prompt.endswith("1") else 1.0 for prompt in prompts]

def fussy(completions, answer):
    return [1 / (len(text) - 4) for text in completions]

def slow(completions):
    if completions[0] == "slow":
        time.sleep(600)
    return [1.0 for _ in completions]

def interrupted(completions, number):
    if max(number) >= 20:
        raise KeyboardInterrupt
    return [0.0 for _ in completions]

def alike(completions, **columns):
    return [1.0 for _ in completions]

def first_only(completions, answer):
    return [float(completions[0] == answer[0])]

def failing(completions):
    times.append(len(completions))
    raise ValueError("all of them")

times = []
gated = gate(alike, by=RewardSpec(failing, on_error="zero").build())

def anser(completions, anser): ...

def ids(completions, completion_ids): ...

def from_env(completions, env_reward):
    return env_reward
'''


def rows_of(scores, step=0, group=0, number=0, **changes):
    """Return a group whose attempts have these recorded scores of `exact_answer`, numbered from `number`."""
    made = []
    (given,) = advantages.compute(torch.tensor([scores])).tolist()
    alike = "all_good" if scores[0] else "all_bad"
    for attempt, score in enumerate(scores):
        made.append(
            synthetic_traces.row()
            | {"step": step, "group": group, "attempt": attempt, "size": len(scores)}
            | {"prompt": f"{step} + {group}", "completion": "42" if score else "no 42"}
            | {"reference": {"answer": "42", "number": number + attempt}}
            | {"rewards": {"exact_answer": score}, "outcomes": {"exact_answer": "ok"}, "reward": score}
            | {"advantage": given[attempt], "verdict": "alive" if len(set(scores)) > 1 else alike}
            | changes
        )
    return made


SCORES = [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
GROUPS = [
    rows_of(scores, step, group, 4 * (4 * step + group)) for step in range(3) for group, scores in enumerate(SCORES)
]
ATTEMPTS = [row for group in GROUPS for row in group]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Write a run of 48 numbered attempts in 12 groups and 3 steps, and a file of rewards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(REWARDS)
    synthetic_traces.write_traces(tmp_path / "run", GROUPS, about={"rewards": {"exact_answer": 1.0}})
    return "run"


def lines_of(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def group_of(old, new, verdict="alive", status="ok", **more):
    """Return a group as rescoring makes it: a reward "new" is compared with a recorded "old"."""
    outcomes = {"new": [Outcome(score, status) for score in new]}
    recorded = {"old": old, "reward": old, **more}
    place = {"step": 0, "batch": 0, "round": 0, "group": 0}
    return scoring_loop.Group(place, verdict, recorded, [None] * len(old), outcomes, [""] * len(old))


# -- the command


def test_the_runs_own_reward_agrees(run, capsys):
    assert main(["rescore", run, "--reward", "exact_answer"]) == 0
    out = capsys.readouterr().out
    assert "48 attempts in 12 groups" in out
    assert "exact_answer against the recorded exact_answer" in out
    assert "equal     48 of 48 (100.00 %)" in out
    assert "mean      0.4375 recorded, 0.4375 now" in out
    assert "differs" not in out
    table = [line.split() for line in out.splitlines() if line.startswith("  a")]
    assert ["alive", "6", "0", "0"] in table
    assert ["all_good", "0", "3", "0"] in table
    assert ["all_bad", "0", "0", "3"] in table
    assert (
        "advantages: r = 1.000, recorded advantages against GRPO's of the new total, over 6 groups alive both times"
        in out
    )
    assert "do not follow" not in out


def test_a_group_of_low_variance_is_alive_by_its_own_rewards(tmp_path, capsys):
    left_out = rows_of([1.0, 0.0, 0.0, 0.0], group=1, number=4, verdict="low_variance", advantage=None)
    synthetic_traces.write_traces(
        tmp_path / "run", [rows_of(SCORES[0]), left_out], about={"rewards": {"exact_answer": 1}}
    )
    assert main(["rescore", str(tmp_path / "run"), "--reward", "exact_answer"]) == 0
    out = capsys.readouterr().out
    assert ["alive", "2"] in [line.split() for line in out.splitlines()]
    assert not [line for line in out.splitlines() if line.split()[:1] == ["low_variance"]]
    assert "do not follow" not in out


def test_planted_errors_are_found(run, capsys):
    """Every 7th attempt is scored wrong. The report names each of them by kind and place, and no other attempt."""
    assert main(["rescore", run, "--reward", "mine.py:broken", "--output", "judged.jsonl"]) == 0
    out = capsys.readouterr().out
    planted = [row for row in ATTEMPTS if row["reference"]["number"] % 7 == 0]
    wrongs = Counter("1 -> 0" if row["reward"] else "0 -> 1" for row in planted)
    assert len(wrongs) == 2
    assert "broken against the recorded total" in out
    assert f"equal     {48 - len(planted)} of 48" in out
    for kind, count in wrongs.items():
        assert f"  {kind:<8}  {count:>8}\n" in out
    assert not any(f"  {kind}  " in out for kind in set(agreement.KINDS) - set(wrongs))
    shown = [line for line in out.splitlines() if line.startswith("    step")]
    at = {f"step {row['step']}, group {row['group']}, attempt {row['attempt']} " for row in planted}
    assert len(shown) == len(at) == 7
    assert all(any(place in line for line in shown) for place in at)
    lines = lines_of("judged.jsonl")
    assert [line["attempt"] for line in lines] == [row["attempt"] for row in ATTEMPTS]
    assert [line["recorded"]["reward"] for line in lines] == [row["reward"] for row in ATTEMPTS]
    differ = [number for number, line in enumerate(lines) if line["new"]["broken"] != line["recorded"]["reward"]]
    assert differ == [row["reference"]["number"] for row in planted]
    assert {line["outcome"]["broken"] for line in lines} == {"ok"}
    assert lines[47] | {"new": 0, "recorded": 0} == {
        **{"step": 2, "split": "train", "batch": 0, "round": 0, "group": 3, "attempt": 3},
        **{"recorded": 0, "new": 0, "outcome": {"broken": "ok"}},
    }


def test_a_reward_reads_what_rollout_func_returned_for_each_attempt(tmp_path, run, capsys):
    told = {"extra": {"env_reward": -1.0, "completions": ""}}  # what rewards logged is no column
    groups = [[{**row, **told, "returned": {"env_reward": row["reward"]}} for row in group] for group in GROUPS]
    synthetic_traces.write_traces(tmp_path / "told", groups, about={"rewards": {"exact_answer": 1.0}})
    assert main(["rescore", "told", "--reward", "mine.py:from_env", "--against", "exact_answer"]) == 0
    assert "equal     48 of 48 (100.00 %)" in capsys.readouterr().out


def test_a_reward_of_another_name_is_compared_with_the_one_that_is_named(run, capsys):
    rewards = ["--reward", "mine.py:broken", "--against", "exact_answer", "--output", "out.jsonl"]
    assert main(["rescore", run, *rewards]) == 0
    out = capsys.readouterr().out
    assert "broken against the recorded exact_answer" in out
    assert "Groups, with broken instead of the recorded exact_answer in the total" in out
    assert {*lines_of("out.jsonl")[0]["recorded"]} == {"exact_answer"}


def test_examples_are_from_all_over_a_run(run, capsys):
    assert main(["rescore", run, "--reward", "mine.py:later"]) == 0
    out = capsys.readouterr().out
    of_higher = out.partition("  higher")[2].splitlines()[1:6]
    assert {line.split()[1] for line in of_higher} == {"0,", "1,", "2,"}
    assert out.count("    step ") == 10
    assert "0 -> 0.25" in of_higher[0]


def test_several_rewards_are_compared_with_each_other(run, capsys):
    again = ["--reward", "exact_answer", "--args", '{"column": "number"}']
    with pytest.raises(SystemExit, match="2"):
        main(["rescore", run])
    rewards = ["--reward", "exact_answer", "--reward", "mine.py:broken", "--reward", "exact_answer"]
    assert main(["rescore", run, *rewards]) == 0
    out = capsys.readouterr().out
    *_, head, broken, same, recorded, _, page = out.splitlines()
    assert page.startswith("run/rescore.html: a page that opens on the disagreements, 0.")
    assert head.split() == ["r,", "equal", "exact_answer", "broken", "exact_answer-2"]
    pairs = [(row["reward"], abs(row["reward"] - (row["reference"]["number"] % 7 == 0))) for row in ATTEMPTS]
    r = torch.corrcoef(torch.tensor(pairs).T)[0, 1].item()
    assert broken.split() == ["broken", f"{r:.3f}", f"{41 / 48:.2%}".removesuffix("%"), "%"]
    assert same.split() == ["exact_answer-2", "1.000", "100.00", "%", *broken.split()[1:]]
    assert recorded.split() == ["recorded", "total", "1.000", "100.00", "%", *broken.split()[1:], *same.split()[1:4]]
    assert main(["rescore", run, *again]) == 2  # the column `number` holds no texts
    assert "answer=0 is no text" in capsys.readouterr().err


def test_through_the_real_command(run, tmp_path):
    command = [sys.executable, "-m", "trl_grpo_plus.cli.main", "rescore", run, "--reward", "exact_answer"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "48 of 48" in done.stdout


def test_files_are_written_if_nobody_reads_the_report(run, tmp_path):
    names = str(tmp_path / "judged.jsonl"), str(tmp_path / "judged.html")
    command = [sys.executable, "-u", "-m", "trl_grpo_plus.cli.main", "rescore", run, "--reward", "exact_answer"]
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run([*command, "-o", names[0], "-o", names[1]], stdout=writes, timeout=120, cwd=tmp_path)
    finally:
        os.close(writes)
    assert done.returncode == 0
    assert len(lines_of(names[0])) == 48
    assert Path(names[1]).read_text().endswith("</html>\n")


def test_rewards_get_prompts_and_loggers_that_do_nothing(run, capsys):
    assert main(["rescore", run, "--reward", "mine.py:of_prompts", "--output", "out.jsonl"]) == 0
    ones = [row["prompt"].endswith("1") for row in ATTEMPTS]
    assert [line["outcome"]["of_prompts"] == "abstain" for line in lines_of("out.jsonl")] == ones
    assert "  now None        12\n" in capsys.readouterr().out


def test_the_last_steps_and_another_split(run, capsys):
    synthetic_traces.write_traces(Path(run), [rows_of([1.0, 0.0], 3, split="eval_hard", advantage=None)])
    assert main(["rescore", run, "--reward", "exact_answer", "--last", "2"]) == 0
    assert "train, steps 1 to 2, 32 attempts in 8 groups" in capsys.readouterr().out
    assert main(["rescore", run, "--reward", "exact_answer", "--split", "eval_hard"]) == 0
    out = capsys.readouterr().out
    assert "eval_hard, steps 3 to 3, 2 attempts in 1 groups" in out
    assert out.splitlines()[-3] == "  advantages: no group that was trained on is alive both times"
    assert main(["rescore", run, "--reward", "mine.py:later", "--split", "eval_hard"]) == 0
    assert "    step 3, group 0, attempt 0  1 -> 0.25" in capsys.readouterr().out


# -- failures


def test_a_function_that_scores_one_completion_alone_fails_on_all(run, capsys):
    """It returns one reward, which is right for a call with one completion. A training run would stop."""
    assert main(["rescore", run, "--reward", "mine.py:first_only", "--output", "out.jsonl"]) == 0
    assert {line["outcome"]["first_only"] for line in lines_of("out.jsonl")} == {"error"}
    assert "it returned 1 rewards for 4 completions" in capsys.readouterr().out


@pytest.mark.parametrize("without_answer", [set(), {2, 18}])
def test_only_the_bad_attempts_of_a_failing_batch_get_an_error(run, without_answer):
    """One bad attempt makes the call on a whole batch fail. Only the bad attempts get an error."""
    bad = {3, 17, 40}
    texts = ["four" if number in bad else "12345" for number in range(len(ATTEMPTS))]
    groups = [[{**row, "completion": texts[row["reference"]["number"]]} for row in group] for group in GROUPS]
    for row in (row for group in groups for row in group if row["reference"]["number"] in without_answer):
        row["reference"] = {**row["reference"], "answer": None}
    (one,) = requested_rewards.build([("mine.py:fussy", {"column": "answer"})], None, [])
    found = list(scoring_loop.scored(groups, [one]))
    outcomes = [outcome for group in found for outcome in group.outcomes["fussy"]]
    assert {number for number, outcome in enumerate(outcomes) if outcome.status == "error"} == bad
    assert {number for number, outcome in enumerate(outcomes) if outcome.status == "abstain"} == without_answer
    assert {outcome.score for number, outcome in enumerate(outcomes) if number not in bad | without_answer} == {1.0}
    assert outcomes[3].message.strip().endswith("ZeroDivisionError: division by zero")


def test_a_time_limit_holds(run, capsys):
    changed = [{**row, "completion": "slow" if row["reference"]["number"] == 6 else "42"} for row in ATTEMPTS]
    groups = [changed[start : start + 4] for start in range(0, 48, 4)]
    (one,) = requested_rewards.build([("mine.py:slow", {})], None, [], timeout=1.0)
    found = list(scoring_loop.scored(groups, [one]))
    differences = agreement.agreement(found, "slow", "reward").differences
    assert list(differences["time-out"]) == [1 * agreement.PLACES + 2]
    assert (found[1].recorded["reward"][2], found[1].outcomes["slow"][2].score) == (1.0, None)
    assert found[1].outcomes["slow"][2].message == "It was stopped after 1 s."
    zeros = sum(not row["reward"] for row in ATTEMPTS)
    assert {kind: len(of_kind) for kind, of_kind in differences.items()} == {"0 -> 1": zeros, "time-out": 1}


def test_the_error_of_a_part_of_a_combination_is_shown_and_its_score_counts(run, capsys):
    (one,) = requested_rewards.build([("mine.py:gated", {})], None, [])
    found = list(scoring_loop.scored(GROUPS[:2], [one]))
    outcomes = [outcome for group in found for outcome in group.outcomes[one.label]]
    assert {(outcome.score, outcome.status) for outcome in outcomes} == {(0.0, "error")}
    assert "ValueError: all of them" in outcomes[0].message
    failing = one.function.parts[1].definition.function
    assert failing.__globals__["times"] == [8]  # once: on_error of the part decides, so there is no retry
    assert main(["rescore", str(run), "--reward", "mine.py:gated"]) == 0
    assert "would stop" not in capsys.readouterr().out


def test_the_share_of_passed_tests_is_rescored_from_traces_of_python_tests(tmp_path, capsys, monkeypatch):
    """The recipe for code names this command, in place of a second reward that would run each program again."""
    tests = [{"stdin": "1", "stdout": "1"}, {"stdin": "2", "stdout": "2"}]
    programs = {"```python\nprint(input())\n```": 1.0, "```python\nprint(1)\n```": 0.5, "None.": 0.0}
    changes = {"rewards": {"python_tests": 0.0}, "outcomes": {"python_tests": "ok"}, "reference": {"tests": tests}}
    rows = rows_of([0.0] * len(programs), **changes)
    group = [{**row, "completion": program} for row, program in zip(rows, programs, strict=True)]
    monkeypatch.chdir(tmp_path)
    synthetic_traces.write_traces(tmp_path / "run", [group], about={"rewards": {"python_tests": 1.0}})
    args = ["--args", '{"time_s": 6, "credit": "fraction"}', "--output", "out.jsonl"]
    assert main(["rescore", "run", "--reward", "python_tests", *args]) == 0
    assert "python_tests against the recorded python_tests" in capsys.readouterr().out
    assert [row["new"]["python_tests"] for row in lines_of("out.jsonl")] == list(programs.values())


class Small(io.BytesIO):
    """A file on a disk that has room for 2000 bytes."""

    def write(self, data):
        return super().write(data[: max(2000 - self.tell(), 0)])


def test_what_was_scored_before_the_temporary_folder_was_full_is_kept(run, capsys, monkeypatch):
    folder = SimpleNamespace(TemporaryFile=lambda **options: Small(), gettempdir=lambda: "/small")
    monkeypatch.setattr(scored_groups, "tempfile", folder)
    assert main(["rescore", run, "--reward", "mine.py:broken", "--output", "out.jsonl"]) == 1
    captured = capsys.readouterr()
    room = "error: /small has no room for the scores (no space left). Set TMPDIR to a folder with more room."
    assert captured.err == f"{room} The report covers what was scored until then.\n"
    written = len(lines_of("out.jsonl"))
    assert 0 < written < len(ATTEMPTS)
    assert f"{written} attempts in " in captured.out


def test_what_was_scored_before_ctrl_c_is_kept(run, capsys, monkeypatch):
    monkeypatch.setattr(scoring_loop, "FIRST", 8)
    monkeypatch.setattr(scoring_loop, "MOST", 8)
    assert main(["rescore", run, "--reward", "mine.py:interrupted", "--output", "out.jsonl"]) == 130
    captured = capsys.readouterr()
    assert captured.err == "Interrupted. The report covers what was scored until then.\n"
    assert "16 attempts in 4 groups" in captured.out
    assert len(lines_of("out.jsonl")) == 16
    monkeypatch.setattr(scoring_loop, "FIRST", 400)
    assert main(["rescore", run, "--reward", "mine.py:interrupted", "--output", "other.jsonl"]) == 130
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Interrupted. Nothing was scored until then.\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--reward", "mine.py:anser"], "needs the column 'anser', the data has answer, number. Did you mean answer?"),
        (["--reward", "math_answer", "--args", '{"column": "anwser"}'], "'anwser', the data has answer, number. Did"),
        (["--reward", "mine.py:ids"], "needs completion_ids, which traces do not hold"),
        (["--reward", "exact_anser"], "Did you mean exact_answer"),
        (["--reward", "org/model"], "is a reward model. Give a function"),
        (["--reward", "exact_answer", "--against", "exact"], "--against='exact' is not one of 'reward', 'exact_answ"),
        (["--reward", "exact_answer", "--split", "tain"], "have no 'tain', only train. Did you mean train?"),
        (["--reward", "exact_answer", "--last", "0"], "--last=0 must be an integer and >= 1."),
        (["--reward", "exact_answer", "--timeout", "-1"], "--timeout=-1.0 must be a finite number and > 0."),
        (["--reward", "exact_answer", "--args", "[]"], "--args: '[]' is not a JSON object"),
        (["--args", "{}", "--reward", "exact_answer"], "--args {} comes before any --reward"),
        (["--reward", "exact_answer", "--args", "{}", "--args", "{}"], "'exact_answer' already has arguments"),
        (["--reward", "exact_answer", "--output", "mine.py"], "mine.py already exists"),
        (["--reward", "exact_answer", "--output", "mine.py/a"], "mine.py/a cannot be written: "),
    ],
)
def test_what_cannot_be_scored_is_refused_before_any_scoring(run, capsys, monkeypatch, options, says):
    monkeypatch.setattr(requested_rewards.RequestedReward, "score", lambda *args: pytest.fail("scored"))
    assert main(["rescore", run, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err


def test_a_line_without_a_score_is_named(run):
    groups = [[{key: value for key, value in row.items() if key != "rewards"} for row in GROUPS[1]]]
    (one,) = requested_rewards.build([("exact_answer", {})], None, [])
    says = "split train, step 0, batch 0, round 0, group 1, attempt 0 has no rewards"
    with pytest.raises(ConfigError, match=says):
        list(scoring_loop.scored(groups, [one]))


def test_hostile_texts_reach_no_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def loud(completions):\n    raise ValueError('\\x1b[2J\\u202e' + completions[0])\n"
    )
    text = "\x1b[31mred\r\n\x07\u202e\u2028\ud800\x00end"
    synthetic_traces.write_traces(tmp_path, [rows_of([1.0, 0.0], completion=text)])
    assert main(["rescore", ".", "--reward", "mine.py:loud", "--output", "out.jsonl"]) == 0
    out = capsys.readouterr().out
    assert r"'\x1b[31mred\r\n\x07\u202e\u2028\ud800\x00end'" in out
    assert all(char == "\n" or char.isprintable() for char in out)
    assert out.encode()
    assert "A training run would stop at these: on_error is 'raise'." in out
    assert len(lines_of("out.jsonl")) == 2


# -- functions


@pytest.mark.parametrize(
    ("old", "new", "status", "expected"),
    [
        (0.0, 1.0, "ok", "0 -> 1"),
        (1.0, 0.0, "ok", "1 -> 0"),
        (0.5, 0.25, "ok", "lower"),
        (1.0, 2.0, "ok", "higher"),
        (None, 0.0, "ok", "was None"),
        (0.0, None, "abstain", "now None"),
        (1.0, None, "error", "error"),
        (1.0, 0.0, "timeout", "time-out"),
        (1.0, None, "starved", "starved"),
        (None, None, "error", None),
        (0.0, 0.0, "timeout", None),
        (0.3333333, 1 / 3, "ok", None),
        (0.3333333, 0.333335, "ok", "higher"),
    ],
)
def test_kinds_of_differences(old, new, status, expected):
    assert agreement.kind(old, new, status) == expected
    assert expected is None or expected in agreement.KINDS


def test_the_rounding_of_traces_is_no_difference():
    for score in (1 / 3, 0.1 + 0.2, 123456.789, -1e-9, None):
        (kept,) = [None] if score is None else torch.tensor([score]).double().round(decimals=7).tolist()
        found = agreement.agreement([group_of([kept], [score])], "new", "old")
        assert (found.attempts, found.equal) == (1, 1)


def test_which_groups_would_have_been_alive():
    groups = [
        group_of([1.0, 0.0], [1.0, 1.0]),
        group_of([1.0, 0.0], [0.25, 0.25]),
        group_of([0.0, 0.0], [1.0, 0.0], "all_bad"),
        group_of([0.0, 0.0, 0.0], [0.0, 0.5, 0.0], "all_bad"),
        group_of([1.0, 1.0], [None, None], "all_good"),
        group_of([1.0, 0.0], [1.0, 0.0], "truncated"),
        group_of([1.0, 1.0], [1.0, 1.0], "alive"),  # its verdict does not follow from the rewards
    ]
    found = effect.effect(groups, "new", "reward", {}, {})
    pairs = [("alive", "all_good"), ("alive", "tied"), ("all_bad", "alive"), ("all_bad", "alive")]
    pairs += [("all_good", "unscored"), ("truncated", "truncated"), ("alive", "all_good")]
    assert found.table == Counter(pairs)
    assert (found.unexplained, found.alive) == (1, 0)
    solved = limits({"solved_reward": 0.25, "zero_variance_tolerance": 0.6, "max_steps": 9})
    assert solved == {"solved_reward": 0.25, "tolerance": 0.6}
    judged = effect.effect(groups[:4], "new", "reward", {}, solved).table
    assert judged == Counter({("alive", "all_good"): 2, ("all_bad", "alive"): 1, ("all_bad", "all_good"): 1})


def test_a_reward_takes_the_place_of_the_one_that_it_is_compared_with():
    group = group_of([1.0, 0.0, None], [0.5, 0.5, 0.5], other=[0.0, 1.0, None], watched=[9.0, 9.0, 9.0])
    weights = {"old": 2.0, "other": 1.0}
    assert effect.new_totals([group], "new", "old", weights).tolist() == [[1.0, 2.0, 1.0]]
    for alone in ("reward", "watched"):
        assert effect.new_totals([group], "new", alone, weights).tolist() == [[0.5, 0.5, 0.5]]


def test_advantages_are_grpos_and_of_groups_alive_in_both():
    made = [group_of([1.0, 0.0, 0.0], [0.5, 0.0, 0.25]), group_of([1.0, 0.0, 0.0], [1.0, 1.0, 1.0])]
    made.append(group_of([0.0, 0.0, 0.0], [1.0, 0.0, 0.0], "all_bad"))
    made.append(group_of([1.0, 0.0, 1.0], [0.0, 1.0, 0.0]))  # a surplus group has no advantages
    for group in made[:3]:
        group.advantages[:] = advantages.compute(torch.tensor([group.recorded["old"]])).tolist()[0]
    found = effect.effect(made, "new", "reward", {}, {})
    assert found.alive == 1
    pair = torch.tensor([made[0].advantages, [1.0, -1.0, 0.0]])
    assert found.advantages == pytest.approx(torch.corrcoef(pair)[0, 1].item(), abs=1e-4)


def test_groups_come_back_from_the_disk_as_they_were_scored():
    made = [group_of([1.0, None], [0.25, None], other=[0.5, 0.5]), group_of([1.0], [0.0], "all_good", "timeout")]
    made[0].tails[:] = ["\ud800 end", "é"]
    made[1].outcomes["new"][0] = Outcome(0.0, "timeout", "It was stopped.")
    found = ScoredGroups()
    for group in made:
        found.append(group)
    assert (len(found), found.attempts) == (2, 3)
    assert [*found] == made
    assert found[-1] == made[1]
    assert isinstance(found[1].outcomes["new"][0], Outcome)
    found.append(made[0])  # appending works after a read
    assert [found[1], found[2]] == [made[1], made[0]]


def test_a_comparison_in_batches_equals_one_of_all_groups(monkeypatch):
    rng = random.Random(0)
    made = []
    for n in range(40):
        scores = [[float(rng.random() < 0.5) for _ in range(2 + n % 3)] for _ in range(2)]
        made.append(group_of(*scores, "alive" if len({*scores[0]}) > 1 else "all_good"))
        made[-1].advantages[:] = advantages.compute(torch.tensor([scores[0]])).tolist()[0]
    monkeypatch.setattr(effect, "BATCH", 10**6)
    whole = effect.effect(made, "new", "reward", {}, {})
    monkeypatch.setattr(effect, "BATCH", 7)
    apart = effect.effect(made, "new", "reward", {}, {})
    assert apart._replace(advantages=None) == whole._replace(advantages=None)
    assert apart.advantages == pytest.approx(whole.advantages)
    assert 0 < whole.alive < 40


def test_differences_name_their_groups_and_attempts():
    made = [group_of([1.0, 0.0], [1.0, 0.0]), group_of([1.0, 0.0], [0.0, 0.0]), group_of([1.0, 1.0], [0.0, 0.0])]
    found = agreement.agreement(made, "new", "old").differences["1 -> 0"]
    assert [divmod(place, agreement.PLACES) for place in found] == [(1, 0), (2, 0), (2, 1)]


def pearson(*parts):
    found = agreement.Pearson()
    for part in parts:
        found.add(*part)
    return found.r


def test_pearson_needs_two_sides_that_differ():
    assert pearson([(1.0, 2.0), (2.0, 4.0)], [(None, 7.0), (9.0, None)]) == pytest.approx(1.0)
    assert pearson([(1.0, 2.0), (-2.0, -4.0)]) == pytest.approx(-1.0)
    assert pearson([(1.0, 1.0), (2.0, 4.0)]) is None
    assert pearson([(0.1, 0.1 + 1e-7, 0.1), (1.0, 2.0, 3.0)]) is None
    assert pearson() is pearson([(1.0,), (2.0,)]) is None


def test_pearson_of_scores_far_from_zero_is_exact():
    far, near = [1e8 + n % 7 for n in range(99)], [n % 5 for n in range(99)]
    exact = torch.corrcoef(torch.tensor([far, near], dtype=torch.float64))[0, 1].item()
    assert pearson((far[:7], near[:7]), (far[7:], near[7:])) == pytest.approx(exact, abs=1e-9)


def test_attempts_that_agree_take_no_memory():
    group = group_of([1.0, 0.0] * 4, [1.0, 0.0] * 4)
    tracemalloc.start()
    counts = agreement.agreement([group] * 5_000, "new", "old")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (counts.equal, counts.old_mean, counts.new_mean) == (40_000, 0.5, 0.5)
    assert peak < 4 * 40_000


def test_a_page_keeps_few_bytes_of_groups_whose_verdict_changes():
    group = group_of([1.0, 0.0], [1.0, 1.0])
    groups = [
        dataclasses.replace(group, place={**group.place, "step": n // 100, "group": n % 100}) for n in range(5000)
    ]
    (reward,) = requested_rewards.build([("exact_answer", {})], None, [])
    tracemalloc.start()
    kept = page.rescored(
        effect.Rescoring(groups, "train", [dataclasses.replace(reward, label="new", against="old")], {}, {})
    )
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept.of([{**groups[4999].place}] * 2).verdicts == [["new", "all_good"]]
    assert kept.differs("train", (49, 0, 0, 99)) is True
    assert memory < 150 * 5_000


# -- the progress bar


@pytest.fixture
def indexed(tmp_path, monkeypatch):
    """Write a run of three steps and 48 attempts with its index, and return the folder of its traces."""
    monkeypatch.chdir(tmp_path)
    writer = Writer("run", about={"rewards": {"exact_answer": 1.0}})
    writer.begin(0, 3)
    for step in range(3):
        writer.write("train", step, [row for row in ATTEMPTS if row["step"] == step])
    return Path("run/rollouts")


@pytest.fixture
def counted(monkeypatch):
    """Return the list that collects the names of the files whose lines are counted."""
    names, lines = [], command.lines_of
    monkeypatch.setattr(command, "lines_of", lambda path: names.append(path.name) or lines(path))
    return names


def test_attempts_are_counted_by_the_index_where_it_is_whole(indexed, counted):
    assert command.attempts_to_score("run", "train", 0) == 48
    assert command.attempts_to_score("run", "train", 1) == 32
    assert counted == []
    with open(indexed / "train-00000001.jsonl", "a") as file:
        file.write(json.dumps(ATTEMPTS[16]) + "\n")
    assert command.attempts_to_score("run", "train", 0) == 49
    assert counted == ["train-00000001.jsonl"]
    (indexed / group_index.NAME).unlink()
    assert command.attempts_to_score("run", "train", 0) == 49
    assert len(counted) == 1 + 3


@pytest.mark.parametrize("shown", [True, False])
def test_attempts_are_counted_only_for_a_bar_that_is_shown(indexed, monkeypatch, shown):
    totals = []

    class Bar(command.tqdm):
        def __init__(self, **options):
            super().__init__(**{**options, "disable": not shown})

        def __exit__(self, *error):
            totals.append((self.n, self.total))
            super().__exit__(*error)

    monkeypatch.setattr(command, "tqdm", Bar)
    assert main(["rescore", "run", "--reward", "exact_answer"]) == 0
    assert totals == [(48, 48) if shown else (0, None)]


def test_attempts_are_numbered_as_in_the_traces_whatever_their_order(tmp_path, monkeypatch):
    """A line of another attempt would be named as the one that a reward disagrees with."""
    monkeypatch.chdir(tmp_path)
    rows = synthetic_traces.group([0.0, 1.0])
    synthetic_traces.write_traces(tmp_path / "run", [rows[::-1]], about={"rewards": {"accuracy": 1.0}})
    (tmp_path / "own.py").write_text("def accuracy(completions, **columns):\n    return [0.0] * len(completions)\n")
    assert main(["rescore", "run", "--reward", "own.py:accuracy", "--output", "scores.jsonl"]) == 0
    recorded = {line["attempt"]: line["recorded"]["accuracy"] for line in lines_of("scores.jsonl")}
    assert recorded == {row["attempt"]: row["rewards"]["accuracy"] for row in rows}


@pytest.mark.parametrize("name", ["train-99999999.jsonl", "page.html"])
def test_nothing_is_written_among_the_runs_own_files(run, capsys, name):
    assert main(["rescore", run, "--reward", "exact_answer", "--output", f"{run}/rollouts/{name}"]) == 2
    assert "among the run's own files" in capsys.readouterr().err
    assert not Path(run, "rollouts", name).exists()
