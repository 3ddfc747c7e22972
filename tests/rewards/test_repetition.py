"""The reward `repetition`: repeated n-grams of tokens, compared with TRL's reward and with a plain count."""

import random

import numpy as np
import pytest
import torch
from time_limit import ends
from trl.rewards import get_repetition_penalty_reward

from trl_grpo_plus.registry import get_reward


def score(*ids, **args):
    return get_reward("repetition", **args)(["text"] * len(ids), completion_ids=list(ids))


def counted(ids, ngram):
    windows = [tuple(ids[i : i + ngram]) for i in range(len(ids) - ngram + 1)]
    return -(1 - len(set(windows)) / len(windows)) if windows else 0.0


@pytest.mark.parametrize(
    ("ids", "ngram", "expected"),
    [
        pytest.param([], 2, 0.0, id="no token"),
        pytest.param([5], 2, 0.0, id="shorter than an n-gram"),
        pytest.param([5, 5], 2, 0.0, id="one n-gram"),
        pytest.param([5, 5, 5], 2, -0.5, id="the same twice"),
        pytest.param([5, 5, 5, 5, 5], 2, -0.75, id="one of four is distinct"),
        pytest.param([1, 2, 3, 4], 2, 0.0, id="none twice"),
        pytest.param([1, 2, 1, 2], 2, -1 / 3, id="12, 21, 12"),
        pytest.param([1, 2, 1, 2], 3, 0.0, id="121, 212"),
        pytest.param([1, 2, 3, 1, 2, 3, 1, 2, 3], 3, -4 / 7, id="a loop of three"),
        pytest.param([1, 1, 2], 1, -1 / 3, id="single tokens"),
        pytest.param([1, 2, 3, 4, 5, 1, 2, 3, 4, 6], 5, 0.0, id="four alike are not five"),
        pytest.param([1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5], 5, -1 / 7, id="five alike"),
        pytest.param([0, 10, 1, 0, 101, 0], 2, 0.0, id="digits that join alike"),
        pytest.param([-1, 2**40, -1, 2**40], 2, -1 / 3, id="any integers"),
    ],
)
def test_the_share_of_repeated_ngrams(ids, ngram, expected):
    assert score(ids, ngram=ngram) == [pytest.approx(expected)]


@pytest.mark.parametrize("ngram", [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 20, 31, 40, 100])
def test_it_is_what_trl_gives_and_what_a_plain_count_gives(ngram):
    rng = random.Random(ngram)
    batch = [[rng.randrange(vocabulary) for _ in range(rng.randrange(130))] for vocabulary in (1, 2, 3, 9) * 20]
    batch += [(loop * 130)[: rng.randrange(130)] for loop in ([1, 2, 3], list(range(19)), list(range(60)))]
    scores = score(*batch, ngram=ngram)
    assert scores == pytest.approx(get_repetition_penalty_reward(ngram, -1.0)(completion_ids=batch))
    assert scores == pytest.approx([counted(ids, ngram) for ids in batch])
    assert {type(value) for value in scores} == {float}


@pytest.mark.parametrize(
    "made", [torch.tensor, np.array, tuple, lambda ids: list(torch.tensor(ids)), lambda ids: list(np.array(ids))]
)
def test_tokens_in_tensors_and_arrays_count_by_their_value(made):
    loop, none = made([5, 5, 5, 5, 5]), made([1, 2, 3, 4])
    for ngram, expected in ((1, [-0.8, 0.0]), (2, [-0.75, 0.0]), (3, [pytest.approx(-2 / 3), 0.0])):
        assert score(loop, none, ngram=ngram) == expected


def test_the_penalty_scales():
    ids = [5, 5, 5, 5, 5]
    assert score(ids, ngram=2, max_penalty=-0.2) == [pytest.approx(-0.15)]
    assert score(ids, ngram=2, max_penalty=0) == [0.0]


def test_by_default_loops_are_punished_and_common_phrases_are_not():
    phrase = [7, 8, 9]
    text = [token for i in range(200) for token in (*phrase, 100 + i)]
    loop = list(range(50)) * 20
    assert score(text, loop) == [0.0, pytest.approx(-(1 - 50 / 981))]
    assert score(text, ngram=3)[0] < -0.2


@pytest.mark.parametrize("completion", ["", "重复重复重复", "\ud800", [{"role": "assistant", "content": None}], []])
def test_the_text_does_not_matter(completion):
    assert get_reward("repetition", ngram=2)([completion], completion_ids=[[5, 5, 5]]) == [-0.5]


@pytest.mark.parametrize("ngram", [1, 20, 5000])
@pytest.mark.parametrize("ids", [[7] * 100_000, list(range(100_000)), [1, 2] * 50_000], ids=["one", "all", "two"])
def test_a_long_completion_takes_no_time(ids, ngram):
    with ends():
        assert -1.0 <= score(ids, ngram=ngram)[0] <= 0.0
