"""Reading attempts: order of the list, equal attempts, rendering, turns, invisible characters, copies, links."""

import itertools
import json
import re
from pathlib import Path

import browser_pages
import pytest
import synthetic_traces
from browser_pages import DRAWN, FIRST, attempts, body, in_scheme, settled, shows, sideways, soon, until

from trl_grpo_plus.traces import entry
from trl_grpo_plus.view import Rescored, Tried, panel, write_page
from trl_grpo_plus.view import page as view
from trl_grpo_plus.view.group_data import detail
from trl_grpo_plus.view.template import LIBRARIES, library, template
from trl_grpo_plus.view.tool_calls import calls


browser, opened, opened_panel = browser_pages.browser, browser_pages.opened, browser_pages.opened_panel  # fixtures

VIEWER = Path(view.__file__).parent / "viewer"
MARKDOWN = r"""# Title

**two** facts, $x^2 = 4$ and \(y = \frac{1}{2}\), for $5 and $10:

\[
x + y = \boxed{2.5}

\]

| a | b |
|---|:-:|
| 1 | `c` |

```html
<b>hi</b>
```

See [here](http://evil.example/x), <http://evil.example/z>, ![image](http://evil.example/y.png) and
<img src=x onerror="window.hacked = 1"> \(\href{javascript:hacked()}{z}\) \(\unknown\)
<answer>2.5</answer>"""
INVISIBLE = "a\u200bb \u202efed\u202c \xa0\x00\u2028\U000e0041\ud800 so\xadft \u2764\ufe0f end"
CALL = {"type": "function", "function": {"name": "run", "arguments": {"code": "a = 1\nprint(a)", "n": 2}}}
CALLED = [
    {"role": "assistant", "content": "<think>hm</think>\U0001f600 first", "tool_calls": [CALL]},
    {"role": "tool", "name": "run", "content": "1"},
    {"role": "assistant", "content": "It is 1."},
]


def write(rows, *texts):
    return [{**row, "completion": text} for row, text in zip(rows, texts, strict=True)]


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    """Write a page of six groups whose order differs by mean, spread, length and first step."""
    groups = [
        write(synthetic_traces.group([1.0, 0.0, 0.0, 0.0], prompt="again"), "right", "wrong", "wrong", "other wrong"),
        write(
            synthetic_traces.group([1.0, 1.0], length=90, group=1, prompt=INVISIBLE), INVISIBLE, INVISIBLE + " more"
        ),
        write(synthetic_traces.group([1.0, 0.0], length=10, step=1, prompt="Solve $x^2$."), MARKDOWN, "**bold** no"),
        write(synthetic_traces.group([0.0, 0.5], length=20, step=1, group=1, prompt="tools"), CALLED, "none"),
        synthetic_traces.group([0.5, 0.25, 1.0], length=60, step=2, prompt="again"),
        synthetic_traces.group([0.0, 0.0], length=5, step=2, group=1, prompt="dead"),
    ]
    groups[-1] = [{**row, "reward": None, "tokens": None} for row in groups[-1]]
    groups[0][3]["reward"] = -3.0
    groups[1] = [{**row, "reference": {"answer": INVISIBLE}, "extra": {"said": INVISIBLE}} for row in groups[1]]
    run = synthetic_traces.write_traces(tmp_path_factory.mktemp("reading"), groups)
    return write_page(run, tmp_path_factory.mktemp("out") / "report.html").path


ALL = "#split=train&step=0&scope=all"


def numbered(page):
    """Return the groups of the list as "step.group", in the order shown."""
    titles_ = [" ".join(text.split()) for text in page.locator(".row-title").all_inner_texts()]
    names = {"step 0 again": "0.0", "step 1 Solve $x^2$.": "1.0", "step 1 tools": "1.1", "step 2 again": "2.0"}
    names |= {"step 2 dead": "2.1"}
    return [names.get(title, "0.1") for title in titles_]


# -- the list


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("mean", ["0.0", "1.1", "1.0", "2.0", "0.1", "2.1"]),  # means: 0, 1.25, 1.5, 1.58, 2, none
        ("spread", ["0.0", "1.0", "2.0", "1.1", "0.1", "2.1"]),
        ("best", ["1.1", "0.0", "0.1", "1.0", "2.0", "2.1"]),
        ("worst", ["0.0", "1.0", "1.1", "2.0", "0.1", "2.1"]),
        ("tokens", ["0.1", "2.0", "0.0", "1.1", "1.0", "2.1"]),
        ("entropy", ["2.0", "0.0", "0.1", "1.0", "1.1", "2.1"]),  # bits: log2(3), 1.5, and 1 for two answers
        ("first", ["0.0", "0.1", "2.0", "1.0", "1.1", "2.1"]),
    ],
)
def test_the_list_is_sorted(opened, reading, name, order):
    page = opened(reading, ALL)
    page.select_option("#sort", name)
    soon(lambda: numbered(page) == order)
    shows(page, 0)  # the group in view stays
    page.click("#sort-way")
    if name not in ("first", "entropy"):
        soon(lambda: numbered(page)[-1] == "2.1", "without a value last either way")
        soon(lambda: numbered(page).index(order[0]) == 4)
    page.select_option("#sort", "")
    soon(lambda: numbered(page) == sorted(order))


def test_a_sorted_list_is_searched_and_walked_by_steps(opened, reading):
    page = opened(reading, ALL + "&group=0.0.0&sort=mean.down")
    page.fill("#query", "again")
    settled(page, "2 groups over all steps.")
    soon(lambda: numbered(page) == ["2.0", "0.0"])
    page.fill("#query", "")
    settled(page, "6 groups over all steps.")
    page.locator("#list").focus()
    for key, step, group in (("l", 1, 0), ("l", 2, 0), ("h", 1, 0), ("h", 0, 1)):
        page.keyboard.press(key)
        shows(page, step, group)


@pytest.mark.parametrize(
    ("measure", "low", "high", "found"),
    [
        ("", "-3", "0", ["0.0"]),
        ("mean", "1.5", "1.6", ["1.0", "2.0"]),
        ("spread", "0.5", "1", ["1.0", "1.1", "2.0"]),
        ("tokens", "", "40", ["1.0", "1.1"]),
        ("first", "1", "", ["1.0", "1.1", "2.1"]),
    ],
)
def test_the_list_is_filtered_by_a_range_of_a_measure(opened, reading, measure, low, high, found):
    page = opened(reading, ALL)
    page.click("#more-filters summary")
    page.select_option("#measure", measure)
    page.fill("#reward-min", low)
    page.fill("#reward-max", high)
    soon(lambda: numbered(page) == found)
    page.click("#clear")
    soon(lambda: len(numbered(page)) == 6)


def test_keys_open_the_worst_group_and_its_worst_attempt(opened, reading):
    page = opened(reading, "#split=train&step=2&group=0.0.0&scope=all")
    page.keyboard.press("w")
    shows(page, 0)  # the group without rewards does not count
    page.keyboard.press("W")
    soon(lambda: page.evaluate("document.activeElement.closest('.attempt').dataset.attempt") == "3")
    page.select_option("#verdict", "all_bad")
    settled(page, "1 group over all steps.")
    page.click("#worst")
    settled(page, "No live group in the list.")


def test_entries_hold_the_mean_length_where_it_is_known():
    rows = [
        {**row, "tokens": tokens}
        for row, tokens in zip(synthetic_traces.group([1.0] * 3), (10, 11, None), strict=True)
    ]
    assert entry(rows)["tokens"] == 10.5
    assert entry([{**row, "tokens": None} for row in rows])["tokens"] is None


# -- equal attempts


def test_attempts_with_other_prompts_or_logged_values_have_columns_of_their_own(opened, tmp_path):
    rows = write(synthetic_traces.group([0.0] * 4, prompt="2"), *["I give up."] * 4)
    rows[1]["prompt"] = "3"  # as an environment may change it
    rows[2]["extra"] = {"turns": 2}
    run = synthetic_traces.write_traces(tmp_path / "run", [rows])
    page = opened(write_page(run, tmp_path / "report.html").path, FIRST)
    soon(lambda: attempts(page) == ["0", "1", "2"])
    assert page.locator(".attempt[data-attempt='0'] h3").inner_text().split() == ["#0", "\u00d7", "2"]


def test_equal_attempts_share_a_column_until_they_are_set_apart(opened, reading):
    page = opened(reading, FIRST)
    soon(lambda: attempts(page) == ["0", "1", "3"])
    merged = page.locator(".attempt[data-attempt='1'] h3")
    soon(lambda: merged.inner_text().split() == ["#1", "×", "2"])
    soon(lambda: page.locator(".attempt[data-attempt='1'] .facts").inner_text().endswith(", also #2"))
    page.keyboard.press("e")
    until(page, "document.querySelectorAll('.attempt').length === 4")
    soon(lambda: page.locator(".times").count() == 0)
    page.click("#pin-2")
    until(page, "document.querySelectorAll('.attempt.pinned').length === 1")
    page.click("#more-tools summary")
    page.click("#apart")
    until(page, "document.querySelectorAll('.attempt').length === 3")
    soon(
        lambda: page.locator(".attempt.pinned").get_attribute("data-attempt") == "1",
        "the pin stays with what stands for it",
    )
    page.click("#pin-3")
    until(page, "document.querySelectorAll('.attempt').length === 2")
    soon(lambda: body(page, 3).locator("mark.differs").all_text_contents() == ["other"])


@pytest.mark.parametrize("change", [{"reward": 0.5}, {"outcomes": {"accuracy": "timeout"}}, {"completion": "x"}])
def test_attempts_that_differ_are_not_merged(opened_panel, change):
    rows = [{**row, "completion": "same"} for row in synthetic_traces.group([0.0, 0.0, 0.0])]
    page = opened_panel([rows, [rows[0], {**rows[1], **change}, rows[2]]])
    soon(lambda: attempts(page) == ["0"])
    page.locator("#list").focus()
    page.locator(".row").nth(1).click()
    until(page, "document.querySelectorAll('.attempt').length === 2")


# -- Markdown and mathematics


def test_markdown_and_mathematics_are_rendered_at_a_key(opened, reading):
    page = opened(reading, "#split=train&step=1&group=0.0.0")
    soon(lambda: page.locator(".rendered, math").count() == 0, "the text as the verifier read it comes first")
    soon(lambda: page.evaluate("typeof window.temml") == "undefined")
    page.keyboard.press("m")
    until(page, "document.querySelectorAll('.attempt .rendered').length === 2")
    one = body(page, 0)
    soon(lambda: one.locator("strong").all_inner_texts() == ["two"])
    soon(lambda: one.locator("td").all_inner_texts() == ["1", "c"])
    soon(lambda: one.locator("pre").text_content() == "<b>hi</b>\n")
    soon(lambda: one.locator("math mfrac").count() == 1)
    soon(lambda: one.locator(".formula.display .boxed").text_content() == "2.5")
    soon(lambda: "for $5 and $10:" in one.inner_text())
    soon(
        lambda: (
            "here (http://evil.example/x), http://evil.example/z, ![image](http://evil.example/y.png)"
            in one.inner_text()
        )
    )
    soon(lambda: '<img src=x onerror="window.hacked = 1">' in one.inner_text())
    soon(lambda: one.locator("code.formula").all_text_contents() == [r"\href{javascript:hacked()}{z}", r"\unknown"])
    soon(lambda: page.locator("a, img, iframe, [href], [src], [onerror], .body [style*=url]").count() == 0)
    soon(lambda: page.evaluate("window.hacked") is None)
    soon(lambda: page.locator(".prompt math").count() == 1)
    soon(lambda: page.locator(".reference .text").inner_text() == "42")


def test_rendering_holds_while_one_moves_and_gives_way_to_marks(opened, reading):
    page = opened(reading, "#split=train&step=1&group=0.0.0&rendered=1")
    soon(lambda: body(page, 1).locator("strong").all_inner_texts() == ["bold"])
    page.keyboard.press("j")
    shows(page, 1, 1)
    soon(lambda: page.locator(".body .rendered").count() > 0)
    soon(lambda: page.locator(".turn.tool .text").inner_text() == "1", "a tool's answer is its text")
    soon(lambda: "only the plain text shows marks" in page.inner_text("#group-head"))
    page.keyboard.press("d")
    until(page, "document.querySelectorAll('mark.differs').length > 0")
    soon(lambda: page.locator(".rendered").count() == 0)
    page.keyboard.press("m")
    until(page, "document.querySelectorAll('.rendered').length > 0 && !document.querySelector('mark')")
    page.fill("#query", "none")
    until(page, "document.querySelectorAll('mark.hit').length === 1")


FORMULAE = [
    r"\def\a{\a\a}\a",
    "{" * 4000,
    r"\rule{1000em}{1000em}",
    r"\phantom{ignored}",
    r"\class{x}{y}",
    r"\includegraphics{x}",
]
FORMULAE += [r"\color{red}x", r"\text{" + "\u202e" + "}", r"\left(" * 400, r"\sqrt{" * 200 + "x" + "}" * 200]


def test_hostile_texts_are_rendered_in_time_and_load_nothing(opened, tmp_path):
    rows = synthetic_traces.group([1.0, 0.0, 0.0, 0.0, 0.0])
    texts = [
        "\n\n".join(f"$${tex}$$" for tex in FORMULAE),
        "\\(" * 20_000,
        "*" * 20_000 + "[" * 5000,
        "> " * 5000,
        "$x " * 20_000,
    ]
    run = synthetic_traces.write_traces(tmp_path, [write(rows, *texts)])
    page = opened(write_page(run, tmp_path / "report.html").path)
    page.keyboard.press("m")
    until(page, "document.querySelectorAll('.attempt .rendered').length === 5")
    soon(lambda: page.locator(".rendered :is(a, img, script, mphantom, [style*=color], [mathcolor])").count() == 0)
    soon(
        lambda: (
            max(page.locator(".formula").evaluate_all("nodes => nodes.map((n) => n.getBoundingClientRect().width)"))
            < 1000
        )
    )


def test_the_page_contains_the_libraries_that_the_readme_lists_and_a_panel_does_not():
    about = (VIEWER / "vendor" / "README.md").read_text()
    for name in LIBRARIES:
        version = re.search(rf"`{name}.min.js` \| ([\d.]+)", about)[1]
        source = (VIEWER / "vendor" / f"{name}.min.js").read_text()
        assert version in source or name == "markdown-it"  # its source does not contain its version
        assert "sourceMappingURL" not in library(name)
        assert f"== {name}\n" in (VIEWER / "vendor" / "LICENSES.txt").read_text()
    parts = ("page", view.STYLES, view.SCRIPTS)
    with_them, without = (sum(map(len, template(*parts, rendering=rendering))) for rendering in (True, False))
    assert 50_000 < with_them - without < 350_000
    assert "LIBRARIES = {};" in panel([synthetic_traces.group([1.0, 0.0])])


def test_a_panel_offers_no_rendering(opened_panel):
    page = opened_panel([synthetic_traces.group([1.0, 0.0])])
    page.keyboard.press("m")
    soon(lambda: page.locator("#rendered, .rendered").count() == 0)


# -- turns and calls


def units(text, start, end):
    return text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * end].decode("utf-16-le", "surrogatepass")


def test_places_of_calls_are_counted_in_utf16_units():
    [attempt] = detail([synthetic_traces.row(completion=CALLED)])["attempts"]
    [[start, end, name, given]] = attempt["calls"]
    assert units(attempt["text"], start, end) == str(CALL["function"])
    assert (name, given) == ("run", [["code", "a = 1\nprint(a)"], ["n", "2"]])
    assert attempt["roles"][1] == ["tool", 1, "run"]
    assert "calls" not in detail([synthetic_traces.row()])["attempts"][0]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('{"name": "f", "arguments": {"a": [1]}}', ("f", [["a", "[1]"]])),
        ('\n{"name": "f", "arguments": "{\\"a\\": 1}"}\n', ("f", [["a", "1"]])),
        ('{"name": "f", "arguments": "not JSON"}', ("f", [["", "not JSON"]])),
        ('{"name": "f"}', ("f", [])),
        ('{"name": ', None),
        ("[1]", None),
        ('{"a":' * 100_000, None),
    ],
)
def test_calls_that_nobody_parsed_are_found_in_the_text(written, told):
    text = f"\U0001f600 <tool_call>{written}</tool_call> <tool_call>"
    found = calls(text)
    assert [tuple(call[2:]) for call in found] == ([told] if told else [])
    for start, end, *_ in found:
        assert units(text, start, end) == f"<tool_call>{written}</tool_call>"


def test_neither_text_nor_messages_have_calls():
    for odd in (None, 5, [1], ["a"], [{"role": "assistant", "content": 5, "tool_calls": [5]}]):
        assert calls(odd) == []
    assert calls("<tool_call>{" * 100_000) == []


def test_turns_are_told_apart_and_calls_show_their_arguments(opened, reading):
    page = opened(reading, "#split=train&step=1&group=0.0.1")
    turns = page.locator(".turn")
    soon(
        lambda: (
            [node.get_attribute("class") for node in turns.all()] == ["turn assistant", "turn tool", "turn assistant"]
        )
    )
    soon(lambda: turns.locator("> .label").all_inner_texts() == ["assistant", "tool run", "assistant"])
    call = page.locator(".call")
    soon(lambda: call.locator("> div").inner_text() == "calls run")
    soon(lambda: call.locator("dt").all_inner_texts() == ["code", "n"])
    soon(lambda: call.locator("dd").all_inner_texts() == ["a = 1\nprint(a)", "2"])
    soon(lambda: call.locator("details").get_attribute("open") is None)
    soon(lambda: call.locator("details .text").text_content() == str(CALL["function"]))
    page.fill("#query", "'name': 'run'")
    until(page, "document.querySelectorAll('mark.hit').length === 1")
    soon(lambda: page.locator("mark.hit").is_visible())


# -- invisible characters


def marks(node):
    return node.locator(".ghost").evaluate_all("nodes => nodes.map((n) => n.dataset.label)")


def test_invisible_characters_are_marked_in_every_text(opened, reading):
    page = opened(reading, "#split=train&step=0&group=0.0.1")
    expected = ["ZWSP", "RLO", "PDF", "␣", "NUL", "LS", "tag A", "U+D800", "SHY"]
    for place in (
        body(page, 0),
        page.locator(".prompt"),
        page.locator(".reference .text"),
        page.locator(".extra dd").first,
    ):
        soon(lambda place=place: marks(place) == expected)
    one = body(page, 0).locator(".text")
    soon(
        lambda: one.evaluate("(node, text) => node.textContent === text", INVISIBLE), "the text itself stays as it is"
    )
    soon(lambda: "".join(one.inner_text().split()) == "abfedsoft\u2764\ufe0fend", "and does not act on the screen")
    soon(lambda: one.locator(".ghost").nth(1).get_attribute("title") == "U+202E right-to-left override")
    soon(lambda: one.locator(".ghost").nth(1).evaluate(DRAWN, "::after") == '"RLO"')
    row = page.locator(".row").nth(1)
    soon(lambda: "RLO" in marks(row))
    soon(lambda: "\u202e" not in row.get_attribute("title"))
    page.keyboard.press("d")
    until(page, "document.querySelectorAll('mark.differs').length > 0")
    soon(lambda: body(page, 1).locator("mark.differs").all_text_contents() == ["more"])
    page.fill("#query", "fed")
    until(page, "document.querySelectorAll('mark.hit').length > 0")
    soon(lambda: set(page.locator("mark.hit").all_text_contents()) == {"fed"})


def test_repeated_invisible_characters_share_a_mark_and_hits_keep_characters_whole(opened_panel):
    text = "\u200b" * 5000 + "x\xa0\xa0\xa0y\r\n\U0001f600\tz"
    page = opened_panel([write(synthetic_traces.group([1.0, 0.0]), text, "\U0001f468\u200d\U0001f469 a\u200db")])
    soon(lambda: marks(body(page, 0)) == ["ZWSP ×5000", "␣␣␣", "CR"])
    soon(lambda: marks(body(page, 1)) == ["ZWJ"], "not within an emoji")
    page.check("#regex")
    page.fill("#query", ".(?=\tz)")
    until(page, "document.querySelectorAll('mark.hit').length === 1")
    soon(lambda: page.locator("mark.hit").text_content() == "\U0001f600")


# -- copies and links


def test_copies_are_exact_and_say_so(opened, reading):
    page = opened(reading, "#split=train&step=1&group=0.0.1")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])

    def copied(button):
        page.click(button)
        until(page, "id => document.querySelector(id).textContent === 'Copied'", button)
        return page.evaluate("navigator.clipboard.readText()")

    text = detail([synthetic_traces.row(completion=CALLED)])["attempts"][0]["text"]
    assert copied("#copy-0") == text
    soon(lambda: "Copy the text of attempt 0: copied" in page.locator("#told").text_content())
    page.click("#more-tools summary")
    assert copied("#copy-prompt") == "tools"
    soon(lambda: copied("#copy-link") == page.url)
    group = json.loads(copied("#copy-group"))
    assert (group["step"], group["group"], group["prompt"]) == (1, 1, [{"role": None, "content": "tools"}])
    assert [one["text"] for one in group["attempts"]] == ["none", text]
    assert group["attempts"][1]["messages"][1] == {"role": "tool", "content": "1"}
    assert group["attempts"][0]["rewards"] == {"accuracy": 0.5, "format": 1.0}


def test_a_copied_attempt_has_the_scores_of_a_reward_that_was_tried(opened, tmp_path):
    rows = synthetic_traces.group([1.0, 0.0], length=3)
    scores = [[["mine", "accuracy", 1.0, 0.5, "lower", "half"]], [["mine", None, None, 0.0, None, ""]]]
    tried = Rescored("train", "told", [("mine", "lower")], lambda group: Tried(scores, []), lambda split, place: True)
    run = synthetic_traces.write_traces(tmp_path, [rows])
    page = opened(write_page(run, tmp_path / "rescore.html", rescored=tried).path)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#more-tools summary")
    page.click("#copy-group")
    until(page, "document.querySelector('#copy-group').textContent === 'Copied'")
    attempts_ = json.loads(page.evaluate("navigator.clipboard.readText()"))["attempts"]
    score = {"reward": "mine", "recorded_as": "accuracy", "recorded": 1.0, "now": 0.5}
    none = {"recorded_as": None, "recorded": None, "disagreement": None}
    assert [one["rescored"] for one in attempts_] == [
        [{**score, "disagreement": "lower", "message": "half"}],
        [{**score, **none, "now": 0.0, "message": ""}],
    ]


def test_without_a_clipboard_a_selection_is_copied_and_a_failure_is_told(opened, reading):
    page = opened(reading, FIRST)
    page.evaluate("""() => {
        Object.defineProperty(navigator, "clipboard", { value: undefined });
        document.addEventListener("copy", () => (window.seen = document.activeElement.value));
    }""")
    page.click("#copy-0")
    until(page, "document.querySelector('#copy-0').textContent === 'Copied'")
    soon(lambda: page.evaluate("[window.seen, document.querySelectorAll('textarea').length]") == ["right", 0])
    soon(lambda: page.evaluate("document.activeElement.id") == "copy-0")
    page.evaluate("document.execCommand = () => false")
    page.click("#copy-3")
    until(page, "document.querySelector('#copy-3').textContent === 'Not copied'")


def view_of(page):
    script = """() => [
        ...[...document.querySelectorAll('#controls :is(select, input), #sort')].map((n) => `${n.checked} ${n.value}`),
        ...[...document.querySelectorAll('.row')].map((n) => n.textContent + n.getAttribute('aria-selected')),
        ...[...document.querySelectorAll('[aria-pressed]')].map((n) => n.id + n.getAttribute('aria-pressed')),
        document.querySelector('#columns')?.textContent,
    ]"""
    return page.evaluate(script)


def test_an_address_brings_a_whole_view_back(opened, reading):
    page = opened(reading, FIRST)
    page.check("#all-steps")
    page.select_option("#verdict", "alive")
    page.click("#more-filters summary")
    page.select_option("#measure", "tokens")
    page.fill("#reward-min", "12")
    page.select_option("#sort", "best")
    page.click("#sort-way")
    page.check("#regex")  # before the search, which moves this box
    page.fill("#query", "w(r)ong|again")
    settled(page, "2 groups over all steps.")
    shows(page, 0)
    for key in "et":
        page.locator("#list").focus()
        page.keyboard.press(key)
    page.click("#pin-1")
    page.click("#pin-3")
    until(page, "document.querySelectorAll('.attempt').length === 2 && location.hash.includes('pins=1.3')")
    other = opened(reading, page.url[page.url.index("#") :])
    until(other, "document.querySelectorAll('.attempt').length === 2 && document.querySelector('mark.hit') !== null")
    soon(lambda: view_of(other) == view_of(page))
    page.goto("about:blank")
    short = opened(reading, "#split=train&step=0&group=0.0.0&rendered=1&diff=1")
    soon(lambda: short.locator("#rendered").get_attribute("aria-pressed") == "true")
    soon(lambda: short.locator("#diff").get_attribute("aria-pressed") == "true")


def test_an_address_names_only_what_differs_from_the_default_view(opened, reading):
    page = opened(reading, FIRST)
    soon(lambda: page.url.endswith("#split=train&step=0&group=0.0.0"))
    page.keyboard.press("d")
    until(page, "location.hash.endsWith('&diff=1')")
    page.keyboard.press("d")
    until(page, "location.hash.endsWith('group=0.0.0')")


HOSTILE_HASH = (
    "&scope=constructor&verdict=<b>&by=__proto__&min=NaN&max=1e999&sort=toString.up&pins=1.2.3&rendered=2&diff=yes"
)
HOSTILE_HASH += "&alarm=%00&sort=mean.sideways&regex=true&apart=-1&__proto__=1"


@pytest.mark.parametrize("more", [HOSTILE_HASH, "&pins=77.78", "&pins=-1"])
def test_hostile_addresses_change_nothing(opened, reading, more):
    plain, hostile = (opened(reading, f"#split=train&step=0&group=0.0.0{text}") for text in ("", more))
    shows(hostile, 0)
    soon(lambda: view_of(hostile) == view_of(plain))


# -- colours


def pure(browser, script):
    """Return the value of a JavaScript expression that uses the functions of base.js."""
    with browser.new_page() as page:
        return page.evaluate(f"() => {{ {(VIEWER / 'base.js').read_text()}\nreturn {script}; }}")


@pytest.mark.parametrize(
    ("rewards", "lows"),
    [
        ([], []),
        ([None], []),
        ([1, 1, None], [1]),
        ([1, 0.5, 0, 1, -3], [-3, 0, 0.5, 1]),
        ([float(i) for i in range(7)], [0, 1, 2, 3, 4, 5, 6]),
        ([-100, *range(20)], [-100, 2, 5, 8, 11, 14, 17]),
    ],
)
def test_colours_are_by_the_order_of_distinct_rewards(browser, rewards, lows):
    soon(lambda: pure(browser, f"scaleOf({json.dumps(rewards)})") == lows)


def test_one_outlying_penalty_leaves_the_other_rewards_distinct_colours(browser):
    rewards = [-3, 0, 0.5, 1]
    colours = pure(browser, f"{rewards}.map((r) => colour(r, scaleOf({rewards})))")
    assert len(set(colours)) == 4
    many = [-3.0, *(i / 20 for i in range(21))]
    colours = pure(browser, f"{many}.map((r) => colour(r, scaleOf({many})))")
    places = [list(dict.fromkeys(colours)).index(one) for one in colours]
    assert places == sorted(places)
    assert colours[many.index(0.5)] != colours[many.index(1.0)]
    sizes = [len(list(run)) for _, run in itertools.groupby(places)]
    assert len(sizes) == 7
    assert max(sizes) - min(sizes) <= 1
    soon(lambda: pure(browser, "colour(0, scaleOf([0, 0]))") == "#ffffbf")


def test_the_legend_tells_what_each_colour_stands_for(opened, opened_panel, reading):
    page = opened_panel([synthetic_traces.group([1.0, 0.5, 0.0, -4.0])])
    soon(lambda: page.locator("#legend").inner_text().split() == ["Reward", "-3", "1", "1.5", "2", "unscored"])
    grounds = "nodes => nodes.map((n) => n.style.background)"
    stops, dots = page.locator("#legend .swatch"), page.locator(".row .dot")
    soon(lambda: stops.evaluate_all(grounds) == dots.evaluate_all(grounds)[::-1])
    page = opened_panel([synthetic_traces.group([i / 10 for i in range(20)])])
    soon(lambda: page.locator("#legend .stop").nth(1).get_attribute("title") == "from 1.3 to below 1.6")
    soon(lambda: "≥ 1.3" in page.inner_text("#legend"))


# -- phones, and contrast


CONTRAST = """() => {
  const parse = (colour) => {
    const v = colour.match(/[\\d.]+/g).map(Number);
    return [v[0], v[1], v[2], v[3] ?? 1];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((v, i) => v * a + below[i] * (1 - a));
  const backs = (node) => {
    const chain = [];
    for (let at = node; at; at = at.parentElement) chain.unshift(parse(getComputedStyle(at).backgroundColor));
    return chain.reduce((below, back) => over(back, below), [255, 255, 255]);
  };
  const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const found = [];
  const see = (node, style, text, inSvg) => {
    let back = backs(node);
    if (style.backgroundColor && !inSvg) back = over(parse(style.backgroundColor), back);
    const value = ratio(over(parse(inSvg ? style.fill : style.color), back), back);
    found.push([Math.round(100 * value) / 100, text.slice(0, 30), `${node.tagName}.${node.getAttribute("class")}`]);
  };
  for (const node of document.body.querySelectorAll("*")) {
    if (!node.checkVisibility() || node.matches("option, script, style, .unseen, .unseen *, title")) continue;
    const texts = [...node.childNodes].filter((child) => child.nodeType === 3);
    const own = texts.map((child) => child.data.trim()).join(" ").trim();
    if (own) see(node, getComputedStyle(node), own, node instanceof SVGElement);
    const after = getComputedStyle(node, "::after");
    if (after.content && !["none", "normal", '""'].includes(after.content)) see(node, after, after.content, false);
    if (node.placeholder) see(node, getComputedStyle(node, "::placeholder"), node.placeholder, false);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(browser, reading, scheme):
    """The contrast is 4.5 to 1 or more, as WCAG AA asks, with all parts of a group unfolded."""
    with in_scheme(browser, scheme, viewport={"width": 1280, "height": 900}) as page:
        views = ["0.0.0&diff=1&history=1&text=wrong&credit=1", "0.0.1&diff=1&thinking=1", "0.0.0&rendered=1"]
        for step, hash in [(0, views[0]), (0, views[1]), (1, views[1]), (1, views[2])]:
            page.goto("about:blank")
            page.goto(f"file://{reading}#split=train&step={step}&group={hash}")
            page.wait_for_selector("#columns .attempt")
            soon(lambda: len(page.evaluate(CONTRAST)) > 60)
            soon(lambda: [one for one in page.evaluate(CONTRAST) if one[0] < 4.5] == [])


@pytest.mark.parametrize(
    "more", ["step=0&group=0.0.0&history=1", "step=1&group=0.0.0&rendered=1", "step=1&group=0.0.1"]
)
def test_a_phone_shows_list_and_group_and_scrolls_up_and_down_only(browser, reading, more):
    with browser.new_page(viewport={"width": 390, "height": 844}, has_touch=True) as page:
        page.goto(f"file://{reading}#split=train&{more}&scope=all")
        page.wait_for_selector("#columns .attempt")
        soon(lambda: sideways(page) == 0)
        out = """() => [...document.querySelectorAll("button, select, input, .row, .prompt")].filter((n) =>
            n.checkVisibility() && !n.closest("#columns") && n.getBoundingClientRect().right > 391).length"""
        soon(lambda: page.evaluate(out) == 0)
        soon(lambda: page.locator("#list").bounding_box()["height"] > 150)
        soon(lambda: 300 < page.locator(".attempt").first.bounding_box()["width"] < 390)
        row = page.locator(".row").nth(1)
        {"chromium": row.tap, "firefox": row.click}[browser.browser_type.name]()  # a BiDi touch is no click
        until(page, "document.querySelectorAll('.row')[1].getAttribute('aria-selected') === 'true'")
        until(page, "Math.abs(document.getElementById('group').getBoundingClientRect().top) < innerHeight / 2")
