"""Traces of a run, with one JSON object per attempt on a line: reading and writing.

reader           reads a run's traces, and documents the keys of a line
schema           the keys of the files, with the shapes of their values
redaction        decides which of a run's options may be shown
records          turns a batch into lines
token_runs       advantages of tokens, as stretches of the text
rendered_prompt  a prompt as the model receives it
images           the text that stands for an image in a line, and thumbnails
group_line       a group's line in the list of a page
group_index      the index of a run's groups, which the writer keeps beside the files
writer           writes the files
trl_completions  reads the files that TRL itself writes with `log_completions`
alarms/          warnings about patterns in the attempts of a run
"""

from typing import TYPE_CHECKING

from ..utils.lazy_imports import lazy_imports
from . import trl_completions
from .group_line import answer_place, best_first, entry, joined, messages_of, shown
from .images import Thumbnails, named_in
from .reader import (
    FIRST_PROMPT,
    FOLDER,
    JOURNALS,
    RACE_SETTINGS,
    GroupKey,
    Points,
    about,
    attempt_label,
    by_group,
    by_split,
    check_split_names,
    damaged,
    evaluated,
    evaluations,
    files,
    find,
    group_key,
    groups,
    is_reward,
    journal,
    lines,
    newest_training_file,
    output_dir,
    parse,
    parse_name,
    read_lines,
    read_object,
    series,
    split_name,
    whole_groups,
)
from .redaction import hides, shown_about, shown_name, shown_options
from .rendered_prompt import ADDS_SYSTEM, as_given
from .schema import Row, logged_step


if TYPE_CHECKING:
    from . import group_index
    from .group_index import Block
    from .records import Part, SampledBatch, complete, json_value, part_of, pick
    from .token_runs import advantages_by_token
    from .writer import Writer

# Writing a trace imports torch, and the index imports numpy. Reading needs neither.
_LAZY = dict.fromkeys(("Part", "SampledBatch", "complete", "part_of", "pick", "json_value"), ".records")
_LAZY |= {"advantages_by_token": ".token_runs", "Writer": ".writer"}
_LAZY |= {"Block": ".group_index", "group_index": ".group_index"}
__getattr__ = lazy_imports(__name__, _LAZY)
