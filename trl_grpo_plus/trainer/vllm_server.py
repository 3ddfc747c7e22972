"""The error of a run whose vLLM server fails: one message that names the server, on all processes.

TRL's first process alone asks the server, and gets an error of requests after a minute of retries. The other processes
then lose the first one. They ask the server too, so that they can tell its failure from that of a process.
"""

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from ..utils.distributed import lost_process
from ..utils.validation import RunError


HEALTH_S = 5.0  # seconds within which a server must answer; a working server answers at once


class ServerFailed(RunError):
    """The vLLM server of a run does not answer, or answers with errors of its own."""


def address(args: Any) -> str:
    """Return the address of the vLLM server that a config names."""
    return args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"


@contextmanager
def naming_server(args: Any, step: int | None = None) -> Iterator[None]:
    """Raise an error of the vLLM server inside the block as [`ServerFailed`]; other errors pass.

    Args:
        args ([`GRPOPlusConfig`]): configuration of the run. Without a server all errors pass.
        step (`int`, *optional*): optimizer steps done. `None`: the trainer is being made.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:  # errors of `requests` are OSErrors
        served = getattr(args, "use_vllm", False) and args.vllm_mode == "server"
        if not served or not (cause := _cause(error, address(args))):
            raise
        when = "when the run began" if step is None else f"after step {step}"
        raise ServerFailed(
            f"the vLLM server at {address(args)} failed {when}: {cause}. Start the server anew, then resume the run "
            "from its last checkpoint."
        ) from error


def _cause(error: BaseException, server: str) -> str:
    """Return what an error says about the server's failure; "" if the server is not its cause."""
    request: Any = getattr(error, "request", None)
    if url := getattr(request, "url", None):
        request_url = urlsplit(url)
        why = str(getattr(error.args[0] if error.args else None, "reason", error)).rpartition(": ")[2]
        return f"{request.method} {request_url.path}: {why}" if request_url.netloc == urlsplit(server).netloc else ""
    if isinstance(error, ConnectionError) and server.rstrip("/") in str(error):  # the server did not start in time
        return str(error).partition(". ")[0].rstrip(".")
    lost = lost_process(error)
    return f"it does not answer, and another process ended ({lost})" if lost and not _answers(server) else ""


def _answers(server: str) -> bool:
    try:
        with urllib.request.urlopen(f"{server.rstrip('/')}/health", timeout=HEALTH_S):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500  # vLLM answers 503 once its engine is dead
    except (OSError, ValueError):
        return False
