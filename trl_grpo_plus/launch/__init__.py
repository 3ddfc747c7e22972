"""The way from a recipe to a run. This package imports neither torch nor TRL; its modules are imported when needed.

accelerate        recipes and accelerate's configurations by name, processes, sharding
launchers         the programs that start the processes of a run: `LAUNCHERS`
nodes             the options by which the nodes of a run find each other
launcher_main     a launcher's command, whose Ctrl-C waits until all processes have saved
arguments         the script's dataclasses and their parser
command_line      reads the recipe and the command line; makes the command to resume with
recipe_yaml       checks a recipe's keys and values
recipe            a recipe as each of its processes would read it
reward_inputs     the reward functions and the data that a recipe names
datasets_by_name  loads a recipe's datasets
preflight         all checks that are made before a model is loaded
option_checks     preflight's checks of options
needed_packages   the packages that options need
train             the main function: check, load, train, evaluate, report
previous_run      what an earlier run left in the folder: a checkpoint to resume, or files to move
interrupts        Ctrl-C
report            the closing report
"""

from .accelerate import Distribution, accelerate_configs, distribution, find_recipe, headline, recipes
from .launchers import LAUNCHERS, Start, launch_command
