"""The command `view`: its options, and what it says. The pages are made in the room `view`, which imports torch."""

import argparse
import os
import sys

from .common.terminal import say
from .common.values import Refusal
from .launch.data import beside


MAX_MB = 100

HELP = """\
Write a run's traces as one page that opens from disk, without a network: curves, alarms, every group of attempts, and
the attempts on one prompt side by side, the best first.

  trl-grpo-plus view outputs/my_run
  trl-grpo-plus view outputs/my_run -o report.html --max-mb 300

Of several runs, one page that lays them beside each other: curves over steps, rollouts, tokens or seconds, what they
differ in, seeds of one setting as mean and range, and the attempts on prompts that they share.

  trl-grpo-plus view outputs/first outputs/second outputs/third

A run that goes on is followed with --serve: a server for this machine alone, whose page shows what comes as it comes.
Ctrl-C ends it; the run knows nothing of it.

  trl-grpo-plus view outputs/my_run --serve
  trl-grpo-plus view outputs/my_run --serve --port 8000    # ssh -L 8000:localhost:8000 there, from elsewhere
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    parser.add_argument("folder", metavar="RUN", help="the run's output_dir")
    parser.add_argument("others", metavar="RUN", nargs="*", help="more runs, to lay beside it")
    parser.add_argument(
        *("-o", "--output"),
        metavar="FILE",
        help="the page (default: RUN/report.html; of several runs compare.html, in the folder that they share)",
    )
    parser.add_argument("--max-mb", type=float, help=f"largest size of the page (default: {MAX_MB})")
    parser.add_argument("--serve", action="store_true", help="follow a run that goes on, from this machine alone")
    parser.add_argument("--port", type=int, metavar="N", help="of that address (default: any that is free)")


def run(options: argparse.Namespace) -> int:
    """Write a page, or serve one, and return the exit status."""
    from .view import write_page

    if options.serve:
        return _serve(options)
    if options.port is not None:
        raise Refusal("--port is of --serve, which is not given.")
    max_mb = MAX_MB if options.max_mb is None else options.max_mb
    if options.others:
        return _compare(options, max_mb)
    page = write_page(options.folder, options.output or os.path.join(options.folder, "report.html"), max_mb)
    say(f"{page.path}: {page.groups_written} groups, {page.attempts_written} attempts, {page.bytes / 1e6:.1f} MB")
    if page.groups_written < page.groups_total:
        say(f"{page.groups_total - page.groups_written} groups found no room: raise --max-mb to see them.")
    return 0


def _compare(options: argparse.Namespace, max_mb: float) -> int:
    from .view import write_comparison

    page = write_comparison([options.folder, *options.others], options.output, max_mb)
    prompts = f"{page.prompts_written} prompts of two or more"
    say(f"{page.path}: {len(page.names)} runs, {prompts}, {page.bytes / 1e6:.1f} MB")
    if page.prompts_written < page.prompts_shared:
        say(f"{page.prompts_shared - page.prompts_written} prompts found no room: raise --max-mb to see them.")
    return 0


def _serve(options: argparse.Namespace) -> int:
    from .view import serve_run

    if options.others:
        raise Refusal(f"--serve follows one run, and {1 + len(options.others)} are given. Name one of them.")
    for name, value in (("--output", options.output), ("--max-mb", options.max_mb)):
        if value is not None:
            raise Refusal(f"{name} is of the page that is written, and --serve writes none. Leave one of them out.")
    if not os.path.isdir(options.folder):
        say(f"There is no folder {options.folder} yet.{beside(options.folder)} It is waited for.", file=sys.stderr)

    def ready(address: str) -> None:
        say(
            f"{options.folder}: {address}\nOnly from this machine, and only at this address. Ctrl-C ends it.",
            flush=True,
        )

    serve_run(options.folder, options.port or 0, ready)
    say()
    return 0
