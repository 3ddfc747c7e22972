"""From a recipe to a run. This face imports neither torch nor TRL; its modules are imported as they are needed.

accelerate    recipes and configurations by name, the command that launches one
launcher      accelerate's command, with a Ctrl-C that waits until all have saved
arguments     the script's dataclasses and their parser
option_names  names of options, before TRL is imported
yamls, keys   what a recipe's keys and values may be
command_line  the recipe and the command line, read; the command to resume with
inputs, data  rewards and data that they name
recipe        a recipe as each of its processes would read it
refusals      the one list of what is refused before a model is loaded; what it says of options is in `options`
train         main: refuse, load, train, evaluate, report
earlier       what an earlier run left in the folder
stopping, console, report  Ctrl-C, lines while it goes, the closing report
environment   packages, GPUs, sandbox of this machine
table         rows that say what was checked, and how they are printed
"""

from .accelerate import Distribution, accelerate_configs, distribution, find_recipe, headline, launch_command, recipes
