"""Warnings of a model, adapter or chat template with which a run learns little, or something else than intended."""

from collections.abc import Iterable, Set
from functools import partial
from typing import Any

from ..config import chat_checks, compatibility, tool_checks, trained_weights
from ..config.sampling_distribution import warn_of_another_distribution
from ..scoring import first_prompt


def warn_of_model(trainer: Any, args: Any, tokenizer: Any, stops: Set[int]) -> None:
    """Log the warnings of one trainer's model on the main process.

    Args:
        trainer ([`~trl.GRPOTrainer`] or [`~trl.RLOOTrainer`]): the trainer, before it trains.
        args ([`GRPOPlusConfig`]): its options, or an object that has them.
        tokenizer: its tokenizer.
        stops (`set[int]`): the tokens at which its generation stops.
    """
    model = trainer.model
    if trainer.optimizer is None:
        if not (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
            trained_weights.warn_of_lost_updates(args, model)
        trained_weights.warn_of_slow_adapter(args, model)
    trained_weights.warn_of_dropout(args, model)
    trained_weights.warn_of_unknown_tokens(model, tokenizer, first_prompt(trainer.train_dataset))
    if getattr(trainer, "rollout_func", None) is not None:  # it samples in its own way
        return
    compatibility.warn_of_masked_stops(args, {*stops, tokenizer.pad_token_id})
    compatibility.warn_of_rounded_weights(args, model)
    warn_of_another_distribution(args, model, getattr(trainer, "generation_kwargs", None))
    ends = chat_checks.known_ends(stops, args.generation_kwargs)
    given = trainer.processing_class, _template(trainer), ends, trainer.reward_funcs
    chat_checks.warn_of_doubts(trainer.train_dataset, *given)


def warn_of_unread_answers(trainer: Any, completions: Iterable[Any]) -> None:
    """Warn of answers of tools that the trainer's chat template leaves out."""
    if getattr(trainer, "tools", None):
        write = partial(trainer.processing_class.apply_chat_template, tokenize=False, **_template(trainer))
        tool_checks.warn_of_unread_answers(completions, write)


def _template(trainer: Any) -> dict[str, Any]:
    """Return what the chat template is given beside the messages. An `RLOOTrainer` has no template of its own."""
    return {"chat_template": getattr(trainer, "chat_template", None), **trainer.chat_template_kwargs}
