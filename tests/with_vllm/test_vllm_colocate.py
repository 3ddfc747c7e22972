"""A vLLM engine in the trainer's process: batches that were filtered, resampled and reassembled are right."""

import dataclasses
import functools
import math
import re
import statistics

import pytest


pytest.importorskip("vllm", reason="make test-vllm runs these")

import peft
import shims
import test_tools
import tiny_models
import torch
import watched
from datasets import Dataset

from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.trainer import grpo_plus_trainer as library
from trl_grpo_plus.trainer.progress import closing_words
from trl_grpo_plus.utils.validation import ConfigError


pytestmark = pytest.mark.usefixtures("engine")

ENDS = (tiny_models.tokenizer().eos_token_id, tiny_models.tokenizer().pad_token_id)
MODES = {
    "keep": {},
    **{mode: {"zero_variance_groups": mode} for mode in ("skip", "drop")},
    "resample": watched.RESAMPLE,
}


@pytest.fixture(scope="module", params=MODES)
def run(request, tmp_path_factory):
    """Train in each mode. Return the mode, the trainer and its folder."""
    folder = tmp_path_factory.mktemp("run")
    with shims.installed():
        return request.param, watched.trained(folder, **MODES[request.param]), folder / "run"


def test_each_batch_is_whole(run):
    mode, trained, _ = run
    assert len(trained.batches) == 3
    watched.check_batches(trained.batches)
    assert [batch["syncs"] for batch in trained.batches] == [1] * 3
    sizes = [len(batch["rows"]) for batch in trained.batches]
    assert sizes == [watched.SIZE * n for n in tiny_models.logged(trained, "groups/trained")]
    if mode == "keep":
        assert sizes == [16] * 3
    else:
        assert all(row["number"] % 3 == 0 for batch in trained.batches for row in batch["rows"])
    if mode != "resample":
        assert [batch["asked"] for batch in trained.batches] == [[16]] * 3


def test_sampling_metrics_are_of_the_batch_that_is_trained_on(run):
    _, trained, _ = run
    rows = [batch["rows"] for batch in trained.batches]
    for name, of in (("min", min), ("max", max), ("mean", statistics.fmean)):
        expected = [of([ratio for row in batch for ratio in row["ratio"]]) for batch in rows]
        assert tiny_models.logged(trained, f"sampling/importance_sampling_ratio/{name}") == pytest.approx(
            expected, abs=2e-7
        )
    expected = [watched.apart(batch, batch) for batch in rows]
    assert tiny_models.logged(trained, "sampling/sampling_logp_difference/max") == pytest.approx(expected, abs=2e-6)
    assert max(expected) < 1e-4


def test_rounds_ask_for_what_is_missing(run):
    mode, trained, folder = run
    found = {}
    for group in traces.groups(folder):
        found.setdefault(group[0]["step"], {}).setdefault(group[0]["round"], []).append(group[0]["verdict"])
    for step, batch in enumerate(trained.batches, 1):
        missing = 4
        for asked, (_, verdicts) in zip(batch["asked"], sorted(found[step].items()), strict=True):
            assert asked == watched.SIZE * missing == watched.SIZE * len(verdicts)
            missing -= verdicts.count("alive")
    later = {asked for batch in trained.batches for asked in batch["asked"][1:]}
    assert {4, 8} <= later if mode == "resample" else not later
    assert tiny_models.logged(trained, "groups/rounds") == [len(batch["asked"]) - 1 for batch in trained.batches]


def test_traces_hold_every_attempt(run):
    _, trained, folder = run
    attempts = [row for group in traces.groups(folder) for row in group]
    for step, batch in enumerate(trained.batches, 1):
        here = [row for row in attempts if row["step"] == step]
        assert len(here) == sum(batch["asked"])
        for row in here:
            expected = watched.score(row["completion"], row["reference"]["number"], row["attempt"])
            assert row["reward"] == pytest.approx(expected, abs=1e-6)
        kept = {(row["prompt"], row["attempt"]): row for row in here if row["kept"]}
        assert len(kept) == len(batch["rows"])
        for i, row in enumerate(batch["rows"]):
            traced = kept[row["prompt"], i % watched.SIZE]
            assert traced["completion"] == row["completion"]
            assert traced["tokens"] == len(row["ids"][1])
            assert traced["truncated"] == (row["ids"][1][-1] not in ENDS)
            assert traced["advantage"] == pytest.approx(row["advantage"], abs=1e-6)


def test_the_seed_decides_what_is_sampled(tmp_path):
    """With TRL alone an engine seeds the process by its rank, and each run samples the same."""
    options = {"shuffle_dataset": False, "max_steps": 1, "learning_rate": 0.0}
    found = [watched.trained(tmp_path / str(n), seed=seed, **options) for n, seed in enumerate((1, 2, 2))]
    one, two, again = ([row["ids"] for row in made.batches[0]["rows"]] for made in found)
    assert two == again
    assert [prompt for prompt, _ in one] == [prompt for prompt, _ in two]
    assert one != two


def test_weights_reach_the_engine_when_they_are_sent(tmp_path):
    watched.check_sync(watched.trainer(tmp_path))


def test_beliefs_and_the_choice_by_them(tmp_path):
    """The head reads the trainer's weights while the engine samples from its copy of them. Both must be equal."""
    options = {"advantage_baseline": "belief", "scale_rewards": "prior", "prompt_selection": "belief"}
    options |= {"belief_head": "prompt", "failed_reward": 0.3, "max_steps": 6}
    trained = watched.trained(tmp_path, **watched.RESAMPLE, **options)
    watched.check_batches(trained.batches, advantages=False)  # advantages also depend on the beliefs
    assert [batch["syncs"] for batch in trained.batches] == [1] * 6
    groups = list(traces.groups(tmp_path / "run"))
    assert all(row["belief"]["attempts"] > 0 for group in groups for row in group)
    assert len({group[0]["reference"]["number"] for group in groups}) == 30  # prompts without attempts come first
    assert len(trained._prompts.memory.state_dict()["heads"]["total"]["window"]) == 5  # batches it predicted


def prompts_of_another_group(exchange, *args):
    attempts = exchange(*args)
    others = [*attempts[watched.SIZE :], *attempts[: watched.SIZE]]
    pairs = zip(attempts, others, strict=True)
    return [dataclasses.replace(attempt, prompt_ids=other.prompt_ids) for attempt, other in pairs]


def test_a_batch_put_together_wrongly_shows(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "exchange", functools.partial(prompts_of_another_group, library.exchange))
    trained = watched.trained(tmp_path, **watched.RESAMPLE)
    assert min(tiny_models.logged(trained, "sampling/sampling_logp_difference/max")) > 0.3
    assert max(tiny_models.logged(trained, "sampling/importance_sampling_ratio/min")) < 0.8


def test_weights_that_were_not_sent_show(tmp_path):
    made = watched.trainer(tmp_path, **watched.RESAMPLE)
    made.vllm_generation.sync_weights = lambda: None
    made.train()
    first, *later = tiny_models.logged(made, "sampling/sampling_logp_difference/max")
    assert first < 1e-4
    assert min(later) > 0.1


@pytest.mark.parametrize("steps_per_generation", [1, 2])
def test_batches_of_several_steps(tmp_path, steps_per_generation):
    options = {"steps_per_generation": steps_per_generation, "max_steps": 4 * steps_per_generation}
    options |= {"num_iterations": 2, "vllm_importance_sampling_mode": "token_truncate"}
    trained = watched.trained(tmp_path, **watched.RESAMPLE, **options)
    assert [batch["asked"][0] for batch in trained.batches] == [16 * steps_per_generation] * 2
    assert [batch["syncs"] for batch in trained.batches] == [1] * 2
    watched.check_batches(trained.batches)


ESTIMATORS = {"k2": lambda d: d * d / 2, "k3": lambda d: math.exp(-d) - 1 + d}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_in_the_loss(tmp_path, estimator):
    trained = watched.trained(tmp_path, **watched.RESAMPLE, beta=0.1, kl_estimator=estimator)
    watched.check_batches(trained.batches)
    expected = [
        statistics.fmean(
            ESTIMATORS[estimator](now - first)
            for row in batch["rows"]
            for now, first in zip(row["now"], row["first"], strict=True)
        )
        for batch in trained.batches
    ]
    assert tiny_models.logged(trained, "kl") == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert expected[-1] > 0.01


@pytest.mark.parametrize("corrected", [True, False])
def test_kl_in_the_reward(tmp_path, corrected):
    options = {"beta": 0.1, "kl_estimator": "k1", "kl_placement": "reward", "kl_reward_form": "sequence"}
    options |= {"scale_rewards": "none", "vllm_importance_sampling_correction": corrected}
    trained = watched.trained(tmp_path, **watched.RESAMPLE, **options)
    watched.check_batches(trained.batches, advantages=False)
    for batch in trained.batches:
        for group in watched.groups(batch["rows"]):
            drift = [sum(row["now"]) - sum(row["first"]) for row in group]
            net = [value - 0.1 * kl for value, kl in zip(watched.rewards_of(group), drift, strict=True)]
            expected = [value - statistics.fmean(net) for value in net]
            assert [row["advantage"] for row in group] == pytest.approx(expected, abs=1e-4)
    assert max(abs(kl) for kl in drift) > 0.1


def test_lora(tmp_path):
    extra = {"peft_config": peft.LoraConfig(r=4, target_modules="all-linear")}
    trained = watched.trained(tmp_path, **watched.RESAMPLE, extra=extra)
    watched.check_batches(trained.batches)


def test_rollout_func(tmp_path):
    """A user's `rollout_func` samples from the trainer's engine."""

    def rollout(prompts, trainer):
        ids = tiny_models.tokenizer()(list(prompts))["input_ids"]
        _, completions, sampled, _ = trainer.vllm_generation.generate(ids, None, trainer.num_generations)
        sampled = [[token[0] for token in row] for row in sampled]
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": sampled}

    trained = watched.trained(tmp_path, **watched.RESAMPLE, extra={"rollout_func": rollout})
    assert any(len(batch["asked"]) > 1 for batch in trained.batches)
    assert [batch["syncs"] for batch in trained.batches] == [1] * 3
    watched.check_batches(trained.batches)


def test_sleep(tmp_path):
    """A sleeping engine loses its weights after each round, so each round has to send them anew."""
    trained = watched.trained(tmp_path, **watched.RESAMPLE, vllm_enable_sleep_mode=True)
    assert any(len(batch["asked"]) > 2 for batch in trained.batches)
    assert [batch["syncs"] for batch in trained.batches] == [len(batch["asked"]) for batch in trained.batches]
    watched.check_batches(trained.batches)


def test_evaluation(tmp_path):
    """Evaluation is not filtered and uses the current weights. The next step does not have to send them again."""
    options = {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 2, "per_device_eval_batch_size": 8}
    extra = {"eval_dataset": tiny_models.prompts(4)}
    trained = watched.trained(tmp_path, **watched.RESAMPLE, **options, extra=extra, max_steps=2)
    assert [batch["training"] for batch in trained.batches] == [True, False, True, False]
    assert [batch["syncs"] for batch in trained.batches] == [1, 1, 0, 1]
    for batch in trained.batches:
        for row in batch["rows"]:
            assert row["sampled"] == pytest.approx(row["now"], abs=1e-4)
    for batch in trained.batches[1::2]:
        assert sum(batch["asked"]) == len(batch["rows"]) == 8


def test_weights_that_no_step_made(tmp_path):
    """The engine gets the weights of a further training, and those that a script sets between two evaluations.

    TRL looks only at the number of steps, which is the same: 0 as the trainings begin, 1 in the evaluations.
    """
    extra = {"eval_dataset": tiny_models.prompts(4)}
    trained = watched.trained(tmp_path, max_steps=1, per_device_eval_batch_size=16, extra=extra)
    trained.train()
    trained.evaluate()
    with torch.no_grad():
        for weight in trained.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    trained.evaluate()
    assert [batch["training"] for batch in trained.batches] == [True, True, False, False]
    for batch in trained.batches[1::2]:
        assert batch["syncs"] == 1
        watched.check_rows(batch["rows"])
        assert watched.apart(batch["rows"], batch["rows"], "before") > 0.1


def test_a_prompt_that_is_too_long_and_stops_that_are_masked(tmp_path, caplog):
    """vLLM's own message names no option."""
    data = Dataset.from_dict({"prompt": ["1+1=", "2" * 70], "number": [0, 0]})
    options = {"per_device_train_batch_size": 8, "mask_truncated_completions": True}
    made = watched.trainer(tmp_path, data=data, generation_kwargs={"stop": ["="]}, **options)
    assert any("generation_kwargs has stop=['=']. TRL counts" in record.getMessage() for record in caplog.records)
    with pytest.raises(ConfigError, match=r"step 1: a prompt is too long for vLLM\. .* raise vllm_max_model_length"):
        made.train()


def test_attempts_that_the_context_cut_off(tmp_path, caplog):
    """vLLM ends them without an error, at 64 tokens with the prompt."""
    data = Dataset.from_dict({"prompt": ["1+1=", "2" * 61], "number": [0, 0]})
    made = watched.trained(tmp_path, data=data, per_device_train_batch_size=8, max_steps=2)
    assert 0 < max(tiny_models.logged(made, "sampler/full_context")) <= 0.5
    assert "or vLLM's context, vllm_max_model_length): " in closing_words(made.state, made.args, traced=False)[0]
    (told,) = [record.getMessage() for record in caplog.records if "filled its context" in record.getMessage()]
    assert "of 8 attempts of this process before the 6 tokens" in told
    assert "of 64 tokens. The longest of their prompts has 61." in told


def test_resumed(tmp_path):
    options = {**watched.RESAMPLE, "save_strategy": "steps", "save_steps": 2}
    weights = tiny_models.weights(watched.trained(tmp_path, **options, max_steps=2))
    resumed = watched.trainer(tmp_path, **options, max_steps=4)
    resumed.train(resume_from_checkpoint=True)
    assert len(resumed.batches) == 2
    watched.check_batches(resumed.batches)
    for row in resumed.batches[0]["rows"]:
        assert row["sampled"] == pytest.approx(watched.logps(resumed.model, weights, *row["ids"]), abs=1e-4)


def test_a_policy_that_calls_a_tool(tool_user, tmp_path):
    """The engine's calls for later turns of a conversation belong to the same round."""
    options = {"zero_variance_groups": "resample", "max_resample_rounds": 8, "shuffle_dataset": False}
    engine = {"use_vllm": True, "vllm_mode": "colocate", "vllm_importance_sampling_mode": "token_mask"}
    run = test_tools.Run(tool_user, tmp_path, dead=lambda number: number % 2 > 0, **options, **engine)
    test_tools.check(run)
    assert min(run.logged("groups/rounds")) > 0
    # The engine's log-probs are those after `top_p`, and the trainer's those before. The tool's tokens have none.
    assert min(run.logged("sampling/importance_sampling_ratio/min")) > test_tools.OPTIONS["top_p"] - 1e-3
    assert max(run.logged("sampling/importance_sampling_ratio/max")) < 1 + 1e-3


@pytest.mark.parametrize("mode", ["drop", "resample"])
def test_environments(tool_user, tmp_path, mode):
    """Each attempt that is trained on has its own environment, and the engine samples all of its turns."""
    world = test_tools.World(lambda number: number % 4 > 1)
    engine = {"use_vllm": True, "vllm_mode": "colocate", "vllm_importance_sampling_mode": "token_mask"}
    options = {"zero_variance_groups": mode, "max_resample_rounds": 8, "trace_every": 1}
    trained = test_tools.acting(world, tool_user, tmp_path, **options, **engine)
    assert min(tiny_models.logged(trained, "tools/call_frequency")) > 0
    sampled = sum(tiny_models.logged(trained, "groups/generated")) * trained.num_generations
    test_tools.assert_one_rollout_at_a_time(world, rollouts=int(sampled))
    test_tools.check_turns(test_tools.attempts(tmp_path))
    kept = tiny_models.logged(trained, "groups/trained")
    assert kept == [2] * 2 if mode == "drop" else min(kept) == 4
    assert max(tiny_models.logged(trained, "sampling/importance_sampling_ratio/max")) < 1 + 1e-3


@pytest.mark.parametrize("mode", ["drop", "resample"])
def test_a_regex_that_completions_match(tmp_path, mode):
    trained = watched.trained(tmp_path, **MODES[mode], vllm_structured_outputs_regex="[0-4]{3}[ab]")
    texts = [row["completion"] for batch in trained.batches for row in batch["rows"]]
    assert texts
    assert all(re.fullmatch("[0-4]{3}[ab]", text) for text in texts)
    # The engine's log-probs are of the tokens that the regex allows, the trainer's of all tokens.
    ratios = [ratio for batch in trained.batches for row in batch["rows"] for ratio in row["ratio"]]
    assert 0 < max(ratios) < 1
