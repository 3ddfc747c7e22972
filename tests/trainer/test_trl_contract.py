"""Tests of the parts of TRL that trl_grpo_plus/trainer/ relies on; trl_private_names.py has the reasons.

If a new release of TRL changes such a part, these tests fail and name it.
"""

import functools
import inspect
import re
import warnings
from importlib.metadata import requires
from types import SimpleNamespace

import pytest
import tiny_models
import torch
import trl
from trl import GRPOTrainer
from trl_private_names import ATTRIBUTES, METHODS

from trl_grpo_plus import GRPOPlusTrainer
from trl_grpo_plus.config import trl_releases
from trl_grpo_plus.objective import padding
from trl_grpo_plus.rollouts.generation import IMAGE_FIELDS, Generated
from trl_grpo_plus.trainer import grpo_plus_trainer as plus


BATCH_KEYS = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch"}
LOSS_TYPES = {"grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"}


def broken(what, why):
    return f"TRL {trl.__version__}: {what}. trl_grpo_plus/trainer/ relies on it ({why}): read the change, adapt it."


def test_the_trainers_arguments_are_trls_in_trls_order():
    ours = list(inspect.signature(plus.GRPOPlusTrainer).parameters.values())
    theirs = list(inspect.signature(GRPOTrainer).parameters.values())
    assert [(each.name, each.default) for each in ours[:-1]] == [(each.name, each.default) for each in theirs]
    assert ours[-1].kind is inspect.Parameter.VAR_KEYWORD  # takes the arguments of later releases of TRL


@pytest.mark.parametrize("name", METHODS)
def test_method(name):
    assert not (told := trl_releases.changed(GRPOTrainer, name)), broken(told, METHODS[name])
    if (known := trl_releases.SEAMS[name]) is not None:  # stricter than `changed`, which allows new optional ones
        assert list(inspect.signature(getattr(GRPOTrainer, name)).parameters)[1:] == known, METHODS[name]


def test_each_method_that_is_needed_is_pinned():
    assert list(METHODS) == list(trl_releases.SEAMS)
    own = {name for name, part in vars(plus.GRPOPlusTrainer).items() if inspect.isfunction(part)}
    inherited = {name for name in own if name.startswith("_") and hasattr(GRPOTrainer, name)}
    inherited -= {"__init__", "__annotate_func__"}  # Python 3.14 makes the latter of the annotations in a class
    assert inherited <= set(METHODS)


def test_a_release_with_a_missing_or_changed_method_is_refused():
    class Changed(GRPOTrainer):
        def _generate(self, prompts, images):
            """Take other parameters than TRL's."""

    words = r"TRL 1.10 to 1.16; this is TRL 2.0.0 with .*, where test_trl_contract's _generate takes \['prompts', 'im"
    with pytest.raises(ImportError, match=words):
        trl_releases.check(Changed, "2.0.0")
    with pytest.raises(ImportError, match=r"where object\._generate is gone; object\._calculate_rewards is gone"):
        trl_releases.check(object, trl.__version__)


def signature_of_generate(text):
    """Make a trainer class whose `_generate` has these parameters."""
    scope: dict = {}
    exec(f"def _generate({text}): ...", scope)
    return type("Changed", (GRPOTrainer,), {"_generate": scope["_generate"]})


MORE = ["images=None", "*, images=None", "*rest, **more"]


@pytest.mark.parametrize("more", MORE)
def test_new_optional_parameters_are_accepted(more):
    trl_releases.check(signature_of_generate(f"self, prompts, {more}"), "1.16.0")


@pytest.mark.parametrize(
    "text",
    ["self", "self, inputs", "self, images=None, prompts=None", "self, prompts, *, images", "self, prompts, images"],
)
def test_new_required_or_renamed_parameters_are_refused(text):
    with pytest.raises(ImportError, match="_generate takes"):
        trl_releases.check(signature_of_generate(text), "1.16.0")


HANDED_ON = {"_get_train_sampler", "_prepare_inputs", "_compute_loss", "_save_checkpoint", "_save_rng_state"}
HANDED_ON |= {"_load_optimizer_and_scheduler", "_get_grad_norm", "_get_per_token_logps_and_entropies"}


def test_new_arguments_of_a_newer_release_are_handed_on(tmp_path, monkeypatch):
    """TRL's methods take a new parameter `more` and TRL passes it. Our overrides hand it on to TRL's methods."""
    seen = set()

    def taking_more(name, method):
        def wide(self, *args, more=None, **kwargs):
            seen.add((name, more))
            return method(self, *args, **kwargs)

        return wide

    for name in HANDED_ON:
        monkeypatch.setattr(GRPOTrainer, name, taking_more(name, getattr(GRPOTrainer, name)))
    made = tiny_models.trainer(tmp_path, tiny_models.digits, max_steps=1, save_strategy="steps", num_iterations=2)
    for name in HANDED_ON:
        setattr(made, name, functools.partial(getattr(made, name), more="more"))
    made.train()
    made.train(resume_from_checkpoint=True)
    assert {(name, "more") for name in HANDED_ON} == seen


@pytest.mark.parametrize(
    ("version", "warns"), [("1.9.2", True), ("1.10.0", False), ("1.16.3", False), ("1.17.0.dev0", True), ("2.0", True)]
)
def test_an_untested_release_gives_a_warning(version, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trl_releases.check(GRPOTrainer, version)
    assert [
        str(one.message).startswith(f"trl_grpo_plus is tested with TRL 1.10 to 1.16; this is TRL {version}")
        for one in caught
    ] == [True] * warns


def test_the_package_requires_the_oldest_tested_release():
    asked = next(line for line in requires("trl-grpo-plus") if re.match(r"trl[>=<!]", line))
    assert set(asked.removeprefix("trl").split(",")) == {f">={trl_releases.OLDEST}", "!=1.15.0"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    made = tiny_models.trainer(
        tmp_path_factory.mktemp("contract"), tiny_models.digits, cls=GRPOTrainer, beta=0.1, num_iterations=2
    )
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
    wanted = {"model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy", *IMAGE_FIELDS}
    passed_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    assert passed_on or wanted <= set(parameters), broken(f"log-probs take {list(parameters)}", "KL in the reward")


def test_what_follows_generation_for_environments_and_images():
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    _, after = source.split("self._generate(")
    for line in ["for name in self._batch_environments", "images is not None and self.log_multimodal"]:
        assert line in after, broken(f"no `{line}` after _generate", "it must be that of the rows that are trained on")


@pytest.mark.parametrize("cls", [GRPOTrainer, GRPOPlusTrainer])
def test_a_trainer_without_init_names_the_missing_keys_of_its_rollout(cls):
    """TRL's own tests make such trainers, with no attributes but those that generation reads."""
    bare = cls.__new__(cls)
    bare.accelerator = SimpleNamespace(device=torch.device("cpu"), is_main_process=True)
    bare.args, bare.model = SimpleNamespace(report_to=[]), SimpleNamespace(training=True)
    bare.state, bare.use_vllm = SimpleNamespace(global_step=2), False
    bare.rollout_func = lambda prompts, trainer: {"prompt_ids": [[1]], "completion_ids": [[2]]}
    with pytest.raises(ValueError, match=r"rollout_func must return keys \['logprobs'\]"):
        bare._generate(["prompt"])


def test_when_weights_are_sent_to_vllm():
    for method in (GRPOTrainer._generate, GRPOTrainer._generate_single_turn):
        sent = "self.state.global_step != self._last_loaded_step" in inspect.getsource(method)
        assert sent, broken("another condition for sending weights", "a value of -1 lets TRL send them again")


def test_the_evaluation_loop_takes_a_prefix():
    parameters = inspect.signature(GRPOTrainer.evaluation_loop).parameters
    assert "metric_key_prefix" in parameters, broken("evaluation_loop takes no prefix", "the traces name the split")


def test_which_loss_types_there_are():
    source = inspect.getsource(GRPOTrainer._compute_loss)
    lists = " ".join(re.findall(r"self\.loss_type in \[[^\]]*\]|self\.loss_type == \"\w+\"", source))
    named = set(re.findall(r'"(\w+)"', lists))
    assert named == LOSS_TYPES, broken(f"the loss types are {sorted(named)}", "what each divides by, for filler rows")
    assert {*padding.ROW_NORMALISED, *padding.MICRO_BATCH_NORMALISED} < LOSS_TYPES


def test_how_the_importance_ratio_is_made():
    source = inspect.getsource(GRPOTrainer._compute_loss)
    why = "an importance_ratio takes the place of the sampler's log-probs"
    for line in ("log_ratio = per_token_logps - old_per_token_logps", 'inputs.get("old_per_token_logps")'):
        assert line in source, broken(f"no `{line}` in _compute_loss", why)
    uses = [use for use in source.split("\n") if "old_per_token_logps" in use.partition("#")[0]]
    assert len(uses) == 4, broken(f"_compute_loss has other uses of old_per_token_logps: {uses}", why)


def test_how_the_entropy_bonus_is_made():
    source = inspect.getsource(GRPOTrainer._compute_loss)
    why = "filler rows: the coefficient that TRL multiplies by is weighed, the one that it adapts is not"
    lines = ["apply_coef * entropy_loss", "if self.accelerator.sync_gradients:"]
    lines += [f"self.entropy_coef {sign} self.args.entropy_coef_delta" for sign in "+-"]
    for line in [*lines, 'self._metrics[mode]["entropy_coef"].append(self.entropy_coef)']:
        assert line in source, broken(f"no `{line}` in _compute_loss", why)
    assert (padding.ScaledCoefficient(0.5, 4.0) * torch.tensor(1.0)).item() == 2.0
    assert type(padding.ScaledCoefficient(0.5, 4.0) + 0.25) is float
    assert padding.ScaledCoefficient(0.5, 4.0) + 0.25 == 0.75


def test_what_a_sampler_has(trained):
    sampler = trained._get_train_sampler()
    for name in ["generator", "num_samples", "shuffle"]:
        assert hasattr(sampler, name), broken(f"the sampler has no {name}", "resuming in a later epoch")


def test_the_steps_of_an_epoch_are_in_the_initial_training_values(trained):
    dataloader = trained.get_train_dataloader()
    steps = trained.set_initial_training_values(trained.args, dataloader)[1]
    accumulated = trained.args.gradient_accumulation_steps
    assert steps == -(-len(dataloader) // accumulated), broken(f"it is {steps}", "resuming in a later epoch")


def test_what_the_logs_hold(trained):
    wanted, why = {"prompt", "completion", "rewards", "advantages", "extra"}, "cleared before a smaller batch"
    assert wanted <= set(trained._logs), broken(f"_logs holds {sorted(trained._logs)}", why)
    for key in ["reward", "reward_std", "frac_reward_zero_std", "kl", "rewards/digits/mean", "rewards/digits/std"]:
        assert tiny_models.logged(trained, key), broken(f"the metric {key} is gone", "rewritten as sampled")
