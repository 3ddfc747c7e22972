"""Tests of the draw on rank 0: what it says to the other ranks when it fails."""

import pytest

from trl_grpo_plus.curriculum import draw
from trl_grpo_plus.utils.validation import ConfigError


class Asks:
    """A sampler that asks once, then fails with the error, if it has one."""

    def __init__(self, error=None):
        self.error = error

    def take(self, count, accepts, multiple_of, patience, believe):
        believe([4, 5])
        if self.error is not None:
            raise self.error
        return [4]


@pytest.fixture
def said(monkeypatch):
    """Return the list of all that rank 0 broadcasts."""
    sent = []

    def broadcast(objects):
        sent.extend(objects)
        return objects

    monkeypatch.setattr(draw, "broadcast_object_list", broadcast)
    return sent


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), ConfigError("another width")], ids=repr)
def test_an_answer_that_fails_begins_no_other_collective(error, said):
    """The other ranks are in the answer's collectives: a broadcast would leave all ranks waiting for each other."""

    def fails(rows):
        raise error

    with pytest.raises(type(error), match=str(error)):
        draw.Draw(Asks(), fails, collective=True, rank=0)(1, lambda row: True, 1, None)
    assert said == [("asked", [4, 5])]


def test_an_answer_that_fails_ends_a_sampler_that_catches_its_error(said):
    class Catches(Asks):
        def take(self, *args):
            try:
                return super().take(*args)
            except RuntimeError:
                return [4]

    def fails(rows):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        draw.Draw(Catches(), fails, collective=True, rank=0)(1, lambda row: True, 1, None)
    assert said == [("asked", [4, 5])]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [(RuntimeError("broken"), "failed", "RuntimeError: broken"), (ConfigError("no level"), "refused", "no level")],
)
@pytest.mark.parametrize("collective", [True, False])
def test_a_sampler_that_fails_tells_the_other_ranks(error, kind, text, collective, said):
    with pytest.raises(type(error), match=str(error)):
        draw.Draw(Asks(error), lambda rows: None, collective, rank=0)(1, lambda row: True, 1, None)
    assert said == [*([("asked", [4, 5])] if collective else []), (kind, text)]


def test_an_answer_that_needs_no_other_rank_and_fails_tells_the_others(said):
    def fails(rows):
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        draw.Draw(Asks(), fails, collective=False, rank=0)(1, lambda row: True, 1, None)
    assert said == [("failed", "RuntimeError: broken")]
