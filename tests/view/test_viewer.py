"""The page of a run, opened from disk in a real Chromium that is offline."""

import re
import time

import browser_pages
import pandas as pd
import pytest
import synthetic_traces
from browser_pages import (
    DRAWN,
    FIRST,
    HOSTILE,
    attempts,
    body,
    in_scheme,
    settled,
    shows,
    sideways,
    soon,
    titles,
    until,
)

from trl_grpo_plus.view import panel, write_page


pytestmark = pytest.mark.long


browser, opened, opened_panel = browser_pages.browser, browser_pages.opened, browser_pages.opened_panel  # fixtures

UNUSUAL = "\u202egnirts \x1b[31mred\x1b[0m \x00 \u2028"
LONG = " ".join(f"word{i}" for i in range(400))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_page(a_run(tmp_path_factory.mktemp("run")), tmp_path_factory.mktemp("out") / "report.html").path


def asked(step):
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"solved at {step}\nline two"}]


def a_run(folder):
    """Write a run: three groups at each of the steps 0, 1 and 5, an evaluation at 5, and an alarm about one group."""
    groups = []
    for step in (0, 1, 5):
        groups += [
            synthetic_traces.group([0.0, 1.0, 0.0, 1.0], step=step, group=0, prompt=f"alive at {step}"),
            synthetic_traces.group([1.0, 1.0, 1.0, 1.0], step=step, group=1, prompt=asked(step)),
            synthetic_traces.group([0.0, 0.0, 0.0, 0.0], step=step, group=2, prompt=f"bad at {step}", round=step % 2),
        ]
    groups.append([{**row, "kept": False, "reason": "evaluation"} for row in groups[0]])
    groups[-1] = [{**row, "step": 5, "split": "eval_easy"} for row in groups[-1]]
    # Step 1, group 0 has texts that are hard to show. Step 5, group 0 has texts that are easy to compare.
    hard = [HOSTILE, "", UNUSUAL, "no end <think>" + LONG]
    outcomes = {"accuracy": "timeout", "format": "ok"}
    groups[3] = [{**row, "completion": text} for row, text in zip(groups[3], hard, strict=True)]
    groups[3] = [{**row, "extra": {HOSTILE: HOSTILE}, "outcomes": outcomes} for row in groups[3]]
    groups[3][0] |= {"reward": None, "truncated": True, "kl": 0.25}
    compared = ["<think>a b c</think> one two three four", "one two 3 four five", "one two three four", "None"]
    groups[6] = [{**row, "completion": text} for row, text in zip(groups[6], compared, strict=True)]
    alarms = [
        {"step": 5, "name": "repetition", "message": "it loops", "groups": [[0, 1, 2]]},
        {"step": 1, "name": "dead_groups", "message": "most are dead", "groups": []},
    ]
    metrics = [{"step": step + 1, "reward": step / 10, "kl": 0.5, "entropy": 1.0} for step in range(6)]
    return synthetic_traces.write_traces(
        folder, groups, alarms, metrics, {"rewards": {"accuracy": 1.0, "format": 0.0}}
    )


# -- steps and the list


def test_it_opens_on_a_live_group_of_the_last_steps(opened, report):
    page = opened(report)
    soon(lambda: page.title().startswith("run"))
    soon(lambda: page.inner_text("#facts") == "3 steps of train, 1 step of eval_easy; 10 groups, 40 attempts")
    soon(lambda: titles(page) == ["alive at 5", "solved at 5", "bad at 5"])
    shows(page, 5)
    soon(lambda: page.locator("#note").is_hidden())


def test_the_slider_knows_only_steps_with_traces_and_a_split_has_its_own(opened, report):
    page = opened(report)
    slider = page.locator("#step")
    soon(lambda: (slider.get_attribute("min"), slider.get_attribute("max")) == ("0", "2"))
    slider.fill("2")
    shows(page, 5)
    soon(lambda: slider.get_attribute("aria-valuetext") == "step 5")
    soon(lambda: titles(page)[0] == "alive at 5")
    page.click("#step-back")
    shows(page, 1)
    page.select_option("#split", "eval_easy")
    shows(page, 5, split="eval_easy")
    soon(lambda: page.locator("#step-field").is_hidden())
    page.select_option("#split", "train")
    shows(page, 5)


def test_a_row_says_what_its_group_was(opened, report):
    page = opened(report, "#split=train&step=1&group=0.0.0")
    alive, good, bad = (page.locator(".row").nth(n) for n in range(3))
    soon(lambda: page.locator(".row").count() == 3)
    soon(lambda: "mean 1.67 max 2" in " ".join(alive.inner_text().split()))
    soon(lambda: "alive" in alive.inner_text())
    soon(lambda: "trained on" in alive.inner_text())
    soon(lambda: (alive.locator(".dot").count(), alive.locator(".dot.hollow").count()) == (4, 1))
    soon(lambda: "all good" in good.inner_text())
    soon(lambda: "zero variance" in good.inner_text())
    soon(lambda: "round 1" in bad.inner_text())
    soon(
        lambda: (
            len({node.evaluate("node => node.style.background") for node in alive.locator(".dot:not(.hollow)").all()})
            == 2
        )
    )


def test_only_the_rows_in_sight_are_in_the_page(opened, tmp_path):
    run = synthetic_traces.write_run(tmp_path, steps=2, groups=400, size=2, length=3)
    page = opened(write_page(run, tmp_path / "report.html").path)
    soon(lambda: page.locator(".row").count() < 40)
    page.locator("#list").evaluate("node => { node.scrollTop = node.scrollHeight; }")
    until(page, "document.querySelector('#row-399') !== null")
    soon(lambda: page.locator(".row").count() < 40)
    soon(lambda: page.locator("#row-399").get_attribute("aria-setsize") == "400")


def test_a_press_is_a_click_although_the_list_is_redrawn_before_the_release(opened, tmp_path):
    run = synthetic_traces.write_run(tmp_path, steps=1, groups=40, size=2, length=3)
    page = opened(write_page(run, tmp_path / "report.html").path)
    page.locator("#row-2").click()
    shows(page, 0, group=2)
    soon(lambda: page.locator("#row-2").get_attribute("aria-selected") == "true")
    box = page.locator("#row-4").bounding_box()
    page.mouse.move(box["x"] + 30, box["y"] + 30)
    page.mouse.down()
    page.locator("#list").evaluate("node => { node.scrollTop += 10; }")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.mouse.up()
    shows(page, 0, group=4)


# -- filters


@pytest.mark.parametrize(
    ("control", "value", "here", "everywhere"),
    [
        ("#verdict", "all_good", ["solved at 0"], 3),
        ("#verdict", "alive", ["alive at 0"], 3),
        ("#alarm", "*", [], 1),
        ("#alarm", "repetition", [], 1),
        ("#kept", "*", ["alive at 0"], 3),
        ("#kept", "zero_variance", ["solved at 0", "bad at 0"], 6),
    ],
)
def test_filters_by_choice(opened, report, control, value, here, everywhere):
    page = opened(report, FIRST)
    page.click("#more-filters summary")
    page.select_option(control, value)
    soon(lambda: titles(page) == here)
    soon(lambda: page.locator(".attempt, .empty").count() > 0)
    page.check("#all-steps")
    settled(page, f"{everywhere} group{'s' * (everywhere > 1)} over all steps.")
    soon(lambda: page.locator(".row").count() == everywhere)
    page.click("#clear")
    settled(page, "9 groups over all steps.")


def test_folded_filters_tell_how_many_are_in_use(opened, report):
    soon(lambda: opened(report, FIRST).locator("#clear").is_hidden())
    page = opened(report, f"{FIRST}&kept=zero_variance&max=1.5")
    soon(lambda: titles(page) == ["bad at 0"])
    soon(lambda: page.inner_text("#more-filters summary") == "More filters (2 in use)")
    soon(lambda: page.locator("#kept").is_hidden())
    page.click("#more-filters summary")
    soon(lambda: (page.input_value("#kept"), page.input_value("#reward-max")) == ("zero_variance", "1.5"))
    page.click("#clear")
    soon(lambda: page.inner_text("#more-filters summary") == "More filters")
    soon(lambda: page.locator("#clear").is_hidden())
    soon(lambda: page.evaluate("document.activeElement.id") == "list")  # so that keys move through the list


def test_filter_by_reward(opened, report):
    page = opened(report, FIRST)
    page.click("#more-filters summary")
    page.fill("#reward-max", "1.5")
    soon(lambda: titles(page) == ["alive at 0", "bad at 0"])
    page.fill("#reward-min", "1.25")
    soon(lambda: titles(page) == [])
    page.fill("#reward-max", "")
    soon(lambda: titles(page) == ["alive at 0", "solved at 0"])


SEARCHES = [  # each finds another number of groups than the one before, so that the status must change
    ("ALIVE AT 5", False, ["alive at 5"]),
    ("be brief.", False, [f"solved at {step}" for step in (0, 1, 5)]),
    ("alive at .", False, []),
    ("alive at [15]", True, ["alive at 1", "alive at 5"]),
    ("^word0 |^bad.*5$", True, ["bad at 5"]),
    ("42", False, [f"{name} at {step}" for step in (0, 1, 5) for name in ("alive", "solved", "bad")]),
    ("</script>", False, ["alive at 1"]),
]


def test_search_through_all_steps(opened, report):
    page = opened(report, FIRST)
    page.set_viewport_size({"width": 1280, "height": 1000})  # all rows are in sight
    for query, regex, matches in SEARCHES:
        page.set_checked("#regex", regex)
        page.fill("#query", query)
        settled(page, f"{len(matches)} group{'s' * (len(matches) != 1)} over all steps.")
        page.locator("#cancel").wait_for(state="hidden")
        soon(lambda matches=matches: titles(page) == matches, query)


def test_a_search_covers_all_steps_until_it_ends_or_a_scope_is_chosen(opened, report):
    page = opened(report, FIRST)
    settled(page, "3 groups here.")
    page.fill("#query", "alive at 5")
    settled(page, "1 group over all steps.")
    shows(page, 5)
    soon(lambda: page.is_checked("#all-steps"))
    page.fill("#query", "")
    settled(page, "3 groups here.")
    shows(page, 5)
    page.fill("#query", "alive")
    settled(page, "3 groups over all steps.")
    soon(lambda: "scope=" not in page.evaluate("location.hash"))
    again = opened(report, page.evaluate("location.hash"))
    settled(again, "3 groups over all steps.")
    again.keyboard.press("Escape")
    settled(again, "3 groups here.")
    page.uncheck("#all-steps")
    settled(page, "1 group here.")
    soon(lambda: "scope=step" in page.evaluate("location.hash"))
    again = opened(report, page.evaluate("location.hash"))
    settled(again, "1 group here.")
    page.check("#all-steps")
    page.fill("#query", "")
    settled(page, "9 groups over all steps.")


def test_a_search_keeps_the_group_in_view_if_it_matches(opened, report):
    page = opened(report, "#split=train&step=5&group=0.0.1")
    page.check("#all-steps")
    page.check("#regex")
    page.fill("#query", "at [05]$")
    settled(page, "6 groups over all steps.")
    shows(page, 5, group=1)
    page.keyboard.press("Enter")
    for key, step in (("h", 0), ("h", 0), ("l", 5)):  # step 1 has no match
        page.keyboard.press(key)
        shows(page, step)
    page.fill("#query", "nothing")
    settled(page, "0 groups over all steps.")
    page.wait_for_selector(".empty")
    page.fill("#query", "")
    shows(page, 5)


def test_hits_are_marked_and_unfolded(opened, report):
    page = opened(report, "#split=train&step=1&group=0.0.0")
    page.fill("#query", "word399")
    until(page, "document.querySelectorAll('mark.hit').length === 1")
    soon(lambda: page.locator("mark.hit").inner_text() == "word399")
    soon(lambda: page.locator("mark.hit").is_visible())


def test_an_invalid_pattern_says_so(browser, opened, report):
    page = opened(report, FIRST)
    page.check("#regex")
    page.fill("#query", "(")
    why = {"chromium": "Unterminated group", "firefox": "unterminated parenthetical"}[browser.browser_type.name]
    settled(page, f"9 groups over all steps. Not a regular expression: {why}.")
    soon(lambda: page.locator("#query").get_attribute("aria-invalid") == "true")
    page.fill("#query", "()alive")
    settled(page, "3 groups over all steps.")
    soon(lambda: page.locator("#query").get_attribute("aria-invalid") is None)


def test_a_pattern_that_takes_for_ever_is_cancelled(opened, report):
    page = opened(report, FIRST)
    page.check("#all-steps")
    page.check("#regex")
    page.fill("#query", r"(\w+\s?)+$!")
    until(page, "document.querySelector('#status').textContent.includes('Searching')")
    until_workers(page, 1)
    (searching,), ended = page.workers, []
    searching.on("close", lambda worker: ended.append(worker))
    page.wait_for_timeout(500)
    soon(lambda: page.evaluate("1 + 1") == 2)  # the page still answers
    assert (page.workers, ended) == ([searching], [])
    page.click("#cancel")
    settled(page, "0 groups over all steps. Search cancelled.")
    until_workers(page, 0)  # the worker that marks hits may take a second
    assert ended == [searching]
    page.fill("#query", "alive at 5")
    settled(page, "1 group over all steps.")


def until_workers(page, count):
    """Wait until the page has `count` workers: on a busy machine, Playwright reports their start and end late."""
    end = time.monotonic() + 60
    while len(page.workers) != count:
        assert time.monotonic() < end, f"{len(page.workers)} workers run"
        page.wait_for_timeout(50)


# -- a group


def test_attempts_are_shown_best_first(opened, report):
    page = opened(report, FIRST)
    soon(lambda: attempts(page) == ["1", "3", "0", "2"])
    first = page.locator(".attempt").first
    soon(lambda: "best" in first.inner_text())
    soon(lambda: "+0.5" in first.inner_text())
    soon(lambda: "50 tokens" in first.inner_text())
    soon(lambda: "monitor" in first.inner_text())
    soon(lambda: page.locator("#task").inner_text().split() == ["prompt", "alive", "at", "0", "answer", "42"])


def test_toggle_buttons_have_a_box_that_is_filled_while_they_are_on(opened, report):
    page = opened(report, FIRST)
    box = "node => getComputedStyle(node, '::before').backgroundImage !== 'none'"
    width = "node => getComputedStyle(node, '::before').width"
    for name in ("diff", "unfold", "follow-on", "pin-1"):
        soon(lambda name=name: page.locator(f"#{name}").evaluate(width) == "10px", name)
    soon(lambda: page.locator("#clear").evaluate(width) == "auto", "it acts once")
    soon(lambda: not page.locator("#diff").evaluate(box))
    page.click("#diff")
    soon(lambda: page.locator("#diff").evaluate(box))
    page.click("#pin-1")
    soon(lambda: page.locator("#pin-1").evaluate(box))
    soon(lambda: page.inner_text("#pin-1") == "Pin")


def test_attempts_out_of_sight_are_counted(opened_panel):
    page = opened_panel([synthetic_traces.group([float(n % 2) for n in range(16)], length=3)])
    page.set_viewport_size({"width": 1400, "height": 800})
    page.keyboard.press("e")  # without this, equal attempts share a column
    soon(lambda: page.locator(".attempt").count() == 16)
    soon(lambda: re.fullmatch(r"1[12] more →", page.inner_text("#more-right")))
    before = int(page.inner_text("#more-right").split()[0])
    page.click("#more-right")
    soon(lambda: 0 < int(page.inner_text("#more-right").split()[0]) < before)
    page.locator("#columns").evaluate("node => { node.scrollLeft = node.scrollWidth; }")
    soon(lambda: page.locator("#more-right").is_hidden())


def test_an_attempt_says_how_it_ended(opened, report):
    page = opened(report, "#split=train&step=1&group=0.0.0")
    worst = page.locator(".attempt[data-attempt='0']")
    soon(lambda: worst.locator(".outcome").all_inner_texts() == ["truncated", "timeout"])
    soon(lambda: "KL 0.25" in worst.inner_text())
    soon(lambda: worst.locator(".extra dd").inner_text() == HOSTILE)
    think = body(page, 3).locator("details")
    soon(lambda: "400 words, never closed" in think.locator("summary").inner_text())
    soon(lambda: think.get_attribute("open") is not None, "what never ends is not hidden")


def test_messages_show_the_system_prompt_once(opened, report):
    page = opened(report, "#split=train&step=0&group=0.0.1")
    soon(lambda: page.locator(".prompt .label").all_inner_texts() == ["system", "user"])
    soon(lambda: page.locator(".prompt .text").all_inner_texts() == ["Be brief.", "solved at 0\nline two"])
    soon(lambda: page.inner_text("#group").count("Be brief.") == 1)


def test_thinking_folds_and_the_answer_is_marked(opened, report):
    page = opened(report, FIRST)
    think = body(page, 1).locator("details")
    soon(lambda: think.locator("summary").inner_text() == "Thinking, 40 words")
    soon(lambda: think.get_attribute("open") is None)
    soon(lambda: body(page, 1).locator("mark.answer").inner_text() == "42")
    soon(lambda: body(page, 1).locator("mark.answer").is_visible())
    think.locator("summary").click()
    soon(lambda: think.get_attribute("open") is not None)
    page.click("#unfold")
    until(page, "document.querySelectorAll('details.think[open]').length === 4")


@pytest.mark.parametrize(
    ("text", "folded", "open_to_see"),
    [
        ("begun in the prompt </think>\n\n42", ["begun in the prompt </think>\n\n"], ["42"]),
        ("<think>a</think>b<think>c</think>d", ["<think>a</think>", "<think>c</think>"], ["b", "d"]),
        ("<thinking is hard>", [], ["<thinking is hard>"]),
    ],
)
def test_what_counts_as_thinking(opened_panel, text, folded, open_to_see):
    page = opened_panel([[synthetic_traces.row(completion=text, size=1)]])
    soon(lambda: page.locator(".think .text").all_text_contents() == folded)
    soon(lambda: page.locator(".body > .text").all_text_contents() == open_to_see)


def test_messages_of_a_completion_keep_their_roles(opened_panel):
    roles, texts = ["assistant", "tool", "assistant"], ["<think>hm", "\U0001f600 5", "#### 5"]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    page = opened_panel([[synthetic_traces.row(completion=messages, size=1)]])
    soon(lambda: page.locator(".body .label").all_inner_texts() == roles)
    soon(lambda: page.locator(".body .text").all_text_contents() == texts)
    soon(lambda: page.locator("mark.answer").all_text_contents() == ["5"])


def test_words_that_differ_from_the_best(opened, report):
    page = opened(report, "#split=train&step=5&group=0.0.0")
    soon(lambda: attempts(page) == ["1", "3", "0", "2"])
    soon(lambda: page.locator("mark.differs").count() == 0)
    page.keyboard.press("d")
    until(page, "document.querySelectorAll('mark.differs').length > 0")
    soon(
        lambda: (
            ({n: body(page, n).locator("mark.differs").all_text_contents() for n in attempts(page)})
            == {"1": [], "3": ["None"], "0": ["<think>a b c</think>", "three"], "2": ["three"]}
        )
    )
    soon(lambda: page.locator(".think summary").all_inner_texts() == ["Thinking, 3 words, 1 difference"])
    soon(lambda: page.locator("#diff").get_attribute("aria-pressed") == "true")
    page.keyboard.press("d")
    until(page, "document.querySelectorAll('mark.differs').length === 0")


def test_two_pinned_attempts_stand_side_by_side(opened, report):
    page = opened(report, "#split=train&step=5&group=0.0.0")
    page.click("#pin-1")
    until(page, "document.querySelectorAll('.attempt.pinned').length === 1")
    soon(lambda: len(attempts(page)) == 4)
    page.click("#pin-2")
    until(page, "document.querySelectorAll('.attempt').length === 2")
    soon(lambda: attempts(page) == ["1", "2"])
    soon(lambda: body(page, 1).locator("mark.differs").all_text_contents() == ["3", "five"])
    soon(lambda: body(page, 2).locator("mark.differs").all_text_contents() == ["three"])
    soon(lambda: page.locator(".attempt").first.bounding_box()["width"] > 400)
    page.keyboard.press("d")
    until(page, "document.querySelectorAll('mark.differs').length === 0")
    page.keyboard.press("Escape")
    until(page, "document.querySelectorAll('.attempt').length === 4")


def test_pins_go_with_their_group(opened, report):
    page = opened(report, FIRST)
    page.keyboard.press("p")
    page.keyboard.press("j")
    shows(page, 0, group=1)
    page.keyboard.press("k")
    shows(page, 0)
    soon(lambda: page.locator(".attempt.pinned").count() == 0)


def test_texts_too_different_to_align_say_so(opened_panel):
    texts = [" ".join(f"{name}{i}" for i in range(1500)) + " same" for name in ("a", "b")]
    rows = [{**row, "completion": t} for row, t in zip(synthetic_traces.group([1.0, 0.0]), texts, strict=True)]
    page = opened_panel([rows])
    page.click("#diff")
    until(page, "document.querySelector('.body p.muted') !== null")
    soon(lambda: "Too different to align" in body(page, 1).inner_text())
    soon(lambda: body(page, 1).locator("mark.differs").count() == 1)
    soon(lambda: "same" not in body(page, 1).locator("mark.differs").inner_text())


# -- credit within an attempt


def credited():
    """Return two attempts: the first has advantages of tokens and steps of two rewards, the second only one step."""
    text = "<think>one two</think>three <b>"
    first = {"completion": text, "advantages": [[6, 0.0], [10, -0.5], [22, 1.0], [31, 2.0]]}
    first["steps"] = {"lines": [[22, 1.0], [31, -0.5]], "words": [[10, 0.0]]}
    rows = synthetic_traces.group([1.0, 0.0])
    return [{**rows[0], **first}, {**rows[1], "completion": "none\n", "steps": {"lines": [[5, 0.0]]}}]


def heat(page):
    """Return [text, title, colour] of each stretch that is coloured by its advantage."""
    script = "nodes => nodes.map((n) => [n.textContent, n.title, n.style.getPropertyValue('--heat')])"
    return page.locator("mark.heat").evaluate_all(script)


def test_tokens_are_heated_by_their_advantage(opened_panel):
    page = opened_panel([credited(), synthetic_traces.group([1.0, 0.0], group=1)])
    soon(lambda: len(heat(page)) == 4)
    stretches = heat(page)
    assert [(text, title) for text, title, _ in stretches] == [
        ("<think", "advantage 0"),
        (">one", "advantage -0.5"),
        (" two</think>", "advantage +1"),
        ("three <b>", "advantage +2"),
    ]
    none, red, blue, bluest = [colour for *_, colour in stretches]
    assert none == ""
    assert (red[:7], blue[:7]) == ("#d73027", "#4575b4")
    strength = [int(colour[7:], 16) for colour in (red, blue, bluest)]
    assert strength == sorted(set(strength))
    assert strength[-1] == 128  # the largest advantage of a group has the full strength
    soon(lambda: body(page, 1).locator("mark.heat").count() == 0)
    soon(lambda: " ".join(page.inner_text("#credit-legend").split()).startswith("advantage by token -2 +2"))


def test_steps_end_with_their_reward(opened_panel):
    page = opened_panel([credited()])
    page.click("#unfold")
    until(page, "document.querySelectorAll('details.think[open]').length === 1")
    script = (
        f"nodes => nodes.map((n) => [n.previousSibling.textContent, ({DRAWN})(n, '::after'), n.className, n.title])"
    )
    soon(
        lambda: (
            page.locator(".attempt .step").evaluate_all(script)
            == [
                [">one", '"words 0"', "step ", "words: step ends, reward 0"],
                [" two</think>", '"lines +1"', "step up", "lines: step ends, reward +1"],
                ["three <b>", '"lines -0.5"', "step down", "lines: step ends, reward -0.5"],
                ["none", '"lines 0"', "step ", "lines: step ends, reward 0"],
            ]
        )
    )
    soon(lambda: "".join(body(page, 0).locator(".text").all_text_contents()) == "<think>one two</think>three <b>")
    soon(lambda: "a step of lines or words ends" in page.inner_text("#credit-legend"))


def test_credit_is_switched_off_and_lets_other_marks_be_seen(opened_panel):
    page = opened_panel([credited(), synthetic_traces.group([1.0, 0.0], group=1)])
    page.fill("#query", "three")
    until(page, "document.querySelectorAll('mark.hit').length === 1")
    soon(
        lambda: (
            page.locator("mark.hit.heat").evaluate(
                "node => [getComputedStyle(node).backgroundColor, node.textContent]"
            )
            == ["rgb(255, 211, 61)", "three"]
        )
    )
    page.locator("#group").click()
    page.keyboard.press("c")
    until(page, "document.querySelectorAll('mark.heat, .step').length === 0")
    soon(lambda: page.locator("#credit").get_attribute("aria-pressed") == "false")
    page.click("#credit")
    until(page, "document.querySelectorAll('mark.heat').length > 0")
    page.keyboard.press("Escape")
    soon(lambda: page.locator("#clear").is_hidden())
    page.locator(".row").nth(1).click()
    shows(page, 0, group=1)
    soon(lambda: page.locator("mark.heat, .step, #credit, #credit-legend").count() == 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_on_the_strongest_heat(browser, tmp_path, scheme):
    """The contrast is more than 4.5 to 1, as WCAG asks, on text and on thinking."""
    rows = [{**row, "advantages": [[6, -1.0], [40, 1.0]]} for row in credited()[:1]]
    (tmp_path / "panel.html").write_text(panel([rows]))
    with in_scheme(browser, scheme) as page:
        page.goto(f"file://{tmp_path / 'panel.html'}")
        page.wait_for_selector(".attempt")
        soon(lambda: page.locator("mark.heat").count() > 1)
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        script = "nodes => nodes.map((n) => [getComputedStyle(n).color, n.style.getPropertyValue('--heat')])"
        for colour, over in page.locator("mark.heat").evaluate_all(script):
            assert contrast(channels(colour), mixed(channels(back), over)) > 4.5


def channels(colour):
    return [int(value) for value in re.findall(r"\d+", colour)[:3]]


def mixed(back, over):
    red, green, blue, alpha = bytes.fromhex(over[1:])
    return [below + (above - below) * alpha / 255 for below, above in zip(back, (red, green, blue), strict=True)]


def contrast(first, second):
    def luminance(colour):
        shares = [value / 255 for value in colour]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


# -- keys and addresses


def test_keys_move_between_groups_and_steps(opened, report):
    page = opened(report, FIRST)
    for key, group in [("j", 1), ("ArrowDown", 2), ("j", 2), ("k", 1)]:
        page.keyboard.press(key)
        shows(page, 0, group)
    for key, step in [("l", 1), ("ArrowRight", 5), ("h", 1), ("ArrowLeft", 0), ("ArrowUp", 0)]:
        page.keyboard.press(key)
        shows(page, step)


def test_keys_search_pin_and_help(opened, report):
    page = opened(report, FIRST)
    page.keyboard.press("/")
    page.keyboard.type("jd")
    soon(lambda: page.input_value("#query") == "jd")
    settled(page, "0 groups over all steps.")
    page.keyboard.press("Escape")
    settled(page, "3 groups here.")
    page.wait_for_selector(".attempt")
    page.keyboard.press("p")
    until(page, "document.querySelectorAll('.attempt.pinned').length === 1")
    page.locator(".attempt[data-attempt='2'] .body").focus()
    page.keyboard.press("p")
    until(page, "document.querySelectorAll('.attempt').length === 2")
    soon(lambda: attempts(page) == ["1", "2"])
    page.keyboard.press("?")
    soon(lambda: page.locator("#help").is_visible())
    page.keyboard.press("Escape")
    soon(lambda: page.locator("#help").is_hidden())
    soon(lambda: attempts(page) == ["1", "2"])
    page.keyboard.press("t")
    until(page, "document.querySelectorAll('details.think[open]').length === 2")


def test_a_reload_keeps_the_view(opened, report):
    page = opened(report, FIRST)
    page.keyboard.press("l")
    page.keyboard.press("j")
    shows(page, 1, group=1)
    soon(lambda: page.url.endswith("#split=train&step=1&group=0.0.1"))
    page.reload()
    shows(page, 1, group=1)


@pytest.mark.parametrize(
    ("hash", "group"),
    [
        ("#split=eval_easy&step=5&group=0.0.0", {"step": 5, "split": "eval_easy"}),
        ("#split=train&step=5&group=0.1.2", {"step": 5, "round": 1, "group": 2}),
        ("#split=gone&step=4&group=9.9.9", {"step": 5}),
        ("#step=NaN&__proto__=1", {"step": 0}),
    ],
)
def test_a_link_leads_to_its_group(opened, report, hash, group):
    page = opened(report, hash)
    shows(page, **group)
    soon(lambda: page.locator("#step").get_attribute("aria-valuetext") == f"step {group['step']}")
    soon(lambda: page.locator(".row[aria-selected=true]").count() == 1)


# -- beliefs


@pytest.fixture(scope="module")
def believing(tmp_path_factory):
    """Write a page of steps 0 to 7: one prompt at even steps, a hostile one at odd steps, one more only at step 7.

    The beliefs about the first two prompts are about a reward with a hostile name.
    """
    groups = []
    for step in range(8):
        belief = {"mean": step / 8, "std": 0.49, "attempts": step + 0.5, "of": HOSTILE}
        rows = synthetic_traces.group(
            [1.0, 0.0, step / 8, 0.0], step=step, prompt=("again", HOSTILE)[step % 2], belief=belief
        )
        groups.append([{**row, "rewards": {HOSTILE: row["reward"] - 1.0}} for row in rows])
    belief = {**BELIEF, "attempts": 1, "of": "accuracy"}
    groups.append(synthetic_traces.group([1.0, 1.0], step=7, group=1, prompt="once", belief=belief))
    run = synthetic_traces.write_traces(tmp_path_factory.mktemp("believing"), groups)
    return write_page(run, tmp_path_factory.mktemp("out") / "report.html").path


BELIEF = {"mean": 0.4, "std": 0.4899, "attempts": 3.52}


def test_a_group_says_what_was_believed_of_its_prompt(opened, opened_panel, believing, report):
    page = opened(believing, "#split=train&step=2&group=0.0.0")
    soon(
        lambda: (
            page.inner_text("#group-head .belief") == f"{HOSTILE}: believed 0.25 ± 0.49 on 2.5 attempts; earned 0.313"
        )
    )
    soon(lambda: page.evaluate("window.hacked") is None)
    page = opened_panel([synthetic_traces.group([1.0, 0.0], belief=BELIEF)])
    soon(lambda: page.inner_text(".belief") == "believed 0.4 ± 0.49 on 3.5 attempts; earned 1.5")
    page = opened(report)
    soon(lambda: page.locator(".belief").count() == 0)
    soon(lambda: "believed" not in page.inner_text("body"))


def test_calibration_opens_by_key_and_draws_the_last_steps_or_all(opened, believing):
    page = opened(believing)
    soon(lambda: page.inner_text("#calibration summary") == "Calibration: off by 0.24 over 9 groups")
    soon(lambda: page.locator("#tenths").is_hidden())
    page.locator("#calibration summary").focus()
    page.keyboard.press("Enter")
    soon(lambda: 0 < page.locator("#tenths circle").count() == page.locator("#tenths tbody tr").count())
    cells = [node.all_inner_texts() for node in (row.locator("td") for row in page.locator("#tenths tbody tr").all())]
    assert cells[:2] == [["0", "0.25", "1"], ["0.125", "0.281", "1"]]
    assert ["0.4", "1", "1"] in cells
    # On the diagonal, the earned reward equals the believed one. Above it, more was earned.
    ends = page.locator(".diagonal").evaluate("({ x1, y1, x2, y2 }) => [x1, y1, x2, y2].map((v) => v.baseVal.value)")
    places = page.locator("#tenths circle").evaluate_all(
        "nodes => nodes.map((n) => [n.cx, n.cy].map((v) => v.baseVal.value))"
    )
    assert len(places) == len(cells)
    for (x, y), (mean, earned, _) in zip(places, cells, strict=True):
        diagonal = ends[1] + (x - ends[0]) / (ends[2] - ends[0]) * (ends[3] - ends[1])
        assert (y < diagonal) == (float(earned) > float(mean))
    page.select_option("#calibration-steps", "last, 6 – 7")
    soon(lambda: page.inner_text("#calibration summary").endswith("over 3 groups"))
    soon(lambda: page.locator("#tenths circle").count() == page.locator("#tenths tbody tr").count() == 3)


def test_without_beliefs_there_is_no_calibration(opened, opened_panel, report):
    soon(lambda: opened(report).locator("#calibration").is_hidden())
    soon(lambda: opened_panel([synthetic_traces.group([1.0, 0.0], belief=BELIEF)]).locator("#calibration").is_hidden())


# -- alarms and curves


def test_an_alarm_leads_to_its_group(opened, report):
    page = opened(report)
    page.select_option("#verdict", "all_good")
    soon(lambda: page.inner_text("#alarms summary") == "2 alarms: repetition, dead groups")
    page.click("#alarms summary")
    soon(lambda: page.locator(".alarm b").all_inner_texts() == ["repetition", "dead groups"])
    page.click(".alarm:has-text('repetition') button")
    shows(page, 5, group=2, round=1)
    settled(page, "Step 5: it loops")
    soon(lambda: page.locator(".row[aria-selected=true] .alarm-mark").inner_text() == "repetition")
    page.click(".alarm:has-text('dead groups') button")
    shows(page, 1)
    settled(page, "Step 1: most are dead It names no group.")


def test_curves_tell_values_and_lead_to_steps(opened, report):
    page = opened(report, "#split=train&step=1")
    soon(lambda: page.locator(".curve .title").all_inner_texts() == ["reward", "verdicts", "KL", "entropy", "tokens"])
    reward = page.locator(".curve").first
    picture = reward.locator("> svg")
    soon(lambda: reward.locator(".where text").text_content() == "step 1")
    soon(lambda: reward.locator(".series b").first.inner_text() == "0")
    picture.hover(position={"x": picture.bounding_box()["width"] - 5, "y": 20})
    soon(lambda: reward.locator(".where text").text_content() == "step 6")
    soon(lambda: reward.locator(".series b").first.inner_text() == "0.5")
    picture.click(position={"x": picture.bounding_box()["width"] - 5, "y": 20})
    shows(page, 5)


# -- untrusted text


def test_what_models_write_stays_text(opened, report):
    page = opened(report, "#split=train&step=1&group=0.0.0")
    page.keyboard.press("t")
    until(page, "document.querySelectorAll('details.think[open]').length === 1")
    soon(lambda: body(page, 0).locator(".text").text_content() == HOSTILE)
    soon(lambda: body(page, 2).locator(".text").evaluate("node => node.textContent") == UNUSUAL)
    soon(lambda: "(empty)" in body(page, 1).inner_text())
    soon(lambda: page.locator("img, main script, main b b, main a").count() == 0)
    soon(lambda: page.evaluate("window.hacked") is None)
    soon(lambda: body(page, 2).locator(".text").evaluate("node => getComputedStyle(node).unicodeBidi") == "plaintext")


def test_the_policy_stops_what_would_load_or_run(browser, report):
    with browser.new_page() as page:
        page.goto(f"file://{report}")
        blocked = page.evaluate("""async () => {
      const blocked = [];
      document.addEventListener("securitypolicyviolation", (event) => blocked.push(event.effectiveDirective));
      const script = document.createElement("script");
      script.textContent = "window.hacked = 1";
      const image = document.createElement("img");
      image.src = "http://127.0.0.1:9/pixel.gif"; // only pictures within the page, data:, are shown
      document.body.append(script, image);
      await new Promise((done) => setTimeout(done, 200));
      return [...blocked.sort(), window.hacked];
    }""")
    assert blocked == ["img-src", "script-src-elem", None]


# -- other pages


def test_what_was_left_out_is_told(opened, tmp_path):
    run = synthetic_traces.write_run(tmp_path, steps=10, groups=20, size=4, length=400)
    written = write_page(run, tmp_path / "report.html", max_mb=0.3)
    page = opened(written.path)
    left = 200 - written.groups_written
    soon(lambda: page.locator("#note").is_visible())
    soon(lambda: f"Left out for size: {left} of 200 groups ({4 * left} of 800 attempts)" in page.inner_text("#note"))


def test_a_panel_shows_its_groups(opened_panel):
    groups = [
        synthetic_traces.group([1.0, 0.0], step=3, prompt="first"),
        synthetic_traces.group([0.0, 0.0], step=4, prompt=HOSTILE),
    ]
    page = opened_panel(groups, "Step 12")
    soon(lambda: page.inner_text("#run") == "Step 12")
    soon(lambda: titles(page) == ["first", HOSTILE])
    soon(lambda: page.locator("#curves, #alarms, #note").filter(visible=True).count() == 0)
    page.keyboard.press("j")
    shows(page, 4)
    page.fill("#query", "first")
    settled(page, "1 group over all steps.")


def test_a_panel_works_in_a_frame_that_may_only_run_scripts(opened, tmp_path):
    (tmp_path / "panel.html").write_text(panel([synthetic_traces.group([1.0, 0.0], prompt="first")]))
    (tmp_path / "frame.html").write_text(
        "<p class=attempt>.</p><iframe sandbox=allow-scripts src=panel.html></iframe>"
    )
    frame = opened(tmp_path / "frame.html").frame_locator("iframe")
    frame.locator("#columns .attempt").first.wait_for()
    for query, status in (("nothing", "0 groups here."), ("fir", "1 group here.")):
        frame.locator("#query").fill(query)
        frame.get_by_text(status, exact=True).wait_for()


def test_trl_files_are_shown_as_far_as_they_go(opened, tmp_path):
    (tmp_path / "completions").mkdir()
    answers = [[{"role": "assistant", "content": text}] for text in ("one", "two", "three", "four")]
    prompts = [[{"role": "user", "content": text}] for text in ("first", "first", "second", "second")]
    table = {"step": [5] * 4, "prompt": prompts, "completion": answers, "accuracy": [0.0, 1.0, 0.5, 0.5]}
    table |= {"format": [0.5] * 4, "advantage": [-1.0, 1.0, 0.0, 0.0]}
    pd.DataFrame(table).to_parquet(tmp_path / "completions" / "completions_00005.parquet")
    page = opened(write_page(tmp_path, tmp_path / "report.html").path)
    soon(lambda: "Read from TRL's own completions" in page.inner_text("#note"))
    soon(lambda: titles(page) == ["first", "second"])
    soon(lambda: attempts(page) == ["1", "0"])
    soon(lambda: "1.5" in page.locator(".total").first.inner_text())
    soon(lambda: "sum" in page.locator(".total").first.inner_text())
    soon(lambda: page.locator("#verdict, #kept, #alarm, .badge").filter(visible=True).count() == 0)


def test_a_browser_that_cannot_unpack_is_told(browser, report):
    with browser.new_page(offline=True) as page:
        page.add_init_script("delete window.DecompressionStream")
        page.goto(f"file://{report}")
        page.wait_for_selector("#note:not([hidden])")
        soon(lambda: "lacks DecompressionStream" in page.inner_text("#note"))


@pytest.mark.parametrize("width", [1280, 1920])
@pytest.mark.parametrize(("scheme", "background"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(13, 17, 23)")])
def test_nothing_but_the_columns_scrolls_sideways(browser, report, width, scheme, background):
    with in_scheme(browser, scheme, viewport={"width": width, "height": 900}) as page:
        page.goto(f"file://{report}")
        page.wait_for_selector(".attempt")
        soon(lambda: sideways(page) == 0)
        soon(lambda: page.evaluate("getComputedStyle(document.body).backgroundColor") == background)


def test_with_advantages_of_tokens_the_best_attempt_has_the_highest_reward(opened_panel):
    """A row's advantage is then that of the first token."""
    rows = synthetic_traces.group([1.0, 0.0])
    rows = [{**row, "advantage": of, "advantages": [[4, of]]} for row, of in zip(rows, (0.1, 0.3), strict=True)]
    page = opened_panel([rows])
    soon(lambda: attempts(page) == ["0", "1"])


def test_equal_attempts_whose_tokens_earn_differently_have_columns_of_their_own(opened_panel):
    same = {"completion": "abcd", "advantage": 0.5, "reward": 1.0}
    rows = [{**row, **same} for row in synthetic_traces.group([1.0, 1.0])]
    page = opened_panel([[{**rows[0], "advantages": [[4, 0.5]]}, {**rows[1], "advantages": [[2, 0.5], [4, -3.0]]}]])
    soon(lambda: attempts(page) == ["0", "1"])


def test_a_reward_may_be_named_as_any_object_has_it(opened_panel):
    rows = [{**row, "rewards": {"constructor": row["reward"]}} for row in synthetic_traces.group([1.0, 0.0])]
    page = opened_panel([rows])
    soon(lambda: "constructor" in page.locator(".attempt").first.inner_text())
