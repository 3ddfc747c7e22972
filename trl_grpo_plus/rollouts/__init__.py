"""Groups of attempts: their verdicts, more rounds where groups are dead, and the exchange between ranks.

groups          [`~groups.Attempt`], [`~groups.Round`], the verdict on each group, plan and partition of a batch
verdicts        the names of the verdicts, which of them are dead, and advice for each
generation      TRL's generated output, row by row
tool_turns      turns of tools where all ranks generate together
resampling      further rounds for dead groups
exchange        which rank trains on which groups, and the transfer
steps           the steps of an attempt: from character offsets to tokens
"""
