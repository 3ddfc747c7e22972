"""From a recipe to a run. This face imports neither torch nor TRL; its modules are imported as they are needed.

accelerate        recipes and accelerate's configurations by name, processes, sharding
launchers         what starts the processes of a run: `LAUNCHERS`
launcher_main     a launcher's command, with a Ctrl-C that waits until all have saved
arguments         the script's dataclasses and their parser
command_line      reads the recipe and the command line; the command to resume with
recipe_yaml       what a recipe's keys and values may be
recipe            a recipe as each of its processes would read it
reward_inputs     the reward functions and the data that a recipe names
datasets_by_name  loads a recipe's datasets
preflight         the one list of what is refused before a model is loaded
option_checks     what preflight says of options
train             main: refuse, load, train, evaluate, report
previous_run      what an earlier run left in the folder
interrupts        Ctrl-C
report            the closing report
"""

from .accelerate import Distribution, accelerate_configs, distribution, find_recipe, headline, recipes
from .launchers import LAUNCHERS, launch_command
