"""What the site is beside the pages of docs/: pages from elsewhere in the repository, and text made of the code.

A page of docs/ links as GitHub wants it: to other pages, and to files of the repository (`../recipes/README.md`). Here
a link to a file that has a page of the site becomes a link to that page, and one to any other file or folder becomes
the repository's address. A link to nothing is left as it is, and `mkdocs build --strict` refuses it.
"""

import argparse
import os
import posixpath
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from unittest import mock

import markdown
from markdown.blockparser import BlockParser
from markdown.blockprocessors import build_block_parser
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


ROOT = Path(__file__).parents[1]
BRANCH = "main"
# Pages of the site that do not lie in docs/: where each is in the repository.
ELSEWHERE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "recipes.md": "recipes/README.md",
}
AT = {source: page for page, source in ELSEWHERE.items()}
SHOWN = (".md", ".png", ".svg")
ITEM = re.compile(r" *([-*]|\d+\.) ")
DIALOG = 'data-md-component="search" role="dialog"'
MADE = re.compile(r"^<!-- made of the code: (\w+) -->$", re.MULTILINE)


class _TwoSpaces(markdown.Extension):
    """Lists as GitHub reads them: two spaces of indentation make a list within a list."""

    def extendMarkdown(self, md: markdown.Markdown) -> None:
        md.tab_length = 2
        md.parser = build_block_parser(md)
        assert isinstance(md.parser, BlockParser)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the extension first, since those after it change the parser that it makes."""
    config.markdown_extensions.insert(0, _TwoSpaces())  # type: ignore[arg-type]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere in the repository."""
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is made of the code, and turn links that leave the site into the repository's addresses."""
    text = MADE.sub(lambda marker: PARTS[marker[1]](), text)
    source = source_of(page.file.src_uri)
    if page.file.src_uri in ELSEWHERE:
        page.edit_url = f"{config.repo_url}/edit/{BRANCH}/{source}"
    pieces = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)

    def on_the_site(link: re.Match[str]) -> str:
        return f"]({address(link[1], source, page.file.src_uri, config.repo_url)})"

    pieces[::2] = [_lists_apart(re.sub(r"\]\((?!\w+:|#)([^)\s]+)\)", on_the_site, piece)) for piece in pieces[::2]]
    return "".join(pieces)


def _lists_apart(text: str) -> str:
    """Put an empty line between a paragraph and the list that follows it, which GitHub does not need."""
    lines: list[str] = []
    in_list = False
    for line in text.split("\n"):
        starts = bool(ITEM.match(line))
        if starts and not in_list:
            lines.append("")
        in_list = starts or (in_list if line.strip() else False)
        lines.append(line)
    return "\n".join(lines)


def source_of(page: str) -> str:
    """Return where a page of the site lies in the repository."""
    return ELSEWHERE.get(page, f"docs/{page}")


def address(target: str, source: str, page: str, repository: str | None) -> str:
    """Return what a link from the file `source`, shown as `page`, is on the site."""
    path, hash_sign, anchor = target.partition("#")
    at = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    inside = AT.get(at) or (at.removeprefix("docs/") if at.startswith("docs/") and at.endswith(SHOWN) else None)
    if inside:
        return posixpath.relpath(inside, posixpath.dirname(page) or ".") + hash_sign + anchor
    if not (ROOT / at).exists():
        return target
    kind = "tree" if (ROOT / at).is_dir() else "blob"
    return f"{repository}/{kind}/{BRANCH}/{at}{hash_sign}{anchor}"


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the names that docstrings write as TRL's do, [`GRPOPlusConfig`] or [`~trl.GRPOConfig`]."""
    return re.sub(r"\[<code>(~?)([\w.]+)(\(\))?</code>\]", _name, html)


def on_post_page(html: str, page: Page, config: MkDocsConfig) -> str:
    """Name the theme's search dialog, which screen readers announce."""
    return html.replace(DIALOG, f'{DIALOG} aria-label="Search"')


def _name(found: re.Match[str]) -> str:
    import trl_grpo_plus

    shortened, name, _ = found.groups()
    full = f"trl_grpo_plus.{name}" if name in trl_grpo_plus.__all__ else name
    shown = name.rpartition(".")[2] if shortened else name
    return f'<autoref identifier="{full}" optional><code>{shown}</code></autoref>'


# -- what is made of the code


def commands() -> str:
    """Return the help of `trl-grpo-plus` and of each of its commands, from their parsers."""
    from trl_grpo_plus.cli.main import _parser

    parser = _parser()
    (added,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    parts = [("trl-grpo-plus", parser), *((f"trl-grpo-plus {name}", each) for name, each in added.choices.items())]
    with mock.patch.dict(os.environ, COLUMNS="110"):
        return "\n\n".join(f"## {name}\n\n```text\n{each.format_help().rstrip()}\n```" for name, each in parts)


def rewards() -> str:
    """Return a section for each reward of the library, whose folder is beside that of the package."""
    from trl_grpo_plus.rewards import LIBRARY

    return _documented(f"rewards.{module}.{name}" for name, module in LIBRARY.items())


def advantages() -> str:
    """Return a section for each advantage function that has a name."""
    from trl_grpo_plus.objective import variants

    named = {variant.function for variant in variants.VARIANTS.values()}
    return _documented(f"{function.__module__}.{function.__name__}" for function in named)


def public() -> str:
    """Return a section for each public name of the package."""
    import trl_grpo_plus

    homes = {name: f"trl_grpo_plus.{home.lstrip('.')}.{name}" for name, home in trl_grpo_plus._LAZY.items()}
    return _documented(homes[name] for name in trl_grpo_plus.__all__ if name in homes)


def registry() -> str:
    """Return a section for each name of `trl_grpo_plus.registry` that the package's face has not."""
    import trl_grpo_plus
    from trl_grpo_plus import registry

    names = [name for name in registry.__all__ if name not in trl_grpo_plus.__all__]
    homes = {name: getattr(getattr(registry, name), "__module__", registry.__name__) for name in names}
    return _documented(f"{homes[name]}.{name}" for name in names)


def _documented(paths: Iterable[str]) -> str:
    return "\n\n".join(f"::: {path}" for path in sorted(paths, key=lambda path: path.rpartition(".")[2].lower()))


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part for part in (advantages, commands, public, registry, rewards)
}
