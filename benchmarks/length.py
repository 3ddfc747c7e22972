r"""Measure what length costs a real model on a task that it works out line by line: sums of many terms.

    make real-model
    python benchmarks/length.py --arms key-2 belief-2          # 12 steps each: half an hour on one core
    python benchmarks/length.py --report

It runs the family `chains` (benchmarks/families.py), writes a line of JSON per step, and prints two tables of three
measures:

- behind: the share of generated tokens that come after the answer, `#### 20`. A stop string would save them.
- length: tokens per attempt, and terms of the sampled problems. `key-2` chooses its prompts, `belief-2` samples them
  in shuffled order.
- kept: the share of tokens of earlier attempts, 1 to 8 steps old, that a speculative test would keep. It keeps token t
  if u <= pi_now / pi_then for this token and for all tokens before it, with u uniform. The expected share is the mean
  over tokens of the product of min(1, pi_now / pi_then) up to t. Each age needs one forward pass without gradient.
"""

import argparse
import json
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import to_target
import torch
import transformers
from families import FAMILIES
from to_target import ARMS, Looks, MeasuredPlus, Spec, Spent, config_of, settle
from transformers import PrinterCallback

from trl_grpo_plus.registry import get_reward


RESULTS = Path("benchmarks/results/length-cpu.jsonl")
AGES = (1, 2, 4, 8)
ROWS = 16  # attempts of a step that are kept for later steps
MARKER = re.compile(r"#### -?[0-9]+")
Attempts = list[tuple[list[int], list[int], torch.Tensor]]  # prompt, completion, log-probs (T,) when it was sampled


class Watched(MeasuredPlus):
    """Our trainer, which also makes a line for each batch that it samples."""

    lines: list[dict[str, Any]]
    earlier: list[Attempts]
    terms: dict[str, str]  # prompt -> its number of terms

    def _generate_single_turn(self, prompt_ids: Any, *rest: Any, **more: Any) -> Any:
        made = super()._generate_single_turn(prompt_ids, *rest, **more)
        if self.model.training:
            self._look(prompt_ids, made[0])
        return made

    def _look(self, prompts: list[list[int]], completions: list[list[int]]) -> None:
        tokenizer, ends = self.processing_class, self.processing_class.eos_token_id
        behind = 0
        for ids in completions:
            text = tokenizer.decode(ids, skip_special_tokens=True)
            if found := MARKER.search(text):
                behind += len(tokenizer(text[found.end() :], add_special_tokens=False).input_ids)
        asked = [int(self.terms[tokenizer.decode(ids)]) for ids in prompts]
        self.lines.append(
            {
                "step": self.state.global_step,
                "tokens": sum(map(len, completions)),
                "behind": behind,
                "attempts": len(completions),
                "cut_off": sum(ids[-1] != ends for ids in completions),
                "terms": fmean(asked),
                "length_by_terms": _by(asked, [len(ids) for ids in completions]),
                "kept": {age: _kept(self.model, self.earlier[-age]) for age in AGES if age <= len(self.earlier)},
            }
        )
        some = list(zip(prompts, completions, strict=True))[:: max(1, len(prompts) // ROWS)]
        self.earlier.append([(*one, logps(self.model, *one)) for one in some])


def _by(groups: list[int], values: list[int]) -> dict[int, float]:
    sorted_values: dict[int, list[int]] = defaultdict(list)
    for group, value in zip(groups, values, strict=True):
        sorted_values[group].append(value)
    return {group: round(fmean(sorted_values[group]), 1) for group in sorted(sorted_values)}


@torch.no_grad()
def logps(model: Any, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """Return the log-probabilities of a completion's tokens, `(T,)`."""
    ids = torch.tensor([prompt + completion])
    logits = model(input_ids=ids, logits_to_keep=len(completion) + 1).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]


def _kept(model: Any, attempts: Attempts) -> float:
    kept = tokens = 0.0
    for prompt, completion, then in attempts:
        ratios = (logps(model, prompt, completion) - then).clamp(max=0)
        kept += float(ratios.cumsum(0).exp().sum())
        tokens += len(completion)
    return round(kept / tokens, 4)


def run(arm: str, seed: int) -> list[dict[str, Any]]:
    """Train one run and return its lines."""
    transformers.set_seed(seed)
    family = FAMILIES["chains"]("hard", seed)
    spec = Spec("chains", "hard", arm, seed, 1.0, "1")
    spent = Spent()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Watched(
            model=family.model(),
            reward_funcs=[get_reward("gsm8k_answer")],
            args=config_of(family, spec, scratch, family.rollouts // family.rollouts_a_step),
            train_dataset=family.train,
            processing_class=family.tokenizer(),
            callbacks=[Looks(family, spent, family.rollouts, 0)],
            peft_config=family.adapter(),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.spent, trainer.whole, trainer.falls = spent, family.rollouts, True
        trainer.lines, trainer.earlier = [], []
        trainer.terms = dict(zip(family.train["prompt"], family.train["key"], strict=True))
        trainer.train()
    return [{"arm": arm, "seed": seed, **line} for line in trainer.lines]


def report(lines: list[dict[str, Any]]) -> str:
    """Return two tables in Markdown."""
    arms = list(dict.fromkeys(line["arm"] for line in lines))
    third = max(line["step"] for line in lines) // 3 + 1
    head = ["arm", "steps", "tokens an attempt", "terms", "behind the answer", "cut off"]
    rows = [head]
    for arm in arms:
        for first in range(0, 3 * third, third):
            some = [line for line in lines if line["arm"] == arm and first <= line["step"] < first + third]
            if not some:
                continue
            tokens, attempts = (sum(line[name] for line in some) for name in ("tokens", "attempts"))
            rows.append(
                [
                    arm,
                    f"{some[0]['step'] + 1} to {some[-1]['step'] + 1}",
                    f"{tokens / attempts:.1f}",
                    f"{fmean(line['terms'] for line in some):.2f}",
                    f"{sum(line['behind'] for line in some) / tokens:.1%}",
                    f"{sum(line['cut_off'] for line in some) / attempts:.1%}",
                ]
            )
    kept = [["arm", *(f"{age} steps old" for age in AGES)]]
    for arm in arms:
        of_age = [
            [line["kept"][str(age)] for line in lines if line["arm"] == arm and str(age) in line["kept"]]
            for age in AGES
        ]
        kept.append([arm, *(f"{fmean(shares):.3f}" if shares else "-" for shares in of_age)])
    return f"{to_target._table(rows)}\n\nShare of tokens that are kept:\n\n{to_target._table(kept)}"


def main() -> int:
    """Run what has no lines yet, then report; with `--report` only report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arms", nargs="+", choices=[arm for arm in ARMS if not ARMS[arm].trl], default=["key-2"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--report", action="store_true", help="run nothing; report on the results file")
    parser.add_argument("--results", type=Path, default=RESULTS, help="results file: one line of JSON per step")
    options = parser.parse_args()
    settle()
    lines = to_target.read(options.results)
    for arm in [] if options.report else options.arms:
        for seed in options.seeds:
            if not any((line["arm"], line["seed"]) == (arm, seed) for line in lines):
                made = run(arm, seed)
                with options.results.open("a") as file:
                    file.writelines(json.dumps(line) + "\n" for line in made)
    if lines := to_target.read(options.results):
        print(report(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
