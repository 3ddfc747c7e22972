"""The verdicts on groups, and the verdicts that make a group dead. This module imports nothing."""

VERDICTS = ("alive", "all_good", "all_bad", "tied", "unscored", "truncated")
DEAD = frozenset(VERDICTS) - {"alive"}  # if advantages come from differences of rewards
# With a baseline fixed before the group is sampled, attempts with equal rewards have an advantage. An advantage that
# pushes down every attempt of a failed prompt hurts if there are many possible answers. Without these groups, a
# prompt's expected gradient keeps its direction: it is scaled by 1 - c (1 - p)^(G - 1).
DEAD_BESIDE_A_BELIEF = frozenset({"all_bad", "unscored", "truncated"})
