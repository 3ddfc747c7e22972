"""The options of `trl-grpo-plus rescore`."""

import argparse


HELP = """\
Score the attempts of a run with a reward, the run's own or another, without a model or a GPU. Reports where the new
scores agree with the recorded ones, which groups would have been alive, and what the advantages would have been.
Writes a page that opens on the attempts where the scores disagree.

  trl-grpo-plus rescore outputs/my_run --reward math_answer
  trl-grpo-plus rescore outputs/my_run --reward my_rewards.py:judge --against math_answer --output judged.jsonl
  trl-grpo-plus rescore outputs/my_run --reward math_answer --reward math_answer --args '{"column": "solution"}'

A reward is compared with the recorded reward of the same name, and replaces it in the total. Without one of that name
it is compared with the recorded total.
"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    command.add_argument("folder", metavar="RUN", help="output_dir of the run")
    command.add_argument(
        "--reward",
        dest="reward_options",
        action="append",
        required=True,
        type=lambda text: ("--reward", text),
        metavar="NAME|FILE.py:FUNCTION",
        help="reward to score with: a registered name or a path; may be given several times",
    )
    command.add_argument(
        "--args",
        dest="reward_options",
        action="append",
        type=lambda text: ("--args", text),
        metavar="JSON",
        help="arguments of the --reward before it, as JSON",
    )
    command.add_argument("--against", metavar="NAME", help="recorded reward to compare with; `reward` means the total")
    command.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="time limit per sample (default: each reward's own, or none)"
    )
    command.add_argument("--split", default="train", help="split of the traces to score (default: %(default)s)")
    command.add_argument("--last", type=int, metavar="N", help="score only the last N sampled steps")
    command.add_argument(
        "-o",
        "--output",
        dest="outputs",
        action="append",
        default=[],
        metavar="FILE",
        help="file to write: the page, FILE.html (default: RUN/rescore.html), or one line per attempt, FILE.jsonl; "
        "may be given twice",
    )
    command.add_argument(
        "--max-mb", type=float, default=100, metavar="MB", help="maximum size of the page in MB (default: %(default)s)"
    )
