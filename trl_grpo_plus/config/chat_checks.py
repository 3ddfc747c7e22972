"""Doubts about how prompts of messages reach the model, and about where its answers end.

TRL begins a turn of the assistant after each prompt, and ends an attempt at the end tokens of tokenizer and model. A
chat template silently ignores arguments that it does not read. TRL drops special tokens from the text of attempts.
"""

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from accelerate.logging import get_logger

from ..scoring import Reward, first_prompt, is_conversation
from ..utils.validation import did_you_mean


logger = get_logger(__name__)

FEW = 0.05  # share of the attempts that may contain a special token by chance
# Settings of generation with which attempts end at other tokens than those of tokenizer and model.
_STOPS = ("eos_token_id", "stop", "stop_strings", "stop_token_ids")
# Texts that no template contains.
_ASKED, _ANSWERED = "THE-QUESTION", "THE-ANSWER"
_THINK = "<think>"


def doubts(
    prompt: Any, processing_class: Any, template: Mapping[str, Any], ends: Set[int | None], rewards: Iterable[Any]
) -> list[str]:
    """Return a text for each doubt about a prompt of messages.

    Args:
        prompt (`list[dict]`): a prompt of the training set.
        processing_class: the tokenizer or the processor.
        template (`Mapping[str, Any]`): what the chat template is given beside the messages: `chat_template_kwargs`.
        ends (`set[int]`): the tokens at which an attempt ends; empty if they are not known.
        rewards (`Iterable`): the reward functions.
    """
    texts = [*_unread(processing_class, template)]
    if prompt[-1:] and prompt[-1].get("role") == "assistant":
        texts.append(
            "The first prompt ends with a message of the assistant, and the chat template begins another turn of the "
            "assistant after it. If this message is the answer, the model is given it. Leave it out of the prompts."
        )
    return [*texts, *_unended(processing_class, template, ends), *_opened(processing_class, template, rewards)]


def known_ends(ends: Set[int | None], generation_kwargs: Mapping[str, Any] | None) -> Set[int | None]:
    """Return the tokens at which an attempt ends; none if `generation_kwargs` adds others."""
    return set() if any((generation_kwargs or {}).get(name) for name in _STOPS) else ends


def warn_of_doubts(dataset: Any, *given: Any) -> None:
    """Log the texts of [`doubts`] about the first prompt of a dataset on the main process."""
    if is_conversation(prompt := first_prompt(dataset)):
        for text in doubts(prompt, *given):
            logger.warning(text)


def warn_of_dropped_tokens(completion_ids: Iterable[Sequence[int]], tokenizer: Any, ends: Set[int | None]) -> None:
    """Warn on the main process of special tokens within attempts: no reward sees them, because TRL drops them.

    Args:
        completion_ids (`Iterable[Sequence[int]]`): the tokens of the first batch's attempts.
        tokenizer: the run's.
        ends (`set[int]`): the tokens with which an attempt ends.
    """
    attempts = list(completion_ids)
    special = {*tokenizer.all_special_ids} - {*ends, tokenizer.bos_token_id, tokenizer.unk_token_id}
    counts = Counter(token for ids in attempts for token in special.intersection(ids))
    often = [(tokenizer.convert_ids_to_tokens(token), n) for token, n in counts.items() if n > FEW * len(attempts)]
    if often:
        named = ", ".join(f"{token!r} (in {n} of {len(attempts)})" for token, n in often)
        logger.warning(
            f"Attempts of the first batch contain {named}. The tokenizer has these as special tokens, and TRL drops "
            "special tokens from the text, so no reward sees them. A reward that needs them can read completion_ids. "
            "If you have added them, use tokenizer.add_tokens([...]) in the place of add_special_tokens."
        )


def _unread(processing_class: Any, template: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text for each argument that a tokenizer's chat template does not read.

    A processor may read arguments itself.
    """
    written = template.get("chat_template") or getattr(processing_class, "chat_template", None)
    if not isinstance(written, str) or hasattr(processing_class, "tokenizer"):
        return
    code = " ".join(re.findall(r"\{[{%](.*?)[%}]\}", written, re.DOTALL))
    read = {*re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'|\"[^\"]*\"", "", code))}
    own = inspect.signature(processing_class.apply_chat_template).parameters
    for name in template:
        if name not in read and name not in own:
            yield (
                f"chat_template_kwargs has {name!r}, which the model's chat template does not read, so it has no "
                f"effect.{did_you_mean(name, read)}"
            )


def _opened(processing_class: Any, template: Mapping[str, Any], rewards: Iterable[Any]) -> Iterator[str]:
    """Yield a text for each reward that looks for a tag with which the template ends each prompt."""
    written = _written(processing_class, template, add_generation_prompt=True)
    if not written.rstrip().endswith(_THINK):
        return
    for reward in filter(_asks_for_thought, rewards):
        name = getattr(reward, "__name__", type(reward).__name__)
        yield (
            "The chat template ends each prompt with <think>, so attempts begin within the thought, without the tag. "
            f"The reward {name!r} mentions the tag. If it asks for the tag, it scores each attempt 0. Give "
            "think_format the argument think_opened=True. A reward of yours must not ask for the tag."
        )


def _asks_for_thought(reward: Any) -> bool:
    """Return whether a reward has `<think>` in its code; of those of this package, whether it asks for the tag."""
    if isinstance(reward, Reward):
        if reward.definition.name == "think_format":
            return not reward.all_args()["think_opened"]
        reward = reward.definition.function
    if getattr(reward, "__module__", "").startswith("trl_grpo_plus."):
        return False
    try:
        return _THINK in inspect.getsource(inspect.unwrap(reward))
    except (OSError, TypeError):  # a reward model, a built-in function
        return False


def _unended(processing_class: Any, template: Mapping[str, Any], ends: Set[int | None]) -> Iterator[str]:
    """Yield a text if the template ends a turn of the assistant with special tokens at which no attempt ends."""
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    written = _written(processing_class, template, _ANSWERED)
    tail = tokenizer(written.partition(_ANSWERED)[2], add_special_tokens=False)["input_ids"]
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    end = next((token for token in tail if token in special), None)
    if end is None or not ends or not ends.isdisjoint(tail):
        return
    token, known = tokenizer.convert_ids_to_tokens(end), sorted(one for one in ends if one is not None)
    yield (
        f"The chat template ends a turn of the assistant with {token!r}, but attempts end only with "
        f"{', '.join(map(repr, tokenizer.convert_ids_to_tokens(known)))}. A model that ends its turns as the template "
        f"does goes on after the answer, to max_completion_length. Make {token!r} the tokenizer's eos_token, and add "
        f"its id, {end}, to eos_token_id in the model's generation_config.json."
    )


def _written(processing_class: Any, template: Mapping[str, Any], answer: str = "", **options: Any) -> str:
    """Render a question, and an answer if there is one; "" if the template fails on these made-up messages."""
    parts = hasattr(processing_class, "tokenizer")  # a processor's template expects contents in parts
    said = {"user": _ASKED, **({"assistant": answer} if answer else {})}
    turns = [
        {"role": role, "content": [{"type": "text", "text": text}] if parts else text} for role, text in said.items()
    ]
    try:
        return str(processing_class.apply_chat_template(turns, tokenize=False, **template, **options))
    except Exception:  # the template's own. TRL reports it if the template fails on a prompt too
        return ""
