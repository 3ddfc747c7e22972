"""Whatever a model writes, each reward of the library gives a number in its range or `None`, and never fails."""

import dataclasses
import math

import pytest
from adversarial_texts import texts, tried
from hypothesis import given
from hypothesis import strategies as st

from trl_grpo_plus.registry import Reward, find, get_reward
from trl_grpo_plus.rewards import LIBRARY


RANGES = {
    "cosine_length": (-1.0, 1.0),
    "overlong": (-1.0, 0.0),
    "repetition": (-1.0, 0.0),
    "steps_check": (-math.inf, math.inf),
}
SLOWEST, SLOW = ("python_tests", "reasoning_gym"), ("math_answer",)
# One completion for each row: a text, or a conversation with that text.
completions = st.lists(
    st.one_of(texts, texts.map(lambda text: [{"role": "assistant", "content": text}])), min_size=6, max_size=6
)
token_ids = st.lists(st.lists(st.integers(0, 3), max_size=120), min_size=6, max_size=6)


def check(name, written, ids):
    """Score the completions with each kind of row in the reward's own examples, and check the scores."""
    examples = {str((one.args, sorted(one.columns))): one for one in find(name).examples}
    for example in examples.values():
        reward = get_reward(name, **example.args)
        if reward.timeout is None:
            reward = Reward(dataclasses.replace(find(name), timeout=None), example.args)
        columns = {column: [value] * len(written) for column, value in example.columns.items()}
        if "completion_ids" in columns:
            columns["completion_ids"] = ids
        outcomes = reward.score(written, **columns)
        low, high = RANGES.get(name, (0.0, 1.0))
        for text, outcome in zip(written, outcomes, strict=True):
            assert outcome.status in ("ok", "abstain", "too_long"), (text, outcome)
            assert outcome.score is None or type(outcome.score) is float, text
            assert outcome.score is None or (math.isfinite(outcome.score) and low <= outcome.score <= high), text


def tries(name, examples):
    tried(examples)(given(completions, token_ids)(lambda written, ids: check(name, written, ids)))()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name in SLOWEST)) for name in LIBRARY]
)
def test_any_text_is_scored_within_its_range(name):
    tries(name, 8 if name in SLOW else 25)


@pytest.mark.full
@pytest.mark.parametrize("name", LIBRARY)
def test_many_texts_are_scored_within_their_range(name):
    tries(name, 25 if name in SLOWEST else 100 if name in SLOW else 400)
