"""The trainer, and all code that overrides or replaces TRL's methods.

grpo_plus_trainer     [`GRPOPlusTrainer`]: TRL's methods that are overridden, in the order in which TRL calls them
attach/               keeps the same records for one of TRL's own trainers
model_warnings        warns of models, adapters and chat templates with which a run learns little
batch                 the generation batch in flight
progress              prints while a run trains
prompt_source         chooses the prompts that the run samples, and remembers their results
recorder              passes a batch to traces, alarms and trackers
background_job        a job in a thread: the recorder's writing
training_state        this package's state in a checkpoint
checkpoint_integrity  checks that a checkpoint is complete
nonfinite_guard       stops a run at a loss or gradient that is not finite
vllm/                 a run that generates with vLLM: its server, its weights, its log-probs
image_rows            rows whose images stand in their prompts
completions_table     TRL's table of completions, adapted to smaller batches
hub                   keeps files out of uploads; completes the model card
run_metadata          describes a run for run.json
cpu_lm_head           avoids copies of a frozen 16-bit head on a CPU
"""
