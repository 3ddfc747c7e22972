"""Everything that can be known of a recipe before its GPU-hours: `trl-grpo-plus check`.

recipe     the checks of a recipe, in order
rewards    a reward's examples and gold answers
data       splits, prompts, columns, time
model      architecture, tokenizer, memory
estimate, shapes  memory and seconds of a step
hub, samples, tiny_model  the Hub, and what stands in for it
smoke, smoke_run, clocked_run  two real steps of a tiny model; on a CPU, the first steps of the model itself
"""
