"""Any value that a run holds can be written to its traces, and is read back as `json_value` documents."""

import math

import numpy as np
import pytest
import synthetic_traces
import torch
from adversarial_texts import texts, tried
from hypothesis import given
from hypothesis import strategies as st

from trl_grpo_plus.rollouts.groups import Attempt, Plan, Round
from trl_grpo_plus.traces import Writer, complete, part_of, pick
from trl_grpo_plus.traces import reader as traces


numbers = st.one_of(st.floats(), st.integers(), st.integers(-(2**200), 2**200), st.booleans(), st.none())
lists = st.lists(st.floats(width=32), max_size=3)
tensors = st.one_of(lists.map(torch.tensor), lists.map(np.array), st.floats(width=32).map(np.float32))
scores = st.one_of(st.just(math.nan), st.sampled_from([0.0, 1.0, -0.5]), st.floats(-1e3, 1e3, width=32))


def nested(inner):
    keys = st.one_of(texts, st.integers(), st.booleans(), st.none())
    listed = st.lists(inner, max_size=3)
    return st.one_of(listed, listed.map(tuple), st.dictionaries(keys, inner, max_size=3))


values = st.recursive(st.one_of(texts, numbers, tensors), nested, max_leaves=8)
columns = st.dictionaries(texts, values, max_size=3)


def told(value):
    """Return what a reader must get for a value. A pair of surrogates becomes one character."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if isinstance(value, dict):
        return {told(str(key)): told(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [told(item) for item in value]
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return told(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@st.composite
def attempts(draw):
    message = st.fixed_dictionaries({"role": st.just("assistant"), "content": texts})
    written = st.one_of(texts, st.lists(message, min_size=1, max_size=2))
    return [
        Attempt(
            inputs={"prompt": "p", **draw(columns)},
            prompt=draw(written),
            prompt_ids=[1],
            completion_ids=[1] * draw(st.integers(0, 3)),
            completion=draw(written),
            logged=draw(columns),
            truncated=draw(st.booleans()),
        )
        for _ in range(4)
    ]


@pytest.mark.parametrize("examples", [20, pytest.param(500, marks=pytest.mark.full)])
def test_any_attempt_is_read_back_as_it_was_written(tmp_path_factory, examples):
    scored = st.lists(scores, min_size=8, max_size=8)
    folders = st.builds(tmp_path_factory.mktemp, st.just("run"))
    tried(examples)(given(folders, attempts(), scored, texts, st.booleans())(check))()


def check(folder, written, scored, name, compress):
    rewards = torch.tensor(scored).view(4, 2)
    weights = {told(name): 1.0, "other": 0.5}
    one = Round(tuple(written), rewards, ("alive", "tied"))
    batch = synthetic_traces.sampled([one], weights, 2, advantages=rewards[:, 0], plan=Plan.as_sampled(2), alike=False)
    places = pick(batch.rounds, None)
    writer = Writer(str(folder), compress)
    writer.write("train", 0, complete(batch, places, [part_of(0, batch, places)]).lines)
    rows = [row for group in traces.groups(folder) for row in group]
    assert len(rows) == 4
    for row, attempt, of_one in zip(rows, written, rewards.tolist(), strict=True):
        assert (row["prompt"], row["completion"]) == (told(attempt.prompt), told(attempt.completion))
        reference = {key: value for key, value in attempt.inputs.items() if key not in ("prompt", "image", "images")}
        assert row["reference"] == told(reference)
        assert row["extra"] == told(attempt.logged)
        assert (row["tokens"], row["truncated"]) == (len(attempt.completion_ids), attempt.truncated)
        for shown, score in zip(row["rewards"].values(), of_one, strict=True):
            assert shown is None if math.isnan(score) else abs(shown - score) <= 1e-6
        assert list(row["rewards"]) == list(weights)


def test_a_value_that_is_nested_too_deeply_for_orjson_is_written_by_json(tmp_path):
    deep = []
    for _ in range(400):
        deep = [deep, "\ud800"]
    Writer(str(tmp_path)).write("train", 0, [synthetic_traces.row(size=1, extra={"deep": deep})])
    [[row]] = traces.groups(tmp_path)
    assert row["extra"] == {"deep": deep}
