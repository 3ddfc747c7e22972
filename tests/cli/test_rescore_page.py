"""The page that `rescore` writes, in a real Chromium: it opens on the groups with disagreements."""

import base64
import json
import re
import zlib
from pathlib import Path

import browser_pages
import pytest
import synthetic_traces
import test_rescore
from browser_pages import soon, titles, until

from trl_grpo_plus.cli.main import main
from trl_grpo_plus.trainer.hub import NOT_UPLOADED
from trl_grpo_plus.view import page as view


browser, opened = browser_pages.browser, browser_pages.opened  # fixtures
FIRST = test_rescore.GROUPS[:4]
PLANTED = [row for row in test_rescore.ATTEMPTS if row["reference"]["number"] % 7 == 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write the run and the rewards of test_rescore.py, and a reward that fails on a planted attempt."""
    folder = tmp_path_factory.mktemp("rescored")
    failing = (
        "def failing(completions, number):\n    assert 5 not in number, '<b>planted'\n    return [1.0] * len(number)\n"
    )
    (folder / "mine.py").write_text(f"{test_rescore.REWARDS}\n\n{failing}")
    synthetic_traces.write_traces(folder / "run", test_rescore.GROUPS, about={"rewards": {"exact_answer": 1.0}})
    return folder


@pytest.fixture(scope="module")
def broken(folder):
    """Write the page of a reward that is wrong on every 7th attempt, at the default path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["rescore", "run", "--reward", "mine.py:broken"]) == 0
    return folder / "run" / "rescore.html"


def place(row):
    return f"{row['step']} + {row['group']}"


def marked(page):
    return [node.get_attribute("data-attempt") for node in page.locator(".attempt.disagrees").all()]


def test_the_page_opens_on_the_groups_with_disagreements(broken, opened):
    page = opened(broken)
    groups = list(dict.fromkeys(place(row) for row in PLANTED))
    soon(lambda: titles(page) == groups)
    soon(lambda: page.inner_text("#status") == f"{len(groups)} groups over all steps.")
    soon(
        lambda: page.inner_text("#rescored") == "broken against the recorded total: 41 of 48 attempts score the same."
    )
    soon(lambda: page.locator("#differs option:checked").inner_text() == f"any disagreement ({len(groups)} groups)")
    for number, group in enumerate(groups):
        page.locator(".row").nth(number).click()
        until(page, "text => document.querySelector('#task').textContent.includes(text)", group)
        wrong = [row for row in PLANTED if place(row) == group]
        expected = sorted(str(row["attempt"]) for row in wrong)
        soon(lambda expected=expected: sorted(marked(page)) == expected)
        for row in wrong:
            old, new = f"{row['reward']:g}", f"{1 - row['reward']:g}"
            told = page.locator(f".attempt[data-attempt='{row['attempt']}'] .rescored tbody")
            expected = ["broken", old, "->", new, old, "→", new]
            soon(lambda told=told, expected=expected: told.inner_text().split() == expected)
    first = next(row for row in test_rescore.ATTEMPTS if place(row) == groups[0] and row not in PLANTED)
    page.locator(".row").first.click()
    until(page, "text => document.querySelector('#task').textContent.includes(text)", groups[0])
    soon(
        lambda: (
            page.inner_text(f".attempt[data-attempt='{first['attempt']}'] .rescored tbody").split()
            == ["broken", f"{first['reward']:g}", "→", f"{first['reward']:g}"]
        )
    )


def test_the_page_filters_by_kind_and_by_verdicts_that_would_change(broken, opened):
    page = opened(broken)
    kinds = {
        kind: [row for row in PLANTED if row["reward"] == old] for kind, old in (("0 -> 1", 0.0), ("1 -> 0", 1.0))
    }
    for kind, rows in kinds.items():
        groups = list(dict.fromkeys(map(place, rows)))
        page.select_option("#differs", label=f"{kind} ({len(groups)} group{'s' * (len(groups) != 1)})")
        soon(lambda groups=groups: titles(page) == groups)
    scores = {place(group[0]): [row["reward"] for row in group] for group in test_rescore.GROUPS}
    news = {place(group[0]): [abs(row["reward"] - (row in PLANTED)) for row in group] for group in test_rescore.GROUPS}
    turned = [
        name for name in scores if (len({*scores[name]}), max(scores[name])) != (len({*news[name]}), max(news[name]))
    ]
    turned = [name for name in turned if len({*scores[name]}) == 1 or len({*news[name]}) == 1]
    page.select_option("#differs", label=f"another verdict ({len(turned)} groups)")
    soon(lambda: titles(page) == turned)
    soon(
        lambda: (
            page.locator(".row .badge", has_text="→ alive").count() == sum(len({*news[name]}) > 1 for name in turned)
        )
    )
    soon(lambda: page.locator("#group-head .badge", has_text="→").count() == 1)
    page.click("#clear")
    until(page, "document.querySelector('#status').textContent === '12 groups over all steps.'")


def test_an_address_brings_back_what_is_not_filtered(broken, opened):
    page = opened(broken)
    before = page.inner_text("#status")
    page.click("#clear")
    page.uncheck("#all-steps")
    until(page, "!document.querySelector('#status').textContent.includes('over all')")
    soon(lambda: page.inner_text("#status") != before)
    soon(lambda: len(titles(page)) == int(page.inner_text("#status").split()[0]))
    shown = titles(page)
    page.reload()
    page.wait_for_selector(".attempt")
    soon(lambda: page.input_value("#differs") == "")
    soon(lambda: titles(page) == shown)
    soon(lambda: not page.is_checked("#all-steps"))


def test_several_rewards_have_their_own_kinds_and_messages_are_text(folder, opened, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(folder)
    rewards = ["--reward", "mine.py:broken", "--reward", "mine.py:failing"]
    assert main(["rescore", "run", *rewards, "-o", str(tmp_path / "two.html"), "-o", str(tmp_path / "two.jsonl")]) == 0
    told = capsys.readouterr().out
    assert f"{tmp_path}/two.html: a page that opens on the disagreements, 0." in told
    assert len((tmp_path / "two.jsonl").read_text().splitlines()) == 48
    page = opened(tmp_path / "two.html")
    soon(
        lambda: (
            [re.sub(r" \(\d+ groups?\)", "", name) for name in page.locator("#differs option").all_inner_texts()]
            == [
                *("–", "any disagreement", "broken: 0 -> 1", "broken: 1 -> 0", "failing: 0 -> 1", "failing: error"),
                "another verdict",
            ]
        )
    )
    page.keyboard.press("e")  # sets equal attempts apart
    page.select_option("#differs", label="failing: error (1 group)")
    until(page, "document.querySelectorAll('.attempt .rescored tbody tr').length === 8")
    mark = page.locator(".attempt[data-attempt='1'] .rescored .outcome", has_text="error")
    soon(lambda: mark.get_attribute("title") == "AssertionError: <b>planted")


def test_a_reward_that_agrees_opens_on_all_and_says_so(folder, opened, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    assert main(["rescore", "run", "--reward", "exact_answer", "-o", str(tmp_path / "own.html")]) == 0
    page = opened(tmp_path / "own.html")
    soon(lambda: "48 of 48 attempts score the same" in page.inner_text("#rescored"))
    until(page, "document.querySelector('#status').textContent === '12 groups over all steps.'")
    soon(lambda: page.locator("#differs").is_hidden())
    soon(lambda: marked(page) == [])


def test_attempts_without_the_recorded_reward_do_not_disagree(folder, opened, monkeypatch, tmp_path):
    """The first step recorded another reward, as before a resume with other rewards."""
    monkeypatch.chdir(folder)
    older = [[{**row, "rewards": {"other": 1.0}, "outcomes": {"other": "ok"}} for row in group] for group in FIRST]
    groups = [*older, *test_rescore.GROUPS[4:8]]
    synthetic_traces.write_traces(tmp_path / "run", groups, about={"rewards": {"exact_answer": 1.0}})
    assert main(["rescore", str(tmp_path / "run"), "--reward", "exact_answer"]) == 0
    page = opened(tmp_path / "run" / "rescore.html")
    assert page.inner_text("#rescored").endswith("16 of 16 attempts score the same. 16 more recorded no exact_answer.")
    assert page.locator("#differs").is_hidden()
    page.locator(".row", has_text=place(FIRST[0][0])).first.click()
    until(page, "text => document.querySelector('#task').textContent.includes(text)", place(FIRST[0][0]))
    scores = page.locator(".attempt[data-attempt='0'] .rescored td")
    assert scores.inner_text().split() == ["–", "→", "1"]
    assert scores.get_attribute("title") == "The recorded reward to compare with is missing; exact_answer scores 1"


def test_groups_that_disagree_find_room_before_the_others(folder, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(folder)
    noise = [" ".join(str(hash((n, m))) for m in range(400)) for n in range(48)]
    rows = [row | {"completion": noise[n]} for n, row in enumerate(test_rescore.ATTEMPTS)]
    synthetic_traces.write_traces(tmp_path, [rows[at : at + 4] for at in range(0, 48, 4)])
    rewards = ["--reward", "mine.py:failing", "--against", "reward", "--args", "{}"]
    room = 0.08 + sum(map(len, view._template())) / 1e6
    assert main(["rescore", str(tmp_path), *rewards, "--max-mb", str(room)]) == 0
    told = capsys.readouterr().out
    written = 12 - int(re.search(r"(\d+) groups did not fit in it: raise --max-mb", told)[1])
    assert 3 <= written <= 10
    index = json.loads(unpacked((tmp_path / "rescore.html").read_text(), "index"))
    differ = [bool(kinds) for kinds in index["groups"]["differs"]]
    assert len(differ) == written
    # Nine of the twelve groups disagree: all but the three in which each attempt was right.
    assert all(differ)


def unpacked(page, name):
    packed = re.search(rf'id="{name}">([^<]*)<', page)[1]
    return zlib.decompress(base64.b64decode(packed), -zlib.MAX_WBITS)


def test_where_the_page_is_written(folder, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(folder)
    assert "rescore.html" in NOT_UPLOADED
    own = ["rescore", "run", "--reward", "exact_answer"]
    Path("file").touch()
    for names, told in (
        (["run.html", "a.jsonl", "b.json"], "a.jsonl and b.json are both files of lines"),
        (["a.html", "b.html"], "a.html and b.html are both pages"),
        (["file/a.html"], "file is a file. Name another file."),
    ):
        assert main([*own, *(word for name in names for word in ("-o", name))]) == 2
        assert told in capsys.readouterr().err
    assert main([*own, "-o", "new/a.html", "-o", "new/a.jsonl"]) == 0
    assert {path.name for path in Path("new").iterdir()} == {"a.html", "a.jsonl"}
    assert main([*own, "--max-mb", "0"]) == 2
    assert "--max-mb" in capsys.readouterr().err
    (tmp_path / "run").symlink_to(folder / "run")

    def refuse(*_):
        raise PermissionError(13, "Permission denied", "run/rescore.html")

    monkeypatch.setattr("trl_grpo_plus.cli.rescore.command.write_page", refuse)
    assert main(own) == 0
    assert (
        "No page was written: [Errno 13] Permission denied: 'run/rescore.html'. Use -o FILE.html"
        in capsys.readouterr().out
    )
    assert main([*own, "-o", "page.html"]) == 2
