"""Tests of the warning that vLLM's context cut attempts off, with a stand-in for the engine."""

from types import SimpleNamespace

import pytest

from trl_grpo_plus.trainer.vllm.engine import warn_of_full_context


END, CONTEXT = 0, 10


def engine(completions, prompts, **options):
    """Make an engine that returns these completions, with the warning."""
    model = SimpleNamespace(model_config=SimpleNamespace(max_model_len=CONTEXT))
    made = SimpleNamespace(
        llm=SimpleNamespace(llm_engine=model),
        generate=lambda *given: (prompts, completions, None, None),
        **{"generation_kwargs": {}, "max_completion_length": 6, **options},
    )
    made.noted = []
    warn_of_full_context(made, {END}, made.noted.append)
    return made


def test_it_warns_once_of_attempts_that_the_context_cut_off(caplog):
    made = engine([[5, 5, 5], [5, 5, 5, 5, 5, 5], [5, END]], [[1] * 7, [1] * 3, [1] * 5])
    for _ in range(2):
        assert made.generate([], None, 1)[1][0] == [5, 5, 5]
    assert made.noted == [1 / 3, 1 / 3]
    (told,) = caplog.messages
    assert "vLLM ended 1 of 3 attempts of this process before the 6 tokens" in told
    assert "its context of 10 tokens. The longest of their prompts has 7." in told


@pytest.mark.parametrize(
    ("completion", "options"),
    [
        ([5, 5, END], {}),  # it ended by itself, just where the context is full
        ([5, 5, 5], {"max_completion_length": 3}),
        ([5, 5, 5], {"generation_kwargs": {"max_tokens": 3}}),
        ([5, 5, 5], {"generation_kwargs": {"max_tokens": None}}),
    ],
)
def test_it_is_silent_where_vllm_did_as_it_was_asked(caplog, completion, options):
    made = engine([completion], [[1] * 7], **options)
    made.generate([], None, 1)
    assert caplog.messages == []
    assert not any(made.noted)
