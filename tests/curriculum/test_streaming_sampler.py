"""Tests of streamed data, read ahead in windows: dealt rows, shared beliefs, passes, and exact resumes."""

from datetime import datetime
from itertools import chain

import numpy as np
import pytest
import tiny_models
import torch
from datasets import IterableDataset

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.curriculum import belief_store
from trl_grpo_plus.curriculum.belief_store import BeliefStore
from trl_grpo_plus.curriculum.beliefs import Belief, Beliefs, SharedPrior
from trl_grpo_plus.curriculum.streaming_sampler import StreamingSampler
from trl_grpo_plus.traces import reader
from trl_grpo_plus.trainer import prompt_source
from trl_grpo_plus.utils.dataset_rows import encoded
from trl_grpo_plus.utils.validation import ConfigError


pytestmark = pytest.mark.long


BELIEF = {"advantage_baseline": "belief", "scale_rewards": "prior", "num_generations": 2}
CHOICE = {**BELIEF, "prompt_selection": "belief", "selection_pool": 3}


def streamed(count):
    """Stream `tiny_models.prompts` with a column `kind`, the number modulo 3."""
    return tiny_models.prompts(count).map(lambda row: {"kind": row["number"] % 3}).to_iterable_dataset()


def generated(count):
    """Stream the same rows from a generator, which has no tables and does not know its columns."""
    return IterableDataset.from_generator(lambda: iter(streamed(count)))


def in_shards(count):
    """Stream the same rows from four shards."""
    return tiny_models.prompts(count).map(lambda row: {"kind": row["number"] % 3}).to_iterable_dataset(num_shards=4)


def by_kind(completions, kind, **kwargs):
    """Reward by kind: no attempt succeeds, all do, or every second one does."""
    return [[0.0, 1.0, float(i % 2)][k] for i, k in enumerate(kind)]


def numbers(window):
    return [row["number"] for row in window.rows]


def looks(window, times, most=12, least=4):
    """Return the prompt numbers of the next `times` windows."""
    found = []
    for _ in range(times):
        window.read_window(most, least)
        found.append(numbers(window))
    return found


# -- reading


def test_windows_are_what_comes_next_and_a_pass_begins_again():
    window = StreamingSampler(streamed(30), seed=1, shuffle=False)
    # The rest of a pass is a window if it fills a batch.
    assert looks(window, 4) == [list(range(12)), list(range(12, 24)), list(range(24, 30)), list(range(12))]
    # The 6 rows that are left do not fill a batch of 7, so the next pass begins.
    assert looks(window, 2, least=7) == [list(range(12, 24)), list(range(12))]
    assert window.metrics() == {"selection/pool": 12.0, "selection/pass": 2.0}


def test_each_pass_is_shuffled_anew_and_whole():
    window = StreamingSampler(streamed(30), seed=1, shuffle=True)
    passes = [[*chain(*looks(window, 3))] for _ in range(3)]
    assert [sorted(one) for one in passes] == [list(range(30))] * 3
    assert len({tuple(one) for one in [*passes, range(30)]}) == 4
    mine = streamed(30).shuffle(seed=3)
    before = [row["number"] for row in mine]
    window = StreamingSampler(mine, seed=1, shuffle=False)
    passes = [[*chain(*looks(window, 3))] for _ in range(2)]
    assert passes[0] == before != passes[1]  # a user's own shuffle differs by pass, too
    assert [row["number"] for row in mine] == before  # the user's stream is not advanced


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("make", [streamed, generated, in_shards])
def test_a_resumed_stream_reads_on_where_it_stood(make, shuffle):
    whole = looks(StreamingSampler(make(30), 1, shuffle), 10)
    reading = StreamingSampler(make(30), 1, shuffle)
    for done in range(7):
        other = StreamingSampler(make(30), 1, shuffle)
        other.load_state_dict(reading.state_dict())
        assert looks(other, 3) == whole[done : done + 3], done
        looks(reading, 1)


def test_a_stream_that_fills_no_batch_is_refused():
    with pytest.raises(ValueError, match="ends after 3 rows, and a generation batch takes 4 prompts"):
        StreamingSampler(streamed(3), 1, True).read_window(12, 4)


# -- dealing


def window_of(count):
    window = StreamingSampler(streamed(count), 1, False)
    window.read_window(count, 1)
    return window


def believing(variances, skill=1.0):
    variance = torch.tensor(variances, dtype=torch.float64)
    return lambda rows: (Belief(variance[rows], variance[rows], torch.full((len(rows),), 2.0)), skill)


def test_promising_rows_get_all_places_but_a_tenth():
    window, dealt = window_of(20), torch.zeros(20)
    promise = believing([0.0] * 10 + [0.25] * 5 + [0.0] * 5)
    for _ in range(400):
        rows = window.take(5, lambda row: True, believe=promise)
        assert rows == sorted(set(rows))
        dealt[rows] += 1
    assert dealt[10:15].sum() >= 1800  # nine tenths of 2000; the last tenth ignores beliefs
    others = torch.cat([dealt[:10], dealt[15:]])
    assert others.sum() >= 150
    assert min(others) > 0


def test_without_skill_rows_of_a_window_are_random():
    window, dealt = window_of(20), torch.zeros(20)
    for _ in range(400):
        dealt[window.take(5, lambda row: True, believe=believing([0.25] * 5 + [0.0] * 15, skill=0.0))] += 1
    assert 60 < min(dealt) <= max(dealt) < 140


def test_rows_that_are_not_accepted_are_not_dealt():
    window = window_of(9)
    assert set(window.take(9, lambda row: row % 2 > 0, multiple_of=3)) < {1, 3, 5, 7}
    assert len(window.take(9, lambda row: row % 2 > 0, multiple_of=3)) == 3


def test_rows_of_the_window_share_no_object():
    window = StreamingSampler(tiny_models.prompts(3).map(lambda row: {"tags": ["a"]}).to_iterable_dataset(), 1, False)
    window.read_window(3, 3)
    first, second = window.__getitems__([2, 2])
    assert first == second == {"prompt": "02+02=", "number": 2, "tags": ["a"]}
    first["tags"].append("b")
    assert second["tags"] == window.rows[2]["tags"] == ["a"]


# -- beliefs that rows share


def learn(beliefs, batches):
    """Let beliefs observe batches of rows with these keys. The key "good" earns 1, and others earn 0."""
    for keys in batches:
        beliefs.show(keys)
        rewards = torch.tensor([[float(key == "good")] * 2 for key in keys])
        beliefs.observe(range(len(keys)), rewards, beliefs.of(range(len(keys))))


def test_keys_are_learned_as_they_come():
    beliefs = Beliefs(None, keys=())
    learn(beliefs, [["good", "bad"]] * 9)
    learn(beliefs, [["worse", "good", "bad"]] * 9)
    beliefs.show(["new", "bad", "good", "worse"])
    new, bad, good, worse = beliefs.of(range(4)).mean.tolist()
    assert bad < 0.15 < 0.3 < new < 0.7 < 0.85 < good
    assert bad < worse < new  # "worse" was seen half as often as "bad"
    assert beliefs.of(range(4)).count.tolist() == [2.0] * 4  # rows of a stream have no history
    assert set(beliefs.metrics()) == {
        f"beliefs/{name}" for name in ("skill", "predicted", "realised", "calibration_error", "outside")
    }


def test_keys_are_saved_with_their_beliefs():
    beliefs, other = Beliefs(None, keys=()), Beliefs(None, keys=())
    learn(beliefs, [["good", "bad"], ["worse", "good"]])
    other.load_state_dict(beliefs.state_dict())
    for one in (beliefs, other):
        learn(one, [["bad", "new", "worse"]])
        one.show(["worse", "new", "bad", "good"])
    assert torch.equal(beliefs.of(range(4)).mean, other.of(range(4)).mean)
    assert beliefs.skill == other.skill
    for wrong in (Beliefs(None), Beliefs(3), Beliefs(3, keys=[1, 2, 3])):
        with pytest.raises(ValueError, match=r"The checkpoint's beliefs have (num_rows|keys)=None, this run's"):
            wrong.load_state_dict(beliefs.state_dict())


def test_a_head_reads_the_rows_that_are_shown(tmp_path):
    read, rows = [], [{"prompt": str(number)} for number in range(4)]
    config = GRPOPlusConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **BELIEF, belief_head="prompt")

    def states(indices):
        read.append(indices)
        return torch.ones(len(indices), 2)

    memory = BeliefStore(config, streamed(30), ["by_kind"], [1.0], states)
    for window in (rows, rows[::-1]):  # as if the run broke off after the first one
        memory.show(window)
        memory.credited([0, 2])
        memory.candidate_beliefs([2, 3])
    assert read == [[0, 2], [3]] * 2


# -- training


def sampled(trained):
    """Return (kind, trace of the first attempt) for each group, in order."""
    return [(group[0]["reference"]["kind"], group[0]) for group in reader.groups(trained.args.output_dir)]


def test_what_there_is_to_learn_is_sampled_more(tmp_path):
    options = {**CHOICE, "belief_key": "kind", "zero_variance_groups": "drop", "max_steps": 40}
    trained = tiny_models.trained(tmp_path, by_kind, data=streamed(30), **options)
    kinds = [kind for kind, _ in sampled(trained)]
    assert len(kinds) == 160
    assert kinds[80:].count(2) > 1.5 * max(kinds[80:].count(0), kinds[80:].count(1))
    assert 0 in kinds[80:]
    assert tiny_models.logged(trained, "beliefs/skill")[-1] > 0.3
    # Windows of 12, 12 and 6 of the 30 rows, then the next pass.
    assert tiny_models.logged(trained, "selection/pool")[:4] == [12, 12, 6, 12]
    assert tiny_models.logged(trained, "selection/pass")[:4] == [0, 0, 0, 1]
    assert tiny_models.logged(trained, "rollouts")[-1] == 320


def test_a_baseline_alone_learns_from_the_rows_that_trl_deals(tmp_path):
    plain = tiny_models.trained(tmp_path / "plain", by_kind, data=streamed(30), num_generations=2, max_steps=6)
    options = {**BELIEF, "belief_key": "kind", "max_steps": 6}
    trained = tiny_models.trained(tmp_path / "belief", by_kind, data=streamed(30), **options)
    groups = sampled(trained)
    assert [first["prompt"] for _, first in groups] == [first["prompt"] for _, first in sampled(plain)]
    believed = {kind: first["belief"]["mean"] for kind, first in groups}  # the last group of each kind
    assert believed[0] < 0.4 < believed[2] < 0.6 < believed[1]
    assert groups[0][1]["belief"] == {"mean": 0.5, "std": 0.5, "attempts": 2.0}


@pytest.mark.parametrize("options", [BELIEF, CHOICE], ids=["baseline", "choice"])
def test_a_head_reads_a_stream_s_prompts(tmp_path, options):
    trained = tiny_models.trained(tmp_path, by_kind, data=streamed(30), **options, belief_head="prompt", max_steps=9)
    assert tiny_models.logged(trained, "beliefs/head_skill")[-1] >= 0
    assert trained._prompts.state_dict()["memory"]["heads"]["total"]["count"] > 8


@pytest.mark.parametrize("stop", [5, pytest.param(6, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "options",
    [
        {**CHOICE, "belief_key": "kind", "num_iterations": 2, "belief_head": "prompt", "data": streamed(20)},
        {**CHOICE, "shuffle_dataset": False, "data": generated(14)},
        {**BELIEF, "belief_key": "kind", "data": streamed(40)},
        {**CHOICE, "belief_key": "kind", "belief_id": "number", "belief_head": "prompt", "data": streamed(14)},
    ],
    ids=["in the midst", "in a later pass", "baseline", "with ids"],
)
def test_a_resumed_stream_equals_one_that_never_stopped(tmp_path, options, stop):
    options = {**options, "max_steps": 9, "save_strategy": "steps", "save_steps": stop}
    whole = tiny_models.trained(tmp_path / "whole", by_kind, **options)
    stopped = tiny_models.trainer(tmp_path / "stopped", by_kind, **options)
    stopped.add_callback(tiny_models.StopAt(stop))
    with pytest.raises(InterruptedError):
        stopped.train()
    resumed = tiny_models.trainer(tmp_path / "stopped", by_kind, **options)
    resumed.train(resume_from_checkpoint=True)
    tiny_models.assert_same(resumed, whole)
    for metric in ("beliefs/skill", "selection/pool", "selection/pass"):
        assert tiny_models.logged(resumed, metric) == tiny_models.logged(whole, metric)
    assert tiny_models.logged(whole, "selection/pass")[-1:] != [0]


def test_a_memory_of_rows_does_not_go_on_with_a_stream(tmp_path):
    options = {**CHOICE, "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    tiny_models.trained(tmp_path, data=tiny_models.prompts(30), **options)
    resumed = tiny_models.trainer(tmp_path, data=streamed(30), **{**options, "max_steps": 3})
    with pytest.raises(ValueError, match="beliefs are about a loaded dataset, this run's training set is a stream"):
        resumed.train(resume_from_checkpoint=True)


def test_ranks_that_read_different_rows_are_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_source, "gather_object", lambda values: [*values, 0])
    with pytest.raises(ValueError, match="the processes read different rows of the stream"):
        tiny_models.trained(tmp_path, data=streamed(30), **CHOICE)


@pytest.mark.parametrize("more", [{}, {"belief_key": "kind"}, {"belief_head": "prompt"}, {"belief_id": "number"}])
def test_a_warning_comes_if_beliefs_cannot_tell_rows_apart(tmp_path, caplog, more):
    tiny_models.trainer(tmp_path, by_kind, data=streamed(30), **CHOICE, **more)
    assert ("samples them at random. Set belief_key, belief_head or" in caplog.text) == (not more)


# -- refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"prompt_selection": {"name": "by_column", "args": {"column": "kind", "order": "easy_first"}}},
            "needs a map-style dataset .*set prompt_selection='belief', which reads a stream ahead, or 'shuffle'",
        ),
        ({"prompt_selection": "tiny_models:qwen2"}, "map-style dataset to choose from"),
        ({**CHOICE, "zero_variance_groups": "resample"}, "map-style dataset.*'drop'"),
        ({**BELIEF, "zero_variance_groups": "resample"}, "map-style dataset.*'drop'"),
        ({**CHOICE, "data": IterableDataset.from_generator(lambda: iter(()))}, "the stream has no rows"),
        (
            {**CHOICE, "remove_unused_columns": True, "reward": tiny_models.digits},
            "remove_unused_columns=True does not go .* on a stream",
        ),
        ({**BELIEF, "belief_key": "kinds"}, "belief_key='kinds' is no column .*'kind'. Did you mean kind"),
        ({**BELIEF, "belief_key": "kinds", "data": generated(30)}, "is no column .*'prompt', 'number', 'kind'. Did"),
        (
            {**BELIEF, "belief_key": "when", "data": streamed(3).map(lambda row: {"when": datetime(2000, 1, 1)})},
            "belief_key='when' holds datetime values, which are no keys",
        ),
    ],
)
def test_options_that_cannot_work_with_a_stream_are_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        tiny_models.trainer(tmp_path, **{"reward": by_kind, "data": streamed(30), **options})


@pytest.mark.parametrize("options", [{"zero_variance_groups": "resample"}, {"prompt_selection": "tiny_models:qwen2"}])
def test_options_that_need_all_rows_are_refused_a_stream_before_the_model_is_loaded(tmp_path, options):
    args = GRPOPlusConfig(str(tmp_path / "run"), **tiny_models.BASE, **options)
    with pytest.raises(ConfigError, match="needs a map-style dataset"):
        GRPOPlusTrainer(str(tmp_path / "no model"), by_kind, args, streamed(30))


def test_rows_that_lack_a_column_have_none_in_it():
    window = StreamingSampler(IterableDataset.from_generator(ragged), 0, shuffle=False)
    window.read_window(3, 3)
    assert [row["kind"] for row in window.rows] == [None, 1, None]


def test_columns_that_were_seen_are_known_after_a_resume():
    """After a resume, rows still get a column that only earlier rows had, as if the run had never stopped."""
    rows = [{"prompt": f"{n}=", **({"kind": n} if n < 2 else {})} for n in range(4)]
    window, resumed = (
        StreamingSampler(IterableDataset.from_generator(lambda: iter(rows)), 0, False) for _ in range(2)
    )
    window.read_window(2, 2)
    resumed.load_state_dict(window.state_dict())
    for one in (window, resumed):
        one.read_window(2, 2)
        assert one.rows == [{"prompt": "2=", "kind": None}, {"prompt": "3=", "kind": None}]


def test_rows_without_prompts_are_told_apart():
    windows = [
        StreamingSampler(IterableDataset.from_generator(lambda n=n: iter([{"number": n}])), 0, False)
        for n in (1, 1, 2)
    ]
    for window in windows:
        window.read_window(1, 1)
    first, same, other = (window.digest for window in windows)
    assert first == same != other


def ragged():
    for number in range(9):
        yield {"prompt": f"{number:02d}=", **({"kind": number} if number % 2 else {})}


def test_nan_is_one_key_and_other_libraries_values_are_plain_ones():
    shared = SharedPrior(0.5, encoded([]))
    shared.show([float("nan"), "a", float("nan")])
    assert shared.state_dict()["known"] == [None, "a"]
    for value, key in [(np.str_("a"), "a"), (np.float32(0.5), 0.5), (torch.tensor(3), 3), (np.bool_(True), True)]:
        assert belief_store.as_key("kind", value) == key
        assert type(belief_store.as_key("kind", value)) is type(key)
    with pytest.raises(ValueError, match=r"belief_key='kind' holds Tensor values.*tensor\(\[3\]\)"):
        belief_store.as_key("kind", torch.tensor([3]))


@pytest.mark.parametrize("form", ["torch", "numpy"])
@pytest.mark.parametrize("options", [BELIEF, CHOICE], ids=["baseline", "choice"])
def test_a_stream_s_keys_are_plain_whatever_its_format(tmp_path, form, options):
    trained = tiny_models.trained(
        tmp_path, by_kind, data=streamed(30).with_format(form), **options, belief_key="kind", max_steps=4
    )
    known = trained._prompts.state_dict()["memory"]["beliefs"]["total"]["shared"]["known"]
    assert sorted(known) == [0, 1, 2]
    assert {type(key) for key in known} == {int}


def test_a_key_in_a_later_row_is_checked_too(tmp_path):
    data = streamed(30).map(lambda row: {"level": row["number"] if row["number"] < 5 else [5]}, features=None)
    with pytest.raises(ValueError, match="belief_key='level' holds list values"):
        tiny_models.trained(tmp_path, by_kind, data=data, **CHOICE, belief_key="level", shuffle_dataset=False)
