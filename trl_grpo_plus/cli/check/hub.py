"""Access to the Hub, and stand-ins if it cannot be reached: sample rows, models' facts, a tokenizer of bytes.

Call [`settle`] before transformers or datasets is imported. Without a network, each of their look-ups retries for half
a minute, unless `HF_HUB_OFFLINE` was set before the import. huggingface_hub may be imported already: accelerate 1.10
imports it.
"""

import contextlib
import os
import sys
import threading
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from ...launch.datasets_by_name import BUILDERS
from ...launch.reward_inputs import load_data
from ...utils.files import looks_local
from ...utils.tables import in_short
from ...utils.validation import ConfigError
from . import samples


TIMEOUT_S = 2.0
# Errors by class name, because several libraries have classes of these names.
ANSWERS = {"RepositoryNotFoundError", "GatedRepoError", "RevisionNotFoundError", "DatasetNotFoundError"}
NO_NETWORK = {"OfflineModeIsEnabled", "ConnectionError", "ConnectError", "TimeoutException", "TimeoutError"}
NO_NETWORK |= {"LocalEntryNotFoundError"}
_REASON: list[str] = []  # reason why the Hub did not answer, once it was asked


class Loaded(NamedTuple):
    """A loaded object, or its stand-in, and its origin: "here", "Hub", "cache" or "stand-in"."""

    what: Any
    origin: str

    @property
    def is_real(self) -> bool:
        """True if the object is not a stand-in."""
        return self.origin != "stand-in"


def settle() -> None:
    """Find out whether the Hub answers; if not, set `HF_HUB_OFFLINE`."""
    if online() and (why := _no_answer()):
        os.environ["HF_HUB_OFFLINE"] = "1"
        if constants := sys.modules.get("huggingface_hub.constants"):  # it read the variable on import
            constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
        _REASON.append(why)


def online() -> bool:
    """Return `True` unless `HF_HUB_OFFLINE` forbids access to the Hub."""
    return os.environ.get("HF_HUB_OFFLINE", "0").upper() not in ("1", "TRUE", "YES", "ON")


def unreachable() -> str:
    """Return a phrase that the Hub cannot be reached, with the reason if it is known."""
    why = _REASON[-1] if _REASON else "" if online() else "HF_HUB_OFFLINE is set"
    return "the Hub cannot be reached" + (f" ({why})" if why else "")


def model_config(name: str, revision: str | None = None, trust_remote_code: bool = False) -> Loaded | None:
    """Return a model's config; `None` if the Hub cannot be reached and no facts of the model ship with this package.

    Raises:
        ConfigError: there is no such model, or it may not be read.
    """
    from transformers import AutoConfig

    if loaded := _from_hub(AutoConfig, "model_name_or_path", name, revision, trust_remote_code):
        return loaded
    facts = samples.config_of(name)
    return Loaded(AutoConfig.for_model(**facts), "stand-in") if facts else None


def generation_config(name: str, revision: str | None = None) -> dict[str, Any]:
    """Return a model's generation config as transformers loads it; empty if it cannot be read.

    If the model has no generation_config.json, the settings are read from config.json.
    """
    from transformers import GenerationConfig

    for of_a_model in (False, True):
        file = {"config_file_name": "config.json", "_from_model_config": True} if of_a_model else {}
        with contextlib.suppress(OSError, ValueError):
            return GenerationConfig.from_pretrained(name, revision=revision, **file).to_dict()
    return {}


def tokenizer(name: str, revision: str | None = None, trust_remote_code: bool = False) -> Loaded:
    """Return a model's tokenizer, or a byte tokenizer if the Hub cannot be reached.

    Raises:
        ConfigError: there is no such model, it has no tokenizer, or it may not be read.
    """
    from transformers import AutoTokenizer

    from .tiny_model import byte_tokenizer

    loaded = _from_hub(AutoTokenizer, "model_name_or_path: the tokenizer", name, revision, trust_remote_code)
    return loaded or Loaded(byte_tokenizer(), "stand-in")


def _from_hub(kind: Any, what: str, name: str, revision: str | None, trust_remote_code: bool) -> Loaded | None:
    """Load an object with `kind.from_pretrained`; return `None` if the Hub cannot be reached."""
    is_folder = os.path.isdir(os.path.expanduser(name))
    try:
        loaded = kind.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:
        kinds = _kinds(error)
        if "GatedRepoError" in kinds:
            raise ConfigError(
                f"{what}: {name} is gated: ask for access on its page, then run  hf auth login."
            ) from error
        if kinds & {"RepositoryNotFoundError", "RevisionNotFoundError"}:
            raise ConfigError(
                f"{what}: the Hub has no model {name}, or not this revision, or it is private."
            ) from error
        if is_folder or not _is_unreachable(error):
            raise ConfigError(f"{what} of {name} cannot be read: {in_short(error)}") from error
        return None
    return Loaded(loaded, "here" if is_folder else "Hub" if online() else "cache")


def data(script_args: Any, training_args: Any, model_args: Any, dataset_args: Any) -> Loaded | None:
    """Return the run's data, or sample rows if the data is on the Hub and the Hub cannot be reached.

    Args:
        script_args, training_args, model_args, dataset_args: arguments of
            [`~trl_grpo_plus.launch.reward_inputs.load_data`]. `dataset_name` and `datasets` are changed if sample rows
            stand in.

    Returns:
        [`Loaded`] or `None`: splits by name; `None` if the Hub cannot be reached and there are no sample rows.
    """
    args = (script_args, training_args, model_args, dataset_args)
    named = script_args.dataset_name and not looks_local(script_args.dataset_name) and not dataset_args.datasets
    try:
        return Loaded(load_data(*args, smoke=True), "Hub" if named or dataset_args.datasets else "here")
    except Exception as error:
        if not _is_unreachable(error):
            raise
    if dataset_args.datasets:
        parts = [part for part in dataset_args.datasets if part.path not in BUILDERS.values()]
        away = [part for part in parts if not looks_local(part.path) and not os.path.exists(part.path)]
        stand_ins = [samples.sample_of(part.path, part.name) for part in away]
        if not away or None in stand_ins:
            return None
        for part, sample in zip(away, stand_ins, strict=True):
            part.path, part.name, part.data_files, part.split = "json", None, sample, "train"
    elif named and (sample := samples.sample_of(script_args.dataset_name, script_args.dataset_config)):
        script_args.dataset_name, script_args.dataset_config = sample, None
    else:
        return None
    return Loaded(load_data(*args, smoke=True), "stand-in")


def needed_data(*args: Any) -> Any:
    """Return the splits that [`data`] returns; refuse a run whose data has not even sample rows."""
    if loaded := data(*args):
        return loaded.what
    raise ConfigError("the data cannot be reached, and no sample rows of it ship with this package.")


def _no_answer() -> str:
    """Return the reason why the Hub does not answer; "" if it answers."""
    # In a thread, because the wait for a silent name server has no time limit.
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(_ask_hub()), daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    return answers[0] if answers else f"no answer from {_endpoint()} in {TIMEOUT_S:g} s"


def _ask_hub() -> str:
    try:
        with urllib.request.urlopen(f"{_endpoint()}/api/models?limit=1", timeout=TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        # These codes come from the Hub itself. Other errors come from a proxy.
        return "" if error.code in (401, 404, 429) else f"{_endpoint()}: {error}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"{_endpoint()}: {getattr(reason, 'strerror', None) or reason}"


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _kinds(error: BaseException | None) -> set[str]:
    """Return the names of the classes of an error and of its causes."""
    own = {kind.__name__ for kind in type(error).__mro__}
    return own | _kinds(error.__cause__ or error.__context__) if error else set()


def _is_unreachable(error: BaseException) -> bool:
    """Return `True` if the network caused an error, not an answer of the Hub or a bug."""
    kinds = _kinds(error)
    return bool(kinds & NO_NETWORK) and not kinds & ANSWERS
