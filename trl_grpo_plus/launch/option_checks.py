"""Checks that need only the options of a run.

transformers is imported inside functions, because [`~trl_grpo_plus.cli.check.hub.settle`] must be called first.
"""

import math
import os
import shutil
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from ..config.bounds import not_of_transformers, out_of_bounds
from ..config.compatibility import no_step
from ..config.evaluation_checks import parts_of_groups
from ..config.sampling_distribution import refused_by_vllm
from ..config.trained_weights import dropout_disturbs, hardly_moves, loses_updates
from ..curriculum.selection import believes
from ..objective.advantage_functions import named_by
from ..utils.files import no_folder
from ..utils.resources import multiplies_bfloat16
from ..utils.text import percent
from ..utils.validation import did_you_mean
from .needed_packages import attention_of


if TYPE_CHECKING:
    from ..config import GRPOPlusConfig


DTYPES = ("auto", "bfloat16", "float16", "float32")  # TRL's
STEPS = 1000  # of a schedule, if their number depends on the data
FSDP_ALONE = (
    "fsdp needs several processes, and this run has one. Leave fsdp out, or start more processes: --num_processes."
)
LONG = 2000  # tokens of a completion; `kept_by_product` explains the trouble above it


def wrong_options(training_args: Any, model_args: Any, generates: bool) -> list[str]:
    """Return why options are out of their bounds, or if none are, why options do not go together.

    Args:
        training_args, model_args: the dataclasses of the launch script.
        generates (`bool`): whether TRL samples the attempts, not a `rollout_func`.
    """
    wrong = list(_out_of_bounds(training_args))
    if generates:
        wrong += not_of_transformers(training_args)
        wrong += [why] if (why := refused_by_vllm(training_args)) else []
    return wrong or list(_at_odds(training_args, model_args))


def _out_of_bounds(args: "GRPOPlusConfig") -> Iterator[str]:
    yield from out_of_bounds(args)
    if why := no_step(args):
        yield why


def _at_odds(args: "GRPOPlusConfig", model_args: Any) -> Iterator[str]:
    if (model_args.load_in_4bit or model_args.load_in_8bit) and not model_args.use_peft:
        name = "load_in_4bit" if model_args.load_in_4bit else "load_in_8bit"
        yield f"{name}: quantized weights cannot be trained. Train an adapter instead. Set use_peft: true."
    if model_args.use_peft and model_args.lora_alpha <= 0:
        yield (
            f"lora_alpha={model_args.lora_alpha} must be above 0: the adapter's part is multiplied by lora_alpha / "
            f"lora_r. TRL's default is 32, with lora_r 16 (now {model_args.lora_r})."
        )
    if evaluates(args) and (why := parts_of_groups(args)):
        yield why
    engines = args.vllm_tensor_parallel_size
    if args.use_vllm and args.vllm_mode == "colocate" and args.world_size % engines:
        yield (
            f"vllm_tensor_parallel_size={engines} must divide the number of processes, {args.world_size}, because "
            f"each engine uses {engines} processes. Change it, or start more processes: --num_processes."
        )
    yield from _unknown_trackers(args.report_to)
    yield from _unknown_names(args, model_args)
    yield from _idle_reference(args, model_args)
    yield from _unfit(args)
    if not args.output_dir.strip():
        yield f"output_dir={args.output_dir!r} is blank. Name a folder; it need not exist."
    elif why := no_folder(args.output_dir):
        yield why


def _unknown_trackers(names: Sequence[str | None]) -> Iterator[str]:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    trackers = sorted(INTEGRATION_TO_CALLBACK)
    for name in names:
        if name not in trackers:
            guess = did_you_mean(str(name), [*trackers, "none"])
            yield f"report_to: {name!r} is not one of {', '.join(trackers)}, all, none.{guess}"


def _unknown_names(args: "GRPOPlusConfig", model_args: Any) -> Iterator[str]:
    """Yield why a backend or a dtype has an unknown name."""
    from accelerate.utils import DynamoBackend

    backend, backends = args.torch_compile_backend, [backend.value.lower() for backend in DynamoBackend]
    if backend is not None and backend.lower() not in backends:
        guess = did_you_mean(backend, backends)
        yield f"torch_compile_backend={backend!r} is not one of {', '.join(backends)}.{guess}"
    dtype = dtype_of(args, model_args)
    if isinstance(dtype, str) and dtype not in DTYPES:
        yield f"model_init_kwargs has dtype={dtype!r}, not one of {', '.join(DTYPES)}.{did_you_mean(dtype, DTYPES)}"


def _idle_reference(args: "GRPOPlusConfig", model_args: Any) -> Iterator[str]:
    """Yield why a reference model cannot follow the policy."""
    if args.sync_ref_model and args.beta == 0:
        yield (
            "sync_ref_model=True with beta=0: without a KL term there is no reference model. Set beta to a positive "
            "value (0.04 in DeepSeekMath), or leave sync_ref_model out."
        )
    elif args.sync_ref_model and model_args.use_peft:
        yield (
            "sync_ref_model=True with use_peft=True: the reference of an adapter is the model without it, which does "
            "not follow the policy. Leave sync_ref_model out, or train all weights (use_peft: false)."
        )


def _unfit(args: "GRPOPlusConfig") -> Iterator[str]:
    """Yield why transformers could not make the trainer, the dataloader, the optimizer or its schedule."""
    if args.save_strategy == "best" and args.metric_for_best_model is None:
        yield (
            "save_strategy='best' needs a metric that tells which model is the best. Set metric_for_best_model, such "
            "as reward, or another save_strategy."
        )
    if args.dataloader_persistent_workers and not args.dataloader_num_workers:
        yield (
            "dataloader_persistent_workers=True with dataloader_num_workers=0: there are no workers. Set "
            "dataloader_num_workers to 1 or more, or leave dataloader_persistent_workers out."
        )
    pairs = (args.optim_args or "").replace(" ", "").split(",") if args.optim_args else []  # as transformers splits it
    if wrong := [pair for pair in pairs if pair.count("=") != 1]:
        yield (
            f"optim_args={args.optim_args!r} must be pairs of key=value with commas between them, such as "
            f"'rank=64,scale=0.5'. {wrong[0]!r} is no such pair."
        )
    if args.fsdp and args.parallel_mode.value != "distributed" and not (args.fsdp_config or {}).get("xla"):
        yield FSDP_ALONE
    if not args.deepspeed and (why := _why_no_schedule(args)):  # DeepSpeed may have a schedule of its own
        kwargs = f" with lr_scheduler_kwargs={args.lr_scheduler_kwargs!r}" if args.lr_scheduler_kwargs else ""
        yield (
            f"lr_scheduler_type={args.lr_scheduler_type.value!r}{kwargs} makes no schedule: {why} Correct "
            "lr_scheduler_kwargs, or set another lr_scheduler_type."
        )


def _why_no_schedule(args: "GRPOPlusConfig") -> str | None:
    """Return why the schedule of the learning rate cannot be made; `None` if it can."""
    import torch
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=args.learning_rate)
    total = args.max_steps if args.max_steps > 0 else STEPS
    warmup, kwargs = args.get_warmup_steps(total), dict(args.lr_scheduler_kwargs or {})
    try:
        get_scheduler(args.lr_scheduler_type, optimizer, warmup, total, kwargs)
    except Exception as error:  # each schedule has a function of its own, which may raise anything
        return str(error).rstrip(".") + "."
    return None


def unknown_attention(training_args: Any, model_args: Any) -> str | None:
    """Return why there is no such attention; `None` if there is, or if it is not known.

    Call this once the recipe's functions are imported, because they may register one. So may a model's own code.
    """
    name = attention_of(training_args, model_args)
    if name is None or "/" in name or training_args.trust_remote_code:
        return None
    from transformers import AttentionInterface  # slow to import

    known = ["eager", *AttentionInterface().valid_keys()]
    if name in known:
        return None
    advice = "Take one of them, or a kernel on the Hub, such as kernels-community/flash-attn2."
    return f"attn_implementation={name!r} is not one of {', '.join(known)}.{did_you_mean(name, known)} {advice}"


def bad_together(args: "GRPOPlusConfig") -> list[str]:
    """Return why valid combinations of options are unwise."""
    scale = args.scale_rewards
    unwise = []
    of_one_size = scale in ("group", "mad") and args.advantage_baseline != "length_weighted"
    by_groups = not args.estimates_advantages and args.step_reward_credit is None
    if args.num_generations == 2 and of_one_size and by_groups:
        unwise.append(
            f"num_generations=2 with scale_rewards={scale!r}: the two advantages always have the same size, whatever "
            "the rewards are, and say only which attempt was better. Set advantage_baseline='belief' with "
            "scale_rewards='prior', or scale_rewards='batch', or use more attempts."
        )
    if believes(args.prompt_selection) and args.advantage_baseline != "belief" and by_groups:
        unwise.append(
            f"prompt_selection={args.prompt_selection!r} with advantage_baseline={args.advantage_baseline!r}: "
            "beliefs choose the prompts, but the baseline does not use beliefs, so each prompt still needs a large "
            "group. Set advantage_baseline='belief' and scale_rewards='prior', with num_generations 2 to 4."
        )
    if named_by(args.advantage_estimator) == "vector" and args.filters_groups and args.filter_metric == "total":
        unwise.append(
            f"advantage_estimator='vector' with zero_variance_groups={args.zero_variance_groups!r} and "
            "filter_metric='total': this filters out groups whose attempts have different rewards but equal totals. "
            "vector is made for such groups. Set filter_metric='any'."
        )
    unwise.extend(_weighed_by_product(args))
    return unwise


def bad_for_adapter(training_args: Any, model_args: Any) -> list[str]:
    """Return why options are unwise for the adapter that a run trains; [] if it trains none."""
    if not model_args.use_peft:
        return []
    found = hardly_moves(training_args), dropout_disturbs(training_args, model_args.lora_dropout)
    return [why for why in found if why]


def _weighed_by_product(args: "GRPOPlusConfig") -> Iterator[str]:
    """Warn of TRL's default weight of attempts from vLLM if they are long."""
    mode, longest = args.vllm_importance_sampling_mode, args.max_completion_length or 0
    highest = args.vllm_importance_sampling_clip_max or 0
    corrects = args.use_vllm and args.vllm_importance_sampling_correction
    if not (corrects and mode == "sequence_mask" and longest >= LONG and highest > 0):
        return
    kept = " and ".join(f"{percent(kept_by_product(longest, off, highest))} at {off:g}" for off in (0.01, 0.03))
    yield (
        f"vllm_importance_sampling_mode={mode!r} with max_completion_length={longest:,}: an attempt's weight is the "
        f"product of its tokens' ratios of trainer to vLLM, and 0 if the product is above {highest:g}. If the two "
        f"differ at random, attempts of this length keep on average {kept} nats a token of their weight. Short "
        "attempts keep nearly all of it. Set vllm_importance_sampling_mode: token_truncate, which weighs each token "
        "by itself; or check that sampling/importance_sampling_ratio/mean stays near 1."
    )


def kept_by_product(tokens: int, difference: float, highest: float) -> float:
    """Return the mean weight of attempts that are weighed by TRL's `sequence_mask`; 1 where none is dropped.

    The log-ratios of tokens are taken as independent and normal, and the ratios' mean is 1. The product of n of them
    is then log-normal: its logarithm has the variance v = n x variance, and the mean -v / 2. The mean of what is at
    most `highest` is the normal distribution function at (log(highest) - v / 2) / sqrt(v).

    Args:
        tokens (`int`): tokens of an attempt.
        difference (`float`): mean absolute log-ratio of a token, in nats.
        highest (`float`): weight above which an attempt is dropped.
    """
    variance = tokens * difference**2 * math.pi / 2
    return (1 + math.erf((math.log(highest) - variance / 2) / math.sqrt(2 * variance))) / 2


def lost_in_rounding(training_args: Any, model_args: Any, sharded: bool) -> str | None:
    """Return a warning if most updates of 16-bit weights are lost in rounding; `None` otherwise."""
    dtype = dtype_of(training_args, model_args)
    kept = sharded or model_args.use_peft or not loses_updates(training_args)
    if kept or dtype not in ("bfloat16", "float16"):
        return None
    return (
        f"dtype={dtype!r} with learning_rate={training_args.learning_rate:g}: nearly all updates of 16-bit weights "
        "are lost in rounding. Launch with DeepSpeed or FSDP, which keep float32 weights (--accelerate_config zero2, "
        "zero3 or fsdp2), or set dtype: float32 (with bf16: true), or use_peft: true."
    )


def base_drifts(training_args: Any, model_args: Any, sharding: str) -> str | None:
    """Return a warning if the weights under an adapter drift; `None` otherwise.

    The trainer prevents it ([`~trl_grpo_plus.trainer.vllm.adapter_merge`]) where TRL reads whole weights one by one.
    """
    dtype = dtype_of(training_args, model_args)
    prevented = sharding != "fsdp" and Version(version("trl")) >= Version("1.12")
    if prevented or not (model_args.use_peft and training_args.use_vllm) or dtype not in ("bfloat16", "float16"):
        return None
    return (
        f"dtype={dtype!r} with use_peft and use_vllm: each time TRL sends the weights to vLLM, it merges the adapter "
        "into the weights and takes it out again, which rounds 16-bit weights. So the weights drift, and the saved "
        "adapter belongs to drifted weights that are not saved. Set dtype: float32, if it fits, or use TRL 1.12 or "
        "later without FSDP."
    )


def slow_on_processor(training_args: Any, model_args: Any) -> str | None:
    """Return a warning if a run on this machine's processor is slower in 16 bits than in 32; `None` otherwise."""
    dtype = dtype_of(training_args, model_args)
    if dtype != "bfloat16" or multiplies_bfloat16():
        return None
    return (
        "dtype='bfloat16' with use_cpu: this processor has no instructions for bfloat16, so float32 is faster here. "
        "It takes twice the memory. Set dtype: float32."
    )


def dtype_of(training_args: Any, model_args: Any) -> str | None:
    """Return the dtype that the weights are loaded in; `None` or `"auto"` for the model's own."""
    return (training_args.model_init_kwargs or {}).get("dtype", model_args.dtype)


def evaluates(args: "GRPOPlusConfig") -> bool:
    """Return `True` if the run ever evaluates. Call this before a resumed run turns `eval_on_start` off."""
    return args.eval_strategy != "no" or args.do_eval or args.eval_on_start


def lacks_compiler() -> str | None:
    """Return why Triton cannot compile kernels on this machine; `None` if it can, or if TRL's loss runs without it.

    From 1.15 on, TRL's loss on a GPU runs Triton kernels.
    """
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as in triton/runtime/build.py
    headers = Path(sysconfig.get_paths(scheme=scheme)["include"], "Python.h")
    lacking = [] if os.environ.get("CC") or any(map(shutil.which, ("gcc", "clang"))) else ["a C compiler"]
    lacking += [] if headers.exists() else [str(headers)]
    if not lacking or Version(version("trl")) < Version("1.15"):
        return None
    return (
        f"this machine lacks {' and '.join(lacking)}. On a GPU, TRL's loss needs this to compile Triton kernels, and "
        "fails in the first step without it. Install it: apt-get install gcc python3-dev"
    )
