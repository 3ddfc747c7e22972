"""The live page of a run: its server, the feed that reads the growing files, and the page in a real browser."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import sys
import time

import browser_pages
import pytest
import synthetic_traces
import warm_processes
from browser_pages import ask, serving, shows, soon, titles, until

from trl_grpo_plus.cli.main import main
from trl_grpo_plus.traces import Writer
from trl_grpo_plus.view import live_feed, write_page
from trl_grpo_plus.view.file_index import Moved
from trl_grpo_plus.view.live_feed import Feed
from trl_grpo_plus.view.server import open_server


browser = browser_pages.browser  # a fixture
ABOUT = {"rewards": {"accuracy": 1.0, "format": 1.0}, "num_generations": 4}
SCORES = ([1.0, 0.0, 0.0, 1.0], [1.0] * 4, [0.0] * 4)


class Run:
    """A run in progress: writes the files that a trainer writes, in the same way."""

    def __init__(self, folder, **options):
        self.folder, self.step = folder, 0
        self._writer = Writer(str(folder), about=ABOUT, **options)
        self._writer.begin(0, 50)

    def go_on(self, steps=1, alarm=None, word="", scores=SCORES, length=400, task="Task {step}.{n} {word}"):
        """Write so many more steps, with one group for each entry of `scores`."""
        for step in range(self.step, self.step + steps):
            named = {"step": step + 1, "batch": self._writer.number("train", step + 1)}
            groups = [
                synthetic_traces.group(of, length, **named, group=n, prompt=prompt, alarms=[alarm] if alarm else [])
                for n, of in enumerate(scores)
                for prompt in [task.format(step=step, n=n, word=word)]
            ]
            self._writer.write("train", step + 1, [row for rows in groups for row in rows])
            self._writer.note("metrics", [{"step": step + 1, "reward": step / 10, "kl": 0.1}])
            if alarm:
                self._writer.note(
                    "alarms", [{"step": step + 1, "name": alarm, "message": "it loops", "groups": [[0, 0, 0]]}]
                )
        self.step += steps

    def note_first_prompt(self, text):
        self._writer.note("first_prompt", [{"step": 1, "text": text, "tokens": len(text), "flags": []}])

    def go_back(self, step):
        """Resume from a checkpoint of that step, as another process would."""
        self._writer = Writer(str(self.folder), about=ABOUT)
        self._writer.begin(step, 50)
        self.step = step

    def end(self):
        self._writer.note("metrics", [{"step": self.step, "train_runtime": 9.0}])


@pytest.fixture(autouse=True)
def looks_always(monkeypatch):
    monkeypatch.setattr(live_feed, "AT_MOST_EVERY", 0.0)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run")


# -- which requests are answered


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("served") / "run")
    run.go_on(2)
    with serving(run.folder) as server:
        yield server


def test_only_who_knows_the_token_is_answered(server):
    token = server.token
    for path in ("", "data", "texts?epoch=0&from=0&to=1", "searched?epoch=0&from=0&to=1"):
        assert ask(server, f"/{token}/{path}")[0].status == 200
    wrong = ("", "a", token[:-1], f"{token}x", token.lower(), "%2e%2e", "%C3%A9")
    for path in ("/", "/data", "//", f"/?{token}", *(f"/{one}/data" for one in wrong)):
        answer, body = ask(server, path)
        assert (answer.status, body) == (403, b"403 Forbidden\n"), path
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:9000", 200),  # through a tunnel
        ("evil.example", 403),
        ("127.0.0.1.evil.example:80", 403),
        ("localhost.evil.example", 403),
        ("evil.example@127.0.0.1.", 403),
        ("[::1", 403),
        ("", 403),
        (None, 403),
    ],
)
def test_a_host_name_that_was_rebound_to_this_machine_is_not_answered(server, capsys, host, status):
    answer, _ = ask(server, f"/{server.token}/data", Host=host)
    assert (answer.status, capsys.readouterr().err) == (status, "")


@pytest.mark.parametrize(
    "path",
    ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "data/", "rollouts/run.json", "texts/../data", ".", "%00", "page"],
)
def test_no_request_path_reaches_a_file(server, path):
    answer, body = ask(server, f"/{server.token}/{path}")
    assert (answer.status, body) == (404, b"404 Not Found\n")


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "STRANGE"])
def test_get_is_the_only_method(server, method):
    answer, _ = ask(server, f"/{server.token}/data", method)
    assert (answer.status, answer.getheader("Allow")) == (405, "GET")
    assert answer.getheader("Access-Control-Allow-Origin") is None


def test_no_answer_may_be_cached_sniffed_or_framed(server):
    paths = {"": 200, "data": 200, "data?epoch=x": 400, "texts": 409, "texts?epoch=0&from=99&to=100": 409, "no": 404}
    for path, status in paths.items():
        answer, _ = ask(server, f"/{server.token}/{path}")
        assert answer.status == status, path
        assert answer.getheader("Cache-Control") == "no-store"
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Referrer-Policy") == "no-referrer"
        assert "frame-ancestors 'none'" in answer.getheader("Content-Security-Policy")
        assert "default-src 'none'" in answer.getheader("Content-Security-Policy")


def test_only_the_page_that_is_served_may_ask_and_only_its_server(server, tmp_path):
    answer, body = ask(server, f"/{server.token}/")
    page = body.decode()
    policy = re.search(r'Policy" content="([^"]*)"', page)[1]
    assert answer.getheader("Content-Security-Policy") == f"{policy}; frame-ancestors 'none'"
    assert "connect-src 'self';" in policy
    assert "unsafe" not in policy
    assert "fetch(" in page
    assert 'id="chunk-' not in page
    static = write_page(synthetic_traces.write_run(tmp_path), tmp_path / "report.html").path.read_text()
    for word in ("connect-src", "fetch(", "XMLHttpRequest", "WebSocket"):
        assert word not in static


def test_a_port_that_is_taken_or_none_is_refused_by_name(run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["view", str(run.folder), "--serve", "--port", str(port)]) == 2
    assert f"--port={port} cannot be had (Address already in use). Give another" in capsys.readouterr().err
    assert main(["view", str(run.folder), "--serve", "--port", "70000"]) == 2
    assert "--port=70000 is no port" in capsys.readouterr().err
    assert main(["view", str(run.folder), "--port", "8000"]) == 2
    assert "--port needs --serve" in capsys.readouterr().err
    assert main(["view", str(run.folder), "--serve", "-o", "page.html"]) == 2
    assert "--output does not go with --serve" in capsys.readouterr().err


def test_ctrl_c_ends_it_and_nothing_is_left(run, tmp_path):
    run.go_on()
    command = [sys.executable, "-m", "trl_grpo_plus.cli.main", "view", str(run.folder), "--serve"]
    out, err = tmp_path / "out", tmp_path / "err"
    process = warm_processes.Popen(command, stdout=out, stderr=err)
    try:
        end = time.monotonic() + 60
        while not out.exists() or not out.read_text().endswith("stops it.\n"):
            assert process.poll(0.02) is None, err.read_text()
            assert time.monotonic() < end
        address = re.search(r"http://127\.0\.0\.1:(\d+)(/[\w-]{32}/)\n", out.read_text())
        connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=60)
        connection.request("GET", f"{address[2]}data")
        assert json.loads(connection.getresponse().read())["live"]["groups"] == 3
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert err.read_text() == ""
    assert out.read_text().startswith(f"{run.folder}: http://127.0.0.1:")
    assert [path.name for path in run.folder.iterdir()] == ["rollouts"]


# -- what the feed reads


def known(news):
    return {name: news["live"][name] for name in ("epoch", "groups", "version")}


def titles_of(news):
    return news["index"]["groups"]["title"]


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
def test_each_request_returns_only_what_is_new(tmp_path, compress):
    run = Run(tmp_path, compress=compress)
    reader = Feed(run.folder)
    assert reader.news()["live"] | {"version": 0} == {
        **{"epoch": 0, "version": 0, "groups": 0, "ended": False, "problem": "", "there": True}
    }
    run.go_on(2)
    first = reader.news()
    assert titles_of(first) == [f"Task {step}.{n}" for step in (0, 1) for n in range(3)]
    assert "head" not in reader.news(**known(first))
    run.go_on()
    second = reader.news(**known(first))
    assert titles_of(second) == ["Task 2.0", "Task 2.1", "Task 2.2"]
    assert sum(second["index"]["chunks"]) == 3
    assert second["head"]["groups"] == 9
    assert [x for x, _ in second["head"]["curves"][0]["series"][0]["points"]] == [1, 2, 3]
    # The numbers of words and prompts continue, whatever was requested in between.
    reader.news()
    assert second["index"]["words"][: len(first["index"]["words"])] == first["index"]["words"]
    prompts = [news["index"]["groups"]["prompt"] for news in (first, second)]
    assert sorted(prompts[0] + prompts[1]) == list(range(9))
    texts = [text["prompt"][0][1] for text in reader.texts(0, 4, 8)]
    assert texts == ["Task 1.1 ", "Task 1.2 ", "Task 2.0 ", "Task 2.1 "]
    assert all(len(text["attempts"]) == 4 for text in reader.texts(0, 0, 9))


def test_what_is_half_written_is_told_once_it_is_whole(run):
    run.go_on()
    path = run.folder / "rollouts" / "train-00000001.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:6]) + lines[6][:100])
    reader = Feed(run.folder)
    first = reader.news()
    assert titles_of(first) == ["Task 0.0"]
    with open(path, "ab") as file:
        file.write(whole[len(path.read_bytes()) :])
    assert titles_of(reader.news(**known(first))) == ["Task 0.1", "Task 0.2"]
    assert [len(text["attempts"]) for text in reader.texts(0, 0, 3)] == [4, 4, 4]


def test_steps_that_are_made_again_take_the_place_of_those_before(run):
    run.go_on(4, word="before")
    reader = Feed(run.folder)
    before = reader.news()
    run.go_back(2)
    with pytest.raises(Moved):
        list(reader.texts(0, 9, 12))
    again = reader.news(**known(before))
    assert again["live"]["epoch"] == 1
    assert titles_of(again) == [f"Task {step}.{n} before" for step in (0, 1) for n in range(3)]
    run.go_on(1, word="after")
    assert titles_of(reader.news(**known(again))) == [f"Task 2.{n} after" for n in range(3)]
    assert [x for x, _ in reader.news()["head"]["curves"][0]["series"][0]["points"]] == [1, 2, 3]
    with pytest.raises(Moved):
        list(reader.texts(0, 0, 1))


def test_a_file_that_is_broken_is_named_and_the_others_are_read(run):
    run.go_on(2)
    broken = run.folder / "rollouts" / "train-00000001.jsonl"
    broken.write_text('{"batch": 0, "round": 0\n' + broken.read_text())
    reader = Feed(run.folder)
    news = reader.news()
    assert titles_of(news) == ["Task 1.0", "Task 1.1", "Task 1.2"]
    assert re.search(
        r"train-00000001\.jsonl, line 1 is no JSON object .* Correct or remove it", news["live"]["problem"]
    )
    assert reader.news(**known(news))["live"]["problem"] == news["live"]["problem"]


def test_of_several_broken_files_the_first_is_named_and_the_others_are_counted(run):
    run.go_on(4)
    for step, told in ((1, ""), (2, " Another file cannot be read as a whole."), (3, " 2 more files cannot be read")):
        path = run.folder / "rollouts" / f"train-{step:08d}.jsonl"
        path.write_text("no line\n" + path.read_text())
        problem = Feed(run.folder).news()["live"]["problem"]
        assert told in problem
        assert problem.count("is no JSON object") == 1


def test_evaluations_come_in_where_they_belong_and_a_run_that_ended_says_so(run):
    run.go_on(2)
    reader = Feed(run.folder)
    before = reader.news()
    easy = synthetic_traces.group([1.0, 0.0], step=1, split="eval_easy", prompt="easy")
    run._writer.write("eval_easy", 1, easy)
    run.end()
    run._writer.note("metrics", [{"step": 2, "eval_easy_runtime": 1.0, "eval_reward": 0.5}])
    news = reader.news(**known(before))
    assert (titles_of(news), news["live"]["epoch"], news["live"]["ended"]) == (["easy"], 0, True)
    run.go_on()
    assert not reader.news()["live"]["ended"]
    shutil.rmtree(run.folder)
    news = reader.news()
    assert (news["live"]["groups"], news["live"]["there"]) == (0, False)


def test_what_trl_writes_is_not_followed(tmp_path):
    (tmp_path / "completions").mkdir()
    (tmp_path / "completions" / "completions_00001.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match="is a run of stock TRL, whose files are not followed"):
        open_server(tmp_path)


# -- the page, while a run goes on


@pytest.fixture
def opened(browser):
    """Give a function that opens a page, which may request only its own server."""
    refused = "Failed to load resource"  # the server is gone, or refuses texts of steps that are made again
    drawn = ".attempt, .empty, #live-note:not([hidden])"
    with browser_pages.quiet(browser, drawn, refused) as open_page:
        yield open_page


def ask_now(page):
    """Make the page ask its server now. By itself it asks every few seconds."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def follows(page, text):
    """Make the page ask, and wait until its head begins with `text`."""
    ask_now(page)
    until(page, "text => document.querySelector('#live').textContent.startsWith(text)", text)


def test_new_groups_appear_and_the_open_group_stays(run, opened):
    run.go_on(3, scores=SCORES * 5)
    with serving(run.folder) as server:
        page = opened(f"{server.address}#split=train&step=2&group=0.0.12")
        soon(lambda: page.inner_text("#live") == "Live: step 3 of 50")
        page.check("#all-steps")
        shows(page, 2, 12)
        page.evaluate("document.querySelector('#group-head').dataset.before = ''")
        page.select_option("#verdict", "alive")
        until(page, "document.querySelector('#status').textContent.startsWith('15 groups')")
        until(page, "document.querySelector('[data-before]') === null")  # the group is drawn again
        shows(page, 2, 12)
        kept = "[list, ...document.querySelectorAll('.attempt .body')].map((node) => node.scrollTop)"
        kept = f"(() => {{ const list = document.querySelector('#list'); return {kept}; }})()"
        page.evaluate("document.querySelector('#list').scrollTop = 300")
        page.evaluate("document.querySelectorAll('.attempt .think').forEach((node) => { node.open = true; })")
        page.evaluate("document.querySelectorAll('.attempt .body').forEach((node) => { node.scrollTop = 40; })")
        page.focus(".attempt .body")
        soon(lambda: page.evaluate(kept)[0] == 300 and max(page.evaluate(kept)[1:]) > 0)
        before = page.evaluate(kept)
        run.go_on(2, alarm="repetition", scores=SCORES * 5)
        # The page asks by itself within a few seconds.
        until(page, "document.querySelector('#live').textContent.startsWith('Live: step 5 of 50, new at')")
        until(page, "document.querySelector('#status').textContent.startsWith('25 groups')")
        shows(page, 2, 12)
        soon(lambda: page.evaluate(kept) == before)
        soon(lambda: page.evaluate("document.activeElement.matches('.attempt .body')"))
        soon(lambda: page.locator(".attempt .think[open]").count() == 4)
        soon(lambda: page.input_value("#verdict") == "alive")
        soon(lambda: page.inner_text("#alarms summary") == "1 alarm: repetition")
        soon(lambda: "repetition" in page.locator("#alarm option").all_text_contents())
        soon(lambda: page.get_attribute("#step", "max") == "4")
        soon(lambda: "5 steps of train; 75 groups, 300 attempts" in page.inner_text("#facts"))
        soon(lambda: page.locator("#curves svg").first.get_attribute("aria-label").endswith("at last 0.4"))
        for step in (3, 4, 5):
            page.keyboard.press("l")
            shows(page, step, 0)
        soon(lambda: "Task 4.0" in page.inner_text("#task"))


# Counts the timers of polls: `armed` is how many were started, `mostPolls` how many were pending at once, at most.
COUNT_POLLS = """() => {
  const [start, stop, polls] = [window.setTimeout, window.clearTimeout, new Set()];
  Object.assign(window, { armed: 0, mostPolls: 0 });
  window.setTimeout = (act, ms, ...rest) => {
    if (!(ms >= 3000)) return start(act, ms, ...rest);
    const id = start(() => [polls.delete(id), act(...rest)], ms);
    polls.add(id);
    window.armed++;
    window.mostPolls = Math.max(window.mostPolls, polls.size);
    return id;
  };
  window.clearTimeout = (id) => [polls.delete(id), stop(id)];
}"""


def test_a_page_that_is_hidden_and_shown_again_and_again_asks_no_more_often(run, opened):
    run.go_on()
    with serving(run.folder) as server:
        page = opened(server.address)
        shows(page, 1)
        page.evaluate(COUNT_POLLS)
        for _ in range(5):
            armed = page.evaluate("window.armed")
            for _ in range(3):
                ask_now(page)
            until(page, "armed => window.armed > armed", armed)
        assert page.evaluate("window.mostPolls") == 1


def test_the_first_prompt_is_shown_and_stays_as_it_is_read(run, opened):
    with serving(run.folder) as server:
        run.go_on()
        page = opened(server.address)
        shows(page, 1)
        soon(lambda: page.locator("#given").is_hidden())
        run.note_first_prompt("\n".join(f"line {i}" for i in range(200)))
        follows(page, "Live: step 1 ")
        page.click("#given summary")
        until(page, "document.querySelector('#given-text').textContent.startsWith('line 0')")
        page.evaluate("document.querySelector('#given-text').scrollTop = 40")
        page.evaluate("document.querySelector('#given-text').firstChild.before = true")
        run.go_on()
        follows(page, "Live: step 2 ")
        soon(lambda: page.evaluate("document.querySelector('#given-text').scrollTop") == 40)
        soon(
            lambda: page.evaluate("document.querySelector('#given-text').firstChild.before")
        )  # the text node is the same, so that a selection in it stays


def test_the_last_step_is_followed_until_one_moves_off_it(run, opened):
    run.go_on(2)
    with serving(run.folder) as server:
        page = opened(f"{server.address}#split=train&step=1")
        shows(page, 1)
        page.check("#follow-last")
        shows(page, 2)
        run.go_on()
        follows(page, "Live: step 3 ")
        shows(page, 3)
        soon(lambda: titles(page) == ["Task 2.0", "Task 2.1", "Task 2.2"])
        page.locator(".row").nth(1).click()
        run.go_on()
        follows(page, "Live: step 4 ")
        shows(page, 4)
        page.click("#step-back")
        shows(page, 3)
        run.go_on()
        follows(page, "Live: step 5 ")
        until(page, "!document.querySelector('#follow-last').checked")
        shows(page, 3)


def test_the_newest_step_is_followed_unless_an_address_names_another(run, opened):
    run.go_on(2)
    with serving(run.folder) as server:
        page = opened(server.address)
        shows(page, 2)
        soon(lambda: page.is_checked("#follow-last"))
        soon(lambda: page.evaluate("location.hash") == "#split=train")  # no step, so that a reload still follows
        run.go_on()
        follows(page, "Live: step 3 ")
        shows(page, 3)
        page.reload()
        shows(page, 3)
        page.locator(".attempt .body").first.focus()  # as somebody who reads the attempt does
        run.go_on()
        follows(page, "Live: step 4 ")
        until(page, "!document.querySelector('#follow-last').checked")
        shows(page, 3)
        soon(lambda: "step=3" in page.evaluate("location.hash"))
        page = opened(f"{server.address}#split=train&step=2")
        shows(page, 2)
        soon(lambda: not page.is_checked("#follow-last"))


def test_what_has_not_changed_is_not_drawn_again(run, opened):
    run.go_on(2, alarm="repetition")
    with serving(run.folder) as server:
        page = opened(f"{server.address}#split=train&step=1&metric=kl")
        shows(page, 1)
        page.wait_for_selector("#picked .curve")
        page.click("#picker > summary")
        page.wait_for_selector("#metric-names input")
        same = "#alarm-list, .alarm button, #legend .swatch, .curve, .curve > svg, #metric-names input, .row, .attempt"
        page.evaluate(f"document.querySelectorAll('{same}').forEach((node) => {{ node.before = true; }})")
        plot = page.locator("#curves svg[role=slider]").first
        plot.focus()
        page.keyboard.press("Home")
        pointed = plot.get_attribute("aria-valuetext")
        run.go_on(2)
        follows(page, "Live: step 4 ")
        until(page, "document.querySelector('#picked svg').getAttribute('aria-valuemax') === '4'")
        soon(lambda: plot.get_attribute("aria-valuemax") == "4")
        anew = f"[...document.querySelectorAll('{same}')].filter((node) => !node.before)"
        assert page.evaluate(f"{anew}.map((node) => node.outerHTML)") == []
        assert page.evaluate("document.activeElement.matches('#curves svg')")
        assert plot.get_attribute("aria-valuetext") == pointed


@pytest.mark.parametrize(("key", "there"), [("o", "#prompt-list"), ("f", "#pair")])
def test_an_open_view_of_prompts_is_not_left_for_the_last_step(run, opened, key, there):
    run.go_on(2)
    with serving(run.folder) as server:
        page = opened(f"{server.address}#split=train&step=2")
        shows(page, 2)
        page.check("#follow-last")
        page.keyboard.press(key)
        page.wait_for_selector(there)
        head = page.inner_text("#group-head h2")
        run.go_on()
        follows(page, "Live: step 3 ")
        until(page, "!document.querySelector('#follow-last').checked")
        soon(lambda: page.locator(there).is_visible())
        soon(lambda: page.inner_text("#group-head h2") == head)


def test_prompts_that_are_solved_while_the_run_goes_on_are_listed(run, opened):
    again = "Task {n}"
    run.go_on(scores=([0.0] * 4, [1.0] * 4, [0.0] * 4), task=again)
    with serving(run.folder) as server:
        page = opened(f"{server.address}#split=train&step=1")
        shows(page, 1)
        page.keyboard.press("o")
        page.wait_for_selector("#prompt-list")
        soon(lambda: page.inner_text("#list-newly") == "Newly solved 0")
        run.go_on(scores=([1.0] * 4, [1.0] * 4, [0.0] * 4), task=again)
        follows(page, "Live: step 2 ")
        soon(lambda: page.inner_text("#list-newly") == "Newly solved 0", "what is read stays")
        page.keyboard.press("o")
        page.keyboard.press("o")
        until(page, "document.querySelector('#list-newly')?.textContent === 'Newly solved 1'")
        names = ("lost", "never", "always", "unsettled", "all")
        told = ["Lost 0", "Never solved 1", "Always solved 1", "Not learnt 0", "All 3"]
        soon(lambda: [page.inner_text(f"#list-{name}") for name in names] == told)
        page.click("#list-newly")
        soon(lambda: page.locator(".prompt-row .row-title").all_inner_texts() == ["Task 0"])
        page.locator(".prompt-row").click()
        until(page, "document.querySelector('#follow-facts')?.textContent.startsWith('newly solved Sampled 2 times')")
        soon(lambda: "first solved by all attempts at step 2" in page.inner_text("#follow-facts"))


def test_lists_name_prompts_as_the_page_that_asks_knows_them(run):
    run.go_on(2, task="Task {n}")
    with serving(run.folder) as server:
        first = json.loads(ask(server, f"/{server.token}/lists")[1])
        assert (first["title"], first["listed"]) == (["Task 0", "Task 1", "Task 2"], [0, 1, 2])
        known = server.feed.news()["live"]
        run.go_on(2, task="Task {n} again")
        server.feed.news(known["epoch"], known["groups"])
        later = json.loads(ask(server, f"/{server.token}/lists")[1])
        assert sorted(later["listed"]) == [0, 1, 2, 3, 4, 5]
        assert later["counts"] == {"train": {"all": 6, "newly": 0, "lost": 0, "never": 2, "always": 2, "unsettled": 0}}
        assert later["bar"] == 2.0


def test_new_groups_are_sorted_by_the_step_at_which_their_prompt_was_first_seen(run, opened):
    run.go_on(2)
    with serving(run.folder) as server:
        page = opened(f"{server.address}#split=train&step=1&scope=all&sort=first.down")
        until(page, "document.querySelector('.row-title bdi')?.textContent === 'Task 1.0'")
        run.go_on()
        follows(page, "Live: step 3 ")
        until(page, "document.querySelector('#status').textContent.startsWith('9 groups')")
        soon(lambda: titles(page)[:4] == ["Task 2.0", "Task 2.1", "Task 2.2", "Task 1.0"])
        soon(lambda: page.locator(".row .end").first.inner_text().endswith("first 3"))


def test_a_metric_that_is_picked_grows_with_the_run(run, opened):
    run.go_on(2)
    with serving(run.folder) as server:
        page = opened(f"{server.address}#split=train&step=1")
        page.click("#picker > summary")
        page.wait_for_selector("#metric-names input")
        page.check("#metric-names input[data-metric=kl]")
        plot = "document.querySelector('#picked svg')?.getAttribute('aria-valuemax')"
        until(page, f"{plot} === '2'")
        run.go_on(3)
        follows(page, "Live: step 5 ")
        until(page, f"{plot} === '5'")
        soon(lambda: page.locator("#picked figure").count() == 1)
        soon(lambda: page.is_checked("#metric-names input[data-metric=kl]"))
        soon(lambda: page.locator("#curves figure").count() > 1)


def test_new_groups_are_searched_too(run, opened):
    run.go_on(2, word="plain")
    with serving(run.folder) as server:
        page = opened(server.address)
        shows(page, 2)  # the last step
        page.check("#all-steps")
        page.fill("#query", "mango")
        until(page, "document.querySelector('#status').textContent.startsWith('0 groups')")
        run.go_on(word="mango")
        run.go_on(word="plain")
        follows(page, "Live: step 4 ")
        until(page, "document.querySelector('#status').textContent.startsWith('3 groups')")
        soon(lambda: titles(page) == [f"Task 2.{n} mango" for n in range(3)])
        shows(page, 3)


def test_a_search_says_what_it_did_not_read(run, opened, monkeypatch):
    monkeypatch.setattr(live_feed, "MOST_LISTED", 24)
    run.go_on(4, word="mango")
    with serving(run.folder) as server:
        page = opened(server.address)
        page.fill("#query", "MANGO")
        searched = "6 groups over all steps. Not searched: 6 groups that did not fit in the page."
        soon(lambda: page.inner_text("#status") == searched)


def test_it_waits_for_a_run_that_has_not_begun(tmp_path, opened):
    with serving(tmp_path / "later") as server:
        page = opened(server.address)
        soon(lambda: page.inner_text("#live") == "Waiting")
        told = "Waiting for the first batch of later: its folder is not there yet."
        soon(lambda: page.inner_text("#live-note") == told)
        soon(lambda: page.locator("#controls").is_hidden() and page.locator("#side").is_hidden(), "nothing to use yet")
        soon(lambda: page.inner_text("#facts") == "")
        Run(tmp_path / "later").go_on()
        ask_now(page)
        page.wait_for_selector(".attempt")
        shows(page, 1)
        soon(lambda: page.inner_text("#live") == "Live: step 1 of 50")
        soon(lambda: page.locator("#live-note").is_hidden())


def test_a_run_that_is_resumed_shows_what_it_makes_again(run, opened):
    run.go_on(4, word="before")
    with serving(run.folder) as server:
        page = opened(f"{server.address}#split=train&step=4&group=0.0.1")
        shows(page, 4, 1)
        page.select_option("#verdict", "all_good")
        run.go_back(2)
        run.go_on(2, word="after")
        follows(page, "Live: step 4 ")
        until(page, "document.querySelector('#task').textContent.includes('Task 3.1 after')")
        soon(lambda: titles(page) == ["Task 3.1 after"])
        soon(lambda: "4 steps of train; 12 groups" in page.inner_text("#facts"))


def test_it_says_that_the_run_has_ended_and_that_its_server_is_gone(run, opened):
    run.go_on(2)
    with serving(run.folder) as server:
        page = opened(f"{server.address}#split=train&step=1")
        run.end()
        follows(page, "Ended: step 2 of 50")
        soon(lambda: page.inner_text("#live-note").startswith("The run has ended."))
    follows(page, "Offline")
    soon(lambda: page.inner_text("#live-note").startswith("The server is gone since "))
    soon(lambda: page.locator(".attempt").count() == 4)
    page.click("#step-on")  # the page has loaded the chunk of that step already
    shows(page, 2)


def test_a_prompt_whose_attempts_are_gone_says_so(run, opened):
    run.go_on(2, length=200_000)
    with serving(run.folder) as server:
        page = opened(f"{server.address}#split=train&step=1")
        shows(page, 1)
    page.select_option("#verdict", "all_bad")
    page.keyboard.press("f")
    until(page, "document.querySelector('#group')?.textContent.includes('the server is gone')")
