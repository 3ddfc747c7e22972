"""Tests of 50 steps in which every group is dead: no weight changes, no memory grows, and the schedule goes on."""

import gc

import pytest
import tiny_models
import torch
from transformers import TrainerCallback


MODES = {
    "drop": {"zero_variance_groups": "drop"},
    "resample, drop": {"zero_variance_groups": "resample", "max_resample_rounds": 1},
    "resample, keep": {"zero_variance_groups": "resample", "max_resample_rounds": 1, "resample_fallback": "keep"},
}
STEPS = 50


class Held(TrainerCallback):
    """Records the bytes in tensors and the number of objects after every tenth step."""

    def __init__(self):
        self.bytes, self.objects = [], []

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 10 == 0:
            gc.collect()
            objects = gc.get_objects()
            tensors = [thing for thing in objects if isinstance(thing, torch.Tensor)]
            self.bytes.append(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
            self.objects.append(len(objects))


@pytest.mark.parametrize("mode", ["drop", *(pytest.param(name, marks=pytest.mark.full) for name in list(MODES)[1:])])
def test_memory_stays_flat_and_the_learning_rate_schedule_continues(tmp_path, mode):
    options = {
        **MODES[mode],
        "max_steps": STEPS,
        "save_strategy": "steps",
        "save_steps": 40,
        "data": tiny_models.prompts(9),
    }
    trained, held = tiny_models.trainer(tmp_path, tiny_models.always_dead, **options), Held()
    before = tiny_models.weights(trained)
    trained.add_callback(held)
    trained.train()

    assert tiny_models.same_weights(tiny_models.weights(trained), before)
    assert tiny_models.losses(trained) == [0.0] * STEPS
    rates = tiny_models.logged(trained, "learning_rate")
    assert rates == pytest.approx([1e-2 * (1 - step / STEPS) for step in range(STEPS)])
    # Each step adds an entry to the log, and the entry's values are objects too.
    assert held.bytes[-1] <= held.bytes[1] * 1.02 + 1000
    assert held.objects[-1] - held.objects[1] < 30 * 20

    resumed = tiny_models.trainer(tmp_path, tiny_models.always_dead, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-40"))
    tiny_models.assert_same(resumed, trained)
    assert tiny_models.logged(resumed, "learning_rate") == rates


@pytest.mark.parametrize("mode", ["skip", "drop"])
@pytest.mark.parametrize(
    "options",
    [
        {"multi_objective_aggregation": "normalize_then_sum"},
        {
            "multi_objective_aggregation": "normalize_then_sum",
            "advantage_baseline": "belief",
            "scale_rewards": "prior",
            "failed_reward": 0.3,
        },
        {"scale_rewards": "batch"},
        {"scale_rewards": "running"},
        {"scale_rewards": "batch", "beta": 0.1, "kl_placement": "reward", "kl_estimator": "k1"},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_a_batch_without_a_live_group_ends_no_run(tmp_path, mode, options):
    trained = tiny_models.trained(tmp_path, tiny_models.always_dead, zero_variance_groups=mode, max_steps=1, **options)
    assert tiny_models.losses(trained) == [0.0]
    assert tiny_models.logged(trained, "groups/trained") == [0]


def test_a_training_that_can_only_do_nothing_says_so(tmp_path, caplog):
    """All weights are 0; or there is no step: no steps, no epochs, or a stream shorter than a batch."""
    trainer = tiny_models.trainer(tmp_path, reward_weights=[0.0])
    assert "reward_weights=[0.0] are all 0, so all advantages are 0. Only a KL term (beta)" in caplog.text
    trainer.args.max_steps = 0
    trainer.train()
    assert "No step was trained: max_steps=0 must be a positive number, or -1" in caplog.text
    trainer.args.max_steps, trainer.args.num_train_epochs = -1, 0
    trainer.train()
    assert "No step was trained: num_train_epochs=0 must be above 0, unless max_steps is set." in caplog.text
    stream = tiny_models.prompts(1).to_iterable_dataset()
    tiny_models.trained(tmp_path, data=stream)
    assert "No step was trained: the stream has fewer than the 2 prompts of a generation batch" in caplog.text
