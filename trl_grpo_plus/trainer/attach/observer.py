"""The options of [`attach`](attach), and the wrappers that each of TRL's trainers needs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from trl import GRPOConfig

from ...config import GRPOPlusConfig
from ...config.validation import NUMBERS, check_flag, check_watching
from ...rollouts.verdicts import DEAD
from ...utils import folder_lock
from ...utils.validation import ConfigError
from .. import hub
from ..recorder import Recorder


_JUDGING = ("failed_reward", "filter_metric", "solved_reward", "zero_variance_tolerance")
_WATCHING = ("alarm", "halt_on_", "trace_")  # how the names of the others begin
OPTIONS = tuple(sorted({*_JUDGING, *(name for name in GRPOPlusConfig.__annotations__ if name.startswith(_WATCHING))}))


class Options:
    """The options of [`attach`], a trainer's arguments, and defaults for options that its configuration lacks."""

    dead = DEAD
    zero_variance_groups: str | None
    shuffle_dataset: bool

    def __init__(self, args: Any, options: dict[str, Any]):
        self._args, self.world_size, self.process_index = args, args.world_size, args.process_index
        if not isinstance(args, GRPOConfig):
            self.zero_variance_groups = None  # an `RLOOTrainer` has no way to leave groups out
        self.__dict__.update(options)

    def __getattr__(self, name: str) -> Any:
        if name not in GRPOPlusConfig.__dataclass_fields__:
            raise AttributeError(name)
        return getattr(self._args, name, GRPOPlusConfig.__dataclass_fields__[name].default)


class Observer:
    """The keeper of one trainer's records. Every rank has one.

    Args:
        trainer: the trainer.
        options ([`Options`]): its options.
    """

    _recorder: Recorder

    def __init__(self, trainer: Any, options: Options):
        for name in OPTIONS:
            if name in NUMBERS:
                NUMBERS[name].check(name, getattr(options, name))
            if isinstance(GRPOPlusConfig.__dataclass_fields__[name].default, bool):
                check_flag(name, getattr(options, name))
        check_watching(options)
        if "reward_failures" in (options.halt_on_alarm or ()):
            raise ConfigError(
                "halt_on_alarm names 'reward_failures', which attach cannot see, because TRL calls the rewards. Use "
                "GRPOPlusTrainer, or name another alarm."
            )
        if trainer.args.push_to_hub:
            hub.check_seam()
        self._trainer, self._options = trainer, options

    def wrap(self) -> None:
        """Replace the trainer's methods by the wrappers."""
        trainer = self._trainer
        for wrapper in self.wrappers():
            setattr(trainer, wrapper.__name__, partial(wrapper, getattr(trainer, wrapper.__name__)))
        # After transformers' callback that asks for evaluations: a stopped epoch leaves one out. Before trackio's own
        # callback, which closes its run when training ends.
        trainer.callback_handler.callbacks.insert(1, self._recorder)

    def wrappers(self) -> Sequence[Callable[..., Any]]:
        """Return the wrappers. Each has the name of the method that it wraps, and takes it as its first argument."""
        return self.log, self.train, self.push_to_hub, self._push_from_checkpoint

    def log(self, method: Callable[..., None], logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, after the last batch was kept, so that its metrics are logged too."""
        self._recorder.settle()
        method(logs, *args, **kwargs)

    def train(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Train as the only run in the output folder."""
        with folder_lock.hold(self._trainer.args.output_dir), self._recorder.blaming_trackers():
            return method(*args, **kwargs)

    def push_to_hub(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Upload the output folder without the attempts."""
        with hub.uploading_no_attempts():
            return method(*args, **kwargs)

    def _push_from_checkpoint(self, method: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        with hub.uploading_no_attempts():
            method(*args, **kwargs)


def last_entropy(trainer: Any) -> float | None:
    """Return the policy's entropy as TRL last measured it, in nats a token."""
    measured = trainer._metrics["train"].get("entropy")
    logged = (entry["entropy"] for entry in reversed(trainer.state.log_history) if "entropy" in entry)
    return measured[-1] if measured else next(logged, None)
