"""A setting that is turned on in one view of the page works in the other views."""

import browser_pages
import pytest
import synthetic_traces
from browser_pages import attempts, shows, sideways, soon, until

from trl_grpo_plus.view import write_comparison, write_page


browser, opened, opened_panel = browser_pages.browser, browser_pages.opened, browser_pages.opened_panel  # fixtures

UNSEEN = "a\u200bb \u202efed\u202c"


def write(rows, *texts):
    return [{**row, "completion": text} for row, text in zip(rows, texts, strict=True)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Write a page of two prompts at two steps. Attempts on the first are in Markdown; three of them are equal."""
    groups = []
    for step in (0, 1):
        rows = synthetic_traces.group([1.0, 1.0, 1.0, 0.0], step=step, prompt=f"{UNSEEN} $x^2$")
        groups.append(write(rows, "**is** 2", "**is** 2", "**is** 2", "**was** 3"))
        groups.append(synthetic_traces.group([1.0, 0.0], step=step, group=1, prompt="live"))
    run = synthetic_traces.write_traces(tmp_path_factory.mktemp("run"), groups)
    return write_page(run, tmp_path_factory.mktemp("out") / "report.html").path


def test_a_prompt_is_followed_in_rendered_texts_until_marks_are_asked_for(opened, report):
    page = opened(report, "#split=train&step=0&group=0.0.0&view=follow&rendered=1")
    until(page, "document.querySelectorAll('.side .rendered strong').length === 2")
    soon(lambda: page.locator("#task .rendered math").count() == 1)
    soon(lambda: page.get_attribute("#rendered", "aria-pressed") == "true")
    page.keyboard.press("d")
    until(page, "document.querySelectorAll('.side .rendered').length === 0")
    page.click("#rendered")
    until(page, "document.querySelectorAll('.side .rendered').length === 2")


def test_invisible_characters_are_marked_in_titles_of_prompts(opened, report):
    page = opened(report, "#split=train&step=0&group=0.0.0&view=prompts")
    page.click("#list-all")
    row = page.locator(".prompt-row:has(.ghost)")
    soon(lambda: row.locator(".ghost").count() == 3)
    soon(lambda: row.get_attribute("title").startswith("a[ZWSP]b [RLO]fed[PDF]"))
    row.click()
    page.wait_for_selector("#pair")
    soon(lambda: page.locator("#group-head h2 .ghost").count() == 3)


def test_invisible_characters_are_marked_in_titles_of_prompts_that_runs_share(browser, tmp_path):
    for name in ("one", "two"):
        synthetic_traces.write_traces(tmp_path / name, [synthetic_traces.group([1.0, 0.0], prompt=UNSEEN)])
    path = write_comparison([tmp_path / "one", tmp_path / "two"]).path
    with browser_pages.quiet(browser, ".one", offline=True) as open_page:
        row = open_page(path).locator(".row")
        soon(lambda: row.locator(".ghost").count() == 3)
        soon(lambda: row.get_attribute("title") == "a[ZWSP]b [RLO]fed[PDF]")


def test_keys_of_a_group_do_nothing_in_views_without_a_group(opened, report):
    page = opened(report, "#split=train&step=0&group=0.0.0&view=follow")
    page.wait_for_selector("#pair")
    for key in ("p", "c", "e", "W"):
        page.keyboard.press(key)
    page.keyboard.press("t")
    until(page, "document.querySelector('#unfold').getAttribute('aria-pressed') === 'true'")
    soon(lambda: page.url.endswith("#split=train&step=0&group=0.0.0&thinking=1&view=follow"))
    soon(lambda: "No attempt" not in page.inner_text("#status"))
    page.keyboard.press("o")
    page.wait_for_selector("#prompt-list")
    for key in ("d", "m", "t"):
        page.keyboard.press(key)
    page.keyboard.press("w")  # leaves the lists for a group
    shows(page, 0, group=1)
    soon(lambda: "diff=" not in page.url)
    soon(lambda: "rendered=" not in page.url)


def test_a_pin_on_one_of_several_equal_attempts_moves_to_their_column(opened, report):
    page = opened(report, "#split=train&step=0&group=0.0.0&pins=2.3&rendered=1&apart=1")
    until(page, "document.querySelectorAll('.attempt').length === 2")
    soon(lambda: attempts(page) == ["2", "3"])
    page.keyboard.press("e")
    until(page, "document.querySelector('.attempt').dataset.attempt === '0'")
    soon(lambda: attempts(page) == ["0", "3"])
    page.keyboard.press("d")
    until(page, "document.querySelectorAll('mark.differs').length > 0")
    page.keyboard.press("f")
    page.wait_for_selector("#pair")
    page.keyboard.press("f")
    until(page, "document.querySelectorAll('#columns .attempt').length === 2")
    soon(lambda: page.locator(".pinned").count() == 0)


def test_on_a_phone_a_short_list_leaves_no_gap(browser, tmp_path):
    groups = [synthetic_traces.group([1.0, 0.0], group=n, prompt=f"p{n}") for n in range(40)]
    runs = [synthetic_traces.write_traces(tmp_path / str(count), groups[:count]) for count in (1, 40)]
    pages = [write_page(run, run / "report.html").path for run in runs]
    with browser.new_page(viewport={"width": 390, "height": 844}) as page:
        for path, tall in zip(pages, (68, 0.38 * 844), strict=True):
            page.goto(f"file://{path}")
            page.wait_for_selector(".attempt")
            soon(lambda tall=tall: abs(page.locator("#list").bounding_box()["height"] - tall) < 2)


@pytest.mark.parametrize("several", [False, True])
def test_a_long_name_is_not_wider_than_a_phone(browser, tmp_path, several):
    names = [f"{n}_{'long_name' * 8}" for n in range(2)]
    runs = [synthetic_traces.write_traces(tmp_path / name, [synthetic_traces.group([1.0, 0.0])]) for name in names]
    path = write_comparison(runs).path if several else write_page(runs[0], tmp_path / "report.html").path
    with browser.new_page(viewport={"width": 390, "height": 844}) as page:
        page.goto(f"file://{path}")
        page.wait_for_selector(".one, .attempt")
        soon(lambda: sideways(page) == 0)
