"""Tests that any entry of `reward_funcs` and any result of a reward is understood, or refused with a message."""

import math
import re

import numpy as np
import pytest
import torch
from adversarial_texts import texts, tried
from hypothesis import given
from hypothesis import strategies as st

from trl_grpo_plus.registry import RewardSpec, find, get_reward, resolve
from trl_grpo_plus.rewards import LIBRARY
from trl_grpo_plus.scoring import STATUSES, Outcome, Step, outcomes_of
from trl_grpo_plus.utils.validation import ConfigError


EXAMPLES = [60, pytest.param(1000, marks=pytest.mark.full)]
LIGHT = sorted(set(LIBRARY) - {"python_tests", "reasoning_gym", "math_answer"})
OPTIONS = ("args", "weight", "timeout", "on_timeout", "on_error", "monitor", "label")

numbers = st.one_of(st.floats(), st.integers(-9, 9), st.sampled_from([0, 1, 0.5, -1.0, 10**400]))
words = st.sampled_from(["zero", "abstain", "raise", "answer", "all"])
atoms = st.one_of(st.none(), st.booleans(), numbers, texts, words)
arguments = sorted({one for name in LIGHT for one in find(name).arguments} | {"column", "columns"})
argument_names = st.one_of(st.sampled_from(arguments), texts)
any_args = st.dictionaries(argument_names, st.one_of(atoms, st.dictionaries(texts, atoms, max_size=2)), max_size=3)
# No paths, because a path would be imported.
names = st.one_of(st.sampled_from(LIGHT), texts.map(lambda text: re.sub("[:./]", "", text)))
option = st.one_of(atoms, any_args, st.lists(atoms, max_size=2))
specs = st.one_of(
    names,
    atoms,
    st.builds(
        lambda name, options: {"name": name, **options}, names, st.dictionaries(st.sampled_from(OPTIONS), option)
    ),
    st.builds(lambda name, args: {"name": name, "args": args}, st.sampled_from(LIGHT), any_args),
    st.dictionaries(st.one_of(st.sampled_from([*OPTIONS, "name"]), texts), option, max_size=4),
)


def or_refused(call, *args, **kwargs):
    """Return the result of the call, or its refusal, which must have a message."""
    try:
        return call(*args, **kwargs)
    except ConfigError as refusal:
        assert len(str(refusal)) > 20  # noqa: PT017
        return refusal


@pytest.mark.parametrize("examples", EXAMPLES)
def test_an_entry_is_understood_or_refused(examples):
    seen = set()

    def check(entries, weights):
        given_weights = or_refused(resolve, entries, weights)
        if isinstance(given_weights, ConfigError):
            seen.add("refused")
            return
        seen.add("understood")
        functions, of_each = given_weights
        assert len(functions) == len(entries)
        assert of_each in (None, weights) or len(of_each) == len(entries)  # TRL counts weights that are passed on
        for entry in entries:
            spec = RewardSpec.of(entry)
            assert spec.weight is None or math.isfinite(spec.weight)

    weights = st.one_of(st.none(), st.lists(st.floats(-2, 2), max_size=2))
    tried(examples)(given(st.lists(specs, min_size=1, max_size=2), weights)(check))()
    assert seen == {"refused", "understood"}


@pytest.mark.parametrize("examples", EXAMPLES)
def test_arguments_are_understood_or_refused(examples):
    """A reward that accepts its arguments scores its own example, or names a column that it lacks."""

    def check(name, args):
        reward = or_refused(get_reward, name, **args)
        if isinstance(reward, ConfigError):
            return
        for example in find(name).examples[:1]:
            columns = {column: [value] for column, value in example.columns.items()}
            try:
                (outcome,) = reward.score([example.completion], **columns)
            except TypeError as error:
                assert "needs the column" in str(error)  # noqa: PT017
            else:
                assert outcome.status in STATUSES
                assert outcome.score is None or math.isfinite(outcome.score)

    given_args = any_args.map(lambda args: {key: value for key, value in args.items() if key != "name"})
    tried(examples)(given(st.sampled_from(LIGHT), given_args)(check))()


class Odd:
    def __len__(self):
        raise TypeError("no length")


scores = st.one_of(
    atoms,
    st.lists(atoms, max_size=2),
    st.builds(Step, st.integers(-2, 9), numbers),
    st.lists(st.builds(Step, st.integers(-2, 9), numbers), max_size=3),
    st.floats(width=32).map(np.float32),
    st.floats(width=32).map(torch.tensor),
    st.builds(Odd),
    st.just(object),
)
returned = st.one_of(st.lists(scores, max_size=4), scores, st.lists(st.floats(width=32), max_size=4).map(torch.tensor))


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_result_is_a_finite_number_or_none_or_is_refused(examples):
    def check(values):
        try:
            outcomes = outcomes_of(values, ["abc", "", "abcdefgh"])
        except ValueError as error:
            assert len(str(error)) > 20  # noqa: PT017
            return
        assert len(outcomes) == 3
        for outcome in outcomes:
            assert isinstance(outcome, Outcome)
            assert outcome.score is None or (isinstance(outcome.score, float) and abs(outcome.score) < 3.41e38)

    tried(examples)(given(returned)(check))()
