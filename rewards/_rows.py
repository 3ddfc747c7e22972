"""How rewards refuse a dataset that has rows they cannot score."""

from collections.abc import Mapping


SHOWN_ROWS = 3


def refuse_rows(name: str, problems: Mapping[int, str], total: int, hint: str = "Mend or filter these rows.") -> None:
    """Raise if there are problems.

    Args:
        name (`str`): the reward's.
        problems (`Mapping[int, str]`): number of a row, from 0 -> what is wrong with it. The first few are shown.
        total (`int`): how many rows there are.
        hint (`str`, *optional*): how to mend them.

    Raises:
        ValueError: there are problems.
    """
    if problems:
        shown = "; ".join(f"row {row}: {problems[row].rstrip('.')}" for row in sorted(problems)[:SHOWN_ROWS])
        raise ValueError(f"{name}: {len(problems)} of {total} rows cannot be scored; {shown}. {hint}")
