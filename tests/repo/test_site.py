"""The site of the docs: where links lead, which pages it has, what is made from the code, what stops its build."""

import logging
import posixpath
import re
import sys
from importlib import import_module
from pathlib import Path

import browser_pages
import pytest
from browser_pages import faults, in_scheme

import trl_grpo_plus
from trl_grpo_plus import registry
from trl_grpo_plus.cli.main import _parser
from trl_grpo_plus.objective.variants import VARIANTS
from trl_grpo_plus.rewards import LIBRARY


pytest.importorskip("mkdocs", reason="the site needs the extra docs")

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort


ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs"))
site_hooks = import_module("site_hooks")
browser = browser_pages.browser  # a fixture

REPOSITORY = "https://github.com/trl-grpo-plus/trl-grpo-plus"


@pytest.mark.parametrize(
    ("target", "source", "page", "address"),
    [
        ("groups.md#the-verdict", "docs/guide.md", "guide.md", "groups.md#the-verdict"),
        ("docs/kl.md", "README.md", "index.md", "kl.md"),
        ("docs/images/page.png", "README.md", "index.md", "images/page.png"),
        ("../README.md#one-reward", "docs/guide.md", "guide.md", "index.md#one-reward"),
        ("../recipes/README.md", "docs/guide.md", "guide.md", "recipes.md"),
        ("../../recipes/README.md", "docs/how_to/resume.md", "how_to/resume.md", "../recipes.md"),
        ("../docs/processes.md", "recipes/README.md", "recipes.md", "processes.md"),
        ("smollm2.py", "recipes/README.md", "recipes.md", f"{REPOSITORY}/blob/main/recipes/smollm2.py"),
        ("../benchmarks", "docs/costs.md", "costs.md", f"{REPOSITORY}/tree/main/benchmarks"),
        ("quick_start.ipynb", "docs/for_trl.md", "for_trl.md", f"{REPOSITORY}/blob/main/docs/quick_start.ipynb"),
        ("nothing.md", "docs/guide.md", "guide.md", "nothing.md"),
        ("../nothing.py", "docs/guide.md", "guide.md", "../nothing.py"),
    ],
)
def test_a_link_leads_to_a_page_of_the_site_or_to_the_repository(target, source, page, address):
    assert site_hooks.address(target, source, page, REPOSITORY) == address


def test_links_in_code_and_anchors_of_the_page_stay():
    class Page:
        edit_url = ""

        class file:
            src_uri = "guide.md"

    class Config:
        repo_url = REPOSITORY

    text = "[a](#here) [b](../README.md)\n\n```python\nx = [1](../README.md)\n```\n[c](https://trl) [d](../Makefile)\n"
    made = site_hooks.on_page_markdown(text, Page, Config, None)
    assert "[a](#here) [b](index.md)" in made
    assert "x = [1](../README.md)" in made
    assert f"[c](https://trl) [d]({REPOSITORY}/blob/main/Makefile)" in made


def test_lists_are_read_as_github_reads_them():
    from markdown import Markdown

    text = site_hooks._lists_apart("Below:\n- a\n  b\n  - in a\n- c\n\n  more of c\n- d\n")
    html = re.sub(r"\s|</?p>", "", Markdown(extensions=[site_hooks._TwoSpaces()]).convert(text))
    assert html == "Below:<ul><li>ab<ul><li>ina</li></ul></li><li>cmoreofc</li><li>d</li></ul>"


def test_every_page_is_in_the_navigation():
    config = load_config(str(ROOT / "mkdocs.yml"))

    def pages(entries):
        for entry in entries:
            for _, value in entry.items():
                yield from [value] if isinstance(value, str) else pages(value)

    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    listed = list(pages(config.nav))
    assert set(listed) == there | set(site_hooks.ELSEWHERE)
    assert len(listed) == len(set(listed))


def test_the_parts_made_from_the_code_are_complete():
    parts = {name: part() for name, part in site_hooks.PARTS.items()}
    used = {name for path in (ROOT / "docs").rglob("*.md") for name in site_hooks.MADE.findall(path.read_text())}
    assert used == set(parts)
    (commands,) = [action.choices for action in _parser()._actions if action.choices and not action.option_strings]
    for name in commands:
        assert f"## trl-grpo-plus {name}\n\n```text\nusage: trl-grpo-plus {name}" in parts["commands"]
    told = {name: set(re.findall(r"^::: [\w.]+\.(\w+)$", part, re.MULTILINE)) for name, part in parts.items()}
    assert told["rewards"] == set(LIBRARY)
    assert told["public"] == set(trl_grpo_plus.__all__) - {"__version__"}
    assert told["public"] | told["registry"] >= set(registry.__all__)
    assert told["advantages"] == {variant.function.__name__ for variant in VARIANTS.values()}


def test_the_table_of_commands_has_what_the_parser_says():
    text = (ROOT / "docs" / "command_line.md").read_text()
    table = dict(re.findall(r"^\| `([\w ]+)` \| (.+?) \|", text, re.MULTILINE))
    (added,) = [action for action in _parser()._actions if action.choices and not action.option_strings]
    assert list(table) == list(added.choices)

    def starts(sentence):  # the same for "copies a recipe" and "copy a recipe"
        return [word[:3] for word in sentence.split()]

    for choice in added._choices_actions:
        assert starts(table[choice.dest]) == starts(choice.help), choice.dest


def small_site(folder, **pages):
    (folder / "docs").mkdir()
    for name, text in pages.items():
        (folder / "docs" / f"{name}.md").write_text(text)
    own = {"docs_dir": str(folder / "docs"), "site_dir": str(folder / "site"), "hooks": [], "strict": True}
    config = load_config(str(ROOT / "mkdocs.yml"), nav=[{name: f"{name}.md"} for name in pages], **own)
    config.plugins.on_startup(command="build", dirty=False)
    return config


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[fine](other.md#there)", None),
        ("[gone](nothing.md)", "nothing.md"),
        ("[gone](other.md#nowhere)", "nowhere"),
        ("[gone](/nothing)", "absolute"),
        ("::: trl_grpo_plus.registry.get_reward", None),
        ("::: trl_grpo_plus.registry.nothing", "nothing"),
    ],
)
def test_a_strict_build_stops_at_a_target_that_does_not_exist(tmp_path, caplog, text, told):
    config = small_site(tmp_path, index=f"# Page\n\n{text}\n", other="# Other\n\n## There\n")
    with caplog.at_level(logging.WARNING):
        if told is None:
            build(config)
            assert (tmp_path / "site" / "index.html").exists()
        else:
            with pytest.raises((Abort, SystemExit)):
                build(config)
            assert told in caplog.text


def test_a_site_for_the_disk_links_files_and_has_its_search_in_a_script(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFLINE", "true")
    build(small_site(tmp_path, index="# Page\n\n[fine](other.md#there)\n", other="# Other\n\n## There\n"))
    page = (tmp_path / "site" / "index.html").read_text()
    assert 'href="other.html#there"' in page
    assert 'src="iframe-worker.js"' in page
    assert "unpkg" not in page
    assert (tmp_path / "site" / "search" / "search_index.js").exists()
    assert (ROOT / "docs" / "iframe-worker.js").exists()
    assert "make docs OFFLINE=false" in (ROOT / ".github" / "workflows" / "docs.yml").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site strictly."""
    folder = tmp_path_factory.mktemp("built")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder


@pytest.mark.full
def test_the_site_is_built_strictly_and_needs_no_network(site):
    built = list(site.rglob("*.html"))
    assert len(built) > 40
    for page in built:
        text = page.read_text()
        assert not re.findall(r'(?:src|href)="https?://[^"]*\.(?:js|css|woff2?)"', text), page
        assert "fonts.googleapis" not in text
        assert "made of the code" not in text
        assert not re.search(r"\[<code>~?[\w.]+</code>\]", text), page
    api = (site / "api" / "index.html").read_text()
    assert all(f"trl_grpo_plus.{part}" in api for part in ("trainer.attach.attach", "registry.get_reward"))
    assert posixpath.exists(site / "images" / "page.png")


# Faults of what the theme's scripts make, and empty corners of tables.
OF_THE_THEME = {"landmark-unique", "scrollable-region-focusable", "empty-table-header"}


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "quick_start", "faq", "advantages", "api_rewards"])
def test_axe_finds_nothing_on_the_site(browser, site, name, scheme):
    page_of = site / "index.html" if name == "index" else site / name / "index.html"
    with in_scheme(browser, scheme) as page:
        page.goto(f"file://{page_of}")
        assert [fault for fault in faults(page) if fault[0] not in OF_THE_THEME] == []
