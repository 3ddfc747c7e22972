"""`vllm_check_every` with a real engine: no warning if the engine has the policy's weights, else one that says why."""

import re

import pytest


pytest.importorskip("vllm", reason="make test-vllm runs these")

import peft
import tiny_models
import torch
import watched


pytestmark = pytest.mark.usefixtures("engine")

MEAN, MOST, MOVED = "sampler/logp_difference/mean", "sampler/logp_difference/max", "sampler/policy_moved"


def lora(**options):
    return {"extra": {"peft_config": peft.LoraConfig(r=4, lora_alpha=32, target_modules="all-linear", **options)}}


@pytest.fixture
def run(tmp_path, caplog):
    """Give a function that trains and returns the trainer and its warnings. `breaking` changes the trainer before."""

    def train(breaking=lambda made: None, **options):
        made = watched.trainer(tmp_path, **{"vllm_check_every": 1, "max_steps": 4, **options})
        breaking(made)
        made.train()
        return made, [
            record.getMessage() for record in caplog.records if record.name == "trl_grpo_plus.trainer.vllm.sync_check"
        ]

    return train


def no_sync(made):
    made.vllm_generation.sync_weights = lambda: None


def sync_until_step_2(made):
    sync = made.vllm_generation.sync_weights
    made.vllm_generation.sync_weights = lambda: sync() if made.state.global_step < 2 else None


def all_but_the_last_layer(made):
    every = made.vllm_generation._iter_named_params
    made.vllm_generation._iter_named_params = lambda: (pair for pair in every() if "layers.1." not in pair[0])


def no_merge(made):
    del made.vllm_generation._iter_named_params  # merges in copies; TRL's own calls the model's methods
    made.model.merge_adapter = made.model.unmerge_adapter = lambda: None


def hotter(made):
    made.vllm_generation.temperature = 1.5


UNCORRECTED = {"vllm_importance_sampling_correction": False}  # TRL computes no log-probs
HEALTHY = {
    "resample": watched.RESAMPLE,
    "drop, uncorrected": {"zero_variance_groups": "drop", **UNCORRECTED},
    "adapter": lora(),
    "temperature": {"temperature": 0.7, "num_iterations": 2, "max_steps": 8},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_an_engine_with_the_weights_of_the_policy(run, name):
    made, warned = run(**HEALTHY[name])
    assert warned == []
    looked_at = sum(count > 0 for count in tiny_models.logged(made, "groups/trained"))
    assert len(tiny_models.logged(made, MEAN)) == len(tiny_models.logged(made, MOVED)) + 1 == looked_at >= 3
    assert max(tiny_models.logged(made, MOST)) < 1e-4
    assert min(tiny_models.logged(made, MOVED)) > 0.1


def assert_frozen_weights_stay(run, **options):
    """TRL merges the adapter into them and takes it out again, which rounds them."""
    first = {}
    made, warned = run(lambda made: first.update(frozen(made)), **lora(), **options)
    assert warned == []
    assert max(tiny_models.logged(made, MOST)) < 1e-4
    assert first
    assert all(torch.equal(weight, first[name]) for name, weight in frozen(made).items())


def test_an_adapter_leaves_the_frozen_weights_as_they_are(run):
    assert_frozen_weights_stay(run)


def test_an_adapter_leaves_the_frozen_weights_as_they_are_with_a_server(run, on_server):
    assert_frozen_weights_stay(run, **on_server())


def frozen(made):
    return {name: weight.clone() for name, weight in made.model.named_parameters() if "base_layer" in name}


BROKEN = {
    "no sync": (no_sync, {}, 1, "At step 1 the difference was .* the engine has weights of about step 1,"),
    "no sync, uncorrected": (
        no_sync,
        UNCORRECTED,
        1,
        "At step 1 the difference was .* the engine has weights of about step 1,",
    ),
    "no sync from step 2": (
        sync_until_step_2,
        {},
        2,
        "At step 2 the difference was .* the engine has weights of about step 2,",
    ),
    "no sync, adapter": (no_sync, lora(), 1, "those of the model without its adapter"),
    "no merge": (no_merge, lora(), 1, "those of the model without its adapter"),
    "hotter": (hotter, {}, 0, "They have not agreed in this run"),
    "dropout": (lambda made: None, lora(lora_dropout=0.3), 1, "Without the trainer's dropout the difference is .*e-0"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_engine_with_other_weights(run, name):
    breaking, options, step, expected = BROKEN[name]
    made, warned = run(breaking, **options)
    assert f"Step {step + 1}: vLLM does not sample from the policy that is trained" in warned[0]
    assert re.search(expected, warned[0])
    assert len(warned) == 1
    means = tiny_models.logged(made, MEAN)
    assert max(means[:step], default=0.0) < 1e-4
    assert min(means[step:]) > 0.1


def test_a_part_of_the_weights(run):
    """The last layer is never sent. It stays as it was at the start, when engine and trainer loaded the same files."""
    _, warned = run(all_but_the_last_layer)
    assert re.search("Step 2: .*does not explain the difference now. Either some weights are not sent", warned[0])


@pytest.mark.parametrize(("every", "looked_at"), [(0, []), (3, [0, 3])])
def test_nothing_else_is_changed(run, every, looked_at):
    """The check changes no random number, though dropout and the engine draw them in the trainer's process."""
    options = lora(lora_dropout=0.2)
    made, _ = run(vllm_check_every=every, **options)
    other, _ = run(vllm_check_every=1, **options)
    tiny_models.assert_same(made, other)
    assert [i for i, entry in enumerate(made.state.log_history[:-1]) if MEAN in entry] == looked_at


def test_what_cannot_be_compared_is_not(run):
    made, warned = run(hotter, vllm_check_every=10, top_p=0.9)
    assert warned == tiny_models.logged(made, MEAN) == []


@pytest.mark.parametrize("breaking", [None, no_sync])
def test_a_server(run, on_server, breaking):
    made, warned = run(breaking or (lambda made: None), **on_server())
    if breaking is None:
        assert warned == []
        assert max(tiny_models.logged(made, MOST)) < 1e-4
    else:
        assert warned
