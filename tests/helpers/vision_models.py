"""Tiny vision models of two families, which lay out their pixels differently.

torchvision is not installed, so that images are read with PIL, and there is no video.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tiny_models
import torch
from accelerate import PartialState
from datasets import Dataset
from PIL import Image
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Processor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from trl import GRPOConfig, GRPOTrainer

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer


SPECIAL = ["<pad>", "<eos>", "<unk>", "<begin>", "<end>", "<image>", "<video>"]
ALPHABET = "0123456789+=ab \n"
TEXT = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT |= {"num_key_value_heads": 1, "vocab_size": len(SPECIAL) + len(ALPHABET), "max_position_embeddings": 128}
TEXT |= {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.3}
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


def tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character."""
    fast = Tokenizer(models.WordLevel({token: i for i, token in enumerate([*SPECIAL, *ALPHABET])}, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens(SPECIAL)
    ends = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>", "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=fast, extra_special_tokens=special, **ends)


class WithoutVideo(Qwen2_5_VLProcessor):
    """Qwen's processor without its check for a video processor, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return type(argument)

    def save_pretrained(self, folder: Any, **options: Any) -> list[str]:
        """Save nothing, because its stand-in for a video processor cannot be saved."""
        return []


def qwen() -> tuple[Any, Any]:
    """Return model and processor. The pixels are one list of the patches of all images, with the counts per image."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16}
    vision |= {"patch_size": 4, "window_size": 16, "fullatt_block_indexes": [0]}
    ids = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 3, "vision_end_token_id": 4}
    config = Qwen2_5_VLConfig(text_config={**TEXT, "rope_parameters": rope}, vision_config=vision, **ids)
    processor = WithoutVideo(
        image_processor=Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, min_pixels=64, max_pixels=1024),
        tokenizer=tokenizer(image_token="<image>", video_token="<video>"),
        video_processor=SimpleNamespace(model_input_names=[]),
        chat_template=TEMPLATE.replace("IMAGE", "<begin><image><end>"),
    )
    return Qwen2_5_VLForConditionalGeneration(config), processor


def gemma() -> tuple[Any, Any]:
    """Return model and processor. The pixels are one image of fixed size per row, with a type for each token."""
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 16, "patch_size": 4}
    text = {**TEXT, "initializer_range": 0.1, "head_dim": 8, "sliding_window": 128, "query_pre_attn_scalar": 8}
    ids = {"image_token_id": 5, "boi_token_index": 3, "eoi_token_index": 4, "mm_tokens_per_image": 4}
    config = Gemma3Config(text_config=text, vision_config=vision, **ids)
    processor = Gemma3Processor(
        image_processor=Gemma3ImageProcessorPil(size={"height": 16, "width": 16}),
        tokenizer=tokenizer(boi_token="<begin>", eoi_token="<end>", image_token="<image>"),
        chat_template=TEMPLATE.replace("IMAGE", "<begin>"),
        image_seq_length=4,
    )
    return Gemma3ForConditionalGeneration(config), processor


FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {"qwen2.5-vl": qwen, "gemma3": gemma}


@functools.cache
def processor(family: str) -> Any:
    """Return the processor of a family."""
    return FAMILIES[family]()[1]


def model_path(folder: Path, family: str) -> str:
    """Save a random model of a family and return its path."""
    torch.manual_seed(0)
    path = str(folder / family)
    FAMILIES[family]()[0].save_pretrained(path)
    PartialState().wait_for_everyone()
    return path


def picture(number: int) -> Image.Image:
    """Return a picture of one colour, which encodes the number, and of one of two sizes."""
    return Image.new("RGB", (16 + 8 * (number % 2), 16), (8 * number, 100, 255 - 8 * number))


def questions(count: int, seen: Callable[[int], bool] = lambda number: True) -> Dataset:
    """Return prompts with their number. Those for which `seen` is true have a picture."""
    prompts = [[{"role": "user", "content": f"{number:02d}="}] for number in range(count)]
    pictures = [[picture(number)] if seen(number) else [] for number in range(count)]
    return Dataset.from_dict({"prompt": prompts, "images": pictures, "number": list(range(count))})


def dead(number: int) -> bool:
    """Return whether a prompt is dead: 0 and 1 are live, 2 and 3 dead, and so on."""
    return number % 4 > 1


def some_dead(completions: Any, number: list[int], **columns: Any) -> list[float]:
    """Return 0.3 for dead prompts. For live ones return the share of digits, plus 0.01 per place in the batch."""
    shares = enumerate(tiny_models.digits([messages[0]["content"] for messages in completions]))
    return [0.3 if dead(n) else share + 0.01 * i for n, (i, share) in zip(number, shares, strict=True)]


def odd_dead(completions: Any, number: list[int], **columns: Any) -> list[float]:
    """Return the rewards of `some_dead` with the odd prompts dead."""
    return some_dead(completions, [2 * (n % 2) for n in number])


def scripted(family: str) -> Callable[..., dict[str, Any]]:
    """Return a `rollout_func` without chance, which puts the pictures into the prompts.

    The number and the attempt's place in its group determine the completion.
    """

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        how = {"tokenize": True, "return_dict": True, "add_generation_prompt": True}
        prompt_ids = processor(family).apply_chat_template(prompts, **how)["input_ids"]
        texts = [prompt[-1]["content"][-1]["text"] for prompt in prompts]
        places = [i % trainer.num_generations for i in range(len(prompts))]
        written = [f"{text[:2]}{place}{'ab' * (place % 3)}" for text, place in zip(texts, places, strict=True)]
        ids = [[*one, 1] for one in processor(family).tokenizer(written)["input_ids"]]
        return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": None}

    return rollout


def trained(folder: Path, family: str, reward: Any, cls: Any = GRPOPlusTrainer, **options: Any) -> Any:
    """Train a trainer of `cls` on 30 questions or on `data`, and return it. `extra` are more of its arguments."""
    arguments = {**tiny_models.BASE, "per_device_train_batch_size": 16, "output_dir": str(folder / "run"), **options}
    # A random model would also write the special tokens of images, and no image belongs to them.
    arguments["generation_kwargs"] = {"suppress_tokens": list(range(2, len(SPECIAL)))}
    data, extra = arguments.pop("data", None), arguments.pop("extra", {})
    config = (GRPOPlusConfig if issubclass(cls, GRPOPlusTrainer) else GRPOConfig)(**arguments)
    extra = {"processing_class": processor(family), **extra}
    made = cls(model_path(folder, family), reward, config, data or questions(30), **extra)
    made.train()
    return made


def distance(folder: Path, family: str, rows: int, alone: int, **options: Any) -> float:
    """Return the distance of the weights after dropping groups from those after training on the live groups alone.

    It is relative to the distance that the weights moved. `rows` and `alone` are the rows per rank of the two runs.
    """
    options = {**tiny_models.EXACT, "extra": {"rollout_func": scripted(family)}, **options}
    dropping = {"zero_variance_groups": "drop", "per_device_train_batch_size": rows}
    ours = trained(folder, family, some_dead, **options, **dropping)
    live = questions(30).filter(lambda row: not dead(row["number"]))
    cls = GRPOPlusTrainer if "kl_placement" in options else GRPOTrainer
    theirs = trained(folder, family, some_dead, cls, data=live, per_device_train_batch_size=alone, **options)
    mine, other = tiny_models.weights(ours), tiny_models.weights(theirs)
    began = type(ours.model).from_pretrained(model_path(folder, family)).state_dict()
    return _farthest(mine, other) / _farthest(mine, began)


def _farthest(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    return max((first[name] - second[name]).abs().max().item() for name in first)


def kept(trainer: Any, family: str) -> list[tuple[int, torch.Tensor]]:
    """Return for each live row of this rank's last batch its number and the pixels that the model reads for it."""
    rows = []
    for batch in trainer._buffered_inputs:
        texts = processor(family).batch_decode(batch["prompt_ids"], skip_special_tokens=True)
        counts = batch.get("num_images", [0] * len(texts))
        patches = batch["image_grid_thw"].prod(-1).tolist() if "image_grid_thw" in batch else [1] * sum(counts)
        pixels = iter(batch["pixel_values"].split(patches) if "pixel_values" in batch else [])
        for i, (text, count) in enumerate(zip(texts, counts, strict=True)):
            own = torch.cat([torch.empty(0), *(next(pixels).flatten() for _ in range(count))])
            if "live" not in batch or batch["live"][i]:
                rows.append((int(text.strip()[:2]), own))
    return rows


def wrong(
    rows: list[tuple[int, torch.Tensor]], family: str, seen: Callable[[int], bool] = lambda n: True
) -> list[int]:
    """Return the numbers of the rows whose pixels are not those of their own picture."""
    images = processor(family).image_processor

    def own(number: int) -> torch.Tensor:
        read = images(images=[picture(number)], return_tensors="pt")["pixel_values"].flatten()
        return read if seen(number) else torch.empty(0)

    return [number for number, pixels in rows if not torch.equal(pixels, own(number))]
