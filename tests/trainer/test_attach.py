"""Tests of `attach` on TRL's trainers: training stays the same bit for bit, and traces equal GRPOPlusTrainer's."""

import re

import pytest
import tiny_models
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

import trl_grpo_plus
from trl_grpo_plus.traces import reader
from trl_grpo_plus.trainer.attach.observer import OPTIONS


pytestmark = pytest.mark.long

TRAINERS = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8}


def made(folder, kind, reward=tiny_models.dead_for_most, **options):
    """Make one of TRL's trainers with the options of `tiny_models.trainer`."""
    cls, config = TRAINERS[kind]
    args = config(**{**tiny_models.BASE, "output_dir": str(folder / "run"), **options})
    return cls(
        model=tiny_models.model_path(folder),
        reward_funcs=reward,
        args=args,
        train_dataset=tiny_models.prompts(30),
        eval_dataset=tiny_models.prompts(4),
        processing_class=tiny_models.tokenizer(),
    )


@pytest.mark.parametrize("kind", TRAINERS)
def test_training_is_the_same_bit_for_bit(tmp_path, kind):
    options = {"beta": 0.1, "num_iterations": 2, "max_steps": 4, **EVALUATED}
    alone = made(tmp_path / "alone", kind, **options)
    alone.train()
    watched = made(tmp_path / "watched", kind, **options)  # making a trainer sets the seed
    trl_grpo_plus.attach(watched)
    watched.train()
    tiny_models.assert_same(watched, alone)
    assert len(tiny_models.losses(alone)) == 4
    added = re.compile("alarms/|completions/mean_length_of/")
    for entry, other in zip(watched.state.log_history, alone.state.log_history, strict=True):
        kept = {name: value for name, value in entry.items() if not added.match(name)}
        assert tiny_models.untimed(kept) == pytest.approx(tiny_models.untimed(other), rel=0, nan_ok=True)
    assert any(added.match(name) for entry in watched.state.log_history for name in entry)


@pytest.mark.parametrize("kind", TRAINERS)
def test_every_attempt_is_in_the_traces(tmp_path, kind):
    trainer = made(tmp_path, kind, **{**EVALUATED, "eval_delay": 100, "eval_on_start": True})
    seen = []
    trainer.reward_funcs = [lambda completions, **columns: seen.extend(completions) or tiny_models.digits(completions)]
    trainer.reward_func_names = ["digits"]
    trl_grpo_plus.attach(trainer)
    trainer.train()
    rows = [row for group in reader.groups(trainer.args.output_dir, "train") for row in group]
    evaluated = [row for group in reader.groups(trainer.args.output_dir, "eval") for row in group]
    assert len(rows) == 3 * 8
    assert evaluated
    assert sorted(row["completion"] for row in (*rows, *evaluated)) == sorted(seen)
    table = trainer._logs  # TRL's own table, which holds the last batch
    last = sorted((row["completion"], row["advantage"]) for row in rows if row["step"] == 3)
    expected = sorted(zip(table["completion"], table["advantages"], strict=True))
    assert [text for text, _ in last] == [text for text, _ in expected]
    assert [value for _, value in last] == pytest.approx([value for _, value in expected], abs=1e-6)
    about = reader.about(trainer.args.output_dir)
    assert about["rewards"] == {"digits": 1.0}
    assert reader.journal(trainer.args.output_dir, "metrics")


def test_the_records_are_those_of_our_trainer(tmp_path):
    watched = made(tmp_path / "theirs", "grpo")
    trl_grpo_plus.attach(watched)
    watched.train()
    ours = tiny_models.trained(tmp_path / "ours", tiny_models.dead_for_most)
    both = [list(reader.groups(trainer.args.output_dir, "train")) for trainer in (watched, ours)]
    assert both[0] == both[1]


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_run_that_kept_many_dead_groups_says_how_to_leave_them_out(tmp_path, kind, capsys):
    """TRL's `RLOOTrainer` cannot be replaced by `GRPOPlusTrainer`, so it gets no such line."""

    def first_half_dead(completions, number, **columns):
        return [0.0 if n % 2 else 0.1 * (place % 4) for place, n in enumerate(number)]

    trainer = made(tmp_path, kind, first_half_dead, beta=0.0, per_device_train_batch_size=16)
    trl_grpo_plus.attach(trainer)
    trainer.train()
    assert 0.25 < trainer.state.log_history[0]["frac_reward_zero_std"] < 1
    assert ("zero_variance_groups='skip' leaves them out" in capsys.readouterr().out) == (kind == "grpo")


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_judge_that_generates_leaves_the_attempts_as_they_were(tmp_path, kind):
    def judge(prompts, completions, **columns):
        seen.extend(completions)
        trainer._generate([f"{prompt}1" for prompt in prompts])
        return tiny_models.digits(completions)

    seen: list[str] = []
    trainer = made(tmp_path, kind, judge, max_steps=1)
    trl_grpo_plus.attach(trainer)
    trainer.train()
    rows = [row for group in reader.groups(trainer.args.output_dir, "train") for row in group]
    assert [row["completion"] for row in rows] == seen


def test_unknown_options_and_wrong_values_are_refused(tmp_path):
    trainer = made(tmp_path, "grpo")
    for options, error, words in [
        (
            {"trace_evry": 2},
            TypeError,
            "attach got an unexpected keyword argument 'trace_evry'. Did you mean trace_every",
        ),
        ({"kl_estimator": "k1"}, TypeError, "attach got an unexpected keyword argument 'kl_estimator'"),
        ({"zero_variance_groups": "resample"}, TypeError, "unexpected keyword argument 'zero_variance_groups'"),
        ({"trace_every": -1}, ValueError, "trace_every=-1 must be an integer and >= 0"),
        ({"alarms": "false"}, ValueError, "alarms='false' must be True or False"),
        ({"filter_metric": "no"}, ValueError, "filter_metric='no' is neither"),
        ({"halt_on_alarm": ["dead_grups"]}, ValueError, "halt_on_alarm='dead_grups'.*Did you mean dead_groups"),
        ({"halt_on_alarm": ["reward_failures"]}, ValueError, "'reward_failures', which attach cannot see"),
        ({"alarm_thresholds": {"x": 1}}, ValueError, "x"),
    ]:
        with pytest.raises(error, match=words):
            trl_grpo_plus.attach(trainer, **options)
    trl_grpo_plus.attach(trainer)
    with pytest.raises(TypeError, match="attached already"):
        trl_grpo_plus.attach(trainer)
    with pytest.raises(TypeError, match="TRL's GRPOTrainer, RLOOTrainer or AsyncGRPOTrainer, got str"):
        trl_grpo_plus.attach("trainer")
    with pytest.raises(TypeError, match="keeps its traces itself"):
        trl_grpo_plus.attach(tiny_models.trainer(tmp_path / "ours"))


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_model_that_learns_little_is_warned_of(tmp_path, caplog, kind):
    rounded = {"learning_rate": 1e-6, "model_init_kwargs": {"dtype": "bfloat16"}}
    trainer = made(tmp_path, kind, **rounded, top_p=0.9, num_iterations=2)
    trainer.train_dataset = Dataset.from_dict({"prompt": [[{"role": "assistant", "content": "1"}]] * 8})
    assert not caplog.records
    trl_grpo_plus.attach(trainer)
    for words in ("nearly all updates are lost in rounding", "top_p", "ends with a message of the assistant"):
        assert words in caplog.text


def test_a_trainer_that_has_trained_already_is_warned_of(tmp_path, caplog):
    trainer = made(tmp_path, "grpo", max_steps=1)
    trainer.train()
    trl_grpo_plus.attach(trainer)
    assert "has trained 1 steps already" in caplog.text
    assert "Call attach(trainer) before the first train()" in caplog.text
    trainer.args.max_steps = 2
    trainer.train()
    assert {step for step, _, _ in reader.files(trainer.args.output_dir)} == {1, 2}
    caplog.clear()
    trl_grpo_plus.attach(made(tmp_path, "grpo"))
    assert "already" not in caplog.text


def test_attach_takes_every_option_for_traces_and_alarms():
    watching = ("trace_", "alarm", "halt_")
    fields = trl_grpo_plus.GRPOPlusConfig.__dataclass_fields__
    assert {name for name in fields if name.startswith(watching)} <= set(OPTIONS)


@pytest.mark.parametrize("attached", [False, True])
def test_an_alarm_ends_the_training_with_a_checkpoint(tmp_path, caplog, attached):
    """The evaluation of that step would not save it as the best one."""
    options = {"max_steps": 30, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
    options |= {"save_strategy": "best", "metric_for_best_model": "reward", "save_only_model": True}
    alarm = {"halt_on_alarm": ["dead_groups"], "alarm_thresholds": {"window": 4, "min_batches": 4}}
    if attached:
        trainer = made(tmp_path, "grpo", tiny_models.always_dead, **options)
        trl_grpo_plus.attach(trainer, **alarm)
    else:
        evaluated = {"extra": {"eval_dataset": tiny_models.prompts(1)}}
        trainer = tiny_models.trainer(tmp_path, tiny_models.always_dead, **options, **alarm, **evaluated)
    trainer.train()
    step = trainer.state.global_step
    assert 4 <= step < 8
    assert f"Training stops after step {step}: halt_on_alarm names 'dead_groups'" in caplog.text
    assert (tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json").exists()
    if attached:
        return
    resumed = tiny_models.trainer(tmp_path, tiny_models.always_dead, max_steps=30, **alarm)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 30


@pytest.mark.parametrize("attached", [False, True])
def test_only_a_trainer_that_trains_no_further_step_says_so(tmp_path, caplog, attached):
    """A trainer of TRL's that is resumed at its last step trains one more step, as it does without `attach`."""
    for _ in range(2):
        options = {"save_strategy": "steps", "save_steps": 3}
        trainer = made(tmp_path, "grpo", **options) if attached else tiny_models.trainer(tmp_path, **options)
        if attached:
            trl_grpo_plus.attach(trainer)
        trainer.train(resume_from_checkpoint=(tmp_path / "run" / "checkpoint-3").exists())
    assert trainer.state.global_step == (4 if attached else 3)
    assert ("no step is left to train" in caplog.text) is not attached


def test_alarms_not_in_halt_on_alarm_do_not_end_the_training(tmp_path):
    alarm = {"halt_on_alarm": ["repetition"], "alarm_thresholds": {"window": 4, "min_batches": 4}}
    trainer = tiny_models.trained(tmp_path, tiny_models.always_dead, max_steps=8, **alarm)
    assert trainer.state.global_step == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"halt_on_alarm": "dead_groups"}, "must be a list of alarms"),
        ({"halt_on_alarm": ["dead_groups"], "alarms": False}, "names 'dead_groups', which is off"),
        ({"halt_on_alarm": ["dead_groups"], "alarm_thresholds": {"dead_groups": None}}, "which is off"),
    ],
)
def test_halt_on_alarm_refuses_an_alarm_that_is_off(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        tiny_models.trainer(tmp_path, **options)


class Derives(TrainerCallback):
    """Logs a metric of its own for each entry with a loss, then clears the history."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.trainer.log({"derived": 2 * logs["loss"]})
            state.log_history.clear()


@pytest.mark.parametrize("attached", [True, False])
def test_each_entry_is_kept_once_whatever_other_callbacks_do(tmp_path, attached):
    trainer = made(tmp_path, "grpo") if attached else tiny_models.trainer(tmp_path)
    if attached:
        trl_grpo_plus.attach(trainer)
    callback = Derives()
    callback.trainer = trainer
    trainer.add_callback(callback)
    trainer.train()
    entries = reader.journal(tmp_path / "run", "metrics")
    kinds = ("loss", "derived", "train_loss")
    kept = [(kind, entry["step"]) for entry in entries for kind in kinds if kind in entry]
    assert kept == [(kind, step) for step in (1, 2, 3) for kind in kinds[:2]] + [("train_loss", 3)]
    losses = [entry["loss"] for entry in entries if "loss" in entry]
    assert [entry["derived"] for entry in entries if "derived" in entry] == [2 * loss for loss in losses]
