"""Tests of the facts about a run in run.json."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
import tiny_models
from accelerate import PartialState
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer, attach, traces
from trl_grpo_plus.trainer.run_metadata import changed_options, dataset_name, describe
from trl_grpo_plus.view.run_summary import Run


PLAIN = {"report_to": "none", "use_cpu": True}


def test_changed_options_are_those_not_at_their_defaults():
    assert changed_options(GRPOPlusConfig("out", **PLAIN)) == {"use_cpu": True}
    options = {"learning_rate": 1e-4, "steps_per_generation": 2, "bf16": False, "zero_variance_groups": "drop"}
    options |= {
        "scale_rewards": "batch",
        "advantage_baseline": "belief",
        "belief_key": "topic",
        "eval_strategy": "steps",
        "eval_steps": 5.0,
    }
    assert changed_options(GRPOPlusConfig("out", **PLAIN, **options)) == {**options, "use_cpu": True}
    told = changed_options(GRPOPlusConfig("out", **PLAIN, advantage_estimator=tell))
    assert told == json.loads(json.dumps(told)) == {"use_cpu": True, "advantage_estimator": f"{__name__}:tell"}


def test_the_settings_of_fsdp_are_not_a_changed_option_without_fsdp():
    """transformers 5.8 fills `fsdp_config` of each config."""
    args = GRPOPlusConfig("out", **PLAIN)
    args.fsdp_config = {"min_num_params": 0}
    assert "fsdp_config" not in changed_options(args)
    args.fsdp = True
    assert "fsdp_config" in changed_options(args)


def tell(rewards, weights, about):
    return rewards


def test_changed_options_hold_no_secret_and_no_path():
    secret = {"hub_token": "hf_1", "hub_model_id": "me/hidden", "push_to_hub": True, "run_name": "hidden"}
    secret |= {"vllm_server_base_url": "http://hidden", "logging_dir": "/hidden", "resume_from_checkpoint": "/hidden"}
    secret = {name: value for name, value in secret.items() if name in GRPOPlusConfig.__dataclass_fields__}
    secret |= {"model_init_kwargs": {"dtype": "float32", "token": "hf_2", "deep": [{"api_key": "sk_3"}]}}
    told = changed_options(GRPOPlusConfig("/hidden", **PLAIN, **secret))
    assert told == {"use_cpu": True, "model_init_kwargs": {"dtype": "float32", "not shown": 1}}


def test_a_dataset_of_the_hub_is_named_and_one_made_in_code_is_not():
    rows = Dataset.from_list([{"prompt": "a"}])
    assert dataset_name(rows) is None
    rows.info.dataset_name = "json"
    assert dataset_name(rows) is None
    rows.info.dataset_name = "gsm8k"
    assert dataset_name(rows.map(lambda row: {"b": 1})) == "gsm8k"
    rows.info.download_checksums = {"hf://datasets/openai/gsm8k@abc/main/train.parquet": {}}
    assert dataset_name(rows) == "openai/gsm8k"
    assert dataset_name([{"prompt": "a"}]) is None


def test_describing_a_run_leaves_accelerates_state():
    args = GRPOPlusConfig("out", **PLAIN)
    before = dict(PartialState._shared_state)
    model = SimpleNamespace(config=SimpleNamespace(_name_or_path="me/model"))

    def described(model, data, evaluated=None):
        sets = {"train_dataset": data, "eval_dataset": evaluated}
        rewards = {"reward_funcs": [], "reward_func_names": []}
        return describe(SimpleNamespace(args=args, model=model, **sets, **rewards))

    told = described(model, iter(()), {"easy": [1, 2], "streamed": iter(())})
    assert PartialState._shared_state == before
    assert (told["model"], told["dataset"]) == ("me/model", {"name": None, "rows": None})
    assert told["evaluations"] == {"eval_easy": 2, "eval_streamed": None}
    assert {"trl_grpo_plus", "trl", "torch"} <= set(told["versions"])
    assert "vllm" not in told["versions"]
    assert described(object(), [1], [1])["evaluations"] == {"eval": 1}
    assert described(object(), [1])["evaluations"] == {}
    assert described(object(), [1])["model"] == "object"


@pytest.mark.parametrize("attached", [False, True])
def test_run_json_describes_the_training_that_is_running(tmp_path, attached):
    options = {"cls": GRPOTrainer} if attached else {"zero_variance_groups": "drop"}
    trained = tiny_models.trainer(tmp_path, tiny_models.half_dead, max_steps=1, **options)
    if attached:
        attach(trained)
    trained.train()
    about = traces.about(tmp_path / "run")
    assert about["options"].get("zero_variance_groups") == (None if attached else "drop")
    assert about["dataset"]["rows"] == 30
    assert about["rewards"] == {"half_dead": 1.0}
    assert about["model"]
    trained.train_dataset = tiny_models.prompts(10)
    trained.args.learning_rate = 0.5
    trained.train()
    again = traces.about(tmp_path / "run")
    assert again["dataset"]["rows"] == 10
    assert again["options"] == {**about["options"], "learning_rate": 0.5}
    if not attached:
        trained.args.learning_rate, trained.args.solved_reward = 0.25, 2.0  # and no other dataset
        trained.train()
        assert (about := traces.about(tmp_path / "run"))["options"]["learning_rate"] == 0.25
        assert about["solved_reward"] == 2.0


class Shortened(GRPOPlusTrainer):
    """A trainer of a user."""


def test_runs_that_differ_in_no_option_are_told_apart(tmp_path):
    """A page would average them as seeds of one setting."""

    def setting(name, reward=tiny_models.digits, **options):
        tiny_models.trained(tmp_path / name, reward, max_steps=1, **options)
        return Run(name, tmp_path / name / "run").setting.replace(f"/{name}/", "/")  # each has a model of its own

    def spec(points):
        return {"name": f"{__file__}:scored", "args": {"points": points}}

    def lora(rank, *modules):
        return {"peft_config": LoraConfig(r=rank, target_modules=["q_proj", *modules])}

    plain = setting("plain")
    assert setting("seed", seed=2) == plain
    assert setting("class", cls=Shortened) != plain
    assert setting("two", spec(2)) != setting("three", spec(3))
    assert setting("strict", partial(scored, points=2)) != setting("lax", partial(scored, points=3))
    narrow = setting("narrow", extra=lora(2))
    assert len({plain, narrow, setting("wide", extra=lora(4)), setting("more_modules", extra=lora(2, "v_proj"))}) == 4


def scored(completions, *, points=1, **columns):
    return [points * len(text) for text in completions]
