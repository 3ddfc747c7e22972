"""Long runs: pages made from the index equal pages made from the lines; a list or page says what did not fit."""

import json
import os
import shutil
import threading

import pandas as pd
import pytest
import synthetic_traces
from browser_pages import ask, serving
from test_view import page_of_run, room_for

from trl_grpo_plus import traces
from trl_grpo_plus.traces import Writer, group_index
from trl_grpo_plus.view import compare, file_index, live_feed, page, write_comparison, write_page
from trl_grpo_plus.view.live_feed import Feed
from trl_grpo_plus.view.prompt_history import lists


ABOUT = {"rewards": {"accuracy": 1.0, "format": 1.0}, "num_generations": 2, "solved_reward": 2.0}
SCORES = ([1.0, 0.0], [1.0, 1.0], [0.0, 0.0])


class Run:
    """A run written by the real `Writer`, with three groups in each batch."""

    def __init__(self, folder, compress=False):
        self.folder, self.rollouts, self.step = folder, folder / "rollouts", 0
        self._writer = Writer(str(folder), compress, ABOUT)
        self._writer.begin(0, 50)

    def go_on(self, steps=1, length=60, batches=1):
        for step in range(self.step, self.step + steps):
            for _ in range(batches):
                number = self._writer.number("train", step)
                rows = [
                    {**row, "belief": {"mean": 0.5, "std": 0.1, "attempts": 2.0}, "kl": 0.1 * number}
                    for n, scores in enumerate(SCORES)
                    for row in synthetic_traces.group(
                        scores, length, step=step, batch=number, group=n, prompt=f"Task {n} of {step % 3}"
                    )
                ]
                self._writer.write("train", step, rows)
        self.step += steps
        return self


@pytest.fixture(autouse=True)
def looks_always(monkeypatch):
    monkeypatch.setattr(live_feed, "AT_MOST_EVERY", 0.0)


@pytest.fixture(params=[False, True], ids=["plain", "gzip"])
def run(tmp_path, request):
    return Run(tmp_path / "run", request.param).go_on(4, batches=2)


@pytest.fixture
def lines_read(monkeypatch):
    """Return the list that collects the name of a trace file each time that a group is read from its lines."""
    read, scan = [], file_index.groups

    def watched(path, *more):
        for found in scan(path, *more):
            read.append(path.name.partition(".")[0])
            yield found

    monkeypatch.setattr(file_index, "groups", watched)
    return read


def told(run):
    """Return all that a server sends about a run: state, head, list, prompts and texts."""
    feed = Feed(run.folder)
    news, lists = feed.news(), feed.lists()
    del news["live"]["version"], news["head"]["live"]["version"]
    return json.dumps([news, lists, list(feed.texts(0, 0, 999))])


def without_index(run):
    shutil.copytree(run.folder, bare := run.folder.with_name("bare") / run.folder.name, dirs_exist_ok=True)
    (bare / "rollouts" / group_index.NAME).unlink(missing_ok=True)
    return type("Bare", (), {"folder": bare, "rollouts": bare / "rollouts"})


def assert_alike(run, tmp_path):
    """Assert that the server and the page show the same with the index and without it."""
    bare = without_index(run)
    assert told(run) == told(bare)
    pages = [write_page(one.folder, tmp_path / f"{n}.html").path.read_bytes() for n, one in enumerate((run, bare))]
    assert pages[0] == pages[1]


def test_pages_made_from_the_index_equal_pages_made_from_the_lines(run, tmp_path, lines_read):
    by_index = told(run)
    write_page(run.folder, tmp_path / "page.html")
    assert lines_read == []
    assert by_index == told(without_index(run))
    assert len(lines_read) == 24
    assert_alike(run, tmp_path)


def test_groups_that_a_kill_kept_out_of_the_index_are_read_from_the_lines(run, tmp_path, lines_read):
    index = run.rollouts / group_index.NAME
    before = index.read_bytes()
    run.go_on(batches=2)
    whole = index.read_bytes()
    for cut in (len(before), len(before) + 50, len(whole) - 3):  # before the new entries, and within them
        index.write_bytes(whole[:cut])
        lines_read.clear()
        assert len(json.loads(told(run))[0]["index"]["groups"]["step"]) == 30
        assert set(lines_read) == {"train-00000004"}
        assert_alike(run, tmp_path)


def test_lines_are_believed_where_the_index_disagrees(run, tmp_path):
    path = sorted(run.rollouts.glob("train-*"))[1]
    other = sorted(run.rollouts.glob("train-*"))[2]
    path.write_bytes(other.read_bytes())
    assert_alike(run, tmp_path)


def test_reading_a_run_without_an_index_writes_one_for_the_next_time(run, tmp_path, monkeypatch, lines_read):
    bare = without_index(run)
    by_lines = told(bare)
    assert not (bare.rollouts / group_index.NAME).exists(), "what is read at once is not worth a file"
    traced = sum(path.stat().st_size for path in bare.rollouts.glob("train-*"))
    monkeypatch.setattr(file_index, "KEEP", int(0.6 * traced))  # the index is written twice
    assert told(bare) == by_lines
    lines_read.clear()
    assert told(bare) == by_lines
    write_page(bare.folder, tmp_path / "page.html")
    assert lines_read == []
    (bare.rollouts / group_index.NAME).unlink()
    (bare.rollouts / group_index.NAME).mkdir()  # it cannot be written
    assert told(bare) == by_lines


def test_later_looks_make_no_checksum(run, monkeypatch):
    feed = Feed(run.folder)
    before = feed.news()["live"]["groups"]
    monkeypatch.setattr(group_index, "checksum", None)
    run.go_on()
    assert feed.news()["live"] == {**feed.news()["live"], "groups": before + 3, "problem": ""}


def test_a_look_is_at_all_files_only_if_something_was_written(run, monkeypatch):
    listed, real = [], traces.files
    monkeypatch.setattr(live_feed.traces, "files", lambda folder: listed.append(folder) or real(folder))

    def looked(pause=100):
        """Return the number of groups, and how often the files were listed; the folder has not changed for so long."""
        changed = os.stat(run.rollouts).st_mtime_ns - int(pause * 1e9)
        os.utime(run.rollouts, ns=(changed, changed))
        listed.clear()
        return feed.refresh()["groups"], len(listed)

    feed = Feed(run.folder)
    assert [looked(), looked(0), looked(0)] == [(24, 1), (24, 0), (24, 0)]
    run.go_on()
    assert [looked(), looked(0)] == [(27, 1), (27, 0)]
    before = os.stat(run.rollouts).st_mtime_ns
    run.step -= 1
    run.go_on()  # another batch of the same step: the folder has no new file
    os.utime(run.rollouts, ns=(before, before))
    assert [looked(0), looked(0)] == [(30, 1), (30, 0)]
    path = run.rollouts / "train-00000000.jsonl"
    if path.exists():  # a file that cannot grow is cut off
        path.write_bytes(b"")
        assert looked(0) == (30, 0)
        with pytest.raises(file_index.Moved):
            list(feed.texts(0, 0, 1))
        assert looked(0) == (24, 2)
    monkeypatch.setattr(live_feed, "_ALL_EVERY", 0.0)
    assert looked(0)[1] == 1


def test_a_file_that_is_written_while_the_run_is_read_is_not_missed(run):
    index, feed = run.rollouts / group_index.NAME, Feed(run.folder)
    assert feed.refresh()["groups"] == 24
    changed, before = os.stat(run.rollouts).st_mtime_ns, index.read_bytes()
    run.go_on()
    index.write_bytes(before)
    os.utime(run.rollouts, ns=(changed, changed))  # the clock of the file system is coarse
    assert feed.refresh()["groups"] == 27


def test_a_bad_line_is_named_each_time(run, monkeypatch):
    monkeypatch.setattr(file_index, "KEEP", 1)
    bare = Run(run.folder.with_name("other")).go_on(2)
    path = bare.rollouts / "train-00000000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"{}\n", *lines[3:]]))
    (bare.rollouts / group_index.NAME).unlink()
    for _ in range(2):
        news = Feed(bare.folder).news()
        assert "train-00000000.jsonl, line 4 is no attempt" in news["live"]["problem"]
        assert news["live"]["groups"] == 1 + 3
        with pytest.raises(ValueError, match=r"train-00000000\.jsonl, line 4 is no attempt"):
            write_page(bare.folder, bare.folder / "page.html")


def test_a_damaged_line_that_the_index_hides_is_named_when_its_group_is_opened(run, monkeypatch):
    feed = Feed(run.folder)
    feed.news()
    path = next(iter(sorted(run.rollouts.glob("train-00000000.*"))))
    data, times = bytearray(path.read_bytes()), path.stat()
    data[len(data) // 2 : len(data) // 2 + 20] = bytes(20)
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # a failing disk changes bytes but not the file's times
    for reader in (feed, Feed(run.folder)):
        news = reader.news()
        assert news["live"]["problem"] == "", "the index has its groups"
        if reader is not feed:  # a search names it too
            assert [] in reader.searched(0, 0, 99)
            assert path.name in reader.news(0, 99, news["live"]["version"])["live"]["problem"]
        texts = list(reader.texts(0, 0, 99))
        assert len(texts) == news["live"]["groups"], "the other groups are shown"
        (problem,) = {text["problem"] for text in texts if "problem" in text}
        assert path.name in problem
        after = reader.news(0, 99, news["live"]["version"])
        assert after["live"]["problem"] == problem


def test_a_page_has_the_whole_groups_of_a_gzip_file_that_a_kill_cut_off(tmp_path, monkeypatch):
    run = Run(tmp_path / "run", compress=True).go_on(2, length=3000)
    path = run.rollouts / "train-00000001.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-400])
    (run.rollouts / group_index.NAME).unlink()
    monkeypatch.setattr(file_index, "KEEP", 1)
    for _ in range(2):  # the second time from the index, which holds the whole groups
        assert write_page(run.folder, tmp_path / "page.html").groups_written == 5
        assert Feed(run.folder).news()["live"]["groups"] == 3, "it may be being written"


def test_a_search_reads_the_texts_that_a_page_shows(run):
    feed = Feed(run.folder)
    groups = feed.news()["live"]["groups"]
    shown = list(feed.texts(0, 0, groups))
    read = list(feed.searched(0, 0, groups))
    assert len(shown) == len(read) == groups
    for group, texts in zip(shown, read, strict=True):
        named = [text for _, text in [*group["prompt"], *group["reference"]]]
        assert sorted(texts) == sorted([*named, *(attempt["text"] for attempt in group["attempts"])])
    with pytest.raises(file_index.Moved):
        list(feed.searched(1, 0, groups))


# -- more than there is room for


def test_a_long_list_leaves_groups_out_and_says_so(run, monkeypatch):
    monkeypatch.setattr(live_feed, "MOST_LISTED", 24)  # attempts; the run has 48
    feed = Feed(run.folder)
    news = feed.news()
    head, groups = news["head"], news["index"]["groups"]
    counts = (head["groups"], head["groups_total"], head["attempts"], head["attempts_total"])
    assert counts == (12, 24, 24, 48)
    assert news["live"]["groups"] == len(groups["step"]) == 12
    # Live groups are the last to be left out. Others of the newest step stay only if there is room for them.
    alive = news["index"]["words"].index("alive")
    assert sorted(groups["step"]) == groups["step"]
    assert groups["verdict"].count(alive) == 8
    assert [point[0] for point in head["curves"][0]["series"][0]["points"]] == [0, 1, 2, 3], "of all groups"
    titles = [texts["prompt"][0][1] for texts in feed.texts(0, 0, 12)]
    assert titles == groups["title"]
    assert feed.lists()["counts"]["train"]["all"] == 9


@pytest.mark.parametrize("of_lines", [True, False], ids=["lines", "journal"])
def test_groups_that_an_alarm_names_stay_longest_in_a_list(tmp_path, monkeypatch, of_lines):
    monkeypatch.setattr(live_feed, "MOST_LISTED", 12)
    writer = Writer(str(tmp_path), about=ABOUT)
    writer.begin(0, 9)
    for step in range(6):
        alarms = ["repetition"] if of_lines and step == 2 else []
        scores = ([1.0, 0.0], [0.0, 0.0])
        rows = [synthetic_traces.group(of, step=step, group=n, alarms=alarms * n) for n, of in enumerate(scores)]
        writer.write("train", step, [row for of_group in rows for row in of_group])
    if not of_lines:
        writer.note("alarms", [{"step": 2, "name": "repetition", "message": "", "groups": [[0, 0, 1]]}])
    index = Feed(tmp_path).news()["index"]
    words, groups = index["words"], index["groups"]
    dead = [at for at, verdict in enumerate(groups["verdict"]) if words[verdict] != "alive"]
    assert [(groups["step"][at], [words[code] for code in groups["alarms"][at]]) for at in dead] == [
        (2, ["repetition"])
    ]


def test_all_groups_of_the_newest_steps_are_in_a_long_list(tmp_path, monkeypatch):
    monkeypatch.setattr(live_feed, "MOST_LISTED", 60)
    news = Feed(Run(tmp_path / "run").go_on(20).folder).news()
    steps = news["index"]["groups"]["step"]
    assert [steps.count(step) for step in (18, 19)] == [3, 3]
    assert news["head"]["note"] == "The list holds all groups of the last 2 steps and evaluations."
    assert len(steps) == 30
    assert len(set(steps)) == 20


def test_a_list_that_becomes_too_long_is_chosen_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(live_feed, "MOST_LISTED", 24)
    run = Run(tmp_path / "run").go_on(6)
    feed = Feed(run.folder)
    first = feed.news()["live"]
    run.go_on()
    more = feed.news(first["epoch"], first["groups"], first["version"])
    assert (more["live"]["epoch"], more["index"]["groups"]["step"]) == (first["epoch"], [6, 6, 6])
    assert more["head"]["groups"] == first["groups"] + 3
    run.go_on(6)
    anew = feed.news(more["live"]["epoch"], more["live"]["groups"], more["live"]["version"])
    assert anew["live"]["epoch"] == first["epoch"] + 1
    assert anew["head"]["attempts"] == 24 < anew["head"]["attempts_total"] == 78
    assert len(anew["index"]["groups"]["step"]) == anew["live"]["groups"] == 12
    with pytest.raises(file_index.Moved):
        list(feed.texts(first["epoch"], 0, 1))
    assert [texts["prompt"][0][1] for texts in feed.texts(anew["live"]["epoch"], 0, 12)] == anew["index"]["groups"][
        "title"
    ]


def test_a_server_of_a_long_run_answers(run, monkeypatch):
    monkeypatch.setattr(live_feed, "MOST_LISTED", 24)
    with serving(run.folder) as server:
        answer, body = ask(server, f"/{server.token}/")
        assert answer.status == 200
        assert b'"groups":12,"groups_total":24' in body
        lists = json.loads(ask(server, f"/{server.token}/lists")[1])
        assert len(lists["listed"]) == len(lists["title"]) == 9


def test_lists_of_prompts_are_not_counted_at_each_step_of_a_long_run(run, monkeypatch):
    feed = Feed(run.folder)
    sampled = []
    for slow in (0.1, 0.0):  # first the lists are fast to count, then slow
        monkeypatch.setattr(live_feed, "_SLOW", slow)
        monkeypatch.setattr(live_feed, "_REST", 1e9)
        for _ in range(2):
            run.go_on()
            feed.news()
            sampled.append(sum(feed.lists()["groups"]))
    assert sampled == [27, 30, 33, 33]


def test_lists_of_prompts_that_take_long_are_counted_before_they_are_asked_for(run, monkeypatch):
    monkeypatch.setattr(live_feed, "_SLOW", 0.0)
    monkeypatch.setattr(live_feed, "_REST", 1e-9)
    feed = Feed(run.folder)
    feed.news()
    assert sum(feed.lists()["groups"]) == 24
    run.go_on()
    feed.news()
    assert sum(feed.lists()["groups"]) == 24
    feed.count_ahead()
    assert sum(feed.lists()["groups"]) == 27


def test_a_server_counts_the_lists_of_a_long_run_before_its_page_is_opened(run, monkeypatch):
    monkeypatch.setattr(live_feed, "MOST_LISTED", 24)
    counted = threading.Event()
    monkeypatch.setattr(Feed, "_counted_lists", lambda feed: counted.set())
    with serving(run.folder):
        assert counted.wait(10)


def test_prompts_that_changed_equally_are_listed_in_order_of_appearance():
    rows = [
        synthetic_traces.row(step=step, group=n, prompt=f"Task {n}", verdict=None, reward=float(step))
        for step in range(2)
        for n in range(5)
    ]
    told, identities = lists([*group_index.blocks_of([row, row] for row in rows)], 1.0)
    assert told["title"] == [f"Task {n}" for n in range(5)]
    assert identities != sorted(identities)


def test_a_static_page_reads_no_more_than_it_has_room_for_and_says_what_it_left_out(run, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "_FIRST", 3)
    read, real = [], file_index.read
    monkeypatch.setattr(file_index, "read", lambda place: read.append(place) or real(place))
    run.go_on(36, length=300)
    written, head, index, groups = page_of_run(run.folder, tmp_path / "page.html", max_mb=room_for(0.03))
    assert written.bytes < room_for(0.03) * 1e6
    assert 5 < written.groups_written == len(groups) == len(index["groups"]["step"]) < len(set(read)) + 1
    assert len(read) == len(set(read)) < written.groups_total == 24 + 108
    counts = (head["groups"], head["groups_total"], head["attempts"], head["attempts_total"])
    assert counts == (written.groups_written, 132, 2 * written.groups_written, 264)
    assert head["opening"] is not None


def test_a_run_that_changes_while_its_page_is_made_is_named(run, tmp_path, monkeypatch):
    real = file_index.read_run

    def and_then(*args):
        groups = real(*args)
        next(run.rollouts.glob("train-*")).unlink()
        return groups

    monkeypatch.setattr(file_index, "read_run", and_then)
    with pytest.raises(ValueError, match="was changed while it was read"):
        write_page(run.folder, tmp_path / "page.html")


# -- several runs


def compared(runs, path, **options):
    """Return the bytes of the page that compares the runs."""
    return write_comparison([run.folder for run in runs], path, **options).path.read_bytes()


@pytest.fixture
def two_runs(run):
    """Return two runs. They share six of their nine prompts."""
    return [run, Run(run.folder.with_name("other"), compress=True).go_on(2, batches=3)]


def test_a_comparison_from_the_index_equals_one_from_the_lines(two_runs, tmp_path, lines_read, monkeypatch):
    monkeypatch.setattr(traces, "groups", lambda *_: pytest.fail("all lines are read"))
    by_index = compared(two_runs, tmp_path / "page.html")
    assert lines_read == []
    bare = [without_index(run) for run in two_runs]
    assert compared(bare, tmp_path / "page.html") == by_index
    assert len(lines_read) == 24 + 18


def test_only_texts_that_may_find_room_are_read_to_compare_runs(two_runs, tmp_path, monkeypatch):
    for run in two_runs:
        run.go_on(30, length=300)
    read, real = [], file_index.read
    monkeypatch.setattr(file_index, "read", lambda place: read.append(place) or real(place))
    monkeypatch.setattr(compare, "MISFITS", 2)
    least = write_comparison([run.folder for run in two_runs], tmp_path / "all.html").bytes
    assert len(read) == len(set(read)) == 24 + 18 + 2 * 90
    read.clear()
    written = write_comparison([run.folder for run in two_runs], tmp_path / "page.html", max_mb=0.6 * least / 1e6)
    assert (written.prompts_shared, written.prompts_written) == (9, 9)
    assert 36 <= len(read) < 222
    places = [(place.path, place.at, place.skip) for place in read[:36]]
    assert places == sorted(places, key=lambda place: (place[0].parts[-3] != two_runs[0].folder.name, *place))


def test_a_run_of_stock_trl_shares_the_prompts_of_one_that_has_an_index(run, tmp_path):
    """TRL's files hold no references, so a prompt's identity there differs from its identity in the index."""
    completions = tmp_path / "stock" / "completions"
    completions.mkdir(parents=True)
    rows = {"step": 1, "prompt": ["Task 1 of 0"] * 2, "completion": ["a", "b"], "right": [1.0, 0.0]}
    pd.DataFrame({**rows, "advantage": [0.5, -0.5]}).to_parquet(completions / "completions_00001.parquet")
    written = write_comparison([run.folder, tmp_path / "stock"], tmp_path / "page.html")
    assert (written.prompts_shared, written.prompts_written) == (1, 1)


def test_lists_that_find_no_room_are_not_tried_for_ever(monkeypatch):
    monkeypatch.setattr(compare, "MISFITS", 3)
    tried = []

    class Texts:
        def stored(self, size):
            tried.append(size)
            return compare.Stored(at=0, line=size, packed=0, raw=0)

        def pack_ahead(self, lists, room):
            return 1

    room = 10 + 2 * compare.Stored(at=0, line=0, packed=0, raw=0).cost
    sizes = [[9], [7], [7], [1], [7], [7], [7], [0], [0]]
    assert compare._fitting(sizes, room, Texts()) == ([0, 3], 0)
    assert tried == [9, 7, 7, 1, 7, 7, 7]
