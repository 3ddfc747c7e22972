"""The packages that the options of a run need, and that may not be installed."""

from typing import Any

from ..utils import optional_packages


# A tracker needs any of its modules. transformers could tell which are installed, but imports wandb to do so.
TRACKERS = {"tensorboard": ("tensorboard", "tensorboardX"), "azure_ml": ("azureml",), "flyte": ("flytekit",)}
# The module of an optimizer that PyTorch and transformers do not have, by the start of its name. The first that fits.
OPTIMIZERS = {
    "adamw_torch_4bit": "torchao",
    "adamw_torch_8bit": "torchao",
    "adamw_torch_xla": "torch_xla",
    "adamw_torch_npu_fused": "torch_npu",
    "adamw_anyprecision": "torchdistx",
    **dict.fromkeys(("adamw_bnb", "adamw_8bit", "ademamix", "lion", "paged_", "rmsprop_bnb"), "bitsandbytes"),
    "galore_": "galore_torch",
    "apollo_": "apollo_torch",
    **dict.fromkeys(("lomo", "adalomo"), "lomo_optim"),
    "grokadamw": "grokadamw",
    "schedule_free_": "schedulefree",
    "stable_adamw": "optimi",
}
# The module of an attention. Without it transformers takes the same attention from the Hub, if it has `kernels`.
ATTENTION = {
    "flash_attention_2": "flash_attn",
    "flash_attention_3": "flash_attn_interface",
    "flash_attention_4": "flash_attn",
}


def missing_packages(training_args: Any, model_args: Any) -> dict[str, str]:
    """Return the options whose packages are not installed here, with the command that installs each package."""
    optimizer = str(getattr(training_args.optim, "value", training_args.optim))
    attention = attention_of(training_args, model_args)
    quantized = model_args.load_in_4bit or model_args.load_in_8bit
    needs = {
        "use_vllm: true": "vllm" if training_args.use_vllm else None,
        "use_peft: true": "peft" if model_args.use_peft else None,
        "load_in_4bit or load_in_8bit": "bitsandbytes" if quantized else None,
        f"optim: {optimizer}": module_of_optimizer(optimizer),
        f"attn_implementation: {attention}": _module_of_attention(attention),
        "use_liger_kernel: true": "liger_kernel" if training_args.use_liger_kernel else None,
    }
    missing = optional_packages.missing({what: module for what, module in needs.items() if module})
    for name in training_args.report_to:
        modules = TRACKERS.get(name, (name,))
        if not any(map(optional_packages.is_installed, modules)):
            missing[f"report_to: {name}"] = optional_packages.install(modules[0])
    return missing


def module_of_optimizer(name: str) -> str | None:
    """Return the module that an optimizer needs; `None` if PyTorch or transformers has the optimizer itself."""
    return next((module for start, module in OPTIMIZERS.items() if name.startswith(start)), None)


def attention_of(training_args: Any, model_args: Any) -> str | None:
    """Return the name of the attention that the model is loaded with; `None` if it has no name, or several."""
    name = (training_args.model_init_kwargs or {}).get("attn_implementation", model_args.attn_implementation)
    return name.removeprefix("paged|") if isinstance(name, str) else None


def _module_of_attention(name: str | None) -> str | None:
    if name is None:
        return None
    if "/" in name:  # a kernel on the Hub
        return "kernels"
    has_own = name == "flash_attention_2" and optional_packages.is_installed("torch_npu")
    return None if has_own or optional_packages.is_installed("kernels") else ATTENTION.get(name)
