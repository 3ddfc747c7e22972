"""Helpers that all other folders of the package use; they import none of these folders.

import_path        functions by path
lazy_imports       imports that wait until a name is read
validation         refusals, near matches, bounds, annotations
files              files that are written whole or not at all
folder_lock        one run at a time in a folder
signatures         the parameters of a function, read once
patching           temporary changes of attributes
distributed        processes that end together
optional_packages  packages that may not be installed, and how to install them
terminal           printing, with escapes for characters that a terminal would obey
text               completions as text, the answer in a completion, repetition
tables             rows that report checks, and their layout as text
fork_client        processes forked from a process that has imported what they need
fork_server        the program of that process
run_clock          the time that a process had for itself on a busy machine
resources          processors, processes and threads that are left
dataset_rows       values of a dataset's rows as plain Python, whatever its format
"""
