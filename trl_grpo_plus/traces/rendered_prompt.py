"""Decodes a prompt as the model receives it, and flags oddities that the dataset's row does not show.

Additions of a chat template are found by rendering a made-up conversation with the template. A flag is raised only if
the prompt's tokens confirm it, since a function of the user may have made the tokens.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Any

from ..utils.text import without_middle


MOST = 4000  # maximum characters of the text that are kept
ADDS_SYSTEM = "the chat template adds a system message that the row does not have"
TWO_BOS = "it begins with two {bos}: the text or the template has one, and the tokenizer adds another"
NO_TURN = "it has no generation prompt: the chat template does not begin the assistant's turn"
SPACE = "it ends in white space: in most vocabularies the space before a word is part of the word's token"
# Messages of the made-up conversation: texts that no template contains.
_ASKED, _ANSWERED, _ASKED_AGAIN = "THE-FIRST-QUESTION", "THE-ANSWER", "THE-SECOND-QUESTION"

_Write = Callable[..., str]  # (number of messages, whether to begin the assistant's turn) -> text


def as_given(ids: Sequence[int], prompt: Any, processing_class: Any, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text of a prompt's tokens, including special tokens, and flags for oddities.

    Args:
        ids (`Sequence[int]`): the prompt's tokens, from which the completion is generated.
        prompt (`str` or `list[dict]`): the prompt in the dataset's row.
        processing_class: the model's tokenizer or processor.
        template (`Mapping`): keyword arguments of `apply_chat_template` besides the messages.

    Returns:
        `dict`: `text`, without its middle if it is longer than [`MOST`] characters; `tokens`, their number; `flags`,
        one sentence each.
    """
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    ids = [int(token) for token in ids]
    text = _decoded(tokenizer, ids)
    flags = []
    if tokenizer.bos_token_id is not None and ids[:2] == [tokenizer.bos_token_id] * 2:
        flags.append(TWO_BOS.format(bos=tokenizer.bos_token))
    if isinstance(prompt, str):
        flags += [SPACE] if prompt[-1:].isspace() and text[-1:].isspace() else []
    else:
        with suppress(Exception):  # a user's template may fail on the made-up messages
            flags += _of_template(_solid(text), prompt, tokenizer, partial(_written, processing_class, template))
    return {"text": without_middle(text, MOST), "tokens": len(ids), "flags": flags}


def _of_template(text: str, prompt: Sequence[dict[str, Any]], tokenizer: Any, write: _Write) -> list[str]:
    """Return the flags for a prompt of messages, whose tokens decode to `text` without white space."""

    def tokenized(words: str) -> str:
        """Encode and decode the text, since some tokenizers lose characters. Remove white space."""
        return _solid(_decoded(tokenizer, tokenizer(words, add_special_tokens=False)["input_ids"]))

    flags = [] if text.endswith(tokenized(_turn(write))) else [NO_TURN]
    if any(message.get("role") in ("system", "developer") for message in prompt):
        return flags
    added = _added(write, {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()})
    return [ADDS_SYSTEM, *flags] if added and tokenized(added) in text else flags


def _written(processing_class: Any, template: Mapping[str, Any], messages: int, begun: bool = False) -> str:
    """Render the first messages of the made-up conversation."""
    said = (("user", _ASKED), ("assistant", _ANSWERED), ("user", _ASKED_AGAIN))[:messages]
    parts = hasattr(processing_class, "tokenizer")  # a processor's template expects contents in parts
    contents = [[{"type": "text", "text": text}] if parts else text for _, text in said]
    conversation = [{"role": role, "content": content} for (role, _), content in zip(said, contents, strict=True)]
    return processing_class.apply_chat_template(conversation, tokenize=False, add_generation_prompt=begun, **template)


def _added(write: _Write, special: set[str]) -> str:
    """Return the text that a template writes before the first message only; "" if it is special tokens only."""
    unit = re.compile("|".join([*map(re.escape, sorted(special, key=len, reverse=True)), "."]), re.DOTALL)
    first, found, _ = write(1).partition(_ASKED)
    later, again, _ = write(3).partition(_ANSWERED)[2].partition(_ASKED_AGAIN)
    before, between = unit.findall(first), unit.findall(later)
    pairs = zip(reversed(before), reversed(between), strict=False)
    header = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    added = before[: len(before) - header]
    words = "".join(one for one in added if one not in special).strip()
    return "".join(added) if found and again and words else ""


def _turn(write: _Write) -> str:
    """Return the text with which a template begins the assistant's turn; "" if it cannot be found.

    It is found even if the template ignores `add_generation_prompt`.
    """
    ended, begun = write(1), write(1, True)
    if begun != ended and begun.startswith(ended):
        return begun.removeprefix(ended)
    after = begun.partition(_ASKED)[2].rstrip()
    until = write(2).partition(_ASKED)[2].partition(_ANSWERED)[0]
    return until.removeprefix(after) if until.startswith(after) else ""


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _solid(text: str) -> str:
    """Remove white space, which decoding may add."""
    return "".join(text.split())
