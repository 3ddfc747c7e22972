"""Comparing runs: what is read of each run, and which prompts find room in the page."""

import json

import pytest
import synthetic_traces
import tiny_models

from trl_grpo_plus.cli.main import main
from trl_grpo_plus.view import compare, write_comparison
from trl_grpo_plus.view.run_source import short_paths, source_of
from trl_grpo_plus.view.run_summary import Run, differing, open_runs, shared_folder


EVALUATED = {"eval_easy_runtime": 1.0, "eval_reward": 0.25, "eval_easy_loss": 0.5, "step": 0}


def a_log(folder, entries, **about):
    return Run(
        folder.name,
        synthetic_traces.write_traces(folder, [synthetic_traces.group([0.0, 1.0])], metrics=entries, about=about),
    )


def a_state(folder, step, history):
    folder.mkdir(parents=True)
    text = json.dumps({"global_step": step, "max_steps": 9, "log_history": history})
    (folder / "trainer_state.json").write_text(text)
    return folder


# -- what is read of a run


def test_metrics_of_an_evaluation_bear_its_split(tmp_path):
    other = {"eval_hard_runtime": 1.0, "eval_reward": 0.5, "step": 2}
    run = a_log(tmp_path / "a", [EVALUATED, {"reward": 1, "kl": None, "step": 2, "train_loss": 3.0}, other])
    assert {name: run.series[name] for name in ("eval_easy/reward", "eval_hard/reward", "eval_easy/loss")} == {
        "eval_easy/reward": [[0, 0.25]],
        "eval_hard/reward": [[2, 0.5]],
        "eval_easy/loss": [[0, 0.5]],
    }
    assert run.series["reward"] == [[2, 1.0]]
    assert not {"kl", "train_loss", "eval_reward", "step"} & run.series.keys()


def test_seconds_are_the_time_of_all_steps_between_two_entries(tmp_path):
    logged = [{"step": 2, "step_time": 1.5, "num_tokens": 10}, {"step": 6, "step_time": 0.5, "num_tokens": 40}]
    axes = a_log(tmp_path / "a", [EVALUATED, *logged]).axes
    assert axes == {"seconds": [[0, 0], [2, 3.0], [6, 5.0]], "tokens": [[0, 0], [2, 10.0], [6, 40.0]]}


def test_a_path_in_the_runs_folder_is_shown_from_there_and_a_models_name_is_not(tmp_path):
    named = {
        "beside": "runs/old-llama/warm_start/model",
        "inside": "runs/llama/warm_start/model",
        "model": "meta-llama/Llama-3.2-1B",
        "other": "llama/Llama-2",  # an id: the folder has no such file
    }
    run = a_log(tmp_path / "runs" / "llama", [], **named)
    assert {name: run.options[name] for name in named} == {**named, "inside": "output_dir/warm_start/model"}
    (run.folder / "Llama-2").touch()
    assert a_log(tmp_path / "runs" / "llama", [], **named).options["other"] == "output_dir/Llama-2"


def test_rollouts_of_stock_trl_come_from_a_race(tmp_path):
    run = a_log(tmp_path / "a", [{"step": 2, "reward": 1.0}, {"step": 4, "reward": 1.0}])
    (run.folder / "race_settings.json").write_text(json.dumps({"rollouts": 96, "num_generations": 8, "seed": 3}))
    assert run.axes == {"rollouts": [[0, 0], [2, 192], [4, 384]]}
    assert run.options["num_generations"] == 8
    assert run.options["seed"] == 3
    assert "rollouts" not in run.options


def test_without_a_journal_the_furthest_state_is_read(tmp_path):
    folder = a_state(tmp_path / "a", 4, [{"step": 4, "reward": 0.4}])
    a_state(folder / "checkpoint-9", 9, [{"step": 4, "reward": 0.4}, {"step": 9, "reward": float("nan"), "kl": 0.1}])
    (run,) = open_runs([folder])
    assert run.series == {"reward": [[4, 0.4]], "kl": [[9, 0.1]]}
    assert run.options["max_steps"] == 9
    assert run.outcome["steps"] == 9
    assert run.outcome["alarms"] is None


def test_seeds_of_one_setting_are_known_by_their_options(tmp_path):
    def run(name, **options):
        model = str(tmp_path / name / "warm_start")
        return a_log(tmp_path / name, [], rewards={"accuracy": 1.0}, options=options, model=model)

    one, two, other = run("one", seed=1, beta=0.1), run("two", seed=2, beta=0.1), run("other", seed=1)
    assert one.setting == two.setting != other.setting
    assert differing([[one, two], [other]]) == [["beta", "0.1", "default"], ["seed", "1, 2", "1"]]


def test_trained_runs_that_differ_in_the_seed_alone_share_a_setting(tmp_path):
    for seed in (1, 2):
        tiny_models.trained(tmp_path, tiny_models.digits, seed=seed, max_steps=1, output_dir=tmp_path / f"seed{seed}")
    one, two = open_runs([tmp_path / "seed1", tmp_path / "seed2"])
    assert one.tells_all
    assert one.setting == two.setting
    assert differing([[one], [two]]) == [["seed", "1", "2"]]


def test_runs_without_recorded_options_share_no_setting(tmp_path):
    one, two = (a_log(tmp_path / name, [], num_generations=4) for name in ("one", "two"))
    known = a_log(tmp_path / "known", [], options={"beta": 0.1})
    assert one.setting != two.setting
    assert ["beta", None, "0.1"] in differing([[one], [known]])


# -- what is refused


def test_a_folder_that_cannot_be_compared_is_named(tmp_path):
    run = synthetic_traces.write_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"typo is not a folder\. Give the output_dir"):
        write_comparison([run, tmp_path / "typo"])
    with pytest.raises(ValueError, match=r"empty is no run: it has neither attempts \(rollouts/.*nor a log"):
        write_comparison([run, tmp_path / "empty"])
    with pytest.raises(ValueError, match=r"rollouts is the same run as .*run\. Name each run once"):
        write_comparison([run, run / "rollouts"])
    with pytest.raises(ValueError, match=r"is a folder\. Give the name"):
        write_comparison([run, a_state(tmp_path / "log", 1, [{"step": 1, "reward": 1.0}])], tmp_path)
    with pytest.raises(ValueError, match=r"leaves no room for the curves\. These runs need 0\.\d+ or more"):
        write_comparison([run, tmp_path / "log"], max_mb=0.01)
    assert not list(tmp_path.glob("*.html"))


# -- where the page is written, and what finds room


def test_the_page_is_in_the_folder_that_the_runs_share(tmp_path, capsys):
    runs = [synthetic_traces.write_run(tmp_path / name / "run", seed=seed) for seed, name in enumerate("ab")]
    assert main(["view", *map(str, runs)]) == 0
    told = f"{tmp_path}/compare.html: 2 runs, 24 prompts that two or more of them sampled, "
    assert capsys.readouterr().out.startswith(told)
    assert [run.name for run in open_runs(runs)] == ["a/run", "b/run"]


def test_the_page_is_in_no_run(tmp_path):
    assert shared_folder([tmp_path / "run", tmp_path / "run" / "earlier-1"]) == tmp_path


def a_group(run, step, mean, prompt=0):
    return compare.RunGroup(run, step, prompt, (step, 0, 0, 0), mean)


class Alike:
    """Texts that all have the same size; `pack_ahead` packs one list at a time."""

    def stored(self, group):
        return compare.Stored(at=0, line=0, packed=75, raw=100)

    def pack_ahead(self, lists, room):
        return 1


def test_prompts_that_differ_most_find_room_first_with_their_first_and_last_groups():
    means = {0: (0.0, 0.25), 1: (1.0, 0.0), 2: (0.5, None), 3: (0.5, 0.0)}
    groups = [a_group(run, 0, mean, prompt=p) for p, both in means.items() for run, mean in enumerate(both)]
    groups += [a_group(0, step, 0.5, prompt=1) for step in (-2, -1)]
    prompts = compare._prompts(groups)
    cost = Alike().stored(groups[0]).cost

    def chosen(room):
        return [[(g.run, g.when[0]) for g in kept] for _, kept in compare.choose(prompts, room * cost, Alike())]

    assert [next(g.prompt for g in prompt.ends) for prompt in prompts] == [1, 3, 0, 2]
    assert chosen(5) == [[(0, -2), (0, 0), (1, 0)], [(0, 0), (1, 0)]]
    assert [len(kept) for kept in chosen(9)] == [3, 2, 2, 2]
    assert chosen(10)[0] == [(0, -2), (0, -1), (0, 0), (1, 0)]


def test_the_command_says_what_found_no_room(tmp_path, capsys):
    runs = [
        synthetic_traces.write_run(tmp_path / name, steps=6, length=400, seed=seed) for seed, name in enumerate("ab")
    ]
    assert main(["view", *map(str, runs), "--max-mb", "0.2", "-o", str(tmp_path / "small.html")]) == 0
    assert (tmp_path / "small.html").stat().st_size <= 200_000
    out = capsys.readouterr().out
    assert "prompts did not fit in the page. Raise --max-mb to include them." in out
    assert ", 36 prompts" not in out
    assert ", 0 prompts" not in out


@pytest.mark.parametrize("name", ["rollouts", "completions"])
def test_an_output_dir_may_be_called_like_the_folder_of_attempts_in_it(tmp_path, name):
    run = synthetic_traces.write_run(tmp_path / "mine" / name)
    other = synthetic_traces.write_run(tmp_path / "other")
    assert [run.name for run in open_runs([run, other])] == [name, "other"]
    assert source_of(run).title == name
    assert [open_runs([path, other])[0].folder for path in (run, run / "rollouts")] == [run, run]
    assert source_of(run / "rollouts").title == name


def test_local_paths_are_cut_to_what_tells_them_apart_and_others_are_not():
    whole = ["me/model", "output_dir/checkpoints/last", "s3://a/b/c", "any text/with/a slash"]
    names = ["/data/one/tiny", "outputs/two/tiny", *whole]
    assert list(short_paths(names).values()) == ["one/tiny", "two/tiny", *whole]


def test_what_a_run_does_not_have_has_no_default(tmp_path):
    adapter = {"peft_type": "LORA", "r": 4}
    about = {"rewards": {"accuracy": 1.0, "format": 0.5}, "evaluations": {"eval": 10}, "versions": {"vllm": "0.9"}}
    one = a_log(tmp_path / "one", [], **about, options={"beta": 0.1, "adapter": adapter})
    other = a_log(tmp_path / "other", [], rewards={"accuracy": 1.0}, options={}, versions={}, evaluations={})
    assert {name: value for name, _, value in differing([[one], [other]])} == {
        "adapter.peft_type": "none",
        "adapter.r": "none",
        "beta": "default",
        "evaluations.eval": "none",
        "versions.vllm": "none",
        "weight of format": "none",
    }


def test_copies_of_folders_of_attempts_keep_their_logs(tmp_path):
    for name in ("one", "two"):
        run = synthetic_traces.write_run(tmp_path / "run", steps=3)
        (run / "rollouts").rename(tmp_path / name)
    for run in open_runs([tmp_path / "one", tmp_path / "two"]):
        assert (run.outcome["steps"], run.outcome["alarms"]) == (3, {})
        assert run.about["rewards"]
        assert len(run.series["reward"]) == 3


@pytest.mark.parametrize("name", ["rollouts/train-00000001.jsonl", "rollouts/metrics.jsonl", "rollouts/new.html"])
@pytest.mark.parametrize("several", [False, True])
def test_no_page_is_written_among_a_runs_own_files(tmp_path, capsys, name, several):
    runs = [synthetic_traces.write_run(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["view", *map(str, runs[: 1 + several]), "-o", str(runs[0] / name)]) == 2
    assert "among the run's own files. Give a path outside of it." in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
