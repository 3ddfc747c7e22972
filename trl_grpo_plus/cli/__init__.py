"""The commands: `trl-grpo-plus ls | cp | run | race | check | view | rescore | export | env`.

main      the parser, and what each command calls
view      writes or serves the page of a run
env       packages, GPUs and sandbox of this machine
check/    what can be known of a recipe before its GPU-hours
race/     a recipe with stock TRL and with this trainer, compared
rescore/  a reward tried on what a run has sampled
export/   what a run sampled, as files
"""
