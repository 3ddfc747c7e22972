"""Reward for structured output: one JSON document, valid for the row's schema."""

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from trl_grpo_plus.registry import Example, register_reward
from trl_grpo_plus.utils.text import shortened

from ._json import read_json
from ._rows import refuse_rows
from ._text import after_thinking, answer_of, code_blocks, text_of


DRAFT = "https://json-schema.org/draft/2020-12/schema"
MOST_SHOWN = 200  # characters of a schema in a message
UNLIKE: tuple[Any, ...] = (None, True, 0, "", [], {})
_END = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\$", re.DOTALL)

PERSON = {
    "schema": {
        "type": "object",
        "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
}


def _check_columns(schema: list[Any], **_: Any) -> None:
    hint = (
        "Correct or filter these rows. If they look right in your file, store schemas as JSON text: a dataset that "
        "holds them as dicts gives each row the keys of all, as None."
    )
    refuse_rows("json_schema", lambda row: _validator(_as_text(row)), schema, hint=hint)


@register_reward(
    "json_schema",
    examples=[
        Example('<think>Ada, then.</think>\n{"name": "Ada", "age": 36}', PERSON, 1.0),
        Example('Here you are:\n```json\n{"name": "Ada", "age": 36}\n```\n', PERSON, 1.0),
        Example('{"name": "Ada", "age": "36"}', PERSON, 0.0),
        Example('{"name": "Ada", "age": 36, "age": 37}', PERSON, 0.0),
        Example('{"name": "Ada", "age": true}', PERSON, 0.0),
        Example("I do not know.", PERSON, 0.0),
    ],
    # A recursive schema, `uniqueItems` or a `pattern` can take for ever on an unlucky or a hostile text.
    timeout=5.0,
    on_timeout="zero",
    check_columns=_check_columns,
    preload=("jsonschema", "referencing", "trl_grpo_plus.rewards.json_schema"),
)
def json_schema(
    completions: list[Any], schema: list[dict[str, Any] | str], *, think_opened: bool = False
) -> list[float | None]:
    r"""1.0 for a completion whose final answer is one JSON document that is valid for the row's schema, else 0.0.

    The final answer is the text after the thinking, or the body of the last `<answer>...</answer>` in that text, if
    there is one. If the final answer has fenced blocks, the last block labelled `json` or not labelled counts (or else
    the last block).

    The document is read by the letter of RFC 8259, more strictly than Python does. `NaN`, `Infinity`, numbers beyond a
    double (which become infinite), keys that come twice, and anything before or after the document score 0. `true` is
    no integer; `1.0` is an integer, as in JSON Schema. `format` is not checked, as is JSON Schema's default. Use
    `pattern` instead. There and in `patternProperties` `$` is the end of the text and `\d` one of 0-9, as in ECMA 262.
    Nesting too deep for Python's recursion (some 100 levels of a recursive schema) scores 0, and so does a text that
    takes longer than 5 s.

    The reward asks only for a valid document: if `{}` or `[]` is valid for a schema, that constant answer earns 1.0.
    So let the schema require what the answer must have, and reward the content with another reward.

    The reward needs `jsonschema` (`pip install trl-grpo-plus[rewards]`). Nothing is ever fetched for a `$ref`: only
    `#...` is allowed. A schema without `$schema` is read as draft 2020-12.

    Args:
        completions (`list`): N completions, each a text or a list of messages, of which the policy's last one counts.
        schema (`list[dict[str, Any] | str]`):
            For each completion a JSON Schema, as JSON text or as a dict. Text is safer: a dataset of dicts gives each
            row the keys of all other rows, as None.
        think_opened (`bool`, *optional*, defaults to `False`):
            Whether the prompt ends with `<think>`. A completion without `</think>` is then all thinking, and scores 0.

    Returns:
        `list[float | None]`: N rewards, 0.0 or 1.0.

    Raises:
        ImportError: `jsonschema` is not installed.
        ValueError: a schema is no schema, has a bad pattern, refers to other documents, or accepts anything.

    Example:
        >>> schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
        >>> texts = ['<think>...</think>{"age": 36}', '{"age": 36.5}', '{"age": 36} or {"age": 37}', '{"age": NaN}']
        >>> json_schema(texts, schema=[schema] * 4)
        [1.0, 0.0, 0.0, 0.0]
    """
    return [
        _score(text_of(completion), _as_text(row), think_opened)
        for completion, row in zip(completions, schema, strict=True)
    ]


def _score(text: str, schema: str, think_opened: bool = False) -> float:
    validator = _validator(schema)
    try:
        return float(validator.is_valid(read_json(_final(text, think_opened))))
    except (ValueError, ArithmeticError, RecursionError):
        return 0.0


# -- reading the answer


def _final(text: str, think_opened: bool) -> str:
    final = after_thinking(text, think_opened).strip(" \t\r\n")
    if _is_json(final):  # tags and fences inside the document belong to it
        return final
    answer = answer_of(final)
    final = final if answer is None else answer
    blocks = code_blocks(final)
    right = [block for block in blocks if block.language in ("", "json")]
    return (right or blocks)[-1].body if blocks else final


def _is_json(text: str) -> bool:
    try:
        read_json(text)
    except (ValueError, RecursionError):
        return False
    return True


# -- reading the schema


def _as_text(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"schema={shortened(repr(schema), MOST_SHOWN)} is not JSON: {error}") from None


@functools.lru_cache(maxsize=1000)
def _validator(text: str) -> Any:
    """Return a validator of a schema; raise a `ValueError` for a schema by which no answer can be judged."""
    import jsonschema
    from referencing import Registry
    from referencing.jsonschema import specification_with

    schema = {"$schema": DRAFT, **_read_schema(text)}
    kind = jsonschema.validators.validator_for(schema, default=None)  # type: ignore[arg-type]
    if kind is None:
        raise ValueError(f"$schema={schema['$schema']!r} is no draft of JSON Schema that is known here")
    try:
        kind.check_schema(schema)  # regular expressions too
        # A `$ref` may name a place where no keyword expects a schema.
        referred = list({id(part): part for part in _referred(schema)}.values())
        for part in referred:
            kind.check_schema(part)
        for part in (schema, *referred):
            _compile_patterns(specification_with(schema["$schema"]).create_resource(part))
        additional = functools.partial(_additional_properties, kind.VALIDATORS["additionalProperties"])
        extended = jsonschema.validators.extend(kind, {"additionalProperties": additional})
        validator = extended(schema, registry=Registry())  # an empty registry has no means to fetch
        anything = all(validator.is_valid(document) for document in UNLIKE)
    except (jsonschema.SchemaError, OverflowError) as error:
        raise ValueError(f"schema={shortened(text, MOST_SHOWN)} is not valid: {error.args[0]}") from None
    except RecursionError:
        raise ValueError(f"schema={shortened(text, MOST_SHOWN)} refers to itself without end") from None
    if anything:
        raise ValueError(
            f"schema={shortened(text, MOST_SHOWN)} accepts null, 0, '', [] and {{}} alike: give it a type"
        )
    return validator


def _read_schema(text: str) -> dict[str, Any]:
    try:
        schema = read_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"schema={shortened(text, MOST_SHOWN)} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise ValueError(f"schema={shortened(text, MOST_SHOWN)} must be a JSON object")
    return schema


def _compile_patterns(schema: Any) -> None:
    """Replace the patterns of a schema, in place, by compiled ones, which jsonschema takes too."""
    node = schema.contents
    if isinstance(node, dict):
        if "pattern" in node:
            node["pattern"] = _compiled(node["pattern"])
        if "patternProperties" in node:
            node["patternProperties"] = {_compiled(key): child for key, child in node["patternProperties"].items()}
    for child in schema.subresources():
        _compile_patterns(child)


def _compiled(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    r"""Compile a pattern by ECMA 262, not by Python: `$` is only the end of the text, `\d` one of 0-9."""
    if isinstance(pattern, re.Pattern):
        return pattern
    try:
        return re.compile(_END.sub(lambda token: token[1] or r"\Z", pattern), re.ASCII)
    except (re.error, ValueError) as error:
        shown = shortened(repr(pattern), MOST_SHOWN)
        raise ValueError(
            f"pattern {shown} is not valid ({error}): write it as ECMA 262 and Python both read it"
        ) from None


def _additional_properties(check: Any, validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Check the keyword for the keys that no pattern matches; jsonschema's own function joins patterns as texts."""
    patterns = schema.get("patternProperties", ())
    if patterns and isinstance(instance, dict):
        instance = {key: item for key, item in instance.items() if not any(one.search(key) for one in patterns)}
        schema = {key: item for key, item in schema.items() if key != "patternProperties"}
    yield from check(validator, value, instance, schema)


def _referred(schema: dict[str, Any]) -> Iterator[Any]:
    """Yield what each `$ref` names; raise a `ValueError` for one that names another document or nothing."""
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable

    resource: Any = Resource.from_contents(schema)
    resolver = Registry().with_resource("", resource).resolver()
    for reference in _references(schema):
        if not reference.startswith("#"):
            raise ValueError(f"$ref {reference!r} is never fetched: copy what it names to $defs, write #/$defs/NAME")
        try:
            yield resolver.lookup(reference).contents
        except Unresolvable:
            raise ValueError(f"$ref {reference!r} names nothing in the schema") from None


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(value, str):
                yield value
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _references(child)
