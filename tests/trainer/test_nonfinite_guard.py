"""Tests of the guard: the run stops before a step whose loss or gradient is not finite, unless a scaler skips it."""

import math
from types import SimpleNamespace
from unittest import mock

import pytest
import tiny_models
import torch
from accelerate import Accelerator
from transformers import TrainerCallback
from trl import GRPOTrainer

from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.trainer.nonfinite_guard import StepGuard, not_finite


WRONG = {  # how a micro-batch's loss is broken, from the loss and a weight of the model
    "loss": lambda loss, weight: loss * math.nan,
    "infinite loss": lambda loss, weight: loss + math.inf,  # the gradient stays finite
    "gradient": lambda loss, weight: loss + (0 * weight).sqrt().sum(),  # the loss stays finite
    "large": lambda loss, weight: 30 * loss,
}


class Steps(TrainerCallback):
    """Records the weights after each step, and how often the optimizer was about to step."""

    def __init__(self):
        self.weights, self.asked, self.scales = [], 0, []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.asked += 1

    def on_step_end(self, args, state, control, model, **kwargs):
        self.weights.append({name: value.detach().clone() for name, value in model.state_dict().items()})


def broken_at(calls, how):
    """Patch TRL's loss: break it in the way `how` at the micro-batches whose numbers are in `calls`."""
    compute, count = GRPOTrainer._compute_loss, iter(range(1000))

    def broken(self, model, inputs):
        loss = compute(self, model, inputs)
        return WRONG[how](loss, next(model.parameters())) if next(count) in calls else loss

    return mock.patch.object(GRPOTrainer, "_compute_loss", broken)


def test_a_loss_without_a_forward_pass_names_no_group(tmp_path):
    """A fused loss such as Liger's makes no log-probs. Those of the last forward pass are of the old policy on other
    rows, so the guard must not use them."""

    def fused(self, model, inputs):
        return next(model.parameters()).sum() * math.nan

    trained = tiny_models.trainer(tmp_path, tiny_models.half_dead, steps_per_generation=2, num_iterations=2)
    with mock.patch.object(GRPOTrainer, "_compute_loss", fused), pytest.raises(FloatingPointError) as stopped:
        trained.train()
    assert "Step 1: " in str(stopped.value)
    assert "without log-probs" in str(stopped.value)


@pytest.mark.parametrize(
    ("how", "accumulated", "call", "number"),
    [("loss", 1, 2, "nan"), ("loss", 3, 6, "nan"), ("infinite loss", 3, 7, "inf"), ("gradient", 1, 2, "nan")],
)
@pytest.mark.parametrize("max_grad_norm", [1.0, pytest.param(0.0, marks=pytest.mark.full)])
def test_the_run_stops_before_the_step(tmp_path, how, accumulated, call, number, max_grad_norm):
    """The loss breaks at a micro-batch of the third step: `call` is its first or a later one."""
    options = {"max_steps": 5, "gradient_accumulation_steps": accumulated, "max_grad_norm": max_grad_norm}
    options |= {"save_strategy": "steps", "save_steps": 2, "zero_variance_groups": "drop", "logging_steps": 10}
    trained, steps = tiny_models.trainer(tmp_path, tiny_models.half_dead, **options), Steps()
    trained.add_callback(steps)
    with broken_at({call}, how), pytest.raises(FloatingPointError) as stopped:
        trained.train()
    message, path = str(stopped.value), tmp_path / "run" / "rollouts" / "train-00000003.jsonl"
    assert message.startswith("Step 3: the norm of the gradient is nan (loss ")
    assert str(path) in message
    assert (f"(loss {number})" in message) == (how != "gradient")
    assert steps.asked == 2
    assert tiny_models.same_weights(tiny_models.weights(trained), steps.weights[1])
    assert all(torch.isfinite(value).all() for value in tiny_models.weights(trained).values())
    assert {group[0]["step"] for group in traces.groups(tmp_path / "run")} == {1, 2, 3}
    with path.open() as lines:
        assert len(lines.readlines()) == 8 * accumulated

    again = tiny_models.trainer(tmp_path, tiny_models.half_dead, **options)  # without the broken loss the run resumes
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 5


def test_ignore_takes_the_step(tmp_path):
    trained, steps = tiny_models.trainer(tmp_path, max_steps=2, nonfinite_step="ignore"), Steps()
    trained.add_callback(steps)
    with broken_at({1}, "loss"):
        trained.train()
    assert steps.asked == 2
    assert all(torch.isnan(value).any() for value in tiny_models.weights(trained).values())


@pytest.mark.parametrize(("trace_every", "words"), [(0, "No attempts are traced."), (2, "train-00000001.jsonl.gz.")])
def test_the_message_names_only_traces_that_exist(tmp_path, trace_every, words):
    trained = tiny_models.trainer(tmp_path, trace_every=trace_every, trace_compress=True)
    with broken_at({1}, "loss"), pytest.raises(FloatingPointError, match=words):
        trained.train()


def with_scaler(folder, scale, **options):
    """Make a trainer on the CPU with the gradient scaler that fp16 uses."""
    trained, steps = tiny_models.trainer(folder, tiny_models.digits, **options), Steps()
    trained.accelerator.scaler = scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    # Without fp16, accelerate does not unscale.
    trained.accelerator.unscale_gradients = lambda: scaler.unscale_(trained.optimizer.optimizer)
    steps.on_step_begin = lambda *args, **kwargs: steps.scales.append(scaler.get_scale())
    trained.add_callback(steps)
    return trained, steps


def test_the_run_continues_when_the_scaler_skips_steps(tmp_path):
    """The scaler starts at a scale at which every gradient overflows. It skips steps and halves its scale until none
    overflows, and the run goes on."""
    trained, steps = with_scaler(tmp_path, 2.0**127, max_steps=20)
    with broken_at(range(100), "large"):
        trained.train()
    assert steps.scales[-1] < steps.scales[0]
    skipped = [tiny_models.same_weights(*pair) for pair in zip(steps.weights, steps.weights[1:], strict=False)]
    assert skipped[:2] == [True, True]
    assert skipped[-2:] == [False, False]


def test_a_loss_that_is_nan_at_every_scale_stops_the_run(tmp_path):
    trained, steps = with_scaler(tmp_path, 4.0, max_steps=12)
    with broken_at(range(2, 100), "loss"), pytest.raises(FloatingPointError, match="Step 6: "):
        trained.train()
    assert steps.scales[-4:] == [4.0, 2.0, 1.0, 0.5]
    assert tiny_models.same_weights(tiny_models.weights(trained), steps.weights[1])


def not_finite_for(numbers, step, parts):
    """Patch TRL's log-probs to NaN for the prompts with these numbers.

    `parts` names which: "loss", computed with a gradient, or "batch", those that the batch holds.
    """
    forward = GRPOTrainer._get_per_token_logps_and_entropies

    def broken(self, model, input_ids, *args, **kwargs):
        logps, *rest = forward(self, model, input_ids, *args, **kwargs)
        if self.state.global_step == step and ("loss" if torch.is_grad_enabled() else "batch") in parts:
            texts = self.processing_class.batch_decode(input_ids, skip_special_tokens=True)
            wrong = torch.tensor([text.startswith(tuple(f"{n:02d}+" for n in numbers)) for text in texts])
            logps = torch.where(wrong.unsqueeze(1).to(logps.device), logps * math.nan, logps)
        return logps, *rest

    return mock.patch.object(GRPOTrainer, "_get_per_token_logps_and_entropies", broken)


def test_differences_of_finite_log_probs_that_overflow_are_found():
    logps, old = torch.tensor([[-1.0, -2.0], [-100.0, 0.0]]), torch.tensor([[-1.0, -99.0], [-1.0, 0.0]])
    parts = {"log-probs": logps, "log-probs when sampled": old, "log-probs of the reference": old}
    of = {"log-probs": [False, False], "log-probs when sampled": [False, False]}
    of |= {"log-probs of the reference": [False, False], "ratio to the policy that sampled": [True, False]}
    assert not_finite(parts, kl=True) == {**of, "KL": [False, True]}
    assert not_finite(parts, kl=False) == of


@pytest.mark.parametrize(
    ("parts", "options", "words"),
    [
        (["loss"], {}, "log-probs."),
        (
            ["loss", "batch"],
            {"steps_per_generation": 4, "beta": 0.1},
            "log-probs, log-probs when sampled, log-probs of the reference.",
        ),
        (["batch"], {"steps_per_generation": 4}, "log-probs when sampled."),
        (["loss"], {"zero_variance_groups": "drop", "scale_rewards": "none"}, "log-probs."),
    ],
)
def test_the_error_names_the_groups_with_values_that_are_not_finite(tmp_path, parts, options, words):
    """The message names each group at fault once, although its rows are shuffled over two micro-batches."""
    options = {"gradient_accumulation_steps": 2, "shuffle_dataset": False, **options}
    trained = tiny_models.trainer(tmp_path, tiny_models.half_dead, **options)
    step = 0 if "steps_per_generation" in options else 1
    with not_finite_for([4, 5], step, parts), pytest.raises(FloatingPointError) as stopped:
        trained.train()
    wrong = {
        f"group {row['group']} of round 0, sampled at step {row['step']} ('{row['prompt']}'): {words}"
        for row, *_ in traces.groups(tmp_path / "run")
        if row["prompt"][:2] in ("04", "05") and row["kept"]
    }
    named = str(stopped.value).partition("Not finite in attempts of ")[2].partition("The attempts sampled last")[0]
    assert wrong
    assert all(one.removesuffix(".") in named for one in wrong), (wrong, named)
    assert named.count("group ") == len(wrong)


def test_a_run_that_resumes_within_a_batch_names_its_groups(tmp_path):
    options = {"steps_per_generation": 2, "save_strategy": "steps", "save_steps": 1}
    tiny_models.trained(tmp_path, tiny_models.half_dead, max_steps=1, **options)
    resumed = tiny_models.trainer(tmp_path, tiny_models.half_dead, max_steps=2, **options)
    sampled = [group[0]["prompt"] for group in traces.groups(tmp_path / "run")]
    with not_finite_for(range(30), 1, ["loss"]), pytest.raises(FloatingPointError) as stopped:
        resumed.train(resume_from_checkpoint=True)
    named = str(stopped.value).partition("Not finite in attempts of ")[2].partition("The attempts sampled last")[0]
    assert any(f"('{prompt}'): log-probs" in named for prompt in sampled)


def test_the_numbers_of_a_batch_that_was_made_ahead_name_its_own_groups():
    guard = StepGuard(SimpleNamespace(nonfinite_step="raise", kl_placement="loss", kl_estimator="k3"), Accelerator())
    first, second = guard.number(["a", "a", "b", "b"]), guard.number(["c", "d", "d", "c"])
    assert [guard.groups[number] for number in [*first.tolist(), *second.tolist()]] == [*"aabbcddc"]
    logps = torch.zeros(4, 3)
    logps[1] = math.nan
    for batch in (first, second):  # the first batch trains after the second was made
        guard.forwarded(logps)
        guard.record_micro_batch(torch.zeros(()), {"groups": batch, "completion_mask": torch.ones(4, 3)})
    assert [*guard._culprits(guard._parts)] == ["a", "d"]


def test_the_norm_of_a_shard_is_not_taken_for_that_of_all():
    """FSDP 2 with PyTorch 2.6: each rank has the norm of its own shard, in a DTensor whose whole is the real norm."""
    guard = StepGuard(SimpleNamespace(nonfinite_step="raise", output_dir="out", trace_every=0), Accelerator())
    whole = torch.tensor(3.0)
    shard = SimpleNamespace(full_tensor=lambda: whole)
    assert guard.checked(shard, 1, lambda: None) is whole
