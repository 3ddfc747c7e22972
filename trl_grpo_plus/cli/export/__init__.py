"""The command `trl-grpo-plus export`: a run's attempts as files to share.

This package itself imports neither torch nor pyarrow.

command      the options and the closing message
run_columns  the columns and names that a run has
columns      a line of a trace -> a row of a table whose types do not depend on the run
writers      JSON lines, parquet, a folder for the Hub
card         the README.md of that folder
"""

from .command import HELP, add_options, run
