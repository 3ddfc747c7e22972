"""What the guide and the README name is there: links, commands, options, metrics."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
import tiny

from trl_grpo_plus.alarms import Thresholds
from trl_grpo_plus.launch import accelerate as launch
from trl_grpo_plus.launch.arguments import make_parser


ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "recipes" / "README.md"])
GUIDE = (ROOT / "docs" / "guide.md").read_text()
COMMANDS = ("ls", "cp", "run", "check", "view", "env")


def anchors(page):
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def commands():
    for page in PAGES:
        for block in re.findall(r"```(?:bash|sh)\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if "trl-grpo-plus" in words:
                    yield page.name, words[words.index("trl-grpo-plus") + 1 :]


def test_commands_and_what_they_are_given_are_there():
    options = known_options() | {"smoke", "accelerate_config", "num_processes", "gpu", "gpu_memory"}
    seen = list(commands())
    assert len(seen) > 20
    for page, (command, *rest) in seen:
        assert command in COMMANDS, (page, command)
        if command in ("run", "check", "cp") and rest[0] != "rewards":
            assert rest[0] in launch.recipes() or rest[0].startswith("my_"), (page, rest[0])
            named = [word[2:].partition("=")[0] for word in rest if word.startswith("--")]
            assert set(named) <= options, (page, set(named) - options)
        if "--accelerate_config" in rest:
            name = rest[rest.index("--accelerate_config") + 1]
            assert name in launch.presets() or name.startswith("my_"), (page, name)


def known_options():
    return {field.name for kind in make_parser().dataclass_types for field in dataclasses.fields(kind)}


def test_the_guides_options_are_options():
    reward_keys = {"monitor", "credit", "timeout", "name", "args", "weight"}
    alarms = {field.name for field in dataclasses.fields(Thresholds)}
    named = set(re.findall(r"`(\w+): [^`]+`", GUIDE))
    assert len(named) > 10
    assert named <= known_options() | reward_keys | alarms, named - known_options() - reward_keys - alarms


def test_the_guides_curves_are_logged(tmp_path):
    table = GUIDE[GUIDE.index("| curve |") : GUIDE.index("Numbers in this table")]
    cells = [line.split("|")[1] for line in table.strip().splitlines()[2:]]
    named = [name for cell in cells for name in re.findall(r"`([\w/<>*]+)`", cell)]
    assert len(named) > 12
    evaluated = {"eval_dataset": {"held_out": tiny.prompts(4)}}
    trainer = tiny.trainer(tmp_path, beta=0.01, num_iterations=2, eval_strategy="steps", eval_steps=3, extra=evaluated)
    trainer.train()
    logged = {key for entry in trainer.state.log_history for key in entry}
    for name in named:
        name = {"all_good": "groups/all_good", "all_bad": "groups/all_bad", "beta": "kl"}.get(name, name)
        pattern = re.sub(r"<\w+>|\*", r"[^/]+", name)
        if not name.startswith("sampling/"):  # of vLLM
            assert any(re.fullmatch(pattern, key) for key in logged), name
