"""The command: its options, and what it says at the end."""

import argparse
from typing import TYPE_CHECKING

from ..common.terminal import say


if TYPE_CHECKING:
    from .files import Exported

HELP = """\
Write what a run sampled as one table, an attempt a row, to be shared. Nothing is uploaded.

  trl-grpo-plus export outputs/my_run --to parquet
  trl-grpo-plus export outputs/my_run --to jsonl --last 20 --split train --output last.jsonl
  trl-grpo-plus export outputs/my_run --to hf --share 0.1 --drop answer

parquet  a folder, data/SPLIT-00000-of-00001.parquet, which load_dataset(FOLDER) reads
hf       the same with a README.md that is the card of a dataset on the Hub
jsonl    one file of all splits

Prompts, gold answers and completions are in it unless they are dropped.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("folder", metavar="RUN", help="the run's output_dir")
    parser.add_argument("--to", required=True, choices=("jsonl", "parquet", "hf"), help="what to write")
    parser.add_argument("-o", "--output", metavar="PATH", help="default: RUN-rollouts, in this folder")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--share", type=float, default=1.0, help="of the groups, the same ones each time, such as 0.1")
    some.add_argument("--last", type=int, metavar="N", help="the last N steps of each split (default: all)")
    parser.add_argument("--split", metavar="NAME", help='"train", or that of an evaluation (default: all)')
    parser.add_argument(
        *("--drop", "-d"),
        nargs="+",
        action="extend",
        default=[],
        metavar="COLUMN",
        help="columns, or keys of the reference",
    )
    parser.add_argument("--overwrite", action="store_true", help="what is there under that name")


def run(options: argparse.Namespace) -> int:
    """Export, and say what was."""
    from .files import export

    wanted = (options.share, options.last, options.split)
    say(_said(export(options.folder, options.to, options.output, *wanted, options.drop, options.overwrite)))
    return 0


def _said(exported: "Exported") -> str:
    from .columns import listed

    size = f"{sum(exported.groups.values())} groups, {exported.attempts} attempts, {exported.bytes / 1e6:.2f} MB"
    lines = [f"{exported.path}: {size}", exported.held.shapes(exported.dropped)]
    if len(exported.groups) > 1:
        lines.append("Groups: " + ", ".join(f"{split} {count}" for split, count in exported.groups.items()) + ".")
    lines.append(exported.held.warning(exported.dropped))
    if exported.held.unknown:
        lines.append(f"Not in it, since this version does not know them: {listed(exported.held.unknown)}.")
    if exported.upload:
        lines += ["Nothing was uploaded. To do so, for you alone at first:", f"  {exported.upload}"]
    return "\n".join(line for line in lines if line)
