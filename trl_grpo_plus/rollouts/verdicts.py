"""The verdicts on groups, the verdicts that make a group dead, and advice for each. This module imports nothing."""

VERDICTS = ("alive", "low_variance", "all_good", "all_bad", "tied", "unscored", "truncated")
DEAD = frozenset(VERDICTS) - {"alive"}  # if advantages come from differences of rewards
# With a baseline fixed before the group is sampled, attempts with equal rewards have an advantage. An advantage that
# pushes down every attempt of a failed prompt hurts if there are many possible answers. Without these groups, a
# prompt's expected gradient keeps its direction: it is scaled by 1 - c (1 - p)^(G - 1).
DEAD_BESIDE_A_BELIEF = frozenset({"all_bad", "unscored", "truncated"})

# What to do if most groups have this verdict.
ADVICE = {
    "low_variance": "Their rewards differ, but less than those of other groups, so reward_variance_top_p leaves them "
    "out. Raise it. If the rewards of some tasks have a far larger range than those of others, bring them to one.",
    "all_bad": "Every attempt failed: its reward is failed_reward (0 by default) or less. If that is no failure with "
    "your rewards, set failed_reward. Read some attempts: is the answer in the form that the reward reads, does the "
    "completion end, is the reward right? If so, the prompts are too hard. Use easier data, a warm-up, or more "
    "attempts in each group.",
    "all_good": "Every attempt succeeded: its reward is solved_reward (1 by default) or more. If that is no success "
    "with your rewards, set solved_reward. These prompts teach nothing more. Use harder data or fewer steps, or "
    "check that the reward is not too easy to earn.",
    "tied": "All attempts got the same reward, between failure and success. Often the reward checks only the format. "
    "Check that the reward for the answer differs between attempts.",
    "unscored": "No reward scored the attempts. Does the reward return None, or fail? Is its weight 0? Does the "
    "dataset have the columns that the reward reads?",
    "truncated": "All attempts were truncated, and mask_truncated_completions masks them. Raise "
    "max_completion_length, and vllm_max_model_length if vLLM's context was full. (A rollout_func has its own limit.)",
}
