"""Reward for the form of a reasoning completion: `<think>...</think><answer>...</answer>` and nothing else."""

import re
import unicodedata
from functools import lru_cache
from typing import Any, Literal

from trl_grpo_plus.registry import Example, register_reward

from ._text import is_seen, text_of


ThinkTag = Literal["think", "thinking", "thought", "reasoning"]  # those that the other rewards read as thinking

# <|im_start|>, <|eot_id|>, <｜User｜>, [INST], <<SYS>>, <start_of_turn>
_TEMPLATE = re.compile(r"<[|｜][^<>\s]{1,40}[|｜]>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>")
_ROLE = re.compile(r"^[ \t#*]*(?:system|user|human|assistant)[ \t*]*[:：]", re.IGNORECASE | re.MULTILINE)


@lru_cache
def _form(think_tag: ThinkTag, answer_tag: bool) -> re.Pattern[str]:
    """Return the pattern of a whole completion, with the two bodies as its groups."""
    answer = r"\s*<answer>(.*)</answer>" if answer_tag else "(.*)"
    return re.compile(f"<{think_tag}>(.*)</{think_tag}>{answer}", re.DOTALL)


@lru_cache
def _tag_like(think_tag: ThinkTag) -> re.Pattern[str]:
    r"""Return the pattern of a tag, or of what may be read as one.

    Such are <THINK>, < /think >, <answer id=1>, <thinking>, &lt;think&gt; and \<think\>, but not `guess<answer` in a
    program.
    """
    return re.compile(
        r"(?:[<‹〈⟨]|&(?:lt|#0{0,5}60|#x0{0,5}3c);?|\\u003c|\\x3c|%3c)[\s\\/|]{0,20}"
        rf"(?:think(?:ing)?|answers?|{think_tag})(?:\s[^<>]{{0,40}}=[^<>]{{0,40}})?"
        r"[\s\\/|]{0,20}(?:[>›〉⟩]|&(?:gt|#0{0,5}62|#x0{0,5}3e)|\\u003e|\\x3e|%3e)",
        re.IGNORECASE,
    )


def _gold(think_opened: bool, answer_tag: bool, think_tag: ThinkTag) -> str:
    answer = "<answer>\n42\n</answer>" if answer_tag else "42"
    return f"{'' if think_opened else f'<{think_tag}>'}\nSix by seven.\n</{think_tag}>\n{answer}"


@register_reward(
    "think_format",
    examples=[
        Example("<think>\nSix by seven.\n</think>\n<answer>\n42\n</answer>", {}, 1.0),
        Example("\nSix by seven.\n</think>\n<answer>42</answer>", {}, 1.0, {"think_opened": True}),
        Example("<think>Six by seven.</think>42", {}, 1.0, {"answer_tag": False}),
        Example("<reasoning>Six by seven.</reasoning><answer>42</answer>", {}, 1.0, {"think_tag": "reasoning"}),
        Example("<think>Six by seven.</think><answer>42</answer> Indeed.", {}, 0.0),
        Example("<think></think><answer>42</answer>", {}, 0.0),
        Example("The answer is 42.", {}, 0.0),
    ],
    gold=_gold,
)
def think_format(
    completions: list[Any], *, think_opened: bool = False, answer_tag: bool = True, think_tag: ThinkTag = "think"
) -> list[float | None]:
    """1.0 for a completion that is one `<think>...</think>` and then one `<answer>...</answer>`, else 0.0.

    Both must hold something visible, and only white space may be before, between and after them. The reward is 0 if a
    tag comes again, or anything like a tag (in another case, full-width, with a zero-width character or a blank in it,
    escaped, `<thinking>`), if the marks of a chat template are anywhere (`<|im_start|>`, `[INST]`), or if a line of
    the answer opens another turn (`System:`, `User:`, `Human:`, `Assistant:`).

    The reward is for the form alone, which `<think>.</think><answer>.</answer>` has too. A model that earns this
    reward without a right answer writes just that. So pay it only with a right answer, as `gate("think_format",
    by="math_answer")` does.

    TRL's `think_format_reward` asks for less: `<think>` at the start and `</think>` after it. It pays for
    `<think></think>` with nothing after it, for a second `</think>`, and for a next turn, and it takes only lists of
    messages.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the policy's last one counts.
        think_opened (`bool`, *optional*, defaults to `False`):
            Whether the prompt ends with `<think>`, as with the chat templates of DeepSeek-R1 and others. The
            completion then begins within the thinking and must not open it again.
        answer_tag (`bool`, *optional*, defaults to `True`):
            Whether the answer must be in `<answer>` tags. If `False`, it is all text after the thinking.
        think_tag (`str`, *optional*, defaults to `"think"`):
            Name of the tag around the thinking: `"think"`, `"thinking"`, `"thought"` or `"reasoning"`.

    Returns:
        `list[float | None]`: N rewards, 0.0 or 1.0.

    Example:
        >>> think_format(["<think>6 * 7</think><answer>42</answer>", "<think>6 * 7</think>42", "<answer>42</answer>"])
        [1.0, 0.0, 0.0]
        >>> from trl_grpo_plus.registry import get_reward
        >>> get_reward("think_format", think_opened=True, answer_tag=False)(["6 * 7</think>42"])
        [1.0]
    """
    return [
        _score(text_of(completion, think_opened), think_opened, answer_tag, think_tag) for completion in completions
    ]


def _score(text: str, think_opened: bool, answer_tag: bool, think_tag: ThinkTag) -> float:
    if think_opened:
        text = f"<{think_tag}>{text}"
    names = [think_tag, "answer"] if answer_tag else [think_tag]
    tags = [f"{opening}{name}>" for name in names for opening in ("<", "</")]
    if any(text.count(tag) != 1 for tag in tags) or len(_tag_like(think_tag).findall(_normal(text))) != len(tags):
        return 0.0
    bodies = _form(think_tag, answer_tag).fullmatch(text.strip())
    if not bodies or _TEMPLATE.search(text) or _ROLE.search(bodies[2]):
        return 0.0
    return float(all(any(map(is_seen, set(body))) for body in bodies.groups()))


def _normal(text: str) -> str:
    """Return a text without invisible characters, with letters of other widths and styles as plain letters."""
    # Character by character, because normalising a text takes time quadratic in its longest run of marks.
    return text.translate({ord(char): _plain(char) for char in set(text)})


def _plain(char: str) -> str | None:
    if not is_seen(char):
        return char if char.isspace() else None
    plain = unicodedata.normalize("NFKC", char)
    return plain if len(plain) == 1 else char
