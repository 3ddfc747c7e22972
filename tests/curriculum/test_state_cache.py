"""Tests of the cache of prompt states: when prompts are read, what is kept, and prompts without a state."""

import io
import math
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from test_belief_store import CHOICE, PAIRS, remembering

from trl_grpo_plus.curriculum import prompt_states, state_cache
from trl_grpo_plus.curriculum.state_cache import FIRST, FRESH, StateCache
from trl_grpo_plus.trainer.prompt_source import affordable_by
from trl_grpo_plus.utils.validation import ConfigError


class Policy:
    """A policy with random states, which change with each reading. It records the rows that it is asked to read."""

    def __init__(self, width=4):
        self.asked, self.width = [], width

    def __call__(self, rows):
        self.asked.append(rows)
        generator = torch.Generator().manual_seed(len(self.asked))
        return torch.randn(len(rows), self.width, generator=generator)


def knowing(affordable=FIRST, policy=None):
    policy = policy or Policy()
    known = StateCache(policy, seed=0)
    known.affordable = float(affordable)
    return known, policy


def steps(known, count, affordable=0.0):
    for _ in range(count):
        known.end_step([], affordable)


def test_a_state_that_is_fresh_is_used_again():
    known, policy = knowing(math.inf)
    known.read_due([3, 1, 3])
    before = known.of([1, 3])
    steps(known, FRESH - 1, math.inf)
    known.read_due([3, 1])
    assert policy.asked == [[3, 1]]
    assert torch.equal(known.of([1, 3]), before)


def test_missing_states_are_read_first_then_the_oldest():
    known, policy = knowing(math.inf)
    known.read_due([5])
    steps(known, 1, math.inf)
    known.read_due([4])
    steps(known, FRESH)
    known.affordable = 3.0
    before = known.of([4, 5])
    known.read_due([4, 5, 6, 7])
    assert policy.asked == [[5], [4], [6, 7, 5]]
    assert torch.equal(known.of([4]), before[:1])
    assert not torch.equal(known.of([5]), before[1:])
    assert known.of([8]).isnan().all()


def test_readings_stay_within_the_budget_of_sampled_tokens():
    known, policy = knowing()
    known.read_due(range(100))
    assert len(policy.asked[-1]) == FIRST
    for _ in range(4):  # fractions of a prompt are kept for the next step
        known.end_step([], 1.5)
        known.read_due(range(100))
    assert sum(map(len, policy.asked)) == FIRST + 6
    steps(known, 5, affordable=2.0)  # an unused budget does not add up without bound
    known.read_due(range(100), share=1 / 2)
    assert len(policy.asked[-1]) == 2
    known.read_due(range(100))
    assert len(policy.asked[-1]) == 2
    known.read_due(range(100))
    assert len(policy.asked) == 7
    known.end_step(range(20), 0.0)
    assert known.metrics() == {"beliefs/head_read": 4.0, "beliefs/head_known": 18 / 20}


def test_the_cache_keeps_the_rows_read_last(monkeypatch):
    monkeypatch.setattr(state_cache, "MOST_ROWS", 4)
    known, _ = knowing(math.inf)
    known.read_due([0, 1, 2])
    steps(known, FRESH, affordable=math.inf)
    known.read_due([0])
    known.read_due([3, 4])
    assert [row for row in range(5) if row in known] == [0, 2, 3, 4]


def test_a_row_of_a_wide_model_takes_half_a_kibibyte():
    known, _ = knowing(64, Policy(width=2000))
    known.read_due(range(64))
    kept = known.state_dict()["states"]
    assert kept.nbytes == 64 * 512
    narrow, _ = knowing(64, Policy(width=200))
    narrow.read_due(range(64))
    assert narrow.state_dict()["states"].nbytes == 64 * 200 * 2


@pytest.mark.parametrize("width", [300, 2000])
def test_kept_states_have_the_distances_of_the_states(width):
    """Distances between kept states stay right if dimensions lie far from 0 or differ in size."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(64, width, generator=generator, dtype=torch.float64)
    far = plain * torch.logspace(-3, 3, width, dtype=torch.float64) + torch.linspace(-3e4, 3e4, width)
    known, _ = knowing(64, lambda rows: far[rows])
    known.read_due(range(64))
    kept = known.of(range(64))
    apart, true = torch.pdist(kept), torch.pdist((plain - plain.mean(dim=0)) / plain.std(dim=0, correction=0))
    torch.testing.assert_close(apart / apart.mean(), true / true.mean(), rtol=0.2, atol=0)


def test_a_resumed_cache_goes_on_the_same():
    known, _ = knowing(20, Policy(width=600))
    for first in (0, 3, 6):
        known.read_due(range(first, first + 4))
        known.end_step([], 2.5)
    file = io.BytesIO()
    torch.save(known.state_dict(), file)
    file.seek(0)
    resumed = StateCache(Policy(width=600), seed=1)
    resumed.read_due([0])  # with the projection of its own seed
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.affordable == known.affordable != FIRST
    for one in (known, resumed):
        one._read = Policy(width=600)
        steps(one, FRESH, affordable=2.5)
        one.read_due([1, 9, 0, 11, 12])
    assert resumed._read.asked == known._read.asked == [[11, 12, 1, 0, 9]]
    assert torch.equal(resumed.of(range(13)).nan_to_num(7), known.of(range(13)).nan_to_num(7))
    fresh = StateCache(Policy(), seed=0)
    fresh.load_state_dict(StateCache(Policy(), seed=0).state_dict())
    assert fresh.of([0]).shape == (1, 0)


def test_another_model_is_refused():
    known, _ = knowing()
    known.read_due([0, 1])
    known._read = Policy(width=5)
    with pytest.raises(ConfigError, match=r"have 5 dimensions, those read before had 4.*same model"):
        known.read_due([2])


# -- in the belief store


def head_that_knows(tmp_path, **options):
    """Return a store with a head, one without, and the list of readings.

    The head predicts rewards from states. It has read rows below 400 and no others.
    """
    sides = torch.linspace(-1, 1, 600).unsqueeze(1) * torch.tensor([[1.0, -0.5]])
    asked = []

    def read(rows):
        asked.append(rows)
        return sides[rows]

    memory, without = (remembering(tmp_path, states=of, belief_key=None, **options) for of in (read, None))
    for rows in torch.randperm(400, generator=torch.Generator().manual_seed(0)).split(16):
        rewards = (0.5 + 0.5 * sides[rows, :1]).unsqueeze(-1).expand(-1, 2, 1)
        for one in (memory, without):
            one.observe(rows.tolist(), rewards, 16)
    return memory, without, asked


def test_a_row_that_was_not_read_is_believed_as_without_a_head(tmp_path):
    memory, without, asked = head_that_knows(tmp_path, belief_head="prompt")
    memory._cache.affordable = 0.0
    read = sum(map(len, asked))
    ((belief, skill), (plain, plain_skill)) = (
        memory.candidate_beliefs([1, 500, 399, 501]),
        without.candidate_beliefs([1, 500, 399, 501]),
    )
    for column in ("mean", "variance", "count"):
        values, others = getattr(belief, column), getattr(plain, column)
        assert torch.equal(values[[1, 3]], others[[1, 3]])
        assert not torch.equal(values[[0, 2]], others[[0, 2]])
    assert skill >= memory.metrics()["beliefs/head_skill"] > 0.8 > plain_skill
    assert sum(map(len, asked)) == read


def test_candidates_get_half_the_budget_and_sampled_rows_the_rest(tmp_path):
    memory, _, asked = head_that_knows(tmp_path, belief_head="prompt")
    memory._cache.affordable = 6.0
    memory.candidate_beliefs([500, 501, 502, 503, 504])
    memory.believed([505, 506])  # this call is for the traces and reads nothing
    memory.read_states([503, 504, 502])
    memory.credited([507, 508])
    assert asked[-3:] == [[500, 501, 502], [503, 504], [507]]


# -- in training


def test_the_budget_is_a_share_of_the_sampled_tokens():
    attempts = [SimpleNamespace(prompt_ids=[0] * length) for length in (10, 10, 2000, 20)]
    batch = SimpleNamespace(rounds=[SimpleNamespace(attempts=attempts)], num_tokens=960)
    accelerator = SimpleNamespace(device="cpu", gather=lambda counts: torch.cat([counts, counts]))
    assert affordable_by(batch, 1 / 8, accelerator) == pytest.approx(1 / 8 * 2 * 3000 / ((1024 + 40) / 4))


@pytest.fixture
def forwards(monkeypatch):
    """Return a list that gets the number of prompts in each forward pass."""
    counts, read = [], prompt_states._states
    monkeypatch.setattr(
        prompt_states, "_states", lambda model, ids, device: counts.append(len(ids)) or read(model, ids, device)
    )
    return counts


@pytest.mark.parametrize("selection", ["belief", "shuffle"])
def test_a_step_reads_a_few_prompts_of_its_pool(tmp_path, forwards, selection):
    """The pool has 32 prompts, or 4 without a choice of prompts. A step samples 8 attempts of at most 6 + 6 tokens.
    An eighth of these tokens may be read."""
    options = {**CHOICE, **PAIRS, "prompt_selection": selection, "belief_head": "prompt", "max_steps": 12}
    trained = tiny_models.trained(tmp_path, tiny_models.digits, **options, data=tiny_models.prompts(90))
    read = tiny_models.logged(trained, "beliefs/head_read")
    assert sum(read) == sum(forwards) > FIRST
    assert sum(forwards) <= FIRST + 12 * 8 / 8 * (6 + 6) / 6
    assert max(read[1:]) <= 2 * 8 / 8 * (6 + 6) / 6 + 1
    assert 0 < tiny_models.logged(trained, "beliefs/head_known")[-1] <= 1


def test_without_a_share_the_whole_pool_is_read_at_each_step(tmp_path, forwards):
    options = {**CHOICE, **PAIRS, "belief_head": "prompt", "belief_head_share": None, "max_steps": 3}
    trained = tiny_models.trained(tmp_path, tiny_models.digits, **options, data=tiny_models.prompts(90))
    pools = tiny_models.logged(trained, "selection/pool")
    assert tiny_models.logged(trained, "beliefs/head_read") == pools == [32.0] * 3
    assert tiny_models.logged(trained, "beliefs/head_known") == [1.0] * 3


def test_a_state_that_is_not_finite_does_not_affect_others():
    values = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    values[3, 1] = math.inf
    known, _ = knowing(math.inf, lambda rows: values[rows])
    known.read_due([3])
    assert 3 not in known
    known.read_due(range(8))
    known.read_due(range(8, 50))
    assert known.of([row for row in range(50) if row != 3]).isfinite().all()


def test_a_resume_with_another_seed_keeps_the_projection():
    known, _ = knowing(math.inf, lambda rows: torch.ones(len(rows), 600) * torch.tensor(rows)[:, None])
    known.read_due([1, 2, 3])
    resumed = StateCache(lambda rows: torch.ones(len(rows), 600) * torch.tensor(rows)[:, None], seed=1)
    resumed.load_state_dict(known.state_dict())
    before = resumed.of([3])
    assert before.abs().max() > 0
    resumed.affordable = math.inf
    steps(resumed, FRESH, math.inf)
    resumed.read_due([3])
    assert torch.equal(resumed.of([3]), before)


def test_a_resume_with_another_share_uses_its_budget():
    everything = StateCache(Policy(), seed=0, everything=True)
    everything.read_due(range(20))
    steps(everything, 1, math.inf)
    assert not everything.state_dict()["rows"].numel()
    few = StateCache(Policy(), seed=0)
    few.load_state_dict(everything.state_dict())
    assert few.affordable == FIRST
    everything.load_state_dict(few.state_dict())
    assert everything.affordable == math.inf


def test_the_first_reading_may_be_of_one_row():
    known, _ = knowing(math.inf, lambda rows: torch.tensor([[3.0, -50.0], [3.5, -20.0], [float("inf"), 0.0]])[rows])
    known.read_due([0])
    known.read_due([1, 2])
    assert known.of([0, 1, 2]).isfinite().all()
    assert not torch.equal(known.of([0]), known.of([1]))
