"""A reward tried on what a run has sampled, without a model or a GPU.

options            what the command takes; imports nothing heavy
requested_rewards  the rewards that were asked for, and whether the traces have what they read
scoring_loop       reads and scores, in batches of whole groups
compare            pure: agreement, kinds of disagreement, verdicts, advantages
report             the result, as text and as lines of JSON
page               what a page shows of it
command            the whole
"""

import argparse

from .options import HELP, add_options


__all__ = ["HELP", "add_options", "run"]


def run(options: argparse.Namespace) -> int:
    """Rescore as `options` say, and return the exit status."""
    from .command import rescore  # here: it imports torch

    return rescore(options)
