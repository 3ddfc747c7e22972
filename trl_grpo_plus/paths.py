"""Names that may be a path, or an id on the Hub."""

import os

from .loading import near


# Folders that hold checkpoints by custom, where a path to one could also be an id on the Hub.
OUTPUTS = ("checkpoint", "checkpoints", "output", "outputs", "runs")


def looks_local(name: str) -> bool:
    """Whether a name is a path in form, and not an id on the Hub or a URL: `./x`, `/x`, `~/x`, `x/`, `a/b/c`,
    `outputs/x`."""
    if "://" in name:
        return False
    first, _, rest = name.partition("/")
    return name.startswith((".", "/", "~")) or name.endswith("/") or "/" in rest or bool(rest and first in OUTPUTS)


def beside(name: str) -> str:
    """ " Did you mean ...?", of what lies where a path that leads nowhere would."""
    folder, last = os.path.split(os.path.expanduser(name).rstrip("/"))
    return near(last, os.listdir(folder or ".") if os.path.isdir(folder or ".") else [])
