"""A model of the same architecture with a few thousand weights, and a tokenizer that needs no download."""

from typing import TYPE_CHECKING, Any

import torch

from ...utils.tables import in_short
from .estimate import NUM_EXPERTS


if TYPE_CHECKING:
    from transformers import PretrainedConfig


HEADS, HEAD_DIM, LAYERS, FEED_FORWARD, EXPERTS = 2, 16, 2, 64, 4
MOST_WEIGHTS = 30_000_000  # nearly all of them belong to a large vocabulary
WIDTHS = ("hidden_size", "n_embd", "d_model")
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers")
NUM_HEADS = ("num_attention_heads", "n_head", "num_heads")
FEED_FORWARDS = ("intermediate_size", "ffn_dim", "n_inner", "moe_intermediate_size", "shared_expert_intermediate_size")
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
# Texts that a chat template marks turns with, as in ChatML.
TURN, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def shrink(config: "PretrainedConfig", tokenizer: Any) -> Any:
    """Return a small config of the same kind: two layers of width 32, with a tokenizer's vocabulary.

    Of a multimodal model, only the text model's config is returned.

    Args:
        config (`PretrainedConfig`): config of any kind that transformers has a causal language model for. It is not
            changed.
        tokenizer (`PreTrainedTokenizerBase`): tokenizer whose vocabulary and special tokens the small config gets.

    Raises:
        ValueError: a model of that kind cannot be made so small here.
    """
    config = config.get_text_config()
    try:
        small = type(config)(**{**config.to_dict(), **_smaller(config.to_dict(), tokenizer)})
        with torch.device("meta"):
            weights = sum(weight.numel() for weight in build(small).parameters())
        if weights > MOST_WEIGHTS:
            raise ValueError(f"it still has {weights:,} weights")
        model = build(small)
        with torch.no_grad():
            model(input_ids=torch.tensor([[1, 2, 3]]))
    except Exception as error:
        raise ValueError(f"no tiny {config.model_type} could be made: {in_short(error)}") from error
    return small


def build(config: "PretrainedConfig") -> Any:
    """Return a model of this config with random weights, the same weights each time."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def write(config: "PretrainedConfig", tokenizer: Any, folder: str) -> None:
    """Save a tiny model like `config`, and the tokenizer."""
    small = shrink(config, tokenizer)
    model = build(small)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def byte_tokenizer() -> Any:
    """Make a tokenizer with one token for each byte and ChatML's template, if a model's own cannot be loaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [PAD, TURN, END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    fast = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=fast,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens={"turn_token": TURN},
        padding_side="left",
    )
    made.chat_template = CHATML
    return made


def _smaller(facts: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    heads = next((facts[name] for name in NUM_HEADS if facts.get(name)), None)
    sizes = {
        **dict.fromkeys(WIDTHS, HEADS * HEAD_DIM),
        **dict.fromkeys(DEPTHS, LAYERS),
        **dict.fromkeys(NUM_HEADS, HEADS),
        **dict.fromkeys(FEED_FORWARDS, FEED_FORWARD),
        **dict.fromkeys(NUM_EXPERTS, EXPERTS),
        **LATENT,
        # Grouped queries stay grouped.
        "num_key_value_heads": HEADS if facts.get("num_key_value_heads") == heads else 1,
        "head_dim": HEAD_DIM,
        "num_experts_per_tok": 2,
        "max_window_layers": LAYERS,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "mlp_only_layers": [],
        "vocab_size": len(tokenizer),
    }
    small = {name: size for name, size in sizes.items() if facts.get(name) is not None}
    small |= {name: facts[name][:LAYERS] for name in ("no_rope_layers",) if facts.get(name)}
    if "qk_rope_head_dim" in small and "head_dim" in small:
        small["head_dim"] = small["qk_rope_head_dim"]
    if kinds := facts.get("layer_types"):  # one of each kind
        small["layer_types"] = [*dict.fromkeys(kinds), *kinds][:LAYERS]
    if rope := facts.get("rope_parameters"):
        small["rope_parameters"] = _rope(rope)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {**small, **ids}


def _rope(facts: dict[str, Any]) -> dict[str, Any]:
    """Remove rope settings that depend on the head's width, such as long-context factors."""
    if any(isinstance(value, dict) for value in facts.values()):  # settings for each kind of layer
        return {name: _rope(value) if isinstance(value, dict) else value for name, value in facts.items()}
    if any(isinstance(value, list) for value in facts.values()):
        return {"rope_type": "default", "rope_theta": facts.get("rope_theta", 10_000.0)}
    return dict(facts)
