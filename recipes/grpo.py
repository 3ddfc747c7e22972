"""Run GRPO from one YAML file: `accelerate launch -m trl_grpo_plus.recipes.grpo --config NAME|PATH [--option value]`.

NAME is a YAML that ships with this package. Options on the command line override those of the file. The structure is
that of TRL's `trl/scripts/grpo.py`. This script adds `prepare`, refuses typos, saves at Ctrl-C, and prints a closing
report.
"""

import sys

from trl_grpo_plus.launch.command_line import set_environment
from trl_grpo_plus.utils.terminal import end_at_ctrl_c, interrupt_at_ctrl_c


if __name__ == "__main__":
    end_at_ctrl_c()  # before the imports that take seconds
    set_environment(sys.argv[1:])  # before the imports that read it

from trl_grpo_plus.launch.arguments import GRPOPlusScriptArguments, make_parser
from trl_grpo_plus.launch.train import main, run


__all__ = ["GRPOPlusScriptArguments", "main", "make_parser", "run"]


if __name__ == "__main__":
    interrupt_at_ctrl_c()
    sys.exit(run())
