"""The page that shows a run's attempts side by side, and the trackers.

page      one HTML file from a run's traces
groups    a group as the page shows it
beliefs   what was believed of prompts, against what they earned
credit    advantages of tokens and rewards of steps, at their places in a text
trackers  whole groups for wandb and trackio
viewer/   the page's HTML, CSS and JavaScript
"""

from .page import choose, panel, write_page
from .trackers import Trackers
