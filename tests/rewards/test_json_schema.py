"""The reward `json_schema`: one JSON document that is valid, and nothing that a lenient reader would let pass."""

import doctest
import importlib
import json
import socket
import time

import pytest
from bombs import BOMBS, placed

from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.rewards.json_schema import json_schema


pytest.importorskip("jsonschema")
MODULE = importlib.import_module("trl_grpo_plus.rewards.json_schema")

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ADA = '{"name": "Ada", "age": 36}'
ANYTHING_LISTED = {"type": "array"}
TREE = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}


def score(text, schema=PERSON):
    """In this process; the worker processes have tests of their own."""
    return MODULE._score(text, MODULE._as_text(schema))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(ADA, id="alone"),
        pytest.param(f"\n {ADA}\r\n\t", id="white space around"),
        pytest.param(f"<think>Who?</think>\n{ADA}", id="after the thinking"),
        pytest.param(f"Who?</think>{ADA}", id="thinking opened by the prompt"),
        pytest.param(f"```json\n{ADA}\n```", id="in a fence"),
        pytest.param(f"```\n{ADA}\n```", id="in a fence without a language"),
        pytest.param(f"Here you are:\n\n```json\n{ADA}\n```\nGood luck!", id="words around a fence"),
        pytest.param(f"```json\n{{}}\n```\nBetter:\n```json\n{ADA}\n```", id="the last fence"),
        pytest.param(f"<answer>{ADA}</answer>", id="in answer tags"),
        pytest.param(f"<think>a</think>\n<answer>\n{ADA}\n</answer>\n", id="in answer tags after the thinking"),
        pytest.param(f"<answer>\n```json\n{ADA}\n```\n</answer>", id="in a fence in answer tags"),
        pytest.param(f"Sure.\n<answer>{ADA}</answer>", id="words before answer tags"),
        pytest.param(f"<answer>{ADA}</answer> x", id="words after the tags"),
        pytest.param(f"<answer>{{}}</answer> No: <answer>{ADA}</answer>", id="the last answer"),
        pytest.param(f"```json\n{ADA}\n```\nUse it:\n```python\nload()\n```", id="a program after it"),
        pytest.param(f"```json\n{ADA}```", id="the fence's end on the line"),
        pytest.param(f"```json\n{ADA}```\nRun:\n```bash\nrun\n```", id="the fence's end on the line, another block"),
        pytest.param(f"<answer>```json\n{ADA}\n```</answer>", id="a fence right within answer tags"),
        pytest.param(f"```json\n{ADA}\n```<|im_end|>", id="a mark right after the fence"),
        pytest.param(f"1. Here:\n   ```json\n   {ADA}\n   ```\n", id="a fence in a list"),
        pytest.param(f"````json\n{ADA}\n````", id="four backticks"),
        pytest.param(f"~~~json\n{ADA}\n~~~", id="tildes"),
        pytest.param(f"```json\r\n{ADA}\r\n```\r\n", id="lines' ends of Windows"),
        pytest.param('{"name": "```", "age": 36}', id="a fence in a text"),
        pytest.param('{"age": 36, "name": "Ada"}', id="another order"),
        pytest.param('{"age":36,"name":"Ada"}', id="no blanks"),
        pytest.param('{\n  "age": 36,\n  "name": "Ada"\n}', id="on lines"),
        pytest.param('{"name": "\\u0041da", "age": 36}', id="an escape"),
        pytest.param('{"name": "艾达 👩", "age": 36}', id="other scripts"),
        pytest.param('{"name": "Ada", "age": 36.0}', id="36.0 is an integer, says JSON Schema"),
        pytest.param('{"name": "Ada", "age": 3.6e1}', id="so is 3.6e1"),
        pytest.param('{"name": "<answer>x</answer>", "age": 36}', id="tags in a text"),
        pytest.param('{"name": "NaN", "age": 36}', id="NaN as a text"),
    ],
)
def test_valid(text):
    assert score(text) == 1.0
    assert score(text, json.dumps(PERSON)) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(" \n", id="blank"),
        pytest.param("<think>a</think>", id="nothing after the thinking"),
        pytest.param(f"<think>{ADA}</think>", id="only in the thinking"),
        pytest.param(f"<think>{ADA}", id="the thinking never ends"),
        pytest.param("{}", id="keys are missing"),
        pytest.param("null", id="null"),
        pytest.param('{"name": "", "age": 36}', id="an empty name"),
        pytest.param('{"name": "Ada", "age": -1}', id="below the minimum"),
        pytest.param('{"name": "Ada", "age": "36"}', id="text for a number"),
        pytest.param('{"name": "Ada", "age": 36.5}', id="no integer"),
        pytest.param('{"name": "Ada", "age": true}', id="a bool for an integer"),
        pytest.param('{"name": "Ada", "age": null}', id="null for an integer"),
        pytest.param('{"name": "Ada", "age": 36, "x": 1}', id="another key"),
        pytest.param('{"name": "Ada", "age": 36, "age": 36}', id="a key twice"),
        pytest.param('{"name": "Ada", "age": -1, "age": 36}', id="a key twice, the last one right"),
        pytest.param('{"name": "Ada", "age": 36, "\\u0061ge": 36}', id="a key twice, once escaped"),
        pytest.param('{"name": "Ada", "age": NaN}', id="NaN"),
        pytest.param('{"name": "Ada", "age": Infinity}', id="Infinity"),
        pytest.param('{"name": "Ada", "age": -Infinity}', id="-Infinity"),
        pytest.param('{"name": "Ada", "age": 1e999}', id="beyond a double"),
        pytest.param('{"name": "Ada", "age": ' + "9" * 5000 + "}", id="5,000 digits"),
        pytest.param('{"name": "Ada", "age": 036}', id="a leading zero"),
        pytest.param('{"name": "Ada", "age": +36}', id="a plus"),
        pytest.param('{"name": "Ada", "age": 36.}', id="a point alone"),
        pytest.param('{"name": "Ada", "age": 0x24}', id="hexadecimal"),
        pytest.param('{"name": "Ada", "age": 3_6}', id="an underscore"),
        pytest.param('{"name": "Ada", "age": ３６}', id="full-width digits"),
        pytest.param('{"name": "Ada", "age": 36,}', id="a comma at the end"),
        pytest.param('{"name": "Ada" "age": 36}', id="no comma"),
        pytest.param("{'name': 'Ada', 'age': 36}", id="single quotes"),
        pytest.param('{name: "Ada", age: 36}', id="keys without quotes"),
        pytest.param("{“name”: “Ada”, “age”: 36}", id="curly quotes"),
        pytest.param('{"name": "Ada", "age": 36} // 36', id="a comment"),
        pytest.param('{"name": "Ada", /* */ "age": 36}', id="a comment within"),
        pytest.param('{"name": "A\nda", "age": 36}', id="a line's end in a text"),
        pytest.param('{"name": "A\0da", "age": 36}', id="NUL in a text"),
        pytest.param('{"name": "Ada", "age": 36', id="cut off"),
        pytest.param(f"{ADA}{ADA}", id="twice"),
        pytest.param(f"{ADA}\n{ADA}", id="on two lines"),
        pytest.param(f"[{ADA}]", id="in a list"),
        pytest.param(f"{ADA} or {{}}", id="hedge"),
        pytest.param(f"{ADA}.", id="a stop after it"),
        pytest.param(f"{ADA}\nUser: next?", id="a next turn"),
        pytest.param(f"{ADA}<|im_end|>", id="a template's mark"),
        pytest.param(f"Here you are: {ADA}", id="words before it"),
        pytest.param(f"json\n{ADA}", id="a language before it"),
        pytest.param(f"`{ADA}`", id="one backtick"),
        pytest.param(f"\ufeff{ADA}", id="byte order mark"),
        pytest.param(f"\u200b{ADA}", id="zero-width blank"),
        pytest.param(f"\u00a0{ADA}", id="no-break blank"),
        pytest.param(f"\0{ADA}", id="NUL before it"),
        pytest.param(f"{ADA}\ud800", id="lone surrogate after it"),
        pytest.param(f"```json\n{ADA}\n```\n```json\n{{}}\n```", id="another fence last"),
        pytest.param(f"```json\n{ADA}\n{ADA}\n```", id="twice in a fence"),
        pytest.param(f"```json\n{ADA}\n```</think>", id="a fence in the thinking"),
        pytest.param(f"{ADA}\n<answer>{{}}</answer>", id="another answer in the tags"),
        pytest.param(f"<answer>So {ADA}</answer>", id="words in the tags"),
        pytest.param(f"```json\n{{}}\n```\n```python\n{ADA}\n```", id="another document, and it as a program"),
        pytest.param(f"````json\n{ADA}\n```", id="four backticks, closed by three"),
        pytest.param(f"<answer>{ADA}", id="the tag never ends"),
        pytest.param(f"<answer>{ADA}123456789", id="as many characters as a tag's end has"),
        pytest.param(f"12345678{ADA.replace('Ada', '<answer>')}</answer>", id="as many as its beginning has"),
        pytest.param(f"<answer><answer>{ADA}</answer></answer>", id="nested tags"),
        pytest.param(f"<answer>{ADA}</answer><answer>{{}}</answer>", id="two answers, the last one wrong"),
        pytest.param(f"＜answer＞{ADA}＜/answer＞", id="full-width tags"),
        pytest.param(json.dumps(ADA), id="JSON in a JSON text"),
        pytest.param(json.dumps(PERSON), id="the schema itself"),
    ],
)
def test_not_valid(text):
    assert score(text) == 0.0


@pytest.mark.parametrize(
    ("schema", "text", "reward"),
    [
        pytest.param({"const": 1}, "true", 0.0, id="true is not 1"),
        pytest.param({"const": True}, "1", 0.0, id="1 is not true"),
        pytest.param({"enum": [[0]]}, "[false]", 0.0, id="false is not 0, in a list"),
        pytest.param({"enum": [{"a": 1}]}, '{"a": true}', 0.0, id="true is not 1, in an object"),
        pytest.param({"const": 1}, "1.0", 1.0, id="1.0 is 1"),
        pytest.param({"type": "number"}, "true", 0.0, id="true is no number"),
        pytest.param({"type": "number"}, "NaN", 0.0, id="NaN is no number"),
        pytest.param({"type": "number"}, "-Infinity", 0.0, id="-Infinity is no number"),
        pytest.param({"type": "number"}, "-1e999", 0.0, id="beyond a double, below"),
        pytest.param({"type": "number"}, "1e5", 1.0, id="an exponent"),
        pytest.param({"type": "array", "uniqueItems": True}, "[1, 1.0]", 0.0, id="1 and 1.0 are one"),
        pytest.param({"type": "array", "uniqueItems": True}, "[1, true]", 1.0, id="1 and true are two"),
        pytest.param({"not": {"type": "string"}}, "", 0.0, id="empty, a schema that forbids"),
        pytest.param({"type": "string", "not": {"pattern": "no"}}, '"yes"', 1.0, id="not forbidden"),
        pytest.param({"type": "number", "multipleOf": 0.01}, "9" * 4000, 0.0, id="4,000 digits"),
        pytest.param({"type": "number", "multipleOf": 0.5}, "1e308", 1.0, id="a great double"),
        pytest.param({"type": "string", "pattern": "^a+$"}, '"aaa"', 1.0, id="a pattern"),
        pytest.param({"type": "string", "pattern": "^a+$"}, '"aaa\\n"', 0.0, id="a pattern and a line's end"),
        pytest.param({"type": "string", "pattern": r"^[$]\$$"}, '"$$"', 1.0, id="dollars in a pattern"),
        pytest.param({"type": "string", "pattern": r"^\d+$"}, '"36"', 1.0, id="digits"),
        pytest.param({"type": "string", "pattern": r"^\d+$"}, '"３６"', 0.0, id="full-width digits"),
        pytest.param({"type": "array", "items": {"pattern": "a"}}, '[1, "bab"]', 1.0, id="a pattern is for texts"),
        pytest.param({"type": "string"}, '"\\ud800"', 1.0, id="an escaped lone surrogate"),
        pytest.param(
            {"$schema": "http://json-schema.org/draft-07/schema#", "type": "integer"}, "1", 1.0, id="draft 7"
        ),
        pytest.param(
            {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"},
            "1.0",
            0.0,
            id="draft 4: no integer",
        ),
        pytest.param(TREE, "[[], [[]]]", 1.0, id="recursive"),
        pytest.param(TREE, "[[], [[1]]]", 0.0, id="recursive, a wrong leaf"),
        pytest.param(TREE, "[" * 50 + "]" * 50, 1.0, id="50 levels"),
        pytest.param(TREE, "[" * 900 + "]" * 900, 0.0, id="900 levels"),
        pytest.param(TREE, "[" * 100_000 + "]" * 100_000, 0.0, id="100,000 levels"),
        pytest.param(ANYTHING_LISTED, "[" * 100_000, 0.0, id="100,000 levels, cut off"),
        pytest.param({"$ref": "#a", "$defs": {"x": {"$anchor": "a", "type": "null"}}}, "null", 1.0, id="an anchor"),
        pytest.param(
            {"$id": "https://x.org/s", "$ref": "#/$defs/x", "$defs": {"x": {"type": "null"}}}, "null", 1.0, id="$id"
        ),
        pytest.param(
            {"type": "object", "properties": {"$ref": {"type": "null"}}}, '{"$ref": null}', 1.0, id="a key $ref"
        ),
        pytest.param({"type": "object"}, '{"$ref": "http://x.org"}', 1.0, id="$ref in the answer"),
    ],
)
def test_by_schema(schema, text, reward):
    json_schema.definition.check_columns(schema=[schema])
    assert score(text, schema) == reward


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        pytest.param({}, "accepts null", id="empty"),
        pytest.param("{}", "accepts null", id="empty, as text"),
        pytest.param({"title": "Person"}, "accepts null", id="a title alone"),
        pytest.param({"properties": {"a": {"type": "integer"}}}, "accepts null", id="no type"),
        pytest.param(True, "must be a JSON object", id="true"),
        pytest.param("[]", "must be a JSON object", id="a list"),
        pytest.param(42, "must be a JSON object", id="a number"),
        pytest.param("", "is not JSON", id="no text"),
        pytest.param('{"type": "object"', "is not JSON", id="cut off"),
        pytest.param('{"type": "object", "type": "array"}', "is not JSON", id="a key twice"),
        pytest.param({"const": float("nan")}, "is not JSON", id="NaN"),
        pytest.param({"const": {1}}, "is not JSON", id="a set"),
        pytest.param({"type": "objekt"}, "is not valid", id="no such type"),
        pytest.param({"type": "object", "required": "a"}, "is not valid", id="required is no list"),
        pytest.param({"type": "array", "minItems": None}, "is not valid", id="None, as a dataset of dicts fills in"),
        pytest.param({"type": "string", "pattern": 1}, "is not valid", id="a pattern that is no text"),
        pytest.param({"type": "string", "pattern": "("}, "is not valid", id="a pattern that is none"),
        pytest.param({"type": "object", "patternProperties": {"(": {}}}, "is not valid", id="a pattern of keys"),
        pytest.param({"$ref": "https://example.com/s.json"}, "never fetched", id="another document"),
        pytest.param({"type": "array", "items": {"$ref": "file:///etc/passwd"}}, "never fetched", id="a file"),
        pytest.param({"type": "array", "items": {"$ref": "s.json"}}, "never fetched", id="a relative file"),
        pytest.param({"type": "array", "items": {"$ref": "#/$defs/x"}}, "names nothing", id="no such definition"),
        pytest.param({"type": "array", "items": {"$ref": "#x"}}, "names nothing", id="no such anchor"),
        pytest.param({"$ref": "#"}, "without end", id="a loop"),
        pytest.param({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "without end", id="another loop"),
        pytest.param({"$schema": "https://example.com/draft", "type": "null"}, "no draft", id="an unknown draft"),
    ],
)
def test_bad_schemas_are_refused(schema, problem):
    with pytest.raises(ValueError, match=rf"1 of 2 rows.*row 1: .*{problem}.*JSON text"):
        json_schema.definition.check_columns(schema=[PERSON, schema])
    with pytest.raises(ValueError, match=problem):
        json_schema.definition.function(["null"], schema=[schema])


@pytest.mark.parametrize("text", [ADA, f"I try\n```json\n{ADA}\n```", f"<answer>{ADA}</answer>"])
def test_thinking_that_the_prompt_opened_and_that_was_cut_off(text):
    reward = get_reward("json_schema", think_opened=True)
    assert reward([text, f"a</think>{text}"], schema=[PERSON] * 2) == [0.0, 1.0]


def test_nothing_is_fetched(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    for reference in ("http://127.0.0.1:9/s.json", "https://json-schema.org/draft/2020-12/schema"):
        with pytest.raises(ValueError, match="never fetched"):
            MODULE._validator(json.dumps({"type": "array", "items": {"$ref": reference}}))


BOTH = {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "array", "items": {"$ref": "#"}, "maxItems": 9}]}
HANGS = [
    pytest.param(BOTH, "[" * 40 + "1" + "]" * 40, id="a recursive schema, twice at each level"),
    pytest.param({"type": "string", "pattern": "^(a+)+$"}, '"' + "a" * 40 + 'b"', id="a pattern that backtracks"),
    pytest.param(
        {"type": "array", "uniqueItems": True},
        json.dumps([{"a": i} for i in range(100_000)]),
        id="100,000 items apart",
    ),
]


@pytest.mark.parametrize(("schema", "text"), HANGS)
def test_a_text_made_to_hang_scores_0_in_time(schema, text):
    json_schema.definition.check_columns(schema=[schema])
    start = time.perf_counter()
    rewards = get_reward("json_schema")([text, ADA], schema=[schema, PERSON])
    assert rewards == [0.0, 1.0]
    assert time.perf_counter() - start < 25  # five times the limit


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name):
    for text in placed(BOMBS[name]):
        for schema in (PERSON, TREE):
            start = time.process_time()
            assert json_schema.definition.function([text], [schema]) == [0.0]
            assert time.process_time() - start < 2


def test_messages_and_rows():
    say = [{"role": "assistant", "content": f"<think>a</think>{ADA}"}]
    schemas = [PERSON, json.dumps(PERSON), {"type": "null"}, None, PERSON]
    assert json_schema([say, say, say, say, []], schema=schemas) == [1.0, 1.0, 0.0, None, 0.0]


def test_examples():
    for example in json_schema.definition.examples:
        columns = {name: [value] for name, value in example.columns.items()}
        assert get_reward("json_schema", **example.args)([example.completion], **columns) == [example.reward]


def test_docstring():
    result = doctest.testmod(MODULE)
    assert result.attempted > 0
    assert result.failed == 0
