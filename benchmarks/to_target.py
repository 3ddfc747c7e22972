r"""Compare TRL's trainer and ours by held-out accuracy: at equal numbers of rollouts, and by the rollouts to a target.

    python benchmarks/to_target.py --quick                  # minutes
    python benchmarks/to_target.py --jobs 2 --families sums digits                      # hard, all arms: hours
    python benchmarks/to_target.py --jobs 2 --families word_problems --arms matter --seeds 1 2 3
    python benchmarks/to_target.py --jobs 2 --families sums --arms matter --seeds 1 2 3 --conditions \
        easy below_one_epoch
    python benchmarks/to_target.py --jobs 2 --families word_problems --arms by_level --seeds 1 2 3
    python benchmarks/to_target.py --families smollm2 --results benchmarks/results/to_target-smollm2-cpu.jsonl ...
    python benchmarks/to_target.py --report                 # tables and a picture of the runs done so far, no training

An arm is a trainer with its options; `ARMS` lists them. All arms train the same warm model on the same problems
(benchmarks/families.py), with the same number of rollouts per step. TRL's arms are `trl.GRPOTrainer` itself. There are
two measures:

- at a budget: runs with all rollouts of a family, with half and with a quarter of them. In each run the learning rate
  falls to 0 over its own rollouts. The measure is the accuracy at the end: sixteen attempts on each held-out problem
  of the goal.
- to a target: a run at a constant learning rate. Its held-out accuracy is measured twenty times (with a real model:
  twelve times, until the last target is reached). The measure is the number of rollouts at the second of two
  consecutive evaluations that reach the target.

The learning rate of each arm and budget is the better one of `RATES` x the family's rate: the one with the higher mean
accuracy at the end over the picking seeds (1 and 2). Each run appends one line of JSON to the results file. Runs with
a line are not repeated, so the command can be stopped and given again. The evaluations count neither as rollouts nor
as seconds. A run has one thread. Its seconds are wall-clock seconds and processor seconds; other processes lengthen
both, the second less.

The oracle chooses prompts like the other arms, from pools of eight times the prompts that it needs. It is told, at no
cost, the probability that the policy gives to the right completion at that moment.
"""

import argparse
import json
import math
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any


os.environ.update(
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
    HF_DATASETS_DISABLE_PROGRESS_BARS="1",
    TRANSFORMERS_VERBOSITY="error",
    TRL_EXPERIMENTAL_SILENCE="1",
)

import families
import numpy as np
import torch
import transformers
from families import CONDITIONS, FAMILIES, Family
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from trl_grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from trl_grpo_plus.curriculum.indexed_dataset import IndexedRows
from trl_grpo_plus.registry import get_reward
from trl_grpo_plus.trainer import cpu_lm_head


RESULTS = Path("benchmarks/results/to_target-cpu.jsonl")
RATES = (1.0, 2.5)
PICKING = (1, 2)
BUDGETS = {"1": 1.0, "1/2": 0.5, "1/4": 0.25}
CONSTANT = "constant"  # the budget of runs to a target: all rollouts at a constant learning rate
POOL, COOLDOWN, SHUFFLED = 8, 8, 0.1  # of the oracle: pool / prompts needed, steps of rest, share sampled at random


@dataclass(frozen=True)
class Arm:
    """A trainer with its options.

    - `config`: options on top of those that all arms have
    - `trl`: whether it is TRL's trainer
    - `oracle`: whether prompts are chosen by their true pass rate
    - `rewards`: entries of reward_funcs in addition to the family's reward
    - `batches`: the number of batches into which the family's rollouts of a step are divided: with 2 (`small`) half of
      the rollouts make as many batches as all do elsewhere; with 4 (`tiny`) a quarter of them
    - `paired`: whether each step has a random seed of its own. Then two arms with equal weights sample the same
      attempts in a step, whatever random numbers they drew in earlier steps
    """

    config: dict[str, Any]
    trl: bool = False
    oracle: bool = False
    rewards: tuple[Any, ...] = ()
    batches: int = 1
    paired: bool = False

    def a_step(self, family: Family) -> int:
        """Return the number of rollouts in a step."""
        return family.rollouts_a_step // self.batches


def _trl(group: int, **config: Any) -> Arm:
    return Arm({"num_generations": group, **config}, trl=True)


def _plus(group: int, oracle: bool = False, **config: Any) -> Arm:
    return Arm({"num_generations": group, "zero_variance_groups": "drop", **config}, oracle=oracle)


def _belief(group: int, oracle: bool = False, **config: Any) -> Arm:
    return _plus(group, oracle, advantage_baseline="belief", scale_rewards="prior", **config)


def _choice(
    group: int, head: str | None = None, key: str | None = None, pool: int = 8, share: float | None = 0.1
) -> Arm:
    config: dict[str, Any] = {"selection_pool": pool, **({"belief_key": key} if key else {})}
    if head:
        config["belief_head_share"] = share
    return _belief(group, prompt_selection="belief", belief_head=head, **config)


def _by_level(order: str) -> Arm:
    return _belief(2, prompt_selection={"name": "by_column", "args": {"column": "key", "order": order}})


def _floor(floor: float, oldest: bool = False) -> Arm:
    path = f"{Path(__file__).parent / 'likely_floor.py'}:LikelyFloor"
    selection = {"name": path, "args": {"floor": floor, "oldest": oldest}}
    return _belief(2, prompt_selection=selection, belief_key="key")


PLAIN: dict[str, Arm] = {
    "trl-8": _trl(8),
    "trl-4": _trl(4),
    "trl-2": _trl(2),
    "drop-8": _plus(8),
    "drop-4": _plus(4),
    "skip-4": _plus(4, zero_variance_groups="skip"),
    "skip-8": _plus(8, zero_variance_groups="skip"),
    "resample-8": _plus(8, zero_variance_groups="resample", max_resample_rounds=2),
    "belief-4": _belief(4),
    "belief-2": _belief(2),
    "choice-4": _choice(4),
    "choice-2": _choice(2),
    "key-4": _choice(4, key="key"),
    "key-2": _choice(2, key="key"),
    "head-4": _choice(4, head="prompt"),
    "head-2": _choice(2, head="prompt"),
    "head-4-whole": _choice(4, head="prompt", share=None),
    "head-2-whole": _choice(2, head="prompt", share=None),
    "head-2-pool-4": _choice(2, head="prompt", pool=4, share=None),
}
SMALL = {
    f"{name}-{word}": replace(PLAIN[name], batches=batches)
    for word, batches in {"small": 2, "tiny": 4}.items()
    for name in ("trl-8", "trl-4", "trl-2", "choice-2", "key-2", "head-2")
}
ARMS: dict[str, Arm] = {
    **PLAIN,
    **SMALL,
    **{
        f"{name}-{word}": replace(arm, config={**arm.config, "num_iterations": times})
        for word, times in {"twice": 2, "four-times": 4}.items()
        for name, arm in (PLAIN | SMALL).items()
        if arm.batches > 1 or name in ("trl-8", "trl-4", "trl-2", "choice-2", "key-2", "head-2")
    },
    **{f"drop-8-top-p-{top_p}": _plus(8, reward_variance_top_p=top_p) for top_p in (0.9, 0.5)},
    **{f"{name}-paired": replace(PLAIN[name], paired=True) for name in ("trl-4", "skip-4")},
    "oracle-2": _belief(2, oracle=True),
    "oracle-drop-2": _plus(2, oracle=True),
    "easy-first-2": _by_level("easy_first"),
    "hard-first-2": _by_level("hard_first"),
    "interleaved-2": _by_level("interleaved"),
    "key-2-floor-likely-0.1": _floor(0.1),
    "key-2-floor-likely-0.3": _floor(0.3),
    "key-2-floor-oldest-0.3": _floor(0.3, oldest=True),
}
BY_LEVEL = ("easy-first-2", "hard-first-2", "interleaved-2")
FLOORS = tuple(name for name in ARMS if "floor" in name)
PAIRED = tuple(name for name, arm in ARMS.items() if arm.paired)
SEVERAL_STEPS = tuple(name for name, arm in ARMS.items() if "num_iterations" in arm.config)
SETS = {
    "all": tuple(
        name
        for name, arm in ARMS.items()
        if name not in (*BY_LEVEL, *FLOORS, *SEVERAL_STEPS, *PAIRED) and arm.batches == 1
    ),
    "matter": ("trl-8", "trl-4", "trl-2", "belief-2", "head-4", "head-2"),
    "by_level": BY_LEVEL,
    "floors": FLOORS,
    "several_steps": SEVERAL_STEPS,
    "paired": PAIRED,
}


@dataclass(frozen=True)
class Spec:
    """The fields that identify a run and its line in the results file."""

    family: str
    condition: str
    arm: str
    seed: int
    rate: float  # learning rate / the family's
    budget: str
    share: float = field(default=1.0)  # share of the family's rollouts; less than 1 with --quick
    dtype: str = field(default="bfloat16")  # of the weights under an adapter


Line = dict[str, Any]


# --- A run ----------------------------------------------------------------------------------------------------------


class Spent:
    """Rollouts, tokens and seconds of a run. The clocks stand still during evaluations."""

    def __init__(self) -> None:
        self.rollouts = self.generated = self.trained = 0
        self.read = self.read_shared = self.read_by_head = 0
        self.seconds = self.processor = 0.0
        self._since: tuple[float, float] | None = None

    def go(self) -> None:
        self._since = (time.perf_counter(), time.process_time())

    def stop(self) -> None:
        if self._since:
            self.seconds += time.perf_counter() - self._since[0]
            self.processor += time.process_time() - self._since[1]
        self._since = None

    def figures(self) -> Line:
        """Return rollouts, tokens and seconds so far."""
        return {
            "rollouts": self.rollouts,
            "generated_tokens": self.generated,
            "trained_tokens": self.trained,
            "prompt_tokens": self.read,
            "prompt_tokens_shared": self.read_shared,
            "head_tokens": self.read_by_head,
            "seconds": round(self.seconds, 2),
            "processor_seconds": round(self.processor, 2),
        }


class Measured:
    """Mixin for a trainer that counts the rollouts and tokens that are sampled and trained on."""

    spent: Spent
    whole: int  # rollouts of the run
    falls: bool  # whether the learning rate falls to 0
    choose: Callable[[Any, int], list[int]] | None = None

    def _generate_single_turn(self, prompt_ids: Any, *rest: Any, **more: Any) -> Any:
        made = super()._generate_single_turn(prompt_ids, *rest, **more)  # type: ignore[misc]
        if self.model.training:  # type: ignore[attr-defined]
            self.spent.rollouts += len(made[0])
            self.spent.generated += sum(map(len, made[0]))
            self.spent.read += sum(map(len, prompt_ids))
            # An engine that shares prefixes reads the prompt once for all its attempts.
            each = self.num_generations  # type: ignore[attr-defined]
            self.spent.read_shared += sum(map(len, prompt_ids[::each]))
        return made

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        self.spent.trained += int(inputs["completion_mask"].sum())
        return super()._compute_loss(model, inputs)  # type: ignore[misc]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        if self.choose and self.model.training:  # type: ignore[attr-defined]
            each = self.num_generations  # type: ignore[attr-defined]
            rows = self.choose(self.model, len(inputs) // each)  # type: ignore[attr-defined]
            inputs[:] = IndexedRows(self.train_dataset).__getitems__([row for row in rows for _ in range(each)])  # type: ignore[attr-defined]
        return super()._generate_and_score_completions(inputs)  # type: ignore[misc]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Make the learning rate fall by rollouts, because a resampled batch has more of them.

        With batches of equal size and one step on each it is TRL's schedule. With several steps on each batch, those
        after the first have the rate of the next batch, and those of the last batch the rate 0.
        """
        optimizer = self.optimizer if optimizer is None else optimizer  # type: ignore[attr-defined]
        left = (lambda _: max(0.0, 1 - self.spent.rollouts / self.whole)) if self.falls else (lambda _: 1.0)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, left)
        return self.lr_scheduler


class MeasuredTRL(Measured, GRPOTrainer):
    """TRL's trainer, measured."""


class MeasuredPlus(Measured, GRPOPlusTrainer):
    """Our trainer, measured."""

    def _tokenize_prompts(self, prompts: Any, *rest: Any) -> Any:
        made = super()._tokenize_prompts(prompts, *rest)
        if self.reading:
            self.spent.read_by_head += sum(map(len, made[0]))
        return made

    reading = False

    def _prompt_states(self, rows: list[int]) -> Any:
        self.reading = True
        try:
            return super()._prompt_states(rows)
        finally:
            self.reading = False


class Looks(TrainerCallback):
    """Callback that evaluates the model `looks` times, and ends the run when its rollouts are spent."""

    def __init__(self, family: Family, spent: Spent, whole: int, looks: int):
        self.family, self.spent, self.whole, self.looks = family, spent, whole, looks
        self.tokenizer = family.tokenizer()
        self.curve: list[Line] = []

    def _look(self, model: Any) -> None:
        self.spent.stop()
        if self.looks:
            goals = self.family.goals
            times = self.family.look_completions // sum(len(self.family.held_out[goal]) for goal in goals)
            rates = accuracies(self.family, self.tokenizer, model, goals, times)[0]
            self.curve.append({**self.spent.figures(), "accuracy": round(fmean(rates.values()), 4)})
        self.spent.go()

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        self._look(model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        if self.looks and self.spent.rollouts >= len(self.curve) * self.whole / self.looks:
            self._look(model)
        if self.family.stop_at_target and to_target({"curve": self.curve}, TARGETS[self.family.name][-1]):
            control.should_training_stop = True
        if self.spent.rollouts >= self.whole and state.global_step % args.num_iterations == 0:
            control.should_training_stop = True


class SeededSteps(TrainerCallback):
    """A callback that seeds the random numbers at the begin of each step."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.manual_seed(state.global_step)


def accuracies(
    family: Family, tokenizer: Any, model: Any, splits: Iterable[str], times: int
) -> tuple[dict[str, float], dict[str, float], float]:
    """Return accuracy by split, pass@8 by split (0 with fewer than eight attempts), and the mean entropy."""
    rates, pass8, entropies = {}, {}, []
    for split in splits:
        rows = family.held_out[split]
        texts, entropy = families.sample(model, tokenizer, list(rows["prompt"]), times, family.max_completion_length)
        right = families.solved(family, rows, texts)
        rates[split] = round(right.mean().item(), 4)
        failed = (
            [1 - math.comb(times - int(count), 8) / math.comb(times, 8) for count in right.sum(1)]
            if times >= 8
            else [0.0]
        )
        pass8[split] = round(fmean(failed), 4)
        entropies.append(entropy)
    return rates, pass8, fmean(entropies)


class Oracle:
    """Chooses prompts by the probability that the policy gives to the right completion."""

    def __init__(self, family: Family):
        tokenizer = family.tokenizer()
        prompts = tokenizer(list(family.train["prompt"])).input_ids
        golds = tokenizer([gold + tokenizer.eos_token for gold in family.train["gold"]]).input_ids
        self.pairs = list(zip(prompts, golds, strict=True))
        self.pad = tokenizer.pad_token_id
        self.rng = np.random.default_rng(family.seed + 7)
        self.used = np.full(len(self.pairs), -COOLDOWN - 1)
        self.step = 0

    def __call__(self, model: Any, count: int) -> list[int]:
        """Return `count` rows. They are not chosen again for `COOLDOWN` steps."""
        free = np.flatnonzero(self.step - self.used > COOLDOWN)
        pool = self.rng.choice(free, min(POOL * count, len(free)), replace=False)
        rates = self.rates(model, pool)
        best = pool[np.argsort(-rates * (1 - rates))[: round((1 - SHUFFLED) * count)]]
        rest = self.rng.choice(np.setdiff1d(pool, best), count - len(best), replace=False)
        chosen = np.concatenate([best, rest])
        self.used[chosen] = self.step
        self.step += 1
        return [int(row) for row in chosen]

    @torch.no_grad()
    def rates(self, model: Any, rows: np.ndarray) -> np.ndarray:
        """Return the probability of the right completion for each row."""
        pairs = [self.pairs[row] for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(p + g) for p, g in pairs], True, self.pad)
        logps = model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        place = torch.arange(1, ids.shape[1])
        starts, ends = torch.tensor([len(p) for p, _ in pairs]), torch.tensor([len(p) + len(g) for p, g in pairs])
        of_gold = (place >= starts[:, None]) & (place < ends[:, None])
        return (logps * of_gold).sum(1).exp().numpy()


def run(spec: Spec) -> Line:
    """Train a run and return its line."""
    transformers.set_seed(spec.seed)
    family = FAMILIES[spec.family](spec.condition, spec.seed)
    arm = ARMS[spec.arm]
    a_step = arm.a_step(family)
    whole = round(family.rollouts * spec.share * BUDGETS.get(spec.budget, 1.0)) // a_step * a_step
    spent = Spent()
    looks = Looks(family, spent, whole, family.looks if spec.budget == CONSTANT else 0)
    model = family.model(spec.dtype)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = (MeasuredTRL if arm.trl else MeasuredPlus)(
            model=model,
            reward_funcs=[
                get_reward(family.reward) if isinstance(family.reward, str) else family.reward,
                *arm.rewards,
            ],
            args=config_of(family, spec, scratch, whole // a_step),
            train_dataset=family.train,
            processing_class=family.tokenizer(),
            callbacks=[looks],
            peft_config=family.adapter(),
        )
        if arm.trl:
            cpu_lm_head.spare_copies(trainer.model)  # our trainer does this too; it makes TRL's faster
        if arm.paired:
            trainer.add_callback(SeededSteps())
        trainer.remove_callback(PrinterCallback)
        trainer.spent, trainer.whole, trainer.falls = spent, whole, spec.budget != CONSTANT
        if arm.oracle:
            trainer.choose = Oracle(family)
        trainer.train()
        spent.stop()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    model = trainer.model
    rates, pass8, entropy = accuracies(family, looks.tokenizer, model, family.goals, family.attempts)
    others = [split for split in family.held_out if split not in family.goals]
    return {
        **vars(spec),
        **spent.figures(),
        "peak_gib": round(peak, 2),
        "steps": trainer.state.global_step,
        "accuracy": round(fmean(rates.values()), 4),
        "pass@8": round(fmean(pass8.values()), 4),
        "entropy": round(entropy, 4),
        "splits": {**rates, **(accuracies(family, looks.tokenizer, model, others, 2)[0] if others else {})},
        "curve": looks.curve,
    }


def config_of(family: Family, spec: Spec, folder: str, generations: int) -> GRPOConfig:
    """Return the configuration: the options that all arms share, and the arm's own."""
    arm = ARMS[spec.arm]
    common = {
        "output_dir": folder,
        "seed": spec.seed,
        "per_device_train_batch_size": arm.a_step(family) // family.micro_batches,
        "gradient_accumulation_steps": family.micro_batches,
        "max_completion_length": family.max_completion_length,
        "learning_rate": family.learning_rate * spec.rate,
        "max_steps": generations * arm.config.get("num_iterations", 1),
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
    }
    if arm.trl:
        return GRPOConfig(**common, **arm.config)
    return GRPOPlusConfig(**common, **arm.config, trace_every=0, alarms=False)


def missing(name: str) -> str | None:
    """Return why an arm cannot be run with this installation, or `None`."""
    arm = ARMS[name]
    try:
        with tempfile.TemporaryDirectory() as folder:
            (GRPOConfig if arm.trl else GRPOPlusConfig)(
                output_dir=folder, per_device_train_batch_size=8, use_cpu=True, bf16=False, **arm.config
            )
    except (TypeError, ValueError) as error:
        return str(error).splitlines()[0]
    return None


# --- All runs -------------------------------------------------------------------------------------------------------


def read(results: Path) -> list[Line]:
    """Return the lines so far. Skip a line that is not complete."""
    lines = []
    for text in results.read_text().splitlines() if results.is_file() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            print(f"{results}: a line is passed over: {text:.80}", file=sys.stderr)
    return lines


def spec_of(line: Line) -> Spec:
    """Return the run of a line."""
    return Spec(**{name: line[name] for name in Spec.__dataclass_fields__ if name in line})


def picked(lines: Iterable[Line], seeds: Sequence[int] | None = PICKING) -> dict[tuple[Any, ...], float]:
    """Map (family, condition, arm, budget, share) to the rate with the best mean accuracy over `seeds`; `None`: all.

    A rate that fewer picking seeds have tried than another is not picked: its mean may be that of an easy seed.
    """
    tried: dict[tuple[Any, ...], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if seeds is None or line["seed"] in seeds:
            tried[group_of(line)][line["rate"]].append(line["accuracy"])
    return {
        group: max(rates, key=lambda rate: (len(rates[rate]), fmean(rates[rate]))) for group, rates in tried.items()
    }


def group_of(line: Line) -> tuple[Any, ...]:
    """Return the fields of a run for which one rate is picked."""
    return tuple(line[name] for name in ("family", "condition", "arm", "budget", "share"))


def wanted(options: argparse.Namespace, arms: list[str], seeds: Iterable[int]) -> Iterator[Spec]:
    """Yield the runs of these seeds, all with the rate 1; the caller sets the rate."""
    for seed in seeds:
        for family in options.families:
            for condition in options.conditions:
                for budget in options.budgets:
                    for arm in arms:
                        yield Spec(family, condition, arm, seed, 1.0, budget, options.share, options.dtype)


def run_all(specs: list[Spec], results: Path, jobs: int) -> int:
    """Run what has no line yet, each run in its own process; return the number of runs that failed."""
    done = {spec_of(line) for line in read(results)}
    todo = [spec for spec in specs if spec not in done]
    made = list(dict.fromkeys((spec.family, spec.seed) for spec in todo))
    conditions = sorted({spec.condition for spec in todo})
    _in_turn([partial(prepare, *one, conditions) for one in made], jobs)
    print(f"{len(todo)} runs to do, {len(specs) - len(todo)} there already", flush=True)
    return _in_turn([partial(write, spec, results) for spec in todo], jobs)


def prepare(family: str, seed: int, conditions: list[str]) -> None:
    """Make the data and the warm models that are not in the cache."""
    start = time.process_time()
    for condition in conditions:
        FAMILIES[family](condition, seed)
    print(f"{family}, seed {seed}: ready, {time.process_time() - start:.0f} s of the processor", flush=True)


def write(spec: Spec, results: Path) -> None:
    """Run a spec, and append its line to the results file."""
    line = run(spec)
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(
        f"{spec.family} {spec.condition} {spec.arm} seed {spec.seed} rate x{spec.rate} budget {spec.budget}: "
        f"{line['accuracy']:.3f}, {line['rollouts']} rollouts, {line['processor_seconds']:.0f} s of the processor",
        flush=True,
    )


def _in_turn(works: list[Callable[[], None]], jobs: int) -> int:
    # Fork: a run takes seconds, and importing everything in a new process would take as long.
    context = multiprocessing.get_context("fork")
    waiting, failed = list(reversed(works)), 0
    running: list[Any] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(context.Process(target=waiting.pop()))
            running[-1].start()
        time.sleep(0.05)
        failed += sum(bool(process.exitcode) for process in running if not process.is_alive())
        running = [process for process in running if process.is_alive()]
    return failed


# --- The report -----------------------------------------------------------------------------------------------------


def to_target(line: Line, target: float) -> Line | None:
    """Return the second of two consecutive evaluations with the target accuracy, `None` if there is none."""
    for before, look in zip(line["curve"], line["curve"][1:], strict=False):
        if min(before["accuracy"], look["accuracy"]) >= target:
            return look
    return None


def spread(values: list[float], digits: int = 3) -> str:
    """Return mean, standard deviation and median as text."""
    if not values:
        return "-"
    off = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{off} ({median(values):.{digits}f})"


def report(lines: list[Line], picture: Path | None) -> str:
    """Return tables in Markdown for each family and condition, and draw the picture."""
    rates = picked(lines, None) | picked(lines)  # a file may have later seeds alone
    kept = [line for line in lines if rates.get(group_of(line)) == line["rate"]]
    places = sorted({(line["family"], line["condition"]) for line in kept})
    texts = []
    for place in places:
        here = [line for line in kept if (line["family"], line["condition"]) == place]
        targets = TARGETS[place[0]]
        texts.append(f"### {place[0]}, {place[1]}\n\n{_accuracy_table(here, rates)}")
        if all("prompt_tokens" in line for line in here):
            texts.append(_costs_table(here))
        if any(line["budget"] == CONSTANT for line in here):
            texts.append(_target_table(here, targets))
    if picture and places:
        draw(kept, places, picture)
    return "\n\n".join(texts)


def _arms_of(lines: list[Line]) -> list[str]:
    there = {line["arm"] for line in lines}
    return [arm for arm in ARMS if arm in there]


def _accuracy_table(lines: list[Line], rates: dict[tuple[Any, ...], float]) -> str:
    budgets = [budget for budget in BUDGETS if any(line["budget"] == budget for line in lines)]
    head = [f"{budget} of the rollouts" for budget in budgets]
    more = [
        "rate x",
        "seeds",
        "rollouts",
        "tokens generated",
        "trained",
        "seconds",
        "of the processor",
        "entropy",
        "pass@8",
    ]
    rows = [["arm", *head, *more]]
    for arm in _arms_of(lines):
        of_arm = {b: [line for line in lines if line["arm"] == arm and line["budget"] == b] for b in budgets}
        fullest = next((of_arm[budget] for budget in budgets if of_arm[budget]), [])
        if not fullest:
            continue
        mean = {
            name: fmean(line[name] for line in fullest) for name in ("rollouts", "generated_tokens", "trained_tokens")
        }
        used = "/".join(f"{rates[group_of(of_arm[b][0])]:g}" for b in budgets if of_arm[b])
        rows.append(
            [
                arm,
                *(spread([line["accuracy"] for line in of_arm[budget]]) for budget in budgets),
                *(used, str(len(fullest)), *(f"{mean[name]:,.0f}" for name in mean)),
                f"{median(line['seconds'] for line in fullest):.1f}",
                f"{median(line['processor_seconds'] for line in fullest):.1f}",
                f"{fmean(line['entropy'] for line in fullest):.3f}",
                f"{fmean(line['pass@8'] for line in fullest):.3f}",
            ]
        )
    return _table(rows)


def _costs_table(lines: list[Line]) -> str:
    """Return a table of the costs of each arm and budget: means over the seeds, medians for processor seconds."""
    paid = {
        "attempts": "rollouts",
        "tokens generated": "generated_tokens",
        "prompt tokens": "prompt_tokens",
        "prefixes shared": "prompt_tokens_shared",
        "read by the head": "head_tokens",
        "trained": "trained_tokens",
    }
    rows = [["arm", "budget", "accuracy", *paid, "processor s", "peak GiB", "tokens an attempt", "entropy", "pass@8"]]
    for arm in _arms_of(lines):
        for budget in (*BUDGETS, CONSTANT):
            runs = [line for line in lines if (line["arm"], line["budget"]) == (arm, budget)]
            if not runs:
                continue
            mean = {
                name: fmean(run[name] for run in runs)
                for name in ("accuracy", *paid.values(), "peak_gib", "entropy", "pass@8")
            }
            rows.append(
                [
                    arm,
                    budget,
                    f"{mean['accuracy']:.3f}",
                    *(f"{mean[name]:,.0f}" for name in paid.values()),
                    f"{median(run['processor_seconds'] for run in runs):,.0f}",
                    f"{mean['peak_gib']:.1f}",
                    f"{mean['generated_tokens'] / mean['rollouts']:.1f}",
                    f"{mean['entropy']:.2f}",
                    f"{mean['pass@8']:.2f}",
                ]
            )
    return _table(rows)


def _target_table(lines: list[Line], targets: tuple[float, float]) -> str:
    names = ("rollouts", "generated_tokens", "trained_tokens", "processor_seconds")
    rows = [["constant rate: arm", *(f"{name.replace('_', ' ')} to {t:.0%}" for t in targets for name in names)]]
    for arm in _arms_of(lines):
        runs = [line for line in lines if line["arm"] == arm and line["budget"] == CONSTANT]
        if not runs:
            continue
        cells = []
        for target in targets:
            looks = [to_target(line, target) for line in runs]
            for name in names:
                # A run that never reaches the target counts as one that takes longer than any other.
                reached = sorted(look[name] if look else math.inf for look in looks)
                middle = median(reached)
                cells.append(f"{_count(middle)} [{_count(reached[0])}, {_count(reached[-1])}]")
        rows.append([arm, *cells])
    return _table(rows)


def _count(number: float) -> str:
    return "never" if math.isinf(number) else f"{number:,.0f}"


def _table(rows: list[list[str]]) -> str:
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def draw(lines: list[Line], places: list[tuple[str, str]], picture: Path) -> None:
    """Draw accuracy against rollouts, a panel for each family and condition."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(places), 4.2), layout="constrained")
    for panel, place in zip(figure.subplots(1, len(places), squeeze=False)[0], places, strict=True):
        here = [line for line in lines if (line["family"], line["condition"]) == place and line["budget"] in BUDGETS]
        for number, arm in enumerate(_arms_of(here)):
            points = []
            for budget in BUDGETS:
                runs = [line for line in here if line["arm"] == arm and line["budget"] == budget]
                if runs:
                    points.append((fmean(r["rollouts"] for r in runs), fmean(r["accuracy"] for r in runs)))
            style = "--" if ARMS[arm].trl else ":" if ARMS[arm].oracle else "-"
            panel.plot(
                *zip(*sorted(points), strict=True), style, marker="o", markersize=4, color=f"C{number % 10}", label=arm
            )
        panel.set(
            title=f"{place[0]}, {place[1]}", xlabel="rollouts", ylabel="held-out accuracy at the end", xscale="log"
        )
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    figure.savefig(picture, dpi=130)


# --- The command ----------------------------------------------------------------------------------------------------

TARGETS = {
    "sums": (0.8, 0.9),
    "word_problems": (0.4, 0.5),
    "digits": (0.55, 0.7),
    "smollm2": (0.3, 0.4),
    "smollm2_passes": (0.3, 0.4),
    "chains": (0.5, 0.6),
    "guesses": (0.3, 0.4),
}


def run_options(parser: argparse.ArgumentParser, results: Path, quick: str) -> None:
    """Add the options of a command that runs what has no line yet."""
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of each family's rollouts; give each a results file"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at the same time, each in its own process")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--report", action="store_true", help="run nothing; report on the results file")
    parser.add_argument("--results", type=Path, default=results, help="results file: one line of JSON per run")


def settle() -> None:
    """Use one thread, and silence warnings and progress bars."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.utils.logging.disable_progress_bar()


def main() -> int:
    """Run what has no line yet, then report; with `--report` only report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=["hard"])
    parser.add_argument("--arms", nargs="+", choices=[*SETS, *ARMS], default=["all"], help="arms, or sets of arms")
    parser.add_argument("--budgets", nargs="+", choices=[*BUDGETS, CONSTANT], default=[*BUDGETS, CONSTANT])
    parser.add_argument(
        "--rates", nargs="+", type=float, default=list(RATES), help="learning rates, as multiples of the family's"
    )
    parser.add_argument(
        "--dtype",
        choices=["bfloat16", "float32"],
        default="bfloat16",
        help="dtype of the weights under an adapter; a processor without bfloat16 instructions is faster with "
        "float32. Give each dtype a results file of its own (default: %(default)s)",
    )
    run_options(parser, RESULTS, "sums, a fifth of the rollouts, one seed and rate")
    options = parser.parse_args()
    if options.quick:
        options.families, options.seeds, options.rates, options.share = ["sums"], [1], [1.0], 0.2
        options.arms, options.budgets = ["matter", "drop-8", "resample-8"], ["1", "1/2"]
        options.results = Path("outputs/to_target-quick.jsonl")
    settle()
    failed = 0
    if not options.report:
        named = list(dict.fromkeys(arm for name in options.arms for arm in SETS.get(name, (name,))))
        reasons = {arm: missing(arm) for arm in named}
        for arm, reason in reasons.items():
            if reason:
                print(f"{arm} is left out: {reason}", file=sys.stderr)
        arms = [arm for arm in named if not reasons[arm]]
        first = [seed for seed in options.seeds if seed in PICKING]
        specs = [Spec(**{**vars(s), "rate": r}) for s in wanted(options, arms, first) for r in options.rates]
        failed += run_all(specs, options.results, options.jobs)
        rates = picked(read(options.results))
        later = [seed for seed in options.seeds if seed not in PICKING]
        specs = [
            Spec(**{**vars(s), "rate": rates.get(group_of(vars(s)), options.rates[0])})
            for s in wanted(options, arms, later)
        ]
        failed += run_all(specs, options.results, options.jobs)
    if lines := read(options.results):
        tables = report(lines, options.results.with_suffix(".png"))
        options.results.with_suffix(".md").write_text(f"{tables}\n")
        print(tables)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
