"""The commands `check` and `check rewards`: everything that can be checked before a recipe costs GPU-hours.

recipe           the checks of a recipe, in order
rewards_command  the command `check rewards`
rewards          a reward's examples and gold answers
attack           the search for holes of a reward
attacks          the completions of each attack
trial            all checks of one reward; the one call of a reward without examples and gold answers
data             splits, prompts, columns, time of the rewards
model            architecture, tokenizer, memory
estimate         memory and seconds of a step, from the model's shapes
gpus             kinds of GPU, and the one to estimate for
hub              models and datasets on the Hub
samples/         rows and model shapes that stand in for the Hub
tiny_model       a model of some thousand weights that stands in for the real one
smoke            launches the runs below, and reads what they found
smoke_options    the options that make a recipe's run short and small
smoke_run        the process of the smoke run: two steps of a tiny model
timed_run        the first steps of the real model on a CPU, timed
"""
