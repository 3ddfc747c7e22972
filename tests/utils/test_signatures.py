"""Tests of what a function's signature says of its parameters."""

from trl_grpo_plus.utils.signatures import has_parameter


def test_only_a_parameter_that_takes_one_value_counts():
    def reward(completions, /, answer, *args, tool_mask=None, **kwargs): ...

    names = ("completions", "answer", "args", "tool_mask", "kwargs", "other")
    assert [name for name in names if has_parameter(reward, name)] == ["completions", "answer", "tool_mask"]
