"""Sums for a character-level model made from scratch: GRPO without Hub, account or download, on a CPU or a GPU.

The warm-up trains the model on sums in which six of ten carries are forgotten, and on no products. The warm model
always solves a sum without a carry ("easy"). It solves a sum with a carry in four of ten attempts ("edge"). It never
solves a product ("hard"). Only edge problems can teach. On them GRPO learns from the reward alone to carry.
"""

import math
import random
from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from tokenizers import Regex
from tokenizers.decoders import Fuse
from tokenizers.pre_tokenizers import Split
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from trl_grpo_plus.utils.validation import ConfigError

from .dataset_helpers import check_mix
from .warm_start import EOS, NOT_LEARNED, WarmUp, llama, one_thread, seeded, start_from, teach, word_level


CHARACTERS = "0123456789+-*="
FORGETS_CARRY = 0.6  # share of the warm-up's sums with a carry that forget the carry
HELD_OUT = 96  # problems in each eval split
TRAIN_MIX = {"easy": 512, "edge": 384, "hard": 256}  # problems in the train split

Problem = tuple[int, str, int]


def prepare(
    script_args: Any,
    training_args: Any,
    model_args: Any,
    *,
    digits: int = 2,
    train_mix: Mapping[str, int] | None = None,
    layers: int = 1,
    hidden_size: int = 128,
    heads: int = 4,
    warm_steps: int = 2000,
    warm_batch: int = 64,
    warm_rate: float = 3e-3,
    smoke: bool = False,
) -> DatasetDict:
    """Make the problems and the model. The script's `prepare` option calls this function.

    The model is written to `<output_dir>/warm_start`, and `model_args.model_name_or_path` is set to this folder. Only
    the main process makes the model; the other processes must call this function after it. A run that resumes uses
    the model beside its checkpoint, or else the model in `<output_dir>/warm_start`.

    Args:
        script_args, training_args, model_args: the dataclasses that the script's parser returns.
        digits (`int`, *optional*, defaults to 2): digits of each operand, 2 or 3.
        train_mix (`Mapping[str, int]`, *optional*): problems of each difficulty to train on; by default 512 easy, 384
            edge, 256 hard.
        layers (`int`, *optional*, defaults to 1), hidden_size (`int`, *optional*, defaults to 128), heads (`int`,
            *optional*, defaults to 4): size of the model, which has about 10 x layers x hidden_size^2 parameters.
        warm_steps (`int`, *optional*, defaults to 2000), warm_batch (`int`, *optional*, defaults to 64), warm_rate
            (`float`, *optional*, defaults to 3e-3): steps of the warm-up, lessons in each, highest learning rate.
        smoke (`bool`, *optional*, defaults to `False`): skip the warm-up, because an untrained model is enough.

    Returns:
        `DatasetDict`: `train` (all difficulties mixed) and the held-out `easy`, `edge` and `hard`, each with the
        columns `prompt` ("12+34="), `answer` ("46") and `difficulty`.

    Raises:
        ConfigError: `digits` is not 2 or 3, `train_mix` does not name exactly the three difficulties or asks for more
            problems than there are, or a number of the warm-up is out of its bounds.
    """
    mix = dict(TRAIN_MIX if train_mix is None else train_mix)
    if digits not in (2, 3) or set(mix) != set(TRAIN_MIX):
        raise ConfigError(f"digits={digits} must be 2 or 3, and train_mix={mix} must name {', '.join(TRAIN_MIX)}.")
    one_thread(training_args)
    held_out, rest = split_problems(training_args.seed, digits)
    # Lessons are made of easy and edge problems, and at least one of each must be left.
    most = {name: len(problems) - (name != "hard") for name, problems in rest.items()}
    check_mix(mix, most, f"the {HELD_OUT} held out and the warm-up's")
    warm_up = WarmUp(warm_steps, warm_batch, warm_rate)

    def make() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
        """Make the warm model."""
        # The lessons exclude the training problems: on memorised problems the model would not make its mistakes.
        easy, edge = (rest[name][mix[name] :] for name in ("easy", "edge"))
        lessons = [] if smoke else _lessons(easy, edge, training_args.seed, warm_up)
        return make_warm(lessons, warm_up, training_args, (layers, hidden_size, heads))

    start_from(training_args, model_args, make)
    train = [problem for name, count in mix.items() for problem in rest[name][:count]]
    random.Random(training_args.seed).shuffle(train)
    return DatasetDict({"train": _dataset(train)} | {name: _dataset(problems) for name, problems in held_out.items()})


def split_problems(seed: int, digits: int = 2) -> tuple[dict[str, list[Problem]], dict[str, list[Problem]]]:
    """Split the problems of each difficulty into held-out and other problems, in an order that depends on `seed`."""
    operands = range(10 ** (digits - 1), 9 * 10 ** (digits - 1))
    pairs = [(a, b) for a in operands for b in operands]
    sums = [(a, "+", b) for a, b in pairs if a + b < 10**digits]
    problems = {
        "easy": [problem for problem in sums if not has_carry(problem)],
        "edge": [problem for problem in sums if has_carry(problem)],
        "hard": [(a, "*", b) for a, b in pairs],
    }
    shuffle = random.Random(seed).shuffle
    for group in problems.values():
        shuffle(group)
    held_out = {name: group[:HELD_OUT] for name, group in problems.items()}
    return held_out, {name: group[HELD_OUT:] for name, group in problems.items()}


def has_carry(problem: Problem) -> bool:
    """Return `True` if a sum has a carry: two digits in the same place add up to ten or more."""
    return solve_forgetful(problem) != problem[0] + problem[2]


def solve_forgetful(problem: Problem) -> int:
    """Return the wrong result of a sum that is added digit by digit without any carry."""
    a, _, b = problem
    return sum((a // place + b // place) % 10 * place for place in (1, 10, 100))


def difficulty(problem: Problem) -> str:
    """Return the difficulty of a problem: `"easy"`, `"edge"` or `"hard"`."""
    if problem[1] == "*":
        return "hard"
    return "edge" if has_carry(problem) else "easy"


def solve(problem: Problem) -> int:
    """Return the right answer."""
    a, sign, b = problem
    return a + b if sign == "+" else a * b


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token for each character, padded on the left."""
    return word_level(CHARACTERS, Split(Regex("."), "isolated"), Fuse())


def make_model(
    tokenizer: PreTrainedTokenizerFast, layers: int = 1, hidden_size: int = 128, heads: int = 4
) -> LlamaForCausalLM:
    """Make an untrained Llama, by default with one layer and 170 000 parameters."""
    # 0.06 at width 128: with transformers' default of 0.02 the loss stays on a plateau for most of the warm-up.
    spread = 0.06 * math.sqrt(128 / hidden_size)
    return llama(tokenizer, layers, hidden_size, heads, positions=32, spread=spread, theta=100.0)


def make_warm(
    lessons: list[str], warm_up: WarmUp, training_args: Any, size: tuple[int, int, int]
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Make a model of this size (layers, width, heads), warmed up on the lessons if there are any; and a tokenizer."""
    tokenizer = make_tokenizer()
    with seeded(training_args.seed):
        model = make_model(tokenizer, *size)
    if lessons:
        _warm_up(model, tokenizer, lessons, warm_up, training_args)
    return model, tokenizer


def _warm_up(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    lessons: list[str],
    warm_up: WarmUp,
    training_args: Any,
) -> None:
    ids = _tokens(tokenizer, lessons)
    labels = ids.clone()
    labels[:, : lessons[0].index("=") + 1] = NOT_LEARNED  # only the answer is learned
    batches = list(zip(ids.split(warm_up.batch), labels.split(warm_up.batch), strict=True))
    teach(model, batches, warm_up.rate, training_args)


def _tokens(tokenizer: PreTrainedTokenizerFast, lessons: list[str]) -> torch.Tensor:
    # In pieces, because the tokenizer's other data on each text takes a hundred times the memory of the tokens.
    piece = 1 << 16
    starts = range(0, len(lessons), piece)
    return torch.cat([tokenizer(lessons[at : at + piece], return_tensors="pt").input_ids for at in starts])


def _lessons(easy: list[Problem], edge: list[Problem], seed: int, warm_up: WarmUp) -> list[str]:
    # All lessons have the same length: an answer has as many digits as its operands.
    rng = random.Random(seed)
    lessons = []
    for _ in range(warm_up.steps * warm_up.batch):
        problem = rng.choice(rng.choice([easy, edge]))
        forgets = has_carry(problem) and rng.random() < FORGETS_CARRY
        answer = solve_forgetful(problem) if forgets else solve(problem)
        lessons.append(f"{problem[0]}{problem[1]}{problem[2]}={answer}{EOS}")
    return lessons


def _dataset(problems: list[Problem]) -> Dataset:
    return Dataset.from_dict(
        {
            "prompt": [f"{a}{sign}{b}=" for a, sign, b in problems],
            "answer": [str(solve(problem)) for problem in problems],
            "difficulty": [difficulty(problem) for problem in problems],
        }
    )
