"""A prompt as the model receives it: the text of its tokens, and flags for oddities that the row does not show."""

import pytest
import tool_models
import vision_models

from trl_grpo_plus.cli.check.tiny_model import CHATML, END, PAD, TURN, byte_tokenizer
from trl_grpo_plus.traces import ADDS_SYSTEM, as_given
from trl_grpo_plus.traces.rendered_prompt import MOST, NO_TURN, SPACE, TWO_BOS


ASKED = [{"role": "user", "content": "What is 6 times 7?"}]
TOLD = [{"role": "system", "content": "Be brief."}, *ASKED]
# SYSTEM is like the templates of SmolLM2 and Qwen2.5. DATED is like that of Llama 3.2, which always adds the date.
SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    + CHATML
)
DATED = "{{ '<|endoftext|><|im_start|>system\nToday: 1 May<|im_end|>\n' }}" + CHATML
NEVER_BEGINS = CHATML.partition("{% if add_generation_prompt %}")[0]
# Like Mistral's template: the assistant's turn begins where the user's ends.
BRACKETS = (
    "<|endoftext|>{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}<|im_end|>{% endif %}{% endfor %}"
)
THINKS = CHATML.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
VICUNA = (
    "A chat. {% for m in messages %}{{ m['role'].upper() }}: {{ m['content'] }}{% if m['role'] == 'assistant' %}"
    "<|im_end|>{% endif %} {% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
FUSSY = "{% if 'QUESTION' in messages[0]['content'] %}{{ 1 / 0 }}{% endif %}" + CHATML
ONE_QUESTION = CHATML.replace("in messages %}", "in messages[:1] %}")


def with_template(template, **special):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    for name, token in special.items():
        setattr(tokenizer, name, token)
    return tokenizer


def given(tokenizer, prompt, begun=True, **kwargs):
    """Return the rendered prompt, whose tokens are made as TRL's trainer makes them."""
    if isinstance(prompt, str):
        ids = tokenizer(text=[prompt])["input_ids"][0]
    else:
        how = {"add_generation_prompt": begun, "tokenize": True, "return_dict": True}
        ids = tokenizer.apply_chat_template([prompt], **how, **kwargs)["input_ids"][0]
    return as_given(ids, prompt, tokenizer, kwargs)


def test_the_text_is_that_of_the_tokens_with_special_tokens():
    told = given(with_template(SYSTEM), ASKED)
    assert told["text"] == (
        f"{TURN}system\nYou are helpful.{END}\n{TURN}user\nWhat is 6 times 7?{END}\n{TURN}assistant\n"
    )
    assert told["tokens"] == len(told["text"]) - sum(len(token) - 1 for token in (TURN, END, TURN, END, TURN))
    assert told["flags"] == [ADDS_SYSTEM]


@pytest.mark.parametrize(
    ("template", "prompt", "flags"),
    [
        (SYSTEM, TOLD, []),
        (CHATML, ASKED, []),
        (CHATML, TOLD, []),
        (DATED, ASKED, [ADDS_SYSTEM]),
        (NEVER_BEGINS, ASKED, [NO_TURN]),
        (BRACKETS, ASKED, []),
        (THINKS, ASKED, []),
        (VICUNA, ASKED, [ADDS_SYSTEM]),
        (FUSSY, ASKED, []),
        (ONE_QUESTION, ASKED, []),
    ],
    ids=["own system", "none", "own", "date", "no turn", "brackets", "thinks", "no tokens", "fussy", "one question"],
)
def test_what_a_template_does_is_flagged(template, prompt, flags):
    assert given(with_template(template), prompt)["flags"] == flags


def test_flags_go_by_the_tokens_and_not_by_what_the_template_would_do():
    """A rollout function may tokenize prompts without the template."""
    tokenizer = with_template(SYSTEM)
    own = tokenizer(f"{TURN}user\nWhat is 6 times 7?{END}\n")["input_ids"]
    assert as_given(own, ASKED, tokenizer, {})["flags"] == [NO_TURN]
    assert given(tokenizer, ASKED, begun=False)["flags"] == [ADDS_SYSTEM, NO_TURN]


def test_arguments_of_the_template_are_part_of_the_prompt():
    template = (
        "{% if brief %}" + SYSTEM.replace("You are helpful.", "Be brief.") + "{% else %}" + CHATML + "{% endif %}"
    )
    assert given(with_template(template), ASKED, brief=True)["flags"] == [ADDS_SYSTEM]
    assert given(with_template(template), ASKED)["flags"] == []


def test_tools_are_part_of_the_prompt():
    how = {"tools": [tool_models.adder([])], "chat_template": None}
    told = given(tool_models.tokenizer(), tool_models.question(7), **how)
    assert '"name": "add"' in told["text"]
    assert told["flags"] == [ADDS_SYSTEM]
    assert given(tool_models.tokenizer(), tool_models.question(7))["flags"] == []


@pytest.mark.parametrize("family", vision_models.FAMILIES)
def test_pictures_are_part_of_the_prompt(family):
    content = [{"type": "image", "image": vision_models.picture(3)}, {"type": "text", "text": "1+1="}]
    told = given(vision_models.processor(family), [{"role": "user", "content": content}])
    assert "<image><image>" in told["text"]
    assert told["text"].endswith("1+1=")
    assert told["flags"] == []


def test_a_bos_that_is_there_twice_is_flagged():
    """The row's text begins with a BOS, and the tokenizer adds another one to each text."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = with_template(CHATML, bos_token=PAD)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{PAD} $A", special_tokens=[(PAD, tokenizer.bos_token_id)]
    )
    told = given(tokenizer, f"{PAD}2+2=")
    assert (told["text"], told["flags"]) == (f"{PAD}{PAD}2+2=", [TWO_BOS.format(bos=PAD)])
    assert given(tokenizer, "2+2=")["flags"] == []
    assert given(with_template(CHATML), f"{PAD}{PAD}2+2=")["flags"] == []  # this tokenizer has no BOS


@pytest.mark.parametrize(("prompt", "flags"), [("2+2= ", [SPACE]), ("2+2=\n", [SPACE]), ("2+2=", []), (" 2+2=", [])])
def test_white_space_at_the_end_of_a_text_is_flagged(prompt, flags):
    assert given(with_template(CHATML), prompt)["flags"] == flags
    chat = [{"role": "user", "content": prompt}]
    assert given(with_template(CHATML), chat)["flags"] == []


def test_a_long_prompt_loses_its_middle():
    told = given(with_template(CHATML), "begin" + "x" * 10_000 + "end")
    assert told["tokens"] == 10_008
    assert told["text"].startswith("beginxxx")
    assert told["text"].endswith("xxxend")
    assert "\n[... 6,008 characters left out ...]\n" in told["text"]
    assert len(told["text"]) < MOST + 100
