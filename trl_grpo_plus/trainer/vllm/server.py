"""The errors of a run whose vLLM fails: one message that names the server or the option, on all processes.

TRL's first process alone asks the server, and gets an error of requests after a minute of retries. The other processes
then lose the first one. They ask the server too, so that they can tell its failure from that of a process.
"""

import re
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...traces import logged_step
from ...utils.distributed import lost_process
from ...utils.patching import temporarily
from ...utils.validation import ConfigError, RunError


if TYPE_CHECKING:
    from ...config import GRPOPlusConfig


HEALTH_S = 5.0  # seconds within which a server must answer; a working server answers at once
# What vLLM says of a prompt that is too long. A server's answer has JSON around it.
TOO_LONG = re.compile(r'[^"]*maximum (?:context|model) length[^"]*')

START = "Start the server (restart it if it runs), then start the run."
RESUME = "Restart the server, then resume the run from its last checkpoint."
NO_WEIGHTS = (
    "The server's log says why. The server may serve another model than the trained one, or an earlier trainer may "
    "have ended while it sent weights. "
)


class ServerFailed(RunError):
    """The vLLM server of a run does not answer, or answers with errors of its own."""


def address(args: "GRPOPlusConfig") -> str:
    """Return the address of the vLLM server that a config names."""
    return args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"


@contextmanager
def naming_server(args: "GRPOPlusConfig", step: int | None = None) -> Iterator[None]:
    """Raise an error of the vLLM server inside the block as [`ServerFailed`]; other errors pass.

    Args:
        args ([`GRPOPlusConfig`]): configuration of the run. Without vLLM all errors pass.
        step (`int`, *optional*): optimizer steps done. `None`: the trainer is being made.

    Raises:
        ConfigError: vLLM, colocated or as a server, refused a prompt that is too long.
    """
    try:
        yield
    except Exception as error:
        if not getattr(args, "use_vllm", False):
            raise
        if step is not None and (said := _of_a_long_prompt(error)):
            raise ConfigError(_too_long(args, step, said)) from error
        failed = args.vllm_mode == "server" and isinstance(error, OSError | RuntimeError)  # requests': OSErrors
        if not failed or not (cause := _cause(error, address(args))):
            raise
        when = "when the run began" if step is None else f"after step {step}"
        do = START if step is None else RESUME
        why = NO_WEIGHTS if "weight" in cause.partition(": ")[0] else ""
        raise ServerFailed(f"the vLLM server at {address(args)} failed {when}: {cause}. {why}{do}") from error


def noticing_errors(args: "GRPOPlusConfig") -> AbstractContextManager[None]:
    """Let TRL's wait for the server end after `vllm_server_timeout` seconds if the server answers with errors.

    TRL looks at the clock only while nothing answers. It would wait for ever for a server whose engine is dead, or at
    the address of another program.
    """
    if not args.use_vllm or args.vllm_mode != "server":
        return nullcontext()
    from trl.generation import vllm_client

    if not hasattr(vllm_client, "requests"):  # `requests` is not installed, and TRL says so
        return nullcontext()
    ask = vllm_client.requests.get

    def get(*args: Any, **kwargs: Any) -> Any:
        """Ask as `requests.get` does, and raise an error of `requests` for an answer that is an error."""
        answer = ask(*args, **kwargs)
        answer.raise_for_status()
        return answer

    return temporarily(vllm_client, requests=SimpleNamespace(**{**vars(vllm_client.requests), "get": get}))


def _of_a_long_prompt(error: Exception) -> str:
    """Return what vLLM says of a prompt that is too long; "" for another error.

    vLLM or TRL must have raised the error. A model that a reward or a `rollout_func` asks may say the same.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    raised_by = frame.f_globals.get("__name__", "").partition(".")[0]
    found = TOO_LONG.search(str(error)) if raised_by in ("vllm", "trl") else None
    return found[0].strip() if found else ""


def _too_long(args: "GRPOPlusConfig", step: int, said: str) -> str:
    ways = "start the server with a larger --max-model-len, or lower max_completion_length"
    if args.vllm_mode == "colocate":
        ways = f"raise vllm_max_model_length (now {args.vllm_max_model_length or 'the context of the model'})"
    return (
        f"step {logged_step(step)}: a prompt is too long for vLLM. {said.rstrip('.')}. Leave out the longest prompts, "
        f"or {ways}. With vllm_max_model_length in a recipe, `trl-grpo-plus check` compares the prompts with it."
    )


def _cause(error: BaseException, server: str) -> str:
    """Return what an error says about the server's failure; "" if the server is not its cause."""
    request: Any = getattr(error, "request", None)
    if url := getattr(request, "url", None):
        request_url = urlsplit(url)
        why = str(getattr(error.args[0] if error.args else None, "reason", error)).rpartition(": ")[2]
        return f"{request.method} {request_url.path}: {why}" if request_url.netloc == urlsplit(server).netloc else ""
    # The server did not start in time. TRL's ConnectionError is that of `requests`, not Python's.
    if isinstance(error, OSError) and server.rstrip("/") in str(error):
        answer = f", but answers: {error.__cause__}" if getattr(error.__cause__, "response", None) is not None else ""
        return str(error).partition(". ")[0].rstrip(".") + answer
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
