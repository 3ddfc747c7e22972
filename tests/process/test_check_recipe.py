"""`trl-grpo-plus check RECIPE`: its table, its checks without a Hub or a GPU, and the smoke run of every recipe."""

import json
import math
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import tiny_models
import tool_models
import torch
import trl
import warm_processes
from datasets import Dataset
from invalid_recipes import RIGHT, Mistake, make_place
from packaging.version import Version
from slow_cases import one_in
from trl.chat_template_utils import qwen3_instruct_2507_chat_template

from trl_grpo_plus import GRPOPlusConfig, registry
from trl_grpo_plus.cli.check import model as check_model
from trl_grpo_plus.cli.check import samples, smoke_options
from trl_grpo_plus.cli.check import smoke as check_smoke
from trl_grpo_plus.cli.check import smoke_run as smoke
from trl_grpo_plus.cli.check.estimate import GIB
from trl_grpo_plus.cli.check.gpus import gpu_for
from trl_grpo_plus.cli.check.recipe import check_recipe, refuse
from trl_grpo_plus.cli.check.rewards import RewardCheck, as_row
from trl_grpo_plus.cli.check.tiny_model import CHATML, END, PAD, byte_tokenizer, write
from trl_grpo_plus.cli.main import main
from trl_grpo_plus.launch import LAUNCHERS, Start, option_checks, preflight
from trl_grpo_plus.launch import accelerate as launch
from trl_grpo_plus.launch.command_line import load
from trl_grpo_plus.launch.nodes import Nodes
from trl_grpo_plus.launch.preflight import on_paper
from trl_grpo_plus.launch.recipe import launched, read, steps
from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.traces.rendered_prompt import MOST
from trl_grpo_plus.utils import optional_packages
from trl_grpo_plus.utils.tables import FAILED, OK, UNSEEN, WARNED, CheckRow, closing, table
from trl_grpo_plus.utils.text import without_middle
from trl_grpo_plus.utils.validation import ConfigError


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Enter a folder with a right recipe and all files that it names. Give a function that writes the recipe anew."""
    make_place(tmp_path)
    monkeypatch.chdir(tmp_path)

    def recipe(**keys):
        Mistake("", (), keys).write(tmp_path)
        return "my_run.yaml"

    recipe()
    return recipe


def checked(name, options=(), gpu=None, gpu_memory=None, smoke=False, **start):
    return check_recipe(Start(name, tuple(options), **start), gpu, gpu_memory, smoke)


def by_name(rows):
    return {row.name: row for row in rows}


def reckoned(row):
    """Return the GiB in a `memory` row."""
    return float(re.search(r"about ([\d.]+) GiB", row.text)[1])


def write_rows(rows):
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- The table -------------------------------------------------------------------------------------------------------


def test_a_table_says_it_all_within_the_width():
    long = " ".join(["word"] * 60)
    rows = [CheckRow("keys", OK, "3 keys"), CheckRow("data", FAILED, f"{long}\nsecond"), CheckRow("model", UNSEEN, "")]
    lines = table(rows).splitlines()
    assert lines[0] == "keys   ok        3 keys"
    assert lines[1].startswith("data   FAILED    word word")
    assert all(len(line) <= 119 for line in lines)
    assert sum(line.split().count("word") for line in lines) == 60
    assert lines[-4:-2] == [" " * 17 + "second", "model  not seen"]
    assert lines[-1] == "FAILED: data. Not seen here: model. Check again where that is possible."
    assert closing(rows[:1]) == "All checks passed."


def test_a_recipe_in_order(place, capsys, tmp_path):
    assert main(["check", "my_run.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1] for line in lines[:-2] if line and line[0] != " "}
    names = (
        "keys machine output data prompts rewards exact_answer batches model tokenizer given context weights memory "
        "speed"
    )
    assert set(rows) == set(names.split())
    assert set(rows.values()) == {"ok"}
    assert lines[-1] == "All checks passed."
    assert not (tmp_path / "out").exists()


def test_what_the_rows_say(place):
    rows = by_name(checked(place(max_steps=-1, num_train_epochs=3, gradient_accumulation_steps=1)))
    assert rows["data"].text == "train 6 rows"
    assert "6/6 gold answers score full marks; 6/6 another row's do not" in rows["exact_answer"].text
    batch = "a generation batch: 2 prompts x 4 = 8 attempts; an optimizer step: 8 attempts"
    assert f"{batch}; 3 steps per epoch; 9 steps" in rows["batches"].text
    assert rows["model"].text == "./model, a qwen2 (here)"
    assert "pads with '<pad>'" in rows["tokenizer"].text
    assert "4 tokens in the median, 4 at most; with 8 of completion they fit into the 64" in rows["context"].text


def test_a_gold_that_scores_in_one_form_alone(place):
    """The check puts the gold answer into a box; a model does so only if the prompt asks for it. The row says that."""
    write_rows({"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(6))
    row = by_name(checked(place(reward_funcs=["math_answer"])))["math_answer"]
    scores, form = row.text.splitlines()
    assert row.status == OK
    assert "; 6/6 gold answers score full marks; " in scores
    assert form.startswith(
        r"The gold answers were posed as \boxed{0}. Without this form, as '0', 0 of 6 score full marks: the "
    )
    assert "\n" not in by_name(checked(place()))["exact_answer"].text  # it needs no other form


def test_odd_sampling_settings_of_the_model_and_of_the_recipe_are_warned_of(place):
    """The check shows the warnings that the trainer gives at the start of a run."""
    Path("model/generation_config.json").write_text(json.dumps({"do_sample": True, "min_p": 0.2, "top_p": 0.5}))
    recipe = place(temperature=0.7, top_p=0.9, num_iterations=2)
    of_the_model, of_the_recipe = [row for row in checked(recipe) if row.name == "sampling"]
    assert (of_the_model.status, of_the_recipe.status) == (WARNED, WARNED)
    assert "The model's generation_config has min_p=0.2. " in of_the_model.text
    assert "set generation_kwargs: {min_p: 0.0}. " in of_the_model.text
    assert of_the_recipe.text.startswith("Sampling with top_p=0.9 draws attempts")
    in_order = checked(place(generation_kwargs={"min_p": 0.0}, top_p=0.9))
    assert not [row for row in in_order if row.name == "sampling"]
    Path("model/generation_config.json").unlink()  # transformers then takes generation settings from config.json
    facts = json.loads(Path("model/config.json").read_text())
    Path("model/config.json").write_text(json.dumps({**facts, "no_repeat_ngram_size": 2}))
    (row,) = [row for row in checked(place()) if row.name == "sampling"]
    assert "generation_config has no_repeat_ngram_size=2. " in row.text


@pytest.mark.parametrize(
    ("keys", "epoch", "total"),
    [
        ({}, 3, 3),
        ({"gradient_accumulation_steps": 2}, 1, 1),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 4, "per_device_train_batch_size": 2}, 6, 6),
        ({"num_iterations": 2}, 6, 6),
        ({"num_train_epochs": 2.5}, 3, 8),
        ({"max_steps": 7}, 3, 7),
    ],
)
def test_steps_are_counted_as_trl_counts_them(tmp_path, keys, epoch, total):
    """There are six rows, and a generation batch takes two of them."""
    own = {"model_name_or_path", "dataset_name", "reward_funcs", "output_dir"}
    options = {name: value for name, value in RIGHT.items() if name not in own}
    options |= {"max_steps": -1, "num_train_epochs": 1, "data": tiny_models.prompts(6), **keys}
    trainer = tiny_models.trainer(tmp_path, tiny_models.digits, **options)
    assert steps(6, trainer.args) == (epoch, total)
    _, of_epoch, *_, of_all = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    assert (of_epoch, of_all) == (epoch, total)


def test_a_batch_is_that_of_so_many_processes(place):
    rows = by_name(checked(place(num_generations=16), num_processes=4))
    assert "4 processes (--num_processes)" in rows["batches"].text
    assert "2 prompts x 16 = 32 attempts" in rows["batches"].text
    rows = by_name(checked(place(), accelerate_config="zero2"))
    assert "8 processes (--accelerate_config zero2)" in rows["batches"].text
    assert "zero2: not installed here (pip install deepspeed)" in rows["machine"].text


@pytest.mark.parametrize(("folder", "status"), [("/proc/nope", FAILED), ("/proc/no/run", UNSEEN)])
def test_a_folder_that_cannot_be_made_fails_if_its_parent_is_here(place, folder, status):
    row = by_name(checked(place(), ["--output_dir", folder]))["output"]
    assert (row.status, "may not write into /proc" in row.text) == (status, True)


def test_an_earlier_run_is_announced_and_left_alone(place, tmp_path):
    (tmp_path / "out" / "checkpoint-3").mkdir(parents=True)
    (tmp_path / "out" / "checkpoint-3" / "trainer_state.json").write_text("{}")
    rows = by_name(checked(place()))
    assert rows["output"].text == "out: an earlier run there would be moved to earlier-N"
    resumed = by_name(checked("my_run.yaml", ["--resume_from_checkpoint", "true"]))
    assert resumed["output"].text == "resumes from out/checkpoint-3"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint-3"]


def test_prepare_writes_nothing_to_the_output_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = by_name(checked("arithmetic_cpu"))
    assert rows["model"].text == "what prepare made, a llama (here)"
    assert list(tmp_path.iterdir()) == []


def test_a_stream_is_looked_at_too(place):
    rows = checked(place(dataset_streaming=True))
    assert [row for row in rows if row.status == FAILED] == []
    assert by_name(rows)["prompts"].text == "texts"
    assert by_name(rows)["data"].text == "train a stream of rows"
    choice = {"prompt_selection": "belief", "advantage_baseline": "belief", "scale_rewards": "prior"}
    rows = checked(place(dataset_streaming=True, **choice))
    assert [row for row in rows if row.status == FAILED] == []
    rows = checked(place(dataset_streaming=True, **choice, belief_key="levle"))
    assert [row.text.split(" of the")[0] for row in rows if row.status == FAILED] == [
        "belief_key='levle' is no column"
    ]


def test_a_prepare_that_fails_is_a_row(place, tmp_path):
    (tmp_path / "broken.py").write_text("import json\n\n\ndef prepare(*args):\n    return json.loads('x')\n")
    rows = by_name(checked(place(prepare="broken.py:prepare", dataset_name=...)))
    assert rows["data"].status == FAILED
    assert rows["data"].text.startswith("broken.py:prepare: JSONDecodeError: Expecting value")
    assert rows["data"].text.endswith(f"({tmp_path / 'broken.py'}:5)")
    assert rows["model"].status == OK


@pytest.mark.parametrize(
    ("right", "total", "status", "text"),
    [
        (200, 200, OK, "200/200 gold answers score full marks; 1 ms"),
        (
            190,
            200,
            OK,
            "190/200 gold answers score full marks; in the other rows no attempt can earn full marks, such as: bad",
        ),
        (189, 200, FAILED, "gold: bad"),
        (5, 6, FAILED, "gold: bad"),
    ],
)
def test_a_few_rows_that_nobody_can_solve_stop_no_run(right, total, status, text):
    gold = RewardCheck("judge", "gold", right, total, 1.0, ("bad",) if right < total else ())
    row = as_row("judge", [gold])
    assert row.status == status
    assert row.text.startswith(text)


def test_a_reward_without_examples_stops_no_run(place, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    (tmp_path / "mine.py").write_text(
        "from trl_grpo_plus.registry import register_reward\n\n\n@register_reward('bare')\n"
        "def bare(completions, answer):\n    return [0.0] * len(completions)\n"
    )
    rows = by_name(checked(place(reward_funcs=["mine.py:bare"])))
    assert rows["bare"].status == OK
    assert "called once, on 2 rows of the data, in less than a second: '' scores 0, '4' scores 0." in rows["bare"].text


def test_gold_answers_are_taken_from_all_over_the_data(place):
    write_rows({"prompt": "1+1=", "answer": "yes" if i < 300 else "no"} for i in range(600))
    assert by_name(checked(place()))["exact_answer"].status == OK


def test_the_longest_prompt_is_found_among_many(place):
    write_rows({"prompt": "1" * (60 if i == 1001 else 4), "answer": str(i)} for i in range(3001))
    row = by_name(checked(place()))["context"]
    assert row.status == FAILED
    assert "4 tokens in the median, 60 at most" in row.text


@pytest.mark.parametrize(("dtype", "least", "most"), [(torch.bfloat16, 0.0, 0.05), (torch.float32, 0.95, 1.0)])
def test_how_many_weights_small_updates_move(dtype, least, most):
    torch.manual_seed(0)
    weights = torch.nn.Parameter((0.02 * torch.randn(20_000)).to(dtype))
    before = weights.detach().clone()
    optimizer = torch.optim.AdamW([weights], lr=1e-6, weight_decay=0.0)
    for _ in range(20):
        weights.grad = torch.randn_like(weights)
        optimizer.step()
    assert least <= (weights.detach() != before).float().mean() <= most


@pytest.mark.parametrize(
    ("keys", "processes", "status"),
    [
        ({}, 8, FAILED),
        ({}, None, UNSEEN),  # the number of processes is not known
        ({"learning_rate": 1e-5}, 8, None),
        ({"use_peft": True}, 8, None),
        ({"dtype": "float32"}, 8, None),
        ({"optim": "sgd"}, 8, None),
        ({"dtype": "float32", "model_init_kwargs": {"dtype": "bfloat16"}}, 1, FAILED),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, 8, None),
    ],
)
def test_updates_that_16_bits_cannot_hold(place, monkeypatch, keys, processes, status):
    monkeypatch.setattr(option_checks, "multiplies_bfloat16", lambda: True)
    place(**{"learning_rate": 5e-6, "dtype": "bfloat16", **keys})
    row = by_name(checked("my_run.yaml", num_processes=processes)).get("dtype")
    assert (row and row.status) == status
    if status == FAILED:
        assert "lost in rounding" in row.text
        assert "zero2" in row.text


@pytest.mark.parametrize(
    ("deepspeed", "fsdp", "sharding", "offloads"),
    [
        (None, None, "ddp", ""),
        ({"zero_optimization": {"stage": 3}}, None, "zero3", ""),
        ('{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}', None, "zero2", "optimizer"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, None, "zero3", "weights"),
        ({}, None, "ddp", ""),
        (None, "full_shard auto_wrap", "fsdp", ""),
        (None, True, "fsdp", ""),
    ],
)
def test_the_sharding_that_a_recipe_asks_for_itself(deepspeed, fsdp, sharding, offloads):
    spread = launch.sharded(launch.distribution(None, 4, 0), deepspeed, fsdp)
    assert (spread.processes, spread.sharding, spread.offloads) == (4, sharding, offloads)


@pytest.mark.parametrize("text", ["[1]", "{", "3"])
def test_a_deepspeed_configuration_that_is_none(place, tmp_path, text):
    (tmp_path / "zero.json").write_text(text)
    rows = checked(place(deepspeed="zero.json"), num_processes=2)
    assert rows[0].status == FAILED
    assert rows[0].text.startswith("deepspeed: zero.json ")


# --- A prompt as the model is given it -------------------------------------------------------------------------------


KIND = "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}" + CHATML


def with_template(template):
    """Save a tokenizer with this chat template into the recipe's model, and return the tokenizer."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained("model")
    return tokenizer


def write_prompts(*prompts):
    write_rows([{"prompt": prompt, "answer": str(answer)} for answer, prompt in enumerate(prompts)])


def asked(*contents):
    return [{"role": "user", "content": content} for content in contents]


def test_a_prompt_is_shown_as_the_model_is_given_it(place, capsys):
    with_template(KIND)
    write_prompts(asked("6\n\n7? \x1b[2J"), *[asked("7 8?")] * 5)
    assert main(["check", "my_run.yaml"]) == 0
    printed = capsys.readouterr().out
    row = printed[printed.index("\ngiven") + 1 : printed.index("\ncontext")]
    lines = [line[24:] for line in row.splitlines()]
    text = ["<|im_start|>system", "Be kind.<|im_end|>", "<|im_start|>user", "6", "", r"7? \x1b[2J<|im_end|>"]
    assert lines[-7:] == [*text, "<|im_start|>assistant"]
    adds = "the chat template adds a system message that the row does not have:"
    assert " ".join(lines[:-7]) == f"the first prompt, as the model is given it, in 47 tokens; {adds}"
    assert printed.endswith("All checks passed.\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("template", "prompt", "kwargs", "warns"),
    [
        (KIND, asked("6 times 7?"), {}, ""),
        (KIND, [{"role": "system", "content": "Be brief."}, *asked("6 times 7?")], {}, ""),
        ("{{ mood }}" + KIND, asked("6 times 7?"), {"mood": "gaily "}, ""),
        (CHATML.partition("{% if add_g")[0], asked("6 times 7?"), {}, "it has no generation prompt"),
        (CHATML, "6 times 7 is ", {}, "it ends in white space"),
        (CHATML, asked("6 times 7?"), {"mood": "gaily "}, "chat_template_kwargs has 'mood', which the model's chat"),
        (CHATML.replace(END, PAD), asked("6 times 7?"), {}, "The chat template ends a turn of the assistant with"),
    ],
    ids=["adds", "has", "kwargs", "no turn", "text", "unread", "no end"],
)
def test_the_shown_prompt_is_what_trl_gives_the_model(place, tmp_path, stream, template, prompt, kwargs, warns):
    tokenizer = with_template(template)
    write_prompts(*[prompt] * 6)
    row = by_name(checked(place(chat_template_kwargs=kwargs, dataset_streaming=stream)))["given"]
    options = {"data": Dataset.from_list([{"prompt": prompt}] * 8), "chat_template_kwargs": kwargs}
    trainer = tiny_models.trainer(tmp_path, tiny_models.digits, **options, extra={"processing_class": tokenizer})
    [ids] = trainer._tokenize_prompts([prompt])[0]
    about, _, text = row.text.partition(":\n")
    assert text == tokenizer.decode(ids)
    assert f"in {len(ids)} tokens" in about
    assert row.status == ("warning" if warns else OK)
    assert warns in about


def test_a_reward_for_a_tag_that_the_prompt_has_is_named(place):
    with_template(CHATML + "{% if add_generation_prompt %}<think>\n{% endif %}")
    write_prompts(*[asked("6 times 7?")] * 6)
    row = by_name(checked(place(reward_funcs=["exact_answer", "think_format"])))["given"]
    assert "The reward 'think_format' mentions the tag" in row.text


TOOLS = """
from tool_models import Adding, adder

add = adder([])


class World(Adding):
    def reset(self, **row): ...


class Demanding(World):
    def reset(self, prompt): ...


class Lonely(World):
    def reset(self): ...


def mute(a): ...
"""


@pytest.mark.parametrize("key", ["tools", "environment_factory"])
def test_the_shown_prompt_has_the_tools(place, tmp_path, key):
    tokenizer = with_template(qwen3_instruct_2507_chat_template)
    prompt = asked("6 times 7?")
    write_prompts(*[prompt] * 6)
    Path("tooled.py").write_text(TOOLS)
    keys = {"tools": ["tooled.py:add"]} if key == "tools" else {key: "tooled.py:World"}
    rows = by_name(checked(place(**keys)))
    given = {"tools": [tool_models.adder([])]} if key == "tools" else {key: load("tooled.py:World", key)}
    extra, data = {"processing_class": tokenizer, **given}, Dataset.from_list([{"prompt": prompt}] * 8)
    trainer = tiny_models.trainer(tmp_path, tiny_models.digits, data=data, extra=extra)
    trainer._batch_environments = [None]
    [ids] = trainer._tokenize_prompts([prompt])[0]
    about, _, text = rows["given"].text.partition(":\n")
    assert "Add." in text
    # The row keeps the first and the last 2,000 characters of a text.
    assert text == without_middle(tokenizer.decode(ids), MOST)
    assert f"in {len(ids)} tokens" in about
    assert ("without what the environment adds to it" in about) == (key != "tools")
    assert f"{len(ids)} at most" in rows["context"].text


@pytest.mark.parametrize(
    ("template", "keys", "row", "said"),
    [
        (CHATML, {"tools": ["tooled.py:add"]}, "template", "does not write tool calls"),
        (CHATML, {"environment_factory": "tooled.py:World"}, "template", "does not write tool calls"),
        (None, {"tools": ["tooled.py:mute"]}, "callables", "the tool mute cannot be described"),
        (None, {"environment_factory": "tooled.py:Adding"}, "callables", "Adding has no method reset"),
        (None, {"environment_factory": "nothing.py:World"}, "callables", "there is no file nothing.py"),
        (None, {"environment_factory": "tooled.py:Demanding"}, "reset", "unexpected keyword argument 'answer'"),
        (None, {"environment_factory": "tooled.py:World", "preset": "belief"}, "callables", "belief_head"),
    ],
)
def test_what_tools_and_environments_need_is_checked(place, template, keys, row, said):
    with_template(template or qwen3_instruct_2507_chat_template)
    write_prompts(*[asked("6 times 7?")] * 6)
    Path("tooled.py").write_text(TOOLS)
    found = by_name(checked(place(**keys)))[row]
    assert found.status == FAILED
    assert said in found.text
    with pytest.raises(ConfigError, match=re.escape(said)):
        refuse([Start("my_run.yaml", ())])


def test_tools_need_messages(place):
    with_template(qwen3_instruct_2507_chat_template)
    write_prompts(*["6 times 7 is"] * 6)
    Path("tooled.py").write_text(TOOLS)
    found = by_name(checked(place(tools=["tooled.py:add"])))["prompts"]
    assert (found.status, "must be a list of messages" in found.text) == (FAILED, True)


def test_a_run_without_rows_cannot_draw_any(place):
    Path("tooled.py").write_text(TOOLS + "\n\ndef nothing(*_):\n    return None\n")
    keys = {"environment_factory": "tooled.py:World", "prepare": "tooled.py:nothing", "dataset_name": None}
    assert by_name(checked(place(**keys)))["data"].status == OK
    lonely = by_name(checked(place(**{**keys, "environment_factory": "tooled.py:Lonely"})))["reset"]
    assert (lonely.status, "unexpected keyword argument 'prompt'" in lonely.text) == (FAILED, True)
    endless = by_name(checked(place(**keys, max_steps=-1)))["data"]
    assert (endless.status, "nothing says how long the run is" in endless.text) == (FAILED, True)
    found = by_name(checked(place(**keys, zero_variance_groups="resample")))["data"]
    assert (found.status, "train_dataset is None" in found.text) == (FAILED, True)


def test_a_template_that_does_not_take_the_messages_fails_once(place):
    with_template("{{ 1 / 0 }}")
    write_prompts(*[asked("6 times 7?")] * 6)
    rows = by_name(checked(place()))
    assert rows["given"].text.startswith("the first prompt cannot be tokenized: ZeroDivisionError")
    assert (rows["given"].status, rows["context"].status) == (UNSEEN, FAILED)


# --- Without Hub and GPU ---------------------------------------------------------------------------------------------


FACTS = samples.config_of("Qwen/Qwen2.5-1.5B-Instruct")
ON_A_GPU = {"use_cpu": ..., "bf16": True, "model_name_or_path": "some/model", "max_completion_length": 512}


@pytest.fixture
def facts(monkeypatch):
    monkeypatch.setattr(samples, "config_of", lambda name: FACTS if name == "some/model" else None)


def test_a_gpu_without_a_compiler_is_warned_of(monkeypatch, tmp_path):
    training = GRPOPlusConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    assert launched(None, training, None, None).on_cpu
    training.use_cpu = False  # as on a machine with a GPU
    recipe = launched(None, training, None, None)
    monkeypatch.setattr(preflight, "missing_packages", lambda *_: {})
    monkeypatch.setattr(option_checks.shutil, "which", lambda name: None)
    monkeypatch.setattr(option_checks, "version", lambda package: "1.16.0")
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(option_checks.sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})

    def row():
        return preflight.machine(recipe)[0]

    monkeypatch.setenv("CC", "gcc")
    assert (row().status, row().text) == (OK, "there is a GPU, and the packages that the options need")
    monkeypatch.delenv("CC")
    assert row().status == WARNED
    assert "lacks a C compiler. On a GPU" in row().text
    (tmp_path / "Python.h").unlink()
    assert f"lacks a C compiler and {tmp_path}/Python.h. On a GPU" in row().text
    recipe.on_cpu = True
    assert row().status == OK
    recipe.on_cpu = False
    monkeypatch.setattr(option_checks, "version", lambda package: "1.14.2")
    assert row().status == OK


def test_what_only_the_machine_lacks_is_no_failure(place, facts, capsys):
    place(**ON_A_GPU, use_vllm=True, tf32=True)
    assert main(["check", "my_run.yaml"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "machine not seen no GPU here; tf32 not tried; use_vllm: true: not installed here (pip install" in printed
    assert "model not seen some/model: the Hub cannot be reached" in printed
    assert "tokenizer not seen of some/model: the Hub cannot be reached; bytes are counted instead" in printed
    assert "weights ok 1.5 billion" in printed
    assert "given not seen the first prompt is not shown: that takes the tokenizer of some/model" in printed
    assert printed.endswith("Not seen here: machine, model, tokenizer, given. Check again where that is possible.")


def test_trackers_are_looked_for_and_not_imported(place, monkeypatch):
    found = {name: find_spec("json") for name in ("tensorboardX", "wandb")}
    monkeypatch.setattr(optional_packages, "find_spec", found.get)
    monkeypatch.setitem(sys.modules, "wandb", None)  # an import would fail
    row = by_name(checked(place(report_to=["tensorboard", "wandb", "mlflow"])))["machine"]
    assert row.text == "report_to: mlflow: not installed here (pip install mlflow)"


def test_sample_rows_are_not_taken_for_the_data(place, facts, monkeypatch, tmp_path):
    monkeypatch.setattr(samples, "sample_of", lambda name, config=None: str(tmp_path / "data.jsonl"))
    rows = by_name(checked(place(**ON_A_GPU, dataset_name="some/data")))
    assert rows["data"].status == UNSEEN
    assert "sample rows that ship with this package stand in (train 6)" in rows["data"].text
    assert rows["exact_answer"].status == OK
    assert rows["context"].status == UNSEEN
    assert "of the sample rows" in rows["context"].text
    assert "epoch" not in rows["batches"].text
    assert "512 tokens for a prompt, whose length is not known" in rows["memory"].text


def test_nothing_is_known_of_a_model(place):
    rows = by_name(checked(place(**{**ON_A_GPU, "model_name_or_path": "no/facts"})))
    assert rows["model"].status == UNSEEN
    assert "memory" not in rows
    assert "the model's context is not known" in rows["context"].text


def test_prompts_that_fit_in_bytes_fit(place, facts):
    row = by_name(checked(place(**ON_A_GPU)))["context"]
    assert row.status == OK
    assert "4 bytes in the median" in row.text
    for length, status in (("32767", UNSEEN), ("40000", FAILED)):  # the first may fit in tokens
        assert by_name(checked("my_run.yaml", ["--max_completion_length", length]))["context"].status == status
    row = by_name(checked(place(**ON_A_GPU, use_vllm=True, vllm_max_model_length=400)))["context"]
    assert row.status == FAILED
    assert "more than the 400 of vllm_max_model_length" in row.text


def test_memory_against_the_gpu(place, facts, monkeypatch):
    place(**ON_A_GPU)
    row = by_name(checked("my_run.yaml", gpu_memory=80))["memory"]
    assert row.status == OK
    assert re.match(r"about [\d.]+ GiB of the 80", row.text)
    about = reckoned(row)
    assert 25 < about < 45  # weights 6, optimizer 12, gradients 6, 16-bit copies of the weights 3, and activations
    ran = CheckRow("smoke", OK, "ran")
    monkeypatch.setattr("trl_grpo_plus.cli.check.recipe.run_smoke", lambda *_: [ran])
    small = by_name(checked("my_run.yaml", gpu_memory=16, smoke=True))
    assert (small["memory"].status, small["smoke"]) == (FAILED, ran)
    assert "(--accelerate_config zero3, with dtype: bfloat16)" in small["memory"].text
    assert by_name(checked("my_run.yaml", gpu_memory=about * 1.05))["memory"].text.startswith("tight: ")
    guessed = by_name(checked("my_run.yaml", ["--per_device_train_batch_size", "512"]))["memory"]
    assert guessed.status == UNSEEN  # the GPU is not named, and there is none here
    assert "Name the hardware" in guessed.text


def test_memory_against_this_machine(place, monkeypatch):
    row = by_name(checked(place()))["memory"]
    assert row.status == OK
    assert re.match(r"about [\d.]+ GiB of the [\d,.]+ of this machine \(4 tokens for the longest prompt\): ", row.text)
    assert "reward workers" not in row.text
    limited = place(reward_funcs=[{"name": "exact_answer", "timeout": 5.0}], reward_workers=100)
    with_workers = by_name(checked(limited))["memory"]
    assert reckoned(with_workers) == pytest.approx(reckoned(row) + 100 / 64, abs=0.1)
    assert "100 reward workers, 0.02 each where a reward holds little, 4.0 at most" in with_workers.text
    twice = by_name(checked(limited, num_processes=2))["memory"]
    assert reckoned(twice) == pytest.approx(2 * reckoned(with_workers), abs=0.1)
    assert twice.text.endswith("; in each of 2 processes")
    monkeypatch.setattr(check_model, "memory_bytes", lambda: int(0.5 * reckoned(row) * GIB))
    small = by_name(checked(place()))["memory"]
    assert small.status == FAILED
    assert "It does not fit. Lower per_device_train_batch_size" in small.text
    monkeypatch.setattr(check_model, "memory_bytes", lambda: int(1.05 * reckoned(row) * GIB))
    assert by_name(checked(place()))["memory"].text.startswith("tight: ")


def test_vllms_share_must_hold_the_weights(place, facts):
    place(**ON_A_GPU, use_vllm=True, vllm_gpu_memory_utilization=0.1)
    rows = by_name(checked("my_run.yaml", gpu_memory=24))
    assert rows["vllm"].status == FAILED
    assert "vllm_gpu_memory_utilization=0.1 is 2.4 GiB: the weights take 2.9" in rows["vllm"].text
    share = ["--vllm_gpu_memory_utilization", "0.5", "--max_completion_length", "1024"]
    held = by_name(checked("my_run.yaml", share, gpu_memory=24))["vllm"]
    assert held.status == OK
    assert "beside the weights (2.9 GiB) an engine holds all of its" in held.text
    many = ["--per_device_train_batch_size", "512", *share]
    held = by_name(checked("my_run.yaml", many, gpu_memory=24))["vllm"].text
    # 12 GiB without the weights' 2.9 and the engine's own 1, at 28 layers x 512 x 2 bytes a token.
    assert "holds 296 of its 512 attempts of 1,025 tokens. The others wait." in held


def test_what_a_run_takes_beside_memory_is_told(place, facts):
    """Checkpoints, the rounds of resampling, and processes that wait for others."""
    place(**ON_A_GPU, zero_variance_groups="resample", max_steps=100, save_steps=40, max_resample_rounds=2)
    rows = by_name(checked("my_run.yaml", num_processes=2))
    assert rows["disk"].text.startswith(
        "a checkpoint takes about 19 GB, 3 at most at a time (save_total_limit=None) 56 GB"
    )
    generating, total, most = (
        float(re.search(pattern, rows["speed"].text)[1])
        for pattern in (r"generating ([\d.]+)", r"all 100 steps: about ([\d.]+) h", r"up to ([\d.]+) h if all of")
    )
    assert most == pytest.approx(total + 2 * generating * 100 / 3600, rel=0.2)
    assert "timeout" not in rows
    limited = by_name(checked("my_run.yaml", ["--save_total_limit", "1", "--ddp_timeout", "1"], num_processes=2))
    assert "2 at most at a time (save_total_limit=1) 37 GB" in limited["disk"].text
    assert limited["timeout"].status == WARNED
    assert "more than ddp_timeout=1. A process that waits so long" in limited["timeout"].text
    # 100 batches of 16 x 512 tokens of 4 bytes, then of every second batch 4 attempts.
    assert limited["disk"].text.endswith(
        "; the traces' completions about 0.0033 GB at full length (trace_compress: a third)"
    )
    traced = ["--trace_every", "2", "--trace_max_groups", "1", "--save_strategy", "no"]
    assert "about 0.00041 GB" in by_name(checked("my_run.yaml", traced, num_processes=2))["disk"].text
    nothing = ["--ddp_timeout", "1", "--save_strategy", "no", "--trace_every", "0"]
    alone = by_name(checked("my_run.yaml", nothing, num_processes=1))
    assert not {"timeout", "disk"} & alone.keys()
    every = by_name(checked("my_run.yaml", ["--save_strategy", "epoch"], num_processes=1))["disk"].text
    assert every.startswith("a checkpoint takes about 19 GB, and all are kept (save_total_limit=None); ")


def test_which_gpu_is_meant():
    here = ["NVIDIA A100-SXM4-40GB, 40 GiB"]
    assert gpu_for(None, None, here) == (("A100", 312, 2039, 40), here[0], True)
    assert gpu_for(None, 24, here).gpu == ("A100", 312, 2039, 24)
    assert gpu_for("RTX 4090", None, here) == (("RTX 4090", 165, 1008, 24), "--gpu RTX 4090", True)
    assert gpu_for("L4", 20, []) == (("L4", 121, 300, 20), "--gpu L4; --gpu_memory", True)
    assert gpu_for("A100-SXM4-40GB", None, here).gpu == ("A100", 312, 2039, 40)
    assert gpu_for("V100-SXM2-16GB", None, []).gpu == ("V100", 125, 900, 16)
    assert gpu_for("A100 40 GB", 20, []).gpu.memory == 20
    assert gpu_for("A100", None, here).gpu.memory == 80
    guessed = gpu_for(None, None, [])
    assert (guessed.gpu.name, guessed.gpu.memory, guessed.named) == ("H100", 80, False)
    assert guessed.why.startswith("no GPU here, estimated as for H100 (--gpu names another)")
    assert gpu_for(None, None, ["Some card, 10 GiB"])[1].startswith("Some card, 10 GiB, estimated as for H100")
    known = r"--gpu 'RTX 4080' is not one of B200, .* Did you mean RTX 4090"
    with pytest.raises(ValueError, match=known):
        gpu_for("RTX 4080", None, [])


def test_what_is_spread_over_gpus_takes_less_of_each(place, facts, tmp_path):
    # With long completions the logits of TRL before 1.15, which are not spread, would hide the difference.
    place(**ON_A_GPU | {"max_completion_length": 128})
    sizes = {
        configuration: reckoned(by_name(checked("my_run.yaml", accelerate_config=configuration))["memory"])
        for configuration in ("multi_gpu", "zero2", "zero3", "fsdp2")
    }
    assert sizes["multi_gpu"] > sizes["zero2"] > sizes["zero3"]
    assert sizes["multi_gpu"] > sizes["fsdp2"]
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 3}}')
    whole = by_name(checked("my_run.yaml", num_processes=8))
    sharded = by_name(checked("my_run.yaml", ["--deepspeed", "zero.json"], num_processes=8))  # an option of the recipe
    assert "zero3: not installed here" in sharded["machine"].text
    assert reckoned(sharded["memory"]) < 0.7 * reckoned(whole["memory"])


def table_of_recipes():
    """Yield each GPU recipe of recipes/README.md: its name, the arguments of `checked`, and the table's memory."""
    for row in launch.recipes()["arithmetic_gpu"].with_name("README.md").read_text().splitlines():
        if " GiB |" in row:
            name, command, gpus, memory, time, _ = row.strip("| ").split(" | ")
            configuration = re.search(r"--accelerate_config (\w+)|two", command)
            how = {"accelerate_config": configuration[1] or "zero3"} if configuration else {}
            gpu = time.partition(", ")[2] or "H100"
            processes = int(gpus.rpartition(" + ")[2])
            yield re.match(r"\[([^]]+)\]", name)[1], {**how, "num_processes": processes, "gpu": gpu}, memory


@pytest.mark.skipif(
    Version(trl.__version__) < Version("1.15"), reason="told of TRL 1.15 and later, whose head is fused"
)
@pytest.mark.parametrize(("name", "how", "memory"), one_in(3, table_of_recipes()))
def test_the_memory_that_recipes_tell_is_what_check_reckons(name, how, memory):
    rows = checked(name, **how)
    assert [row for row in rows if row.status == FAILED] == []
    row = by_name(rows)["memory"]
    assert row.status == OK, row.text
    assert re.search(r"about ([\d.,]+ GiB)", row.text)[1] == memory
    head = launch.recipes()[name].read_text().partition("\n\n")[0]
    assert re.search(r"# memory +([\d.,]+ GiB)", head)[1] == memory


# --- The keys that a recipe suggests in a comment --------------------------------------------------------------------


def keys_of_fewer_rollouts(name):
    """Return the keys of a recipe's comment on fewer rollouts, as words of a command line."""
    _, _, comment = launch.recipes()[name].read_text().partition("# --- Fewer rollouts (docs/fewer_rollouts.md), ")
    lines = re.findall(r"^#   (\w+): ([^\s#]+)", comment, re.MULTILINE)
    return [word for key, value in lines for word in (f"--{key}", value)]


@pytest.mark.parametrize(
    ("name", "how"), [(name, how) for name, how, _ in table_of_recipes() if keys_of_fewer_rollouts(name)]
)
def test_the_keys_of_fewer_rollouts_go_together_and_halve_the_attempts(name, how):
    spread = launch.distribution(how.get("accelerate_config"), how["num_processes"], how["num_processes"])
    before, after = (read(name, words, spread) for words in ([], keys_of_fewer_rollouts(name)))
    assert [row for row in on_paper(after) if row.name in ("keys", "options") and row.status != OK] == []
    assert after.training.advantage_baseline == after.training.prompt_selection == "belief"
    assert after.training.generation_batch_size == before.training.generation_batch_size
    all_steps = [steps(7473, recipe.training)[1] for recipe in (before, after)]  # GSM8K's rows; others set max_steps
    assert all_steps[1] == pytest.approx(all_steps[0] / 2, rel=0.01)
    assert "not run yet" in launch.recipes()[name].read_text().partition("# --- Fewer rollouts")[2].partition("\n")[0]


def test_seven_recipes_suggest_the_keys_of_fewer_rollouts():
    assert len([name for name in launch.recipes() if keys_of_fewer_rollouts(name)]) == 7


# --- The smoke run ---------------------------------------------------------------------------------------------------


SPLITS = """
from datasets import Dataset, DatasetDict


def prepare(script_args, training_args, model_args):
    rows = Dataset.from_dict({"prompt": [f"1+{n}=" for n in range(6)], "answer": list("123456")})
    return DatasetDict(train=rows, test=rows)
"""


@pytest.fixture
def warm_smoke(monkeypatch):
    """Start smoke runs in warm processes, without accelerate's launcher. Some tests below start cold ones."""
    monkeypatch.setattr(check_smoke, "_launched", warm_processes.accelerate)


# A recipe with a prepared warm start, one that runs programs, and one with an adapter. Each other recipe differs less.
# test_the_memory_that_recipes_tell_is_what_check_reckons checks everything but the run for the GPU recipes.
RUN_EACH_TIME = {"arithmetic_cpu", "code_qwen2.5-coder-7b_8gpu", "gsm8k_qwen2.5-1.5b_lora_1gpu"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name not in RUN_EACH_TIME)) for name in launch.recipes()]
)
def test_every_recipe_runs_in_small(name, tmp_path, monkeypatch, warm_smoke):
    monkeypatch.chdir(tmp_path)
    rows = checked(name, smoke=True)
    assert [row for row in rows if row.status == FAILED] == []
    *_, ran, groups, weights, traces = rows
    assert (ran.name, groups.name, weights.name, traces.name) == ("smoke", "groups", "learning", "traces")
    assert ran.text.startswith("2 steps in ")
    assert list(tmp_path.iterdir()) == []
    for verdict in ("alive", "all_good", "all_bad"):
        assert re.search(rf"\b[1-9]\d* {verdict}", groups.text), groups.text
    assert weights.text.startswith("moved, by ")


WORLD = '''
class World:
    made = 0

    def __init__(self):
        World.made += 1
        self.place = World.made

    def reset(self, **row):
        return "6 times 7?"

    def add(self, a: int, b: int) -> int:
        """
        Add.

        Args:
            a: One.
            b: Other.
        """
        return a + b

    def get_reward(self):
        return float(self.place % 2)


def nothing(*_):
    return None
'''


def test_an_environment_that_makes_its_own_prompts_runs_in_small(place, warm_smoke):
    with_template(qwen3_instruct_2507_chat_template)
    Path("world.py").write_text(WORLD)
    own = {"environment_factory": "world.py:World", "prepare": "world.py:nothing"}
    rows = by_name(checked(place(**own, dataset_name=None, reward_funcs=None), smoke=True))
    assert rows["smoke"].status == OK, rows["smoke"].text
    assert rows["learning"].status == OK
    assert rows["groups"].text.startswith("4 alive; 4 trained on")


@pytest.mark.full
def test_two_processes_run_in_small(place, warm_smoke):
    keys = {"zero_variance_groups": "resample", "beta": 0.04}
    keys |= {"use_peft": True, "learning_rate": 1e-5, "lora_dropout": 0.0}
    rows = checked(place(**keys), num_processes=2, smoke=True)
    assert [row for row in rows if row.status != OK] == []
    *_, ran, groups, weights, traces = rows
    assert ran.text.endswith("2 processes")
    planted, attempts = map(int, re.search(r"planted as (\d+) of (\d+) attempts", groups.text).groups())
    assert 0 < planted < attempts
    for verdict in ("alive", "all_good", "all_bad"):  # planted golds depend on a group's place among all processes
        assert re.search(rf"\b[1-9]\d* {verdict}", groups.text), groups.text
    assert traces.text.startswith(f"{attempts} attempts in rollouts/")
    assert weights.text.startswith("moved, by ")


def test_the_launcher_that_is_asked_for_starts_what_trains(place, monkeypatch):
    started = []

    def launched(command, environment, limit_s=None):
        started.append((Path(command[0]).name, command[command.index("-m") + 1]))
        return 1, "error: no"

    monkeypatch.setattr(check_smoke, "_launched", launched)
    assert main(["check", place(), "--smoke", "--launcher", "torchrun"]) == 1
    monkeypatch.setattr("trl_grpo_plus.cli.check.recipe.run_smoke", lambda *_: [CheckRow("smoke", OK, "ran")])
    assert main(["check", place(), "--smoke", "--launcher", "torchrun"]) == 1
    assert started == [("torchrun", check_smoke.SCRIPT), ("torchrun", check_smoke.CLOCKED)]


SLEEPS = """
import os, time
from pathlib import Path


def prepare(script_args, training_args, model_args):
    Path(f"rank{training_args.process_index}").write_text(str(os.getpid()))
    time.sleep(600)
"""


def test_an_error_with_bytes_that_are_no_text_is_kept(monkeypatch):
    monkeypatch.setattr(check_smoke, "in_this_python", lambda command: command)
    fails = "import os, sys; os.write(2, b'error: no \\xff.\\n'); sys.exit(1)"
    assert check_smoke._launched([sys.executable, "-c", fails], dict(os.environ)) == (1, "error: no \ufffd.\n")


@pytest.mark.full
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_of_a_run_that_takes_too_long_no_process_is_left(place, tmp_path, monkeypatch, launcher):
    (tmp_path / "mine.py").write_text(SLEEPS)

    def ends_too_late(self, timeout):
        end = time.monotonic() + 240
        while not Path("rank0").exists() or not Path("rank0").read_text():  # the other rank waits for rank 0
            assert time.monotonic() < end
            time.sleep(0.1)
        raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", ends_too_late)
    recipe = read(place(prepare="mine.py:prepare", dataset_name=...), [], launch.distribution(None, 2, 0))
    (row,) = check_smoke.smoke(recipe, str(tmp_path), launcher)
    assert row == CheckRow("smoke", FAILED, "two steps of a tiny model were not done after 15 minutes")
    end = time.monotonic() + 30
    while psutil.pid_exists(int(Path("rank0").read_text())):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_nothing_is_pushed(place, warm_smoke):
    rows = checked(place(push_to_hub=True, log_completions=True, log_completions_hub_repo="me/texts"), smoke=True)
    assert [row for row in rows if row.status == FAILED] == []
    ran = by_name(rows)["smoke"]
    assert "push_to_hub and log_completions_hub_repo have no effect here: nothing is pushed" in ran.text


@pytest.mark.parametrize("launcher", ["warm_smoke", pytest.param(None, marks=pytest.mark.full)])
def test_a_reward_that_fails_is_the_reason(place, tmp_path, request, launcher):
    if launcher:
        request.getfixturevalue(launcher)
    (tmp_path / "mine.py").write_text(
        "def judge(completions, **columns):\n    if len(completions) == 2:  # the trial, before the run\n"
        "        return [0.0, 1.0]\n    raise OSError('the judge is away')\n"
    )
    *_, ran = checked(place(reward_funcs=["mine.py:judge"]), smoke=True)
    assert (ran.name, ran.status) == ("smoke", FAILED)
    assert "the judge is away" in ran.text
    assert "CalledProcessError" not in ran.text  # the launcher's own error does not say what failed


def test_the_steps_of_the_model_itself_are_clocked(place, tmp_path, monkeypatch, warm_smoke):
    monkeypatch.setattr("trl_grpo_plus.cli.check.recipe.run_smoke", lambda *_: [CheckRow("smoke", OK, "ran")])
    keys = {"max_steps": 50, "gradient_accumulation_steps": 1, "steps_per_generation": 2, "eval_on_start": True}
    keys |= {"eval_strategy": "steps", "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    (tmp_path / "mine.py").write_text(SPLITS)
    rows = checked(place(**keys, prepare="mine.py:prepare", dataset_name=...), smoke=True)
    assert [row for row in rows if row.status != OK] == []
    row = by_name(rows)["speed"]
    assert re.match(r"[\d.,]+ s a step, the mean of 2 after a first one of [\d.,]+ s, measured here; ", row.text)
    assert re.search(r"; all 50 steps: about [\d.]+ h \([\d.,]+ minutes\); memory rose to [\d.]+ GiB\.", row.text)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        ({"gradient_accumulation_steps": 1}, 2),
        ({"gradient_accumulation_steps": 4}, 2),
        ({"gradient_accumulation_steps": 1, "num_iterations": 3}, 4),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 6}, 4),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, 2),  # each step generates twice
    ],
    ids=str,
)
def test_enough_steps_are_clocked_to_include_generation(place, tmp_path, monkeypatch, keys, taken):
    asked = []

    def launched(command, environment, limit_s):
        asked.append(command[command.index("--max_steps") + 1])
        return None, ""

    monkeypatch.setattr(check_smoke, "_launched", launched)
    row = check_smoke.clocked(read(place(**keys), [], launch.distribution(None, 1, 0)), str(tmp_path))
    assert asked == [str(taken)]
    assert row.status == UNSEEN
    assert row.text.startswith(f"0 of {taken} steps were done in 5 minutes")


def clocked(recipe, folder, monkeypatch, seconds):
    """Return the row of a clocked run that ends after these steps (`seconds` holds their times), and its options."""
    asked = []

    def launched(command, environment, limit_s):
        asked.append(command[command.index("--config") + 2 :])
        folder.joinpath("clocked").mkdir()
        folder.joinpath("clocked", check_smoke.CLOCK).write_text(json.dumps({"seconds": seconds, "peak": GIB}))
        return 0, ""

    monkeypatch.setattr(check_smoke, "_launched", launched)
    return check_smoke.clocked(recipe, str(folder)), asked[0]


@pytest.mark.parametrize("seconds", [[], [1.0]], ids=str)
def test_a_clocked_run_that_ends_early_tells_no_time(place, tmp_path, monkeypatch, seconds):
    recipe = read(place(), [], launch.distribution(None, 1, 0))
    row, _ = clocked(recipe, tmp_path, monkeypatch, seconds)
    ended = f"{len(seconds)} of 2 steps were done when the run ended early"
    too_few = "These are too few to estimate the time of the whole run"
    assert row == CheckRow("speed", UNSEEN, f"{ended}. {too_few}")


@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "greedy"])
def test_a_schedule_that_needs_evaluations_is_put_aside_with_them(place, tmp_path, monkeypatch, schedule):
    spread = launch.distribution(None, 1, 0)
    keys = {"eval_strategy": "steps", "eval_steps": 5, "logging_steps": 5, "per_device_eval_batch_size": 8}
    recipe = read(place(lr_scheduler_type=schedule, **keys), [], spread)
    assert recipe.refused == ()
    _, options = clocked(recipe, tmp_path, monkeypatch, [1.0, 1.0])
    for changed in (options, smoke_options.smaller(recipe.training, recipe.model, 1)):
        assert read("my_run.yaml", changed, spread).refused == ()


@pytest.mark.parametrize(("made", "takes", "tells"), [(True, True, True), (True, False, False), (False, True, False)])
def test_the_time_of_a_model_made_for_a_check_says_so(place, tmp_path, monkeypatch, made, takes, tells):
    text = SPLITS.replace("model_args)", "model_args, *, smoke=False)") if takes else SPLITS
    (tmp_path / "mine.py").write_text(text)
    recipe = read(place(prepare="mine.py:prepare", dataset_name=...), [], launch.distribution(None, 1, 0))
    if made:
        recipe.model.model_name_or_path = os.path.join(recipe.training.output_dir, "warm_start")
    row, _ = clocked(recipe, tmp_path, monkeypatch, [1.0, 1.0])
    told = "The model is the one that prepare makes for a check, without a warm-up. A warm-up takes more time."
    assert row.text.endswith(told) == tells


def test_a_time_that_cannot_be_measured_is_not_told(place, facts, monkeypatch):
    assert by_name(checked(place()))["speed"].text.startswith(
        "not estimated: the speed of a CPU must be measured; --smoke"
    )
    monkeypatch.setattr("trl_grpo_plus.cli.check.recipe.run_smoke", lambda *_: [CheckRow("smoke", OK, "ran")])
    away = by_name(checked(place(model_name_or_path="some/model"), smoke=True))["speed"]
    assert (away.status, away.text.split(",")[0]) == (UNSEEN, "not measured: some/model is in no folder here")
    two = by_name(checked(place(), num_processes=2, smoke=True, nodes=Nodes(2)))["speed"]
    assert two.status == UNSEEN
    assert two.text == "not measured: the run has 2 nodes, and this machine is only one of them"
    monkeypatch.setattr(check_model, "memory_bytes", lambda: 1)
    assert by_name(checked(place(), smoke=True))["speed"].status == UNSEEN


def test_what_only_gpus_can_do_is_put_aside_in_small(place, tmp_path, warm_smoke):
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    keys = {"deepspeed": "zero.json", "ddp_backend": "gloo", "optim": "adamw_8bit", "optim_args": "a=b"}
    rows = checked(place(**keys), num_processes=2, smoke=True)
    assert [row for row in rows if row.status == FAILED] == []
    assert by_name(rows)["smoke"].text.endswith("2 processes without zero2")
    assert by_name(rows)["speed"] == CheckRow("speed", UNSEEN, "not measured: it needs what this machine lacks")


@pytest.mark.parametrize(("rows", "few"), [(0, []), (2, [0, 1]), (9, [0, 3, 6])])
def test_a_smoke_run_takes_rows_of_all_parts(rows, few):
    assert smoke._some(Dataset.from_dict({"row": [*range(rows)]}), 3)["row"][:] == few


def test_a_smoke_run_waits_for_what_failed(place):
    rows = checked(place(lerning_rate=1.0), smoke=True)
    assert rows[-1] == CheckRow("smoke", UNSEEN, "not run: it needs what FAILED above")


@pytest.mark.parametrize("processes", [1, 2, 8])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"num_generations": 16, "per_device_train_batch_size": 16},
        {"num_generations": 8, "gradient_accumulation_steps": 32},
        {"gradient_accumulation_steps": 2, "steps_per_generation": 8, "num_iterations": 4},
        {"gradient_accumulation_steps": 8, "steps_per_generation": 2},
        {"generation_batch_size": 64, "gradient_accumulation_steps": 1},
        {"num_generations": 3, "per_device_train_batch_size": 3},
        {"num_generations_eval": 1, "eval_strategy": "steps", "eval_steps": 5},
        {"optim": "adamw_8bit", "num_generations": 2},
    ],
    ids=str,
)
def test_a_recipe_made_small_is_one_that_trl_takes(place, keys, processes):
    """The small recipe keeps whole groups, equal shares for all processes, and how far off-policy it trains."""
    spread = launch.distribution(None, processes, 0)
    recipe = read(place(**keys), [], spread)
    assert recipe.refused == ()
    options = smoke_options.smaller(recipe.training, recipe.model, processes)
    small = read("my_run.yaml", options, spread)
    assert on_paper(small)[0].status == OK
    before, after = recipe.training, small.training
    assert after.num_generations == (before.num_generations if before.num_generations <= 8 else 4)
    groups, own = (args.generation_batch_size / args.num_generations for args in (after, before))
    assert groups == int(groups)
    assert groups <= max(6, processes)
    assert groups >= min(own, 3) or processes > 1
    every = [args.steps_per_generation / args.gradient_accumulation_steps for args in (before, after)]
    assert (every[0] > 1, every[0] < 1) == (every[1] > 1, every[1] < 1)
    assert (after.num_iterations > 1) == (before.num_iterations > 1)
    assert (after.max_steps, after.report_to, after.use_cpu) == (2, [], True)
    assert after.optim.value in ("adamw_torch", before.optim.value)


def test_gold_answers_make_groups_of_each_kind():
    planted = [[smoke.is_planted(group, attempt) for attempt in range(4)] for group in range(6)]
    assert planted[:3] == planted[3:]
    assert [sum(row) for row in planted[:3]] == [2, 4, 0]


def short(completions):
    """Return 1.0 for a short completion."""
    return [float(len(text) < 9) for text in completions]


@pytest.mark.parametrize(
    ("paid", "monitors", "row", "gold"),
    [
        (["regex_match", "exact_answer"], [], {"pattern": "a|4", "answer": "5"}, "5"),  # exact_answer can make a gold
        (["regex_match"], ["exact_answer"], {"pattern": r"(.*\D)?4\.?", "answer": "4"}, "4"),
        (["regex_match"], ["math_answer"], {"pattern": r".*4\}", "answer": "4"}, r"\boxed{4}"),
        (["regex_match"], [], {"pattern": r"\d", "answer": 4}, "4"),
        (["regex_match"], [], {"pattern": "a", "answer": "4"}, None),
        (["regex_match"], [], {"pattern": "a"}, None),
        (["regex_match"], [], {"pattern": "a", "answer": ["a"]}, None),
        ([f"{__file__}:short"], [], {"answer": "4"}, None),  # it does not read the answer
    ],
)
def test_what_is_planted(paid, monitors, row, gold):
    rewards = [get_reward(name) for name in (*paid, *monitors)]
    weights = torch.tensor([1.0] * len(paid) + [0.0] * len(monitors))
    trainer = SimpleNamespace(reward_funcs=rewards, reward_weights=weights)
    assert smoke.SmokeTrainer.gold_of(trainer, {"prompt": "2+2=", **row}) == gold


REPORT = {"verdicts": {"alive": 2}, "gradients": [0.5, 0.25], "moved": 1e-6, "planted": 3, "trained": 2}


@pytest.mark.parametrize(
    ("changes", "alive", "status", "text"),
    [
        ({}, 2, OK, "moved, by 1e-06 at most; gradient norms 0.5, 0.25"),
        ({"moved": 0.0}, 2, FAILED, "did not move, although there was a gradient"),
        (
            {"moved": 0.0, "gradients": [0.0, 0.0]},
            0,
            UNSEEN,
            "did not move, because there was no gradient: 0 groups alive",
        ),
        ({"gradients": [0.5, math.nan]}, 2, FAILED, "not a number"),
    ],
)
def test_why_weights_did_not_move(changes, alive, status, text):
    row = check_smoke.learned({**REPORT, **changes}, alive)
    assert row.status == status
    assert text in row.text


def test_gold_answers_that_earn_nothing_are_found_out(tmp_path):
    report = {**REPORT, "steps": 2, "seconds": 1.0, "model": "llama", "verdicts": {"all_bad": 6}, "attempts": 24}
    rows = by_name(check_smoke.rows_of(report, tmp_path, "one process"))
    assert rows["groups"].status == FAILED
    assert "no group was alive, although half the attempts were gold answers" in rows["groups"].text
    assert rows["traces"].status == FAILED
    assert f"{tmp_path} has no traces in it" in rows["traces"].text
    bare = by_name(check_smoke.rows_of({**report, "planted": 0}, tmp_path, "one process"))
    assert "there is none that a reward is known to give full marks" in bare["groups"].text


@pytest.mark.parametrize(("planted", "status"), [(3, FAILED), (0, WARNED)])
def test_attempts_that_nobody_scored_are_found_out(tmp_path, planted, status):
    report = {**REPORT, "steps": 2, "seconds": 1.0, "model": "llama", "attempts": 16, "planted": planted}
    row = by_name(check_smoke.rows_of({**report, "verdicts": {"unscored": 4}}, tmp_path, "one process"))["groups"]
    assert row.status == status
    assert "4 unscored; " in row.text
    assert "every reward with a weight returned None for every attempt" in row.text
    assert "Return a number for each attempt that the reward applies to, and 0.0 for a wrong or unreadable" in row.text
    some = {**report, "verdicts": {"unscored": 3, "alive": 1}}
    assert by_name(check_smoke.rows_of(some, tmp_path, "one process"))["groups"].status == OK


def test_the_gold_of_a_row_is_the_weightiest_rewards(tmp_path):
    rewards = [get_reward("think_format"), get_reward("exact_answer"), get_reward("repetition")]
    trainer = SimpleNamespace(reward_funcs=rewards, reward_weights=SimpleNamespace(tolist=lambda: [0.5, 1.0, 2.0]))
    gold = smoke.SmokeTrainer.gold_of
    assert gold(trainer, {"prompt": "1+1=", "answer": "2"}) == "2"
    assert "<answer>" in gold(trainer, {"prompt": "1+1=", "answer": None})
    trainer.reward_weights = SimpleNamespace(tolist=lambda: [0.0, 1.0, 0.0])
    assert gold(trainer, {"prompt": "1+1=", "answer": None}) is None


def test_the_help_has_examples(capsys):
    for words in (["check"], ["check", "rewards"], ["run"]):
        with pytest.raises(SystemExit, match="0"):
            main([*words, "--help"])
        assert f"  trl-grpo-plus {' '.join(words)} " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["check"])
    assert "NAME|FILE" in capsys.readouterr().err


def test_a_tiny_model_is_saved_where_the_smoke_run_looks(tmp_path):
    write(smoke.tiny_config("nothing/known", None, False), byte_tokenizer(), str(tmp_path))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(os.listdir(tmp_path))
