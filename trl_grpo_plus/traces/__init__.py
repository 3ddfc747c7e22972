"""What each attempt of a run was, one JSON object a line: reading and writing.

read       a run's traces, and what a line holds
rows       a batch as lines
writer     the files, a thread
stock_trl  what TRL itself writes with `log_completions`
"""

from .read import FOLDER, about, evaluated, find, groups, journal, split_name
from .rows import Row, Said, Scored, lines, pick, plain, said
from .writer import Writer


__all__ = [
    "FOLDER",
    "Row",
    "Said",
    "Scored",
    "Writer",
    "about",
    "evaluated",
    "find",
    "groups",
    "journal",
    "lines",
    "pick",
    "plain",
    "said",
    "split_name",
]
