r"""The parts of `math_answer`: from a model's text to an expression, and whether two expressions are equal.

answer_lists   What stands between two boxes or tags: a comma, an equals sign, a hedge, or words that keep them apart.
assignments    Assignments, `x = 1, y = 2`: their values by name, and in the order of a tuple.
boxes          Where the final answer stands: the last `\boxed{}` or `<answer></answer>`. Linear, so it is safe on any
               text.
choice_labels  The labels of choices in a cleaned answer: `\text{(B)} 12`, `B. 12`, `\text{Option B}`.
comparisons    Words behind a number that compare it: how much less something is, of which the number alone says
               another thing.
degrees        Sines of degrees as those of radians: `\sin 45\degree` is `\sin(\frac{\pi}{4})`, and no number of
               degrees.
equivalence    Whether two cleaned answers are the same: tuples, intervals, sets, unions, matrices, relations, part by
               part.
latex          Final answers in LaTeX: one spelling for each thing, brackets.
parse          What a cleaned answer is by its outermost signs: a tuple, an interval, a set, a union, a matrix, a
               relation.
preload        Makes the processes forked after its import fast from their first answer on; workers load it, nothing
               else does.
styles         What changes an answer's looks and not its meaning, taken out: fonts, colours, spaces, ticks; `a \over
               b`.
terms          Numbers as they are written, and words, in a cleaned answer (see `_math.clean`).
unevaluated    Whether an expression, as the reader gives it (not evaluated), leaves arithmetic undone.
unicode        Typed signs as LaTeX: `½`, `x²`, `７２`, `θ`, `≤`, `√12`, `5 ㎡`.
unit_names     Which words are units, in one spelling (`cm^2`, `m s^-2`, `dollar d^-1`), and which words are none.
units          Units in a cleaned answer (see `_math.clean`): `18 dollars`, `5\text{ cm}^2`, `42\%`, `\$18\text{ per
               day}`.
values         Whether two expressions have the same value: math-verify's LaTeX reader, then exact or 60-digit values.
"""
