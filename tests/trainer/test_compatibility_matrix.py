"""Tests of TRL's documented features in each mode: every cell of the table in compatibility_matrix.py is run."""

import math
import re
import shutil
from pathlib import Path

import pytest
import tiny_models
import trl
from compatibility_matrix import ALL, DEAD_GROUPS_TEACH, ELSEWHERE, IDLE, MODES, PAGE, REFUSED, page
from compatibility_runs import Mode, Models, changes_nothing, run
from packaging.version import Version
from slow_cases import covering, one_in


pytestmark = pytest.mark.long


TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("models"))


def is_run_each_time(key, mode):
    """Return whether `make test` runs this cell.

    It runs "resample", which drops groups too, for every second feature, and one other mode for each of the rest.
    """
    number, others = list(ALL).index(key), [other for other in MODES if other != "resample"]
    return mode == (others[number // 2 % len(others)] if number % 2 else "resample")


@pytest.mark.parametrize(("key", "mode"), covering(is_run_each_time, ALL, MODES))
def test_promise(models, tmp_path, key, mode):
    refused = REFUSED.get((key, mode))
    if key == "images" and mode in ("drop", "resample") and Version(trl.__version__) < Version("1.11"):
        refused = "with images needs TRL 1.11 or later"
    if refused:
        with pytest.raises(ValueError, match=re.escape(refused)):
            run(models, ALL[key], MODES[mode], tmp_path / "run")
        return
    done = run(models, ALL[key], MODES[mode], tmp_path / "run")
    losses = tiny_models.losses(done.trainer)
    assert len(losses) == done.trainer.args.max_steps
    assert all(map(math.isfinite, losses))
    assert not tiny_models.same_weights(done.before, done.after)
    MODES[mode].check(done)
    (changes_nothing if (key, mode) in IDLE else ALL[key].check)(done)
    if mode == "skip" and key != "steps_per_generation":  # there chance deals rows to steps, and may deal alike
        kept = done.keeping()
        gap = max((value - kept[name]).abs().max() for name, value in done.after.items())
        assert (gap > (1e-2 if key == "head" else 1e-6)) == (key in DEAD_GROUPS_TEACH)  # the head's model is bfloat16


# Their policy is a function that draws from a random state of its own, which no checkpoint holds.
SCRIPTED = {"tools", "async_tools", "environments"}


@pytest.mark.parametrize("key", one_in(9, [key for key in ALL if key not in SCRIPTED]))
def test_a_resumed_run_with_the_feature_equals_one_that_never_stopped(models, tmp_path, key):
    saving = Mode("", {"save_strategy": "steps", "save_steps": 1}, lambda run: None)
    whole = run(models, ALL[key], saving, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    resumed = run(models, ALL[key], saving, tmp_path / "run", resume=True)
    assert resumed.trainer.state.global_step == 2
    assert tiny_models.same_weights(resumed.after, whole.after)
    assert tiny_models.losses(resumed.trainer) == tiny_models.losses(whole.trainer)


def test_the_tests_named_as_proofs_exist():
    proofs = [proof for rows in ELSEWHERE.values() for row in rows for proof in row.proofs.values()]
    assert len(proofs) > 20
    for proof in proofs:
        file, name = proof.split("::")
        assert f"def {name}(" in (TESTS / file).read_text(), proof


def test_each_row_gives_a_reason_for_the_modes_not_run():
    for row in (row for rows in ELSEWHERE.values() for row in rows):
        assert row.proofs.keys() <= MODES.keys()
        assert row.others


def test_every_exception_names_a_cell_of_the_table():
    assert {*REFUSED, *IDLE} <= {(key, mode) for key in ALL for mode in MODES}


def test_the_page_matches_the_table():
    assert PAGE.read_text() == page(), "make what-works writes it anew"
