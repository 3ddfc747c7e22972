"""The nodes of a run: their number, and the options by which their launchers find each other.

Each launcher has options of its own for this, and this package passes them on under the launcher's own names.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..utils.validation import ConfigError, one_of


# launcher -> its options -> the help. The first option of each is the number of nodes.
OPTIONS: dict[str, dict[str, str]] = {
    "accelerate": {
        "num_machines": "number of nodes (default: the configuration's, else 1)",
        "machine_rank": "number of this node: 0 on the node that --main_process_ip names, 1 on the next",
        "main_process_ip": "name or address of node 0, as the other nodes reach it",
        "main_process_port": "free port of node 0 (default: 29500)",
    },
    "torchrun": {
        "nnodes": "number of nodes (default: 1)",
        "node_rank": "number of this node: 0 on the node that --master_addr names, 1 on the next",
        "master_addr": "name or address of node 0, as the other nodes reach it",
        "master_port": "free port of node 0 (default: 29500)",
        "nproc_per_node": "number of processes on each node, in place of --num_processes",
        "rdzv_backend": "static (default) or c10d",
        "rdzv_endpoint": "HOST:PORT where the nodes meet; with c10d",
        "rdzv_id": "name of the job, the same on all nodes; with c10d",
        "rdzv_conf": "further settings of the backend, such as timeout=600 (static) or join_timeout=600 (c10d), in s",
        "local_addr": "name or address of this node",
    },
}
TWINS = {"num_machines": "nnodes", "machine_rank": "node_rank"}
TWINS |= {"main_process_ip": "master_addr", "main_process_port": "master_port"}
STATIC = ("node_rank", "master_addr", "master_port")
DYNAMIC = ("rdzv_endpoint", "rdzv_id")
PORT = 29500


@dataclass(frozen=True)
class Nodes:
    """The nodes of a run, as one of them sees them.

    Args:
        count (`int`, *optional*, defaults to `1`): number of nodes.
        words (`tuple[str, ...]`, *optional*): words of the launcher's command line; none for a run of one node.
        processes_per_node (`int`, *optional*): number of processes on each node, if an option named it.
    """

    count: int = 1
    words: tuple[str, ...] = ()
    processes_per_node: int | None = None


ONE = Nodes()


def nodes(launcher: str, given: Mapping[str, str | None], content: Mapping[str, Any] | None = None) -> Nodes:
    """Return the nodes that a launcher's options describe.

    Args:
        launcher (`str`): one of [`OPTIONS`].
        given (`Mapping[str, str | None]`): values of options of any launcher, by name; `None` if an option is not set.
        content (`Mapping[str, Any]`, *optional*): the accelerate configuration, which may hold the same settings. A
            configuration of one machine has them too, and they say nothing about several nodes.

    Raises:
        ConfigError: there is no such launcher; an option is of another one, is missing, is not allowed, or would have
            no effect.
    """
    one_of("--launcher", launcher, OPTIONS)
    set_here = {name: value for name, value in given.items() if value not in (None, "")}
    _refuse_foreign(launcher, set_here)
    content = content if content and machines(content) > 1 else {}
    count_name, rank_name, address_name, port_name = list(OPTIONS[launcher])[:4]
    count = _count(count_name, set_here.get(count_name, content.get(count_name) or 1))
    each = set_here.pop("nproc_per_node", None)
    per_node = None if each is None else _count("nproc_per_node", each)
    others = [name for name in set_here if name != count_name]
    if not others and count == 1 and not content:
        return Nodes(1, (), per_node)
    if others == [port_name] and not content:
        set_here = {count_name: "1", **set_here}
    if count_name not in set_here and not content:
        raise ConfigError(f"--{others[0]} {set_here[others[0]]} needs the number of nodes. Add --{count_name} N.")
    if launcher == "torchrun":
        one_of("--rdzv_backend", set_here.get("rdzv_backend", "static"), ("static", "c10d"))
    if set_here.get("rdzv_backend", "static") == "static":
        _refuse_without_effect(set_here, DYNAMIC, "--rdzv_backend static", f"--{address_name} and --{port_name}")
        if count > 1:
            _need(count_name, count, {**content, **set_here}, (rank_name, address_name))
        _check_rank(rank_name, set_here.get(rank_name, content.get(rank_name, 0)), count)
        set_here.setdefault(port_name, str(content.get(port_name) or PORT))
    else:
        _refuse_without_effect(set_here, STATIC, "--rdzv_backend c10d", "--rdzv_endpoint HOST:PORT")
        _need(count_name, count, set_here, ("rdzv_endpoint",))
    if port_name in set_here:
        _number(port_name, set_here[port_name], 1, 65535, "a port, 1 to 65535, that is the same on all nodes.")
    words = [word for name, value in set_here.items() for word in (f"--{name}", str(value))]
    return Nodes(count, tuple(words), per_node)


def machines(content: Mapping[str, Any]) -> int:
    """Return the number of nodes that an accelerate configuration describes."""
    return _count("accelerate_config with num_machines", content.get("num_machines") or 1)


def _refuse_foreign(launcher: str, set_here: Mapping[str, str]) -> None:
    back = {theirs: ours for ours, theirs in TWINS.items()}
    for name, value in set_here.items():
        owner = next(other for other, options in OPTIONS.items() if name in options)
        if owner != launcher:
            twin = (TWINS | back).get(name)
            instead = f"Give --{twin} {value} instead" if twin else "Leave it out"
            raise ConfigError(
                f"--{name} {value} is an option of {owner}, and the launcher is {launcher}, which takes "
                f"{', '.join(f'--{option}' for option in OPTIONS[launcher])}. {instead}, or set --launcher {owner}."
            )


def _refuse_without_effect(set_here: Mapping[str, str], names: tuple[str, ...], because: str, instead: str) -> None:
    for name in names:
        if name in set_here:
            raise ConfigError(
                f"--{name} {set_here[name]} has no effect with {because}: the nodes meet at {instead}. Remove it."
            )


def _need(count_name: str, count: int, settings: Mapping[str, Any], names: tuple[str, ...]) -> None:
    if missing := [f"--{name}" for name in names if settings.get(name) is None]:
        raise ConfigError(
            f"--{count_name} {count} needs {' and '.join(missing)} too. Without them the nodes do not find each other."
        )


def _count(name: str, value: Any) -> int:
    varies = " A run cannot gain or lose nodes, because its batch would change." if ":" in str(value) else ""
    return _number(name, value, 1, math.inf, f"a whole number, 1 or more.{varies}")


def _check_rank(name: str, value: Any, count: int) -> None:
    allowed = "0" if count == 1 else f"0 to {count - 1}"
    there = "there is one node" if count == 1 else f"there are {count} nodes, and each has its own number"
    _number(name, value, 0, count - 1, f"{allowed}: {there}.")


def _number(name: str, value: Any, least: int, most: float, must_be: str) -> int:
    """Return an option's value as an integer, or refuse it."""
    with suppress(ValueError):
        if least <= (number := int(str(value))) <= most:
            return number
    raise ConfigError(f"--{name} {value} must be {must_be}")
