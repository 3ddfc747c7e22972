"""The command `view`: its options and its output. The package `trl_grpo_plus.view` makes the pages, without torch."""

import argparse
import os
import sys
from pathlib import Path

from ..utils.files import beside, check_output
from ..utils.terminal import say
from ..utils.validation import ConfigError
from .option_values import PAGE_MB


MAX_MB = 100

HELP = """\
Write one page of a run's traces. It opens from disk, without a network. It shows curves, alarms, every group of
attempts, and the attempts on one prompt side by side, the best first.

  trl-grpo-plus view outputs/my_run
  trl-grpo-plus view outputs/my_run -o report.html --max-mb 300

Given several runs, write one page that compares them. It shows curves over steps, rollouts, tokens or seconds, the
options that differ, the mean and range over the seeds of one setting, and the attempts on shared prompts.

  trl-grpo-plus view outputs/first outputs/second outputs/third

To follow a run while it trains, use --serve. It starts a server that only this machine can reach. The page updates as
the run writes. Ctrl-C stops the server. Training is unaffected.

  trl-grpo-plus view outputs/my_run --serve
  trl-grpo-plus view outputs/my_run --serve --port 8000    # from elsewhere, first: ssh -L 8000:localhost:8000 HOST
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("folder", metavar="RUN", help="output_dir of the run")
    # With no default, argparse's error names this argument as required too.
    parser.add_argument("others", metavar="RUN", nargs="*", default=[], help="more runs to compare with it")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="page to write (default: RUN/report.html; for several runs compare.html, in the folder that they share)",
    )
    parser.add_argument(
        "--max-mb", type=float, metavar="MB", help=f"maximum size of the page in MB (default: {MAX_MB})"
    )
    parser.add_argument("--serve", action="store_true", help="follow a run while it trains, from this machine only")
    parser.add_argument("--port", type=int, metavar="N", help="port of the server (default: any free port)")


def run(options: argparse.Namespace) -> int:
    """Write a page or serve a page, and return the exit status."""
    from ..view import write_page

    if options.serve:
        return _serve(options)
    if options.port is not None:
        raise ConfigError("--port needs --serve.")
    PAGE_MB.check("--max-mb", options.max_mb)
    if options.output is not None:  # before a long run is read
        check_output(Path(options.output), "compare.html" if options.others else "report.html")
    max_mb = MAX_MB if options.max_mb is None else options.max_mb
    if options.others:
        return _compare(options, max_mb)
    page = write_page(options.folder, options.output or os.path.join(options.folder, "report.html"), max_mb)
    say(f"{page.path}: {page.groups_written} groups, {page.attempts_written} attempts, {page.bytes / 1e6:.1f} MB")
    if page.groups_written < page.groups_total:
        left = page.groups_total - page.groups_written
        say(f"{left} groups did not fit in the page. Raise --max-mb to include them.")
    return 0


def _compare(options: argparse.Namespace, max_mb: float) -> int:
    from ..view import write_comparison

    page = write_comparison([options.folder, *options.others], options.output, max_mb)
    prompts = f"{page.prompts_written} prompts that two or more of them sampled"
    say(f"{page.path}: {len(page.names)} runs, {prompts}, {page.bytes / 1e6:.1f} MB")
    if page.prompts_written < page.prompts_shared:
        left = page.prompts_shared - page.prompts_written
        say(f"{left} prompts did not fit in the page. Raise --max-mb to include them.")
    return 0


def _serve(options: argparse.Namespace) -> int:
    from ..view import serve_run

    if options.others:
        raise ConfigError(f"--serve follows one run, but {1 + len(options.others)} were given. Name one.")
    for name, value in (("--output", options.output), ("--max-mb", options.max_mb)):
        if value is not None:
            raise ConfigError(f"{name} does not go with --serve, which writes no page. Remove one of the two.")
    if os.path.isfile(options.folder):
        raise ConfigError(f"{options.folder} is a file. Give the output_dir of a run.")
    if not os.path.isdir(options.folder):
        say(f"There is no folder {options.folder} yet.{beside(options.folder)} Waiting for it.", file=sys.stderr)

    def ready(address: str) -> None:
        """Print the address of the page."""
        say(
            f"{options.folder}: {address}\nOnly this machine can reach it, and only at this address. Ctrl-C stops it.",
            flush=True,
        )

    serve_run(options.folder, options.port or 0, ready)
    say()
    return 0
