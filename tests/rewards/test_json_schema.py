"""The reward `json_schema`: one JSON document that is valid, and nothing that a lenient reader would let pass."""

import importlib
import json
import socket
import time

import pytest
from tables import table

from trl_grpo_plus.registry import Reward
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


def test_what_is_valid_and_what_is_not():
    cases = [(text, float(verdict == "+"), why) for verdict, why, text in table("json_schema")]
    cases.append(('{"name": "Ada", "age": ' + "9" * 5000 + "}", 0.0, "5,000 digits"))
    assert [(why, text) for text, reward, why in cases if score(text) != reward] == []
    assert [(why, text) for text, reward, why in cases if score(text, json.dumps(PERSON)) != reward] == []


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
    assert json_schema.definition.timeout == 5.0
    json_schema.definition.check_columns(schema=[schema])
    start = time.perf_counter()
    rewards = Reward(json_schema.definition, timeout=1.0)([text, ADA], schema=[schema, PERSON])
    assert rewards == [0.0, 1.0]
    assert time.perf_counter() - start < 25
