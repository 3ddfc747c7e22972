"""What a live page shows after a run's files were deleted, cut off by a kill, or written again."""

import gzip
import os
import shutil
import time

import pytest
import synthetic_traces
from synthetic_traces import row

from trl_grpo_plus.cli.main import main
from trl_grpo_plus.traces.writer import Writer
from trl_grpo_plus.view import live_feed
from trl_grpo_plus.view.live_feed import Feed


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(live_feed, "AT_MOST_EVERY", 0.0)
    monkeypatch.setattr(live_feed, "_SETTLED", 1e9)  # each look is at all files


def a_run(folder, name, *, compress=False, steps=1):
    """Write a run of groups of one attempt. Its texts bear its name, and all names are equally long."""
    writer = Writer(str(folder), compress=compress)
    writer.begin(0, 9, run=name)
    for step in range(1, steps + 1):
        line = row(
            step=step, size=1, prompt=f"prompt of {name}", completion=f"text of {name}", reward=float(len(name))
        )
        writer.write("train", step, [line])
    return folder


def texts(feed):
    """Return title and text of each group that a page shows."""
    news = feed.news()
    shown = feed.texts(news["live"]["epoch"], 0, news["live"]["groups"])
    titles = news["index"]["groups"]["title"]
    return [(title, one["attempts"][0]["text"]) for title, one in zip(titles, shown, strict=True)]


def reusing_inodes(folder, name, compress):
    """Write another run into the files of one: a file system may give the inodes of deleted files out again."""
    old = {path.name: path for path in (folder / "rollouts").iterdir()}
    new = a_run(folder.with_name("new"), name, compress=compress)
    for path in (new / "rollouts").iterdir():
        old.pop(path.name).write_bytes(path.read_bytes())
    shutil.rmtree(new)
    assert not old


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("looked", [False, True], ids=["", "looked while it was gone"])
def test_a_run_that_takes_the_place_of_a_deleted_one(tmp_path, compress, looked):
    folder = a_run(tmp_path / "run", "first", compress=compress)
    feed = Feed(folder)
    assert texts(feed) == [("prompt of first", "text of first")]
    epoch = feed.news()["live"]["epoch"]
    if looked:
        aside = folder.rename(tmp_path / "aside")
        assert feed.news()["live"]["groups"] == 0
        aside.rename(folder)
    time.sleep(0.01)  # the clock of a file system has steps of some milliseconds
    reusing_inodes(folder, "later", compress)
    assert texts(feed) == [("prompt of later", "text of later")]
    assert feed.news()["live"]["epoch"] > epoch


def test_a_gzip_member_that_a_kill_cut_off(tmp_path):
    folder = a_run(tmp_path / "run", "first", compress=True, steps=1)
    (path,) = (folder / "rollouts").glob("train-*")
    whole = path.read_bytes()
    lines = [row(step=1, size=1, group=n, completion=f"{n} {os.urandom(40).hex()}") for n in range(40)]
    writer = Writer(str(tmp_path / "other"), compress=True)
    writer.write("train", 1, lines)
    (member,) = (tmp_path / "other" / "rollouts").glob("train-*")
    path.write_bytes(whole + member.read_bytes()[:-600])
    feed = Feed(folder)
    assert feed.news()["live"]["groups"] == 1  # the rest may still come
    os.utime(path, (time.time() - 2 * live_feed._ABANDONED,) * 2)
    for _ in range(2):
        assert 10 < feed.news()["live"]["groups"] < 41
    path.write_bytes(whole + member.read_bytes())
    assert [text for _, text in texts(feed)][1:] == [line["completion"] for line in lines]


def test_a_compressed_copy_beside_a_file_is_told_and_the_page_keeps_its_groups(tmp_path):
    folder = a_run(tmp_path / "run", "first", steps=3)
    feed = Feed(folder)
    assert feed.news()["live"]["groups"] == 3
    copied = folder / "rollouts" / "train-00000002.jsonl"
    copied.with_name(f"{copied.name}.gz").write_bytes(gzip.compress(copied.read_bytes()))
    live = feed.news()["live"]
    assert live["groups"] == 3
    assert "hold the attempts of the same step" in live["problem"]
    copied.with_name(f"{copied.name}.gz").unlink()
    assert feed.news()["live"]["problem"] == ""


@pytest.mark.parametrize(
    ("later", "ended"),
    [
        ([], True),
        ([{"step": 4, "final_accuracy": 0.9}], True),
        ([{"step": 4, "eval_runtime": 1.0, "eval_reward": None}], True),
        ([{"step": 5, "reward": 0.5}], False),
    ],
    ids=["", "logged", "evaluated", "resumed"],
)
def test_a_run_has_ended_whatever_a_script_logs_after_it(tmp_path, later, ended):
    metrics = [{"step": 4, "reward": 0.5}, {"step": 4, "train_runtime": 9.0}, *later]
    run = synthetic_traces.write_traces(tmp_path, [synthetic_traces.group([0.0, 1.0])], metrics=metrics)
    assert Feed(run).news()["live"]["ended"] is ended


def test_a_file_in_the_place_of_a_run_is_not_waited_for(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    assert main(["view", str(tmp_path / "run.json"), "--serve"]) == 2
    assert "run.json is a file. Give the output_dir of a run." in capsys.readouterr().err
