"""What run.json and the pages show of a run's options: no secret, wherever it is in them; and all that is harmless."""

import base64
import inspect
import json
from dataclasses import dataclass, fields
from types import SimpleNamespace

import pytest
import synthetic_traces
import torch
from test_links import served, told_in

from trl_grpo_plus import GRPOPlusConfig, traces
from trl_grpo_plus.curriculum.selection import SAMPLERS
from trl_grpo_plus.traces import redaction
from trl_grpo_plus.traces.alarms import Thresholds
from trl_grpo_plus.trainer.run_metadata import _LEFT_OUT, changed_options, describe
from trl_grpo_plus.view import write_comparison, write_page


PLAIN = {"report_to": "none", "use_cpu": True}
LONG = "Ab1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uVwX"
# One made-up example of each kind.
SECRETS = {
    "hugging face": f"hf_{LONG}",
    "openai": f"sk-proj-{LONG[:20]}",
    "anthropic": "sk-ant-api03-aaaa-bbbbbbbbbb",
    "stripe": "rk_live_abcdefghijklmnop",
    "github": f"ghp_{LONG}",
    "github, of one repository": f"github_pat_{LONG}",
    "gitlab": "glpat-abcdefghijklmnopqrst",
    "slack": "xoxb-123456789012-abcdef",
    "aws": "AKIAABCDEFGHIJKLMNOP",
    "aws, the other half": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzzzKEY",
    "google": f"AIza{LONG}",
    "wandb": "0123456789abcdef0123456789abcdef01234567",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    "a uuid": "123e4567-e89b-12d3-a456-426614174000",
    "a private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "in base64": base64.b64encode(f"hf_{LONG}".encode()).decode(),
    "a header": "Authorization: Bearer abc",
    "in a command": "--api-key=hunter2",
    "in json": json.dumps({"password": "hunter2"}),
    "in a sentence": f"the token is hf_{LONG}, do not tell",
    "in a url": "https://me:hunter2@files.invalid/model",
    "a url": "http://10.0.0.7:8000/v1",
    "a bucket": "s3://my-bucket/run",
    "an address": "10.0.0.7",
    "an address and a port": "node-17:29500",
    "an address of six": "fe80:0:0:0:1:2:3:4",
    "a host": "gpu17.cluster.internal",
    "this machine": "localhost",
    "mail": "me@example.com",
    "a share": "\\\\server\\share",
    "a long text": "a" * 201,
}


def written(**options):
    return changed_options(GRPOPlusConfig("out", **PLAIN, **options))


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_a_text_that_looks_like_a_secret_or_an_address_is_never_shown(secret):
    deep = {"quantization_config": {"bnb_4bit_quant_type": [secret, {"dtype": secret}]}, secret: 1, "stop": (secret,)}
    told = written(
        model_init_kwargs={"dtype": secret, "revision": f"{secret} ", "deep": {"x": secret}},
        generation_kwargs=deep,
        chat_template_kwargs={"tools": [{"headers": {"Authorization": secret}}], "enable_thinking": secret},
        optim_args=secret,
        filter_metric=secret,
        filtered_verdicts=None,
    )
    assert secret not in json.dumps(told)
    assert json.dumps(secret)[1:-1] not in json.dumps(told)
    assert told["optim_args"] == told["filter_metric"] == "not shown"
    assert told["model_init_kwargs"] == {"dtype": "not shown", "revision": "not shown", "not shown": 1}
    about = {"options": {"optim_args": secret, secret: 1}, "more": [{"deep": secret, secret: 2}]}
    if secret != SECRETS["aws, the other half"]:  # this one has the form of a model's name
        about |= {"model": secret, "dataset": {"name": secret, "rows": 3}}
    assert json.dumps(secret)[1:-1] not in json.dumps(redaction.shown_about(about))


KEYS = ["token", "api_key", "apiKey", "API-KEY", "Authorization", "pwd", "pin", "hf", "x", "use_auth_token", "proxies"]


@pytest.mark.parametrize(
    "key", [*KEYS, "access", "secret_access", "storage_options", "headers", "my.password", "user"]
)
@pytest.mark.parametrize("value", ["hunter2", 123456, {"dtype": "hunter2"}, ["hunter2"], b"hunter2", object()])
def test_nested_values_are_shown_only_under_keys_known_to_be_harmless(key, value):
    told = written(model_init_kwargs={"dtype": "bfloat16", "quantization_config": {key: value}, key: value})
    text = json.dumps(told)
    assert "hunter2" not in text
    assert "123456" not in text
    assert key not in text.replace('"not shown"', "")
    assert told["model_init_kwargs"]["dtype"] == "bfloat16"


def test_an_object_is_not_shown_whatever_its_str_returns():
    class Credentials:
        def __str__(self):
            return "hunter2"

        __repr__ = __str__

    told = written(model_init_kwargs={"variant": Credentials(), "device_map": torch.float32})
    assert told["model_init_kwargs"] == {"variant": "not shown", "device_map": "float32"}


def test_options_of_a_users_own_subclass_are_counted_and_not_shown():
    @dataclass
    class Mine(GRPOPlusConfig):
        wallet: str = ""
        stake: int = 0

    told = changed_options(Mine("out", **PLAIN, wallet="hunter2", stake=4711, beta=0.5))
    assert told == {"use_cpu": True, "beta": 0.5, "not shown": 2}


def test_every_option_that_may_be_a_text_is_shown_or_private_or_left_out():
    # `field.type` does not serve: `HfArgumentParser` of transformers changes it.
    types = {name: str(kind) for base in GRPOPlusConfig.__mro__[:-1] for name, kind in base.__annotations__.items()}
    names = {field.name for field in fields(GRPOPlusConfig)}
    texts = {name for name in names if "str" in types[name] and "dict" not in types[name]}
    undecided = {name for name in texts if not redaction.is_private(name)} - redaction.TEXTS - _LEFT_OUT
    assert undecided == set()
    assert vars(Thresholds()).keys() <= redaction.KEYS


def test_the_column_that_chooses_prompts_is_shown_and_the_values_in_it_are_not():
    by_column = {"name": "by_column", "args": {"column": "level", "order": "easy_first"}}
    assert written(prompt_selection=by_column)["prompt_selection"] == by_column
    told = written(prompt_selection={"name": "mixture", "args": {"column": "of", "weights": {"me": 1, "you": 2}}})
    assert told["prompt_selection"]["args"] == {"column": "of", "weights": {"not shown": 2}}
    for selection in SAMPLERS.values():
        assert {*inspect.signature(selection.make).parameters} - {"train_set", "args"} <= redaction.KEYS


def test_of_the_arguments_of_a_users_function_numbers_and_flags_are_shown():
    """Runs of a sweep differ in them, and seeds of one setting are told by them."""
    args = {"tau": 0.5, "strict": True, "api_key": 7, "note": "text", "sk_0123456789": 1, "of": {"me": 1}}
    told = written(advantage_estimator={"name": "my.py:f", "args": args})["advantage_estimator"]
    assert told == {"name": "my.py:f", "args": {"tau": 0.5, "strict": True, "not shown": 3}}
    assert redaction.shown_options({"advantage_estimator": told}) == {"advantage_estimator": told}
    assert not redaction.hides(written(prompt_selection={"name": "my.py:C", "args": {"every": 2}}))


def test_options_that_tell_runs_apart_are_shown():
    options = {
        **{
            "learning_rate": 1e-4,
            "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        },
        **{"optim": "adamw_torch", "loss_type": "dr_grpo", "temperature": 0.9},
        "model_init_kwargs": {"attn_implementation": "kernels-community/vllm-flash-attn3", "revision": "a" * 39 + "1"},
        **{
            "generation_kwargs": {"stop": ["</answer>", "\n\n"], "seed": 7},
            "chat_template_kwargs": {"enable_thinking": False},
        },
        **{"advantage_estimator": {"name": "pkpo", "args": {"k": 4}}, "alarm_thresholds": {"length_drift": 2.0}},
    }
    told = written(**options)
    assert {name: told[name] for name in options} == options
    args = GRPOPlusConfig("out", **PLAIN)
    for name in (
        "meta-llama/Meta-Llama-3-8B-Instruct",
        "Qwen/Qwen2.5-Math-1.5B",
        "/data/models/first",
        "deepseek-ai/x",
    ):
        model = torch.nn.Module()
        model.config = type("Config", (), {"_name_or_path": name})
        rewards = {"reward_funcs": [], "reward_func_names": []}
        trainer = SimpleNamespace(args=args, model=model, train_dataset=[1], eval_dataset=None, **rewards)
        assert describe(trainer)["model"] == name


def test_pages_hide_secrets_that_run_json_contains(tmp_path):
    """A run.json with secrets can come from an older version of this package, or from an editor."""
    secret = SECRETS["hugging face"]
    inside = {"dtype": "bf16", "auth": "hunter2", "deep": [{"x": secret}]}
    about = {"options": {"model_init_kwargs": inside, "beta": 0.5, "vllm_server_base_url": "http://hunter2"}}
    about |= {"rewards": {"accuracy": 1.0}, "model": "https://me:hunter2@files.invalid/m", "hub_token": "hunter2"}
    runs = [synthetic_traces.write_run(tmp_path / name) for name in ("first", "second")]
    for number, run in enumerate(runs):
        (run / "rollouts" / "run.json").write_text(json.dumps({**about, "seed": number}))
        (run / "race_settings.json").write_text(
            json.dumps({"options": {"stop": f"{secret}{number}"}, "api_key": "hunter2"})
        )
    pages = [write_page(runs[0], tmp_path / "one.html"), write_comparison(runs, tmp_path / "two.html")]
    for text in (
        *(told_in(page.path.read_text()) for page in pages),
        served(runs[0]),
        json.dumps(traces.about(runs[0])),
    ):
        assert secret not in text
        assert "hunter2" not in text
        assert "0.5" in text
    assert traces.about(runs[0])["options"]["model_init_kwargs"] == {"dtype": "bf16", "not shown": 1}


def test_runs_with_hidden_options_are_not_taken_for_seeds_of_one_setting(tmp_path):
    runs = [synthetic_traces.write_run(tmp_path / name) for name in ("first", "second", "third")]
    options = [{"beta": 0.5}, {"beta": 0.5}, {"beta": 0.5, "model_init_kwargs": {"mine": 1}}]
    for run, of_one in zip(runs, options, strict=True):
        (run / "rollouts" / "run.json").write_text(json.dumps({"options": of_one}))
    page = told_in(write_comparison(runs).path.read_text())
    assert '"settings":[[0,1],[2]]' in page
    assert "Options of third are not known in full" in page
