"""Groups of attempts: their verdicts, more rounds where groups are dead, and the exchange between ranks.

groups      [`~groups.Attempt`], [`~groups.Round`], the verdict on each group, the plan of a batch
verdicts    the verdicts, and which of them are dead
generation  what TRL generates, row by row
resampling  further rounds for dead groups
exchange    which rank trains on which groups, and the transfer
steps       steps of an attempt: from characters to tokens
"""
