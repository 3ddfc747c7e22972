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
from .records import Part, Row, Sampled, complete, part_of, pick, plain
from .redaction import hides, shown_about, shown_name, shown_options
from .rendered_prompt import ADDS_SYSTEM, as_given
from .token_runs import advantages_by_token
from .writer import Writer
