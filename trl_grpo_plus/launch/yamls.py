"""YAML as it is meant: 1e-5 is a number, which YAML 1.1 takes for a text, and no key comes twice."""

import re
from typing import Any

import yaml


class Loader(yaml.SafeLoader):
    """PyYAML's, with YAML 1.2's floats, and without the second of two values in silence."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that is there already."""
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                raise yaml.YAMLError(f"the key {name} appears twice, in lines {lines[name]} and {line}.")
            lines[name] = line
        return super().construct_mapping(node, deep)


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+"),
    list("-+.0123456789"),
)


def read(text: str) -> Any:
    """What a YAML text holds.

    Raises:
        yaml.YAMLError: it is not YAML, or a key is there twice.
    """
    return yaml.load(text, Loader)
