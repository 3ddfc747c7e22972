"""What `trl-grpo-plus rescore` takes."""

import argparse


HELP = """\
Score what a run has sampled with a reward, as it stands or changed, without a model or a GPU: where it agrees with
what was recorded, which groups would have been alive, what the advantages would have been. It writes a page that opens
on the attempts where it does not.

  trl-grpo-plus rescore outputs/my_run --reward math_answer
  trl-grpo-plus rescore outputs/my_run --reward my_rewards.py:judge --against math_answer --output judged.jsonl
  trl-grpo-plus rescore outputs/my_run --reward math_answer --reward math_answer --args '{"column": "solution"}'

A reward is compared with the recorded one of its name, which it then replaces in the total, or else with the total.
"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    command.add_argument("folder", metavar="RUN", help="the run's output_dir")
    command.add_argument(
        "--reward",
        dest="asked",
        action="append",
        required=True,
        type=lambda text: ("--reward", text),
        metavar="NAME|FILE.py:FUNCTION",
        help="registered name or path; may be given several times",
    )
    command.add_argument(
        "--args",
        dest="asked",
        action="append",
        type=lambda text: ("--args", text),
        metavar="JSON",
        help="arguments of the --reward before it",
    )
    command.add_argument("--against", metavar="NAME", help="recorded reward to compare with; `reward` is the total")
    command.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="a sample may take (default: what each reward has, or none)"
    )
    command.add_argument("--split", default="train", help="of the traces (default: %(default)s)")
    command.add_argument("--last", type=int, metavar="N", help="only the last N steps that were sampled")
    command.add_argument(
        "-o",
        "--output",
        dest="outputs",
        action="append",
        default=[],
        metavar="FILE",
        help="the page, FILE.html (default: RUN/rescore.html), or a line an attempt, FILE.jsonl; may be given twice",
    )
    command.add_argument("--max-mb", type=float, default=100, help="largest size of the page (default: %(default)s)")
