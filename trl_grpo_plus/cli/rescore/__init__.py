"""The command `trl-grpo-plus rescore`: a reward tried on a run's attempts, without a model or a GPU.

options            the command's options; imports nothing heavy
requested_rewards  the requested rewards, and a check that the traces hold their inputs
scoring_loop       reads and scores, in batches of whole groups
scored_groups      the scored groups, in a temporary file
agreement          agreement with the recorded reward, kinds of differences
effect             the verdicts and advantages that the new reward would have given; the whole result
report             the result, as text and as lines of JSON
page               the result as a page's data
command            the whole command
"""

import argparse

from .options import HELP, add_options


__all__ = ["HELP", "add_options", "run"]


def run(options: argparse.Namespace) -> int:
    """Run the command `rescore` with parsed options, and return the exit status."""
    from .command import rescore  # here: it imports torch

    return rescore(options)
