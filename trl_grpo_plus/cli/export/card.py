"""The card of a dataset on the Hub: a README.md that begins with YAML."""

import re
from typing import Any

import yaml

from ... import __version__
from .columns import COLUMNS, clean
from .run_columns import MESSAGES, RunColumns


_SIZES = {10**3: "n<1K", 10**4: "1K<n<10K", 10**5: "10K<n<100K", 10**6: "100K<n<1M", 10**7: "1M<n<10M"}


def card(
    run: str, about: dict[str, Any], columns: RunColumns, groups: dict[str, int], attempts: int, part: str
) -> str:
    """Return the text of the card.

    Args:
        run (`str`): name of the run.
        about (`dict`): result of `traces.about` for the run.
        columns (`RunColumns`): columns and names of the run.
        groups (`dict[str, int]`): split, as in its file's name -> number of groups.
        attempts (`int`): number of attempts in all groups.
        part (`str`): description of the exported part of the run.
    """
    files = [{"split": split, "path": f"data/{split}-*.parquet"} for split in sorted(groups, key="train".__ne__)]
    head = {
        "pretty_name": f"Rollouts of {clean(run)}",
        "configs": [{"config_name": "default", "data_files": files}],
        "size_categories": [next((name for bound, name in _SIZES.items() if attempts < bound), "10M<n<100M")],
        "tags": ["trl-grpo-plus", "grpo", "rollouts"],
    }
    weights = about.get("rewards") or dict.fromkeys(columns.rewards)
    rewards = [
        (name, "not known" if (w := weights.get(name)) is None else w or "0, a monitor") for name in columns.rewards
    ]
    shapes = " ".join(line for line in (columns.shapes(), columns.warning()) if line)
    left = sorted(columns.dropped)
    blocks = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# Rollouts of {_cell(run)}",
        f"What the GRPO run {_cell(run)} sampled: {attempts} attempts, one in each row, in {sum(groups.values())} "
        f"groups. A group has one prompt. Exported by trl_grpo_plus {__version__}: {part}"
        + (f", without {', '.join(map(_cell, left))}." if left else "."),
        re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", shapes),
        _table(("split", "groups"), groups.items()),
        _table(("reward", "weight"), rewards),
        "## Columns",
        _table(
            ("column", "what it is"),
            [(name, _about(name, columns)) for name in COLUMNS if name not in columns.dropped],
        ),
        "JSON columns are texts for `json.loads`. U+FFFD replaces each lone surrogate, which UTF-8 cannot hold.",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _about(name: str, columns: RunColumns) -> str:
    kind = columns.written.get(name)
    about = COLUMNS[name].about.replace("|", "\\|")
    messages = "messages; `other` is JSON of what a message has beside role and content"
    return about if kind is None else f"{about}; {messages if kind == MESSAGES else kind}"


def _table(head: tuple[str, str], rows: Any) -> str:
    lines = [head, ("---", "---"), *((f"`{_cell(name)}`", value) for name, value in rows)]
    return "\n".join(f"| {first} | {second} |" for first, second in lines)


def _cell(text: str) -> str:
    """Return a name, which anyone may have chosen, without markup and on one line."""
    return re.sub(r"[^\w./: -]", "_", clean(text))
