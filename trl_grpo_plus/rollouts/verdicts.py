"""The verdicts on groups, and which of them say that a group has nothing to teach. Imports nothing."""

VERDICTS = ("alive", "all_good", "all_bad", "tied", "unscored", "truncated")
DEAD = frozenset(VERDICTS) - {"alive"}  # where advantages come from differences of rewards
# With a baseline from before the group attempts that are alike have an advantage. One that pushes down every attempt
# of a failed prompt hurts where there are many possible answers; without, a prompt's expected gradient keeps its
# direction: it is 1 - c (1 - p)^(G - 1) times itself.
DEAD_BESIDE_A_BELIEF = frozenset({"all_bad", "unscored", "truncated"})
