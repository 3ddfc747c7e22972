"""A run that generates with vLLM.

server         a run's vLLM server: the errors that name it, a prompt for each attempt
sync_check     checks that vLLM samples from the policy that is trained
adapter_merge  merges an adapter for vLLM in copies of the frozen weights
"""
