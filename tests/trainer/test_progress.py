"""Tests of the line that is printed for each log entry."""

import pytest
import tiny_models
from transformers import PrinterCallback, ProgressCallback

from trl_grpo_plus.trainer.progress import SlimPrinter, SlimProgress


def lines(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]


def unscored(completions, **columns):
    return [None] * len(completions)


def test_groups_that_no_reward_scored_are_counted(tmp_path, capsys):
    tiny_models.trained(tmp_path, unscored, max_steps=1)
    (line,) = lines(capsys)
    assert line.endswith("unscored 100 %")


def test_a_step_on_the_batch_of_an_earlier_one_says_so(tmp_path, capsys):
    tiny_models.trained(tmp_path, tiny_models.digits, num_iterations=2, max_steps=4)
    printed = lines(capsys)
    assert ["reward" in line for line in printed] == [True, False, True, False]
    assert [line.endswith("(batch of an earlier step)") for line in printed] == [False, True, False, True]


@pytest.mark.parametrize("kind", [ProgressCallback, PrinterCallback])
@pytest.mark.parametrize(("without_bars", "slim"), [(False, SlimProgress), (True, SlimPrinter)])
def test_a_scripts_own_progress_callback_stays(tmp_path, kind, without_bars, slim):
    own = type("Own", (kind,), {})()
    made = tiny_models.trainer(tmp_path, tiny_models.digits, disable_tqdm=without_bars, extra={"callbacks": [own]})
    shown = [one for one in made.callback_handler.callbacks if isinstance(one, ProgressCallback | PrinterCallback)]
    assert [type(one) for one in shown] == [type(own), slim]
