"""What trainer.py relies on in TRL, each private name with the reason. A new TRL release fails here first."""

import inspect
import re

import pytest
import tiny
import torch
import trl
from trl import GRPOTrainer

from trl_grpo_plus import filler
from trl_grpo_plus import trainer as plus
from trl_grpo_plus.batch import Generated


METHODS = {
    "_generate": (["prompts"], "overridden: rounds of it are judged before any log-prob pass"),
    "_calculate_rewards": (
        ["inputs", "prompts", "completions", "completion_ids_list"],
        "overridden: the gathered rewards are kept, or given back",
    ),
    "_generate_and_score_completions": (["inputs"], "overridden: advantages, filler masks, metrics"),
    "_prepare_inputs": (["generation_batch"], "overridden: micro-batches with filler rows are weighed"),
    "_compute_loss": (["model", "inputs"], "overridden: KL estimator, beta"),
    "get_train_dataloader": ([], "overridden: under resample, rows say their index in `train_dataset`"),
    "_remove_unused_columns": (["dataset", "description"], "the columns of the rows that are dealt"),
    "_get_train_sampler": (["dataset"], "overridden: the sampler is kept, to resume in a later epoch"),
    "_tokenize_prompts": (["prompts"], "the token ids of prompts that a head reads"),
    "_save_checkpoint": (["model", "trial"], "overridden: our state"),
    "_push_from_checkpoint": (["checkpoint_folder"], "overridden: traces stay at home"),
    "_load_optimizer_and_scheduler": (["checkpoint"], "overridden: our state"),
}
ATTRIBUTES = {
    "beta": "seen as 0, scaled or adapted",
    "ref_model": "the KL's reference",
    "scale_rewards": "set to what TRL knows",
    "loss_type": "says what filler rows do to the denominator",
    "num_generations": "size of a group",
    "num_generations_eval": "size of a group in evaluation",
    "num_iterations": "how long a batch is used",
    "entropy_coef": "of the entropy bonus, weighed where a micro-batch holds filler",
    "_last_world_entropy": "put back after a step on filler alone, with the coefficient that was adapted by it",
    "mask_truncated_completions": "says which groups have nothing to train on",
    "reward_funcs": "counted, without monitors while TRL makes advantages",
    "reward_func_names": "columns of the rewards, likewise",
    "reward_weights": "of the total, without those of monitors while TRL makes advantages",
    "environment_factories": "refused with filtering",
    "_is_vlm": "refused with filtering",
    "_metrics": "metrics by mode",
    "_logs": "TRL's table of completions",
    "_pending_extra_logs": "columns from log_extra",
    "_buffered_inputs": "the micro-batches of the generation batch",
    "_step": "where in the generation batch a checkpoint lies",
    "tools": "refused where steps are credited",
    "processing_class": "decodes completions, and the beginnings of those whose steps are credited",
    "_tokenizer": "tells whether a completion ran into the limit",
}
BATCH_KEYS = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch"}
LOSS_TYPES = {"grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"}


def broken(what, why):
    return f"TRL {trl.__version__}: {what}. trl_grpo_plus/trainer.py relies on it ({why}): read the change, adapt it."


def check_method(cls, name):
    parameters, why = METHODS[name]
    assert hasattr(cls, name), broken(f"GRPOTrainer.{name} is gone", why)
    taken = [parameter for parameter in inspect.signature(getattr(cls, name)).parameters if parameter != "self"]
    assert taken == parameters, broken(f"GRPOTrainer.{name} takes {taken}, not {parameters}", why)


@pytest.mark.parametrize("name", METHODS)
def test_method(name):
    check_method(GRPOTrainer, name)


@pytest.mark.parametrize("name", ["_generate", "_compute_loss"])
def test_a_seam_that_is_renamed_or_has_another_signature_is_told_readably(name):
    class Changed:
        def _generate(self, prompts, images):
            """Another signature."""

    changed = r"_generate takes \['prompts', 'images'\], not \['prompts'\]"
    gone = rf"TRL {re.escape(trl.__version__)}: GRPOTrainer.{name} is gone.*trainer.py"
    with pytest.raises(AssertionError, match=changed if name == "_generate" else gone):
        check_method(Changed, name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    made = tiny.trainer(tmp_path_factory.mktemp("contract"), tiny.digits, cls=GRPOTrainer, beta=0.1, num_iterations=2)
    made.generated, made.scored = [], []
    generate, score = made._generate, made._calculate_rewards
    made._generate = lambda prompts: made.generated.append(generate(prompts)) or made.generated[-1]
    made._calculate_rewards = lambda *args: made.scored.append(score(*args)) or made.scored[-1]
    made.train()
    return made


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attribute(trained, name):
    assert hasattr(trained, name), broken(f"GRPOTrainer.{name} is gone", ATTRIBUTES[name])


def test_what_generate_returns(trained):
    generated = trained.generated[0]
    assert len(generated) == 8, broken(f"_generate returns {len(generated)} values, not 8", "rebuilt row by row")
    prompt_ids, completion_ids, tool_mask, completions, logprobs, extra_fields, images, _ = Generated(*generated)
    assert len(prompt_ids) == len(completion_ids) == len(completions) == 8
    assert all(isinstance(token, int) for ids in (*prompt_ids, *completion_ids) for token in ids)
    assert (tool_mask, logprobs, extra_fields, images) == (None, None, {}, None)


def test_what_the_rewards_are(trained):
    rewards, why = trained.scored[0], "gathered, one row each"
    assert isinstance(rewards, torch.Tensor)
    assert rewards.shape == (8, 1), broken(f"_calculate_rewards gives {tuple(rewards.shape)}", why)


def test_what_a_batch_holds(trained):
    keys = set(trained._buffered_inputs[0])
    wanted = BATCH_KEYS | {"old_per_token_logps", "ref_per_token_logps"}
    assert keys == wanted, broken(f"a batch holds {sorted(keys)}", "masks, counts, advantages and log-probs by name")
    assert trained._buffered_inputs[0]["num_items_in_batch"].ndim == 0


def test_which_rewards_are_in_the_advantages():
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    _, after = source.split("self._calculate_rewards(")
    for name in ["self.reward_func_names", "self.reward_weights", "len(self.reward_funcs)", "nanstd("]:
        assert name in after, broken(f"no {name} after _calculate_rewards", "monitors are hidden from there on")
    assert callable(plus.nanstd), broken("trl.trainer.utils.nanstd is gone", "the std of monitors as TRL logs it")


def test_what_log_probs_take():
    parameters = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
    wanted = {"model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"}
    passed_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    assert passed_on or wanted <= set(parameters), broken(f"log-probs take {list(parameters)}", "KL in the reward")


def test_what_an_evaluation_is_told():
    parameters = inspect.signature(GRPOTrainer.evaluation_loop).parameters
    assert "metric_key_prefix" in parameters, broken("evaluation_loop takes no prefix", "the traces name the split")


def test_which_loss_types_there_are():
    source = inspect.getsource(GRPOTrainer._compute_loss)
    lists = " ".join(re.findall(r"self\.loss_type in \[[^\]]*\]|self\.loss_type == \"\w+\"", source))
    named = set(re.findall(r'"(\w+)"', lists))
    assert named == LOSS_TYPES, broken(f"the loss types are {sorted(named)}", "what each divides by, for filler rows")
    assert {*filler.ROW_NORMALISED, *filler.MICRO_BATCH_NORMALISED} < LOSS_TYPES


def test_how_the_entropy_bonus_is_made():
    source = inspect.getsource(GRPOTrainer._compute_loss)
    why = "filler rows: the coefficient that TRL multiplies by is weighed, the one that it adapts is not"
    lines = ["apply_coef * entropy_loss", "if self.accelerator.sync_gradients:"]
    lines += [f"self.entropy_coef {sign} self.args.entropy_coef_delta" for sign in "+-"]
    for line in [*lines, 'self._metrics[mode]["entropy_coef"].append(self.entropy_coef)']:
        assert line in source, broken(f"no `{line}` in _compute_loss", why)
    assert (filler.Weighed(0.5, 4.0) * torch.tensor(1.0)).item() == 2.0
    assert type(filler.Weighed(0.5, 4.0) + 0.25) is float
    assert filler.Weighed(0.5, 4.0) + 0.25 == 0.75


def test_what_a_sampler_has(trained):
    sampler = trained._get_train_sampler()
    for name in ["generator", "num_samples", "shuffle"]:
        assert hasattr(sampler, name), broken(f"the sampler has no {name}", "resuming in a later epoch")


def test_what_the_logs_hold(trained):
    wanted, why = {"prompt", "completion", "rewards", "advantages", "extra"}, "cleared before a smaller batch"
    assert wanted <= set(trained._logs), broken(f"_logs holds {sorted(trained._logs)}", why)
    for key in ["reward", "reward_std", "frac_reward_zero_std", "kl", "rewards/digits/mean", "rewards/digits/std"]:
        assert tiny.logged(trained, key), broken(f"the metric {key} is gone", "rewritten as sampled")
