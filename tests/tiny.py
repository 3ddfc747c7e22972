"""What the tests train: models of a few thousand weights and a tokenizer of a few characters, made here."""

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM


ALPHABET = "0123456789+=ab "


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *ALPHABET])}
    fast = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def model(seed: int = 0, **changes) -> Qwen2ForCausalLM:
    """A random Qwen2 of two layers."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        **{
            "vocab_size": len(ALPHABET) + 3,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
            "tie_word_embeddings": False,
            "initializer_range": 0.3,
            "bos_token_id": None,
            "eos_token_id": 1,
            "pad_token_id": 0,
            **changes,
        }
    )
    return Qwen2ForCausalLM(config)


def prompts(count: int) -> Dataset:
    """`count` distinct prompts, with their number in a column that rewards can look at."""
    return Dataset.from_dict({"prompt": [f"{i:02d}+{i:02d}=" for i in range(count)], "number": list(range(count))})


def digits(completions, **kwargs) -> list[float]:
    """Share of digits: varies within nearly every group."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def dead_for_most(completions, number, **kwargs) -> list[float]:
    """0.3 for two prompts in three, whatever is written; as `digits` for the third."""
    return [0.3 if n % 3 else share for n, share in zip(number, digits(completions), strict=True)]


BASE = {
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "learning_rate": 1e-2,
    "max_completion_length": 6,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_steps": 3,
    "logging_steps": 1,
    "save_strategy": "no",
    "gradient_checkpointing": False,
    "dataloader_pin_memory": False,
    "disable_tqdm": True,
    "seed": 7,
}
