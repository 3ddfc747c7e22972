"""The parts of `python_tests`: the program in a completion, and the tests of a row.

cases    What a row of a dataset asks of a Python program: cases of a script, cases of a function, or asserts.
extract  The search for the Python program in a completion. Python itself parses nothing, because deep nesting can
         crash it.
"""
