"""Steps whose loss or gradient is not finite: they stop the run before the optimizer is asked.

The gradient norm is computed anyway and is already global, so checking it adds no collective, and all ranks stop
together. A loss that is not finite while its gradient is, or on one
rank alone, is seen there too: it is multiplied by NaN, where others are multiplied by 1, which changes no bit.

Which attempts it comes from is looked for once the run is stopped, in what their losses were made of: of each
micro-batch of the step the log-probs of TRL's forward pass are kept, a number a token, and what the batch has beside.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accelerate.utils import DistributedType, broadcast_object_list, gather_object
from torch import Tensor

from ..objective.kl import TRL_ESTIMATOR
from ..traces import newest


GROUPS = "groups"  # key of a batch: of each row the text that names its group
LOGPS, OLD, REFERENCE = "log-probs", "log-probs when sampled", "log-probs of the reference"
RATIO, KL = "ratio to the policy that sampled", "KL"
# What a loss is made of beside the log-probs: key of TRL's batch -> how it is called.
PARTS = {
    **{"old_per_token_logps": OLD, "ref_per_token_logps": REFERENCE, "advantages": "advantages"},
    "importance_sampling_ratio": "importance to the sampler",
}
NAMED = 8  # groups, at most


def not_finite(parts: Mapping[str, Tensor], kl: bool) -> dict[str, list[bool]]:
    """Of each quantity that an attempt's loss is made of, whether it is not finite at any token of each of B attempts.

    Args:
        parts (`Mapping[str, Tensor]`): `LOGPS` and values of `PARTS`, as far as they are known: `(B,)` or `(B, T)`.
        kl (`bool`): whether exp(reference - log-probs) is in the loss.

    Example:
        >>> not_finite({"log-probs": torch.zeros(2, 1), "advantages": torch.tensor([1.0, torch.nan])}, kl=True)
        {'log-probs': [False, False], 'advantages': [False, True]}
    """
    parts = {name: values.float() for name, values in parts.items()}
    # Not under the loss's mask: 0 times what is not finite is not finite either.
    wrong = {name: ~values.isfinite().reshape(len(values), -1).all(dim=1) for name, values in parts.items()}
    for name, other, sign in ((RATIO, OLD, 1), *(((KL, REFERENCE, -1),) if kl else ())):
        if LOGPS in parts and other in parts:  # exponents of what is finite
            overflows = (sign * (parts[LOGPS] - parts[other])).exp().isinf().any(dim=1)
            wrong[name] = overflows & ~wrong[LOGPS] & ~wrong[other]
    return {name: rows.tolist() for name, rows in wrong.items()}


class StepGuard:
    """What looks at each step of a run. Every rank has one.

    Args:
        args ([`GRPOPlusConfig`]): of the trainer.
        accelerator (`accelerate.Accelerator`): the trainer's.
    """

    def __init__(self, args: Any, accelerator: Any):
        self._args, self._accelerator = args, accelerator
        self._raises = args.nonfinite_step == "raise"
        # Of this rank's micro-batches since the last step: their loss, and of each what it was made of and the groups.
        self._loss: Tensor | None = None
        self._parts: list[tuple[dict[str, Tensor], Sequence[str]]] = []
        self._logps: Tensor | None = None  # of the last forward pass

    def forwarded(self, logps: Tensor) -> None:
        """Keep the `(B, T)` log-probs of a forward pass."""
        self._logps = logps.detach() if self._raises else None

    def seen(self, loss: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return the loss to back-propagate, of a micro-batch."""
        if not self._raises:
            return loss
        parts = {called: batch[name] for name, called in PARTS.items() if batch.get(name) is not None}
        if self._logps is not None:  # none where the loss is made without
            parts, self._logps = {LOGPS: self._logps, **parts}, None
        self._parts.append((parts, batch.get(GROUPS) or ["a group of an older release"] * len(parts["advantages"])))
        value = loss.detach()
        self._loss = value if self._loss is None else self._loss + value
        return loss * (0 * value + 1)

    def checked(self, norm: Tensor | float | None, step: int, settle: Callable[[], Any]) -> Tensor | float | None:
        """Return the gradient's `norm`, alike on all ranks, if it is finite; collective if it is not.

        Args:
            norm (`Tensor` or `float`): before clipping; `None` where nobody knows it.
            step (`int`): optimizer steps done.
            settle (`Callable`): waits until what was sampled is on disk.

        Raises:
            FloatingPointError: it is not finite, and no scaler of float16 is there to skip the step and scale less.
        """
        loss, self._loss = self._loss, None
        parts, self._parts = self._parts, []
        if not self._raises or norm is None or math.isfinite(norm) or self._skipped_by_scaler():
            return norm
        settle()
        losses = [] if loss is None else self._accelerator.gather(loss.float().reshape(1)).tolist()
        culprits = gather_object([self._culprits(parts)])
        raise FloatingPointError(broadcast_object_list([self._message(float(norm), losses, step, culprits)])[0])

    def _culprits(self, parts: list[tuple[dict[str, Tensor], Sequence[str]]]) -> dict[str, list[str]] | None:
        """Of this rank's groups those of which something is not finite, and what; `None` where that is not known."""
        if not all(LOGPS in of_one for of_one, _ in parts):
            return None
        kl = self._args.kl_placement == "loss" and self._args.kl_estimator == TRL_ESTIMATOR
        found: dict[str, list[str]] = {}
        for of_one, groups in parts:
            for name, rows in not_finite(of_one, kl).items():
                for group in dict.fromkeys(group for group, wrong in zip(groups, rows, strict=True) if wrong):
                    found.setdefault(group, []).append(name)
        return {group: list(dict.fromkeys(names)) for group, names in found.items()}

    def _skipped_by_scaler(self) -> bool:
        """Return whether the step is one of those that a scaler skips until it has found its scale. One that is still
        not finite at a scale below 1 was not scaled too much."""
        if self._deepspeed:
            return self._accelerator.mixed_precision == "fp16"  # it stops by itself at its smallest scale
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
        weights = f"the weights are those after {step} steps."
        if not self._deepspeed:
            weights = f"The optimizer was not asked: {weights}"
        elif not self._accelerator.deepspeed_engine_wrapped.engine.was_step_applied():
            weights = f"DeepSpeed skipped the step: {weights}"
        else:  # it takes a step as it back-propagates, and skips not all that are not finite
            weights = "DeepSpeed had updated the weights in memory by then; those of the checkpoints are as they were."
        path = newest(self._args.output_dir, "train") if self._args.trace_every else None
        traced = f"What was sampled last, as far as it is traced: {path}." if path else "No attempts are traced."
        return (
            f"Step {step + 1}: the norm of the gradient is {norm}{loss}. {weights} {_told(culprits)} {traced} Look "
            "there for what is unlike other steps, and at grad_norm, kl and entropy in the steps before; a smaller "
            "learning_rate or max_grad_norm, or bf16 in the place of fp16, often helps. nonfinite_step='ignore' "
            "trains on, as TRL does."
        )


def _told(culprits: list[dict[str, list[str]] | None]) -> str:
    """Return which groups it came from, by what is not finite of them on each rank."""
    if None in culprits:
        return "Of which attempts is not known without another forward pass: the loss was made without log-probs."
    found: dict[str, list[str]] = {}
    for of_rank in culprits:
        for group, names in (of_rank or {}).items():
            found[group] = list(dict.fromkeys([*found.get(group, []), *names]))
    if not found:
        return (
            "Of each attempt log-probs, ratios and advantages are finite, so it arose in the loss or in the backward "
            "pass; of which attempts is not known without another forward pass."
        )
    named = [f"{group}: {', '.join(names)}" for group, names in found.items()]
    more = f"; and {len(named) - NAMED} more groups" if len(named) > NAMED else ""
    return f"Not finite of attempts of {'; '.join(named[:NAMED])}{more}."
