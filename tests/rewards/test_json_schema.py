"""The reward `json_schema`: it pays for one valid JSON document, not for text that only a lenient reader accepts."""

import importlib
import json
import socket
import time

import pytest
from case_tables import misjudged, table
from time_limit import ends

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
TREE = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}


def score(text, schema=PERSON):
    """Score in this process. Other tests score in worker processes."""
    return MODULE._score(text, MODULE._as_text(schema))


@pytest.mark.parametrize("schema", [PERSON, json.dumps(PERSON)], ids=["a dict", "JSON"])
def test_what_is_valid_and_what_is_not(schema):
    assert misjudged("json_schema", lambda text: score(text, schema)) == []
    assert score('{"name": "Ada", "age": ' + "9" * 5000 + "}", schema) == 0.0


def test_by_schema():
    json_schema.definition.check_columns(schema=[schema for *_, schema in table("json_schemas")])
    assert misjudged("json_schemas", score) == []


@pytest.mark.parametrize(
    ("schema", "text", "reward"),
    [
        pytest.param({"type": "number", "multipleOf": 0.01}, "9" * 4000, 0.0, id="4,000 digits"),
        pytest.param(TREE, "[" * 50 + "]" * 50, 1.0, id="50 levels"),
        pytest.param(TREE, "[" * 900 + "]" * 900, 0.0, id="900 levels"),
        pytest.param(TREE, "[" * 100_000 + "]" * 100_000, 0.0, id="100,000 levels"),
        pytest.param({"type": "array"}, "[" * 100_000, 0.0, id="100,000 levels, cut off"),
    ],
)
def test_long_and_deep_documents(schema, text, reward):
    json_schema.definition.check_columns(schema=[schema])
    assert score(text, schema) == reward


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
    with ends(25, time.monotonic):
        rewards = Reward(json_schema.definition, timeout=1.0)([text, ADA], schema=[schema, PERSON])
        assert rewards == [0.0, 1.0]
