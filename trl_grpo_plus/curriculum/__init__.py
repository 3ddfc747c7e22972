"""Which prompts are sampled next, and what is believed of each.

selection          the names that `prompt_selection` takes, and the checks of the data
samplers           prompts in random order, by a column, or by what they promise to teach
streaming_sampler  the same for streamed data, over a window of rows
custom_sampler     a sampler of the user's own, its answers checked
draw               draws the prompts of all ranks on rank 0
beliefs            the expected reward of each prompt, and what prompts share
belief_store       beliefs, head and keys of one run, with their state
belief_head        prompt states -> expected rewards, by ridge regression
prompt_states      the policy's hidden state at the end of a prompt
state_cache        states that are kept for some steps
resting            rows that are left alone for a while
reward_range       the range in which rewards lie
indexed_dataset    a dataset whose rows carry their index
"""
