"""GRPO on Hugging Face TRL that does not pay for groups that teach nothing.

Swap two names in a TRL script, `GRPOTrainer` for [`GRPOPlusTrainer`] and `GRPOConfig` for [`GRPOPlusConfig`], and set
the options you want. With every new option at its default the trainer is TRL's, bit for bit.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .config import GRPOPlusConfig
    from .trainer import GRPOPlusTrainer

__version__ = "0.1.0"
__all__ = ["GRPOPlusConfig", "GRPOPlusTrainer", "__version__"]

_LAZY = {"GRPOPlusConfig": ".config", "GRPOPlusTrainer": ".trainer"}


def __getattr__(name: str) -> Any:
    # TRL takes seconds to import; the pure modules (advantages, kl, groups) should not wait for it.
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
