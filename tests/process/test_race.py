"""A race of stock TRL's trainer and this one: the settings of both, the standings, and one race, interrupted once."""

import builtins
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_models
import warm_processes
from transformers import TrainerState
from trl import GRPOConfig

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.cli.main import main
from trl_grpo_plus.cli.race import evaluations, processes
from trl_grpo_plus.cli.race.evaluations import Evaluation, Standing, standing
from trl_grpo_plus.cli.race.live import standing_of
from trl_grpo_plus.cli.race.plan import PLUS, STOCK, command, plan
from trl_grpo_plus.cli.race.script import reset, stock_trainer
from trl_grpo_plus.launch import Start, launchers
from trl_grpo_plus.utils.validation import ConfigError
from trl_grpo_plus.view.run_summary import differing, open_runs


# The warm-up takes a second. Steps are slow enough to be interrupted, and step 6 waits while the file `hold` exists.
TASK = """
import functools
import os
import time

from trl_grpo_plus.recipes import arithmetic
from trl_grpo_plus.rewards.exact_answer import exact_answer

prepare = functools.partial(arithmetic.prepare, warm_steps=60)


def reward(completions, answer, trainer_state, **kwargs):
    while trainer_state.global_step == 5 and os.path.exists("hold"):
        time.sleep(0.02)
    time.sleep(float(os.environ.get("REWARD_SECONDS", 0)) if trainer_state.global_step else 0)
    return exact_answer(completions, answer)
"""
STEPS = 8
RACE = [
    *("race", "arithmetic_cpu", "--prepare", "task.py:prepare", "--reward_funcs", "task.py:reward"),
    *("--max_steps", str(STEPS), "--evaluations", "4", "--baseline_generations", "4", "--output_dir", "both"),
    *("--per_device_train_batch_size", "32", "--per_device_eval_batch_size", "96", "--num_generations_eval", "1"),
    *("--num_generations", "2", "--advantage_baseline", "belief", "--scale_rewards", "prior"),
    *("--zero_variance_groups", "drop", "--prompt_selection", "belief"),
]


# -- what both are given


def option(lane, name):
    """Return the last value of an option, which wins, from a lane's command line."""
    words = lane.start.options
    return next((words[at + 1] for at in reversed(range(len(words))) if words[at] == f"--{name}"), None)


def test_a_slash_after_the_folder_is_no_part_of_its_name():
    assert plan(Start("arithmetic_cpu", ("--output_dir", "out/x/"))).lanes[0].folder.parent == Path("out/x_race")


def test_both_get_the_command_line_and_stock_trl_a_group_size_of_its_own():
    given = ("--seed", "5", "--num_generations", "4", "--logging_steps", "7", "--output_dir", "out", "--eval_steps=3")
    stock, plus = plan(Start("arithmetic_cpu", given), 2).lanes
    assert (stock.name, plus.name) == (STOCK, PLUS)
    for lane in (stock, plus):
        assert (option(lane, "seed"), option(lane, "logging_steps")) == ("5", "1")
        assert lane.start.options.index("--eval_steps=3") > lane.start.options.index("--eval_steps")
        assert option(lane, "num_generations_eval") == "4"
        assert option(lane, "output_dir") == str(lane.folder)
    assert (option(stock, "num_generations"), option(plus, "num_generations")) == ("2", "4")
    assert [lane.folder for lane in (stock, plus)] == [Path("out_race", STOCK), Path("out_race", PLUS)]


def test_a_race_without_evaluations_is_refused():
    with pytest.raises(ConfigError, match="A race compares held-out rewards, and --eval_strategy no measures none"):
        plan(Start("arithmetic_cpu", ("--eval_strategy", "no")))


@pytest.mark.parametrize(("steps", "every"), [(150, 15), (70, 7), (400, 40), (3, 1)])
def test_ten_evaluations_are_spread_over_the_run(steps, every):
    lane = plan(Start("arithmetic_cpu")).lanes[0]
    config = GRPOConfig(
        "out", use_cpu=True, bf16=False, eval_strategy="steps", eval_steps=float(option(lane, "eval_steps"))
    )
    config.max_steps = steps
    state = TrainerState()
    state.compute_steps(config, steps)
    assert state.eval_steps == every


@pytest.mark.parametrize(
    ("how", "cores", "together"),
    [
        ({}, 2, True),
        ({}, 1, False),
        ({"options": ("--use_cpu", "false"), "num_gpus": 1}, 8, False),
        ({"num_processes": 2}, 8, False),
        ({"accelerate_config": "multi_gpu"}, 8, False),
    ],
)
def test_they_run_side_by_side_where_nothing_is_shared(monkeypatch, how, cores, together):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    assert plan(Start("arithmetic_cpu", **how)).together == together


def test_runs_that_take_turns_have_all_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(launchers, "cores", lambda: 8)
    race = plan(Start("arithmetic_cpu", num_processes=2))
    assert [command(race, lane, "")[1]["OMP_NUM_THREADS"] for lane in race.lanes] == ["4", "4"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["arithmetic_cpi"], "Did you mean arithmetic_cpu"),
        (["arithmetic_cpu", "--lerning_rate", "1"], "Did you mean --learning_rate"),
        (["arithmetic_cpu", "--resume_from_checkpoint=true"], "Use --resume to continue both"),
        (["arithmetic_cpu", "--baseline_generations", "1"], "--baseline_generations=1 must be"),
        (["arithmetic_cpu", "--evaluations", "1"], "--evaluations=1 must be"),
        (["arithmetic_cpu", "--baseline_generations", "7"], "(7)"),
        (["arithmetic_cpu", "--resume"], "there is no race in outputs/arithmetic_cpu_race"),
    ],
)
def test_what_cannot_be_raced_is_refused(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["race", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_stock_trl_has_nothing_of_this_package_but_the_workers_of_its_rewards():
    own = {"advantage_baseline": "belief", "scale_rewards": "prior", "prompt_selection": "belief", "reward_workers": 3}
    args = GRPOPlusConfig("out", use_cpu=True, bf16=False, kl_target=0.1, beta=0.1, learning_rate=0.5, **own)
    reset(args)
    assert args.changed_options == {"reward_workers": 3}
    assert (args.scale_rewards, args.learning_rate, args.beta) == ("group", 0.5, 0.1)
    args = GRPOPlusConfig("out", use_cpu=True, bf16=False, scale_rewards="batch")
    reset(args)
    assert args.scale_rewards == "batch"


# -- how they stand


SETTINGS = {"rollouts": 16.0, "prompts": 4, "splits": 2, "num_generations": 4, "max_steps": 4}
SETTINGS |= {"trainer": "T", "learning_rate": 0.1, "seed": 1, "options": {}}


def evaluation(step, easy, hard):
    return [
        {"step": step, f"eval_{split}_runtime": 9.0, "eval_reward": at}
        for split, at in (("easy", easy), ("hard", hard))
    ]


def test_evaluations_of_a_journal_have_the_rollouts_and_seconds_until_then():
    steps = [{"step": step, "step_time": 0.5} for step in (1, 2)]
    entries = [*evaluation(0, 0.5, 0.1), *steps, *evaluation(2, 0.6, 0.3), {"step": 4, "step_time": 0.25}]
    run = standing("stock", SETTINGS, [*entries, evaluation(4, 1, 1)[0]])  # the evaluation lacks its second split
    assert (run.step, run.rollouts, run.seconds) == (4, 64.0, 1.5)
    assert run.evaluations == (
        Evaluation(0, 0.0, 0.0, {"easy": 0.5, "hard": 0.1}),
        Evaluation(2, 32.0, 1.0, {"easy": 0.6, "hard": 0.3}),
    )


def test_groups_that_were_sampled_anew_are_rollouts_too():
    entries = [{"step": step, "step_time": 1.0, "groups/generated": count} for step, count in ((1, 4), (2, 12))]
    assert standing("plus", SETTINGS, [*entries, *evaluation(2, 1, 1)]).evaluations[0].rollouts == 64.0


def curve(name, *rewards, every=16.0, seconds=2.0, **settings):
    seen = tuple(Evaluation(n, n * every, n * seconds, {"easy": 0.9, "edge": at}) for n, at in enumerate(rewards))
    last = len(rewards) - 1
    return Standing(name, {**SETTINGS, **settings}, last, last * every, last * seconds, seen)


STOCK_RUN = curve("stock", 0.1, 0.2, 0.4, 0.5, 0.6)


def test_the_other_runs_final_reward_counts_as_reached_at_two_evaluations_in_a_row_or_the_last():
    for rewards, after in [
        ((0.1, 0.7, 0.6, 0.6, 0.9), "after 16 rollouts and 2.0 s. stock took 64 rollouts and 8.0 s."),
        ((0.1, 0.7, 0.5, 0.6, 0.9), "after 48 rollouts and 6.0 s. stock took 64 rollouts"),
        ((0.1, 0.7, 0.5, 0.5, 0.9), "after 64 rollouts and 8.0 s. stock took 64 rollouts"),
        ((0.1, 0.7, 0.5, 0.5, 0.5), "does not reach stock's final reward (0.600)"),
    ]:
        assert after in evaluations.caught_up(STOCK_RUN, curve("plus", *rewards), "edge")


def test_the_table_compares_at_equal_rollouts_and_says_the_settings():
    plus = curve("plus", 0.1, 0.8, 0.9, every=8.0, options={"advantage_baseline": "belief"})
    text = evaluations.table([STOCK_RUN, plus], "edge").splitlines()
    rows = [line.split() for line in text[2:5]]
    assert rows[0] == ["edge", "0", "16", "32", "48", "64", "seconds"]
    assert rows[1] == ["stock", "0.100", "0.200", "0.400", "0.500", "0.600", "8.0"]
    assert rows[2] == ["plus", "0.100", "0.900", "-", "-", "-", "4.0"]
    assert "Final reward of easy: stock 0.900, plus 0.900" in text
    assert text[-1].endswith("4 prompts x num_generations 4 per batch, 4 steps, learning_rate 0.1, seed 1, "
                             "advantage_baseline belief")  # fmt: skip
    between = evaluations.table([curve("stock", 0.0, 1.0, every=64.0), plus], "edge")
    assert between.splitlines()[3].split()[1:6] == ["0.000", "0.250", "0.500", "0.750", "1.000"]


def test_a_run_that_did_not_start_is_in_the_table_too():
    runs = [STOCK_RUN, Standing("plus")]
    assert "plus does not reach" in evaluations.table(runs, "edge")
    assert "plus: did not start" in evaluations.table(runs, "edge")
    assert evaluations.lines(runs)[2].split() == ["plus", "starting", "0", "0.0", "-", "-"]
    assert evaluations.lines(runs)[1].split() == ["stock", "4/4", "64", "8.0", "0.900", "0.600"]
    assert len({len(line) for line in evaluations.lines(runs)}) == 1


def test_the_split_that_moved_is_shown():
    assert evaluations.moved_most([STOCK_RUN, Standing("plus")]) == "edge"
    assert evaluations.moved_most([Standing("stock")]) is None


def test_the_picture(tmp_path, monkeypatch):
    target = tmp_path / "race.png"
    assert evaluations.plot([STOCK_RUN, Standing("plus")], "edge", target) == str(target)
    assert target.read_bytes()[:4] == b"\x89PNG"
    imported = builtins.__import__

    def without(name, *rest, **options):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return imported(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert (
        evaluations.plot([STOCK_RUN], "edge", tmp_path / "other.png")
        == "not drawn. Install matplotlib first: pip install 'trl-grpo-plus[race]'"
    )


# -- the processes


def forked(command, environment, log):
    """Start a run as `processes.start` does, but in a warm process and without accelerate's launcher."""
    environment["OMP_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
    return warm_processes.Popen(
        [sys.executable, *command[command.index("-m") :]], env=environment, stdout=log, stderr=log
    )


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """Run a race, interrupt it and resume it. Return its folder and the outputs of both commands."""
    folder = tmp_path_factory.mktemp("race")
    (folder / "task.py").write_text(TASK)
    interrupted = []

    class Interrupting(processes.Live):
        def show(self):
            super().show()
            if not interrupted and all(len(standing_of(lane).evaluations) > 1 for lane in self._race.lanes):
                interrupted.append(True)
                (folder / "hold").unlink()
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(processes, "start", forked)
        patch.setattr(processes, "Live", Interrupting)
        (folder / "hold").touch()
        patch.setenv("REWARD_SECONDS", "0.15")
        outputs = []
        for words, status, seconds in ((RACE, 130, "0.15"), ([*RACE, "--resume"], 0, "0")):
            patch.setenv("REWARD_SECONDS", seconds)
            with open(folder / "printed", "w+") as file:
                patch.setattr(sys, "stdout", file)
                assert main(words) == status, [log.read_text()[-3000:] for log in (folder / "both_race").glob("*.log")]
                file.seek(0)
                outputs.append(file.read())
    return folder / "both_race", *outputs


def test_ctrl_c_leaves_what_was_measured_and_says_how_to_go_on(raced):
    folder, interrupted, _ = raced
    assert "trl_grpo_plus reaches" in interrupted or "trl_grpo_plus does not reach" in interrupted
    *_, command = interrupted.split()
    assert command == "--resume"
    assert "trl-grpo-plus race arithmetic_cpu --prepare task.py:prepare" in interrupted
    assert not list(folder.glob("earlier-*"))


def test_a_race_ends_with_evaluations_of_both(raced):
    """The step of the Ctrl-C is evaluated too, if an evaluation is due after it."""
    folder, interrupted, printed = raced
    stock, plus = json.loads((folder / "race.json").read_text())
    for run, size, trainer in ((stock, 4, "GRPOTrainer"), (plus, 2, "GRPOPlusTrainer")):
        assert [evaluation["step"] for evaluation in run["evaluations"]] == list(range(0, STEPS + 1, 2))
        assert [evaluation["rollouts"] for evaluation in run["evaluations"]] == [
            32.0 * evaluation["step"] for evaluation in run["evaluations"]
        ]
        seconds = [evaluation["seconds"] for evaluation in run["evaluations"]]
        assert seconds[0] == 0
        assert seconds == sorted(set(seconds))
        assert all(set(evaluation["rewards"]) == {"easy", "edge", "hard"} for evaluation in run["evaluations"])
        settings = run["settings"]
        assert (settings["num_generations"], settings["prompts"], settings["max_steps"]) == (size, 32 // size, STEPS)
        assert settings["trainer"].startswith(f"{trainer} (TRL ")
    assert stock["settings"]["options"] == {}
    assert plus["settings"]["options"]["prompt_selection"] == "belief"
    assert f"picture  {folder.name}/race.png" in printed
    assert not list(folder.rglob("earlier-*")), "a run began anew"
    assert (folder / "race.png").stat().st_size > 10_000
    assert "advantage_baseline belief" in printed
    lines = [
        line.split()[:4] for line in (interrupted + printed).splitlines() if " seconds " in line and "step" in line
    ]
    for name in ("stock", "trl_grpo_plus"):
        steps = [int(words[words.index("step") + 1]) for words in lines if words[0] == name]
        assert steps == list(range(0, STEPS + 1, 2)), "a line a look, each once"


def test_both_start_from_one_model_and_train_it_in_their_own_ways(raced):
    folder, *_ = raced
    weights = {
        name: [(folder / lane / name / "model.safetensors").read_bytes() for lane in (STOCK, PLUS)]
        for name in ("warm_start", ".")
    }
    assert weights["warm_start"][0] == weights["warm_start"][1]
    assert weights["."][0] != weights["."][1]


def test_the_comparison_knows_the_options_of_both(raced):
    folder, *_ = raced
    runs = open_runs([folder / STOCK, folder / PLUS])
    assert [run.tells_all for run in runs] == [True, True]
    assert {name: cells for name, *cells in differing([[run] for run in runs])} == {
        "trainer": [run.race["trainer"] for run in runs],
        "num_generations": ["4", "2"],
        "zero_variance_groups": ["default", "drop"],
        "advantage_baseline": ["default", "belief"],
        "scale_rewards": ["default", "prior"],
        "prompt_selection": ["default", "belief"],
    }
    assert [run.keeps_attempts for run in runs] == [False, True]


FAILS = """
import pathlib, time
while not pathlib.Path("ready").exists():
    time.sleep(0.01)
print("the reason")
raise SystemExit(3)
"""
STOPS = """
import pathlib, time
try:
    pathlib.Path("ready").touch()
    time.sleep(100)
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def test_a_run_that_fails_ends_the_other_and_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    codes = {STOCK: FAILS, PLUS: STOPS}

    def start(command, environment, log):
        with open(log, "w") as file:
            code = codes[environment["TRL_GRPO_PLUS_RACER"]]
            return subprocess.Popen([sys.executable, "-c", code], stdout=file, stderr=file, start_new_session=True)

    monkeypatch.setattr(processes, "start", start)
    race = replace(plan(Start("arithmetic_cpu", ("--output_dir", "out"))), together=True)
    assert processes.run(race, "again") == 1
    out, err = capsys.readouterr()
    assert "error: stock TRL ended with status 3" in err
    assert "the reason" in err
    assert "trl_grpo_plus ended" not in err, "it was not asked, but killed"
    assert "No evaluation has finished yet." in out
    assert "To continue" not in out
    assert processes.run(replace(race, together=False), "again") == 1  # a new race in the same folder
    assert not Path("out_race", f"{PLUS}.log").exists(), "the second was started after the first had failed"
    assert sorted(path.name for path in Path("out_race", "earlier-1").iterdir()) == [f"{STOCK}.log", f"{PLUS}.log"]


@pytest.mark.parametrize("together", [True, False])
def test_ctrl_c_while_a_run_is_being_started_ends_the_race(tmp_path, monkeypatch, capsys, together):
    started = []

    def start(command, environment, log):
        started.append(log)
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "start", start)
    race = plan(Start("arithmetic_cpu", ("--output_dir", str(tmp_path / "both"))))
    assert processes.run(replace(race, together=together), "again") == 130
    assert len(started) == 1  # the other run is not started after it
    assert "Interrupted. To continue:\n\n  again" in capsys.readouterr().out


def test_a_run_with_a_checkpoint_that_may_be_cut_off_resumes_or_begins_anew(tmp_path, monkeypatch):
    """`true` would be an error if no checkpoint is whole."""
    monkeypatch.chdir(tmp_path)
    race = plan(Start("arithmetic_cpu", ()))
    (race.lanes[0].folder / "checkpoint-5").mkdir(parents=True)
    first, second = (" ".join(command(race, lane, "")[0]) for lane in race.lanes)
    assert first.endswith("--resume_from_checkpoint auto")
    assert "resume_from_checkpoint" not in second


def test_a_race_under_nohup_goes_on_when_the_terminal_is_closed():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with processes._ended_like_ctrl_c():
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


CLOSED = """
import os, pty, signal, time
from trl_grpo_plus.cli.race import processes
from trl_grpo_plus.utils.terminal import outlive_reader

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
race, terminal = pty.fork()
if not race:
    outlive_reader()  # as a race does
    with processes._ended_like_ctrl_c():
        try:
            print("running", flush=True)
            while True:
                time.sleep(0.05)  # a signal just before a long sleep would wait for its end
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            print("saving", flush=True)
            os._exit(7)
os.read(terminal, 100)
os.close(terminal)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(race, 0)[1]))
"""


def test_a_race_whose_terminal_is_closed_saves(tmp_path):
    """The kernel sends SIGHUP, and the shell sends it again."""
    done = warm_processes.run([sys.executable, "-c", CLOSED], cwd=tmp_path)
    assert done.returncode == 7, done.stdout + done.stderr


def test_stock_trl_gets_a_reward_that_takes_only_what_it_names(tmp_path):
    def named(completions, number):
        return [float(place % 2) for place in range(len(number))]

    args = GRPOPlusConfig(**{**tiny_models.BASE, "output_dir": str(tmp_path / "run"), "max_steps": 1})
    model = {"model": tiny_models.model_path(tmp_path), "processing_class": tiny_models.tokenizer()}
    trainer = stock_trainer(args, [named], **model, train_dataset=tiny_models.prompts(30))
    trainer.train()
    assert tiny_models.logged(trainer, "reward") == [0.5]
