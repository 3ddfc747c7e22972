"""What a run sampled, as files for others: `trl-grpo-plus export`. This face imports neither torch nor pyarrow.

command  the options, and what is said at the end
schema   which columns a run has
columns  a line of a trace -> a row of a table whose types do not depend on the run
writers  JSON lines, parquet, a folder for the Hub
card     that folder's README.md
"""

from .command import HELP, add_options, run
