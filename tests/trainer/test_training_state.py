"""Tests that a run which is stopped and resumed ends with the weights of a run that never stopped."""

import json
import os
import shutil
import signal
from types import SimpleNamespace

import compatibility_runs
import numpy as np
import peft
import pytest
import tiny_models
import torch
import user_advantages
from safetensors.torch import load_file
from slow_cases import some
from transformers import AutoModelForCausalLM, IntervalStrategy, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_jit_checkpoint import JITCheckpointCallback
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.launch.interrupts import SIGNALS, StopOnInterrupt
from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.trainer import training_state
from trl_grpo_plus.trainer.checkpoint_integrity import lacking
from trl_grpo_plus.utils.validation import ConfigError


pytestmark = pytest.mark.long


RESAMPLE = {"zero_variance_groups": "resample", "max_resample_rounds": 2}
BELIEFS = {"prompt_selection": "belief", "advantage_baseline": "belief", "scale_rewards": "prior"}
ENTROPY = {"use_adaptive_entropy": True, "entropy_target": 10.0}
NOISY = {"advantage_estimator": {"name": f"{user_advantages.__file__}:ramp", "args": {"noise": 0.5}}}
CASES = {
    "resample": RESAMPLE,
    "drop": {"zero_variance_groups": "drop"},
    "in the midst of a generation batch": {**RESAMPLE, "steps_per_generation": 4},
    "in the midst of iterations": {**RESAMPLE, "num_iterations": 3},
    "accumulation": {**RESAMPLE, "gradient_accumulation_steps": 2},
    "in a later epoch": {**RESAMPLE, "data": tiny_models.prompts(6)},
    "at the start of an epoch": {**RESAMPLE, "data": tiny_models.prompts(10)},
    "adaptive beta": {"beta": 0.1, "kl_target": 0.05, "kl_horizon": 30},
    "running std": {"scale_rewards": "running"},
    "an advantage function that draws": {**RESAMPLE, **NOISY, "steps_per_generation": 4},
    "beliefs, a head": {**BELIEFS, "belief_head": "prompt", "zero_variance_groups": "drop", "num_iterations": 2},
    "beliefs, resampled": {**BELIEFS, **RESAMPLE, "belief_key": "number"},
    "all defaults": {},
    "all defaults, in the midst of a batch in a later epoch": {
        "steps_per_generation": 2,
        "data": tiny_models.prompts(8),
    },
}


RUN_EACH_TIME = ["resample", "in the midst of iterations", "in a later epoch", "an advantage function that draws"]
RUN_EACH_TIME += ["beliefs, a head", "beliefs, resampled", "all defaults, in the midst of a batch in a later epoch"]


@pytest.fixture(scope="module", params=some(CASES, lambda name: name in RUN_EACH_TIME))
def whole(request, tmp_path_factory):
    """Return a trainer whose run never stopped, and its options."""
    options = {"max_steps": 9, "save_strategy": "steps", "save_steps": 5, **CASES[request.param]}
    trained = tiny_models.trained(tmp_path_factory.mktemp("whole"), **options)
    return trained, options


@pytest.mark.parametrize("stop", [pytest.param(5, marks=pytest.mark.full), 6])
def test_a_resumed_run_equals_one_that_never_stopped(tmp_path, whole, stop):
    whole, options = whole
    stopped = tiny_models.trainer(tmp_path, **options)
    stopped.add_callback(tiny_models.StopAt(stop))
    with pytest.raises(InterruptedError):
        stopped.train()
    resumed = tiny_models.trainer(tmp_path, **options)
    torch.manual_seed(12345)
    resumed.train(resume_from_checkpoint=True)

    tiny_models.assert_same(resumed, whole)
    for metric in ("groups/alive", "beliefs/skill", "selection/resting", "rollouts"):
        assert tiny_models.logged(resumed, metric) == tiny_models.logged(whole, metric)
    assert resumed._recorder.state_dict() == whole._recorder.state_dict()  # the state of the alarms
    assert not tiny_models.same_weights(tiny_models.weights(stopped), tiny_models.weights(whole))


class Preempted(TrainerCallback):
    """Requests a checkpoint at the beginning of a step, as SIGTERM does. It is saved before the optimizer steps."""

    def __init__(self, trainer, step):
        self.trainer, self.step = trainer, step

    def on_step_begin(self, args, state, control, **kwargs):
        for callback in self.trainer.callback_handler.callbacks if state.global_step == self.step else ():
            if isinstance(callback, JITCheckpointCallback):
                callback.jit_manager.is_checkpoint_requested = True


@pytest.mark.parametrize(
    ("step", "times", "options"),
    [
        pytest.param(
            3, 1, {"gradient_accumulation_steps": 2, "steps_per_generation": 4}, id="in the midst of a batch"
        ),
        pytest.param(2, 2, {**BELIEFS, **RESAMPLE, "gradient_accumulation_steps": 2}, id="a batch begins, twice"),
        pytest.param(3, 2, {**BELIEFS, "data": tiny_models.prompts(6)}, id="an epoch begins, twice"),
        pytest.param(2, 1, {**CASES["adaptive beta"], **CASES["running std"]}, id="beta and std"),
        pytest.param(2, 1, ENTROPY, id="entropy", marks=pytest.mark.full),
    ],
)
def test_a_checkpoint_saved_before_the_optimizers_step_resumes_where_that_step_began(tmp_path, step, times, options):
    options, checkpoint = {"max_steps": 5, **options}, str(tmp_path / "run" / f"checkpoint-{step}")
    whole = tiny_models.trained(tmp_path / "whole", **options)
    for time in range(times):
        stopped = tiny_models.trainer(tmp_path, enable_jit_checkpoint=True, **options)
        stopped.add_callback(Preempted(stopped, step))
        if time:
            torch.manual_seed(12345)  # the state of a new process is another one
        stopped.train(resume_from_checkpoint=checkpoint if time else None)
        assert stopped.state.global_step == step + 1
    resumed = tiny_models.trainer(tmp_path, **options)
    resumed.train(resume_from_checkpoint=checkpoint)
    assert tiny_models.same_weights(tiny_models.weights(resumed), tiny_models.weights(whole))
    logged, expected = (
        [tiny_models.untimed(entry) for entry in one.state.log_history if "loss" in entry and entry["step"] > step]
        for one in (resumed, whole)
    )
    assert logged == expected
    assert len(logged) == 5 - step
    assert resumed._recorder.state_dict() == whole._recorder.state_dict()


@pytest.mark.parametrize(("jit", "steps"), [(True, 2), (False, 2), (False, 4)])  # micro-batches of a generation
def test_a_checkpoint_that_a_script_saves_within_a_step_is_warned_of_unless_it_resumes_exactly(
    tmp_path, jit, steps, caplog
):
    exact = jit or steps == 4  # the second step is within the first batch, which the checkpoint holds

    class Saving(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            if state.global_step == 1:
                saving._save_checkpoint(saving.model, None)

    options = {"max_steps": 2, "gradient_accumulation_steps": 2, "steps_per_generation": steps}
    options |= {"enable_jit_checkpoint": jit}
    saving = tiny_models.trainer(tmp_path, **options)
    saving.add_callback(Saving())
    saving.train()
    assert ("checkpoint-1 is saved within a step: a run that is resumed" in caplog.text) == (not exact)
    resumed = tiny_models.trainer(tmp_path, **options)
    resumed.train(resume_from_checkpoint=True)
    assert tiny_models.same_weights(tiny_models.weights(resumed), tiny_models.weights(saving)) == exact
    assert (tiny_models.logged(resumed, "rollouts") == tiny_models.logged(saving, "rollouts")) == exact


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(CASES["adaptive beta"], id="beta"),
        pytest.param({"neftune_noise_alpha": 5.0}, id="NEFTune"),
        pytest.param(ENTROPY, id="entropy"),
    ],
)
def test_a_trainer_that_was_interrupted_within_a_step_resumes_exactly(tmp_path, options):
    """A user interrupts a trainer in a notebook, and the same trainer trains again."""

    class Interrupting(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                interrupted.remove_callback(self)
                raise KeyboardInterrupt

    options = {"gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 1, **options}
    whole = tiny_models.trained(tmp_path / "whole", tiny_models.digits, **options)
    interrupted = tiny_models.trainer(tmp_path, tiny_models.digits, **options)
    interrupted.add_callback(Interrupting())
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    interrupted.train(resume_from_checkpoint=True)
    assert not interrupted.model.get_input_embeddings()._forward_hooks
    tiny_models.assert_same(interrupted, whole)
    assert interrupted._last_world_entropy == whole._last_world_entropy  # of step 3, if the coefficient adapts
    for metric in ("kl", "entropy", "beta"):
        assert tiny_models.logged(interrupted, metric) == tiny_models.logged(whole, metric)


def test_what_rewards_logged_of_an_interrupted_batch_is_forgotten(tmp_path):
    calls = []

    def logs(completions, log_metric, log_extra, **columns):
        log_metric("calls", float(len(calls)))
        log_extra("length", [len(text) for text in completions])
        return tiny_models.digits(completions)

    def interrupts(completions, **columns):
        calls.append(len(completions))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return [0.0] * len(completions)

    trainer = tiny_models.trainer(tmp_path, [logs, interrupts], save_strategy="steps", save_steps=1)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.train(resume_from_checkpoint=True)
    assert tiny_models.logged(trainer, "calls") == [0.0, 2.0, 3.0]
    rows = [row for group in traces.groups(trainer.args.output_dir, "train") for row in group]
    assert [row["extra"] for row in rows] == [{"length": len(row["completion"])} for row in rows]


def test_a_new_training_forgets_the_step_in_which_the_last_was_interrupted(tmp_path):
    class Interrupting(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            begun.append((len(trainer._guard._parts), [*trainer._controller._noted], [*trainer._entropies]))

        def on_substep_end(self, args, state, control, **kwargs):
            if len(begun) == 1:
                raise KeyboardInterrupt

    begun, options = [], {**CASES["adaptive beta"], "gradient_accumulation_steps": 2, "max_steps": 1}
    trainer = tiny_models.trainer(tmp_path, tiny_models.digits, **options)
    trainer.add_callback(Interrupting())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer._controller._noted
    assert trainer._guard._parts
    trainer.train()
    assert begun == [(0, [], []), (0, [], [])]


def test_save_only_model_is_the_users_again_once_the_last_checkpoint_is_saved_whole():
    args = SimpleNamespace(save_only_model=True, logging_strategy="steps", eval_strategy="steps")
    state, control = TrainerState(global_step=2, epoch=0.5), TrainerControl()
    stops = [training_state.StopsWhole(), training_state.StopsWhole()]  # Ctrl-C and an alarm at the same step
    for stop in stops:
        stop.stop_after_step(args, state, control)
    assert args.save_only_model is False
    for stop in stops:
        stop.on_save(args, state, control)
    assert args.save_only_model is True


def test_a_training_after_one_that_an_alarm_ended_evaluates_at_the_same_step(tmp_path):
    trainer = tiny_models.trainer(tmp_path, max_steps=4)
    recorder, control = trainer._recorder, TrainerControl()
    trainer.state.global_step, trainer.state.max_steps, trainer.state.epoch = 2, 4, 1.0
    recorder.stop_after_step(trainer.args, trainer.state, control)
    epoch_end = training_state.EpochEnd()
    trainer.args.eval_strategy = IntervalStrategy.EPOCH
    epoch_end.on_step_end(trainer.args, trainer.state, control)
    for callback in (recorder, epoch_end):
        callback.on_train_begin(trainer.args, trainer.state, control)
    control.should_evaluate = control.should_save = True
    for callback in (recorder, epoch_end):
        callback.on_epoch_end(trainer.args, trainer.state, control)
    assert control.should_evaluate
    assert control.should_save


@pytest.mark.parametrize("options", [{}, {**BELIEFS, "zero_variance_groups": "drop"}], ids=["defaults", "beliefs"])
def test_a_checkpoint_of_an_epochs_last_step_comes_after_its_evaluation_and_log(tmp_path, options):
    """Stock transformers saves first: a run resumed from there draws other numbers, and misses both entries."""
    each_epoch = {"eval_strategy": "epoch", "logging_strategy": "epoch", "per_device_eval_batch_size": 8}
    options = {**options, **each_epoch, "steps_per_generation": 2, "data": tiny_models.prompts(8), "max_steps": 8}
    options |= {"save_strategy": "steps", "save_steps": 4, "extra": {"eval_dataset": tiny_models.prompts(5)}}
    never_stopped = tiny_models.trained(tmp_path / "whole", **options)
    stopped = tiny_models.trainer(tmp_path / "stopped", **options)
    stopped.add_callback(tiny_models.StopAt(4))
    with pytest.raises(InterruptedError):
        stopped.train()
    resumed = tiny_models.trainer(tmp_path / "stopped", **options)
    resumed.train(resume_from_checkpoint=True)
    assert tiny_models.same_weights(tiny_models.weights(resumed), tiny_models.weights(never_stopped))
    for name in ("eval_reward", "loss", "reward"):
        assert tiny_models.logged(resumed, name) == tiny_models.logged(never_stopped, name)
    assert [entry["step"] for entry in resumed.state.log_history if "eval_reward" in entry] == [4, 8]


def test_a_log_entry_across_a_resume_has_the_values_from_before_it(tmp_path):
    """An entry is a mean over three steps, two of them before the resume."""
    options = {"max_steps": 3, "logging_steps": 3, "save_strategy": "steps", "save_steps": 2}
    whole = tiny_models.trained(tmp_path / "whole", **options)
    stopped = tiny_models.trainer(tmp_path, **options)
    stopped.add_callback(tiny_models.StopAt(2))
    with pytest.raises(InterruptedError):
        stopped.train()
    resumed = tiny_models.trainer(tmp_path, **options)
    resumed.train(resume_from_checkpoint=True)
    metrics = ("reward", "completions/mean_length", "groups/alive", "tokens/trained", "num_tokens", "entropy", "loss")
    for metric in metrics:
        assert tiny_models.logged(resumed, metric) == tiny_models.logged(whole, metric) != []
    each = tiny_models.logged(tiny_models.trained(tmp_path / "each", **{**options, "logging_steps": 1}), "loss")
    assert resumed._total_loss_scalar == pytest.approx(each[2], abs=1e-5)  # `train_loss` is of this training alone


class LogsNumPysNumbers(GRPOPlusTrainer):
    def _compute_loss(self, *args, **kwargs):
        self._metrics["train"]["of_numpy"].append(np.float64(0.5))
        return super()._compute_loss(*args, **kwargs)


@pytest.mark.parametrize("jit", [False, True])
def test_metrics_that_are_not_logged_yet_are_saved_as_plain_numbers(tmp_path, jit):
    """`entropy_coef` is a stand-in for a number while micro-batches with filler are trained on."""
    options = {"max_steps": 3, "logging_steps": 3, "save_strategy": "steps", "save_steps": 2, "entropy_coef": 0.5}
    options |= {"zero_variance_groups": "drop", "num_generations": 2, "enable_jit_checkpoint": jit}
    options |= {"shuffle_dataset": False, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    reward = tiny_models.dead_where(lambda n: n % 8 > 2, "first_three_of_eight")
    options |= {"data": tiny_models.prompts(40), "cls": LogsNumPysNumbers}
    whole = tiny_models.trained(tmp_path, reward, **options)
    assert whole._buffered_inputs[0]["entropy_weight"] not in (0.0, 1.0)
    resumed = tiny_models.trainer(tmp_path, reward, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert tiny_models.same_weights(tiny_models.weights(resumed), tiny_models.weights(whole))
    for name, values in (("entropy_coef", [0.5]), ("of_numpy", [0.5])):
        assert tiny_models.logged(resumed, name) == tiny_models.logged(whole, name) == values


EACH_EPOCH = {"logging_strategy": "epoch", "eval_strategy": "epoch", "extra": {"eval_dataset": tiny_models.prompts(4)}}


# 30: the last step is within an epoch; 6: it ends one
@pytest.mark.parametrize(("rows", "each_epoch"), [(30, {}), (6, {}), (30, EACH_EPOCH), (6, EACH_EPOCH)])
def test_a_run_resumed_from_its_last_step_trains_no_further_step(tmp_path, rows, each_epoch):
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "data": tiny_models.prompts(rows)}
    options |= each_epoch
    whole = tiny_models.trained(tmp_path, **RESAMPLE, **options)
    resumed = tiny_models.trainer(tmp_path, **RESAMPLE, **options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 3
    tiny_models.assert_same(resumed, whole)
    assert not (tmp_path / "run" / "checkpoint-4").exists()
    assert [entry["step"] for entry in traces.journal(tmp_path / "run", "metrics")] == [
        entry["step"] for entry in whole.state.log_history
    ]
    logged, expected = ([*map(tiny_models.untimed, one.state.log_history)][:-1] for one in (resumed, whole))
    assert logged == expected  # the last one has transformers' train_loss, which is of the resumed part


def test_a_run_resumed_from_its_last_step_is_evaluated_if_nobody_has(tmp_path):
    options = {"data": tiny_models.prompts(30), "save_strategy": "steps", "save_steps": 1, **EACH_EPOCH}
    tiny_models.trained(tmp_path, max_steps=2, **options)
    resumed = tiny_models.trainer(tmp_path, max_steps=1, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert [entry["step"] for entry in resumed.state.log_history if "eval_reward" in entry] == [1]


def test_a_16_bit_adapter_keeps_its_dtype_over_a_resume_and_as_the_best_model(tmp_path):
    """PEFT loads adapters in float32."""

    def made(folder):
        model = AutoModelForCausalLM.from_pretrained(tiny_models.model_path(tmp_path), dtype=torch.bfloat16)
        adapter = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, adapter, autocast_adapter_dtype=False)
        best = {"eval_strategy": "steps", "load_best_model_at_end": True, "metric_for_best_model": "eval_reward"}
        saved = {"save_strategy": "steps", "save_steps": 1, "eval_steps": 1, "greater_is_better": True}
        options = {**tiny_models.BASE, **best, **saved, "output_dir": str(folder)}
        data = {"train_dataset": tiny_models.prompts(30), "eval_dataset": tiny_models.prompts(2)}
        config = GRPOPlusConfig(**options)
        return GRPOPlusTrainer(
            model, tiny_models.digits, config, processing_class=tiny_models.tokenizer(), callbacks=[Dtypes()], **data
        )

    class Dtypes(TrainerCallback):
        """Keeps the dtypes of the trained weights, and of their optimizer's state, at the last step."""

        def on_step_end(self, args, state, control, model, optimizer, **kwargs):
            now = [tensor for of in optimizer.state.values() for name, tensor in of.items() if name != "step"]
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            assert {tensor.dtype for tensor in [*now, *trained]} == {torch.bfloat16}

    whole, again = made(tmp_path / "whole"), made(tmp_path / "again")
    whole.train()
    shutil.copytree(tmp_path / "whole" / "checkpoint-1", tmp_path / "again" / "checkpoint-1")
    again.train(resume_from_checkpoint=True)
    for checkpoint in ("checkpoint-2", "checkpoint-3"):
        first, second = (
            load_file(tmp_path / run / checkpoint / "adapter_model.safetensors") for run in ("whole", "again")
        )
        assert tiny_models.same_weights(first, second)
    assert {weight.dtype for weight in whole.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("of_parts", [False, True])
@pytest.mark.parametrize("make", [compatibility_runs.experts, compatibility_runs.pictures])
def test_weights_that_transformers_saves_under_other_names_are_loaded(tmp_path, make, of_parts):
    """transformers saves each expert by itself, and `visual.*` for `model.visual.*`."""
    made = make(compatibility_runs.Models(tmp_path), {})
    best = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "greater_is_better": True}
    best |= {"metric_for_best_model": "eval_reward", "save_strategy": "steps", "save_steps": 1}
    options = {**tiny_models.BASE, **best, "generation_kwargs": {"suppress_tokens": [*range(2, 12)]}}

    def trainer():
        config = GRPOPlusConfig(**{**options, "output_dir": str(tmp_path / "run")})
        rows = made.data or tiny_models.prompts(30)
        extra = {"processing_class": tiny_models.tokenizer(), "eval_dataset": rows.select(range(2)), **made.extra}
        return GRPOPlusTrainer(made.model, compatibility_runs.half_dead, config, rows, callbacks=[weights], **extra)

    class Weights(TrainerCallback):
        """Keeps the weights before and after each step."""

        def on_step_begin(self, args, state, control, model, **kwargs):
            before[state.global_step] = {name: value.clone() for name, value in model.state_dict().items()}

        def on_step_end(self, args, state, control, model, **kwargs):
            after[state.global_step] = {name: value.clone() for name, value in model.state_dict().items()}

    weights, before, after = Weights(), {}, {}
    whole = trainer()
    whole.train()
    last, trained = after[3], before[2]
    best_step = int(whole.state.best_model_checkpoint.rpartition("-")[2])
    assert tiny_models.same_weights(tiny_models.weights(whole), after[best_step])
    checkpoint = tmp_path / "run" / "checkpoint-2"
    if of_parts:
        loaded = type(whole.model).from_pretrained(checkpoint)
        (checkpoint / "model.safetensors").unlink()
        loaded.save_pretrained(checkpoint, max_shard_size="5KB")
        assert len([*checkpoint.glob("model-*.safetensors")]) > 1
    before.clear()
    trainer().train(resume_from_checkpoint=str(checkpoint))
    assert [*before] == [2]
    assert tiny_models.same_weights(before[2], trained)
    assert tiny_models.same_weights(after[3], last)


def test_weights_that_trl_does_not_round_stay_as_they_are(tmp_path):
    """A rollout_func samples in place of continuous batching."""
    options = {"bf16": True, "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    options |= {"use_transformers_continuous_batching": True, "extra": {"rollout_func": tiny_models.scripted}}
    whole = tiny_models.trained(tmp_path, **options)
    resumed = tiny_models.trainer(tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert {weight.dtype for weight in resumed.model.parameters()} == {torch.float32}
    tiny_models.assert_same(resumed, whole)


def test_a_run_whose_weights_continuous_batching_rounds_resumes_exactly(tmp_path):
    options = {"bf16": True, "max_steps": 2, "save_strategy": "steps", "save_steps": 1, "cast_lm_head_to_fp32": True}
    options |= {"use_transformers_continuous_batching": True}
    options["transformers_continuous_batching_config"] = {"num_blocks": 64, "max_batch_tokens": 64}
    whole = tiny_models.trained(tmp_path, **options)
    resumed = tiny_models.trainer(tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert {weight.dtype for weight in resumed.model.parameters()} == {torch.bfloat16, torch.float32}
    tiny_models.assert_same(resumed, whole)


def test_after_a_resume_with_other_rows_later_resumes_are_exact(tmp_path):
    """The checkpoint after 5 steps is in the second epoch of 6 rows, but in the first epoch of 20 rows."""
    options = {"save_strategy": "steps", "save_steps": 1}
    tiny_models.trained(tmp_path, max_steps=5, data=tiny_models.prompts(6), **options)
    with_more = [tiny_models.trainer(tmp_path, max_steps=9, data=tiny_models.prompts(20), **options) for _ in range(2)]
    for trainer, step in zip(with_more, (5, 7), strict=True):
        trainer.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{step}"))
    tiny_models.assert_same(*with_more)


def held_out(completions, number, **kwargs):
    """Return the share of digits in training, and a constant in an evaluation: no evaluation is the best so far."""
    return [0.3 if n >= 100 else share for n, share in zip(number, tiny_models.digits(completions), strict=True)]


BEST = {"save_strategy": "best", "metric_for_best_model": "reward"}
EPOCHS = {"eval_strategy": "epoch", "data": tiny_models.prompts(6)}  # three steps each


@pytest.mark.parametrize(
    ("at", "evaluates", "options"),
    [
        pytest.param(3, False, {"eval_steps": 2}, id="in a step before an evaluation"),
        pytest.param(4, True, {"eval_steps": 2}, id="in an evaluation"),
        pytest.param(3, False, {"eval_steps": 2, **BEST}, id="the evaluation is not the best"),
        pytest.param(4, True, {"eval_steps": 2, **BEST}, id="in an evaluation that is not the best"),
        pytest.param(2, False, EPOCHS, id="at the end of an epoch"),
        pytest.param(3, False, EPOCHS, id="in an epoch"),
    ],
)
def test_ctrl_c_leaves_out_no_evaluation(tmp_path, at, evaluates, options):
    """An evaluation draws random numbers: without it a resumed run would go on with others."""

    def interrupted(completions, number, trainer_state, **kwargs):
        if sending and trainer_state.global_step == at and (number[0] >= 100) == evaluates:
            os.kill(os.getpid(), sending.pop())
        return held_out(completions, number)

    rows = tiny_models.prompts(2).map(lambda row: {"number": row["number"] + 100})
    options = {"eval_strategy": "steps", "max_steps": 7, "extra": {"eval_dataset": {"a": rows, "b": rows}}, **options}
    sending = []
    whole = tiny_models.trained(tmp_path / "whole", interrupted, **options)
    stopped, sending = tiny_models.trainer(tmp_path, interrupted, **options), [signal.SIGINT]
    stopped.add_callback(StopOnInterrupt(stopped.accelerator))
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        stopped.train()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    assert stopped.state.global_step == (at if evaluates else at + 1)
    after = [{entry["step"] for entry in one.state.log_history if "eval_reward" in entry} for one in (stopped, whole)]
    assert after[0] <= after[1]
    resumed = tiny_models.trainer(tmp_path, interrupted, **options)
    resumed.train(resume_from_checkpoint=True)

    tiny_models.assert_same(resumed, whole)
    *logged, _ = map(tiny_models.untimed, resumed.state.log_history)  # transformers' train_loss is of the resumed part
    *expected, _ = map(tiny_models.untimed, whole.state.log_history)
    assert logged == expected
    assert resumed._recorder.state_dict() == whole._recorder.state_dict()


def checkpointed(tmp_path, **options):
    tiny_models.trained(tmp_path, save_strategy="steps", save_steps=2, max_steps=2, **options)
    return tmp_path / "run" / "checkpoint-2"


def resumed(checkpoint, **options):
    trained = tiny_models.trainer(checkpoint.parents[1], **RESAMPLE, max_steps=4, **options)
    trained.train(resume_from_checkpoint=str(checkpoint))
    return trained


def test_resuming_with_another_dataset_says_so(tmp_path):
    with pytest.raises(ValueError, match="saved with 30 training prompts, the dataset now has 29"):
        resumed(checkpointed(tmp_path, **RESAMPLE), data=tiny_models.prompts(29))


def adapter(rank):
    return {"peft_config": peft.LoraConfig(r=rank, target_modules=["q_proj"])}


@pytest.mark.parametrize(
    ("saved", "now", "words"),
    [
        ({"max_position_embeddings": 64}, {"num_hidden_layers": 3}, "num_hidden_layers was 2, and is 3 now"),
        ({"max_position_embeddings": 64}, adapter(4), "it holds a whole model, and this run trains an adapter"),
        (adapter(4), adapter(8), "r was 4, and is 8 now"),
        (adapter(4), {}, "it holds an adapter, and this run has no peft_config"),
    ],
    ids=["sizes", "an adapter instead", "rank", "no adapter"],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, saved, now, words):
    def made(options):
        made_of = {"extra": options} if "peft_config" in options else {}
        trainer = tiny_models.trainer(tmp_path, save_strategy="steps", save_steps=1, max_steps=1, **made_of)
        if options and not made_of:
            trainer.model.config.update(options)
        return trainer

    made(saved).train()
    with pytest.raises(ConfigError, match=f"checkpoint-1 is of another model: {words}.* Resume with the model"):
        made(now).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("options", [RESAMPLE, BELIEFS, {**BELIEFS, "prompt_selection": "shuffle"}], ids=str)
def test_the_next_training_uses_a_newly_set_training_set(tmp_path, caplog, options):
    before, after = tiny_models.prompts(30), tiny_models.prompts(40).select(range(30, 40))
    trained = tiny_models.trained(tmp_path, data=before, **options)
    trained.train_dataset = after
    trained.train()
    assert json.loads((tmp_path / "run/rollouts/run.json").read_text())["dataset"]["rows"] == 10
    groups = list(traces.groups(tmp_path / "run"))
    assert {row["prompt"] for group in groups for row in group} <= set(after["prompt"])
    assert ("the beliefs about prompts are reset" in caplog.text) == (options is not RESAMPLE)
    if options is not RESAMPLE:
        assert groups[0][0]["belief"]["attempts"] == 2  # a belief with nothing but the prior


def test_the_next_traces_go_to_a_newly_set_output_dir(tmp_path):
    trained = tiny_models.trained(tmp_path, extra={"eval_dataset": tiny_models.prompts(2)}, max_steps=1)
    before = (tmp_path / "run/rollouts/train-00000001.jsonl").read_bytes()
    trained.args.output_dir = str(tmp_path / "second")
    trained.train()
    trained.args.output_dir = str(tmp_path / "third")
    trained.evaluate()
    assert (tmp_path / "run/rollouts/train-00000001.jsonl").read_bytes() == before
    assert [path.name for path in tmp_path.glob("*/rollouts/superseded-*")] == []
    assert {(path.parts[-3], path.name) for path in tmp_path.glob("*/rollouts/*-0*.jsonl")} == {
        ("run", "train-00000001.jsonl"),
        ("second", "train-00000001.jsonl"),
        ("third", "eval-00000001.jsonl"),
    }
    assert {group[0]["split"] for group in traces.groups(tmp_path / "second")} == {"train"}


def test_the_traces_stay_where_the_run_began_when_a_reward_changes_the_working_folder(tmp_path, monkeypatch):
    def leaving(completions, **kwargs):
        monkeypatch.chdir(tmp_path / "elsewhere")
        return tiny_models.digits(completions)

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    tiny_models.trained(tmp_path, leaving, output_dir="run", max_steps=2)
    assert len(list(tmp_path.glob("run/rollouts/train-*.jsonl"))) == 2
    assert not list(tmp_path.glob("elsewhere/*/rollouts"))


def first_step(run):
    return [group for group in traces.groups(run) if group[0]["step"] == 1]


@pytest.mark.parametrize("resume", [None, "auto"])  # "auto" finds no checkpoint
def test_prompts_of_two_training_sets_keep_their_beliefs(tmp_path, caplog, resume):
    trained = tiny_models.trained(tmp_path, data=tiny_models.prompts(4), **BELIEFS, belief_id="number")
    trained.train_dataset = tiny_models.prompts(6).select([5, 4, 3, 2, 1, 0])
    trained.train(resume_from_checkpoint=resume)
    assert "belief_id found 4 of the 4 remembered prompts" in caplog.text
    known = {group[0]["prompt"]: group[0]["belief"]["attempts"] > 2 for group in first_step(tmp_path / "run")}
    assert known == {prompt: prompt < "04" for prompt in known}
    assert len(known) == 2


def test_the_same_rows_in_another_dataset_keep_their_beliefs(tmp_path, caplog):
    trained = tiny_models.trained(tmp_path, data=tiny_models.prompts(4), **BELIEFS)
    trained.train_dataset = tiny_models.prompts(4).select(range(4))
    trained.train()
    assert "are reset" not in caplog.text
    assert all(group[0]["belief"]["attempts"] > 2 for group in first_step(tmp_path / "run"))


@pytest.mark.parametrize(("mode", "every", "of_batch"), [({}, 1, False), ({}, 4, True), (RESAMPLE, 4, True)])
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (range(30), None),
        (range(29, -1, -1), "of 30 rows that were compared 30 differ, first row 0."),
        ([*range(29), 28], "of 30 rows that were compared 1 differ, first row 29."),
    ],
)
def test_a_resume_with_other_rows_warns_and_says_if_it_trains_on_the_old_batch(
    tmp_path, caplog, mode, every, of_batch, rows, words
):
    options = {**mode, "steps_per_generation": every}
    checkpoint = checkpointed(tmp_path, **options)
    trained = tiny_models.trainer(tmp_path, max_steps=3, data=tiny_models.prompts(30).select(rows), **options)
    caplog.clear()
    trained.train(resume_from_checkpoint=str(checkpoint))
    (said,) = [record.message for record in caplog.records if "another training set" in record.message] or [""]
    assert (words is None) == (not said)
    assert (words or "") in said
    assert ("train on the checkpoint's batch" in said) == bool(words and of_batch)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (
            {"reward_weights": [-1.0]},
            "about rewards={'dead_for_most': 1.0}, this run has rewards={'dead_for_most': -1.0}",
        ),
        (
            {"data": tiny_models.prompts(30).select(range(29, -1, -1))},
            "of 30 rows that were compared 30 differ, first row 0",
        ),
    ],
)
def test_a_resume_with_other_rewards_or_rows_is_refused_until_the_belief_files_are_removed(tmp_path, now, words):
    checkpoint = checkpointed(tmp_path, **BELIEFS)
    options = {**BELIEFS, "max_steps": 4, **now}
    with pytest.raises(ValueError, match=words) as refused:
        tiny_models.trainer(tmp_path, **options).train(resume_from_checkpoint=str(checkpoint))
    assert "remove the checkpoint's grpo_plus_state_*.pt files" in str(refused.value)
    for path in checkpoint.glob("grpo_plus_state_*.pt"):
        path.unlink()
    resumed = tiny_models.trainer(tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.state.global_step == 4


def test_a_checkpoint_of_stock_trl_resumes(tmp_path, caplog):
    checkpoint = checkpointed(tmp_path)
    (checkpoint / "grpo_plus_state_0.pt").unlink()
    assert resumed(checkpoint).state.global_step == 4
    assert (
        "holds only what TRL saves: save_only_model=True was set, or it was saved with another trainer" in caplog.text
    )


def test_stock_trl_resumes_a_checkpoint_of_this_trainer(tmp_path):
    """In the midst of a generation batch, with all of this package's files in the checkpoint."""
    options = {"max_steps": 6, "steps_per_generation": 2, "save_strategy": "steps", "save_steps": 3}
    tiny_models.trained(tmp_path, **options, **BELIEFS, **RESAMPLE)
    checkpoint, begun = tmp_path / "run" / "checkpoint-3", {}

    class Begin(TrainerCallback):
        def on_train_begin(self, args, state, control, model, optimizer, **kwargs):
            begun.update(weights={name: value.clone() for name, value in model.state_dict().items()})
            begun.update(step=state.global_step, moments=optimizer.state_dict()["state"][0]["exp_avg"].clone())

    stock = tiny_models.trainer(tmp_path, cls=GRPOTrainer, **options, extra={"callbacks": [Begin()]})
    stock.train(resume_from_checkpoint=str(checkpoint))
    assert begun["step"] == 3
    assert tiny_models.same_weights(begun["weights"], load_file(checkpoint / "model.safetensors"))
    saved = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    assert torch.equal(begun["moments"], saved["state"][0]["exp_avg"])
    assert stock.state.global_step == len(tiny_models.losses(stock)) == 6


@pytest.mark.parametrize("now", [{"steps_per_generation": 2}, {"beta": 0.1}, {"loss_type": "bnpo"}])
def test_a_batch_in_flight_that_does_not_fit_is_generated_anew(tmp_path, caplog, now):
    checkpoint = checkpointed(tmp_path, **RESAMPLE, steps_per_generation=4)
    assert resumed(checkpoint, **{"steps_per_generation": 4, **now}).state.global_step == 4
    assert "differs from the checkpoint's" in caplog.text


def test_a_batch_of_another_layout_is_used_up_like_any_other(tmp_path):
    """The checkpoint is in the middle of a batch of four steps, and the resumed run makes batches of three. It first
    uses up the old batch, then makes one for the next three steps."""
    checkpoint = checkpointed(tmp_path, steps_per_generation=4)
    resumed = tiny_models.trainer(tmp_path, steps_per_generation=3, max_steps=5)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert tiny_models.logged(resumed, "rollouts") == [4 * 8, 4 * 8 + 3 * 8]


def test_our_state_is_saved_before_the_checkpoint_counts_as_complete(tmp_path):
    """Our state is written before trainer_state.json, the last file that a resume needs. So a process that is killed
    between the two leaves no checkpoint that looks complete."""
    folder = checkpointed(tmp_path, **RESAMPLE)
    assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == 2
    ours, last = (folder / name for name in ("grpo_plus_state_0.pt", "trainer_state.json"))
    assert ours.stat().st_mtime_ns < last.stat().st_mtime_ns


def test_no_state_beside_bare_weights(tmp_path):
    assert not list(checkpointed(tmp_path, save_only_model=True).glob("grpo_plus*"))


FOLLOWED = {
    "reward": tiny_models.digits,
    "beta": 0.1,
    "sync_ref_model": True,
    "ref_model_sync_steps": 2,
    "max_steps": 6,
}


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Return a trainer whose reference model followed the policy, with a checkpoint of each step."""
    return tiny_models.trained(tmp_path_factory.mktemp("followed"), **FOLLOWED, save_strategy="steps", save_steps=1)


def test_a_reference_that_follows_is_resumed_exactly_from_every_checkpoint(tmp_path, followed):
    references = set()
    for step in range(1, 6):
        resumed = tiny_models.trainer(tmp_path, **FOLLOWED)
        torch.manual_seed(12345)
        resumed.train(resume_from_checkpoint=f"{followed.args.output_dir}/checkpoint-{step}")
        tiny_models.assert_same(resumed, followed)
        assert tiny_models.same_weights(resumed.ref_model.state_dict(), followed.ref_model.state_dict())
        saved = torch.load(f"{followed.args.output_dir}/checkpoint-{step}/grpo_plus_reference.pt", weights_only=True)
        references.add(saved["lm_head.weight"].sum().item())
    assert len(references) == 3  # the first reference, and those of the syncs after steps 2 and 4


def test_a_lost_reference_is_refused_and_one_never_saved_starts_anew_with_a_warning(tmp_path, followed, caplog):
    checkpoint = tmp_path / "run" / "checkpoint-3"
    shutil.copytree(f"{followed.args.output_dir}/checkpoint-3", checkpoint)
    reference = checkpoint / "grpo_plus_reference.pt"
    os.truncate(reference, reference.stat().st_size // 2)
    assert lacking(checkpoint) == "grpo_plus_reference.pt cut off"
    reference.unlink()
    with pytest.raises(
        ConfigError, match=r"grpo_plus_reference.pt cannot be read \(FileNotFoundError.*sync_ref_model"
    ):
        tiny_models.trainer(tmp_path, **FOLLOWED).train(resume_from_checkpoint=str(checkpoint))
    (checkpoint / "grpo_plus_state_0.pt").unlink()
    tiny_models.trainer(tmp_path, **FOLLOWED).train(resume_from_checkpoint=str(checkpoint))
    assert "saved without the reference model, so the reference is the model that the run began with" in caplog.text


def test_a_reference_that_does_not_move_is_not_saved(tmp_path):
    assert not list(checkpointed(tmp_path, beta=0.1).glob("grpo_plus_reference*"))
