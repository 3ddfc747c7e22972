"""The choice of the prompts that are sampled next, and the beliefs about each prompt.

Here a row is a number: its index in the training set, or of a stream its place in the window.

selection          the names that `prompt_selection` takes, and the checks of the data
samplers           prompts in random order, by a column, or by expected learnability
streaming_sampler  the same for streamed data, over a window of rows
custom_sampler     a wrapper that checks the answers of a user's own sampler
draw               draws the prompts of all ranks on rank 0
beliefs            the expected reward of each prompt, and the prior that prompts share
belief_store       the beliefs, the head and the keys of one run, with their state
row_ids            the values that identify prompts in another order or another training set
row_history        the rewards that each row earned, decayed by age
row_table          tables with one entry for each row, and how a checkpoint holds them
belief_head        ridge regression from prompt states to expected rewards
prompt_states      the policy's hidden state at the end of a prompt
state_cache        prompt states that are kept for some steps
resting            rows that are not sampled for some steps
reward_range       the range in which rewards lie
indexed_dataset    a dataset whose rows carry their index
"""
