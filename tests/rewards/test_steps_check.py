"""The reward `steps_check`: which lines are steps, and which of them are right."""

import pytest

from trl_grpo_plus.registry import Step, get_reward
from trl_grpo_plus.rewards.steps_check import steps_check


PROBLEM = "Tom has 12 eggs, finds 1,000 more and 2.5 kg, sells half of them twice for $7, and 10 percent are lost."
POINTS = {"right": 1.0, "wrong": -1.0, "unsupported": 0.25}


def points(text, problem=PROBLEM):
    """Return for each step of a text the piece of text that it ends, and the step's reward."""
    (scored,) = steps_check.__wrapped__([text], [problem], **POINTS)
    if not isinstance(scored, list):
        assert scored == 0.0
        return []
    starts = [0, *(step.end for step in scored)]
    return [(text[start : step.end], step.reward) for start, step in zip(starts, scored, strict=False)]


@pytest.mark.parametrize(
    ("line", "reward"),
    [
        *((line, 1.0) for line in (
            "12 + 7 = 19", "a: 12 - 7 = 5.", "7 - 12 = -5", "12*7=84", "12 / 2 = 6", "12 ÷ 2 = 6", "7 × 12 = 84",
            "1,000 + 12 = 1,012", "1000 + 12 = 1012", "2.5 * 2 = 5", "2.5 * 2 = 5.00", "$7 * 12 = $84", "12 − 7 = 5",
            "So he has 12 + 7 = 19", "12 * 100 = 1200;", "a) then 12 + 7 = 19", "1. 12 + 7 = 19", "1) 12 + 7 = 19",
            "(1) 12 + 7 = 19", "- 12 + 7 = 19", "* 12 + 7 = 19", "  • 12 + 7 = 19", "– 12 + 7 = 19", "a) 12 + 7 = 19",
            "Step 1. 12 + 7 = 19", "$12 + 7 = 19$", "$$ 12 + 7 = 19 $$", "So: $12 + 7 = 19$.", "2. $12 + 7 = 19.$",
            r"\(12 \times 7 = 84\)", r"\[ 12 \div 2 = 6 \]", r"$\$7 \cdot 12 = \$84$", "$7 * 12 = $84.",
            "- **12 + 7 = 19**", "**1.** 12 + 7 = 19.", "**Step 1:** 12 + 7 = 19", "So, 12 + 7 = 19",
            "More. 12 + 7 = 19",
        )),
        *((line, -1.0) for line in (
            "- 12 + 7 = 18", "1. 12 + 7 = 18", "(1) 12 + 7 = 18", "* 12 + 7 = 18", "$12 + 7 = 18$", "**12 + 7 = 18**",
            "-12 + 7 = 5", "- 7 - 12 = 5",
        )),
        *((line, -1.0) for line in ("12 + 7 = 18", "12 / 0 = 0", "12 / 7 = 1.71", "7 - 12 = 5", "99 + 1 = 99")),
        *((line, 0.25) for line in ("-12 + 7 = -5", "- -12 + 7 = -5", "1. 13 + 7 = 20")),
        *((line, 0.25) for line in ("12 + 8 = 20", "3 + 4 = 7", "12 - -7 = 19", "12 + 12.5 = 24.5")),
    ],
)  # fmt: skip
def test_a_line_is_right_or_wrong_or_made_of_numbers_that_nobody_gave(line, reward):
    assert points(line) == [(line, reward)]


@pytest.mark.parametrize(
    "line",
    [
        "12 + 7 + 2 = 21", "2 + 12 + 7 = 19 eggs", "12 = 12", "12 + 7 =", "12 + 7 = 19 = 19", "= 12 + 7 = 19",
        "1.5 1. 12 + 7 = 19", "1. 2. 12 + 7 = 19", "2, 12 + 7 = 19", "$2 + 12 + 7 = 19$", "$12 + 7 = 19$ eggs",
        "$x$ 12 + 7 = 19", "(12 + 7 = 19", "12 + 7 = 19 eggs", "x + 7 = 19", "#### 19", "12 ** 2 = 144", "12**2 = 144",
        "12 **2 + 7 = 151", "", "0" * 400 + " + 7 = 7",
    ],
)  # fmt: skip
def test_what_is_no_step(line):
    assert points(line) == []


def test_a_chain_goes_on_from_its_own_results():
    lines = [
        "x: 12 + 7 = 20\n",
        "Well.\n",
        "20 + 7 = 27\n",
        "27 + 20 = 47\n",
        "20 + 27 = 47\n",
        "19 + 7 = 26\n",
        "end",
    ]
    pieces = [lines[0], "".join(lines[1:3]), *lines[3:6]]
    assert points("".join(lines)) == list(zip(pieces, [-1.0, 1.0, 1.0, 0.25, 0.25], strict=True))


def test_the_last_message_and_the_whole_prompt_are_read():
    prompt = [
        {"role": "system", "content": "Take 3."},
        {"role": "user", "content": [{"type": "text", "text": "Or 4?"}]},
    ]
    said = [{"role": "assistant", "content": "3 + 4 = 8"}, {"role": "assistant", "content": "\n3 + 4 = 7\n"}]
    assert steps_check.__wrapped__([said], [prompt]) == [[Step(11, 1.0)]]
    assert get_reward("steps_check", wrong=-0.5)(["3 + 4 = 8\n3 + 3 = 6"], prompts=[prompt]) == [0.5]


def test_a_number_too_long_to_read_is_no_number_of_the_prompt():
    """Python refuses to convert 5,000 digits, and the error would end the run."""
    assert steps_check.__wrapped__(["3 + 4 = 7"], ["9" * 5000 + " 3 4"]) == [[Step(9, 1.0)]]


def test_points_for_being_wrong_are_refused():
    with pytest.raises(ValueError, match=r"steps_check: wrong=1.0 must be .* < 1.0, less than right=1.0"):
        get_reward("steps_check", wrong=1.0)
