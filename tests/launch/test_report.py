"""What a run reports at its end about attempts that were cut off, and about groups that taught nothing."""

from types import SimpleNamespace

import pytest
import tiny_models

from trl_grpo_plus.launch.previous_run import stamps
from trl_grpo_plus.launch.report import report, summarise
from trl_grpo_plus.rollouts.verdicts import ADVICE, VERDICTS
from trl_grpo_plus.trainer.progress import DEAD, TRUNCATED, WITHOUT_DEAD, closing_words


# A run of 8 groups of 4, in micro-batches of 8, which kept its dead groups.
KEPT = {**WITHOUT_DEAD, "zero_variance_groups": "keep", "loss_type": "dapo", "scale_rewards": "group"}
KEPT |= {"num_generations": 4, "steps_per_generation": 4, "generation_batch_size": 32, "world_size": 1}


def ended(folder, *entries, dead=VERDICTS[1:], **options):
    """Return the summary of a run with these log entries, each (share of attempts cut off, shares of verdicts)."""
    history = [
        {"step": 10 * i, TRUNCATED: cut_off, **{f"groups/{key}": groups.get(key, 0.0) for key in VERDICTS}}
        for i, (cut_off, groups) in enumerate(entries, 1)
    ]
    for entry in history:
        entry[DEAD] = 1 - entry["groups/alive"]
    options = {**KEPT, "zero_variance_groups": "drop", **options}
    args = SimpleNamespace(output_dir=str(folder), max_completion_length=16, dead=frozenset(dead), **options)
    state = SimpleNamespace(log_history=history, global_step=10 * len(history))
    return summarise(SimpleNamespace(args=args, state=state), [])


def lines_of(folder, *entries):
    return report(ended(folder, *entries)).splitlines()


ALIVE = {"alive": 0.5, "all_bad": 0.5}
RAISE = "Raise this limit (a rollout_func has its own), or ask for shorter answers in the prompt."
LEARNT = "Little was learned in step"


def test_folders_and_links_of_the_user_are_no_checkpoints_and_no_errors(tmp_path):
    for name in ("checkpoint-10", "checkpoint-5", "checkpoint-5-best"):
        (tmp_path / name).mkdir()
    (tmp_path / ".#notes").symlink_to("user@host.1234")  # as Emacs locks a file
    assert ended(tmp_path, (0.05, ALIVE))["checkpoints"] == [f"{tmp_path}/checkpoint-{step}" for step in (5, 10)]
    assert {"checkpoint-5", ".#notes"} <= stamps(str(tmp_path)).keys()


def test_a_run_with_live_groups_ends_with_its_files(tmp_path):
    lines = lines_of(tmp_path, *[(0.05, ALIVE)] * 8)
    assert lines[-1].startswith("summary ")
    assert "cut off" not in "\n".join(lines)


@pytest.mark.parametrize("verdict", VERDICTS[1:])
def test_a_run_without_live_groups_at_its_end_says_so_last(tmp_path, verdict):
    lines = lines_of(tmp_path, *[(0.0, ALIVE)] * 6, *[(0.0, {"alive": 0.04, verdict: 0.96})] * 2)
    assert lines[-3] == f"{LEARNT}s 61 to 80: the sampled groups were 96 % {verdict}."
    assert lines[-2] == f"{verdict}: {ADVICE[verdict]}"
    assert lines[-1].startswith('More: docs/faq.md, "Nothing is learnt"')


def test_groups_that_teach_under_the_options_are_not_dead(tmp_path):
    """With a belief as baseline, solved groups teach. So does each verdict that `filtered_verdicts` leaves out."""
    solved = (0.0, {"alive": 0.03, "all_good": 0.97})
    assert LEARNT not in report(ended(tmp_path, solved, dead=["all_bad", "unscored"]))
    failed = (0.0, {"all_good": 0.03, "all_bad": 0.97})
    assert f"{LEARNT}s 1 to 10: the sampled groups were 97 % all_bad." in report(
        ended(tmp_path, failed, dead=["all_bad"])
    )


def test_only_the_end_of_a_run_counts(tmp_path):
    dead = (0.0, {"all_bad": 1.0})
    assert LEARNT not in "".join(lines_of(tmp_path, *[dead] * 6, (0.0, {"alive": 0.11, "all_bad": 0.89}), dead))
    assert f"{LEARNT}s 1 to 10: " in "".join(lines_of(tmp_path, dead))
    assert LEARNT not in "".join(lines_of(tmp_path))


def test_each_of_several_verdicts_is_explained(tmp_path):
    lines = lines_of(tmp_path, (0.0, {"all_bad": 0.6, "all_good": 0.3, "tied": 0.1}))
    assert lines[-4] == f"{LEARNT}s 1 to 10: the sampled groups were 60 % all_bad, 30 % all_good, 10 % tied."
    assert [line.partition(":")[0] for line in lines[-3:]] == ["all_bad", "all_good", "More"]


HINT = "dead groups: 50 % of those sampled. They taught nothing, and took their share of the training phase."


@pytest.mark.parametrize(
    ("options", "groups", "hinted"),
    [
        (KEPT, ALIVE, True),
        (KEPT, {"alive": 0.8, "all_bad": 0.2}, False),
        ({**KEPT, "beta": 0.1}, ALIVE, False),  # dead groups add to the KL term
        ({**KEPT, "entropy_coef": 0.1}, ALIVE, False),
        ({**KEPT, "loss_type": "bnpo"}, ALIVE, False),
        ({**KEPT, "filter_metric": "accuracy"}, ALIVE, False),  # other rewards may differ in dead groups
        ({**KEPT, "advantage_estimator": "zvp"}, ALIVE, False),
        ({**KEPT, "advantage_baseline": "belief"}, ALIVE, False),  # groups of equal rewards can teach
        ({**KEPT, "steps_per_generation": 32}, ALIVE, False),  # no group can leave
        ({**KEPT, "zero_variance_groups": "skip"}, ALIVE, False),
    ],
)
def test_a_run_that_kept_many_dead_groups_says_how_to_leave_them_out(tmp_path, options, groups, hinted):
    said = report(ended(tmp_path, *[(0.0, groups)] * 4, **options))
    assert (HINT in said) == hinted
    assert ("zero_variance_groups='skip'" in said) == hinted


@pytest.mark.parametrize(
    ("shares", "line"),
    [
        ([0.09, 0.09], None),
        ([0.7, 0.9], f"80 % of attempts, 90 % at the end. {RAISE}"),
        ([0.5, 0.01], "26 % of attempts, 1 % at the end"),  # no advice: the run learned it
        (
            [0.0, 0.0, 0.0, 0.2],
            f"5 % of attempts, 20 % at the end. {RAISE}",
        ),
    ],
    ids=str,
)
def test_attempts_that_are_cut_off(tmp_path, shares, line):
    lines = [said for said in lines_of(tmp_path, *[(share, ALIVE) for share in shares]) if said.startswith("cut off")]
    assert lines == ([] if line is None else [f"cut off (max_completion_length=16): {line}"])


def test_attempts_that_ended_in_vllms_full_context_are_not_blamed_on_one_limit(tmp_path):
    entry = {"step": 1, "completions/clipped_ratio": 0.5, "sampler/full_context": 0.25}
    args = SimpleNamespace(max_completion_length=16, dead=frozenset(), zero_variance_groups="drop")
    state = SimpleNamespace(global_step=1)
    state.log_history = [entry, {**entry, "sampler/full_context": 0.0}]
    assert closing_words(state, args, traced=False) == [
        "cut off (max_completion_length=16, or vLLM's context, vllm_max_model_length): 50 % of attempts, 50 % at the "
        "end. Raise both limits, ask for shorter answers in the prompt, or leave out the longest prompts."
    ]


def test_the_log_of_a_real_run_has_what_the_report_and_the_trainer_read(tmp_path, capsys):
    """A random model of this size rarely ends within six tokens, and this reward is always 0."""
    trained = tiny_models.trained(tmp_path, lambda completions, **kwargs: [0.0] * len(completions), max_steps=4)
    printed = capsys.readouterr().out
    for said in (report(summarise(trained, [])), printed):
        assert f"\n{LEARNT} 4: the sampled groups were 100 % all_bad.\nall_bad: Every attempt failed: " in said
        assert "\ncut off (max_completion_length=6): " in said
    assert "\nAttempts: " in printed
    trained = tiny_models.trained(tmp_path, max_steps=4, max_completion_length=40)
    assert "cut off" not in report(summarise(trained, [])) + capsys.readouterr().out


def test_an_error_of_the_page_is_told_by_its_kind(tmp_path, monkeypatch, capsys):
    """The text of a KeyError alone is a name in quotes."""

    def broken(folder, page):
        return {}["verdict"]

    monkeypatch.setattr("trl_grpo_plus.launch.report.write_page", broken)
    assert ended(tmp_path, (0.0, ALIVE))["page"] is None
    assert "The page of attempts was not written: KeyError: 'verdict' (" in capsys.readouterr().out


def test_a_run_without_traces_says_so_in_a_sentence(tmp_path, capsys):
    ended(tmp_path, (0.0, ALIVE))
    assert f"not written: {tmp_path} has no traces in it" in capsys.readouterr().out


def test_a_first_evaluation_after_some_steps_is_told(tmp_path):
    summary = ended(tmp_path, (0.0, ALIVE))
    summary["eval"] = {
        name: {"before": 0.25, "before_step": first, "after": 0.5, "after_step": 4}
        for name, first in (("a", 0), ("b", 2))
    }
    assert report(summary).splitlines()[2:4] == [
        "a               0.250    0.500    +25.0",
        "b               0.250    0.500    +25.0  (the first evaluation was at step 2)",
    ]
