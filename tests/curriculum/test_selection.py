"""Tests of the shuffled order of prompts: each prompt once per pass, none lost, and the same after a resume."""

import json
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_strategies import tried

from trl_grpo_plus.curriculum.samplers import ShuffleSampler


def any_prompt(index: int) -> bool:
    return True


def resumed(stream: ShuffleSampler, seed: int = 99) -> ShuffleSampler:
    """Return another sampler that goes on where `stream` stands, through a checkpoint's JSON."""
    state = json.loads(json.dumps(stream.state_dict()))
    other = ShuffleSampler(state["num_prompts"], seed)
    other.load_state_dict(state)
    return other


def fresh_at(stream: ShuffleSampler) -> ShuffleSampler:
    """Return a sampler at the start of the pass that `stream` is in."""
    other = ShuffleSampler(stream.state_dict()["num_prompts"], 0)
    other.load_state_dict({**stream.state_dict(), "position": 0, "deferred": []})
    return other


CALLS = st.lists(st.tuples(st.integers(0, 14), st.sets(st.integers(0, 11)), st.integers(1, 3)), max_size=20)


@settings(tried, max_examples=100)
@given(st.integers(0, 12), st.integers(0, 99), CALLS, st.integers(0, 20))
def test_no_row_is_lost_or_repeated_if_rows_are_refused(size, seed, calls, resume_after):
    """The dealt and deferred rows together are the whole passes plus the begun one, also after a resume."""
    stream = ShuffleSampler(size, seed)
    dealt: list[int] = []
    for number, (count, refused, unit) in enumerate(calls):
        asked: Counter[int] = Counter()
        before = stream.state_dict()
        stream = resumed(stream) if number == resume_after else stream
        batch = stream.take(count, lambda i: bool(asked.update([i])) or i not in refused, multiple_of=unit)  # noqa: B023
        assert asked.total() == len(asked)  # no row is asked about twice in a call
        assert len(batch) == len(set(batch)) <= count
        assert len(batch) % unit == 0
        assert not refused & set(batch)
        wanted = size - len(refused & set(range(size)))
        assert len(batch) == min(count, wanted) - min(count, wanted) % unit  # fewer rows only if too few are accepted
        assert count or stream.state_dict() == before
        dealt += batch
    state = stream.state_dict()
    begun = Counter(fresh_at(stream).take(state["position"], any_prompt))
    assert Counter(dealt) + Counter(state["deferred"]) == Counter(dict.fromkeys(range(size), state["pass"])) + begun
    other = resumed(stream)
    assert other.state_dict() == state
    assert [other.take(5, any_prompt) for _ in range(6)] == [stream.take(5, any_prompt) for _ in range(6)]


@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_passes_are_whole_permutations_where_calls_divide_them(count):
    stream = ShuffleSampler(10, seed=4)
    passes = [[i for _ in range(10 // count) for i in stream.take(count, any_prompt)] for _ in range(5)]
    assert all(sorted(each) == list(range(10)) for each in passes)
    assert len({tuple(each) for each in passes}) == 5


def stream_and_order():
    """Return a sampler, and the order of its first pass if nothing is refused."""
    return ShuffleSampler(10, seed=1), ShuffleSampler(10, seed=1).take(10, any_prompt)


def test_deferred_prompts_come_first_and_once():
    stream, order = stream_and_order()
    refused = {order[0], order[2]}
    assert stream.take(3, lambda i: i not in refused) == [order[1], order[3], order[4]]
    assert stream.take(4, any_prompt) == [order[0], order[2], order[5], order[6]]
    assert stream.take(3, any_prompt) == order[7:]


def test_deferred_rows_keep_their_order_if_refused_again():
    stream, order = stream_and_order()
    for _ in range(3):
        assert len(stream.take(2, lambda i: i != order[0])) == 2
    assert stream.take(1, any_prompt) == order[:1]
    stream, order = stream_and_order()
    assert stream.take(1, lambda i: i == order[3]) == [order[3]]
    assert stream.take(1, lambda i: i != order[0]) == [order[1]]
    assert stream.take(3, any_prompt) == [order[0], order[2], order[4]]


@pytest.mark.parametrize("before", range(8))
def test_refusing_everything_ends_and_loses_nothing(before):
    stream = ShuffleSampler(7, seed=2)
    stream.take(before, any_prompt)
    for _ in range(5):
        assert stream.take(3, lambda i: False) == []
    assert len(stream.state_dict()["deferred"]) < 3 * 7
    assert sorted(stream.take(7, any_prompt)) == list(range(7))


@pytest.mark.parametrize("unit", [1, 2, 3, 4])
def test_the_number_dealt_is_a_multiple_and_the_rest_comes_next(unit):
    stream, order = stream_and_order()
    first = stream.take(7, any_prompt, multiple_of=unit)
    assert first == order[: 7 - 7 % unit]
    assert stream.take(10 - len(first), any_prompt) == order[len(first) :]


# -- seeds


@pytest.mark.parametrize("seed", [0, 1, 42, -3, 2**31, 2**40, 10**18])
def test_equal_seeds_equal_streams_whatever_the_global_random_state(seed):
    dealt = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        state, stream = torch.random.get_rng_state(), ShuffleSampler(20, seed)
        dealt.append([stream.take(6, any_prompt) for _ in range(10)])
        assert torch.initial_seed() == global_seed
        assert torch.equal(torch.random.get_rng_state(), state)
    assert dealt[0] == dealt[1]


def test_passes_and_seeds_all_differ():
    streams = [ShuffleSampler(50, seed) for seed in range(30)]
    assert len({tuple(stream.take(50, any_prompt)) for stream in streams for _ in range(30)}) == 900


@pytest.mark.parametrize("seed", [0, 7, 42, 123])
def test_the_order_is_not_that_of_trls_sampler(seed):
    generator, stream = torch.Generator().manual_seed(seed), ShuffleSampler(50, seed)
    theirs = [torch.randperm(50, generator=generator).tolist() for _ in range(3)]
    ours = [stream.take(50, any_prompt) for _ in range(3)]
    # The orders agree in no more places than by chance.
    assert all(sum(a == b for a, b in zip(x, y, strict=True)) < 10 for x in ours for y in theirs)


# -- checkpoints


def test_a_saved_state_does_not_move_with_the_stream():
    stream = ShuffleSampler(6, seed=0)
    stream.take(2, lambda i: i > 1)
    state = stream.state_dict()
    before = json.dumps(state)
    stream.take(4, lambda i: i > 3)
    assert json.dumps(state) == before
    other = ShuffleSampler(6, seed=0)
    other.load_state_dict(state)
    other.take(4, lambda i: i > 3)
    assert json.dumps(state) == before


@pytest.mark.parametrize("now", [4, 6, 0])
def test_another_dataset_size_is_refused_with_both_sizes(now):
    state = ShuffleSampler(5, seed=0).state_dict()
    with pytest.raises(ValueError, match=rf"5 training prompts.*{now}\b"):
        ShuffleSampler(now, seed=0).load_state_dict(state)
