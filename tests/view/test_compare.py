"""The page of several runs, opened from disk in a real Chromium that is offline."""

import json
import re

import browser_pages
import pytest
import synthetic_traces
from browser_pages import HOSTILE, soon, until

from trl_grpo_plus.view import write_comparison


browser = browser_pages.browser  # a fixture


@pytest.fixture
def opened(browser):
    """Yield a function that opens a page from disk."""
    with browser_pages.quiet(browser, ".one, .empty, #prompts-note:not([hidden])", offline=True) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write the page of two seeds of one setting and of a third run that logged neither seconds nor alive groups."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        a_run(folder / "seed1", [1.0, 0.0], {"seed": 1, "beta": 0.1}, reward=0.2),
        a_run(folder / "seed2", [0.0, 0.0], {"seed": 2, "beta": 0.1}, reward=0.4),
        a_run(folder / HOSTILE.replace("/", ""), [1.0, 1.0], {"seed": 1, "note": HOSTILE}, reward=0.9, timed=False),
    ]
    return write_comparison(runs)


@pytest.fixture
def page(opened, written):
    return opened(written.path)


def a_run(folder, late, options, reward, timed=True):
    """Write a run with three prompts at steps 0, 4 and 8.

    Nobody solves "moved" at steps 0 and 4; `late` has its scores at step 8. All attempts solve the other two prompts.
    """
    groups = []
    for step, scores in ((0, [0.0, 0.0]), (4, [0.0, 0.0]), (8, late)):
        groups.append(synthetic_traces.group(scores, length=5, step=step, group=0, prompt="moved"))
        groups.append(synthetic_traces.group([1.0, 1.0], length=5, step=step, group=1, prompt=HOSTILE))
        groups.append(synthetic_traces.group([1.0, 1.0], length=5, step=step, group=2, prompt=f"only {folder.name}"))
    texts = [["one two three", "one 2 three"], ["one two four", HOSTILE]][reward < 0.3]
    groups[6] = [{**row, "completion": text} for row, text in zip(groups[6], texts, strict=True)]
    spent = {"step_time": 2.0, "groups/alive": 0.5} if timed else {}
    metrics = [{"eval_easy_runtime": 1.0, "eval_reward": reward / 2, "step": 0}]
    metrics += [{"reward": reward, "loss": 1.5, "num_tokens": 100 * step, **spent, "step": step} for step in (4, 8)]
    metrics.append({"eval_easy_runtime": 1.0, "eval_reward": reward, "step": 8})
    alarms = [{"step": 4, "name": "dead_groups", "message": "", "groups": []}] * (2 if timed else 0)
    return synthetic_traces.write_traces(
        folder, groups, alarms, metrics, {"rewards": {"accuracy": 1.0}, "options": options}
    )


def plot(page, title):
    return page.locator(".curve", has=page.locator(".title", has_text=re.compile(f"^{title}$")))


def legend(page, title):
    """Return the text of a plot's legend, once it is drawn."""
    until(page, "[...document.querySelectorAll('.series b')].every((value) => value.textContent)")
    return " | ".join(text.strip() for text in plot(page, title).locator(".series").all_inner_texts())


def prompts(page):
    return page.locator(".row-title").all_inner_texts()


def columns(page):
    return page.locator(".of-run h3").all_inner_texts()


# -- curves and tables


def test_seeds_are_drawn_as_a_mean_with_a_range_or_one_by_one(page):
    soon(lambda: page.inner_text("#facts") == "3 runs of 2 settings, 2 prompts of two runs or more")
    soon(lambda: "mean of seed1, seed2 0.3" in legend(page, "reward"))
    soon(lambda: legend(page, "reward").count("|") == 1)
    soon(lambda: page.evaluate("document.querySelector('.band').getBoundingClientRect().height") > 5)
    page.uncheck("#mean")
    until(page, "document.querySelectorAll('.band').length === 0")
    soon(lambda: legend(page, "reward").startswith("seed1 0.2 at 8 | seed2 0.4 at 8 | "))


def test_the_page_says_which_run_lacks_the_chosen_axis(page):
    soon(lambda: page.inner_text("#axis-note") == "A mean ends where the first of its runs ends.")
    page.select_option("#axis", "seconds")
    until(page, "document.querySelector('#axis-note').textContent.includes('step_time was not logged')")
    soon(lambda: "without evaluations" in page.inner_text("#axis-note"))
    soon(lambda: legend(page, "reward").startswith("mean of seed1, seed2 0.3"))
    soon(lambda: "|" not in legend(page, "reward"))
    soon(lambda: plot(page, "reward").locator("svg[role=slider]").get_attribute("aria-valuemax") == "16")
    page.select_option("#axis", "tokens")
    until(page, "!document.querySelector('#axis-note').textContent.includes('Not drawn')")
    soon(lambda: legend(page, "reward").count("|") == 1)


def test_the_page_says_which_run_lacks_a_metric_and_can_draw_any_metric(page):
    soon(lambda: "Not logged: " in plot(page, "alive groups").inner_text())
    soon(lambda: plot(page, "loss").count() == 0)
    page.locator("#metric").press_sequentially("loss")
    page.keyboard.press("Enter")
    until(page, "[...document.querySelectorAll('.title')].some((node) => node.textContent === 'loss')")
    plot(page, "loss").get_by_role("button", name="Remove loss").click()
    until(page, "[...document.querySelectorAll('.title')].every((node) => node.textContent !== 'loss')")
    page.locator("#metric").press_sequentially("nothing")
    page.keyboard.press("Enter")
    soon(lambda: page.get_attribute("#metric", "aria-invalid") is not None)


def test_the_address_holds_the_view(opened, written, page):
    soon(lambda: page.evaluate("location.hash") in ("", "#"), "as it opens")
    page.select_option("#axis", "tokens")
    page.uncheck("#mean")
    page.get_by_label("Draw seed2").uncheck()
    plot(page, "alive groups").get_by_role("button", name="Remove").click()
    page.select_option("#order", "2")
    page.locator(".row").nth(0).click()
    page.locator("#first-0").click()
    page.keyboard.press("t")
    until(page, "location.hash.includes('thinking=1')")
    again = opened(written.path, page.evaluate("location.hash"))
    until(again, "document.querySelector('#first-0')?.getAttribute('aria-pressed') === 'true'")
    soon(lambda: again.evaluate("location.hash") == page.evaluate("location.hash"))
    soon(lambda: (again.input_value("#axis"), again.input_value("#order")) == ("tokens", "2"))
    soon(lambda: not again.is_checked("#mean"))
    soon(lambda: not again.get_by_label("Draw seed2").is_checked())
    soon(lambda: plot(again, "alive groups").count() == 0)
    soon(lambda: again.get_attribute("#unfold", "aria-pressed") == "true")
    soon(lambda: again.locator("#list .row[aria-selected=true] .row-title").inner_text() == "moved")
    again.evaluate("location.hash = '#axis=nonsense&without=7.x&metric=none&prompt=99&at=5&order=9'")
    until(again, "document.querySelector('#axis').value === 'steps'")
    soon(lambda: again.is_checked("#mean"))
    soon(lambda: again.get_by_label("Draw seed2").is_checked())
    soon(lambda: again.locator(".curve").count() == 0)


def test_a_run_can_be_left_out_of_the_curves(page):
    page.get_by_label("Draw seed1").uncheck()
    until(page, "document.querySelectorAll('.band').length === 0")
    soon(lambda: legend(page, "reward").startswith("seed2 0.4 at 8 | "))


def test_tables_tell_outcomes_and_what_differs(page):
    runs = page.locator("#outcomes tbody tr")
    soon(lambda: runs.count() == 3)
    first, _, third = runs.all_inner_texts()
    assert "0.1 → 0.2 +0.1 from 0 to 8" in first
    assert "16" in first.split("\t")
    assert "dead groups × 2" in first
    assert "same setting as seed2" in first
    assert third.split("\t").count("not logged") == 2
    assert third.endswith("none")
    soon(
        lambda: (
            [text.split("\t") for text in page.locator("#options tbody tr").all_inner_texts()]
            == [["beta", "0.1", "default"], ["note", "default", HOSTILE], ["seed", "1, 2", "1"]]
        )
    )


# -- prompts


def test_prompts_are_sorted_by_how_far_apart_the_runs_are(page):
    soon(lambda: prompts(page) == ["moved", HOSTILE])
    soon(lambda: "apart 1" in page.locator(".row").first.inner_text())
    soon(lambda: page.inner_text("#status") == "2 prompts of two runs or more.")
    page.select_option("#order", "1")  # prompts on which seed2 is ahead: none
    until(page, "document.querySelectorAll('.row').length === 0")
    page.select_option("#order", "2")
    until(page, "document.querySelectorAll('.row').length === 1")


def test_each_run_shows_its_attempts_at_a_step(page):
    soon(lambda: columns(page) == ["seed1", "seed2", HOSTILE.replace("/", "")])
    soon(lambda: page.locator(".when").first.inner_text().split("\n")[:2] == ["step 8", "3 times sampled"])
    # The best attempt of seed1 is "one two four"; words of the other runs that differ from it are marked.
    soon(lambda: page.locator(".of-run").first.locator(".one").first.inner_text().split("\n")[0].startswith("2"))
    soon(lambda: page.locator(".of-run").nth(1).locator("mark.differs").all_inner_texts() == ["three", "2 three"])
    page.locator("#first-0").click()
    until(page, "document.querySelector('.when span').textContent === 'step 0'")
    soon(lambda: page.evaluate("document.activeElement.id") == "first-0")
    soon(lambda: "step 8" in page.locator(".when").nth(1).inner_text())
    page.locator("#when-0").focus()
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('.when span').textContent === 'step 4'")


def test_text_and_keys_find_a_prompt(page):
    page.fill("#query", "one 2 three")
    until(page, "document.querySelectorAll('.row').length === 1")
    until(page, "document.querySelectorAll('mark.hit').length > 0")
    page.fill("#query", "")
    until(page, "document.querySelectorAll('.row').length === 2")
    page.focus("#list")
    page.keyboard.press("ArrowDown")
    until(page, "document.querySelector('[aria-selected=true]')?.id === 'row-1'")
    soon(lambda: page.locator(".prompt .text").inner_text() == HOSTILE)
    page.keyboard.press("d")
    until(page, "document.querySelector('#diff').getAttribute('aria-pressed') === 'false'")


def test_what_models_and_people_write_stays_text(page, written):
    soon(lambda: page.evaluate("window.hacked") is None)
    soon(lambda: HOSTILE.replace("/", "") in page.inner_text("#run"))
    soon(lambda: page.locator("img, #group script, #outcomes script").count() == 0)
    assert "</script><script>window.hacked" not in written.path.read_text()


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    soon(lambda: browser_pages.sideways(page) == 0)


def test_on_a_phone_a_plot_is_nearly_as_wide_as_the_window(page):
    page.set_viewport_size({"width": 390, "height": 844})
    pictures = page.locator("#curves .curve > svg")
    soon(lambda: pictures.evaluate_all("nodes => Math.min(...nodes.map(node => node.clientWidth))") > 300)


# -- runs that have no traces of this package


def test_runs_of_stock_trl_and_logs_alone(opened, tmp_path):
    pd = pytest.importorskip("pandas")
    for name, best in (("one", 1.0), ("two", 0.0)):
        (tmp_path / name / "completions").mkdir(parents=True)
        rows = {
            "step": 1,
            "prompt": ["p", "p"],
            "completion": ["a", "b"],
            "right": [best, 0.0],
            "advantage": [0.5, -0.5],
        }
        pd.DataFrame(rows).to_parquet(tmp_path / name / "completions" / "completions_00001.parquet")
    (tmp_path / "log").mkdir()
    state = {"global_step": 5, "log_history": [{"step": 5, "reward": 0.5}, {"step": 5, "train_loss": 1.0}]}
    (tmp_path / "log" / "trainer_state.json").write_text(json.dumps(state))
    page = opened(write_comparison([tmp_path / name for name in ("one", "two", "log")]).path)
    soon(lambda: prompts(page) == ["p"])
    soon(lambda: columns(page) == ["one", "two"])
    soon(lambda: page.inner_text("#group-head").startswith("train\nNever sampled in log"))
    soon(lambda: legend(page, "reward") == "one 0.5 at 1 | two 0 at 1 | log 0.5 at 5")
    for note in ("log has no attempts", "one has no log", "one, two: Read from TRL's own", "Options of one, two, log"):
        soon(lambda note=note: note in page.text_content("#notes"))


def test_a_run_without_attempts_gives_a_sentence_in_place_of_the_prompts(opened, tmp_path):
    kept = a_run(tmp_path / "kept", [0.0, 1.0], {"seed": 1}, reward=0.5)
    (tmp_path / "log").mkdir()
    state = {"global_step": 5, "log_history": [{"step": 5, "reward": 0.5}]}
    (tmp_path / "log" / "trainer_state.json").write_text(json.dumps(state))
    page = opened(write_comparison([kept, tmp_path / "log"]).path)
    soon(lambda: page.inner_text("#prompts-note") == "log kept no attempts, so there are none to compare.")
    soon(lambda: page.inner_text("#facts") == "2 runs")
    soon(lambda: page.locator("#controls:visible, #both:visible, #status:visible").count() == 0)


# -- many runs, credit, and paths that the page hides


LOOK = "node => [getComputedStyle(node).stroke, getComputedStyle(node).strokeDasharray].join()"


def test_more_runs_than_colours_have_looks_of_their_own(opened, tmp_path):
    runs = [a_run(tmp_path / f"run{n:02}", [0.0, 1.0], {"seed": 1, "beta": n}, reward=n / 40) for n in range(20)]
    page = opened(write_comparison(runs).path)
    looks = [node.evaluate(LOOK) for node in page.locator("#outcomes .line-key .stroke").all()]
    assert len(looks) == len(set(looks)) == 20
    drawn = plot(page, "reward").locator("> svg .line > .stroke")
    soon(lambda: drawn.count() == 20)
    assert [node.evaluate(LOOK) for node in drawn.all()] == looks


def test_the_credit_of_tokens_is_shown_as_on_the_page_of_one_run(opened, tmp_path):
    for name in ("one", "two"):
        rows = synthetic_traces.group([1.0, 0.0], length=5, prompt="p")
        for row in rows:
            end = len(row["completion"])
            row |= {"advantages": [[end // 2, 0.5], [end, -1.0]]}
        synthetic_traces.write_traces(tmp_path / name, [rows])
    page = opened(write_comparison([tmp_path / "one", tmp_path / "two"]).path)
    soon(lambda: page.locator("mark.heat").count() >= 8)
    soon(lambda: page.locator("mark.heat").first.get_attribute("title") == "advantage +0.5")
    soon(lambda: page.inner_text("#credit-legend") == "advantage by token -1  +1")
    page.keyboard.press("c")
    soon(lambda: page.locator("mark.heat, #credit-legend").count() == 0)
    soon(lambda: page.get_attribute("#credit", "aria-pressed") == "false")
    again = opened(write_comparison([tmp_path / "one", tmp_path / "two"]).path, page.evaluate("location.hash"))
    soon(lambda: again.locator(".one").count() == 4 and again.locator("mark.heat").count() == 0)


def test_neither_folders_nor_paths_of_models_are_in_the_page(opened, tmp_path):
    models = ["/secret/place/first/checkpoint-60", "/secret/place/second/checkpoint-60", "me/model"]
    runs = [tmp_path / f"run{n}" for n in range(3)]
    for folder, model in zip(runs, models, strict=True):
        rows = synthetic_traces.group([1.0, 0.0], length=5, prompt="p")
        about = {"rewards": {"accuracy": 1.0}, "model": model, "options": {}}
        synthetic_traces.write_traces(folder, [rows], about=about)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "trainer_state.json").write_text(
        json.dumps({"global_step": 5, "log_history": [{"step": 5, "reward": 0.5}]})
    )
    path = write_comparison([*runs, tmp_path / "log"]).path
    page = opened(path)
    cells = page.locator("#options tbody tr", has=page.get_by_text("model", exact=True)).locator("td")
    soon(lambda: cells.all_inner_texts() == ["first/checkpoint-60", "second/checkpoint-60", "me/model", "not known"])
    soon(lambda: "log has no attempts: its folder holds neither" in page.text_content("#notes"))
    assert str(tmp_path) not in path.read_text()
    assert "/secret" not in path.read_text()
