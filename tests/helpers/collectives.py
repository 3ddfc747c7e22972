"""A count of a generation batch's collectives: their kinds, their bytes, and whether TRL or this package calls them.

`counted` wraps the functions of `torch.distributed` that Python code calls. DistributedDataParallel sums gradients and
copies buffers in C++, so those collectives are not counted.
"""

import functools
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import tiny_models
import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOTrainer

from trl_grpo_plus import GRPOPlusTrainer
from trl_grpo_plus.registry import Step


TENSORS, OBJECTS, EXCHANGES = "tensor gathers", "object gathers", "exchanges"
BROADCASTS, SUMS, BARRIERS = "broadcasts", "sums", "barriers"
KINDS = {
    **dict.fromkeys(("all_gather", "all_gather_into_tensor"), TENSORS),
    **dict.fromkeys(("all_gather_object", "gather"), OBJECTS),
    **dict.fromkeys(("broadcast", "broadcast_object_list", "scatter", "scatter_object_list"), BROADCASTS),
    **dict.fromkeys(("all_to_all", "all_to_all_single"), EXCHANGES),
    **dict.fromkeys(("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"), SUMS),
    **dict.fromkeys(("barrier", "monitored_barrier"), BARRIERS),
}
OURS, THEIRS = "ours", "theirs"


@dataclass(frozen=True)
class Call:
    """One collective on one rank: the bytes that this rank sends, and the bytes that it gets from other ranks."""

    kind: str
    owner: str
    site: str
    sent: int
    got: int


@contextmanager
def counted(calls: list[Call]) -> Iterator[None]:
    """Add each collective of this process to `calls`."""
    with ExitStack() as stack:
        for name, kind in KINDS.items():
            original = getattr(torch.distributed, name)
            stack.enter_context(mock.patch.object(torch.distributed, name, _counting(original, name, kind, calls)))
        yield


def _counting(original: Callable[..., Any], name: str, kind: str, calls: list[Call]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        owner, site = _caller()
        result = original(*args, **kwargs)
        calls.append(Call(kind, owner, site, *_bytes(name, args, kwargs)))
        return result

    return call


def _caller() -> tuple[str, str]:
    """Return who makes the call, `OURS` or `THEIRS`, and the function that makes it.

    The nearest frame of this package, of TRL or of transformers decides. Frames of this package's `utils` are passed
    over, so that the function that called them is named.
    """
    owner = ""
    frame = sys._getframe(2)
    while frame is not None:
        parts = Path(frame.f_code.co_filename).parts
        package = next((part for part in reversed(parts[:-1]) if part in ("trl_grpo_plus", "trl", "transformers")), "")
        if package:
            owner = OURS if package == "trl_grpo_plus" else THEIRS
            within = parts[len(parts) - parts[::-1].index(package) :]
            if owner == THEIRS or within[0] != "utils":
                return owner, f"{'/'.join(within)}:{frame.f_code.co_name}"
        frame = frame.f_back
    return owner or THEIRS, "another module"


def _bytes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes that the operation sends and gets, without what a ring or tree algorithm would repeat."""
    rank, others = torch.distributed.get_rank(), torch.distributed.get_world_size() - 1
    first = args[0] if args else None
    if name == "all_gather":
        return _size(args[1]), sum(map(_size, first)) - _size(args[1])
    if name == "all_gather_into_tensor":
        return _size(args[1]), _size(first) - _size(args[1])
    if name == "all_gather_object":  # each object is padded to the longest
        return _pickled(args[1]), others * max(map(_pickled, first))
    if name == "gather":
        return _size(first), others * _size(first) if args[1] else 0
    if name == "all_to_all_single":
        coming, going = args[2:]
        return sum(going) - going[rank], sum(coming) - coming[rank]
    if name in ("broadcast", "broadcast_object_list"):
        size = _size(first) if name == "broadcast" else sum(map(_pickled, first))
        return (size, 0) if kwargs.get("src", args[1] if len(args) > 1 else 0) == rank else (0, size)
    if name == "all_reduce":
        return _size(first), _size(first)
    return 0, 0  # barriers; no code under test calls the other functions


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _pickled(value: Any) -> int:
    return len(pickle.dumps(value))


# -- the modes


class Rewards:
    """A reward: in a step's first round the groups of the second half of the ranks are dead; in later rounds none are.

    With `alone`, only the first group of rank 0 is live.
    """

    __name__ = "digits"

    def __init__(self, alone: bool = False) -> None:
        self._alone, self._step = alone, -1

    def __call__(self, completions: list[str], trainer_state: Any, **columns: Any) -> list[Any]:
        state, first = PartialState(), self._step != trainer_state.global_step
        self._step = trainer_state.global_step
        live = len(completions) * (not first or 2 * state.process_index < state.num_processes)
        if self._alone:
            live = SMALL_GROUP * (state.process_index == 0)
        return [0.1 * (i % 4) if i < live else 0.3 for i in range(len(completions))]


class StepRewards(Rewards):
    """The same rewards as a reward of steps: one step per attempt, which earns the value. An empty text earns 0.0."""

    def __call__(self, completions: list[str], *args: Any, **columns: Any) -> list[Any]:
        values = super().__call__(completions, *args, **columns)
        return [[Step(1, value)] if text else 0.0 for text, value in zip(completions, values, strict=True)]


def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Return scripted completions, with log-probs as an inference engine returns them."""
    output = tiny_models.scripted(prompts, trainer)
    return {**output, "logprobs": [[-1.0] * len(row) for row in output["completion_ids"]]}


SMALL_GROUP = 3  # attempts; one group of 3 does not divide among 2, 4 or 8 ranks
OFF: dict[str, Any] = {"trace_every": 0, "alarms": False}
BELIEF: dict[str, Any] = {**OFF, "advantage_baseline": "belief", "scale_rewards": "prior"}
DROP: dict[str, Any] = {"zero_variance_groups": "drop"}
RESAMPLE: dict[str, Any] = {"zero_variance_groups": "resample", "max_resample_rounds": 2}
CHOICE: dict[str, Any] = {"prompt_selection": "belief"}
HEAD: dict[str, Any] = {"belief_head": "prompt", "belief_head_share": None}
OWN = f"{Path(__file__).with_name('user_advantages.py')}"

# Name of a mode -> its options. Traces and alarms are on by default, so all other modes turn them off (OFF).
MODES: dict[str, dict[str, Any]] = {
    "TRL": {},
    "everything off": OFF,
    "alarms": {"trace_every": 0, "alarms": True},
    "traces": {"trace_every": 1, "alarms": False},
    "keep, traces, alarms": {},
    "keep, traces, alarms, halt_on_alarm": {"halt_on_alarm": ["dead_groups"]},
    "skip, traces, alarms": {"zero_variance_groups": "skip"},
    "drop": {**OFF, **DROP},
    "drop, traces, alarms": DROP,
    "drop, one group live (filler)": {**OFF, **DROP, "num_generations": SMALL_GROUP},
    "drop, rollout_func": {**OFF, **DROP, "rollout": True},
    "resample, one more round": {**OFF, **RESAMPLE},
    "resample, one more round, traces, alarms": RESAMPLE,
    "belief baseline": BELIEF,
    "prompt choice": {**OFF, **CHOICE},
    "prompt choice, belief baseline": {**BELIEF, **CHOICE},
    "belief baseline and head": {**BELIEF, **HEAD},
    "prompt choice, belief baseline and head": {**BELIEF, **CHOICE, **HEAD},
    "prompt choice, resample, traces, alarms": {**CHOICE, **RESAMPLE},
    "prompt choice, belief baseline, traces, alarms": {
        **CHOICE,
        "advantage_baseline": "belief",
        "scale_rewards": "prior",
    },
    "steps": {**OFF, "step_reward_credit": "to_go"},
    "advantage function": {**OFF, "advantage_estimator": f"{OWN}:ramp"},
    "baseline with a column": {**OFF, "advantage_baseline": f"{OWN}:less_expected", "scale_rewards": "none"},
    "KL in the reward": {**OFF, "beta": 0.1, "kl_placement": "reward", "kl_estimator": "k1"},
    "vLLM checked": {**OFF, "vllm_check": True, "rollout": True},
}
# Together these modes make every collective that any mode makes, so only these are run with more rows.
TOGETHER = (
    *("keep, traces, alarms, halt_on_alarm", "drop, rollout_func", "drop, one group live (filler)"),
    *("belief baseline and head", "prompt choice, belief baseline and head", "steps", "advantage function"),
    *("prompt choice, resample, traces, alarms", "baseline with a column", "KL in the reward", "vLLM checked"),
)


class SecondStep(TrainerCallback):
    """A callback that counts the collectives of the second step, from its begin to its log."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._counting = ExitStack()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            self._counting.enter_context(counted(self.calls))

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._counting.close()


@functools.cache
def _prompts() -> Dataset:
    prompts = tiny_models.prompts(400)
    return Dataset.from_dict({**prompts[:], "expected": [0.1] * len(prompts)})


def trainer(folder: Path, mode: str, rows: int, **more: Any) -> Any:
    """Return a trainer in this mode, with `rows` rows a rank."""
    options = {**MODES[mode], "per_device_train_batch_size": rows, **more}
    alone = options.get("num_generations") == SMALL_GROUP
    if alone:
        options["per_device_train_batch_size"] = rows // 4 * SMALL_GROUP
    extra = {"rollout_func": rollout} if options.pop("rollout", False) else {}
    checks = options.pop("vllm_check", False)
    reward = StepRewards() if "step_reward_credit" in options else Rewards(alone)
    cls = GRPOTrainer if mode == "TRL" else GRPOPlusTrainer
    made = tiny_models.trainer(folder, reward, cls, data=_prompts(), extra=extra, **options)
    if checks:  # TRL takes the log-probs of `rollout` for those of vLLM; no engine runs
        made.use_vllm, made._last_loaded_step, made._vllm_check._every = True, -1, 1
        made.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    return made


def of_one_batch(folder: Path, mode: str, rows: int) -> list[Call]:
    """Return the collectives of one generation batch, which is used for one optimizer step."""
    second = SecondStep()
    made = trainer(folder, mode, rows, max_steps=2)
    made.add_callback(second)
    made.train()
    return second.calls


def summary(calls: list[Call]) -> dict[str, Any]:
    """Return plain data: for each owner the number of collectives by kind and by calling function, and the bytes."""
    return {
        owner: {
            "kinds": dict(Counter(call.kind for call in calls if call.owner == owner)),
            "sites": dict(Counter(f"{call.kind} {call.site}" for call in calls if call.owner == owner)),
            "sent": sum(call.sent for call in calls if call.owner == owner),
            "got": sum(call.got for call in calls if call.owner == owner),
            "exchanged": sum(call.got for call in calls if call.owner == owner and call.kind == EXCHANGES),
        }
        for owner in (OURS, THEIRS)
    }
