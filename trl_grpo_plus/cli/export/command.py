"""The command `export`: its options and its closing message."""

import argparse
from typing import TYPE_CHECKING

from ...utils.terminal import say


if TYPE_CHECKING:
    from .writers import Exported

HELP = """\
Write the attempts of a run as one table to share, one attempt per row. Nothing is uploaded.

  trl-grpo-plus export outputs/my_run --to parquet
  trl-grpo-plus export outputs/my_run --to jsonl --last 20 --split train --output last.jsonl
  trl-grpo-plus export outputs/my_run --to hf --share 0.1 --drop answer

parquet  a folder of data/SPLIT-00000-of-00001.parquet files, which load_dataset(FOLDER) reads
hf       the same folder with a README.md, the card of a dataset on the Hub
jsonl    one file with all splits

The table holds prompts, gold answers and completions, unless --drop removes them.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("folder", metavar="RUN", help="output_dir of the run")
    parser.add_argument("--to", required=True, choices=("jsonl", "parquet", "hf"), help="format to write")
    parser.add_argument(
        "-o", "--output", metavar="PATH", help="file or folder to write (default: RUN-rollouts in the current folder)"
    )
    some = parser.add_mutually_exclusive_group()
    some.add_argument(
        "--share",
        type=float,
        default=1.0,
        help="share of the groups to export, such as 0.1; always the same groups (default: all)",
    )
    some.add_argument(
        "--last", type=int, metavar="N", help="export only the last N steps of each split (default: all)"
    )
    parser.add_argument(
        "--split", metavar="NAME", help='split to export: "train", or the name of an evaluation (default: all)'
    )
    parser.add_argument(
        "--drop",
        "-d",
        nargs="+",
        action="extend",
        default=[],
        metavar="COLUMN",
        help="columns to leave out, or keys of the reference",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what exists at PATH")


def run(options: argparse.Namespace) -> int:
    """Export a run's attempts, print a summary, and return the exit status."""
    from .writers import export

    selection = (options.share, options.last, options.split)
    say(_said(export(options.folder, options.to, options.output, *selection, options.drop, options.overwrite)))
    return 0


def _said(exported: "Exported") -> str:
    from .columns import listed

    size = f"{sum(exported.groups.values())} groups, {exported.attempts} attempts, {exported.bytes / 1e6:.2f} MB"
    lines = [f"{exported.path}: {size}", exported.columns.shapes()]
    if len(exported.groups) > 1:
        lines.append("Groups: " + ", ".join(f"{split} {count}" for split, count in exported.groups.items()) + ".")
    lines.append(exported.columns.warning())
    if exported.columns.unknown:
        lines.append(f"Left out, because this version does not know them: {listed(exported.columns.unknown)}.")
    if exported.upload:
        lines += ["Nothing was uploaded. To upload it, at first as a private dataset:", f"  {exported.upload}"]
    return "\n".join(line for line in lines if line)
