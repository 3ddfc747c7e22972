"""The parts of `python_tests`: programs in a text, and test cases.

cases    How a row of a dataset says what a Python program must do: cases of a script, cases of a function, or asserts.
extract  Which part of a completion is its Python program. Nothing is parsed by Python itself, which deep nesting can
         crash.
"""
