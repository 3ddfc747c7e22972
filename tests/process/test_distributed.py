"""Training on two real processes (gloo): no deadlock, equal verdicts and weights, and TRL's results where it has some.

The processes are forked warm and find each other as torchrun's do. tests/process/test_recipes.py uses real launchers.
"""

import itertools
import json
import os
import re
import shutil
import sys
from pathlib import Path

import collectives as ledger
import distributed_worker
import pytest
import tiny_models
import torch
import warm_processes

from trl_grpo_plus.scoring import RewardError
from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.utils.distributed import lost_process
from trl_grpo_plus.utils.validation import RunError


WORKER = Path(__file__).parents[1] / "helpers" / "distributed_worker.py"
RESAMPLED = ["resample", "resample_iterations", "set_column", "object_column", "one_rank_all_dead"]
AGREEING = [*RESAMPLED, "drop_straddling", "logs_on_one_rank", "truncated", "kl_to_go", "beliefs", "ahead", "behind"]
AGREEING += ["estimated", "entropies", "steps", "columns"]
OTHERS = ["world", "parity", "drop", "skip", "filler", "filler_entropy", "brought_by_one_rank", "fallback_raise"]
OTHERS += ["reward_fails", "rollout_fails", "unsendable", "nonfinite", "stream_fails", "outcomes", "traces", "whole"]
OTHERS += [
    "attached",
    "estimated_alone",
    "estimator_fails",
    "nonfinite_groups",
    "saved_by_one_rank",
    "held_by_another",
    "unlike_disks",
    "refused_by_one_rank",
    "parcels",
    "collectives",
    "tool_turns",
    "reset_fails",
]


def launch(out, *scenarios, ok=True, **environment):
    # The timeout ends a deadlock. It is far longer than the scenarios take.
    command = [sys.executable, WORKER, out, *scenarios]
    done = warm_processes.run_ranks(
        command, env={**os.environ, "ACCELERATE_USE_CPU": "true", **environment}, timeout=900
    )
    assert (done.returncode == 0) == ok, done.stderr[-5000:]


def results(out, scenario):
    return [json.loads((out / f"{scenario}-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    launch(folder, *AGREEING, *OTHERS)
    return folder


@pytest.fixture(scope="module")
def rest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rest")
    launch(folder, "parity", "drop", "filler", "filler_entropy", REST="1")
    return folder


EACH_LOSS = [("out", 5), pytest.param("rest", 11, marks=pytest.mark.full)]


def test_each_rank_takes_every_turn_of_tools_and_gets_the_completions_of_its_prompts(out):
    """The ranks have 5 and 2, 2 and 2, 1 and 0 prompts in a turn. The server is asked in equal shares."""
    first, second = results(out, "tool_turns")
    assert first["right"]
    assert second["right"]
    assert (first["calls"], second["calls"]) == ([8, 4, 2], [])  # one more prompt where the number is odd
    assert second["told"] == "KeyError: 'a tool of the second rank'"
    assert "a tool of the second rank" in first["told"]


def test_there_are_two_processes(out):
    assert results(out, "world") == [{"size": 2, "kind": "DistributedType.MULTI_CPU"}] * 2


@pytest.mark.parametrize(("losses", "cases"), EACH_LOSS)
def test_defaults_are_trl(request, losses, cases):
    first, second = results(request.getfixturevalue(losses), "parity")
    assert len(first) == cases
    for case, runs in first.items():
        assert runs["ours"]["weights"] == runs["theirs"]["weights"], case
        assert runs["ours"]["losses"] == runs["theirs"]["losses"], case
        assert second[case]["ours"]["weights"] == runs["ours"]["weights"], case


def test_attach_changes_nothing_and_an_alarm_ends_both(out):
    first, second = results(out, "attached")
    assert first["attached"] == first["alone"]
    assert second == first
    assert 4 <= first["halted"] < 16
    attempts = [row for group in traces.groups(out / "attached" / "watched" / "run") for row in group]
    assert len(attempts) == 2 * 2 * 8  # two batches of both ranks
    assert {row["verdict"] for row in attempts}


def assert_live_alone(distances, cases, trained):
    assert len(distances) == cases
    for case, distance in distances.items():
        assert distance["trained"] == [trained] * 2, case
        assert max(distance["weights"], distance["loss"]) < 5e-6, case


@pytest.mark.parametrize(("losses", "cases"), EACH_LOSS)
@pytest.mark.parametrize(("scenario", "trained"), [("drop", 2), ("filler", 1)])
def test_dropping_is_training_on_the_live_groups_alone(request, losses, cases, scenario, trained):
    for distances in results(request.getfixturevalue(losses), scenario):
        assert_live_alone(distances, cases, trained)


def test_skipping_is_trls_training_on_all_groups(out):
    for of_rank in results(out, "skip"):
        for loss_type, ours in of_rank.items():
            assert ours["trained"] == [2, 2]
            assert ours["weights"] < 5e-6, loss_type


@pytest.mark.parametrize(("losses", "cases"), [("out", 4), pytest.param("rest", 7, marks=pytest.mark.full)])
def test_filler_is_not_in_the_entropy_bonus(request, losses, cases):
    for rank in results(request.getfixturevalue(losses), "filler_entropy"):
        assert_live_alone(rank["alone"], cases, trained=1)


def test_the_entropy_coefficient_moves_on_all_ranks_alike_and_not_on_filler(out):
    first, second = results(out, "filler_entropy")
    assert first["weights"] == second["weights"]
    adapted = first["adapted"]
    assert adapted == second["adapted"]
    assert adapted["rows"].count(0) >= 2
    assert sum(adapted["rows"]) == 2
    steps = [after - before for before, after in itertools.pairwise([0.0, *adapted["coefficients"]])]
    assert steps[4:] == pytest.approx([0.01 if live else 0.0 for live in adapted["rows"]])
    assert adapted["last"] > 1.0


def test_a_functions_advantages_of_tokens_are_those_of_the_live_groups_alone(out):
    for distances in results(out, "estimated_alone"):
        assert_live_alone(distances, 2, trained=1)


def test_a_baseline_reads_the_column_of_its_group_on_whatever_rank_that_lies(out):
    for rank in results(out, "columns"):
        assert len(rank["apart"]) >= 4
        assert max(rank["apart"]) < 1e-6


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails_on_one_rank", "KeyError: 'a bug on"),
        ("differs_by_rank", "different advantages"),
        ("baseline_fails_on_one_rank", "KeyError: 'a bug on"),
        ("baseline_differs_by_rank", "different advantages"),
    ],
)
def test_an_advantage_function_that_fails_on_one_rank_stops_both_with_one_message(out, name, words):
    first, second = (rank[name] for rank in results(out, "estimator_fails"))
    assert f"{name}'" in first["error"]
    assert words in first["error"]
    assert first["error"] == second["error"]
    assert first["took"] < 60


@pytest.mark.parametrize("scenario", AGREEING)
def test_ranks_agree(out, scenario):
    first, second = results(out, scenario)
    assert first["weights"] == second["weights"]
    assert first["step"] == second["step"] == 4
    assert first["alive"]


def test_ranks_keep_the_same_states_and_may_read_as_many(out):
    first, second = (rank["kept"] for rank in results(out, "beliefs"))
    assert first == second
    assert len(first["rows"]) > 8


@pytest.mark.parametrize(("scenario", "size", "known"), [("ahead", 9, 25), ("behind", 3, 12)])
def test_ranks_read_a_stream_alike(out, scenario, size, known):
    first, second = results(out, scenario)
    assert [first[name] for name in ("window", "known", "learned")] == [
        second[name] for name in ("window", "known", "learned")
    ]
    assert len(set(first["window"])) == size
    assert len(first["known"]) == known
    # Each of the last batch's three prompts lies in the window.
    assert set(first["prompts"][-12:]) <= set(first["window"])
    assert [first["prompts"][-12:].count(prompt) for prompt in set(first["prompts"][-12:])] == [4] * 3


@pytest.mark.parametrize("scenario", RESAMPLED)
def test_resampling_is_collective(out, scenario):
    first, second = results(out, scenario)
    by_step: dict = {}
    for (step, mine), (other_step, other) in zip(first["calls"], second["calls"], strict=True):
        assert (step, len(mine)) == (other_step, len(other))
        by_step.setdefault(step, []).append(mine + other)
    assert max(first["rounds"]) > 0
    for calls in by_step.values():
        for rows in calls:  # whole groups in global order
            assert all(len(set(rows[i : i + 4])) == 1 for i in range(0, len(rows), 4))
        numbers = [rows[i] for rows in calls for i in range(0, len(rows), 4)]
        assert len(numbers) == len(set(numbers)), "a prompt twice in a step"


def test_the_batch_holds_whole_groups_in_order(out):
    """After the exchange each group of four rows has one prompt, and its advantages sum to 0."""
    for rank in results(out, "resample"):
        prompts, completions, advantages = rank["table"]
        assert len(prompts) == len(completions) == len(advantages) > 0
        for i in range(0, len(prompts), 4):
            assert len(set(prompts[i : i + 4])) == 1
            assert sum(advantages[i : i + 4]) == pytest.approx(0.0, abs=1e-4)


def test_steps_travel_resume_and_are_traced_on_both_ranks(out):
    first, second = results(out, "steps")
    assert first["resumed"] == second["resumed"] == first["weights"]
    assert max(first["rounds"]) > 0
    assert first["broken"]["error"] == second["broken"]["error"]
    assert "cannot be credited. The text" in first["broken"]["error"]
    rows = [row for group in traces.groups(out / "steps" / "run") for row in group]
    for row in rows:
        (scored,) = distributed_worker.steps_of_characters([row["completion"]], [row["reference"]["number"]])
        assert row["steps"].get("steps_of_characters") == ([[s.end, s.reward] for s in scored] if scored else None)
    assert len({row["prompt"] for row in rows if row["round"]}) > 1


def test_ranks_agree_on_what_is_truncated(out):
    """One group of three is alive in each batch.

    For prompts 0 to 2 it is the last group. For prompts 3 to 5 it is the group on both ranks, all of whose rows on one
    rank are masked.
    """
    for rank in results(out, "truncated"):
        assert rank["truncated"] == pytest.approx([2 / 3] * 4)
        assert rank["trained"] == [1] * 4


def test_a_column_logged_on_one_rank_does_not_hang(out):
    first, _ = results(out, "logs_on_one_rank")
    pairs = {(note, prompt) for note, prompt in zip(first["notes"], first["prompts"], strict=True) if note}
    assert pairs
    assert all(note == prompt for note, prompt in pairs)


def test_masks_and_log_probs_that_one_rank_brings_are_kept(out):
    first, second = ranks = results(out, "brought_by_one_rank")
    assert first["weights"] == second["weights"]
    assert sum(first["moved"]) == 2
    for rank in ranks:
        assert all(loss == loss for loss in rank["losses"])
        assert rank["trained"] == [3, 3]
        assert rank["masked"] == rank["moved"]
        assert not rank["masked_later"]
        assert rank["unknown"] == [tiny_models.KNOWS_NAN and not row for row in rank["moved"]]
        assert rank["corrected"] == [tiny_models.KNOWS_NAN and row for row in rank["moved"]]


def test_every_rank_raises(out):
    for rank in results(out, "fallback_raise"):
        assert "are still dead" in rank["error"]


@pytest.mark.parametrize(
    ("reward", "words"),
    [("fails_on_one_rank", "KeyError: 'a bug on the second rank'"), ("infinite_on_one_rank", "or None, got inf")],
)
def test_a_reward_that_fails_on_one_rank_stops_both_with_one_message(out, reward, words):
    first, second = (rank[reward] for rank in results(out, "reward_fails"))
    assert f"reward '{reward}' failed" in first["error"]
    assert words in first["error"]
    assert first["error"] == second["error"]
    assert first["took"] < 60  # a rank alone in a collective waits for half an hour


def test_a_loss_that_is_not_finite_on_one_rank_stops_both_before_the_step(out):
    first, second = results(out, "nonfinite")
    assert first["error"] == second["error"]
    assert re.match(r"Step 4: the norm of the gradient is nan \(loss \S+, inf on ranks 0 to 1\)", first["error"])
    assert "nonfinite/run/rollouts/train-00000004.jsonl" in first["error"]
    assert "All log-probs, ratios and advantages are finite, so the error arose in the loss" in first["error"]
    assert first["took"] < 60
    assert first["weights"] == second["weights"]
    assert first["saved"]
    assert second["saved"]


def test_a_group_of_the_second_rank_is_named_on_both(out):
    first, second = results(out, "nonfinite_groups")
    assert "Not finite in attempts of group 3 of round 0, sampled at step 1 ('03+03='): log-probs. " in first["error"]
    assert first["error"] == second["error"]


def test_a_checkpoint_is_whole_once_all_ranks_have_saved_theirs(out):
    """Otherwise one rank would go on after a save at which another rank ends, and remove the older checkpoints."""
    whole = {"without_state": [1], "without_random_state": [1, 2, 3]}
    for (part, steps), step in zip(whole.items(), (2, 4), strict=True):
        first, second = (rank[part] for rank in results(out, "saved_by_one_rank"))
        assert f"checkpoint-{step} was not saved completely: trainer_state.json is missing" in first["error"]
        assert "No space left on device" in second["error"]
        for rank in (first, second):
            lacks = {f"checkpoint-{step}": "trainer_state.json is missing, the file that is written last"}
            assert rank["lacks"] == {**{f"checkpoint-{step}": "" for step in steps}, **lacks}


def test_a_checkpoint_that_the_first_rank_cannot_write_stops_both(out):
    first, second = (rank["without_model"] for rank in results(out, "saved_by_one_rank"))
    assert "No space left on device" in first["error"]
    assert "checkpoint-1 was not saved completely" in second["error"]


def test_what_one_rank_refuses_stops_both_with_one_message(out):
    first, second = results(out, "refused_by_one_rank")
    in_turn = ["no model on the second rank", "no data on the first rank", "no answers on the second rank"]
    assert first["errors"] == second["errors"] == in_turn
    assert (first["loading"], second["loading"]) == ([0], [1])


def test_ranks_whose_states_are_of_several_runs_all_generate_anew(out):
    """The folder holds the first rank's state of a run on one process, and the second rank's of a run on two."""
    first, second = results(out, "saved_by_one_rank")
    assert first["step"] == 3
    for what in ("weights", "beta", "running_variance"):
        assert first[what] == second[what]
    assert first["beta"] > 0.5


def test_the_first_rank_chooses_the_checkpoint_of_all(out):
    first, second = results(out, "unlike_disks")
    assert first["told"] == second["told"]
    assert "the machine of rank 1, has no folder" in first["told"]["0"]
    assert first["told"]["1"] is None, "the first rank has none, so the run starts anew on both"
    assert second["left"] == ["earlier-1"], "the second rank's machine moved its earlier run out of the way"


def test_a_rank_s_state_that_cannot_be_read_stops_both_with_one_message(out):
    first, second = results(out, "nonfinite")
    unreadable, *lacking = first["refused"]
    assert "grpo_plus_state_1.pt cannot be read" in unreadable
    for part, told in zip(("running_variance", "beta"), lacking, strict=True):
        assert f"grpo_plus_state_1.pt does not hold the state that this release reads (KeyError: '{part}')" in told
    assert first["refused"] == second["refused"]


def test_a_rank_that_is_killed_ends_the_other_with_an_error(tmp_path):
    """No launcher watches the processes here.

    (A rank that hangs is waited for until `ddp_timeout`, half an hour. This test waits for five minutes.)
    """
    command = [sys.executable, WORKER, tmp_path, "killed"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    done = warm_processes.run_ranks(command, env=environment, timeout=300, end_all=False)
    assert done.returncode
    assert re.search(r"RuntimeError: .*(closed by peer|reset by peer)", done.stderr, re.IGNORECASE), done.stderr[
        -3000:
    ]
    assert {group[0]["step"] for group in traces.groups(tmp_path / "killed" / "run")} >= {1, 3, 5, 7}


LIMIT = """
import sys, torch
from trl_grpo_plus import GRPOPlusConfig

args = GRPOPlusConfig(sys.argv[1], use_cpu=True, bf16=False, ddp_timeout=180)
group = torch.distributed.distributed_c10d._get_default_group()
print(args.world_size, group._get_backend(torch.device("cpu")).options._timeout)
"""


def test_processes_on_cpus_wait_as_long_as_ddp_timeout_says(tmp_path):
    """transformers itself passes `ddp_timeout` on only with GPUs."""
    done = warm_processes.run_ranks([sys.executable, "-c", LIMIT, tmp_path], timeout=300)
    assert done.stdout == "2 0:03:00\n" * 2, done.stderr[-3000:]


def raised(error, module):
    """Raise the error in code of `module`, catch it and return it."""
    with pytest.raises(type(error)) as caught:
        exec("raise error", {"error": error, "__name__": module})
    return caught.value


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            RuntimeError("Read error\n[10.0.0.2]:4216: Connection reset by peer."),
            "[10.0.0.2]:4216: Connection reset by",
        ),
        (RuntimeError("Timed out waiting 20000ms for recv operation to complete"), "Timed out waiting 20000ms"),
        (
            torch.distributed.DistBackendError("NCCL error in: x.cpp:12\nremote process exited"),
            "remote process exited",
        ),
        (torch.distributed.DistStoreError("Timed out after 61 seconds waiting for clients"), "Timed out after 61"),
        (torch.distributed.DistBackendError("Duplicate GPU detected"), None),
        (RewardError("mine: ConnectionResetError: Connection reset by peer"), None),
        (RunError("wandb failed (BrokenPipeError: Broken pipe)"), None),
        (RuntimeError("The size of tensor a (3) must match"), None),
        (ConnectionResetError("Connection reset by peer"), None),  # a reward's own connection
    ],
)
def test_an_error_says_whether_another_process_is_lost(error, line, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    error = raised(error, "torch.distributed.distributed_c10d")
    assert (lost_process(error) or "").startswith(line) if line else lost_process(error) is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert lost_process(error) is None


def test_a_tool_that_times_out_is_no_lost_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for words in ("search tool timed out after 30 s", "the browser said: Broken pipe"):
        assert lost_process(raised(RuntimeError(words), "my_tools")) is None
        assert lost_process(raised(RuntimeError(words), "torch.distributed.distributed_c10d")) == words


def test_a_folder_that_another_run_holds_is_refused_on_both_with_one_message(out):
    first, second = results(out, "held_by_another")
    assert first["error"] == second["error"]
    assert f"held_by_another/run: process {second['pid']} on " in first["error"]
    assert first["weights"] == second["weights"]


def test_a_stream_that_fails_on_the_first_rank_stops_both(out):
    for in_take, in_observe, in_its_state, *_ in results(out, "stream_fails"):
        assert "there are no more rows" in in_take["error"]
        assert "nothing can be learnt from these rows" in in_observe["error"]
        assert "checkpoint-1 was not saved completely" in in_its_state["error"]
        assert "RuntimeError: this stream is of the moment" in in_its_state["error"]


def test_what_a_stream_hands_over_is_refused_on_both_ranks_in_the_same_words(out):
    told = [[refused["error"] for refused in refusals] for _, _, _, *refusals, _ in results(out, "stream_fails")]
    assert "FromBehind.take dealt row -1. A row is a whole number" in told[0][0]
    assert "Unloadable.state_dict()['rows'] holds a numpy.ndarray" in told[0][1]
    assert told[0] == told[1]


def test_rows_that_the_second_rank_alone_cannot_read_ahead_stop_both(out):
    for *_, streamed in results(out, "stream_fails"):
        assert "this row is out of reach" in streamed["error"]


def test_each_rank_gets_the_parcels_that_are_for_it(out):
    first, second = results(out, "parcels")
    assert first["gloo"] == first["in pieces"] == first["another"] == ["for zero"]
    assert second["gloo"] == second["in pieces"] == second["another"] == ["for one" * 9, "for itself"]


def test_rows_of_the_second_rank_that_cannot_be_sent_stop_both(out):
    for rank in results(out, "unsendable"):
        assert "cannot be sent to the process that trains on it (TypeError: cannot pickle" in rank["error"]


def test_a_rollout_func_that_fails_on_the_second_rank_stops_both(out):
    for rank in results(out, "rollout_fails"):
        *uneven, failed = (told["error"] for told in rank)
        assert [told.partition(".")[0] for told in uneven] == [
            f"rollout_func returned {count} completions for 8 prompts" for count in (7, 9)
        ]
        assert "the environment's server is gone" in failed


def test_a_reset_that_fails_on_the_second_rank_stops_both_with_its_error(out):
    first, second = results(out, "reset_fails")
    for told in first:
        assert told["error"] == "rank 1: ConnectionError: the environment's server is gone"
        assert told["took"] < 60
    assert [told["error"] for told in second] == ["the environment's server is gone"] * 2


def test_outcome_rates_are_of_all_ranks(out):
    first, second = results(out, "outcomes")
    assert first["timeout"] == second["timeout"] == pytest.approx([4 / 24])
    assert first["weights"] == second["weights"]


@pytest.mark.parametrize("mode", distributed_worker.TRACED_MODES)
def test_traces_are_those_of_one_process(out, tmp_path, mode):
    """With the same prompts and completions, traces have the same rows on one process and on two."""
    distributed_worker.traces(tmp_path, rows=16, modes=[mode])
    ours, theirs = list(traces.groups(tmp_path / mode)), list(traces.groups(out / "traces" / mode))
    assert len(ours) == len(theirs) > 16
    for mine, other in zip(itertools.chain(*ours), itertools.chain(*theirs), strict=True):
        for key in ("kl", "advantage"):
            assert mine.pop(key) == pytest.approx(other.pop(key), abs=1e-4), key
    assert ours == theirs


def test_the_first_rank_gets_no_more_at_once_than_its_bound(out):
    first, second = (rank["pieces"] for rank in results(out, "traces"))
    assert max(first) == 200 >= max(second)
    assert first.count(200) > len(first) / 2


TENSORS, OBJECTS, EXCHANGES = ledger.TENSORS, ledger.OBJECTS, ledger.EXCHANGES
BROADCASTS, SUMS = ledger.BROADCASTS, ledger.SUMS
# mode -> the collectives that this package adds to TRL's in one generation batch. docs/collectives.md lists them too.
COLLECTIVES = {
    "TRL": {},
    "everything off": {TENSORS: 1},
    "alarms": {TENSORS: 2, EXCHANGES: 1},
    "traces": {TENSORS: 2, EXCHANGES: 1},
    "keep, traces, alarms": {TENSORS: 2, EXCHANGES: 1},
    "keep, traces, alarms, halt_on_alarm": {TENSORS: 2, EXCHANGES: 1, BROADCASTS: 1},
    "skip, traces, alarms": {TENSORS: 3, OBJECTS: 1, EXCHANGES: 2},
    "drop": {TENSORS: 2, OBJECTS: 1, EXCHANGES: 1},
    "drop, traces, alarms": {TENSORS: 3, OBJECTS: 1, EXCHANGES: 2},
    "drop, one group live (filler)": {TENSORS: 4, OBJECTS: 1, EXCHANGES: 1},
    "drop, rollout_func": {TENSORS: 3, OBJECTS: 1, EXCHANGES: 1},
    "resample, one more round": {TENSORS: 4, OBJECTS: 1, EXCHANGES: 1, BROADCASTS: 1},
    "resample, one more round, traces, alarms": {TENSORS: 5, OBJECTS: 1, EXCHANGES: 2, BROADCASTS: 1},
    "belief baseline": {TENSORS: 2},
    "prompt choice": {TENSORS: 2, BROADCASTS: 1},
    "prompt choice, belief baseline": {TENSORS: 2, BROADCASTS: 1},
    "belief baseline and head": {TENSORS: 3},
    "prompt choice, belief baseline and head": {TENSORS: 3, BROADCASTS: 2},
    "prompt choice, resample, traces, alarms": {TENSORS: 6, OBJECTS: 1, EXCHANGES: 2, BROADCASTS: 2},
    "prompt choice, belief baseline, traces, alarms": {TENSORS: 3, EXCHANGES: 1, BROADCASTS: 1},
    "steps": {TENSORS: 1, OBJECTS: 1},
    "advantage function": {TENSORS: 3, OBJECTS: 1},
    "baseline with a column": {TENSORS: 3, OBJECTS: 2},
    "KL in the reward": {TENSORS: 3, SUMS: 1},
    "vLLM checked": {TENSORS: 3},
}


@pytest.mark.parametrize("mode", ledger.MODES)
def test_a_batch_takes_so_many_collectives(out, mode):
    first, second = (rank["batch"] for rank in results(out, "collectives"))
    for of_rank in (first, second):
        assert of_rank[mode]["ours"]["kinds"] == COLLECTIVES[mode], of_rank[mode]["ours"]["sites"]
    assert first[mode]["theirs"]["kinds"] == second[mode]["theirs"]["kinds"]
    if not any(word in mode for word in ("resample", "vLLM")):  # TRL does more in each further round, and for vLLM
        assert first[mode]["theirs"]["kinds"] == first["TRL"]["theirs"]["kinds"]


def test_a_batch_of_twice_the_rows_takes_no_more_collectives(out):
    for rank in results(out, "collectives"):
        for mode, of_twice in rank["twice"].items():
            for owner in ("ours", "theirs"):
                assert of_twice[owner]["sites"] == rank["batch"][mode][owner]["sites"], mode
    together = {site for mode in ledger.TOGETHER for site in rank["batch"][mode]["ours"]["sites"]}
    assert together == {site for of_mode in rank["batch"].values() for site in of_mode["ours"]["sites"]}


def test_only_the_first_rank_gets_the_attempts_texts(out):
    first, second = (rank["batch"] for rank in results(out, "collectives"))
    for mode in ("traces", "keep, traces, alarms"):
        assert first[mode]["ours"]["exchanged"] > 0
        assert second[mode]["ours"]["exchanged"] == 0


@pytest.fixture(scope="module")
def killed(out):
    """Kill a run two steps after a checkpoint within a generation batch of the second epoch, and resume it twice."""
    launch(out, "killed", ok=False)
    assert [path.name for path in (out / "killed" / "run").glob("checkpoint-*")] == ["checkpoint-5"]
    shutil.copytree(out / "killed", out / "copied")
    (out / "copied" / "run" / "checkpoint-5" / "grpo_plus_state_1.pt").unlink()
    launch(out, "resumed", "resumed_elsewhere")
    return out


def test_killed_and_resumed_is_uninterrupted(killed):
    expected = results(killed, "whole")[0]
    for rank in results(killed, "resumed"):
        assert rank["weights"] == expected["weights"]
    assert results(killed, "resumed")[0]["losses"] == expected["losses"]
    assert expected["step"] == 9


def test_killed_and_resumed_traces_are_uninterrupted(killed):
    assert list(traces.groups(killed / "killed" / "run")) == list(traces.groups(killed / "whole" / "run"))
    superseded = killed / "killed" / "run" / "rollouts" / "superseded-1"
    assert [path.name for path in superseded.glob("train*")] == ["train-00000007.jsonl"]


def test_resumed_without_a_rank_s_state_the_ranks_still_agree(killed):
    first, second = results(killed, "resumed_elsewhere")
    assert first["step"] == 9
    assert first["weights"] == second["weights"]
