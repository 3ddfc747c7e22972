"""The parts of `choice_answer`: they find the choice that a completion names.

patterns   The search for the choice that a text names, by its letter or its text, with or without formatting.
sentences  The sentences in which models state their answer: "The answer is B", "So, B.", "B is the best choice",
           "答案：B".
"""
