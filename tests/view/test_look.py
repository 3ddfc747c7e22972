"""The top of a run's page, in a real Chromium: what the run is, what it reached, its curves and its metrics."""

import browser_pages
import pytest
import synthetic_traces
from browser_pages import FIRST, HOSTILE, in_scheme, settled, shows, sideways, soon, until

from trl_grpo_plus.view import write_page


browser, opened = browser_pages.browser, browser_pages.opened  # fixtures

ABOUT = {
    "rewards": {"accuracy": 1.0, "format": 0.25, "length": 0.0},
    "num_generations": 4,
    "model": f"me/model{HOSTILE}",
    "dataset": {"name": "me/sums", "rows": 7473},
    "evaluations": {"eval_easy": 64, "eval_hard": None},
    "options": {f"option_{i}": HOSTILE for i in range(8)},
    "versions": {"trl": "1.16.0", "torch": "2.9.0"},
}


PROMPT = f"<|im_start|>user\n{HOSTILE}\u202e 6 times 7?  <|im_end|>\n<|im_start|>assistant\n"
TWO_BOS = "it begins with two <s>: the text has one, and the tokenizer adds another"
FIRST_PROMPT = {"step": 0, "text": PROMPT, "tokens": 1047, "flags": [TWO_BOS, HOSTILE]}


def evaluation(step, split, reward, accuracy):
    rewards = {"eval_rewards/accuracy/mean": accuracy, "eval_rewards/format/mean": 1.0}
    return {"step": step, f"{split}_runtime": 1.0, f"{split}_loss": 0.5, "eval_reward": reward, **rewards}


def a_run(folder, about=ABOUT, first_prompt=FIRST_PROMPT):
    """Write a run of steps 0 to 39, logged every tenth step, with evaluations at 0, 20 and 40.

    Its only live groups are at steps 2 and 38.
    """
    groups = [
        synthetic_traces.group([1.0, 1.0], length=1, step=step, prompt=f"solved at {step}") for step in range(40)
    ]
    groups += [synthetic_traces.group([1.0, 0.0], length=1, step=38, group=1, prompt="live at 38")]
    groups += [synthetic_traces.group([1.0, 0.0], length=1, step=2, group=1, prompt="live at 2")]
    metrics = [{"step": step, "reward": step / 40, "kl": 0.5, "grad_norm": step} for step in (10, 20, 30, 40)]
    metrics = [{**line, "rewards/accuracy/mean": 0.25, HOSTILE: 1.0} for line in metrics]
    metrics += [{"step": step, "groups/alive": 0.25, "groups/all_good": 0.75} for step in (10, 20, 30, 40)]
    for step, reward in ((0, 0.125), (20, 0.5), (40, 0.96875)):
        metrics += [evaluation(step, "eval_easy", reward, reward), evaluation(step, "eval_hard", 0.0, None)]
    alarms = [
        {"step": 5, "name": "repetition", "message": "it loops", "groups": []},
        {"step": 38, "name": "dead_groups", "message": HOSTILE, "groups": [[0, 0, 1]]},
    ]
    metrics = sorted(metrics, key=lambda line: line["step"])
    return synthetic_traces.write_traces(
        folder, groups, alarms, metrics, about, [first_prompt] if first_prompt else []
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_page(a_run(tmp_path_factory.mktemp("look")), tmp_path_factory.mktemp("out") / "report.html").path


def curve(page, title):
    return page.locator(".curve").filter(has=page.get_by_text(title, exact=True)).first


def values(plot):
    """Return the legend's text for each series: its name, if it has one, and its value."""
    return [" ".join(text.split()) for text in plot.locator(".series").all_inner_texts()]


def point(plot, x, y=40):
    """Hover over the plot at step `x`, where the axis goes from 0 to 40."""
    picture = plot.locator("> svg")
    soon(lambda: picture.locator(".grid").count() > 0)
    left = picture.evaluate("node => Number(node.querySelector('.grid').getAttribute('x1'))")
    picture.hover(position={"x": left + x / 40 * (picture.bounding_box()["width"] - left - 8), "y": y})


def test_the_page_opens_on_a_late_live_group_unless_a_link_names_another(opened, report):
    page = opened(report)
    shows(page, 38, group=1)
    soon(lambda: page.locator(".row[aria-selected=true] bdi").inner_text() == "live at 38")
    shows(opened(report, FIRST), 0)


def test_the_header_says_what_the_run_is_and_what_it_reached(opened, report):
    page = opened(report)
    summary = page.locator("#about summary")
    soon(lambda: HOSTILE in summary.inner_text())
    soon(lambda: page.inner_text("#facts") == "40 steps of train; 42 groups, 84 attempts")
    for told in ("me/sums, 7,473 rows", "rewards accuracy + format × 0.25 + length (monitor)", "8 changed options"):
        soon(lambda told=told: told in summary.inner_text())
    soon(lambda: page.locator("#about dl").is_hidden())
    summary.click()
    soon(lambda: page.locator("#about code").all_inner_texts() == [f"option_{i}={HOSTILE}" for i in range(8)])
    soon(lambda: "eval_easy (64 rows)" in page.inner_text("#about"))
    soon(lambda: "torch 2.9.0" in page.inner_text("#about"))
    soon(lambda: "40 steps of train" in page.inner_text("#about dd >> nth=0"))
    easy, hard = page.locator(".result").nth(0), page.locator(".result").nth(1)
    told = "eval easy reward 0.125 → 0.969; accuracy 0.125 → 0.969; format 1 → 1"
    soon(lambda: " ".join(easy.inner_text().split()) == told)
    soon(lambda: " ".join(hard.inner_text().split()) == "eval hard reward 0 → 0")
    soon(lambda: page.locator(".result").count() == 2)
    soon(lambda: page.evaluate("window.hacked") is None)


def test_a_local_model_is_named_by_the_last_part_of_its_path(opened, tmp_path):
    run = a_run(tmp_path, {**ABOUT, "model": "/secret/place/models/small"})
    path = write_page(run, tmp_path / "report.html").path
    page = opened(path)
    soon(lambda: page.inner_text("#about summary").startswith("small · "))
    assert "/secret" not in path.read_text()


def test_the_first_prompt_is_shown_as_the_model_saw_it(opened, report):
    page = opened(report)
    summary, text = page.locator("#given summary"), page.locator("#given-text")
    soon(lambda: summary.inner_text() == f"As the model saw it · it begins with two <s> · {HOSTILE}")
    soon(lambda: text.is_hidden())
    summary.click()
    told = f"the first prompt of the run, 1,047 tokens · {TWO_BOS} · {HOSTILE}"
    soon(lambda: page.inner_text("#given-facts") == told)
    soon(lambda: text.is_visible())
    soon(lambda: text.text_content() == PROMPT)
    soon(lambda: text.inner_text().startswith("<|im_start|>user\n</script><script>"))  # with its line breaks
    soon(lambda: text.locator(".ghost").get_attribute("aria-label") == "U+202E right-to-left override")
    soon(lambda: page.evaluate("[window.hacked, document.querySelectorAll('#given img').length]") == [None, 0])


def test_a_long_first_prompt_scrolls_by_itself(opened, tmp_path):
    long = {**FIRST_PROMPT, "text": "\n".join(["line " * 300] * 200), "step": 7}
    page = opened(write_page(a_run(tmp_path, first_prompt=long), tmp_path / "report.html").path)
    summary, text = page.locator("#given summary"), page.locator("#given-text")
    summary.click()
    soon(lambda: "a prompt of step 7, the first that was kept, 1,047 tokens" in page.inner_text("#given-facts"))
    soon(lambda: text.evaluate("node => node.scrollHeight > node.clientHeight && node.clientHeight < innerHeight / 2"))
    soon(lambda: sideways(page) == 0)


@pytest.mark.parametrize("about", [None, {"rewards": {"accuracy": 1.0}, "num_generations": 4}])
def test_a_run_that_says_little_of_itself_opens(opened, tmp_path, about):
    page = opened(write_page(a_run(tmp_path, about, first_prompt=None), tmp_path / "report.html").path)
    shows(page, 38, group=1)
    told = "reward accuracy · 4 attempts a prompt" if about else "What the run is"
    soon(lambda: page.inner_text("#about summary") == told)
    soon(lambda: page.locator("#given").is_hidden())
    page.click("#about summary")
    soon(lambda: page.locator("#about dt").all_inner_texts() == ["sampled at", "first → last evaluation"])


def test_a_tick_label_is_hidden_where_the_cursors_label_would_overlap_it(opened, report):
    page = opened(report, FIRST)
    reward = curve(page, "reward")
    hidden = "nodes => nodes.filter(n => n.getAttribute('visibility') === 'hidden').map(n => n.textContent)"
    ticks = reward.locator("> svg > text")
    soon(lambda: ticks.evaluate_all(hidden) == ["step 0"])
    for step in (1, 2):
        point(reward, step)
        soon(lambda: ticks.evaluate_all(hidden) == ["step 0"])
    for step in (19, 20, 21):
        point(reward, step)
        soon(lambda: "20" in ticks.evaluate_all(hidden))
    page.mouse.move(0, 0)
    soon(lambda: ticks.evaluate_all(hidden) == ["step 0"])


def test_a_legend_shows_the_last_value_at_or_before_the_cursor(opened, report):
    page = opened(report, FIRST)
    reward = curve(page, "reward")
    point(reward, 24)
    soon(lambda: reward.locator(".where text").text_content() == "step 24")
    easy, hard = "eval easy 0.125 → 0.5{} → 0.969", "eval hard 0 → 0{} → 0"
    soon(lambda: values(reward) == ["train 0.5 at 20", easy.format(" at 20"), hard.format(" at 20")])
    point(reward, 20)
    soon(lambda: values(reward) == ["train 0.5", easy.format(""), hard.format("")])
    wide = reward.locator("> svg").bounding_box()["width"]
    point(reward, 4)
    soon(lambda: values(reward) == ["train –", "eval easy 0.125 at 0 → 0.969", "eval hard 0 at 0 → 0"])
    assert reward.locator("> svg").bounding_box()["width"] == wide  # the plot keeps its width when the legend changes
    page.mouse.move(0, 0)
    soon(lambda: reward.locator(".where text").text_content() == "step 0")
    # Each evaluation has its own style and marked points. The ends of both axes have labels.
    soon(lambda: [reward.locator(f".s{i} .point").count() for i in range(3)] == [0, 4, 4])  # one of 4 is in the legend
    soon(
        lambda: (
            len({stroke for stroke, _ in [reward.locator(f"> svg .s{i} .stroke").evaluate(LOOK) for i in range(3)]})
            == len({dash for _, dash in [reward.locator(f"> svg .s{i} .stroke").evaluate(LOOK) for i in range(3)]})
            == 3
        )
    )
    soon(lambda: {"1", "0", "step 0", "20"} <= set(reward.locator("> svg text").all_text_contents()))
    # The legend names the verdicts that occur, although the pointer is elsewhere.
    soon(lambda: values(curve(page, "verdicts")) == ["alive –", "all good –"])


def axis(page, title):
    return curve(page, title).locator("> svg text[text-anchor=end]").all_text_contents()


def test_an_axis_has_enough_digits_to_tell_its_ends_apart_or_shows_one_value(opened, tmp_path):
    values = {"kl": (5.63, 5.63), "entropy": (5.6312, 5.6344)}
    values |= {"loss": (123456.1, 123987.2), "grad_norm": (0.1 + 0.2, 0.3)}
    rows = [synthetic_traces.group([1.0, 0.0], length=1, step=step) for step in (0, 1)]
    metrics = [{"step": n + 1, **{name: value[n] for name, value in values.items()}} for n in (0, 1)]
    run = synthetic_traces.write_traces(tmp_path, rows, metrics=metrics)
    page = opened(write_page(run, tmp_path / "report.html").path, f"{FIRST}&metric=loss&metric=grad_norm")
    soon(lambda: axis(page, "KL") == ["5.63"])
    soon(lambda: axis(page, "entropy") == ["5.631", "5.634"])
    soon(lambda: axis(page, "loss") == ["123,460", "123,990"])
    soon(lambda: axis(page, "grad_norm") == ["0.3"])
    soon(lambda: curve(page, "KL").locator("> svg").get_attribute("aria-label") == "KL; train: 5.63 throughout")
    soon(lambda: "5.631 to 5.634, at last" in curve(page, "entropy").locator("> svg").get_attribute("aria-label"))


BEGINS = "nodes => Math.min(...nodes.map(node => node.getBBox().x))"


@pytest.mark.parametrize("title", ["reward", "verdicts", "KL"])
def test_the_values_of_an_axis_stand_inside_the_frame(opened, report, title):
    labels = curve(opened(report, FIRST), title).locator("> svg text[text-anchor=end]")
    soon(lambda: labels.evaluate_all(BEGINS) >= 2)


LOOK = "node => [getComputedStyle(node).stroke, getComputedStyle(node).strokeDasharray]"


def test_a_plot_works_by_keyboard(opened, report):
    page = opened(report, FIRST)
    picture = curve(page, "reward").locator("> svg")
    soon(
        lambda: picture.get_attribute("aria-label").startswith(
            "reward; train: 0.25 to 1, at last 1; eval easy: 0.125 to"
        )
    )
    picture.focus()
    for key, x in (("ArrowRight", 10), ("ArrowRight", 20), ("ArrowLeft", 10), ("End", 40), ("ArrowRight", 40)):
        page.keyboard.press(key)
        told = f"step {x}, train {x / 40:g}".replace(" 1.0", " 1")
        soon(lambda told=told: picture.get_attribute("aria-valuetext").startswith(told))
    soon(lambda: "step=0" in page.evaluate("location.hash"))  # none of these keys moved the page
    page.keyboard.press("Enter")
    shows(page, 39)


def test_alarms_are_marked_on_the_curves_and_a_mark_leads_there(opened, report):
    page = opened(report, FIRST)
    soon(lambda: [page.locator(".curve").nth(i).locator(".mark").count() for i in range(3)] == [2, 2, 0])
    marks = curve(page, "verdicts").locator(".mark")
    soon(lambda: marks.nth(1).locator("title").text_content() == f"dead groups at step 38: {HOSTILE}")
    marks.nth(1).locator("path").click()
    shows(page, 38, group=1)
    marks.nth(0).locator("path").click()
    settled(page, "Step 5: it loops It names no group.")


def test_every_metric_can_be_found_and_drawn(opened, report):
    page = opened(report, FIRST)
    soon(lambda: page.locator("#metric-names label").count() == 0)  # nothing is unpacked yet
    page.click("#picker summary")
    until(page, "document.querySelectorAll('#metric-names label').length > 0")
    soon(
        lambda: (
            page.locator("#metric-names legend").all_inner_texts()[:2]
            == ["general", HOSTILE[: HOSTILE.index("/") + 1]]
        )
    )
    soon(
        lambda: (
            page.locator("#metric-names legend").all_inner_texts()[2:]
            == ["eval_easy/", "eval_easy/rewards/", "eval_hard/", "eval_hard/rewards/", "groups/", "rewards/"]
        )
    )
    page.fill("#metric-query", "EASY acc")
    shown = page.locator("#metric-names label").filter(visible=True)
    soon(lambda: shown.all_inner_texts() == [" accuracy/mean"])
    soon(lambda: page.locator("#metric-names h2").filter(visible=True).all_inner_texts() == ["eval_easy/rewards/"])
    shown.locator("input").check()
    page.fill("#metric-query", "grad")
    shown.locator("input").check()
    drawn = page.locator("#picked .curve .title")
    soon(lambda: drawn.all_inner_texts() == ["eval_easy/rewards/accuracy/mean", "grad_norm"])
    grad = curve(page, "grad_norm")
    point(grad, 33)
    soon(lambda: values(grad) == ["30 at 30"])
    grad.locator("> svg").press("End")
    grad.locator("> svg").press("Enter")
    shows(page, 39)
    # The link restores the chosen metrics, and ignores a metric that the run lacks.
    soon(lambda: page.evaluate("location.hash").count("metric=") == 2)
    page = opened(report, page.evaluate("location.hash") + "&metric=gone")
    until(page, "document.querySelectorAll('#picked .curve').length === 2")
    soon(lambda: drawn.all_inner_texts() == ["eval_easy/rewards/accuracy/mean", "grad_norm"])
    page.click("#picker summary")
    page.fill("#metric-query", "easy acc")
    page.locator("#metric-names label").filter(visible=True).locator("input").uncheck()
    page.click("#metric-none")
    soon(lambda: page.locator("#picked .curve").count() == 0)
    soon(lambda: "metric" not in page.evaluate("location.hash"))
    soon(lambda: page.evaluate("window.hacked") is None)


NAMES = ["few", *(f"of_a_very_long_name_of_a_held_out_split_of_problems_{n}" for n in range(9))]
TOP = "node => node.getBoundingClientRect().top"
# Number of lines that the nodes take: nodes in one line have their middles at the same height.
LINES = """nodes => new Set(nodes.map((node) => {
  const { top, bottom } = node.getBoundingClientRect();
  return Math.round((top + bottom) / 8);
})).size"""
# For each series in a legend: whether its name is cut, and whether its value is.
CUT = """nodes => nodes.map((node) => {
  const [name, value] = [...node.children].slice(-2);
  const end = node.closest(".curve").getBoundingClientRect().right;
  return [name.scrollWidth > name.offsetWidth, value.getBoundingClientRect().right > end];
})"""


def evaluated_on(folder, splits):
    """Write the page of a run with an alarm, evaluated on `splits` splits at the first and at the last step."""
    names = [f"eval_{name}" for name in NAMES[:splits]]
    groups = [synthetic_traces.group([1.0, 0.0], length=1, step=step, prompt="word " * 60) for step in (0, 1)]
    groups += [synthetic_traces.group([1.0, 0.0], length=1, split=name) for name in names]
    shares = {"groups/alive": 0.5, "groups/all_bad": 0.5}
    metrics = [{"step": step, "reward": 0.5, "kl": 0.1, "entropy": 0.25, **shares} for step in (1, 2)]
    metrics += [{"step": 0, f"{name}_runtime": 1.0, "eval_reward": 0.1234} for name in names]
    metrics += [{"step": 2, f"{name}_runtime": 1.0, "eval_reward": 0.3234} for name in names]
    alarms = [{"step": 1, "name": "repetition", "message": "it loops", "groups": []}]
    run = synthetic_traces.write_traces(folder, groups, alarms, metrics, ABOUT | {"model": "small"}, [])
    return write_page(run, folder / "report.html").path


@pytest.mark.parametrize(("splits", "told"), [(1, "1 step of eval_few"), (6, "6 other splits")])
def test_attempts_begin_in_the_upper_half_and_filters_are_one_row(opened, tmp_path, splits, told):
    page = opened(evaluated_on(tmp_path, splits))
    page.set_viewport_size({"width": 1400, "height": 900})
    soon(lambda: page.inner_text("#facts").startswith(f"2 steps of train, {told}; "))
    soon(lambda: page.locator(".attempt .body").first.evaluate(TOP) < 450)
    page.set_viewport_size({"width": 1200, "height": 900})
    soon(lambda: page.locator("#controls > *").filter(visible=True).evaluate_all(LINES) == 1)


def test_a_long_legend_cuts_names_but_no_values_and_scrolls(opened, tmp_path):
    page = opened(evaluated_on(tmp_path, 10))
    plot = curve(page, "reward")
    point(plot, 40)  # the end of the axis
    series, key = plot.locator(".series"), plot.locator(".value")
    soon(lambda: values(plot)[1] == "eval few 0.123 → 0.323")
    soon(lambda: series.evaluate_all(CUT) == [[False, False]] * 2 + [[True, False]] * 9)
    soon(lambda: series.last.locator("bdi").get_attribute("title") == f"eval {NAMES[-1]}".replace("_", " "))
    soon(lambda: key.evaluate("node => [node.scrollHeight > node.clientHeight, node.tabIndex]") == [True, 0])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_page_does_not_scroll_sideways_and_all_can_be_read(browser, report, scheme):
    with in_scheme(browser, scheme, viewport={"width": 390, "height": 800}) as page:
        page.goto(f"file://{report}{FIRST}&metric=grad_norm")
        page.wait_for_selector("#picked .curve")
        page.click("#about summary")
        page.click("#picker summary")
        page.wait_for_selector("#metric-names label")
        soon(lambda: sideways(page) == 0)
        soon(lambda: page.evaluate(FAINT) == [], "contrast below 4.5")


# Nodes with too little contrast: text on the page's background, and text and lines on a plot's background.
FAINT = """() => {
  const light = (colour) => {
    const shares = colour.match(/[\\d.]+/g).map((n) => n / 255);
    const [r, g, b] = shares.map((n) => n <= 0.03928 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const page = getComputedStyle(document.body).backgroundColor;
  const found = [];
  for (const node of document.querySelectorAll("#about *, #given *, figcaption *, .series *, #picker *")) {
    const html = node.namespaceURI.endsWith("xhtml");
    if (html && contrast(getComputedStyle(node).color, page) < 4.5) found.push(node.outerHTML);
  }
  for (const node of document.querySelectorAll(".curve > svg text")) {
    const ground = getComputedStyle(node.ownerSVGElement).backgroundColor;
    if (contrast(getComputedStyle(node).fill, ground) < 4.5) found.push(node.outerHTML);
  }
  for (const node of document.querySelectorAll(".curve > svg .stroke")) {
    const ground = getComputedStyle(node.ownerSVGElement).backgroundColor;
    if (contrast(getComputedStyle(node).stroke, ground) < 3) found.push(node.outerHTML);
  }
  return found;
}"""
