"""The page that shows a run's attempts side by side, and the trackers.

page      one HTML file from a run's traces
source    a run, and what its page says of it as a whole
groups    a group as the page shows it
turns     tool calls, at their places in a text
credit    advantages of tokens and rewards of steps, at their places in a text
overview  the group that the page opens on, evaluations before and after, every metric
prompts   how each prompt went over the steps, and the lists of them
beliefs   what was believed of prompts, against what they earned
rescored  a reward that was tried on the run, beside what was recorded
room      which groups find room in a page
compare   one HTML file from several runs
runs      a run as others are laid beside it
serve     the page of a run that goes on, from a server on this machine
feed      a run that is read while it is written
places    groups in a file that still grows
html      a page with its scripts, styles and data in one file
libraries what a page carries to render Markdown and mathematics
trackers  whole groups for wandb and trackio
viewer/   the page's HTML, CSS and JavaScript
"""

from .compare import write_comparison
from .page import panel, write_page
from .rescored import Rescored, Tried
from .serve import serve_run
from .trackers import Trackers, failed_in
