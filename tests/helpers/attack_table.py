"""Attack rewards on the rows below, and write the table of docs/rewards.md: `python tests/helpers/attack_table.py`."""

import re
from pathlib import Path

from datasets import Dataset

from trl_grpo_plus.cli.check.attack import attack
from trl_grpo_plus.cli.check.attacks import ATTACKS
from trl_grpo_plus.registry import Reward, find
from trl_grpo_plus.utils.tables import FAILED, OK, UNSEEN, WARNED


HERE = Path(__file__).resolve()
PAGE = HERE.parents[2] / "docs" / "rewards.md"
NUMBERS = [{"prompt": "How many?", "answer": gold} for gold in ("72", "-7", "1,200", "3000", "10")]
LETTERS = [{"prompt": f"Question {place}?", "answer": gold} for place, gold in enumerate("BADC")]
OWN = (
    "countdown",
    "reasoning_gym",
    "json_schema",
    "regex_match",
    "instruction_checks",
)  # attacked with their examples
NAIVE = ("contains_answer", "last_tag", "within_a_thousandth")
ROWS = {
    **dict.fromkeys(("math_answer", "gsm8k_answer", "exact_answer"), NUMBERS),
    "choice_answer": LETTERS,
    **dict.fromkeys(OWN),
    **dict.fromkeys((f"{HERE.parent / 'naive_rewards.py'}:{name}" for name in NAIVE), NUMBERS[:2] + NUMBERS[3:]),
}
CELLS = {FAILED: "**F**", WARNED: "w", OK: "", UNSEEN: "-"}
TABLE = re.compile(r"(?<=<!-- attack table -->\n).*?(?=<!-- end of attack table -->)", re.DOTALL)


def table() -> str:
    """Return the table: a row for each kind of attack, a column for each reward."""
    found = {}
    for name, rows in ROWS.items():
        data = Dataset.from_list(rows) if rows else None
        results = attack(Reward(find(name)).prepare(), data)
        found[name.rpartition(":")[2]] = {row.name: CELLS[row.status] for row in results}
    lines = [["attack", *(f"`{name}`" for name in found)], ["---"] * (len(found) + 1)]
    lines += [[kind, *(cells[kind] for cells in found.values())] for kind in ATTACKS]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))
