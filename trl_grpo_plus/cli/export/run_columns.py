"""The columns and names of a run, which determine the schema of the export and its valid arguments."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...traces import Row
from ...utils.validation import ConfigError, did_you_mean
from .columns import COLUMNS, listed


TEXT, MESSAGES, JSON = "text", "messages", "JSON"
_HOW = {TEXT: "as text", MESSAGES: "as messages", JSON: "as JSON, since they are neither text nor messages"}


@dataclass
class RunColumns:
    """The columns and names of a whole run, even if only a part is exported, so that all parts have one schema.

    Attributes:
        rewards (`dict[str, None]`): names of the rewards, in order.
        written (`dict[str, str]`): "prompt" and "completion" -> "text", "messages" or "JSON". If some are text and
            some are messages, all become messages.
        reference (`dict[str, None]`): names of the dataset's other columns.
        returned (`dict[str, None]`): names of the values that a `rollout_func` returned.
        extra (`dict[str, None]`): names of the values that rewards logged.
        steps (`dict[str, list[int]]`): split -> the steps at which the split was sampled.
        unknown (`dict[str, None]`): keys of lines that have no column.
        dropped (`frozenset[str]`): columns, and keys of the reference as `reference.KEY`, that are left out.
    """

    rewards: dict[str, None] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=lambda: {"prompt": TEXT, "completion": TEXT})
    reference: dict[str, None] = field(default_factory=dict)
    returned: dict[str, None] = field(default_factory=dict)
    extra: dict[str, None] = field(default_factory=dict)
    steps: dict[str, list[int]] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()

    def leave_out(self, drop: Iterable[str]) -> None:
        """Set `dropped` to the columns and the keys of the reference that `drop` names.

        Raises:
            ConfigError: there is no column or key of this name, or no column would be left.
        """
        named = set()
        keys = {f"reference.{key}" for key in self.reference}
        for name in drop:
            # If a column and a key have the same name, both are dropped, to be safe.
            meant = {name, f"reference.{name}"} & {*COLUMNS, *keys}
            if not meant:
                guess = did_you_mean(name, filter(str.isprintable, [*COLUMNS, *self.reference]))
                choices = f"A column is one of {', '.join(COLUMNS)}; a key of the reference, of this run, "
                choices += f"one of {listed(self.reference)}." if self.reference else "none, since it has none."
                raise ConfigError(f"--drop: there is no {name!r}.{guess} {choices}")
            named |= meant
        if named >= COLUMNS.keys():
            raise ConfigError("--drop: no column is left. Name fewer.")
        self.dropped = frozenset(named)

    def shapes(self) -> str:
        """Describe how prompts and completions are written."""
        said = [f"{name}s {_HOW[kind]}" for name, kind in self.written.items() if name not in self.dropped]
        text = " and ".join(said)
        return f"{text[0].upper()}{text[1:]}." if text else ""

    def warning(self) -> str:
        """Return a warning that lists the content that may be confidential; "" if there is none."""
        inside = [f"{name}s" for name in ("prompt", "completion") if name not in self.dropped]
        keys = [key for key in self.reference if f"reference.{key}" not in self.dropped]
        if "reference" not in self.dropped and keys:
            inside.append(f"the reference, with any gold answers ({listed(keys)})")
        if "returned" not in self.dropped and self.returned:
            inside.append(f"what rollout_func returned ({listed(self.returned)})")
        if "extra" not in self.dropped and self.extra:
            inside.append(f"what rewards logged ({listed(self.extra)})")
        return f"Whoever gets this table can read: {', '.join(inside)}." if inside else ""


def run_columns(groups: Iterable[Sequence[Row]]) -> RunColumns:
    """Read the whole run once, and return its columns and names."""
    columns, forms_by_name = RunColumns(), {"prompt": {TEXT}, "completion": {TEXT}}
    steps: dict[str, set[int]] = {}
    for group in groups:
        steps.setdefault(group[0]["split"], set()).add(group[0]["step"])
        for row in group:
            columns.rewards.update(dict.fromkeys([*(row.get("rewards") or {}), *(row.get("outcomes") or {})]))
            columns.reference.update(dict.fromkeys(row.get("reference") or {}))
            columns.returned.update(dict.fromkeys(row.get("returned") or {}))
            columns.extra.update(dict.fromkeys(row.get("extra") or {}))
            columns.unknown.update(dict.fromkeys(key for key in row if key not in COLUMNS))
            for name, forms in forms_by_name.items():
                if row.get(name) is not None:
                    forms.add(_kind(row[name]))
    for name, forms in forms_by_name.items():
        columns.written[name] = JSON if JSON in forms else MESSAGES if MESSAGES in forms else TEXT
    columns.steps = {split: sorted(of_split) for split, of_split in steps.items()}
    return columns


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return TEXT
    messages = isinstance(value, list) and all(
        isinstance(one, dict) and isinstance(one.get("role"), str) for one in value
    )
    return MESSAGES if messages else JSON
