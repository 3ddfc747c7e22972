"""The commands: `trl-grpo-plus ls | cp | run | race | check | view | rescore | export | env`.

main           the parser, and the functions of the short commands
view           writes or serves the page of a run
env            packages, GPUs and sandbox of this machine
option_values  checks of the values of options that several commands have
check/         checks of a recipe before it costs GPU-hours
race/          a recipe with stock TRL and with this trainer, compared
rescore/       a reward tried on a run's attempts
export/        a run's attempts, as files
"""
