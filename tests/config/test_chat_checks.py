"""Tests of doubts about prompts of messages and about where answers end."""

import copy

import pytest
import tiny_models
import trl.rewards
import vision_models
from datasets import Dataset
from tokenizers import AddedToken

from trl_grpo_plus.config import chat_checks


# A turn is a letter for its role ("a" for the user, "b" for the assistant), its content and a token.
TURNS = "{% for m in messages %}{{ 'a' if m['role'] == 'user' else 'b' }}{{ m['content'] }}<|end|>{% endfor %}"
CHAT = TURNS + "{% if add_generation_prompt %}b{% if enable_thinking %}={% endif %}{% endif %}"
ASKED = [{"role": "user", "content": "1+1"}]


def chats(eos="<|end|>", then=""):
    """Return a tokenizer whose template ends each turn with a token of its own, `then` with another text."""
    made = copy.deepcopy(tiny_models.tokenizer())
    made.add_tokens([AddedToken("<|end|>", special=True)])
    made.chat_template, made.eos_token = CHAT.replace("<|end|>", f"<|end|>{then}"), eos
    return made


def made(folder, tokenizer, prompt=ASKED, **options):
    data = Dataset.from_list([{"prompt": prompt}] * 8)
    reward = tiny_models.digits if isinstance(prompt, str) else by_place
    return tiny_models.trainer(folder, reward, data=data, extra={"processing_class": tokenizer}, **options)


def by_place(completions, **columns):
    return [float(i % 4) for i in range(len(completions))]


@pytest.mark.parametrize(
    ("tokenizer", "options", "said"),
    [
        (chats(), {}, None),
        (chats(), {"chat_template_kwargs": {"enable_thinking": False}}, None),
        (tiny_models.tokenizer(), {"prompt": "1+1="}, None),
        (chats(then="<eos>", eos="<eos>"), {}, None),
        (chats(eos="<eos>"), {"generation_kwargs": {"stop_strings": ["<|end|>"]}}, None),
        (tiny_models.chat_tokenizer(), {}, None),  # its template ends turns with a text
        (
            chats(),
            {"chat_template_kwargs": {"enable_think": False}},
            "chat_template_kwargs has 'enable_think', which the model's chat template does not read, so it has no "
            "effect. Did you mean enable_thinking?",
        ),
        (
            chats(),
            {"prompt": [*ASKED, {"role": "assistant", "content": "2"}]},
            "The first prompt ends with a message of the assistant, and the chat template begins another turn",
        ),
        (
            chats(eos="<eos>"),
            {},
            "The chat template ends a turn of the assistant with '<|end|>', but attempts end only with '<eos>'.",
        ),
    ],
)
def test_doubts_about_a_chat(tmp_path, caplog, tokenizer, options, said):
    made(tmp_path, tokenizer, **options)
    logged = [record.getMessage() for record in caplog.records if record.name == chat_checks.__name__]
    assert len(logged) == bool(said)
    if said:
        assert said in logged[0]


@pytest.mark.parametrize("rolls_out", [True, False])
def test_a_rollout_func_writes_its_attempts_in_its_own_way(tmp_path, caplog, rolls_out):
    own = {"rollout_func": lambda prompts, trainer: {}} if rolls_out else {}
    data = Dataset.from_list([{"prompt": ASKED}] * 8)
    tiny_models.trainer(tmp_path, by_place, data=data, extra={"processing_class": chats(eos="<eos>"), **own})
    assert ("ends a turn of the assistant with" in caplog.text) != rolls_out


def test_a_processors_template_is_given_contents_in_parts():
    processor = vision_models.processor("qwen2.5-vl")
    template = {"chat_template": "{% for m in messages %}{{ m['content'][0]['text'] }}<eos>{% endfor %}"}
    eos, pad = processor.tokenizer.convert_tokens_to_ids(["<eos>", "<pad>"])
    assert chat_checks.doubts(ASKED, processor, template, {eos}, []) == []
    [text] = chat_checks.doubts(ASKED, processor, template, {pad}, [])
    assert text.startswith("The chat template ends a turn of the assistant with '<eos>', but attempts end only with")


def test_a_template_that_fails_on_made_up_messages_gives_no_doubt():
    tokenizer = chats()
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert chat_checks.doubts(ASKED, tokenizer, {}, {0}, [tagged]) == []


def tagged(completions, **columns):
    return [float(str(completion).startswith("<think>")) for completion in completions]


@pytest.mark.parametrize(
    ("rewards", "named"),
    [
        ([tagged], ["tagged"]),
        (["think_format", trl.rewards.think_format_reward], ["think_format", "think_format_reward"]),
        ([{"name": "think_format", "args": {"think_opened": True}}, "repetition", by_place], []),
    ],
)
@pytest.mark.parametrize("opened", [True, False])
def test_rewards_for_a_tag_that_the_prompt_has(tmp_path, caplog, rewards, named, opened):
    tokenizer = chats()
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}" if opened else ""
    data = Dataset.from_list([{"prompt": ASKED}] * 8)
    tiny_models.trainer(tmp_path, rewards, data=data, extra={"processing_class": tokenizer})
    logged = [record.getMessage() for record in caplog.records if record.name == chat_checks.__name__]
    assert len(logged) == len(named) * opened
    for name, text in zip(named, logged, strict=False):
        assert "The chat template ends each prompt with <think>, so attempts begin within the thought" in text
        assert f"The reward {name!r} mentions the tag" in text


@pytest.mark.parametrize("special", [["a", "7"], []])
def test_special_tokens_that_no_reward_sees(tmp_path, caplog, special):
    seen = set()

    def reward(completions, **columns):
        seen.update(*completions)
        return tiny_models.digits(completions)

    tokenizer = copy.deepcopy(tiny_models.tokenizer())
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tiny_models.trained(tmp_path, reward, extra={"processing_class": tokenizer}, max_steps=2)
    logged = [record.getMessage() for record in caplog.records if record.name == chat_checks.__name__]
    assert len(logged) == bool(special)
    if special:
        assert "Attempts of the first batch contain " in logged[0]
        assert all(f"{token!r} (in " in logged[0] for token in special)
    assert seen & {"a", "7"} == {"a", "7"} - {*special}


def test_the_template_does_what_the_doubts_say(tmp_path):
    given = [*ASKED, {"role": "assistant", "content": "2"}]
    trainer = made(tmp_path, chats(), given)
    (ids,), *_ = trainer._tokenize_prompts([given])
    assert trainer.processing_class.decode(ids) == "a1+1<|end|>b2<|end|>b"
