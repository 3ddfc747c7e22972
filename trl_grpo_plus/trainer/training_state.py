"""The state that a checkpoint holds besides TRL's files. With it a resumed run equals a run without a stop.

Each rank has a file of its own. The first rank also saves the reference model if it follows the policy.
"""

import copy
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy
import torch
from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list, gather_object
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from transformers import IntervalStrategy, TrainerCallback

from ..config.compatibility import rounds_weights
from ..utils.distributed import raise_on_all_ranks
from ..utils.patching import temporarily
from ..utils.tables import in_short
from ..utils.validation import ConfigError


if TYPE_CHECKING:
    from trl import GRPOConfig

    from .grpo_plus_trainer import GRPOPlusTrainer


logger = get_logger(__name__)

REFERENCE = "grpo_plus_reference.pt"
FORMAT = 6  # raised by each change after which a release cannot read the state of another
_INSTEAD = (
    "Resume from an earlier checkpoint, or remove this file. Without the file, training continues from the weights. "
    "What the file holds (the current batch, beliefs, adaptive beta, the alarms' history) is reset."
)


class StopsWhole(TrainerCallback):
    """A callback that can end a training after a step so that a resumed run equals one without a stop.

    An evaluation that is due after the step comes first. It draws random numbers, so a run that is resumed from before
    it would draw others, and nobody would evaluate later.
    """

    _last: int | None = None  # the step after which the training ends
    _is_saved = False
    _saves_only_model = False  # the user's `save_only_model`, while the last checkpoint is to be whole

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget the end of an earlier training."""
        self._last = None
        self._save_as_before(args)

    def stop_after_step(self, args: Any, state: Any, control: Any) -> None:
        """End the training after the step, with a whole checkpoint."""
        self._last, self._is_saved = state.global_step, False
        self._saves_only_model |= args.save_only_model
        args.save_only_model = False
        control.should_save = control.should_training_stop = True
        _bring_epoch_end_forward(args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that the checkpoint is saved."""
        self._is_saved = True
        self._save_as_before(args)

    def _save_as_before(self, args: Any) -> None:
        if self._saves_only_model:
            args.save_only_model, self._saves_only_model = True, False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Do not evaluate or save again: the training has ended, the epoch need not have.

        With `save_strategy="best"` the evaluation may have decided against a checkpoint. It is saved here.
        """
        if self._last == state.global_step:
            control.should_evaluate, control.should_save = False, not self._is_saved


class EpochEnd(TrainerCallback):
    """A callback that logs and evaluates at the end of an epoch or of the run, before the checkpoint of its last step.

    transformers does so after that checkpoint. A run that is resumed from it would draw other random numbers than the
    evaluation left, and nobody would evaluate or log later.
    """

    _evaluated: int | None = None  # the last step after which an evaluation was brought forward

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget the steps of an earlier training. A resumed run may have been evaluated after its last step."""
        self._evaluated = state.global_step if is_evaluated(state) else None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Bring forward what is due at the end of the epoch, if a checkpoint is saved now."""
        if control.should_save and _bring_epoch_end_forward(args, state, control):
            self._evaluated = state.global_step

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Do not evaluate again. transformers logs no step twice by itself."""
        if self._evaluated == state.global_step:
            control.should_evaluate = False


def is_evaluated(state: Any) -> bool:
    """Return whether the log has an evaluation after the present step."""
    now = (entry for entry in state.log_history if entry["step"] == state.global_step)
    return any(name.startswith("eval_") for entry in now for name in entry)


def _bring_epoch_end_forward(args: Any, state: Any, control: Any) -> bool:
    """If the step ends an epoch or the run, ask now for the log and the evaluation that are due then.

    Returns:
        `bool`: whether an evaluation is due.
    """
    if state.epoch != int(state.epoch) and state.global_step < state.max_steps:
        return False
    control.should_log |= args.logging_strategy == IntervalStrategy.EPOCH
    due = args.eval_strategy == IntervalStrategy.EPOCH and args.eval_delay <= state.epoch
    control.should_evaluate |= due
    return due


class StepStart(TrainerCallback):
    """The state at the beginning of the present optimizer step, for a checkpoint that is saved within the step.

    With `enable_jit_checkpoint` transformers saves before the optimizer's step. The weights are then those of the
    step's beginning, but the step's batch was sampled already: it would be sampled and remembered twice.
    """

    OF_TRAINER = ("entropy_coef", "_last_world_entropy")

    def __init__(self) -> None:
        self._random: Any = None
        self._step = -1

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the random state. A resumed epoch begins with this state, and draws the dataloader's seed again."""
        self._random = _random_state()

    def keep(self, trainer: "GRPOPlusTrainer", own: dict[str, Any]) -> None:
        """Keep a trainer's `own` state and the state of TRL that changes within a step. Call it as a step begins."""
        buffered = {"buffered_inputs": own["buffered_inputs"]}  # not changed within a step, and large
        self._own = {**copy.deepcopy({**own, **dict.fromkeys(buffered)}), **buffered}
        self._step = trainer.state.global_step
        self._of_trainer = {name: getattr(trainer, name) for name in self.OF_TRAINER}
        self._tokens = trainer.state.num_input_tokens_seen

    def rows_are_there(self) -> None:
        """Keep the random state that a run resumed within an epoch has after it has read the step's rows."""
        self._now, self._random = self._random or _random_state(), None

    def random_state_loaded(self) -> None:
        """Keep the random state that a resumed run has just loaded.

        A resumed run loads it twice at most: when an epoch begins, and after it has read the rows of the step.
        """
        if self._random is None:
            self._now = _random_state()
        else:
            self._random = _random_state()

    @contextmanager
    def restored(self, trainer: "GRPOPlusTrainer") -> Iterator[dict[str, Any] | None]:
        """Save a checkpoint inside this context, which yields the kept `own` state; `None` if the step has ended."""
        if self._step != trainer.state.global_step:
            yield None
            return
        later = _random_state()
        _set_random_state(self._now)
        try:
            with (
                temporarily(trainer, **self._of_trainer),
                temporarily(trainer.state, num_input_tokens_seen=self._tokens),
            ):
                yield self._own
        finally:
            _set_random_state(later)


def _random_state() -> tuple[Any, ...]:
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return random.getstate(), numpy.random.get_state(), torch.get_rng_state(), on_devices


def _set_random_state(state: tuple[Any, ...]) -> None:
    of_python, of_numpy, of_torch, on_devices = state
    random.setstate(of_python)
    numpy.random.set_state(of_numpy)
    torch.set_rng_state(of_torch)
    if on_devices:
        torch.cuda.set_rng_state_all(on_devices)


def layout(args: "GRPOConfig", world_size: int) -> list[Any]:
    """Return what must not change for a checkpoint's batch in flight to be used: its sizes, and what it holds."""
    sizes = [args.per_device_train_batch_size, args.gradient_accumulation_steps, args.steps_per_generation]
    holds = [args.beta > 0, args.use_vllm and args.vllm_importance_sampling_correction]
    return [world_size, *sizes, args.num_iterations, args.num_generations, *holds, args.loss_type]


def save(folder: str, rank: int, state: Callable[[], dict[str, Any]]) -> None:
    """Write a rank's state into a checkpoint's folder, and make the folder if needed. Collective.

    Raises:
        RuntimeError: some rank failed to make or write its state. All ranks raise; the checkpoint stays unfinished.
    """
    with raise_on_all_ranks():  # a full disk, or a user's stream that cannot be saved
        os.makedirs(folder, exist_ok=True)
        torch.save({"format": FORMAT, **state()}, _path(folder, rank))


def warn_of_save_within_step(step: int) -> None:
    """Warn of a checkpoint that a script saves within the step after `step`, whose beginning was not kept."""
    logger.warning(
        f"checkpoint-{step} is saved within a step: a run that is resumed from it samples a batch again, and counts "
        "both. Set control.should_save=True, which saves after the step, or set enable_jit_checkpoint=True."
    )


def load(folder: str, rank: int, layout: list[Any]) -> dict[str, Any] | None:
    """Return a rank's state, or `None` with a warning if the checkpoint has none. Collective.

    If the batch in flight cannot be used, all ranks get the first rank's state, without "step" and with `None` for
    "buffered_inputs". This is so if the batch has another `layout`, or if some rank's file is missing (it may be on
    another machine).

    Raises:
        ConfigError: some rank's file cannot be read, or is of another format. All ranks raise.
    """
    with raise_on_all_ranks():
        state = _read(_path(folder, rank))
    if all(gather_object([state is not None and state["layout"] == layout])):
        return state
    if state is not None:
        state = {name: value for name, value in state.items() if name != "step"} | {"buffered_inputs": None}
    # A rank may have found the file of another run, which had more processes and left it in the folder.
    state = broadcast_object_list([state])[0]
    if state is None:
        logger.warning(
            f"{folder} holds only what TRL saves: save_only_model=True was set, or it was saved with another trainer. "
            "The further state of GRPOPlusTrainer (the current batch, beliefs, adaptive beta, the alarms' history) is "
            "reset."
        )
    else:
        logger.warning(
            "The checkpoint's batch cannot be used: the batch layout, loss_type, or the use of beta or of vLLM's "
            "correction differs from the checkpoint's, or a process has no state in it. A new batch is generated."
        )
    return state


@contextmanager
def loaded(folder: str, rank: int, layout: list[Any]) -> Iterator[dict[str, Any] | None]:
    """[`load`] as a context manager that refuses a state with wrong content, by the file's name. Collective.

    All ranks must leave the context. A failure on one rank raises on all.
    """
    state = load(folder, rank, layout)
    with raise_on_all_ranks():
        try:
            yield state
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"{_path(folder, rank)} does not hold the state that this release reads ({what}). {_INSTEAD}"
            ) from error


def save_reference(folder: str, rank: int, reference: torch.nn.Module) -> None:
    """Write a reference model's full weights into a checkpoint's folder. Collective.

    Raises:
        RuntimeError: the first rank could not write them. All ranks raise.
    """
    with _gathered(reference):
        weights = get_model_state_dict(reference, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    with raise_on_all_ranks():
        if rank == 0:
            torch.save(weights, os.path.join(folder, REFERENCE))


def load_reference(folder: str, rank: int, reference: torch.nn.Module, promised: bool) -> None:
    """Load a checkpoint's weights into a reference model. Collective.

    Args:
        folder (`str`): the checkpoint's folder. Only the first rank must have it.
        rank (`int`): rank of this process.
        reference (`torch.nn.Module`): the model that [`save_reference`] saved.
        promised (`bool`): whether the checkpoint was saved with a reference model. If not, a warning says so.

    Raises:
        ConfigError: the promised file is missing, or it cannot be read. All ranks raise.
    """
    path = os.path.join(folder, REFERENCE)
    weights, absent = {}, not promised and not os.path.exists(path)
    with raise_on_all_ranks():
        if rank == 0 and not absent:
            try:
                weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except Exception as error:  # a damaged file can make the unpickler raise anything
                raise ConfigError(
                    f"{path} cannot be read ({in_short(error)}), and sync_ref_model needs the reference model in it. "
                    "Resume from an earlier checkpoint."
                ) from error
    if broadcast_object_list([absent])[0]:
        logger.warning(
            f"{folder} was saved without the reference model, so the reference is the model that the run began with."
        )
        return
    several = torch.distributed.is_initialized()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=several)
    with _gathered(reference):
        set_model_state_dict(reference, weights, options=options)


@contextmanager
def _gathered(model: torch.nn.Module) -> Iterator[None]:
    """Gather ZeRO-3's shards while the weights are read or written. For FSDP torch does so itself."""
    sharded = [parameter for parameter in model.parameters() if hasattr(parameter, "ds_id")]
    if not sharded:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(sharded, modifier_rank=0):
        yield


@contextmanager
def keeping_dtypes(model: torch.nn.Module) -> Iterator[None]:
    """Load weights inside this context; afterwards each parameter has the dtype that it had before.

    PEFT's `load_adapter` turns a 16-bit adapter into float32. TRL trains the adapter of a quantized model in bfloat16,
    so a resumed run would round its updates otherwise than the run before it.
    """
    before = {name: parameter.dtype for name, parameter in model.named_parameters()}
    yield
    for name, parameter in model.named_parameters():
        if parameter.dtype != before.get(name, parameter.dtype):
            parameter.data = parameter.data.to(before[name])


def load_renamed(model: Any, checkpoint: str, result: Any) -> bool:
    """Load the weights that transformers' `Trainer` did not find in a checkpoint under the names that they have there.

    transformers saves some models under other names than the names in memory: one tensor for each expert of a Mixture
    of Experts, or `visual.*` for `model.visual.*`. `Trainer` looks for the names in memory. It leaves each weight that
    it does not find as it was (transformers issue 48805). `from_pretrained` knows both names.

    Args:
        model (`PreTrainedModel`): the model.
        checkpoint (`str`): the checkpoint's folder.
        result: what `load_state_dict` has returned: `missing_keys` and `unexpected_keys`.

    Returns:
        `bool`: whether weights had other names, and all are loaded.
    """
    if not (result.missing_keys and result.unexpected_keys):
        return False
    # If there are several dtypes, float32 holds the numbers of each.
    dtype = model.dtype if len({parameter.dtype for parameter in model.parameters()}) == 1 else torch.float32
    loaded, found = type(model).from_pretrained(checkpoint, dtype=dtype, output_loading_info=True)
    if found["missing_keys"]:  # they are of another model, and have random values now
        return False
    model.load_state_dict(loaded.state_dict())
    return True


def round_as_when_sampling(trainer: Any) -> None:
    """Round the model's weights as TRL rounds them before it generates with continuous batching.

    The states of the optimizer get the dtype of the weights at the time when they are loaded, and TRL rounds the
    weights later (`GRPOTrainer._generate_single_turn`). The optimizer's first step would then raise.
    """
    option, samples = rounds_weights(trainer.args), trainer.tools or trainer.rollout_func is None
    if option is None or not samples:  # a rollout_func samples in its own way, but for the turns of tools
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.to(torch.bfloat16 if option == "bf16" else torch.float16)
    if trainer.args.cast_lm_head_to_fp32:
        model.lm_head.to(torch.float32)


def skip_epochs(sampler: Any, epochs: int) -> None:
    """Draw and discard the permutations of past epochs. A stream has no sampler.

    TRL's sampler draws one permutation per epoch, and TRL's resumed run would draw the first one again.
    """
    for _ in range(epochs if sampler is not None and sampler.shuffle else 0):
        torch.randperm(sampler.num_samples, generator=sampler.generator)


def _read(path: str) -> dict[str, Any] | None:
    """Return a rank's state; `None` if there is no file. Refuse a damaged file, and one of another format."""
    if not os.path.exists(path):
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not {"format", "layout", "buffered_inputs"} <= state.keys():
            raise ValueError(f"it holds {', '.join(map(str, state)) or 'nothing'}")
    except Exception as error:  # a damaged file can make the unpickler raise anything
        raise ConfigError(
            f"{path} cannot be read ({in_short(error)}): it was cut off or changed. {_INSTEAD}"
        ) from error
    if state["format"] != FORMAT:
        raise ConfigError(
            f"{path} has format {state['format']}, but this release reads format {FORMAT}. Resume with the release "
            f"that wrote the file. {_INSTEAD}"
        )
    return state


def _path(folder: str, rank: int) -> str:
    return os.path.join(folder, f"grpo_plus_state_{rank}.pt")
