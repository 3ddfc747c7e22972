"""What TRL's documentation promises, in each mode: the table of compatibility_matrix.py, each cell of it run."""

import math
import re
from pathlib import Path

import pytest
import tiny_models
import trl
from compatibility_matrix import ALL, ELSEWHERE, IDLE, MODES, PAGE, REFUSED, page
from compatibility_runs import Models, changes_nothing, run
from packaging.version import Version


pytestmark = pytest.mark.long


TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("models"))


def is_run_each_time(key, mode):
    """What samples anew, which drops too, and of the other modes one for each feature in turn."""
    others = [other for other in MODES if other != "resample"]
    return mode == "resample" or mode == others[list(ALL).index(key) % len(others)]


@pytest.mark.parametrize(("key", "mode"), tiny_models.covering(is_run_each_time, ALL, MODES))
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


def test_what_other_tests_prove_is_there():
    proofs = [proof for rows in ELSEWHERE.values() for row in rows for proof in row.proofs.values()]
    assert len(proofs) > 20
    for proof in proofs:
        file, name = proof.split("::")
        assert f"def {name}(" in (TESTS / file).read_text(), proof


def test_each_row_says_why_the_rest_was_not_run():
    for row in (row for rows in ELSEWHERE.values() for row in rows):
        assert row.proofs.keys() <= MODES.keys()
        assert row.others


def test_no_exception_is_of_a_cell_that_is_gone():
    assert {*REFUSED, *IDLE} <= {(key, mode) for key in ALL for mode in MODES}


def test_the_page_is_of_this_table():
    assert PAGE.read_text() == page(), "make what-works writes it anew"
