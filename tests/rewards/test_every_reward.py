"""What is asked of every reward that ships."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path


REPOSITORY = Path(__file__).parents[2]


def test_a_file_and_a_line_add_a_reward(tmp_path):
    """In a copy of the package, which nobody installs: the reward has its name in a fresh process, in workers too."""
    package = tmp_path / "trl_grpo_plus"
    shutil.copytree(REPOSITORY / "trl_grpo_plus", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "rewards", package / "rewards", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "rewards" / "ends_well.py").write_text(
        "from trl_grpo_plus.registry import register_reward\n\n\n"
        '@register_reward("ends_well", timeout=9.0)\n'
        "def ends_well(completions):\n"
        '    return [float(text.endswith("well")) for text in completions]\n'
    )
    library = (package / "rewards" / "__init__.py").read_text()
    (package / "rewards" / "__init__.py").write_text(
        library.replace('    "exact_answer":', '    "ends_well": "ends_well",\n    "exact_answer":')
    )
    code = """
    from trl_grpo_plus.registry import get_reward, list_rewards, register_reward
    assert "ends_well" in list_rewards()
    print(get_reward("ends_well")(completions=["ends well", "ends"]), flush=True)
    register_reward("ends_well")(lambda completions: [])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[1.0, 0.0]\n", done.stderr
    assert "'ends_well' exists already: trl_grpo_plus.rewards.ends_well:ends_well" in done.stderr
