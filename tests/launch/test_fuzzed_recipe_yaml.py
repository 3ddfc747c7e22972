"""Whatever a YAML file holds, each value is valid for its key, or is refused with a reason."""

import pytest
import yaml
from adversarial_texts import texts, tried
from hypothesis import given
from hypothesis import strategies as st

from trl_grpo_plus.launch.recipe_yaml import LOOSE, checked, hints_of, read_yaml
from trl_grpo_plus.recipes import grpo
from trl_grpo_plus.utils.validation import fits


EXAMPLES = [60, pytest.param(2000, marks=pytest.mark.full)]

words = st.sampled_from(
    ["yes", "no", "on", "1e-5", "0x1F", "1_000", "12:30:00", "~", "2026-01-01", "{}", "[1]", "nan", "inf", "-", ""]
)
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), words, texts)
atoms = st.one_of(plain, st.dates(), st.binary(max_size=3))
values = st.one_of(atoms, st.lists(atoms, max_size=3), st.dictionaries(st.one_of(words, atoms), atoms, max_size=2))


@pytest.fixture(scope="module")
def parser():
    return grpo.make_parser()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_value_is_right_or_refused(parser, examples):
    hints = hints_of(parser)
    keys = st.one_of(st.sampled_from(sorted(hints)), texts)

    def check(given_values):
        right, wrong = checked(given_values, parser)
        assert right.keys() | wrong.keys() == given_values.keys()
        assert not right.keys() & wrong.keys()
        assert set(right) <= set(hints)
        assert all(fits(value, hints[key]) for key, value in right.items() if key not in LOOSE)
        assert all(key in reason and len(reason) > len(key) for key, reason in wrong.items())

    tried(examples)(given(st.dictionaries(keys, values, max_size=4))(check))()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_text_is_yaml_or_refused(examples):
    def check(text):
        try:
            read_yaml(text)
        except yaml.YAMLError as error:
            assert str(error)  # noqa: PT017

    lines = st.lists(st.one_of(texts, st.builds("{}: {}".format, words, words)), max_size=4).map("\n".join)
    tried(examples)(given(lines)(check))()
