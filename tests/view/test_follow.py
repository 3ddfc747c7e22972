"""The history of a prompt over the steps, and the lists of prompts: the data, and the views in Chromium."""

import base64
import json
import math
import re
import zlib

import browser_pages
import pytest
import synthetic_traces
from browser_pages import HOSTILE, in_scheme, shows, sideways, soon, until

from trl_grpo_plus.traces import entry, group_index
from trl_grpo_plus.view import page as view
from trl_grpo_plus.view import write_page
from trl_grpo_plus.view.prompt_history import _scored, bar, judged, lists, window


browser, opened, opened_panel = browser_pages.browser, browser_pages.opened, browser_pages.opened_panel  # fixtures


# -- which list a prompt is in


@pytest.mark.parametrize(
    ("groups", "size", "some"), [(1, 8, 1), (2, 8, 1), (9, 8, 1), (9, 4, 2), (30, 2, 4), (6, 2, 2), (5, 2, 1)]
)
def test_early_and_late_are_eight_attempts_and_a_third_at_most(groups, size, some):
    assert window(groups, size) == some


@pytest.mark.parametrize(
    ("shares", "some", "list"),
    [
        ([0.0, 1.0], 1, "newly"),
        ([0.5, 0.9, 1.0], 1, "newly"),
        ([0.6, 0.9, 1.0], 1, None),  # more than 1/2 of the early attempts solved it
        ([0.0, 0.5, 0.9], 1, None),  # not all attempts of the last group solved it
        ([0.0, 0.5, 0.0, 0.5, 0.5, 1.0], 2, "newly"),
        ([0.0, 0.5, 0.0, 1.0, 0.4, 1.0], 2, None),  # only 0.7 of the late attempts solved it
        ([1.0, 0.0], 1, "lost"),
        ([0.0, 1.0, 0.25], 1, "lost"),
        ([0.9, 0.25], 1, None),  # no group solved it fully
        ([1.0, 0.5], 1, None),  # 1/2 of the late attempts still solve it
        ([0.0, 1.0, 0.0, 0.0, 0.0, 0.0], 2, None),  # one lucky group is too little
        ([0.0, 1.0, 0.5, 0.0, 0.0, 0.5], 2, "lost"),
        ([1.0, 0.0, 0.0, 0.5, 0.0, 1.0, 0.5, 0.5], 2, "unsettled"),
        ([0.5, 1.0, 0.0, 0.5, 0.0, 1.0, 0.5], 2, None),  # fewer than eight groups
        ([0.5, 1.0, 0.0, 0.5, 0.0, 1.0, 0.5, 0.5], 1, "unsettled"),
        ([0.5, 0.5, 0.0, 0.5, 0.0, 1.0, 1.0, 0.5], 2, None),  # 3/4 of the late attempts solved it
        ([0.5, 0.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], 2, None),  # only 1/4 of the early attempts solved it: it improves
        ([0.0, 0.0, 0.0], 1, "never"),
        ([1.0, 1.0], 1, "always"),
        ([0.0], 1, None),
        ([1.0], 1, None),
        ([], 1, None),
    ],
)
def test_a_prompt_is_put_in_the_right_list(shares, some, list):
    assert judged(shares, some) == list


def test_the_share_of_attempts_that_solve_a_prompt():
    groups = [[1.0, 0.0, 0.5, 1.0], [0.1 + 0.2, 1 / 3], [None, 1.0], [None]]
    assert _scored(seen(*((1, rewards) for rewards in groups)), 1.0).shares[[0, 2]].tolist() == [0.5, 1.0]
    shares = _scored(seen(*((1, rewards) for rewards in groups)), 0.3 + 1e-9).shares.tolist()
    assert (shares[1], math.isnan(shares[3])) == (1.0, True)


def seen(*lines):
    """Return the blocks of `lines`, one for each step: (prompt, rewards) or (prompt, rewards, verdict, split)."""
    groups = []
    for step, (prompt, rewards, *more) in enumerate(lines):
        verdict, split = [*more, None, "train"][: max(2, len(more))] if len(more) < 2 else more
        same = {"split": split, "prompt": f"title {prompt}", "step": step, "verdict": verdict}
        groups.append([synthetic_traces.row(**same, advantage=None, reward=reward) for reward in rewards])
    return list(group_index.blocks_of(groups))


def test_the_bar_is_solved_reward_or_the_lowest_reward_judged_good_or_the_best():
    unjudged = seen((1, [0.0, 3.0]), (2, [None, 2.0]))
    assert bar(unjudged, 1.5) == (1.5, "solved_reward")
    assert bar(unjudged, None) == (3.0, "best")
    assert bar(seen((1, [0.0, 3.0], "alive"), (2, [2.5, 2.0], "all_good")), None) == (2.0, "all_good")
    assert bar(seen((1, [2.5, None], "all_good"), (2, [None], "all_good")), None) == (2.5, "all_good")
    reward, by = bar(seen((1, [0.0, 3.0], "alive")), None)
    assert (math.isnan(reward), by) == (True, "all_good")
    assert math.isnan(bar(seen((1, [None])), None)[0])
    told, _ = lists(seen((1, [None, None]), (1, [None, None])))
    assert (told["bar"], told["list"], told["groups"], told["steps"]) == (None, [None], [2], [[]])


def test_prompts_are_counted_by_split_and_those_that_changed_most_come_first():
    rounds = [
        (1, [0.0, 0.0]),  # never
        (2, [1.0, 0.0]),  # in no list
        (3, [0.0, 0.0]),  # newly
        (4, [1.0, 1.0]),  # lost
        (5, [0.0, 0.0]),  # sampled only once
        (1, [0.0, 0.0]),
        (2, [1.0, 0.0]),
        (3, [1.0, 1.0]),
        (4, [0.0, 0.0]),
        (4, [0.0, None]),
        (3, [1.0, 1.0], None, "eval"),
        (3, [1.0, 1.0], None, "eval"),
    ]
    told, identities = lists(seen(*rounds), 1.0)
    assert told["counts"] == {
        "train": {"all": 5, "newly": 1, "lost": 1, "never": 1, "always": 0, "unsettled": 0},
        "eval": {"all": 1, "newly": 0, "lost": 0, "never": 0, "always": 1, "unsettled": 0},
    }
    assert told["title"] == ["title 4", "title 3", "title 1", "title 2", "title 3"]
    assert told["list"] == ["lost", "newly", "never", None, "always"]
    of_prompt = [entry([synthetic_traces.row(prompt=title)])["prompt"] for title in told["title"]]
    assert identities == of_prompt
    assert told["split"] == ["train"] * 4 + ["eval"]
    assert (told["groups"][0], told["attempts"][0], told["solved"][0], told["failed"][0]) == (3, 6, 3, 9)
    assert (told["steps"][0], told["means"][0]) == ([3, 8, 9], [1.0, 0.0, 0.0])
    assert (told["solved"][2], told["failed"][4]) == (None, None)


def test_of_many_prompts_each_list_keeps_its_most_telling_and_curves_are_thinned():
    lines = [(prompt, [float(prompt < 300)] * 2) for _ in range(3) for prompt in range(400)]
    lines += [(1000 + prompt, [float(late)] * 2) for late in range(2) for prompt in range(20)]
    lines += [(5000, [0.0])] * 500
    told, identities = lists(seen(*lines), 1.0, most=30)
    assert len(identities) == len(told["title"]) == 30
    assert [told["list"].count(name) for name in ("newly", "never", "always")] == [10, 10, 10]
    assert told["counts"]["train"] == {"all": 421, "newly": 20, "lost": 0, "never": 101, "always": 300, "unsettled": 0}
    kept = told["title"].index("title 5000")
    assert (told["groups"][kept], len(told["steps"][kept])) == (500, 200)
    assert told["steps"][kept][-1] == len(lines) - 1


def test_prompts_that_came_once_cost_a_page_nothing_and_little_memory(tmp_path):
    told, identities = lists(seen(*((prompt, [1.0, 0.0]) for prompt in range(3000))), 1.0)
    assert identities == told["title"] == []
    assert len(json.dumps(told)) < 400


# -- the lists in a page


def lists_of(path):
    text = path.read_text()
    blocks = {
        name: base64.b64decode(re.search(f'deflate" id="{name}">(.*?)</script>', text)[1])
        for name in ("lists", "index")
    }
    return [json.loads(zlib.decompress(packed, -zlib.MAX_WBITS)) for packed in blocks.values()]


def a_run(folder, steps=12, **more):
    """Write a run that samples the same four prompts at each step, and one more prompt that comes only at that step.

    "learns" is solved from the middle of the run on, "forgets" before it, "hard" never, "easy" always. An evaluation
    samples "learns" at the first and at the last step.
    """
    groups = []
    for step in range(steps):
        late = step >= steps // 2
        scores = {"learns": late, "forgets": not late, "hard": False, "easy": True, f"once {step}": late}
        groups += [
            synthetic_traces.group([float(score), float(score)], step=step, group=i, prompt=prompt, seed=step, **more)
            for i, (prompt, score) in enumerate(scores.items())
        ]
        if step in (0, steps - 1):
            rows = synthetic_traces.group(
                [float(late), 0.0, 1.0], step=step, prompt="learns", split="eval_held", **more
            )
            groups.append([{**row, "verdict": None, "kept": None} for row in rows])
    groups[0] = [{**row, "completion": f"{HOSTILE} {word}"} for row, word in zip(groups[0], ("a", "b"), strict=True)]
    about = {"rewards": {"accuracy": 1.0, "format": 1.0}, "solved_reward": 2.0}
    return synthetic_traces.write_traces(folder, groups, about=about)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_page(a_run(tmp_path_factory.mktemp("run")), tmp_path_factory.mktemp("out") / "report.html").path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Write a page that has room for only a few of the groups."""
    run = a_run(tmp_path_factory.mktemp("run"), length=300)
    scripts = sum(map(len, view._template())) / 1e6
    written = write_page(run, tmp_path_factory.mktemp("out") / "report.html", max_mb=scripts + 0.017)
    assert 2 < written.groups_written < 12
    return written.path


def test_lists_count_the_groups_that_did_not_fit_in_the_page(small, report):
    (whole, index), (lists, thin) = lists_of(report), lists_of(small)
    assert lists["counts"] == whole["counts"]
    assert lists["counts"]["train"] == {"all": 16, "newly": 1, "lost": 1, "never": 1, "always": 1, "unsettled": 0}
    assert whole["groups"] == [12, 12, 2, 12, 12]
    assert len(whole["title"]) == len(index["listed"]) > len(set(index["listed"])) == 4  # "learns" is in 2 splits
    assert len(thin["listed"]) == len(lists["title"])
    for i, prompt in enumerate(index["listed"]):
        assert index["groups"]["title"][index["groups"]["prompt"].index(prompt)] == whole["title"][i]


# -- the views in the page


def follow(page):
    page.keyboard.press("f")
    page.wait_for_selector("#pair")


def rows(page):
    return [" ".join(text.split()) for text in page.locator(".prompt-row").all_inner_texts()]


def falls_at_the_sixth(heights):
    return heights[0] == heights[5] > heights[6] == heights[11]


def test_a_prompt_is_followed_from_its_first_group_to_its_last(opened, report):
    page = opened(report, "#split=train&step=3&group=0.0.0")
    follow(page)
    soon(lambda: page.url.endswith("&view=follow"))
    soon(
        lambda: page.inner_text("#follow-facts").startswith(
            "newly solved Sampled 12 times, 24 attempts; first solved by all attempts at step 6"
        )
    )
    soon(lambda: page.inner_text("#follow-facts").endswith("last failed by all at step 5."))
    soon(
        lambda: (
            page.locator("#follow-plot .spot").evaluate_all("nodes => nodes.map((n) => n.getAttribute('class'))")
            == ["spot all_bad chosen", *["spot all_bad"] * 5, *["spot all_good"] * 5, "spot all_good chosen"]
        )
    )
    soon(
        lambda: falls_at_the_sixth(page.locator(".spot").evaluate_all("nodes => nodes.map((n) => n.cy.baseVal.value)"))
    )
    soon(lambda: all(page.input_value(f"#side-group-{i}") for i in range(2)))
    sides = [page.input_value(f"#side-group-{i}") for i in range(2)]
    soon(
        lambda: (
            [page.locator(f"#side-group-{i} option:checked").inner_text() for i in range(2)]
            == ["step 0: 1", "step 11: 2"]
        )
    )
    # This view, too, shows what a model writes as text. Words that differ are marked on both sides.
    soon(lambda: HOSTILE in page.locator(".side .body").first.inner_text())
    soon(lambda: page.evaluate("[window.hacked, document.querySelectorAll('.side img').length]") == [None, 0])
    soon(lambda: page.locator(".side:nth-child(1) mark.differs").count() > 0)
    soon(lambda: page.locator(".side:nth-child(2) mark.differs").count() > 0)
    page.keyboard.press("d")
    until(page, "document.querySelectorAll('.side mark.differs').length === 0")
    # One can choose any two groups of the prompt, and the best or the worst attempt of each.
    soon(lambda: page.locator(".side .body").first.inner_text().strip().endswith("a"))
    page.locator("#side-which-0").focus()
    page.select_option("#side-which-0", "worst")
    until(page, "document.querySelector('.side .body').innerText.trim().endsWith('b')")
    soon(lambda: page.evaluate("document.activeElement.id") == "side-which-0")
    page.select_option("#side-group-1", sides[0])
    until(page, "document.querySelectorAll('.spot.chosen').length === 1")
    page.click("#side-open-1")
    shows(page, 0)
    soon(lambda: "view=" not in page.url)


def test_a_dot_leads_to_its_group_by_pointer_and_by_keys(opened, report):
    page = opened(report, "#split=train&step=3&group=0.0.1&view=follow")
    page.wait_for_selector("#pair")
    soon(lambda: page.inner_text("#follow-facts").startswith("lost "))
    page.locator(".spot").nth(7).click()
    shows(page, 7, group=1)
    follow(page)
    page.locator("#follow-plot > svg").focus()
    page.keyboard.press("ArrowRight")
    soon(lambda: page.locator("#follow-plot .where").text_content() == "step 8")
    page.keyboard.press("Enter")
    shows(page, 8, group=1)
    follow(page)
    page.keyboard.press("j")  # follows the prompt of the next group
    until(page, "document.querySelector('#group-head h2').textContent === 'hard'")
    page.keyboard.press("Escape")
    shows(page, 8, group=2)


def test_lists_of_prompts_are_searched_and_lead_to_a_prompt(opened, report):
    page = opened(report)
    page.keyboard.press("o")
    page.wait_for_selector(".prompt-row")
    soon(
        lambda: (
            page.locator("[id^=list-]").all_inner_texts()
            == ["Newly solved 1", "Lost 1", "Never solved 1", "Always solved 1", "Not learnt 0", "All 16"]
        )
    )
    soon(lambda: rows(page) == ["learns 1 → 2 12 ×"])
    soon(lambda: "a reward of 2 or more (solved_reward)" in page.inner_text("#prompt-rule"))
    page.click("#list-lost")
    until(page, "document.querySelector('.prompt-row')?.textContent.startsWith('forgets')")
    page.click("#list-all")
    until(page, "document.querySelectorAll('.prompt-row').length > 4")
    soon(lambda: [row.split()[0] for row in rows(page)[:5]] == ["learns", "forgets", "hard", "easy", "once"])
    page.fill("#prompt-query", "ONCE")
    soon(lambda: rows(page)[0] == "once 0 1 1 ×")
    soon(lambda: "12 of 16 contain" in page.inner_text("#prompt-rule"))
    page.fill("#prompt-query", "ha")
    soon(lambda: rows(page) == ["hard 1 → 1 12 ×"])
    page.locator("#prompt-list").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#pair")
    soon(lambda: page.inner_text("#group-head h2") == "hard")
    soon(lambda: page.input_value("#query") == "")
    page.keyboard.press("o")
    page.wait_for_selector(".prompt-row")
    soon(lambda: rows(page) == ["hard 1 → 1 12 ×"])  # the list and the query are as they were left
    page.select_option("#split", "eval_held")  # eval splits have lists of their own
    page.fill("#prompt-query", "")
    until(page, "document.querySelector('#list-all')?.textContent === 'All 1'")
    page.keyboard.press("Escape")
    shows(page, 11, split="eval_held")


def test_lists_go_by_keys_and_rows_come_as_they_are_scrolled_to(opened_panel):
    groups = [
        synthetic_traces.group([1.0, 0.0], length=1, step=step, group=i, prompt=f"p{i}")
        for step in (0, 1)
        for i in range(90)
    ]
    page = opened_panel(groups)
    page.keyboard.press("o")
    page.wait_for_selector(".prompt-row")
    soon(lambda: 5 < page.locator(".prompt-row").count() < 60)
    for key, at in (("j", 1), ("ArrowDown", 2), ("k", 1), ("End", 89), ("Home", 0), ("End", 89)):
        page.keyboard.press(key)
        until(page, "at => document.querySelector('.prompt-row[aria-selected=true]')?.id === `prompt-${at}`", at)
    page.keyboard.press("Enter")
    shows_title = "title => document.querySelector('#group-head h2 bdi')?.textContent === title"
    until(page, shows_title, "p89")
    page.keyboard.press("f")
    shows(page, 1, group=89)


def test_a_prompts_curve_is_complete_although_some_groups_did_not_fit(opened, small):
    page = opened(small, "#view=prompts")
    page.wait_for_selector(".prompt-row, #prompt-rows .empty")
    soon(lambda: page.locator("[id^=list-]").all_inner_texts()[0] == "Newly solved 1")
    page.click("#list-all")
    page.locator(".prompt-row:has-text('12 ×'):not(:has(.tag))").first.click()
    page.wait_for_selector("#pair")
    soon(lambda: "of its groups in this page" in page.inner_text("#follow-facts"))
    facts = page.inner_text("#follow-facts")
    here = int(re.search(r"(\d+) of its groups in this page", facts)[1])
    assert "Sampled 12 times, 24 attempts" in facts
    soon(lambda: page.locator(".spot").count() == here < 12)
    soon(lambda: len(page.locator("#follow-plot polyline").first.get_attribute("points").split()) == 12)


BELIEF = {"mean": 0.5, "std": 0.25, "attempts": 3.5}


def test_the_belief_is_drawn_beside_the_mean_reward(opened_panel):
    groups = [synthetic_traces.group([1.0, 0.0], step=step, belief={**BELIEF, "mean": step / 2}) for step in range(3)]
    page = opened_panel(groups)
    follow(page)
    soon(lambda: page.inner_text("#follow-plot .series:nth-child(2)").split() == ["believed", "0"])
    soon(lambda: page.locator("#follow-plot .band").count() == 1)
    named = [synthetic_traces.group([1.0, 0.0], step=step, belief={**BELIEF, "of": "accuracy"}) for step in range(3)]
    page = opened_panel(named)
    follow(page)
    soon(lambda: page.inner_text("#follow-plot .title") == "mean accuracy")
    soon(
        lambda: " ".join(page.inner_text("#follow-plot .value").split()) == "mean accuracy 0.5 believed 0.5"
    )  # the mean of the total would be 1.5


def test_a_prompt_is_followed_by_its_whole_text_and_reference_in_its_split(opened_panel):
    long = " ".join(f"word{i}" for i in range(400))
    groups = [
        synthetic_traces.group([1.0, 0.0], step=i, prompt=prompt) for i, prompt in enumerate([long, long + ".", long])
    ]
    groups.append(synthetic_traces.group([0.0, 0.0], step=3, prompt=long, reference={"answer": "7"}))
    groups.append(synthetic_traces.group([0.0, 0.0], step=4, prompt=long, split="eval"))
    page = opened_panel(groups)
    follow(page)
    soon(lambda: page.locator("#side-group-0 option").all_inner_texts() == ["step 0: 1.5", "step 2: 1.5"])
    page.keyboard.press("j")
    until(page, "document.querySelector('#follow-facts')?.textContent.includes('Sampled 1 time')")
    soon(lambda: [page.input_value(f"#side-which-{i}") for i in range(2)] == ["best", "worst"])


def test_dots_of_many_groups_are_thinned_and_opening_one_clears_the_filters(opened_panel):
    groups = [synthetic_traces.group([1.0, step % 2], length=1, step=step, prompt="again") for step in range(1600)]
    page = opened_panel(groups)
    follow(page)
    soon(lambda: page.locator(".spot").count() == 1500)
    options = page.locator("#side-group-1 option")
    soon(
        lambda: (
            (options.count(), options.first.inner_text(), options.last.inner_text())
            == (
                300,
                "step 0: 1.5",
                "step 1599: 2",
            )
        )
    )
    page.click("#more-filters summary")
    page.fill("#reward-max", "1.1")
    page.locator("#follow-plot > svg").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    shows(page, 1599)
    soon(lambda: page.input_value("#reward-max") == "")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_neither_view_scrolls_sideways(browser, report, width, scheme):
    with in_scheme(browser, scheme, viewport={"width": width, "height": 844}) as page:
        for view, there in (("prompts", ".prompt-row"), ("follow", "#pair")):
            page.goto("about:blank")
            page.goto(f"file://{report}#split=train&step=3&group=0.0.0&view={view}")
            page.wait_for_selector(there)
            soon(lambda: sideways(page) == 0)
