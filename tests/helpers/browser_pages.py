"""A real browser for tests that look at pages: Chromium, or Firefox where the environment says `TEST_BROWSER=firefox`
(`make test-firefox`). Where it is not installed, they are skipped.

`browser`, `opened` and `opened_panel` are fixtures: a test module that wants them names them.
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
# Firefox as it is shipped is driven by WebDriver BiDi, which has no word for the scheme of colours: a preference is.
OPTIONS = {"chromium": {"args": FLAGS}, "firefox": {"channel": "moz-firefox"}}
SIZE = {"width": 1280, "height": 800}
DARK = {"layout.css.prefers-color-scheme.content-override": 0}
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'><!-- <b>bold</b>"
FIRST = "#split=train&step=0"  # a page opens on a live group of the last steps


@pytest.fixture(scope="module")
def browser():
    """A browser of playwright's."""
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
    """A page in light or dark colours."""
    dark = scheme == "dark" and browser.browser_type.name == "firefox"
    if dark:
        browser = browser.browser_type.launch(firefox_user_prefs=DARK, **browser.options)
    with browser.new_page(color_scheme=scheme, **options) as page:
        yield page
    if dark:
        browser.close()


@contextmanager
def quiet(browser, drawn=".attempt, .prompt-row, .empty, #note:not([hidden])", harmless=None, **options):
    """Opens pages that may neither load nor say anything, and gives each back once `drawn` is there. One of a server
    may ask that server, and say what begins with `harmless`."""
    faults, pages = [], []

    def told(message):
        if harmless is None or not message.text.startswith(harmless):
            faults.append(f"console: {message.text}")

    # Firefox looks for an icon by itself, which the page's policy forbids.
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
    """An empty page of a context with those options, and what takes it back when it is empty again. Contexts and pages
    are used again: they take longer to make than most tests take. The viewer keeps nothing but in its address."""
    key = str(sorted(options.items()))
    if key not in browser.kept:
        browser.kept[key] = (browser.new_context(viewport=SIZE, **options), [])
    context, free = browser.kept[key]
    page = free.pop() if free else context.new_page()
    page.bring_to_front()  # others draw seldom
    if page.viewport_size != SIZE:
        page.set_viewport_size(SIZE)
    return page, free.append


@pytest.fixture
def opened(browser):
    """Opens a page from disk."""
    with quiet(browser, offline=True) as open_page:
        yield open_page


@pytest.fixture
def opened_panel(opened, tmp_path):
    """Opens the panel of some groups."""

    def open_panel(groups, *title):
        (tmp_path / "panel.html").write_text(panel(groups, *title))
        return opened(tmp_path / "panel.html")

    return open_panel


@contextmanager
def serving(folder, port=0):
    """A server in a thread, which ends as Ctrl-C ends it."""
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
    """`condition` is JavaScript; the page's policy forbids playwright's own waiting, which evaluates a text."""
    end = time.monotonic() + 60
    while not page.evaluate(condition, *args):
        assert time.monotonic() < end, f"{condition}: {page.inner_text('body')[:2000]}"
        time.sleep(0.02)


def soon(condition, told=""):
    """Assert `condition`, a function that reads pages, once it holds: they draw when they have time. Playwright's own
    assertions wait, too, but they read texts without their spaces, and not what a script of a page tells."""
    end = time.monotonic() + 60
    while True:
        fault = None
        try:
            if condition():
                return
        except Exception as error:  # what it asks about is not drawn yet
            fault = error
        if time.monotonic() > end:
            raise AssertionError(f"{told or 'it never came'}: {inspect.getsource(condition).strip()}") from fault
        time.sleep(0.02)


def sideways(page):
    """Pixels by which the whole page scrolls."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


# What is drawn before or after a node. Firefox tells `attr(name)` as it is written.
DRAWN = """(node, where) => {
  const { content } = getComputedStyle(node, where);
  const [, name] = /^attr\\((.*)\\)$/.exec(content) ?? [];
  return name ? JSON.stringify(node.getAttribute(name)) : content;
}"""


def shows(page, step, group=0, round=0, split="train"):
    """Wait for that group; `step` is that of its trace, which is logged one later."""
    title = f"{split}, step {step + (split == 'train')}, batch 0, round {round}, group {group}"
    until(page, "title => document.querySelector('#group-head h2')?.textContent === title", title)


def settled(page, status):
    """Wait for that to be told of the list."""
    until(page, "text => document.querySelector('#status').textContent === text", status)


def titles(page):
    """Of the groups in the list."""
    return page.locator(".row-title bdi").all_inner_texts()


def attempts(page):
    """Numbers of those in view, as they stand."""
    return [node.get_attribute("data-attempt") for node in page.locator(".attempt").all()]


def body(page, attempt):
    """Where its text is."""
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
