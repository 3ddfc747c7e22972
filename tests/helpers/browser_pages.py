"""A real browser for the tests of pages: Chromium, or Firefox if the environment has `TEST_BROWSER=firefox`
(`make test-firefox`). If the browser is not installed, these tests are skipped.

`browser`, `opened` and `opened_panel` are fixtures: a test module that uses them must import them.
"""

import http.client
import inspect
import os
import shutil
import threading
import time
from contextlib import contextmanager

import pytest

from trl_grpo_plus.view import panel
from trl_grpo_plus.view.server import open_server


PROGRAMS = {"chromium": ("chromium", "chromium-browser", "google-chrome"), "firefox": ("firefox", "firefox-esr")}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
# Playwright drives the system's Firefox by WebDriver BiDi, which cannot set the colour scheme. DARK sets it instead.
OPTIONS = {"chromium": {"args": FLAGS}, "firefox": {"channel": "moz-firefox"}}
SIZE = {"width": 1280, "height": 800}
DARK = {"layout.css.prefers-color-scheme.content-override": 0}
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'><!-- <b>bold</b>"
FIRST = "#split=train&step=0"  # without it a page opens on a live group of the last steps


@pytest.fixture(scope="module")
def browser():
    """Start the browser, or skip the tests if it is missing or too old for playwright."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    name = os.environ.get("TEST_BROWSER", "chromium")
    path = next(filter(None, map(shutil.which, PROGRAMS[name])), None)
    if path is None:
        pytest.skip(f"none of {', '.join(PROGRAMS[name])} on the PATH")
    with sync_api.sync_playwright() as playwright:
        try:
            browser = getattr(playwright, name).launch(executable_path=path, **OPTIONS[name])
        except sync_api.Error as error:
            if "unknown command" not in str(error):
                raise
            pytest.skip(f"{path} is too old for playwright: {str(error).splitlines()[0]}")
        browser.options = {"executable_path": path, **OPTIONS[name]}
        browser.kept = {}
        yield browser
        browser.close()


@contextmanager
def in_scheme(browser, scheme, **options):
    """Open a page in the colour scheme "light" or "dark"."""
    dark = scheme == "dark" and browser.browser_type.name == "firefox"
    if dark:
        browser = browser.browser_type.launch(firefox_user_prefs=DARK, **browser.options)
    with browser.new_page(color_scheme=scheme, **options) as page:
        yield page
    if dark:
        browser.close()


@contextmanager
def quiet(browser, drawn=".attempt, .prompt-row, .empty, #note:not([hidden])", harmless=None, **options):
    """Give a function that opens a page and waits until the selector `drawn` matches.

    At the end, fail if a page has requested another address or has put anything on the console. A served page may
    request its own server. Console messages that begin with `harmless` are allowed.
    """
    faults, pages = [], []

    def told(message):
        if harmless is None or not message.text.startswith(harmless):
            faults.append(f"console: {message.text}")

    # Firefox requests an icon by itself, and the page's policy forbids that request.
    icon = "/favicon.ico because it violates"
    heard = {
        "console": told,
        "pageerror": lambda error: icon in str(error) or faults.append(f"error: {error}"),
        "dialog": lambda dialog: faults.append(f"dialog: {dialog.message}"),
    }

    def open_page(path, hash=""):
        served = str(path).startswith("http:")
        address = path if served else f"file://{path}"
        allowed = (address.partition("#")[0] if served else "file:", "blob:")
        page, put_back = _blank(browser, options)
        listeners = {**heard, "request": lambda seen: seen.url.startswith(allowed) or faults.append(seen.url)}
        for event, listener in listeners.items():
            page.on(event, listener)
        pages.append((page, listeners, put_back))
        page.goto(f"{address}{hash}")
        page.wait_for_selector(drawn)
        return page

    yield open_page
    for page, listeners, put_back in pages:
        if not page.is_closed():
            page.goto("about:blank")
            for event, listener in listeners.items():
                page.remove_listener(event, listener)
            put_back(page)
    assert faults == [], faults


def _blank(browser, options):
    """Return an empty page of a context with those options, and the function that takes the page back.

    Contexts and pages are reused, because making one takes longer than most tests. The viewer keeps its state only in
    the address.
    """
    key = str(sorted(options.items()))
    if key not in browser.kept:
        browser.kept[key] = (browser.new_context(viewport=SIZE, **options), [])
    context, free = browser.kept[key]
    page = free.pop() if free else context.new_page()
    page.bring_to_front()  # browsers seldom draw pages in the background
    if page.viewport_size != SIZE:
        page.set_viewport_size(SIZE)
    return page, free.append


@pytest.fixture
def opened(browser):
    """Give a function that opens a page from disk."""
    with quiet(browser, offline=True) as open_page:
        yield open_page


@pytest.fixture
def opened_panel(opened, tmp_path):
    """Give a function that opens the panel of some groups."""

    def open_panel(groups, *title):
        (tmp_path / "panel.html").write_text(panel(groups, *title))
        return opened(tmp_path / "panel.html")

    return open_panel


@contextmanager
def serving(folder, port=0):
    """Run a server in a thread, and stop it at the end as Ctrl-C would."""
    server = open_server(folder, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# -- what tests ask of a page


def until(page, condition, *args):
    """Wait until `condition`, a JavaScript expression or function, is true.

    Playwright's `wait_for_function` evaluates text in the page, which the page's policy forbids.
    """
    end = time.monotonic() + 60
    while not page.evaluate(condition, *args):
        assert time.monotonic() < end, f"{condition}: {page.inner_text('body')[:2000]}"
        time.sleep(0.02)


def soon(condition, told=""):
    """Wait until `condition`, a function that reads pages, returns true: pages draw with a delay.

    Playwright's own assertions wait too, but they normalise white space, and cannot check the result of a script.
    """
    end = time.monotonic() + 60
    while True:
        fault = None
        try:
            if condition():
                return
        except Exception as error:  # the condition reads a node that is not drawn yet
            fault = error
        if time.monotonic() > end:
            raise AssertionError(f"{told or 'it never came'}: {inspect.getsource(condition).strip()}") from fault
        time.sleep(0.02)


def sideways(page):
    """Return by how many pixels the whole page can scroll sideways."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


# JavaScript that returns the generated content before or after a node. Firefox returns `attr(name)` unresolved.
DRAWN = """(node, where) => {
  const { content } = getComputedStyle(node, where);
  const [, name] = /^attr\\((.*)\\)$/.exec(content) ?? [];
  return name ? JSON.stringify(node.getAttribute(name)) : content;
}"""


def shows(page, step, group=0, round=0, split="train"):
    """Wait until the page shows that group."""
    title = f"{split}, step {step}, batch 0, round {round}, group {group}"
    until(page, "title => document.querySelector('#group-head h2')?.textContent === title", title)


def settled(page, status):
    """Wait until the status line of the list is `status`."""
    until(page, "text => document.querySelector('#status').textContent === text", status)


def faults(page):
    """Run axe-core. Return (id, help text, HTML of the first four nodes) for each rule that the page breaks."""
    from axe_playwright_python import base

    page.evaluate(base.AXE_SCRIPT)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [(one["id"], one["help"], [node["html"][:160] for node in one["nodes"]][:4]) for one in found]


def titles(page):
    """Return the titles of the groups in the list."""
    return page.locator(".row-title bdi").all_inner_texts()


def attempts(page):
    """Return the numbers of the shown attempts, in the order of the page."""
    return [node.get_attribute("data-attempt") for node in page.locator(".attempt").all()]


def body(page, attempt):
    """Return the element that holds the text of an attempt."""
    return page.locator(f".attempt[data-attempt='{attempt}'] .body")


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()
