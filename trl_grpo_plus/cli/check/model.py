"""The checks of the model: that it exists, that the prompts fit its context, and its memory and time."""

import math
import statistics
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version

from ...config import chat_checks, sampling_distribution
from ...launch.option_checks import dtype_of
from ...launch.recipe import Recipe, total_steps
from ...scoring import default_size
from ...traces import ADDS_SYSTEM, as_given
from ...utils.optional_packages import is_installed
from ...utils.resources import memory_bytes
from ...utils.tables import FAILED, OK, UNSEEN, WARNED, CheckRow, in_short
from ...utils.validation import ConfigError, did_you_mean
from . import hub
from .estimate import GIB, Job, ModelShape, checkpoint, context_of, count, memory, rounded, seconds, vllm_sequences
from .gpus import GPU, Card
from .hub import Loaded


if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from ...config import GRPOPlusConfig


MOST_PROMPTS, LONGEST_PROMPTS = 1000, 100
TIGHT, TOO_MUCH = 0.9, 1.1  # shares of the available memory: the estimate is no more precise than this
BYTES_A_TOKEN = 4  # of text, in English
WORKER = GIB / 64  # memory of a reward worker itself: the largest measured with the rewards of this package


def model(recipe: Recipe) -> tuple[list[CheckRow], Loaded | None]:
    """Check that the model exists, and return its config."""
    name = recipe.model.model_name_or_path
    try:
        loaded = hub.model_config(name, recipe.model.model_revision, recipe.training.trust_remote_code)
    except ConfigError as error:
        return [CheckRow("model", FAILED, str(error))], None
    if loaded is None:
        text = f"{name}: {hub.unreachable()}, and this package does not know this model: no estimate"
        return [CheckRow("model", UNSEEN, text)], None
    if loaded.is_real:
        shown = "what prepare made" if recipe.prepared else name
        return [CheckRow("model", OK, f"{shown}, a {loaded.what.model_type} ({loaded.origin})")], loaded
    text = f"{name}: {hub.unreachable()}; the estimates use the sizes that this package knows for it"
    return [CheckRow("model", UNSEEN, text)], loaded


def sampled(recipe: Recipe) -> list[CheckRow]:
    """Warn of settings that sample attempts from another distribution than the policy's. The trainer warns too."""
    own = hub.generation_config(recipe.model.model_name_or_path, recipe.model.model_revision)
    return [CheckRow("sampling", WARNED, text) for text in sampling_distribution.differences(recipe.training, own)]


def tokenizer(recipe: Recipe) -> tuple[list[CheckRow], Loaded | None]:
    """Check that there is a tokenizer. Sets `recipe.tokenizer` if it is the model's own."""
    name = recipe.model.model_name_or_path
    try:
        loaded = hub.tokenizer(name, recipe.model.model_revision, recipe.training.trust_remote_code)
    except ConfigError as error:
        return [CheckRow("tokenizer", FAILED, str(error))], None
    if not loaded.is_real:
        return [
            CheckRow("tokenizer", UNSEEN, f"of {name}: the Hub cannot be reached; bytes are counted instead")
        ], loaded
    recipe.tokenizer = lambda: loaded.what
    text = f"ends with {loaded.what.eos_token!r}, pads with {loaded.what.pad_token or loaded.what.eos_token!r}"
    return [CheckRow("tokenizer", OK, text + (", has a chat template" if loaded.what.chat_template else ""))], loaded


def lengths(recipe: Recipe, tokens: Any) -> list[int]:
    """Return the prompts' lengths in tokens.

    If there are more than a thousand prompts, about a thousand are taken evenly, plus the hundred with the most
    characters.
    """
    prompts = list(recipe.train_set["prompt"])
    if len(prompts) > MOST_PROMPTS:
        longest = sorted(prompts, key=_characters, reverse=True)[:LONGEST_PROMPTS]
        prompts = [*prompts[:: -(-len(prompts) // MOST_PROMPTS)], *longest]
    return [len(ids) for ids in _encoded(recipe, tokens, prompts)]


def given(recipe: Recipe, tokens: Loaded) -> list[CheckRow]:
    """Show the first row's prompt as the model is given it."""
    whose = "the first prompt" if recipe.has_real_data else "the first prompt of the sample rows"
    if not tokens.is_real:
        name = recipe.model.model_name_or_path
        return [CheckRow("given", UNSEEN, f"{whose} is not shown: that takes the tokenizer of {name}")]
    (ids,) = _encoded(recipe, tokens.what, [recipe.first_prompt])
    rendered = as_given(ids, recipe.first_prompt, tokens.what, _template(recipe))
    bare = ", without what the environment adds to it" if recipe.script.environment_factory else ""
    flags = [*rendered["flags"], *_doubts(recipe, tokens.what)]
    about = [f"{whose}, as the model is given it{bare}, in {rendered['tokens']:,} tokens", *flags]
    # Most models whose template adds a system message were trained with it. Other flags are mistakes.
    status = WARNED if set(flags) - {ADDS_SYSTEM} else OK
    return [CheckRow("given", status, "; ".join(about) + f":\n{rendered['text']}")]


def _doubts(recipe: Recipe, tokenizer: Any) -> list[str]:
    """Return doubts about prompts of messages, which the trainer would warn of."""
    if isinstance(recipe.first_prompt, str) or recipe.script.rollout_func:
        return []
    own = hub.generation_config(recipe.model.model_name_or_path, recipe.model.model_revision)
    ends = own.get("eos_token_id")
    known = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} if own else set()
    ends = chat_checks.known_ends(known, recipe.training.generation_kwargs)
    return chat_checks.doubts(recipe.first_prompt, tokenizer, _template(recipe), ends, recipe.rewards)


def _encoded(recipe: Recipe, tokens: Any, prompts: list[Any]) -> list[list[int]]:
    """Tokenize prompts as TRL's trainer does."""
    if isinstance(prompts[0], str):
        return tokens(prompts)["input_ids"]
    apply = partial(tokens.apply_chat_template, add_generation_prompt=True, tokenize=True, return_dict=True)
    return [apply(prompt, **_template(recipe))["input_ids"] for prompt in prompts]


def _template(recipe: Recipe) -> dict[str, Any]:
    """Return what TRL gives the chat template beside the messages."""
    return {"tools": recipe.tools or None, **(recipe.training.chat_template_kwargs or {})}


def _characters(prompt: Any) -> int:
    return len(prompt) if isinstance(prompt, str) else sum(len(str(turn.get("content") or "")) for turn in prompt)


def context(recipe: Recipe, config: Loaded | None, tokens: Loaded, counts: list[int]) -> list[CheckRow]:
    """Check that prompts and completions fit into the model's context and vLLM's."""
    args = recipe.training
    completion = args.max_completion_length or 0
    limits = {"the model's context (max_position_embeddings)": context_of(config.what) if config else None}
    if args.use_vllm:
        limits["vllm_max_model_length"] = args.vllm_max_model_length
    unit = "tokens" if tokens.is_real else "bytes"
    whose = "" if recipe.has_real_data else "of the sample rows "
    summary = f"prompts {whose}have {statistics.median(counts):,.0f} {unit} in the median, {max(counts):,} at most"
    need = max(counts) + completion
    for what, limit in limits.items():
        if limit is None or need <= limit:
            continue
        over = (
            f"{summary}; with max_completion_length={completion:,} they need {need:,}, more than the {limit:,} of "
            f"{what}. Lower max_completion_length, leave out the longest prompts, or raise the limit."
        )
        certain = (tokens.is_real and recipe.has_real_data) or completion >= limit
        return [CheckRow("context", FAILED if certain else UNSEEN, over)]
    contexts = [f"{limit:,} of {what}" for what, limit in limits.items() if limit]
    if not contexts:
        return [CheckRow("context", UNSEEN, f"{summary}; the model's context is not known")]
    fits = f"with {completion:,} of completion they fit into the {' and the '.join(contexts)}"
    # A token is at least a byte, so a text that fits in bytes fits in tokens.
    return [CheckRow("context", OK if recipe.has_real_data else UNSEEN, f"{summary}; {fits}")]


def shape(recipe: Recipe, config: Loaded) -> tuple[list[CheckRow], ModelShape | None]:
    """Count the model's weights, with the adapter that the recipe trains, and return its shape."""
    if recipe.model.use_peft and not is_installed("peft"):
        return [CheckRow("weights", UNSEEN, "peft is not installed here")], None
    try:
        from trl import get_peft_config

        counted = count(config.what, get_peft_config(recipe.model))
    except Exception as error:  # such as peft's error about an adapter that does not fit
        status = FAILED if recipe.model.use_peft else UNSEEN
        return [CheckRow("weights", status, f"a {config.what.model_type} cannot be counted: {in_short(error)}")], None
    text = f"{_many(counted.parameters)} weights"
    if counted.adapter:
        text += f", of which the adapter's {_many(counted.trained)} are trained"
    return [CheckRow("weights", OK, text), *_without_effect(recipe.model, config.what)], counted


def _without_effect(options: Any, config: "PretrainedConfig") -> list[CheckRow]:
    """Return a row for each option of an adapter with names that the model does not have: peft leaves them out.

    It fails if the model has none of an option's names. A list for several models may name more than one model has.
    """
    given = {name: getattr(options, name, None) for name in ("lora_modules_to_save", "lora_target_parameters")}
    wanted = {name: [value] if isinstance(value, str) else value for name, value in given.items() if value}
    if not wanted or not options.use_peft:
        return []
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    if (config.architectures or [None])[0] not in (None, type(model).__name__):
        return []  # TRL loads a model of another class, with other names
    rows = []
    for option, names in wanted.items():
        saves = option == "lora_modules_to_save"
        pairs = model.named_modules(remove_duplicate=False) if saves else model.named_parameters()
        known = [f".{name}" for name, _ in pairs]
        lacking = [name for name in names if not any(key.endswith(name if saves else f".{name}") for key in known)]
        if not lacking:
            continue
        short = sorted({".".join(key.split(".")[-1 if saves else -2 :]) for key in known})
        short = [name for name in short if name and not name.isdigit()]
        guess = "".join(did_you_mean(name, short) for name in lacking)
        text = (
            f"{option}: the model has no {'module' if saves else 'weight'} {', '.join(map(repr, lacking))}, so this "
            f"has no effect.{guess} It has {', '.join(short)}. Correct it, or leave it out."
        )
        rows.append(CheckRow("weights", FAILED if len(lacking) == len(names) else WARNED, text))
    return rows


def _many(number: float) -> str:
    return f"{rounded(number / 1e9)} billion" if number >= 1e9 else f"{rounded(number / 1e6)} million"


def job_of(recipe: Recipe, config: Loaded, shape: ModelShape, prompt: int) -> Job:
    """Return the numbers that describe the run's work."""
    args, spread = recipe.training, recipe.spread
    weight, quantized = _weight_bytes(recipe, config), _quantized_bytes(recipe)
    in_float32 = shape.adapter or spread.sharding.startswith(("zero", "fsdp"))
    # TRL trains the adapter of a quantized model in bfloat16.
    trained = 2 if quantized else 4 if in_float32 else weight
    every = args.steps_per_generation * args.num_iterations
    scores_old = args.gradient_accumulation_steps % every != 0 or (
        args.use_vllm and args.vllm_importance_sampling_correction
    )
    vllm = ("sleep" if args.vllm_enable_sleep_mode else "colocate") if args.vllm_mode == "colocate" else "server"
    return Job(
        rows=args.per_device_train_batch_size,
        generated=args.per_device_train_batch_size * args.steps_per_generation,
        prompt=prompt,
        completion=args.max_completion_length or 0,
        evaluated=args.per_device_eval_batch_size if recipe.evaluates else 0,
        micro_batches=args.gradient_accumulation_steps,
        generations=args.gradient_accumulation_steps / every,
        weight_bytes=weight,
        quantized_bytes=quantized,
        compute_bytes=2 if args.bf16 or args.fp16 else max(weight, 2),
        autocast=bool(args.bf16 or args.fp16),
        dropout=recipe.model.use_peft and recipe.model.lora_dropout > 0,
        on_cpu=recipe.on_cpu,
        optimizer_bytes=_optimizer_bytes(str(args.optim.value), trained),
        offloads=spread.offloads,
        processes=spread.processes,
        sharding=spread.sharding,
        checkpointing=bool(args.gradient_checkpointing),
        reference=args.beta != 0,
        scoring_passes=int(scores_old) + (args.beta != 0),
        gathers=args.ds3_gather_for_generation,
        fused_head=Version(version("trl")) >= Version("1.15"),
        vllm=vllm if args.use_vllm else "",
        vllm_share=args.vllm_gpu_memory_utilization,
        vllm_parallel=args.vllm_tensor_parallel_size,
        reward_seconds=recipe.reward_seconds,
    )


def costs(recipe: Recipe, shape: ModelShape, job: Job, card: Card, granted: str) -> list[CheckRow]:
    """Estimate the run's memory and time on `card`. `granted` names the other assumptions."""
    # If neither the number nor the kind of the GPUs was given, too little memory is not a failure.
    lacking = FAILED if card.named or recipe.spread.named else UNSEEN
    return [
        *_memory(shape, job, card.gpu, f"{card.why}; {granted}", lacking),
        *_speed(recipe, shape, job, card.gpu),
        *_disk(recipe, shape, job),
    ]


def _memory(shape: ModelShape, job: Job, gpu: GPU, granted: str, lacking: str) -> list[CheckRow]:
    size = gpu.memory * GIB
    needed = memory(shape, job, size)
    parts = _in_gib(needed.parts)
    most = f"about {rounded(needed.total / GIB)} GiB of the {gpu.memory:g} of each GPU, needed while {needed.phase}"
    summary = f"{most} ({granted}): {parts}"
    batch = "per_device_eval_batch_size" if needed.phase == "evaluating" else "per_device_train_batch_size"
    advice = (
        f"Lower {batch} or max_completion_length, spread the model (--accelerate_config "
        "zero3, with dtype: bfloat16), or train an adapter (use_peft). Another GPU: --gpu."
    )
    where = "Name the hardware (--accelerate_config, --num_processes, --gpu). " if lacking == UNSEEN else ""
    rows = [_fits(needed.total, size, summary, lacking, where + advice)]
    return [*rows, _vllm(shape, job, gpu, lacking)] if job.vllm in ("colocate", "sleep") else rows


def _vllm(shape: ModelShape, job: Job, gpu: GPU, lacking: str) -> CheckRow:
    """Return the row about the sequences that vLLM's share of a GPU holds."""
    share = f"vllm_gpu_memory_utilization={job.vllm_share:g} is {rounded(job.vllm_share * gpu.memory)} GiB"
    weights = f"{rounded(2 * shape.parameters / job.vllm_parallel / GIB)} GiB"
    held, sampled = vllm_sequences(shape, job, gpu.memory * GIB), job.generated * job.vllm_parallel
    if not held:
        beside = f"no sequence of {job.tokens:,} tokens fits beside them. Raise it, or vllm_tensor_parallel_size."
        return CheckRow("vllm", lacking, f"{share}: the weights take {weights}, and {beside}")
    beside = f"beside the weights ({weights}) an engine holds"
    if held >= sampled:
        return CheckRow("vllm", OK, f"{share}: {beside} all of its {sampled:,} attempts at once")
    slow = "The others wait. A larger share is faster; set vllm_enable_sleep_mode if training needs the memory."
    some = f"{held:,} of its {sampled:,} attempts of {job.tokens:,} tokens"
    return CheckRow("vllm", OK, f"{share}: {beside} {some}. {slow}")


def costs_on_cpu(recipe: Recipe, shape: ModelShape, job: Job, granted: str) -> list[CheckRow]:
    """Estimate the run's memory on this machine. Its time is measured only with --smoke."""
    needed, here = memory(shape, job), memory_bytes()
    workers = _reward_workers(recipe)
    total = (needed.total + workers * WORKER) * job.processes
    of_machine = f"of the {rounded(here / GIB)} of this machine"
    summary = f"about {rounded(total / GIB)} GiB {of_machine} ({granted}): {_in_gib(needed.parts)}"
    if workers:
        least, most = rounded(WORKER / GIB, 1), rounded(recipe.training.reward_worker_memory_mb / 1024)
        summary += f"; {workers} reward workers, {least} each where a reward holds little, {most} at most"
    if job.processes > 1:
        summary += f"; in each of {job.processes} processes"
    advice = (
        "It does not fit. Lower per_device_train_batch_size (and raise gradient_accumulation_steps) or "
        "max_completion_length, or set gradient_checkpointing: true."
    )
    return [_fits(total, here, summary, FAILED, advice)]


def _in_gib(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {rounded(part / GIB)}" for name, part in parts.items() if part >= 0.05 * GIB)


def _fits(needed: float, available: float, summary: str, lacking: str, advice: str) -> CheckRow:
    """Return the row about memory. If there is too little, its status is `lacking`, and it ends with the advice."""
    if needed > TOO_MUCH * available:
        return CheckRow("memory", lacking, f"{summary}. {advice}")
    return CheckRow("memory", OK, f"tight: {summary}" if needed > TIGHT * available else summary)


def _reward_workers(recipe: Recipe) -> int:
    """Return the number of reward workers of one process."""
    limited = any(getattr(reward, "timeout", None) is not None for reward in recipe.rewards)
    return (recipe.training.reward_workers or max(1, default_size() // recipe.spread.processes)) if limited else 0


def _speed(recipe: Recipe, shape: ModelShape, job: Job, gpu: GPU) -> list[CheckRow]:
    args, spent = recipe.training, seconds(shape, job, gpu)
    step, total = sum(spent.values()), total_steps(recipe)
    parts = ", ".join(f"{name} {rounded(part, 1)}" for name, part in spent.items() if part > 0.02 * step)
    summary = f"about {rounded(step, 1)} s a step ({parts}), {rounded(86_400 / step, 1)} steps a day"
    if total:
        summary += f"; all {total:,} steps: about {rounded(total * step / 3600, 1)} h"
    if args.zero_variance_groups == "resample":
        more = (spent["generating"] + spent["rewards"]) * args.max_resample_rounds
        slowest = f"{rounded(total * (step + more) / 3600, 1)} h" if total else f"{rounded(step + more, 1)} s a step"
        summary += f", up to {slowest} if all of max_resample_rounds={args.max_resample_rounds} are full rounds"
    assumed = f"{gpu.name}, 40 % of its peak in training, 60 % of its bandwidth in generation, completions as long as"
    engines = ", as many engines on the server as there would be colocated, of the same size"
    rest = f"they may be, no group dropped, no evaluation{engines if job.vllm == 'server' else ''}"
    return [CheckRow("speed", OK, f"{summary}. Assumed: {assumed} {rest}."), *_timeout(args, spent, job)]


def _timeout(args: "GRPOPlusConfig", spent: Mapping[str, float], job: Job) -> list[CheckRow]:
    """Warn if a process may wait for others' attempts for longer than its collectives wait."""
    waits = (spent["generating"] + spent["rewards"]) / job.generations
    if job.processes == 1 or waits <= args.ddp_timeout:
        return []
    text = (
        f"a generation batch may take {rounded(waits, 1)} s, more than ddp_timeout={args.ddp_timeout}. A process that "
        "waits so long for other processes or for a server ends the run. Raise ddp_timeout."
    )
    return [CheckRow("timeout", WARNED, text)]


def _disk(recipe: Recipe, shape: ModelShape, job: Job) -> list[CheckRow]:
    """Tell what the checkpoints and traces of a run take."""
    args, total = recipe.training, total_steps(recipe)
    said = []
    if args.save_strategy.value != "no":
        said.append(_checkpoints(args, total, checkpoint(shape, job, args.save_only_model)))
    if args.trace_every and total:
        most = args.trace_max_groups or math.inf
        written = min(args.generation_batch_size, most * args.num_generations) / args.trace_every
        size = written * total * job.generations * job.completion * BYTES_A_TOKEN / 1e9
        said.append(f"the traces' completions about {rounded(size)} GB at full length (trace_compress: a third)")
    return [CheckRow("disk", OK, "; ".join(said))] if said else []


def _checkpoints(args: "GRPOPlusConfig", total: int | None, one: float) -> str:
    every = args.save_steps if args.save_steps >= 1 else math.ceil(args.save_steps * (total or 0))
    saved = math.ceil(total / every) if total and every and args.save_strategy.value == "steps" else math.inf
    # transformers removes an old checkpoint once the next is complete.
    kept = min(saved, args.save_total_limit + 1 if args.save_total_limit else math.inf)
    size, limit = f"a checkpoint takes about {rounded(one / 1e9)} GB", f"save_total_limit={args.save_total_limit}"
    if kept == math.inf:
        return f"{size}, and all are kept ({limit})"
    return f"{size}, {kept:,} at most at a time ({limit}) {rounded(kept * one / 1e9)} GB"


def _quantized_bytes(recipe: Recipe) -> float:
    """Return the bytes of a quantized weight; 0 if none is. In 4 bits, 64 weights share a 32-bit scale."""
    return 0.56 if recipe.model.load_in_4bit else 1 if recipe.model.load_in_8bit else 0


def _weight_bytes(recipe: Recipe, config: Loaded) -> float:
    dtype = dtype_of(recipe.training, recipe.model)
    if dtype in (None, "auto"):
        dtype = str(getattr(config.what.get_text_config(), "dtype", None) or "float32").removeprefix("torch.")
    return 2 if dtype in ("bfloat16", "float16") else 4


def _optimizer_bytes(name: str, trained: float) -> float:
    """Return the optimizer's bytes for each trained weight, which has `trained` bytes."""
    if "paged" in name or name == "sgd":
        return 0
    if "8bit" in name or "4bit" in name:
        return 2
    if "adafactor" in name:
        return 0.1
    return trained * (1 if "lion" in name or "rmsprop" in name or "adagrad" in name else 2)
