"""Rewards like those of tutorials, with weaknesses that `check rewards --attack` must find."""

import re


def contains_answer(completions, answer, **kwargs):
    return [1.0 if gold in text else 0.0 for text, gold in zip(completions, answer, strict=True)]


def last_tag(completions, answer, **kwargs):
    found = [text.split("<answer>")[-1].split("</answer>")[0].strip() for text in completions]
    return [2.0 if text == gold else 0.0 for text, gold in zip(found, answer, strict=True)]


def last_number(completions, answer, **kwargs):
    found = [re.findall(r"\d+", text) for text in completions]
    return [float(bool(numbers) and numbers[-1] == gold) for numbers, gold in zip(found, answer, strict=True)]


def well_formed(completions, answer, **kwargs):
    """Reward the form alone, like a reward whose author forgot to compare the answer with the gold."""
    return [float(re.search(r"<answer>.*</answer>", text, re.DOTALL) is not None) for text in completions]


def of_messages(completions, answer, **kwargs):
    texts = [completion[-1]["content"] for completion in completions]
    return [float(f"<answer>{gold}</answer>" in text) for text, gold in zip(texts, answer, strict=True)]


def fails_on_long(completions, answer, **kwargs):
    if max(map(len, completions)) > 10_000:
        raise MemoryError("too long")
    return [float(text.endswith(gold)) for text, gold in zip(completions, answer, strict=True)]


def fails_on_fractions(completions, answer, unit):
    return [float(text.endswith(str(int(gold)))) for text, gold in zip(completions, answer, strict=True)]


def of_one_line(completions, answer, **kwargs):
    """Reward the form of TRL's example, whose dots match no line's end, and the right answer in it."""
    found = [re.match(r"^<think>.*?</think><answer>(.*?)</answer>$", text) for text in completions]
    return [float(match is not None and match[1] == gold) for match, gold in zip(found, answer, strict=True)]


def after_working_out(completions, answer, **kwargs):
    """Reward the form of Unsloth's example."""
    form = re.compile(r"^\s*<start_working_out>.+?<end_working_out>.*?<SOLUTION>(.+?)</SOLUTION>\s*$", re.DOTALL)
    found = [form.match(text) for text in completions]
    return [float(match is not None and match[1] == gold) for match, gold in zip(found, answer, strict=True)]


def within_a_thousandth(completions, answer, **kwargs):
    """Refuse a number that is too far off. No comparison with nan is true, so nan is not refused."""
    scores = []
    for text, gold in zip(completions, answer, strict=True):
        try:
            number = float(text.split("<answer>")[-1].split("</answer>")[0])
        except ValueError:
            scores.append(0.0)
        else:
            scores.append(0.0 if abs(number - float(gold)) > 1e-3 else 1.0)
    return scores


def of_trls_form(completions, **kwargs):
    """Reward the form alone, like TRL's think_format_reward."""
    return [float(bool(re.match(r"^<think>.*?</think>.*$", text, re.DOTALL))) for text in completions]


def of_length(completions, **kwargs):
    return [len(text) / 100 for text in completions]


def of_all_columns(completions, **kwargs):
    return [float(gold in text) for text, gold in zip(completions, kwargs["answer"], strict=True)]
