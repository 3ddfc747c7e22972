"""The parts of `choice_answer`: the patterns that name a choice.

patterns   How a text names one of several choices: where it says so, and in what dress. All in time linear in the
           text.
sentences  The sentences in which models say what they take: "The answer is B", "So, B.", "B is the best choice",
           "答案：B".
"""
