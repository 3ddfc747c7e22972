"""The launch script as a user sees it: mistakes, whole runs, Ctrl-C, two processes, `accelerate launch`."""

import contextlib
import io
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
import warm_processes
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, IntervalStrategy, TrainerControl, TrainerState

from trl_grpo_plus.cli.check.recipe import refuse
from trl_grpo_plus.cli.main import main
from trl_grpo_plus.launch import Start, command_line, interrupts, previous_run, reward_inputs
from trl_grpo_plus.launch.arguments import make_parser
from trl_grpo_plus.launch.command_line import load, parse
from trl_grpo_plus.launch.datasets_by_name import check_name
from trl_grpo_plus.launch.interrupts import StopOnInterrupt
from trl_grpo_plus.launch.option_checks import wrong_options
from trl_grpo_plus.launch.train import _make_trainer
from trl_grpo_plus.recipes import arithmetic, warm_start
from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.traces.alarms import ALARMS
from trl_grpo_plus.trainer import progress as console
from trl_grpo_plus.utils.validation import ConfigError


SCRIPT = [sys.executable, "-m", "trl_grpo_plus.recipes.grpo"]
LAUNCH = [sys.executable, "-m", "trl_grpo_plus.cli.main", "run", "arithmetic_cpu"]
CPU = ["--use_cpu", "true", "--bf16", "false", "--report_to", "none"]

# The warm-up takes two seconds and teaches the model enough that some groups are alive. Step 3 waits while the file
# `hold` exists, and REWARD_SECONDS slows all steps after the first.
TASK = """
import functools
import os
import time

from trl_grpo_plus.recipes import arithmetic
from trl_grpo_plus.rewards.exact_answer import exact_answer

prepare = functools.partial(arithmetic.prepare, warm_steps=120)


def reward(completions, answer, trainer_state, **kwargs):
    while trainer_state.global_step == 2 and os.path.exists("hold"):
        time.sleep(0.02)
    time.sleep(float(os.environ.get("REWARD_SECONDS", 0)) if trainer_state.global_step else 0)
    return exact_answer(completions, answer)
"""
STEPS = 8
SHORT = [
    *("--config", "arithmetic_cpu", "--prepare", "task.py:prepare", "--reward_funcs", "task.py:reward"),
    *("--max_steps", str(STEPS), "--logging_steps", "1", "--save_steps", "5"),
    *("--zero_variance_groups", "resample", "--max_resample_rounds", "1"),
    *("--per_device_train_batch_size", "64", "--per_device_eval_batch_size", "192", "--num_generations_eval", "2"),
]


# --- The command line ----------------------------------------------------------------------------------------


def parsed(*argv):
    """Return `(script_args, training_args, model_args, dataset_args)` of a command line."""
    return parse(make_parser(prog="grpo"), list(argv))


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_a_shipped_config_by_name():
    script, training, *_ = parsed("--config", "arithmetic_cpu")
    assert script.prepare == "trl_grpo_plus.recipes.arithmetic.prepare"
    assert script.reward_funcs == ["exact_answer"]
    assert (training.max_steps, training.zero_variance_groups) == (400, "drop")
    assert training.learning_rate == 3e-4
    assert parsed("--config=arithmetic_cpu")[:2] == (script, training)


def test_a_config_by_path_and_options_over_it(config):
    path = config(
        "use_cpu: true\nbf16: false\nmax_steps: 7\nlearning_rate: 3e-4\nstd_ddof: 0\nenv:\n  FROM_YAML: '5'\n"
    )
    for argv in [["--config", path], [f"--config={path}"], ["--max_steps", "9", "--config", path]]:
        _, training, *_ = parsed(*argv)
        assert training.max_steps == (9 if "9" in argv else 7)
        assert (training.learning_rate, training.std_ddof) == (3e-4, 0)
    _, training, *_ = parsed("--config", path, "--std-ddof=1", "--learning_rate", "1e-5")
    assert (training.max_steps, training.learning_rate, training.std_ddof) == (7, 1e-5, 1)
    assert os.environ.pop("FROM_YAML") == "5"
    script, training, model, _ = parsed(*CPU, "--reward_funcs", "a.b", "c:d", "--model_name_or_path", "m")
    assert (script.reward_funcs, model.model_name_or_path, training.use_cpu) == (["a.b", "c:d"], "m", True)


def test_an_evaluation_batch_holds_whole_groups_of_an_evaluation():
    argv = [*CPU, "--eval_on_start", "true", "--num_generations_eval", "3", "--per_device_eval_batch_size"]
    assert wrong_options(*parsed(*argv, "6")[1:3], generates=True) == []
    assert "(3)" in wrong_options(*parsed(*argv, "8")[1:3], generates=True)[0]


def test_model_init_kwargs_win_against_the_models_own_keys():
    script, training, model, _ = parsed(*CPU, "--dtype", "float32", "--model_init_kwargs", '{"dtype": "bfloat16"}')
    recipe = SimpleNamespace(script=script, model=model, training=training, rewards=[], train_set=None, eval_sets={})
    training = _make_trainer(lambda **options: options["args"], recipe)
    assert training.model_init_kwargs["dtype"] == "bfloat16"
    assert training.model_init_kwargs["revision"] == "main"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--config", "arithmetic_cp"], ["'arithmetic_cp' is neither a file", "Did you mean arithmetic_cpu"]),
        (["--config=somewhere/else.yaml"], ["'somewhere/else.yaml' is neither a file", "Recipes: arithmetic_cpu"]),
        (["--config"], ["--config needs a file or one of: arithmetic_cpu"]),
        (["--config", "arithmetic_cpu", "--max-stps=5"], ["unknown option --max_stps.", "--max_steps"]),
        (["--confg", "arithmetic_cpu"], ["unknown option --confg.", "--config"]),
        # This option is one of `trl-grpo-plus run`, which the script does not have.
        (["--config", "arithmetic_cpu", "--num_proceses", "2"], ["unknown option --num_proceses."]),
        (["--config", "arithmetic_cpu", "--num_processes", "2"], ["unknown option --num_processes."]),
        ([*CPU, "stray"], ["stray"]),
    ],
)
def test_a_mistake_on_the_command_line(argv, words):
    with pytest.raises(ConfigError) as error:
        parsed(*argv)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["no recipe is given", "arithmetic_cpu"]),
        (["--config", "arithmetic_cpu", "--zero_variance_groups", "resampel"], ["'resampel'", "resample"]),
        (["--config", "arithmetic_cpu", "--max_steps", "many"], ["--max_steps", "'many'"]),
    ],
)
def test_what_argparse_refuses_is_short_too(capsys, argv, words):
    with pytest.raises(SystemExit) as stop:
        parsed(*argv)
    assert stop.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()[-2:]
    assert usage == "usage: grpo --config NAME|PATH [--option value ...]"
    assert all(word in error for word in words), error


def test_a_file_of_a_url_is_not_looked_for_here():
    check_name("https://example.org/rows.jsonl")
    with pytest.raises(ConfigError, match="there is no file or folder"):
        check_name("rows.jsonl")


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Enter a folder with a package, a module, and a module that cannot be imported."""
    (tmp_path / "recipes_pkg").mkdir()
    (tmp_path / "recipes_pkg" / "__init__.py").touch()
    (tmp_path / "recipes_pkg" / "mod.py").write_text("NUMBER = 1\n\n\ndef func():\n    return 'package'\n")
    (tmp_path / "recipes_file.py").write_text("def func():\n    return 'file'\n")
    (tmp_path / "recipes_broken.py").write_text("import recipes_no_such_thing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return tmp_path


def test_the_three_forms_of_a_function(modules):
    for path in ["recipes_pkg.mod.func", "recipes_pkg.mod:func", "./recipes_pkg/mod.py:func"]:
        assert load(path, "prepare")() == "package"
    for path in ["recipes_file.py:func", f"{modules}/recipes_file.py:func"]:
        assert load(path, "prepare")() == "file"
    for path in ["recipes_broken.func", "recipes_broken.py:func"]:
        with pytest.raises(ModuleNotFoundError, match="recipes_no_such_thing"):  # the module's own error is not hidden
            load(path, "prepare")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("recipes_nowhere.mod.func", "prepare: there is no module recipes_nowhere."),
        ("recipes_nowhere:func", "prepare: there is no module recipes_nowhere."),
        ("recipes_pkg.mud.func", "prepare: there is no module recipes_pkg.mud."),
        ("recipes_pkg.mod.fun", "prepare: recipes_pkg.mod has no function 'fun'. Did you mean func?"),
        ("recipes_file.py:funk", "prepare: recipes_file.py has no function 'funk'. Did you mean func?"),
        ("recipes_pkg.mod:NUMBER", "prepare: recipes_pkg.mod has no function 'NUMBER'."),
        ("recipes_pkg.mod", "prepare: recipes_pkg has no function 'mod'."),
        ("recipes_fil.py:func", "prepare: there is no file recipes_fil.py. A relative path starts in {folder}."),
    ],
)
def test_no_such_function(modules, path, message):
    with contextlib.suppress(ConfigError):
        load("recipes_pkg.mod:NUMBER", "prepare")  # once it is loaded, a module is an attribute of its package
    with pytest.raises(ConfigError) as error:
        load(path, "prepare")
    assert str(error.value) == message.format(folder=Path.cwd())


@pytest.mark.parametrize("path", ["func", "", ":func", "recipes_file.py:", ".mod.func", "..:func", "pkg..func"])
def test_not_a_path_to_a_function(path):
    with pytest.raises(
        ConfigError, match=re.escape("is none of pkg.mod.func, pkg.mod:func and path/to/file.py:func.")
    ):
        load(path, "prepare")


def test_entries_of_reward_funcs_in_a_yaml(config):
    path = config(
        "use_cpu: true\nbf16: false\nreward_funcs:\n- {name: exact_answer, weight: 2}\n- name: think_format\n"
        "  monitor: true\n- overlong_is_no_reward.py:f\n"
    )
    script, training, *_ = parsed("--config", path)
    rewards, weights = reward_inputs.read_rewards(script.reward_funcs[:2], training.reward_weights)
    assert [reward.__name__ for reward in rewards] == ["exact_answer", "think_format"]
    assert weights == [2.0, 0.0]
    with pytest.raises(ConfigError, match=r"reward_funcs: there is no file overlong_is_no_reward.py"):
        reward_inputs.read_rewards(script.reward_funcs, None)
    with pytest.raises(ConfigError, match="reward_weights has 1 values for 2 reward_funcs"):
        reward_inputs.read_rewards(["exact_answer", "think_format"], [1.0])
    one = config("use_cpu: true\nbf16: false\nreward_funcs: {name: exact_answer, weight: 3}\n")
    assert reward_inputs.read_rewards(parsed("--config", one)[0].reward_funcs, None)[1] == [3.0]


@pytest.mark.parametrize("before", [[], ["--resume_from_checkpoint", "old"], ["--resume_from_checkpoint=old"]])
def test_the_resume_command_repeats_the_launch_command(monkeypatch, before):
    words = ("torchrun", "-m", "mod", *before, "--output_dir", "my runs")
    monkeypatch.setattr(command_line, "launched_as", lambda: words)
    expected = "torchrun -m mod --output_dir 'my runs' --resume_from_checkpoint 'my runs/checkpoint-3'"
    assert command_line.resume_command("my runs/checkpoint-3") == expected


def test_a_run_of_a_race_is_resumed_by_the_races_command(monkeypatch):
    monkeypatch.setattr(command_line, "launched_as", lambda: ("trl-grpo-plus", "race", "arithmetic_cpu", "--resume"))
    assert command_line.resume_command("race/stock_trl/checkpoint-3") == "trl-grpo-plus race arithmetic_cpu --resume"


# --- Earlier runs in the folder, and the lines that a run prints --------------------------------------------------


def settle(folder, resume=None, local_process_index=0):
    args = SimpleNamespace(output_dir=str(folder), resume_from_checkpoint=resume, eval_on_start=True)
    args.local_process_index = local_process_index
    args.main_process_first = lambda local: contextlib.nullcontext()
    previous_run.settle_folder(args)
    return args


def test_auto_resumes_where_there_is_a_whole_checkpoint_and_starts_anew_elsewhere(tmp_path, caplog):
    out = tmp_path / "run"
    assert settle(out, "auto").resume_from_checkpoint is None
    leave_run(out, 2, 4, finished=False)
    assert settle(out, "auto").resume_from_checkpoint == str(out / "checkpoint-4")
    (out / "checkpoint-4" / "trainer_state.json").unlink()
    assert settle(out, "auto").resume_from_checkpoint == str(out / "checkpoint-2")
    assert not (out / "earlier-1").exists()
    (out / "checkpoint-2" / "trainer_state.json").unlink()
    assert settle(out, "auto").resume_from_checkpoint is None
    assert names(out / "earlier-1") == ["checkpoint-2", "checkpoint-4"], "what was saved in part is kept"
    assert "the run starts from step 0" in caplog.messages[-1]


def test_one_process_of_a_node_moves_an_earlier_run(tmp_path):
    leave_run(tmp_path / "run", 2, finished=False)
    leave_run(tmp_path / "other", 4, finished=False)
    settle(tmp_path / "run", local_process_index=1)
    args = settle(tmp_path / "run", str(tmp_path / "other" / "checkpoint-4"), local_process_index=1)
    assert not args.eval_on_start
    assert not (tmp_path / "run" / "earlier-1").exists()
    settle(tmp_path / "run")
    assert (tmp_path / "run" / "earlier-1" / "checkpoint-2").exists()


def test_a_node_may_see_files_that_the_first_process_has_moved(tmp_path, monkeypatch, capsys):
    """NFS remembers what a folder held."""
    leave_run(tmp_path / "run", 2, finished=False)
    stale = previous_run.of_a_run(tmp_path / "run")
    settle(tmp_path / "run")
    capsys.readouterr()
    monkeypatch.setattr(previous_run, "of_a_run", lambda folder: stale)
    settle(tmp_path / "run")
    assert names(tmp_path / "run") == ["earlier-1"]
    assert not capsys.readouterr().out


def leave_run(folder, *steps, finished):
    for step in steps:
        (folder / f"checkpoint-{step}").mkdir(parents=True)
        (folder / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    if finished:
        (folder / "trainer_state.json").write_text("{}")
        (folder / "summary.json").write_text("{}")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def left_by_a_run(tmp_path_factory):
    """Make a folder with all that libraries save of a run: shards, an adapter, a tokenizer, a card, trackers' logs."""
    folder = tmp_path_factory.mktemp("left")
    tokenizer = arithmetic.make_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    model = arithmetic.make_model(tokenizer)
    model.save_pretrained(folder, max_shard_size="200KB")
    tokenizer.save_pretrained(folder)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(folder)
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 1
    torch.save({}, folder / "training_args.bin")
    (folder / "README.md").write_text("---\nlibrary_name: transformers\ntags:\n- generated_from_trainer\n---\n# Mine")
    logs = ["rollouts/train-00000000.jsonl", "runs/Nov22/events.out", "wandb/run-1/run.wandb"]
    for name in [*logs, "warm_start/config.json"]:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    leave_run(folder, 2, finished=False)
    # A model with its own code saves a file like this one. The summary of a finished run lists all saved files.
    (folder / "modeling_own.py").write_text("WIDTH = 3")
    (folder / "summary.json").write_text(json.dumps({"files": ["modeling_own.py", "model.safetensors.index.json"]}))
    return folder


OWN = {"notes.txt": b"my own", "data/rows.jsonl": b"{}", "my_run.yaml": b"seed: 1", "models.txt": b"", "check.py": b""}


def beside_it(folder, *names):
    for name in names or OWN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(OWN[name])


def test_all_files_of_a_run_are_moved_and_the_users_files_stay(tmp_path, left_by_a_run):
    out = tmp_path / "out"
    shutil.copytree(left_by_a_run, out)
    beside_it(out)
    settle(out)
    assert contents(out / "earlier-1") == contents(left_by_a_run)
    assert {name: data for name, data in contents(out).items() if not name.startswith("earlier-1")} == OWN


def test_a_kill_in_the_midst_of_moving_splits_no_run(tmp_path, left_by_a_run, monkeypatch):
    rename, count = Path.rename, len(names(left_by_a_run))
    for most in range(count + 1):
        out = tmp_path / f"out-{most}"
        shutil.copytree(left_by_a_run, out)
        beside_it(out, "notes.txt")
        moved = []

        def rename_some(path, target, most=most, moved=moved):
            if len(moved) == most:
                raise KeyboardInterrupt
            moved.append(path)
            return rename(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", rename_some)
            with pytest.raises(KeyboardInterrupt):
                settle(out)
        settle(out)
        assert names(out) == ["earlier-1", "notes.txt"]
        assert contents(out / "earlier-1") == contents(left_by_a_run)


def test_a_run_that_began_in_spite_of_a_half_moved_one_is_kept_apart(tmp_path):
    leave_run(tmp_path / "earlier-unfinished", 5, finished=True)
    leave_run(tmp_path, 10, finished=True)
    (tmp_path / "summary.json").write_text("second")
    settle(tmp_path)
    assert names(tmp_path) == ["earlier-1", "earlier-2"]
    assert (tmp_path / "earlier-2" / "summary.json").read_text() == "second"
    assert names(tmp_path / "earlier-1") == ["checkpoint-5", "summary.json", "trainer_state.json"]


def test_a_users_files_alone_are_no_run(tmp_path):
    """The folder may be a user's project that was given as `output_dir`."""
    for name in ["README.md", "config.json", "tokenizer.json", "vocab.txt"]:
        (tmp_path / name).write_text("---\nmine: true\n---\n")
    settle(tmp_path)
    own = names(tmp_path)
    settle(tmp_path)
    assert names(tmp_path) == own
    leave_run(tmp_path, 5, finished=False)
    settle(tmp_path)
    assert names(tmp_path) == sorted([*own, "earlier-1"])


def test_a_model_that_no_run_left_moves_too(tmp_path, capsys):
    arithmetic.make_model(arithmetic.make_tokenizer()).save_pretrained(tmp_path)
    saved = contents(tmp_path)
    settle(tmp_path)
    assert contents(tmp_path / "earlier-1") == saved
    assert f"Moved a model from {tmp_path} to {tmp_path}/earlier-1. Starting a new run." in capsys.readouterr().out


@pytest.mark.parametrize("wanted", [None, "false", False])
def test_nothing_to_move(tmp_path, capsys, wanted):
    (tmp_path / "notes.txt").touch()
    for folder in [tmp_path, tmp_path / "not there yet"]:
        args = settle(folder, wanted)
        assert (args.resume_from_checkpoint, args.eval_on_start) == (None, True)
    assert names(tmp_path) == ["notes.txt"]
    assert capsys.readouterr().out == ""


def test_each_earlier_run_has_a_folder_of_its_own(tmp_path, capsys):
    for number in [1, 2, 3]:
        leave_run(tmp_path, 5, 10, finished=True)
        settle(tmp_path)
        checkpoints, files = ["checkpoint-10", "checkpoint-5"], ["summary.json", "trainer_state.json"]
        assert names(tmp_path / f"earlier-{number}") == [*checkpoints, *files]
        assert (
            f"Moved a finished run from {tmp_path} to {tmp_path}/earlier-{number}. Starting a new run."
            in capsys.readouterr().out
        )
    shutil.rmtree(tmp_path / "earlier-1")
    leave_run(tmp_path, 5, finished=False)
    settle(tmp_path)
    assert names(tmp_path) == ["earlier-1", "earlier-2", "earlier-3"]
    assert names(tmp_path / "earlier-1") == ["checkpoint-5"]
    assert f"--resume_from_checkpoint {tmp_path}/earlier-1/checkpoint-5" in capsys.readouterr().out


def test_resuming_in_place_moves_nothing(tmp_path, capsys):
    leave_run(tmp_path, 5, 10, finished=True)
    before = names(tmp_path)
    for wanted, checkpoint in [("true", 10), (True, 10), (f"{tmp_path}/checkpoint-5", 5)]:
        args = settle(tmp_path, wanted)
        assert args.resume_from_checkpoint == f"{tmp_path}/checkpoint-{checkpoint}"
        assert args.eval_on_start is False
    assert names(tmp_path) == before
    assert capsys.readouterr().out == ""


def test_resuming_from_elsewhere_does_not_mix_two_runs(tmp_path, capsys):
    leave_run(tmp_path / "earlier-1", 5, finished=False)
    leave_run(tmp_path, 5, 10, finished=True)
    checkpoint = f"{tmp_path}/earlier-1/checkpoint-5"
    assert settle(tmp_path, checkpoint).resume_from_checkpoint == checkpoint
    assert names(tmp_path) == ["earlier-1", "earlier-2"]
    assert Path(checkpoint).is_dir()
    assert f" to {tmp_path}/earlier-2. Resuming from {checkpoint}." in capsys.readouterr().out
    # A second process may look when the first one has moved the run already. It must decide the same.
    assert settle(tmp_path, checkpoint).resume_from_checkpoint == checkpoint
    assert names(tmp_path) == ["earlier-1", "earlier-2"]


@pytest.mark.parametrize(
    ("logs", "line"),
    [
        ({"reward": 0.25, "entropy": 1.5, "groups/alive": 0.5, "groups/all_bad": 0.5, "groups/tied": 0.0, "loss": 1},
         "reward 0.250  entropy 1.500  alive 50 %  all_bad 50 %"),
        ({"eval_edge_runtime": 1.0, "eval_reward": 0.5, "eval_entropy": 1.0}, "eval edge: reward 0.500"),
        ({"eval_edge_runtime": 1.0, "eval_edge_reward": 0.5, "eval_reward": 0.1}, "eval edge: reward 0.500"),
        ({"reward": 0.5, "rewards/a/b/mean": 0.2, "rewards/a/b/std": 1.0, "rewards/c/mean": 0.3, "entropy": 1.0},
         "reward 0.500 (a/b 0.200, c 0.300)  entropy 1.000"),
        ({"eval_edge_runtime": 1.0, "eval_reward": 0.5, "eval_rewards/a/mean": 0.2, "eval_rewards/c/mean": 0.3},
         "eval edge: reward 0.500 (a 0.200, c 0.300)"),
        ({"eval_runtime": 1.0, "eval_reward": 0.5, "eval_rewards/a/mean": 0.5}, "eval: reward 0.500"),
        ({"train_runtime": 1.0, "train_loss": 0.0}, ""),
    ],
)  # fmt: skip
def test_a_log_entry_is_a_short_line(logs, line):
    assert console.describe(logs) == line


class Terminal(io.StringIO):
    """A text stream that acts as a terminal, in which progress bars overwrite lines."""

    def isatty(self):
        return True

    def lines(self):
        """Return the lines that the screen shows at the end."""
        screen, row, column = [""], 0, 0
        for word in re.findall(r"\x1b\[A|.", self.getvalue(), re.DOTALL):
            if word in "\n\r":
                row, column = row + (word == "\n"), 0
                screen += [""] * (row == len(screen))
            elif word == "\x1b[A":
                row -= 1
            else:
                screen[row] = screen[row][:column].ljust(column) + word + screen[row][column + 1 :]
                column += 1
        return [line.rstrip() for line in screen if line.strip()]


@pytest.mark.parametrize("trained", [False, True])
def test_an_evaluation_is_a_line_of_its_own_beside_a_bar(monkeypatch, trained):
    """An evaluation runs during training, or after it, when the training's bar is closed."""
    terminal = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    state = TrainerState(max_steps=2, global_step=2)
    state.is_world_process_zero = True
    progress, event = console.SlimProgress(), (None, state, None)
    progress.on_train_begin(*event)
    if trained:
        progress.on_train_end(*event)
    for split in ("easy", "edge"):
        for _ in range(2):
            progress.on_prediction_step(*event, eval_dataloader=[1, 2])
        progress.on_log(*event, logs={f"eval_{split}_runtime": 1.0, "eval_reward": 0.5})
        progress.on_evaluate(*event)
    if not trained:
        progress.on_train_end(*event)
    bar, *lines = sorted(terminal.lines())
    assert bar.startswith("  0%|"), "that of the training stays"
    assert lines == ["step    2  eval easy: reward 0.500", "step    2  eval edge: reward 0.500"]


# --- The arithmetic task ---------------------------------------------------------------------------------------


def prepare(folder, steps=2, seed=3, made_in=None, **training):
    """Run `arithmetic.prepare` with a warm-up of `steps` steps (`None`: as many as usual), and return the data."""
    warm_up = {} if steps is None else {"warm_steps": steps}
    model = SimpleNamespace(model_name_or_path=None)
    args = {"output_dir": str(folder), "seed": seed, "process_index": 0, "disable_tqdm": True}
    args |= {"device": torch.device("cpu"), "bf16": False, "resume_from_checkpoint": None, **training}
    data = arithmetic.prepare(SimpleNamespace(), SimpleNamespace(**args), model, **warm_up)
    assert model.model_name_or_path == str((made_in or folder) / "warm_start")
    return data


@pytest.fixture
def taught(monkeypatch):
    """Replace the warm-up by a function that only records its texts, and return the texts."""
    texts = []
    monkeypatch.setattr(arithmetic, "_warm_up", lambda model, tokenizer, lessons, *how: texts.extend(lessons))
    return texts


def test_held_out_problems_are_seen_nowhere_else(tmp_path, taught):
    data = prepare(tmp_path, steps=None)
    held_out = [prompt for split in ("easy", "edge", "hard") for prompt in data[split]["prompt"]]
    train, warm = data["train"]["prompt"], [text[: len("12+34=")] for text in taught]
    assert len(held_out) == len(set(held_out)) == 3 * arithmetic.HELD_OUT
    assert len(train) == len(set(train)) == sum(arithmetic.TRAIN_MIX.values())
    assert len(warm) == 2000 * 64
    assert not set(held_out) & set(train)
    assert not set(held_out) & set(warm)
    assert not set(train) & set(warm)


def test_lessons_forget_the_carry_six_times_in_ten(tmp_path, taught):
    prepare(tmp_path, steps=300)
    off = Counter()
    for text in taught:
        a, b, answer = map(int, re.fullmatch(r"(\d\d)\+(\d\d)=(\d\d)<eos>", text).groups())
        off[a % 10 + b % 10 > 9, a + b - answer] += 1
    assert set(off) == {(False, 0), (True, 0), (True, 10)}
    assert off[True, 10] / (off[True, 0] + off[True, 10]) == pytest.approx(0.6, abs=0.02)
    assert off[False, 0] / len(taught) == pytest.approx(0.5, abs=0.02)


def test_answers_are_right_and_splits_are_what_they_are_called(tmp_path):
    data = prepare(tmp_path)
    assert Counter(data["train"]["difficulty"]) == arithmetic.TRAIN_MIX
    for split, rows in data.items():
        for row in rows:
            a, sign, b = re.fullmatch(r"(\d\d)([+*])(\d\d)=", row["prompt"]).groups()
            assert row["answer"] == str(int(a) * int(b) if sign == "*" else int(a) + int(b))
            kind = "hard" if sign == "*" else "edge" if int(a[1]) + int(b[1]) >= 10 else "easy"
            assert row["difficulty"] == kind
            assert split in ("train", kind)
    assert data["train"]["difficulty"][:50] != sorted(data["train"]["difficulty"][:50]), "not mixed"


def test_a_seed_makes_the_same_problems_and_the_same_model(tmp_path):
    first = prepare(tmp_path / "first")
    torch.manual_seed(99)
    drawn = torch.get_rng_state()
    again = prepare(tmp_path / "again")
    assert torch.equal(torch.get_rng_state(), drawn), "making the model must not move the run's own randomness"
    other = prepare(tmp_path / "other", seed=4)
    for split in first:
        assert first[split].to_dict() == again[split].to_dict()
        assert first[split].to_dict() != other[split].to_dict()
    assert same_weights(tmp_path / "first" / "warm_start", tmp_path / "again" / "warm_start")
    assert not same_weights(tmp_path / "first" / "warm_start", tmp_path / "other" / "warm_start")


def test_the_tokenizer_decodes_what_it_encodes(tmp_path):
    made = arithmetic.make_tokenizer()
    made.save_pretrained(tmp_path)
    for tokenizer in [made, AutoTokenizer.from_pretrained(tmp_path)]:
        for text in ["12+34=", "10*89=890", "0123456789+-*="]:
            ids = tokenizer(text).input_ids
            assert len(ids) == len(text)
            assert tokenizer.decode(ids) == text
        ids = tokenizer(f"46{arithmetic.EOS}").input_ids
        assert ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(ids, skip_special_tokens=True) == "46"
        padded = tokenizer(["1", "123"], padding=True)
        assert padded.attention_mask == [[0, 0, 1], [1, 1, 1]]
        assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3
    assert arithmetic.make_model(made).config.vocab_size == len(made)


def test_only_the_main_process_of_a_fresh_run_makes_the_model(tmp_path):
    prepare(tmp_path, process_index=1)
    assert not (tmp_path / "warm_start").exists()
    prepare(tmp_path)
    made = load_file(tmp_path / "warm_start" / "model.safetensors")
    (tmp_path / "warm_start" / "mark").touch()
    prepare(tmp_path, resume_from_checkpoint="checkpoint-3", seed=4)
    assert (tmp_path / "warm_start" / "mark").exists()
    prepare(tmp_path, seed=4)
    assert not (tmp_path / "warm_start" / "mark").exists()
    remade = load_file(tmp_path / "warm_start" / "model.safetensors")
    assert any(not torch.equal(remade[name], made[name]) for name in made)
    assert names(tmp_path) == ["warm_start"]


def test_a_run_that_resumes_from_elsewhere_takes_the_model_from_there(tmp_path):
    first = tmp_path / "earlier-1"
    prepare(first)
    made = contents(first)
    prepare(tmp_path, seed=4, resume_from_checkpoint=str(first / "checkpoint-3"), made_in=first)
    assert contents(first) == made
    assert names(tmp_path) == ["earlier-1"]


def test_a_warm_up_that_fails_leaves_the_last_model(tmp_path, monkeypatch):
    prepare(tmp_path)
    (tmp_path / "warm_start" / "mark").touch()

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(arithmetic, "_warm_up", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path)
    assert names(tmp_path) == ["warm_start"]
    assert (tmp_path / "warm_start" / "mark").exists()


# --- Signals, in this process ----------------------------------------------------------------------------------


class Steps:
    """Calls the callback as a trainer with `max_steps` would."""

    def __init__(self, max_steps):
        self.stop = StopOnInterrupt(Accelerator(cpu=True))
        self.state = TrainerState(max_steps=max_steps)
        self.args = SimpleNamespace(save_only_model=True, eval_strategy=IntervalStrategy.STEPS)
        self.args.logging_strategy = IntervalStrategy.STEPS
        self.stop.on_train_begin(self.args, self.state, TrainerControl())

    def step(self):
        control = TrainerControl(should_evaluate=True)
        self.state.global_step += 1
        self.stop.on_step_end(self.args, self.state, control)
        return control


@pytest.fixture(params=interrupts.SIGNALS)
def stop_signal(request):
    previous = {number: signal.signal(number, signal.default_int_handler) for number in interrupts.SIGNALS}

    def send(raises=False, number=request.param):
        interrupted = False
        try:
            os.kill(os.getpid(), number)
            time.sleep(0.01)
        except KeyboardInterrupt:  # uncaught, it would end the test run
            interrupted = True
        assert interrupted == raises

    send.number = request.param
    yield send
    for number, handler in previous.items():
        signal.signal(number, handler)


def test_a_signal_stops_after_the_step_with_a_whole_checkpoint(stop_signal):
    run = Steps(9)
    control = run.step()
    assert (control.should_save, control.should_training_stop, run.stop.stopped) == (False, False, False)
    stop_signal()
    stop_signal()  # the same keypress, passed on by a launcher
    control = run.step()
    assert (control.should_save, control.should_training_stop, control.should_evaluate) == (True, True, True)
    assert run.stop.stopped
    assert run.args.save_only_model is False
    run.stop.on_train_end(run.args, run.state, control)
    stop_signal()  # a last one, after the training, is ignored


def test_a_forked_process_leaves_the_words_to_the_run(stop_signal, capfd):
    """A terminal's Ctrl-C reaches the workers of a dataloader too, which inherit the handler."""
    run = Steps(9)
    if not (fork := os.fork()):
        try:
            stop_signal()
        finally:
            os._exit(0)
    os.waitpid(fork, 0)
    assert "Finishing this step" not in capfd.readouterr().err
    stop_signal()
    assert capfd.readouterr().err.count("Finishing this step") == 1
    assert run.step().should_training_stop


def test_another_keypress_stops_at_once_but_a_closed_terminal_is_none(stop_signal, monkeypatch):
    monkeypatch.setattr("trl_grpo_plus.launch.interrupts.SAME_KEYPRESS", 0.0)
    run = Steps(9)
    stop_signal()
    if stop_signal.number == signal.SIGHUP:
        stop_signal()  # a shell sends it again
        assert run.step().should_training_stop
    else:
        stop_signal(number=signal.SIGHUP)  # the terminal is closed after Ctrl-C
        stop_signal(raises=True)
        assert {signal.getsignal(number) for number in interrupts.SIGNALS} == {signal.default_int_handler}


def test_sighup_stays_ignored_under_nohup(stop_signal):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Steps(9)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_signal_in_the_last_step_does_not_unfinish_the_run(stop_signal):
    """A run stopped at its last step would be resumed, and transformers would then train one step too many."""
    run = Steps(2)
    run.step()
    stop_signal()
    control = run.step()
    assert not run.stop.stopped
    assert control.should_evaluate
    run.stop.on_train_end(run.args, run.state, control)
    assert {signal.getsignal(number) for number in interrupts.SIGNALS} == {signal.default_int_handler}


# --- Runs --------------------------------------------------------------------------------------------------------


class Run:
    """A Python command in its own process group, as a terminal starts it, and its output so far."""

    def __init__(self, command, folder, start=warm_processes.Popen, pipe=None, **environment):
        """Start it. `pipe` is a named pipe to write into, whose reader writes the file `path`."""
        self.path = folder / f"output-{time.monotonic_ns()}.txt"
        self.path.touch()
        streams = dict.fromkeys(("stdout", "stderr"), pipe or self.path)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        self.process = start(command, cwd=folder, env=environment, **streams)

    @property
    def output(self):
        return self.path.read_text().replace("\r", "\n")

    def wait_for(self, pattern, seconds=200):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.output):
            assert self.process.poll() is None, self.output[-3000:]
            assert time.monotonic() < end, self.output[-3000:]
            time.sleep(0.02)

    def interrupt(self):
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, status, seconds=300):
        """Wait for the end, assert that the exit status is `status`, and return the output."""
        try:
            assert self.process.wait(seconds) == status, self.output[-5000:]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        assert "Traceback" not in self.output, self.output
        return self.output


def checkpoints(folder):
    return sorted((path.name for path in folder.glob("checkpoint-*")), key=lambda name: int(name.split("-")[1]))


def same_weights(first, second):
    first, second = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def logged(folder, key):
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [entry[key] for entry in history if key in entry]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "task.py").write_text(TASK)
    return folder


@pytest.fixture(scope="module")
def whole(folder):
    """Run a recipe to its end in `<folder>/whole`, and return its output."""
    return Run([*SCRIPT, *SHORT, "--output_dir", "whole"], folder).end(0)


@pytest.fixture(scope="module")
def stopped(folder):
    """Interrupt the same run in `<folder>/stopped`, copy it to `<folder>/left`, and return its output."""
    (folder / "hold").touch()
    run = Run([*SCRIPT, *SHORT, "--output_dir", "stopped"], folder)
    run.wait_for("step +2  reward")
    run.interrupt()
    (folder / "hold").unlink()
    printed = run.end(130)
    shutil.copytree(folder / "stopped", folder / "left")
    return printed


def summary_of(run):
    return json.loads((run / "summary.json").read_text())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--config=arithmetic_cq"], "Did you mean arithmetic_cpu"),
        ([*SHORT[:2], "--reward_funcs", "rewards.py:exact"], "error: reward_funcs: there is no file rewards.py."),
    ],
)
def test_a_mistake_is_one_line(tmp_path, options, message):
    done = warm_processes.run([*SCRIPT, *options], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not names(tmp_path)


def test_a_run_leaves_a_summary_a_model_and_a_log(folder, whole):
    out = folder / "whole"
    summary = summary_of(out)
    assert summary["steps"] == STEPS
    assert list(summary["eval"]) == ["easy", "edge", "hard"]
    for split in summary["eval"].values():
        assert (split["before_step"], split["after_step"]) == (0, STEPS)
        assert 0 <= min(split["before"], split["after"]) <= max(split["before"], split["after"]) <= 1
    assert summary["eval"]["easy"]["after"] > 0
    assert sum(summary["groups"].values()) == pytest.approx(1)
    assert 0 < summary["groups"]["alive"] < 1
    assert summary["counts"]["groups/generated"] > summary["counts"]["groups/trained"]
    assert summary["checkpoints"] == ["whole/checkpoint-5", f"whole/checkpoint-{STEPS}"]
    assert (summary["model"], summary["log"]) == ("whole", "whole/trainer_state.json")
    assert len(logged(out, "groups/alive")) == STEPS

    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    answer = model.generate(**tokenizer("12+34=", return_tensors="pt", return_token_type_ids=False), max_new_tokens=2)
    assert re.fullmatch(r"12\+34=\S+", tokenizer.decode(answer[0]))
    assert not same_weights(out, out / "warm_start")
    assert same_weights(out, out / f"checkpoint-{STEPS}")


def test_a_run_prints_a_line_a_step_and_a_report(folder, whole):
    summary = summary_of(folder / "whole")
    assert len(re.findall(r"step +[1-8]  reward 0\.\d{3}  entropy", whole)) == STEPS
    assert "trl-grpo-plus view" not in whole  # training ends with this hint only if there is no report
    evaluated = re.findall(r"step +(\d+)  eval (\w+): reward (\S+)", whole)
    expected = [("0", split, f"{was['before']:.3f}") for split, was in summary["eval"].items()]
    expected += [(str(STEPS), split, f"{was['after']:.3f}") for split, was in summary["eval"].items()]
    assert evaluated == expected
    for split, was in summary["eval"].items():
        points = 100 * (was["after"] - was["before"])
        line = rf"^{split} +{was['before']:.3f} +{was['after']:.3f} +{re.escape(f'{points:+.1f}')}$"
        assert len(re.findall(line, whole, re.M)) == 1
    assert f"groups sampled: {100 * summary['groups']['alive']:.0f} % alive" in whole
    assert whole.rstrip().endswith("whole/report.html")
    assert summary["page"] == "whole/report.html"
    assert "attempts" in (folder / "whole" / "report.html").read_text()
    splits = {(group[0]["split"], group[0]["step"]) for group in traces.groups(folder / "whole")}
    evaluated = {(f"eval_{split}", step) for split in summary["eval"] for step in (0, STEPS)}
    assert splits == {("train", step) for step in range(1, STEPS + 1)} | evaluated
    for line in [
        "model        whole",
        "checkpoints  checkpoint-5, checkpoint-8",
        "log          whole/trainer_state.json",
    ]:
        assert f"\n{line}\n" in whole
    assert "arning" not in whole


def test_ctrl_c_saves_and_the_printed_command_goes_on_exactly(folder, whole, stopped):
    out = folder / "stopped"
    assert "Finishing this step, then saving." in stopped
    assert "groups sampled" not in stopped, "a report on a run that is not over"
    (name,) = checkpoints(out)
    step = int(name.removeprefix("checkpoint-"))
    assert 2 <= step < STEPS
    assert f"Stopped after step {step}. The checkpoint is stopped/{name}. To resume from it:" in stopped
    assert not same_weights(out / name, folder / "whole")

    command = re.search(r"To resume from it:\n\n  (.+)\n", stopped)[1]
    resumed = Run(shlex.split(command), folder, PYTHONHASHSEED="1").end(0)  # another order of sets
    assert same_weights(out, folder / "whole")
    for key in ["reward", "entropy", "groups/alive", "grad_norm", "tokens/generated"]:
        assert logged(out, key) == logged(folder / "whole", key), key
    ours, theirs = summary_of(out), summary_of(folder / "whole")
    assert (ours["eval"], ours["groups"]) == (theirs["eval"], theirs["groups"])
    assert list(traces.groups(out)) == list(traces.groups(folder / "whole"))
    assert f"step    {step}  reward" not in resumed, "a step done twice"
    for noise in ["arning", "issing", "nexpected", "Moved ", "Warm-up"]:
        assert noise not in resumed


@pytest.mark.full
def test_ctrl_c_saves_although_it_ends_the_reader_of_the_output(folder):
    """In `run | tee log` Ctrl-C ends `tee` too."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    (folder / "hold").touch()
    keep = os.open(pipe, os.O_RDWR)  # until the run has opened it
    run = Run([*SCRIPT, *SHORT, "--output_dir", "unread"], folder, pipe=pipe)
    with open(run.path, "w") as log:
        reader = subprocess.Popen(["cat", pipe], stdout=log)
    try:
        run.wait_for("step +2  reward")
        os.close(keep)
        reader.kill()
        reader.wait()
        run.interrupt()
        (folder / "hold").unlink()
        run.end(130)
    finally:
        reader.kill()
    assert len(checkpoints(folder / "unread")) == 1


def test_a_new_run_moves_the_old_one_aside_and_ctrl_c_twice_stops_at_once(folder, whole):
    shutil.copytree(folder / "whole", folder / "again")
    (folder / "again" / "notes.txt").write_text("my own")
    run = Run([*SCRIPT, *SHORT, "--output_dir", "again"], folder, REWARD_SECONDS="100")
    run.wait_for("step +1  reward")
    run.interrupt()
    run.wait_for("Finishing this step")
    time.sleep(1.2)
    assert run.process.poll() is None
    run.interrupt()
    output = run.end(130, seconds=60)
    assert output.endswith("\nStopped at once. No checkpoint is saved.\n")
    assert "Moved a finished run from again to again/earlier-1. Starting a new run.\n" in output
    assert checkpoints(folder / "again") == []
    assert names(folder / "again") == ["earlier-1", "notes.txt", "rollouts", "warm_start"]
    assert contents(folder / "again" / "earlier-1") == contents(folder / "whole")


@pytest.mark.full
def test_a_recipe_that_is_started_twice_moves_nothing_of_the_run_that_goes_on(folder, monkeypatch):
    (folder / "hold").touch()
    run = Run([*SCRIPT, *SHORT, "--output_dir", "twice"], folder)
    try:
        run.wait_for("step +2  reward")
        before = [path for path in names(folder / "twice") if path != "rollouts"]
        told = f"output_dir: another run writes into {folder}/twice: process {run.process.pid} on "
        second = Run([*SCRIPT, *SHORT, "--output_dir", "twice"], folder).end(2)
        assert f"error: {told}" in second
        assert "Warm-up" not in second
        monkeypatch.chdir(folder)
        with pytest.raises(ConfigError, match=f"^{re.escape(told)}.*$"):  # and nothing else: one line
            refuse([Start("arithmetic_cpu", (*SHORT[2:], "--output_dir", "twice"))])
        assert [path for path in names(folder / "twice") if path != "rollouts"] == before
        assert main(["view", "twice"]) == main(["export", "twice", "--to", "jsonl"]) == 0  # these need no lock
    finally:
        (folder / "hold").unlink()
    run.end(0)
    assert "run.lock" not in names(folder / "twice")


LAUNCHED = """
import os, signal, sys, time
from trl_grpo_plus.launch import launcher_main, launchers, train


def entry():  # a launcher of one process
    if os.fork():
        time.sleep(600)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as an exec does
    print("started", os.getpid(), flush=True)
    while "late" in sys.argv and os.getppid() == int(os.environ[launchers.STARTED_BY].partition("@")[0]):
        time.sleep(0.01)
    sys.argv = ["grpo", "--config", "arithmetic_cpu"]
    os._exit(train.run(trains))


def trains(*parsed):
    print("trains", os.getpid(), flush=True)
    time.sleep(600)


launchers.LAUNCHERS["fork"] = launchers.Launcher("", list, "__main__:entry")
sys.argv.insert(1, "fork")
launcher_main.main()
"""


@pytest.mark.parametrize(("sign", "options"), [("trains", []), ("started", ["late"])], ids=["in it", "before it"])
def test_a_launcher_that_is_killed_leaves_no_process(folder, sign, options):
    """The launcher is killed during training, or while a process that it started is still starting."""
    run = Run([sys.executable, "-c", LAUNCHED, *options], folder)
    run.wait_for(rf"{sign} \d+\n")
    launcher = run.process.pid
    trains = os.pidfd_open(int(re.search(rf"{sign} (\d+)", run.output)[1]))
    os.kill(run.process.pid, signal.SIGKILL)
    assert select.select([trains], [], [], 60)[0] == [trains]  # it has ended
    os.close(trains)
    said = f"error: the launcher, process {launcher}, has ended. This process ends too." in run.end(-signal.SIGKILL)
    assert said == bool(options)


@pytest.mark.full
def test_ctrl_c_in_the_warm_up_leaves_nothing(folder):
    run = Run([*SCRIPT, "--config", "arithmetic_cpu", "--output_dir", "warm"], folder)
    run.wait_for(r"Warm-up.* [1-9]\d*/2000")
    run.interrupt()
    assert run.end(130, seconds=60).endswith("\nStopped at once. No checkpoint is saved.\n")
    assert not (folder / "warm").exists()


def test_a_run_that_is_stopped_at_once_names_its_last_checkpoint(folder, whole):
    code = """
from trl_grpo_plus.launch import train

def main(*parsed):
    raise KeyboardInterrupt

raise SystemExit(train.run(main))
"""
    output = Run([sys.executable, "-c", code, "--config", "arithmetic_cpu", "--output_dir", "whole"], folder).end(130)
    checkpoint = f"whole/checkpoint-{STEPS}"
    assert output.startswith(f"\nStopped at once. The last checkpoint is {checkpoint}. To resume from it:\n\n  ")
    assert output.endswith(f" --resume_from_checkpoint {checkpoint}\n\n")


def test_what_a_killed_warm_up_left_is_removed_by_the_next(tmp_path):
    left = tmp_path / ".warm_start-unfinished-killed"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"cut off")
    tokenizer = arithmetic.make_tokenizer()
    warm = tmp_path / "warm_start"
    warm_start.save_whole(warm, arithmetic.make_model(tokenizer), tokenizer)
    assert names(tmp_path) == ["warm_start"]


@pytest.mark.full
def test_ctrl_c_waits_for_a_step_of_two_processes_that_torch_would_not_wait_for(folder):
    """torch's launcher, when it is interrupted, kills its processes after 30 seconds. A step here takes longer."""
    options = ["--num_processes", "2", *SHORT[2:], "--zero_variance_groups", "keep", "--eval_on_start", "false"]
    options += ["--per_device_train_batch_size", "32", "--output_dir", "long_steps"]
    run = Run([*LAUNCH, *options], folder, REWARD_SECONDS="33")
    run.wait_for("step +1  reward")
    run.interrupt()
    going_on = "trl-grpo-plus run arithmetic_cpu --num_processes 2 .* --resume_from_checkpoint long_steps/checkpoint-2"
    assert re.search(rf"To resume from it:\n\n  {going_on}\n", run.end(130))
    assert checkpoints(folder / "long_steps") == ["checkpoint-2"]


@pytest.mark.full
def test_two_processes_of_torchrun_save_at_ctrl_c_and_go_on(folder):
    options = ["--launcher", "torchrun", "--num_processes", "2", *SHORT[2:], "--eval_on_start", "false"]
    options += ["--per_device_train_batch_size", "32", "--per_device_eval_batch_size", "96"]
    options += ["--output_dir", "torchrun"]
    run = Run([*LAUNCH, *options], folder, REWARD_SECONDS="1")
    run.wait_for("step +1  reward")
    run.interrupt()
    output = run.end(130)
    assert output.startswith("torchrun --standalone --nproc_per_node 2 -m trl_grpo_plus.recipes.grpo --config ")
    command = shlex.split(re.search(r"To resume from it:\n\n  (.+)\n", output)[1])
    assert command[:4] == ["trl-grpo-plus", "run", "arithmetic_cpu", "--launcher"]
    (checkpoint,) = checkpoints(folder / "torchrun")
    output = Run([*LAUNCH[:3], *command[1:]], folder, REWARD_SECONDS="0").end(0)
    assert "groups sampled: " in output
    assert summary_of(folder / "torchrun")["steps"] == STEPS
    states = [path.name for path in (folder / "torchrun" / checkpoint).glob("grpo_plus_state_*")]
    assert sorted(states) == ["grpo_plus_state_0.pt", "grpo_plus_state_1.pt"]


@pytest.mark.full
@pytest.mark.parametrize(("number", "processes"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGUSR1, 2)])
def test_a_signal_to_the_launcher_alone_reaches_its_processes(folder, number, processes):
    """A supervisor or SLURM signals only the launcher. (A terminal signals all processes.)"""
    name = f"supervised-{number.name}"
    options = ["--num_processes", str(processes), "--per_device_train_batch_size", str(64 // processes)]
    options += ["--eval_on_start", "false", "--output_dir", name]
    run = Run([*LAUNCH, *SHORT[2:], *options], folder, REWARD_SECONDS="1")
    run.wait_for("step +1  reward")
    os.kill(run.process.pid, number)
    assert "Stopped after step" in run.end(130)
    assert len(checkpoints(folder / name)) == 1


@pytest.mark.full
def test_a_run_whose_terminal_is_closed_saves(folder):
    options = [*SHORT[2:], "--num_processes", "1", "--eval_on_start", "false", "--output_dir", "closed"]
    code = f"""
import os, pty, signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
run, terminal = pty.fork()
if not run:
    os.execv({LAUNCH[0]!r}, {[*LAUNCH, *options]})
shown = b""
while b"step    1  reward" not in shown:
    shown += os.read(terminal, 100)
os.close(terminal)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]))
"""
    Run([sys.executable, "-c", code], folder, REWARD_SECONDS="1").end(130)
    assert len(checkpoints(folder / "closed")) == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("others", "number", "status"),
    [
        (["--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1:0"], signal.SIGTERM, -signal.SIGTERM),
        (["--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1:0"], signal.SIGINT, -signal.SIGINT),
        (
            ["--node_rank", "0", "--master_addr", "127.0.0.1", "--master_port", "0"],
            signal.SIGTERM,
            128 + signal.SIGTERM,
        ),
    ],
    ids=["rendezvous", "rendezvous, Ctrl-C", "address"],
)
def test_a_signal_ends_a_launcher_that_waits_for_other_nodes(tmp_path, others, number, status):
    """By an address it waits in C++, where Python runs no handler."""
    words = ["torchrun", "--nnodes", "2", "--nproc_per_node", "1", *others, "child.py"]
    code = f"import sys; sys.argv[1:] = {words}; from trl_grpo_plus.launch import launcher_main as main; main.main()"
    run = Run([sys.executable, "-c", f"print('waits', flush=True); {code}"], tmp_path)
    run.wait_for("waits")
    launcher, end = psutil.Process(run.process.pid), time.monotonic() + 60
    while not any(one.status == psutil.CONN_LISTEN for one in launcher.net_connections()):  # for the other node
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(launcher.pid, number)
    run.end(status, seconds=60)


def test_ctrl_c_while_the_launcher_imports_torch_leaves_no_traceback(tmp_path):
    code = """
import builtins, os, signal, sys
from trl_grpo_plus.launch import launcher_main

def interrupted(name, *rest, imports=builtins.__import__):
    if name.startswith("torch.distributed.elastic"):
        os.kill(os.getpid(), signal.SIGINT)
    return imports(name, *rest)

builtins.__import__ = interrupted
sys.argv[1:] = ["torchrun", "--standalone", "--nproc_per_node", "1", "child.py"]
launcher_main.main()
"""
    Run([sys.executable, "-c", code], tmp_path).end(-signal.SIGINT, seconds=60)


@pytest.mark.parametrize("module", ["recipes.grpo", "cli.race.script"])
def test_ctrl_c_while_a_process_of_the_run_imports_trl_leaves_no_traceback(tmp_path, module):
    code = f"""
import builtins, os, runpy, signal

def interrupted(name, *rest, imports=builtins.__import__, **more):
    if name == "trl":
        os.kill(os.getpid(), signal.SIGINT)
    return imports(name, *rest, **more)

builtins.__import__ = interrupted
runpy.run_module("trl_grpo_plus.{module}", run_name="__main__")
"""
    output = Run([sys.executable, "-c", code], tmp_path).end(130, seconds=60)
    assert output == "\nStopped before the run began.\n"


def test_the_script_as_a_module_leaves_ctrl_c_to_its_importer(tmp_path):
    code = "import signal; from trl_grpo_plus.recipes import grpo; print(signal.getsignal(signal.SIGINT))"
    assert "default_int_handler" in Run([sys.executable, "-c", code], tmp_path).end(0, seconds=60)


CHILD = """
import os, signal, sys, time

def stop(number, frame):
    os.write(1, b"told %d\\n" % number)
    sys.exit(130)

signal.signal(signal.SIGINT, stop)
os.write(1, b"ready\\n")
time.sleep(600)
"""
LAUNCHERS_OF_CHILD = {
    "accelerate": ["launch", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no", "--cpu"],
    "torchrun": ["--standalone", "--nproc_per_node", "2"],
}


@pytest.mark.parametrize(
    ("launcher", "number"),
    [("accelerate", signal.SIGUSR1), ("torchrun", signal.SIGTERM), ("torchrun", signal.SIGUSR1)],
)
def test_a_launcher_passes_a_supervisors_signal_on_as_ctrl_c(tmp_path, launcher, number):
    """torch's launcher would pass SIGTERM on unchanged, which ends a process at once, and SIGUSR1 would end itself."""
    (tmp_path / "child.py").write_text(CHILD)
    words = [launcher, *LAUNCHERS_OF_CHILD[launcher]]
    run = Run([sys.executable, "-m", "trl_grpo_plus.launch.launcher_main", *words, "child.py"], tmp_path)
    processes = 2 if launcher == "torchrun" else 1
    run.wait_for("ready\n" * processes)
    os.kill(run.process.pid, number)
    assert run.end(130).count(f"told {int(signal.SIGINT)}") == processes


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("launcher", LAUNCHERS_OF_CHILD)
def test_a_closed_terminal_is_one_ctrl_c_to_a_launcher(tmp_path, launcher, number):
    """The kernel sends SIGHUP, and a shell repeats it. The terminal may also be closed after Ctrl-C."""
    waits = "while not os.path.exists('go'):\n        time.sleep(0.05)\n    sys.exit(130)"
    (tmp_path / "child.py").write_text(CHILD.replace("sys.exit(130)", waits))
    words, processes = [launcher, *LAUNCHERS_OF_CHILD[launcher]], 2 if launcher == "torchrun" else 1
    code = f"""
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
sys.argv[1:] = [*{words}, "child.py"]
from trl_grpo_plus.launch import launcher_main
sys.exit(launcher_main.main())
"""
    run = Run([sys.executable, "-c", code], tmp_path)
    run.wait_for("ready\n" * processes)
    os.kill(run.process.pid, number)
    run.wait_for("(?s)" + "told.*" * processes)
    for _ in range(2):
        os.kill(run.process.pid, signal.SIGHUP)
        time.sleep(0.1)
    (tmp_path / "go").touch()
    assert run.end(130, seconds=60).count(f"told {int(signal.SIGINT)}") == processes


def test_under_nohup_a_closed_terminal_does_not_end_the_run(tmp_path):
    """torch's launcher handles SIGHUP, and would do so in spite of `nohup`."""
    (tmp_path / "child.py").write_text(CHILD)
    words = ["torchrun", *LAUNCHERS_OF_CHILD["torchrun"]]
    code = f"""
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
sys.argv[1:] = [*{words}, "child.py"]
from trl_grpo_plus.launch import launcher_main
sys.exit(launcher_main.main())
"""
    run = Run([sys.executable, "-c", code], tmp_path)
    run.wait_for("ready\n" * 2)
    os.killpg(run.process.pid, signal.SIGHUP)
    time.sleep(1)
    assert run.process.poll() is None, run.output
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.end(130, seconds=60).count(f"told {int(signal.SIGINT)}") == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_launcher_says_what_ended_a_process_and_how_to_go_on(tmp_path, number):
    heeds = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # the tests may run under nohup
    (tmp_path / "child.py").write_text(heeds + CHILD)
    words = ["accelerate", *LAUNCHERS_OF_CHILD["accelerate"]]
    run = Run([sys.executable, "-m", "trl_grpo_plus.launch.launcher_main", *words, "child.py"], tmp_path)
    run.wait_for("ready\n")
    (child,) = psutil.Process(run.process.pid).children()
    child.send_signal(number)
    *_, said = run.end(128 + number, seconds=60).splitlines()
    assert said.startswith(f"error: the signal {number.name} ended a process of this run.")
    assert said.endswith("start the run again with --resume_from_checkpoint auto.")
    assert ("memory ran out" in said) == (number == signal.SIGKILL)


def test_a_second_signal_to_the_launcher_stops_at_once(tmp_path):
    (tmp_path / "child.py").write_text(CHILD.replace("sys.exit(130)", "pass"))
    words = ["torchrun", *LAUNCHERS_OF_CHILD["torchrun"]]
    run = Run([sys.executable, "-m", "trl_grpo_plus.launch.launcher_main", *words, "child.py"], tmp_path)
    run.wait_for("ready\n" * 2)
    os.kill(run.process.pid, signal.SIGTERM)
    run.wait_for(r"(?s)(told 2.*){2}")
    os.kill(run.process.pid, signal.SIGTERM)
    said = "\nStopped at once. To continue, start the run again with --resume_from_checkpoint auto.\n"
    assert run.end(130, seconds=60).endswith(said)


def test_two_processes_end_and_report_once(folder):
    """Two warm processes end and do not hang. The tests above start two processes with real launchers."""
    options = ["--per_device_train_batch_size", "32", "--per_device_eval_batch_size", "96", "--max_steps", "4"]
    options += ["--eval_on_start", "false", "--do_eval", "true", "--output_dir", "pair"]
    done = warm_processes.run_ranks([*SCRIPT, *SHORT, *options], cwd=folder)
    output = (done.stdout + done.stderr).replace("\r", "\n")
    assert done.returncode == 0, output[-5000:]
    assert "Traceback" not in output
    for once in ["groups sampled: ", "summary      pair/summary.json", "step    4  reward"]:
        assert output.count(once) == 1, once
    summary = summary_of(folder / "pair")
    assert summary["steps"] == 4
    assert set(summary["eval"]) == {"easy", "edge", "hard"}
    for split, was in summary["eval"].items():  # only one evaluation, so that nothing is known from before training
        assert (was["before"], was["before_step"], was["after_step"]) == (None, None, 4)
        assert re.search(rf"^{split} +- +{was['after']:.3f} +-$", output, re.M)
    states = [path.name for path in (folder / "pair").glob("checkpoint-4/grpo_plus_state_*")]
    assert sorted(states) == ["grpo_plus_state_0.pt", "grpo_plus_state_1.pt"]


@pytest.mark.full
def test_accelerate_launch_as_in_the_readme(folder, stopped):
    """The folder holds an interrupted run. The new run prints how to resume that one, with the launcher in use."""
    (checkpoint,) = checkpoints(folder / "left")
    accelerate = str(Path(sys.executable).with_name("accelerate"))
    launcher = [accelerate, "launch", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no"]
    launcher += ["--dynamo_backend", "no", *SCRIPT[1:]]
    options = [*SHORT, "--max_steps", "2", "--eval_on_start", "false", "--output_dir", "left"]
    output = Run([*launcher, *options], folder, start=warm_processes.cold).end(0)
    assert output.count("groups sampled: ") == 1
    assert summary_of(folder / "left")["steps"] == 2
    assert "Moved an interrupted run from left to left/earlier-1. Starting a new run." in output
    command = shlex.split(re.search(r"To resume that run instead:\n\n  (.+)\n", output)[1])
    assert command[0] in ("accelerate", accelerate)
    assert command[1:] == [*launcher[1:], *options, "--resume_from_checkpoint", f"left/earlier-1/{checkpoint}"]
    assert (folder / "left" / "earlier-1" / checkpoint / "optimizer.pt").exists()


@pytest.mark.full
def test_the_demo_learns_and_raises_no_alarm(folder):
    """The whole of `make demo` raises no alarm, though nine groups in ten are dead and the entropy ends near 0."""
    output = Run([*SCRIPT, "--config", "arithmetic_cpu", "--output_dir", "demo"], folder).end(0, seconds=600)
    edge = summary_of(folder / "demo")["eval"]["edge"]
    assert edge["after"] > edge["before"] + 0.4
    assert traces.journal(folder / "demo", "alarms") == []
    assert "Alarm" not in output
    alarms = [name for name in traces.journal(folder / "demo", "metrics")[-5] if name.startswith("alarms/")]
    assert len(alarms) == len(ALARMS)
    assert output.rstrip().endswith("demo/report.html")
