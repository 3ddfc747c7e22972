"""The result of rescoring, as text and as lines of JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ...rollouts.verdicts import VERDICTS
from ...scoring import same_score
from ...utils.tables import aligned
from ...utils.terminal import quoted
from .agreement import PLACES, Agreement, Pearson
from .effect import Rescoring, replaces
from .requested_rewards import TOTAL, RequestedReward
from .scoring_loop import Group, Score


EXAMPLES = 5  # examples of each kind


def report(rescoring: Rescoring) -> str:
    """Return the report on one or more scored groups as text."""
    lines: list[str] = []
    for reward in rescoring.rewards:
        lines += [*_agreement(reward, rescoring), ""]
        lines += [*_effect(reward, rescoring), ""]
    if len(rescoring.rewards) > 1:
        lines += [*_pairs(rescoring.groups, rescoring.rewards), ""]
    return "\n".join(lines[:-1])


def to_lines(rescoring: Rescoring) -> Iterator[bytes]:
    """Yield a line of JSON for each attempt."""
    against = dict.fromkeys(reward.against for reward in rescoring.rewards)
    for group in rescoring.groups:
        for attempt in range(group.size):
            outcomes = {label: of_group[attempt] for label, of_group in group.outcomes.items()}
            line = {
                **group.place,
                "split": rescoring.split,
                "attempt": attempt,
                "recorded": {name: group.recorded[name][attempt] for name in against if name in group.recorded},
                "new": {label: outcome.score for label, outcome in outcomes.items()},
                "outcome": {label: outcome.status for label, outcome in outcomes.items()},
            }
            if messages := {label: one.message for label, one in outcomes.items() if one.message}:
                line["message"] = messages
            yield json.dumps(line).encode() + b"\n"


def _agreement(reward: RequestedReward, rescoring: Rescoring) -> list[str]:
    found = rescoring.agreements[reward.label]
    of = "the recorded total" if reward.against == TOTAL else f"the recorded {reward.against}"
    statuses = ", ".join(f"{status} {count:,}" for status, count in found.statuses.most_common())
    lines = [
        f"{reward.label} against {of}",
        f"  equal     {found.equal:,} of {found.attempts:,} ({_percent(found.equal, found.attempts)})",
        f"  mean      {_number(found.old_mean)} recorded, {_number(found.new_mean)} now",
        f"  Pearson   {_r(found.r)}",
        f"  outcomes  {statuses}",
    ]
    if found.lacking:
        lines.append(f"  {found.lacking:,} more attempts recorded no {reward.against}. They are not compared.")
    if (failed := found.undecided["error"] + found.undecided["timeout"]) and (how := _stops(reward, found)):
        lines.append(f"  A training run would stop at {'this' if failed == 1 else 'these'}: {how}.")
    if not found.differences:
        return lines
    lines += ["", "  differs   attempts"]
    for kind, places in found.differences.items():
        lines.append(f"  {kind:<8}  {len(places):>8,}")
        apart = -(-len(places) // EXAMPLES)  # examples are spread over the run
        lines += aligned(_example(reward, rescoring, *divmod(place, PLACES)) for place in places[::apart])
    return lines


def _stops(reward: RequestedReward, found: Agreement) -> str:
    policies = {name: getattr(reward.function, f"on_{name}", "raise") for name in ("error", "timeout")}
    raising = [name for name, policy in policies.items() if policy == "raise" and found.undecided[name]]
    return ", ".join(f"on_{name} is 'raise'" for name in raising)


def _example(reward: RequestedReward, rescoring: Rescoring, number: int, attempt: int) -> tuple[str, str, str]:
    group = rescoring.groups[number]
    place, outcome = group.place, group.outcomes[reward.label][attempt]
    later = "".join(f"{name} {place[name]}, " for name in ("batch", "round") if place[name])
    at = f"    step {place['step']}, {later}"
    why = f"  {quoted(outcome.reason[:200])}" if outcome.reason else ""
    scores = f"{_number(group.recorded[reward.against][attempt])} -> {_number(outcome.score)}"
    return f"{at}group {place['group']}, attempt {attempt}", scores, f"{quoted(group.tails[attempt])}{why}"


def _effect(reward: RequestedReward, rescoring: Rescoring) -> list[str]:
    found, weights = rescoring.effects[reward.label], rescoring.weights
    inside = replaces(reward.against, weights)
    old = f"the recorded {reward.against}"
    head = [f"Groups, with {reward.label} {f'instead of {old} in the total' if inside else 'as the total'}"]
    if found.left_out:
        judged = found.left_out + found.table.total()
        head += [
            f"  left out  {found.left_out:,} of {judged:,}: their recorded rewards are not the ones that run.json has",
            f"            weights for ({', '.join(weights)}), so their new total is unknown",
        ]
    if not found.table:
        return head
    lines = [*head, *_verdicts(found.table), ""]
    if found.unexplained:
        lines.append(
            f"  {found.unexplained:,} recorded verdicts do not follow from the recorded totals: the run judged\n"
            "  groups in another way (filter_metric, solved_reward, step rewards). Read the table with care."
        )
    if not found.alive:
        return [*lines, "  advantages: no group that was trained on is alive both times"]
    of = f"{found.alive:,} {'group' if found.alive == 1 else 'groups'} alive both times"
    between = "recorded advantages against GRPO's of the new total"
    return [*lines, f"  advantages: {_r(found.advantages)}, {between}, over {of}"]


def _verdicts(table: Counter[tuple[str, str]]) -> list[str]:
    """Return the number of groups that were and are alive, and a table of their verdicts before and now."""
    old, new = ({pair[side] for pair in table} for side in (0, 1))
    columns = [name for name in VERDICTS if name in new]
    rows = [*(name for name in VERDICTS if name in old), *sorted(old - set(VERDICTS))]
    cells = [("  was", *(f"{name:>8}" for name in columns))]
    cells += [(f"  {was}", *(f"{table[was, now]:,}" for now in columns)) for was in rows]
    count = table.total()
    was, now = (sum(of for pair, of in table.items() if pair[side] == "alive") for side in (0, 1))
    alive = f"{was:,} of {count:,} ({_percent(was, count)}) recorded, {now:,} ({_percent(now, count)}) now"
    return [f"  alive     {alive}", "", *aligned(cells, right=range(1, len(cells[0])))]


def _pairs(groups: Sequence[Group], rewards: Sequence[RequestedReward]) -> list[str]:
    """Return a table of Pearson's r and the share of equal scores, for each two rewards and each with the total."""
    labels = [reward.label for reward in rewards]
    cells = [("  r, equal", *labels)]
    for number, label in enumerate(labels[1:], start=1):
        row = [_pair((group.scores(other), group.scores(label)) for group in groups) for other in labels[:number]]
        cells.append((f"  {label}", *row, *[""] * (len(labels) - number)))
    with_total = (_pair((group.scores(label), group.recorded[TOTAL]) for group in groups) for label in labels)
    cells.append(("  recorded total", *with_total))
    return ["Pairs of rewards: Pearson's r, share of equal scores", "", *aligned(cells)]


def _pair(columns: Iterable[tuple[Sequence[Score], Sequence[Score]]]) -> str:
    """Compare two columns of scores, which come in parts."""
    correlation, equal, count = Pearson(), 0, 0
    for first, second in columns:
        correlation.add(first, second)
        equal += sum(map(same_score, first, second))
        count += len(first)
    r = correlation.r
    return f"{'-' if r is None else f'{r:.3f}'} {_percent(equal, count)}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"


def _number(score: Score) -> str:
    return "None" if score is None else f"{score:.4f}".rstrip("0").rstrip(".")


def _r(r: float | None) -> str:
    return "r is undefined (one side is constant)" if r is None else f"r = {r:.3f}"
