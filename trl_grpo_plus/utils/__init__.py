"""What every room uses. Knows none of them.

import_path        functions by path
validation         refusals, near matches, bounds, annotations
files              files that are written whole, or moved aside whole
folder_lock        one run at a time in a folder
signatures         what a function takes, read once
patching           attributes that are other than they are for a while
distributed        processes that end together
optional_packages  packages that may not be installed, and how to get them
terminal           what is printed: escapes for what a terminal would obey
text               completions as text, the answer in one, repetition
tables             rows that say what was checked, and how they are printed
fork_client        processes forked from one that has imported what they need
fork_server        the program of that process
run_clock          the time that a process had for itself on a busy machine
resources          processors, processes and threads that are left
dataset_rows       values of a dataset's rows as plain Python, whatever its format
"""
