"""What every room uses, and knows none of them.

loading      functions by path
values       refusals, near matches, bounds, annotations
files        files that are written whole, or moved aside whole
signatures   what a function takes, read once
attributes   attributes that are other than they are for a while
ranks        processes that end together
packages     those that may not be installed, and how to get them
terminal     what is printed: escapes for what a terminal would obey
texts        completions as text, the answer in one, repetition
forking      processes forked from one that has imported what they need; `zygote` is its program
clock        time that a process had for itself on a busy machine
machine      processors, processes and threads that are left
"""
