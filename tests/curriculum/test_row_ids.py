"""Tests of row ids, which find prompts again in another order, among other rows and in a stream's next pass."""

import pytest
import tiny_models
import torch
from datasets import Dataset, Features, Value, concatenate_datasets

from trl_grpo_plus import GRPOPlusConfig
from trl_grpo_plus.curriculum.belief_store import BeliefStore
from trl_grpo_plus.curriculum.row_ids import RowIds, StreamIds, packed_ids, unpacked_ids
from trl_grpo_plus.curriculum.row_table import grown, packed, unpack
from trl_grpo_plus.curriculum.samplers import LearnabilitySampler
from trl_grpo_plus.traces import reader


CHOICE = {"advantage_baseline": "belief", "scale_rewards": "prior", "prompt_selection": "belief", "num_generations": 2}


def rows(numbers):
    """Make prompts with an id and a key. The key that comes first depends on the order of the rows."""
    numbers = list(numbers)
    return Dataset.from_dict(
        {"prompt": [f"{n:02d}=" for n in numbers], "id": [f"q{n}" for n in numbers], "kind": [n % 3 for n in numbers]}
    )


# -- tables


@pytest.mark.parametrize("visited", [[], [1, 3], [0, 1, 2, 3, 4]])
def test_a_table_is_read_back(visited):
    table, mask = torch.full((2, 5), -1), torch.zeros(5, dtype=torch.bool)
    mask[visited] = True
    table[:, visited] = torch.arange(2 * len(visited)).view(2, -1)
    state = packed({"a": table}, mask)
    assert state["a"].shape == (2, len(visited))
    other = torch.full((2, 5), 7)
    unpack(state, {"a": other}, new={"a": -1})
    assert torch.equal(other, table)


def test_rows_of_a_table_move():
    state = packed({"a": torch.tensor([5, 6, 0, 8])}, torch.tensor([True, True, False, True]))
    table = torch.zeros(3, dtype=torch.long)
    unpack(state, {"a": table}, torch.tensor([2, -1, 0]))  # new places of the rows 0, 1 and 3; -1 drops a row
    assert table.tolist() == [8, 0, 5]


def test_a_table_grows_by_doubling_and_keeps_its_rows():
    table = grown(torch.tensor([[1, 2], [3, 4]]), 3, -1)
    assert table.tolist() == [[1, 2, -1, -1], [3, 4, -1, -1]]
    assert grown(table, 4, -1) is table


# -- ids of a dataset


@pytest.mark.parametrize("column", ["id", "number"])
def test_rows_are_found_by_their_ids(column):
    data = rows(range(40)).add_column("number", [*range(100, 140)])
    ids = RowIds(data.shuffle(seed=1), column).of(torch.tensor([3, 0, 39]))
    ids = ids.to_pylist()
    assert ids == data.shuffle(seed=1).select([3, 0, 39])[column][:]
    other = concatenate_datasets([data.shuffle(seed=2).select(range(30)), data.shuffle(seed=1).select([3, 39])])
    other = Dataset.from_list([row for row in {row["id"]: row for row in other}.values() if row[column] != ids[1]])
    found = RowIds(other, column).rows_of(ids)
    assert found[1] == -1
    assert [other[column][row] for row in found[[0, 2]].tolist()] == [ids[0], ids[2]]


def test_ids_of_another_kind_are_not_found():
    data = Dataset.from_dict({"id": [1, 2]}, features=Features({"id": Value("int32")}))
    assert RowIds(data, "id").rows_of(["q1", "q2"]).tolist() == [-1, -1]
    assert RowIds(data, "id").rows_of([2**40, 2, 2**70, "q1", 1]).tolist() == [-1, 1, -1, -1, 0]
    assert RowIds(data, "id").rows_of([]).tolist() == []
    halves = Dataset.from_dict({"id": [0.5, 2.0]}, features=Features({"id": Value("float16")}))
    assert RowIds(halves, "id").rows_of([2.0, 0.25, 0.5]).tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["a", "b", "c", "b"], "rows 1 and 3 both have 'b'"),
        ([-1, -2, -1], "rows 0 and 2 both have -1"),  # in Python hash(-1) == hash(-2)
        (["a", None, "b"], "row 1 has None"),
        ([0.5, float("nan")], "row 1 has nan"),
        ([[1], [2]], r"row 0 has \[1\]"),
    ],
)
def test_ids_that_do_not_identify_rows_are_refused(ids, words):
    with pytest.raises(ValueError, match=f"belief_id='id': .*{words}"):
        RowIds(Dataset.from_dict({"id": ids}), "id").check()


def test_ids_made_by_a_transform():
    data = rows(range(5)).with_transform(lambda rows: {"id": [value.upper() for value in rows["id"]]})
    RowIds(data, "id").check()
    assert RowIds(data, "id").rows_of(["Q2", "q2"]).tolist() == [2, -1]
    seen = []
    data = rows(range(5)).with_transform(lambda rows: seen.extend(rows["id"]) or {"id": [7, *rows["id"]][1:]})
    assert RowIds(data, "id").of(torch.tensor([4])) == ["q4"]
    assert seen == ["q4"]  # the transform runs on the requested rows alone
    mixed = rows(range(3)).with_transform(
        lambda rows: {"id": [{"q1": 1, "q2": 2**70}.get(one, one) for one in rows["id"]]}
    )
    RowIds(mixed, "id").check()
    assert RowIds(mixed, "id").rows_of([1, "q0", 2**70, "q1"]).tolist() == [1, 0, 2, -1]


OF_ONE_TYPE = [["q1", "é", ""], [3, -1], [0.5, 2.0], [True, False], []]
OF_SEVERAL = [[1, "1"], [2**70, 1], ["\ud800"], [1.5, 2**60 + 1]]


@pytest.mark.parametrize("ids", [*OF_ONE_TYPE, *OF_SEVERAL], ids=repr)
def test_ids_pass_through_a_checkpoint(tmp_path, ids):
    saved = through_a_file(packed_ids(ids), tmp_path)  # reads with weights_only=True
    assert torch.is_tensor(saved) == any(ids is one for one in OF_ONE_TYPE)
    read = unpacked_ids(saved)
    assert repr(read.to_pylist() if torch.is_tensor(saved) else read) == repr(ids)


@pytest.mark.parametrize(
    ("column", "saved", "rows"),
    [(["1", "2"], [1, 2], [-1, -1]), ([1, 0], [True, False], [0, 1]), ([1, 2], [1.5, 2.0], [-1, 1])],
)
def test_saved_ids_are_compared_as_python_values(column, saved, rows):
    found = RowIds(Dataset.from_dict({"id": column}), "id").rows_of(unpacked_ids(packed_ids(saved)))
    assert found.tolist() == rows


def test_numbers_of_equal_hashes_are_different_ids():
    assert RowIds(Dataset.from_dict({"id": [-1, -2]}), "id").rows_of([-2]).tolist() == [1]


# -- beliefs among other rows


def remembering(tmp_path, data, read=None, **options):
    options = {**CHOICE, "belief_key": "kind", "belief_id": "id", "report_to": "none", **options}
    if read is not None:
        options["belief_head"] = "prompt"
    config = GRPOPlusConfig(str(tmp_path), use_cpu=True, bf16=False, **options)
    return BeliefStore(config, data, ["digits"], [1.0], read and (lambda indices: read(data, indices)))


def by_number(data, indices):
    """Return states of prompts, (P, 3): the number, the number modulo 3, and a 1."""
    numbers = torch.tensor([float(data[index]["id"][1:]) for index in indices])
    return torch.stack([numbers, numbers % 3, torch.ones_like(numbers)], dim=1)


def through_a_file(state, tmp_path):
    torch.save(state, tmp_path / "state.pt")
    return torch.load(tmp_path / "state.pt", weights_only=True)


@pytest.mark.parametrize("read", [None, by_number], ids=["no head", "head"])
def test_beliefs_are_restored_by_id(tmp_path, read):
    before = rows(range(24))
    memory = remembering(tmp_path, before, read)
    for step in range(12):
        sampled = [(5 * step + i) % 20 for i in range(4)]  # rows 20 to 23 are never sampled
        memory.observe(sampled, torch.tensor([[float(n % 3 > 0), float(n % 2)] for n in sampled]).unsqueeze(-1))
    now = [30, 23, 5, 17, 8, 31, 2, 11]
    resumed = remembering(tmp_path, rows(now), read)
    resumed.load_state_dict(through_a_file(memory.state_dict(), tmp_path))
    for column in ("mean", "variance", "count"):
        ours, theirs = (
            getattr(of.believed(which), column) for of, which in ((resumed, range(1, 5)), (memory, now[1:5]))
        )
        assert torch.equal(ours, theirs)
    assert resumed.believed([0]).count.item() == 2.0  # a new row has nothing but the prior
    assert resumed.metrics()["beliefs/never_tried"] == pytest.approx(3 / 8)
    if read is not None:  # only states of present rows are kept
        kept = resumed.state_dict()["states"]["prompts"]["rows"].tolist()
        assert kept
        assert set(kept) <= set(range(8))
    for each, which in ((memory, [5, 17, 2]), (resumed, [2, 3, 6])):  # both learn the same from now on
        each.observe(which, torch.tensor([[1.0, 0.0]] * 3).unsqueeze(-1))
    assert torch.equal(resumed.believed([2, 3, 6]).mean, memory.believed([5, 17, 2]).mean)


def numbered(data):
    return data.add_column("number", [int(value[1:]) for value in data["id"]])


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (None, None, "To find prompts again in a changed training set, a run must set belief_id from its start"),
        ("id", None, "To find prompts again in a changed training set, a run must set belief_id from its start"),
        (None, "id", "The checkpoint has belief_id=None, so belief_id='id' finds no prompt in it"),
        ("id", "number", "checkpoint has belief_id='id', so belief_id='number' finds no prompt in it"),
    ],
)
def test_without_ids_other_rows_are_refused_and_the_same_rows_are_not(tmp_path, before, now, words):
    data, more = numbered(rows(range(24))), numbered(rows(range(25)))
    memory = remembering(tmp_path, data, belief_id=before)
    memory.observe([3], torch.tensor([[1.0, 1.0]]).unsqueeze(-1))
    state = memory.state_dict()
    with pytest.raises(ValueError, match=f"there were 24 rows, .* has 25.*{words}"):
        remembering(tmp_path, more, belief_id=now).load_state_dict(state)
    resumed = remembering(tmp_path, data, belief_id=now)
    resumed.load_state_dict(state)
    assert resumed.moved is None
    assert torch.equal(resumed.believed(range(24)).mean, memory.believed(range(24)).mean)


def test_replaced_rows_that_the_comparison_skips_are_found_by_id(tmp_path):
    before = rows(range(1000))  # the comparison reads the rows 0, 3, 7, ...
    memory = remembering(tmp_path, before)
    memory.observe([1, 2], torch.tensor([[1.0, 1.0], [0.0, 0.0]]).unsqueeze(-1))
    resumed = remembering(tmp_path, rows([0, 2000, 1, *range(3, 1000)]))
    resumed.load_state_dict(memory.state_dict())
    assert resumed.believed([1]).count.item() == 2.0
    assert torch.equal(resumed.believed([2]).count, memory.believed([1]).count)
    assert resumed.believed([2]).mean.item() > 0.5


@pytest.mark.parametrize(("before", "now"), [("loaded", "stream"), ("stream", "loaded")])
def test_beliefs_about_a_stream_and_a_loaded_set_are_not_exchanged(tmp_path, before, now):
    sets = {"loaded": rows(range(24)), "stream": rows(range(24)).to_iterable_dataset()}
    state = remembering(tmp_path, sets[before]).state_dict()
    kinds = {"loaded": "a loaded dataset", "stream": "a stream"}
    with pytest.raises(
        ValueError, match=f"beliefs are about {kinds[before]}, this run's training set is {kinds[now]}"
    ):
        remembering(tmp_path, sets[now]).load_state_dict(state)


def test_a_stream_s_ids_are_of_one_column(tmp_path):
    state = remembering(tmp_path, rows(range(24)).to_iterable_dataset()).state_dict()
    with pytest.raises(ValueError, match="about belief_id='id', this run has belief_id=None"):
        remembering(tmp_path, rows(range(24)).to_iterable_dataset(), belief_id=None).load_state_dict(state)


def test_the_same_rows_keep_their_places(tmp_path):
    memory, resumed = (remembering(tmp_path, rows(range(24))) for _ in range(2))
    memory.observe([3, 4], torch.tensor([[1.0, 1.0], [0.0, 1.0]]).unsqueeze(-1))
    resumed.load_state_dict(memory.state_dict())
    assert resumed.moved is None
    assert torch.equal(resumed.believed(range(24)).mean, memory.believed(range(24)).mean)


def test_rests_are_restored_by_id(tmp_path):
    sampler = LearnabilitySampler(12, 1, pool=2, cooldown=0)
    for _ in range(4):
        dealt = sampler.take(3, lambda row: True)
        sampler.observe(dealt, torch.ones(3, 2), ["all_good"] * 3)
    free = sampler._rests.free_at(range(12))
    order = [11, 3, 0, 7]  # the old rows that are left, after two new ones
    places = {row: place + 2 for place, row in enumerate(order)}
    other = LearnabilitySampler(6, 1, pool=2, cooldown=0)
    other.load_state_dict(
        sampler.state_dict(), lambda saved: torch.tensor([places.get(row, -1) for row in saved.tolist()])
    )
    assert other._rests.free_at(range(6)).tolist() == [0, 0, *free[order].tolist()]
    assert other.state_dict()["passes"]["num_prompts"] == 6


@pytest.mark.parametrize(
    "selection", ["belief", {"name": "by_column", "args": {"column": "kind", "order": "easy_first"}}]
)
def test_a_run_goes_on_with_more_rows_in_another_order(tmp_path, selection, caplog):
    options = {**CHOICE, "prompt_selection": selection, "belief_id": "id", "per_device_train_batch_size": 8}
    options |= {"save_strategy": "steps", "save_steps": 3}
    tiny_models.trained(tmp_path, tiny_models.digits, data=rows(range(16)), **options, max_steps=3)
    before = {group[0]["prompt"]: group[0] for group in reader.groups(tmp_path / "run")}
    data = rows([*range(20, 26), *reversed(range(16))])
    resumed = tiny_models.trainer(tmp_path, tiny_models.digits, data=data, **options, max_steps=6)
    resumed.train(resume_from_checkpoint=True)
    assert f"belief_id found {len(before)} of the {len(before)} remembered prompts" in caplog.text
    memory = resumed._prompts.memory
    tried = {group[0]["prompt"] for group in reader.groups(tmp_path / "run")}
    counts = dict(zip(data["prompt"], memory.believed(range(len(data))).count.tolist(), strict=True))
    assert {prompt for prompt, count in counts.items() if count > 2} == tried
    assert resumed.state.global_step == 6
    if selection == "belief":  # the steps of the rests continue
        assert resumed._prompts._stream._rests.step == 6


def test_a_run_with_only_new_rows_remembers_nothing(tmp_path, caplog):
    options = {**CHOICE, "belief_id": "id", "save_strategy": "steps", "save_steps": 2}
    tiny_models.trained(tmp_path, tiny_models.digits, data=rows(range(16)), **options, max_steps=2)
    resumed = tiny_models.trainer(tmp_path, tiny_models.digits, data=rows(range(30, 50)), **options, max_steps=3)
    resumed.train(resume_from_checkpoint=True)
    assert "belief_id found 0 of the 8 remembered prompts" in caplog.text
    assert resumed._prompts.memory.metrics()["beliefs/never_tried"] == pytest.approx(16 / 20)


# -- streams


def test_a_streams_ids_keep_their_places():
    ids = StreamIds("id")
    assert ids.show([{"id": "a"}, {"id": "b"}, {"id": "a"}]) == [0, 1]
    assert ids.places([0, 1, 2]) == [0, 1, 0]
    assert ids.show([{"id": "c"}, {"id": "b"}]) == [0]
    assert ids.places([0, 1]) == [2, 1]
    assert ids.indices([1, 2]) == [1, 0]
    again = StreamIds("id")
    again.load_state_dict(ids.state_dict())
    assert again.show([{"id": "b"}, {"id": "d"}]) == [1]
    with pytest.raises(ValueError, match="belief_id='id': a row of the stream has \\[1\\]"):
        ids.show([{"id": [1]}])


def test_a_streams_rows_without_an_id_share_a_place(tmp_path, caplog):
    """An error would end a run in the midst of its stream, and a resumed run would meet the same row."""
    ids = StreamIds("id")
    assert ids.show([{"id": "a"}, {"id": None}, {"other": 1}, {"id": float("nan")}]) == [0, 1]
    assert ids.places([0, 1, 2, 3]) == [0, 1, 1, 1]
    assert "belief_id='id': a row of the stream has none" in caplog.text
    again = StreamIds("id")
    again.load_state_dict(ids.state_dict())
    assert again.show([{"id": None}, {"id": "a"}, {"id": "b"}]) == [2]
    assert again.places([0, 1, 2]) == [1, 0, 2]

    def some_without(row):
        return {**row, "id": None if row["id"] in ("q1", "q4") else row["id"]}

    stream = rows(range(8)).to_iterable_dataset().map(some_without)
    trained = tiny_models.trained(
        tmp_path, tiny_models.digits, data=stream, **CHOICE, belief_id="id", selection_pool=2, max_steps=6
    )
    assert trained.state.global_step == 6


@pytest.mark.parametrize("selection", ["belief", "shuffle"])
def test_a_stream_s_prompts_are_known_in_the_next_pass(tmp_path, selection):
    options = {**CHOICE, "prompt_selection": selection, "belief_id": "id", "shuffle_dataset": False}
    options |= {"selection_pool": 2} if selection == "belief" else {}

    def by_kind(completions, kind, **kwargs):
        return [[0.0, 1.0, float(i % 2)][k] for i, k in enumerate(kind)]

    trained = tiny_models.trained(tmp_path, by_kind, data=rows(range(8)).to_iterable_dataset(), **options, max_steps=8)
    last = {group[0]["prompt"]: group[0]["belief"] for group in reader.groups(tmp_path / "run")}
    kinds = {prompt: int(prompt[:2]) % 3 for prompt in last}
    seen = [prompt for prompt in last if last[prompt]["attempts"] > 4]
    assert len(seen) >= 6
    for prompt in seen:
        mean = last[prompt]["mean"]
        assert (mean < 0.3, mean > 0.7, 0.3 < mean < 0.7)[kinds[prompt]]
    assert tiny_models.logged(trained, "beliefs/never_tried")[-1] == 0
    assert tiny_models.logged(trained, "beliefs/solved")[-1] > 0


# -- refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"belief_id": "idd"}, "belief_id='idd' is no column of the training set, .* Did you mean id"),
        ({"belief_id": "kind"}, "belief_id='kind': the rows 0 and 3 both have 0. .*a belief_key"),
        ({"belief_id": ""}, "belief_id='' must be the name of a column"),
        (
            {"advantage_baseline": "mean", "prompt_selection": "shuffle", "scale_rewards": "group", "belief_id": "id"},
            "belief_id='id' has no effect: this run keeps no beliefs",
        ),
    ],
)
def test_wrong_ids_are_refused_at_construction(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        tiny_models.trainer(tmp_path, tiny_models.digits, data=rows(range(16)), **{**CHOICE, **options})
