"""The page that shows a run's attempts side by side, and the trackers.

page            one HTML file from a run's traces
run_source      a run, and what its page says of it as a whole
group_data      a group as the page shows it
tool_calls      tool calls, at their places in a text
token_credit    advantages of tokens and rewards of steps, at their places in a text
overview        the group that the page opens on, evaluations before and after, every metric
prompt_history  how each prompt went over the steps, and the lists of them
calibration     what was believed of prompts, against what they earned
rescored        a reward that was tried on the run, beside what was recorded
size_budget     which groups fit into a page
compare         one HTML file from several runs
run_summary     a run as the comparison shows it
server          serves the page of a run that goes on, on this machine
live_feed       reads a run while it is written
file_index      groups in a file that still grows
template        a page with its scripts, styles and data in one file
trackers        whole groups for wandb and trackio
viewer/         the page's HTML, CSS and JavaScript
"""

from typing import TYPE_CHECKING, Any

from .compare import write_comparison
from .page import panel, write_page
from .rescored import Rescored, Tried
from .server import serve_run


if TYPE_CHECKING:
    from .trackers import Trackers, failed_in


def __getattr__(name: str) -> Any:
    if name in ("Trackers", "failed_in"):  # of training: they import torch
        from . import trackers

        return getattr(trackers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
