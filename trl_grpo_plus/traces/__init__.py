"""What each attempt of a run was, one JSON object a line: reading and writing.

read       a run's traces, and what a line holds
shapes     what the files hold, key by key
shown      what of a run's options may be shown
rows       a batch, and its lines
by_token   advantages of tokens, as stretches of the text
given      a prompt as the model is given it
pictures   what a line says of one, and thumbnails
writer     the files, a thread
stock_trl  what TRL itself writes with `log_completions`
"""

from . import stock_trl
from .by_token import advantages_by_token
from .given import ADDS_SYSTEM, as_given
from .pictures import Thumbnails, named_in
from .read import (
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
from .rows import Part, Row, Sampled, complete, part_of, pick, plain
from .shown import hides, shown_about, shown_name, shown_options
from .writer import Writer
