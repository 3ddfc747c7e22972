"""Whether vLLM samples from the policy that is trained: its log-probs beside the trainer's, of the same tokens.

An engine whose weights were not sent, or that lacks the adapter, samples all the same. Three differences tell, each a
mean of `|a - b|` in nats a token:

| difference | between |
|---|---|
| `difference` | the engine and the trainer, on attempts just sampled |
| `moved` | the trainer now and when the two last surely agreed, on attempts that were kept then |
| `base` | the engine and the trainer with its adapter off; looked at where the first is large |

Of an engine that has the weights of the time when they agreed, `difference` and `moved` have the same mean: both are
between the policy then and now, on tokens that it sampled then. Of one without the adapter `base` is small. That they
agree is sure once the policy has moved far more than they differ, so attempts are kept anew seldom, and the engine may
have followed for longer: its weights are of a step from then to the last at which nothing was seen to be wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from ..config.sampling_distribution import processed
from ..curriculum.prompt_states import evaluating
from ..objective.padding import loss_mask


logger = get_logger(__name__)

ATTEMPTS = 8  # of each process, that are kept, and forwarded where TRL has no log-probs
NOISE = 0.01  # nats a token: of two implementations of one model in bfloat16, about
LIMIT = 0.1  # ten times that; the importance of a token is then off by e^0.1
BEHIND = 5.0  # so many times what it was when they agreed, the difference is no noise
ALIKE = 3.0  # two means over a few attempts at other prompts are of one size if they differ by no more
FOLLOWED = 10.0  # if the policy moved so many times the difference, the engine moved with it


INPUTS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
CASES = {
    "adapter": "They are those of the model without its adapter, to {base:.2g}: the adapter does not reach the "
    "engine, or its first steps alone did. Look at what merges it before the weights are sent "
    "(`trainer.vllm_generation.sync_weights`).",
    "stale": "At step {kept} they agreed to {agreed:.2g}. Since then the policy has moved by {moved:.2g}, about as "
    "much as the engine is off: it has weights of about step {span}, and new ones do not reach it. Look at what sends "
    "them (`trainer.vllm_generation.sync_weights`); with a server, whether it gets those of another run.",
    "part": "At step {kept} they agreed to {agreed:.2g}. Since then the policy has moved by {moved:.2g}, which does "
    "not explain it: some weights are not sent (modules that were renamed, wrapped or added), or the engine is "
    "another one, such as a server that was started anew.",
    "apart": "They have not agreed in this run: another model or revision, another dtype or quantization, an adapter "
    "that is not merged, dropout, a server without `--logprobs-mode processed_logprobs`, or a rollout_func whose "
    "log-probs are of other tokens.",
}


@dataclass(frozen=True)
class Seen:
    """What a check saw, in nats a token, on the process where the difference is largest.

    Args:
        difference, most (`float`): between engine and trainer, the mean and the largest.
        kept (`int`, *optional*): the step when they last surely agreed; `None`: they have not.
        agreed (`float`): the difference then.
        near (`int`, *optional*): the last step that was looked at and showed nothing wrong, `kept` or later.
        moved (`float`): how far the trainer's own log-probs have moved since, on attempts of then.
        base (`float`, *optional*): between the engine and the model without its adapter, where there is one.
    """

    difference: float
    most: float
    kept: int | None = None
    agreed: float = 0.0
    near: int | None = None
    moved: float = 0.0
    base: float | None = None

    @property
    def case(self) -> str | None:
        """A name of `CASES`, or `None`: nothing is wrong, as far as can be seen."""
        explained = self.kept is not None and self.moved / ALIKE <= self.difference <= ALIKE * self.moved
        behind = explained and self.difference >= BEHIND * max(self.agreed, NOISE)
        if not behind and self.difference <= LIMIT:
            return None
        if self.base is not None and self.base <= self.difference / ALIKE:
            return "adapter"
        return "stale" if explained else "apart" if self.kept is None else "part"

    @property
    def agrees(self) -> bool:
        """Whether the engine has the weights of now: what it would be off with those of then is far more."""
        return self.difference <= (LIMIT / 2 if self.kept is None else min(LIMIT / 2, self.moved / FOLLOWED))

    def text(self) -> str:
        """Return what is wrong, how that was seen, and what to look at."""
        span = f"{self.kept}" if self.near in (None, self.kept) else f"{self.kept} to {self.near}"
        return (
            f"vLLM does not sample from the policy that is trained: its log-probs differ from the trainer's by "
            f"{self.difference:.2g} nats a token (by up to {self.most:.2g}; {NOISE} or so is rounding in bfloat16). "
            f"{CASES[self.case or 'apart'].format(**vars(self), span=span)}"
        )


def apart(first: Tensor, second: Tensor, mask: Tensor) -> Tensor:
    """Return how far two log-probs are apart where both are known.

    Args:
        first, second (`Tensor`): `(B, T)`; NaN is not known.
        mask (`Tensor`): `(B, T)`, 1 at tokens that count.

    Returns:
        `Tensor`: `(3,)`: the sum of `|first - second|`, of how many tokens, and the largest.
    """
    distance = (first.float() - second.float()).abs()
    known = mask.bool() & distance.isfinite()
    distance = distance.where(known, 0.0)
    return torch.stack([distance.sum(), known.sum(), distance.max()])


@dataclass(frozen=True)
class _Kept:
    """Attempts of a time when engine and trainer surely agreed, with the trainer's log-probs of then."""

    rows: dict[str, Tensor]
    logps: Tensor
    step: int
    agreed: float


class VLLMCheck:
    """Compares in the first generation batch of a process, and in each n-th from there.

    Args:
        args ([`GRPOPlusConfig`]): of the run.
        accelerator (`Accelerator`): of the trainer.
        forward (`Callable`): a batch of `INPUTS` to the policy's log-probs, `(B, T)`, as TRL computes them.
        text_only (`bool`): whether `INPUTS` are all that the policy reads. Otherwise nothing is forwarded: what TRL
            has computed is looked at, and nothing told of the cause.
    """

    def __init__(self, args: Any, accelerator: Any, forward: Callable[[dict[str, Tensor]], Tensor], text_only: bool):
        self._every = args.vllm_check_every if args.use_vllm and not processed(args) else 0
        self._accelerator, self._forward, self._text_only = accelerator, forward, text_only
        self._batches = 0
        self._kept: _Kept | None = None
        self._near: int | None = None  # the last step that was looked at and showed nothing wrong
        self._wrong = False  # told, and not over

    def metrics(self, output: dict[str, Any], model: nn.Module, step: int) -> dict[str, float]:
        """Look at one of TRL's batches, and warn where it begins to be wrong. Collective.

        Args:
            output (`dict`): this rank's batch.
            model (`nn.Module`): the policy, also wrapped.
            step (`int`): for the message.

        Returns:
            `dict[str, float]`: over the tokens of all processes; none where nothing was looked at.
        """
        due = self._every and self._batches % self._every == 0
        self._batches += 1
        old, kept = output.get("old_per_token_logps"), self._kept
        if not due or (old is None and not self._text_only) or not self._known_to_any(output):
            return {}
        # A rollout_func may give log-probs on one process and none on another: all go on, or those would wait.
        mask = output["completion_mask"]
        output = {"sampling_per_token_logps": torch.full(mask.shape, torch.nan, device=mask.device), **output}
        rows, places = _some(output)
        logps = self._logps(model, rows) if old is None else old[places]
        found = [_off(rows, logps) if old is None else _off(output, old)]
        if kept is not None:
            found.append(apart(self._logps(model, kept.rows), kept.logps, loss_mask(kept.rows)))
        sums, counts, most = self._of_ranks(found).unbind(dim=-1)  # each (R, 1 or 2)
        if not counts[:, 0].sum():
            self._batches -= 1  # the next one is looked at
            return {}
        means = sums / counts.clamp(min=1)
        worst = int(means[:, 0].argmax())
        seen = Seen(means[worst, 0].item(), most[worst, 0].item())
        if kept is not None:
            # A process may have kept nothing but filler: what the policy moved on the others' attempts tells.
            moved = means[worst, 1] if counts[worst, 1] else sums[:, 1].sum() / counts[:, 1].sum().clamp(min=1)
            seen = replace(seen, kept=kept.step, agreed=kept.agreed, near=self._near, moved=moved.item())
        if seen.case is not None and not self._wrong and self._text_only:
            seen = replace(seen, base=self._base(model, rows, worst))
        self._tell(seen, step, worst)
        if seen.case is None:
            self._near = step
        if seen.agrees and self._text_only:
            self._kept = _Kept(rows, logps, step, seen.difference)
        everyones = (sums.sum(dim=0) / counts.sum(dim=0).clamp(min=1)).tolist()
        names = ("sampler/logp_difference/mean", "sampler/policy_moved")
        return {"sampler/logp_difference/max": most[:, 0].max().item(), **dict(zip(names, everyones, strict=False))}

    def _base(self, model: nn.Module, rows: dict[str, Tensor], rank: int) -> float | None:
        """Return the difference on a process with the adapter off, where there is one. Collective."""
        disabled = getattr(extract_model_from_parallel(model), "disable_adapter", None)
        if disabled is None:
            return None
        with disabled():
            logps = self._logps(model, rows)
        total, count, _ = self._of_ranks([_off(rows, logps)])[rank, 0].tolist()
        return total / count if count else None

    def _tell(self, seen: Seen, step: int, rank: int) -> None:
        if seen.case is not None and not self._wrong:  # once: the first time shows the cause best
            where = f", process {rank}" if self._accelerator.num_processes > 1 else ""
            logger.warning(f"Step {step}{where}: {seen.text()}")
            self._wrong = True
        elif seen.agrees:
            self._wrong = False

    def _logps(self, model: nn.Module, rows: dict[str, Tensor]) -> Tensor:
        """In evaluation mode, so that no random number is drawn: the run stays as it would be."""
        with evaluating(model):
            return self._forward(rows)

    def _known_to_any(self, output: dict[str, Any]) -> bool:
        """Return whether any process has the engine's log-probs. Collective."""
        here = output["completion_mask"].new_tensor(["sampling_per_token_logps" in output])
        return bool(self._accelerator.gather(here).any())

    def _of_ranks(self, found: list[Tensor]) -> Tensor:
        """`(R, M, 3)`, of this rank's M of `(3,)`. Collective."""
        return self._accelerator.gather(torch.stack(found).unsqueeze(0)).cpu()


def _some(output: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """Return a few rows of a batch and their places in it, on all processes as many: such as have tokens as far as
    there are, from one end of the batch to the other, since prompts move differently."""
    lives = loss_mask(output).any(dim=1)
    count = min(ATTEMPTS, len(lives))
    spread = torch.linspace(0, max(int(lives.sum()), count) - 1, count, device=lives.device).long()
    places = lives.int().argsort(descending=True, stable=True)[spread]
    names = (*INPUTS, "sampling_per_token_logps", *(("tool_mask",) if "tool_mask" in output else ()))
    return {name: output[name][places] for name in names}, places


def _off(rows: dict[str, Tensor], logps: Tensor) -> Tensor:
    return apart(rows["sampling_per_token_logps"], logps, loss_mask(rows))
