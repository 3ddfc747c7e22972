"""The estimates, compared with calculations by hand and with what PyTorch, transformers, peft and TRL do."""

import itertools
import json
import os
import sys
from dataclasses import replace
from unittest import mock

import benchmark_scripts
import pytest
import torch
from packaging.version import Version
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM
from trl import ModelConfig
from trl import __version__ as trl_version

from trl_grpo_plus.cli.check import estimate, samples
from trl_grpo_plus.cli.check.estimate import (
    GIB,
    Job,
    ModelShape,
    cache,
    context_of,
    count,
    memory,
    operations,
    rounded,
    seconds,
)
from trl_grpo_plus.cli.check.gpus import DEFAULT_GPU, GPU, gpu_of
from trl_grpo_plus.utils.resources import multiplies_bfloat16


SIZES = {"layers": 10, "hidden": 100, "queries": 100, "keys": 20, "feed_forward": 300, "words": 1000}
SHAPE = ModelShape(parameters=1_000_000, active=1_000_000, trained=1_000_000, **SIZES)
ADAPTER = replace(SHAPE, trained=10_000)
JOB = Job(rows=2, generated=8, prompt=30, completion=20)  # float32 weights, bf16 autocast, AdamW, checkpointing
SMALL = {
    **{"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "vocab_size": 1000},
    **{"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32},
}


def sizes(parts):
    """Return the parts that are not 0."""
    return {name: size for name, size in parts.items() if size}


def test_memory_by_hand():
    parts = memory(SHAPE, JOB, 80 * GIB)
    assert sizes(parts.always) == {"weights": 4e6, "optimizer": 8e6}
    # 2 rows of 50 tokens. A token takes 10 layers x 100 x 4, and in one layer 2 (400 + 900 + 50 + 500 + 300) + 1600.
    activated = 100 * (4000 + 5900)
    # 40 positions x 1000 words x 2 bytes; float32 gradients of the head, 1000 x 100, and of its inputs, 40 x 100.
    in_head = 80_000 + 400_000 + 16_000
    assert parts.training == {"gradients": 4e6, "bf16 casts": 2e6, "activations": activated, "head": in_head}
    # 8 rows of 50 tokens x 10 layers x keys and values of 20 x 2 bytes; 240 tokens of prompts pass through a layer.
    assert parts.generating == {"KV cache": 320_000, "prompts": 240 * (1200 + 1200), "gathered weights": 0}
    assert parts.total == 12e6 + 6e6 + 990_000 + 496_000 + estimate.OVERHEAD
    assert list(parts.parts)[:3] == ["CUDA and holes", "optimizer", "weights"]
    assert parts.phase == "training"


def test_evaluation_scores_a_whole_batch_at_once():
    # 900 rows of 50 tokens: a layer's 3 x 300 x 2, 4 x 100 x 4, a mask of 50; a head of 18,000 positions, 4096 a tile.
    through, in_head = 900 * 50 * (1800 + 1600 + 50), 4096 * 1000 * 2 + 18_000 * 100 * 2
    parts = memory(SHAPE, replace(JOB, evaluated=900), 80 * GIB)
    assert parts.evaluating == {"bf16 casts": 2e6, "activations": through, "head": in_head}
    assert parts.phase == "evaluating"
    assert parts.total == 12e6 + 2e6 + through + in_head + estimate.OVERHEAD
    wide = replace(SHAPE, queries=400)  # attention takes more than the feed-forward layer
    assert memory(wide, replace(JOB, evaluated=90)).evaluating["activations"] == 90 * 50 * (4100 + 1600 + 50)
    assert memory(SHAPE, replace(JOB, on_cpu=True, evaluated=90)).evaluating == {}


@pytest.mark.parametrize(("stage", "gathered"), [("zero1", None), ("zero2", None), ("zero3", 2e6)])
def test_deepspeed_has_buffers_of_its_own(stage, gathered):
    """As in DeepSpeed 0.19: 5e8 elements of `reduce_bucket_size`, 1e9 of `stage3_max_live_parameters`."""
    parts = memory(SHAPE, replace(JOB, sharding=stage, processes=4, evaluated=90), 80 * GIB)
    assert parts.training["gradients on their way"] == 1e9
    assert "gradients on their way" not in parts.evaluating
    assert (parts.training.get("gathered weights"), parts.evaluating.get("gathered weights")) == (gathered, gathered)
    large = replace(SHAPE, parameters=7 * 10**9)
    assert memory(large, replace(JOB, sharding="zero3", processes=4)).training["gathered weights"] == 2e9


@pytest.mark.parametrize(
    ("shape", "change", "a_weight"),
    [
        (SHAPE, {}, 4 + 8),
        (SHAPE, {"weight_bytes": 2, "optimizer_bytes": 4}, 2 + 4),
        (SHAPE, {"sharding": "zero2"}, 2 + 2 + 4 + 8),
        (SHAPE, {"sharding": "zero3"}, 2 + 4 + 8),
        (SHAPE, {"sharding": "fsdp"}, 4 + 4 + 8),
        (ADAPTER, {"weight_bytes": 2}, 4 + 8),
    ],
)
def test_a_checkpoint_has_the_trained_weights_and_the_optimizer(shape, change, a_weight):
    job = replace(JOB, processes=4, **change)
    assert estimate.checkpoint(shape, job) == shape.trained * a_weight
    assert estimate.checkpoint(shape, job, without_optimizer=True) in (2 * shape.trained, 4 * shape.trained)


@pytest.mark.parametrize(
    ("change", "always", "training"),
    [
        ({"weight_bytes": 2, "optimizer_bytes": 4}, {"weights": 2e6, "optimizer": 4e6}, (2e6, 0)),
        ({"reference": True}, {"weights": 4e6, "optimizer": 8e6, "reference": 4e6}, (4e6, 2e6)),
        ({"sharding": "ddp"}, {"weights": 4e6, "optimizer": 8e6, "DDP's buckets": 4e6}, (4e6, 2e6)),
        # DeepSpeed: 2 bytes for a weight, 2 for its gradient, 12 for its optimizer state (arXiv 1910.02054).
        ({"sharding": "zero1"}, {"weights": 2e6, "optimizer": 3e6}, (2e6, 0)),
        ({"sharding": "zero2"}, {"weights": 2e6, "optimizer": 3e6}, (0.5e6, 0)),
        ({"sharding": "zero3", "reference": True}, {"weights": 5e5, "optimizer": 3e6, "reference": 5e5}, (0.5e6, 0)),
        ({"sharding": "fsdp"}, {"weights": 1e6, "optimizer": 2e6}, (1e6, 0.4e6)),  # casts of two of ten layers
    ],
)
def test_what_each_kind_of_sharding_divides(change, always, training):
    processes = 4 if "sharding" in change else 1
    parts = memory(SHAPE, replace(JOB, processes=processes, **change), 80 * GIB)
    assert sizes(parts.always) == always
    assert (parts.training["gradients"], parts.training["bf16 casts"]) == training


def test_an_adapter_is_all_that_is_trained():
    parts = memory(ADAPTER, replace(JOB, weight_bytes=2, reference=True), 80 * GIB)
    assert sizes(parts.always) == {"weights": 2e6, "optimizer": 80_000}  # reference: no adapter
    assert parts.training["gradients"] == 40_000  # in float32
    assert parts.training["head"] == 80_000 + 16_000


def test_an_adapter_on_quantized_weights_by_hand():
    """900,000 weights are packed, of 1,000,000. The others stay, and TRL casts the adapter to 16 bits."""
    job = replace(JOB, quantized_bytes=0.56, weight_bytes=2, optimizer_bytes=4, reference=True)
    parts = memory(replace(ADAPTER, linear=900_000), job, 80 * GIB)
    assert sizes(parts.always) == pytest.approx({"weights": 0.56 * 9e5 + 2e5, "optimizer": 40_000})
    assert parts.training["gradients"] == 20_000
    in_float32 = memory(replace(ADAPTER, linear=900_000), replace(job, weight_bytes=4), 80 * GIB)
    assert in_float32.always["weights"] == pytest.approx(0.56 * 9e5 + 4e5)
    assert in_float32.training["bf16 casts"] == 2e5  # bitsandbytes makes 16-bit weights of one layer at a time
    # A token reads 900,000 weights packed, and once more as they were written in 16 bits. The others are cast.
    of_token = 9e5 * (0.56 + 4) + 1e5 * (4 + 4)
    slow, empty = GPU("slow", memory=80, bandwidth=1e-6, tflops=1e6), replace(job, weight_bytes=4, generated=0)
    expected = job.completion * of_token / (1e3 * estimate.BANDWIDTH_USED)
    assert seconds(replace(ADAPTER, linear=900_000), empty, slow)["generating"] == pytest.approx(expected)


def test_memory_of_a_cpu_by_hand():
    job = replace(JOB, on_cpu=True, generated=2, compute_bytes=4, autocast=False)
    parts = memory(SHAPE, job)
    kept = 4 * (400 + 900 + 50 + 500) + 1600
    # 100 positions x 1000 words: seven float32 tensors, a mask and the tile. Then inputs and gradient of the head.
    in_head = 100_000 * 33 + 100 * 100 * 8 + 400_000
    assert parts.parts == {
        "Python and libraries": estimate.BASE,
        "optimizer": 8e6,
        "weights": 4e6,
        "gradients": 4e6,  # they grow while the fewer activations are freed
        "head": in_head,
    }
    activated = 100 * (4000 + kept)
    assert activated < 4e6
    accumulated = memory(SHAPE, replace(job, micro_batches=2)).parts
    assert (accumulated["gradients"], accumulated["activations"]) == (4e6, activated)
    whole = memory(SHAPE, replace(job, checkpointing=False, rows=20)).parts
    assert (whole["activations"], "gradients" in whole) == (1000 * 10 * kept, False)
    assert memory(SHAPE, replace(job, generated=1000)).parts["KV cache"] == 1000 * 50 * 10 * 2 * 20 * 4


def test_an_adapter_leaves_holes_in_a_cpus_memory():
    adapter = replace(ADAPTER, adapted=(100, 100, 300) * 10)
    job = replace(JOB, on_cpu=True, generated=2, checkpointing=False)
    assert "holes" not in memory(adapter, job).parts
    for changed in (replace(job, dropout=True), replace(job, checkpointing=True)):
        assert memory(adapter, changed).parts["holes"] == 100 * 10 * 500 * 4
        assert "holes" not in memory(SHAPE, changed).parts
        # glibc gives blocks of 32 MiB and more back to the system.
        assert memory(adapter, replace(changed, rows=600)).parts["holes"] == 30_000 * 10 * 200 * 4


def test_vllm_has_its_share_and_gives_it_up_asleep():
    gpu, half = 4 * GIB, 2 * GIB
    colocated = memory(SHAPE, replace(JOB, vllm="colocate", vllm_share=0.5), gpu)
    assert (colocated.always["vLLM"], sum(colocated.generating.values())) == (half, 0)
    asleep = memory(SHAPE, replace(JOB, vllm="sleep", vllm_share=0.5), gpu)
    assert (asleep.always["vLLM"], asleep.generating) == (0, {"vLLM": half})
    assert asleep.total == 12e6 + half + estimate.OVERHEAD
    assert sum(memory(SHAPE, replace(JOB, vllm="server"), gpu).generating.values()) == 0
    parallel = replace(JOB, vllm="colocate", vllm_share=0.5, vllm_parallel=2)
    assert estimate.vllm_room(SHAPE, parallel, gpu) == GIB - 1e6  # the other half is the engine's own
    assert estimate.vllm_sequences(SHAPE, parallel, gpu) == (GIB - 1e6) // 20_000  # each GPU has half of each
    assert estimate.vllm_sequences(SHAPE, replace(parallel, vllm_share=0.2), gpu) == 0


def test_zero3_gathers_the_weights_to_generate_and_what_is_offloaded_takes_nothing():
    job = replace(JOB, sharding="zero3", processes=4)
    assert memory(SHAPE, job, 80 * GIB).generating["gathered weights"] == 2e6
    assert memory(SHAPE, replace(job, gathers=False), 80 * GIB).generating["gathered weights"] == 0
    whole = sizes(memory(SHAPE, job, 80 * GIB).always)
    assert whole.keys() == {"weights", "optimizer"}
    assert sizes(memory(SHAPE, replace(job, offloads="optimizer"), 80 * GIB).always) == {"weights": whole["weights"]}
    assert sizes(memory(SHAPE, replace(job, offloads="weights"), 80 * GIB).always) == {}


def test_operations_by_hand():
    # 2 rows x 50 tokens, 6 and 2 to recompute; attention: 10 layers x 100 wide x 50 tokens x 4, forward.
    attended = 10 * 100 * 50 * 4
    assert operations(SHAPE, JOB) == (1e6 * 8 + 4 * attended) * 100
    assert operations(SHAPE, replace(JOB, checkpointing=False)) == (1e6 * 6 + 3 * attended) * 100
    assert operations(ADAPTER, JOB) == (1e6 * 6 + 4 * attended) * 100
    # Three micro-batches; half a generation batch of 8 x 50 tokens, scored by the old policy and by the reference.
    job = replace(JOB, micro_batches=3, generations=0.5, scoring_passes=2)
    assert operations(SHAPE, job) == 1e6 * (8 * 300 + 2 * 2 * 200) + attended * (4 * 300 + 2 * 200)


def test_seconds_by_hand():
    gpu = GPU("X", 100, 1000, 80)
    spent = seconds(SHAPE, replace(JOB, reward_seconds=3.0, generations=0.5), gpu)
    assert spent["training"] == pytest.approx(0.88e9 / 40e12)
    assert spent["rewards"] == 1.5
    # Kernel launches bound so small a model: 10 layers x 1 ms x 20 tokens. Prompts have 240 tokens in addition.
    assert spent["generating"] == pytest.approx(0.5 * (20 * 0.010 + 2e6 * 240 / 40e12))
    large = replace(SHAPE, parameters=10**10, active=10**10)
    # Bytes of a weight for each token: 8 under autocast (4 read, 2 written, 2 read), 2 if it was loaded in 16 bits.
    cached = 8 * 50 * 400 * (40 / 50)
    assert seconds(large, JOB, gpu)["generating"] == pytest.approx(20 * (8e10 + 2 * cached) / 600e9 + 4.8e12 / 40e12)
    half = seconds(large, replace(JOB, weight_bytes=2), gpu)["generating"]
    assert half == pytest.approx(20 * (2e10 + 2 * cached) / 600e9 + 4.8e12 / 40e12)


def test_vllm_goes_in_waves_where_its_cache_is_too_small():
    gpu = GPU("X", 100, 1000, 10)

    def holds(rows):
        return (estimate.VLLM_OWN + 2e6 + rows * cache(SHAPE, JOB) + 1) / (10 * GIB)

    one = replace(JOB, vllm="colocate", vllm_share=holds(8))
    two = replace(one, vllm_share=holds(4))
    prefill = 2e6 * 240 / 40e12
    assert seconds(SHAPE, one, gpu)["generating"] == pytest.approx(prefill + 20 * 0.005)
    assert seconds(SHAPE, two, gpu)["generating"] == pytest.approx(prefill + 2 * 20 * 0.005)


def test_numbers_are_rounded_to_significant_digits():
    values = (1234.0, 0.01234, 98.76, 7.0, 0.0, 123456)
    assert [rounded(value) for value in values] == ["1,200", "0.012", "99", "7.0", "0", "120,000"]
    assert [rounded(value, 1) for value in (1234.0, 0.96, 55)] == ["1,000", "1.0", "60"]


# --- Compared with the libraries ------------------------------------------------------------------------------------


def small(kind, dtype, **more):
    config = AutoConfig.for_model(kind, **SMALL, **more)
    return config, AutoModelForCausalLM.from_config(config, dtype=dtype).train()


def saved_bytes(model, ids, autocast):
    """Return the bytes that the forward pass keeps for the backward pass, without weights and their casts."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    shapes = {shape for weight in model.parameters() for shape in (weight.shape, weight.T.shape)}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tensor.shape not in shapes:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # kept alive, so that its address is not reused
        return tensor

    padded = torch.ones_like(ids)
    padded[0, :10] = 0
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        causal.base_model(input_ids=ids, attention_mask=padded, use_cache=False)
    return sum(size for size, _ in kept.values())


def job_on_cpu(dtype, autocast, **more):
    computed = {"compute_bytes": 2 if autocast else dtype.itemsize, "autocast": autocast}
    of_rows = {"rows": 3, "generated": 3, "prompt": 60, "completion": 40, "checkpointing": False}
    return Job(**of_rows, weight_bytes=dtype.itemsize, on_cpu=True, **computed, **more)


DTYPES = [(torch.float32, True), (torch.bfloat16, False), (torch.float32, False)]


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3", "mistral"])
@pytest.mark.parametrize(("dtype", "autocast"), DTYPES)
def test_activations_are_what_pytorch_saves(kind, dtype, autocast):
    config, model = small(kind, dtype)
    saved = saved_bytes(model, torch.randint(0, 1000, (3, 100)), autocast)
    assert estimate.activations(count(config), job_on_cpu(dtype, autocast)) == pytest.approx(saved, rel=0.2)


@pytest.mark.parametrize("dropout", [0.0, 0.05])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"]], ids=str)
@pytest.mark.parametrize(("dtype", "autocast"), DTYPES)
def test_an_adapter_keeps_what_goes_into_its_maps(dtype, autocast, targets, dropout):
    config, model = small("llama", dtype)
    lora = LoraConfig(r=8, lora_dropout=dropout, target_modules=targets, task_type="CAUSAL_LM")
    shape = count(config, lora)
    saved = saved_bytes(get_peft_model(model, lora), torch.randint(0, 1000, (3, 100)), autocast)
    job = job_on_cpu(dtype, autocast, dropout=dropout > 0)
    assert estimate.activations(shape, job) == pytest.approx(saved, rel=0.2)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize(("dtype", "autocast"), DTYPES)
def test_an_evaluation_batch_takes_what_pytorch_allocates(tmp_path, kind, dtype, autocast):
    if dtype == torch.bfloat16 and not multiplies_bfloat16():
        pytest.skip("without instructions for bfloat16 PyTorch allocates more on a CPU; the estimate is of a GPU")
    config, model = small(kind, dtype)
    ids = torch.randint(0, 1000, (3, 400))
    padded = torch.ones_like(ids)
    padded[0, :10] = 0

    def score():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model.base_model(input_ids=ids, attention_mask=padded, use_cache=False)

    computed = {"compute_bytes": 2 if autocast else dtype.itemsize, "weight_bytes": dtype.itemsize}
    reckoned = memory(count(config), Job(1, 1, 300, 100, evaluated=3, **computed)).evaluating
    expected = reckoned["activations"] + reckoned["bf16 casts"]
    assert allocated(score, tmp_path / "trace.json") == pytest.approx(expected, rel=0.15)


def allocated(function, file):
    """Return the peak of the bytes that PyTorch allocates on the CPU during a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    profile.export_chrome_trace(str(file))
    events = [event for event in json.loads(file.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    changes = [event["args"]["Bytes"] for event in sorted(events, key=lambda event: event["ts"])]
    return max(itertools.accumulate(changes))


@pytest.mark.skipif(Version(trl_version) < Version("1.15"), reason="this TRL holds all logits")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_takes_the_estimated_memory_on_a_cpu(tmp_path, dtype):
    from trl.trainer.utils import add_fused_lm_head

    config = AutoConfig.for_model("llama", **{**SMALL, "vocab_size": 40_000, "num_hidden_layers": 1})
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))  # as TRL's trainer does
    ids = torch.randint(0, 1000, (4, 50))

    def train():
        model(input_ids=ids, labels=ids, fused_lm_head=True).log_probs.sum().backward()

    shape, job = count(config), replace(job_on_cpu(dtype, False), rows=4, prompt=30, completion=20)
    reckoned = estimate.head(shape, job) + estimate.activations(shape, job)
    assert allocated(train, tmp_path / "trace.json") == pytest.approx(reckoned, rel=0.1)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_with_checkpointing_only_the_inputs_of_layers_stay(kind):
    config, model = small(kind, torch.float32)
    model.gradient_checkpointing_enable()
    saved = saved_bytes(model, torch.randint(0, 1000, (3, 100)), autocast=False)
    shape = count(config)
    whole = Job(rows=3, generated=3, prompt=60, completion=40, compute_bytes=4)
    recomputed = (
        estimate.activations(shape, replace(whole, checkpointing=False)) / shape.layers
    )  # one layer at a time, in the backward pass
    assert estimate.activations(shape, whole) - recomputed == pytest.approx(saved, rel=0.35)


def test_the_cache_is_as_large_as_transformers():
    config, model = small("llama", torch.float32)
    cached = model(input_ids=torch.randint(0, 1000, (3, 50)), use_cache=True).past_key_values
    size = sum(tensor.nbytes for layer in cached.layers for tensor in (layer.keys, layer.values))
    assert 3 * cache(count(config), replace(JOB, prompt=30, completion=20, compute_bytes=4)) == size


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma", "mistral"])
def test_weights_are_counted_as_they_are(kind):
    config, model = small(kind, torch.float32)
    shape = count(config)
    assert shape.parameters == shape.trained == sum(weight.numel() for weight in model.parameters())
    assert (shape.layers, shape.hidden, shape.queries, shape.keys, shape.feed_forward) == (4, 256, 256, 64, 688)
    tied = config.tie_word_embeddings
    assert shape.parameters - shape.active == (0 if tied else 1000 * 256)
    adapter = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    assert count(config, adapter).trained == get_peft_model(model, adapter).get_nb_trainable_parameters()[0]
    assert count(config, adapter).adapter
    assert not shape.adapter
    embedding = 1000 * 256 * (1 if tied else 2)
    norms = sum(weight.numel() for name, weight in model.named_parameters() if "norm" in name or "bias" in name)
    assert count(config, adapter).linear == shape.linear == shape.parameters - embedding - norms


@pytest.mark.parametrize(
    ("kind", "targets", "widths"),
    [
        ("llama", ["q_proj", "embed_tokens"], (256,) * 4),  # an embedding is a look-up, and keeps no input
        ("gpt2", ["c_attn"], (256,) * 4),  # `Conv1D`, not `nn.Linear`
    ],
)
def test_the_maps_of_an_adapter_are_counted(kind, targets, widths):
    names = {"n_embd": 256, "n_layer": 4, "n_head": 8, "vocab_size": 1000} if kind == "gpt2" else SMALL
    adapter = LoraConfig(r=8, target_modules=targets, task_type="CAUSAL_LM")
    shape = count(AutoConfig.for_model(kind, **names), adapter)
    assert (shape.adapted, shape.ranks) == (widths, 8 * len(widths))


def test_only_some_experts_of_a_mixture_are_active():
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    config, model = small("qwen3_moe", torch.float32, **experts)
    weights = sum(weight.numel() for name, weight in model.named_parameters() if ".experts." in name)
    shape = count(config)
    assert weights > 0
    assert shape.parameters - shape.active == weights * 6 // 8 + 1000 * 256
    assert shape.feed_forward == 2 * 64


def test_a_known_model_has_the_published_number_of_weights():
    config = AutoConfig.for_model(**samples.config_of("Qwen/Qwen2.5-0.5B-Instruct"))
    assert rounded(count(config).parameters / 1e9) == "0.49"  # as on its model card
    assert context_of(config) == 32768


def test_trl_has_the_values_that_estimates_assume():
    assert ModelConfig().dtype == "float32"
    if Version(trl_version) < Version("1.15"):
        pytest.skip("this TRL holds all logits")
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    assert (chunked_logprob.TOKEN_CHUNK_SIZE, utils._CHUNKED_LOGPROB_CHUNK_SIZE) == (
        estimate.TILE_TOKENS,
        estimate.TILE_WORDS,
    )
    assert estimate.head(SHAPE, replace(JOB, fused_head=False)) == 10 * 40 * 1000


def test_fsdp_trains_float32_weights_and_accumulates_whole_gradients():
    """accelerate casts trained weights to float32. Without synchronisation, a process keeps the gradients of all."""
    job = replace(JOB, sharding="fsdp", processes=4, weight_bytes=2, compute_bytes=2, micro_batches=1)
    once = memory(SHAPE, job, 80 * GIB)
    assert once.always["weights"] == 4 * SHAPE.parameters / 4
    assert once.training["gradients"] == 4 * SHAPE.trained / 4
    assert memory(SHAPE, replace(job, micro_batches=2), 80 * GIB).training["gradients"] == 2 * SHAPE.trained


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("a100", "A100"),
        ("4090", "RTX 4090"),
        ("RTX4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 3060", None),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_gpus_by_name(name, known):
    assert getattr(gpu_of(name), "name", None) == known
    assert DEFAULT_GPU.name == "H100"


def test_a_report_estimates_the_cases_that_were_measured(tmp_path, monkeypatch, capsys):
    with mock.patch.dict(os.environ):  # the benchmark changes it on import
        benchmark = benchmark_scripts.imported("memory")
    monkeypatch.setattr(benchmark, "estimated", lambda _: {"weights": 1024})
    output = tmp_path / "results.json"
    measured = {"head-float32": {"measured": 2048, "estimated": {}}}
    output.write_text(json.dumps(measured))
    monkeypatch.setattr(sys, "argv", ["memory", "--report", "--output", str(output)])
    assert benchmark.main() == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["| head-float32 | 1.0 | 2.0 | 0.50 | weights 1.0 |"]
    assert json.loads(output.read_text()) == {"head-float32": {"measured": 2048, "estimated": {"weights": 1024}}}
