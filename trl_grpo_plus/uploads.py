"""What stays at home when a model is pushed to the Hub: the run's prompts, reference columns and completions.

transformers uploads all of `output_dir` but checkpoints and names that begin with `_`, and takes no more exceptions:
they are added where it calls the Hub's client.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import transformers
from transformers import trainer as seam

from .common.attributes import temporarily
from .lease import FILE as LOCK
from .traces import FOLDER


# The traces, the pages that show them, earlier runs, which the recipes' script moves aside with theirs, and the lock.
AT_HOME = (f"{FOLDER}/*", "report.html", "rescore.html", "earlier-*", LOCK)


@contextmanager
def kept_at_home() -> Iterator[None]:
    """Within it, transformers' trainer uploads nothing of [`AT_HOME`].

    Raises:
        RuntimeError: this release of transformers calls the Hub in another way.
    """
    wrap: dict[str, Any] = {"hf_api": lambda api: lambda: _Client(api()), "upload_folder": _sparing}
    with temporarily(seam, **{name: wrap[name](original) for name, original in check_seam().items()}):
        yield


def check_seam() -> dict[str, Callable[..., Any]]:
    """How transformers' trainer calls the Hub: `hf_api().upload_folder`, or in older releases `upload_folder`.

    Raises:
        RuntimeError: neither is there.
    """
    calls = {name: getattr(seam, name) for name in ("hf_api", "upload_folder") if hasattr(seam, name)}
    if not calls:
        raise RuntimeError(
            f"transformers {transformers.__version__} uploads in a way that trl_grpo_plus does not know, and would "
            f"take {', '.join(AT_HOME)} of output_dir along. Set push_to_hub=False and upload the model yourself, or "
            "use transformers 5.8 to 5.23."
        )
    return calls


class _Client:
    def __init__(self, api: Any):
        self._api = api
        self.upload_folder = _sparing(api.upload_folder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)


def _sparing(upload_folder: Callable[..., Any]) -> Callable[..., Any]:
    def upload(*args: Any, ignore_patterns: list[str] | str | None = None, **kwargs: Any) -> Any:
        patterns = [ignore_patterns] if isinstance(ignore_patterns, str) else ignore_patterns or []
        return upload_folder(*args, ignore_patterns=[*patterns, *AT_HOME], **kwargs)

    return upload
