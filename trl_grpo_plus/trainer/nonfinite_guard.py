"""A guard that stops the run before the optimizer's step if a loss or a gradient is not finite.

The gradient norm is computed anyway and is already global, so checking it adds no collective, and all ranks stop
together. A loss that is not finite makes the norm NaN too, also with finite gradients or on one rank alone: the guard
multiplies such a loss by NaN. It multiplies a finite loss by 1, which changes no bit.

When it stops the run, the guard searches the inputs of the step's losses for the attempts at fault, and names them.
For this it keeps the log-probs of TRL's forward pass, one number per token, and the other inputs of each micro-batch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import DistributedType, broadcast_object_list, gather_object
from torch import Tensor

from ..objective.kl import TRL_ESTIMATOR
from ..traces import newest_training_file


if TYPE_CHECKING:
    from accelerate import Accelerator

    from ..config import GRPOPlusConfig


GROUPS = "groups"  # key of a batch: the number of each row's group in `StepGuard.groups`, as a tensor
LOGPS, OLD, REFERENCE = "log-probs", "log-probs when sampled", "log-probs of the reference"
RATIO, KL = "ratio to the policy that sampled", "KL"
# The inputs of a loss other than the log-probs: key of TRL's batch -> name in the message.
PARTS = {
    "old_per_token_logps": OLD,
    "ref_per_token_logps": REFERENCE,
    "advantages": "advantages",
    "importance_sampling_ratio": "importance to the sampler",
}
NAMES_KEPT = 1024  # at least those of the last batch
MOST_GROUPS = 8  # maximum groups that a message names


_Parts = tuple[dict[str, Tensor], Tensor | None]  # inputs of a loss, and the number of each row's group


def not_finite(parts: Mapping[str, Tensor], kl: bool) -> dict[str, list[bool]]:
    """Find the attempts with an input of the loss that is not finite at some token.

    Args:
        parts (`Mapping[str, Tensor]`): `LOGPS` and those values of `PARTS` that the batch has: `(B,)` or `(B, T)`.
        kl (`bool`): whether exp(reference - log-probs) is in the loss.

    Returns:
        `dict[str, list[bool]]`: for each input by name, whether it is not finite in each of the B attempts.

    Example:
        >>> not_finite({"log-probs": torch.zeros(2, 1), "advantages": torch.tensor([1.0, torch.nan])}, kl=True)
        {'log-probs': [False, False], 'advantages': [False, True]}
    """
    parts = {name: values.float() for name, values in parts.items()}
    # Masked tokens count too: 0 times NaN is NaN.
    wrong = {name: ~values.isfinite().reshape(len(values), -1).all(dim=1) for name, values in parts.items()}
    for name, other, sign in ((RATIO, OLD, 1), *(((KL, REFERENCE, -1),) if kl else ())):
        if LOGPS in parts and other in parts:  # exponents of finite differences
            overflows = (sign * (parts[LOGPS] - parts[other])).exp().isinf().any(dim=1)
            wrong[name] = overflows & ~wrong[LOGPS] & ~wrong[other]
    return {name: rows.tolist() for name, rows in wrong.items()}


class StepGuard:
    """The check of each optimizer step of a run. Every rank has one.

    Args:
        args ([`GRPOPlusConfig`]): the trainer's.
        accelerator (`accelerate.Accelerator`): the trainer's.

    Attributes:
        groups (`dict[int, str]`): number and name of this rank's last groups. A number is given once in a run.
    """

    def __init__(self, args: "GRPOPlusConfig", accelerator: "Accelerator"):
        self._args, self._accelerator = args, accelerator
        self._raises = args.nonfinite_step == "raise"
        self.groups: dict[int, str] = {}
        # This rank's micro-batches since the last step: their summed loss, and the inputs and groups of each.
        self._loss: Tensor | None = None
        self._parts: list[_Parts] = []
        self._logps: Tensor | None = None  # of the last forward pass

    def number(self, names: Sequence[str]) -> Tensor:
        """Keep the names of a batch's groups, one name a row, and return the number of each row's group.

        Names of earlier batches are kept too: a subclass may join batches, or train on one that was made ahead.
        """
        first = max(self.groups, default=-1) + 1
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names), first)}
        kept = [*self.groups.items(), *((number, name) for name, number in numbers.items())]
        self.groups = dict(kept[-max(NAMES_KEPT, len(numbers)) :])
        return torch.tensor([numbers[name] for name in names], device=self._accelerator.device)

    def begin_micro_batch(self) -> None:
        """Forget the log-probs of earlier forward passes, such as those of the old policy."""
        self._logps = None

    def forwarded(self, logps: Tensor) -> None:
        """Keep the `(B, T)` log-probs of a forward pass."""
        self._logps = logps.detach() if self._raises else None

    def record_micro_batch(self, loss: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return a micro-batch's loss to back-propagate, and keep its inputs."""
        if not self._raises:
            return loss
        parts = {called: batch[name] for name, called in PARTS.items() if batch.get(name) is not None}
        if self._logps is not None:  # `None` for a loss without a forward pass of its own
            parts, self._logps = {LOGPS: self._logps, **parts}, None
        self._parts.append((parts, batch.get(GROUPS)))  # a subclass may make its own batch
        value = loss.detach()
        self._loss = value if self._loss is None else self._loss + value
        return loss * (0 * value + 1)

    def checked(self, norm: Tensor | float | None, step: int, settle: Callable[[], Any]) -> Tensor | float | None:
        """Return the gradient's `norm` if it is finite. Collective if it is not, or if it is a DTensor.

        Args:
            norm (`Tensor` or `float`): the norm before clipping; `None` if it was not computed. FSDP 2 with PyTorch
                2.6 gives each rank that of its shard, as a DTensor.
            step (`int`): optimizer steps done.
            settle (`Callable`): waits until the traces are on disk.

        Raises:
            FloatingPointError: the norm is not finite, and no float16 scaler will skip the step.
        """
        loss, self._loss = self._loss, None
        parts, self._parts = self._parts, []
        if not self._raises or norm is None:
            return norm
        norm = getattr(norm, "full_tensor", lambda: norm)()
        if math.isfinite(norm) or self._skipped_by_scaler():
            return norm
        settle()
        losses = [] if loss is None else self._accelerator.gather(loss.float().reshape(1)).tolist()
        culprits = gather_object([self._culprits(parts)])
        raise FloatingPointError(broadcast_object_list([self._message(float(norm), losses, step, culprits)])[0])

    def _culprits(self, parts: list[_Parts]) -> dict[str, list[str]] | None:
        """Map this rank's groups at fault to the inputs that are not finite; `None` without log-probs or names."""
        named = [
            (of_one, [self.groups.get(number, "an earlier batch") for number in numbers.tolist()])
            for of_one, numbers in parts
            if LOGPS in of_one and numbers is not None
        ]
        if len(named) < len(parts):
            return None
        kl = self._args.kl_placement == "loss" and self._args.kl_estimator == TRL_ESTIMATOR
        culprits: dict[str, list[str]] = {}
        for of_one, groups in named:
            for name, rows in not_finite(of_one, kl).items():
                for group in dict.fromkeys(group for group, wrong in zip(groups, rows, strict=True) if wrong):
                    culprits.setdefault(group, []).append(name)
        return {group: list(dict.fromkeys(names)) for group, names in culprits.items()}

    def _skipped_by_scaler(self) -> bool:
        """Return whether a float16 scaler skips this step while it searches its scale.

        A gradient that is still not finite at a scale below 1 was not scaled too much.
        """
        if self._deepspeed:
            return self._accelerator.mixed_precision == "fp16"  # DeepSpeed raises an error at its smallest scale
        scaler = self._accelerator.scaler
        return scaler is not None and scaler.is_enabled() and scaler.get_scale() >= 1

    @property
    def _deepspeed(self) -> bool:
        return self._accelerator.distributed_type == DistributedType.DEEPSPEED

    def _message(
        self, norm: float, losses: list[float], step: int, culprits: list[dict[str, list[str]] | None]
    ) -> str:
        of_ranks = f" on ranks 0 to {len(losses) - 1}" if len(losses) > 1 else ""
        loss = f" (loss {', '.join(f'{value:g}' for value in losses)}{of_ranks})" if losses else ""
        weights = f"the weights are those after {step} step{'' if step == 1 else 's'}."
        if not self._deepspeed:
            weights = f"The optimizer did not step: {weights}"
        elif not self._accelerator.deepspeed_engine_wrapped.engine.was_step_applied():
            weights = f"DeepSpeed skipped the step: {weights}"
        else:  # DeepSpeed steps in its backward pass, and does not skip every such step
            weights = "DeepSpeed has updated the weights in memory already; the checkpoints are not affected."
        path = newest_training_file(self._args.output_dir) if self._args.trace_every else None
        traced = f"The attempts sampled last are in the traces: {path}." if path else "No attempts are traced."
        return (
            f"Step {step + 1}: the norm of the gradient is {norm}{loss}. {weights} {_at_fault(culprits)} {traced} "
            "Compare them with attempts of other steps, and look at grad_norm, kl and entropy of the steps before. A "
            "smaller learning_rate or max_grad_norm often helps, and so does bf16 instead of fp16. "
            "nonfinite_step='ignore' continues the training, as TRL does."
        )


def _at_fault(culprits: list[dict[str, list[str]] | None]) -> str:
    """Return a sentence on the groups at fault, from each rank's culprits."""
    if None in culprits:
        return (
            "The attempts at fault are not known without another forward pass: the loss was made without log-probs, "
            "or from a batch that a subclass made."
        )
    inputs_of: dict[str, list[str]] = {}
    for of_rank in culprits:
        for group, names in (of_rank or {}).items():
            inputs_of[group] = list(dict.fromkeys([*inputs_of.get(group, []), *names]))
    if not inputs_of:
        return (
            "All log-probs, ratios and advantages are finite, so the error arose in the loss or in the backward pass. "
            "The attempts at fault are not known without another forward pass."
        )
    named = [f"{group}: {', '.join(names)}" for group, names in inputs_of.items()]
    more = f"; and {len(named) - MOST_GROUPS} more groups" if len(named) > MOST_GROUPS else ""
    return f"Not finite in attempts of {'; '.join(named[:MOST_GROUPS])}{more}."
