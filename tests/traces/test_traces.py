"""The traces on disk: what is written, what survives a kill and a resume, and what is read back."""

import gc
import gzip
import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import synthetic_traces
import torch
from file_limit import no_room

from trl_grpo_plus.rollouts.groups import Attempt, Plan, Round
from trl_grpo_plus.traces import Writer, advantages_by_token, complete, json_value, part_of, pick
from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.traces import writer as writing
from trl_grpo_plus.traces.writer import _append


ABOUT = {"rewards": {"accuracy": 1.0}, "num_generations": 2}


def attempt(text, number=0, **changes):
    return Attempt(
        **{"inputs": {"prompt": "p", "answer": "42"}, "prompt": "p", "prompt_ids": [1], "completion": text},
        **{"completion_ids": [1] * (2 + number), "truncated": number % 2 == 1, **changes},
    )


def one_round(scores, verdicts, name="r"):
    attempts = tuple(attempt(f"{name}{i}", i) for i in range(len(scores)))
    return Round(attempts, torch.tensor(scores).unsqueeze(1), tuple(verdicts))


def begun(folder, step=0, **options):
    """Return the writer of a training of 9 steps that starts at `step`."""
    writer = Writer(str(folder), about=ABOUT, **options)
    writer.begin(step, 9)
    return writer


def lines(step, split="train", count=2, **changes):
    places = [{"step": step, "split": split, "group": g, "attempt": a} for g in range(count) for a in (0, 1)]
    return [synthetic_traces.row(size=2, **place, **changes) for place in places]


def steps_of(run):
    firsts = [group[0] for group in traces.groups(run)]
    return [(row["split"], row["step"], row["batch"], row["group"]) for row in firsts]


def texts_in(run):
    return {(group[0]["split"], group[0]["step"], group[0]["completion"]) for group in traces.groups(run)}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def steps_in(run, journal):
    return [entry["step"] for entry in traces.journal(run, journal)]


# -- rows


def pairs(rounds, names=("r",), **changes):
    return synthetic_traces.sampled(rounds, dict.fromkeys(names, 1.0), 2, **{"step": 7, **changes})


def whole(batch, places=None, ranks=1):
    """Return the batch completed with the rows of the groups at `places`, as if `ranks` ranks had sampled it."""
    places = pick(batch.rounds, None) if places is None else places
    parts = []
    for rank in range(ranks):
        shares = [len(one.attempts) // ranks for one in batch.rounds]
        of_rounds = zip(batch.rounds, shares, strict=True)
        own = [replace(one, attempts=one.attempts[rank * n :][:n]) for one, n in of_rounds]
        parts.append(part_of(rank, replace(batch, rounds=own), places))
    return complete(batch, places, parts)


@pytest.fixture
def two_rounds():
    first = one_round([0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], ["alive", "all_bad", "all_good", "all_bad"], "a")
    second = one_round([1.0, 0.0, 0.0, 1.0], ["alive", "alive"], "b")
    plan = Plan(order=((0, 0), (1, 0), (0, 3)), live=(True, True, False))
    advantages = torch.tensor([-0.5, 0.5, 0.25, -0.25, 0.0, 0.0])
    return pairs([first, second], plan=plan, kl=torch.full((6,), 0.1), advantages=advantages)


def test_rows_say_whether_their_group_was_trained_on_and_why_not(two_rounds):
    rows = whole(two_rounds).lines
    assert {row["step"] for row in rows} == {7}
    assert {(row["round"], row["group"]): (row["kept"], row["reason"]) for row in rows} == {
        (0, 0): (True, None),
        (0, 1): (False, "zero_variance"),
        (0, 2): (False, "zero_variance"),
        (0, 3): (False, "filler"),
        (1, 0): (True, None),
        (1, 1): (False, "surplus"),
    }
    assert [row["completion"] for row in rows] == [f"a{i}" for i in range(8)] + [f"b{i}" for i in range(4)]
    assert [row["advantage"] for row in rows] == [-0.5, 0.5, 0, 0, 0, 0, 0, 0, 0.25, -0.25, None, None]
    assert [row["kl"] for row in rows] == [0.1, 0.1, *[None] * 6, 0.1, 0.1, None, None]
    assert rows[1]["reference"] == {"answer": "42"}
    assert rows[1]["rewards"] == {"r": 1.0}
    rows = whole(pairs([one_round([0.0, 1.0], ["alive"])], split="eval")).lines
    assert {(row["kept"], row["reason"]) for row in rows} == {(False, "evaluation")}


@pytest.mark.parametrize("ranks", [2, 4])
def test_rows_are_the_same_however_many_ranks_sampled_the_groups(two_rounds, ranks):
    every = whole(two_rounds).lines
    assert whole(two_rounds, ranks=ranks).lines == every
    chosen = [(0, 2), (1, 1)]
    some = whole(two_rounds, chosen, ranks)
    assert some.lines == [row for row in every if (row["round"], row["group"]) in chosen]
    assert some.tokens == [2 + n for n in (*range(8), *range(4))]
    assert some.truncated == [n % 2 == 1 for n in (*range(8), *range(4))]


LETTERS = SimpleNamespace(decode=lambda ids, skip_special_tokens: "".join(map(chr, filter(None, ids))))


@pytest.mark.parametrize("ranks", [1, 2])
def test_advantages_of_tokens_are_those_of_the_rows_trained_on(two_rounds, ranks):
    """Each rank reports the rows that it trains on, even if another rank sampled them."""
    places = [(0, 0), (0, 3), (1, 0), (1, 1)]
    plan = replace(two_rounds.plan, order=((1, 0), (0, 0), (0, 2), (0, 3)), live=(True, True, True, False))
    sampled = [two_rounds.rounds[r].attempts[group * 2 :][:2] for r, group in plan.order]
    trained = [replace(one, completion_ids=[*map(ord, one.completion), 0]) for pair in sampled for one in pair]
    trained[3] = replace(trained[3], tool_mask=[1, 0, 1])
    trained[6] = replace(trained[6], completion_ids=[1])
    values = torch.arange(8.0).unsqueeze(1) + torch.tensor([0.0, 0.25, 0.5, 9.0])
    batch = replace(two_rounds, plan=plan, advantages=values[:, 0])
    share = 8 // ranks
    parts = []
    for rank in range(ranks):
        mine = slice(rank * share, (rank + 1) * share)
        by_token = advantages_by_token(trained[mine], values[mine], LETTERS)
        whole_round = [replace(one, attempts=one.attempts if rank == 0 else ()) for one in batch.rounds]
        parts.append(part_of(rank, replace(batch, rounds=whole_round, by_token=by_token), places))
    assert {row for part in parts for row in part.runs} == {0, 1, 2, 3, 7}  # group (0, 2) is not traced
    rows = complete(batch, places, parts).lines
    assert {row["completion"]: row["advantages"] for row in rows if "advantages" in row} == {
        "b0": [(1, 0.0), (2, 0.25)],
        "b1": [(1, 1.0), (2, 1.25)],
        "a0": [(1, 2.0), (2, 2.25)],
        "a1": [(1, 3.0), (2, 0.0)],
        "a7": [(1, 7.0), (2, 7.25)],
    }
    assert [row["completion"] for row in rows if "advantages" not in row] == ["a6", "b2", "b3"]


def test_one_advantage_for_all_tokens_adds_nothing_to_a_row(two_rounds):
    assert advantages_by_token((), torch.zeros(6), LETTERS) is None
    assert not any("advantages" in row for row in whole(two_rounds).lines)


def test_outcomes_are_the_rewards_own_or_follow_from_the_score():
    attempts = attempt("a", outcomes=("timeout", None)), attempt("b", outcomes=(None, None))
    scores = torch.tensor([[0.0, math.nan], [1.0, 0.3]])
    first, second = whole(pairs([Round(attempts, scores, ("alive",))], names=("x", "y"))).lines
    assert first["outcomes"] == {"x": "timeout", "y": "abstain"}
    assert second["outcomes"] == {"x": "ok", "y": "ok"}
    assert first["rewards"] == {"x": 0.0, "y": None}
    assert second["rewards"] == {"x": 1.0, "y": 0.3}  # rounded from float32's 0.30000001192092896


def test_a_sample_of_groups_shows_each_verdict():
    verdicts = ["all_bad"] * 5 + ["alive"] * 3 + ["all_good"]
    rounds = [one_round([0.0] * 18, verdicts), one_round([0.0] * 2, ["tied"])]
    everyone = [*((0, group) for group in range(9)), (1, 0)]
    assert pick(rounds, None) == pick(rounds, 99) == everyone
    assert pick(rounds, 4) == [(0, 0), (0, 5), (0, 8), (1, 0)]
    assert pick(rounds, 6) == [(0, 0), (0, 1), (0, 5), (0, 6), (0, 8), (1, 0)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        (-math.inf, None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (torch.tensor([1.0, math.nan]), [1.0, None]),
        ({1: (True, None)}, {"1": [True, None]}),
        (np.array(["a"]), ["a"]),
        (b"abc", "b'abc'"),
        (b"x" * 1000, f"b'{'x' * 198}..."),  # a text of an unknown type is cut short
        (range(3), "range(0, 3)"),
        (object, "<class 'object'>"),
        (frozenset("a" * 400), "frozenset({'a'})"),
        (np.longdouble(2), "2.0"),
        (type("Text", (str,), {})("a" * 5000), "a" * 5000),
    ],
)
def test_anything_becomes_json(value, expected):
    assert json_value(value) == expected
    json.dumps(json_value(value), allow_nan=False)


# -- files


@pytest.mark.parametrize("compress", [False, True])
def test_traces_are_read_back_as_written(tmp_path, compress):
    writer = begun(tmp_path, compress=compress)
    text = "a\u2028b \ud800 </script> \x00 é"
    writer.write("eval_easy", 0, lines(0, "eval_easy"))
    writer.write("train", 1, lines(1, completion=text))
    writer.write("train", 1, lines(1, batch=1))
    writer.write("train", 12, lines(12))
    writer.write("eval_easy", 12, lines(12, "eval_easy"))
    writer.note("metrics", [{"step": 1, "reward": 0.5}])
    assert steps_of(tmp_path) == [
        *[("eval_easy", 0, 0, g) for g in (0, 1)],
        *[("train", 1, b, g) for b in (0, 1) for g in (0, 1)],
        *[("train", 12, 0, g) for g in (0, 1)],
        *[("eval_easy", 12, 0, g) for g in (0, 1)],
    ]
    assert [row["completion"] for group in traces.groups(tmp_path) for row in group].count(text) == 4
    assert traces.journal(tmp_path, "metrics") == [{"step": 1, "reward": 0.5}]
    assert traces.journal(tmp_path, "alarms") == []
    assert traces.about(tmp_path) == {**ABOUT, "max_steps": 9}
    opened = gzip.open if compress else open  # Python's gzip reads files of several members
    with opened(tmp_path / "rollouts" / ("train-00000001.jsonl" + ".gz" * compress), "rt", encoding="utf-8") as file:
        assert len(file.readlines()) == 8
    assert list(traces.groups(tmp_path)) == list(traces.groups(tmp_path / "rollouts"))


@pytest.mark.parametrize("compress", [False, True])
def test_groups_that_a_kill_cut_off_are_left_out(tmp_path, compress):
    writer = Writer(str(tmp_path), compress, ABOUT)
    writer.write("train", 0, lines(0))
    path = next((tmp_path / "rollouts").iterdir())
    first = path.stat().st_size
    writer.write("train", 0, lines(0, batch=1))
    whole = path.read_bytes()
    for size in range(first, len(whole)):
        path.write_bytes(whole[:size])
        left = steps_of(tmp_path)
        assert left[:2] == [("train", 0, 0, 0), ("train", 0, 0, 1)]
        assert len(left) < 4 or compress  # gzip: all lines may be there if only the checksum is cut off
        assert all(len(group) == 2 for group in traces.groups(tmp_path))
    path.write_bytes(whole)
    assert len(steps_of(tmp_path)) == 4


def test_a_resumed_run_has_each_step_once(tmp_path):
    first = begun(tmp_path)
    first.write("eval", 0, lines(0, "eval", completion="first"))
    for step in range(1, 7):
        first.write("train", step, lines(step, completion="first"))
        first.note("alarms", [{"step": step, "name": "x"}])
        first.note("metrics", [{"step": step}])
        if step == 4:
            first.write("eval", step, lines(step, "eval", completion="first"))
    second = begun(tmp_path, 4)
    # A checkpoint at step 4 is written after the batch, the evaluation and the log entry of step 4.
    kept = {("eval", 0, "first"), ("eval", 4, "first"), *(("train", step, "first") for step in range(1, 5))}
    assert texts_in(tmp_path) == kept
    assert (steps_in(tmp_path, "metrics"), steps_in(tmp_path, "alarms")) == ([1, 2, 3, 4], [1, 2, 3, 4])
    second.write("train", 5, lines(5, completion="second"))
    assert texts_in(tmp_path) == {*kept, ("train", 5, "second")}
    aside = ["alarms.jsonl", "metrics.jsonl", "train-00000005.jsonl", "train-00000006.jsonl"]
    assert names(tmp_path / "rollouts" / "superseded-1") == aside

    begun(tmp_path, 5)
    assert not (tmp_path / "rollouts" / "superseded-2").exists()


def test_a_kill_while_a_run_resumes_loses_no_entry_of_a_journal(tmp_path, monkeypatch):
    first = begun(tmp_path)
    for step in range(1, 7):
        first.write("train", step, lines(step))
        first.note("metrics", [{"step": step}])
    with monkeypatch.context() as patched:
        patched.setattr(writing, "replace", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            begun(tmp_path, 4)
    begun(tmp_path, 4)
    assert steps_in(tmp_path, "metrics") == [1, 2, 3, 4]
    assert {step for _, step, _ in texts_in(tmp_path)} == {1, 2, 3, 4}


def test_a_new_run_does_not_mix_with_an_old_one(tmp_path):
    old = begun(tmp_path, compress=True)
    old.write("eval", 0, lines(0, "eval"))
    old.write("train", 7, lines(7))
    old.note("metrics", [{"step": 8}])
    new = begun(tmp_path)
    new.write("train", 0, lines(0, completion="new"))
    assert texts_in(tmp_path) == {("train", 0, "new")}
    assert traces.journal(tmp_path, "metrics") == []
    assert len(list((tmp_path / "rollouts" / "superseded-1").iterdir())) == 3
    new.write("eval", 1, lines(1, "eval"))
    new.note("metrics", [{"step": 1}, {"step": 2}])
    new.begin(2, 9)  # the same trainer resumes
    assert traces.journal(tmp_path, "metrics") == [{"step": 1}, {"step": 2}]
    new.begin(0, 9)  # the same trainer trains again
    assert (tmp_path / "rollouts" / "metrics.jsonl").read_bytes() == b""
    with pytest.raises(ValueError, match="has no attempts"):
        traces.find(tmp_path)


def test_an_evaluation_before_training_is_part_of_the_run(tmp_path):
    writer = Writer(str(tmp_path), about=ABOUT)
    writer.fresh("eval", 0)
    writer.write("eval", 0, lines(0, "eval", completion="before"))
    writer.note("metrics", [{"step": 0, "eval_reward": 0.5}])
    assert traces.about(tmp_path) == ABOUT
    writer.begin(0, 9)
    writer.write("train", 0, lines(0, completion="trained"))
    assert texts_in(tmp_path) == {("eval", 0, "before"), ("train", 0, "trained")}
    assert traces.journal(tmp_path, "metrics") == [{"step": 0, "eval_reward": 0.5}]


def test_an_evaluation_alone_leaves_the_run_in_its_folder_as_it_is(tmp_path):
    run = begun(tmp_path)
    run.write("eval", 0, lines(0, "eval"))
    run.write("train", 0, lines(0))
    run.note("metrics", [{"step": 1}])
    before = list(traces.groups(tmp_path)), traces.journal(tmp_path, "metrics")
    alone = Writer(str(tmp_path), about=ABOUT)
    alone.fresh("eval", 0)
    alone.write("eval", 0, lines(0, "eval", completion="alone"))
    alone.note("metrics", [{"step": 0}])
    assert (list(traces.groups(tmp_path)), traces.journal(tmp_path, "metrics")) == before
    assert texts_in(tmp_path / "rollouts" / "evaluation-1") == {("eval", 0, "alone")}


def test_a_second_evaluation_of_a_step_replaces_the_first(tmp_path):
    writer = begun(tmp_path)
    for text in ("first", "second"):
        writer.fresh("eval", 4)
        assert [writer.number("eval", 4), writer.number("eval", 4)] == [0, 1]
        for batch in (0, 1):
            writer.write("eval", 4, lines(4, "eval", batch=batch, completion=text))
    assert texts_in(tmp_path) == {("eval", 4, "second")}
    assert len(steps_of(tmp_path)) == 4
    assert (tmp_path / "rollouts" / "superseded-1" / "eval-00000004.jsonl").exists()


def test_batches_of_a_step_are_numbered(tmp_path):
    writer = Writer(str(tmp_path), about=ABOUT)
    assert [writer.number("train", 0), writer.number("eval", 0), writer.number("train", 0)] == [0, 0, 1]
    writer.begin(1, 9)
    assert writer.number("train", 0) == 0


def test_a_writer_keeps_no_memory_of_past_steps(tmp_path):
    """Memory does not grow with the steps. Evaluations before the training stay part of the run."""
    writer = Writer(str(tmp_path))
    writer.number("eval", 0)
    writer.write("eval", 0, [])

    def train(steps):
        for step in steps:
            assert [writer.number("train", step) for _ in range(2)] == [0, 1]
            for _ in range(2):
                writer.write("train", step, [])
        gc.collect()
        return sys.getallocatedblocks()

    writer.begin(0, 300)
    # pathlib interns file names, and CPython 3.12 never frees them. Intern them now, so that they are not counted.
    names = [sys.intern(f"train-{step:08d}.jsonl{suffix}") for step in range(300) for suffix in ("", ".gz")]
    before = train(range(100))
    assert names
    assert train(range(100, 300)) - before < 200
    writer.begin(300, 400)
    assert (tmp_path / "rollouts" / "eval-00000000.jsonl").exists()


def test_a_write_that_fails_leaves_whole_lines(tmp_path):
    path = tmp_path / "full.jsonl"
    path.write_bytes(b"{}\n")
    with no_room(), pytest.raises(OSError, match="File too large"):
        _append(path, b"x" * 5000)
    assert path.read_bytes() == b"{}\n"


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_a_folder_without_traces_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="output_dir of a run"):
        traces.find(tmp_path / name)


def test_an_unreadable_journal_is_moved_aside_and_the_attempts_stay(tmp_path):
    old = begun(tmp_path)
    old.write("train", 0, lines(0))
    (tmp_path / "rollouts" / "metrics.jsonl").write_text('{"step": 1.5}\n')
    new = Writer(str(tmp_path), about=ABOUT)
    new.begin(1, 9)
    new.write("train", 1, lines(1))
    new.note("metrics", [{"step": 2}])
    assert {step for _, step, _ in texts_in(tmp_path)} == {0, 1}
    assert traces.journal(tmp_path, "metrics") == [{"step": 2}]
    aside = tmp_path / "rollouts" / "superseded-1" / "metrics.jsonl"
    assert aside.read_text() == '{"step": 1.5}\n'
