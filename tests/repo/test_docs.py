"""The README and the pages of docs/: links, commands, options, metrics and tables are true, and each example runs."""

import ast
import asyncio
import dataclasses
import itertools
import json
import pkgutil
import re
import shlex
import sys
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import synthetic_traces
import tiny_models
import torch
import yaml
from datasets import Dataset
from package_source import LAYERS
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer

import trl_grpo_plus
from trl_grpo_plus import registry
from trl_grpo_plus.cli.check.rewards import check_examples, check_gold
from trl_grpo_plus.config import tool_checks
from trl_grpo_plus.config.presets import PRESETS
from trl_grpo_plus.config.trl_releases import NEWEST, OLDEST
from trl_grpo_plus.curriculum.samplers import PromptSampler
from trl_grpo_plus.launch import accelerate as launch
from trl_grpo_plus.launch.arguments import make_parser
from trl_grpo_plus.launch.nodes import OPTIONS
from trl_grpo_plus.launch.option_checks import bad_together
from trl_grpo_plus.objective.kl import ESTIMATORS
from trl_grpo_plus.objective.ratios import RATIOS
from trl_grpo_plus.objective.scales import SCALES
from trl_grpo_plus.registry import Reward, Step, get_reward, list_rewards, resolve
from trl_grpo_plus.rollouts import verdicts
from trl_grpo_plus.traces import reader
from trl_grpo_plus.traces.alarms import ALARMS, Thresholds
from trl_grpo_plus.utils.import_path import load


ROOT = Path(__file__).parents[2]
README, RECIPES = ROOT / "README.md", ROOT / "recipes" / "README.md"
PAGES = sorted([README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), RECIPES])
MESSAGES = ROOT / "docs" / "errors.md"
HOW_TO = ROOT / "docs" / "how_to"
GUIDE = (ROOT / "docs" / "guide.md").read_text()
COMMANDS = ("ls", "cp", "run", "race", "check", "view", "rescore", "export", "env")
FOLDERS = ("tests", "benchmarks", "docs", "recipes", "rewards", "trl_grpo_plus")
# Examples that other tests run (of the recipes' data, of attach, below), and pieces of longer files.
ELSEWHERE = {"# my_data.py", "# in my_run.yaml", "# in my_script.py", "# in train.py"}
FILES = ("my_rewards.py", "my_steps.py", "my_length_reward.py", "my_ranks.py", "my_game.py", "my_entries.py")
QUICK_START = ("# quick_data.py", "# quick_model.py", "# quick_reward.py", "# quick_run.py")


def named(page):
    return str(page.relative_to(ROOT))


def blocks(*languages, pages=PAGES):
    """Return (page, text) of each fenced block in one of these languages."""
    fenced = [
        (named(page), language, text)
        for page in pages
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]
    return [(page, text) for page, language, text in fenced if language in languages]


def block(first_line, pages=PAGES):
    (text,) = [text for _, text in blocks("python", "yaml", "diff", pages=pages) if text.startswith(first_line)]
    return text


def table(page, first_column):
    """Return the rows of the page's table whose first column has this title. A row is a list of cells."""
    _, after = re.split(rf"^\| {re.escape(first_column)} \|.*\n", (ROOT / page).read_text(), maxsplit=1, flags=re.M)
    rows = itertools.takewhile(lambda line: line.startswith("|"), after.splitlines()[1:])
    return [[cell.strip() for cell in row.strip().strip("|").split(" | ")] for row in rows]


def first_column(page, head):
    return [name for row in table(page, head) for name in re.findall(r"`(\w+)`", row[0])]


@pytest.fixture(autouse=True, scope="module")
def whole_library():
    """Import all rewards: one that a test below imports first would be forgotten after that test."""
    for name in list_rewards():
        registry.find(name)


# -- pages and links


def anchors(page):
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        at = page.parent / path if path else page
        assert at.exists(), target
        assert not anchor or anchor in anchors(at), target


def linked_by(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    return {(page.parent / target).resolve() for target in targets}


def test_the_readme_is_short_and_leads_to_every_page_and_each_picture_is_shown():
    text = README.read_text()
    assert len(text.splitlines()) <= 180
    linked = linked_by(README)
    # Other pages list the how-to pages and the pages of the API.
    listed = {page for page in PAGES if page == README or "how_to" in page.parts or page.name.startswith("api_")}
    assert set(PAGES) - listed <= linked
    assert listed - {README} <= linked.union(*(linked_by(page) for page in linked if page.suffix == ".md"))
    pictures = [(page, at) for page in PAGES for at in re.findall(r"!\[[^]]*\]\(([^)]+)", page.read_text())]
    shown = {(page.parent / at).resolve() for page, at in pictures}
    for picture in (ROOT / "docs" / "images").iterdir():
        assert picture in shown
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert picture.stat().st_size < 150_000


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_and_names_are_there(page):
    text = page.read_text()
    for path in re.findall(rf"(?<![\w/])(?:{'|'.join(FOLDERS)})/[a-z\d_/.-]+\.\w+", text):
        assert (ROOT / path).exists() or (page.parent / path).exists(), path
    for name in set(re.findall(r"\btrl_grpo_plus(?:\.\w+)+", text)):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            pytest.fail(f"{name}: {error}")


# -- commands and options


def commands():
    for page, text in blocks("bash", "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "trl-grpo-plus" in words:
                yield page, words[words.index("trl-grpo-plus") + 1 :]


def test_commands_and_their_options_exist():
    options = known_options() | {"smoke", "accelerate_config", "num_processes", "gpu", "gpu_memory"}
    options |= {"baseline_generations", "evaluations", "resume", "launcher"}
    options |= {name for of_launcher in OPTIONS.values() for name in of_launcher}
    seen = list(commands())
    assert len(seen) > 20
    for page, (command, *rest) in seen:
        assert command in COMMANDS, (page, command)
        if command in ("run", "race", "check", "cp") and rest[0] != "rewards":
            assert rest[0] in launch.recipes() or rest[0].startswith("my_"), (page, rest[0])
            asked = {word[2:].partition("=")[0] for word in rest if word.startswith("--")}
            assert asked <= options, (page, asked - options)
        if "--accelerate_config" in rest:
            name = rest[rest.index("--accelerate_config") + 1]
            assert name in launch.accelerate_configs() or name.startswith("my_"), (page, name)


def test_targets_of_make_are_there():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {target for _, text in blocks("bash") for target in re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)}
    asked |= {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert len(asked) > 5
    assert asked <= targets


def yaml_value(text):
    value = yaml.safe_load(text)
    return float(value) if re.fullmatch(r"[\d.e-]+", text) else value  # YAML reads 1e-6 as a text


def known_options():
    return {field.name for kind in make_parser().dataclass_types for field in dataclasses.fields(kind)}


def test_options_that_pages_give_a_value_exist():
    others = {
        "allow_unsafe_code_execution",
        "smoke",
        "monitor",
        "credit",
        "timeout",
        "name",
        "args",
        "weight",
        *ALARMS,
    }
    named_there = {name for page in PAGES for name in re.findall(r"`(\w+): [^`]+`", page.read_text())}
    assert len(named_there) > 10
    assert named_there - known_options() - others == set()


def test_the_guides_curves_are_logged(tmp_path):
    curves = [name for row in table("docs/guide.md", "curve") for name in re.findall(r"`([\w/<>*]+)`", row[0])]
    assert len(curves) > 12
    evaluated = {"eval_dataset": {"held_out": tiny_models.prompts(4)}}
    trainer = tiny_models.trained(
        tmp_path, beta=0.01, num_iterations=2, eval_strategy="steps", eval_steps=3, extra=evaluated
    )
    logged = {key for entry in trainer.state.log_history for key in entry}
    for name in curves:
        name = {"all_good": "groups/all_good", "all_bad": "groups/all_bad", "beta": "kl"}.get(name, name)
        pattern = re.sub(r"<\w+>|\*", r"[^/]+", name)
        if not name.startswith(("sampling/", "sampler/")):  # logged only with vLLM
            assert any(re.fullmatch(pattern, key) for key in logged), name


# -- messages of the code


def told_by_the_code():
    """Yield each text in the code, with a NUL for each value that is filled in."""
    for folder in ("trl_grpo_plus", "rewards", "recipes"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_the_error_messages_are_those_of_the_code():
    rows = re.findall(r"^\| `(.+?)` \|", MESSAGES.read_text(), re.MULTILINE)
    assert len(rows) >= 30
    texts = list(told_by_the_code())
    for message in rows:
        wanted = ".*".join(re.escape(part) for part in message.split("..."))
        shape = re.compile(wanted.replace(".*", "[^\0]*\0.*", 1) if "..." in message else wanted, re.DOTALL)
        assert any(shape.match(text) for text in texts), message


# -- tables that must match the code


def test_the_table_of_options_is_the_config():
    theirs = {field.name for field in dataclasses.fields(GRPOConfig)}
    ours = {field.name: field for field in dataclasses.fields(trl_grpo_plus.GRPOPlusConfig)}
    assert set(first_column("docs/options.md", "option")) == (set(ours) - theirs) | {"scale_rewards"}
    for names, defaults, values, *_ in table("docs/options.md", "option"):
        for name, default in zip(re.findall(r"`(\w+)`", names), defaults.split(", "), strict=True):
            written = re.match(r"`([^`]+)`", default)
            assert ours[name].default == (written and type(ours[name].default)(yaml_value(written[1]))), name
            if choices := ours[name].metadata.get("choices"):
                assert {written[1], *re.findall(r"`(\w+)`", values.split("(")[0])} == set(map(str, choices)), name


@pytest.mark.parametrize(
    ("page", "option"),
    [
        *(("advantages", name) for name in ("advantage_baseline", "advantage_estimator", "scale_rewards")),
        ("kl", "kl_estimator"),
        ("rewards_of_steps", "step_reward_credit"),
    ],
)
def test_the_table_of_a_choice_has_what_the_config_takes(page, option):
    with pytest.raises(ValueError, match="is not one of") as refused:
        trl_grpo_plus.GRPOPlusConfig(use_cpu=True, bf16=False, **{option: "nothing"})
    taken = re.findall(r"'(\w+)'", str(refused.value).partition(" is not one of ")[2])
    assert first_column(f"docs/{page}.md", f"`{option}`") == taken


def test_the_table_of_filtered_verdicts_is_what_leaves_the_batch():
    rows = table("docs/prompt_beliefs.md", "verdict")
    for column, dead in ((1, verdicts.DEAD_BESIDE_A_BELIEF), (2, verdicts.DEAD)):
        named_dead = {name for row in rows if row[column] == "dead" for name in re.findall(r"`(\w+)`", row[0])}
        assert named_dead == dead
    assert set(first_column("docs/prompt_beliefs.md", "verdict")) == set(verdicts.VERDICTS)


def test_the_table_of_alarms_is_the_dict_with_its_defaults():
    assert first_column("docs/alarms.md", "alarm") == list(ALARMS)
    for name, default, _ in table("docs/alarms.md", "alarm"):
        assert float(default) == getattr(Thresholds(), name.strip("`"))


def test_the_table_of_rewards_is_the_library(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", {})  # hide rewards that other tests registered
    assert {row[0].strip("`") for row in table("docs/rewards.md", "name")} == set(list_rewards())


def test_the_table_of_metrics_has_each_metric_that_trl_does_not_log_and_no_other(tmp_path):
    options = {"beta": 0.01, "belief_head": "prompt", "advantage_baseline": "belief", "scale_rewards": "prior"}
    options |= {"zero_variance_groups": "drop", "prompt_selection": "belief", "kl_target": 0.1}
    rewards = [get_reward("exact_answer", column="text"), tiny_models.digits]
    data = tiny_models.prompts(30).map(lambda row: {"text": str(row["number"])})
    ours = tiny_models.trained(tmp_path / "ours", rewards, data=data, **options)
    trls = tiny_models.trained(tmp_path / "trls", rewards, GRPOTrainer, data=data, beta=0.01)
    ours, trls = ({key for entry in each.state.log_history for key in entry} for each in (ours, trls))
    told = {name for row in table("docs/metrics.md", "metric") for name in re.findall(r"`([\w/]+)`", row[0])}
    patterns = {name: re.sub("VERDICT|ALARM|NAME", r"\\w+", name) for name in told}
    for key in ours - trls:
        assert any(re.fullmatch(pattern, key) for pattern in patterns.values()), key
    alarms = {f"alarms/{name}" for name in ALARMS}
    assert alarms <= ours
    elsewhere = {name for name in told if name.startswith("sampler/")} | {"selection/pass"}  # need vLLM or a stream
    for name in told - elsewhere:
        assert any(re.fullmatch(patterns[name], key) for key in ours), name
    plain = tiny_models.trained(tmp_path / "plain", tiny_models.digits, data=data, beta=0.01)
    plain = {key for entry in plain.state.log_history for key in entry} - trls
    by_default = {"always", "with `alarms`"}
    for cell, _, when in table("docs/metrics.md", "metric"):
        for name in re.findall(r"`([\w/]+)`", cell):
            assert any(re.fullmatch(patterns[name], key) for key in plain) == (when in by_default), (name, when)
    for page in PAGES:
        named_there = set(re.findall(r"`((?:groups|tokens|beliefs|selection|sampler)/[\w/]+)`", page.read_text()))
        assert named_there <= told, page


def test_the_table_of_presets_is_the_dict():
    rows = table("docs/presets.md", "preset")
    assert [row[0] for row in rows] == [f"`{name}`" for name in PRESETS]
    for (_, sets, changes, leaves, source), preset in zip(rows, PRESETS.values(), strict=True):
        keys = dict(cell.split(": ", 1) for cell in re.findall(r"`([^`]+)`", sets))
        assert {name: yaml_value(value) for name, value in keys.items()} == dict(preset.settings)
        assert (f"{changes}.", f"{leaves}.") == (preset.changes, preset.leaves)
        assert source.endswith(f"({preset.source})")


def test_what_happens_when_things_fail_is_tested():
    tested = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    rows = table("docs/when_things_fail.md", "fault")
    assert len(rows) > 12
    for row in rows:
        named_there = set(re.findall(r"`(test_\w+)`", row[-1]))
        assert named_there, row[0]
        assert named_there <= tested, row[0]


def test_the_tested_releases_of_trl_are_told_alike():
    """`trl_releases.py` holds the tested releases. All other places must state the same ones."""
    window = f"TRL {OLDEST} to {NEWEST}"
    for page in ("README.md", "CHANGELOG.md", "docs/limits.md"):
        assert window in (ROOT / page).read_text(), page
    assert f'"trl>={OLDEST},' in (ROOT / "pyproject.toml").read_text()
    assert f"\ntrl=={NEWEST}." in (ROOT / "constraints.txt").read_text()
    assert f"TRL_VERSIONS := {OLDEST}." in (ROOT / "Makefile").read_text()


def test_the_layers_are_those_of_the_package():
    text = (ROOT / "docs" / "architecture.md").read_text().split("## The rooms")[1].split("\n## ")[0]
    layers = [re.findall(r"^    (\w+)", layer, re.MULTILINE) for layer in text.split("\n\n")]
    assert [set(layer) for layer in layers if layer] == [set(names.split()) for names in reversed(LAYERS)]


# -- examples


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in a folder with the files of the examples and a run."""
    for name in FILES:
        (tmp_path / name).write_text(block(f"# {name}"))
    synthetic_traces.write_run(tmp_path / "outputs" / "my_run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    tables = [(table, dict(table)) for table in (SCALES, RATIOS, ESTIMATORS, ALARMS)]
    yield tmp_path
    for table, shipped in tables:  # examples add entries
        table.clear()
        table.update(shipped)
    sys.modules.pop("my_entries", None)


def run_here(language):
    elsewhere = {*ELSEWHERE, *QUICK_START}
    return [(page, text) for page, text in blocks(language) if text.split("\n")[0] not in elsewhere]


@pytest.mark.parametrize(("page", "code"), run_here("python"))
def test_each_example_in_python_runs(page, code, folder):
    exec(compile(code, page, "exec"), {"__name__": "example"})


@pytest.mark.parametrize(("page", "text"), run_here("yaml"))
def test_each_example_in_yaml_is_one_of_keys_and_rewards(page, text, folder):
    keys = yaml.safe_load(text)
    assert set(keys) <= {*known_options(), "env"}  # no option: the parser takes it out of the YAML
    if "reward_funcs" in keys:
        resolve(keys["reward_funcs"])


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "for_trl.md"], ids=named)
def test_the_swap_is_two_names(page):
    """The example removes TRL's two names and adds the two of this package. Its config changes nothing."""
    lines = block("-from trl import", [page]).splitlines()
    before = "\n".join(line[1:] for line in lines if line[:1] != "+")
    after = "\n".join(line[1:] for line in lines if line[:1] != "-")
    made = [node for node in ast.walk(ast.parse(after)) if isinstance(node, ast.Call)]
    asked = {node.func.id: node for node in made}
    assert set(asked) == set(trl_grpo_plus.__all__) & {"GRPOPlusConfig", "GRPOPlusTrainer"}
    assert {"GRPOConfig", "GRPOTrainer"} == {n.func.id for n in ast.walk(ast.parse(before)) if isinstance(n, ast.Call)}
    options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in asked["GRPOPlusConfig"].keywords}
    assert trl_grpo_plus.GRPOPlusConfig(**options, use_cpu=True, bf16=False).changed_options == {}


def test_a_script_has_the_recipes_lines_and_is_told_where_the_attempts_are(folder, capsys):
    trainer = tiny_models.trainer(folder, disable_tqdm=False)
    trainer.train()
    printed = capsys.readouterr().out
    assert len(re.findall(r"^step    [123]  reward \d\.\d{3}  entropy", printed, re.MULTILINE)) == 3
    assert "{" not in printed
    told = f"Attempts: {folder}/run/rollouts. To look at them:\n\n  trl-grpo-plus view {folder}/run\n"
    watch = f"To watch it: trl-grpo-plus view {folder}/run --serve\n"
    assert printed.count(told) == printed.count(watch) == printed.count("trl-grpo-plus view") / 2 == 1
    assert printed.index(watch) < printed.index("step    1  ")


@pytest.mark.parametrize("options", [{"trace_every": 0}, {"log_level": "error"}])
def test_a_script_is_not_told_where_the_attempts_are_if_there_are_none_or_it_is_quiet(folder, capsys, options):
    level = transformers_logging.get_verbosity()
    try:
        tiny_models.trained(folder, max_steps=1, **options)
    finally:
        transformers_logging.set_verbosity(level)  # `log_level` sets it for the whole process
    assert "trl-grpo-plus" not in capsys.readouterr().out


def test_the_settings_for_fewer_rollouts_train_and_log_what_the_page_reads(folder):
    keys, made = yaml.safe_load(block("# fewer rollouts")), {}
    exec(block("# the same in Python"), made)
    assert {name: getattr(made["config"], name) for name in keys} == keys
    assert bad_together(made["config"]) == []
    trainer = tiny_models.trained(folder, **keys | {"max_steps": 2})
    logged = {
        key
        for entry in trainer.state.log_history
        for key in entry
        if key.startswith(("beliefs/", "selection/", "rollouts"))
    }
    rows = table("docs/fewer_rollouts.md", "metric")
    assert {name for row in rows for name in re.findall(r"`([\w/]+)`", row[0])} == logged


def test_a_stream_of_ones_own(folder):
    Path("my_streams.py").write_text(block("# my_streams.py"))
    stream = load(yaml.safe_load(block("prompt_selection: my_streams.py"))["prompt_selection"])(range(5), 1)
    methods = {name for name in vars(PromptSampler) if not name.startswith("_")}
    assert methods == {name for name in vars(type(stream)) if not name.startswith("_")}
    assert stream.take(3, lambda row: row != 3) == [4, 2, 1]
    saved = stream.state_dict()
    assert stream.take(3, lambda row: True, multiple_of=2) == [0, 4]
    stream.load_state_dict(saved)
    assert stream.take(9, lambda row: True) == [0, 4, 3, 2, 1]


def test_an_advantage_function_in_ten_lines(folder):
    text = block("# my_advantages.py")
    assert len([line for line in text.splitlines() if line.strip()]) <= 10
    Path("my_advantages.py").write_text(text)
    keys = yaml.safe_load(block('advantage_estimator: {name: "my'))
    trained = tiny_models.trained(folder, tiny_models.digits, **keys, max_steps=1)
    values = torch.tensor(trained._logs["advantages"]).view(-1, trained.num_generations)
    lengths = torch.tensor([len(text) + 1.0 for text in trained._logs["completion"]]).view(values.shape).clamp(max=6)
    shares = torch.tensor(trained._logs["rewards"]["digits"]).view(values.shape) - 0.01 * lengths
    torch.testing.assert_close(values, shares - shares.mean(dim=1, keepdim=True), rtol=0, atol=0.02)


def test_a_reward_in_ten_lines(folder):
    assert len([line for line in block("# my_rewards.py").splitlines() if line.strip()]) <= 10
    assert not check_examples("my_rewards.py:ends_well").problems
    (reward,), weights = resolve(["my_rewards.py:ends_well"])
    assert reward(completions=["The end.", "No"], ending=["end.", "end."]) == [1.0, 0.0]
    assert (reward.__name__, reward.timeout, weights) == ("ends_well", 2.0, None)
    assert get_reward("my_rewards.py:ends_well", points=0.5)(completions=["The end."], ending=["end."]) == [0.5]


def test_a_reward_with_a_gold_answer_passes_its_check(folder):
    path = "my_length_reward.py:so_many_words"
    assert not check_examples(path).problems
    gold = check_gold(get_reward(path), Dataset.from_dict({"prompt": ["a", "b", "c"], "words": [2, 3, 4]}))
    assert [finding.right for finding in gold] == [3, 3]
    (reward,), _ = resolve(yaml.safe_load(block("reward_funcs:\n", [HOW_TO / "own_reward.md"]))["reward_funcs"])
    assert reward(completions=["a b c", "a", "a b c d"], words=[2, 2, 2]) == [0.25, 0.25, 0.0]


def test_an_advantage_by_rank(folder):
    by_rank = load("my_ranks.py:by_rank")
    rewards = torch.tensor([[[3.0], [1.0], [1.0], [float("nan")]]])
    torch.testing.assert_close(by_rank(rewards, torch.tensor([1.0]), None), torch.tensor([[0.75, 0.0, 0.0, -0.75]]))
    keys = yaml.safe_load(block("advantage_estimator: my_ranks"))
    tiny_models.trained(folder, tiny_models.digits, **keys, max_steps=1)


def test_entries_of_a_script(folder):
    """The soft ratio trains as TRL's SAPO, the scale divides, and the KL is the mean of two that ship."""
    load("my_entries:furthest")
    options = {"num_iterations": 3, "max_steps": 3, "learning_rate": 0.1, "report_to": "none"}
    soft = {"loss_type": "grpo", "importance_ratio": "soft_gate", "epsilon": 0.999, "epsilon_high": 1000.0}
    sapo = {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.0}
    runs = [
        tiny_models.trained(folder / str(i), tiny_models.digits, **options, **own)
        for i, own in enumerate((soft, sapo))
    ]
    norms = [torch.tensor(tiny_models.logged(run, "grad_norm")) for run in runs]
    assert norms[0][-1] > 0
    torch.testing.assert_close(*norms, rtol=1e-4, atol=1e-6)
    log_ratio = torch.linspace(-2, 2, 9)
    mean = (ESTIMATORS["k2"].value(log_ratio) + ESTIMATORS["k3"].value(log_ratio)) / 2
    torch.testing.assert_close(ESTIMATORS["k2_and_k3"].value(log_ratio), mean)
    keys = {"scale_rewards": "furthest", "kl_estimator": "k2_and_k3", "beta": 0.04}
    assert f"GRPOPlusConfig({', '.join(f'{key}={value!r}' for key, value in keys.items())})".replace(
        "'", '"'
    ) in block("# in my_script.py", [HOW_TO / "try_an_idea.md"])
    scaled = tiny_models.trained(folder / "scaled", tiny_models.digits, **keys, max_steps=1)
    values = torch.tensor(scaled._logs["advantages"]).view(-1, scaled.num_generations)
    largest = values.abs().amax(dim=1)
    assert (((largest - 1).abs() < 0.02) | (largest == 0)).all()
    assert (largest > 0).any()


def test_an_alarm_of_ones_own(folder):
    exec(block("# my_alarms.py"), {})
    thresholds = {"min_batches": 1, "many_cut_off": 0.01}
    options = {"alarm_thresholds": thresholds, "halt_on_alarm": ["many_cut_off"], "max_steps": 3}
    trained = tiny_models.trained(folder, tiny_models.digits, **options)
    assert trained.state.global_step == 1
    (alarm,) = (folder / "run" / "rollouts" / "alarms.jsonl").read_text().splitlines()
    assert '"many_cut_off"' in alarm


def test_metrics_of_ones_own(folder):
    Path("my_watched.py").write_text(block("# my_watched.py"))
    trained = tiny_models.trained(folder, "my_watched.py:short", max_steps=1)
    (mean,) = tiny_models.logged(trained, "mine/words")
    words = [row["extra"]["words"] for group in reader.groups(folder / "run") for row in group]
    assert sum(words) / len(words) == pytest.approx(mean)


def test_a_reward_of_a_group(folder):
    Path("my_diversity.py").write_text(block("# my_diversity.py"))
    assert load("my_diversity.py:unlike")(["p", "p", "q", "q"], ["a", "a", "a", "b"]) == [0.5, 0.5, 1, 1]


def test_a_judge_that_is_busy(folder, monkeypatch):
    """The judge refuses each first call about a completion."""
    asked, waits = Counter(), []
    monkeypatch.setattr(time, "sleep", waits.append)

    class Judge(BaseHTTPRequestHandler):
        def do_POST(self):
            completion = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["completion"]
            asked[completion] += 1
            self.send_response(429 if asked[completion] == 1 or completion == "never" else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"score": len(completion)}).encode())

        def log_message(self, *args): ...

    Path("my_judge.py").write_text(block("# my_judge.py"))
    judge = load("my_judge.py:judge")
    with ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        judge.__globals__["URL"] = f"http://127.0.0.1:{server.server_port}/score"
        Thread(target=server.serve_forever, daemon=True).start()
        assert asyncio.run(judge(["p"] * 3, ["a", "bcd", "never"])) == [1, 3, None]
        server.shutdown()
    assert asked == {"a": 2, "bcd": 2, "never": 5}
    assert sorted(waits) == [0.5, 0.5, 0.5, 1, 2, 4]


def test_a_game_as_an_environment(folder):
    keys = yaml.safe_load(block("# my_game.yaml"))
    environment, rows = load(keys["environment_factory"]), load(keys["prepare"])(None, None, None)["train"]
    tool_checks.check_made(environment)
    tool_checks.check_described(tool_checks.tools_of(environment))
    tool_checks.check_reset(environment, rows.column_names, "train")
    game = environment()
    game.reset(**{**rows[0], "number": 37})
    assert [game.guess(value) for value in (50, 25, 37)] == ["Lower.", "Higher.", "Right."]
    assert game.get_reward() == 1
    game.reset(**{**rows[0], "number": 37})
    assert [game.guess(50) for _ in range(8)][-1] == "No guess is left."
    assert game.get_reward() == 0


def test_a_reward_of_steps_in_ten_lines(folder):
    assert len([line for line in block("# my_steps.py").splitlines() if line.strip()]) <= 10
    keys = yaml.safe_load(block("# my_steps.yaml"))
    path = keys["reward_funcs"][1]["name"]
    assert load(path)(["1 + 1 = 2\nso\n", ""]) == [[Step(10, 1.0), Step(13, 0.0)], 0.0]
    tiny_models.trained(folder, [tiny_models.digits, path], step_reward_credit=keys["step_reward_credit"], max_steps=1)
    rows = [row for group in reader.groups(folder / "run") for row in group]
    assert all(
        row["steps"] == {"equations": [[len(row["completion"]), float("=" in row["completion"])]]} for row in rows
    )


def test_the_list_of_reward_funcs(folder):
    built, weights = resolve(yaml.safe_load(block("reward_funcs:\n", [ROOT / "docs" / "rewards.md"]))["reward_funcs"])
    names = ["math_answer", "ends_well", "think_format", "accuracy_model/folder_or_hub_id"]
    assert [getattr(reward, "__name__", reward) for reward in built] == names
    assert weights == [2.0, 1.0, 0.0, 1.0]
    assert isinstance(built[1], Reward)
    assert (built[1].timeout, built[1].args, built[0].renamed) == (1, {"points": 0.5}, {"answer": "solution"})
