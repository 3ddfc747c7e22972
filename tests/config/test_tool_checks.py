"""Tools and environments are checked before a model is loaded, as far as TRL's own functions can tell."""

import copy
import functools
import re

import pytest
import tiny_models
import tool_models
from accelerate import PartialState
from accelerate.logging import MultiProcessAdapter
from datasets import Dataset
from trl import chat_template_utils

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.config.tool_checks import (
    check_conversations,
    check_described,
    check_made,
    check_reset,
    check_template,
    tools_of,
    warn_of_unread_answers,
)
from trl_grpo_plus.utils.validation import ConfigError


class World(tool_models.Adding):
    def reset(self, number): ...

    def get_reward(self): ...

    def _inner(self): ...


def mute(a):
    return a


def with_template(template, **attributes):
    tokenizer = copy.deepcopy(tool_models.tokenizer())
    tokenizer.chat_template = template
    attributes = dict.fromkeys(READS) | attributes  # another test may have made a trainer with this tokenizer
    for name, value in attributes.items():
        setattr(tokenizer, name, value)
    return tokenizer


QWEN = chat_template_utils.qwen3_instruct_2507_chat_template
FORGETS = chat_template_utils.qwen3_chat_template + "{# edited #}"  # it leaves out the thinking of earlier turns
READ = copy.deepcopy(tool_models.tokenizer())
chat_template_utils.add_response_schema(READ)
READS = {name: getattr(READ, name) for name in ("response_template", "response_schema") if getattr(READ, name, None)}


def test_trl_s_verdict_on_a_chat_template_is_known_before_a_model_is_loaded():
    tokenizer = with_template(QWEN)
    check_template(tokenizer, called=True)
    assert not any(getattr(tokenizer, name, None) for name in READS)  # TRL sets it, and this check does not
    poor = tiny_models.chat_tokenizer()
    for called in (True, False):
        with pytest.raises(ConfigError, match="chat template does not write tool calls"):
            check_template(poor, called)
    edited = with_template(QWEN + "{# edited #}")
    with pytest.raises(ConfigError, match="none of those whose tool calls TRL can read"):
        check_template(edited, called=True)
    check_template(edited, called=False)  # TRL reads no calls if an environment has no tools
    check_template(with_template(QWEN + "{# edited #}", **READS), called=True)
    with pytest.raises(ConfigError, match="writes earlier messages in another way"):
        check_template(with_template(FORGETS, **READS), called=True)
    with pytest.raises(ConfigError, match="the model's chat template fails: ZeroDivisionError: division by zero"):
        check_template(with_template("{{ 1 / 0 }}"), called=True)


def test_the_trainer_says_it_in_the_same_words(tmp_path):
    extra = {"processing_class": tiny_models.chat_tokenizer(), "tools": [tool_models.adder([])]}
    with pytest.raises(ConfigError, match=r"^tools and environment_factory: the model's chat template does not write"):
        tiny_models.trainer(tmp_path, extra=extra)


def test_the_trainer_refuses_texts_as_prompts_and_tools_without_a_text(tmp_path):
    extra = {"processing_class": tool_models.tokenizer(), "tools": [tool_models.adder([])]}
    with pytest.raises(ConfigError, match=r"^train_dataset: with tools .* must be a list of messages"):
        tiny_models.trainer(tmp_path, extra=extra)
    asked = Dataset.from_dict({"prompt": [tool_models.question(n) for n in range(30)], "number": [*range(30)]})
    with pytest.raises(ConfigError, match=r"^the tool mute cannot be described to the model: .*no docstring"):
        tiny_models.trainer(tmp_path, data=asked, extra={**extra, "tools": [mute]})


def test_the_trainer_refuses_a_run_of_no_length_before_it_loads_a_model(tmp_path):
    config = GRPOPlusConfig(**{**tiny_models.BASE, "max_steps": -1, "output_dir": str(tmp_path / "run")})
    with pytest.raises(ConfigError, match=r"train_dataset is None, and max_steps=-1"):
        GRPOPlusTrainer("nobody/none", args=config, environment_factory=World)


def test_the_tools_of_a_class_are_those_that_trl_finds(tmp_path):
    extra = {"processing_class": tool_models.tokenizer(), "environment_factory": World}
    asked = Dataset.from_dict({"number": [*range(30)]})
    made = tiny_models.trainer(tmp_path, data=asked, extra=extra)
    described = [list(map(tool_models.get_json_schema, tools)) for tools in (tools_of(World), made.tools)]
    assert described[0] == described[1]
    assert [tool.__name__ for tool in tools_of(World)] == ["add"]
    assert tools_of(lambda: World()) == tools_of(None) == []


def test_an_environment_must_be_made_without_arguments_and_have_reset():
    class Sized(World):
        def __init__(self, size): ...

    check_made(World)
    check_made(lambda: World())
    with pytest.raises(ConfigError, match=r"Sized is called without arguments, and this fails: missing .*'size'"):
        check_made(Sized)
    with pytest.raises(ConfigError, match="Adding has no method reset"):
        check_made(tool_models.Adding)


def test_the_trainer_refuses_what_makes_no_environment(tmp_path):
    class Sized(World):
        def __init__(self, size): ...

    def forgets():
        World()

    data, later = Dataset.from_dict({"number": [*range(30)]}), "environment_factory returns an object without a method"
    for environment, words in {
        World(): r"^environment_factory=<.*World object.*> cannot be called to make an environment\. Give a class",
        Sized: "Sized is called without arguments, and this fails: missing .*'size'",
        tool_models.Adding: "Adding has no method reset",
    }.items():
        for factory in (environment, {"a": World, "b": environment}):
            config = GRPOPlusConfig(**{**tiny_models.BASE, "output_dir": str(tmp_path / "run")})
            with pytest.raises(ConfigError, match=words):  # before a model is loaded
                GRPOPlusTrainer("nobody/none", None, config, data, environment_factory=factory)
    extra = {"processing_class": tool_models.tokenizer(), "environment_factory": forgets}
    with pytest.raises(ConfigError, match=rf"^{later} reset, which begins an attempt\. Return the environment"):
        tiny_models.trainer(tmp_path, data=data, extra=extra)


def test_reset_must_take_the_columns():
    check_reset(World, ["number"], "train_dataset")
    for columns in (["number", "answer"], ["answer"]):
        names = re.escape(", ".join(map(repr, columns)))
        with pytest.raises(ConfigError, match=f"reset of World gets each column of train_dataset .* are {names}"):
            check_reset(World, columns, "train_dataset")
    check_reset(lambda: World(), ["answer"], "train_dataset")
    check_reset(World, [], "train_dataset")  # they are not known

    class Taking(World):
        def reset(self, **row): ...

    class Fixed(World):
        @staticmethod
        def reset(**row): ...

    for environment in (Taking, Fixed):
        check_made(environment)
        check_reset(environment, ["function", "self_", "number"], "train_dataset")


def test_the_trainer_refuses_a_reset_that_does_not_take_the_columns(tmp_path):
    """Before it loads a model. Only what surely fails is refused."""
    rows = Dataset.from_dict({"number": [*range(30)], "answer": ["1"] * 30})
    several, asked = rows.add_column("environment", ["all"] * 30), rows.add_column("prompt", ["1"] * 30)

    class Taking(World):
        def reset(self, **row): ...

    def trainer(data, environment=World, cls=GRPOPlusTrainer, **options):
        config = GRPOPlusConfig(**{**tiny_models.BASE, "output_dir": str(tmp_path / "run"), **options})
        evaluated = options.get("eval_strategy") and rows
        cls(str(tmp_path / "no model"), None, config, data, evaluated, environment_factory=environment)

    narrow = rows.remove_columns("answer")
    refused = "reset of World gets each column of {} as an argument, and this fails: {}"
    for told, fails, arguments in (
        ("train_dataset", "got an unexpected keyword argument 'answer'", {"data": rows}),
        ("train_dataset", ".*The columns are 'prompt'", {"data": asked, "remove_unused_columns": True}),
        ("train_dataset", ".*'answer'", {"data": several, "environment": {"all": World}}),
        ("eval_dataset", ".*'answer'", {"data": narrow, "eval_strategy": "epoch"}),
        ("the rows that TRL makes where there is no dataset", ".*'prompt'", {"data": None, "max_steps": 1}),
    ):
        with pytest.raises(ConfigError, match=refused.format(told, fails)):
            trainer(**arguments)

    class Dropping(GRPOPlusTrainer):
        def _generate_and_score_completions(self, inputs):
            return super()._generate_and_score_completions([{"number": row["number"]} for row in inputs])

    for arguments in (
        {"data": narrow},
        {"data": rows, "environment": Taking},
        {"data": rows, "cls": Dropping},
        {"data": several, "environment": {"all": Taking, "none": World}},
        {"data": rows.with_transform(lambda batch: {"number": batch["number"]})},
        {"data": rows.with_format("numpy", columns=["number"])},
    ):
        with pytest.raises(ConfigError, match="no model': there is no such folder"):  # checked after the data
            trainer(**arguments)


def test_a_decorator_may_change_what_reset_takes():
    class Wrapped(World):
        @functools.wraps(World.reset)
        def reset(self, **row):
            return World.reset(self, row["number"])

    check_reset(Wrapped, ["number", "answer"], "train_dataset")


def test_only_stored_texts_are_refused():
    messages, text = Dataset.from_dict({"prompt": [tool_models.question(1)]}), Dataset.from_dict({"prompt": ["1"]})
    check_conversations(messages, {"other": None})
    check_conversations(Dataset.from_dict({"number": [1]}), text.to_iterable_dataset())
    with pytest.raises(ConfigError, match=r"^eval_dataset other: with tools"):
        check_conversations(messages, {"other": text})
    check_described([tool_models.adder([])])


@pytest.mark.parametrize(
    ("returned", "template", "warned"),
    [
        ([("G1", "G2"), ("G1", "G3")], "qwen3", "a list of tuple values"),
        ([{"gene": "G1"}], "qwen3_vl", "a list of dict values"),
        ([{"type": "text", "text": "G1"}], "qwen3", "a list of dict values"),
        ([{"type": "text", "text": "G1"}], "qwen3_vl", None),
        ([("G1", "G2")], "llama3_2", None),
        ([], "qwen3", None),
        ("[('G1', 'G2')]", "qwen3", None),
    ],
    ids=["rows", "records", "blocks of a model of texts", "blocks", "a template of JSON", "empty", "a text"],
)
def test_a_warning_tells_of_answers_that_the_model_does_not_read(returned, template, warned, caplog):
    PartialState()  # accelerate's logger needs it
    tokenizer = with_template(getattr(chat_template_utils, f"{template}_chat_template"))
    call = {"role": "assistant", "content": "", "tool_calls": []}
    completions = ["a text", [call, {"role": "tool", "name": f"query_{template}", "content": returned}]]
    MultiProcessAdapter.warning_once.cache_clear()
    warn_of_unread_answers(completions, functools.partial(tokenizer.apply_chat_template, tokenize=False))
    said = [record.message for record in caplog.records]
    assert [warned in message and f"query_{template}" in message for message in said] == [True] * (warned is not None)
