"""axe-core finds no fault on the pages, in light and in dark colours, on a wide screen and on a phone."""

import json

import browser_pages
import pytest
import synthetic_traces
from browser_pages import faults, in_scheme, serving, until

from trl_grpo_plus.traces import Writer
from trl_grpo_plus.view import write_comparison, write_page


pytestmark = pytest.mark.full  # takes a minute
browser = browser_pages.browser  # a fixture
SIZES = {"wide": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
HELP = "document.querySelector('#help').showModal()"


def a_run(folder, learning_rate=1e-6):
    """Write a run that contains everything that the pages can show."""
    belief = {"mean": 0.4, "std": 0.5, "attempts": 3.0}
    groups = [
        synthetic_traces.group(scores, length=12, step=step, group=number, prompt=f"Problem {number}", belief=belief)
        for step in range(4)
        for number, scores in enumerate(([1.0, 0.0, 0.5, 0.0, 1.0, 0.0], [1.0] * 6, [0.0] * 6))
    ]
    for rows in groups:
        rows[0] |= {"truncated": True, "extra": {"note": "long"}}
        rows[0]["outcomes"] = {"accuracy": "timeout", "format": "abstain"}
        for row in rows:
            end = len(row["completion"])
            row["advantages"] = [[end // 3, 0.5], [end // 2, -1.0], [end, 1.0]]
            row["steps"] = {"accuracy": [[end // 2, -1.0]]}
    groups[0][1]["completion"] = [
        {"role": "assistant", "content": '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'},
        {"role": "tool", "content": "a zero\u200bwidth space"},
        {"role": "assistant", "content": "#### 5"},
    ]
    shares = {"groups/alive": 0.5, "groups/all_bad": 0.5}
    metrics = [{"step": step + 1, "reward": step / 4, "kl": 0.1, **shares} for step in range(4)]
    metrics += [{"step": step, "eval_easy_runtime": 1.0, "eval_reward": 0.5} for step in (0, 4)]
    alarms = [{"step": 2, "name": "repetition", "message": "repetition at step 2: it loops.", "groups": [[0, 0, 0]]}]
    options = {"learning_rate": learning_rate}
    about = {"rewards": {"accuracy": 1.0, "format": 0.0}, "model": "me/model", "options": options}
    first = [{"step": 0, "text": "6 times 7?", "tokens": 4, "flags": ["it begins with two <s>"]}]
    return synthetic_traces.write_traces(folder, groups, alarms, metrics, about, first)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accessible")
    runs = [a_run(folder / name, rate) for name, rate in (("one", 1e-6), ("two", 2e-6))]
    return {"run": write_page(runs[0], folder / "report.html").path, "runs": write_comparison(runs).path}


VIEWS = {  # page, hash, selector to wait for, script to run then
    "group": ("run", "#split=train&step=3&group=0.0.0&metric=kl", "#picked .curve", "0"),
    "all unfolded": ("run", "#split=train&step=0&group=0.0.0&diff=1&apart=1&thinking=1&scope=all", ".attempt", "OPEN"),
    "search": ("run", "#split=train&step=0&text=answer&kept=zero_variance", "mark.hit", "0"),
    "rendered": ("run", "#split=train&step=0&group=0.0.0&rendered=1", ".rendered", "0"),
    "nothing": ("run", "#split=train&step=0&max=-5", ".empty", "0"),
    "follow": ("run", "#split=train&step=0&group=0.0.0&view=follow", "#pair .attempt", "0"),
    "prompts": ("run", "#split=train&step=0&view=prompts", "#prompt-rule", "0"),
    "keys": ("run", "#split=train&step=0", ".attempt", HELP),
    "runs": ("runs", "", ".one", "0"),
}
OPEN = "document.querySelectorAll('details').forEach((node) => { node.open = true; })"


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing(browser, pages, view, scheme, size):
    name, hash, drawn, act = VIEWS[view]
    with in_scheme(browser, scheme, viewport=SIZES[size]) as page:
        page.goto(f"file://{pages[name]}{hash}")
        page.wait_for_selector(drawn)
        page.evaluate(OPEN if act == "OPEN" else act)
        until(page, "document.getAnimations().length === 0")
        assert faults(page) == [], json.dumps(faults(page), indent=1)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("begun", [False, True], ids=["waiting", "live"])
def test_axe_finds_nothing_on_the_live_page(browser, tmp_path, begun, scheme):
    if begun:
        writer = Writer(str(tmp_path / "run"), about={"rewards": {"accuracy": 1.0}})
        writer.begin(0, 50)
        writer.write("train", 0, synthetic_traces.group([1.0, 0.0]))
    with serving(tmp_path / "run") as server, in_scheme(browser, scheme) as page:
        page.goto(server.address)
        page.wait_for_selector(".attempt" if begun else "#live-note:not([hidden])")
        assert faults(page) == [], json.dumps(faults(page), indent=1)
