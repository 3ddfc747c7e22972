"""The index of a run's groups says the same as the lines of the traces, whatever happened to either file."""

import dataclasses
import gzip
import itertools
import logging
import os
from pathlib import Path

import pytest
import synthetic_traces

from trl_grpo_plus.traces import Writer, entry, group_index
from trl_grpo_plus.traces import reader as traces
from trl_grpo_plus.traces import writer as writing


ABOUT = {"rewards": {"accuracy": 1.0}, "num_generations": 2}
BELIEF = {"mean": 0.25, "std": 0.1, "attempts": 3.0}
ODD = [
    {"prompt": [{"role": "user", "content": "\n a \ud800 title\nmore"}], "belief": BELIEF},
    {"prompt": "x" * 500, "belief": {**BELIEF, "std": None, "of": "format"}, "reward": None, "kl": 0.25},
    {"prompt": "", "completion": [{"role": "assistant", "content": "é"}], "kept": None, "verdict": None},
    {"alarms": ["b", "a"], "tokens": None, "reference": {"answer": 10**30}, "advantage": None},
    {"alarms": ["b"], "verdict": "tied", "reason": "zero_variance", "reward": 1, "batch": 2**62},
    {"verdict": "", "belief": {"mean": None}},
]


@pytest.fixture(params=[False, True], ids=["plain", "gzip"])
def writer(tmp_path, request):
    return begun(tmp_path, request.param)


def begun(folder, compress=False, step=0):
    writer = Writer(str(folder), compress, ABOUT)
    writer.begin(step, 99)
    return writer


def batch(step, count=3, **changes):
    groups = [
        synthetic_traces.group([1.0, 0.0], step=step, group=n, prompt=f"Task {step}.{n}", **changes)
        for n in range(count)
    ]
    return [row for rows in groups for row in rows]


def folder_of(writer):
    return Path(writer._root)


def lines_of(folder):
    """Return the lines of the page's list for each file, made from the index."""
    found = group_index.read(folder)
    return {name: [block.line(n) for block in blocks for n in range(len(block))] for name, blocks in found.items()}


def lines_read(folder):
    """Return the lines of the page's list for each file, made from the lines of the traces."""
    groups = [(f"{rows[0]['split']}-{rows[0]['step']:08d}", entry(rows)) for rows in traces.groups(folder)]
    names = {path.name.partition(".")[0]: path.name for _, _, path in traces.files(folder)}
    return {names[name]: [line for _, line in same] for name, same in itertools.groupby(groups, lambda one: one[0])}


def texts_at(folder, block):
    """Yield the bytes of each group, read at the place that the index names."""
    data = (folder / block.file).read_bytes()
    for at, skip, size in block.records[["at", "skip", "bytes"]].tolist():
        if block.file.endswith(".gz"):
            unpacker = writing_member(data[at:])
            yield unpacker[skip : skip + size]
        else:
            yield data[at : at + size]


def writing_member(data):
    """Unpack the gzip member at the start of `data`."""
    import zlib

    return zlib.decompressobj(wbits=31).decompress(data)


def test_the_index_holds_what_the_lines_hold(writer):
    for step in range(3):
        writer.write("train", step, batch(step))
        writer.write("train", step, batch(step, batch=1))
    writer.write("eval_easy", 2, batch(2, split="eval_easy"))
    odd = [
        {**row, "group": n, **changes}
        for n, changes in enumerate(ODD)
        for row in synthetic_traces.group([1.0, 0.0], step=3)
    ]
    writer.write("train", 3, odd)
    folder = folder_of(writer)
    assert lines_of(folder) == lines_read(folder)
    assert sum(map(len, lines_of(folder).values())) == 18 + 3 + len(ODD)


def test_the_mean_rewards_of_groups_are_over_their_scored_attempts(writer):
    rewards = [[1.0, 0.5], [0.25], [None, 0.5, None], [None, None]]
    rows = [
        synthetic_traces.row(step=0, group=group, attempt=n, size=len(of_group), reward=reward)
        for group, of_group in enumerate(rewards)
        for n, reward in enumerate(of_group)
    ]
    writer.write("train", 0, rows)
    ((block,),) = group_index.read(folder_of(writer)).values()
    assert block.means() == [0.75, 0.25, 0.5, None]
    assert block.where([False] * 4).means() == []


def test_each_group_is_found_at_the_place_that_the_index_names(writer, monkeypatch):
    monkeypatch.setattr(writing, "MEMBER", 1)
    writer.write("train", 0, batch(0))
    writer.write("train", 0, batch(0, batch=1))
    folder = folder_of(writer)
    for name, blocks in group_index.read(folder).items():
        found = [text for block in blocks for text in texts_at(folder, block)]
        assert b"".join(found) == b"".join(traces.lines(folder / name))
        assert len(found) == 6
        assert [block.start for block in blocks] == [0, blocks[0].end]
        assert blocks[-1].end == (folder / name).stat().st_size
        assert group_index.valid(folder, blocks) == blocks


def test_a_compressed_file_can_be_read_from_its_middle(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "MEMBER", 2000)
    writer = begun(tmp_path, compress=True)
    writer.write("train", 0, batch(0, 20))
    (block,) = group_index.read(folder_of(writer))["train-00000000.jsonl.gz"]
    starts = sorted(set(block.records["at"].tolist()))
    assert len(starts) > 5
    assert len(gzip.decompress((folder_of(writer) / block.file).read_bytes()).splitlines()) == 40
    # A member can be read whatever bytes come before and after it.
    path = folder_of(writer) / block.file
    data = bytearray(path.read_bytes())
    data[: starts[3]] = b"x" * starts[3]
    data[starts[4] :] = b"x" * (len(data) - starts[4])
    path.write_bytes(data)
    of_member = [n for n, at in enumerate(block.records["at"]) if at == starts[3]]
    texts = [
        writing_member(bytes(data[starts[3] :]))[skip : skip + size]
        for skip, size in block.records[["skip", "bytes"]][of_member].tolist()
    ]
    assert all(text.startswith(b"{") and text.endswith(b"}\n") and text.count(b"\n") == 2 for text in texts)


def test_a_torn_index_loses_its_end_and_is_written_on(writer):
    folder = folder_of(writer)
    for step in range(3):
        writer.write("train", step, batch(step))
    path = folder / group_index.NAME
    whole, size = path.read_bytes(), {}
    for step in range(3):
        name = next(name for name in group_index.read(folder) if f"{step:08d}" in name)
        size[step] = len(group_index.encoded(group_index.read(folder)[name][0]))
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        whole_blocks = [step for step in range(3) if cut >= sum(size[n] for n in range(step + 1))]
        assert len(group_index.read(folder)) == len(whole_blocks)
    path.write_bytes(whole[:-5])
    writer.write("train", 3, batch(3))
    assert [name[6:14] for name in group_index.read(folder)] == ["00000000", "00000001", "00000003"]


def test_a_damaged_block_is_left_out_and_so_are_the_later_ones_of_its_file(writer):
    folder = folder_of(writer)
    for number in range(3):
        writer.write("train", 0, batch(0, batch=number))
    writer.write("train", 1, batch(1))
    name, other = group_index.read(folder)
    size = len(group_index.encoded(group_index.read(folder)[name][0]))
    path = folder / group_index.NAME
    data = bytearray(path.read_bytes())
    data[size + 200] ^= 1
    path.write_bytes(data)
    found = group_index.read(folder)
    assert [len(found[name]), len(found[other])] == [1, 1]


def test_blocks_are_not_used_for_a_file_that_changed_or_became_shorter(writer):
    folder = folder_of(writer)
    writer.write("train", 0, batch(0))
    writer.write("train", 0, batch(0, batch=1))
    ((name, blocks),) = group_index.read(folder).items()
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert group_index.valid(folder, blocks) == blocks[:1]
    path.write_bytes(b" " + whole[1:])
    assert group_index.valid(folder, blocks) == []
    path.write_bytes(whole + b"more")
    assert group_index.valid(folder, blocks) == blocks, "one that goes on, or a copy"
    path.unlink()
    assert group_index.valid(folder, blocks) == []


def test_a_file_that_is_unchanged_since_it_was_written_is_not_opened(writer, monkeypatch):
    folder = folder_of(writer)
    writer.write("train", 0, batch(0))
    writer.write("train", 0, batch(0, batch=1))
    ((name, blocks),) = group_index.read(folder).items()
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda path, *more: opened.append(path) or real(path, *more))
    assert group_index.valid(folder, blocks) == blocks
    assert opened == []
    data, found = (folder / name).read_bytes(), (folder / name).stat()
    (folder / name).write_bytes(data[:-1])
    os.utime(folder / name, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert group_index.valid(folder, blocks) == blocks[:1]


def test_steps_that_are_made_again_replace_those_before(tmp_path):
    first = begun(tmp_path)
    for step in range(3):
        first.write("train", step, batch(step, 4))
    second = begun(tmp_path, step=1)
    second.write("train", 1, batch(1, 2))
    folder = folder_of(second)
    found = lines_of(folder)
    assert [len(found[f"train-0000000{step}.jsonl"]) for step in (0, 1)] == [4, 2]
    assert found["train-00000001.jsonl"] == lines_read(folder)["train-00000001.jsonl"]


def test_lines_are_kept_if_the_index_cannot_be(writer, caplog):
    folder = folder_of(writer)
    (folder / group_index.NAME).mkdir()
    with caplog.at_level(logging.WARNING):
        writer.write("train", 0, batch(0))
        writer.write("train", 1, batch(1))
    assert len(list(traces.groups(folder))) == 6
    assert [record.message for record in caplog.records] == [
        f"{folder / group_index.NAME} could not be kept: [Errno 21] Is a directory: '{folder / group_index.NAME}'. "
        "Pages open later."
    ]
    assert group_index.read(folder) == {}


def test_a_batch_of_other_than_whole_groups_is_read_from_its_lines(writer):
    folder = folder_of(writer)
    writer.write("train", 0, batch(0)[:-1])
    writer.write("train", 0, batch(0, batch=1))
    assert group_index.read(folder) in ({}, {"train-00000000.jsonl": []}, {"train-00000000.jsonl.gz": []})
    assert len(list(traces.groups(folder))) == 5


def test_a_block_is_not_used_for_other_lines_of_equal_length_that_replaced_its_own(tmp_path, monkeypatch):
    first = begun(tmp_path)
    first.write("train", 0, batch(0))
    again = begun(tmp_path)
    other = [{**row, "reward": row["reward"] + 1} for row in batch(0)]
    with monkeypatch.context() as patched:  # a kill between the lines and the index
        patched.setattr(group_index, "append", lambda *args: None)
        again.write("train", 0, other)
    folder = folder_of(again)
    size = (folder / "train-00000000.jsonl").stat().st_size
    assert [block.end for block in group_index.read(folder)["train-00000000.jsonl"]] == [size], "of equal length"
    assert group_index.valid(folder, group_index.read(folder)["train-00000000.jsonl"]) == []
    again.write("train", 0, batch(0, batch=1))
    blocks = group_index.read(folder)["train-00000000.jsonl"]
    assert [block.start for block in blocks] == [0], "the new block does not continue the old one"
    assert group_index.valid(folder, blocks) == []


def test_a_change_anywhere_in_the_lines_is_noticed(writer):
    folder = folder_of(writer)
    writer.write("train", 0, batch(0))
    ((name, blocks),) = group_index.read(folder).items()
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    assert group_index.valid(folder, blocks) == []


@pytest.mark.parametrize(
    "wrong",
    [
        *({"words": [word]} for word in ({}, 1, ["a", 2], None)),
        *({"bytes": 0}, {"at": -1}, {"at": 10**9}, {"skip": -1}, {"size": 0}, {"at": 5, "bytes": 2**63 - 1}),
        *({"end": 1e9}, {"check": "1"}, {"before": -1}, {"verdict as": ["alive"]}),
    ],
    ids=str,
)
def test_a_block_with_impossible_values_is_left_out(tmp_path, wrong):
    writer = begun(tmp_path)
    writer.write("train", 0, batch(0, 1))
    folder = folder_of(writer)
    (block,) = group_index.read(folder)["train-00000000.jsonl"]
    if "verdict as" in wrong:
        at = int(block.records["verdict"][0])
        block = dataclasses.replace(block, words=[*block.words[:at], wrong["verdict as"], *block.words[at + 1 :]])
    elif wrong.keys() <= {"end", "check", "before"}:
        block = dataclasses.replace(block, **wrong)
    elif "words" in wrong:
        block = dataclasses.replace(block, words=[*block.words, *wrong["words"]])
    else:
        records = block.records.copy()
        for name, value in wrong.items():
            records[name] = value
        rewards = block.rewards if "size" not in wrong else block.rewards[:0]
        block = dataclasses.replace(block, records=records, rewards=rewards)
    (folder / group_index.NAME).write_bytes(group_index.encoded(block))
    assert group_index.read(folder) == {}


def test_a_title_that_is_not_utf8_is_shown_with_a_replacement_character(writer):
    folder = folder_of(writer)
    writer.write("train", 0, batch(0, 1))
    ((name, (block,)),) = group_index.read(folder).items()
    titles = b"\xff" + block.titles[1:]
    (folder / group_index.NAME).write_bytes(group_index.encoded(dataclasses.replace(block, titles=titles)))
    assert group_index.read(folder)[name][0].title(0) == "\ufffd" + block.title(0)[1:]


def test_the_titles_of_some_groups_are_theirs_if_one_is_not_utf8(writer):
    writer.write("train", 0, batch(0))
    ((block,),) = group_index.read(folder_of(writer)).values()
    block = dataclasses.replace(block, titles=b"\xff" + block.titles[1:])
    some = block.where([True, False, True])
    assert [some.title(0), some.title(1)] == [block.title(0), block.title(2)]
    assert some.where([False, True]).title(0) == "Task 0.2"


def test_a_link_out_of_the_run_is_neither_read_nor_written(tmp_path):
    writer = begun(tmp_path / "run")
    writer.write("train", 0, batch(0))
    folder = folder_of(writer)
    blocks = group_index.read(folder)["train-00000000.jsonl"]
    outside = tmp_path / "outside"
    os.rename(folder / group_index.NAME, outside)
    (folder / group_index.NAME).symlink_to(outside)
    before = outside.read_bytes()
    assert group_index.read(folder) == {}
    with pytest.raises(OSError, match="is a link to a file outside of"):
        group_index.append(folder, blocks)
    assert outside.read_bytes() == before
    os.rename(folder / "train-00000000.jsonl", tmp_path / "lines")
    (folder / "train-00000000.jsonl").symlink_to(tmp_path / "lines")
    assert group_index.valid(folder, blocks) == []


def test_an_index_in_another_form_is_not_used(writer):
    folder = folder_of(writer)
    writer.write("train", 0, batch(0))
    for body in (
        b"[]",
        b'["x"]',
        b'["../train-00000000.jsonl",0,9,0,1,1,0,0,[]]',
        b'["train-00000000.jsonl",0,9,0,1,1,9,0,[]]',
    ):
        head = group_index._HEAD.pack(group_index._MARKER, len(body), len(body), __import__("zlib").crc32(body))
        (folder / group_index.NAME).write_bytes(head + body)
        assert group_index.read(folder) == {}
