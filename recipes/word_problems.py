r"""Word problems for a word-level model made from scratch: a chain of one to six steps, solved line by line.

    Mia has 4 apples. She buys 5 more apples. She gives 3 apples to Tom. How many apples does Mia have now?

    buys: 4 + 5 = 9
    gives: 9 - 3 = 6
    #### 6

The warm-up trains the model on worked solutions with mistakes. The first line of a solution is nearly always right.
The sixth line is too large by a few in three of four solutions. Each line continues from the result of the line above.
The pass rate therefore falls with the number of steps, from nine in ten to one in fifty or less. Only the answer is
rewarded.
"""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from tokenizers import Regex
from tokenizers.decoders import Fuse, Replace, WordPiece
from tokenizers.decoders import Sequence as InTurn
from tokenizers.pre_tokenizers import Split
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from .dataset_helpers import numbered_mix
from .warm_start import EOS, PAD, WarmUp, llama, one_thread, padded, seeded, start_from, teach, word_level


MOST_STEPS = 6
RIGHT = (0.99, 0.8, 0.6, 0.5, 0.4, 0.25)  # share of right results in the warm-up's first lines, second lines, ...
SLIPS = (3, 4, 5)  # added to a wrong result: two slips never cancel each other, and no division hides a slip
HELD_OUT = 64  # problems in each eval split
TRAIN_MIX = dict.fromkeys(range(1, MOST_STEPS + 1), 192)  # number of steps -> problems in the train split
LARGEST = 60  # largest correct intermediate result; with slips a result may be larger, at most 99

GIRLS = ("Mia", "Ada", "Eva", "Zoe", "Lea", "Ivy", "Nora", "Rosa")
BOYS = ("Tom", "Ben", "Max", "Sam", "Leo", "Jon", "Finn", "Omar")
THINGS = (
    "apples",
    "pears",
    "plums",
    "lemons",
    "eggs",
    "nuts",
    "cakes",
    "rolls",
    "coins",
    "cards",
    "books",
    "pens",
    "stamps",
    "shells",
    "stones",
    "beads",
    "marbles",
    "ribbons",
    "buttons",
    "candles",
)
HOLDERS = ("bags", "boxes", "jars", "bowls", "baskets")
EVENTS = {  # sign -> verbs -> the rest of the sentence
    "+": {
        "buys finds makes earns wins borrows collects orders": "{n} more {things}",
        "gets takes receives": "{n} {things} from {friend}",
    },
    "-": {
        "loses sells drops breaks uses hides returns": "{n} {things}",
        "gives lends sends brings": "{n} {things} to {friend}",
    },
    "*": {"swaps trades bargains": "for {n} times as many", "fills": "{n} {holders} with as many each"},
    "/": {
        "splits sorts packs": "them into {n} equal {holders} and keeps one",
        "shares": "them among {n} friends and keeps one part",
    },
}
SENTENCES = {
    sign: [(verb, f"{verb} {rest}") for verbs, rest in events.items() for verb in verbs.split()]
    for sign, events in EVENTS.items()
}
OPERANDS = {"+": range(2, 10), "-": range(2, 10), "*": range(2, 4), "/": range(2, 4)}


@dataclass(frozen=True)
class Problem:
    """A word problem: its text, the number at the start, and (verb, sign, number) for each step."""

    text: str
    start: int
    steps: tuple[tuple[str, str, int], ...]


def prepare(
    script_args: Any,
    training_args: Any,
    model_args: Any,
    *,
    train_mix: Mapping[int | str, int] | None = None,
    layers: int = 3,
    hidden_size: int = 192,
    heads: int = 6,
    warm_steps: int = 700,
    warm_batch: int = 48,
    warm_rate: float = 3e-3,
    smoke: bool = False,
) -> DatasetDict:
    """Make the problems and the model. The script's `prepare` option calls this function.

    The model is written to `<output_dir>/warm_start`, and `model_args.model_name_or_path` is set to this folder. Only
    the main process makes the model; the other processes must call this function after it. A run that resumes uses
    the model beside its checkpoint, or else the model in `<output_dir>/warm_start`.

    Args:
        script_args, training_args, model_args: the dataclasses that the script's parser returns.
        train_mix (`Mapping[int, int]`, *optional*): number of steps (1 to 6) -> problems to train on; by default 192
            each.
        layers (`int`, *optional*, defaults to 3), hidden_size (`int`, *optional*, defaults to 192), heads (`int`,
            *optional*, defaults to 6): size of the model, which has about 10 x layers x hidden_size^2 parameters.
        warm_steps (`int`, *optional*, defaults to 700), warm_batch (`int`, *optional*, defaults to 48), warm_rate
            (`float`, *optional*, defaults to 3e-3): steps of the warm-up, lessons in each, highest learning rate.
        smoke (`bool`, *optional*, defaults to `False`): skip the warm-up, because an untrained model is enough.

    Returns:
        `DatasetDict`: `train` (all numbers of steps mixed) and the held-out `steps_1` to `steps_6`, each with the
        columns `prompt`, `answer` ("6"), `steps` (an integer) and `solution` (the worked lines).

    Raises:
        ConfigError: `train_mix` has a key that is not 1 to 6, a value that is no whole number >= 0, or only zeros. Or
            a number of the warm-up is out of its bounds.
    """
    mix = numbered_mix(TRAIN_MIX if train_mix is None else train_mix, "steps", MOST_STEPS)
    one_thread(training_args)
    held_out, train, rest = split_problems(training_args.seed, mix)
    warm_up = WarmUp(warm_steps, warm_batch, warm_rate)

    def make() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
        """Make the model, and warm it up on lessons."""
        tokenizer = make_tokenizer()
        with seeded(training_args.seed):
            model = make_model(tokenizer, layers, hidden_size, heads)
        if warm_up.steps and not smoke:
            lessons = make_lessons(rest, training_args.seed, warm_up.steps * warm_up.batch)
            teach(model, _batches(tokenizer, lessons, warm_up.batch), warm_up.rate, training_args, 0.1)
        return model, tokenizer

    start_from(training_args, model_args, make)
    splits = {f"steps_{steps}": problems for steps, problems in held_out.items()}
    return DatasetDict({name: _dataset(problems) for name, problems in {"train": train, **splits}.items()})


def split_problems(
    seed: int, mix: Mapping[int, int]
) -> tuple[dict[int, list[Problem]], list[Problem], Iterator[Problem]]:
    """Return held-out problems by steps, training problems, and other problems without end.

    No text is in two of the three.
    """
    rng = random.Random(seed)
    taken: set[str] = set()

    def fresh(steps: int) -> Problem:
        """Invent a problem that is in no set."""
        while (problem := invent(rng, steps)).text in taken:
            pass
        return problem

    def some(steps: int, count: int) -> list[Problem]:
        """Invent problems with `steps` steps for one set."""
        made = []
        for _ in range(count):
            made.append(fresh(steps))
            taken.add(made[-1].text)
        return made

    held_out = {steps: some(steps, HELD_OUT) for steps in TRAIN_MIX}
    train = [problem for steps, count in mix.items() for problem in some(steps, count)]
    rng.shuffle(train)
    return held_out, train, (fresh(rng.choice(list(TRAIN_MIX))) for _ in iter(int, 1))


def invent(rng: random.Random, steps: int) -> Problem:
    """Make a problem with `steps` steps, whose correct results are all from 1 to 60, and in which no verb repeats."""
    girl = rng.random() < 0.5
    name, friend = rng.choice(GIRLS if girl else BOYS), rng.choice(BOYS if girl else GIRLS)
    things, who = rng.choice(THINGS), "She" if girl else "He"
    start = now = rng.randrange(2, 21)
    sentences = [f"{name} has {start} {things}."]
    done: list[tuple[str, str, int]] = []
    while len(done) < steps:
        sign = rng.choice("++--*/")
        n, (verb, event) = rng.choice(OPERANDS[sign]), rng.choice(SENTENCES[sign])
        after = apply(now, sign, n)
        whole = sign != "/" or now % n == 0
        if whole and 1 <= after <= LARGEST and all(verb != earlier for earlier, *_ in done):
            happens = event.format(n=n, things=things, holders=rng.choice(HOLDERS), friend=friend)
            sentences.append(f"{who} {happens}.")
            done.append((verb, sign, n))
            now = after
    sentences.append(f"How many {things} does {name} have now?\n")
    return Problem(" ".join(sentences), start, tuple(done))


def apply(number: int, sign: str, n: int) -> int:
    """Return `number + n`, `number - n`, `number * n` or the whole part of `number / n`."""
    return {"+": number + n, "-": number - n, "*": number * n, "/": number // n}[sign]


def work_out(problem: Problem, rng: random.Random | None = None) -> tuple[str, int]:
    """Return the solution line by line, and its answer. With `rng`, the solution has the warm-up's mistakes."""
    lines, now = [], problem.start
    for (verb, sign, n), right in zip(problem.steps, RIGHT, strict=False):
        after = apply(now, sign, n)
        if rng and rng.random() > right:
            after += rng.choice(SLIPS)
        after = min(max(after, 0), 99)
        lines.append(f"{verb}: {now} {sign} {n} = {after}\n")
        now = after
    return f"{''.join(lines)}#### {now}", now


def make_lessons(problems: Iterator[Problem], seed: int, count: int) -> list[tuple[str, str]]:
    """Return `count` problem texts with their solutions, which have mistakes."""
    rng = random.Random(seed)
    return [(problem.text, work_out(problem, rng)[0]) for problem, _ in zip(problems, range(count), strict=False)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token for each word, number, sign and line end, padded on the left."""
    templates = " ".join(event for events in SENTENCES.values() for _, event in events)
    # The last two are for the gold answers that `trl-grpo-plus check` plants. No lesson has them.
    words = rf"{templates} She He has How many does have now . ? : = + - * / #### \boxed{{ }}".split()
    words = [word for word in words if not re.search(r"\{\w", word)]
    words += [*GIRLS, *BOYS, *THINGS, *HOLDERS, *map(str, range(100))]
    split = Split(Regex(r"\n|[.?:}]|\\boxed\{|[^\s.?:}]+"), "removed", invert=True)
    # A space between words, but none before a full stop or colon, and none around a line end.
    tight = [Replace(f" {sign}", sign) for sign in (":", "\n")]
    decoder = InTurn([WordPiece(prefix=PAD), Fuse(), *tight, Replace("\n ", "\n")])
    return word_level(["\n", *words], split, decoder)


def make_model(
    tokenizer: PreTrainedTokenizerFast, layers: int = 3, hidden_size: int = 192, heads: int = 6
) -> LlamaForCausalLM:
    """Make an untrained Llama, by default with three layers and 1.2 million parameters."""
    return llama(tokenizer, layers, hidden_size, heads, positions=192, spread=0.05, theta=1000.0)


def _batches(
    tokenizer: PreTrainedTokenizerFast, lessons: list[tuple[str, str]], size: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    # Lessons are sorted by length within eight batches: this saves padding, and the order stays mixed.
    texts = [
        tokenizer([prompt for prompt, _ in lessons]).input_ids,
        tokenizer([s + EOS for _, s in lessons]).input_ids,
    ]
    pairs = list(zip(*texts, strict=True))
    rng = random.Random(0)
    batches = []
    for at in range(0, len(pairs), 8 * size):
        near = sorted(pairs[at : at + 8 * size], key=lambda pair: len(pair[0]) + len(pair[1]))
        cut = [near[i : i + size] for i in range(0, len(near), size)]
        batches += [padded(batch, tokenizer.pad_token_id) for batch in rng.sample(cut, len(cut))]
    return batches


def _dataset(problems: list[Problem]) -> Dataset:
    solved = [work_out(problem) for problem in problems]
    return Dataset.from_dict(
        {
            "prompt": [problem.text for problem in problems],
            "answer": [str(answer) for _, answer in solved],
            "steps": [len(problem.steps) for problem in problems],
            "solution": [solution for solution, _ in solved],
        }
    )
