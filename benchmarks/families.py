"""Tasks for the benchmarks, made from scratch. A family has data, a warm model, a reward and held-out problems.

    python benchmarks/families.py [--families sums word_problems digits] [--conditions hard] [--seed 1]

It prints a table for each family and condition. A row is a level: its number of problems, the share of the warm
model's attempts that the reward calls wholly right, the share whose last number is right (lenient), the share that are
the gold completion to the letter (strict), the share of dead groups among groups of eight, and the tokens of an
attempt. Data and models are made once per seed, into outputs/families.

- `sums`: sums with a carry, which the warm model forgets six times in ten, among sums that it always solves and
  products that it never solves (recipes/arithmetic.py).
- `word_problems`: problems of one to six steps, worked out step by step (recipes/word_problems.py).
- `smollm2`: sums and products for SmolLM2-135M-Instruct with LoRA: a real language model on a small task
  (recipes/mental_arithmetic.py). `make real-model` downloads the model.
- `smollm2_passes`: the same with 96 problems, which a run visits four times on average.
- `chains`: sums of up to eight terms, worked out line by line by the same model after a warm-up of some minutes
  (recipes/chain_sums.py).
- `guesses`: sums of three to eight terms of one digit. After the warm-up the same model works out half of them line by
  line, and guesses the others.
- `digits`: sums of three digits, rewarded by the share of right digits. The warm model forgets a carry to the tens six
  times in ten and a carry to the hundreds always, so that there are groups with equal rewards of 2/3 as well as of 1.

Conditions: `easy` (few dead groups), `hard` (at least four groups of five are dead), `below_one_epoch` (so many
problems that a run samples none twice), `noisy` (the problems of `hard`; the reward of one row in ten is random,
whatever the answer is).
"""

import argparse
import os
import random
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from datasets import Dataset, DatasetDict, disable_progress_bars, load_from_disk
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from trl_grpo_plus.recipes import arithmetic, chain_sums, mental_arithmetic, warm_start, word_problems
from trl_grpo_plus.registry import get_reward


CACHE = Path("outputs/families")
CONDITIONS = ("easy", "hard", "below_one_epoch", "noisy")
ATTEMPTS = 8  # on each problem, for the table
COLUMNS = ("problems", "right", "last number", "to the letter", f"dead groups of {ATTEMPTS}", "tokens")
NUMBER = re.compile(r"-?[0-9]+")
NOISY = 0.1  # share of the rows with a random reward under the condition `noisy`
Reward = Callable[..., list[float | None]]


@dataclass(frozen=True)
class Family:
    """A task under one condition and seed.

    - `train`, `held_out`: datasets with the columns `prompt`, `answer`, `gold` (a right completion), `key` (the level,
      as text), and further columns that the reward needs
    - `goals`: the held-out splits whose mean accuracy counts
    - `reward`: a registered name or a function
    - `solves`: a reward that is 1 for a completion that is wholly right
    - `rollouts`, `rollouts_a_step`: the rollouts of a whole run and of a step
    - `learning_rate`: the rate 1; the rates of runs are multiples of it
    - `attempts`: attempts on each held-out problem at the end
    - `looks`, `look_completions`: the number of evaluations during a run at a constant rate, and completions in each
    - `stop_at_target`: whether such a run ends when it reaches its last target
    - `lora`: the rank of the adapter that is trained; without it all weights are trained, in float32
    - `micro_batches`: the number of gradient accumulation steps
    """

    name: str
    condition: str
    seed: int
    train: Dataset
    held_out: dict[str, Dataset]
    goals: tuple[str, ...]
    warm: Path
    reward: str | Reward
    solves: Reward
    max_completion_length: int
    learning_rate: float
    rollouts: int
    rollouts_a_step: int
    attempts: int = 16
    looks: int = 20
    look_completions: int = 512
    stop_at_target: bool = False
    lora: int | None = None
    micro_batches: int = 1

    def model(self, under_adapter: str = "bfloat16") -> PreTrainedModel:
        """Load the warm model. `under_adapter` is the dtype of weights that are not trained."""
        return AutoModelForCausalLM.from_pretrained(self.warm, dtype=under_adapter if self.lora else torch.float32)

    def adapter(self) -> LoraConfig | None:
        """Return the configuration of the adapter, `None` if all weights are trained."""
        if self.lora is None:
            return None
        return LoraConfig(r=self.lora, lora_alpha=2 * self.lora, target_modules="all-linear", task_type="CAUSAL_LM")

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Load the warm model's tokenizer, with padding on the left."""
        return AutoTokenizer.from_pretrained(self.warm, padding_side="left")


def share_of_digits(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
    """Return the share of digits that are right; 0 for a completion of another length than the answer."""
    return [
        sum(a == b for a, b in zip(text, gold, strict=True)) / len(gold) if len(text) == len(gold) else 0.0
        for text, gold in zip(completions, answer, strict=True)
    ]


# --- Sums -----------------------------------------------------------------------------------------------------------

SUMS_MIX = {
    "easy": (2, {"easy": 128, "edge": 768, "hard": 64}),
    "hard": (2, {"easy": 1536, "edge": 384, "hard": 1024}),
    "below_one_epoch": (3, {"easy": 10_000, "edge": 3_000, "hard": 7_000}),
}
SUMS_WARM = {2: {}, 3: {"warm_steps": 3000}}  # digits -> the warm-up, where it is not the recipe's


def sums(condition: str, seed: int) -> Family:
    """Make the family `sums`."""
    digits, mix = SUMS_MIX[condition]
    data, warm = _made(
        f"sums-{digits}-{'-'.join(map(str, mix.values()))}",
        seed,
        lambda args: arithmetic.prepare(
            None, args, types.SimpleNamespace(), train_mix=mix, digits=digits, **SUMS_WARM[digits]
        ),
    )
    train, held_out = _columns(data, gold="answer", key="difficulty")
    exact = get_reward("exact_answer")
    return Family(
        name="sums",
        condition=condition,
        seed=seed,
        train=train,
        held_out=held_out,
        goals=("edge",),
        warm=warm,
        reward="exact_answer",
        solves=exact,
        max_completion_length=5 if digits == 2 else 7,
        learning_rate=3e-4,
        rollouts=24_000,
        rollouts_a_step=96,
    )


# --- Word problems --------------------------------------------------------------------------------------------------

WORDS_MIX = {
    "easy": {1: 128, 2: 320, 3: 384, 4: 384, 5: 128, 6: 64},
    "hard": {1: 2304, 2: 0, 3: 32, 4: 48, 5: 96, 6: 512},
    "below_one_epoch": dict.fromkeys(range(1, 7), 2_700),
}


def words(condition: str, seed: int) -> Family:
    """Make the family `word_problems`. All conditions share one warm model per seed."""
    whole = WORDS_MIX["below_one_epoch"]
    data, warm = _made(
        "word_problems",
        seed,
        lambda args: word_problems.prepare(None, args, types.SimpleNamespace(), train_mix=whole),
    )
    train, held_out = _columns(data, gold="solution", key="steps")
    goals = ("steps_3", "steps_4", "steps_5", "steps_6")
    return Family(
        name="word_problems",
        condition=condition,
        seed=seed,
        train=_mixed(train, WORDS_MIX[condition]),
        held_out=held_out,
        goals=goals,
        warm=warm,
        reward="gsm8k_answer",
        solves=get_reward("gsm8k_answer"),
        max_completion_length=56,
        learning_rate=3e-4,
        rollouts=9_600,
        rollouts_a_step=128,
    )


# --- Digits ---------------------------------------------------------------------------------------------------------

DIGITS_MIX = {
    "easy": {"easy": 128, "edge": 768, "hard": 64},
    "hard": {"easy": 2048, "edge": 256, "hard": 1024},
    "below_one_epoch": {"easy": 10_000, "edge": 3_000, "hard": 7_000},
}
DIGITS_WARM = arithmetic.WarmUp(steps=4000, batch=64, rate=3e-3)


def digits(condition: str, seed: int) -> Family:
    """Make the family `digits`: `edge` has a carry to the tens, `hard` one to the hundreds.

    All conditions share one warm model per seed.
    """
    data, warm = _made("digits", seed, lambda args: _make_digits(args, DIGITS_MIX["below_one_epoch"]))
    train, held_out = _columns(data, gold="answer", key="difficulty")
    return Family(
        name="digits",
        condition=condition,
        seed=seed,
        train=_mixed(train, DIGITS_MIX[condition]),
        held_out=held_out,
        goals=("edge",),
        warm=warm,
        reward=share_of_digits,
        solves=get_reward("exact_answer"),
        max_completion_length=5,
        learning_rate=3e-4,
        rollouts=24_000,
        rollouts_a_step=96,
    )


def _make_digits(args: Any, mix: Mapping[str, int]) -> DatasetDict:
    rng = random.Random(args.seed)
    kinds: dict[str, list[arithmetic.Problem]] = {"easy": [], "edge": [], "hard": []}
    wanted = {kind: arithmetic.HELD_OUT + count + 8_000 for kind, count in mix.items()}
    seen: set[tuple[int, int]] = set()
    while any(len(kinds[kind]) < count for kind, count in wanted.items()):
        a, b = rng.randrange(100, 900), rng.randrange(100, 900)
        kind = _kind(a, b)
        if kind and (a, b) not in seen and len(kinds[kind]) < wanted[kind]:
            seen.add((a, b))
            kinds[kind].append((a, "+", b))
    held_out = {kind: problems[: arithmetic.HELD_OUT] for kind, problems in kinds.items()}
    rest = {kind: problems[arithmetic.HELD_OUT :] for kind, problems in kinds.items()}
    lessons = []
    for _ in range(DIGITS_WARM.steps * DIGITS_WARM.batch):
        kind = rng.choice(list(mix))
        problem = rng.choice(rest[kind][mix[kind] :])
        forgets = kind == "hard" or (kind == "edge" and rng.random() < arithmetic.FORGETS_CARRY)
        answer = arithmetic.solve_forgetful(problem) if forgets else arithmetic.solve(problem)
        lessons.append(f"{problem[0]}+{problem[2]}={answer}{arithmetic.EOS}")
    warm = arithmetic.make_warm(lessons, DIGITS_WARM, args, (1, 128, 4))
    warm_start.save_whole(Path(args.output_dir) / "warm_start", *warm)
    train = [problem for kind, count in mix.items() for problem in rest[kind][:count]]
    rng.shuffle(train)
    data = DatasetDict({name: arithmetic._dataset(rows) for name, rows in {"train": train, **held_out}.items()})
    for name, rows in data.items():
        levels = [_kind(*map(int, text[:-1].split("+"))) for text in rows["prompt"]]
        data[name] = rows.remove_columns("difficulty").add_column("difficulty", levels)
    return data


def _kind(a: int, b: int) -> str | None:
    """Return the level of a sum by its carry, `None` for sums that are left out: two carries, or four digits."""
    ones, tens, whole = a % 10 + b % 10 > 9, a % 100 + b % 100 > 99, a + b > 999
    if whole or (ones and tens):
        return None
    return "edge" if ones else "hard" if tens else "easy"


# --- SmolLM2 --------------------------------------------------------------------------------------------------------

SMOLLM2 = Path("outputs/SmolLM2-135M-Instruct")


FEW_PROBLEMS = {"sums_1": 12, "sums_2": 24, "sums_3": 24, "products_1x1": 12, "products_1x2": 24}


def smollm2(condition: str, seed: int, name: str = "smollm2", mix: Mapping[str, int] | None = None) -> Family:
    """Make the family `smollm2`: mental arithmetic, with the recipe's mix by default.

    All conditions are the same. Prompts are texts, with the chat template applied.
    """
    _need_smollm2()
    made = mental_arithmetic.prepare(None, types.SimpleNamespace(seed=seed), None, train_mix=mix)
    data = _as_texts(made, key="kind", gold="answer")
    train, held_out = data.pop("train"), data
    return Family(
        name=name,
        condition=condition,
        seed=seed,
        train=train,
        held_out=held_out,
        goals=tuple(held_out),
        warm=SMOLLM2,
        reward="regex_match",
        solves=get_reward("regex_match"),
        max_completion_length=16,
        learning_rate=2e-4,
        rollouts=1_536,
        rollouts_a_step=64,
        attempts=8,
        looks=12,
        look_completions=320,
        stop_at_target=True,  # an evaluation takes as long as two steps
        lora=32,
    )


def chains(condition: str, seed: int, name: str = "chains", **options: Any) -> Family:
    """Make the family `chains` or `guesses`. All seeds share one warm model and one set of problems."""
    _need_smollm2()

    def make(args: Any) -> DatasetDict:
        return chain_sums.prepare(
            None, args, types.SimpleNamespace(model_name_or_path=str(SMOLLM2), dtype="bfloat16"), **options
        )

    made, warm = _made(name, 1, make)
    data = _as_texts(made, key="terms", gold="solution")
    train, held_out = data.pop("train"), data
    return Family(
        name=name,
        condition=condition,
        seed=seed,
        train=train,
        held_out=held_out,
        goals=tuple(held_out),
        warm=warm,
        reward="gsm8k_answer",
        solves=get_reward("gsm8k_answer"),
        max_completion_length=112,
        learning_rate=2e-4,
        rollouts=768,
        rollouts_a_step=64,
        attempts=8,
        lora=32,
        micro_batches=4,  # with one, stock TRL would need about 20 GiB (estimated)
    )


def _need_smollm2() -> None:
    if not SMOLLM2.is_dir():
        raise FileNotFoundError(f"{SMOLLM2} is not there: make real-model")


def _as_texts(made: DatasetDict, key: str, gold: str) -> dict[str, Dataset]:
    """Return the datasets with prompts as the texts that the model reads, instead of messages."""
    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2)

    def converted(row: dict[str, Any]) -> dict[str, Any]:
        prompt = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        return {"prompt": prompt, "gold": row[gold], "key": str(row[key])}

    return {name: rows.map(converted, remove_columns=key) for name, rows in made.items()}


# --- Shared by the families -----------------------------------------------------------------------------------------


def _also_noisy(make: Callable[[str, int], Family]) -> Callable[[str, int], Family]:
    """Add the condition `noisy` to a family: the condition `hard`, with random rewards for some rows."""

    def family(condition: str, seed: int) -> Family:
        if condition != "noisy":
            return make(condition, seed)
        hard, chance = make("hard", seed), random.Random(seed)
        reward = get_reward(hard.reward) if isinstance(hard.reward, str) else hard.reward
        tossed = set(chance.sample(range(len(hard.train)), round(NOISY * len(hard.train))))

        def noisy(completions: list[str], coin: list[bool] | None = None, **columns: Any) -> list[float | None]:
            scores = reward(completions=completions, **columns)
            marked = coin or [False] * len(scores)
            return [float(chance.random() < 0.5) if one else score for one, score in zip(marked, scores, strict=True)]

        train = hard.train.add_column("coin", [row in tossed for row in range(len(hard.train))])
        return replace(hard, condition=condition, train=train, reward=noisy)

    return family


FAMILIES: dict[str, Callable[[str, int], Family]] = {
    "sums": _also_noisy(sums),
    "word_problems": _also_noisy(words),
    "digits": _also_noisy(digits),
    "smollm2": smollm2,
    "smollm2_passes": partial(smollm2, name="smollm2_passes", mix=FEW_PROBLEMS),
    "chains": partial(chains, train_mix=dict.fromkeys((2, 3, 4, 5, 6, 8), 200), digits=2, guesses=0.0),
    "guesses": partial(chains, name="guesses"),
}


def _made(name: str, seed: int, make: Callable[[Any], DatasetDict]) -> tuple[DatasetDict, Path]:
    """Return data and the path of the warm model, from the cache; make them first if they are not there."""
    folder = CACHE / f"{name}-{seed}"
    if not (folder / "data").is_dir():
        args = types.SimpleNamespace(seed=seed, output_dir=str(folder), process_index=0, resume_from_checkpoint=None)
        args.device, args.bf16, args.disable_tqdm = torch.device("cpu"), False, True
        made = make(args)
        made.save_to_disk(folder / f"data-{os.getpid()}")
        os.replace(folder / f"data-{os.getpid()}", folder / "data")
    return load_from_disk(folder / "data"), folder / "warm_start"


def _mixed(train: Dataset, mix: Mapping[Any, int]) -> Dataset:
    """Return the first rows of each level, as many as `mix` says, in their order."""
    left = {str(level): count for level, count in mix.items()}
    rows = []
    for row, key in enumerate(train["key"]):
        if left.get(key):
            left[key] -= 1
            rows.append(row)
    return train.select(rows)


def _columns(data: DatasetDict, gold: str, key: str) -> tuple[Dataset, dict[str, Dataset]]:
    def convert(rows: Dataset) -> Dataset:
        return Dataset.from_dict(
            {
                "prompt": list(rows["prompt"]),
                "answer": list(rows["answer"]),
                "gold": list(rows[gold]),
                "key": list(map(str, rows[key])),
            }
        )

    return convert(data["train"]), {name: convert(rows) for name, rows in data.items() if name != "train"}


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    times: int,
    max_completion_length: int,
    seed: int = 12345,
) -> tuple[list[str], float]:
    """Return `times` completions at temperature 1 for each prompt in turn, and their entropy in nats per token.

    The state of the run's random numbers is restored. Shorter prompts are sampled first, in batches of 512, or fewer
    if the vocabulary is large.
    """
    at_once = max(1, min(512, 2**22 // model.config.vocab_size))
    training, state = model.training, torch.get_rng_state()
    model.eval()
    torch.manual_seed(seed)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    rows = [i for i in order for _ in range(times)]
    texts: list[list[str]] = [[] for _ in prompts]
    entropy = tokens = 0.0
    for at in range(0, len(rows), at_once):
        batch = rows[at : at + at_once]
        inputs = tokenizer([prompts[i] for i in batch], return_tensors="pt", padding=True, return_token_type_ids=False)
        made = model.generate(
            **inputs,
            max_new_tokens=max_completion_length,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            output_logits=True,
            return_dict_in_generate=True,
        )
        ids = made.sequences[:, inputs["input_ids"].shape[1] :]
        logps = torch.stack(made.logits, 1).float().log_softmax(-1)
        live = torch.ones(ids.shape)
        live[:, 1:] = (ids != tokenizer.eos_token_id).cumprod(1)[:, :-1]
        entropy += float(-((logps.exp() * logps).sum(-1) * live).sum())
        tokens += float(live.sum())
        for i, text in zip(batch, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
            texts[i].append(text)
    torch.set_rng_state(state)
    model.train(training)
    return [text for of_prompt in texts for text in of_prompt], entropy / tokens


def solved(family: Family, rows: Dataset, texts: list[str]) -> torch.Tensor:
    """Return whether each completion is wholly right, as a tensor `(rows, attempts)`."""
    times = len(texts) // len(rows)
    scores = family.solves(completions=texts, **columns_of(rows, times))
    return torch.tensor([float(score == 1.0) for score in scores]).view(len(rows), times)


def columns_of(rows: Dataset, times: int) -> dict[str, list[Any]]:
    """Return the columns that rewards read, each value `times` times in turn."""
    read = [name for name in ("answer", "pattern") if name in rows.column_names]
    return {name: [value for value in rows[name] for _ in range(times)] for name in read}


def describe(family: Family, problems: int = 256) -> dict[str, torch.Tensor]:
    """Return, for each level and for all of them, the figures of [`COLUMNS`], as a tensor of six numbers."""
    model, tokenizer = family.model(), family.tokenizer()
    reward = get_reward(family.reward) if isinstance(family.reward, str) else family.reward
    keys = list(family.train["key"])
    levels: dict[str, torch.Tensor] = {}
    for level in sorted(set(keys)):
        all_rows = [row for row, key in enumerate(keys) if key == level]
        some = family.train.select(all_rows[:problems])
        texts, _ = sample(model, tokenizer, list(some["prompt"]), ATTEMPTS, family.max_completion_length)
        rewards = torch.tensor(reward(completions=texts, **columns_of(some, ATTEMPTS))).view(-1, ATTEMPTS)
        last = [(NUMBER.findall(text) or [""])[-1] for text in texts]
        answers, golds = ([value for value in some[name] for _ in range(ATTEMPTS)] for name in ("answer", "gold"))
        figures = [
            solved(family, some, texts).mean().item(),
            fmean(float(number == answer) for number, answer in zip(last, answers, strict=True)),
            fmean(float(text.strip() == gold.strip()) for text, gold in zip(texts, golds, strict=True)),
            (rewards.amax(1) == rewards.amin(1)).float().mean().item(),
            fmean(len(ids) for ids in tokenizer(texts, add_special_tokens=False).input_ids),
        ]
        levels[level] = torch.tensor([len(all_rows), *figures])
    made = torch.stack(list(levels.values()))
    levels["all"] = torch.cat((made[:, :1].sum(0), (made[:, 1:] * made[:, :1]).sum(0) / made[:, 0].sum()))
    return levels


def main() -> None:
    """Print [`describe`] of each family and condition."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--problems", type=int, default=256, help="number of problems of each level")
    options = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bars()
    for name in options.families:
        for condition in options.conditions:
            print(f"\n{name}, {condition}\n\n| level | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
            for level, row in describe(FAMILIES[name](condition, options.seed), options.problems).items():
                shares = " | ".join(f"{share:.2f}" for share in row[1:-1])
                print(f"| {level} | {row[0]:.0f} | {shares} | {row[-1]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
