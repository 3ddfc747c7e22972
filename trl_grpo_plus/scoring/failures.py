"""The words for a failed reward: one warning for each kind."""

import logging
from collections.abc import Mapping, Sequence

from ..utils.terminal import visible
from .outcome import Outcome


logger = logging.getLogger(__name__)  # accelerate's logger needs an initialised distributed state


def warn_of_first(
    name: str, outcomes: Sequence[Outcome], policies: Mapping[str, str], said: set[tuple[str, str]]
) -> None:
    """Warn of the first failure of each kind that a reward has in a run, because training goes on in spite of it.

    Args:
        name (`str`): the reward's.
        outcomes (`Sequence[Outcome]`): the outcomes of its samples in this batch.
        policies (`Mapping[str, str]`): its policies by status.
        said (`set`): names and statuses of which a warning has told; this function adds to it.
    """
    for outcome in outcomes:
        status = outcome.status
        if status not in ("error", "timeout", "starved") or (name, status) in said:
            continue
        said.add((name, status))
        count = sum(other.status == status for other in outcomes)
        lines = [line.strip() for line in outcome.message.splitlines() if line.strip()]
        why = lines[-1][:300].rstrip(".") if lines else "no reason given"
        scored = "scores 0" if outcome.score is not None else "has no score"
        stop = f" To stop at the first with the whole message, set on_{status} of the reward to 'raise'."
        logger.warning(
            visible(
                f"reward {name!r}: {count} of {len(outcomes)} samples ended with status {status!r}: {why}. Such "
                f"a sample {scored}. This is said once, and rewards/{name}/{status} logs their share."
                f"{stop if status in policies else ''}"
            )
        )
