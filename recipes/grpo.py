"""Run GRPO from one YAML file: `accelerate launch -m trl_grpo_plus.recipes.grpo --config NAME|PATH [--option value]`.

NAME is a YAML that ships with this package. Options on the command line override those of the file. The structure is
that of TRL's `trl/scripts/grpo.py`. This script adds `prepare`, refuses typos, saves at Ctrl-C, and prints a closing
report.
"""

import os
import signal
import sys
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    """End this process without a traceback."""
    try:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            os.write(2, b"\nStopped before the run began.\n")
    finally:  # the terminal may be gone
        os._exit(128 + number)


# The imports take seconds. A Ctrl-C would print where each process is in them. Where SIGINT is ignored, it stays so.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)

from trl_grpo_plus.launch.arguments import GRPOPlusScriptArguments, make_parser  # noqa: E402
from trl_grpo_plus.launch.train import main, run  # noqa: E402


__all__ = ["GRPOPlusScriptArguments", "main", "make_parser", "run"]


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run())
