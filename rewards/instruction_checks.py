"""Reward for instructions that a program can check, as in IFEval and IFBench: lengths, keywords, lists, endings."""

import inspect
import json
import math
import typing
from functools import cache
from typing import Any, Literal

from trl_grpo_plus.registry import Example, register_reward
from trl_grpo_plus.utils.validation import did_you_mean, fits, spelled

from ._constraints import BOUNDS, CHECKS, COUNTS, KINDS, folded, has_word
from ._rows import refuse_rows
from ._text import after_thinking, text_of


TWO = [{"kind": "words", "max": 2}, {"kind": "no_commas"}]


def _check_columns(constraints: list[Any], **_: Any) -> None:
    hint = "Correct or drop these rows; a row without constraints has None."
    refuse_rows("instruction_checks", _problem, constraints, hint=hint)


@register_reward(
    "instruction_checks",
    examples=[
        Example("Rome. Paris.", {"constraints": TWO}, 1.0),
        Example("Rome, Paris.", {"constraints": TWO}, 0.0),
        Example("Rome, Paris.", {"constraints": json.dumps(TWO)}, 0.5, {"credit": "fraction"}),
        Example("<think>no commas</think>", {"constraints": [{"kind": "no_commas"}]}, 0.0),
    ],
    check_columns=_check_columns,
)
def instruction_checks(
    completions: list[Any],
    constraints: list[Any],
    *,
    credit: Literal["all", "fraction"] = "all",
    think_opened: bool = False,
) -> list[float | None]:
    r"""1.0 for an answer that keeps to all of its row's constraints (or the share that it keeps to).

    A constraint is a dict of its `kind` and that kind's parameters. Kinds that count take `min`, `max` or `exactly`:

    | kind | counts, or asks for |
    |---|---|
    | words, unique_words, characters, sentences, paragraphs, lines | blank lines separate paragraphs |
    | capital_words | words of two letters or more, all capitals |
    | bullets, headings | lines that start with `-`, `*`, `+`, `•`, or with `#` |
    | numbered_items | lines that start with 1. 2. 3. or 1) 2) 3), as far as the order holds |
    | placeholders, highlights, titles | `[name]`; `*this*` or `**this**`; `<<this>>` |
    | keyword: keyword | a whole word or phrase, in any case |
    | letter: letter | a letter (or other text) anywhere, in any case |
    | parts: separator | different parts between separators, such as `***` |
    | required_words, forbidden_words: words | all of the words, or none of them; matched as `keyword` |
    | case: case | `upper`, `lower`: no letter of the other case; `title`: words start with capitals |
    | starts_with, ends_with: phrase | in any case; quotation marks, `*` and `_` around the answer do not count |
    | paragraph_starts_with: paragraph, phrase | the first paragraph is 1 |
    | quoted | the whole answer is in one pair of double quotation marks |
    | no_commas | commas of any script |
    | postscript: marker="P.S." | a line that starts with the marker, also in bold, and goes on; after other text |
    | one_of: options | nothing but one of the options |
    | json | nothing but one object or array, perhaps in a code fence; no NaN, no 1e999, no key twice |
    | script, ending_script: script | at least 90 % of the letters, of the answer or of its last line |

    A script is not a language: English, French and Vietnamese are all `Latin`. `Japanese` is Han and kana, with at
    least one kana.

    A word is a run of letters, digits and marks, with single hyphens and apostrophes within. Each Han or kana
    character is a word by itself, as word processors count. Text in Thai or Lao is one word up to the next space.

    A sentence ends in `.`, `!`, `?` or `…` before white space, in `。` anywhere, or with its paragraph. Common
    abbreviations and initials ("J. Doe") end no sentence, unless a word such as "It" or "The" follows the initial. So
    "Take vitamin C. Sleep well" counts as one sentence, and "Take vitamin C. It helps" as two. Look-alike letters of
    other alphabets count as different letters.

    Only the text after the thinking is judged. Without a letter or digit there the reward is 0.0, since an empty
    answer breaks no rule against anything. Source: IFEval (https://huggingface.co/papers/2311.07911).

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the policy's last one counts.
        constraints (`list`):
            N lists of constraints. A list or a constraint may be JSON, since a column of a dataset cannot mix types.
            Parameters that are None count as not given, because a dataset fills up rows with None.
        credit (`str`, *optional*, defaults to `"all"`): `"all"`: 1.0 or 0.0; `"fraction"`: the share that is kept.
        think_opened (`bool`, *optional*, defaults to `False`):
            Whether the prompt ends with `<think>`. A completion without `</think>` is then all thinking, and scores 0.

    Returns:
        `list[float | None]`: N rewards from 0.0 to 1.0; `None` where `constraints` is `None`.

    Raises:
        ValueError: a kind or a parameter is unknown; the text names similar ones. Also raised before training.

    Example:
        >>> constraints = [{"kind": "bullets", "exactly": 2}, {"kind": "ends_with", "phrase": "Enjoy!"}]
        >>> instruction_checks(["- tea\n- cake\nEnjoy!", "- tea\nEnjoy!"], constraints=[constraints] * 2)
        [1.0, 0.0]
    """
    return [
        _score(after_thinking(text_of(completion), think_opened).strip(), row, credit)
        for completion, row in zip(completions, constraints, strict=True)
    ]


def _score(text: str, constraints: Any, credit: str) -> float:
    problem = _problem(constraints)
    if problem:
        raise ValueError(f"instruction_checks: {problem}")
    if not has_word(text):
        return 0.0
    satisfied = [_holds(text, constraint) for constraint in _parsed(constraints)]
    return sum(satisfied) / len(satisfied) if credit == "fraction" else float(all(satisfied))


def _holds(text: str, constraint: dict[str, Any]) -> bool:
    kind, parameters = _split(constraint)
    if kind in CHECKS:
        return CHECKS[kind](text, **parameters)
    bounds = {name: parameters.pop(name) for name in BOUNDS if name in parameters}
    count = COUNTS[kind](text, **parameters)
    return bounds.get("min", 0) <= count <= bounds.get("max", math.inf) and count == bounds.get("exactly", count)


# -- what the dataset may ask for


def _parsed(constraints: Any) -> list[Any]:
    listed = json.loads(constraints) if isinstance(constraints, str) else constraints
    return [json.loads(each) if isinstance(each, str) else each for each in listed]


def _split(constraint: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return constraint["kind"], {k: v for k, v in constraint.items() if k != "kind" and v is not None}


def _problem(constraints: Any) -> str | None:
    try:
        parsed = _parsed(constraints)
    except (ValueError, TypeError) as error:
        return f"constraints must be a list of dicts, or JSON of one, got {constraints!r:.100} ({error})."
    if not parsed:
        return f"constraints must be a list of dicts with at least one, got {constraints!r:.100}."
    return next((problem for each in parsed if (problem := _problem_of(each))), None)


def _problem_of(constraint: Any) -> str | None:
    kind = constraint.get("kind") if isinstance(constraint, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        return (
            f"{constraint!r:.100} is of no known kind.{did_you_mean(str(kind), KINDS)} There are {', '.join(KINDS)}."
        )
    parameters, (types, needed) = _split(constraint)[1], _parameters(kind)
    for name, value in parameters.items():
        if name not in types:
            return f"{kind} takes no {name!r}, only {', '.join(types) or 'its name'}.{did_you_mean(name, types)}"
        if not fits(value, types[name]) or not _is_sound(value, lowest=0 if name in BOUNDS else 1):
            return f"{kind}: {name}={value!r:.100} must be {spelled(types[name])}, and not empty or negative."
    missing = [name for name in needed if name not in parameters]
    if missing:
        return f"{kind} needs {', '.join(missing)}."
    if kind in COUNTS and not _is_range(**{name: parameters.get(name) for name in BOUNDS}):
        return f"{kind} needs min, max (not below min), or exactly by itself; got {parameters!r:.100}."
    return None


@cache
def _parameters(kind: str) -> tuple[dict[str, Any], list[str]]:
    """Return the types of a kind's parameters, and the names of the required ones."""
    function = KINDS[kind]
    hints = {name: hint for name, hint in typing.get_type_hints(function).items() if name not in ("text", "return")}
    needed = [name for name, p in inspect.signature(function).parameters.items() if p.default is p.empty]
    return hints | (BOUNDS if kind in COUNTS else {}), needed[1:]


def _is_sound(value: Any, lowest: int) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_sound(each, lowest) for each in value)
    return value >= lowest if isinstance(value, int) else bool(folded(value))


def _is_range(min: int | None, max: int | None, exactly: int | None) -> bool:
    if exactly is not None:
        return min is max is None
    return (min, max) != (None, None) and (min is None or max is None or min <= max)
