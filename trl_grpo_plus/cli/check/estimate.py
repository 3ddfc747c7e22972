"""Estimates of a run's memory and time: arithmetic on the configuration, without any measurement.

They give the right order of magnitude, and a way to compare settings. The symbols:
    N, T   weights of the model, and trained weights (all, or those of a LoRA adapter); P   processes
    w, c   bytes of a weight as loaded (TRL's default is float32, so 4), and in a matrix product (2 in bf16, fp16)
    q, Z   bytes of a quantized weight (0.56 in 4 bits), and their number: the linear layers', but for the output layer
    L, H   layers, and their width; Q, K   width of the queries, and of the keys and values
    I, V   feed-forward width, and words of the vocabulary
    B, R   rows in a micro-batch, and in the batch that a process generates; E rows of its evaluation batch
    S, C   tokens of a row, and those of its completion
    D, a   with an adapter: total input width of the maps that the adapter changes in a layer, and bytes of an input

**Memory**, in bytes of one GPU. At all times:

    weights      N w      / P under ZeRO-3 and FSDP, 0 if offloaded. DeepSpeed casts the weights to 2 bytes, and keeps
                          4 T with the optimizer. Under FSDP accelerate casts trained weights to 4 bytes;
                          quantized: Z q + (N - Z) w, and the adapter takes 2 bytes a weight
    optimizer    T 2 w    AdamW (an adapter's in float32); / P under ZeRO and FSDP; 2 T with 8 bits; 0 if offloaded
    reference    N w      only with beta > 0 and without an adapter. With an adapter, the base model is the reference
    DDP buckets  T w      with several processes without sharding: a second copy of the gradients, for the reduction
    vLLM         u M      `vllm_gpu_memory_utilization` (u) of the GPU's M, if vLLM is colocated and does not sleep

In addition, while training:

    gradients    T w      / P under ZeRO-2 and ZeRO-3, and FSDP; but T c, unsharded, if FSDP accumulates gradients
    ZeRO         10^9 bytes for the gradients on their way, and under ZeRO-3 min(2 N, 2 10^9) for the gathered weights:
                          DeepSpeed's defaults, reduce_bucket_size and stage3_max_live_parameters
    casts        N c      if c < w: autocast's copies of the weights; under FSDP those of two layers
    activations  B S (L H w + A), without checkpointing B S L A. A is the bytes that one layer keeps of a token:
                 A = c (4 Q + 3 I + S) + 16 H + c (2 H + I). If c < w, autocast casts for each matrix product, and
                 2 H becomes 5 H. With an adapter, 16 H becomes 8 H (frozen norms keep less), and the last term becomes
                 a D plus the adapter's ranks, and 1 D more with dropout
    head         min(B C, 4096) 32768 c + 4 V H + 4 B C H; TRL before 1.15 holds all logits, about 10 B C V

In addition, while evaluating (TRL scores an evaluation batch at once, without gradients), besides the casts and what
ZeRO-3 gathers:

    activations  E S (max(3 I c, 5 Q c + S c) + 4 H w + S): the layer that goes through, and the mask
    head         min(E C, 4096) 32768 c + E C H c

In addition, while transformers generates (vLLM has its own share):

    KV cache     R S L 2 K c
    prompts      R (S - C) (2 I c + 3 H w): all prompts go through a layer at once
    gathered     2 N under ZeRO-3 with `ds3_gather_for_generation`

The largest of the three phases counts. Attention is assumed to be a fused kernel (sdpa, flash) without S x S scores.
Gemma 2's attention is not. Rows are padded, so sdpa gets a mask, and therefore keys and values for each query. A is
checked against PyTorch's saved tensors (tests/cli). OVERHEAD is for CUDA and the allocator's holes.

**Memory on a CPU** is the resident size of one process. It differs in these parts:

    head         min(B S, 4096) min(V, 32768) (29 + c) + B S H (4 + c) + 4 V H: without Triton, TRL also scores the
                 prompts' positions, in PyTorch operations, with seven float32 tensors and a mask for a tile at a time
    dropout      an adapter's dropout keeps its noise as numbers: D (a + 4) instead of D (a + 1) on a GPU
    holes        up to B S L D 4 with an adapter and dropout or checkpointing: the inputs of the adapter's maps are
                 freed between tensors that stay, and glibc (2.36) fills few of these holes
    base         BASE, for Python and the imported libraries, as measured
glibc keeps freed blocks below 32 MiB for the next phase, and gives larger blocks back. The largest of three parts
counts, plus the head. The parts are the activations, the gradients, and the memory for generating. Gradients grow
while activations are freed, but gradients of several micro-batches stay.

**Time.** A token costs 2 N operations forward and 4 N backward. The backward pass costs 2 N with LoRA, because frozen
weights need no gradient. Checkpointing costs 2 N more to recompute. Each pass that only scores costs 2 N: the old
log-probs (with vLLM, or with several updates per batch) and the reference's log-probs. N counts only active experts.
A pass through attention costs 4 L Q S more for each token, and the backward pass twice that: the mask keeps the kernel
from skipping later tokens. Evaluations are not counted.
Generation reads all weights and the cache for each token of the longest completion. It is therefore bound by memory:
bytes / bandwidth, but at least the time of Python and of kernel launches. vLLM samples as many sequences at a time as
its cache holds: its share without the weights and VLLM_OWN. The estimate assumes that every completion
has the maximum length and that no group is dropped.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .gpus import GPU


if TYPE_CHECKING:
    from transformers import PretrainedConfig


GIB = 2**30
OVERHEAD = 2 * GIB
BASE = 0.52 * GIB  # see benchmarks/memory.py
GIVEN_BACK = 32 * 2**20  # blocks that glibc gives back to the system, on 64-bit machines
EFFICIENCY = 0.4  # share of the peak while training; large models reach 0.3 to 0.5
BANDWIDTH_USED = 0.6  # share of the peak while generating
LAUNCH_S = 1e-3  # for each layer and token, in transformers' generate
VLLM_STEP_S = 5e-3  # for each token
TILE_TOKENS, TILE_WORDS = 4096, 32768  # tile of TRL's fused head
BUCKET, LIVE_WEIGHTS = 10**9, 2 * 10**9  # bytes in 16 bits, see "ZeRO" above
VLLM_OWN = GIB  # of vLLM's share, for activations and CUDA graphs: a guess


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model."""

    parameters: int
    active: int  # parameters that a token passes through
    trained: int
    layers: int  # this and the next five: L, H, Q, K, I (of all active experts together) and V
    hidden: int
    queries: int
    keys: int
    feed_forward: int
    words: int
    linear: int = 0  # weights that quantization packs: the linear layers', but for the output layer and adapters
    adapted: tuple[int, ...] = ()  # input width of each map that an adapter changes; D is the sum over a layer
    ranks: int = 0  # sum of the ranks of all these maps

    @property
    def adapter(self) -> bool:
        """True if only an adapter is trained."""
        return self.trained < self.parameters


@dataclass(frozen=True)
class Job:
    """The work of a run, in numbers."""

    rows: int  # B
    generated: int  # R
    prompt: int  # maximum tokens
    completion: int  # C, maximum tokens
    evaluated: int = 0  # E; 0 if the run does not evaluate
    micro_batches: int = 1  # per optimizer step and process
    generations: float = 1.0  # generation batches per optimizer step
    weight_bytes: float = 4  # w
    quantized_bytes: float = 0.0  # q; 0: no weight is quantized
    compute_bytes: float = 2  # c
    autocast: bool = True  # whether the run computes in 16 bits, whatever the weights' dtype
    dropout: bool = False  # whether an adapter has dropout
    on_cpu: bool = False
    optimizer_bytes: float = 8  # for each trained weight
    processes: int = 1  # P
    sharding: str = "none"  # as in [`~trl_grpo_plus.launch.Distribution`]
    offloads: str = ""
    checkpointing: bool = True  # recompute in the backward pass
    reference: bool = False  # whether a separate reference model is needed for the KL term
    scoring_passes: int = 0  # additional forward passes over a generation batch: old log-probs, reference
    gathers: bool = True  # whether ZeRO-3 gathers all weights to generate
    fused_head: bool = True  # TRL >= 1.15
    vllm: str = ""  # "": transformers generates; "colocate"; "sleep": colocated, asleep while training; "server"
    vllm_share: float = 0.3  # `vllm_gpu_memory_utilization`
    vllm_parallel: int = 1  # `vllm_tensor_parallel_size`
    reward_seconds: float = 0.0  # per generation batch

    @property
    def tokens(self) -> int:
        """S, the maximum tokens of a row."""
        return self.prompt + self.completion

    def shards(self, *kinds: str) -> int:
        """Return the number of GPUs over which these kinds of sharding spread a part; 1 if another kind is used."""
        return self.processes if self.sharding in kinds else 1


@dataclass(frozen=True)
class Memory:
    """The bytes of one GPU, or of one process on a CPU, by purpose and phase."""

    always: Mapping[str, float]
    training: Mapping[str, float]
    generating: Mapping[str, float]
    evaluating: Mapping[str, float] = field(default_factory=dict)
    overhead: tuple[str, float] = ("CUDA and holes", OVERHEAD)

    @property
    def phase(self) -> str:
        """Name of the phase that takes most."""
        return max(("training", "generating", "evaluating"), key=lambda name: sum(getattr(self, name).values()))

    @property
    def total(self) -> float:
        """Total bytes in the phase that takes most."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by purpose in the phase that takes most, the largest first."""
        parts = {**self.always, **getattr(self, self.phase), self.overhead[0]: self.overhead[1]}
        return {name: size for name, size in sorted(parts.items(), key=lambda item: -item[1]) if size}


def memory(shape: ModelShape, job: Job, gpu_bytes: float = 0) -> Memory:
    """Return the memory that a run takes on each GPU, which has `gpu_bytes`; on a CPU, in each process."""
    deepspeed, fsdp = job.sharding.startswith("zero"), job.sharding == "fsdp"
    weight = 2 if deepspeed and job.compute_bytes == 2 else job.weight_bytes
    if fsdp and job.compute_bytes == 2 and not shape.adapter:
        weight = 4
    master = 4 if deepspeed and weight == 2 else 0
    everywhere = ("zero3", "fsdp")
    packed = _packed(shape, job)
    weights = packed * job.quantized_bytes + (shape.parameters - packed) * weight
    trained = shape.trained * (_adapter_bytes(job) if shape.adapter else weight)
    optimizer = 0 if job.offloads else shape.trained * (job.optimizer_bytes + master)
    always = {
        "weights": 0 if job.offloads == "weights" else weights / job.shards(*everywhere),
        "optimizer": optimizer / job.shards("zero1", "zero2", *everywhere),
        "reference": weights / job.shards(*everywhere) if job.reference and not shape.adapter else 0,
        "DDP's buckets": trained if job.sharding == "ddp" else 0,
        "vLLM": gpu_bytes * job.vllm_share if job.vllm == "colocate" else 0,
    }
    casts = (shape.parameters - packed) * job.compute_bytes if job.compute_bytes < weight else 0
    gradients = trained / job.shards("zero2", *everywhere)
    if fsdp and job.micro_batches > 1:
        gradients = shape.trained * job.compute_bytes
    passing = {"bf16 casts": 2 * casts / shape.layers if fsdp else casts}
    if job.sharding == "zero3":
        passing["gathered weights"] = min(weights, LIVE_WEIGHTS)
    training = {
        "gradients": gradients,
        **passing,
        **({"gradients on their way": BUCKET} if deepspeed else {}),
        "activations": activations(shape, job),
        "head": head(shape, job),
    }
    generating = _generating(shape, job, gpu_bytes)
    if job.on_cpu:
        return _on_cpu(shape, job, always, training, generating)
    return Memory(always, training, generating, {**passing, **_evaluating(shape, job)})


def _packed(shape: ModelShape, job: Job) -> int:
    """Return the number of weights that are quantized."""
    return shape.linear if job.quantized_bytes else 0


def _adapter_bytes(job: Job) -> int:
    """Return the bytes of an adapter's weight: float32, but TRL casts the adapter of a quantized model to bfloat16."""
    return 2 if job.quantized_bytes else 4


def _on_cpu(
    shape: ModelShape, job: Job, always: dict[str, float], training: dict[str, float], generating: dict[str, float]
) -> Memory:
    """Return the memory of a process on a CPU: the parts that stay, and the largest of the parts that are freed."""
    forward = {name: training[name] for name in ("activations", "bf16 casts")}
    if job.dropout or job.checkpointing:
        freed = [job.rows * job.tokens * width * 4 for width in shape.adapted]
        forward["holes"] = sum(size for size in freed if size < GIVEN_BACK)
    backward = {"gradients": training["gradients"]}
    if job.micro_batches > 1:  # the gradients of earlier micro-batches stay during the forward pass
        forward |= backward
    staying = max(forward, backward, generating, key=lambda part: sum(part.values()))
    return Memory(always, {**staying, "head": training["head"]}, {}, overhead=("Python and libraries", BASE))


def activations(shape: ModelShape, job: Job) -> float:
    """Return the bytes that the forward pass of a micro-batch keeps for the backward pass, without the head's."""
    c = job.compute_bytes
    kept = c * (4 * shape.queries + 3 * shape.feed_forward + job.tokens) + _of_maps(shape, job)
    kept += (8 if shape.adapter else 16) * shape.hidden
    layers = (1 + shape.layers * shape.hidden * job.weight_bytes / kept) if job.checkpointing else shape.layers
    return job.rows * job.tokens * kept * layers


def _of_maps(shape: ModelShape, job: Job) -> float:
    """Return the bytes of a token that a layer's linear maps keep: the inputs, for the weights' gradients."""
    casts = job.compute_bytes < job.weight_bytes
    inputs = 2 * shape.hidden + shape.feed_forward  # each input counts once, even if several maps read it
    if not shape.adapter:
        return job.compute_bytes * (inputs + (3 * shape.hidden if casts else 0))
    own, adapted = 2 if job.autocast else _adapter_bytes(job), sum(shape.adapted) / shape.layers
    noise = 0
    if job.dropout:  # each map has its own noise
        noise = 4 if job.on_cpu else 1
    elif own == job.weight_bytes:
        adapted = min(inputs, adapted)
    return adapted * (own + noise) + own * shape.ranks / shape.layers


def head(shape: ModelShape, job: Job) -> float:
    """Return the bytes for the log-probs of a micro-batch."""
    positions = job.rows * job.completion
    if not job.fused_head:
        return 10 * positions * shape.words
    gradient = 0 if shape.adapter else 4 * shape.words * shape.hidden
    positions = job.rows * job.tokens if job.on_cpu else positions
    tile = min(positions, TILE_TOKENS) * min(TILE_WORDS, shape.words)
    if job.on_cpu:
        return tile * (29 + job.compute_bytes) + gradient + positions * shape.hidden * (4 + job.compute_bytes)
    return tile * job.compute_bytes + gradient + 4 * positions * shape.hidden


def _evaluating(shape: ModelShape, job: Job) -> dict[str, float]:
    """Return the bytes of a forward pass, without gradients, over an evaluation batch."""
    c, positions = job.compute_bytes, job.evaluated * job.completion
    layer = max(3 * shape.feed_forward * c, 5 * shape.queries * c + job.tokens * c)
    passing = job.evaluated * job.tokens * (layer + 4 * shape.hidden * job.weight_bytes + job.tokens)
    tile = min(positions, TILE_TOKENS) * min(TILE_WORDS, shape.words) * c if job.fused_head else 0
    scored = positions * shape.hidden * c if job.fused_head else 6 * positions * shape.words
    return {"activations": passing, "head": tile + scored}


def cache(shape: ModelShape, job: Job) -> float:
    """Return the bytes of the keys and values of one whole sequence."""
    return job.tokens * shape.layers * 2 * shape.keys * job.compute_bytes


def _generating(shape: ModelShape, job: Job, gpu_bytes: float) -> dict[str, float]:
    if job.vllm:
        return {"vLLM": gpu_bytes * job.vllm_share if job.vllm == "sleep" else 0}
    through = 2 * shape.feed_forward * job.compute_bytes + 3 * shape.hidden * job.weight_bytes
    return {
        "KV cache": job.generated * cache(shape, job),
        "prompts": job.generated * job.prompt * through,
        "gathered weights": 2 * shape.parameters if job.sharding == "zero3" and job.gathers else 0,
    }


def vllm_room(shape: ModelShape, job: Job, gpu_bytes: float) -> float:
    """Return the bytes of vLLM's share that are left for its cache, after the weights in 16 bits and VLLM_OWN."""
    return gpu_bytes * job.vllm_share - VLLM_OWN - 2 * shape.parameters / job.vllm_parallel


def vllm_sequences(shape: ModelShape, job: Job, gpu_bytes: float) -> int:
    """Return the number of whole sequences that the cache of a vLLM engine holds, on all of its GPUs together."""
    room = vllm_room(shape, job, gpu_bytes) * job.vllm_parallel
    return max(0, math.floor(room / cache(shape, job)))


def checkpoint(shape: ModelShape, job: Job, without_optimizer: bool = False) -> float:
    """Return the bytes of a checkpoint, of all processes together.

    An adapter is saved without the model. DeepSpeed saves its float32 weights with the optimizer and, below ZeRO-3,
    the model beside transformers' own copy. accelerate saves another copy under FSDP.
    """
    deepspeed, fsdp = job.sharding.startswith("zero"), job.sharding == "fsdp"
    half = deepspeed and job.compute_bytes == 2
    weight = _adapter_bytes(job) if shape.adapter else 4 if fsdp else 2 if half else job.weight_bytes
    if without_optimizer:
        return shape.trained * weight
    copies = 2 if fsdp or job.sharding in ("zero1", "zero2") else 1
    return shape.trained * (copies * weight + job.optimizer_bytes + (4 if half else 0))


def operations(shape: ModelShape, job: Job) -> float:
    """Return the floating-point operations of one process in an optimizer step, without generation."""
    passes = (4 if shape.adapter else 6) + 2 * job.checkpointing
    trained = job.micro_batches * job.rows * job.tokens
    scored = job.generations * job.generated * job.tokens * job.scoring_passes
    attended = 4 * shape.layers * shape.queries * job.tokens * ((3 + job.checkpointing) * trained + scored)
    return shape.active * (passes * trained + 2 * scored) + attended


def seconds(shape: ModelShape, job: Job, gpu: GPU) -> dict[str, float]:
    """Return the seconds of an optimizer step, by purpose."""
    peak = gpu.tflops * 1e12 * EFFICIENCY * (1 if job.compute_bytes == 2 else 1 / 16)
    return {
        "generating": job.generations * _seconds_generating(shape, job, gpu, peak),
        "training": operations(shape, job) / peak,
        "rewards": job.generations * job.reward_seconds,
    }


def _seconds_generating(shape: ModelShape, job: Job, gpu: GPU, peak: float) -> float:
    bandwidth = gpu.bandwidth * 1e9 * BANDWIDTH_USED
    prefill = 2 * shape.active * job.generated * job.prompt / peak
    half_full = job.generated * cache(shape, job) * (job.prompt + job.completion / 2) / job.tokens
    if not job.vllm:
        # For each token, autocast reads a float32 weight, writes it in 16 bits and reads it again, and bitsandbytes
        # does the same with a quantized weight.
        packed, twice = _packed(shape, job), 2 * job.compute_bytes
        cast = twice if job.compute_bytes < job.weight_bytes else 0
        read = packed * (job.quantized_bytes + twice) + (shape.parameters - packed) * (job.weight_bytes + cast)
        step = (read + half_full) / bandwidth
        return prefill + job.completion * max(step, shape.layers * LAUNCH_S)
    room = vllm_room(shape, job, gpu.memory * GIB) * job.vllm_parallel
    rows = job.generated * job.vllm_parallel
    waves = math.ceil(rows * cache(shape, job) / room) if room > 0 else 1
    step = (2 * shape.parameters / job.vllm_parallel + half_full / waves) / bandwidth
    return prefill + waves * job.completion * max(step, VLLM_STEP_S)


def rounded(value: float, digits: int = 2) -> str:
    """Return a number with `digits` significant digits as text: 1234 is "1,200", 0.0123 is "0.012"."""
    if not value or not math.isfinite(value):
        return "0" if not value else str(value)
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(places, 0)}f}"


NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # a config's key, by the kind of model


def count(config: "PretrainedConfig", peft_config: Any = None) -> ModelShape:
    """Return the shape of a causal language model.

    Args:
        config (`PretrainedConfig`): config of the model.
        peft_config (`peft.PeftConfig`, *optional*): config of the adapter that is trained.

    Raises:
        ValueError: the installed transformers cannot build the model, or the adapter does not fit the model.
    """
    from transformers import AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        maps = [module for module in model.modules() if isinstance(module, torch.nn.Linear | Conv1D)]
        linear = sum(module.weight.numel() for module in maps if module is not model.get_output_embeddings())
        if peft_config is not None:
            from peft import get_peft_model

            model = get_peft_model(model, peft_config)
    named = list(model.named_parameters())
    parameters = sum(weight.numel() for _, weight in named)
    text = config.get_text_config()
    # Only linear maps: an embedding's input has no width, and its adapter is in `lora_embedding_A`.
    adapted = [module for module in model.modules() if getattr(module, "lora_A", None)]
    experts = sum(weight.numel() for name, weight in named if ".experts." in name)
    per_token, all_experts = _experts(text)
    embedding = 0 if text.tie_word_embeddings else text.vocab_size * text.hidden_size  # looked up, not multiplied
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    feed_forward = getattr(text, "moe_intermediate_size", None) if experts else None
    return ModelShape(
        parameters=parameters,
        active=round(parameters - embedding - experts * (1 - per_token / all_experts)),
        trained=sum(weight.numel() for _, weight in named if weight.requires_grad),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        queries=heads * head_dim,
        keys=(getattr(text, "num_key_value_heads", None) or heads) * head_dim,
        feed_forward=(feed_forward or getattr(text, "intermediate_size", None) or 4 * text.hidden_size) * per_token,
        words=text.vocab_size,
        linear=linear,
        adapted=tuple(module.in_features for module in adapted),
        ranks=sum(sum(module.r.values()) for module in adapted),
    )


def context_of(config: "PretrainedConfig") -> int | None:
    """Return the maximum number of tokens in the model's context; `None` if its config does not say."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _experts(text: Any) -> tuple[int, int]:
    """Return the number of experts that a token passes through, and the number of all experts."""
    every = next((count for name in NUM_EXPERTS if (count := getattr(text, name, None))), None)
    return ((getattr(text, "num_experts_per_tok", None) or 1), every) if every else (1, 1)
