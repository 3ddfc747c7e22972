"""Tests of the turns of tools that all ranks take together; tests/process has those on several processes."""

import pytest

from trl_grpo_plus.rollouts import tool_turns


def test_a_rank_whose_turn_fails_begins_no_other_collective_call(monkeypatch):
    """The other ranks may be in the collective calls of that turn. Another call would hide the error behind a wait."""
    gathers = []
    monkeypatch.setattr(tool_turns, "gather_made", lambda make: gathers.append(make) or make())

    def fails(prompts):
        raise ConnectionError("the server is gone")

    with pytest.raises(ConnectionError), tool_turns.in_step(fails, idle=lambda: None) as generate:
        generate([[1]])
    assert len(gathers) == 1
