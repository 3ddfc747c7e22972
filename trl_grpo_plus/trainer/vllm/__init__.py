"""A run that generates with vLLM.

engine         corrects what TRL asks of an engine, and warns of attempts that its context cut off
server         the errors of a run whose vLLM server fails
sync_check     checks that vLLM samples from the policy that is trained
adapter_merge  merges an adapter for vLLM in copies of the frozen weights
"""
