"""What each attempt of a run was, one JSON object a line: reading and writing.

reader           a run's traces, and what a line holds
schema           what the files hold, key by key
redaction        which of a run's options may be shown
records          a batch -> its lines
token_runs       advantages of tokens, as stretches of the text
rendered_prompt  a prompt as the model is given it
images           what a line says of an image, and thumbnails
writer           the files, a thread
trl_completions  what TRL itself writes with `log_completions`
alarms/          warnings about what the attempts of a run show
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import trl_completions
from .images import Thumbnails, named_in
from .reader import (
    FIRST_PROMPT,
    FOLDER,
    JOURNALS,
    GroupKey,
    about,
    by_group,
    damaged,
    evaluated,
    files,
    find,
    group_key,
    groups,
    journal,
    lines,
    newest,
    parse,
    read_lines,
    read_object,
    split_name,
    told,
)
from .redaction import hides, shown_about, shown_name, shown_options
from .rendered_prompt import ADDS_SYSTEM, as_given
from .schema import Row


if TYPE_CHECKING:
    from .records import Part, Sampled, complete, part_of, pick, plain
    from .token_runs import advantages_by_token
    from .writer import Writer

# What writes a trace imports torch. What reads one does without it.
_OF_TENSORS = dict.fromkeys(("Part", "Sampled", "complete", "part_of", "pick", "plain"), ".records")
_OF_TENSORS |= {"advantages_by_token": ".token_runs", "Writer": ".writer"}


def __getattr__(name: str) -> Any:
    if name in _OF_TENSORS:
        return getattr(import_module(_OF_TENSORS[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
