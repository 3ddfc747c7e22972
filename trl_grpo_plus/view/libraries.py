"""The libraries that a page carries for what it renders, packed; see `viewer/vendor/README.md`.

They run as inline scripts whose hashes the page's policy names: nothing else can be run in their place.
"""

import base64
import functools
import json
import re
import zlib
from importlib.resources import files


NAMES = ("markdown-it", "temml")


@functools.cache
def source(name: str) -> str:
    """A library as it is run: without the name of its source map, which a page could not load."""
    path = files(__package__) / "viewer" / "vendor" / f"{name}.min.js"
    return re.sub(r"\n//# sourceMappingURL=.*\s*$", "\n", path.read_text(encoding="utf-8"))


@functools.cache
def declaration() -> str:
    """JavaScript that says the libraries' names and their sources, each as raw deflate in base64."""
    return f"const LIBRARIES = {json.dumps({name: _packed(source(name)) for name in NAMES})};\n"


def _packed(text: str) -> str:
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    return base64.b64encode(packer.compress(text.encode()) + packer.flush()).decode()
