"""Traces, pages and the log count steps alike: the step of a batch is the number of steps done after it."""

import browser_pages
import pandas as pd
import pytest
import synthetic_traces
from browser_pages import settled, shows, soon, until

from trl_grpo_plus.view import write_comparison, write_page


browser, opened = browser_pages.browser, browser_pages.opened  # fixtures


@pytest.fixture
def opened_runs(browser):
    """Yield a function that opens a page of several runs."""
    with browser_pages.quiet(browser, ".one", offline=True) as open_page:
        yield open_page


def a_run(folder, last=6):
    """Write a run of `last` steps, which is evaluated at 0, 3 and 8."""
    groups = [
        synthetic_traces.group([1.0, float(step % 2)], length=3, step=step + 1, prompt=f"again {step % 2}")
        for step in range(last)
    ]
    metrics = [{"step": step + 1, "reward": step / 10} for step in range(last)]
    for step, reward in ((0, 0.25), (3, 0.5), (8, 0.75)):
        metrics.append({"step": step, "eval_easy_runtime": 1.0, "eval_reward": reward})
    message = "repetition at step 4: it loops."
    alarms = [{"step": 4, "name": "repetition", "message": message, "groups": [[0, 0, 0]]}]
    first = [{"step": 3, "text": "6 times 7?", "tokens": 4, "flags": []}]
    metrics.sort(key=lambda line: line["step"])
    return synthetic_traces.write_traces(folder, groups, alarms, metrics, {"rewards": {"accuracy": 1.0}}, first)


def at_cursor(page, title):
    plot = page.locator(".curve").filter(has=page.get_by_text(title, exact=True)).first
    series = [" ".join(text.split()) for text in plot.locator(".series").all_inner_texts()]
    return plot.locator(".where text").text_content(), series


def test_a_batch_has_the_step_of_its_log_everywhere(opened, tmp_path):
    page = opened(write_page(a_run(tmp_path), tmp_path / "report.html").path, "#split=train&step=4")
    shows(page, 4)
    soon(lambda: page.inner_text("#group-head h2").startswith("train, step 4,"))
    soon(lambda: page.inner_text("#step-shown") == "4 (1 – 6)")
    soon(lambda: page.get_attribute("#step", "aria-valuetext") == "step 4")
    soon(lambda: at_cursor(page, "reward")[0] == "step 4")
    page.click("#alarms summary")
    soon(lambda: page.inner_text(".alarm button") == "step 4")
    soon(lambda: page.inner_text(".alarm bdi") == "it loops.")
    soon(lambda: page.locator(".mark title").first.text_content() == "repetition at step 4: it loops.")
    page.click("#given summary")
    soon(lambda: "a prompt of step 3" in page.inner_text("#given-facts"))
    page.click(".alarm button")
    settled(page, "Step 4: it loops.")
    page.check("#all-steps")
    soon(lambda: page.locator(".row-title").nth(3).inner_text().startswith("step 4"))
    page.keyboard.press("f")
    until(page, "document.querySelectorAll('#side-group-0 option').length === 3")
    soon(lambda: page.locator("#side-group-0 option").first.inner_text() == "step 2: 2")
    soon(lambda: page.locator("#follow-plot .where").text_content() == "step 4")
    soon(lambda: page.locator(".spot title").first.text_content().startswith("step 2: "))


def test_the_legend_tells_the_evaluation_at_or_before_the_cursor(opened, tmp_path):
    page = opened(write_page(a_run(tmp_path), tmp_path / "report.html").path, "#split=train&step=6")
    shows(page, 6)  # the last batch, before the last evaluation
    soon(lambda: at_cursor(page, "reward") == ("step 6", ["train 0.5", "eval easy 0.25 → 0.5 at 3 → 0.75"]))
    soon(lambda: page.locator(".series b").nth(1).inner_text() == "0.5")  # the value at the cursor
    page.click("#step-back")
    page.click("#step-back")
    page.click("#step-back")
    soon(lambda: at_cursor(page, "reward") == ("step 3", ["train 0.2", "eval easy 0.25 → 0.5 → 0.75"]))
    page.click("#step-back")
    soon(lambda: at_cursor(page, "reward") == ("step 2", ["train 0.1", "eval easy 0.25 at 0 → 0.75"]))


def test_curves_made_from_traces_count_steps_as_the_log_does(opened, tmp_path):
    rows = [synthetic_traces.group([1.0, 0.0], step=step) for step in (1, 2)]
    page = opened(write_page(synthetic_traces.write_traces(tmp_path, rows), tmp_path / "report.html").path)
    shows(page, 2)
    soon(lambda: at_cursor(page, "reward") == ("step 2", ["1.5"]))
    page.click("#step-back")
    soon(lambda: at_cursor(page, "reward") == ("step 1", ["1.5"]))


def test_files_of_stock_trl_hold_the_step_of_the_log(opened, opened_runs, tmp_path):
    for name in ("one", "two"):
        folder = tmp_path / name / "completions"
        folder.mkdir(parents=True)
        rows = {"step": 4, "prompt": ["p", "p"], "completion": ["a", "b"], "right": [1.0, 0.0]}
        rows["advantage"] = [1.0, -1.0]
        pd.DataFrame(rows).to_parquet(folder / "completions_00004.parquet")
    page = opened(write_page(tmp_path / "one", tmp_path / "report.html").path)
    soon(lambda: page.inner_text("#group-head h2").startswith("train, step 4,"))
    soon(lambda: at_cursor(page, "reward")[0] == "step 4")
    page = opened_runs(write_comparison([tmp_path / "one", tmp_path / "two"]).path)
    soon(lambda: page.locator(".when").first.inner_text().startswith("step 4"))
