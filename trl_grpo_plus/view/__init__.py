"""The page that shows a run's attempts side by side, and the trackers.

page            one HTML file from a run's traces
run_source      a run's traces, and the page data about the run as a whole
group_data      the page data of a group
tool_calls      tool calls, with their positions in a text
token_credit    token advantages and step rewards, with their positions in a text
overview        the group that the page opens on, first and last evaluations, every metric
prompt_history  the course of each prompt over the steps, and the lists of prompts
calibration     believed mean rewards of prompts, against earned ones
rescored        a reward that was tried on the run, beside the recorded scores
size_budget     the choice of the groups that fit into a page, and the file where they wait
compare         one HTML file from several runs
run_summary     a run's data for the comparison page
server          a local server for the page of a run that is still going
live_feed       a reader for a run that is still being written
file_index      the groups of a run's files, which may still grow
template        a page with its scripts, styles and data in one file
trackers        whole groups for wandb and trackio
viewer/         the page's HTML, CSS and JavaScript
"""

from typing import TYPE_CHECKING

from ..utils.lazy_imports import lazy_imports
from .compare import write_comparison
from .page import panel, write_page
from .rescored import Rescored, Tried
from .run_source import by_stock_trl, folder_of
from .server import serve_run


if TYPE_CHECKING:
    from .trackers import Trackers, failed_in

__getattr__ = lazy_imports(__name__, {"Trackers": ".trackers", "failed_in": ".trackers"})
