r"""The parts of `math_answer`: from a model's text to an expression, and whether two expressions are equal.

answer_lists   How the text between two boxes or tags joins them: a list, an equation, a hedge, or not at all.
assignments    Assignments such as `x = 1, y = 2`: their values by name, and in the order of a tuple.
boxes          The search for the final answer: the last `\boxed{}` or `<answer></answer>`.
choice_labels  The labels of choices in a cleaned answer: `\text{(B)} 12`, `B. 12`, `\text{Option B}`.
comparisons    Words after a number that compare it ("less"), so that the number alone says something else.
degrees        Angles in degrees within sines and other functions, turned into radians.
equivalence    The comparison of two cleaned answers: tuples, intervals, sets, unions, matrices, relations, part by
               part.
latex          The cleaning of an answer in LaTeX: one spelling for each notation; brackets.
parse          The shape of a cleaned answer by its outermost signs: a tuple, an interval, a set, a union, a matrix,
               a relation.
preload        Warms the LaTeX parser up, so that forked processes are fast from their first answer on.
styles         Removes what changes an answer's looks and not its meaning: fonts, colours, spaces, ticks; `a \over b`.
terms          Numbers and words in a cleaned answer.
unevaluated    A check for arithmetic that an expression leaves undone.
unicode        Typed signs as LaTeX: `½`, `x²`, `７２`, `θ`, `≤`, `√12`, `5 ㎡`.
unit_names     The words that are units, in one spelling (`cm^2`, `m s^-2`, `dollar d^-1`), and which words are none.
units          Units in a cleaned answer: `18 dollars`, `5\text{ cm}^2`, `42\%`, `\$18\text{ per day}`.
values         The comparison of two expressions by value: math-verify's LaTeX reader, then exact or 60-digit values.
"""
