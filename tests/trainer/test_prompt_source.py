"""What a run says whose prompts are dealt or remembered in another way than in the checkpoint that it resumes."""

import re
from functools import cache

import pytest
import tiny_models
from accelerate import PartialState

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.trainer.prompt_source import PromptSource
from trl_grpo_plus.utils.validation import ConfigError


EASY_FIRST = {"name": "by_column", "args": {"column": "level", "order": "easy_first"}}
BASELINE = {"advantage_baseline": "belief", "scale_rewards": "prior"}
MIXED = {"name": "mixture", "args": {"column": "level", "weights": {0: 0.75, 1: 0.25}}}


@cache
def rows():
    return tiny_models.prompts(32).add_column("level", [0, 1] * 16)


def source(folder, **options):
    config = GRPOPlusConfig(output_dir=str(folder), **{**tiny_models.BASE, **options})
    return PromptSource(config, rows(), ["digits"], [1.0], PartialState(), lambda chosen: None)


def resumed(folder, before, now):
    """Load the state of a source with one way of dealing into a source with another way."""
    state = source(folder, **before).state_dict()
    source(folder, **now).load_state_dict({**state, "buffered_inputs": None})


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({}, {"prompt_selection": "belief"}, "The checkpoint holds no beliefs: prompt_selection='belief' starts"),
        ({}, BASELINE, "The checkpoint holds no beliefs: advantage_baseline='belief' starts without"),
        ({"prompt_selection": "belief"}, {}, "dealt by prompt_selection='belief'. This run has 'shuffle': it deals"),
        ({"prompt_selection": MIXED}, {}, f"dealt by prompt_selection={MIXED!r}. This run has 'shuffle': it deals"),
    ],
)
def test_a_run_that_begins_or_ends_to_choose_prompts_says_what_is_lost(tmp_path, caplog, before, now, told):
    resumed(tmp_path, before, now)
    assert caplog.text.count(told) == 1


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("belief", EASY_FIRST),
        (MIXED, EASY_FIRST),
        (MIXED, {**MIXED, "args": {**MIXED["args"], "weights": {0: 1, 1: 1}}}),
    ],
)
def test_a_checkpoint_of_another_sampler_is_refused(tmp_path, before, now):
    told = f"dealt by prompt_selection={before!r}, this run has {now!r}. Resume with the same options"
    with pytest.raises(ConfigError, match=re.escape(told)):
        resumed(tmp_path, {"prompt_selection": before}, {"prompt_selection": now})


@pytest.mark.parametrize("of", [{}, {"prompt_selection": "belief"}, {"prompt_selection": MIXED}])
@pytest.mark.parametrize("groups", ["keep", "drop", "resample"])
def test_the_same_way_of_dealing_is_resumed_without_a_word(tmp_path, caplog, of, groups):
    resumed(tmp_path, of, {**of, "zero_variance_groups": groups})
    assert caplog.text == ""


def test_a_head_that_the_run_lacks_is_named(tmp_path):
    before = {"prompt_selection": "belief", "belief_head": "prompt"}
    with pytest.raises(ConfigError, match="The checkpoint has heads about total, this run about nothing"):
        resumed(tmp_path, before, {"prompt_selection": "belief"})
