"""Griffe's extension for docstrings in TRL's form, where the text has a parameter's type and default."""

import re
from typing import Any

import griffe


class TrlDocstrings(griffe.Extension):
    """Keep what the text says of a parameter, without Markdown; leave out what the signature says."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Walk through the package once it is loaded."""
        self._walk(pkg)

    def _walk(self, within: griffe.Object) -> None:
        for member in within.members.values():
            if isinstance(member, griffe.Object):
                _clean(member)
                self._walk(member)


def _clean(documented: griffe.Object) -> None:
    if not documented.docstring or not isinstance(documented, griffe.Class | griffe.Function):
        return
    for section in documented.docstring.parsed:
        if section.kind in (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.returns):
            # "> Parameters that control ...:" heads a part of TRL's lists.
            section.value = [item for item in section.value if not (item.name or "").startswith(">")]
            for item in section.value:
                told = isinstance(item.annotation, str)
                item.annotation = _plain(item.annotation) if told else None
                if told or section.kind is griffe.DocstringSectionKind.parameters:
                    item.value = None


def _plain(annotation: str) -> str:
    """Return "`int`, *optional*, defaults to `4`" without its marks; a name that is a link, by its last part."""
    linked = re.sub(r"\[`~?(?:[\w.]*\.)?(\w+)`\]", r"\1", annotation)
    return re.sub(r"\*(optional)\*", r"\1", linked).replace("`", "")
