"""The check that vLLM samples from the policy that is trained, which compares log-probs of the same tokens.

An engine that did not get the new weights, or that lacks the adapter, samples without any error. Four differences
show this. Each is a mean of `|a - b|` in nats per token:

| difference | between |
|---|---|
| `difference` | the engine and the trainer, on attempts just sampled |
| `moved` | the trainer now and the trainer at the last sure agreement, on attempts that were kept then |
| `base` | the engine and the trainer with its adapter off; computed if `difference` is large |
| `plain` | the engine and the trainer with its dropout off; computed if `difference` is large |

An engine with stale weights has equal means of `difference` and `moved`: both compare the policy of then and now, on
tokens that the policy of then sampled. An engine without the adapter has a small `base`. Agreement is sure only once
the policy has moved far more than the two differ, so new attempts are kept seldom. The engine may have followed for
longer: its weights are from a step between the kept one and the last step without a finding.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from ...config.sampling_distribution import logprob_options
from ...curriculum.prompt_states import evaluating
from ...objective.padding import loss_mask
from ...traces import logged_step


if TYPE_CHECKING:
    from accelerate import Accelerator

    from ...config import GRPOPlusConfig


logger = get_logger(__name__)

ATTEMPTS = 8  # attempts that each process keeps, and forwards if TRL has no log-probs
NOISE = 0.01  # nats per token: the usual difference of two implementations of one model in bfloat16
LIMIT = 0.1  # ten times NOISE; a token's importance weight is then off by a factor e^0.1
BEHIND = 5.0  # a difference this many times larger than at the agreement is no noise
ALIKE = 3.0  # two means over a few attempts count as equal up to this factor
FOLLOWED = 10.0  # if the policy moved by this many times the difference, the engine has followed it


INPUTS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
CASES = {
    "dropout": "Without the trainer's dropout the difference is {plain:.2g}, so the engine has the current weights. "
    "TRL computes the trainer's log-probs with dropout, and the importance weights correct for this noise. Set "
    "lora_dropout to 0 (`trl` and recipes have 0.05 by default). For the model's own dropout set disable_dropout.",
    "adapter": "vLLM's log-probs differ by only {base:.2g} from those of the model without its adapter: the adapter "
    "does not reach the engine, or only the adapter of the first steps did. Look at the code that merges the adapter "
    "before the weights are sent (`trainer.vllm_generation.sync_weights`).",
    "stale": "At step {kept} the difference was {agreed:.2g}. Since then the policy has moved by {moved:.2g}, about "
    "as much as the difference now. So the engine has weights of about step {span}, and new weights do not reach it. "
    "Look at the code that sends the weights (`trainer.vllm_generation.sync_weights`). With a server, check that no "
    "other run sends weights to it.",
    "part": "At step {kept} the difference was {agreed:.2g}. Since then the policy has moved by {moved:.2g}, which "
    "does not explain the difference now. Either some weights are not sent (modules that were renamed, wrapped or "
    "added), or the engine is another one, such as a restarted server.",
    "apart": "They have not agreed in this run. Possible causes: another model or revision, another dtype or "
    "quantization, an adapter that is not merged, dropout, a server without `--logprobs-mode processed_logprobs`, or "
    "a rollout_func that returns log-probs of other tokens.",
}


@dataclass(frozen=True)
class Comparison:
    """The result of one check, in nats per token, on the process where the difference is largest.

    Args:
        difference, most (`float`): between engine and trainer, the mean and the largest.
        kept (`int`, *optional*): optimizer steps done at the last sure agreement; `None`: there was none.
        agreed (`float`): the difference at that step.
        near (`int`, *optional*): optimizer steps done at the last check without a finding, `kept` or later.
        moved (`float`): between the trainer now and the trainer at `kept`, on attempts sampled at `kept`.
        base (`float`, *optional*): between the engine and the model without its adapter, if it has one.
        plain (`float`, *optional*): between the engine and the trainer in evaluation mode, if TRL has computed the
            trainer's log-probs in training mode.
    """

    difference: float
    most: float
    kept: int | None = None
    agreed: float = 0.0
    near: int | None = None
    moved: float = 0.0
    base: float | None = None
    plain: float | None = None

    @property
    def case(self) -> str | None:
        """The finding, a name of `CASES`, or `None`."""
        explained = self.kept is not None and self.moved / ALIKE <= self.difference <= ALIKE * self.moved
        behind = explained and self.difference >= BEHIND * max(self.agreed, NOISE)
        if not behind and self.difference <= LIMIT:
            return None
        if self.plain is not None and self.plain <= self.difference / ALIKE:
            return "dropout"
        if self.base is not None and self.base <= self.difference / ALIKE:
            return "adapter"
        return "stale" if explained else "apart" if self.kept is None else "part"

    @property
    def agrees(self) -> bool:
        """Whether the engine surely has the current weights: stale ones would differ by far more."""
        return self.difference <= (LIMIT / 2 if self.kept is None else min(LIMIT / 2, self.moved / FOLLOWED))

    def text(self) -> str:
        """Return the warning: the finding, its evidence, and where to look. Its steps are those of the log."""
        kept, near = (None if step is None else logged_step(step) for step in (self.kept, self.near))
        span = f"{kept}" if near in (None, kept) else f"{kept} to {near}"
        finding = CASES[self.case or "apart"].format(**{**vars(self), "kept": kept}, span=span)
        return (
            f"vLLM does not sample from the policy that is trained: its log-probs differ from the trainer's by "
            f"{self.difference:.2g} nats a token (by up to {self.most:.2g}; about {NOISE} is rounding in bfloat16). "
            f"{finding}"
        )


def apart(first: Tensor, second: Tensor, mask: Tensor) -> Tensor:
    """Compute the distance of two log-probs over the tokens where both are finite.

    Args:
        first, second (`Tensor`): `(B, T)`; NaN for a missing log-prob.
        mask (`Tensor`): `(B, T)`, 1 at tokens that count.

    Returns:
        `Tensor`: `(3,)`: the sum of `|first - second|`, the number of tokens, and the largest distance.
    """
    distance = (first.float() - second.float()).abs()
    counted = mask.bool() & distance.isfinite()
    distance = distance.where(counted, 0.0)
    return torch.stack([distance.sum(), counted.sum(), distance.max()])


@dataclass(frozen=True)
class _Agreement:
    """Attempts sampled at a sure agreement, with the trainer's log-probs at that step."""

    rows: dict[str, Tensor]
    logps: Tensor
    step: int
    agreed: float


class VLLMCheck:
    """The comparison of engine and trainer, in a process's first generation batch and in each n-th after it.

    Args:
        args ([`GRPOPlusConfig`]): configuration of the run.
        accelerator (`Accelerator`): the trainer's.
        forward (`Callable`): maps a batch of `INPUTS` to the policy's log-probs, `(B, T)`, as TRL computes them.
        text_only (`bool`): whether `INPUTS` are all that the policy reads. If not, the check makes no forward pass: it
            compares the log-probs that TRL computed, and names no cause.
    """

    def __init__(
        self,
        args: "GRPOPlusConfig",
        accelerator: "Accelerator",
        forward: Callable[[dict[str, Tensor]], Tensor],
        text_only: bool,
    ):
        self._every = args.vllm_check_every if args.use_vllm and not logprob_options(args) else 0
        self._accelerator, self._forward, self._text_only = accelerator, forward, text_only
        self._batches = 0
        self._kept: _Agreement | None = None
        self._near: int | None = None  # the last checked step without a finding
        self._warned = False  # whether a finding that still holds was reported
        self._warned_of_dropout = False

    def metrics(self, output: dict[str, Any], model: nn.Module, step: int) -> dict[str, float]:
        """Check one of TRL's batches, and warn of a new finding. Collective.

        Args:
            output (`dict`): this rank's batch.
            model (`nn.Module`): the policy, also wrapped.
            step (`int`): optimizer steps done, for the message.

        Returns:
            `dict[str, float]`: metrics over the tokens of all processes; empty for a batch that is not checked.
        """
        due = self._every and self._batches % self._every == 0
        self._batches += 1
        old, kept = output.get("old_per_token_logps"), self._kept
        if not due or (old is None and not self._text_only) or not self._any_has_logps(output):
            return {}
        # A rollout_func may return log-probs on one process and none on another. All must go on, or some would wait.
        mask = output["completion_mask"]
        output = {"sampling_per_token_logps": torch.full(mask.shape, torch.nan, device=mask.device), **output}
        rows, places = _some(output)
        logps = self._logps(model, rows) if old is None else old[places]
        distances = [_from_engine(rows, logps) if old is None else _from_engine(output, old)]
        if kept is not None:
            distances.append(apart(self._logps(model, kept.rows), kept.logps, loss_mask(kept.rows)))
        sums, counts, most = self._of_ranks(distances).unbind(dim=-1)  # each (R, 1 or 2)
        if not counts[:, 0].sum():
            self._batches -= 1  # check the next one
            return {}
        means = sums / counts.clamp(min=1)
        worst = int(means[:, 0].argmax())
        result = Comparison(means[worst, 0].item(), most[worst, 0].item())
        if kept is not None:
            # A process may have kept only filler. Then the other processes' attempts show how far the policy moved.
            moved = means[worst, 1] if counts[worst, 1] else sums[:, 1].sum() / counts[:, 1].sum().clamp(min=1)
            result = replace(result, kept=kept.step, agreed=kept.agreed, near=self._near, moved=moved.item())
        if result.case is not None and not self._warned and self._text_only:
            plain = None if old is None else self._difference(model, rows, worst)
            result = replace(result, base=self._base(model, rows, worst), plain=plain)
        self._warn(result, step, worst)
        if result.case in (None, "dropout"):
            self._near = step
        if result.agrees and self._text_only:
            self._kept = _Agreement(rows, logps, step, result.difference)
        everyones = (sums.sum(dim=0) / counts.sum(dim=0).clamp(min=1)).tolist()
        names = ("sampler/logp_difference/mean", "sampler/policy_moved")
        return {"sampler/logp_difference/max": most[:, 0].max().item(), **dict(zip(names, everyones, strict=False))}

    def _base(self, model: nn.Module, rows: dict[str, Tensor], rank: int) -> float | None:
        """Return the difference on one process with the adapter off; `None` without an adapter. Collective."""
        disabled = getattr(extract_model_from_parallel(model), "disable_adapter", None)
        if disabled is None:
            return None
        with disabled():
            return self._difference(model, rows, rank)

    def _difference(self, model: nn.Module, rows: dict[str, Tensor], rank: int) -> float | None:
        """Return the difference on one process, with the policy in evaluation mode. Collective."""
        total, count, _ = self._of_ranks([_from_engine(rows, self._logps(model, rows))])[rank, 0].tolist()
        return total / count if count else None

    def _warn(self, result: Comparison, step: int, rank: int) -> None:
        dropout = result.case == "dropout"  # it hides no later finding
        if result.case is not None and not (self._warned_of_dropout if dropout else self._warned):
            # Warn once: the first warning shows the cause best.
            where = f", process {rank}" if self._accelerator.num_processes > 1 else ""
            logger.warning(f"Step {logged_step(step)}{where}: {result.text()}")
            self._warned_of_dropout |= dropout
            self._warned |= not dropout
        elif result.agrees:
            self._warned = False

    def _logps(self, model: nn.Module, rows: dict[str, Tensor]) -> Tensor:
        """Forward in evaluation mode, which draws no random number, so that the run stays the same."""
        with evaluating(model):
            return self._forward(rows)

    def _any_has_logps(self, output: dict[str, Any]) -> bool:
        """Return whether any process has the engine's log-probs. Collective."""
        here = output["completion_mask"].new_tensor(["sampling_per_token_logps" in output])
        return bool(self._accelerator.gather(here).any())

    def _of_ranks(self, distances: list[Tensor]) -> Tensor:
        """Gather this rank's M distances `(3,)` to `(R, M, 3)`. Collective."""
        return self._accelerator.gather(torch.stack(distances).unsqueeze(0)).cpu()


def _some(output: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """Return a few rows of a batch and their indices, equally many on all processes.

    Rows with tokens in the loss come first. They are spread over the batch, since prompts move differently.
    """
    lives = loss_mask(output).any(dim=1)
    count = min(ATTEMPTS, len(lives))
    spread = torch.linspace(0, max(int(lives.sum()), count) - 1, count, device=lives.device).long()
    places = lives.int().argsort(descending=True, stable=True)[spread]
    names = (*INPUTS, "sampling_per_token_logps", *(("tool_mask",) if "tool_mask" in output else ()))
    return {name: output[name][places] for name in names}, places


def _from_engine(rows: dict[str, Tensor], logps: Tensor) -> Tensor:
    return apart(rows["sampling_per_token_logps"], logps, loss_mask(rows))
