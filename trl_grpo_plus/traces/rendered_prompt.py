"""A prompt as the model is given it: the text of its tokens, and what in them the dataset's row does not show.

What a chat template adds is found by writing a made-up conversation with it. A flag is raised only where the tokens
bear it out: a function of the user's own may have made them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Any


MOST = 4000  # characters of the text that are kept
ADDS_SYSTEM = "the chat template adds a system message that the row does not have"
TWO_BOS = "it begins with two {bos}: the text or the template has one, and the tokenizer adds another"
NO_TURN = "it has no generation prompt: the chat template does not begin the assistant's turn"
SPACE = "it ends in white space: in most vocabularies the space before a word is part of the word's token"
# Of the made-up conversation: texts that no template holds.
_ASKED, _ANSWERED, _ASKED_AGAIN = "THE-FIRST-QUESTION", "THE-ANSWER", "THE-SECOND-QUESTION"

_Write = Callable[..., str]  # number of messages, whether the assistant's turn is begun -> text


def as_given(ids: Sequence[int], prompt: Any, processing_class: Any, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text of a prompt's tokens, special tokens and all.

    Args:
        ids (`Sequence[int]`): of the prompt, to which a completion is generated.
        prompt (`str` or `list[dict]`): as the row has it.
        processing_class: the model's tokenizer or processor.
        template (`Mapping`): what `apply_chat_template` is given beside the messages.

    Returns:
        `dict`: `text`, of which the middle is left out beyond [`MOST`] characters; `tokens`, how many they are;
        `flags`, a sentence each.
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
        with suppress(Exception):  # of somebody's template, on messages that it was not written for
            flags += _of_template(_solid(text), prompt, tokenizer, partial(_written, processing_class, template))
    return {"text": _bounded(text), "tokens": len(ids), "flags": flags}


def _of_template(text: str, prompt: Sequence[dict[str, Any]], tokenizer: Any, write: _Write) -> list[str]:
    """Return what a template made of messages whose tokens are this text, blanks aside."""

    def tokenized(words: str) -> str:
        """As tokens tell it: some tokenizers lose characters."""
        return _solid(_decoded(tokenizer, tokenizer(words, add_special_tokens=False)["input_ids"]))

    flags = [] if text.endswith(tokenized(_turn(write))) else [NO_TURN]
    if any(message.get("role") in ("system", "developer") for message in prompt):
        return flags
    added = _added(write, {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()})
    return [ADDS_SYSTEM, *flags] if added and tokenized(added) in text else flags


def _written(processing_class: Any, template: Mapping[str, Any], messages: int, begun: bool = False) -> str:
    """So many messages of the made-up conversation."""
    said = (("user", _ASKED), ("assistant", _ANSWERED), ("user", _ASKED_AGAIN))[:messages]
    parts = hasattr(processing_class, "tokenizer")  # the template of a processor reads contents in parts
    contents = [[{"type": "text", "text": text}] if parts else text for _, text in said]
    conversation = [{"role": role, "content": content} for (role, _), content in zip(said, contents, strict=True)]
    return processing_class.apply_chat_template(conversation, tokenize=False, add_generation_prompt=begun, **template)


def _added(write: _Write, special: set[str]) -> str:
    """Return what a template writes before the first message and before no other; "" where that is special tokens
    alone.
    """
    unit = re.compile("|".join([*map(re.escape, sorted(special, key=len, reverse=True)), "."]), re.DOTALL)
    first, found, _ = write(1).partition(_ASKED)
    later, again, _ = write(3).partition(_ANSWERED)[2].partition(_ASKED_AGAIN)
    before, between = unit.findall(first), unit.findall(later)
    pairs = zip(reversed(before), reversed(between), strict=False)
    header = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    added = before[: len(before) - header]
    told = "".join(one for one in added if one not in special).strip()
    return "".join(added) if found and again and told else ""


def _turn(write: _Write) -> str:
    """Return what a template writes to begin the assistant's turn, be it asked to or not; "" where nothing is known
    of it.
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
    """Without blanks, which decoding may add."""
    return "".join(text.split())


def _bounded(text: str) -> str:
    if len(text) <= MOST:
        return text
    half = MOST // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
