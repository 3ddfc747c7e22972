"""The script that tests/process/test_distributed.py runs on two processes: `distributed_worker.py OUT SCENARIO...`.

Each scenario is a function that returns plain data. Each rank writes its result to OUT/<scenario>-<rank>.json, and the
tests compare the ranks.
"""

import functools
import gc
import hashlib
import json
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import collectives as ledger
import numpy as np
import tiny_models
import tool_models
import torch
import vision_models
from accelerate import Accelerator, PartialState
from transformers import Qwen2ForCausalLM, Trainer, TrainerCallback, TrainingArguments
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from trl_grpo_plus import attach
from trl_grpo_plus.launch import previous_run
from trl_grpo_plus.launch import train as launch_script
from trl_grpo_plus.registry import Step
from trl_grpo_plus.rollouts import tool_turns as turns
from trl_grpo_plus.trainer import batch
from trl_grpo_plus.trainer.checkpoint_integrity import lacking
from trl_grpo_plus.utils import distributed, folder_lock
from trl_grpo_plus.utils.tables import FAILED, CheckRow
from trl_grpo_plus.utils.validation import ConfigError


LOSS_TYPES = ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
CASES = [(loss_type, with_kl) for loss_type in LOSS_TYPES for with_kl in (False, True)]
# One case for each way in which a loss is scaled over the processes. With REST in the environment the worker runs the
# other cases instead.
OFTEN = [("grpo", True), ("dr_grpo", True), ("dapo", False), ("dapo", True), ("bnpo", True)]
CASES = [case for case in CASES if (case in OFTEN) == ("REST" not in os.environ)]
RESAMPLE = {"zero_variance_groups": "resample", "max_resample_rounds": 2, "max_steps": 4}


def fingerprint(trained):
    digest = hashlib.sha256()
    for _, value in sorted(tiny_models.weights(trained).items()):
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def result(trained, **more):
    return {
        "weights": fingerprint(trained),
        "losses": tiny_models.losses(trained),
        "alive": tiny_models.logged(trained, "groups/alive"),
        "rounds": tiny_models.logged(trained, "groups/rounds"),
        "trained": tiny_models.logged(trained, "groups/trained"),
        "step": trained.state.global_step,
        **more,
    }


def train(folder, reward=tiny_models.digits, **options):
    return tiny_models.trained(folder, reward, **options)


def world(folder):
    return {"size": PartialState().num_processes, "kind": str(PartialState().distributed_type)}


def each_case(compare, beta, **options):
    """Return the result of `compare` for each case, by the case's name."""
    cases = {f"{loss} {with_kl}": {"loss_type": loss, "beta": beta * with_kl} for loss, with_kl in CASES}
    return {name: compare(**options, **case) for name, case in cases.items()}


def parity(folder):
    def compare(**options):
        return {"ours": result(train(folder, **options)), "theirs": result(train(folder, cls=GRPOTrainer, **options))}

    batches = {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2, "max_steps": 5}
    return each_case(compare, 0.1, per_device_train_batch_size=6, **batches)


def attached(folder):
    """Run TRL's trainer alone, then with `attach`, then with `attach` and an alarm that ends the run on both ranks."""
    options = {"cls": GRPOTrainer, "beta": 0.1, "num_iterations": 2, "max_steps": 4}
    alone = result(train(folder / "alone", **options))
    watched = tiny_models.trainer(folder / "watched", tiny_models.digits, **options)
    attach(watched)
    watched.train()
    halted = tiny_models.trainer(folder / "halted", tiny_models.always_dead, **{**options, "max_steps": 30})
    attach(halted, halt_on_alarm=["dead_groups"], alarm_thresholds={"window": 4, "min_batches": 4})
    halted.train()
    return {"alone": alone, "attached": result(watched), "halted": halted.state.global_step}


def distances(folder, reward, rows, alone, alone_rows, own=None, **options):
    """Return how far training with dropped groups ends from TRL's training on the live prompts alone.

    Args:
        rows: rows per rank where groups are dropped.
        alone: the live prompts, which TRL trains on.
        alone_rows: rows per rank for TRL.
        own: options of this package. By default dead groups are dropped.
    """
    options = {**tiny_models.EXACT, **options}
    own = {"zero_variance_groups": "drop", **(own or {})}
    ours = train(folder, reward, per_device_train_batch_size=rows, **own, **options)
    theirs = train(folder, cls=GRPOTrainer, data=alone, per_device_train_batch_size=alone_rows, **options)
    first, second = tiny_models.weights(ours), tiny_models.weights(theirs)
    return {
        "weights": max((first[name] - second[name]).abs().max().item() for name in first),
        "loss": max(
            abs(a - b) / max(1, abs(b))
            for a, b in zip(tiny_models.losses(ours), tiny_models.losses(theirs), strict=True)
        ),
        "trained": tiny_models.logged(ours, "groups/trained"),
    }


def drop(folder):
    """Compare dropping with TRL: 4 groups of 4 attempts on 2 ranks, 2 of the groups live."""
    live = tiny_models.prompts(40).filter(lambda row: row["number"] % 4 < 2)
    return each_case(functools.partial(distances, folder, tiny_models.half_dead, 8, live, 4), 0.5)


def skip(folder):
    """Compare skipping with TRL's training on all groups, for both denominators: 2 of 4 groups on 2 ranks are live."""
    options = {**tiny_models.EXACT, "per_device_train_batch_size": 8}

    def compare(loss_type):
        options["loss_type"] = loss_type
        ours = train(folder, tiny_models.half_dead, zero_variance_groups="skip", **options)
        theirs = tiny_models.weights(train(folder, tiny_models.half_dead, cls=GRPOTrainer, **options))
        distance = max((value - theirs[name]).abs().max().item() for name, value in tiny_models.weights(ours).items())
        return {"weights": distance, "trained": tiny_models.logged(ours, "groups/trained")}

    return {loss_type: compare(loss_type) for loss_type in ("dapo", "grpo")}


def filler_distances(folder):
    """Return the comparison for 4 groups of 3 attempts, one of them live.

    The 3 live rows do not divide between 2 ranks, so a dead group stays as masked filler.
    """
    live = tiny_models.prompts(40).filter(lambda row: row["number"] % 4 == 0)
    # TRL cannot split one group of 3 rows between 2 ranks. So each prompt is there twice, and each rank gets a group.
    twice = live.select([i for i in range(len(live)) for _ in range(2)])
    return functools.partial(distances, folder, tiny_models.one_live_in_four, 6, twice, 3, num_generations=3)


def environments(folder):
    """Compare dropping with TRL in environments: 4 groups of 4 attempts on 2 ranks, 2 of them live. Then resample."""
    policy = os.environ["POLICY"]
    mine, alone, again = (
        tool_models.World(dead) for dead in (lambda n: n % 4 > 1, lambda n: False, lambda n: n % 4 > 1)
    )
    ours = tool_models.acting(mine, policy, folder, per_device_train_batch_size=8, zero_variance_groups="drop")
    live = tool_models.numbers(30).filter(lambda row: row["number"] % 4 < 2)
    theirs = tool_models.acting(alone, policy, folder, GRPOTrainer, per_device_train_batch_size=4, data=live)
    first, second = tiny_models.weights(ours), tiny_models.weights(theirs)
    resampled = tool_models.acting(
        again, policy, folder, per_device_train_batch_size=8, **RESAMPLE | {"max_steps": 2, "max_resample_rounds": 8}
    )
    return {
        "distance": max((first[name] - second[name]).abs().max().item() for name in first),
        "trained": tiny_models.logged(ours, "groups/trained"),
        "resampled": result(resampled),
        "generated": sum(tiny_models.logged(resampled, "groups/generated")),
        "resets": [number for what, _, number in again.events if what == "reset"],
    }


def pictures(folder):
    """Compare dropping with TRL on scripted completions of prompts with pictures. Then resample with real sampling.

    At last drop groups such that one rank is left with text and the other with pictures, evaluate rows of which only
    the second rank's have pictures, and keep the groups of such rows.
    """
    distance = vision_models.distance(folder, "qwen2.5-vl", rows=8, alone=4)
    options = {**RESAMPLE, "max_steps": 2, "max_resample_rounds": 8, "per_device_train_batch_size": 6}
    resampled = vision_models.trained(folder, "qwen2.5-vl", vision_models.some_dead, **options)
    rows = vision_models.kept(resampled, "qwen2.5-vl")
    wrong = vision_models.wrong(rows, "qwen2.5-vl")
    # The live groups of rank 0 have no pictures, and those of rank 1 have one each.
    mixed = vision_models.questions(30, lambda number: number % 4 > 1)
    options = {"data": mixed, "shuffle_dataset": False, "max_steps": 2, "per_device_train_batch_size": 8}
    options |= {"trace_every": 1, "trace_thumbnails": 8}
    uneven = vision_models.trained(
        folder, "qwen2.5-vl", vision_models.odd_dead, **options, zero_variance_groups="drop"
    )
    seen = [len(pixels) > 0 for _, pixels in vision_models.kept(uneven, "qwen2.5-vl")]
    uneven.evaluate(mixed.select(range(4)))
    vision_models.trained(folder, "qwen2.5-vl", vision_models.odd_dead, **options, zero_variance_groups="keep")
    return {"distance": distance, "resampled": result(resampled), "rows": len(rows), "wrong": wrong, "seen": seen}


def filler(folder):
    return each_case(filler_distances(folder), 0.5)


def filler_entropy(folder):
    """Run `filler` with an entropy bonus. Then adapt the bonus's coefficient over steps, some of them all filler.

    In the second run a step has 2 rows a rank, and one group in eight is live.
    """
    compare = filler_distances(folder)
    losses = dict.fromkeys(loss_type for loss_type, _ in CASES)
    alone = {loss_type: compare(loss_type=loss_type, entropy_coef=0.5) for loss_type in losses}
    options = {**tiny_models.EXACT, "use_adaptive_entropy": True, "entropy_coef_delta": 0.01, "entropy_target": 10.0}
    options |= {"steps_per_generation": 4, "gradient_accumulation_steps": 1, "num_generations": 2, "max_steps": 8}
    one_in_eight = tiny_models.dead_where(lambda n: n % 8 > 0, "one_in_eight")
    ours = train(folder, one_in_eight, zero_variance_groups="drop", **options, per_device_train_batch_size=2)
    rows = [batch["live_rows"] for batch in ours._buffered_inputs]
    adapted = {
        "coefficients": tiny_models.logged(ours, "entropy_coef"),
        "rows": rows,
        "last": ours._last_world_entropy,
    }
    return {"alone": alone, "adapted": adapted, "weights": fingerprint(ours)}


class CountingReward:
    """A reward that is the same for all attempts of dead prompts, and that remembers the prompts of each call."""

    __name__ = "counting"

    def __init__(self, dead):
        self.dead = dead
        self.calls = []

    def __call__(self, completions, number, trainer_state, **kwargs):
        self.calls.append((trainer_state.global_step, number))
        pairs = enumerate(zip(number, tiny_models.digits(completions), strict=True))
        return [0.3 if self.dead(n) else share + 0.01 * i for i, (n, share) in pairs]


def resample(folder, dead=lambda n: n % 3 > 0, **options):
    """Resample with 3 groups of 4 attempts on 2 ranks of 6 rows: the middle group lies on both ranks."""
    reward = CountingReward(dead)
    options = {"per_device_train_batch_size": 6, **RESAMPLE, **options}
    trained = train(folder, reward, **options)
    table = [list(trained._logs[name]) for name in ("prompt", "completion", "advantages")]
    return result(trained, calls=reward.calls, table=table, kept=kept(trained))


def kept(trained):
    """Return the state of the cache in which a belief head keeps prompt states."""
    memory = trained._prompts.memory
    known = memory.state_dict()["states"].get("prompts", {}) if memory else {}
    return {name: value.tolist() if torch.is_tensor(value) else value for name, value in known.items()}


def resample_iterations(folder):
    return resample(folder, num_iterations=2, steps_per_generation=2, beta=0.1)


def set_column(folder):
    """Resample rows with a column of sets, which each process prints in another order.

    There are 10 prompts and up to 9 in a step, so that most prompts of a later round were seen before.
    """
    data = tiny_models.prompts(10).with_transform(
        lambda rows: {**rows, "tags": [{f"{n}", *"abc"} for n in rows["number"]]}
    )
    return resample(folder, data=data, max_resample_rounds=3)


class Picture:
    """An object whose text (`repr`) holds its address in memory, which differs between processes."""


def object_column(folder):
    data = tiny_models.prompts(10).with_transform(
        lambda rows: {**rows, "picture": [Picture() for _ in rows["number"]]}
    )
    return resample(folder, data=data, max_resample_rounds=3)


def drop_straddling(folder):
    return resample(folder, zero_variance_groups="drop")


def brought_by_one_rank(folder):
    """Drop groups of a `rollout_func` that returns an `env_mask` and log-probs on rank 1 only.

    The completions of rank 1 begin with "b", those of rank 0 with "a". The first of four groups is dead, so that rows
    of rank 1 move to rank 0.
    """
    letter = tiny_models.tokenizer().convert_tokens_to_ids("ab"[PartialState().process_index])

    def rollout(prompts, trainer):
        output = tiny_models.scripted(prompts, trainer)
        output["completion_ids"] = ids = [[letter, *row] for row in output["completion_ids"]]
        if PartialState().process_index == 1:
            output["env_mask"] = [[0] + [1] * (len(row) - 1) for row in ids]
            output["logprobs"] = [[-1.0] * len(row) for row in ids] if tiny_models.KNOWS_NAN else None
        return output

    options = {"zero_variance_groups": "drop", "shuffle_dataset": False, "extra": {"rollout_func": rollout}}
    trained = tiny_models.trainer(folder, CountingReward(lambda n: n % 4 == 0), **options, max_steps=2)
    if tiny_models.KNOWS_NAN:  # TRL takes the log-probs of `rollout` for those of vLLM; no engine runs
        trained.use_vllm, trained._last_loaded_step = True, -1
        trained.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    trained.train()
    (batch,) = trained._buffered_inputs
    ones = torch.ones_like(batch["completion_mask"])
    return result(
        trained,
        moved=(batch["completion_ids"][:, 0] == tiny_models.tokenizer().convert_tokens_to_ids("b")).tolist(),
        masked=(batch["tool_mask"][:, 0] == 0).tolist(),
        masked_later=(batch["tool_mask"][:, 1:] == 0).any().item(),
        unknown=batch.get("sampling_per_token_logps", ones)[:, 0].isnan().tolist(),
        corrected=(batch.get("importance_sampling_ratio", ones)[:, 0] != 1).tolist(),
    )


def one_rank_all_dead(folder):
    """Resample without shuffling: in each first round all groups of rank 0 are dead, and all of rank 1 are live."""
    return resample(folder, dead=lambda n: n % 4 < 2, shuffle_dataset=False, per_device_train_batch_size=8)


def logs_on_one_rank(folder):
    """Train with a reward that calls `log_extra` on rank 0 only."""

    def reward(completions, prompts, number, log_extra, **kwargs):
        if PartialState().process_index == 0:
            log_extra("note", list(prompts))
        return tiny_models.dead_for_most(completions, number)

    trained = train(folder, reward, **RESAMPLE)
    return result(trained, notes=list(trained._logs["extra"]["note"]), prompts=list(trained._logs["prompt"]))


def cut_off(prompts, trainer):
    """Return `tiny_models.scripted`, with truncated completions.

    For prompts with an odd number all attempts are truncated. For the others, only those on the first rank are.
    """
    sampled = tiny_models.scripted(prompts, trainer)
    for prompt, ids in zip(prompts, sampled["completion_ids"], strict=True):
        if int(prompt[:2]) % 2 or trainer.accelerator.process_index == 0:
            del ids[-1]  # the end of sequence
    return sampled


def truncated(folder):
    """Drop truncated groups of 3 groups of 4 attempts on 2 ranks.

    The middle group lies on both ranks, and its rows on the first rank are all truncated.
    """
    options = {"per_device_train_batch_size": 6, "mask_truncated_completions": True, "zero_variance_groups": "drop"}
    trained = train(folder, **{**tiny_models.EXACT, **options, "extra": {"rollout_func": cut_off}, "max_steps": 4})
    return result(trained, truncated=tiny_models.logged(trained, "groups/truncated"))


def beliefs(folder):
    options = {"prompt_selection": "belief", "advantage_baseline": "belief", "scale_rewards": "prior"}
    return resample(folder, **options, belief_key="number", belief_head="prompt", failed_reward=0.3)


def streamed(folder, rows, **options):
    """Train on a stream, with 3 groups of 4 attempts on 2 ranks of 6 rows: the middle group lies on both ranks."""
    options |= {
        "advantage_baseline": "belief",
        "scale_rewards": "prior",
        "zero_variance_groups": "drop",
        "max_steps": 4,
    }
    options |= {"belief_key": "number", "belief_head": "prompt", "per_device_train_batch_size": 6}
    trained = train(folder, tiny_models.digits, **options, data=tiny_models.prompts(rows).to_iterable_dataset())
    kept = trained._prompts.memory.state_dict()["beliefs"]["total"]["shared"]
    rows = {"window": [row["prompt"] for row in trained._prompts.window.rows], "known": kept["known"]}
    return result(trained, **rows, learned=kept["by_key"].tolist(), prompts=list(trained._logs["prompt"]))


def ahead(folder):
    """Choose prompts of a stream that is read ahead: in windows of 9, 9 and 7 rows, then rows of the next pass."""
    return streamed(folder, 25, prompt_selection="belief", selection_pool=3)


def behind(folder):
    """Keep beliefs about the rows of a stream that TRL itself deals."""
    return streamed(folder, 30)


OWN = Path(__file__).with_name("user_advantages.py")


def estimated(folder):
    """Resample with an advantage function that draws random numbers and returns advantages of tokens.

    The longest completion has not the same length on both ranks.
    """
    options = {"advantage_estimator": {"name": f"{OWN}:ramp", "args": {"noise": 0.5}}, "num_iterations": 2}
    return resample(folder, **options)


def columns(folder):
    """Resample with a baseline that reads a column. The middle one of 3 groups lies on both ranks, and rows move."""
    data = tiny_models.prompts(30).map(lambda row: {"expected": row["number"] / 30})
    options = {"advantage_baseline": f"{OWN}:less_expected", "scale_rewards": "none", "data": data}
    trained = train(folder, tiny_models.half_dead, per_device_train_batch_size=6, **RESAMPLE, **options)
    logs = trained._logs
    rows = zip(logs["prompt"], logs["rewards"]["half_dead"], logs["advantages"], strict=True)
    apart = [abs(reward - int(prompt[:2]) / 30 - advantage) for prompt, reward, advantage in rows if advantage]
    return result(trained, apart=apart)


def entropies(folder):
    """Resample with `zvp`, which keeps groups that are all good or all bad, and weighs tokens by their entropies.

    Each rank has the entropies of its own rows.
    """
    options = {"advantage_estimator": "zvp", "filtered_verdicts": ["tied", "unscored", "truncated"]}
    return resample(folder, **options, failed_reward=0.3, solved_reward=1.1)


def estimated_alone(folder):
    """Run `filler` with an advantage function that returns TRL's advantages for each token."""
    compare = filler_distances(folder)
    own = {"advantage_estimator": f"{OWN}:like_grpo"}
    return {loss_type: compare(loss_type=loss_type, own=own) for loss_type in ("dapo", "grpo")}


def estimator_fails(folder):
    wrong = ("fails_on_one_rank", "differs_by_rank")
    options = {name: {"advantage_estimator": f"{OWN}:{name}"} for name in wrong}
    for name in [f"baseline_{name}" for name in wrong]:
        options[name] = {"advantage_baseline": f"{OWN}:{name}", "scale_rewards": "none"}
    return {name: failing(folder, tiny_models.digits, ValueError, **how) for name, how in options.items()}


def kl_to_go(folder):
    options = {"beta": 0.1, "kl_estimator": "k1", "kl_placement": "reward", "kl_reward_form": "reward_to_go"}
    options |= {"kl_target": 0.01, "kl_horizon": 50, "num_iterations": 2, "max_steps": 4}
    options |= {"zero_variance_groups": "drop", "per_device_train_batch_size": 6}
    return result(train(folder, tiny_models.dead_for_most, **options))


def steps_of_characters(completions, number, **kwargs):
    """Return one step per character. A digit earns 1.0, and for two prompts in three every character earns 0.3."""
    return [
        [Step(i + 1, 0.3 if n % 3 else float(c.isdigit())) for i, c in enumerate(text)] or 0.0
        for text, n in zip(completions, number, strict=True)
    ]


def steps(folder):
    """Resample with rewards of steps: 3 groups of 4 attempts on 2 ranks. Resume that run. Then start one that fails.

    One group lies on both ranks, and the groups of later rounds move between ranks. The last run fails because the
    text of the second rank does not match its tokens.
    """
    options = {"per_device_train_batch_size": 6, **RESAMPLE, "step_reward_credit": "to_go", "num_iterations": 2}
    options |= {"save_strategy": "steps", "save_steps": 3}
    trained = train(folder, steps_of_characters, **options)
    again = tiny_models.trainer(folder, steps_of_characters, **options)
    again.train(resume_from_checkpoint=str(folder / "run" / "checkpoint-3"))
    another = mock.patch.object(batch, "content_of", return_value="another text")
    with another if PartialState().process_index == 1 else nullcontext():
        broken = failing(folder, steps_of_characters, step_reward_credit="own", output_dir=str(folder / "broken"))
    return result(trained, resumed=fingerprint(again), broken=broken)


def failing(folder, reward, errors=RuntimeError, **options):
    start = time.monotonic()
    try:
        train(folder, reward, **options)
    except errors as error:
        return {"error": str(error), "took": time.monotonic() - start}
    return {"error": None}


def fallback_raise(folder):
    return failing(folder, tiny_models.always_dead, **RESAMPLE, resample_fallback="raise")


def held_by_another(folder):
    """Train in a folder whose lock the second rank's process holds, as another run would. Then give it back and train.

    Only the first rank takes the lock of a run, so the second rank's process stands for another run.
    """
    path, alone = folder.resolve() / "run" / folder_lock.FILE, PartialState().process_index == 1
    if alone:
        folder_lock._take(path)
    PartialState().wait_for_everyone()
    told = failing(folder, tiny_models.digits, ValueError)
    if alone:
        folder_lock._give_back(path)
    PartialState().wait_for_everyone()
    return {**told, **result(train(folder, tiny_models.digits)), "pid": os.getpid()}


def unlike_disks(folder):
    """Settle the output folder with `auto` where only one rank's machine has a checkpoint. The ranks share no disk."""
    told, rank = {}, PartialState().process_index
    for having in (0, 1):
        disk = folder / f"disk{having}{rank}"
        disk.mkdir()
        if rank == having:
            (disk / "run" / "checkpoint-2").mkdir(parents=True)
            (disk / "run" / "checkpoint-2" / "trainer_state.json").write_text("{}")
        args = SimpleNamespace(
            output_dir="run", resume_from_checkpoint="auto", eval_on_start=True, local_process_index=0
        )
        args.main_process_first = lambda local: nullcontext()
        back = os.getcwd()
        os.chdir(disk)
        try:
            previous_run.settle_folder(args)
            told[having] = args.resume_from_checkpoint
        except ConfigError as error:
            told[having] = str(error)
        finally:
            os.chdir(back)
        PartialState().wait_for_everyone()
    return {"told": told, "left": sorted(path.name for path in disk.glob("run/*"))}


def refused_by_one_rank(folder):
    """Refuse a run on the second rank alone, fail to load the data on the first, refuse the data on the second."""
    rank = PartialState().process_index
    args = SimpleNamespace(output_dir=str(folder / "run"), preset=None, process_index=rank)
    args.world_size, args.distributed_state = PartialState().num_processes, PartialState()
    args.main_process_first = functools.partial(TrainingArguments.main_process_first, args)
    recipe = SimpleNamespace(training=args, script=None, model=None, data=None)
    loading = []

    def load(*_):
        loading.append(rank)
        with PartialState().main_process_first():  # as a user's `prepare` may do
            pass
        if rank == 0:
            raise ConfigError("no data on the first rank")
        return {}

    def told(on_paper=(), on_data=(), loader=lambda *_: {}):
        """Return the error of a run whose checks find these rows on the second rank."""
        rows = {"on_paper": on_paper, "on_data": on_data}
        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(launch_script, "launched", return_value=recipe))
            patches.enter_context(mock.patch.object(previous_run, "settle_folder"))
            for name, found in rows.items():
                found = [CheckRow(name, FAILED, f"{text} on the second rank") for text in found if rank == 1]
                patches.enter_context(mock.patch.object(launch_script, name, return_value=found))
            try:
                launch_script.main(None, args, None, None, loader=loader)
            except ConfigError as error:
                return str(error)

    errors = [told(on_paper=["no model"]), told(loader=load), told(on_data=["no answers"])]
    return {"errors": errors, "loading": loading}


def nonfinite(folder):
    """Train until the second rank's loss, not its gradient, is infinite. Then damage its saved state and resume."""
    compute = GRPOTrainer._compute_loss

    def broken(self, model, inputs):
        alone = self.accelerator.process_index == 1 and self.state.global_step == 3
        return compute(self, model, inputs) + (float("inf") if alone else 0.0)

    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 5, "gradient_accumulation_steps": 2}
    options |= {"beta": 0.1, "kl_target": 0.01}
    trained = tiny_models.trainer(folder, tiny_models.half_dead, **options)
    start = time.monotonic()
    with mock.patch.object(GRPOTrainer, "_compute_loss", broken):
        try:
            trained.train()
        except FloatingPointError as error:
            message = str(error)
    stopped = {"error": message, "took": time.monotonic() - start, "weights": fingerprint(trained)}
    checkpoint = folder / "run" / "checkpoint-3"
    saved = Qwen2ForCausalLM.from_pretrained(checkpoint).state_dict()
    stopped["saved"] = tiny_models.same_weights(tiny_models.weights(trained), saved)
    state = torch.load(checkpoint / "grpo_plus_state_1.pt", weights_only=True)
    lacking = [{name: value for name, value in state.items() if name != part} for part in ("running_variance", "beta")]
    stopped["refused"] = [resuming_with(damaged, folder, options) for damaged in ([], *lacking)]
    return stopped


def resuming_with(state, folder, options):
    """Save `state` as the second rank's state, resume, and return the error message."""
    PartialState().wait_for_everyone()
    if PartialState().process_index == 1:
        torch.save(state, folder / "run" / "checkpoint-3" / "grpo_plus_state_1.pt")
    PartialState().wait_for_everyone()
    try:
        tiny_models.trainer(folder, tiny_models.half_dead, **options).train(resume_from_checkpoint=True)
    except ValueError as error:
        return str(error)
    return None


def nonfinite_groups(folder):
    """Make the log-probs of one group NaN in the loss. The group lies on the second rank."""
    forward = GRPOTrainer._get_per_token_logps_and_entropies

    def broken(self, model, input_ids, *args, **kwargs):
        logps, *rest = forward(self, model, input_ids, *args, **kwargs)
        texts = self.processing_class.batch_decode(input_ids, skip_special_tokens=True)
        return logps * torch.tensor([[float("nan") if text.startswith("03+") else 1.0] for text in texts]), *rest

    with mock.patch.object(GRPOTrainer, "_get_per_token_logps_and_entropies", broken):
        return failing(folder, tiny_models.half_dead, FloatingPointError, shuffle_dataset=False)


def saved_by_one_rank(folder):
    """Fail to save the second rank's state, as on a full disk. Then resume from states of different runs.

    The first rank's state then claims to be of a run with one process, and the second rank's is left over. At last
    fail to save the second rank's random state, in a run that keeps one checkpoint.
    """
    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3, "steps_per_generation": 4}
    options |= {"gradient_accumulation_steps": 1, "save_only_model": False}
    options |= {"beta": 0.1, "kl_target": 0.05, "scale_rewards": "running"}
    write, trained = torch.save, tiny_models.trainer(folder, tiny_models.digits, **options)
    alone = trained.accelerator.process_index == 1

    def failing_at(file, trained, **how):
        def full(what, path, *args, **kwargs):
            if alone and file in str(path):
                raise OSError(28, "No space left on device")
            return write(what, path, *args, **kwargs)

        error = None
        with mock.patch.object(torch, "save", full):
            try:
                trained.train(**how)
            except (RuntimeError, OSError) as failed:
                error = str(failed)
        PartialState().wait_for_everyone()
        lacks = {path.name: lacking(path) for path in sorted((folder / "run").glob("checkpoint-*"))}
        PartialState().wait_for_everyone()
        return {"error": error, "lacks": lacks}

    without_state = failing_at("checkpoint-2/grpo_plus_state", trained)
    if not alone:
        path = folder / "run" / "checkpoint-1" / "grpo_plus_state_0.pt"
        state = torch.load(path, weights_only=True)
        of_one = {"layout": [1, *state["layout"][1:]], "beta": 0.7, "running_variance": 9.0}
        write({**state, **of_one}, path)
    PartialState().wait_for_everyone()
    again = tiny_models.trainer(folder, tiny_models.digits, **options)
    again.train(resume_from_checkpoint=True)
    carried_on = {"beta": again.beta, "running_variance": again._credit.running_variance, **result(again)}
    last = tiny_models.trainer(folder, tiny_models.digits, **{**options, "max_steps": 4, "save_total_limit": 1})
    without_random_state = failing_at("checkpoint-4/rng_state_1", last, resume_from_checkpoint=True)
    with mock.patch.object(Trainer, "_save", side_effect=OSError(28, "No space left on device")):  # on the first rank
        without_model = failing(folder / "full", tiny_models.digits, (RuntimeError, OSError), **options)
    told = {"without_state": without_state, "without_random_state": without_random_state}
    return {**told, "without_model": without_model, **carried_on}


class Exhausted:
    """A stream that deals one batch, and then raises."""

    def __init__(self, train_set, seed):
        self.rows = list(range(4))

    def take(self, count, accepts, multiple_of=1, patience=None, believe=None):
        if not self.rows:
            raise RuntimeError("there are no more rows")
        return [self.rows.pop() for _ in range(count)]

    def observe(self, rows, rewards, verdicts):
        pass

    def metrics(self):
        return {}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Unteachable(Exhausted):
    """A stream whose `observe` raises."""

    def observe(self, rows, rewards, verdicts):
        raise RuntimeError("nothing can be learnt from these rows")


class Unsavable(Exhausted):
    """A stream whose `state_dict` raises."""

    def state_dict(self):
        raise RuntimeError("this stream is of the moment")


class FromBehind(Exhausted):
    """A stream that deals negative row indices."""

    def take(self, *asked, **more):
        return [row - 4 for row in super().take(*asked, **more)]


class Unloadable(Exhausted):
    """A stream whose state holds an object that a checkpoint cannot hold."""

    def state_dict(self):
        return {"rows": np.array(self.rows)}


def stream_fails(folder):
    options, errors = {"save_strategy": "steps", "save_steps": 1}, (RuntimeError, ConfigError)
    streams = (Exhausted, Unteachable, Unsavable, FromBehind, Unloadable)
    failed = [
        failing(folder, tiny_models.digits, errors, prompt_selection=f"{__file__}:{kind.__name__}", **options)
        for kind in streams
    ]
    options = {
        "prompt_selection": "belief",
        "belief_key": "number",
        "shuffle_dataset": False,
        "per_device_train_batch_size": 6,
    }
    data = tiny_models.prompts(25).to_iterable_dataset().map(out_of_reach)
    return [*failed, failing(folder, tiny_models.digits, (RuntimeError, OSError), **options, data=data)]


def out_of_reach(row):
    """Return the row, but raise on the second rank at row 8, which lies beyond the rows of a first batch."""
    if PartialState().process_index == 1 and row["number"] == 8:
        raise OSError("this row is out of reach")
    return row


def unsendable(folder):
    """Drop groups whose rows cannot be pickled. All live groups are on the second rank, and half of them must move."""
    data = tiny_models.prompts(30).with_transform(
        lambda rows: {**rows, "lock": [threading.Lock() for _ in rows["number"]]}
    )
    options = {"zero_variance_groups": "drop", "shuffle_dataset": False, "per_device_train_batch_size": 8}
    dead = tiny_models.dead_where(lambda n: n % 4 < 2, "dead_on_the_first_rank")
    return failing(folder, dead, ValueError, **options, data=data)


def rollout_fails(folder):
    """Train with a `rollout_func` that, on the second rank only, returns too few or too many rows, or raises."""

    def uneven(more, prompts, trainer):
        output = tiny_models.scripted(prompts, trainer)
        if PartialState().process_index == 1:
            if more is None:
                raise ConnectionError("the environment's server is gone")
            rows = output["completion_ids"]
            output["completion_ids"] = [*rows, *rows[:more]] if more > 0 else rows[:more]
        return output

    errors, rollouts = (ValueError, RuntimeError, OSError), [functools.partial(uneven, more) for more in (-1, 1, None)]
    return [
        failing(folder, tiny_models.digits, errors, zero_variance_groups="drop", extra={"rollout_func": rollout})
        for rollout in rollouts
    ]


class OutOfOrder:
    """An environment whose `reset` fails on the second rank, at its n-th call on a rank."""

    def __init__(self, calls, failing):
        self.calls, self.failing = calls, failing

    def reset(self, **row):
        self.calls.append(row["number"])
        if PartialState().process_index == 1 and len(self.calls) == self.failing:
            raise ConnectionError("the environment's server is gone")


def reset_fails(folder):
    """Train with environments. One fails in the first batch, another in a later round."""
    data = tool_models.numbers(30)

    def alike(prompts, trainer):
        return {"prompt_ids": [[3]] * len(prompts), "completion_ids": [[4, 1]] * len(prompts), "logprobs": None}

    def trained(failing_call, **options):
        extra = {"environment_factory": functools.partial(OutOfOrder, [], failing_call)}
        extra |= {"processing_class": tool_models.tokenizer(), "rollout_func": alike}
        errors = (RuntimeError, OSError)
        return failing(folder, tiny_models.always_dead, errors, data=data, extra=extra, **options)

    return [trained(3), trained(11, **RESAMPLE)]


def fails_on_one_rank(completions, **kwargs):
    if PartialState().process_index == 1:
        raise KeyError("a bug on the second rank")
    return tiny_models.digits(completions)


def infinite_on_one_rank(completions, **kwargs):
    scores = tiny_models.digits(completions)
    return [float("inf"), *scores[1:]] if PartialState().process_index == 1 else scores


def reward_fails(folder):
    """Train with rewards that fail on the second rank only, while the first rank goes on with its batch."""
    return {reward.__name__: failing(folder, reward) for reward in (fails_on_one_rank, infinite_on_one_rank)}


def tool_turns(folder):
    """Take turns of tools with TRL's engine for a server whose completions are computed from the prompts.

    Then one rank's loop ends with an error while the other one is about to generate.
    """
    rank = PartialState().process_index
    state = SimpleNamespace(accelerator=Accelerator(cpu=True), mode="server", enable_sleep_mode=False, logprobs=0)
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length"):
        setattr(state, name, None)
    state.structured_outputs_regex, state.generation_kwargs, calls = None, {}, []

    def answer(prompts, **options):
        calls.append(len(prompts))
        columns = {name: [[[float(prompt[0])]] for prompt in prompts] for name in ("logprobs", "logprob_token_ids")}
        return {"prompt_ids": prompts, "completion_ids": [[1000 + prompt[0]] for prompt in prompts], **columns}

    state.vllm_client = SimpleNamespace(generate=answer)
    state.generate = functools.partial(VLLMGeneration.generate, state)
    turns.in_equal_shares(state)

    def generate(prompts, images, fields, num_generations=1):
        _, completions, logprobs, _ = state.generate(prompts=prompts, images=images, num_generations=num_generations)
        return completions, logprobs

    asked = [[[[0], [1], [2], [3], [4]], [[5], [6]], [[7]]], [[[10], [11]], [[12], [13]]]][rank]
    idle = functools.partial(generate, [], None, {})
    with turns.in_step(generate, idle) as in_step:
        taken = [in_step(prompts, None, {}) for prompts in asked]
    told = ""
    try:
        with turns.in_step(generate, idle) as in_step:
            if rank == 1:
                raise KeyError("a tool of the second rank")
            in_step([[0]], None, {})
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    right = [([[1000 + p[0]] for p in prompts], [[[float(p[0])]] for p in prompts]) for prompts in asked]
    return {"right": taken == right, "calls": calls, "told": told}


def outcomes(folder):
    """Train with a reward in workers that hangs on prompt 3, which lies on one rank. Return the logged timeouts."""
    judge = {"name": f"{Path(__file__).with_name('user_rewards.py')}:hangs_on_one", "timeout": 0.5}
    options = {"data": tiny_models.prompts(6), "per_device_train_batch_size": 12, "max_steps": 1}
    trained = train(folder, [tiny_models.digits, judge], **options)
    return result(trained, timeout=tiny_models.logged(trained, "rewards/hangs_on_one/timeout"))


TRACED = {**tiny_models.EXACT, "max_steps": 4, "logging_steps": 3, "eval_strategy": "steps", "eval_steps": 2}
TRACED |= {"num_generations_eval": 2, "beta": 0.1, "kl_placement": "reward", "kl_estimator": "k1"}
TRACED_MODES = {"keep": {}, "drop": {}, "resample": {"max_resample_rounds": 2}}


def traces(folder, rows=8, modes=tuple(TRACED_MODES)):
    """Write traces. What two ranks send for them travels in pieces; return how much this rank gets at once."""
    exchange, pieces = torch.distributed.all_to_all_single, []

    def noted(buffer, sent, coming, going):
        pieces.append(buffer.numel())
        return exchange(buffer, sent, coming, going)

    at_once = mock.patch.object(distributed, "RECEIVED_AT_ONCE", 2 * 100)
    with at_once, mock.patch.object(torch.distributed, "all_to_all_single", noted):
        for mode in modes:
            options = {**TRACED, **TRACED_MODES[mode], "zero_variance_groups": mode, "output_dir": str(folder / mode)}
            options |= {"per_device_train_batch_size": rows, "per_device_eval_batch_size": rows}
            options["extra"] = {**options["extra"], "eval_dataset": tiny_models.prompts(9).select(range(1, 9))}
            train(folder, tiny_models.half_dead, **options)
    return {"pieces": pieces}


def parcels(folder):
    """Send parcels with gloo, whole and in pieces, and as with a backend that can only gather.

    The second rank sends itself a parcel too.
    """
    made = [{1: b"for one" * 9}, {0: b"for zero", 1: b"for itself"}][PartialState().process_index]

    def received():
        return [parcel.decode() for parcel in distributed.all_to_all_made(lambda: made)]

    with mock.patch.object(distributed, "_is_gloo_or_nccl", return_value=False):
        gathered = received()
    with mock.patch.object(distributed, "RECEIVED_AT_ONCE", 2 * 10):
        in_pieces = received()
    return {"gloo": received(), "in pieces": in_pieces, "another": gathered}


def collectives(folder):
    """Count the collectives of one generation batch in each mode, and with twice the rows in the `TOGETHER` modes."""

    def of(mode, rows):
        return ledger.summary(ledger.of_one_batch(folder, mode, rows))

    return {
        "batch": {mode: of(mode, 8) for mode in ledger.MODES},
        "twice": {mode: of(mode, 16) for mode in ledger.TOGETHER},
    }


# An epoch is 4 steps of 2 generation batches. So the checkpoint of step 5 lies in the second epoch, within a batch.
LONG = {**RESAMPLE, "max_steps": 9, "save_strategy": "steps", "save_steps": 5, "steps_per_generation": 2}
LONG |= {"per_device_train_batch_size": 6, "data": tiny_models.prompts(13)}


class KillAt(TrainerCallback):
    """A callback that kills the second rank with SIGKILL, once the first rank has written its traces."""

    def __init__(self, step, recorder):
        self.step, self.recorder = step, recorder

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.recorder.settle()
            PartialState().wait_for_everyone()
            if PartialState().process_index == 1:
                os.kill(os.getpid(), signal.SIGKILL)


def whole(folder):
    return result(train(folder, tiny_models.dead_for_most, **LONG))


def killed(folder):
    trained = tiny_models.trainer(folder, tiny_models.dead_for_most, **LONG)
    trained.add_callback(KillAt(7, trained._recorder))
    trained.train()
    return {}


def resumed(folder):
    trained = tiny_models.trainer(folder, tiny_models.dead_for_most, **LONG)
    torch.manual_seed(99 + PartialState().process_index)
    trained.train(resume_from_checkpoint=True)
    return result(trained)


def resumed_elsewhere(folder):
    """Resume where only the first process's files exist. Both processes generate the batch in flight anew."""
    return resumed(folder)


def main():
    gc.freeze()  # see `frozen` in conftest.py
    out, names = Path(sys.argv[1]), sys.argv[2:]
    state = PartialState(cpu=True)
    for name in names:
        folder = out / {"resumed": "killed", "resumed_elsewhere": "copied"}.get(name, name)
        folder.mkdir(exist_ok=True)
        outcome = globals()[name](folder)
        (out / f"{name}-{state.process_index}.json").write_text(json.dumps(outcome))
        state.wait_for_everyone()


if __name__ == "__main__":
    main()
